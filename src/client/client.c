/* The client object: its thread and loop, the pools of connections per address, which of them an
 * operation takes, and the watch over streams that make no progress. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "client/client_internal.h"

#define MAX_ADDRS       1024u
#define MAX_CONNECTIONS 64u
#define STALL_LOOK_MS   500u

void ocache_config_init(struct ocache_config *cfg) {
    memset(cfg, 0, sizeof *cfg);
}

/* ---- choosing ---- */

static size_t pool_of_key(const struct ocache_client *client, struct oc_span key) {
    return oc_fnv1a32(key) % client->pool_count;
}

static struct cl_pool *pick_pool(struct ocache_client *client, const struct cl_op *op) {
    if (op->addr != SIZE_MAX) {
        return &client->pools[op->addr];
    }
    switch (op->kind) {
    case CL_LIST:
    case CL_LIST_VALUES:
    case CL_TOPOLOGY:
        client->next_pool = (client->next_pool + 1) % client->pool_count;
        return &client->pools[client->next_pool];
    default:
        return &client->pools[pool_of_key(client, op->key)];
    }
}

/* The connection with the fewest calls, going round among equals; one that is failing or that just
 * failed this operation only when there is no other. */
struct oc_channel *cl_channel_pick(struct ocache_client *client, const struct cl_op *op) {
    struct cl_pool *pool = pick_pool(client, op);
    unsigned best = 0, best_cost = UINT32_MAX;

    for (unsigned i = 0; i < pool->count; i++) {
        unsigned at = (pool->next + i) % pool->count;
        unsigned calls = oc_channel_calls(pool->channels[at]);
        unsigned cost = calls < 1u << 28 ? calls : 1u << 28;

        if (oc_channel_state(pool->channels[at]) == OC_CHANNEL_FAILING) {
            cost += 1u << 30;
        }
        if (pool->channels[at] == op->channel) {
            cost += 1u << 29;
        }
        if (cost < best_cost) {
            best = at;
            best_cost = cost;
        }
    }
    pool->next = (best + 1) % pool->count;
    return pool->channels[best];
}

/* ---- the stall watch ---- */

static bool waits_for_server(const struct cl_op *op) {
    if (op->call == NULL || !op->stall_watched) {
        return false;
    }
    if (op->kind == CL_PUT_STREAM) {
        /* Only when all was said or nothing more can be in flight: else the reader is the slow one.
         */
        return op->ended_input || op->blocks_out == CL_BLOCKS;
    }
    return op->unconsumed == 0; /* else the consumer is */
}

static void on_stall(struct oc_timer *timer) {
    struct ocache_client *client = OC_CONTAINER(timer, struct ocache_client, stall);
    uint64_t now = oc_loop_now(client->loop).mono_ns;

    for (size_t i = 0; i < CL_BUCKETS; i++) {
        oc_list_each (it, &client->buckets[i]) {
            struct cl_op *op = OC_CONTAINER(it, struct cl_op, link);

            if (!waits_for_server(op)) {
                op->progress_ns = now;
            } else if (now - op->progress_ns > client->cfg.stall_ms * OC_NS_PER_MS) {
                cl_op_abort(op, OCACHE_DEADLINE_EXCEEDED, "the server made no progress");
            }
        }
    }
}

void cl_stall_watch(struct ocache_client *client, int change) {
    client->stream_count = (unsigned)((int)client->stream_count + change);
    if (client->stream_count == 0) {
        oc_timer_stop(&client->stall);
    } else if (client->stream_count == 1 && change > 0) {
        uint64_t ms = client->cfg.stall_ms < STALL_LOOK_MS ? client->cfg.stall_ms : STALL_LOOK_MS;

        (void)oc_timer_start(&client->stall, ms, ms); /* without memory: no watch this time */
    }
}

/* ---- the thread ---- */

static int open_channels(struct ocache_client *client, struct oc_error *err) {
    for (size_t i = 0; i < client->pool_count; i++) {
        struct cl_pool *pool = &client->pools[i];
        struct oc_channel_config cfg = {
            .addr = pool->addr,
            .connect_timeout_ms = client->cfg.connect_timeout_ms,
            .keepalive_ms = client->cfg.keepalive_ms,
            .keepalive_timeout_ms = client->cfg.keepalive_timeout_ms,
        };

        for (; pool->count < client->cfg.connections; pool->count++) {
            int rv = oc_channel_new(client->loop, &cfg, &pool->channels[pool->count], err);

            if (rv != 0) {
                return rv;
            }
            client->channels_left++;
        }
    }
    return 0;
}

static void on_channel_freed(void *arg) {
    struct ocache_client *client = arg;

    if (--client->channels_left == 0) {
        oc_loop_stop(client->loop);
    }
}

static void close_channels(struct ocache_client *client) {
    client->freeing = true;
    if (client->channels_left == 0) {
        oc_loop_stop(client->loop);
    }
    for (size_t i = 0; i < client->pool_count; i++) {
        for (unsigned k = 0; k < client->pools[i].count; k++) {
            oc_channel_free(client->pools[i].channels[k], on_channel_freed, client);
        }
    }
}

static void on_free_letter(struct oc_letter *letter) {
    close_channels(OC_CONTAINER(letter, struct ocache_client, free_letter));
}

static void *thread_main(void *arg) {
    struct ocache_client *client = arg;
    int rv = open_channels(client, &client->start_error);

    pthread_mutex_lock(&client->lock);
    client->start_code = rv;
    client->started = true;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
    if (rv != 0) {
        close_channels(client);
    }
    oc_loop_run(client->loop);
    oc_timer_done(&client->stall);
    return NULL;
}

/* ---- making ---- */

static void client_done(struct ocache_client *client) {
    oc_loop_free(client->loop);
    for (size_t i = 0; i < client->pool_count; i++) {
        free(client->pools[i].addr);
        free(client->pools[i].channels);
    }
    free(client->pools);
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->lock);
    client->magic = 0;
    free(client);
}

static int check_config(const struct ocache_config *cfg, struct ocache_error *err) {
    if (cfg->mode == OCACHE_MODE_CLUSTER) {
        return cl_error_set(err, OCACHE_UNIMPLEMENTED,
                            "cluster mode is not built into this client yet: use mode simple or "
                            "auto (every node answers for every key)");
    }
    if (cfg->mode != OCACHE_MODE_AUTO && cfg->mode != OCACHE_MODE_SIMPLE) {
        return cl_error_set(err, OCACHE_INVALID_ARGUMENT, "unknown mode %d", (int)cfg->mode);
    }
    if (cfg->addr_count == 0 || cfg->addr_count > MAX_ADDRS) {
        return cl_error_set(err, OCACHE_INVALID_ARGUMENT,
                            "%zu addresses given: 1 to %u are possible", cfg->addr_count,
                            MAX_ADDRS);
    }
    if (cfg->connections > MAX_CONNECTIONS) {
        return cl_error_set(err, OCACHE_INVALID_ARGUMENT,
                            "%u connections per address: at most %u are possible", cfg->connections,
                            MAX_CONNECTIONS);
    }
    return 0;
}

static void defaults(struct ocache_config *cfg) {
    cfg->connections = cfg->connections == 0 ? 4 : cfg->connections;
    cfg->connect_timeout_ms = cfg->connect_timeout_ms == 0 ? 5000 : cfg->connect_timeout_ms;
    cfg->deadline_ms = cfg->deadline_ms == 0 ? 30000 : cfg->deadline_ms;
    cfg->stall_ms = cfg->stall_ms == 0 ? 30000 : cfg->stall_ms;
    cfg->max_value_bytes = cfg->max_value_bytes == 0 ? 1u << 30 : cfg->max_value_bytes;
    cfg->detect_ms = cfg->detect_ms == 0 ? 2000 : cfg->detect_ms;
}

static bool copy_addrs(struct ocache_client *client, const struct ocache_config *cfg) {
    client->pools = calloc(cfg->addr_count, sizeof *client->pools);
    if (client->pools == NULL) {
        return false;
    }
    client->pool_count = cfg->addr_count;
    for (size_t i = 0; i < cfg->addr_count; i++) {
        client->pools[i].addr = strdup(cfg->addrs[i]);
        client->pools[i].channels = calloc(client->cfg.connections, sizeof(struct oc_channel *));
        if (client->pools[i].addr == NULL || client->pools[i].channels == NULL) {
            return false;
        }
    }
    client->cfg.addrs = NULL; /* the caller's; ours are in the pools */
    return true;
}

/* ---- OCACHE_MODE_AUTO: every node is asked at once; the first that knows a cluster decides ----
 */

struct detection {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t open;
    bool cluster;
};

static void on_detected(void *user, const struct ocache_result *result) {
    struct detection *d = user;

    pthread_mutex_lock(&d->lock);
    d->open--;
    d->cluster = d->cluster || result->code == OCACHE_OK;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

static void detect(struct ocache_client *client) {
    struct detection d = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct ocache_options opt = {.deadline_ms = client->cfg.detect_ms};

    for (size_t i = 0; i < client->pool_count; i++) {
        struct cl_op *op = cl_op_new(client, CL_TOPOLOGY, &opt, OC_SPAN_EMPTY, OC_SPAN_EMPTY,
                                     OC_SPAN_EMPTY, OC_SPAN_EMPTY);

        if (op != NULL) {
            op->addr = i;
            op->done = on_detected;
            op->user = &d;
            pthread_mutex_lock(&d.lock);
            d.open++;
            pthread_mutex_unlock(&d.lock);
            (void)cl_op_submit(op);
        }
    }
    pthread_mutex_lock(&d.lock);
    while (d.open > 0 && !d.cluster) {
        pthread_cond_wait(&d.changed, &d.lock); /* every question has its deadline */
    }
    if (d.open > 0) {
        pthread_mutex_unlock(&d.lock);
        (void)ocache_cancel_all(client); /* failing costs only waiting for the deadlines */
        pthread_mutex_lock(&d.lock);
        while (d.open > 0) {
            pthread_cond_wait(&d.changed, &d.lock);
        }
    }
    pthread_mutex_unlock(&d.lock);
    /* Routing by ring is not built yet. A cluster's nodes answer for every key, so that simple mode
     * is right for it, only not the shortest way. */
}

int ocache_client_new(const struct ocache_config *cfg, struct ocache_client **ret,
                      struct ocache_error *err) {
    struct oc_error loop_err = {0};
    int rv = check_config(cfg, err);

    if (rv != 0) {
        return rv;
    }
    struct ocache_client *client = calloc(1, sizeof *client);
    if (client == NULL) {
        return cl_error_set(err, OCACHE_RESOURCE_EXHAUSTED, "out of memory");
    }
    client->magic = CL_CLIENT_MAGIC;
    client->cfg = *cfg;
    defaults(&client->cfg);
    atomic_init(&client->next_id, 1);
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->changed, NULL);
    for (size_t i = 0; i < CL_BUCKETS; i++) {
        oc_list_init(&client->buckets[i]);
    }
    if (!copy_addrs(client, cfg)) {
        client_done(client);
        return cl_error_set(err, OCACHE_RESOURCE_EXHAUSTED, "out of memory");
    }
    rv = oc_loop_new(&client->loop, &loop_err);
    if (rv != 0) {
        client_done(client);
        return cl_error_set(err, -rv, "%s", loop_err.msg);
    }
    oc_timer_init(&client->stall, client->loop, on_stall);
    client->free_letter.fn = on_free_letter;
    if (pthread_create(&client->thread, NULL, thread_main, client) != 0) {
        client_done(client);
        return cl_error_set(err, OCACHE_RESOURCE_EXHAUSTED, "cannot start a thread");
    }
    pthread_mutex_lock(&client->lock);
    while (!client->started) {
        pthread_cond_wait(&client->changed, &client->lock);
    }
    pthread_mutex_unlock(&client->lock);
    if (client->start_code != 0) {
        rv = cl_error_set(err, -client->start_code, "%s", client->start_error.msg);
        pthread_join(client->thread, NULL);
        client_done(client);
        return rv;
    }
    if (client->cfg.mode == OCACHE_MODE_AUTO) {
        detect(client);
    }
    *ret = client;
    return 0;
}

void ocache_client_free(struct ocache_client *client) {
    if (client == NULL) {
        return;
    }
    OC_MAGIC_CHECK(client, CL_CLIENT_MAGIC);
    OC_CHECK(oc_loop_current() != client->loop);
    oc_loop_post(client->loop, &client->free_letter);
    pthread_join(client->thread, NULL);
    OC_CHECK(client->op_count == 0);
    client_done(client);
}

enum ocache_mode ocache_client_mode(const struct ocache_client *client) {
    (void)client;
    return OCACHE_MODE_SIMPLE;
}

const char *ocache_client_addr_for(const struct ocache_client *client, const void *key,
                                   size_t key_len) {
    return client->pools[pool_of_key(client, oc_span(key, key_len))].addr;
}
