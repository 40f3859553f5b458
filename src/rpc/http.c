/* Plain HTTP over either protocol: routes by exact path, answers at once. */
#include <stdio.h>

#include "rpc/server_internal.h"

static const struct {
    int status;
    const char *reason;
} reasons[] = {
    {200, "OK"},
    {204, "No Content"},
    {206, "Partial Content"},
    {301, "Moved Permanently"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {411, "Length Required"},
    {412, "Precondition Failed"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {416, "Range Not Satisfiable"},
    {417, "Expectation Failed"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {499, "Client Closed Request"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

const char *server_http_reason(int status) {
    for (size_t i = 0; i < OC_ARRAY_LEN(reasons); i++) {
        if (reasons[i].status == status) {
            return reasons[i].reason;
        }
    }
    return "Status";
}

bool server_http_no_body(int status) {
    return status == 204 || status == 304;
}

void server_http_dispatch(struct oc_http *req) {
    struct oc_rpc_server *s = req->conn->w->s;
    const struct oc_http_route *route = server_route_find(s, req->path);

    if (route != NULL) {
        route->handle(req, s->cfg.service);
    } else if (s->cfg.not_found != NULL) {
        s->cfg.not_found(req, s->cfg.service);
    } else {
        oc_http_reply(req, 404, "text/plain; charset=utf-8", OC_SPAN_LIT("not found"));
    }
    if (!OC_COUNT(req->replied)) {
        oc_http_reply(req, 500, "text/plain; charset=utf-8", OC_SPAN_LIT("no answer"));
    }
}

struct oc_span oc_http_method(const struct oc_http *req) {
    return req->method;
}
struct oc_span oc_http_path(const struct oc_http *req) {
    return req->path;
}
struct oc_span oc_http_query(const struct oc_http *req) {
    return req->query;
}

static nghttp2_nv nv_str(const char *name, struct oc_span value) {
    return (nghttp2_nv){.name = server_unconst(name),
                        .namelen = strlen(name),
                        .value = server_unconst(value.p),
                        .valuelen = value.len,
                        .flags = NGHTTP2_NV_FLAG_NONE}; /* copied by nghttp2 */
}

void server_http_h2_reply(struct oc_call *call, int status, const char *content_type,
                          struct oc_span body) {
    char status_text[4], length_text[24];
    nghttp2_nv nv[4];
    bool head = call->verb != NULL && nghttp2_rcbuf_get_buf(call->verb).len == 4 &&
                memcmp(nghttp2_rcbuf_get_buf(call->verb).base, "HEAD", 4) == 0;
    bool data = body.len > 0 && !head && !server_http_no_body(status);
    size_t count = 0;

    if (call->finished || call->stream_gone) {
        return;
    }
    (void)snprintf(status_text, sizeof status_text, "%03d",
                   status >= 100 && status <= 999 ? status : 500);
    int n = snprintf(length_text, sizeof length_text, "%zu", body.len);
    nv[count++] = nv_str(":status", oc_span(status_text, 3));
    nv[count++] = nv_str("date", oc_span_str(server_date(call->conn->w)));
    if (!server_http_no_body(status)) {
        nv[count++] = nv_str("content-type", oc_span_str(content_type));
        nv[count++] = nv_str("content-length", oc_span(length_text, (size_t)n));
    }
    call->finished = true;
    server_window_release(call);
    if (data) {
        (void)server_send_copy(call, body, false); /* one reply: no one waits for `writable` */
    }
    server_call_respond(call, nv, count, data);
}

void oc_http_reply(struct oc_http *req, int status, const char *content_type, struct oc_span body) {
    if (!OC_COUNT(!req->replied)) {
        return;
    }
    req->replied = true;
    if (req->call != NULL) {
        server_http_h2_reply(req->call, status, content_type, body);
    } else {
        http1_reply(req->conn->h1, status, content_type, body);
    }
}
