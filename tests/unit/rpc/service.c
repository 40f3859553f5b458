#include "service.h"

#include <stdlib.h>

#include "base/check.h"

struct service_worker {
    struct service *svc;
    struct oc_turn_hook hook;
    struct oc_timer timer; /* looks at the gate */
    struct oc_list lazy;   /* struct counter */
};

/* User data of Count, Lazy and Down. */
struct counter {
    struct oc_list link;
    struct service *svc;
    struct oc_call *call;
    uint64_t bytes, unconsumed;
    bool half_closed;
};

struct down {
    struct service *svc;
    uint64_t left;
    uint32_t chunk;
    uint8_t next;
};

static struct service *svc_of(struct oc_call *call) {
    return ((struct service_worker *)oc_rpc_worker_user(oc_call_worker(call)))->svc;
}

static void on_start(struct oc_call *call, void *service) {
    struct service *svc = service;

    OC_CHECK(svc_of(call) == svc);
    atomic_fetch_add(&svc->started, 1);
}

static void on_closed(struct oc_call *call, int code) {
    struct service *svc = svc_of(call);

    atomic_store(&svc->last_closed_code, code);
    atomic_fetch_add(&svc->closed, 1);
}

static void on_half_closed(struct oc_call *call) {
    atomic_fetch_add(&svc_of(call)->half_closed, 1);
}

/* ---- Unary, Small, Stream, Hold, Fail ---- */

static void unary_message(struct oc_call *call, struct oc_span message) {
    struct oc_span x = oc_call_header(call, "x-echo");

    atomic_fetch_add(&svc_of(call)->messages, 1);
    if (x.len > 0) {
        OC_CHECK(oc_call_add_header(call, "x-echo", x) == OC_OK || x.len > 30000);
    }
    (void)oc_call_send_copy(call, message);
    oc_call_finish(call, OC_OK, OC_SPAN_EMPTY);
}

static void stream_message(struct oc_call *call, struct oc_span message) {
    atomic_fetch_add(&svc_of(call)->messages, 1);
    if (!oc_call_send_copy(call, message)) {
        atomic_fetch_add(&svc_of(call)->blocked, 1);
    }
}

static void stream_half_closed(struct oc_call *call) {
    on_half_closed(call);
    oc_call_finish(call, OC_OK, OC_SPAN_EMPTY);
}

static void hold_message(struct oc_call *call, struct oc_span message) {
    (void)message;
    atomic_fetch_add(&svc_of(call)->messages, 1);
}

static void fail_message(struct oc_call *call, struct oc_span message) {
    if (message.len < 1 || message.p[0] > 16) {
        oc_call_finish(call, OC_E_INVALID, OC_SPAN_LIT("no such status"));
        return;
    }
    oc_call_finish(call, -message.p[0], oc_span(message.p + 1, message.len - 1));
}

/* ---- Count, Lazy, Early ---- */

static void count_start(struct oc_call *call, void *service) {
    struct counter *c = calloc(1, sizeof *c);

    OC_CHECK(c != NULL);
    on_start(call, service);
    c->svc = service;
    c->call = call;
    oc_list_init(&c->link);
    oc_call_set_user(call, c);
}

static void count_closed(struct oc_call *call, int code) {
    struct counter *c = oc_call_user(call);

    atomic_fetch_sub(&c->svc->unconsumed, c->unconsumed);
    oc_list_remove(&c->link);
    free(c);
    on_closed(call, code);
}

static void count_reply(struct counter *c) {
    uint8_t reply[8];

    oc_store64(reply, c->bytes);
    (void)oc_call_send_copy(c->call, oc_span(reply, sizeof reply));
    oc_call_finish(c->call, OC_OK, OC_SPAN_EMPTY);
}

static void count_piece(struct oc_call *call, struct oc_span bytes, uint64_t message_len,
                        bool begin, bool end) {
    struct counter *c = oc_call_user(call);

    (void)message_len;
    atomic_fetch_add(&c->svc->pieces, 1);
    atomic_fetch_add(&c->svc->piece_bytes, bytes.len);
    atomic_fetch_add(&c->svc->messages, end);
    OC_CHECK(bytes.len > 0 || begin);
    c->bytes += bytes.len;
    oc_call_consumed(call, bytes.len);
}

static void count_half_closed(struct oc_call *call) {
    on_half_closed(call);
    count_reply(oc_call_user(call));
}

static void lazy_start(struct oc_call *call, void *service) {
    struct service_worker *w = oc_rpc_worker_user(oc_call_worker(call));

    count_start(call, service);
    oc_list_push_back(&w->lazy, &((struct counter *)oc_call_user(call))->link);
}

static void lazy_piece(struct oc_call *call, struct oc_span bytes, uint64_t message_len, bool begin,
                       bool end) {
    struct counter *c = oc_call_user(call);
    struct service *svc = c->svc;

    (void)message_len;
    (void)begin;
    (void)end;
    c->bytes += bytes.len;
    c->unconsumed += bytes.len;
    uint64_t all = atomic_fetch_add(&svc->unconsumed, bytes.len) + bytes.len;
    uint64_t most = atomic_load(&svc->max_unconsumed);
    while (all > most && !atomic_compare_exchange_weak(&svc->max_unconsumed, &most, all)) {
    }
}

static void lazy_half_closed(struct oc_call *call) {
    struct counter *c = oc_call_user(call);

    on_half_closed(call);
    c->half_closed = true;
}

/* Consume a little of every call, so that calls take turns. */
static void lazy_step(struct oc_turn_hook *hook) {
    struct service_worker *w = OC_CONTAINER(hook, struct service_worker, hook);

    if (!atomic_load(&w->svc->open_gate)) {
        return;
    }
    oc_list_each_safe (link, next, &w->lazy) {
        struct counter *c = OC_CONTAINER(link, struct counter, link);
        uint64_t n = c->unconsumed < 16384 ? c->unconsumed : 16384;

        if (n > 0) {
            c->unconsumed -= n;
            atomic_fetch_sub(&w->svc->unconsumed, n);
            oc_call_consumed(c->call, n);
        } else if (c->half_closed) {
            count_reply(c);
            c->half_closed = false;
        }
    }
}

static void gate_tick(struct oc_timer *timer) {
    (void)timer; /* a turn of the loop is all it is for */
}

static void early_piece(struct oc_call *call, struct oc_span bytes, uint64_t message_len,
                        bool begin, bool end) {
    (void)bytes;
    (void)message_len;
    (void)begin;
    (void)end;
    oc_call_finish(call, OC_E_PERMISSION, OC_SPAN_LIT("no more of this"));
}

/* ---- Down ---- */

struct chunk {
    struct oc_ref ref;
    uint8_t bytes[];
};

static void chunk_release(struct oc_ref *ref) {
    free(OC_CONTAINER(ref, struct chunk, ref));
}

static void down_more(struct oc_call *call) {
    struct down *d = oc_call_user(call);
    bool more = true;

    while (d->left > 0 && more) {
        uint32_t n = d->left < d->chunk ? (uint32_t)d->left : d->chunk;
        struct chunk *c = malloc(sizeof *c + n);

        OC_CHECK(c != NULL);
        oc_ref_init(&c->ref, chunk_release);
        uint8_t next = d->next;
        for (uint32_t i = 0; i < n; i++) {
            c->bytes[i] = next++;
        }
        d->next = next;
        struct oc_slice slice = {c->bytes, n, &c->ref};
        more = oc_call_send(call, &slice, 1);
        oc_ref_put(&c->ref);
        d->left -= n;
    }
    if (d->left == 0) {
        oc_call_finish(call, OC_OK, OC_SPAN_EMPTY);
    } else {
        atomic_fetch_add(&d->svc->blocked, 1);
    }
}

static void down_message(struct oc_call *call, struct oc_span message) {
    struct service *svc = svc_of(call);
    uint64_t max = atomic_load(&svc->total_max);

    if (message.len != 12 || oc_load32(message.p + 8) == 0 ||
        (max != 0 && (oc_load64(message.p) > max || oc_load32(message.p + 8) < 100))) {
        oc_call_finish(call, OC_E_INVALID, OC_SPAN_LIT("no such download"));
        return;
    }
    struct down *d = calloc(1, sizeof *d);
    OC_CHECK(d != NULL);
    *d = (struct down){svc, oc_load64(message.p), oc_load32(message.p + 8), 0};
    oc_call_set_user(call, d);
    down_more(call);
}

static void down_writable(struct oc_call *call) {
    atomic_fetch_add(&svc_of(call)->writable, 1);
    down_more(call);
}

static void down_closed(struct oc_call *call, int code) {
    free(oc_call_user(call));
    on_closed(call, code);
}

/* ---- plain HTTP ---- */

static void get_health(struct oc_http *req, void *service) {
    (void)service;
    oc_http_reply(req, 200, "application/json", OC_SPAN_LIT("{\"status\":\"ok\"}"));
}

static void get_big(struct oc_http *req, void *service) {
    static uint8_t body[1 << 20];

    (void)service;
    oc_http_reply(req, 200, "application/octet-stream", oc_span(body, sizeof body));
}

static void get_echo(struct oc_http *req, void *service) {
    struct oc_span parts[] = {oc_http_method(req), oc_http_path(req), oc_http_query(req)};
    char text[256];
    size_t n = 0;

    (void)service;
    for (int i = 0; i < 3; i++) {
        size_t len = parts[i].len < 80 ? parts[i].len : 80;

        if (len > 0) {
            memcpy(text + n, parts[i].p, len);
        }
        n += len;
        text[n++] = '|';
    }
    oc_http_reply(req, 200, "text/plain", oc_span(text, n));
}

static void get_post_only(struct oc_http *req, void *service) {
    (void)service;
    if (!oc_span_equal(oc_http_method(req), OC_SPAN_LIT("POST"))) {
        oc_http_reply(req, 405, "text/plain", OC_SPAN_LIT("POST only"));
        return;
    }
    oc_http_reply(req, 204, "text/plain", OC_SPAN_EMPTY);
}

/* ---- tables ---- */

static struct oc_method methods[SERVICE_METHODS] = {
    {.path = "/t.Test/Unary",
     .start = on_start,
     .message = unary_message,
     .half_closed = on_half_closed,
     .closed = on_closed},
    {.path = "/t.Test/Small",
     .max_message_bytes = 1000,
     .start = on_start,
     .message = unary_message,
     .half_closed = on_half_closed,
     .closed = on_closed},
    {.path = "/t.Test/Stream",
     .request_stream = true,
     .start = on_start,
     .message = stream_message,
     .half_closed = stream_half_closed,
     .closed = on_closed},
    {.path = "/t.Test/Count",
     .pieces = true,
     .request_stream = true,
     .start = count_start,
     .piece = count_piece,
     .half_closed = count_half_closed,
     .closed = count_closed},
    {.path = "/t.Test/Lazy",
     .pieces = true,
     .request_stream = true,
     .start = lazy_start,
     .piece = lazy_piece,
     .half_closed = lazy_half_closed,
     .closed = count_closed},
    {.path = "/t.Test/Early",
     .pieces = true,
     .request_stream = true,
     .start = on_start,
     .piece = early_piece,
     .half_closed = on_half_closed,
     .closed = on_closed},
    {.path = "/t.Test/Down",
     .start = on_start,
     .message = down_message,
     .half_closed = on_half_closed,
     .writable = down_writable,
     .closed = down_closed},
    {.path = "/t.Test/Hold",
     .start = on_start,
     .message = hold_message,
     .half_closed = on_half_closed,
     .closed = on_closed},
    {.path = "/t.Test/Fail",
     .start = on_start,
     .message = fail_message,
     .half_closed = on_half_closed,
     .closed = on_closed},
};

static const struct oc_http_route routes[SERVICE_ROUTES] = {
    {"/health", get_health},
    {"/big", get_big},
    {"/echo", get_echo},
    {"/post", get_post_only},
};

static bool open_for_calls(void *service) {
    return !atomic_load(&((struct service *)service)->closed_for_calls);
}

static void observe(void *service, const struct oc_method *method, int code, uint64_t duration_ns,
                    const char *peer) {
    struct service *svc = service;

    OC_CHECK(method != NULL && peer != NULL && peer[0] != '\0' && duration_ns < UINT64_MAX / 2);
    atomic_store(&svc->last_observed_code, code);
    atomic_fetch_add(&svc->observed, 1);
}

void service_config(struct service *svc, struct oc_rpc_config *cfg) {
    methods[SERVICE_METHODS - 2] = oc_health_methods[0];
    methods[SERVICE_METHODS - 1] = oc_health_methods[1];
    cfg->methods = methods;
    cfg->method_count = SERVICE_METHODS;
    cfg->routes = routes;
    cfg->route_count = SERVICE_ROUTES;
    cfg->service = svc;
    cfg->service_name = "t.Test";
    cfg->open_for_calls = open_for_calls;
    cfg->observe = observe;
}

struct service_worker *service_worker_new(struct service *svc, struct oc_loop *loop) {
    struct service_worker *w = calloc(1, sizeof *w);

    OC_CHECK(w != NULL);
    w->svc = svc;
    oc_list_init(&w->lazy);
    w->hook.fn = lazy_step;
    oc_loop_hook_add(loop, &w->hook);
    oc_timer_init(&w->timer, loop, gate_tick);
    OC_CHECK(oc_timer_start(&w->timer, 1, 1) == 0);
    return w;
}

void service_worker_free(struct service_worker *w) {
    oc_loop_hook_remove(&w->hook);
    oc_timer_done(&w->timer);
    free(w);
}
