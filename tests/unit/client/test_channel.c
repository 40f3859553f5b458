/* Channels of the gRPC client against scripted servers: connecting and failing, GOAWAY, keepalive,
 * limits on streams and queues, garbage, freeing. */
#include <stdatomic.h>
#include <stdio.h>

#include "base/rng.h"
#include "fixture.h"

/* ---- connecting ---- */

static bool answer_n(struct raw *r, void *arg) {
    unsigned n = *(const unsigned *)arg;
    uint32_t stream;
    size_t len;

    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    for (unsigned i = 0; i < n; i++) {
        RAW(raw_request(r, &stream));
        RAW(raw_body(r, stream, NULL, 0, &len));
        RAW(raw_ok_headers(r, stream));
        RAW(raw_message(r, stream, "m", 1, 6));
        RAW(raw_trailers(r, stream, "0", NULL));
    }
    return true;
}

static bool is_idle(struct fx *fx) {
    return fx_state(fx) == OC_CHANNEL_IDLE;
}

static void test_refused_then_back(void **state) {
    static unsigned one = 1;
    uint16_t port = raw_dead_port();
    char addr[32];
    struct fx fx;
    struct fx_call c;

    (void)state;
    (void)snprintf(addr, sizeof addr, "127.0.0.1:%u", port);
    fx_open(&fx, addr, (struct oc_channel_config){0});
    assert_int_equal(fx_state(&fx), OC_CHANNEL_IDLE);
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, OC_E_UNAVAILABLE, "refused");
    assert_true(c.unprocessed);
    assert_false(c.started);
    /* While failing, calls end at once and nothing is dialled. */
    assert_int_equal(fx_state(&fx), OC_CHANNEL_FAILING);
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, OC_E_UNAVAILABLE, "refused");
    assert_true(c.unprocessed);
    struct raw *r = raw_start(answer_n, &one, port);
    while (!is_idle(&fx)) { /* the backoff timer is 0.1 s, give or take */
        sched_yield();
    }
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, 0, "");
    assert_int_equal(fx_state(&fx), OC_CHANNEL_READY);
    fx_close(&fx);
    assert_true(raw_stop(r));
}

static void do_bad_addr(void *arg) {
    struct fx *fx = arg;
    static const char *const bad[] = {"", "host", "host:", "host:99999", ":x", "[::1"};

    for (size_t i = 0; i < OC_ARRAY_LEN(bad); i++) {
        struct oc_channel_config cfg = {.addr = bad[i]};
        struct oc_channel *ch = NULL;
        struct oc_error err = {0};

        OC_CHECK(oc_channel_new(fx->loop, &cfg, &ch, &err) == OC_E_INVALID);
        OC_CHECK(ch == NULL && err.msg[0] != 0);
    }
}

static void test_bad_addresses_are_refused(void **state) {
    struct fx fx;

    (void)state;
    fx_open(&fx, "127.0.0.1:1", (struct oc_channel_config){0});
    fx_do(&fx, do_bad_addr, &fx);
    fx_close(&fx);
}

static bool silent(struct raw *r, void *arg) {
    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_eof(r)); /* the client gives up */
    return true;
}

static void test_no_greeting(void **state) {
    struct raw *r = raw_start(silent, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){.connect_timeout_ms = 80});
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, OC_E_UNAVAILABLE, "no HTTP/2 greeting");
    assert_true(c.unprocessed);
    assert_true(raw_stop(r));
    fx_close(&fx);
}

static void test_deadline_while_connecting(void **state) {
    struct raw *r = raw_start(silent, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &c, 40, "q");
    fx_expect(&c, OC_E_DEADLINE, "deadline exceeded");
    assert_true(c.unprocessed);
    fx_close(&fx); /* hangs up */
    assert_true(raw_stop(r));
}

/* ---- garbage ---- */

static bool http1(struct raw *r, void *arg) {
    static const char text[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_send(r, text, sizeof text - 1));
    RAW(raw_eof(r));
    return true;
}

static void test_server_of_another_protocol(void **state) {
    struct raw *r = raw_start(http1, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, OC_E_UNAVAILABLE, "");
    assert_true(c.unprocessed);
    assert_true(raw_stop(r));
    fx_close(&fx);
}

#define GARBAGE_ROUNDS 64u

/* After a good greeting: random bytes; on odd rounds with believable frame heads in front of them.
 */
static bool garbage(struct raw *r, void *arg) {
    struct oc_rng rng;

    (void)arg;
    oc_rng_init(&rng, 20240607);
    for (unsigned i = 0; i < GARBAGE_ROUNDS; i++) {
        uint8_t bytes[600];
        uint32_t stream;

        for (size_t k = 0; k < sizeof bytes; k++) {
            bytes[k] = (uint8_t)oc_rng_next(&rng);
        }
        RAW(raw_accept(r));
        RAW(raw_greet(r, NULL));
        RAW(raw_request(r, &stream));
        for (size_t at = 0; at < sizeof bytes; at += 60) {
            bool sent = i % 2 == 0 ? raw_send(r, bytes + at, 60)
                                   : raw_frame(r, (uint8_t)(bytes[at] % 11), bytes[at + 1],
                                               bytes[at + 2] % 3 == 0 ? stream : 0, bytes + at, 60);

            if (!sent) {
                break; /* the client had enough */
            }
        }
        raw_hang_up(r);
    }
    return true;
}

static void test_garbage_ends_calls_once(void **state) {
    struct raw *r = raw_start(garbage, NULL, 0);

    (void)state;
    for (unsigned i = 0; i < GARBAGE_ROUNDS; i++) {
        struct fx fx;
        struct fx_call c;

        fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
        fx_call_start(&fx, &c, 0, "q");
        fx_wait_closed(&c);
        fx_close(&fx);
        assert_int_equal(c.closed, 1);
        assert_int_not_equal(c.code, 0);
    }
    assert_true(raw_stop(r));
}

/* ---- losing a connection ---- */

static bool hang_up_mid_call(struct raw *r, void *arg) {
    uint32_t stream;
    size_t len;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_body(r, stream, NULL, 0, &len)); /* unread bytes would turn the end into a reset */
    RAW(raw_ok_headers(r, stream));
    RAW(raw_message(r, stream, "half", 4, 9));
    raw_hang_up(r);
    /* It had worked: the next call dials at once. */
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_ok_headers(r, stream));
    RAW(raw_trailers(r, stream, "0", NULL));
    return true;
}

static void test_lost_connection(void **state) {
    struct raw *r = raw_start(hang_up_mid_call, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, OC_E_UNAVAILABLE, "connection");
    assert_false(c.unprocessed);
    assert_int_equal(c.messages, 1);
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, 0, "");
    fx_close(&fx);
    assert_true(raw_stop(r));
}

/* ---- GOAWAY ---- */

static bool goaway_mid_call(struct raw *r, void *arg) {
    uint32_t first, second, third;
    struct raw_in in;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &first));
    RAW(raw_request(r, &second));
    RAW(second > first);
    RAW(raw_ok_headers(r, first));
    RAW(raw_goaway(r, first, 0));
    RAW(raw_message(r, first, "still", 5, 3));
    RAW(raw_trailers(r, first, "0", NULL));
    /* With its last call done the client hangs up; it may say GOAWAY first. */
    while (raw_next(r, &in)) {
        RAW(in.type != RAW_HEADERS); /* nothing new comes here */
    }
    RAW(raw_ended(r));
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &third));
    RAW(raw_ok_headers(r, third));
    RAW(raw_trailers(r, third, "0", NULL));
    return true;
}

static void test_goaway(void **state) {
    struct raw *r = raw_start(goaway_mid_call, NULL, 0);
    struct fx fx;
    struct fx_call first, second, third;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &first, 0, "q");
    fx_call_start(&fx, &second, 0, "q");
    fx_expect(&second, OC_E_UNAVAILABLE, "");
    assert_true(second.unprocessed);
    fx_call_start(&fx, &third, 0, "q");
    fx_expect(&first, 0, "");
    assert_memory_equal(first.bytes, "still", 5);
    fx_expect(&third, 0, "");
    fx_close(&fx);
    assert_true(raw_stop(r));
}

/* A server that answers GOAWAY to every connection is not dialled without end. */
static atomic_uint dialled;

static bool goaway_always(struct raw *r, void *arg) {
    uint32_t stream;

    (void)arg;
    for (unsigned i = 0; i < 2; i++) {
        RAW(raw_accept(r));
        atomic_fetch_add(&dialled, 1);
        RAW(raw_greet(r, NULL));
        RAW(raw_request(r, &stream));
        RAW(raw_goaway(r, 0, 0));
        RAW(raw_eof(r));
    }
    return true;
}

static void test_goaway_storm(void **state) {
    struct raw *r = raw_start(goaway_always, NULL, 0);
    struct fx fx;
    struct fx_call c[3];

    (void)state;
    atomic_store(&dialled, 0);
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    for (unsigned i = 0; i < 3; i++) {
        fx_call_start(&fx, &c[i], 0, "q");
        fx_expect(&c[i], OC_E_UNAVAILABLE, "");
        assert_true(c[i].unprocessed);
        /* Once may be a restart; twice in a row without any response is a failure. */
        assert_int_equal(fx_state(&fx), i == 0 ? OC_CHANNEL_IDLE : OC_CHANNEL_FAILING);
    }
    assert_true(raw_stop(r));
    assert_int_equal(atomic_load(&dialled), 2);
    fx_close(&fx);
}

/* ---- keepalive ---- */

static bool ignore_pings(struct raw *r, void *arg) {
    uint32_t stream;
    struct raw_in in;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    do {
        RAW(raw_next(r, &in));
    } while (in.type != RAW_PING);
    RAW(raw_eof(r));
    return true;
}

static void test_keepalive_ends_a_dead_connection(void **state) {
    struct raw *r = raw_start(ignore_pings, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r),
            (struct oc_channel_config){.keepalive_ms = 40, .keepalive_timeout_ms = 60});
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, OC_E_UNAVAILABLE, "keepalive");
    assert_false(c.unprocessed);
    assert_true(raw_stop(r));
    fx_close(&fx);
}

static atomic_bool pinged;

/* One call so that there is a connection; then pings without any, answered, and the connection
 * stays. */
static bool answer_pings(struct raw *r, void *arg) {
    uint32_t stream;
    struct raw_in in;
    size_t len;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_body(r, stream, NULL, 0, &len));
    RAW(raw_ok_headers(r, stream));
    RAW(raw_trailers(r, stream, "0", NULL));
    for (unsigned i = 0; i < 4; i++) {
        do {
            RAW(raw_next(r, &in));
        } while (in.type != RAW_PING || (in.flags & RAW_ACK) != 0);
        RAW(raw_frame(r, RAW_PING, RAW_ACK, 0, in.payload, 8));
    }
    atomic_store(&pinged, true);
    RAW(raw_request(r, &stream)); /* on the same connection */
    RAW(raw_ok_headers(r, stream));
    RAW(raw_trailers(r, stream, "0", NULL));
    return true;
}

static void test_keepalive_without_calls(void **state) {
    struct raw *r = raw_start(answer_pings, NULL, 0);
    uint64_t before = oc_clock_now(oc_clock_real()).mono_ns;
    struct fx fx;
    struct fx_call c;

    (void)state;
    atomic_store(&pinged, false);
    fx_open(&fx, raw_addr(r),
            (struct oc_channel_config){.keepalive_ms = 20, .keepalive_timeout_ms = 5000});
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, 0, "");
    while (!atomic_load(&pinged)) {
        assert_true(oc_clock_now(oc_clock_real()).mono_ns - before < 20 * OC_NS_PER_S);
        sched_yield();
    }
    assert_true(oc_clock_now(oc_clock_real()).mono_ns - before >= 80 * OC_NS_PER_MS);
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, 0, "");
    fx_close(&fx);
    assert_true(raw_stop(r));
}

/* ---- limits ---- */

static bool one_at_a_time(struct raw *r, void *arg) {
    uint32_t stream;
    size_t len;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, &(struct raw_settings){.max_streams = 1}));
    for (unsigned i = 0; i < 4; i++) {
        RAW(raw_request(r, &stream));
        RAW(raw_body(r, stream, NULL, 0, &len));
        RAW(raw_quiet(r)); /* no other request is on its way */
        RAW(raw_ok_headers(r, stream));
        RAW(raw_trailers(r, stream, "0", NULL));
    }
    return true;
}

static void test_stream_limit_queues(void **state) {
    struct raw *r = raw_start(one_at_a_time, NULL, 0);
    struct fx fx;
    struct fx_call c[4];

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    for (unsigned i = 0; i < 4; i++) {
        fx_call_start(&fx, &c[i], 0, "q");
    }
    for (unsigned i = 0; i < 4; i++) {
        fx_expect(&c[i], 0, "");
    }
    fx_close(&fx);
    assert_true(raw_stop(r));
}

static void test_queue_is_bounded(void **state) {
    struct raw *r = raw_start(silent, NULL, 0);
    struct fx fx;
    struct fx_call c[4];

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){.max_queued_calls = 3});
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(fx_call_open(&fx, &c[i], 0, NULL, 0), 0);
    }
    assert_int_equal(fx_call_open(&fx, &c[3], 0, NULL, 0), OC_E_EXHAUSTED);
    fx_cancel(&c[0]);
    fx_wait_closed(&c[0]);
    assert_int_equal(fx_call_open(&fx, &c[3], 0, NULL, 0), 0);
    fx_close(&fx);
    assert_true(raw_stop(r));
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(c[i].code, OC_E_CANCELLED);
        assert_int_equal(c[i].closed, 1);
        assert_true(c[i].unprocessed);
    }
}

/* ---- freeing ---- */

static bool three_streams(struct raw *r, void *arg) {
    uint32_t stream;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, &(struct raw_settings){.max_streams = 3}));
    for (unsigned i = 0; i < 3; i++) {
        RAW(raw_request(r, &stream));
    }
    RAW(raw_ok_headers(r, stream));
    RAW(raw_eof(r));
    return true;
}

static bool saw_headers(void *arg) {
    return ((struct fx_call *)arg)->headers;
}

static void test_free_cancels_everything(void **state) {
    struct raw *r = raw_start(three_streams, NULL, 0);
    struct fx fx;
    struct fx_call c[5]; /* three open, two queued behind the server's limit */

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    for (unsigned i = 0; i < 5; i++) {
        fx_call_start(&fx, &c[i], i % 2 == 0 ? 0 : 60000, "q");
    }
    assert_true(fx_wait_until(&fx, saw_headers, &c[2]));
    fx_free_channel(&fx);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(c[i].closed, 1);
        assert_int_equal(c[i].code, OC_E_CANCELLED);
        assert_int_equal(c[i].unprocessed, i >= 3);
    }
    assert_true(raw_stop(r));
    fx_close(&fx);
}

static void test_free_while_connecting(void **state) {
    struct raw *r = raw_start(silent, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &c, 0, "q");
    fx_free_channel(&fx);
    assert_int_equal(c.code, OC_E_CANCELLED);
    assert_int_equal(c.closed, 1);
    fx_close(&fx);
    /* The connection may have been given up before it was made: then there was nothing to accept.
     */
    struct fx second;
    struct fx_call other;
    fx_open(&second, raw_addr(r), (struct oc_channel_config){.connect_timeout_ms = 50});
    fx_call_start(&second, &other, 0, "q");
    fx_wait_closed(&other);
    fx_close(&second);
    assert_true(raw_stop(r));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_then_back),
        cmocka_unit_test(test_bad_addresses_are_refused),
        cmocka_unit_test(test_no_greeting),
        cmocka_unit_test(test_deadline_while_connecting),
        cmocka_unit_test(test_server_of_another_protocol),
        cmocka_unit_test(test_garbage_ends_calls_once),
        cmocka_unit_test(test_lost_connection),
        cmocka_unit_test(test_goaway),
        cmocka_unit_test(test_goaway_storm),
        cmocka_unit_test(test_keepalive_ends_a_dead_connection),
        cmocka_unit_test(test_keepalive_without_calls),
        cmocka_unit_test(test_stream_limit_queues),
        cmocka_unit_test(test_queue_is_bounded),
        cmocka_unit_test(test_free_cancels_everything),
        cmocka_unit_test(test_free_while_connecting),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
