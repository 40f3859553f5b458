/* A call's life as the service sees it: the oc_call_* functions, the response's head and trailers,
 * and the order of the end. A call object belongs to its stream; `closed` is told once, when the
 * stream is over and its last byte is with the kernel, or at once when the layer ends the call
 * itself. */
#include <stdlib.h>

#include "base/event.h"
#include "core/codec/percent.h"
#include "rpc/server_internal.h"

#define CALL_ARENA_BYTES  (64u << 10)
#define FREE_CALLS_MAX    4096u
#define NV_NO_COPY        (NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE)
#define GRPC_STATUS_COUNT 17

static const char status_digits[GRPC_STATUS_COUNT][3] = {
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"};

static nghttp2_nv nv_of(const char *name, size_t name_len, const void *value, size_t len) {
    return (nghttp2_nv){.name = server_unconst(name),
                        .namelen = name_len,
                        .value = server_unconst(value),
                        .valuelen = len,
                        .flags = NV_NO_COPY};
}
#define NV(name, value, len) nv_of(name, sizeof(name) - 1, value, len)

/* ---- objects ---- */

struct oc_call *server_call_new(struct server_conn *conn, int32_t stream_id) {
    struct oc_rpc_worker *w = conn->w;
    struct oc_call *call = w->free_calls;

    if (call != NULL) {
        struct oc_arena arena = call->arena;

        w->free_calls = call->next_free;
        w->free_call_count--;
        *call = (struct oc_call){.arena = arena};
    } else {
        call = calloc(1, sizeof *call);
        if (call == NULL) {
            return NULL;
        }
        oc_arena_init(&call->arena, CALL_ARENA_BYTES);
    }
    call->magic = SERVER_CALL_MAGIC;
    call->conn = conn;
    call->stream_id = stream_id;
    call->start_ns = call->received_ns = call->mark_ns = w->now_ns;
    call->deadline_ns = UINT64_MAX;
    call->window = w->s->stream_window;
    call->credit = w->s->stream_window;
    oc_list_init(&call->write_link);
    oc_list_init(&call->wait_link);
    oc_list_push_back(&conn->calls, &call->link);
    conn->call_count++;
    server_count(&w->counts.streams, 1);
    return call;
}

static void headers_drop(struct server_header *headers, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        nghttp2_rcbuf_decref(headers[i].name);
        nghttp2_rcbuf_decref(headers[i].value);
    }
}

void server_call_free(struct oc_call *call) {
    struct oc_rpc_worker *w = call->conn->w;

    server_uncount(&w->counts.streams, 1);
    (void)server_window_head(call, 0); /* gives back only */
    if (call->path != NULL) {
        nghttp2_rcbuf_decref(call->path);
    }
    if (call->verb != NULL) {
        nghttp2_rcbuf_decref(call->verb);
    }
    headers_drop(call->headers, call->header_count < SERVER_HEADERS_INLINE ? call->header_count
                                                                           : SERVER_HEADERS_INLINE);
    for (struct server_headers_more *m = call->headers_more; m != NULL; m = m->next) {
        headers_drop(m->headers, m->count);
    }
    call->magic = 0;
    if (w->free_call_count >= FREE_CALLS_MAX) {
        oc_arena_done(&call->arena);
        free(call);
        return;
    }
    oc_arena_reset(&call->arena);
    call->next_free = w->free_calls;
    w->free_calls = call;
    w->free_call_count++;
}

/* ---- the end ---- */

void server_call_closed(struct oc_call *call, int code) {
    struct oc_rpc_worker *w = call->conn->w;
    const struct oc_rpc_config *cfg = &w->s->cfg;

    if (!call->started) {
        return;
    }
    call->started = false;
    if (code != OC_OK) { /* the ring is for what is not everyday */
        oc_event(OC_EV_CALL_END, (uint64_t)call->stream_id, (uint64_t)-code);
    }
    if (cfg->observe != NULL) {
        cfg->observe(cfg->service, call->method, call->finished ? call->status : code,
                     w->now_ns - call->start_ns, call->conn->peer);
    }
    if (call->method->closed != NULL) {
        call->method->closed(call, code);
    }
}

void server_call_stream_closed(struct oc_call *call, bool clean) {
    struct server_conn *conn = call->conn;

    call->stream_gone = true;
    oc_list_remove(&call->link);
    oc_list_remove(&call->write_link);
    conn->call_count--;
    conn->active_ns = conn->w->now_ns;
    if (conn->hot == call) {
        conn->hot = NULL;
    }
    server_deadline_remove(call);
    if (!call->finished) {
        server_window_release(call);
    }
    if (call->out_head != NULL) {
        server_send_drop(call);
    }
    if (call->started && call->finished && clean) {
        call->flush_mark = conn->out_total + (conn->in_send ? conn->w->out.bytes : 0);
        if (call->flush_mark > conn->out_done) {
            oc_list_push_back(&conn->flushing, &call->write_link);
            return;
        }
    }
    server_call_closed(call, call->finished ? OC_OK : OC_E_CANCELLED);
    server_call_free(call);
}

void server_call_flushed(struct server_conn *conn) {
    while (!oc_list_empty(&conn->flushing)) {
        struct oc_call *call = OC_CONTAINER(conn->flushing.next, struct oc_call, write_link);

        if (call->flush_mark > conn->out_done) {
            return;
        }
        oc_list_remove(&call->write_link);
        server_call_closed(call, OC_OK);
        server_call_free(call);
    }
}

/* ---- the response's head and trailers ---- */

static size_t head_nv(const struct oc_call *call, nghttp2_nv *nv) {
    size_t n = 0;

    nv[n++] = NV(":status", "200", 3);
    nv[n++] = NV("content-type", "application/grpc", 16);
    for (unsigned i = 0; i < call->reply_count; i++) {
        const struct server_reply_header *h = &call->reply_headers[i];

        nv[n++] = nv_of((const char *)h->name.p, h->name.len, h->value.p, h->value.len);
    }
    return n;
}

static size_t trailer_nv(const struct oc_call *call, nghttp2_nv *nv) {
    const char *digits = status_digits[-call->status];
    size_t n = 0;

    nv[n++] = NV("grpc-status", digits, strlen(digits));
    if (call->status_text.len > 0) {
        nv[n++] = NV("grpc-message", call->status_text.p, call->status_text.len);
    }
    return n;
}

int server_call_trailers(struct oc_call *call) {
    nghttp2_nv nv[2];
    size_t n = trailer_nv(call, nv);

    return nghttp2_submit_trailer(call->conn->h2, call->stream_id, nv, n);
}

static ssize_t read_data(nghttp2_session *session, int32_t stream_id, uint8_t *buf, size_t len,
                         uint32_t *flags, nghttp2_data_source *source, void *user) {
    struct oc_call *call = source->ptr;
    size_t n = server_send_peek(call, len);

    (void)session;
    (void)stream_id;
    (void)buf;
    (void)user;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (call->finished && n == call->queued) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        call->eof = true;
        if (!call->plain) {
            *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
            if (server_call_trailers(call) != 0) {
                return NGHTTP2_ERR_CALLBACK_FAILURE;
            }
        }
    } else if (n == 0) {
        call->deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    call->framed = n;
    return (ssize_t)n;
}

void server_call_respond(struct oc_call *call, const nghttp2_nv *nv, size_t count, bool data) {
    nghttp2_data_provider provider = {.source.ptr = call, .read_callback = read_data};

    call->responded = true;
    if (nghttp2_submit_response(call->conn->h2, call->stream_id, nv, count,
                                data ? &provider : NULL) != 0) {
        server_conn_kill(call->conn, true);
        return;
    }
    server_conn_dirty(call->conn);
}

static void respond(struct oc_call *call) {
    nghttp2_nv nv[2 + SERVER_REPLY_HEADERS];
    size_t n = head_nv(call, nv);

    server_call_respond(call, nv, n, true);
}

static void respond_status_only(struct oc_call *call) {
    nghttp2_nv nv[4 + SERVER_REPLY_HEADERS];
    size_t n = head_nv(call, nv);

    n += trailer_nv(call, nv + n);
    server_call_respond(call, nv, n, false);
}

static void resume(struct oc_call *call) {
    if (call->deferred) {
        call->deferred = false;
        if (nghttp2_session_resume_data(call->conn->h2, call->stream_id) != 0) {
            server_conn_kill(call->conn, true);
            return;
        }
    }
    server_conn_dirty(call->conn);
}

static void set_status(struct oc_call *call, int code, struct oc_span text) {
    if (!OC_COUNT(code <= 0 && code > -GRPC_STATUS_COUNT)) {
        code = OC_E_UNKNOWN;
    }
    call->finished = true;
    call->status = code;
    if (text.len == 0) {
        return;
    }
    text.len = text.len < SERVER_STATUS_BYTES ? text.len : SERVER_STATUS_BYTES;
    size_t need = oc_percent_encode_grpc(NULL, 0, text);
    uint8_t *dst = oc_arena_alloc(&call->arena, need);
    if (dst != NULL) { /* else the status goes without its text */
        (void)oc_percent_encode_grpc(dst, need, text);
        call->status_text = oc_span(dst, need);
    }
}

void server_call_finish(struct oc_call *call, int code, struct oc_span text) {
    if (call->finished || call->stream_gone) {
        return;
    }
    set_status(call, code, text);
    server_deadline_remove(call);
    server_window_release(call);
    if (call->conn->dead) {
        return;
    }
    if (!call->responded) {
        respond_status_only(call);
    } else {
        resume(call);
    }
}

void server_call_finish_str(struct oc_call *call, int code, const char *text) {
    server_call_finish(call, code, oc_span_str(text));
}

static uint32_t reset_code(int code) {
    switch (code) {
    case OC_E_EXHAUSTED:
        return NGHTTP2_ENHANCE_YOUR_CALM;
    case OC_E_INTERNAL:
        return NGHTTP2_INTERNAL_ERROR;
    default:
        return NGHTTP2_CANCEL;
    }
}

void server_call_abort(struct oc_call *call, int code, const char *text) {
    if (call->finished || call->stream_gone) {
        return;
    }
    if (server_send_drop_whole(call)) {
        server_call_finish_str(call, code, text);
    } else {
        /* Half a message is out: trailers behind it would be a lie. */
        set_status(call, code, OC_SPAN_EMPTY);
        server_deadline_remove(call);
        server_window_release(call);
        server_h2_reset(call, reset_code(code));
    }
    server_call_closed(call, code);
}

/* ---- what the service calls ---- */

void oc_call_set_user(struct oc_call *call, void *user) {
    call->user = user;
}
void *oc_call_user(const struct oc_call *call) {
    return call->user;
}
struct oc_rpc_worker *oc_call_worker(const struct oc_call *call) {
    return call->conn->w;
}
const struct oc_method *oc_call_method(const struct oc_call *call) {
    return call->method;
}
struct oc_arena *oc_call_arena(struct oc_call *call) {
    return &call->arena;
}
uint64_t oc_call_deadline_ns(const struct oc_call *call) {
    return call->deadline_ns;
}
uint32_t *oc_call_connection_number(const struct oc_call *call) {
    return &call->conn->service_number;
}
const char *oc_call_peer(const struct oc_call *call) {
    return call->conn->peer;
}
bool oc_call_finished(const struct oc_call *call) {
    return call->finished;
}

int oc_call_add_header(struct oc_call *call, const char *name, struct oc_span value) {
    if (call->responded || call->finished) {
        return OC_E_PRECONDITION;
    }
    if (call->reply_headers == NULL) {
        call->reply_headers =
            oc_arena_alloc(&call->arena, SERVER_REPLY_HEADERS * sizeof *call->reply_headers);
    }
    if (call->reply_headers == NULL || call->reply_count == SERVER_REPLY_HEADERS) {
        return OC_E_EXHAUSTED;
    }
    struct server_reply_header h = {oc_arena_copy(&call->arena, oc_span_str(name)),
                                    oc_arena_copy(&call->arena, value)};
    if (h.name.p == NULL || h.value.p == NULL) {
        return OC_E_EXHAUSTED;
    }
    if (!nghttp2_check_header_name(h.name.p, h.name.len) ||
        !nghttp2_check_header_value(h.value.p, h.value.len)) {
        return OC_E_INVALID;
    }
    call->reply_headers[call->reply_count++] = h;
    return OC_OK;
}

bool oc_call_send(struct oc_call *call, const struct oc_slice *slices, size_t count) {
    OC_MAGIC_CHECK(call, SERVER_CALL_MAGIC);
    if (call->finished || call->stream_gone || call->conn->dead) {
        return true;
    }
    bool more = server_send_slices(call, slices, count, true);
    if (!call->responded) {
        respond(call);
    } else {
        resume(call);
    }
    return more;
}

bool oc_call_send_copy(struct oc_call *call, struct oc_span message) {
    OC_MAGIC_CHECK(call, SERVER_CALL_MAGIC);
    if (call->finished || call->stream_gone || call->conn->dead) {
        return true;
    }
    bool more = server_send_copy(call, message, true);
    if (!call->responded) {
        respond(call);
    } else {
        resume(call);
    }
    return more;
}

void oc_call_finish(struct oc_call *call, int code, struct oc_span message) {
    OC_MAGIC_CHECK(call, SERVER_CALL_MAGIC);
    server_call_finish(call, code, message);
}

void oc_call_consumed(struct oc_call *call, size_t n) {
    OC_MAGIC_CHECK(call, SERVER_CALL_MAGIC);
    if (!call->finished && !call->stream_gone && n > 0) {
        server_window_consumed(call, n);
    }
}
