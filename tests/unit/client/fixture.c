#include "fixture.h"

#include <stdio.h>
#include <time.h>

#define DEADLINE_S 20

/* ---- recording ---- */

static void note(struct fx_call *c) {
    pthread_cond_broadcast(&c->fx->changed);
}

static struct fx_call *lock_call(struct oc_client_call *call) {
    struct fx_call *c = oc_client_call_user(call);

    pthread_mutex_lock(&c->fx->lock);
    return c;
}

static void unlock_call(struct fx_call *c) {
    note(c);
    pthread_mutex_unlock(&c->fx->lock);
}

static void on_started(struct oc_client_call *call) {
    struct fx_call *c = lock_call(call);

    OC_CHECK(!c->started && c->closed == 0);
    c->started = true;
    unlock_call(c);
}

static void on_headers(struct oc_client_call *call) {
    struct fx_call *c = lock_call(call);
    struct oc_span v = oc_client_call_header(call, "x-answer");

    OC_CHECK(c->started && !c->headers && c->closed == 0);
    c->headers = true;
    (void)snprintf(c->header, sizeof c->header, "%.*s", (int)v.len, (const char *)v.p);
    unlock_call(c);
}

static void record(struct fx_call *c, struct oc_span bytes) {
    OC_CHECK(c->headers && c->closed == 0);
    c->total += bytes.len;
    if (bytes.len > 0 && c->len + bytes.len <= FX_BYTES) {
        memcpy(c->bytes + c->len, bytes.p, bytes.len);
        c->len += bytes.len;
    }
}

static void on_message(struct oc_client_call *call, struct oc_span message) {
    struct fx_call *c = lock_call(call);

    record(c, message);
    c->messages++;
    unlock_call(c);
    if (c->on_message != NULL) {
        c->on_message(c);
    }
}

static void on_piece(struct oc_client_call *call, struct oc_span bytes, uint64_t message_len,
                     bool begin, bool end) {
    struct fx_call *c = lock_call(call);

    record(c, bytes);
    OC_CHECK(bytes.len <= message_len);
    c->messages += begin;
    c->ends += end;
    unlock_call(c);
    if (c->consume) {
        oc_client_call_consumed(call, bytes.len);
    }
}

static void on_writable(struct oc_client_call *call) {
    struct fx_call *c = lock_call(call);

    OC_CHECK(c->closed == 0);
    c->writable++;
    unlock_call(c);
}

static void on_closed(struct oc_client_call *call, int code, struct oc_span message) {
    struct fx_call *c = lock_call(call);

    c->closed++;
    c->code = code;
    c->unprocessed = oc_client_call_unprocessed(call);
    (void)snprintf(c->message, sizeof c->message, "%.*s", (int)message.len,
                   (const char *)message.p);
    c->call = NULL;
    unlock_call(c);
}

static const struct oc_client_events events = {
    .started = on_started,
    .headers = on_headers,
    .message = on_message,
    .writable = on_writable,
    .closed = on_closed,
};
static const struct oc_client_events piece_events = {
    .started = on_started,
    .headers = on_headers,
    .piece = on_piece,
    .writable = on_writable,
    .closed = on_closed,
};

/* ---- the loop ---- */

struct errand {
    struct oc_letter letter;
    void (*fn)(void *arg);
    void *arg;
    struct fx *fx;
    bool done;
};

static void on_errand(struct oc_letter *letter) {
    struct errand *e = OC_CONTAINER(letter, struct errand, letter);

    e->fn(e->arg);
    pthread_mutex_lock(&e->fx->lock);
    e->done = true;
    pthread_cond_broadcast(&e->fx->changed);
    pthread_mutex_unlock(&e->fx->lock);
}

/* The lock is held. */
static bool wait_change(struct fx *fx, struct timespec *until) {
    if (until->tv_sec == 0) {
        clock_gettime(CLOCK_REALTIME, until);
        until->tv_sec += DEADLINE_S;
    }
    return pthread_cond_timedwait(&fx->changed, &fx->lock, until) == 0;
}

void fx_do(struct fx *fx, void (*fn)(void *arg), void *arg) {
    struct errand e = {.letter.fn = on_errand, .fn = fn, .arg = arg, .fx = fx};
    struct timespec until = {0};

    oc_loop_post(fx->loop, &e.letter);
    pthread_mutex_lock(&fx->lock);
    while (!e.done) {
        OC_CHECK(wait_change(fx, &until)); /* `e` would be gone: no way to go on */
    }
    pthread_mutex_unlock(&fx->lock);
}

static void *loop_main(void *arg) {
    oc_loop_run(arg);
    return NULL;
}

struct opening {
    struct fx *fx;
    struct oc_channel_config cfg;
    struct oc_error err;
    int rv;
};

static void do_open(void *arg) {
    struct opening *o = arg;

    o->rv = oc_channel_new(o->fx->loop, &o->cfg, &o->fx->ch, &o->err);
}

void fx_open(struct fx *fx, const char *addr, struct oc_channel_config cfg) {
    struct opening o = {.fx = fx, .cfg = cfg};

    memset(fx, 0, sizeof *fx);
    o.cfg.addr = addr;
    pthread_mutex_init(&fx->lock, NULL);
    pthread_cond_init(&fx->changed, NULL);
    assert_int_equal(oc_loop_new(&fx->loop, &o.err), 0);
    assert_int_equal(pthread_create(&fx->thread, NULL, loop_main, fx->loop), 0);
    fx_do(fx, do_open, &o);
    assert_int_equal(o.rv, 0);
}

static void on_freed(void *arg) {
    struct fx *fx = arg;

    pthread_mutex_lock(&fx->lock);
    fx->freed = true;
    pthread_cond_broadcast(&fx->changed);
    pthread_mutex_unlock(&fx->lock);
}

static void do_free(void *arg) {
    struct fx *fx = arg;

    oc_channel_free(fx->ch, on_freed, fx);
    fx->ch = NULL;
}

void fx_free_channel(struct fx *fx) {
    struct timespec until = {0};

    fx_do(fx, do_free, fx);
    pthread_mutex_lock(&fx->lock);
    while (!fx->freed) {
        OC_CHECK(wait_change(fx, &until));
    }
    pthread_mutex_unlock(&fx->lock);
}

void fx_close(struct fx *fx) {
    if (fx->ch != NULL) {
        fx_free_channel(fx);
    }
    oc_loop_stop(fx->loop);
    pthread_join(fx->thread, NULL);
    oc_loop_free(fx->loop);
    pthread_mutex_destroy(&fx->lock);
    pthread_cond_destroy(&fx->changed);
}

/* ---- calls ---- */

struct starting {
    struct fx *fx;
    struct fx_call *c;
    uint64_t deadline_ms;
    const char *message;
    bool pieces, end;
    const struct oc_metadata *md;
    size_t md_count;
    int rv;
};

static void do_start(void *arg) {
    struct starting *s = arg;

    s->rv =
        oc_client_call_new(s->fx->ch, "/test.Service/Method", s->pieces ? &piece_events : &events,
                           s->c, s->deadline_ms, s->md, s->md_count, &s->c->call);
    if (s->rv != 0) {
        return;
    }
    if (s->message != NULL) {
        (void)oc_client_call_send_copy(s->c->call, oc_span_str(s->message));
    }
    if (s->end) {
        oc_client_call_half_close(s->c->call);
    }
}

static int start(struct starting *s) {
    memset(s->c, 0, sizeof *s->c);
    s->c->fx = s->fx;
    fx_do(s->fx, do_start, s);
    return s->rv;
}

void fx_call_start(struct fx *fx, struct fx_call *c, uint64_t deadline_ms, const char *message) {
    struct starting s = {
        .fx = fx, .c = c, .deadline_ms = deadline_ms, .message = message, .end = true};

    assert_int_equal(start(&s), 0);
}

void fx_call_start_pieces(struct fx *fx, struct fx_call *c) {
    struct starting s = {.fx = fx, .c = c, .message = "", .pieces = true, .end = true};

    assert_int_equal(start(&s), 0);
}

int fx_call_open(struct fx *fx, struct fx_call *c, uint64_t deadline_ms,
                 const struct oc_metadata *md, size_t md_count) {
    struct starting s = {
        .fx = fx, .c = c, .deadline_ms = deadline_ms, .md = md, .md_count = md_count};

    return start(&s);
}

static void do_cancel(void *arg) {
    struct fx_call *c = arg;

    if (c->call != NULL) {
        oc_client_call_cancel(c->call);
    }
}

void fx_cancel(struct fx_call *c) {
    fx_do(c->fx, do_cancel, c);
}

struct asking {
    struct fx *fx;
    enum oc_channel_state state;
};

static void do_state(void *arg) {
    struct asking *a = arg;

    a->state = oc_channel_state(a->fx->ch);
}

enum oc_channel_state fx_state(struct fx *fx) {
    struct asking a = {.fx = fx};

    fx_do(fx, do_state, &a);
    return a.state;
}

bool fx_wait_until(struct fx *fx, bool (*cond)(void *arg), void *arg) {
    struct timespec until = {0};
    bool ok;

    pthread_mutex_lock(&fx->lock);
    while (!(ok = cond(arg)) && wait_change(fx, &until)) {
    }
    pthread_mutex_unlock(&fx->lock);
    return ok;
}

static bool is_closed(void *arg) {
    return ((struct fx_call *)arg)->closed > 0;
}

void fx_wait_closed(struct fx_call *c) {
    assert_true(fx_wait_until(c->fx, is_closed, c));
}

void fx_expect(struct fx_call *c, int code, const char *part) {
    fx_wait_closed(c);
    if (c->code != code || strstr(c->message, part) == NULL) {
        fprintf(stderr, "closed with %d '%s'\n", c->code, c->message);
    }
    assert_int_equal(c->code, code);
    assert_non_null(strstr(c->message, part));
    assert_int_equal(c->closed, 1);
}
