/* gRPC on the wire, as https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md has it, and
 * the statuses of grpc-go's server. */
#include <stdio.h>
#include <stdlib.h>

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

static void fill(uint8_t *p, size_t len, uint8_t seed) {
    for (size_t i = 0; i < len; i++) {
        p[i] = (uint8_t)(i * 7 + (i >> 8) + seed);
    }
}

static void assert_echo(const struct h2c_stream *st, const void *message, size_t len) {
    struct oc_span got;

    assert_status(st, 0, "");
    assert_true(grpc_message(&st->body, 0, &got));
    assert_int_equal(got.len, len);
    if (len > 0) {
        assert_memory_equal(got.p, message, len);
    }
    assert_int_equal(st->body.len, len + 5);
    assert_int_equal(st->close_code, NGHTTP2_NO_ERROR);
}

static void unary_echoes_any_size(void **state) {
    static const size_t sizes[] = {0,     1,     5,      100,    1019,   1024,    16379,  16384,
                                   65530, 65536, 100000, 262144, 262145, 1048576, 5000000};
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    for (size_t i = 0; i < OC_ARRAY_LEN(sizes); i++) {
        uint8_t *message = malloc(sizes[i] + 1);

        fill(message, sizes[i], (uint8_t)i);
        assert_echo(h2c_unary(&h, "/t.Test/Unary", message, sizes[i]), message, sizes[i]);
        free(message);
    }
    h2c_close(&h);
    wait_for(atomic_load(&rig->svc.closed) == OC_ARRAY_LEN(sizes));
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), 0);
    assert_int_equal(atomic_load(&rig->svc.observed), OC_ARRAY_LEN(sizes));
    /* Finished before the half-close was seen: it is not told. */
    assert_int_equal(atomic_load(&rig->svc.half_closed), 0);
}

static void many_streams_at_once(void **state) {
    struct rig *rig = *state;
    struct h2c_stream *st[100];
    struct oc_buf frame;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    oc_buf_init(&frame, 1 << 20);
    for (int i = 0; i < 100; i++) {
        uint32_t message[50] = {(uint32_t)i};

        frame.len = 0;
        grpc_append(&frame, message, sizeof message);
        st[i] = h2c_grpc(&h, "/t.Test/Unary", NULL, frame.data, frame.len, 0, false);
    }
    for (int i = 0; i < 100; i++) {
        struct oc_span got;

        h2c_wait(&h, st[i]->closed);
        assert_status(st[i], 0, NULL);
        assert_true(grpc_message(&st[i]->body, 0, &got));
        assert_int_equal(oc_load32(got.p), i);
    }
    oc_buf_done(&frame);
    h2c_close(&h);
}

static void headers_pass_both_ways(void **state) {
    static const char *const extra[] = {
        "x-one", "1", "x-two",   "2", "x-three", "3",          "x-four",     "4",    "x-five", "5",
        "x-six", "6", "x-seven", "7", "x-echo",  "far behind", "user-agent", "test", NULL};
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Unary", extra, "\0\0\0\0\1x", 6, 0, false);
    h2c_wait(&h, st->closed);
    assert_echo(st, "x", 1);
    assert_non_null(strstr(st->headers, "x-echo: far behind\n"));
    h2c_close(&h);
}

static void messages_split_anywhere(void **state) {
    static const size_t frame_max[] = {1, 2, 3, 5, 7, 1000};
    struct rig *rig = *state;
    struct oc_buf frame;
    struct h2c h;

    oc_buf_init(&frame, 1 << 20);
    for (size_t n = 0; n < 12; n++) {
        uint8_t message[300];

        fill(message, sizeof message, (uint8_t)n);
        grpc_append(&frame, message, n * n * 2);
    }
    h2c_open(&h, rig->port, NULL);
    for (size_t i = 0; i < OC_ARRAY_LEN(frame_max); i++) {
        struct h2c_stream *st =
            h2c_grpc(&h, "/t.Test/Stream", NULL, frame.data, frame.len, frame_max[i], false);

        h2c_wait(&h, st->closed);
        assert_status(st, 0, "");
        assert_int_equal(st->body.len, frame.len);
        assert_memory_equal(st->body.data, frame.data, frame.len);
    }
    wait_for(atomic_load(&rig->svc.messages) == 12 * OC_ARRAY_LEN(frame_max));
    oc_buf_done(&frame);
    h2c_close(&h);
}

static void pieces_count_every_byte(void **state) {
    static const size_t frame_max[] = {0, 1, 1000};
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    for (size_t i = 0; i < OC_ARRAY_LEN(frame_max); i++) {
        size_t big = frame_max[i] == 1 ? 3000 : 3000000;
        struct oc_span got;
        struct oc_buf frame;
        uint8_t *message = calloc(1, big);

        oc_buf_init(&frame, 1 << 24);
        grpc_append(&frame, message, 0);
        grpc_append(&frame, message, big);
        grpc_append(&frame, message, 1);
        struct h2c_stream *st =
            h2c_grpc(&h, "/t.Test/Count", NULL, frame.data, frame.len, frame_max[i], false);
        h2c_wait(&h, st->closed);
        assert_status(st, 0, "");
        assert_true(grpc_message(&st->body, 0, &got));
        assert_int_equal(oc_load64(got.p), big + 1);
        oc_buf_done(&frame);
        free(message);
    }
    wait_for(atomic_load(&rig->svc.closed) == 3);
    assert_int_equal(atomic_load(&rig->svc.messages), 9);
    assert_int_equal(atomic_load(&rig->svc.half_closed), 3);
    h2c_close(&h);
}

static void responses_stream_with_back_pressure(void **state) {
    struct rig *rig = *state;
    uint8_t request[12];
    struct h2c h;

    oc_store64(request, 20000000);
    oc_store32(request + 8, 100000);
    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = h2c_unary(&h, "/t.Test/Down", request, sizeof request);
    assert_status(st, 0, "");
    uint8_t next = 0;
    uint64_t total = 0;
    struct oc_span got;
    for (size_t at = 0; at + 5 <= st->body.len; at += 5 + got.len) {
        const uint8_t *p = st->body.data + at;

        got = oc_span(p + 5, (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4]);
        assert_true(at + 5 + got.len <= st->body.len);
        for (size_t i = 0; i < got.len; i++) {
            if (got.p[i] != next++) {
                fail_msg("wrong byte at %llu", (unsigned long long)(total + i));
            }
        }
        total += got.len;
    }
    assert_int_equal(total, 20000000);
    assert_true(atomic_load(&rig->svc.blocked) > 0);
    assert_true(atomic_load(&rig->svc.writable) > 0);
    h2c_close(&h);
}

/* ---- what is wrong with a request ---- */

static struct h2c_stream *raw(struct h2c *h, const char *path, const void *body, size_t len) {
    struct h2c_stream *st = h2c_grpc(h, path, NULL, body, len, 0, false);

    h2c_wait(h, st->closed);
    return st;
}

static void cardinality(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    assert_status(raw(&h, "/t.Test/Unary", NULL, 0), 13,
                  "cardinality violation: no request message for a unary request");
    assert_status(raw(&h, "/t.Test/Hold", "\0\0\0\0\1a\0\0\0\0\1b", 12), 13,
                  "cardinality violation: more than one request message");
    /* A method that takes a stream takes none, too. */
    assert_status(raw(&h, "/t.Test/Stream", NULL, 0), 0, "");
    wait_for(atomic_load(&rig->svc.closed) == 3);
    assert_int_equal(atomic_load(&rig->svc.messages), 1);
    h2c_close(&h);
}

static void truncated(void **state) {
    static const struct {
        const char *body;
        size_t len;
    } cases[] = {{"\0", 1}, {"\0\0\0\0", 4}, {"\0\0\0\0\5abcd", 9}, {"\0\0\1\0\0", 5}};
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        assert_status(raw(&h, "/t.Test/Unary", cases[i].body, cases[i].len), 13,
                      "the request ended inside a message");
        assert_status(raw(&h, "/t.Test/Count", cases[i].body, cases[i].len), 13,
                      "the request ended inside a message");
    }
    wait_for(atomic_load(&rig->svc.closed) == 2 * OC_ARRAY_LEN(cases));
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), OC_E_INTERNAL);
    assert_int_equal(atomic_load(&rig->svc.half_closed), 0);
    h2c_close(&h);
}

static void too_large(void **state) {
    struct rig *rig = *state;
    uint8_t body[1006] = {0, 0, 0, 0x03, 0xe9};
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    assert_status(raw(&h, "/t.Test/Small", body, 1006), 8,
                  "received message larger than max (1001 vs. 1000)");
    body[4] = 0xe8;
    assert_status(raw(&h, "/t.Test/Small", body, 1005), 0, "");
    /* Refused by its head alone: 128 MiB and one byte. */
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Unary", NULL, "\0\x08\0\0\1", 5, 0, true);
    h2c_wait(&h, st->closed);
    assert_status(st, 8, "received message larger than max (134217729 vs. 134217728)");
    h2c_close(&h);
}

static void compressed_and_bad_flags(void **state) {
    static const char *const gzip[] = {"grpc-encoding", "gzip", NULL};
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Unary", gzip, "\1\0\0\0\1x", 6, 0, false);
    h2c_wait(&h, st->closed);
    assert_status(st, 12, "message compression is not supported (grpc-encoding 'gzip')");
    assert_non_null(strstr(st->headers, "grpc-accept-encoding: identity\n"));
    /* Announced but not used is fine. */
    st = h2c_grpc(&h, "/t.Test/Unary", gzip, "\0\0\0\0\1x", 6, 0, false);
    h2c_wait(&h, st->closed);
    assert_echo(st, "x", 1);
    assert_status(raw(&h, "/t.Test/Unary", "\2\0\0\0\1x", 6), 13, "invalid message flag");
    h2c_close(&h);
}

static void unknown_method(void **state) {
    struct rig *rig = *state;
    char path[400] = "/";
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = raw(&h, "/t.Test/Nope", "\0\0\0\0\0", 5);
    assert_status(st, 12, "unknown method /t.Test/Nope");
    assert_int_equal(st->body.len, 0);
    assert_status(raw(&h, "/health", "\0\0\0\0\0", 5), 12, "unknown method /health");
    assert_status(raw(&h, "/a%\xc3\xbc", "\0\0\0\0\0", 5), 12, "unknown method /a%25%C3%BC");
    memset(path + 1, 'x', 300);
    st = raw(&h, path, "\0\0\0\0\0", 5);
    assert_int_equal(st->grpc_status, 12);
    assert_int_equal(strlen(st->grpc_message), strlen("unknown method ") + 200 + 3);
    h2c_close(&h);
    assert_int_equal(atomic_load(&rig->svc.started), 0);
}

static void content_types(void **state) {
    static const struct {
        const char *type;
        int http;
    } cases[] = {
        {"application/grpc", 200},
        {"application/grpc+proto", 200},
        {"application/grpc;x=y", 200},
        {"application/grpc+proto;x=y", 200},
        {"application/grpc+json", 415},
        {"application/grpc-web", 415},
        {"application/json", 415},
        {"application/grp", 415},
        {"", 415},
    };
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        /* Without te: tolerated. */
        const char *const headers[] = {"content-type", cases[i].type, NULL};
        struct h2c_stream *st =
            h2c_request(&h, "POST", "/t.Test/Unary", headers, "\0\0\0\0\1x", 6, 0, false);

        h2c_wait(&h, st->closed);
        assert_int_equal(st->http_status, cases[i].http);
        if (cases[i].http == 200) {
            assert_echo(st, "x", 1);
        } else {
            assert_int_equal(st->grpc_status, -1);
        }
    }
    const char *const headers[] = {"content-type", "application/grpc", NULL};
    struct h2c_stream *st = h2c_request(&h, "GET", "/t.Test/Unary", headers, NULL, 0, 0, false);
    h2c_wait(&h, st->closed);
    assert_int_equal(st->http_status, 405);
    h2c_close(&h);
}

/* ---- the end of calls ---- */

static void deadline(void **state) {
    static const char *const short_one[] = {"grpc-timeout", "60m", NULL};
    static const char *const long_one[] = {"grpc-timeout", "99999999H", NULL};
    static const char *const none_left[] = {"grpc-timeout", "0n", NULL};
    static const char *const bad[] = {"grpc-timeout", "5", NULL};
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    uint64_t begin_ms = rig_now_ms();
    struct h2c_stream *slow = h2c_grpc(&h, "/t.Test/Hold", long_one, "\0\0\0\0\0", 5, 0, false);
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Hold", short_one, "\0\0\0\0\0", 5, 0, false);
    h2c_wait(&h, st->closed);
    assert_true(rig_now_ms() - begin_ms >= 59);
    assert_status(st, 4, "deadline exceeded");
    wait_for(atomic_load(&rig->svc.closed) == 1);
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), OC_E_DEADLINE);
    assert_int_equal(atomic_load(&rig->svc.last_observed_code), OC_E_DEADLINE);

    st = h2c_grpc(&h, "/t.Test/Hold", none_left, "\0\0\0\0\0", 5, 0, false);
    h2c_wait(&h, st->closed);
    assert_status(st, 4, "deadline exceeded");
    st = h2c_grpc(&h, "/t.Test/Hold", bad, "\0\0\0\0\0", 5, 0, false);
    h2c_wait(&h, st->closed);
    assert_status(st, 13, "malformed grpc-timeout");
    assert_int_equal(atomic_load(&rig->svc.started), 2);
    assert_false(slow->closed);
    h2c_close(&h);
}

/* Deadlines of many calls come in their order, whatever the order of calling. */
static void deadlines_in_order(void **state) {
    struct rig *rig = *state;
    struct h2c_stream *st[40];
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    for (int i = 0; i < 40; i++) {
        char text[16];
        const char *extra[] = {"grpc-timeout", text, NULL};

        (void)snprintf(text, sizeof text, "%dm", 100 + (i * 17 % 40) * 5);
        st[i] = h2c_grpc(&h, "/t.Test/Hold", extra, "\0\0\0\0\0", 5, 0, false);
    }
    h2c_wait(&h, atomic_load(&rig->svc.started) == 40);
    h2c_reset(&h, st[20], NGHTTP2_CANCEL); /* out of the heap's middle */
    for (int i = 0; i < 40; i++) {
        h2c_wait(&h, st[i]->closed);
        if (i != 20) {
            assert_status(st[i], 4, NULL);
        }
    }
    wait_for(atomic_load(&rig->svc.closed) == 40);
    h2c_close(&h);
}

static void cancelled(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Hold", NULL, "\0\0\0\0\0", 5, 0, true);
    h2c_wait(&h, atomic_load(&rig->svc.messages) == 1);
    h2c_reset(&h, st, NGHTTP2_CANCEL);
    h2c_wait(&h, atomic_load(&rig->svc.closed) == 1);
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), OC_E_CANCELLED);
    assert_int_equal(rig_stats(rig).resets_received, 1);
    /* In the middle of a message, and of a response. */
    st = h2c_grpc(&h, "/t.Test/Unary", NULL, "\0\0\1\0\0abc", 8, 0, true);
    h2c_wait(&h, atomic_load(&rig->svc.started) == 2);
    h2c_reset(&h, st, NGHTTP2_CANCEL);
    h2c_wait(&h, atomic_load(&rig->svc.closed) == 2);
    uint8_t request[17] = {0, 0, 0, 0, 12};
    oc_store64(request + 5, 100000000);
    oc_store32(request + 13, 50000);
    st = h2c_grpc(&h, "/t.Test/Down", NULL, request, sizeof request, 0, false);
    h2c_wait(&h, st->body.len > 1000000);
    h2c_reset(&h, st, NGHTTP2_CANCEL);
    h2c_wait(&h, atomic_load(&rig->svc.closed) == 3);
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), OC_E_CANCELLED);
    h2c_close(&h);
}

static void connection_lost(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    for (int i = 0; i < 5; i++) {
        (void)h2c_grpc(&h, "/t.Test/Hold", NULL, "\0\0\0\0\0", 5, 0, i % 2 == 0);
    }
    h2c_wait(&h, atomic_load(&rig->svc.messages) == 5);
    h2c_close(&h);
    wait_for(atomic_load(&rig->svc.closed) == 5);
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), OC_E_CANCELLED);
}

/* Trailers, then RST_STREAM(NO_ERROR): the rest of the request is not wanted. */
static void answered_early(void **state) {
    struct rig *rig = *state;
    uint8_t *body = calloc(1, 1000005);
    struct h2c h;

    body[2] = 0x0f;
    body[3] = 0x42;
    body[4] = 0x40; /* 1000000 */
    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Early", NULL, body, 1000005, 0, true);
    h2c_wait(&h, st->closed);
    assert_status(st, 7, "no more of this");
    assert_true(st->end_stream);
    assert_int_equal(st->close_code, NGHTTP2_NO_ERROR);
    /* Nothing of the connection's window was lost on the way. */
    for (int i = 0; i < 20; i++) {
        st = h2c_grpc(&h, "/t.Test/Early", NULL, body, 1000005, 0, i % 2 == 0);
        h2c_wait(&h, st->closed);
        assert_int_equal(st->grpc_status, 7);
    }
    wait_for(atomic_load(&rig->svc.closed) == 21);
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), 0);
    free(body);
    h2c_close(&h);
}

static void statuses(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    for (uint8_t code = 1; code <= 16; code++) {
        uint8_t message[] = {code, 'a', '%', '\n', 0xc3, 0xa4, ' ', '~'};

        assert_status(h2c_unary(&h, "/t.Test/Fail", message, sizeof message), code,
                      "a%25%0A%C3%A4 ~");
        wait_for(atomic_load(&rig->svc.last_observed_code) == -code);
    }
    wait_for(atomic_load(&rig->svc.closed) == 16);
    assert_int_equal(atomic_load(&rig->svc.last_closed_code), 0); /* ended as the service said */
    /* Longer texts are cut. */
    uint8_t *message = malloc(6000);
    memset(message, 'y', 6000);
    message[0] = 5;
    struct h2c_stream *st = h2c_unary(&h, "/t.Test/Fail", message, 6000);
    assert_int_equal(st->grpc_status, 5);
    assert_int_equal(strlen(st->grpc_message), 4096);
    free(message);
    h2c_close(&h);
}

/* A client may end its request with trailers. */
static void request_trailers(void **state) {
    struct rig *rig = *state;
    nghttp2_nv nv = {(uint8_t *)(uintptr_t) "x-sum", (uint8_t *)(uintptr_t) "1", 5, 1, 0};
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Stream", NULL, "\0\0\0\0\1q", 6, 0, true);
    h2c_wait(&h, st->deferred);
    assert_int_equal(
        nghttp2_submit_headers(h.s, NGHTTP2_FLAG_END_STREAM, st->id, NULL, &nv, 1, NULL), 0);
    h2c_wait(&h, st->closed);
    assert_echo(st, "q", 1);
    h2c_close(&h);
}

static void not_open(void **state) {
    struct rig *rig = *state;
    struct oc_span got;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    atomic_store(&rig->svc.closed_for_calls, true);
    assert_status(h2c_unary(&h, "/t.Test/Unary", "x", 1), 14, "not ready for calls");
    struct h2c_stream *st = h2c_unary(&h, "/grpc.health.v1.Health/Check", NULL, 0);
    assert_status(st, 0, "");
    assert_true(grpc_message(&st->body, 0, &got));
    assert_true(oc_span_equal(got, OC_SPAN_LIT("\x08\x02")));
    atomic_store(&rig->svc.closed_for_calls, false);
    assert_status(h2c_unary(&h, "/t.Test/Unary", "x", 1), 0, "");
    h2c_close(&h);
}

static void health(void **state) {
    struct rig *rig = *state;
    struct oc_span got;
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = h2c_unary(&h, "/grpc.health.v1.Health/Check", "\x0a\x06t.Test", 8);
    assert_status(st, 0, "");
    assert_true(grpc_message(&st->body, 0, &got));
    assert_true(oc_span_equal(got, OC_SPAN_LIT("\x08\x01")));
    assert_status(h2c_unary(&h, "/grpc.health.v1.Health/Check", "\x0a\x01x", 3), 5,
                  "unknown service");
    assert_status(h2c_unary(&h, "/grpc.health.v1.Health/Check", "\x0a\x09x", 3), 3,
                  "malformed HealthCheckRequest");

    struct h2c_stream *watch =
        h2c_grpc(&h, "/grpc.health.v1.Health/Watch", NULL, "\0\0\0\0\0", 5, 0, false);
    struct h2c_stream *other =
        h2c_grpc(&h, "/grpc.health.v1.Health/Watch", NULL, "\0\0\0\0\3\x0a\x01x", 8, 0, false);
    h2c_wait(&h, grpc_message(&watch->body, 0, &got));
    assert_true(oc_span_equal(got, OC_SPAN_LIT("\x08\x01")));
    h2c_wait(&h, grpc_message(&other->body, 0, &got));
    assert_true(oc_span_equal(got, OC_SPAN_LIT("\x08\x03")));
    atomic_store(&rig->svc.closed_for_calls, true);
    h2c_wait(&h, grpc_message(&watch->body, 1, &got));
    assert_true(oc_span_equal(got, OC_SPAN_LIT("\x08\x02")));
    atomic_store(&rig->svc.closed_for_calls, false);
    h2c_wait(&h, grpc_message(&watch->body, 2, &got));
    assert_true(oc_span_equal(got, OC_SPAN_LIT("\x08\x01")));
    assert_false(grpc_message(&other->body, 1, &got));
    assert_false(watch->closed || other->closed);
    h2c_close(&h);
}

/* ---- plain requests on the same connection ---- */

static void plain_http(void **state) {
    struct rig *rig = *state;
    uint8_t *body = calloc(1, (1 << 20) + 1);
    struct h2c h;

    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *get = h2c_request(&h, "GET", "/health", NULL, NULL, 0, 0, false);
    struct h2c_stream *head = h2c_request(&h, "HEAD", "/health", NULL, NULL, 0, 0, false);
    struct h2c_stream *echo = h2c_request(&h, "PUT", "/echo?x=%20y", NULL, body, 10, 0, false);
    struct h2c_stream *nope = h2c_request(&h, "GET", "/nope", NULL, NULL, 0, 0, false);
    struct h2c_stream *post = h2c_request(&h, "POST", "/post", NULL, body, 1 << 20, 0, false);
    struct h2c_stream *big = h2c_request(&h, "GET", "/big", NULL, NULL, 0, 0, false);
    struct h2c_stream *too = h2c_request(&h, "POST", "/post", NULL, body, (1 << 20) + 1, 0, true);
    h2c_wait(&h, get->closed && head->closed && echo->closed && nope->closed && post->closed &&
                     big->closed && too->closed);
    assert_int_equal(get->http_status, 200);
    assert_non_null(strstr(get->headers, "content-length: 15\n"));
    assert_int_equal(get->body.len, 15);
    assert_memory_equal(get->body.data, "{\"status\":\"ok\"}", 15);
    assert_int_equal(head->http_status, 200);
    assert_int_equal(head->body.len, 0);
    assert_non_null(strstr(head->headers, "content-length: 15\n"));
    assert_memory_equal(echo->body.data, "PUT|/echo|x=%20y|", echo->body.len);
    assert_int_equal(nope->http_status, 404);
    assert_int_equal(post->http_status, 204);
    assert_null(strstr(post->headers, "content-length"));
    assert_int_equal(big->body.len, 1 << 20);
    assert_int_equal(too->http_status, 413);
    free(body);
    h2c_close(&h);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(unary_echoes_any_size),
        T(many_streams_at_once),
        T(headers_pass_both_ways),
        T(messages_split_anywhere),
        T(pieces_count_every_byte),
        T(responses_stream_with_back_pressure),
        T(cardinality),
        T(truncated),
        T(too_large),
        T(compressed_and_bad_flags),
        T(unknown_method),
        T(content_types),
        T(deadline),
        T(deadlines_in_order),
        T(cancelled),
        T(connection_lost),
        T(answered_early),
        T(statuses),
        T(request_trailers),
        T(not_open),
        T(health),
        T(plain_http),
    };

    return cmocka_run_group_tests_name("grpc", tests, NULL, NULL);
}
