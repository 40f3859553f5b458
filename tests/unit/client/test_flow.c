/* Flow control of the gRPC client against scripted servers, in both directions, and whose memory is
 * referenced for how long. */
#include <sched.h>
#include <stdatomic.h>

#include "fixture.h"

/* ---- big requests: flow control against us ---- */

#define BIG (8u << 20)

struct big_source {
    uint8_t *bytes;
    atomic_int released;
    struct oc_ref refs[8];
    struct fx_call *c;
};

static struct big_source big_source;

static void on_released(struct oc_ref *ref) {
    (void)ref;
    atomic_fetch_add(&big_source.released, 1);
}

static void do_send_big(void *arg) {
    struct big_source *b = arg;
    struct oc_slice slices[8];

    for (unsigned i = 0; i < 8; i++) {
        oc_ref_init(&b->refs[i], on_released);
        slices[i] = (struct oc_slice){b->bytes + i * (BIG / 8), BIG / 8, &b->refs[i]};
    }
    OC_CHECK(!oc_client_call_send(b->c->call, slices, 8)); /* above the high-water mark */
    for (unsigned i = 0; i < 8; i++) {
        oc_ref_put(&b->refs[i]);
    }
}

static void do_half_close(void *arg) {
    oc_client_call_half_close(((struct fx_call *)arg)->call);
}

struct reader {
    struct raw_settings settings;
    uint8_t *want;
    size_t largest; /* frame seen */
};

static bool read_big(struct raw *r, void *arg) {
    struct reader *rd = arg;
    uint8_t *body = malloc(BIG + 5);
    uint32_t stream;
    struct raw_in in;
    size_t len = 0;
    uint8_t flags = 0;

    RAW(raw_accept(r));
    RAW(raw_greet(r, &rd->settings));
    RAW(raw_request(r, &stream));
    while ((flags & RAW_END_STREAM) == 0) {
        RAW(raw_expect(r, RAW_DATA, &in));
        RAW(len + in.len <= BIG + 5);
        memcpy(body + len, in.payload, in.len);
        len += in.len;
        flags = in.flags;
        rd->largest = in.len > rd->largest ? in.len : rd->largest;
        if (in.len > 0) {
            RAW(raw_window(r, 0, in.len));
            RAW(raw_window(r, stream, in.len));
        }
    }
    RAW(len == BIG + 5);
    RAW(memcmp(body, "\0\0\x80\0\0", 5) == 0); /* 8 MiB, big-endian */
    RAW(memcmp(body + 5, rd->want, BIG) == 0);
    free(body);
    RAW(raw_ok_headers(r, stream));
    RAW(raw_trailers(r, stream, "0", NULL));
    return true;
}

static bool was_writable(void *arg) {
    return ((struct fx_call *)arg)->writable == 1;
}

static void run_big(struct raw_settings settings, size_t largest) {
    struct reader rd = {.settings = settings};
    struct raw *r;
    struct fx fx;
    struct fx_call c;

    big_source = (struct big_source){.bytes = malloc(BIG), .c = &c};
    for (size_t i = 0; i < BIG; i++) {
        big_source.bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    rd.want = big_source.bytes;
    r = raw_start(read_big, &rd, 0);
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    assert_int_equal(fx_call_open(&fx, &c, 0, NULL, 0), 0);
    fx_do(&fx, do_send_big, &big_source);
    assert_true(fx_wait_until(&fx, was_writable, &c));
    fx_do(&fx, do_half_close, &c);
    fx_expect(&c, 0, "");
    assert_int_equal(c.writable, 1);
    fx_close(&fx);
    assert_true(raw_stop(r));
    assert_int_equal(atomic_load(&big_source.released), 8);
    assert_int_equal(rd.largest, largest);
    free(big_source.bytes);
}

static void test_big_request(void **state) {
    (void)state;
    run_big((struct raw_settings){0}, 16384);
    /* As large as the server allows, up to 256 KiB. */
    run_big((struct raw_settings){.initial_window = 1u << 30, .max_frame = 1u << 20}, 65535);
    run_big((struct raw_settings){.initial_window = 1u << 16, .max_frame = 40000}, 40000);
}

static bool read_by_bytes(struct raw *r, void *arg) {
    uint8_t body[64];
    uint32_t stream;
    size_t len;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, &(struct raw_settings){.initial_window = 1}));
    RAW(raw_request(r, &stream));
    RAW(raw_body(r, stream, body, sizeof body, &len));
    RAW(len == 17 && memcmp(body + 5, "one by one..", 12) == 0);
    RAW(raw_ok_headers(r, stream));
    RAW(raw_trailers(r, stream, "0", NULL));
    return true;
}

static void test_window_of_one_byte(void **state) {
    struct raw *r = raw_start(read_by_bytes, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &c, 0, "one by one..");
    fx_expect(&c, 0, "");
    fx_close(&fx);
    assert_true(raw_stop(r));
}

/* The server grants a great window, does not read, and refuses: the call ends with frames of it
 * still waiting to be written. They must go out whole (the connection lives on), but not from the
 * owner's memory. */
static atomic_bool bytes_are_gone;

static bool refuse_early(struct raw *r, void *arg) {
    struct raw_in in;
    uint32_t stream;
    size_t got = 0;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, &(struct raw_settings){.initial_window = 1u << 30, .max_frame = 1u << 20}));
    RAW(raw_window(r, 0, 1u << 30));
    RAW(raw_request(r, &stream));
    RAW(raw_ok_headers(r, stream));
    RAW(raw_trailers(r, stream, "8", "disk full"));
    while (!atomic_load(&bytes_are_gone)) {
        sched_yield();
    }
    do {
        RAW(raw_next(r, &in));
        if (in.type == RAW_DATA) {
            for (uint32_t i = got == 0 ? 5 : 0; i < in.len; i++) {
                RAW(in.payload[i] == 0);
            }
            got += in.len;
        }
    } while (in.type != RAW_RST);
    RAW(in.stream == stream && in.payload[3] == 0 /* NO_ERROR */);
    RAW(got < BIG);
    RAW(raw_quiet(r));
    return true;
}

static void test_early_refusal_releases_the_bytes(void **state) {
    struct raw *r = raw_start(refuse_early, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    atomic_store(&bytes_are_gone, false);
    big_source = (struct big_source){.bytes = calloc(1, BIG), .c = &c};
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    assert_int_equal(fx_call_open(&fx, &c, 0, NULL, 0), 0);
    fx_do(&fx, do_send_big, &big_source);
    fx_expect(&c, OC_E_EXHAUSTED, "disk full");
    assert_int_equal(atomic_load(&big_source.released), 8);
    memset(big_source.bytes, 0xff, BIG);
    free(big_source.bytes);
    atomic_store(&bytes_are_gone, true);
    raw_wait(r);
    fx_close(&fx);
    assert_true(raw_stop(r));
}

/* ---- pieces: the window is ours to give ---- */

static atomic_int gave_back;

/* One message of 128 KiB, of which the first 65535 bytes (its head included) fill the window. */
static bool fill_window(struct raw *r, void *arg) {
    static uint8_t bytes[131072 + 5] = {0, 0, 2, 0, 0};
    const size_t total = sizeof bytes;
    size_t sent = 0, allowed = 65535;
    uint32_t stream;
    struct raw_in in;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_ok_headers(r, stream));
    while (sent < total) {
        size_t n = allowed - sent < total - sent ? allowed - sent : total - sent;

        n = n < 16384 ? n : 16384;
        if (n > 0) {
            RAW(raw_frame(r, RAW_DATA, 0, stream, bytes + sent, n));
            sent += n;
            continue;
        }
        /* Used up: it comes back only when the user has consumed. */
        do {
            RAW(raw_expect(r, RAW_WINDOW, &in));
        } while (in.stream != stream);
        RAW(atomic_load(&gave_back) == 1);
        allowed += (size_t)in.payload[1] << 16 | (size_t)in.payload[2] << 8 | in.payload[3];
    }
    RAW(raw_trailers(r, stream, "0", NULL));
    return true;
}

static bool window_is_full(void *arg) {
    return ((struct fx_call *)arg)->total == 65535 - 5;
}

static void do_give_back(void *arg) {
    struct fx_call *c = arg;

    c->consume = true;
    atomic_store(&gave_back, 1);
    oc_client_call_consumed(c->call, 65535 - 5);
}

static void test_pieces_hold_the_window(void **state) {
    struct raw *r = raw_start(fill_window, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    atomic_store(&gave_back, 0);
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){.stream_window = 65535});
    fx_call_start_pieces(&fx, &c);
    assert_true(fx_wait_until(&fx, window_is_full, &c));
    fx_do(&fx, do_give_back, &c);
    fx_expect(&c, 0, "");
    assert_int_equal(c.messages, 1);
    assert_int_equal(c.ends, 1);
    assert_int_equal(c.total, 131072);
    fx_close(&fx);
    assert_true(raw_stop(r));
}

/* ---- what ends a call does not cost the connection its window ---- */

#define REFUSED_CALLS   12
#define REFUSED_PAYLOAD 16000u

static bool compressed_answers(struct raw *r, void *arg) {
    static uint8_t frame[5 + REFUSED_PAYLOAD] = {1, 0, 0, REFUSED_PAYLOAD >> 8,
                                                 REFUSED_PAYLOAD & 0xff};
    struct raw_in in;
    uint32_t stream;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    for (int i = 0; i < REFUSED_CALLS; i++) {
        RAW(raw_request(r, &stream));
        RAW(raw_ok_headers(r, stream));
        RAW(raw_frame(r, RAW_DATA, 0, stream, frame, sizeof frame));
        RAW(raw_expect(r, RAW_RST, &in));
        RAW(in.stream == stream);
    }
    return true;
}

/* More than the connection's window in all: one that shrank would end the connection. */
static void test_refused_answers_give_the_window_back(void **state) {
    struct raw *r = raw_start(compressed_answers, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){.connection_window = 65535});
    for (int i = 0; i < REFUSED_CALLS; i++) {
        fx_call_start(&fx, &c, 0, "q");
        fx_expect(&c, OC_E_UNIMPLEMENTED, "compressed");
    }
    fx_close(&fx);
    assert_true(raw_stop(r));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_big_request),
        cmocka_unit_test(test_window_of_one_byte),
        cmocka_unit_test(test_early_refusal_releases_the_bytes),
        cmocka_unit_test(test_pieces_hold_the_window),
        cmocka_unit_test(test_refused_answers_give_the_window_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
