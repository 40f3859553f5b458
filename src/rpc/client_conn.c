/* One HTTP/2 connection of a channel: nghttp2's callbacks, and the out chain through which a turn's
 * frames leave in one writev. Payload is never copied on its way out: nghttp2 hands DATA frames
 * over with NO_COPY and the chain references the callers' slices.
 *
 * nghttp2's callbacks run inside mem_recv and mem_send and must not free the session; a connection
 * that fails is only marked dead there and taken apart by client_conn_turn. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/client_internal.h"

#define WRITE_ROUNDS                                                                               \
    64u /* of filling and writing the chain before other connections get their turn */

void client_conn_dirty(struct client_conn *conn) {
    conn->dirty = true;
    client_channel_dirty(conn->ch);
}

void client_conn_kill(struct client_conn *conn, const char *fmt, ...) {
    if (!conn->dead) {
        va_list ap;

        va_start(ap, fmt);
        (void)vsnprintf(conn->why, sizeof conn->why, fmt, ap); /* a cut text still tells */
        va_end(ap);
        conn->dead = true;
    }
    client_conn_dirty(conn);
}

/* ---- the out chain ---- */

static struct client_segment *out_at(struct client_conn *conn, size_t i) {
    return &conn->segments[(conn->seg_head + i) % CLIENT_OUT_SEGMENTS];
}

static bool out_room(const struct client_conn *conn) {
    return conn->seg_count + 8 < CLIENT_OUT_SEGMENTS && conn->out_bytes < CLIENT_OUT_BYTES &&
           conn->control_used + CLIENT_CONTROL_ROOM <= CLIENT_CONTROL_BYTES;
}

static void out_push(struct client_conn *conn, struct client_segment seg) {
    OC_CHECK(conn->seg_count < CLIENT_OUT_SEGMENTS);
    *out_at(conn, conn->seg_count) = seg;
    conn->seg_count++;
    conn->out_bytes += seg.len;
}

/* Frame headers and control frames are small and are copied; neighbours become one segment. */
static bool out_push_control(struct client_conn *conn, const uint8_t *p, size_t len) {
    uint8_t *at = conn->control + conn->control_used;

    if (len > CLIENT_CONTROL_BYTES - conn->control_used) {
        return false;
    }
    memcpy(at, p, len);
    conn->control_used += len;
    if (conn->seg_count > 0) {
        struct client_segment *last = out_at(conn, conn->seg_count - 1);

        if (last->call == NULL && last->owner == NULL && last->p + last->len == at) {
            last->len += len;
            conn->out_bytes += len;
            return true;
        }
    }
    out_push(conn, (struct client_segment){.p = at, .len = len});
    return true;
}

/* Out of the chain first: whoever hears of the release may end calls and walk the chain. */
static void out_pop(struct client_conn *conn) {
    struct client_segment first = *out_at(conn, 0);

    conn->seg_head = (conn->seg_head + 1) % CLIENT_OUT_SEGMENTS;
    conn->seg_count--;
    conn->out_bytes -= first.len;
    oc_ref_put(first.owner);
}

static void out_consume(struct client_conn *conn, size_t n) {
    while (n > 0) {
        struct client_segment *seg = out_at(conn, 0);

        if (n < seg->len) {
            seg->p += n;
            seg->len -= n;
            conn->out_bytes -= n;
            break;
        }
        n -= seg->len;
        out_pop(conn);
    }
    if (conn->seg_count == 0) {
        conn->control_used = 0;
    }
}

/* True when something was written and the socket may take more. */
static bool out_write(struct client_conn *conn) {
    struct iovec iov[CLIENT_OUT_SEGMENTS];
    size_t before = conn->out_bytes;

    for (size_t i = 0; i < conn->seg_count; i++) {
        const struct client_segment *seg = out_at(conn, i);

        iov[i] = (struct iovec){.iov_base = (void *)(uintptr_t)seg->p, .iov_len = seg->len};
    }
    int64_t n = oc_tcp_try_writev(conn->tcp, iov, (int)conn->seg_count);
    if (n < 0) {
        client_conn_kill(conn, "connection lost while sending");
        return false;
    }
    out_consume(conn, (size_t)n);
    if ((size_t)n < before) {
        conn->want_write = true;
        oc_tcp_want_write(conn->tcp);
        return false;
    }
    return true;
}

/* A call ended while bytes of it still wait in the chain: their owners may go now, so the rest
 * becomes ours. At most CLIENT_OUT_BYTES plus one frame are copied. */
static void out_privatise(struct client_conn *conn, struct oc_client_call *call) {
    for (size_t i = 0; i < conn->seg_count; i++) {
        struct client_segment *seg = out_at(conn, i);
        struct oc_ref *owner = seg->owner;

        if (seg->call != call) {
            continue;
        }
        struct client_copy *copy = client_copy_new(conn->ch, seg->len);
        if (copy == NULL) {
            client_conn_kill(conn, "out of memory");
            /* Nothing of the chain is sent any more; the dangling segment is dropped unread. */
            seg->p = NULL;
        } else {
            memcpy(copy->bytes, seg->p, seg->len);
            seg->p = copy->bytes;
        }
        seg->owner = copy == NULL ? NULL : &copy->ref;
        seg->call = NULL;
        oc_ref_put(owner);
    }
}

/* ---- nghttp2: sending ---- */

static ssize_t on_read_data(nghttp2_session *session, int32_t stream_id, uint8_t *buf,
                            size_t length, uint32_t *data_flags, nghttp2_data_source *source,
                            void *user_data) {
    struct client_conn *conn = user_data;
    struct oc_client_call *call = nghttp2_session_get_stream_user_data(session, stream_id);

    (void)buf;
    (void)source;
    if (call == NULL) { /* ended: its RST_STREAM is on the way */
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    size_t n = client_sendq_peek(&call->out, length, CLIENT_OUT_SEGMENTS - conn->seg_count - 4);
    if (n == 0 && !call->half_closed) {
        call->deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    *data_flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (n == call->out.bytes && call->half_closed) {
        *data_flags |= NGHTTP2_DATA_FLAG_EOF;
        call->eof_sent = true;
    }
    return (ssize_t)n;
}

static int on_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *framehd,
                        size_t length, nghttp2_data_source *source, void *user_data) {
    struct client_conn *conn = user_data;
    struct oc_client_call *call =
        nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);

    (void)source;
    OC_CHECK(call != NULL && frame->data.padlen == 0);
    if (!out_push_control(conn, framehd, 9)) {
        return NGHTTP2_ERR_WOULDBLOCK;
    }
    while (length > 0) {
        struct oc_slice s = client_sendq_take(&call->out, length);

        out_push(conn, (struct client_segment){s.p, s.len, s.owner, call});
        length -= s.len;
    }
    client_call_sent_some(call);
    return out_room(conn) ? 0 : NGHTTP2_ERR_PAUSE;
}

static ssize_t on_frame_length(nghttp2_session *session, uint8_t frame_type, int32_t stream_id,
                               int32_t session_window, int32_t stream_window,
                               uint32_t remote_max_frame, void *user_data) {
    uint32_t n = remote_max_frame < CLIENT_FRAME_BYTES ? remote_max_frame : CLIENT_FRAME_BYTES;

    (void)session;
    (void)frame_type;
    (void)stream_id;
    (void)session_window;
    (void)stream_window;
    (void)user_data;
    return (ssize_t)n;
}

/* Before, not after: from here on the server may come to know of the call. */
static int on_before_frame_send(nghttp2_session *session, const nghttp2_frame *frame,
                                void *user_data) {
    (void)user_data;
    if (frame->hd.type == NGHTTP2_HEADERS) {
        struct oc_client_call *call =
            nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);

        if (call != NULL) {
            call->request_sent = true;
        }
    }
    return 0;
}

static struct oc_client_call *find_call(struct client_conn *conn, int32_t stream_id) {
    oc_list_each (it, &conn->calls) {
        struct oc_client_call *call = OC_CONTAINER(it, struct oc_client_call, link);

        if (call->stream_id == stream_id) {
            return call;
        }
    }
    return NULL;
}

static int on_frame_not_sent(nghttp2_session *session, const nghttp2_frame *frame, int lib_error,
                             void *user_data) {
    struct client_conn *conn = user_data;

    (void)session;
    if (frame->hd.type == NGHTTP2_HEADERS) {
        struct oc_client_call *call = find_call(conn, frame->hd.stream_id);

        if (call != NULL) {
            call->unprocessed = true;
            client_call_end(call, OC_E_UNAVAILABLE, NGHTTP2_CANCEL, "request not sent: %s",
                            nghttp2_strerror(lib_error));
        }
    }
    return 0;
}

/* ---- nghttp2: receiving ---- */

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags,
                     void *user_data) {
    struct oc_client_call *call =
        nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);

    (void)flags;
    (void)user_data;
    if (call != NULL) {
        client_call_on_header(call, oc_span(name, name_len), oc_span(value, value_len));
    }
    return 0;
}

static void on_goaway(struct client_conn *conn, const nghttp2_goaway *goaway) {
    if (goaway->error_code != NGHTTP2_NO_ERROR) {
        conn->goaway_why = nghttp2_http2_strerror(goaway->error_code);
    }
    conn->going_away = true;
    client_channel_conn_ended(conn->ch, conn);
    client_conn_dirty(conn);
}

static int on_frame_received(nghttp2_session *session, const nghttp2_frame *frame,
                             void *user_data) {
    struct client_conn *conn = user_data;
    struct oc_client_call *call;
    bool end = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;

    switch (frame->hd.type) {
    case NGHTTP2_SETTINGS:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) {
            client_channel_ready(conn->ch, conn);
        }
        break;
    case NGHTTP2_GOAWAY:
        on_goaway(conn, &frame->goaway);
        break;
    case NGHTTP2_HEADERS:
        conn->proved = true;
        call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
        if (call != NULL) {
            client_call_on_headers_end(call, end);
        }
        break;
    case NGHTTP2_DATA:
        call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
        if (call != NULL && end) {
            client_call_on_end_stream(call);
        }
        break;
    default:
        break;
    }
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream_id, const uint8_t *data,
                   size_t len, void *user_data) {
    struct client_conn *conn = user_data;
    struct oc_client_call *call = nghttp2_session_get_stream_user_data(session, stream_id);

    (void)flags;
    if (call == NULL) {
        (void)nghttp2_session_consume_connection(session, len);
    } else {
        client_call_on_data(call, data, len);
    }
    conn->dirty = true;
    return 0;
}

static int on_stream_closed(nghttp2_session *session, int32_t stream_id, uint32_t error_code,
                            void *user_data) {
    struct oc_client_call *call = nghttp2_session_get_stream_user_data(session, stream_id);

    (void)user_data;
    if (call != NULL) {
        client_call_on_stream_close(call, error_code);
    }
    return 0;
}

/* ---- life ---- */

static int session_new(struct client_conn *conn) {
    nghttp2_session_callbacks *cbs;
    nghttp2_option *opt;

    if (nghttp2_session_callbacks_new(&cbs) != 0) {
        return OC_E_EXHAUSTED;
    }
    if (nghttp2_option_new(&opt) != 0) {
        nghttp2_session_callbacks_del(cbs);
        return OC_E_EXHAUSTED;
    }
    nghttp2_session_callbacks_set_send_data_callback(cbs, on_send_data);
    nghttp2_session_callbacks_set_data_source_read_length_callback(cbs, on_frame_length);
    nghttp2_session_callbacks_set_before_frame_send_callback(cbs, on_before_frame_send);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(cbs, on_frame_not_sent);
    nghttp2_session_callbacks_set_on_header_callback(cbs, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cbs, on_frame_received);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cbs, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(cbs, on_stream_closed);
    nghttp2_option_set_no_auto_window_update(opt, 1);
    int rv = nghttp2_session_client_new2(&conn->session, cbs, conn, opt);
    nghttp2_option_del(opt);
    nghttp2_session_callbacks_del(cbs);
    return rv == 0 ? 0 : OC_E_EXHAUSTED;
}

static int session_greet(struct client_conn *conn) {
    const struct oc_channel_config *cfg = &conn->ch->cfg;
    nghttp2_settings_entry iv[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, cfg->stream_window},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, CLIENT_FRAME_BYTES},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, CLIENT_CALL_HEADER_BYTES},
    };

    if (nghttp2_submit_settings(conn->session, NGHTTP2_FLAG_NONE, iv, OC_ARRAY_LEN(iv)) != 0 ||
        nghttp2_session_set_local_window_size(conn->session, NGHTTP2_FLAG_NONE, 0,
                                              (int32_t)cfg->connection_window) != 0) {
        return OC_E_EXHAUSTED;
    }
    return 0;
}

static void on_tcp_read(void *user, struct oc_span bytes) {
    struct client_conn *conn = user;

    if (conn->dead) {
        return;
    }
    conn->last_read_ns = client_now_ns(conn->ch);
    if (conn->ping_out) { /* whatever came, the peer lives */
        conn->ping_out = false;
        (void)oc_timer_start(&conn->timer, conn->ch->cfg.keepalive_ms, 0); /* it runs: has room */
    }
    conn->in_nghttp2 = true;
    ssize_t n = nghttp2_session_mem_recv(conn->session, bytes.p, bytes.len);
    conn->in_nghttp2 = false;
    if (n < 0) {
        client_conn_kill(conn, "protocol error: %s", nghttp2_strerror((int)n));
    }
    client_conn_dirty(conn);
}

static void on_tcp_drained(void *user) {
    struct client_conn *conn = user;

    conn->want_write = false;
    client_conn_dirty(conn);
}

static void on_tcp_ended(void *user, int code) {
    struct client_conn *conn = user;

    client_conn_kill(conn, code == 0 ? "connection closed by the server" : "connection lost");
}

static void on_tcp_closed(void *user) {
    struct client_conn *conn = user;
    struct oc_channel *ch = conn->ch;

    OC_CHECK(conn->session == NULL && conn->seg_count == 0);
    oc_list_remove(&conn->link);
    free(conn);
    client_channel_conn_freed(ch);
}

static const struct oc_tcp_events tcp_events = {
    .read = on_tcp_read,
    .drained = on_tcp_drained,
    .ended = on_tcp_ended,
    .closed = on_tcp_closed,
};

static void on_timer(struct oc_timer *timer) {
    struct client_conn *conn = OC_CONTAINER(timer, struct client_conn, timer);
    const struct oc_channel_config *cfg = &conn->ch->cfg;
    uint64_t silent_ms = (client_now_ns(conn->ch) - conn->last_read_ns) / OC_NS_PER_MS;

    if (!conn->ready) {
        client_conn_kill(conn, "no HTTP/2 greeting from the server within %llu ms",
                         (unsigned long long)cfg->connect_timeout_ms);
    } else if (conn->ping_out) {
        client_conn_kill(conn, "keepalive: no answer to a PING within %llu ms",
                         (unsigned long long)cfg->keepalive_timeout_ms);
    } else if (silent_ms >= cfg->keepalive_ms) {
        conn->ping_out = nghttp2_submit_ping(conn->session, NGHTTP2_FLAG_NONE, NULL) == 0;
        (void)oc_timer_start(&conn->timer, cfg->keepalive_timeout_ms, 0); /* it ran: has room */
        client_conn_dirty(conn);
    } else {
        (void)oc_timer_start(&conn->timer, cfg->keepalive_ms - silent_ms, 0); /* as above */
    }
}

int client_conn_new(struct oc_channel *ch, struct oc_tcp *tcp, struct client_conn **ret) {
    struct client_conn *conn = malloc(sizeof *conn);

    if (conn == NULL) {
        return OC_E_EXHAUSTED;
    }
    memset(conn, 0, offsetof(struct client_conn, control));
    conn->ch = ch;
    conn->tcp = tcp;
    conn->last_read_ns = client_now_ns(ch);
    oc_list_init(&conn->calls);
    oc_timer_init(&conn->timer, ch->loop, on_timer);
    if (session_new(conn) != 0 || session_greet(conn) != 0 ||
        oc_timer_start(&conn->timer, ch->cfg.connect_timeout_ms, 0) != 0) {
        oc_timer_done(&conn->timer);
        nghttp2_session_del(conn->session);
        free(conn);
        return OC_E_EXHAUSTED;
    }
    oc_list_push_back(&ch->conns, &conn->link);
    oc_tcp_set_user(tcp, &tcp_events, conn);
    oc_tcp_read_start(tcp);
    client_conn_dirty(conn);
    *ret = conn;
    return 0;
}

bool client_conn_has_room(struct client_conn *conn) {
    return conn->ready && !conn->going_away && !conn->dead &&
           conn->call_count < nghttp2_session_get_remote_settings(
                                  conn->session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
}

/* ---- calls on the connection ---- */

#define NV_LITERAL(name, value)                                                                    \
    {                                                                                              \
        (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(value), sizeof(name) - 1,             \
            sizeof(value) - 1, NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE        \
    }

static nghttp2_nv nv_of(struct oc_span name, struct oc_span value) {
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name.p, (uint8_t *)(uintptr_t)value.p, name.len,
                        value.len, NGHTTP2_NV_FLAG_NONE};
}

int client_conn_start(struct client_conn *conn, struct oc_client_call *call) {
    nghttp2_nv fixed[] = {
        NV_LITERAL(":method", "POST"),
        NV_LITERAL(":scheme", "http"),
        nv_of(OC_SPAN_LIT(":path"), oc_span_str(call->path)),
        nv_of(OC_SPAN_LIT(":authority"), oc_span_str(conn->ch->addr)),
        NV_LITERAL("content-type", "application/grpc"),
        NV_LITERAL("te", "trailers"),
        NV_LITERAL("user-agent", "ocache-c/" OC_VERSION),
    };
    size_t count = OC_ARRAY_LEN(fixed);
    nghttp2_nv *nv = fixed;
    nghttp2_data_provider provider = {.source = {.ptr = NULL}, .read_callback = on_read_data};

    if (call->metadata_count > 0) {
        nv = oc_arena_alloc(&call->arena, (count + call->metadata_count) * sizeof *nv);
        if (nv == NULL) {
            return OC_E_EXHAUSTED;
        }
        memcpy(nv, fixed, sizeof fixed);
        for (const struct client_header *h = call->metadata; h != NULL; h = h->next) {
            nv[count++] = nv_of(h->name, h->value);
        }
    }
    int32_t id = nghttp2_submit_request(conn->session, NULL, nv, count, &provider, call);
    if (id == NGHTTP2_ERR_STREAM_ID_NOT_AVAILABLE) {
        /* 2^30 calls were made on it: a fresh one takes over. */
        conn->going_away = true;
        client_channel_conn_ended(conn->ch, conn);
        return OC_AGAIN;
    }
    if (id < 0) {
        return OC_E_EXHAUSTED;
    }
    call->stream_id = id;
    call->conn = conn;
    call->state = CLIENT_CALL_OPEN;
    oc_list_remove(&call->link); /* from the channel's queue */
    oc_list_push_back(&conn->calls, &call->link);
    conn->call_count++;
    client_conn_dirty(conn);
    return 0;
}

void client_conn_detach(struct client_conn *conn, struct oc_client_call *call, uint32_t rst) {
    if (conn->session != NULL) {
        /* With NO_ERROR the server has said its last word; a reset tells it only that we stop, too.
         * A needless one costs it as much as an attack would. */
        bool done = rst == CLIENT_NO_RST ||
                    (rst == NGHTTP2_NO_ERROR &&
                     nghttp2_session_get_stream_local_close(conn->session, call->stream_id) == 1);

        (void)nghttp2_session_set_stream_user_data(conn->session, call->stream_id, NULL);
        if (!done && nghttp2_submit_rst_stream(conn->session, NGHTTP2_FLAG_NONE, call->stream_id,
                                               rst) != 0) {
            client_conn_kill(conn, "out of memory");
        }
        if (call->unconsumed > 0) {
            (void)nghttp2_session_consume_connection(conn->session, (size_t)call->unconsumed);
            call->unconsumed = 0;
        }
        out_privatise(conn, call);
    }
    oc_list_remove(&call->link);
    conn->call_count--;
    call->conn = NULL;
    client_conn_dirty(conn);
}

void client_conn_resume(struct client_conn *conn, struct oc_client_call *call) {
    if (call->deferred && conn->session != NULL) {
        call->deferred = false;
        (void)nghttp2_session_resume_data(conn->session,
                                          call->stream_id); /* none: stream is gone */
    }
    client_conn_dirty(conn);
}

void client_conn_consume(struct client_conn *conn, int32_t stream_id, size_t n) {
    if (conn->session != NULL && nghttp2_session_consume(conn->session, stream_id, n) != 0) {
        client_conn_kill(conn, "out of memory");
    }
    conn->dirty = true;
    client_channel_dirty(conn->ch);
}

/* ---- end of turn ---- */

/* Let nghttp2 serialise what is due. False: nothing more to send, or failed. */
static bool fill(struct client_conn *conn) {
    conn->in_nghttp2 = true;
    while (out_room(conn) && !conn->dead) {
        const uint8_t *data;
        ssize_t n = nghttp2_session_mem_send(conn->session, &data);

        if (n < 0) {
            client_conn_kill(conn, "protocol error: %s", nghttp2_strerror((int)n));
        } else if (n == 0) {
            break;
        } else if (!out_push_control(conn, data, (size_t)n)) {
            client_conn_kill(conn, "request headers too large");
        }
    }
    conn->in_nghttp2 = false;
    return !conn->dead && conn->out_bytes > 0;
}

static void bury(struct client_conn *conn) {
    conn->going_away = true;
    client_channel_conn_ended(conn->ch, conn);
    nghttp2_session_del(conn->session);
    conn->session = NULL;
    while (!oc_list_empty(&conn->calls)) {
        struct oc_client_call *call = OC_CONTAINER(conn->calls.next, struct oc_client_call, link);

        call->unprocessed = !call->request_sent;
        client_call_end(call, OC_E_UNAVAILABLE, NGHTTP2_CANCEL, "%s: %s%s%s", conn->ch->addr,
                        conn->why, conn->goaway_why == NULL ? "" : ": ",
                        conn->goaway_why == NULL ? "" : conn->goaway_why);
    }
    while (conn->seg_count > 0) {
        out_pop(conn);
    }
    oc_timer_done(&conn->timer);
    conn->closing = true;
    oc_tcp_close(conn->tcp, false);
}

void client_conn_turn(struct client_conn *conn) {
    if (conn->closing || conn->in_nghttp2) {
        return;
    }
    conn->dirty = false;
    for (unsigned round = 0; !conn->dead && !conn->want_write; round++) {
        if (!fill(conn) || !out_write(conn)) {
            break;
        }
        if (round == WRITE_ROUNDS) {
            client_conn_dirty(conn);
            break;
        }
    }
    if (!conn->dead && !nghttp2_session_want_read(conn->session) &&
        !nghttp2_session_want_write(conn->session) && conn->seg_count == 0) {
        client_conn_kill(conn, "HTTP/2 session ended");
    }
    if (!conn->dead && conn->going_away && conn->call_count == 0 && conn->seg_count == 0) {
        client_conn_kill(conn, "going away");
    }
    if (conn->dead) {
        bury(conn);
    }
}
