/* The request side of a call: its head (which method, which deadline), its messages, its end.
 * Statuses are those grpc-go's server gives. */
#include <stdio.h>
#include <stdlib.h>

#include "rpc/server_internal.h"

/* ---- the head ---- */

static struct oc_span rcbuf_span(nghttp2_rcbuf *b) {
    if (b == NULL) {
        return OC_SPAN_EMPTY;
    }
    nghttp2_vec v = nghttp2_rcbuf_get_buf(b);
    return oc_span(v.base, v.len);
}

static bool name_is(nghttp2_vec name, const char *text, size_t len) {
    return name.len == len && memcmp(name.base, text, len) == 0;
}
#define NAME_IS(name, lit) name_is(name, lit, sizeof(lit) - 1)

static enum server_content content_of(nghttp2_vec v) {
    static const char grpc[] = "application/grpc";
    size_t n = sizeof grpc - 1;

    if (v.len < n || memcmp(v.base, grpc, n) != 0) {
        return CONTENT_OTHER;
    }
    if (v.len == n || v.base[n] == ';') {
        return CONTENT_GRPC;
    }
    if (v.base[n] != '+') {
        return CONTENT_OTHER; /* application/grpc-web is another protocol */
    }
    struct oc_span sub = oc_span(v.base + n + 1, v.len - n - 1);
    const uint8_t *semicolon = memchr(sub.p, ';', sub.len);
    if (semicolon != NULL) {
        sub.len = (size_t)(semicolon - sub.p);
    }
    return oc_span_equal(sub, OC_SPAN_LIT("proto")) ? CONTENT_GRPC : CONTENT_GRPC_BAD;
}

static void set_timeout(struct oc_call *call, nghttp2_vec v) {
    uint64_t ns;

    if (oc_grpc_timeout_parse(oc_span(v.base, v.len), &ns) < 0) {
        call->bad_timeout = true;
    } else if (!oc_add_ok(call->start_ns, ns, &call->deadline_ns)) {
        call->deadline_ns = UINT64_MAX;
    }
}

/* Kept by reference in nghttp2's own counted buffer: nothing is copied. */
static void keep(struct oc_call *call, nghttp2_rcbuf *name, nghttp2_rcbuf *value) {
    struct server_header *at;

    if (call->header_count < SERVER_HEADERS_INLINE) {
        at = &call->headers[call->header_count];
    } else {
        struct server_headers_more *more = call->headers_more;

        if (more == NULL || more->count == OC_ARRAY_LEN(more->headers)) {
            more = oc_arena_alloc(&call->arena, sizeof *more);
            if (more == NULL) {
                call->head_too_long = true;
                return;
            }
            more->count = 0;
            more->next = call->headers_more;
            call->headers_more = more;
        }
        at = &more->headers[more->count++];
    }
    call->header_count++;
    at->name = name;
    at->value = value;
    nghttp2_rcbuf_incref(name);
    nghttp2_rcbuf_incref(value);
}

void server_call_header(struct oc_call *call, nghttp2_rcbuf *name, nghttp2_rcbuf *value) {
    nghttp2_vec n = nghttp2_rcbuf_get_buf(name);

    switch (n.len) {
    case 2:
        if (NAME_IS(n, "te")) {
            return;
        }
        break;
    case 5:
        if (NAME_IS(n, ":path")) {
            nghttp2_rcbuf_incref(value);
            call->path = value; /* nghttp2 refuses a second one */
            return;
        }
        break;
    case 7:
        if (NAME_IS(n, ":method")) {
            nghttp2_rcbuf_incref(value);
            call->verb = value;
            return;
        }
        if (NAME_IS(n, ":scheme")) {
            return;
        }
        break;
    case 12:
        if (NAME_IS(n, "content-type")) {
            call->content = content_of(nghttp2_rcbuf_get_buf(value));
            return;
        }
        if (NAME_IS(n, "grpc-timeout")) {
            set_timeout(call, nghttp2_rcbuf_get_buf(value));
            return;
        }
        break;
    case 20:
        if (NAME_IS(n, "grpc-accept-encoding")) {
            return;
        }
        break;
    default:
        break;
    }
    keep(call, name, value);
}

struct oc_span oc_call_header(const struct oc_call *call, const char *name) {
    size_t len = strlen(name);
    unsigned inlined =
        call->header_count < SERVER_HEADERS_INLINE ? call->header_count : SERVER_HEADERS_INLINE;

    for (unsigned i = 0; i < inlined; i++) {
        if (name_is(nghttp2_rcbuf_get_buf(call->headers[i].name), name, len)) {
            return rcbuf_span(call->headers[i].value);
        }
    }
    for (const struct server_headers_more *m = call->headers_more; m != NULL; m = m->next) {
        for (unsigned i = 0; i < m->count; i++) {
            if (name_is(nghttp2_rcbuf_get_buf(m->headers[i].name), name, len)) {
                return rcbuf_span(m->headers[i].value);
            }
        }
    }
    return OC_SPAN_EMPTY;
}

/* ---- dispatch ---- */

static void reply_text(struct oc_call *call, int status, const char *text) {
    server_http_h2_reply(call, status, "text/plain; charset=utf-8", oc_span_str(text));
}

static void unknown_method(struct oc_call *call) {
    char text[256];
    struct oc_span path = rcbuf_span(call->path);
    int shown = path.len < 200 ? (int)path.len : 200;

    (void)snprintf(text, sizeof text, "unknown method %.*s%s", shown, (const char *)path.p,
                   path.len > 200 ? "..." : "");
    server_call_finish_str(call, OC_E_UNIMPLEMENTED, text);
}

static void head_too_long(struct oc_call *call) {
    char text[96];

    (void)snprintf(text, sizeof text, "request header fields exceed %llu bytes",
                   (unsigned long long)call->conn->w->s->cfg.max_header_bytes);
    if (call->content == CONTENT_GRPC) {
        server_call_finish_str(call, OC_E_EXHAUSTED, text);
    } else {
        call->plain = true;
        reply_text(call, 431, text);
    }
}

/* Not a gRPC call: plain HTTP, or a gRPC method asked for in a wrong way. */
static void begin_plain(struct oc_call *call) {
    struct oc_rpc_server *s = call->conn->w->s;

    call->plain = true;
    if (call->content == CONTENT_GRPC) {
        reply_text(call, 405, "gRPC methods are called with POST");
    } else if (call->content == CONTENT_GRPC_BAD ||
               server_method_find(s, rcbuf_span(call->path)) != NULL) {
        reply_text(call, 415, "the content type of gRPC is application/grpc");
    }
    /* The routes are asked when the request is complete: server_call_half_closed. */
}

static void begin_grpc(struct oc_call *call) {
    struct oc_rpc_worker *w = call->conn->w;
    const struct oc_method *method = server_method_find(w->s, rcbuf_span(call->path));

    if (method == NULL) {
        unknown_method(call);
        return;
    }
    call->method = method;
    if (call->bad_timeout) {
        server_call_finish_str(call, OC_E_INTERNAL, "malformed grpc-timeout");
        return;
    }
    if (server_send_refuses(call->conn)) {
        server_call_finish_str(call, OC_E_EXHAUSTED, "too many response bytes wait to be read");
        return;
    }
    if (w->s->cfg.open_for_calls != NULL && !server_is_health(method) &&
        !w->s->cfg.open_for_calls(w->s->cfg.service)) {
        server_call_finish_str(call, OC_E_UNAVAILABLE, "not ready for calls");
        return;
    }
    oc_grpc_reader_init(&call->reader, method->max_message_bytes != 0 ? method->max_message_bytes
                                                                      : SERVER_MESSAGE_MAX);
    server_count(&w->counts.calls_total, 1);
    if (call->deadline_ns <= w->now_ns) {
        server_call_finish_str(call, OC_E_DEADLINE, "deadline exceeded");
        return;
    }
    if (server_deadline_add(call) < 0) {
        server_call_finish_str(call, OC_E_EXHAUSTED, "out of memory");
        return;
    }
    call->started = true;
    if (method->start != NULL) {
        method->start(call, w->s->cfg.service);
    }
}

/* The head stays until the call ends, and many calls of one peer may keep long ones. */
static bool head_fits(struct oc_call *call) {
    if (server_window_head(call, call->header_bytes)) {
        return true;
    }
    static const char text[] = "the server's receive buffer is full";
    if (call->content == CONTENT_GRPC) {
        server_call_finish_str(call, OC_E_EXHAUSTED, text);
    } else {
        call->plain = true;
        reply_text(call, 503, text);
    }
    return false;
}

void server_call_begin(struct oc_call *call) {
    if (call->head_too_long) {
        head_too_long(call);
    } else if (!head_fits(call)) {
        return;
    } else if (call->content != CONTENT_GRPC ||
               !oc_span_equal(rcbuf_span(call->verb), OC_SPAN_LIT("POST"))) {
        begin_plain(call);
    } else {
        begin_grpc(call);
    }
}

static void serve_h2(struct oc_call *call) {
    struct oc_span path = rcbuf_span(call->path);
    const uint8_t *mark = path.len > 0 ? memchr(path.p, '?', path.len) : NULL;
    size_t path_len = mark != NULL ? (size_t)(mark - path.p) : path.len;
    struct oc_http req = {
        .conn = call->conn,
        .call = call,
        .method = rcbuf_span(call->verb),
        .path = oc_span(path.p, path_len),
        .query = mark != NULL ? oc_span(mark + 1, path.len - path_len - 1) : OC_SPAN_EMPTY,
    };

    server_http_dispatch(&req);
}

void server_http_h2(struct oc_call *call) {
    struct server_conn *conn = call->conn;

    oc_list_push_back(&conn->plain_waiting, &call->wait_link);
    server_http_h2_waiting(conn);
}

void server_http_h2_waiting(struct server_conn *conn) {
    while (conn->plain_queued < SERVER_PLAIN_HIGH && !oc_list_empty(&conn->plain_waiting)) {
        struct oc_list *link = oc_list_pop_front(&conn->plain_waiting);

        serve_h2(OC_CONTAINER(link, struct oc_call, wait_link));
    }
}

/* ---- messages ---- */

static void too_large(struct oc_call *call, uint64_t len, const char *what, uint64_t max) {
    char text[128];

    (void)snprintf(text, sizeof text, "received message larger than %s (%llu vs. %llu)", what,
                   (unsigned long long)len, (unsigned long long)max);
    server_call_abort(call, OC_E_EXHAUSTED, text);
}

static void compressed(struct oc_call *call) {
    char text[128];
    struct oc_span encoding = oc_call_header(call, "grpc-encoding");
    int n = encoding.len < 40 ? (int)encoding.len : 40;

    (void)snprintf(text, sizeof text, "message compression is not supported (grpc-encoding '%.*s')",
                   n, n > 0 ? (const char *)encoding.p : "");
    /* Fails only when the response has begun, and then it is too late for a header. */
    (void)oc_call_add_header(call, "grpc-accept-encoding", OC_SPAN_LIT("identity"));
    server_call_abort(call, OC_E_UNIMPLEMENTED, text);
}

/* False: the call is over. */
static bool message_begins(struct oc_call *call, const struct oc_grpc_piece *piece) {
    if (piece->compressed) {
        compressed(call);
        return false;
    }
    call->messages++;
    if (call->messages > 1 && !call->method->request_stream) {
        server_call_abort(call, OC_E_INTERNAL,
                          "cardinality violation: more than one request message");
        return false;
    }
    return true;
}

void server_call_body_drop(struct oc_call *call) {
    free(call->body);
    call->body = NULL;
    call->body_len = call->body_cap = 0;
    call->assembling = false;
}

/* A message that is not here in one part: gather it. */
static bool body_begins(struct oc_call *call, uint64_t len) {
    struct oc_rpc_server *s = call->conn->w->s;
    int r = server_window_reserve(call, len);

    if (r < 0) {
        too_large(call, len, "what the server may receive", s->reserve.limit);
        return false;
    }
    /* While it waits no more than the first window can come. */
    uint64_t first =
        s->stream_window > SERVER_H2_WINDOW ? s->stream_window : (uint64_t)SERVER_H2_WINDOW;
    uint64_t cap = r == OC_AGAIN && len > first ? first : len;
    call->body = malloc(cap);
    if (call->body == NULL) {
        server_call_abort(call, OC_E_EXHAUSTED, "out of memory");
        return false;
    }
    call->body_cap = cap;
    call->body_len = 0;
    call->assembling = true;
    return true;
}

void server_call_reserved(struct oc_call *call) {
    uint64_t len = call->reader.message_len;
    uint8_t *body = realloc(call->body, len);

    if (body == NULL) {
        server_call_abort(call, OC_E_EXHAUSTED, "out of memory");
        return;
    }
    call->body = body;
    call->body_cap = len;
    call->received_ns = call->conn->w->now_ns; /* it was we who made it wait */
    server_window_stream(call);
    server_conn_dirty(call->conn);
}

static void body_ends(struct oc_call *call) {
    uint8_t *body = OC_TAKE(call->body);

    /* The service may end the call inside, which would free call->body under its feet. */
    call->method->message(call, oc_span(body, call->body_len));
    free(body);
    if (call->assembling) {
        server_call_body_drop(call);
        server_window_unreserve(call);
    }
}

static void gather(struct oc_call *call, const struct oc_grpc_piece *piece) {
    if (piece->begin && piece->end) {
        call->method->message(call, piece->bytes);
        return;
    }
    if (piece->begin && !body_begins(call, piece->message_len)) {
        return;
    }
    size_t n = piece->bytes.len;
    if (!OC_COUNT(n <= call->body_cap - call->body_len)) {
        server_call_abort(call, OC_E_INTERNAL, "more bytes than the window allows");
        return;
    }
    if (n > 0) {
        memcpy(call->body + call->body_len, piece->bytes.p, n);
        call->body_len += n;
    }
    if (piece->end) {
        body_ends(call);
    } else if (!server_window_hold(call)) {
        server_call_abort(call, OC_E_EXHAUSTED, "the server's receive buffer is full");
    }
}

static void deliver_piece(struct oc_call *call, const struct oc_grpc_piece *piece) {
    call->unconsumed += piece->bytes.len;
    call->method->piece(call, piece->bytes, piece->message_len, piece->begin, piece->end);
    if (!call->finished && !server_window_hold(call)) {
        server_call_abort(call, OC_E_EXHAUSTED, "the server's receive buffer is full");
    }
}

static void feed(struct oc_call *call, struct oc_span bytes) {
    while (!call->finished) {
        struct oc_grpc_piece piece;
        int r = oc_grpc_reader_next(&call->reader, &bytes, &piece);

        if (r == 0) {
            return;
        }
        if (r == OC_E_EXHAUSTED) {
            too_large(call, piece.message_len, "max", call->reader.max_message_bytes);
        } else if (r < 0) {
            server_call_abort(call, OC_E_INTERNAL, "invalid message flag");
        } else if (!piece.begin || message_begins(call, &piece)) {
            if (call->method->pieces) {
                deliver_piece(call, &piece);
            } else {
                gather(call, &piece);
            }
        }
    }
}

void server_call_data(struct oc_call *call, struct oc_span bytes, bool last) {
    call->credit -= (int64_t)bytes.len;
    call->received += bytes.len;
    call->received_ns = call->conn->w->now_ns;
    if (call->started) {
        feed(call, bytes);
    } else if (call->plain && !call->finished && call->received > SERVER_BODY_MAX) {
        reply_text(call, 413, "the request body is too large");
    }
    if (!last) {
        server_window_stream(call);
    }
}

void server_call_half_closed(struct oc_call *call) {
    call->remote_closed = true;
    if (call->plain && !call->finished) {
        server_http_h2(call);
    }
    if (!call->started || call->finished) {
        return;
    }
    if (!oc_grpc_reader_idle(&call->reader)) {
        server_call_abort(call, OC_E_INTERNAL, "the request ended inside a message");
    } else if (call->messages == 0 && !call->method->request_stream) {
        server_call_abort(call, OC_E_INTERNAL,
                          "cardinality violation: no request message for a unary request");
    } else if (call->method->half_closed != NULL) {
        call->method->half_closed(call);
    }
}
