/* A connection without a socket: whatever way its bytes are cut, the same comes out; and whenever
 * the peer goes, nothing is left behind. */
#include <stdlib.h>

#include "rig.h"

/* Requests of every kind. */
static size_t ask(struct h2c *h, struct h2c_stream **st) {
    static const char *const headers[] = {"x-echo", "yes", NULL};
    static uint8_t down[17] = {0, 0, 0, 0, 12, 0x40, 0x0d, 3, 0, 0, 0, 0, 0, 0x10, 0x27};
    size_t n = 0;
    uint8_t *big = calloc(1, 70005);

    assert_non_null(big);
    big[2] = 1;
    big[3] = 0x11;
    big[4] = 0x70; /* 70000 */
    st[n++] = h2c_grpc(h, "/t.Test/Unary", headers, "\0\0\0\0\3abc", 8, 0, false);
    st[n++] = h2c_grpc(h, "/t.Test/Unary", NULL, big, 70005, 0, false);
    st[n++] =
        h2c_grpc(h, "/t.Test/Stream", NULL, "\0\0\0\0\1a\0\0\0\0\0\0\0\0\0\2bc", 18, 1, false);
    st[n++] = h2c_grpc(h, "/t.Test/Count", NULL, big, 70005, 777, false);
    st[n++] = h2c_grpc(h, "/t.Test/Early", NULL, big, 70005, 0, false);
    st[n++] = h2c_grpc(h, "/t.Test/Down", NULL, down, sizeof down, 0, false); /* 200000 by 10000 */
    st[n++] = h2c_grpc(h, "/t.Test/Fail", NULL, "\0\0\0\0\5\5gone", 10, 0, false);
    st[n++] = h2c_grpc(h, "/t.Test/Unary", NULL, "\1\0\0\0\1x", 6, 0, false);
    st[n++] = h2c_grpc(h, "/nope", NULL, NULL, 0, 0, false);
    st[n++] = h2c_request(h, "GET", "/echo?q", NULL, NULL, 0, 0, false);
    st[n++] = h2c_request(h, "POST", "/post", NULL, big, 1000, 0, false);
    free(big);
    return n;
}

static bool all_closed(struct h2c_stream **st, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!st[i]->closed) {
            return false;
        }
    }
    return true;
}

static void check_answers(struct h2c_stream **st) {
    assert_status(st[0], 0, "");
    assert_memory_equal(st[0]->body.data, "\0\0\0\0\3abc", 8);
    assert_non_null(strstr(st[0]->headers, "x-echo: yes\n"));
    assert_status(st[1], 0, "");
    assert_int_equal(st[1]->body.len, 70005);
    assert_status(st[2], 0, "");
    assert_memory_equal(st[2]->body.data, "\0\0\0\0\1a\0\0\0\0\0\0\0\0\0\2bc", 18);
    assert_status(st[3], 0, "");
    assert_int_equal(oc_load64(st[3]->body.data + 5), 70000);
    assert_status(st[4], 7, "no more of this");
    assert_status(st[5], 0, "");
    assert_int_equal(st[5]->body.len, 200000 + 20 * 5);
    assert_status(st[6], 5, "gone");
    assert_status(st[7], 12, NULL);
    assert_status(st[8], 12, "unknown method /nope");
    assert_memory_equal(st[9]->body.data, "GET|/echo|q|", 12);
    assert_int_equal(st[10]->http_status, 204);
}

static void any_split_both_ways(void **state) {
    static const size_t parts[] = {0, 1, 3, 9, 100, 5000};
    static const size_t writes[] = {0, 1, 7, 1000, 20000};
    struct mem_server s;

    (void)state;
    mem_server_init(&s);
    mem_server_start(&s);
    for (size_t i = 0; i < OC_ARRAY_LEN(parts); i++) {
        for (size_t k = 0; k < OC_ARRAY_LEN(writes); k++) {
            struct h2c_stream *st[16];
            struct mem_peer p;
            struct h2c h;

            mem_peer_open(&p, &s);
            p.write_max = writes[k];
            h2c_open_mem(&h, &p, parts[i]);
            size_t n = ask(&h, st);
            h2c_wait(&h, all_closed(st, n));
            check_answers(st);
            mem_peer_close(&p);
            h2c_close(&h);
        }
    }
    mem_server_stop(&s);
}

/* The peer goes after every so many bytes, and the socket takes nothing more at some point. */
static void lost_anywhere(void **state) {
    struct mem_server s;
    struct oc_buf bytes;
    const uint8_t *p;
    struct h2c_stream *st[16];
    struct h2c h;
    struct mem_peer none = {0};
    ssize_t n;

    (void)state;
    mem_server_init(&s);
    mem_server_start(&s);
    oc_buf_init(&bytes, 1 << 24);
    h2c_open_mem(&h, &none, 0);
    (void)ask(&h, st);
    while ((n = nghttp2_session_mem_send(h.s, &p)) > 0) {
        assert_int_equal(oc_buf_append(&bytes, p, (size_t)n), 0);
    }
    h2c_close(&h);
    for (size_t cut = 0; cut < bytes.len; cut += cut < 2000 ? 13 : 4999) {
        struct mem_peer peer;

        mem_peer_open(&peer, &s);
        peer.write_max = cut % 2 == 0 ? 0 : 100;
        mem_peer_feed(&peer, bytes.data, cut, cut % 3 == 0 ? 0 : 1000);
        mem_peer_close(&peer);
        assert_int_equal(atomic_load(&s.svc.started), atomic_load(&s.svc.closed));
    }
    oc_buf_done(&bytes);
    mem_server_stop(&s);
}

/* ---- bounds, and what only time shows ---- */

static void watches_are_bounded(void **state) {
    struct mem_server s;
    struct mem_peer p[2];
    struct h2c h[2];
    unsigned refused = 0;

    (void)state;
    mem_server_init(&s);
    mem_server_start(&s);
    for (int c = 0; c < 2; c++) {
        mem_peer_open(&p[c], &s);
        h2c_open_mem(&h[c], &p[c], 0);
        h2c_wait(&h[c], h[c].settings_seen);
        for (int i = 0; i < 600; i++) {
            struct h2c_stream *st =
                h2c_grpc(&h[c], "/grpc.health.v1.Health/Watch", NULL, "\0\0\0\0\0", 5, 0, false);

            h2c_wait(&h[c], st->closed || st->body.len > 0);
            refused += st->closed && st->grpc_status == 8;
        }
    }
    assert_int_equal(refused, 2 * 600 - SERVER_WATCHERS_MAX);
    for (int c = 0; c < 2; c++) {
        mem_peer_close(&p[c]);
        h2c_close(&h[c]);
    }
    mem_server_stop(&s);
}

static void pass(struct mem_server *s, struct mem_peer *p, uint64_t ms) {
    s->now.mono_ns += ms * OC_NS_PER_MS;
    server_deadline_fired(&s->w->deadline);
    server_tick(&s->w->tick);
    mem_peer_settle(p);
}

/* The defaults, without waiting for them. */
static void default_timeouts(void **state) {
    static const char *const timeout[] = {"grpc-timeout", "3H", NULL};
    struct mem_server s;
    struct mem_peer p;
    struct h2c h;

    (void)state;
    mem_server_init(&s);
    mem_server_start(&s);
    mem_peer_open(&p, &s);
    pass(&s, &p, 10001); /* no byte came */
    assert_null(p.conn);
    mem_peer_close(&p);

    mem_peer_open(&p, &s);
    h2c_open_mem(&h, &p, 0);
    struct h2c_stream *hold = h2c_grpc(&h, "/t.Test/Hold", timeout, "\0\0\0\0\0", 5, 0, false);
    struct h2c_stream *body = h2c_grpc(&h, "/t.Test/Stream", NULL, NULL, 0, 0, true);
    h2c_wait(&h, atomic_load(&s.svc.started) == 2 && h.settings_seen);
    h2c_step(&h, 0); /* and the settings are acknowledged */
    pass(&s, &p, 59999);
    h2c_step(&h, 0);
    assert_int_equal(h.pings_seen, 0);
    assert_false(body->closed);
    pass(&s, &p, 2);
    h2c_wait(&h, body->closed && h.pings_seen == 1); /* a stall, and silence */
    assert_status(body, 4, "the request made no progress");
    for (int hour = 0; hour < 3; hour++) {
        for (int minute = 0; minute < 60; minute++) {
            pass(&s, &p, 60001 - (hour == 0 && minute == 0 ? 60001 : 0));
            h2c_step(&h, 0); /* pings are answered: nothing else happens */
            h2c_step(&h, 0);
        }
    }
    h2c_wait(&h, hold->closed);
    assert_status(hold, 4, "deadline exceeded");
    /* Silence, and no answer to the ping. */
    pass(&s, &p, 60001);
    assert_non_null(p.conn);
    pass(&s, &p, 20001);
    assert_null(p.conn);
    assert_int_equal(atomic_load(&s.w->counts.keepalive_closed), 1);
    mem_peer_close(&p);
    h2c_close(&h);
    mem_server_stop(&s);
}

static void reply_headers_are_checked(void **state) {
    static const char *const extra[] = {"x-echo", "v", NULL};
    struct mem_server s;
    struct mem_peer p;
    struct h2c h;

    (void)state;
    mem_server_init(&s);
    mem_server_start(&s);
    mem_peer_open(&p, &s);
    h2c_open_mem(&h, &p, 0);
    struct h2c_stream *st = h2c_grpc(&h, "/t.Test/Hold", extra, "\0\0\0\0\0", 5, 0, false);
    h2c_wait(&h, atomic_load(&s.svc.messages) == 1);
    struct oc_call *call = OC_CONTAINER(p.conn->calls.next, struct oc_call, link);
    assert_true(oc_span_equal(oc_call_header(call, "x-echo"), OC_SPAN_LIT("v")));
    assert_int_equal(oc_call_header(call, "x-none").len, 0);
    assert_string_equal(oc_call_peer(call), "memory:1");
    assert_int_equal(oc_call_add_header(call, "Upper", OC_SPAN_LIT("v")), OC_E_INVALID);
    assert_int_equal(oc_call_add_header(call, "x-bad", OC_SPAN_LIT("a\nb")), OC_E_INVALID);
    for (unsigned i = 0; i < SERVER_REPLY_HEADERS; i++) {
        assert_int_equal(oc_call_add_header(call, "x-ok", OC_SPAN_LIT("v")), 0);
    }
    assert_int_equal(oc_call_add_header(call, "x-more", OC_SPAN_LIT("v")), OC_E_EXHAUSTED);
    assert_true(oc_call_send_copy(call, OC_SPAN_EMPTY));
    assert_int_equal(oc_call_add_header(call, "x-late", OC_SPAN_LIT("v")), OC_E_PRECONDITION);
    oc_call_finish(call, 0, OC_SPAN_EMPTY);
    assert_true(oc_call_finished(call));
    oc_call_finish(call, OC_E_INTERNAL, OC_SPAN_EMPTY); /* the first one counts */
    assert_true(oc_call_send_copy(call, OC_SPAN_LIT("too late")));
    mem_peer_settle(&p);
    h2c_wait(&h, st->closed);
    assert_status(st, 0, "");
    assert_int_equal(st->body.len, 5);
    assert_non_null(strstr(st->headers, "x-ok: v\n"));
    mem_peer_close(&p);
    h2c_close(&h);
    mem_server_stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_both_ways),       cmocka_unit_test(lost_anywhere),
        cmocka_unit_test(watches_are_bounded),       cmocka_unit_test(default_timeouts),
        cmocka_unit_test(reply_headers_are_checked),
    };

    return cmocka_run_group_tests_name("conn", tests, NULL, NULL);
}
