/* The server (tables, budgets, counts of all workers) and its workers (one per loop: connections,
 * the end-of-turn hook that sends, drain). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/event.h"
#include "base/hash.h"
#include "rpc/server_internal.h"

#define MSGS_CACHED    8192u
#define DRAIN_FINAL_MS 1000u /* the second GOAWAY comes after this at the latest */
#define METHODS_MAX    1024u
#define DRAIN_TICK_MS  20u

/* ---- the server ---- */

static uint64_t or_default(uint64_t v, uint64_t d) {
    return v != 0 ? v : d;
}

static void fill_defaults(struct oc_rpc_config *c) {
    c->max_streams_per_connection = (unsigned)or_default(c->max_streams_per_connection, 1024);
    c->receive_budget_bytes = or_default(c->receive_budget_bytes, 256ull << 20);
    c->send_budget_bytes = or_default(c->send_budget_bytes, 256ull << 20);
    c->max_header_bytes = or_default(c->max_header_bytes, 32u << 10);
    c->reset_burst = (unsigned)or_default(c->reset_burst, 1000);
    c->reset_per_s = (unsigned)or_default(c->reset_per_s, 33);
    c->keepalive_ms = or_default(c->keepalive_ms, 60000);
    c->keepalive_timeout_ms = or_default(c->keepalive_timeout_ms, 20000);
    c->handshake_ms = or_default(c->handshake_ms, 10000);
    c->stall_ms = or_default(c->stall_ms, 60000);
    c->pressed_stall_ms = or_default(c->pressed_stall_ms, 5000);
    if (c->pressed_stall_ms > c->stall_ms) {
        c->pressed_stall_ms = c->stall_ms;
    }
}

static int table_build(struct oc_rpc_server *s, struct oc_error *err) {
    size_t slots = 8;

    if (s->cfg.method_count > METHODS_MAX) {
        return oc_error_set(err, OC_E_INVALID, "more than %u methods", METHODS_MAX);
    }
    while (slots < s->cfg.method_count * 4) {
        slots *= 2;
    }
    s->table = calloc(slots, sizeof *s->table);
    if (s->table == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "no memory for the method table");
    }
    s->table_mask = slots - 1;
    for (size_t i = 0; i < s->cfg.method_count; i++) {
        const struct oc_method *m = &s->cfg.methods[i];
        uint64_t hash = oc_hash_key(oc_span_str(m->path));
        size_t at = hash & s->table_mask;

        if (server_method_find(s, oc_span_str(m->path)) != NULL) {
            return oc_error_set(err, OC_E_EXISTS, "method %s is given twice", m->path);
        }
        if (m->pieces ? m->piece == NULL : m->message == NULL) {
            return oc_error_set(err, OC_E_INVALID, "method %s has no callback for messages",
                                m->path);
        }
        while (s->table[at].method != NULL) {
            at = (at + 1) & s->table_mask;
        }
        s->table[at] = (struct server_dispatch){hash, m};
    }
    return OC_OK;
}

const struct oc_method *server_method_find(const struct oc_rpc_server *s, struct oc_span path) {
    uint64_t hash = oc_hash_key(path);

    for (size_t at = hash & s->table_mask; s->table[at].method != NULL;
         at = (at + 1) & s->table_mask) {
        if (s->table[at].hash == hash &&
            oc_span_equal(oc_span_str(s->table[at].method->path), path)) {
            return s->table[at].method;
        }
    }
    return NULL;
}

const struct oc_http_route *server_route_find(const struct oc_rpc_server *s, struct oc_span path) {
    for (size_t i = 0; i < s->cfg.route_count; i++) {
        if (oc_span_equal(oc_span_str(s->cfg.routes[i].path), path)) {
            return &s->cfg.routes[i];
        }
    }
    return NULL;
}

int oc_rpc_server_new(const struct oc_rpc_config *cfg, struct oc_rpc_server **ret,
                      struct oc_error *err) {
    struct oc_rpc_server *s = calloc(1, sizeof *s);

    if (s == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "no memory for the RPC server");
    }
    s->cfg = *cfg;
    fill_defaults(&s->cfg);
    OC_CHECK(pthread_mutex_init(&s->lock, NULL) == 0);
    oc_list_init(&s->workers);
    uint64_t budget = s->cfg.receive_budget_bytes;
    oc_budget_init(&s->reserve, budget - budget / 4);
    oc_budget_init(&s->hold, budget / 4);
    uint64_t first = budget / 1024; /* so that a thousand streams fit into what is held */
    s->stream_window = first < SERVER_STREAM_MIN ? SERVER_STREAM_MIN
                       : first > (256u << 10)    ? 256u << 10
                                                 : (uint32_t)first;
    int r = table_build(s, err);
    if (r == OC_OK && server_h2_library(s) < 0) {
        r = oc_error_set(err, OC_E_EXHAUSTED, "no memory for the HTTP/2 library");
    }
    if (r < 0) {
        oc_rpc_server_free(s);
        return r;
    }
    *ret = s;
    return OC_OK;
}

void oc_rpc_server_free(struct oc_rpc_server *s) {
    if (s == NULL) {
        return;
    }
    OC_CHECK(oc_list_empty(&s->workers));
    OC_CHECK(atomic_load(&s->reserve.used) == 0 && atomic_load(&s->hold.used) == 0);
    if (s->h2_callbacks != NULL) {
        nghttp2_session_callbacks_del(s->h2_callbacks);
    }
    if (s->h2_options != NULL) {
        nghttp2_option_del(s->h2_options);
    }
    (void)pthread_mutex_destroy(&s->lock);
    free(s->table);
    free(s);
}

/* ---- counts ---- */

static uint64_t look(const _Atomic uint64_t *c) {
    return atomic_load_explicit(c, memory_order_relaxed);
}

static void add_counts(struct oc_rpc_stats *to, const struct server_counts *c) {
    to->connections += look(&c->connections);
    to->streams += look(&c->streams);
    to->calls_total += look(&c->calls_total);
    to->refused_streams += look(&c->refused_streams);
    to->resets_received += look(&c->resets_received);
    to->rapid_reset_closed += look(&c->rapid_reset_closed);
    to->protocol_errors += look(&c->protocol_errors);
    to->http1_requests += look(&c->http1_requests);
    to->bytes_in += look(&c->bytes_in);
    to->bytes_out += look(&c->bytes_out);
    to->stalled_closed += look(&c->stalled_closed);
    to->keepalive_closed += look(&c->keepalive_closed);
    to->receive_used += look(&c->floor_used);
}

void oc_rpc_server_stats(struct oc_rpc_server *s, struct oc_rpc_stats *ret) {
    (void)pthread_mutex_lock(&s->lock);
    *ret = s->gone;
    oc_list_each (link, &s->workers) {
        add_counts(ret, &OC_CONTAINER(link, struct oc_rpc_worker, link)->counts);
    }
    (void)pthread_mutex_unlock(&s->lock);
    ret->receive_used += look(&s->reserve.used) + look(&s->hold.used);
    ret->receive_denied = look(&s->reserve.denied) + look(&s->hold.denied);
    int64_t sent = (int64_t)look(&s->send_used);
    ret->send_used = sent > 0 ? (uint64_t)sent : 0;
}

/* ---- the worker ---- */

uint64_t server_worker_now(struct oc_rpc_worker *w) {
    w->now_ns = server_now(w).mono_ns;
    return w->now_ns;
}

bool server_serving(const struct oc_rpc_worker *w) {
    const struct oc_rpc_config *cfg = &w->s->cfg;

    return !w->draining && (cfg->open_for_calls == NULL || cfg->open_for_calls(cfg->service));
}

const char *server_date(struct oc_rpc_worker *w) {
    uint64_t now_s = server_now(w).wall_ns / OC_NS_PER_S;
    time_t t = (time_t)now_s;
    struct tm tm;

    if (now_s != w->date_s && gmtime_r(&t, &tm) != NULL) {
        static const char days[] = "SunMonTueWedThuFriSat";
        static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

        /* Not strftime: its names follow the locale. */
        (void)snprintf(w->date, sizeof w->date, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT",
                       days + 3 * tm.tm_wday, tm.tm_mday % 100, months + 3 * tm.tm_mon,
                       (tm.tm_year + 1900) % 10000, tm.tm_hour % 100, tm.tm_min % 100,
                       tm.tm_sec % 100);
        w->date_s = now_s;
    }
    return w->date;
}

/* Once: what becomes dirty on the way waits for the next turn, which comes at once. */
void server_worker_turn(struct oc_rpc_worker *w) {
    struct oc_list batch;
    struct oc_list *link;

    w->flushed_ns = server_worker_now(w);
    if (oc_list_empty(&w->dirty)) {
        return;
    }
    oc_list_init(&batch);
    oc_list_insert_before(&w->dirty, &batch);
    oc_list_remove(&w->dirty); /* `batch` now heads the ring */
    while ((link = oc_list_pop_front(&batch)) != NULL) {
        server_conn_turn(OC_CONTAINER(link, struct server_conn, dirty));
    }
}

static void turn(struct oc_turn_hook *hook) {
    server_worker_turn(OC_CONTAINER(hook, struct oc_rpc_worker, hook));
}

int oc_rpc_worker_new(struct oc_rpc_server *s, struct oc_loop *loop, void *user,
                      struct oc_rpc_worker **ret) {
    struct oc_rpc_worker *w = calloc(1, sizeof *w);

    if (w == NULL) {
        return OC_E_EXHAUSTED;
    }
    w->magic = SERVER_WORKER_MAGIC;
    w->s = s;
    w->loop = loop;
    w->user = user;
    w->deadline_armed_ns = UINT64_MAX;
    w->drain_final_ms = DRAIN_FINAL_MS;
    oc_list_init(&w->conns);
    oc_list_init(&w->dirty);
    oc_list_init(&w->waiting);
    oc_list_init(&w->watches);
    oc_pool_init(&w->msgs, sizeof(struct server_msg), 0, MSGS_CACHED);
    server_mem_init(&w->mem, &w->h2_mem);
    oc_timer_init(&w->tick, loop, server_tick);
    oc_timer_init(&w->deadline, loop, server_deadline_fired);
    oc_timer_init(&w->wait, loop, server_window_wait_fired);
    uint64_t tick_ms = server_tick_ms(&s->cfg);
    int r = oc_timer_start(&w->tick, tick_ms, tick_ms);
    if (r < 0) {
        free(w);
        return r;
    }
    server_worker_now(w);
    w->hook.fn = turn;
    oc_loop_hook_add(loop, &w->hook);
    (void)pthread_mutex_lock(&s->lock);
    oc_list_push_back(&s->workers, &w->link);
    (void)pthread_mutex_unlock(&s->lock);
    *ret = w;
    return OC_OK;
}

void *oc_rpc_worker_user(const struct oc_rpc_worker *w) {
    return w->user;
}

struct oc_loop *oc_rpc_worker_loop(const struct oc_rpc_worker *w) {
    return w->loop;
}

void oc_rpc_worker_accept(struct oc_rpc_worker *w, struct oc_tcp *tcp) {
    OC_MAGIC_CHECK(w, SERVER_WORKER_MAGIC);
    server_conn_accept_tcp(w, tcp);
}

void server_worker_check_drained(struct oc_rpc_worker *w) {
    if (w->draining && w->conn_count == 0 && !w->drained_called) {
        w->drained_called = true;
        if (w->drained != NULL) {
            w->drained(w->drained_arg);
        }
    }
}

void oc_rpc_worker_drain(struct oc_rpc_worker *w, uint64_t timeout_ms, void (*done)(void *arg),
                         void *arg) {
    OC_MAGIC_CHECK(w, SERVER_WORKER_MAGIC);
    OC_CHECK(!w->draining);
    server_worker_now(w);
    w->draining = true;
    w->drained = done;
    w->drained_arg = arg;
    w->drain_deadline_ns = w->now_ns + timeout_ms * OC_NS_PER_MS;
    w->drain_final_ms = timeout_ms / 2 < DRAIN_FINAL_MS ? timeout_ms / 2 : DRAIN_FINAL_MS;
    (void)oc_timer_start(&w->tick, DRAIN_TICK_MS, DRAIN_TICK_MS); /* fails: as slow as before */
    oc_event(OC_EV_DRAIN, w->conn_count, 0);
    server_health_drain(w);
    oc_list_each_safe (link, next, &w->conns) {
        server_conn_drain(OC_CONTAINER(link, struct server_conn, link));
    }
    server_worker_check_drained(w);
}

void oc_rpc_worker_free(struct oc_rpc_worker *w) {
    struct oc_rpc_server *s;

    if (w == NULL) {
        return;
    }
    OC_MAGIC_CHECK(w, SERVER_WORKER_MAGIC);
    OC_CHECK(w->conn_count == 0);
    s = w->s;
    (void)pthread_mutex_lock(&s->lock);
    oc_list_remove(&w->link);
    add_counts(&s->gone, &w->counts);
    (void)pthread_mutex_unlock(&s->lock);
    atomic_fetch_add(&s->send_used, (uint64_t)w->send_unreported);
    oc_loop_hook_remove(&w->hook);
    oc_timer_done(&w->tick);
    oc_timer_done(&w->deadline);
    oc_timer_done(&w->wait);
    while (w->free_calls != NULL) {
        struct oc_call *call = w->free_calls;

        w->free_calls = call->next_free;
        oc_arena_done(&call->arena);
        free(call);
    }
    oc_pool_done(&w->msgs);
    server_mem_done(&w->mem);
    free(w->heap);
    w->magic = 0;
    free(w);
}
