/* One client, many threads, a real server (rpc/server.h with a store of a few lines behind it):
 * every byte comes back as it went, whatever runs at the same time. What ThreadSanitizer is to look
 * at. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/rng.h"
#include "core/codec/cache_pb.h"
#include "io/tcp.h"
#include "ocache.h"
#include "rpc/server.h"

#define THREADS    6
#define ROUNDS     40
#define VALUE_MAX  (300u << 10)
#define PIECE      20000u
#define STORE_KEYS 64

/* ---- the server: one worker, so its store needs no lock ---- */

struct stored {
    char key[32];
    struct oc_buf value;
};

static struct stored store[STORE_KEYS];

static struct stored *find(struct oc_span key, bool make) {
    for (unsigned i = 0; i < STORE_KEYS; i++) {
        struct stored *s = &store[i];

        if (s->key[0] == 0 && make && key.len < sizeof s->key) {
            memcpy(s->key, key.p, key.len);
            oc_buf_init(&s->value, 1u << 30);
            return s;
        }
        if (oc_span_equal(oc_span_str(s->key), key)) {
            return s;
        }
    }
    return NULL;
}

struct request {
    struct oc_buf data;
    char key[32];
};

static void on_start(struct oc_call *call, void *service) {
    struct request *q = calloc(1, sizeof *q);

    (void)service;
    OC_CHECK(q != NULL);
    oc_buf_init(&q->data, 1u << 30);
    oc_call_set_user(call, q);
}

static void on_put_message(struct oc_call *call, struct oc_span message) {
    struct request *q = oc_call_user(call);
    struct oc_cache_put_request m;

    OC_CHECK(oc_cache_put_request_decode(message, &m) == 0 && m.key.len < sizeof q->key);
    if (m.key.len > 0) {
        memcpy(q->key, m.key.p, m.key.len);
    }
    OC_CHECK(oc_buf_append(&q->data, m.data.p, m.data.len) == 0);
}

static void on_put_end(struct oc_call *call) {
    struct request *q = oc_call_user(call);
    struct stored *s = find(oc_span_str(q->key), true);
    uint8_t answer[16];
    size_t len = oc_cache_result_encode(answer, sizeof answer, true, OC_SPAN_EMPTY);

    s->value.len = 0;
    OC_CHECK(oc_buf_append(&s->value, q->data.data, q->data.len) == 0);
    (void)oc_call_send_copy(call, oc_span(answer, len));
    oc_call_finish(call, 0, OC_SPAN_EMPTY);
}

static void on_get_message(struct oc_call *call, struct oc_span message) {
    struct request *q = oc_call_user(call);
    struct oc_cache_get_request m;

    OC_CHECK(oc_cache_get_request_decode(message, &m) == 0 && m.key.len < sizeof q->key);
    memcpy(q->key, m.key.p, m.key.len);
}

static void on_get_end(struct oc_call *call) {
    struct request *q = oc_call_user(call);
    struct stored *s = find(oc_span_str(q->key), false);
    static uint8_t piece[PIECE + 16];

    if (s == NULL) {
        oc_call_finish(call, OC_E_NOT_FOUND, OC_SPAN_LIT("key not found"));
        return;
    }
    for (size_t at = 0; at < s->value.len; at += PIECE) {
        size_t n = s->value.len - at < PIECE ? s->value.len - at : PIECE;
        size_t head = oc_cache_get_response_head(piece, n);

        memcpy(piece + head, s->value.data + at, n);
        (void)oc_call_send_copy(call, oc_span(piece, head + n));
    }
    oc_call_finish(call, 0, OC_SPAN_EMPTY);
}

static void on_closed(struct oc_call *call, int code) {
    struct request *q = oc_call_user(call);

    (void)code;
    if (q != NULL) {
        oc_buf_done(&q->data);
        free(q);
    }
}

static const struct oc_method methods[] = {
    {.path = "/cache.CacheService/PutObject",
     .start = on_start,
     .message = on_put_message,
     .half_closed = on_put_end,
     .closed = on_closed},
    {.path = "/cache.CacheService/Put",
     .request_stream = true,
     .start = on_start,
     .message = on_put_message,
     .half_closed = on_put_end,
     .closed = on_closed},
    {.path = "/cache.CacheService/Get",
     .start = on_start,
     .message = on_get_message,
     .half_closed = on_get_end,
     .closed = on_closed},
};

struct server {
    struct oc_loop *loop;
    struct oc_rpc_server *rpc;
    struct oc_rpc_worker *worker;
    struct oc_listener *listener;
    struct oc_letter drain;
    pthread_t thread;
    char addr[32];
};

static void accepted(void *user, struct oc_tcp *tcp) {
    oc_rpc_worker_accept(user, tcp);
}

static void *server_main(void *arg) {
    oc_loop_run(arg);
    return NULL;
}

static void on_drained(void *arg) {
    struct server *s = arg;

    oc_rpc_worker_free(s->worker);
    oc_loop_stop(s->loop);
}

static void on_drain(struct oc_letter *letter) {
    struct server *s = OC_CONTAINER(letter, struct server, drain);

    oc_listener_close(s->listener);
    oc_rpc_worker_drain(s->worker, 5000, on_drained, s);
}

static void server_start(struct server *s) {
    struct oc_rpc_config cfg = {.methods = methods, .method_count = OC_ARRAY_LEN(methods)};
    struct oc_worker_slot slot = {.accepted = accepted};
    struct oc_listener_config lc = {
        .addr = "127.0.0.1:0", .max_connections = 100, .workers = &slot, .worker_count = 1};
    struct oc_error err = {0};

    memset(s, 0, sizeof *s);
    assert_int_equal(oc_rpc_server_new(&cfg, &s->rpc, &err), 0);
    assert_int_equal(oc_loop_new(&s->loop, &err), 0);
    assert_int_equal(oc_rpc_worker_new(s->rpc, s->loop, NULL, &s->worker), 0);
    slot.loop = s->loop;
    slot.user = s->worker;
    assert_int_equal(oc_listener_open(s->loop, &lc, &s->listener, &err), 0);
    (void)snprintf(s->addr, sizeof s->addr, "127.0.0.1:%u", oc_listener_port(s->listener));
    s->drain.fn = on_drain;
    assert_int_equal(pthread_create(&s->thread, NULL, server_main, s->loop), 0);
}

static void server_stop(struct server *s) {
    oc_loop_post(s->loop, &s->drain);
    pthread_join(s->thread, NULL);
    oc_loop_free(s->loop);
    oc_rpc_server_free(s->rpc);
    for (unsigned i = 0; i < STORE_KEYS; i++) {
        if (store[i].key[0] != 0) {
            oc_buf_done(&store[i].value);
        }
    }
    memset(store, 0, sizeof store);
}

/* ---- the threads ---- */

struct worker {
    struct ocache_client *client;
    unsigned number;
    pthread_t thread;
    const char *failed; /* NULL: fine */
};

struct source {
    const uint8_t *p;
    size_t left;
    struct oc_rng *rng;
};

static ptrdiff_t read_source(void *user, void *buf, size_t cap) {
    struct source *s = user;
    size_t n = s->left < cap ? s->left : cap;

    n = n > 1 ? 1 + (size_t)oc_rng_below(s->rng, n) : n;
    memcpy(buf, s->p, n);
    s->p += n;
    s->left -= n;
    return (ptrdiff_t)n;
}

struct sink {
    const uint8_t *want;
    size_t len, at;
    bool wrong;
};

static int write_sink(void *user, const void *data, size_t len) {
    struct sink *s = user;

    s->wrong = s->wrong || len > s->len - s->at || memcmp(s->want + s->at, data, len) != 0;
    s->at += s->wrong ? 0 : len;
    return s->wrong;
}

static const char *one_round(struct worker *w, struct oc_rng *rng, uint8_t *bytes) {
    size_t len = (size_t)oc_rng_below(rng, oc_rng_below(rng, 4) == 0 ? VALUE_MAX : 2000);
    struct source source = {bytes, len, rng};
    struct sink sink = {bytes, len, 0, false};
    char key[16];
    size_t key_len = (size_t)snprintf(key, sizeof key, "w%u", w->number);
    void *value;
    size_t got;
    int rv;

    for (size_t i = 0; i < len; i++) {
        bytes[i] = (uint8_t)oc_rng_next(rng);
    }
    rv = oc_rng_below(rng, 2) == 0
             ? ocache_put(w->client, key, key_len, bytes, len, NULL, NULL)
             : ocache_put_stream(w->client, key, key_len, read_source, &source, NULL, NULL);
    if (rv != 0) {
        return "put";
    }
    if (oc_rng_below(rng, 2) == 0) {
        rv = ocache_get_stream(w->client, key, key_len, write_sink, &sink, NULL, NULL);
        return rv != 0 || sink.wrong || sink.at != len ? "get_stream" : NULL;
    }
    if (ocache_get(w->client, key, key_len, NULL, &value, &got, NULL) != 0) {
        return "get";
    }
    bool same = got == len && memcmp(value, bytes, len) == 0;
    ocache_free(value);
    return same ? NULL : "get returned other bytes";
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    uint8_t *bytes = malloc(VALUE_MAX);
    struct oc_rng rng;

    oc_rng_init(&rng, w->number + 1);
    for (unsigned i = 0; i < ROUNDS && w->failed == NULL; i++) {
        w->failed = one_round(w, &rng, bytes);
    }
    free(bytes);
    return NULL;
}

static void on_missing(void *user, const struct ocache_result *result) {
    /* Cancelled in time or not: both are fine, but it ends once. */
    atomic_fetch_add((atomic_uint *)user,
                     result->code == OCACHE_NOT_FOUND || result->code == OCACHE_CANCELLED ? 1
                                                                                          : 1000);
}

static void test_many_threads(void **state) {
    struct server server;
    struct worker workers[THREADS];
    struct ocache_config cfg;
    struct ocache_client *client;
    struct ocache_error err = {0};
    const char *addrs[1];
    atomic_uint ended = 0;

    (void)state;
    server_start(&server);
    addrs[0] = server.addr;
    ocache_config_init(&cfg);
    cfg.addrs = addrs;
    cfg.addr_count = 1;
    assert_int_equal(ocache_client_new(&cfg, &client, &err), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.client = client, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 200; i++) { /* beside them: operations that are cancelled at once */
        uint64_t id = ocache_get_async(client, "none", 4, NULL, on_missing, &ended);

        assert_int_not_equal(id, 0);
        assert_int_equal(ocache_cancel(client, id), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].failed != NULL) {
            print_error("thread %u: %s\n", i, workers[i].failed);
        }
        assert_null(workers[i].failed);
    }
    ocache_client_free(client);
    assert_int_equal(atomic_load(&ended), 200);
    server_stop(&server);
}

/* A server that drains and is gone: what comes next fails, and says so at once. */
static void test_server_gone(void **state) {
    struct server server;
    struct ocache_config cfg;
    struct ocache_client *client;
    struct ocache_error err = {0};
    const char *addrs[1];

    (void)state;
    server_start(&server);
    addrs[0] = server.addr;
    ocache_config_init(&cfg);
    cfg.addrs = addrs;
    cfg.addr_count = 1;
    cfg.mode = OCACHE_MODE_SIMPLE;
    assert_int_equal(ocache_client_new(&cfg, &client, &err), 0);
    for (unsigned i = 0; i < 8; i++) { /* all four connections */
        assert_int_equal(ocache_put(client, "k", 1, "v", 1, NULL, &err), 0);
    }
    server_stop(&server);
    assert_int_equal(ocache_put(client, "k", 1, "v", 1, NULL, &err), OCACHE_UNAVAILABLE);
    ocache_client_free(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_server_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
