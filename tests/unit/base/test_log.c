/* base/log.h, through a real pipe. JSON is judged by jansson. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"

static struct oc_now now;
static struct oc_now test_now(void *ctx) {
    (void)ctx;
    return now;
}
static const struct oc_clock test_clock = {test_now, NULL};

static int fds[2];
static char got[1 << 16];

static int setup(void **state) {
    (void)state;
    if (pipe2(fds, O_NONBLOCK) != 0) {
        return -1;
    }
    now = (struct oc_now){.mono_ns = 5 * OC_NS_PER_S, .wall_ns = 1769860800123456789ull};
    oc_log_set_fd(fds[1]);
    oc_log_set_level(OC_LOG_INFO);
    oc_log_set_format(OC_LOG_TEXT);
    oc_log_set_clock(&test_clock);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    oc_log_set_fd(STDERR_FILENO);
    oc_log_set_clock(NULL);
    (void)close(fds[0]);
    (void)close(fds[1]);
    return 0;
}

/* Everything written so far. */
static const char *read_all(void) {
    size_t len = 0;
    ssize_t n;

    while ((n = read(fds[0], got + len, sizeof got - 1 - len)) > 0) {
        len += (size_t)n;
    }
    got[len] = 0;
    return got;
}

static int evaluated;
static const char *evaluate(void) {
    evaluated++;
    return "x";
}

static void test_text(void **state) {
    (void)state;
    oc_log(OC_LOG_INFO, "plain message");
    assert_string_equal(read_all(), "2026-01-31T12:00:00.123Z INFO plain message\n");
    oc_log(OC_LOG_ERROR, "all kinds", OC_F_STR("s", "word"), OC_F_STR("q", "two words"),
           OC_F_STR("n", NULL), OC_F_SPAN("b", oc_span("a\0b", 3)), OC_F_U64("u", UINT64_MAX),
           OC_F_I64("i", -7), OC_F_F64("f", 0.25), OC_F_BOOL("t", true),
           OC_F_DURATION("d", 1500 * OC_NS_PER_MS), OC_F_CODE("e", OC_E_NOT_FOUND),
           OC_F_STR("z", ""));
    assert_string_equal(
        read_all(), "2026-01-31T12:00:00.123Z ERROR all kinds s=word q=\"two words\" n=null "
                    "b=\"a\\x00b\" u=18446744073709551615 i=-7 f=0.25 t=true d=1.5s e=NOT_FOUND "
                    "z=\"\"\n");
    oc_log_set_clock(NULL);
    oc_log(OC_LOG_WARN, "timeless");
    assert_string_equal(read_all(), "WARN timeless\n");
}

static void test_levels(void **state) {
    (void)state;
    oc_log(OC_LOG_DEBUG, "not seen", OC_F_STR("x", evaluate()));
    assert_string_equal(read_all(), "");
    assert_int_equal(evaluated, 0);
    assert_false(oc_log_enabled(OC_LOG_DEBUG));
    oc_log_set_level(OC_LOG_DEBUG);
    oc_log(OC_LOG_DEBUG, "seen", OC_F_STR("x", evaluate()));
    assert_string_equal(read_all(), "2026-01-31T12:00:00.123Z DEBUG seen x=x\n");
    assert_int_equal(evaluated, 1);
}

/* Nothing that comes from outside can start a line, a field or a terminal sequence. */
static void test_injection(void **state) {
    static const char evil[] =
        "a\nERROR forged x=1\r\t\x1b[31m\x7f \"q\\ \xc2\x9b\xff\xe2\x80\xa8\xc3\xa4";

    (void)state;
    oc_log(OC_LOG_INFO, "m", OC_F_STR("k", evil));
    assert_string_equal(read_all(), "2026-01-31T12:00:00.123Z INFO m "
                                    "k=\"a\\nERROR forged x=1\\r\\t\\x1b[31m\\x7f \\\"q\\\\ "
                                    "\\xc2\\x9b\\xff\\xe2\\x80\\xa8\xc3\xa4\"\n");
    oc_log_set_format(OC_LOG_JSON);
    oc_log(OC_LOG_INFO, "m\n", OC_F_STR("k", evil), OC_F_F64("inf", 1e308 * 10));
    const char *line = read_all();
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
    json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "ts")), "2026-01-31T12:00:00.123Z");
    assert_string_equal(json_string_value(json_object_get(root, "level")), "info");
    assert_string_equal(json_string_value(json_object_get(root, "msg")), "m\n");
    assert_string_equal(
        json_string_value(json_object_get(root, "k")),
        "a\nERROR forged x=1\r\t\x1b[31m\x7f \"q\\ "
        "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xc3\xa4");
    assert_true(json_is_null(json_object_get(root, "inf")));
    json_decref(root);
}

static void test_long_lines(void **state) {
    static char big[3000];
    static char nasty[1500];

    (void)state;
    memset(big, 'a', sizeof big - 1);
    memset(nasty, 1, sizeof nasty - 1);
    for (int format = OC_LOG_TEXT; format <= OC_LOG_JSON; format++) {
        oc_log_set_format((enum oc_log_format)format);
        oc_log(OC_LOG_INFO, "m", OC_F_STR("one", big), OC_F_STR("two", big), OC_F_STR("three", big),
               OC_F_STR("four", big), OC_F_U64("five", 5));
        const char *line = read_all();
        assert_true(strlen(line) <= OC_LOG_LINE_MAX);
        assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
        assert_non_null(strstr(line, "three"));
        assert_null(strstr(line, "four"));
        assert_non_null(strstr(line, "truncated"));
        oc_log(OC_LOG_INFO, nasty, OC_F_STR("k", nasty));
        line = read_all();
        assert_true(strlen(line) <= OC_LOG_LINE_MAX);
        if (format == OC_LOG_JSON) {
            json_t *root = json_loads(line, 0, NULL);

            assert_non_null(root);
            assert_true(json_is_true(json_object_get(root, "truncated")));
            json_decref(root);
        }
    }
}

static void flood(void) {
    oc_log_limited(OC_LOG_WARN, "disk is slow", OC_F_U64("n", 1));
}

static size_t lines(const char *s) {
    size_t n = 0;

    for (; *s != 0; s++) {
        n += *s == '\n';
    }
    return n;
}

static void test_rate_limit(void **state) {
    (void)state;
    for (int i = 0; i < 100; i++) {
        flood();
    }
    assert_int_equal(lines(read_all()), OC_LOG_BURST);
    assert_null(strstr(got, "suppressed"));
    now.mono_ns += OC_NS_PER_S;
    flood();
    flood();
    assert_int_equal(lines(read_all()), 1);
    assert_non_null(strstr(got, "disk is slow suppressed=95 n=1\n"));
    /* Silence: what is held back can be flushed, once. */
    oc_log_flush_suppressed();
    assert_string_equal(read_all(), "2026-01-31T12:00:00.123Z WARN disk is slow suppressed=1\n");
    oc_log_flush_suppressed();
    assert_string_equal(read_all(), "");
    /* After a long quiet the whole burst is back, and no more. */
    now.mono_ns += 3600 * OC_NS_PER_S;
    for (int i = 0; i < 100; i++) {
        flood();
    }
    assert_int_equal(lines(read_all()), OC_LOG_BURST);
    now.mono_ns += 3600 * OC_NS_PER_S;
    oc_log_flush_suppressed();
    (void)read_all();
}

static void test_full_pipe_is_counted(void **state) {
    uint64_t before = oc_log_lost();

    (void)state;
    for (int i = 0; i < 100000 && oc_log_lost() == before; i++) {
        oc_log(OC_LOG_INFO, "filling the pipe");
    }
    assert_int_equal(oc_log_lost(), before + 1);
    errno = 4711;
    oc_log(OC_LOG_INFO, "errno is kept");
    assert_int_equal(errno, 4711);
}

#define WRITERS 4
#define PER     200

static void *writer(void *arg) {
    for (int i = 0; i < PER; i++) {
        oc_log(OC_LOG_INFO, "one of many writers", OC_F_STR("who", arg),
               OC_F_U64("i", (uint64_t)i));
    }
    return NULL;
}

static void test_threads_do_not_mix(void **state) {
    pthread_t threads[WRITERS];
    char who[WRITERS][64];
    size_t seen = 0;

    (void)state;
    for (size_t i = 0; i < WRITERS; i++) {
        memset(who[i], 'a' + (int)i, 63);
        who[i][63] = 0;
    }
    for (int i = 0; i < WRITERS; i++) {
        /* One reader, nobody waits: the pipe takes 64 KiB, which is less than all. */
        assert_int_equal(pthread_create(&threads[i], NULL, writer, who[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    (void)read_all();
    for (char *line = got, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        const char *w = strstr(line, "who=");

        assert_true(w != NULL && w < end);
        assert_int_equal(strspn(w + 4, (char[]){w[4], 0}), 63);
        assert_int_equal(
            strncmp(line, "2026-01-31T12:00:00.123Z INFO one of many writers who=", 54), 0);
        seen++;
    }
    assert_true(seen > PER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_text, setup, teardown),
        cmocka_unit_test_setup_teardown(test_levels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_injection, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rate_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_pipe_is_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_threads_do_not_mix, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
