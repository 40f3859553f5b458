/* nghttp2's callbacks: what it hears becomes calls, what calls want becomes frames.
 *
 * Streams are found by their user data; the one looked up last is kept at hand, because events come
 * in bursts for one stream. Payload passes without a copy both ways: received bytes are handed on
 * where they lie in the read buffer, sent bytes are gathered into the worker's batch (h2_send.c).
 */
#include "base/event.h"
#include "rpc/server_internal.h"

#define H2_JUNK_BURST 10000u /* empty DATA frames, SETTINGS; nghttp2 bounds or ignores the rest */
#define H2_JUNK_PER_S 1000u

static const char ping_alive[8] = "oc-alive";
static const char ping_drain[8] = "oc-drain";

static struct oc_call *find_call(struct server_conn *conn, int32_t stream_id) {
    struct oc_call *hot = conn->hot;

    if (hot != NULL && hot->stream_id == stream_id) {
        return hot;
    }
    hot = nghttp2_session_get_stream_user_data(conn->h2, stream_id);
    if (hot != NULL) {
        OC_MAGIC_CHECK(hot, SERVER_CALL_MAGIC);
        conn->hot = hot;
    }
    return hot;
}

/* A token bucket in nanoseconds: every event costs 1/per_s seconds. False: it is empty. */
static bool bucket_take(uint64_t *level_ns, uint64_t *at_ns, uint64_t now_ns, uint64_t burst,
                        uint64_t per_s) {
    uint64_t cost = OC_NS_PER_S / per_s;
    uint64_t cap = burst * cost;

    if (*at_ns == 0) {
        *level_ns = cap;
    } else if (now_ns > *at_ns) {
        uint64_t more = now_ns - *at_ns;
        *level_ns = more >= cap - *level_ns ? cap : *level_ns + more;
    }
    *at_ns = now_ns == 0 ? 1 : now_ns;
    if (*level_ns < cost) {
        return false;
    }
    *level_ns -= cost;
    return true;
}

void server_h2_terminate(struct server_conn *conn, uint32_t code) {
    if (nghttp2_session_terminate_session(conn->h2, code) != 0) {
        server_conn_kill(conn, true);
        return;
    }
    conn->ending = true;
    server_conn_dirty(conn);
}

/* Streams that the peer opens only to have them reset, whichever way, cost us work for nothing. */
static void count_reset(struct server_conn *conn) {
    const struct oc_rpc_config *cfg = &conn->w->s->cfg;

    if (!conn->ending && !bucket_take(&conn->reset_tokens_ns, &conn->reset_at_ns, conn->w->now_ns,
                                      cfg->reset_burst, cfg->reset_per_s)) {
        server_count(&conn->w->counts.rapid_reset_closed, 1);
        server_h2_terminate(conn, NGHTTP2_ENHANCE_YOUR_CALM);
    }
}

static void count_junk(struct server_conn *conn) {
    if (!conn->ending && !bucket_take(&conn->junk_tokens_ns, &conn->junk_at_ns, conn->w->now_ns,
                                      H2_JUNK_BURST, H2_JUNK_PER_S)) {
        server_h2_terminate(conn, NGHTTP2_ENHANCE_YOUR_CALM);
    }
}

/* Beyond every limit: what is left of the input is not even decoded. */
static int give_up(struct server_conn *conn) {
    server_h2_terminate(conn, NGHTTP2_ENHANCE_YOUR_CALM);
    return NGHTTP2_ERR_CALLBACK_FAILURE;
}

/* ---- receiving ---- */

static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *hd, void *user) {
    (void)session;
    /* nghttp2 keeps the debug data of a GOAWAY until it is complete, whatever its length. */
    return hd->type == NGHTTP2_GOAWAY && hd->length > SERVER_GOAWAY_MAX ? give_up(user) : 0;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    static const nghttp2_extpri in_turns = {.urgency = NGHTTP2_EXTPRI_DEFAULT_URGENCY, .inc = 1};
    struct server_conn *conn = user;

    conn->head_ns = conn->w->now_ns;
    conn->head_stream = frame->hd.stream_id;
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
        return 0;
    }
    struct oc_call *call = server_call_new(conn, frame->hd.stream_id);
    if (call == NULL) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    conn->hot = call;
    /* The streams of one connection send in turns; what clients say about priority is ignored. */
    if (nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, call) != 0 ||
        nghttp2_session_change_extpri_stream_priority(session, frame->hd.stream_id, &in_turns, 1) !=
            0) {
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    return 0;
}

/* Decoded bytes far beyond the limit mean that a small block was made to unfold: no more decoding.
 */
#define H2_HEADER_BOMB 8u

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, nghttp2_rcbuf *name,
                     nghttp2_rcbuf *value, uint8_t flags, void *user) {
    struct server_conn *conn = user;
    struct oc_call *call = find_call(conn, frame->hd.stream_id);

    (void)session;
    (void)flags;
    if (call == NULL) {
        return 0;
    }
    uint64_t max = conn->w->s->cfg.max_header_bytes;
    call->header_bytes += nghttp2_rcbuf_get_buf(name).len + nghttp2_rcbuf_get_buf(value).len + 32;
    if (call->header_bytes > max) {
        call->head_too_long = true;
        return call->header_bytes > max * H2_HEADER_BOMB ? give_up(conn) : 0;
    }
    if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        server_call_header(call, name, value);
    }
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream_id, const uint8_t *data,
                   size_t len, void *user) {
    struct oc_call *call = find_call(user, stream_id);

    (void)session;
    if (call != NULL) {
        server_call_data(call, oc_span(data, len), (flags & NGHTTP2_FLAG_END_STREAM) != 0);
    }
    return 0;
}

static void headers_received(struct server_conn *conn, const nghttp2_frame *frame) {
    struct oc_call *call = find_call(conn, frame->hd.stream_id);

    conn->head_ns = 0;
    if (call == NULL) {
        return;
    }
    if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        call->remote_closed = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
        server_call_begin(call);
    }
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
        server_call_half_closed(call);
    }
}

static void ping_received(struct server_conn *conn, const nghttp2_frame *frame) {
    if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0 && conn->draining &&
        memcmp(frame->ping.opaque_data, ping_drain, sizeof ping_drain) == 0) {
        server_h2_goaway_final(conn);
    }
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    struct server_conn *conn = user;

    (void)session;
    switch (frame->hd.type) {
    case NGHTTP2_DATA:
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
            struct oc_call *call = find_call(conn, frame->hd.stream_id);

            if (call != NULL) {
                server_call_half_closed(call);
            }
        } else if (frame->hd.length == 0) {
            count_junk(conn);
        }
        break;
    case NGHTTP2_HEADERS:
        headers_received(conn, frame);
        break;
    case NGHTTP2_RST_STREAM:
        server_count(&conn->w->counts.resets_received, 1);
        count_reset(conn);
        break;
    case NGHTTP2_SETTINGS:
        conn->settings_seen = true;
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) {
            count_junk(conn); /* a change of the initial window touches every stream */
        }
        break;
    case NGHTTP2_PING:
        ping_received(conn, frame);
        break;
    default:
        break;
    }
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t stream_id, uint32_t code, void *user) {
    struct server_conn *conn = user;
    struct oc_call *call = find_call(conn, stream_id);

    (void)session;
    if (stream_id == conn->head_stream) {
        conn->head_ns = 0; /* refused for its head: there is no end of it to come */
    }
    if (call != NULL) {
        server_call_stream_closed(call, code == NGHTTP2_NO_ERROR);
    }
    return 0;
}

/* ---- sending ---- */

static ssize_t on_read_length(nghttp2_session *session, uint8_t type, int32_t stream_id,
                              int32_t conn_window, int32_t stream_window, uint32_t max_frame,
                              void *user) {
    ssize_t n = conn_window < stream_window ? conn_window : stream_window;

    (void)session;
    (void)type;
    (void)stream_id;
    (void)user;
    n = n < (ssize_t)max_frame ? n : (ssize_t)max_frame;
    return n < (ssize_t)SERVER_SEND_FRAME ? n : (ssize_t)SERVER_SEND_FRAME;
}

static int on_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *head,
                        size_t len, nghttp2_data_source *source, void *user) {
    struct server_conn *conn = user;
    struct server_out *out = &conn->w->out;
    struct oc_call *call = source->ptr;

    (void)session;
    (void)frame;
    if (!server_out_room(out, SERVER_FRAME_ROOM + SERVER_CONTROL_ROOM, SERVER_FRAME_SLICES * 2)) {
        return NGHTTP2_ERR_WOULDBLOCK;
    }
    server_out_copy(out, head, 9);
    server_send_emit(call, out, len);
    call->framed = 0;
    call->sent_ns = conn->w->now_ns;
    if (call->want_writable && server_send_below_low(call) && oc_list_empty(&call->write_link)) {
        oc_list_push_back(&conn->writable, &call->write_link);
    }
    return 0;
}

static void reset_sent(struct server_conn *conn, uint32_t code) {
    if (code == NGHTTP2_REFUSED_STREAM) {
        server_count(&conn->w->counts.refused_streams, 1);
        count_reset(conn);
    } else if (code != NGHTTP2_NO_ERROR && code != NGHTTP2_CANCEL) {
        server_count(&conn->w->counts.protocol_errors, 1);
        count_reset(conn);
    }
}

static int on_frame_sent(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    struct server_conn *conn = user;

    switch (frame->hd.type) {
    case NGHTTP2_RST_STREAM:
        reset_sent(conn, frame->rst_stream.error_code);
        break;
    case NGHTTP2_GOAWAY:
        if (frame->goaway.error_code != NGHTTP2_NO_ERROR) {
            server_count(&conn->w->counts.protocol_errors, 1);
        } else if (conn->draining && !conn->goaway_final) {
            server_h2_ping(conn, ping_drain); /* now, for pings overtake other frames */
        }
        break;
    case NGHTTP2_HEADERS:
    case NGHTTP2_DATA:
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
            struct oc_call *call = find_call(conn, frame->hd.stream_id);

            /* Answered before the request was complete: the rest of it is not wanted. */
            if (call != NULL && !call->remote_closed &&
                nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                          NGHTTP2_NO_ERROR) != 0) {
                return NGHTTP2_ERR_CALLBACK_FAILURE;
            }
        }
        break;
    default:
        break;
    }
    return 0;
}

bool server_h2_fill(struct server_conn *conn) {
    struct server_out *out = &conn->w->out;

    while (server_out_room(out, SERVER_CONTROL_ROOM, 1)) {
        const uint8_t *p;
        ssize_t n = nghttp2_session_mem_send(conn->h2, &p);

        if (n < 0 || n > (ssize_t)SERVER_CONTROL_ROOM) {
            return false;
        }
        if (n == 0) {
            break;
        }
        server_out_copy(out, p, (size_t)n);
    }
    return true;
}

/* ---- the session ---- */

int server_h2_library(struct oc_rpc_server *s) {
    nghttp2_session_callbacks *cb;

    if (nghttp2_session_callbacks_new(&cb) != 0) {
        return OC_E_EXHAUSTED;
    }
    s->h2_callbacks = cb;
    nghttp2_session_callbacks_set_on_begin_frame_callback(cb, on_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback2(cb, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    nghttp2_session_callbacks_set_data_source_read_length_callback(cb, on_read_length);
    nghttp2_session_callbacks_set_send_data_callback(cb, on_send_data);
    nghttp2_session_callbacks_set_on_frame_send_callback(cb, on_frame_sent);
    if (nghttp2_option_new(&s->h2_options) != 0) {
        return OC_E_EXHAUSTED;
    }
    nghttp2_option_set_no_auto_window_update(s->h2_options, 1);
    nghttp2_option_set_no_closed_streams(s->h2_options, 1);
    /* Behind our own count (count_reset), which answers with a better code. */
    nghttp2_option_set_stream_reset_rate_limit(s->h2_options, (uint64_t)s->cfg.reset_burst * 2 + 16,
                                               (uint64_t)s->cfg.reset_per_s * 2);
    return OC_OK;
}

int server_h2_start(struct server_conn *conn) {
    struct oc_rpc_server *s = conn->w->s;
    nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, s->cfg.max_streams_per_connection},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, s->stream_window},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, SERVER_RECV_FRAME},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE,
         s->cfg.max_header_bytes < UINT32_MAX ? (uint32_t)s->cfg.max_header_bytes : UINT32_MAX},
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
    };

    if (nghttp2_session_server_new3(&conn->h2, s->h2_callbacks, conn, s->h2_options,
                                    SERVER_POOLED ? &conn->w->h2_mem : NULL) != 0) {
        return OC_E_EXHAUSTED;
    }
    if (nghttp2_submit_settings(conn->h2, NGHTTP2_FLAG_NONE, settings, OC_ARRAY_LEN(settings)) !=
        0) {
        return OC_E_EXHAUSTED;
    }
    server_window_init(conn);
    return OC_OK;
}

/* Frames that wait to be sent: a peer that provokes answers and does not read them must not pile
 * them up. A stream needs a handful at most, and nghttp2 itself bounds acknowledgements. */
static size_t outbound_max(const struct server_conn *conn) {
    return (size_t)conn->w->s->cfg.max_streams_per_connection * 4 + 4096;
}

void server_h2_input(struct server_conn *conn, struct oc_span bytes) {
    conn->in_recv = true;
    ssize_t n = nghttp2_session_mem_recv(conn->h2, bytes.p, bytes.len);
    conn->in_recv = false;
    if (nghttp2_session_get_outbound_queue_size(conn->h2) > outbound_max(conn)) {
        server_count(&conn->w->counts.protocol_errors, 1);
        server_conn_kill(conn, true);
        return;
    }
    if ((n >= 0 && (size_t)n == bytes.len) || (conn->ending && n == NGHTTP2_ERR_CALLBACK_FAILURE)) {
        return;
    }
    if (n == NGHTTP2_ERR_BAD_CLIENT_MAGIC || n == NGHTTP2_ERR_NOMEM ||
        n == NGHTTP2_ERR_CALLBACK_FAILURE) {
        server_count(&conn->w->counts.protocol_errors, 1);
        server_conn_kill(conn, true);
        return;
    }
    /* Floods and the like: say so, then close. */
    server_h2_terminate(conn, n == NGHTTP2_ERR_FLOODED ? NGHTTP2_ENHANCE_YOUR_CALM
                                                       : NGHTTP2_PROTOCOL_ERROR);
}

void server_h2_ping(struct server_conn *conn, const char opaque[8]) {
    if (nghttp2_submit_ping(conn->h2, NGHTTP2_FLAG_NONE,
                            (const uint8_t *)(opaque != NULL ? opaque : ping_alive)) != 0) {
        server_conn_kill(conn, true);
        return;
    }
    server_conn_dirty(conn);
}

void server_h2_reset(struct oc_call *call, uint32_t code) {
    if (!call->stream_gone &&
        nghttp2_submit_rst_stream(call->conn->h2, NGHTTP2_FLAG_NONE, call->stream_id, code) != 0) {
        server_conn_kill(call->conn, true);
        return;
    }
    server_conn_dirty(call->conn);
}

/* The first GOAWAY names no stream: requests that are on their way are still served. The answer to
 * the ping behind it shows that the peer has seen it; then comes the GOAWAY that names the last
 * one. */
void server_h2_drain(struct server_conn *conn) {
    if (conn->draining) {
        return;
    }
    if (nghttp2_submit_shutdown_notice(conn->h2) != 0) {
        server_conn_kill(conn, true);
        return;
    }
    conn->draining = true;
    conn->drain_ns = conn->w->now_ns;
    server_conn_dirty(conn);
}

void server_h2_goaway_final(struct server_conn *conn) {
    if (conn->goaway_final) {
        return;
    }
    conn->goaway_final = true;
    if (nghttp2_submit_goaway(conn->h2, NGHTTP2_FLAG_NONE,
                              nghttp2_session_get_last_proc_stream_id(conn->h2), NGHTTP2_NO_ERROR,
                              NULL, 0) != 0) {
        server_conn_kill(conn, true);
        return;
    }
    server_conn_dirty(conn);
}
