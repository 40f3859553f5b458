/* The service itself: its tables, phases and workers, and what every operation passes. */
#include <inttypes.h>
#include <stdlib.h>

#include "object/internal.h"

/* Jobs that wait for a mover. An operation has at most one, so this many operations are in progress
 * before one has to try again (oc_svc_submit). */
#define MOVER_QUEUE 16384u
/* Objects that a worker keeps for reuse. */
#define CACHED_OPS  256u
#define BUFFERS_MIN ((uint64_t)8 << 20)

static void topology_message(struct oc_call *call, struct oc_span message);
static void nothing_closed(struct oc_call *call, int code);

static const struct oc_method methods[] = {
    [OC_SVC_M_PUT] = {.path = "/cache.CacheService/Put",
                      .pieces = true,
                      .request_stream = true,
                      .start = oc_svc_put_start,
                      .piece = oc_svc_put_piece,
                      .half_closed = oc_svc_put_half_closed,
                      .closed = oc_svc_write_closed},
    [OC_SVC_M_PUT_OBJECT] = {.path = "/cache.CacheService/PutObject",
                             .pieces = true,
                             .start = oc_svc_put_start,
                             .piece = oc_svc_put_piece,
                             .half_closed = oc_svc_put_half_closed,
                             .closed = oc_svc_write_closed},
    [OC_SVC_M_GET] = {.path = "/cache.CacheService/Get",
                      .max_message_bytes = OC_SVC_REQUEST_MAX,
                      .message = oc_svc_get_message,
                      .writable = oc_svc_get_writable,
                      .closed = oc_svc_get_closed},
    [OC_SVC_M_DELETE] = {.path = "/cache.CacheService/Delete",
                         .max_message_bytes = OC_SVC_REQUEST_MAX,
                         .message = oc_svc_delete_message,
                         .closed = oc_svc_write_closed},
    [OC_SVC_M_LIST] = {.path = "/cache.CacheService/List",
                       .max_message_bytes = OC_SVC_REQUEST_MAX,
                       .message = oc_svc_list_message,
                       .closed = oc_svc_list_closed},
    [OC_SVC_M_LIST_LOCAL] = {.path = "/cache.CacheService/ListLocal",
                             .max_message_bytes = OC_SVC_REQUEST_MAX,
                             .message = oc_svc_list_message,
                             .closed = oc_svc_list_closed},
    [OC_SVC_M_LIST_VALUES] = {.path = "/cache.CacheService/ListWithValues",
                              .max_message_bytes = OC_SVC_REQUEST_MAX,
                              .message = oc_svc_list_values_message,
                              .closed = oc_svc_list_closed},
    [OC_SVC_M_LIST_LOCAL_VALUES] = {.path = "/cache.CacheService/ListLocalWithValues",
                                    .max_message_bytes = OC_SVC_REQUEST_MAX,
                                    .message = oc_svc_list_values_message,
                                    .closed = oc_svc_list_closed},
    [OC_SVC_M_TOPOLOGY] = {.path = "/cache.CacheService/GetTopology",
                           .max_message_bytes = OC_SVC_REQUEST_MAX,
                           .message = topology_message,
                           .closed = nothing_closed},
};
static_assert(OC_ARRAY_LEN(methods) == OC_SVC_METHODS, "a row for every method");

const struct oc_method *oc_svc_methods(const struct oc_svc *s, size_t *ret_count) {
    *ret_count = OC_ARRAY_LEN(s->methods);
    return s->methods;
}

int oc_svc_method_index(const struct oc_svc *s, const struct oc_method *method) {
    ptrdiff_t at = method - s->methods;

    return at >= 0 && at < OC_SVC_METHODS ? (int)at : -1;
}

/* ---- life ---- */

static int start_movers(struct oc_svc *s, struct oc_error *err) {
    int r = oc_movers_new(&s->read_movers, s->cfg.read_movers, MOVER_QUEUE, err);

    if (r == 0) {
        r = oc_movers_new(&s->bulk_movers, s->cfg.bulk_movers, MOVER_QUEUE, err);
    }
    if (r == 0 && s->cfg.sync == OC_SYNC_ALWAYS) {
        /* Each worker has one batch in flight; syncs of several join in the store. */
        r = oc_movers_new(&s->commit_movers, s->cfg.workers, MOVER_QUEUE, err);
    }
    return r;
}

int oc_svc_new(const struct oc_svc_config *cfg, struct oc_svc **ret, struct oc_error *err) {
    struct oc_svc *s = (struct oc_svc *)calloc(1, sizeof *s);

    if (s == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory for the object service");
    }
    s->cfg = *cfg;
    memcpy(s->methods, methods, sizeof methods);
    memcpy(s->methods + OC_SVC_METHODS, oc_health_methods, sizeof oc_health_methods);
    if (s->cfg.buffer_bytes < BUFFERS_MIN) {
        s->cfg.buffer_bytes = BUFFERS_MIN;
    }
    atomic_init(&s->phase, OC_SVC_LOADING);
    s->pools[OC_SVC_SMALL] = oc_blockpool_new(OC_SVC_SMALL_BLOCK, s->cfg.buffer_bytes / 8);
    s->pools[OC_SVC_LARGE] = oc_blockpool_new(OC_SVC_LARGE_BLOCK, s->cfg.buffer_bytes / 4);
    s->pools[OC_SVC_BULK] = oc_blockpool_new(OC_SVC_BULK_BLOCK, s->cfg.buffer_bytes / 8 * 5);
    oc_budget_init(&s->keys, s->cfg.buffer_bytes / 8);
    s->workers = (struct oc_svc_worker **)calloc(cfg->workers, sizeof *s->workers);
    s->shares =
        (struct oc_svc_share *)calloc((size_t)cfg->workers * OC_SVC_BLOCKS, sizeof *s->shares);
    pthread_mutex_init(&s->attached, NULL);
    int r = 0;
    if (s->pools[OC_SVC_SMALL] == NULL || s->pools[OC_SVC_LARGE] == NULL ||
        s->pools[OC_SVC_BULK] == NULL || s->workers == NULL || s->shares == NULL ||
        oc_svc_metrics_new(s) != 0) {
        r = oc_error_set(err, OC_E_EXHAUSTED, "out of memory for the object service");
    }
    if (r == 0) {
        r = start_movers(s, err);
    }
    if (r != 0) {
        oc_svc_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void oc_svc_free(struct oc_svc *s) {
    if (s == NULL) {
        return;
    }
    struct oc_movers *movers[] = {s->read_movers, s->bulk_movers, s->commit_movers};
    for (size_t i = 0; i < OC_ARRAY_LEN(movers); i++) {
        if (movers[i] != NULL) {
            oc_movers_free(movers[i]);
        }
    }
    for (int size = 0; size < OC_SVC_BLOCKS; size++) {
        if (s->pools[size] != NULL) {
            oc_blockpool_free(s->pools[size]);
        }
    }
    free(s->workers);
    free(s->shares);
    if (s->metrics != NULL) {
        oc_metrics_free(s->metrics);
    }
    pthread_mutex_destroy(&s->attached);
    free(s);
}

void oc_svc_set_phase(struct oc_svc *s, enum oc_svc_phase phase) {
    atomic_store(&s->phase, phase);
}

enum oc_svc_phase oc_svc_get_phase(const struct oc_svc *s) {
    return (enum oc_svc_phase)atomic_load_explicit(&s->phase, memory_order_acquire);
}

bool oc_svc_open_for_calls(void *service) {
    return oc_svc_get_phase((const struct oc_svc *)service) == OC_SVC_READY;
}

bool oc_svc_pressed(void *service) {
    const struct oc_svc *s = (const struct oc_svc *)service;

    return atomic_load_explicit(&s->waiting, memory_order_relaxed) > 0;
}

void oc_svc_attach(struct oc_svc *s, struct oc_rpc_server *rpc, const struct oc_listener *grpc,
                   const struct oc_listener *http) {
    pthread_mutex_lock(&s->attached);
    s->listeners[0] = grpc;
    s->listeners[1] = http;
    s->rpc = rpc;
    pthread_mutex_unlock(&s->attached);
}

void oc_svc_loaded(struct oc_svc *s, bool ok, uint64_t load_ms) {
    atomic_store(&s->load_ms, load_ms);
    atomic_store(&s->load, ok ? OC_SVC_LOADED : OC_SVC_LOAD_FAILED);
}

/* ---- workers ---- */

static void turn(struct oc_turn_hook *hook) {
    struct oc_svc_worker *w = OC_CONTAINER(hook, struct oc_svc_worker, hook);

    oc_svc_buffers_turn(w);
    oc_svc_get_turn(w);
    oc_svc_commit_turn(w);
}

int oc_svc_worker_new(struct oc_svc *s, unsigned index, struct oc_loop *loop,
                      struct oc_svc_worker **ret) {
    struct oc_svc_worker *w = (struct oc_svc_worker *)calloc(1, sizeof *w);

    OC_CHECK(index < s->cfg.workers && s->workers[index] == NULL);
    if (w == NULL) {
        return OC_E_EXHAUSTED;
    }
    w->svc = s;
    w->index = index;
    w->loop = loop;
    w->scratch = (uint8_t *)malloc(OC_SVC_SMALL_BLOCK);
    if (w->scratch == NULL || oc_svc_commit_init(w) != 0) {
        free(w->scratch);
        free(w);
        return OC_E_EXHAUSTED;
    }
    oc_list_init(&w->pending);
    oc_list_init(&w->resume);
    oc_svc_buffers_init(w);
    oc_pool_init(&w->gets, oc_svc_get_bytes(), 0, CACHED_OPS);
    oc_pool_init(&w->lists, oc_svc_list_bytes(), 0, 8);
    w->hook.fn = turn;
    oc_loop_hook_add(loop, &w->hook);
    s->workers[index] = w;
    *ret = w;
    return 0;
}

size_t oc_svc_worker_live(const struct oc_svc_worker *w) {
    return w->live + w->commit_runs;
}

void oc_svc_worker_free(struct oc_svc_worker *w) {
    if (w == NULL) {
        return;
    }
    OC_CHECK(w->live == 0);
    oc_loop_hook_remove(&w->hook);
    oc_svc_commit_done(w);
    oc_svc_buffers_done(w);
    oc_svc_writes_done(w);
    oc_pool_done(&w->gets);
    oc_pool_done(&w->lists);
    free(w->scratch);
    w->svc->workers[w->index] = NULL;
    free(w);
}

/* ---- every operation ---- */

int oc_svc_admit(enum oc_svc_op op, struct oc_span key, uint64_t key_len, const char **ret_text) {
    (void)key; /* what the owner is found by, once there are other nodes */
    if (op == OC_SVC_GET) {
        return 0; /* a key that cannot have been put is a miss like any other */
    }
    if (key_len == 0) {
        *ret_text = "missing key";
        return OC_E_INVALID;
    }
    if (key_len > OC_KEY_MAX) {
        *ret_text = "key is longer than the limit of 65535 bytes";
        return OC_E_INVALID;
    }
    return 0;
}

/* The texts that clients know for the classes of storage errors. */
static const char *storage_text(int code) {
    switch (code) {
    case OC_E_NOT_FOUND:
        return "key not found";
    case OC_E_EXHAUSTED:
        return "storage capacity exceeded";
    case OC_E_DATA_LOSS:
        return "data corruption detected";
    case OC_E_UNAVAILABLE:
        return "temporary I/O error";
    case OC_E_ABORTED:
        return "resource temporarily locked";
    case OC_E_DEADLINE:
        return "operation timed out";
    case OC_E_INVALID:
        return "invalid request";
    case OC_E_PERMISSION:
    case OC_E_INTERNAL:
        return "storage I/O error";
    default:
        return "internal error";
    }
}

void oc_svc_refuse(struct oc_svc_worker *w, struct oc_call *call, int code, const char *text) {
    (void)w;
    oc_call_finish(call, code, oc_span_str(text));
}

void oc_svc_fail(struct oc_svc_worker *w, struct oc_call *call, int code) {
    oc_svc_count_error(w->svc, oc_svc_method_index(w->svc, oc_call_method(call)));
    oc_svc_refuse(w, call, code, storage_text(code));
}

void oc_svc_malformed(struct oc_svc_worker *w, struct oc_call *call) {
    /* INTERNAL is what the gRPC implementations themselves answer when a message does not parse. */
    oc_svc_refuse(w, call, OC_E_INTERNAL,
                  "cannot parse the request: malformed message, or a string that is not UTF-8");
}

bool oc_svc_hold_key(struct oc_svc *s, uint64_t *held, uint64_t bytes) {
    uint64_t want = bytes > OC_SVC_KEY_FREE ? bytes : 0;

    if (want > *held) {
        if (!oc_budget_take(&s->keys, want - *held)) {
            oc_svc_count(s, OC_SVC_X_buffer_refused, 1);
            return false;
        }
    } else if (want < *held) {
        oc_budget_give(&s->keys, *held - want);
    }
    *held = want;
    return true;
}

uint64_t oc_svc_now_s(struct oc_svc_worker *w) {
    return oc_loop_now(w->loop).wall_ns / OC_NS_PER_S;
}

/* ---- GetTopology ---- */

static void topology_message(struct oc_call *call, struct oc_span message) {
    static const char text[] = "cluster mode not enabled";
    uint8_t reply[sizeof text + 4];
    struct oc_pb_writer w = oc_pb_writer(reply, sizeof reply);

    (void)message;                             /* GetTopologyRequest has no fields */
    oc_pb_put_bytes(&w, 2, OC_SPAN_LIT(text)); /* GetTopologyResponse.error; topology stays unset */
    (void)oc_call_send_copy(call, oc_span(reply, (size_t)(w.p - reply))); /* the only message */
    oc_call_finish(call, 0, OC_SPAN_EMPTY);
}

static void nothing_closed(struct oc_call *call, int code) {
    (void)call; /* no state of our own */
    (void)code;
}
