/* The embeddable node: one thread per worker loop, one background thread that loads the store and
 * then does its periodic work, and the order in which all of it starts and ends. Worker 0's loop
 * also accepts. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/disk.h"
#include "object/cpus.h"
#include "object/service.h"
#include "ocache_node.h"

#define WORKERS_MAX     64u
#define READ_MOVERS     4u
#define BULK_MOVERS     8u
#define BUFFER_BYTES    ((uint64_t)256 << 20)
#define MAX_CONNECTIONS 16384u
#define MAX_WAITERS     1024u
#define WAIT_MS         10000u
#define TICK_BUSY_MS    100u
#define TICK_IDLE_MS    1000u
/* After the drain: what movers still do for calls that were cut off. */
#define QUIESCE_MS 10000u
/* Longer waits are as good as without end, and must not pass the end of the clock. */
#define TIMEOUT_MAX_MS (UINT64_C(1) << 40)

struct worker {
    struct ocache_local_node *node;
    unsigned index;
    struct oc_loop *loop;
    pthread_t thread;
    bool started;
    int start_result;
    struct oc_svc_worker *svc;
    struct oc_rpc_worker *rpc;
    uint64_t drain_ms;
    struct oc_timer quiesce_timer;
    struct oc_letter letter;
};

struct ocache_local_node {
    struct ocache_node_config cfg;
    char *disk_path, *grpc_addr, *http_addr;
    const struct oc_clock *clock;
    struct oc_disk *disk;
    struct oc_objects *objects;
    struct oc_svc *svc;
    struct oc_rpc_server *rpc;
    struct worker *workers;
    unsigned worker_count;
    struct oc_worker_slot *slots;
    struct oc_listener *grpc, *http;
    uint16_t grpc_port, http_port;

    pthread_t background;
    bool background_started;
    pthread_mutex_t lock; /* everything below; a leaf */
    pthread_cond_t changed;
    unsigned reported, drained, quiet; /* workers that have started, drained, come to rest */
    bool loaded, load_failed, background_ended;
    bool marked, stopping;
    struct oc_error load_error;
    uint64_t load_ms;
    _Atomic bool wrote, tick_sleeps;
};

static int public_error(struct ocache_error *ret, const struct oc_error *err, int code) {
    if (ret != NULL) {
        ret->code = -code;
        (void)snprintf(ret->message, sizeof ret->message, "%s", err->msg);
    }
    return -code;
}

void ocache_node_config_init(struct ocache_node_config *cfg) {
    *cfg = (struct ocache_node_config){.listen_addr = ":9000", .listen_http = ":9001"};
}

/* ---- waiting ---- */

static uint64_t mono_ns(const struct ocache_local_node *n) {
    return oc_clock_now(n->clock).mono_ns;
}

/* With the lock held. False once the deadline has passed. */
static bool wait_changed(struct ocache_local_node *n, uint64_t deadline_ns) {
    struct timespec at = {.tv_sec = (time_t)(deadline_ns / OC_NS_PER_S),
                          .tv_nsec = (long)(deadline_ns % OC_NS_PER_S)};

    return pthread_cond_timedwait(&n->changed, &n->lock, &at) == 0 || mono_ns(n) < deadline_ns;
}

static void bump(struct ocache_local_node *n, unsigned *count) {
    pthread_mutex_lock(&n->lock);
    ++*count;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

/* True when the count reached `target` in time. */
static bool wait_count(struct ocache_local_node *n, const unsigned *count, unsigned target,
                       uint64_t deadline_ns) {
    bool in_time = true;

    pthread_mutex_lock(&n->lock);
    while (*count < target && in_time) {
        in_time = wait_changed(n, deadline_ns);
    }
    bool reached = *count >= target;
    pthread_mutex_unlock(&n->lock);
    return reached;
}

/* ---- asking a loop to run something, and waiting for it ---- */

struct ask {
    struct oc_letter letter;
    struct ocache_local_node *node;
    int (*fn)(struct ocache_local_node *node, struct oc_error *err);
    struct oc_error *err;
    int result;
    unsigned done;
};

static void answer_ask(struct oc_letter *letter) {
    struct ask *a = OC_CONTAINER(letter, struct ask, letter);

    a->result = a->fn(a->node, a->err);
    bump(a->node, &a->done);
}

static int ask_worker0(struct ocache_local_node *n,
                       int (*fn)(struct ocache_local_node *, struct oc_error *),
                       struct oc_error *err) {
    struct ask a = {.letter = {.fn = answer_ask}, .node = n, .fn = fn, .err = err};

    oc_loop_post(n->workers[0].loop, &a.letter);
    /* The loop runs and answers: there is nothing that could keep it. */
    OC_CHECK(wait_count(n, &a.done, 1, UINT64_MAX));
    return a.result;
}

/* ---- readiness ---- */

/* With the lock held. */
static void update_phase(struct ocache_local_node *n) {
    bool ready = n->loaded && (!n->cfg.hold_ready || n->marked);

    if (n->stopping) {
        oc_svc_set_phase(n->svc, OC_SVC_DRAINING);
    } else if (ready) {
        oc_svc_set_phase(n->svc, OC_SVC_READY);
    }
}

void ocache_node_mark_ready(struct ocache_local_node *n) {
    pthread_mutex_lock(&n->lock);
    n->marked = true;
    update_phase(n);
    pthread_mutex_unlock(&n->lock);
}

bool ocache_node_is_ready(const struct ocache_local_node *n) {
    return oc_svc_get_phase(n->svc) == OC_SVC_READY;
}

/* ---- the background thread ---- */

/* Any thread, after every commit. */
static void wrote(void *arg) {
    struct ocache_local_node *n = (struct ocache_local_node *)arg;

    if (!atomic_load_explicit(&n->wrote, memory_order_relaxed)) {
        atomic_store(&n->wrote, true);
    }
    /* A sleep that began when nothing was written may be a long one; the periodic work starts now.
     */
    if (atomic_load(&n->tick_sleeps)) {
        pthread_mutex_lock(&n->lock);
        atomic_store(&n->tick_sleeps, false);
        pthread_cond_broadcast(&n->changed);
        pthread_mutex_unlock(&n->lock);
    }
}

static uint64_t idle_ms(const struct ocache_local_node *n) {
    uint64_t interval = n->cfg.sync_interval_ms;

    return n->cfg.sync == OCACHE_SYNC_INTERVAL && interval > 0 && interval < TICK_IDLE_MS
               ? interval
               : TICK_IDLE_MS;
}

static void tick_until_stopped(struct ocache_local_node *n) {
    bool busy = true, stopping = false;

    while (!stopping) {
        oc_objects_tick(n->objects);
        uint64_t until = mono_ns(n) + (busy ? TICK_BUSY_MS : idle_ms(n)) * OC_NS_PER_MS;

        pthread_mutex_lock(&n->lock);
        if (!busy) {
            atomic_store(&n->tick_sleeps, true);
        }
        while (!n->stopping && wait_changed(n, until)) {
            if (!busy && !atomic_load(&n->tick_sleeps)) {
                break;
            }
        }
        atomic_store(&n->tick_sleeps, false);
        stopping = n->stopping;
        pthread_mutex_unlock(&n->lock);
        busy = atomic_exchange(&n->wrote, false);
    }
}

static void *background_main(void *arg) {
    struct ocache_local_node *n = (struct ocache_local_node *)arg;
    struct oc_error err = {0};
    uint64_t began = mono_ns(n);
    int r = oc_objects_load(n->objects, &err);

    pthread_mutex_lock(&n->lock);
    n->load_ms = (mono_ns(n) - began) / OC_NS_PER_MS;
    n->load_failed = r != 0;
    n->load_error = err;
    n->load_error.code = r;
    n->loaded = r == 0;
    oc_svc_loaded(n->svc, n->loaded, n->load_ms);
    update_phase(n);
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    if (r == 0) {
        tick_until_stopped(n);
    }
    pthread_mutex_lock(&n->lock);
    n->background_ended = true;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

int ocache_node_wait_loaded(struct ocache_local_node *n, uint64_t timeout_ms,
                            struct ocache_error *err) {
    uint64_t wait_ms = timeout_ms < TIMEOUT_MAX_MS ? timeout_ms : TIMEOUT_MAX_MS;
    uint64_t deadline = mono_ns(n) + wait_ms * OC_NS_PER_MS;
    bool in_time = true;
    int r = 0;

    pthread_mutex_lock(&n->lock);
    while (!n->loaded && !n->load_failed && in_time) {
        in_time = wait_changed(n, deadline);
    }
    if (n->load_failed) {
        r = public_error(err, &n->load_error, n->load_error.code);
    } else if (!n->loaded) {
        struct oc_error late;
        r = oc_error_set(&late, OC_E_DEADLINE, "the store is still loading");
        r = public_error(err, &late, r);
    }
    pthread_mutex_unlock(&n->lock);
    return r;
}

void ocache_node_load(struct ocache_local_node *n, struct ocache_load *ret) {
    struct oc_load_progress progress;

    *ret = (struct ocache_load){0};
    oc_objects_load_progress(n->objects, &progress);
    ret->bytes_done = progress.bytes_done;
    ret->bytes_total = progress.bytes_total;
    ret->records = progress.records;
    pthread_mutex_lock(&n->lock);
    bool loaded = n->loaded;
    ret->duration_ms = n->load_ms;
    pthread_mutex_unlock(&n->lock);
    if (loaded) {
        struct oc_objects_stats stats;

        oc_objects_stats(n->objects, &stats);
        ret->keys = stats.keys;
        ret->records = stats.recovered_records;
    }
}

/* ---- workers ---- */

static void accepted(void *user, struct oc_tcp *tcp) {
    oc_rpc_worker_accept(((struct worker *)user)->rpc, tcp);
}

static void *worker_main(void *arg) {
    struct worker *w = (struct worker *)arg;
    struct ocache_local_node *n = w->node;

    /* The service's hook goes first: what it answers at the end of a turn, the connections' hook
     * sends. */
    w->start_result = oc_svc_worker_new(n->svc, w->index, w->loop, &w->svc);
    if (w->start_result == 0) {
        w->start_result = oc_rpc_worker_new(n->rpc, w->loop, w->svc, &w->rpc);
    }
    bool run = w->start_result == 0;
    bump(n, &n->reported);
    if (run) {
        oc_loop_run(w->loop);
    }
    if (w->rpc != NULL) {
        oc_rpc_worker_free(w->rpc);
    }
    oc_svc_worker_free(w->svc);
    return NULL;
}

static int start_workers(struct ocache_local_node *n, struct oc_error *err) {
    unsigned started = 0;
    int r = 0;

    for (unsigned i = 0; i < n->worker_count && r == 0; i++) {
        struct worker *w = &n->workers[i];

        w->node = n;
        w->index = i;
        r = oc_loop_new(&w->loop, err);
        if (r != 0) {
            break;
        }
        n->slots[i] = (struct oc_worker_slot){w->loop, accepted, w};
        int e = pthread_create(&w->thread, NULL, worker_main, w);
        if (e != 0) {
            r = oc_error_errno(err, e, "cannot start a worker thread");
            break;
        }
        w->started = true;
        started++;
        char name[32];
        (void)snprintf(name, sizeof name, "oc-worker-%u", i);
        (void)pthread_setname_np(w->thread, name); /* a name for people */
    }
    OC_CHECK(wait_count(n, &n->reported, started, UINT64_MAX));
    for (unsigned i = 0; i < started && r == 0; i++) {
        if (n->workers[i].start_result != 0) {
            r = oc_error_set(err, n->workers[i].start_result, "out of memory for a worker");
        }
    }
    return r;
}

static int open_listeners(struct ocache_local_node *n, struct oc_error *err) {
    struct oc_listener_config cfg = {
        .addr = n->grpc_addr,
        .max_connections = n->cfg.max_connections,
        .workers = n->slots,
        .worker_count = n->worker_count,
    };
    int r = oc_listener_open(n->workers[0].loop, &cfg, &n->grpc, err);

    if (r == 0) {
        cfg.addr = n->http_addr;
        r = oc_listener_open(n->workers[0].loop, &cfg, &n->http, err);
    }
    if (r == 0) {
        n->grpc_port = oc_listener_port(n->grpc);
        n->http_port = oc_listener_port(n->http);
        oc_svc_attach(n->svc, n->rpc, n->grpc, n->http);
    }
    return r;
}

static int close_listeners(struct ocache_local_node *n, struct oc_error *err) {
    (void)err; /* cannot fail */
    oc_svc_attach(n->svc, n->rpc, NULL, NULL);
    if (n->grpc != NULL) {
        oc_listener_close(OC_TAKE(n->grpc));
    }
    if (n->http != NULL) {
        oc_listener_close(OC_TAKE(n->http));
    }
    return 0;
}

/* ---- start ---- */

static void on_call(void *user, const char *method, const char *peer, int code,
                    uint64_t duration_ns) {
    struct ocache_local_node *n = (struct ocache_local_node *)user;
    struct ocache_call_record record = {method, peer, -code, duration_ns};

    n->cfg.on_call(n->cfg.user, &record);
}

static int open_store(struct ocache_local_node *n, struct oc_error *err) {
    int r = oc_disk_posix_open(n->disk_path, &n->disk, err);

    if (r != 0) {
        return r;
    }
    struct oc_objects_config cfg = {
        .disk = n->disk,
        .clock = n->clock,
        .seed = oc_random_seed(),
        .sync = (enum oc_sync_mode)n->cfg.sync,
        .sync_interval_ms = n->cfg.sync_interval_ms,
        .segment_bytes = n->cfg.segment_bytes,
        .max_disk_bytes = n->cfg.max_disk_bytes,
        .recovery_threads = n->worker_count,
    };
    return oc_objects_open(&cfg, &n->objects, err);
}

static int open_service(struct ocache_local_node *n, struct oc_error *err) {
    struct oc_svc_config svc = {
        .disk = n->disk,
        .objects = n->objects,
        .sync = (enum oc_sync_mode)n->cfg.sync,
        .default_ttl_s = n->cfg.ttl_s,
        .buffer_bytes = n->cfg.buffer_bytes,
        .workers = n->worker_count,
        .read_movers = READ_MOVERS,
        .bulk_movers = BULK_MOVERS,
        .max_waiters = MAX_WAITERS,
        .wait_ms = WAIT_MS,
        .wrote = wrote,
        .wrote_arg = n,
        .on_call = n->cfg.on_call == NULL ? NULL : on_call,
        .on_call_user = n,
    };
    int r = oc_svc_new(&svc, &n->svc, err);

    if (r != 0) {
        return r;
    }
    struct oc_rpc_config rpc = {
        .not_found = oc_svc_not_found,
        .service = n->svc,
        .service_name = "cache.CacheService",
        .max_streams_per_connection = n->cfg.max_streams,
        /* Beyond this every stream's queue is short: what peers do not take must not hold all
           buffers. */
        .send_budget_bytes = n->cfg.buffer_bytes / 4,
        .receive_budget_bytes = n->cfg.receive_bytes,
        .max_header_bytes = n->cfg.max_header_bytes,
        .reset_burst = n->cfg.reset_burst,
        .reset_per_s = n->cfg.reset_rate,
        .keepalive_ms = n->cfg.keepalive_interval_ms,
        .keepalive_timeout_ms = n->cfg.keepalive_timeout_ms,
        .idle_ms = n->cfg.idle_timeout_ms,
        .handshake_ms = n->cfg.handshake_timeout_ms,
        .stall_ms = n->cfg.stall_timeout_ms,
        .open_for_calls = oc_svc_open_for_calls,
        .pressed = oc_svc_pressed,
        .pressed_stall_ms = WAIT_MS / 2, /* so that who waits is still there */
        .observe = oc_svc_observe,
    };
    rpc.methods = oc_svc_methods(n->svc, &rpc.method_count);
    rpc.routes = oc_svc_routes(&rpc.route_count);
    return oc_rpc_server_new(&rpc, &n->rpc, err);
}

static void set_defaults(struct ocache_node_config *cfg) {
    if (cfg->sync_interval_ms == 0) {
        cfg->sync_interval_ms = 1000;
    }
    if (cfg->buffer_bytes == 0) {
        cfg->buffer_bytes = BUFFER_BYTES;
    }
    if (cfg->workers == 0) {
        cfg->workers = oc_cpus_usable();
    }
    if (cfg->workers > WORKERS_MAX) {
        cfg->workers = WORKERS_MAX;
    }
    if (cfg->max_connections == 0) {
        cfg->max_connections = MAX_CONNECTIONS;
    }
}

static int node_new(const struct ocache_node_config *cfg, struct ocache_local_node **ret,
                    struct oc_error *err) {
    struct ocache_local_node *n = (struct ocache_local_node *)calloc(1, sizeof *n);

    if (n == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory for a node");
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&n->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&n->lock, NULL);
    n->clock = oc_clock_real();
    n->cfg = *cfg;
    set_defaults(&n->cfg);
    n->disk_path = strdup(cfg->disk);
    n->grpc_addr = strdup(cfg->listen_addr);
    n->http_addr = strdup(cfg->listen_http);
    n->workers = (struct worker *)calloc(n->cfg.workers, sizeof *n->workers);
    n->slots = (struct oc_worker_slot *)calloc(n->cfg.workers, sizeof *n->slots);
    *ret = n;
    if (n->disk_path == NULL || n->grpc_addr == NULL || n->http_addr == NULL ||
        n->workers == NULL || n->slots == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory for a node");
    }
    n->worker_count = n->cfg.workers;
    return 0;
}

static int start_background(struct ocache_local_node *n, struct oc_error *err) {
    int e = pthread_create(&n->background, NULL, background_main, n);

    if (e != 0) {
        return oc_error_errno(err, e, "cannot start the background thread");
    }
    n->background_started = true;
    (void)pthread_setname_np(n->background, "oc-background"); /* a name for people */
    return 0;
}

int ocache_node_start(const struct ocache_node_config *cfg, struct ocache_local_node **ret,
                      struct ocache_error *ret_err) {
    struct ocache_local_node *n = NULL;
    struct oc_error err = {0};
    int r;

    if (cfg->disk == NULL || cfg->disk[0] == 0 || cfg->listen_addr == NULL ||
        cfg->listen_http == NULL) {
        r = oc_error_set(&err, OC_E_INVALID, "a node needs a data directory and two addresses");
        return public_error(ret_err, &err, r);
    }
    r = node_new(cfg, &n, &err);
    if (r == 0) {
        r = open_store(n, &err);
    }
    if (r == 0) {
        r = open_service(n, &err);
    }
    if (r == 0) {
        r = start_workers(n, &err);
    }
    if (r == 0) {
        r = ask_worker0(n, open_listeners, &err);
    }
    if (r == 0) {
        r = start_background(n, &err);
    }
    if (r != 0) {
        if (n != NULL) {
            (void)ocache_node_stop(n, 0); /* nothing was served yet that could keep it */
        }
        return public_error(ret_err, &err, r);
    }
    *ret = n;
    return 0;
}

uint16_t ocache_node_grpc_port(const struct ocache_local_node *n) {
    return n->grpc_port;
}

uint16_t ocache_node_http_port(const struct ocache_local_node *n) {
    return n->http_port;
}

unsigned ocache_node_workers(const struct ocache_local_node *n) {
    return n->worker_count;
}

/* ---- stop ---- */

static void drained(void *arg) {
    struct worker *w = (struct worker *)arg;

    bump(w->node, &w->node->drained);
}

static void begin_drain(struct oc_letter *letter) {
    struct worker *w = OC_CONTAINER(letter, struct worker, letter);

    oc_rpc_worker_drain(w->rpc, w->drain_ms, drained, w);
}

/* What calls left behind: operations whose mover has not come back. */
static void check_quiet(struct oc_timer *timer) {
    struct worker *w = OC_CONTAINER(timer, struct worker, quiesce_timer);

    if (oc_svc_worker_live(w->svc) == 0) {
        oc_timer_done(&w->quiesce_timer);
        bump(w->node, &w->node->quiet);
    } else if (!oc_timer_running(&w->quiesce_timer)) {
        (void)oc_timer_start(&w->quiesce_timer, 2,
                             2); /* without it the stop's deadline ends this */
    }
}

static void begin_quiesce(struct oc_letter *letter) {
    struct worker *w = OC_CONTAINER(letter, struct worker, letter);

    oc_timer_init(&w->quiesce_timer, w->loop, check_quiet);
    check_quiet(&w->quiesce_timer);
}

/* Every started worker runs fn; true when `count` has been reached by all of them in time. */
static bool on_workers(struct ocache_local_node *n, void (*fn)(struct oc_letter *),
                       const unsigned *count, uint64_t wait_ms) {
    unsigned posted = 0;

    for (unsigned i = 0; i < n->worker_count; i++) {
        struct worker *w = &n->workers[i];

        if (w->started && w->start_result == 0) {
            w->letter.fn = fn;
            oc_loop_post(w->loop, &w->letter);
            posted++;
        }
    }
    return wait_count(n, count, posted, mono_ns(n) + wait_ms * OC_NS_PER_MS);
}

static bool end_background(struct ocache_local_node *n, uint64_t timeout_ms) {
    uint64_t deadline = mono_ns(n) + timeout_ms * OC_NS_PER_MS;
    bool in_time = true;

    pthread_mutex_lock(&n->lock);
    while (n->background_started && !n->background_ended && in_time) {
        in_time = wait_changed(n, deadline);
    }
    bool ended = !n->background_started || n->background_ended;
    pthread_mutex_unlock(&n->lock);
    if (ended && n->background_started) {
        pthread_join(n->background, NULL);
    }
    return ended;
}

static void node_free(struct ocache_local_node *n) {
    for (unsigned i = 0; i < n->worker_count; i++) {
        struct worker *w = &n->workers[i];

        if (w->started) {
            oc_loop_stop(w->loop);
            pthread_join(w->thread, NULL);
        }
    }
    oc_svc_free(n->svc); /* joins the movers, while the loops still take letters */
    for (unsigned i = 0; i < n->worker_count; i++) {
        if (n->workers[i].loop != NULL) {
            oc_loop_free(n->workers[i].loop);
        }
    }
    if (n->rpc != NULL) {
        oc_rpc_server_free(n->rpc);
    }
    if (n->objects != NULL) {
        oc_objects_close(n->objects, n->loaded);
    }
    if (n->disk != NULL) {
        oc_disk_posix_close(n->disk);
    }
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    free(n->disk_path);
    free(n->grpc_addr);
    free(n->http_addr);
    free(n->workers);
    free(n->slots);
    free(n);
}

int ocache_node_stop(struct ocache_local_node *n, uint64_t timeout_ms) {
    bool serving = n->svc != NULL && n->worker_count > 0 && n->workers[0].started &&
                   n->workers[0].start_result == 0;

    timeout_ms = timeout_ms < TIMEOUT_MAX_MS ? timeout_ms : TIMEOUT_MAX_MS;
    pthread_mutex_lock(&n->lock);
    n->stopping = true;
    if (n->svc != NULL) {
        update_phase(n);
    }
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    if (serving) {
        (void)ask_worker0(n, close_listeners, NULL);
    }
    for (unsigned i = 0; i < n->worker_count; i++) {
        n->workers[i].drain_ms = timeout_ms;
    }
    /* The drain itself ends at timeout_ms by cutting off what is left. */
    bool ended = on_workers(n, begin_drain, &n->drained, timeout_ms + QUIESCE_MS) &&
                 on_workers(n, begin_quiesce, &n->quiet, QUIESCE_MS) &&
                 end_background(n, timeout_ms);
    if (!ended) {
        return OCACHE_DEADLINE_EXCEEDED;
    }
    node_free(n);
    return 0;
}
