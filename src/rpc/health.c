/* grpc.health.v1: Check answers, Watch sends the status and every change of it. */
#include <stdlib.h>

#include "core/codec/pb.h"
#include "rpc/server_internal.h"

enum { SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 };

static void health_check(struct oc_call *call, struct oc_span message);
static void health_watch(struct oc_call *call, struct oc_span message);
static void watch_closed(struct oc_call *call, int code);

const struct oc_method oc_health_methods[2] = {
    {.path = "/grpc.health.v1.Health/Check", .message = health_check, .max_message_bytes = 4096},
    {.path = "/grpc.health.v1.Health/Watch",
     .message = health_watch,
     .closed = watch_closed,
     .max_message_bytes = 4096},
};

/* One Watch call: oc_call_user. */
struct watch {
    struct oc_list link; /* worker.watches */
    struct oc_call *call;
    bool known; /* else SERVICE_UNKNOWN for ever: services do not come and go here */
};

bool server_is_health(const struct oc_method *method) {
    return method->message == health_check || method->message == health_watch;
}

/* 0 when this service is ours, OC_E_NOT_FOUND, OC_E_INVALID. */
static int service_of(const struct oc_call *call, struct oc_span message) {
    const char *mine = call->conn->w->s->cfg.service_name;
    struct oc_pb_reader r = oc_pb_reader(message);
    struct oc_span name = OC_SPAN_EMPTY;
    struct oc_pb_field f;
    int e;

    while ((e = oc_pb_next(&r, &f)) == 1) {
        if (f.number == 1 && oc_pb_as_string(&f, &name) < 0) {
            return OC_E_INVALID;
        }
    }
    if (e < 0) {
        return OC_E_INVALID;
    }
    if (name.len == 0 || (mine != NULL && oc_span_equal(name, oc_span_str(mine)))) {
        return OC_OK;
    }
    return OC_E_NOT_FOUND;
}

static void send_status(struct oc_call *call, uint8_t status) {
    const uint8_t message[] = {1 << 3, status};

    /* A few bytes per change: whether the queue is full makes no difference. */
    (void)oc_call_send_copy(call, oc_span(message, sizeof message));
}

static void health_check(struct oc_call *call, struct oc_span message) {
    switch (service_of(call, message)) {
    case OC_OK:
        send_status(call, server_serving(call->conn->w) ? SERVING : NOT_SERVING);
        oc_call_finish(call, OC_OK, OC_SPAN_EMPTY);
        break;
    case OC_E_NOT_FOUND:
        oc_call_finish(call, OC_E_NOT_FOUND, OC_SPAN_LIT("unknown service"));
        break;
    default:
        oc_call_finish(call, OC_E_INVALID, OC_SPAN_LIT("malformed HealthCheckRequest"));
        break;
    }
}

static void health_watch(struct oc_call *call, struct oc_span message) {
    struct oc_rpc_worker *w = call->conn->w;
    int known = service_of(call, message);

    if (known == OC_E_INVALID) {
        oc_call_finish(call, OC_E_INVALID, OC_SPAN_LIT("malformed HealthCheckRequest"));
        return;
    }
    struct watch *watch =
        w->watch_count < SERVER_WATCHERS_MAX && !w->draining ? malloc(sizeof *watch) : NULL;
    if (watch == NULL) {
        oc_call_finish(call, w->draining ? OC_E_UNAVAILABLE : OC_E_EXHAUSTED,
                       w->draining ? OC_SPAN_LIT("the server is shutting down")
                                   : OC_SPAN_LIT("too many watches"));
        return;
    }
    watch->call = call;
    watch->known = known == OC_OK;
    oc_call_set_user(call, watch);
    w->watch_count++;
    if (oc_list_empty(&w->watches)) {
        w->watch_serving = server_serving(w);
    }
    oc_list_push_back(&w->watches, &watch->link);
    send_status(call, !watch->known ? SERVICE_UNKNOWN : w->watch_serving ? SERVING : NOT_SERVING);
}

static void watch_closed(struct oc_call *call, int code) {
    struct watch *watch = oc_call_user(call);

    (void)code;
    if (watch != NULL) {
        call->conn->w->watch_count--;
        oc_list_remove(&watch->link);
        free(watch);
    }
}

void server_health_tick(struct oc_rpc_worker *w) {
    bool serving;

    if (oc_list_empty(&w->watches) || (serving = server_serving(w)) == w->watch_serving) {
        return;
    }
    w->watch_serving = serving;
    oc_list_each_safe (link, next, &w->watches) {
        struct watch *watch = OC_CONTAINER(link, struct watch, link);

        if (watch->known) {
            send_status(watch->call, serving ? SERVING : NOT_SERVING);
        }
    }
}

/* Called once, with `draining` set. Watches would hold up the drain, so they end here. */
void server_health_drain(struct oc_rpc_worker *w) {
    server_health_tick(w);
    oc_list_each_safe (link, next, &w->watches) {
        oc_call_finish(OC_CONTAINER(link, struct watch, link)->call, OC_E_UNAVAILABLE,
                       OC_SPAN_LIT("the server is shutting down"));
    }
}
