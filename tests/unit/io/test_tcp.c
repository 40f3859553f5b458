/* Connections and listeners, over loopback, against plain sockets. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "echo.h"
#include "io/tcp.h"
#include "rig.h"

struct server {
    struct loop_thread *threads[3]; /* the listener's, and the workers' */
    struct oc_listener *listener;
    struct echo_stats stats;
    uint16_t port;
};

struct opening {
    struct oc_letter letter;
    struct server *server;
    unsigned max_connections;
    const char *addr;
    int rc;
    _Atomic bool done;
};

static void open_on_loop(struct oc_letter *letter) {
    struct opening *o = (struct opening *)(void *)letter;
    struct server *s = o->server;
    struct oc_worker_slot slots[2] = {
        {loop_thread_loop(s->threads[1]), echo_accepted, &s->stats},
        {loop_thread_loop(s->threads[2]), echo_accepted, &s->stats},
    };
    struct oc_listener_config cfg = {.addr = o->addr,
                                     .max_connections = o->max_connections,
                                     .workers = slots,
                                     .worker_count = 2};

    o->rc = oc_listener_open(loop_thread_loop(s->threads[0]), &cfg, &s->listener, NULL);
    atomic_store(&o->done, true);
}

/* Polls a condition that another thread makes true; yields, never longer than the deadline. */
#define wait_for(cond)                                                                             \
    do {                                                                                           \
        uint64_t start_ns = oc_clock_now(oc_clock_real()).mono_ns;                                 \
        while (!(cond)) {                                                                          \
            assert_true(oc_clock_now(oc_clock_real()).mono_ns - start_ns <                         \
                        RIG_DEADLINE_MS * OC_NS_PER_MS);                                           \
            (void)sched_yield();                                                                   \
        }                                                                                          \
    } while (0)

static void server_start(struct server *s, const char *addr, unsigned max_connections) {
    struct opening o = {
        .letter.fn = open_on_loop, .server = s, .addr = addr, .max_connections = max_connections};

    memset(s, 0, sizeof *s);
    for (int i = 0; i < 3; i++) {
        s->threads[i] = loop_thread_start();
    }
    oc_loop_post(loop_thread_loop(s->threads[0]), &o.letter);
    wait_for(atomic_load(&o.done));
    assert_int_equal(o.rc, 0);
    s->port = oc_listener_port(s->listener);
    assert_int_not_equal(s->port, 0);
}

static void server_stop(struct server *s) {
    for (int i = 0; i < 3; i++) {
        loop_thread_stop(s->threads[i]);
    }
    assert_int_equal(s->stats.accepted, s->stats.closed);
}

static void fill(uint8_t *p, size_t len, uint32_t seed) {
    for (size_t i = 0; i < len; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (uint8_t)(seed >> 24);
    }
}

static void test_echo_of_odd_sizes(void **state) {
    static const size_t sizes[] = {1, 2, 3, 1447, 1448, 1449, 4095, 65537, 262143, 262144, 262145};
    static uint8_t out[262145];
    static uint8_t in[262145];
    struct server s;

    (void)state;
    server_start(&s, "127.0.0.1:0", 10);
    int fd = peer_connect(s.port);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        fill(out, sizes[i], (uint32_t)i);
        peer_send(fd, out, sizes[i]);
        assert_int_equal(peer_recv(fd, in, sizes[i]), sizes[i]);
        assert_memory_equal(in, out, sizes[i]);
    }
    (void)close(fd);
    wait_for(atomic_load(&s.stats.closed) == 1);
    assert_int_equal(s.stats.failed, 0);
    server_stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echo_of_odd_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
