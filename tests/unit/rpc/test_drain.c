/* Going away in order. */
#include <stdlib.h>
#include <unistd.h>

#include "rig.h"

static int setup(void **state) {
    struct rig *rig = calloc(1, sizeof *rig);

    rig_init(rig);
    rig_start(rig);
    *state = rig;
    return 0;
}

static int teardown(void **state) {
    rig_stop(*state);
    free(*state);
    return 0;
}

/* nghttp2's client is done when it sees the first GOAWAY: it answers no ping any more. */
static void idle_connection(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    (void)h2c_unary(&h, "/t.Test/Unary", "x", 1);
    rig_drain(rig, 10000);
    h2c_wait(&h, h.goaways >= 1);
    h2c_wait(&h, h.ended);
    assert_int_equal(h.goaway_code, NGHTTP2_NO_ERROR);
    wait_for(rig_drained(rig));
    h2c_close(&h);
}

static void calls_are_finished(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Stream", NULL, "\0\0\0\0\1a", 6, 0, true);
    h2c_wait(&h, st->body.len == 6);
    rig_drain(rig, 10000);
    h2c_wait(&h, h.goaways == 2);
    assert_int_equal(h.goaway_last, st->id);
    for (int i = 0; i < 10; i++) {
        h2c_step(&h, 5);
    }
    assert_false(rig_drained(rig) || h.ended || st->closed);
    h2c_more(&h, st, "\0\0\0\0\1b", 6, false);
    h2c_wait(&h, st->closed);
    assert_status(st, 0, "");
    assert_memory_equal(st->body.data, "\0\0\0\0\1a\0\0\0\0\1b", 12);
    h2c_wait(&h, h.ended);
    wait_for(rig_drained(rig));
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), 0);
    h2c_close(&h);
}

/* What was on its way when the first GOAWAY was sent is served; what comes behind the second is
 * not. */
static void new_streams(void **state) {
    struct rig *rig = *state;
    struct h2c_options deaf = {.no_ping_ack = true};
    uint8_t got[4096], frame[80];
    struct h2c h;
    bool ended;

    h2c_open(&h, rig->port, &deaf);
    h2c_wait(&h, h.settings_seen);
    struct h2c_stream *hold = h2c_grpc(&h, "/t.Test/Hold", NULL, "\0\0\0\0\0", 5, 0, false);
    h2c_wait(&h, atomic_load(&rig->svc.messages) == 1);
    rig_drain(rig, 3000);
    /* This client does not answer the ping, so there is a second between the two GOAWAYs. nghttp2
     * would refuse to open a stream now: by hand. */
    h2c_wait(&h, h.goaways == 1);
    assert_int_equal(h.goaway_last, 0x7fffffff);
    static const uint8_t unary[] =
        "\0\0\x27\1\4\0\0\0\3\x83\x86\1\1a\x04\x0d/t.Test/Unary\x0f\x10\x10"
        "application/grpc\0\0\6\0\1\0\0\0\3\0\0\0\0\1z";
    assert_int_equal(sizeof unary - 1, 9 + 0x27 + 9 + 6);
    peer_send(h.fd, unary, sizeof unary - 1);
    size_t n = 0;
    while (memmem(got, n, "\0\0\0\0\1z", 6) == NULL) {
        n += peer_recv_for(h.fd, got + n, sizeof got - n, 20, &ended);
        assert_true(n < sizeof got && !ended);
    }
    /* The second GOAWAY names it; a stream behind it is not answered, and the held one is cut off
     * at the end. */
    uint64_t end_ms = rig_now_ms() + RIG_DEADLINE_MS;
    while (memmem(got, n, "\7\0\0\0\0\0\0\0\0\3\0\0\0\0", 14) == NULL) {
        n += peer_recv_for(h.fd, got + n, sizeof got - n, 20, &ended);
        assert_true(rig_now_ms() < end_ms && n < sizeof got);
    }
    memcpy(frame, unary, sizeof unary - 1);
    frame[8] = 5;
    frame[9 + 0x27 + 8] = 5;
    peer_send(h.fd, frame, sizeof unary - 1);
    n = peer_recv_all(h.fd, got, sizeof got);
    assert_null(memmem(got, n, "\0\0\0\0\1z", 6));
    wait_for(rig_drained(rig));
    assert_int_equal(atomic_load(&rig->svc.messages), 2);
    wait_for(atomic_load(&rig->svc.closed) == 2);
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), OC_E_CANCELLED);
    assert_false(hold->closed);
    h2c_close(&h);
}

static void timeout_cuts(void **state) {
    struct rig *rig = *state;
    struct h2c h;
    uint64_t begin_ms = rig_now_ms();

    h2c_open(&h, rig->port, NULL);
    (void)h2c_grpc(&h, "/t.Test/Hold", NULL, "\0\0\0\0\0", 5, 0, false);
    h2c_wait(&h, atomic_load(&rig->svc.messages) == 1);
    rig_drain(rig, 100);
    h2c_wait(&h, h.ended);
    assert_true(rig_now_ms() - begin_ms >= 99);
    wait_for(rig_drained(rig));
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), OC_E_CANCELLED);
    h2c_close(&h);
}

static void nothing_to_drain(void **state) {
    struct rig *rig = *state;

    rig_drain(rig, 10000);
    wait_for(rig_drained(rig));
}

static void watches_hear_of_it(void **state) {
    struct rig *rig = *state;
    struct oc_span got;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st =
        h2c_grpc(&h, "/grpc.health.v1.Health/Watch", NULL, "\0\0\0\0\0", 5, 0, false);
    h2c_wait(&h, grpc_message(&st->body, 0, &got));
    rig_drain(rig, 10000);
    h2c_wait(&h, st->closed);
    assert_true(grpc_message(&st->body, 1, &got));
    assert_true(oc_span_equal(got, OC_SPAN_LIT("\x08\x02")));
    assert_status(st, 14, "the server is shutting down");
    h2c_wait(&h, h.ended);
    wait_for(rig_drained(rig));
    h2c_close(&h);
}

static void http1_connections(void **state) {
    struct rig *rig = *state;
    uint8_t got[2048];
    bool ended;

    int idle = peer_connect(rig->port);
    int busy = peer_connect(rig->port);
    int silent = peer_connect(rig->port);
    peer_send(idle, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n", 33);
    size_t n = 0;
    while (memmem(got, n, "ok\"}", 4) == NULL) {
        n += peer_recv_for(idle, got + n, sizeof got - n, 20, &ended);
        assert_false(ended);
    }
    peer_send(busy, "POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx", 52);
    wait_for(rig_stats(rig).connections == 3);
    wait_for(rig_stats(rig).bytes_in == 33 + 52);
    rig_drain(rig, 10000);
    assert_int_equal(peer_recv_all(idle, got, sizeof got), 0);
    assert_int_equal(peer_recv_all(silent, got, sizeof got), 0);
    assert_false(rig_drained(rig));
    peer_send(busy, "x", 1);
    n = peer_recv_all(busy, got, sizeof got);
    assert_non_null(memmem(got, n, "204 No Content", 14));
    assert_non_null(memmem(got, n, "Connection: close\r\n", 19));
    wait_for(rig_drained(rig));
    (void)close(idle);
    (void)close(busy);
    (void)close(silent);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(idle_connection),  T(calls_are_finished), T(new_streams),       T(timeout_cuts),
        T(nothing_to_drain), T(watches_hear_of_it), T(http1_connections),
    };

    return cmocka_run_group_tests_name("drain", tests, NULL, NULL);
}
