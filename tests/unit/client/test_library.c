/* libocache against scripted servers: which server a key goes to, what is repeated and what is not,
 * how failures of every kind look to the caller, cancelling and freeing. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>

#include <cmocka.h>

#include "base/check.h"
#include "io/loop.h"
#include "ocache.h"
#include "play.h"
#include "raw.h"

/* ---- key to server ---- */

static uint32_t fnv(const char *key) {
    uint32_t h = 2166136261u;

    for (; *key != 0; key++) {
        h = (h ^ (uint8_t)*key) * 16777619u;
    }
    return h;
}

#define SERVERS 3
#define KEYS    30

struct tally {
    char keys[KEYS][16];
    unsigned count, expected;
};

static bool take_puts(struct raw *r, void *arg) {
    struct tally *t = arg;

    if (t->expected == 0) {
        return true;
    }
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    for (t->count = 0; t->count < t->expected; t->count++) {
        uint8_t body[64];
        uint32_t stream;
        size_t len;

        RAW(raw_request(r, &stream));
        RAW(raw_body(r, stream, body, sizeof body, &len));
        RAW(len > 7 && body[5] == 0x0a && body[6] < 16); /* field 1: the key */
        memcpy(t->keys[t->count], body + 7, body[6]);
        RAW(raw_ok_headers(r, stream));
        RAW(raw_message(r, stream, STR(SUCCESS), 10));
        RAW(raw_trailers(r, stream, "0", NULL));
    }
    return true;
}

static void test_key_to_server(void **state) {
    static struct tally tallies[SERVERS];
    const char *addrs[SERVERS];
    struct raw *raws[SERVERS];
    struct ocache_config cfg;
    struct ocache_client *client;
    struct ocache_error err = {0};
    char key[16];

    (void)state;
    assert_int_equal(fnv("a"), 0xe40c292c); /* published test vectors */
    assert_int_equal(fnv("foobar"), 0xbf9cf968);
    memset(tallies, 0, sizeof tallies);
    for (unsigned i = 0; i < KEYS; i++) {
        (void)snprintf(key, sizeof key, "key-%u", i * 7919);
        tallies[fnv(key) % SERVERS].expected++;
    }
    for (unsigned i = 0; i < SERVERS; i++) {
        assert_true(tallies[i].expected > 0);
        raws[i] = raw_start(take_puts, &tallies[i], 0);
        addrs[i] = raw_addr(raws[i]);
    }
    ocache_config_init(&cfg);
    cfg.addrs = addrs;
    cfg.addr_count = SERVERS;
    cfg.mode = OCACHE_MODE_SIMPLE;
    cfg.connections = 1;
    assert_int_equal(ocache_client_new(&cfg, &client, &err), 0);
    assert_int_equal(ocache_client_mode(client), OCACHE_MODE_SIMPLE);
    for (unsigned i = 0; i < KEYS; i++) {
        (void)snprintf(key, sizeof key, "key-%u", i * 7919);
        assert_string_equal(ocache_client_addr_for(client, key, strlen(key)),
                            raw_addr(raws[fnv(key) % SERVERS]));
        assert_int_equal(ocache_put(client, key, strlen(key), "v", 1, NULL, &err), 0);
    }
    ocache_client_free(client);
    for (unsigned i = 0; i < SERVERS; i++) {
        assert_true(raw_stop(raws[i]));
        assert_int_equal(tallies[i].count, tallies[i].expected);
        for (unsigned k = 0; k < tallies[i].count; k++) {
            assert_int_equal(fnv(tallies[i].keys[k]) % SERVERS, i);
        }
    }
}

/* ---- what is repeated ---- */

static int do_put(struct stage *st, struct ocache_error *err) {
    return ocache_put(st->client, "k", 1, "v", 1, NULL, err);
}

static int do_get(struct stage *st, struct ocache_error *err) {
    void *value = NULL;
    size_t len;
    int rv = ocache_get(st->client, "k", 1, NULL, &value, &len, err);

    if (rv == 0) {
        assert_int_equal(len, 2);
        assert_memory_equal(value, "ok", 3); /* with the zero byte behind it */
        ocache_free(value);
    }
    return rv;
}

static int drop(void *user, const void *data, size_t len) {
    (void)data;
    *(size_t *)user += len;
    return 0;
}

static int do_get_stream(struct stage *st, struct ocache_error *err) {
    size_t got = 0;

    return ocache_get_stream(st->client, "k", 1, drop, &got, NULL, err);
}

static atomic_uint reads;

static ptrdiff_t read_once(void *user, void *buf, size_t cap) {
    unsigned *left = user;

    (void)cap;
    atomic_fetch_add(&reads, 1);
    if (*left == 0) {
        return 0;
    }
    --*left;
    memcpy(buf, "abc", 3);
    return 3;
}

static int do_put_stream(struct stage *st, struct ocache_error *err) {
    unsigned left = 2;

    return ocache_put_stream(st->client, "k", 1, read_once, &left, NULL, err);
}

#define OK_VALUE "\x0a\x02ok" /* data = "ok" */

static const struct {
    const char *what;
    int (*run)(struct stage *st, struct ocache_error *err);
    struct step steps[4];
    int code;
    unsigned requests;
} repeats[] = {
    {"put, refused stream, then fine",
     do_put,
     {{.act = RESET, .path = PUT_OBJECT, .code = 7},
      {.act = ANSWER, .path = PUT_OBJECT, .data = SUCCESS, .len = 2}},
     0,
     2},
    {"put, UNAVAILABLE, then fine",
     do_put,
     {{.act = STATUS, .path = PUT_OBJECT, .status = "14"},
      {.act = ANSWER, .path = PUT_OBJECT, .data = SUCCESS, .len = 2}},
     0,
     2},
    {"put, connection lost, then fine",
     do_put,
     {{.act = HANG_UP, .path = PUT_OBJECT},
      {.act = ANSWER, .path = PUT_OBJECT, .data = SUCCESS, .len = 2}},
     0,
     2},
    {"put, UNAVAILABLE twice: once only",
     do_put,
     {{.act = STATUS, .path = PUT_OBJECT, .status = "14", .message = "first"},
      {.act = STATUS, .path = PUT_OBJECT, .status = "14", .message = "second"}},
     OCACHE_UNAVAILABLE,
     2},
    {"put, other codes: never",
     do_put,
     {{.act = STATUS, .path = PUT_OBJECT, .status = "8", .message = "full"}},
     OCACHE_RESOURCE_EXHAUSTED,
     1},
    {"put, INTERNAL reset: never",
     do_put,
     {{.act = RESET, .path = PUT_OBJECT, .code = 2}},
     OCACHE_INTERNAL,
     1},
    {"get, missing: never",
     do_get,
     {{.act = STATUS, .path = GET, .status = "5", .message = "key not found"}},
     OCACHE_NOT_FOUND,
     1},
    {"get into memory, cut in the middle: again from the start",
     do_get,
     {{.act = PARTLY, .path = GET, .data = OK_VALUE, .len = 4, .status = "14"},
      {.act = ANSWER, .path = GET, .data = OK_VALUE, .len = 4}},
     0,
     2},
    {"get as a stream, cut before the first byte: again",
     do_get_stream,
     {{.act = STATUS, .path = GET, .status = "14"},
      {.act = ANSWER, .path = GET, .data = OK_VALUE, .len = 4}},
     0,
     2},
    {"get as a stream, cut after a byte: never",
     do_get_stream,
     {{.act = PARTLY, .path = GET, .data = OK_VALUE, .len = 4, .status = "14"}},
     OCACHE_UNAVAILABLE,
     1},
    {"put from a reader, UNAVAILABLE after reading: never",
     do_put_stream,
     {{.act = STATUS, .path = PUT, .status = "14"}},
     OCACHE_UNAVAILABLE,
     1},
};

static void test_what_is_repeated(void **state) {
    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(repeats); i++) {
        struct ocache_error err = {0};
        struct stage st;

        stage_open(&st, repeats[i].steps, (struct ocache_config){0});
        int code = repeats[i].run(&st, &err);
        if (code != repeats[i].code) {
            print_error("%s: %d %s\n", repeats[i].what, code, err.message);
        }
        assert_int_equal(code, repeats[i].code);
        stage_close(&st, repeats[i].requests);
    }
}

/* The first connection fails before the request was sent: nothing was read, so a reader's put is
 * repeated too, and the reader is asked for its bytes once. */
static void test_put_stream_is_repeated_when_nothing_was_read(void **state) {
    static const struct step steps[] = {
        {.act = NO_GREETING},
        {.act = ANSWER, .path = PUT, .data = SUCCESS, .len = 2},
        {.act = END},
    };
    struct ocache_error err = {0};
    struct stage st;

    (void)state;
    atomic_store(&reads, 0);
    stage_open(&st, steps, (struct ocache_config){.connections = 2});
    assert_int_equal(do_put_stream(&st, &err), 0);
    assert_int_equal(atomic_load(&reads), 3); /* twice three bytes and the end */
    /* One message: key "k" and the six bytes. */
    assert_int_equal(st.play.body_lens[1], 5 + 3 + 2 + 6);
    assert_memory_equal(st.play.bodies[1],
                        "\0\0\0\0\x0b\x0a\x01k\x1a\x06"
                        "abcabc",
                        16);
    stage_close(&st, 1);
}

/* ---- what the caller sees ---- */

static void test_failed_put_in_the_response(void **state) {
    static const char full[] =
        "\x12\x32"
        "rpc error: code = ResourceExhausted desc = no room"; /* error = …, success unset */
    static const char plain[] = "\x12\x03"
                                "EOF";
    static const struct step steps[] = {
        {.act = ANSWER, .path = PUT_OBJECT, .data = full, .len = sizeof full - 1},
        {.act = ANSWER, .path = PUT_OBJECT, .data = plain, .len = sizeof plain - 1},
        {.act = ANSWER, .path = PUT_OBJECT, .data = "", .len = 0},
        {.act = END},
    };
    struct ocache_error err = {0};
    struct stage st;

    (void)state;
    stage_open(&st, steps, (struct ocache_config){0});
    assert_int_equal(do_put(&st, &err), OCACHE_RESOURCE_EXHAUSTED);
    assert_string_equal(err.message, "no room");
    assert_int_equal(do_put(&st, &err), OCACHE_UNKNOWN);
    assert_string_equal(err.message, "EOF");
    assert_int_equal(do_put(&st, &err), OCACHE_UNKNOWN); /* success = false and no text at all */
    assert_string_equal(err.message, "unknown error");
    stage_close(&st, 3);
}

static void test_wrong_number_of_responses(void **state) {
    static const struct step steps[] = {
        {.act = EMPTY, .path = PUT_OBJECT},
        {.act = TWICE, .path = PUT_OBJECT, .data = SUCCESS, .len = 2},
        {.act = END},
    };
    struct ocache_error err = {0};
    struct stage st;

    (void)state;
    stage_open(&st, steps, (struct ocache_config){0});
    assert_int_equal(do_put(&st, &err), OCACHE_INTERNAL);
    assert_int_equal(do_put(&st, &err), OCACHE_INTERNAL);
    stage_close(&st, 2);
}

static void test_malformed_values(void **state) {
    static const struct {
        const char *data;
        size_t len;
    } cases[] = {
        {STR("\x0a\x05ok")},                                   /* longer than the message */
        {STR("\x0a\x02ok\x0a\x02no")},                         /* the field twice */
        {STR("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")}, /* no tag */
        {STR("\x0b")},                                         /* a group */
        {STR("\x08")},                                         /* a varint without its value */
    };

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        const struct step steps[] = {
            {.act = ANSWER, .path = GET, .data = cases[i].data, .len = cases[i].len},
            {.act = END},
        };
        struct ocache_error err = {0};
        struct stage st;

        stage_open(&st, steps, (struct ocache_config){0});
        assert_int_equal(do_get(&st, &err), OCACHE_INTERNAL);
        assert_non_null(strstr(err.message, "malformed"));
        stage_close(&st, 1);
    }
}

static void test_value_limit(void **state) {
    static const struct step steps[] = {
        {.act = ANSWER, .path = GET, .data = OK_VALUE, .len = 4},
        {.act = ANSWER, .path = GET, .data = "\x0a\x03xyz", .len = 5},
        {.act = END},
    };
    struct ocache_error err = {0};
    struct stage st;

    (void)state;
    stage_open(&st, steps, (struct ocache_config){.max_value_bytes = 2});
    assert_int_equal(do_get(&st, &err), 0);
    assert_int_equal(do_get(&st, &err), OCACHE_RESOURCE_EXHAUSTED);
    stage_close(&st, 2);
}

static void test_empty_value_is_not_a_missing_one(void **state) {
    static const struct step steps[] = {{.act = EMPTY, .path = GET}, {.act = END}};
    struct stage st;
    void *value = NULL;
    size_t len = 99;

    (void)state;
    stage_open(&st, steps, (struct ocache_config){0});
    assert_int_equal(ocache_get(st.client, "k", 1, NULL, &value, &len, NULL), 0);
    assert_non_null(value);
    assert_int_equal(len, 0);
    ocache_free(value);
    stage_close(&st, 1);
}

static void test_keys_are_checked_here(void **state) {
    static const struct step steps[] = {
        {.act = ANSWER, .path = PUT_OBJECT, .data = SUCCESS, .len = 2}, {.act = END}};
    struct ocache_error err = {0};
    struct stage st;

    (void)state;
    stage_open(&st, steps, (struct ocache_config){0});
    assert_int_equal(ocache_put(st.client, "\xff\xfe", 2, "v", 1, NULL, &err),
                     OCACHE_INVALID_ARGUMENT);
    assert_int_equal(ocache_put(st.client, "a\0b", 3, "v", 1, NULL, &err), 0);
    assert_memory_equal(st.play.bodies[0] + 5,
                        "\x0a\x03"
                        "a\0b",
                        5);
    stage_close(&st, 1);
}

/* ---- lists ---- */

static int collect(void *user, const struct ocache_entry *entry) {
    char *all = user;
    size_t n = strlen(all);

    (void)snprintf(all + n, 64 - n, "%.*s,", (int)entry->key_len, entry->key);
    return strcmp(entry->key, "stop") == 0;
}

static void test_list_follows_pages(void **state) {
    static const struct step steps[] = {
        /* keys a, b; token "t1"; has_more */
        {.act = ANSWER,
         .path = LIST,
         .data = "\x0a\x01"
                 "a\x0a\x01"
                 "b\x12\x02t1\x18\x01",
         .len = 12},
        /* key c, has_more but no token: on from the last key */
        {.act = ANSWER,
         .path = LIST,
         .data = "\x0a\x01"
                 "c\x18\x01",
         .len = 5},
        {.act = ANSWER,
         .path = LIST,
         .data = "\x0a\x01"
                 "d",
         .len = 3},
        {.act = END},
    };
    struct ocache_list_query query = {.prefix = "p", .prefix_len = 1};
    struct ocache_error err = {0};
    struct stage st;
    char all[64] = "";

    (void)state;
    stage_open(&st, steps, (struct ocache_config){0});
    assert_int_equal(ocache_list_all(st.client, &query, collect, all, NULL, &err), 0);
    assert_string_equal(all, "a,b,c,d,");
    assert_memory_equal(st.play.bodies[1] + 5, "\x0a\x01p\x22\x02t1", 7); /* the token */
    assert_memory_equal(st.play.bodies[2] + 5,
                        "\x0a\x01p\x12\x01"
                        "c",
                        6); /* start_key */
    stage_close(&st, 3);
}

static void test_list_that_goes_nowhere(void **state) {
    static const struct step no_keys[] = {
        {.act = ANSWER, .path = LIST, .data = "\x18\x01", .len = 2}, {.act = END}};
    static const struct step same_token[] = {
        {.act = ANSWER, .path = LIST, .data = "\x12\x01t\x18\x01", .len = 5},
        {.act = ANSWER, .path = LIST, .data = "\x12\x01t\x18\x01", .len = 5},
        {.act = END}};
    struct ocache_error err = {0};
    struct stage st;
    char all[64] = "";

    (void)state;
    stage_open(&st, no_keys, (struct ocache_config){0});
    assert_int_equal(ocache_list_all(st.client, NULL, collect, all, NULL, &err), OCACHE_INTERNAL);
    stage_close(&st, 1);
    stage_open(&st, same_token, (struct ocache_config){0});
    assert_int_equal(ocache_list_all(st.client, NULL, collect, all, NULL, &err), OCACHE_INTERNAL);
    stage_close(&st, 2);
}

/* ---- waiting, cancelling, freeing ---- */

static const struct step hold_get[] = {{.act = HOLD, .path = GET}, {.act = END}};

static void test_stall_and_deadline(void **state) {
    struct ocache_options opt = {.deadline_ms = 60};
    struct ocache_error err = {0};
    struct stage st;
    void *value;
    size_t len;

    (void)state;
    stage_open(&st, hold_get, (struct ocache_config){.stall_ms = 60});
    assert_int_equal(do_get(&st, &err), OCACHE_DEADLINE_EXCEEDED);
    assert_non_null(strstr(err.message, "no progress"));
    stage_close(&st, 1);
    stage_open(&st, hold_get, (struct ocache_config){0});
    assert_int_equal(ocache_get(st.client, "k", 1, &opt, &value, &len, &err),
                     OCACHE_DEADLINE_EXCEEDED);
    assert_non_null(strstr(err.message, "deadline"));
    stage_close(&st, 1);
}

struct ending {
    atomic_int code; /* -1: not yet */
    atomic_uint times;
    struct ocache_client *client;
    int inner;
};

static void on_end(void *user, const struct ocache_result *result) {
    struct ending *e = user;

    atomic_fetch_add(&e->times, 1);
    atomic_store(&e->code, result->code);
}

#define WAIT_FOR(cond)                                                                             \
    do {                                                                                           \
        uint64_t start_ns_ = oc_clock_now(oc_clock_real()).mono_ns;                                \
        while (!(cond)) {                                                                          \
            assert_true(oc_clock_now(oc_clock_real()).mono_ns - start_ns_ < 20 * OC_NS_PER_S);     \
            (void)sched_yield();                                                                   \
        }                                                                                          \
    } while (0)

static void test_cancel_by_number(void **state) {
    struct ending e = {.code = -1};
    struct stage st;

    (void)state;
    stage_open(&st, hold_get, (struct ocache_config){0});
    uint64_t id = ocache_get_async(st.client, "k", 1, NULL, on_end, &e);
    assert_int_not_equal(id, 0);
    WAIT_FOR(atomic_load(&st.play.holding));
    assert_int_equal(ocache_cancel(st.client, id + 1000), 0); /* nobody: nothing happens */
    assert_int_equal(atomic_load(&e.code), -1);
    assert_int_equal(ocache_cancel(st.client, id), 0);
    WAIT_FOR(atomic_load(&e.code) == OCACHE_CANCELLED);
    assert_int_equal(ocache_cancel(st.client, id), 0); /* over: nothing happens */
    stage_close(&st, 1);
    assert_int_equal(atomic_load(&e.times), 1);
}

static void test_free_ends_everything(void **state) {
    struct ending e[4];
    struct stage st;

    (void)state;
    stage_open(&st, hold_get, (struct ocache_config){0});
    for (unsigned i = 0; i < 4; i++) {
        e[i] = (struct ending){.code = -1};
        assert_int_not_equal(ocache_get_async(st.client, "k", 1, NULL, on_end, &e[i]), 0);
    }
    WAIT_FOR(atomic_load(&st.play.holding));
    ocache_client_free(st.client);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(atomic_load(&e[i].code), OCACHE_CANCELLED);
        assert_int_equal(atomic_load(&e[i].times), 1);
    }
    (void)raw_stop(st.raw); /* it played one of four requests, in whatever order */
}

static void on_end_and_wait(void *user, const struct ocache_result *result) {
    struct ending *e = user;

    e->inner = ocache_delete(e->client, "k", 1, NULL, NULL);
    atomic_store(&e->code, result->code);
}

static void test_waiting_in_a_callback_is_refused(void **state) {
    static const struct step steps[] = {
        {.act = STATUS, .path = GET, .status = "5", .message = "key not found"}, {.act = END}};
    struct ending e = {.code = -1};
    struct stage st;

    (void)state;
    stage_open(&st, steps, (struct ocache_config){0});
    e.client = st.client;
    assert_int_not_equal(ocache_get_async(st.client, "k", 1, NULL, on_end_and_wait, &e), 0);
    WAIT_FOR(atomic_load(&e.code) == OCACHE_NOT_FOUND);
    assert_int_equal(e.inner, OCACHE_FAILED_PRECONDITION);
    stage_close(&st, 1);
}

struct trickle {
    struct ending end; /* first: `user` is both */
    atomic_uint allowed, asked;
};

static ptrdiff_t read_trickle(void *user, void *buf, size_t cap) {
    struct trickle *t = user;

    (void)cap;
    if (atomic_fetch_add(&t->asked, 1) == 0 || atomic_load(&t->allowed) == 0) {
        return OCACHE_READ_LATER;
    }
    if (atomic_load(&t->allowed) == 2) {
        return 0;
    }
    atomic_store(&t->allowed, 2);
    memcpy(buf, "late", 4);
    return 4;
}

static void test_reader_with_callbacks(void **state) {
    static const struct step steps[] = {{.act = ANSWER, .path = PUT, .data = SUCCESS, .len = 2},
                                        {.act = END}};
    struct trickle t = {.end.code = -1};
    struct stage st;

    (void)state;
    stage_open(&st, steps, (struct ocache_config){0});
    uint64_t id = ocache_put_stream_async(st.client, "k", 1, read_trickle, NULL, on_end, &t);
    assert_int_not_equal(id, 0);
    WAIT_FOR(atomic_load(&t.asked) == 1);
    atomic_store(&t.allowed, 1);
    assert_int_equal(ocache_resume(st.client, id), 0);
    WAIT_FOR(atomic_load(&t.end.code) == 0);
    assert_memory_equal(st.play.bodies[0], "\0\0\0\0\x09\x0a\x01k\x1a\x04late", 14);
    stage_close(&st, 1);
}

static ptrdiff_t read_nothing(void *user, void *buf, size_t cap) {
    (void)user;
    (void)buf;
    (void)cap;
    return 0;
}

static ptrdiff_t give_up(void *user, void *buf, size_t cap) {
    (void)user;
    (void)buf;
    (void)cap;
    return -1;
}

static void test_reader_ends(void **state) {
    static const struct step steps[] = {{.act = ANSWER, .path = PUT, .data = SUCCESS, .len = 2},
                                        {.act = HOLD, .path = PUT},
                                        {.act = END}};
    struct ocache_error err = {0};
    struct stage st;

    (void)state;
    stage_open(&st, steps, (struct ocache_config){0});
    /* An empty value is one message with the key: the server cannot know the key otherwise. */
    assert_int_equal(ocache_put_stream(st.client, "k", 1, read_nothing, NULL, NULL, &err), 0);
    assert_int_equal(st.play.body_lens[0], 8);
    assert_memory_equal(st.play.bodies[0], "\0\0\0\0\x03\x0a\x01k", 8);
    assert_int_equal(ocache_put_stream(st.client, "k", 1, give_up, NULL, NULL, &err),
                     OCACHE_CANCELLED);
    assert_non_null(strstr(err.message, "reader"));
    stage_close(&st, 2);
}

struct late_failure {
    struct ending end; /* first: `user` is both */
    uint64_t given;
};

static ptrdiff_t fail_after_megabytes(void *user, void *buf, size_t cap) {
    struct late_failure *f = user;

    if (f->given >= 3u << 20) {
        return -1; /* asked when a buffer came back from the socket: deep inside the connection */
    }
    memset(buf, 'x', cap);
    f->given += cap;
    return (ptrdiff_t)cap;
}

static void test_reader_fails_while_sending(void **state) {
    static const struct step steps[] = {{.act = DRAIN, .path = PUT}, {.act = END}};
    struct late_failure f = {.end.code = -1};
    struct stage st;

    (void)state;
    stage_open(&st, steps, (struct ocache_config){0});
    assert_int_not_equal(
        ocache_put_stream_async(st.client, "k", 1, fail_after_megabytes, NULL, on_end, &f), 0);
    WAIT_FOR(atomic_load(&f.end.code) == OCACHE_CANCELLED);
    stage_close(&st, 1);
    assert_int_equal(atomic_load(&f.end.times), 1);
}

static int refuse(void *user, const void *data, size_t len) {
    (void)user;
    (void)data;
    (void)len;
    return 1;
}

static void test_receiver_stops(void **state) {
    static const struct step steps[] = {
        {.act = PARTLY, .path = GET, .data = OK_VALUE, .len = 4, .status = "0"}, {.act = END}};
    struct ocache_error err = {0};
    struct stage st;

    (void)state;
    stage_open(&st, steps, (struct ocache_config){0});
    assert_int_equal(ocache_get_stream(st.client, "k", 1, refuse, NULL, NULL, &err),
                     OCACHE_CANCELLED);
    assert_non_null(strstr(err.message, "receiver"));
    stage_close(&st, 1);
}

/* ---- configuration and detection ---- */

static void test_configuration(void **state) {
    const char *good[] = {"127.0.0.1:1"};
    const char *bad[] = {"127.0.0.1:1", "nowhere"};
    struct ocache_config cfg;
    struct ocache_client *client = NULL;
    struct ocache_error err = {0};

    (void)state;
    ocache_config_init(&cfg);
    assert_int_equal(ocache_client_new(&cfg, &client, &err), OCACHE_INVALID_ARGUMENT);
    cfg.addrs = good;
    cfg.addr_count = 1;
    cfg.mode = OCACHE_MODE_CLUSTER;
    assert_int_equal(ocache_client_new(&cfg, &client, &err), OCACHE_UNIMPLEMENTED);
    assert_non_null(strstr(err.message, "cluster mode is not built"));
    cfg.mode = (enum ocache_mode)7;
    assert_int_equal(ocache_client_new(&cfg, &client, &err), OCACHE_INVALID_ARGUMENT);
    cfg.mode = OCACHE_MODE_SIMPLE;
    cfg.connections = 65;
    assert_int_equal(ocache_client_new(&cfg, &client, &err), OCACHE_INVALID_ARGUMENT);
    cfg.connections = 2;
    cfg.addrs = bad;
    cfg.addr_count = 2;
    assert_int_equal(ocache_client_new(&cfg, &client, &err), OCACHE_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "nowhere"));
    assert_null(client);
    ocache_client_free(NULL);
}

static void test_detection_is_bounded(void **state) {
    static const struct step hold[] = {{.act = HOLD, .path = "/cache.CacheService/GetTopology"},
                                       {.act = END}};
    struct play play = {.steps = hold};
    struct raw *r = raw_start(run_play, &play, 0);
    char dead[32];
    const char *addrs[] = {raw_addr(r), dead};
    struct ocache_config cfg;
    struct ocache_client *client;
    uint64_t before = oc_clock_now(oc_clock_real()).mono_ns;

    (void)state;
    (void)snprintf(dead, sizeof dead, "127.0.0.1:%u", raw_dead_port());
    ocache_config_init(&cfg);
    cfg.addrs = addrs;
    cfg.addr_count = 2;
    cfg.detect_ms = 100;
    assert_int_equal(ocache_client_new(&cfg, &client, NULL), 0);
    uint64_t took = oc_clock_now(oc_clock_real()).mono_ns - before;
    assert_true(took >= 90 * OC_NS_PER_MS && took < 5 * OC_NS_PER_S);
    assert_int_equal(ocache_client_mode(client), OCACHE_MODE_SIMPLE);
    ocache_client_free(client);
    assert_true(raw_stop(r));
}

static void test_texts(void **state) {
    (void)state;
    assert_string_equal(ocache_code_name(5), "NotFound");
    assert_string_equal(ocache_code_name(14), "Unavailable");
    assert_string_equal(ocache_code_name(99), "Unknown");
    assert_string_equal(ocache_code_name(-1), "Unknown");
    assert_string_equal(ocache_strerror(0), "success");
    assert_string_equal(ocache_strerror(4), "deadline exceeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_to_server),
        cmocka_unit_test(test_what_is_repeated),
        cmocka_unit_test(test_put_stream_is_repeated_when_nothing_was_read),
        cmocka_unit_test(test_failed_put_in_the_response),
        cmocka_unit_test(test_wrong_number_of_responses),
        cmocka_unit_test(test_malformed_values),
        cmocka_unit_test(test_value_limit),
        cmocka_unit_test(test_empty_value_is_not_a_missing_one),
        cmocka_unit_test(test_keys_are_checked_here),
        cmocka_unit_test(test_list_follows_pages),
        cmocka_unit_test(test_list_that_goes_nowhere),
        cmocka_unit_test(test_stall_and_deadline),
        cmocka_unit_test(test_cancel_by_number),
        cmocka_unit_test(test_free_ends_everything),
        cmocka_unit_test(test_waiting_in_a_callback_is_refused),
        cmocka_unit_test(test_reader_with_callbacks),
        cmocka_unit_test(test_reader_ends),
        cmocka_unit_test(test_reader_fails_while_sending),
        cmocka_unit_test(test_receiver_stops),
        cmocka_unit_test(test_configuration),
        cmocka_unit_test(test_detection_is_bounded),
        cmocka_unit_test(test_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
