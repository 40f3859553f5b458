/* Calls of the gRPC client: the send queue, response framing at any split, statuses and how they
 * end. The mapping of HTTP and HTTP/2 errors follows gRPC's "HTTP2 protocol mapping" and "HTTP to
 * gRPC status code mapping" documents. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/codec/percent.h"
#include "rpc/client_internal.h"

#define END_TEXT_BYTES 320u /* of texts made here */

/* ---- copies ---- */

static void copy_release(struct oc_ref *ref) {
    struct client_copy *copy = OC_CONTAINER(ref, struct client_copy, ref);

    if (copy->ch == NULL) {
        free(copy);
    } else {
        oc_pool_put(&copy->ch->copy_pool, copy);
    }
}

struct client_copy *client_copy_new(struct oc_channel *ch, size_t len) {
    struct client_copy *copy = NULL;

    if (len <= CLIENT_SMALL_COPY_BYTES) {
        copy = oc_pool_get(&ch->copy_pool);
        if (copy != NULL) {
            copy->ch = ch;
        }
    } else if (len < SIZE_MAX - sizeof *copy) {
        copy = malloc(sizeof *copy + len);
        if (copy != NULL) {
            copy->ch = NULL;
        }
    }
    if (copy != NULL) {
        oc_ref_init(&copy->ref, copy_release);
    }
    return copy;
}

/* ---- the send queue ---- */

static struct oc_slice *sendq_at(struct client_sendq *q, size_t i) {
    return &q->slices[(q->head + i) % q->cap];
}

static int sendq_reserve(struct client_sendq *q, size_t extra) {
    size_t need, cap;

    if (!oc_add_ok(q->count, extra, &need) || need > SIZE_MAX / sizeof *q->slices / 2) {
        return OC_E_EXHAUSTED;
    }
    if (need <= q->cap) {
        return 0;
    }
    cap = q->cap * 2 > need ? q->cap * 2 : need;
    struct oc_slice *bigger = malloc(cap * sizeof *bigger);
    if (bigger == NULL) {
        return OC_E_EXHAUSTED;
    }
    for (size_t i = 0; i < q->count; i++) {
        bigger[i] = *sendq_at(q, i);
    }
    if (q->slices != q->fixed) {
        free(q->slices);
    }
    q->slices = bigger;
    q->cap = cap;
    q->head = 0;
    return 0;
}

/* Takes over one reference of the owner. */
static void sendq_push(struct client_sendq *q, struct oc_slice s) {
    *sendq_at(q, q->count) = s;
    q->count++;
    q->bytes += s.len;
}

size_t client_sendq_peek(const struct client_sendq *q, size_t max_bytes, size_t max_slices) {
    size_t n = 0;

    for (size_t i = 0; i < q->count && i < max_slices && n < max_bytes; i++) {
        n += q->slices[(q->head + i) % q->cap].len;
    }
    return n < max_bytes ? n : max_bytes;
}

struct oc_slice client_sendq_take(struct client_sendq *q, size_t max_bytes) {
    OC_CHECK(q->count > 0);
    struct oc_slice *first = sendq_at(q, 0);
    struct oc_slice s = *first;

    if (s.len > max_bytes) {
        s.len = max_bytes;
        first->p += max_bytes;
        first->len -= max_bytes;
        oc_ref_get(s.owner);
    } else {
        q->head = (q->head + 1) % q->cap;
        q->count--;
    }
    q->bytes -= s.len;
    return s;
}

static void sendq_clear(struct client_sendq *q) {
    while (q->count > 0) {
        struct oc_ref *owner = sendq_at(q, 0)->owner;

        q->head = (q->head + 1) % q->cap;
        q->count--;
        oc_ref_put(owner);
    }
    q->bytes = 0;
    if (q->slices != q->fixed) {
        free(q->slices);
        q->slices = q->fixed;
        q->cap = OC_ARRAY_LEN(q->fixed);
    }
    q->head = 0;
}

void client_call_sent_some(struct oc_client_call *call) {
    if (call->want_writable && call->out.bytes <= CLIENT_SEND_LOW) {
        call->want_writable = false;
        if (call->events->writable != NULL) {
            call->writable_due = true;
            call->conn->writable_due = true;
            client_channel_dirty(call->ch);
        }
    }
}

/* ---- ending ---- */

void client_call_end(struct oc_client_call *call, int code, uint32_t rst, const char *fmt, ...) {
    struct oc_channel *ch = call->ch;
    enum client_call_state state = call->state;

    if (state == CLIENT_CALL_ENDING) {
        return;
    }
    /* First: what is released below may come back with another send, which is to be ignored. */
    call->state = CLIENT_CALL_ENDING;
    call->end_code = code;
    if (fmt != NULL) {
        char text[END_TEXT_BYTES];
        va_list ap;

        va_start(ap, fmt);
        (void)vsnprintf(text, sizeof text, fmt, ap); /* a cut text still tells */
        va_end(ap);
        call->end_message = oc_arena_copy(&call->arena, oc_span_str(text));
    }
    oc_timer_done(&call->deadline);
    if (state == CLIENT_CALL_OPEN) {
        client_conn_detach(call->conn, call, rst);
    } else {
        oc_list_remove(&call->link);
        ch->queued--;
    }
    sendq_clear(&call->out);
    oc_list_push_back(&ch->ending, &call->link);
    client_channel_dirty(ch);
}

void client_call_deliver_closed(struct oc_client_call *call) {
    struct oc_channel *ch = call->ch;

    OC_MAGIC_CHECK(call, CLIENT_CALL_MAGIC);
    call->events->closed(call, call->end_code, call->end_message);
    oc_buf_done(&call->message);
    oc_arena_done(&call->arena);
    call->magic = 0;
    oc_pool_put(&ch->call_pool, call);
    ch->call_count--;
}

/* ---- the API ---- */

static int copy_metadata(struct oc_client_call *call, struct oc_span name, struct oc_span value) {
    struct client_header *h = oc_arena_alloc(&call->arena, sizeof *h);

    if (h == NULL) {
        return OC_E_EXHAUSTED;
    }
    h->name = oc_arena_copy(&call->arena, name);
    h->value = oc_arena_copy(&call->arena, value);
    if (h->name.p == NULL || h->value.p == NULL) {
        return OC_E_EXHAUSTED;
    }
    h->next = call->metadata;
    call->metadata = h;
    call->metadata_count++;
    return 0;
}

static void on_deadline(struct oc_timer *timer) {
    struct oc_client_call *call = OC_CONTAINER(timer, struct oc_client_call, deadline);

    call->unprocessed = !call->request_sent;
    client_call_end(call, OC_E_DEADLINE, NGHTTP2_CANCEL, "deadline exceeded");
}

static int set_deadline(struct oc_client_call *call, uint64_t deadline_ms) {
    char text[OC_GRPC_TIMEOUT_MAX];
    int rv;

    if (deadline_ms == 0) {
        return 0;
    }
    if (deadline_ms > UINT32_MAX) { /* 49 days: as good as none, and no overflow */
        deadline_ms = UINT32_MAX;
    }
    (void)oc_grpc_timeout_format(text, deadline_ms * OC_NS_PER_MS);
    rv = oc_timer_start(&call->deadline, deadline_ms, 0);
    return rv != 0 ? rv : copy_metadata(call, OC_SPAN_LIT("grpc-timeout"), oc_span_str(text));
}

static void call_init(struct oc_client_call *call, struct oc_channel *ch, const char *path,
                      const struct oc_client_events *events, void *user) {
    call->magic = CLIENT_CALL_MAGIC;
    call->ch = ch;
    call->path = path;
    call->events = events;
    call->user = user;
    call->grpc_status = -1;
    call->out.slices = call->out.fixed;
    call->out.cap = OC_ARRAY_LEN(call->out.fixed);
    oc_timer_init(&call->deadline, ch->loop, on_deadline);
    oc_arena_init(&call->arena, CLIENT_CALL_HEADER_BYTES * 2);
    oc_buf_init(&call->message, (size_t)ch->cfg.max_message_bytes);
    oc_grpc_reader_init(&call->reader, ch->cfg.max_message_bytes);
}

int oc_client_call_new(struct oc_channel *ch, const char *path,
                       const struct oc_client_events *events, void *user, uint64_t deadline_ms,
                       const struct oc_metadata *md, size_t md_count, struct oc_client_call **ret) {
    OC_MAGIC_CHECK(ch, CLIENT_CHANNEL_MAGIC);
    if (ch->queued >= ch->cfg.max_queued_calls || ch->freeing) {
        return OC_E_EXHAUSTED;
    }
    struct oc_client_call *call = oc_pool_get(&ch->call_pool);
    if (call == NULL) {
        return OC_E_EXHAUSTED;
    }
    call_init(call, ch, path, events, user);
    int rv = set_deadline(call, deadline_ms);
    for (size_t i = 0; i < md_count && rv == 0; i++) {
        rv = copy_metadata(call, oc_span_str(md[i].name), md[i].value);
    }
    if (rv != 0) {
        oc_timer_done(&call->deadline);
        oc_arena_done(&call->arena);
        oc_pool_put(&ch->call_pool, call);
        return rv;
    }
    call->state = CLIENT_CALL_QUEUED;
    oc_list_push_back(&ch->queue, &call->link);
    ch->queued++;
    ch->call_count++;
    client_channel_dirty(ch);
    *ret = call;
    return 0;
}

void *oc_client_call_user(const struct oc_client_call *call) {
    OC_MAGIC_CHECK(call, CLIENT_CALL_MAGIC);
    return call->user;
}

static bool after_queueing(struct oc_client_call *call) {
    if (call->state == CLIENT_CALL_OPEN) {
        client_conn_resume(call->conn, call);
    }
    if (call->out.bytes > CLIENT_SEND_HIGH) {
        call->want_writable = true;
        return false;
    }
    return true;
}

static bool send_refused(struct oc_client_call *call, uint64_t len) {
    if (len > UINT32_MAX) {
        client_call_end(call, OC_E_EXHAUSTED, NGHTTP2_CANCEL,
                        "message larger than 4 GiB cannot be sent");
    } else {
        client_call_end(call, OC_E_EXHAUSTED, NGHTTP2_CANCEL, "out of memory");
    }
    return false;
}

bool oc_client_call_send(struct oc_client_call *call, const struct oc_slice *slices, size_t count) {
    uint64_t len = 0;

    OC_MAGIC_CHECK(call, CLIENT_CALL_MAGIC);
    if (call->state == CLIENT_CALL_ENDING || call->half_closed) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!oc_add_ok(len, slices[i].len, &len)) {
            len = UINT64_MAX;
            break;
        }
    }
    struct client_copy *head =
        len > UINT32_MAX ? NULL : client_copy_new(call->ch, OC_GRPC_HEAD_BYTES);
    if (head == NULL || sendq_reserve(&call->out, count + 1) != 0) {
        oc_ref_put(head == NULL ? NULL : &head->ref);
        return send_refused(call, len);
    }
    oc_grpc_head_write(head->bytes, (uint32_t)len);
    sendq_push(&call->out, (struct oc_slice){head->bytes, OC_GRPC_HEAD_BYTES, &head->ref});
    for (size_t i = 0; i < count; i++) {
        if (slices[i].len > 0) {
            oc_ref_get(slices[i].owner);
            sendq_push(&call->out, slices[i]);
        }
    }
    return after_queueing(call);
}

bool oc_client_call_send_copy(struct oc_client_call *call, struct oc_span message) {
    OC_MAGIC_CHECK(call, CLIENT_CALL_MAGIC);
    if (call->state == CLIENT_CALL_ENDING || call->half_closed) {
        return false;
    }
    struct client_copy *copy = message.len > UINT32_MAX
                                   ? NULL
                                   : client_copy_new(call->ch, message.len + OC_GRPC_HEAD_BYTES);
    if (copy == NULL || sendq_reserve(&call->out, 1) != 0) {
        oc_ref_put(copy == NULL ? NULL : &copy->ref);
        return send_refused(call, message.len);
    }
    oc_grpc_head_write(copy->bytes, (uint32_t)message.len);
    if (message.len > 0) {
        memcpy(copy->bytes + OC_GRPC_HEAD_BYTES, message.p, message.len);
    }
    sendq_push(&call->out,
               (struct oc_slice){copy->bytes, message.len + OC_GRPC_HEAD_BYTES, &copy->ref});
    return after_queueing(call);
}

void oc_client_call_half_close(struct oc_client_call *call) {
    OC_MAGIC_CHECK(call, CLIENT_CALL_MAGIC);
    if (!call->half_closed && call->state != CLIENT_CALL_ENDING) {
        call->half_closed = true;
        if (call->state == CLIENT_CALL_OPEN) {
            client_conn_resume(call->conn, call);
        }
    }
}

void oc_client_call_cancel(struct oc_client_call *call) {
    OC_MAGIC_CHECK(call, CLIENT_CALL_MAGIC);
    call->unprocessed = !call->request_sent;
    client_call_end(call, OC_E_CANCELLED, NGHTTP2_CANCEL, "cancelled");
}

void oc_client_call_consumed(struct oc_client_call *call, size_t n) {
    OC_MAGIC_CHECK(call, CLIENT_CALL_MAGIC);
    if (call->state != CLIENT_CALL_OPEN) {
        return; /* the whole window went back when it ended */
    }
    OC_CHECK(n <= call->unconsumed);
    call->unconsumed -= n;
    client_conn_consume(call->conn, call->stream_id, n);
}

struct oc_span oc_client_call_header(const struct oc_client_call *call, const char *name) {
    struct oc_span want = oc_span_str(name);

    OC_MAGIC_CHECK(call, CLIENT_CALL_MAGIC);
    for (const struct client_header *h = call->headers; h != NULL; h = h->next) {
        if (oc_span_equal(h->name, want)) {
            return h->value;
        }
    }
    return OC_SPAN_EMPTY;
}

bool oc_client_call_ended(const struct oc_client_call *call) {
    OC_MAGIC_CHECK(call, CLIENT_CALL_MAGIC);
    return call->state == CLIENT_CALL_ENDING;
}

bool oc_client_call_unprocessed(const struct oc_client_call *call) {
    OC_MAGIC_CHECK(call, CLIENT_CALL_MAGIC);
    return call->unprocessed;
}

/* ---- the response ---- */

static int http_to_code(int http_status) {
    switch (http_status) {
    case 400:
        return OC_E_INTERNAL;
    case 401:
        return OC_E_UNAUTHENTICATED;
    case 403:
        return OC_E_PERMISSION;
    case 404:
        return OC_E_UNIMPLEMENTED;
    case 429:
    case 502:
    case 503:
    case 504:
        return OC_E_UNAVAILABLE;
    default:
        return OC_E_UNKNOWN;
    }
}

/* Decimal digits alone; -1 for anything else. */
static int parse_small(struct oc_span s) {
    int v = 0;

    if (s.len == 0 || s.len > 3) {
        return -1;
    }
    for (size_t i = 0; i < s.len; i++) {
        if (s.p[i] < '0' || s.p[i] > '9') {
            return -1;
        }
        v = v * 10 + (s.p[i] - '0');
    }
    return v;
}

static void headers_too_large(struct oc_client_call *call) {
    client_call_end(call, OC_E_EXHAUSTED, NGHTTP2_CANCEL, "response headers larger than %u bytes",
                    CLIENT_CALL_HEADER_BYTES);
}

void client_call_on_header(struct oc_client_call *call, struct oc_span name, struct oc_span value) {
    if (oc_span_equal(name, OC_SPAN_LIT(":status"))) {
        call->http_status = parse_small(value);
        return;
    }
    if (oc_span_equal(name, OC_SPAN_LIT("grpc-status"))) {
        int v = parse_small(value);

        call->grpc_status = v >= 0 && v <= 16 ? v : -OC_E_UNKNOWN;
        return;
    }
    if (oc_span_equal(name, OC_SPAN_LIT("content-type"))) {
        call->grpc_content = oc_span_starts_with(value, OC_SPAN_LIT("application/grpc"));
    }
    if (oc_span_equal(name, OC_SPAN_LIT("grpc-message"))) {
        call->grpc_message = oc_arena_copy(&call->arena, value);
        if (call->grpc_message.p == NULL) {
            headers_too_large(call);
        }
        return;
    }
    struct client_header *h = oc_arena_alloc(&call->arena, sizeof *h);
    if (h != NULL) {
        h->name = oc_arena_copy(&call->arena, name);
        h->value = oc_arena_copy(&call->arena, value);
    }
    if (h == NULL || h->name.p == NULL || h->value.p == NULL) {
        headers_too_large(call);
        return;
    }
    h->next = call->headers;
    call->headers = h;
}

void client_call_on_headers_end(struct oc_client_call *call, bool end_stream) {
    if (!call->headers_done) {
        if (call->http_status >= 100 && call->http_status < 200) {
            return; /* provisional */
        }
        call->headers_done = true;
        if (end_stream) {
            client_call_on_end_stream(call);
            return;
        }
        if (call->http_status != 200) {
            client_call_end(call, http_to_code(call->http_status), NGHTTP2_CANCEL,
                            "unexpected HTTP status %d", call->http_status);
            return;
        }
        if (!call->grpc_content) {
            client_call_end(call, OC_E_UNKNOWN, NGHTTP2_CANCEL,
                            "the server does not speak gRPC here (content-type)");
            return;
        }
        if (call->events->headers != NULL) {
            call->events->headers(call);
        }
        return;
    }
    if (end_stream) {
        client_call_on_end_stream(call);
    }
}

void client_call_on_end_stream(struct oc_client_call *call) {
    if (call->state == CLIENT_CALL_ENDING) {
        return;
    }
    if (call->grpc_status < 0) {
        if (call->http_status != 200) {
            client_call_end(call, http_to_code(call->http_status), NGHTTP2_NO_ERROR,
                            "unexpected HTTP status %d", call->http_status);
        } else {
            client_call_end(call, OC_E_INTERNAL, NGHTTP2_NO_ERROR,
                            "server closed the stream without a status");
        }
        return;
    }
    if (call->grpc_status == 0 && !oc_grpc_reader_idle(&call->reader)) {
        client_call_end(call, OC_E_INTERNAL, NGHTTP2_NO_ERROR,
                        "response ended in the middle of a message");
        return;
    }
    if (call->grpc_message.len > 0) {
        uint8_t *text = oc_arena_alloc(&call->arena, call->grpc_message.len);
        if (text != NULL) {
            call->end_message = oc_span(text, oc_percent_decode_grpc(text, call->grpc_message));
        }
    }
    client_call_end(call, -call->grpc_status, NGHTTP2_NO_ERROR, NULL);
}

static int h2_to_code(uint32_t h2_error) {
    switch (h2_error) {
    case NGHTTP2_REFUSED_STREAM:
        return OC_E_UNAVAILABLE;
    case NGHTTP2_CANCEL:
        return OC_E_CANCELLED;
    case NGHTTP2_ENHANCE_YOUR_CALM:
        return OC_E_EXHAUSTED;
    case NGHTTP2_INADEQUATE_SECURITY:
        return OC_E_PERMISSION;
    default:
        return OC_E_INTERNAL;
    }
}

void client_call_on_stream_close(struct oc_client_call *call, uint32_t h2_error) {
    if (h2_error == NGHTTP2_REFUSED_STREAM) {
        call->unprocessed = true;
    }
    client_call_end(call, h2_to_code(h2_error), CLIENT_NO_RST, "stream reset by the server: %s",
                    nghttp2_http2_strerror(h2_error));
}

/* ---- messages ---- */

/* Gathers what spans frames. Grows with what really arrived: a head alone costs no memory. */
static bool gather(struct oc_client_call *call, const struct oc_grpc_piece *piece) {
    size_t want = call->message.len + piece->bytes.len;

    if (want > call->message.cap) {
        size_t doubled = call->message.cap * 2 > want ? call->message.cap * 2 : want;
        size_t cap = doubled < piece->message_len ? doubled : piece->message_len;

        if (oc_buf_reserve(&call->message, cap - call->message.len) != 0) {
            return false;
        }
    }
    return oc_buf_append(&call->message, piece->bytes.p, piece->bytes.len) == 0;
}

static void deliver_whole(struct oc_client_call *call, const struct oc_grpc_piece *piece) {
    if (piece->begin && piece->end) {
        call->events->message(call, piece->bytes); /* all of it in one frame: no copy */
        return;
    }
    if (!gather(call, piece)) {
        client_call_end(call, OC_E_EXHAUSTED, NGHTTP2_CANCEL, "out of memory");
        return;
    }
    if (piece->end) {
        call->events->message(call, oc_buf_span(&call->message));
        if (call->message.cap > CLIENT_MESSAGE_KEEP) {
            oc_buf_done(&call->message);
            oc_buf_init(&call->message, (size_t)call->ch->cfg.max_message_bytes);
        }
        call->message.len = 0;
    }
}

static void deliver(struct oc_client_call *call, const struct oc_grpc_piece *piece) {
    if (piece->compressed) {
        client_conn_consume(call->conn, call->stream_id, piece->bytes.len);
        client_call_end(call, OC_E_UNIMPLEMENTED, NGHTTP2_CANCEL,
                        "compressed response although none was asked for");
    } else if (call->events->piece != NULL) {
        call->unconsumed += piece->bytes.len;
        call->events->piece(call, piece->bytes, piece->message_len, piece->begin, piece->end);
    } else {
        client_conn_consume(call->conn, call->stream_id, piece->bytes.len);
        deliver_whole(call, piece);
    }
}

void client_call_on_data(struct oc_client_call *call, const uint8_t *p, size_t len) {
    struct client_conn *conn = call->conn;
    struct oc_span in = oc_span(p, len);
    int rv = 1;

    while (rv > 0 && call->state == CLIENT_CALL_OPEN) {
        struct oc_grpc_piece piece;
        size_t before = in.len;

        rv = oc_grpc_reader_next(&call->reader, &in, &piece);
        /* What is no payload is ours to consume, also of what ends the call: the connection's
         * window is shared with the others. */
        client_conn_consume(conn, call->stream_id,
                            before - in.len - (rv > 0 ? piece.bytes.len : 0));
        if (rv == OC_E_EXHAUSTED) {
            client_call_end(call, rv, NGHTTP2_CANCEL,
                            "received message larger than max (%u vs. %llu)", piece.message_len,
                            (unsigned long long)call->ch->cfg.max_message_bytes);
        } else if (rv < 0) {
            client_call_end(call, OC_E_INTERNAL, NGHTTP2_CANCEL, "malformed response framing");
        } else if (rv > 0) {
            deliver(call, &piece);
        }
    }
    if (call->state != CLIENT_CALL_OPEN && in.len > 0 && conn->session != NULL) {
        /* Ended on the way: the rest is nobody's. */
        (void)nghttp2_session_consume_connection(conn->session, in.len);
    }
}
