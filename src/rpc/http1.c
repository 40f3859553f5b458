/* HTTP/1.1 on llhttp: a request's head is checked, its body read and dropped up to a bound, and the
 * route is asked when the request is complete. Replies are queued in order; while too much is
 * queued nothing more is parsed or read. Whatever could be read in two ways is refused: the parser
 * is strict (both Content-Length and Transfer-Encoding, two lengths, bare carriage returns), and a
 * request must have one Host. */
#include <llhttp.h>
#include <stdio.h>
#include <stdlib.h>

#include "rpc/server_internal.h"

#define H1_URL_BYTES   8192u
#define H1_OUT_HIGH    (256u << 10) /* queued replies: stop parsing */
#define H1_OUT_MAX     (64u << 20)  /* one reply's bound */
#define H1_PENDING_MAX (1u << 20)   /* unparsed bytes kept while stopped */
#define H1_NAME_BYTES  32u
#define H1_VALUE_BYTES 32u
#define TEXT_PLAIN     "text/plain; charset=utf-8"

struct http1 {
    struct server_conn *conn;
    llhttp_t parser;
    struct oc_buf url;
    size_t head_bytes;
    uint64_t body_bytes;
    uint64_t head_done_ns;
    unsigned hosts;
    char name[H1_NAME_BYTES], value[H1_VALUE_BYTES]; /* of the header being read; cut */
    size_t name_len, value_len;                      /* not cut */
    const char *input, *input_end;                   /* what is being parsed */
    const char *field_end; /* behind the last byte of the name or value read; `input` when before */
    bool field_cut;        /* ... which was at the end of the input: it may go on in the next */
    bool goes_on;          /* that was so at the end of the one before */
    bool line_ended;       /* a line feed came between the name and its value */
    bool in_message, head_done, expect, expect_unknown, close, draining, failed, paused;
    struct oc_buf out;
    size_t out_sent;
    struct oc_buf pending;
};

static struct http1 *self(llhttp_t *parser) {
    return parser->data;
}

/* ---- replies ---- */

/* False: out of memory or beyond the bound; the connection cannot go on. */
static bool append_reply(struct http1 *h1, int status, const char *content_type,
                         struct oc_span body, bool head_only) {
    const char *connection = h1->close                    ? "Connection: close\r\n"
                             : h1->parser.http_minor == 0 ? "Connection: keep-alive\r\n"
                                                          : "";
    int r = oc_buf_printf(&h1->out, "HTTP/1.1 %d %s\r\nDate: %s\r\n%s", status,
                          server_http_reason(status), server_date(h1->conn->w), connection);

    if (server_http_no_body(status)) {
        return r == OC_OK && oc_buf_append(&h1->out, "\r\n", 2) == OC_OK;
    }
    if (r == OC_OK) {
        r = oc_buf_printf(&h1->out, "Content-Type: %s\r\nContent-Length: %zu\r\n\r\n", content_type,
                          body.len);
    }
    if (r == OC_OK && !head_only) {
        r = oc_buf_append(&h1->out, body.p, body.len);
    }
    return r == OC_OK;
}

void http1_reply(struct http1 *h1, int status, const char *content_type, struct oc_span body) {
    if (!append_reply(h1, status, content_type, body, h1->parser.method == HTTP_HEAD)) {
        h1->failed = true;
        server_conn_kill(h1->conn, true);
    }
}

/* A request that is not served: say why, then close, because what follows it cannot be trusted. */
static int fail(struct http1 *h1, int status, const char *text) {
    if (h1->failed) {
        return HPE_USER;
    }
    h1->failed = true;
    h1->close = true;
    if (status == 400) {
        server_count(&h1->conn->w->counts.protocol_errors, 1);
    }
    if (append_reply(h1, status, TEXT_PLAIN, oc_span_str(text), false)) {
        server_conn_end(h1->conn);
    } else {
        server_conn_kill(h1->conn, true);
    }
    return HPE_USER;
}

/* ---- llhttp's callbacks; 0 goes on ---- */

static int on_begin(llhttp_t *parser) {
    struct http1 *h1 = self(parser);

    h1->url.len = 0;
    h1->head_bytes = 0;
    h1->body_bytes = 0;
    h1->hosts = 0;
    h1->name_len = h1->value_len = 0;
    h1->in_message = true;
    h1->head_done = h1->expect = h1->expect_unknown = false;
    h1->conn->head_ns = h1->conn->w->now_ns;
    return 0;
}

static int count_head(struct http1 *h1, size_t len) {
    h1->head_bytes += len;
    if (h1->head_bytes > h1->conn->w->s->cfg.max_header_bytes) {
        return fail(h1, 431, "the request's header fields are too large");
    }
    return 0;
}

static int on_url(llhttp_t *parser, const char *at, size_t len) {
    struct http1 *h1 = self(parser);

    if (oc_buf_append(&h1->url, at, len) < 0) {
        return fail(h1, 414, "the request's path is too long");
    }
    return count_head(h1, len);
}

static void keep_cut(char *dst, size_t cap, size_t have, const char *at, size_t len) {
    if (have < cap) {
        memcpy(dst + have, at, len < cap - have ? len : cap - have);
    }
}

/* A field that goes on in the next line is joined by some recipients and not by others. The parser
 * joins; it shows by a gap between the parts that it hands out. */
static void see_gap(struct http1 *h1, const char *upto) {
    size_t len = (size_t)(upto - h1->field_end);

    h1->line_ended |= len > 0 && memchr(h1->field_end, '\n', len) != NULL;
}

static void see_part(struct http1 *h1, const char *at, size_t len) {
    h1->field_end = at + len;
    h1->field_cut = h1->field_end == h1->input_end;
}

static int on_field(llhttp_t *parser, const char *at, size_t len) {
    struct http1 *h1 = self(parser);

    if (h1->value_len > 0 || h1->name_len == 0) {
        h1->name_len = h1->value_len = 0;
    }
    keep_cut(h1->name, sizeof h1->name, h1->name_len, at, len);
    h1->name_len += len;
    h1->line_ended = false;
    see_part(h1, at, len);
    return count_head(h1, len);
}

static int on_value(llhttp_t *parser, const char *at, size_t len) {
    struct http1 *h1 = self(parser);

    bool goes_on =
        h1->field_end == h1->input ? h1->goes_on && at == h1->input : at == h1->field_end;
    if (len > 0) {
        see_gap(h1, at);
        if (h1->line_ended || (h1->value_len > 0 && !goes_on)) {
            return fail(h1, 400, "a header field goes on in the next line");
        }
        see_part(h1, at, len);
    }
    keep_cut(h1->value, sizeof h1->value, h1->value_len, at, len);
    h1->value_len += len;
    return count_head(h1, len);
}

static bool same_nocase(const char *p, size_t len, const char *lower) {
    size_t n = strlen(lower);

    if (len != n) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        char c = p[i] >= 'A' && p[i] <= 'Z' ? (char)(p[i] | 0x20) : p[i];
        if (c != lower[i]) {
            return false;
        }
    }
    return true;
}

static int on_value_complete(llhttp_t *parser) {
    struct http1 *h1 = self(parser);

    if (h1->name_len == 0) {
        return fail(h1, 400, "a header field has no name");
    }
    if (!h1->head_done) { /* trailers only count */
        if (same_nocase(h1->name, h1->name_len, "host")) {
            h1->hosts++;
        } else if (same_nocase(h1->name, h1->name_len, "expect")) {
            h1->expect = same_nocase(h1->value, h1->value_len, "100-continue");
            h1->expect_unknown |= !h1->expect;
        }
    }
    h1->name_len = h1->value_len = 0;
    return count_head(h1, 4); /* colon, blank, end of line */
}

static int check_head(struct http1 *h1) {
    const llhttp_t *p = &h1->parser;
    bool minor_1 = p->http_minor == 1;

    if (p->http_major != 1 || p->http_minor > 1) {
        return fail(h1, 505, "this server speaks HTTP/1.1, HTTP/1.0 and HTTP/2");
    }
    if (minor_1 ? h1->hosts != 1 : h1->hosts > 1) {
        return fail(h1, 400, "a request has one Host field");
    }
    if (!minor_1 && (p->flags & F_TRANSFER_ENCODING) != 0) {
        return fail(h1, 400, "HTTP/1.0 has no Transfer-Encoding");
    }
    if (p->method == HTTP_CONNECT) {
        return fail(h1, 405, "this server is no proxy");
    }
    if (h1->expect_unknown) {
        return fail(h1, 417, "the only expectation understood is 100-continue");
    }
    if ((p->flags & F_CHUNKED) == 0 && p->content_length > SERVER_BODY_MAX) {
        return fail(h1, 413, "the request body is too large");
    }
    return 0;
}

static int on_headers_complete(llhttp_t *parser) {
    struct http1 *h1 = self(parser);
    int r = check_head(h1);

    if (r != 0) {
        return -1;
    }
    h1->head_done = true;
    h1->head_done_ns = h1->conn->w->now_ns;
    parser->upgrade = 0; /* no other protocol is on offer: the request is served as it is */
    bool body = (parser->flags & F_CHUNKED) != 0 || parser->content_length > 0;
    if (h1->expect && body && parser->http_minor == 1 &&
        oc_buf_append(&h1->out, "HTTP/1.1 100 Continue\r\n\r\n", 25) < 0) {
        server_conn_kill(h1->conn, true);
        return -1;
    }
    return 0;
}

static int on_body(llhttp_t *parser, const char *at, size_t len) {
    struct http1 *h1 = self(parser);

    (void)at;
    h1->body_bytes += len;
    if (h1->body_bytes > SERVER_BODY_MAX) {
        return fail(h1, 413, "the request body is too large");
    }
    return 0;
}

static void serve(struct http1 *h1) {
    struct oc_span url = oc_buf_span(&h1->url);
    const uint8_t *mark = url.len > 0 ? memchr(url.p, '?', url.len) : NULL;
    size_t path_len = mark != NULL ? (size_t)(mark - url.p) : url.len;
    struct oc_http req = {
        .conn = h1->conn,
        .method = oc_span_str(llhttp_method_name((llhttp_method_t)h1->parser.method)),
        .path = oc_span(url.p, path_len),
        .query = mark != NULL ? oc_span(mark + 1, url.len - path_len - 1) : OC_SPAN_EMPTY,
    };

    server_count(&h1->conn->w->counts.http1_requests, 1);
    server_http_dispatch(&req);
}

static int on_complete(llhttp_t *parser) {
    struct http1 *h1 = self(parser);

    h1->close = h1->draining || !llhttp_should_keep_alive(parser);
    h1->in_message = false;
    h1->conn->head_ns = 0;
    h1->conn->active_ns = h1->conn->w->now_ns;
    serve(h1);
    if (h1->failed) {
        return HPE_USER;
    }
    if (h1->close) {
        server_conn_end(h1->conn); /* what follows is not looked at */
        return HPE_PAUSED;
    }
    if (h1->out.len - h1->out_sent > H1_OUT_HIGH) {
        h1->paused = true;
        h1->conn->io->read(h1->conn->io_ctx, false);
        return HPE_PAUSED;
    }
    return 0;
}

static const llhttp_settings_t settings = {
    .on_message_begin = on_begin,
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_header_value_complete = on_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_chunk_extension_name = on_body, /* counts as body: it is as good at keeping us busy */
    .on_chunk_extension_value = on_body,
    .on_message_complete = on_complete,
};

/* ---- input ---- */

static void parser_failed(struct http1 *h1, llhttp_errno_t e) {
    char text[160];

    switch (e) {
    case HPE_INVALID_VERSION:
        (void)fail(h1, 505, "this server speaks HTTP/1.1, HTTP/1.0 and HTTP/2");
        break;
    case HPE_PAUSED_H2_UPGRADE:
        (void)fail(h1, 400, "bad HTTP/2 preface");
        break;
    default:
        (void)snprintf(text, sizeof text, "bad request: %s", llhttp_errno_name(e));
        (void)fail(h1, 400, text);
        break;
    }
}

static void parse(struct http1 *h1, struct oc_span bytes) {
    struct server_conn *conn = h1->conn;

    h1->input = h1->field_end = (const char *)bytes.p;
    h1->input_end = h1->input + bytes.len;
    h1->goes_on = h1->field_cut;
    h1->field_cut = false;
    conn->in_recv = true;
    llhttp_errno_t e = llhttp_execute(&h1->parser, (const char *)bytes.p, bytes.len);
    conn->in_recv = false;
    if (e == HPE_OK && h1->name_len > 0 && h1->value_len == 0) {
        see_gap(h1, h1->input_end);
    }
    if (e == HPE_OK || h1->failed || conn->ending) {
        return;
    }
    if (e != HPE_PAUSED) {
        parser_failed(h1, e);
        return;
    }
    const uint8_t *at = (const uint8_t *)llhttp_get_error_pos(&h1->parser);
    size_t left = (size_t)(bytes.p + bytes.len - at);
    h1->pending.len = 0;
    if (!OC_COUNT(left <= bytes.len) || oc_buf_append(&h1->pending, at, left) < 0) {
        server_conn_kill(conn, true);
    }
}

void http1_input(struct http1 *h1, struct oc_span bytes) {
    if (h1->paused) { /* read before the transport heard of the pause */
        if (oc_buf_append(&h1->pending, bytes.p, bytes.len) < 0) {
            server_conn_kill(h1->conn, true);
        }
        return;
    }
    parse(h1, bytes);
}

static void unpause(struct http1 *h1) {
    struct oc_buf input = h1->pending;

    oc_buf_init(&h1->pending, H1_PENDING_MAX);
    h1->paused = false;
    llhttp_resume(&h1->parser);
    if (input.len > 0) {
        parse(h1, oc_buf_span(&input));
    }
    oc_buf_done(&input);
    if (!h1->paused && !h1->failed) {
        h1->conn->io->read(h1->conn->io_ctx, true);
    }
}

/* ---- output ---- */

static int write_out(struct http1 *h1) {
    struct server_conn *conn = h1->conn;

    while (h1->out_sent < h1->out.len) {
        struct iovec iov = {h1->out.data + h1->out_sent, h1->out.len - h1->out_sent};
        int64_t n = conn->io->writev(conn->io_ctx, &iov, 1);

        if (n < 0) {
            return (int)n;
        }
        if (n == 0) {
            server_conn_want_write(conn);
            return OC_AGAIN;
        }
        h1->out_sent += (size_t)n;
        conn->write_ns = conn->w->now_ns;
        server_count(&conn->w->counts.bytes_out, (uint64_t)n);
    }
    if (h1->out.cap > H1_OUT_HIGH) {
        oc_buf_done(&h1->out); /* one large reply does not keep its memory */
    }
    h1->out.len = h1->out_sent = 0;
    conn->active_ns = conn->w->now_ns;
    return OC_OK;
}

bool http1_turn(struct http1 *h1) {
    for (unsigned batch = 0; batch < SERVER_TURN_BATCHES; batch++) {
        int r = h1->out.len > h1->out_sent ? write_out(h1) : OC_OK;

        if (r != OC_OK) {
            return r == OC_AGAIN;
        }
        if (!h1->paused || h1->conn->ending) {
            return true;
        }
        unpause(h1);
    }
    server_conn_dirty(h1->conn); /* others first */
    return true;
}

/* ---- state ---- */

int http1_new(struct server_conn *conn, struct http1 **ret) {
    struct http1 *h1 = calloc(1, sizeof *h1);

    if (h1 == NULL) {
        return OC_E_EXHAUSTED;
    }
    h1->conn = conn;
    llhttp_init(&h1->parser, HTTP_REQUEST, &settings);
    h1->parser.data = h1;
    oc_buf_init(&h1->url, H1_URL_BYTES);
    oc_buf_init(&h1->out, H1_OUT_MAX);
    oc_buf_init(&h1->pending, H1_PENDING_MAX);
    *ret = h1;
    return OC_OK;
}

void http1_free(struct http1 *h1) {
    if (h1 != NULL) {
        oc_buf_done(&h1->url);
        oc_buf_done(&h1->out);
        oc_buf_done(&h1->pending);
        free(h1);
    }
}

bool http1_pending(const struct http1 *h1) {
    return h1->out.len > h1->out_sent || (h1->paused && !h1->conn->ending);
}

bool http1_idle(const struct http1 *h1) {
    return !h1->in_message && !http1_pending(h1);
}

bool http1_mid_head(const struct http1 *h1) {
    return h1->in_message && !h1->head_done;
}

uint64_t http1_body_since_ns(const struct http1 *h1) {
    return h1->in_message && h1->head_done ? h1->head_done_ns : UINT64_MAX;
}

void http1_timeout(struct http1 *h1) {
    (void)fail(h1, 408, "the request took too long");
}

void http1_drain(struct http1 *h1) {
    h1->draining = true;
    if (http1_idle(h1)) {
        server_conn_end(h1->conn);
    }
}
