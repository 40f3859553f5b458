/* Peers that misuse the protocol, stand still or flood: each ends in the way that was decided for
 * it, and the server goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "rig.h"

static int setup(void **state) {
    struct rig *rig = calloc(1, sizeof *rig);

    rig_init(rig);
    *state = rig;
    return 0;
}

static int teardown(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    /* Whatever happened, others are served. */
    h2c_open(&h, rig->port, NULL);
    assert_status(h2c_unary(&h, "/t.Test/Unary", "x", 1), 0, "");
    h2c_close(&h);
    rig_stop(rig);
    free(rig);
    return 0;
}

/* ---- frames by hand ---- */

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

static void put_frame(struct oc_buf *b, uint8_t type, uint8_t flags, uint32_t stream,
                      const void *payload, size_t len) {
    uint8_t head[9] = {(uint8_t)(len >> 16),
                       (uint8_t)(len >> 8),
                       (uint8_t)len,
                       type,
                       flags,
                       (uint8_t)(stream >> 24),
                       (uint8_t)(stream >> 16),
                       (uint8_t)(stream >> 8),
                       (uint8_t)stream};

    assert_int_equal(oc_buf_append(b, head, sizeof head), 0);
    assert_int_equal(oc_buf_append(b, payload, len), 0);
}

static void begin(struct oc_buf *b) {
    oc_buf_init(b, 1 << 26);
    assert_int_equal(oc_buf_append(b, preface, 24), 0);
    put_frame(b, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
}

/* :method POST, :scheme http, :authority a, :path /t.Test/Hold, content-type application/grpc. */
static const uint8_t hold_head[] = "\x83\x86\x01\1a\x04\x0c/t.Test/Hold\x0f\x10\x10"
                                   "application/grpc";
#define HOLD_HEAD_LEN (sizeof hold_head - 1)

/* Sends the bytes and reads to the end: the error code of the last GOAWAY, -1 for none. */
static int64_t talk(struct rig *rig, const struct oc_buf *b) {
    static uint8_t got[1 << 20];
    int fd = peer_connect(rig->port);
    int64_t code = -1;

    peer_send(fd, b->data, b->len);
    size_t n = peer_recv_all(fd, got, sizeof got);
    for (size_t at = 0; at + 9 <= n;) {
        size_t len = (size_t)got[at] << 16 | (size_t)got[at + 1] << 8 | got[at + 2];

        if (got[at + 3] == NGHTTP2_GOAWAY && at + 17 <= n) {
            code = got[at + 16];
        }
        at += 9 + len;
    }
    (void)close(fd);
    return code;
}

static void broken_framing(void **state) {
    static const struct {
        uint8_t type, flags;
        uint32_t stream;
        const char *payload;
        size_t len;
        int64_t code;
    } cases[] = {
        {NGHTTP2_DATA, 0, 1, "abc", 3, NGHTTP2_PROTOCOL_ERROR},               /* idle stream */
        {NGHTTP2_DATA, 0, 0, "abc", 3, NGHTTP2_PROTOCOL_ERROR},               /* stream 0 */
        {NGHTTP2_WINDOW_UPDATE, 0, 0, "\0\0\0\0", 4, NGHTTP2_PROTOCOL_ERROR}, /* increment 0 */
        {NGHTTP2_WINDOW_UPDATE, 0, 0, "\0\0\0", 3, NGHTTP2_FRAME_SIZE_ERROR},
        {NGHTTP2_WINDOW_UPDATE, 0, 0, "\x7f\xff\xff\xff", 4, NGHTTP2_FLOW_CONTROL_ERROR},
        {NGHTTP2_RST_STREAM, 0, 1, "\0\0\0\0", 4, NGHTTP2_PROTOCOL_ERROR}, /* idle stream */
        {NGHTTP2_PING, 0, 0, "1234567", 7, NGHTTP2_FRAME_SIZE_ERROR},
        {NGHTTP2_HEADERS, 4, 2, "\x82", 1, NGHTTP2_PROTOCOL_ERROR}, /* even stream */
        {NGHTTP2_HEADERS, 4, 1, "\xff\xff\xff\xff\xff\xff", 6, NGHTTP2_COMPRESSION_ERROR},
        {NGHTTP2_CONTINUATION, 4, 1, "\x82", 1, NGHTTP2_PROTOCOL_ERROR},
        {NGHTTP2_PUSH_PROMISE, 4, 1, "\0\0\0\2\x82", 5, NGHTTP2_PROTOCOL_ERROR},
        {NGHTTP2_SETTINGS, 0, 0, "\0\4\xff\xff\xff\xff", 6, NGHTTP2_FLOW_CONTROL_ERROR},
        {NGHTTP2_SETTINGS, 0, 0, "\0\5\0\0\0\1", 6, NGHTTP2_PROTOCOL_ERROR},
    };
    struct rig *rig = *state;

    rig_start(rig);
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        struct oc_buf b;

        begin(&b);
        put_frame(&b, cases[i].type, cases[i].flags, cases[i].stream, cases[i].payload,
                  cases[i].len);
        int64_t code = talk(rig, &b);
        if (code != cases[i].code) {
            fail_msg("case %zu: GOAWAY %lld", i, (long long)code);
        }
        oc_buf_done(&b);
    }
    assert_true(rig_stats(rig).protocol_errors >= OC_ARRAY_LEN(cases) - 1);
}

/* Other frame types and reserved bits are for the future: ignored. */
static void unknown_frames_are_ignored(void **state) {
    struct rig *rig = *state;
    uint8_t got[512];
    struct oc_buf b;
    bool ended;

    rig_start(rig);
    begin(&b);
    put_frame(&b, 0x77, 0xff, 5, "whatever", 8);
    put_frame(&b, NGHTTP2_PING, 0, 0, "12345678", 8);
    int fd = peer_connect(rig->port);
    peer_send(fd, b.data, b.len);
    size_t n = 0;
    while (memmem(got, n, "12345678", 8) == NULL) {
        n += peer_recv_for(fd, got + n, sizeof got - n, 20, &ended);
        assert_true(n < sizeof got && !ended);
    }
    (void)close(fd);
    oc_buf_done(&b);
}

/* ---- floods ---- */

static void rapid_reset(void **state) {
    struct rig *rig = *state;
    struct oc_buf b;

    rig->cfg.reset_burst = 50;
    rig->cfg.reset_per_s = 1;
    rig_start(rig);
    begin(&b);
    for (uint32_t i = 0; i < 300; i++) {
        put_frame(&b, NGHTTP2_HEADERS, 4, 1 + 2 * i, hold_head, HOLD_HEAD_LEN);
        put_frame(&b, NGHTTP2_RST_STREAM, 0, 1 + 2 * i, "\0\0\0\x08", 4);
    }
    assert_int_equal(talk(rig, &b), NGHTTP2_ENHANCE_YOUR_CALM);
    assert_int_equal(rig_stats(rig).rapid_reset_closed, 1);
    assert_int_equal(rig_stats(rig).resets_received, 51);
    /* Those that were begun are told that they are over. */
    wait_for(atomic_load(&rig->svc.closed) == atomic_load(&rig->svc.started));
    assert_int_equal(atomic_load(&rig->svc.started), 51);
    oc_buf_done(&b);
}

/* The same, but it is the server that is made to reset: a window beyond the limit. */
static void made_to_reset(void **state) {
    struct rig *rig = *state;
    struct oc_buf b;

    rig->cfg.reset_burst = 50;
    rig->cfg.reset_per_s = 1;
    rig_start(rig);
    begin(&b);
    for (uint32_t i = 0; i < 300; i++) {
        put_frame(&b, NGHTTP2_HEADERS, 4, 1 + 2 * i, hold_head, HOLD_HEAD_LEN);
        put_frame(&b, NGHTTP2_WINDOW_UPDATE, 0, 1 + 2 * i, "\x7f\xff\xff\xff", 4);
    }
    assert_int_equal(talk(rig, &b), NGHTTP2_ENHANCE_YOUR_CALM);
    assert_int_equal(rig_stats(rig).rapid_reset_closed, 1);
    oc_buf_done(&b);
}

static void too_many_streams(void **state) {
    struct h2c_options o = {.assume_streams = 1000};
    struct h2c_stream *st[20];
    struct rig *rig = *state;
    unsigned refused = 0;
    struct h2c h;

    rig->cfg.max_streams_per_connection = 4;
    rig_start(rig);
    h2c_open(&h, rig->port, &o);
    for (int i = 0; i < 20; i++) {
        st[i] = h2c_grpc(&h, "/t.Test/Hold", NULL, "\0\0\0\0\0", 5, 0, false);
    }
    for (int i = 4; i < 20; i++) {
        h2c_wait(&h, st[i]->closed);
        refused += st[i]->close_code == NGHTTP2_REFUSED_STREAM;
    }
    assert_int_equal(refused, 16);
    assert_int_equal(h.max_streams, 4);
    assert_int_equal(atomic_load(&rig->svc.started), 4);
    wait_for(rig_stats(rig).refused_streams == 16);
    h2c_close(&h);
}

static void headers_too_large(void **state) {
    struct rig *rig = *state;
    char *value = malloc(5001);
    struct h2c h;

    rig->cfg.max_header_bytes = 4096;
    rig_start(rig);
    memset(value, 'a', 5000);
    value[5000] = 0;
    const char *const extra[] = {"x-large", value, NULL};
    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Unary", extra, "\0\0\0\0\0", 5, 0, false);
    h2c_wait(&h, st->closed);
    assert_status(st, 8, "request header fields exceed 4096 bytes");
    st = h2c_request(&h, "GET", "/health", extra, NULL, 0, 0, false);
    h2c_wait(&h, st->closed);
    assert_int_equal(st->http_status, 431);
    assert_status(h2c_unary(&h, "/t.Test/Unary", "x", 1), 0, "");
    assert_int_equal(atomic_load(&rig->svc.started), 1);
    free(value);
    h2c_close(&h);
}

/* One field of 4000 bytes in the dynamic table, then thousands of one-byte references to it. */
static void header_bomb(void **state) {
    struct rig *rig = *state;
    uint8_t block[16384] = {0x40, 1, 'x', 0x7f, 0x81, 0x1e}; /* 127 + 1 + 30 * 128 = 3968 */
    struct oc_buf b;

    rig_start(rig);
    memset(block + 6, 'y', 3968);
    memset(block + 6 + 3968, 0xbe, 12000);
    begin(&b);
    put_frame(&b, NGHTTP2_HEADERS, 4, 1, block, 6 + 3968 + 12000);
    assert_int_equal(talk(rig, &b), NGHTTP2_ENHANCE_YOUR_CALM);
    oc_buf_done(&b);
}

static void continuation_flood(void **state) {
    struct rig *rig = *state;
    struct oc_buf b;

    rig_start(rig);
    begin(&b);
    put_frame(&b, NGHTTP2_HEADERS, 0, 1, hold_head, HOLD_HEAD_LEN);
    for (int i = 0; i < 100; i++) {
        put_frame(&b, NGHTTP2_CONTINUATION, 0, 1, NULL, 0);
    }
    (void)talk(rig, &b); /* closed; nghttp2's own bound does not always leave a GOAWAY */
    assert_int_equal(atomic_load(&rig->svc.started), 0);
    oc_buf_done(&b);
}

static void ack_floods(void **state) {
    struct rig *rig = *state;
    struct oc_buf b;

    rig_start(rig);
    begin(&b);
    for (int i = 0; i < 20000; i++) {
        put_frame(&b, NGHTTP2_PING, 0, 0, "12345678", 8);
    }
    assert_int_equal(talk(rig, &b), NGHTTP2_ENHANCE_YOUR_CALM);
    oc_buf_done(&b);
    begin(&b);
    for (int i = 0; i < 20000; i++) {
        put_frame(&b, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
    }
    assert_int_equal(talk(rig, &b), NGHTTP2_ENHANCE_YOUR_CALM);
    oc_buf_done(&b);
}

static void empty_data_flood(void **state) {
    struct rig *rig = *state;
    struct oc_buf b;

    rig_start(rig);
    begin(&b);
    put_frame(&b, NGHTTP2_HEADERS, 4, 1, hold_head, HOLD_HEAD_LEN);
    for (int i = 0; i < 40000; i++) {
        put_frame(&b, NGHTTP2_DATA, 0, 1, NULL, 0);
    }
    assert_int_equal(talk(rig, &b), NGHTTP2_ENHANCE_YOUR_CALM);
    oc_buf_done(&b);
}

/* Sending more than the window allows. */
static void window_overrun(void **state) {
    struct rig *rig = *state;
    uint8_t *zero = calloc(1, 100000);
    struct oc_buf b;

    rig->cfg.receive_budget_bytes = 1 << 20;
    rig_start(rig);
    begin(&b);
    put_frame(&b, NGHTTP2_HEADERS, 4, 1, hold_head, HOLD_HEAD_LEN);
    zero[1] = 1; /* a message of 16 MiB: refused, and its bytes are not wanted */
    for (int i = 0; i < 8; i++) {
        put_frame(&b, NGHTTP2_DATA, 0, 1, zero, 16384);
    }
    assert_int_equal(talk(rig, &b), NGHTTP2_FLOW_CONTROL_ERROR);
    free(zero);
    oc_buf_done(&b);
}

/* ---- standing still ---- */

static void quick(struct rig *rig) {
    rig->cfg.handshake_ms = 300; /* long enough for a busy machine */
    rig->cfg.stall_ms = 400;
    rig_start(rig);
}

/* Only bodies and responses are in a hurry: on a slow machine a request may take long to arrive. */
static void quick_stall(struct rig *rig) {
    rig->cfg.stall_ms = 400;
    rig_start(rig);
}

static void handshake_timeout(void **state) {
    static const struct {
        const char *bytes;
        size_t len;
    } cases[] = {{"", 0}, {"PRI * HT", 8}, {preface, 24}};
    struct rig *rig = *state;

    quick(rig);
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        uint8_t got[512];
        uint64_t begin_ms = rig_now_ms();
        int fd = peer_connect(rig->port);

        peer_send(fd, cases[i].bytes, cases[i].len);
        (void)peer_recv_all(fd, got, sizeof got);
        assert_true(rig_now_ms() - begin_ms >= 299);
        (void)close(fd);
    }
}

static void header_block_without_end(void **state) {
    struct rig *rig = *state;
    struct oc_buf b;

    quick(rig);
    begin(&b);
    put_frame(&b, NGHTTP2_HEADERS, 0, 1, hold_head, HOLD_HEAD_LEN);
    (void)talk(rig, &b);
    assert_int_equal(atomic_load(&rig->svc.started), 0);
    oc_buf_done(&b);
}

/* An idle HTTP/2 connection is none of these. */
static void idle_connections_stay(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    quick(rig);
    h2c_open(&h, rig->port, NULL);
    uint64_t end_ms = rig_now_ms() + 1000;
    while (rig_now_ms() < end_ms) {
        h2c_step(&h, 5);
    }
    assert_status(h2c_unary(&h, "/t.Test/Unary", "x", 1), 0, "");
    h2c_close(&h);
}

static void idle_limit(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    rig->cfg.idle_ms = 100;
    rig_start(rig);
    h2c_open(&h, rig->port, NULL);
    assert_status(h2c_unary(&h, "/t.Test/Unary", "x", 1), 0, "");
    h2c_wait(&h, h.ended);
    assert_int_equal(h.goaway_code, NGHTTP2_NO_ERROR);
    assert_true(h.goaways >= 1);
    h2c_close(&h);
}

static void stalled_bodies(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    quick_stall(rig);
    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *unary = h2c_grpc(&h, "/t.Test/Unary", NULL, "\0\0\0\1\0abc", 8, 0, true);
    struct h2c_stream *pieces = h2c_grpc(&h, "/t.Test/Count", NULL, "\0\0\0\1\0abc", 8, 0, true);
    struct h2c_stream *nothing = h2c_grpc(&h, "/t.Test/Stream", NULL, NULL, 0, 0, true);
    struct h2c_stream *post = h2c_request(&h, "POST", "/post", NULL, "x", 1, 0, true);
    /* These wait for the service, which may take its time. */
    struct h2c_stream *lazy = h2c_grpc(&h, "/t.Test/Lazy", NULL, "\0\0\0\1\0abc", 8, 0, true);
    struct h2c_stream *hold = h2c_grpc(&h, "/t.Test/Hold", NULL, "\0\0\0\0\0", 5, 0, false);
    h2c_wait(&h, unary->closed && pieces->closed && nothing->closed && post->closed);
    assert_status(unary, 4, "the request made no progress");
    assert_status(pieces, 4, "the request made no progress");
    assert_status(nothing, 4, "the request made no progress");
    assert_int_equal(post->http_status, 408);
    uint64_t end_ms = rig_now_ms() + 900;
    while (rig_now_ms() < end_ms) {
        h2c_step(&h, 5);
    }
    assert_false(lazy->closed || hold->closed);
    assert_int_equal(rig_stats(rig).stalled_closed, 4);
    h2c_close(&h);
}

/* A byte now and then is progress, but not for a message that holds a reservation. */
static void slow_drip(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    quick_stall(rig);
    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Unary", NULL, "\0\0\1\0\0", 5, 0, true);
    uint64_t end_ms = rig_now_ms() + RIG_DEADLINE_MS;
    while (!st->closed) {
        if (st->out_at == st->out_len) {
            h2c_more(&h, st, "x", 1, true);
        }
        h2c_step(&h, 10);
        assert_true(rig_now_ms() < end_ms);
    }
    assert_status(st, 4, "the request made no progress");
    h2c_close(&h);
}

static struct h2c_stream *down(struct h2c *h, uint64_t total) {
    uint8_t frame[17] = {0, 0, 0, 0, 12};

    oc_store64(frame + 5, total);
    oc_store32(frame + 13, 100000);
    return h2c_grpc(h, "/t.Test/Down", NULL, frame, sizeof frame, 0, false);
}

/* No window for the response: the stream is reset. */
static void response_without_window(void **state) {
    struct h2c_options o = {.manual_window = true};
    struct rig *rig = *state;
    struct h2c h;

    quick_stall(rig);
    h2c_open(&h, rig->port, &o);
    struct h2c_stream *st = down(&h, 10000000);
    st->hold_window = true;
    h2c_wait(&h, st->closed);
    assert_int_equal(st->close_code, NGHTTP2_CANCEL);
    assert_int_equal(st->body.len, 65535);
    wait_for(atomic_load(&rig->svc.closed) == 1);
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), OC_E_DEADLINE);
    assert_int_equal(rig_stats(rig).stalled_closed, 1);
    h2c_close(&h);
}

/* Nothing is read from the socket at all: the connection is cut. */
#ifndef __SANITIZE_THREAD__
static void response_not_read(void **state) {
    struct h2c_options o = {.initial_window = 0x7fffffff};
    struct rig *rig = *state;
    struct h2c h;

    quick_stall(rig);
    h2c_open(&h, rig->port, &o);
    assert_int_equal(nghttp2_session_set_local_window_size(h.s, 0, 0, 0x7fffffff), 0);
    h2c_wait(&h, h.settings_seen);
    (void)down(&h, 1000000000);
    h2c_step(&h, 0);
    wait_for(atomic_load(&rig->svc.closed) == 1);
    /* The connection's limit and the stream's are the same here: a slow machine may see either
     * first. */
    int code = atomic_load(&rig->svc.last_closed_code);
    assert_true(code == OC_E_CANCELLED || code == OC_E_DEADLINE);
    assert_int_equal(rig_stats(rig).stalled_closed, 1);
    wait_for(rig_stats(rig).connections == 0);
    h2c_close(&h);
}
#endif

static void keepalive(void **state) {
    struct h2c_options deaf = {.no_ping_ack = true};
    struct rig *rig = *state;
    struct h2c good, bad;

    rig->cfg.keepalive_ms = 100;
    rig->cfg.keepalive_timeout_ms = 500;
    rig_start(rig);
    h2c_open(&good, rig->port, NULL);
    h2c_open(&bad, rig->port, &deaf);
    (void)h2c_grpc(&bad, "/t.Test/Hold", NULL, "\0\0\0\0\0", 5, 0, false);
    uint64_t end_ms = rig_now_ms() + RIG_DEADLINE_MS;
    while (!bad.ended || good.pings_seen < 4) {
        h2c_step(&good, 1);
        h2c_step(&bad, 1);
        assert_true(rig_now_ms() < end_ms);
    }
    assert_false(good.ended);
    assert_int_equal(rig_stats(rig).keepalive_closed, 1);
    wait_for(atomic_load(&rig->svc.closed) == 1);
    h2c_close(&good);
    h2c_close(&bad);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(broken_framing),
        T(unknown_frames_are_ignored),
        T(rapid_reset),
        T(made_to_reset),
        T(too_many_streams),
        T(headers_too_large),
        T(header_bomb),
        T(continuation_flood),
        T(ack_floods),
        T(empty_data_flood),
        T(window_overrun),
        T(handshake_timeout),
        T(header_block_without_end),
        T(idle_connections_stay),
        T(idle_limit),
        T(stalled_bodies),
        T(slow_drip),
        T(response_without_window),
#ifndef __SANITIZE_THREAD__
        /* Seen to stand for a minute here when several instrumented copies ran at once, with the
         * kernel's buffer full and the connection not cut. Why is not understood. */
        T(response_not_read),
#endif
        T(keepalive),
    };

    return cmocka_run_group_tests_name("defence", tests, NULL, NULL);
}
