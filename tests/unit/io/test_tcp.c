/* Connections, over loopback, against plain sockets. Listeners and connects: test_net.c. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "echo.h"
#include "io/tcp.h"
#include "rig.h"

/* ---- an echo server on the loop of a thread of its own ---- */

struct server {
    struct loop_thread *thread;
    struct oc_listener *listener;
    struct echo_stats stats;
    struct oc_worker_slot slot;
    struct oc_letter letter;
    _Atomic bool open;
};

static void open_listener(struct oc_letter *letter) {
    struct server *s = OC_CONTAINER(letter, struct server, letter);
    struct oc_listener_config cfg = {.addr = "127.0.0.1:0", .workers = &s->slot, .worker_count = 1};

    assert_int_equal(oc_listener_open(s->slot.loop, &cfg, &s->listener, NULL), 0);
    atomic_store(&s->open, true);
}

static void server_start(struct server *s) {
    memset(s, 0, sizeof *s);
    s->thread = loop_thread_start();
    s->slot = (struct oc_worker_slot){loop_thread_loop(s->thread), echo_accepted, &s->stats};
    s->letter.fn = open_listener;
    oc_loop_post(s->slot.loop, &s->letter);
    wait_for(atomic_load(&s->open));
}

static void server_stop(struct server *s) {
    loop_thread_stop(s->thread);
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
    server_start(&s);
    int fd = peer_connect(oc_listener_port(s.listener));
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

/* ---- back-pressure ---- */

struct sender {
    int fd;
    uint8_t *bytes;
    size_t len;
};

static void *send_all(void *arg) {
    struct sender *s = arg;

    peer_send(s->fd, s->bytes, s->len);
    (void)shutdown(s->fd, SHUT_WR);
    return NULL;
}

static void test_a_peer_that_does_not_read_stops_the_reading(void **state) {
    enum { LEN = 64 << 20 }; /* far more than both kernels' buffers hold */
    struct server s;
    struct sender sender = {.len = LEN, .bytes = malloc(LEN)};
    uint8_t *in = malloc(LEN + 1);
    pthread_t thread;

    (void)state;
    assert_true(sender.bytes != NULL && in != NULL);
    fill(sender.bytes, LEN, 1);
    server_start(&s);
    sender.fd = peer_connect(oc_listener_port(s.listener));
    assert_int_equal(pthread_create(&thread, NULL, send_all, &sender), 0);
    wait_for(atomic_load(&s.stats.stopped) > 0);              /* nobody reads yet */
    assert_int_equal(peer_recv(sender.fd, in, LEN + 1), LEN); /* all, and then the end */
    assert_memory_equal(in, sender.bytes, LEN);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(s.stats.drained > 0);
    assert_int_equal(s.stats.failed, 0);
    (void)close(sender.fd);
    server_stop(&s);
    free(sender.bytes);
    free(in);
}

/* ---- both ends in the test's own hands: the peer acts between two turns of the loop ---- */

struct pair {
    struct rig rig;
    struct oc_listener *listener;
    struct oc_tcp *tcp;
    int peer;
    struct oc_turn_hook hook;
    void (*step)(struct pair *p);
    unsigned steps; /* turns since the connection came */
    size_t bytes;
    unsigned reads, drains, ends, closes;
    int end_code;
    bool close_in_read, close_in_drained;
    int mark; /* a test's own */
};

static void pair_read(void *user, struct oc_span bytes) {
    struct pair *p = user;

    assert_int_equal(p->closes, 0);
    p->reads++;
    p->bytes += bytes.len;
    if (p->close_in_read) {
        oc_tcp_close(p->tcp, false);
        oc_tcp_close(p->tcp, true); /* does nothing any more */
        oc_tcp_read_start(p->tcp);
        oc_tcp_want_write(p->tcp);
    }
}

static void pair_drained(void *user) {
    struct pair *p = user;

    p->drains++;
    if (p->close_in_drained) {
        oc_tcp_close(p->tcp, false);
    }
}

static void pair_ended(void *user, int code) {
    struct pair *p = user;

    p->ends++;
    p->end_code = code;
}

static void pair_closed(void *user) {
    struct pair *p = user;

    p->closes++;
    p->tcp = NULL;
    oc_loop_stop(p->rig.loop);
}

static const struct oc_tcp_events pair_events = {pair_read, pair_drained, pair_ended, pair_closed};

static void pair_hook(struct oc_turn_hook *hook) {
    struct pair *p = OC_CONTAINER(hook, struct pair, hook);

    if (p->tcp != NULL) {
        p->steps++;
        p->step(p);
    }
}

static void pair_accepted(void *user, struct oc_tcp *tcp) {
    struct pair *p = user;

    assert_null(p->tcp);
    p->tcp = tcp;
    oc_tcp_set_user(tcp, &pair_events, p);
}

static void pair_run(struct pair *p, void (*step)(struct pair *p)) {
    struct oc_worker_slot slot;

    rig_init(&p->rig);
    slot = (struct oc_worker_slot){p->rig.loop, pair_accepted, p};
    struct oc_listener_config cfg = {.addr = "127.0.0.1:0", .workers = &slot, .worker_count = 1};
    assert_int_equal(oc_listener_open(p->rig.loop, &cfg, &p->listener, NULL), 0);
    p->step = step;
    p->hook.fn = pair_hook;
    oc_loop_hook_add(p->rig.loop, &p->hook);
    p->peer = peer_connect(oc_listener_port(p->listener)); /* the backlog takes it */
    rig_run(&p->rig);
    assert_int_equal(p->closes, 1);
    if (p->peer >= 0) {
        (void)close(p->peer);
    }
    rig_done(&p->rig);
}

static void reset_peer(struct pair *p) {
    struct linger now = {.l_onoff = 1, .l_linger = 0};

    assert_int_equal(setsockopt(p->peer, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    (void)close(p->peer);
    p->peer = -1;
}

static void step_reset(struct pair *p) {
    if (p->steps == 1) {
        oc_tcp_read_start(p->tcp);
        peer_send(p->peer, "hello", 5);
        reset_peer(p);
    } else if (p->ends > 0) {
        assert_int_equal(oc_tcp_try_writev(p->tcp, &(struct iovec){(void *)"x", 1}, 1),
                         OC_E_UNAVAILABLE);
        oc_tcp_close(p->tcp, false);
    }
}

static void test_peer_reset(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_reset);
    assert_int_equal(p.ends, 1);
    assert_int_equal(p.end_code, OC_E_UNAVAILABLE);
}

static void step_reset_unread(struct pair *p) {
    if (p->steps == 1) { /* never read */
        peer_send(p->peer, "hello", 5);
        reset_peer(p);
    } else if (p->ends > 0) {
        oc_tcp_read_start(p->tcp); /* does nothing any more */
        oc_tcp_close(p->tcp, true);
    }
}

static void test_peer_reset_is_told_when_not_reading(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_reset_unread);
    assert_int_equal(p.ends, 1);
    assert_int_equal(p.end_code, OC_E_UNAVAILABLE);
    assert_int_equal(p.reads, 0);
}

static void step_half_close(struct pair *p) {
    if (p->steps == 1) {
        oc_tcp_read_start(p->tcp);
        peer_send(p->peer, "question", 8);
        assert_int_equal(shutdown(p->peer, SHUT_WR), 0);
    } else if (p->ends > 0) {
        struct iovec answer[2] = {{(void *)"ans", 3}, {(void *)"wer", 3}};

        assert_int_equal(p->bytes, 8);
        assert_int_equal(oc_tcp_try_writev(p->tcp, answer, 2), 6);
        oc_tcp_close(p->tcp, false);
        char got[7];
        assert_int_equal(peer_recv(p->peer, got, sizeof got), 6); /* and an orderly end */
        assert_memory_equal(got, "answer", 6);
    }
}

static void test_half_close_can_still_be_answered(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_half_close);
    assert_int_equal(p.ends, 1);
    assert_int_equal(p.end_code, 0);
}

static void step_end_waits_for_reading(struct pair *p) {
    if (p->steps == 1) {
        peer_send(p->peer, "bytes", 5);
        assert_int_equal(shutdown(p->peer, SHUT_WR), 0);
        oc_loop_again(p->rig.loop);
    } else if (p->steps < 5) { /* the event has come, and is kept */
        assert_int_equal(p->ends + p->reads, 0);
        oc_loop_again(p->rig.loop);
    } else if (p->steps == 5) {
        oc_tcp_read_start(p->tcp);
    } else if (p->ends > 0) {
        assert_int_equal(p->bytes, 5);
        oc_tcp_close(p->tcp, false);
    }
}

static void test_the_end_comes_behind_the_bytes(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_end_waits_for_reading);
    assert_int_equal(p.end_code, 0);
    assert_int_equal(p.ends, 1);
}

/* The peer has sent what we never read; our last words must reach it all the same. */
static void step_close_unread(struct pair *p) {
    static char sent[100000];
    char got[16];

    if (p->steps == 1) {
        peer_send(p->peer, sent, sizeof sent);
        assert_int_equal(oc_tcp_try_writev(p->tcp, &(struct iovec){(void *)"bye", 3}, 1), 3);
        oc_tcp_close(p->tcp, false);
        assert_int_equal(peer_recv(p->peer, got, sizeof got), 3);
        assert_memory_equal(got, "bye", 3);
        int errnum = -1;
        socklen_t len = sizeof errnum;
        assert_int_equal(getsockopt(p->peer, SOL_SOCKET, SO_ERROR, &errnum, &len), 0);
        assert_int_equal(errnum, 0); /* EPIPE: a reset came behind the end */
    }
}

static void test_orderly_close_with_unread_bytes(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_close_unread);
    assert_int_equal(p.ends, 0);
}

static void step_close_reset(struct pair *p) {
    char byte;

    if (p->steps == 1) {
        assert_string_equal(oc_tcp_peer(p->tcp), oc_tcp_peer(p->tcp));
        assert_non_null(strstr(oc_tcp_peer(p->tcp), "127.0.0.1:"));
        assert_ptr_equal(oc_tcp_loop(p->tcp), p->rig.loop);
        oc_tcp_close(p->tcp, true);
        assert_int_equal(oc_tcp_try_writev(p->tcp, &(struct iovec){(void *)"x", 1}, 1),
                         OC_E_CANCELLED);
        assert_int_equal(p->closes, 0); /* later */
        assert_int_equal(recv(p->peer, &byte, 1, 0), -1);
        assert_int_equal(errno, ECONNRESET);
    }
}

static void test_reset_close(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_close_reset);
}

static void step_close_in_read(struct pair *p) {
    static char sent[300000]; /* more than one read */

    if (p->steps == 1) {
        p->close_in_read = true;
        oc_tcp_read_start(p->tcp);
        peer_send(p->peer, sent, sizeof sent);
    }
}

static void test_close_inside_read(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_close_in_read);
    assert_int_equal(p.reads, 1);
    assert_int_equal(p.ends + p.drains, 0);
}

static void step_close_in_drained(struct pair *p) {
    if (p->steps == 1) {
        p->close_in_drained = true;
        oc_tcp_read_start(p->tcp);
        peer_send(p->peer, "x", 1);
        oc_tcp_want_write(p->tcp);
        assert_int_equal(p->drains, 0); /* never from inside */
    }
}

static void test_close_inside_drained(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_close_in_drained);
    assert_int_equal(p.drains, 1);
}

/* The kernel has told long ago that it takes bytes, and will not again. */
static void step_want_write_idle(struct pair *p) {
    if (p->steps == 5) {
        p->close_in_drained = true;
        oc_tcp_want_write(p->tcp);
    } else if (p->steps < 5) {
        oc_loop_again(p->rig.loop);
    }
}

static void test_drained_at_once_when_nothing_waits(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_want_write_idle);
    assert_int_equal(p.drains, 1);
    assert_int_equal(p.steps <= 7, 1);
}

/* Fill the kernel, then empty it at the other end: `drained` once, and writing goes on. */
static void step_fill(struct pair *p) {
    static uint8_t block[1 << 20];
    struct iovec iov = {block, sizeof block};

    if (p->steps == 1) {
        int64_t n;

        while ((n = oc_tcp_try_writev(p->tcp, &iov, 1)) > 0) {
            p->bytes += (size_t)n;
            assert_true(p->bytes < (1u << 30));
        }
        assert_int_equal(n, 0);
        oc_tcp_want_write(p->tcp);
        oc_loop_again(p->rig.loop);
    } else if (p->steps == 3) {
        assert_int_equal(p->drains, 0);
        uint8_t *got = malloc(p->bytes);
        assert_non_null(got);
        assert_int_equal(peer_recv(p->peer, got, p->bytes), p->bytes);
        free(got);
    } else if (p->drains == 1) {
        assert_int_equal(oc_tcp_try_writev(p->tcp, &iov, 1) > 0, 1);
        oc_tcp_close(p->tcp, false);
    } else if (p->steps < 3) {
        oc_loop_again(p->rig.loop);
    }
}

static void test_drained_after_the_peer_has_read(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_fill);
    assert_int_equal(p.drains, 1);
}

static void step_long_vector(struct pair *p) {
    enum { N = 3000 };
    static struct iovec iov[N];
    char got[N];

    if (p->steps == 1) {
        for (int i = 0; i < N; i++) {
            iov[i] = (struct iovec){(void *)"z", 1};
        }
        int64_t n = oc_tcp_try_writev(p->tcp, iov, N);
        assert_int_equal(n, 1024); /* IOV_MAX; the caller goes on from there */
        assert_int_equal(oc_tcp_try_writev(p->tcp, iov + n, N - (int)n), 1024);
        assert_int_equal(oc_tcp_try_writev(p->tcp, iov, 0), 0);
        assert_int_equal(peer_recv(p->peer, got, 2048), 2048);
        oc_tcp_close(p->tcp, false);
    }
}

static void test_vector_longer_than_the_kernel_takes(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_long_vector);
}

static void step_read_stop(struct pair *p) {
    if (p->steps == 1) {
        oc_tcp_read_start(p->tcp);
        oc_tcp_read_stop(p->tcp);
        peer_send(p->peer, "abc", 3);
        oc_loop_again(p->rig.loop);
    } else if (p->steps < 6) {
        assert_int_equal(p->reads, 0);
        oc_loop_again(p->rig.loop);
    } else if (p->steps == 6) {
        oc_tcp_read_start(p->tcp); /* no new event will come: the old one must have been kept */
    } else if (p->bytes == 3) {
        oc_tcp_close(p->tcp, false);
    }
}

static void test_bytes_that_came_while_stopped_are_read_on_start(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_read_stop);
    assert_int_equal(p.reads, 1);
}

/* Loopback delivers inside send(): if the kernel wanted to wake us it has done so when send
 * returns. */
static void step_low_water(struct pair *p) {
    static char sent[500];

    if (p->steps == 1) {
        oc_tcp_low_water(p->tcp, 1000);
        oc_tcp_read_start(p->tcp);
        oc_loop_again(p->rig.loop);
    } else if (p->steps == 3) {
        peer_send(p->peer, sent, sizeof sent);
        oc_loop_again(p->rig.loop);
    } else if (p->steps == 6) {
        assert_int_equal(p->reads, 0);
        peer_send(p->peer, sent, sizeof sent);
    } else if (p->reads > 0) {
        assert_int_equal(p->reads, 1);
        assert_int_equal(p->bytes, 1000);
        oc_tcp_close(p->tcp, false);
    } else if (p->steps < 6) {
        oc_loop_again(p->rig.loop);
    }
}

static void test_low_water(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_low_water);
}

/* 4 MiB are there at once: the connection has its share of each turn and others theirs. */
static void step_fair_share(struct pair *p) {
    static char block[1 << 16];

    if (p->steps == 1) {
        ssize_t n;

        do {
            n = send(p->peer, block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL);
            p->mark += n > 0 ? (int)n : 0;
        } while (n > 0);
        oc_tcp_read_start(p->tcp);
    } else if (p->steps == 2) {
        assert_true(p->bytes <= 1 << 20);
    }
    if (p->bytes >= (size_t)p->mark && p->steps > 1) {
        assert_int_equal(p->bytes, p->mark);
        oc_tcp_close(p->tcp, false);
    }
}

static void test_one_turn_reads_no_more_than_its_share(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_fair_share);
    assert_true(p.steps >= 2 + (unsigned)p.mark / (1 << 20));
}

static void step_stop_loop(struct pair *p) {
    if (p->steps == 1) {
        oc_tcp_read_start(p->tcp);
        oc_loop_stop(p->rig.loop);
    }
}

static void test_stopping_the_loop_closes_what_is_open(void **state) {
    struct pair p = {0};

    (void)state;
    pair_run(&p, step_stop_loop); /* asserts one `closed` */
    assert_int_equal(p.ends, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echo_of_odd_sizes),
        cmocka_unit_test(test_a_peer_that_does_not_read_stops_the_reading),
        cmocka_unit_test(test_peer_reset),
        cmocka_unit_test(test_peer_reset_is_told_when_not_reading),
        cmocka_unit_test(test_half_close_can_still_be_answered),
        cmocka_unit_test(test_the_end_comes_behind_the_bytes),
        cmocka_unit_test(test_orderly_close_with_unread_bytes),
        cmocka_unit_test(test_reset_close),
        cmocka_unit_test(test_close_inside_read),
        cmocka_unit_test(test_close_inside_drained),
        cmocka_unit_test(test_drained_at_once_when_nothing_waits),
        cmocka_unit_test(test_drained_after_the_peer_has_read),
        cmocka_unit_test(test_vector_longer_than_the_kernel_takes),
        cmocka_unit_test(test_bytes_that_came_while_stopped_are_read_on_start),
        cmocka_unit_test(test_low_water),
        cmocka_unit_test(test_one_turn_reads_no_more_than_its_share),
        cmocka_unit_test(test_stopping_the_loop_closes_what_is_open),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
