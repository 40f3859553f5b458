/* Flow control both ways: tiny windows, slow readers, slow services, exhausted budgets. */
#include <stdlib.h>

#include "rig.h"

#define CONNS 16

static int setup(void **state) {
    struct rig *rig = calloc(1, sizeof *rig);

    rig_init(rig);
    *state = rig;
    return 0;
}

static int teardown(void **state) {
    rig_stop(*state);
    free(*state);
    return 0;
}

static struct h2c_stream *down(struct h2c *h, uint64_t total, uint32_t chunk) {
    uint8_t frame[17] = {0, 0, 0, 0, 12};

    oc_store64(frame + 5, total);
    oc_store32(frame + 13, chunk);
    return h2c_grpc(h, "/t.Test/Down", NULL, frame, sizeof frame, 0, false);
}

/* One message of len zero bytes. */
static void upload_frame(struct oc_buf *buf, size_t len) {
    uint8_t *zero = calloc(1, len + 1);

    assert_non_null(zero);
    grpc_append(buf, zero, len);
    free(zero);
}

static struct h2c_stream *upload(struct h2c *h, const char *path, size_t len) {
    struct h2c_stream *st;
    struct oc_buf buf;

    oc_buf_init(&buf, SIZE_MAX);
    upload_frame(&buf, len);
    st = h2c_grpc(h, path, NULL, buf.data, buf.len, 0, false);
    oc_buf_done(&buf);
    return st;
}

static void assert_counted(const struct h2c_stream *st, uint64_t bytes) {
    struct oc_span got;

    assert_status(st, 0, "");
    assert_true(grpc_message(&st->body, 0, &got));
    assert_int_equal(oc_load64(got.p), bytes);
}

static void window_of_one_byte(void **state) {
    struct h2c_options o = {.initial_window = 1};
    struct rig *rig = *state;
    struct h2c h;

    rig_start(rig);
    h2c_open(&h, rig->port, &o);
    struct h2c_stream *st = down(&h, 200, 30);
    h2c_wait(&h, st->closed);
    assert_status(st, 0, "");
    assert_int_equal(st->body.len, 200 + 7 * 5);
    h2c_close(&h);
}

/* A reader that takes nothing holds its own queue, not its neighbours. */
static void slow_reader_holds_only_itself(void **state) {
    struct h2c_options o = {.manual_window = true};
    struct rig *rig = *state;
    struct h2c h;

    rig_start(rig);
    h2c_open(&h, rig->port, &o);
    struct h2c_stream *slow = down(&h, 50000000, 100000);
    slow->hold_window = true;
    h2c_wait(&h, slow->body.len == 65535);
    for (int i = 0; i < 5; i++) {
        struct h2c_stream *st = down(&h, 3000000, 100000);
        h2c_wait(&h, st->closed);
        assert_status(st, 0, "");
        assert_int_equal(st->body.len, 3000000 + 30 * 5);
    }
    assert_int_equal(slow->body.len, 65535);
    /* The high-water mark is 1 MiB; one message may be on top. */
    assert_true(rig_stats(rig).send_used <= (2 << 20));
    slow->hold_window = false;
    assert_int_equal(nghttp2_session_consume_stream(h.s, slow->id, 65535), 0);
    h2c_wait(&h, slow->closed);
    assert_int_equal(slow->body.len, 50000000 + 500 * 5);
    h2c_close(&h);
}

/* The service takes its time: the client may send one window and no more. */
static void slow_service_bounds_the_window(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    rig_start(rig);
    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *st = upload(&h, "/t.Test/Lazy", 10000000);
    h2c_wait(&h, atomic_load(&rig->svc.unconsumed) >= (256 << 10) - 5);
    uint64_t end_ms = rig_now_ms() + 100;
    while (rig_now_ms() < end_ms) {
        h2c_step(&h, 5);
    }
    /* 256 MiB of budget give a first window of 256 KiB; the message's head is in it. */
    assert_int_equal(atomic_load(&rig->svc.unconsumed), (256 << 10) - 5);
    assert_int_equal(rig_stats(rig).receive_used, (256 << 10) - 5);
    atomic_store(&rig->svc.open_gate, true);
    h2c_wait(&h, st->closed);
    assert_counted(st, 10000000);
    /* It grew while the service was quick. */
    assert_true(atomic_load(&rig->svc.max_unconsumed) > (256 << 10));
    assert_true(atomic_load(&rig->svc.max_unconsumed) <= (4 << 20));
    h2c_close(&h);
    wait_for(rig_stats(rig).receive_used == 0);
}

/* With a budget for a few, all come to their end, and never is more held than budget and floors. */
static void budget_exhausted_by_streams(void **state) {
    struct h2c_stream *st[CONNS];
    struct rig *rig = *state;
    struct h2c h[CONNS];
    bool all = false;

    rig->cfg.receive_budget_bytes = 1 << 20;
    rig_start(rig);
    for (int i = 0; i < CONNS; i++) {
        h2c_open(&h[i], rig->port, NULL);
        st[i] = upload(&h[i], "/t.Test/Lazy", 2000000);
    }
    uint64_t end_ms = rig_now_ms() + RIG_DEADLINE_MS;
    while (atomic_load(&rig->svc.unconsumed) < CONNS * 4000) {
        for (int i = 0; i < CONNS; i++) {
            h2c_step(&h[i], 0);
        }
        assert_true(rig_now_ms() < end_ms);
    }
    atomic_store(&rig->svc.open_gate, true);
    while (!all) {
        all = true;
        for (int i = 0; i < CONNS; i++) {
            h2c_step(&h[i], 0);
            all = all && st[i]->closed;
        }
        assert_true(rig_stats(rig).receive_used <= (1 << 20) + CONNS * 65536);
        assert_true(rig_now_ms() < end_ms);
    }
    for (int i = 0; i < CONNS; i++) {
        assert_counted(st[i], 2000000);
        h2c_close(&h[i]);
    }
    assert_true(atomic_load(&rig->svc.max_unconsumed) <= (1 << 20) + CONNS * 65536);
}

/* Messages that must be gathered whole wait in line: 3 MiB of reservations for 16 of 1 MB each. */
static void budget_exhausted_by_messages(void **state) {
    struct h2c_stream *st[CONNS * 2];
    struct rig *rig = *state;
    struct h2c h[CONNS];
    uint64_t most = 0;
    bool all = false;

    rig->cfg.receive_budget_bytes = 4 << 20;
    rig_start(rig);
    for (int i = 0; i < CONNS; i++) {
        h2c_open(&h[i], rig->port, NULL);
        st[2 * i] = upload(&h[i], "/t.Test/Unary", 1000000);
        st[2 * i + 1] = upload(&h[i], "/t.Test/Unary", 40000);
    }
    uint64_t end_ms = rig_now_ms() + RIG_DEADLINE_MS;
    while (!all) {
        all = true;
        for (int i = 0; i < CONNS; i++) {
            h2c_step(&h[i], 0);
            all = all && st[2 * i]->closed && st[2 * i + 1]->closed;
        }
        uint64_t used = rig_stats(rig).receive_used;
        most = used > most ? used : most;
        assert_true(rig_now_ms() < end_ms);
    }
    assert_true(most > 1000000);
    assert_true(most <= (4 << 20) + CONNS * 65536);
    assert_true(rig_stats(rig).receive_denied > 0);
    for (int i = 0; i < CONNS; i++) {
        assert_status(st[2 * i], 0, "");
        assert_int_equal(st[2 * i]->body.len, 1000005);
        assert_int_equal(st[2 * i + 1]->body.len, 40005);
        h2c_close(&h[i]);
    }
}

/* Who waits in line and goes away leaves nothing behind; who can never be served hears it. */
static void leaving_the_line(void **state) {
    struct rig *rig = *state;
    struct h2c_stream *st[8];
    struct h2c h, other;

    rig->cfg.receive_budget_bytes = 4 << 20;
    rig_start(rig);
    h2c_open(&h, rig->port, NULL);
    struct h2c_stream *never = upload(&h, "/t.Test/Unary", 3200000);
    h2c_wait(&h, never->closed);
    assert_status(never, 8,
                  "received message larger than what the server may receive (3200000 vs. 3145728)");
    /* The first takes all there is and stops in the middle. */
    uint8_t *half = calloc(1, 1500005);
    half[1] = 0;
    half[2] = 0x2d;
    half[3] = 0xc6;
    half[4] = 0xc0; /* 3000000 */
    struct h2c_stream *holder = h2c_grpc(&h, "/t.Test/Unary", NULL, half, 1500005, 0, true);
    h2c_wait(&h, holder->deferred);
    h2c_open(&other, rig->port, NULL);
    h2c_wait(&other, other.settings_seen); /* the small window for streams */
    for (int i = 0; i < 8; i++) {
        st[i] = upload(&other, "/t.Test/Unary", 500000 + (size_t)i);
    }
    for (int i = 0; i < 20; i++) {
        h2c_step(&other, 5);
    }
    for (int i = 0; i < 8; i++) {
        assert_false(st[i]->closed);
    }
    /* Small messages pass by the line. */
    assert_status(h2c_unary(&other, "/t.Test/Unary", half, 10000), 0, "");
    h2c_reset(&other, st[0], NGHTTP2_CANCEL);
    h2c_reset(&other, st[3], NGHTTP2_CANCEL);
    h2c_reset(&h, holder, NGHTTP2_CANCEL);
    h2c_step(&h, 1);
    for (int i = 0; i < 8; i++) {
        h2c_wait(&other, st[i]->closed);
        if (i != 0 && i != 3) {
            assert_status(st[i], 0, "");
            assert_int_equal(st[i]->body.len, 500005 + i);
        }
    }
    free(half);
    h2c_close(&h);
    h2c_close(&other);
    wait_for(rig_stats(rig).receive_used == 0);
}

/* A connection whose streams all wait does not keep the one that was promised its bytes from them.
 */
static void promised_bytes_come_through(void **state) {
    struct h2c_stream *st[40];
    struct rig *rig = *state;
    struct h2c h;

    rig->cfg.receive_budget_bytes = 2 << 20; /* 1.5 MiB of reservations */
    rig_start(rig);
    h2c_open(&h, rig->port, NULL);
    for (int i = 0; i < 40; i++) {
        st[i] = upload(&h, "/t.Test/Unary", 700000);
    }
    for (int i = 0; i < 40; i++) {
        h2c_wait(&h, st[i]->closed);
        assert_status(st[i], 0, "");
        assert_int_equal(st[i]->body.len, 700005);
    }
    h2c_close(&h);
}

static void send_budget(void **state) {
    struct h2c_options o = {.manual_window = true};
    struct rig *rig = *state;
    struct h2c_stream *st[30];
    struct h2c h;

    rig->cfg.send_budget_bytes = 2 << 20;
    rig_start(rig);
    h2c_open(&h, rig->port, &o);
    for (int i = 0; i < 30; i++) {
        st[i] = down(&h, 2000000, 50000);
        st[i]->hold_window = true;
    }
    for (int i = 0; i < 30; i++) {
        h2c_wait(&h, st[i]->body.len == 65535);
    }
    /* The budget, what each call may queue beside it (64 KiB and a message), what a worker has
     * not yet reported. */
    assert_true(rig_stats(rig).send_used <= (2 << 20) + 30 * (65536 + 50000) + (256 << 10));
    for (int i = 0; i < 30; i++) {
        st[i]->hold_window = false;
        assert_int_equal(nghttp2_session_consume_stream(h.s, st[i]->id, 65535), 0);
    }
    for (int i = 0; i < 30; i++) {
        h2c_wait(&h, st[i]->closed);
        assert_status(st[i], 0, "");
        assert_int_equal(st[i]->body.len, 2000000 + 40 * 5);
    }
    h2c_close(&h);
}

/* Answers that nobody reads, on many streams: the connection may ask nothing more while memory is
 * short, others may. */
static void unread_answers_are_bounded(void **state) {
    struct h2c_options o = {.manual_window = true};
    struct rig *rig = *state;
    struct h2c_stream *last = NULL;
    struct h2c h, other;
    int answered = 0;

    rig->cfg.send_budget_bytes = 8 << 20;
    rig_start(rig);
    h2c_open(&h, rig->port, &o);
    for (int i = 0; i < 50; i++) {
        last = upload(&h, "/t.Test/Unary", 1 << 20);
        last->hold_window = true;
        h2c_wait(&h, last->headers_done);
        if (last->grpc_status >= 0) {
            break;
        }
        answered++;
    }
    assert_status(last, 8, "too many response bytes wait to be read");
    /* The budget, the one that went beyond it, and what had not been counted yet. */
    assert_in_range(answered, 8, 10);
    h2c_open(&other, rig->port, NULL);
    assert_status(h2c_unary(&other, "/t.Test/Unary", "x", 1), 0, "");
    h2c_close(&other);
    /* Read, and all is well again. */
    for (size_t i = 0; i < h.count; i++) {
        h.streams[i]->hold_window = false;
        (void)nghttp2_session_consume_stream(h.s, h.streams[i]->id, 65535); /* the last is closed */
    }
    for (size_t i = 0; i < h.count; i++) {
        h2c_wait(&h, h.streams[i]->closed);
    }
    assert_status(h2c_unary(&h, "/t.Test/Unary", "x", 1), 0, "");
    h2c_close(&h);
}

/* The bytes of requests that nobody reads any more are given back to the connection's window. */
static void no_window_is_lost(void **state) {
    struct rig *rig = *state;
    struct h2c h;

    rig->cfg.receive_budget_bytes = 64 << 20; /* windows: 64 KiB a stream, 1 MiB a connection */
    rig->cfg.reset_burst = 100000;
    rig_start(rig);
    h2c_open(&h, rig->port, NULL);
    for (int i = 0; i < 30; i++) {
        uint8_t *body = calloc(1, 60000);

        body[3] = 0xff; /* a message of 65280 bytes that never ends */
        struct h2c_stream *st = h2c_grpc(&h, i % 2 ? "/t.Test/Unary" : "/t.Test/Lazy", NULL, body,
                                         60000, 1000 + (size_t)i, true);
        free(body);
        h2c_wait(&h, st->deferred);
        h2c_reset(&h, st, NGHTTP2_CANCEL);
        h2c_wait(&h, st->closed);
    }
    struct h2c_stream *st = upload(&h, "/t.Test/Count", 1000000);
    h2c_wait(&h, st->closed);
    assert_counted(st, 1000000);
    h2c_close(&h);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(window_of_one_byte),
        T(slow_reader_holds_only_itself),
        T(slow_service_bounds_the_window),
        T(budget_exhausted_by_streams),
        T(budget_exhausted_by_messages),
        T(leaving_the_line),
        T(promised_bytes_come_through),
        T(send_budget),
        T(unread_answers_are_bounded),
        T(no_window_is_lost),
    };

    return cmocka_run_group_tests_name("flow", tests, NULL, NULL);
}
