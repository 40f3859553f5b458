/* base/opt.h: one table through all of its uses. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/opt.h"

#define TEST_OPTIONS(X)                                                                            \
    X(STRING, disk, "disk", "/var/cache", "data directory", .letter = 'd')                         \
    X(INT64, ttl_s, "ttl", "0", "default time to live, in seconds", .max = 1000)                   \
    X(UINT64, seed, "seed", "0", "seed of the random numbers")                                     \
    X(DOUBLE, fraction, "fragmentation-threshold", "0.5", "dead fraction", .dmax = 1)              \
    X(DURATION, drain_ns, "drain-timeout", "30s", "how long to wait for calls in progress",        \
      .commands = "serve bench")                                                                   \
    X(DURATION, skew_ns, "skew", "0", "may be negative", .min = -1000000000, .max = 1000000000)    \
    X(SIZE, cap_bytes, "max-disk-usage", "0", "cap on what the store takes")                       \
    X(SIZE, segment_bytes, "segment-size", "64mb", "bytes per segment", .min = 1 << 20)            \
    X(ENUM, sync, "sync", "none", "when to sync", .words = "none|interval|always")                 \
    X(LIST, seeds, "seeds", "", "peers to join")                                                   \
    X(BOOL, verbose, "v", "false", "log more")                                                     \
    X(BOOL, fast, "fast", "true", "a switch with a letter", .letter = 'f')                         \
    X(INT64, old, "compaction-threads", "1", "of an older engine", .ignored = true)                \
    X(STRING, node_id, "node-id", "", "name of this node", .commands = "serve")

struct test_options {
    TEST_OPTIONS(OC_OPT_FIELD)
};
#define ROW(...) OC_OPT_ROW(struct test_options, __VA_ARGS__)
static const struct oc_opt rows[] = {TEST_OPTIONS(ROW)};

static const struct oc_opt_table go_style = {
    .program = "tester",
    .usage = "[flags]",
    .about = "A program that exists to have its options tested, with a paragraph long enough to "
             "need wrapping.",
    .env_prefix = "OCACHE_",
    .opts = rows,
    .count = OC_ARRAY_LEN(rows),
};

static struct oc_opts opts;
static struct test_options values;
static struct oc_error error;

#define LOAD(table, env, ...)                                                                      \
    load((table), (env), (const char *const[]){"tester", ##__VA_ARGS__, NULL})

static int load(const struct oc_opt_table *table, const char *const *env, const char *const *argv) {
    int argc = 0;

    while (argv[argc] != NULL) {
        argc++;
    }
    oc_opts_done(&opts);
    memset(&values, 0, sizeof values);
    error = (struct oc_error){0};
    return oc_opts_load(&opts, table, &values, argc, (char *const *)(uintptr_t)argv,
                        (char *const *)(uintptr_t)env, &error);
}

static int teardown(void **state) {
    (void)state;
    oc_opts_done(&opts);
    return 0;
}

static void assert_says(const char *part) {
    if (strstr(error.msg, part) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", error.msg, part);
    }
}

static void test_defaults(void **state) {
    (void)state;
    assert_int_equal(LOAD(&go_style, NULL), 0);
    assert_string_equal(values.disk, "/var/cache");
    assert_int_equal(values.ttl_s, 0);
    assert_true(values.fraction == 0.5);
    assert_int_equal(values.drain_ns, 30000000000);
    assert_int_equal(values.segment_bytes, 64 << 20);
    assert_int_equal(values.sync, 0);
    assert_int_equal(values.seeds.count, 0);
    assert_false(values.verbose);
    assert_true(values.fast);
    assert_string_equal(values.node_id, "");
    assert_string_equal(oc_opts_origin(&opts, "disk"), "default");
    assert_false(oc_opts_is_set(&opts, "disk"));
    assert_int_equal(opts.arg_count, 0);
    assert_null(opts.args[0]);
}

static void test_go_syntax(void **state) {
    (void)state;
    assert_int_equal(LOAD(&go_style, NULL, "-disk", "/a", "--ttl=7", "-max-disk-usage=30gb",
                          "--sync", "always", "-v", "-fast=F", "-seeds", " a:1, b:2,,c:3 ", "-skew",
                          "-500ms"),
                     0);
    assert_string_equal(values.disk, "/a");
    assert_int_equal(values.ttl_s, 7);
    assert_true(values.cap_bytes == 30ull << 30);
    assert_int_equal(values.sync, 2);
    assert_true(values.verbose);
    assert_false(values.fast);
    assert_int_equal(values.seeds.count, 3);
    assert_string_equal(values.seeds.items[0], "a:1");
    assert_string_equal(values.seeds.items[1], "b:2");
    assert_string_equal(values.seeds.items[2], "c:3");
    assert_null(values.seeds.items[3]);
    assert_int_equal(values.skew_ns, -500000000);
    assert_string_equal(oc_opts_origin(&opts, "ttl"), "flag -ttl");
    /* An empty value is a value; a boolean does not eat the next argument; the last one wins. */
    assert_int_equal(LOAD(&go_style, NULL, "-disk=", "-ttl=1", "-ttl=2", "-v", "false", "-ttl=3"),
                     0);
    assert_string_equal(values.disk, "");
    assert_int_equal(values.ttl_s, 2);
    assert_true(values.verbose);
    assert_int_equal(opts.arg_count, 2);
    assert_string_equal(opts.args[0], "false");
    assert_string_equal(opts.args[1], "-ttl=3");
    /* A value may look like a flag, a single dash is positional, `--` ends the flags. */
    assert_int_equal(LOAD(&go_style, NULL, "-disk", "-v", "--", "-v", "-"), 0);
    assert_string_equal(values.disk, "-v");
    assert_false(values.verbose);
    assert_int_equal(opts.arg_count, 2);
    assert_string_equal(opts.args[0], "-v");
    assert_string_equal(opts.args[1], "-");
}

static void test_environment(void **state) {
    static const char *const env[] = {"OCACHE_TTL=5",  "OCACHE_NODE_ID=n1",
                                      "HOME=/root",    "OCACHE_PORT=tcp://10.0.0.1:9000",
                                      "OCACHE_V=true", NULL};
    static const char *const bad[] = {"OCACHE_SYNC=sometimes", NULL};

    (void)state;
    assert_int_equal(LOAD(&go_style, env, "-ttl", "9"), 0);
    assert_int_equal(values.ttl_s, 9);
    assert_string_equal(values.node_id, "n1");
    assert_true(values.verbose);
    assert_string_equal(oc_opts_origin(&opts, "ttl"), "flag -ttl");
    assert_string_equal(oc_opts_origin(&opts, "node-id"), "environment OCACHE_NODE_ID");
    assert_true(oc_opts_is_set(&opts, "node-id"));
    assert_int_equal(LOAD(&go_style, bad), OC_E_INVALID);
    assert_says("sometimes");
    assert_says("environment OCACHE_SYNC");
    assert_says("none interval always");
    assert_int_equal(LOAD(&go_style, bad, "-sync=none"), 0);
}

static void test_bad_values(void **state) {
    static const struct {
        const char *arg;
        const char *says[3];
    } cases[] = {
        {"-ttl=abc", {"\"abc\"", "flag -ttl", "a whole number, from 0 to 1000"}},
        {"-ttl=1001", {"\"1001\"", "out of range", "from 0 to 1000"}},
        {"-ttl=-1", {"\"-1\"", "out of range", "from 0 to 1000"}},
        {"-ttl=", {"\"\"", "flag -ttl", "a whole number"}},
        {"-seed=-1", {"\"-1\"", "flag -seed", "not negative"}},
        {"-fragmentation-threshold=1.5", {"\"1.5\"", "out of range", "from 0 to 1"}},
        {"-drain-timeout=-1s", {"\"-1s\"", "out of range", "duration"}},
        {"-drain-timeout=30", {"\"30\"", "flag -drain-timeout", "duration"}},
        {"-skew=2s", {"\"2s\"", "out of range", "from -1s to 1s"}},
        {"-segment-size=1kb", {"\"1kb\"", "out of range", "at least 1MiB"}},
        {"-segment-size=big", {"\"big\"", "flag -segment-size", "size"}},
        {"-sync=ALWAYS", {"\"ALWAYS\"", "flag -sync", "none interval always"}},
        {"-sync=none|interval", {"none|interval", "flag -sync", "one of"}},
        {"-v=maybe", {"\"maybe\"", "flag -v", "true or false"}},
        {"-ttl", {"flag -ttl", "needs a value", "a whole number"}},
        {"-dsik=x", {"unknown flag -dsik", "did you mean -disk?", "-help"}},
        {"-listen-http", {"unknown flag -listen-http", "-help lists all", ""}},
        {"-=x", {"bad flag syntax", "-=x", ""}},
        {"---v", {"bad flag syntax", "---v", ""}},
        {"-ttl=\x1b[31m", {"\"?[31m\"", "flag -ttl", ""}},
    };

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        assert_int_equal(LOAD(&go_style, NULL, cases[i].arg), OC_E_INVALID);
        assert_int_equal(error.code, OC_E_INVALID);
        for (size_t k = 0; k < 3; k++) {
            assert_says(cases[i].says[k]);
        }
    }
    assert_int_equal(LOAD(&go_style, NULL, "-listen-http"), OC_E_INVALID);
    assert_null(strstr(error.msg, "did you mean"));
}

static void test_interspersed(void **state) {
    struct oc_opt_table t = go_style;

    (void)state;
    t.interspersed = true;
    assert_int_equal(LOAD(&t, NULL, "put", "--ttl", "5", "key", "-vf=false", "--", "--value"), 0);
    assert_int_equal(values.ttl_s, 5);
    assert_int_equal(opts.arg_count, 3);
    assert_string_equal(opts.args[0], "put");
    assert_string_equal(opts.args[1], "key");
    assert_string_equal(opts.args[2], "--value");
    assert_string_equal(oc_opts_origin(&opts, "ttl"), "flag --ttl");
    assert_int_equal(LOAD(&t, NULL, "-d/x", "a", "-d", "/y"), 0);
    assert_string_equal(values.disk, "/y");
    assert_int_equal(LOAD(&t, NULL, "-fd=/z"), 0);
    assert_string_equal(values.disk, "/z");
    assert_int_equal(LOAD(&t, NULL, "-fx"), OC_E_INVALID);
    assert_int_equal(LOAD(&t, NULL, "--bogus"), OC_E_INVALID);
    assert_says("unknown flag --bogus");
}

static void test_commands(void **state) {
    struct oc_opt_table t = go_style;

    (void)state;
    t.interspersed = true;
    assert_int_equal(LOAD(&t, NULL, "bench", "--drain-timeout=1s", "--ttl=1"), 0);
    assert_int_equal(oc_opts_check_command(&opts, "bench", &error), 0);
    assert_int_equal(oc_opts_check_command(&opts, "ben", &error), OC_E_INVALID);
    assert_says("--drain-timeout does not belong to 'ben'");
    assert_says("serve bench");
}

static void test_help(void **state) {
    struct oc_buf out;
    const char *text;
    size_t column = 0;

    (void)state;
    assert_int_equal(LOAD(&go_style, NULL, "-ttl=1", "-help"), OC_OPT_HELP);
    assert_int_equal(LOAD(&go_style, NULL, "--help"), OC_OPT_HELP);
    assert_int_equal(LOAD(&go_style, NULL, "-h"), OC_OPT_HELP);
    oc_buf_init(&out, 1 << 16);
    assert_int_equal(oc_opts_help(&opts, NULL, &out), 0);
    assert_int_equal(oc_buf_append(&out, "", 1), 0);
    text = (const char *)out.data;
    assert_non_null(strstr(text, "Usage: tester [flags]\n"));
    assert_non_null(strstr(text, "  -d, -disk text\n      data directory (default \"/var/cache\"; "
                                 "OCACHE_DISK)\n"));
    assert_non_null(strstr(text, "one of none interval always (default none; OCACHE_SYNC)"));
    assert_non_null(strstr(text, "accepted and ignored"));
    for (size_t i = 0; text[i] != 0; i++) {
        column = text[i] == '\n' ? 0 : column + 1;
        assert_true(column <= 80);
    }
    out.len = 0;
    assert_int_equal(oc_opts_help(&opts, "bench", &out), 0);
    assert_int_equal(oc_buf_append(&out, "", 1), 0);
    text = (const char *)out.data;
    assert_non_null(strstr(text, "-drain-timeout"));
    assert_null(strstr(text, "-node-id"));
    oc_buf_done(&out);
}

static void test_dump(void **state) {
    static const char *const env[] = {"OCACHE_SEEDS=a, b", NULL};
    struct oc_buf out;

    (void)state;
    assert_int_equal(
        LOAD(&go_style, env, "-max-disk-usage=1536", "-drain-timeout=90s", "-sync=always"), 0);
    oc_buf_init(&out, 1 << 16);
    assert_int_equal(oc_opts_dump(&opts, &out), 0);
    assert_int_equal(oc_buf_append(&out, "", 1), 0);
    assert_string_equal((const char *)out.data, "disk = /var/cache (default)\n"
                                                "ttl = 0 (default)\n"
                                                "seed = 0 (default)\n"
                                                "fragmentation-threshold = 0.5 (default)\n"
                                                "drain-timeout = 1m30s (flag -drain-timeout)\n"
                                                "skew = 0s (default)\n"
                                                "max-disk-usage = 1536 (flag -max-disk-usage)\n"
                                                "segment-size = 64MiB (default)\n"
                                                "sync = always (flag -sync)\n"
                                                "seeds = a,b (environment OCACHE_SEEDS)\n"
                                                "v = false (default)\n"
                                                "fast = true (default)\n"
                                                "compaction-threads = 1 (default)\n"
                                                "node-id =  (default)\n");
    oc_buf_done(&out);
}

static void test_ignored(void **state) {
    size_t at = 0;

    (void)state;
    assert_int_equal(LOAD(&go_style, NULL, "-compaction-threads=4", "-ttl=1"), 0);
    assert_string_equal(oc_opts_next_ignored(&opts, &at)->name, "compaction-threads");
    assert_null(oc_opts_next_ignored(&opts, &at));
    assert_int_equal(LOAD(&go_style, NULL, "-ttl=1"), 0);
    at = 0;
    assert_null(oc_opts_next_ignored(&opts, &at));
}

/* The dump of every kind loads again to the same dump. */
static void test_dump_is_loadable(void **state) {
    struct oc_buf one;
    struct oc_buf two;
    char args[OC_ARRAY_LEN(rows)][128];
    const char *argv[OC_ARRAY_LEN(rows) + 2] = {"tester"};
    size_t n = 0;

    (void)state;
    oc_buf_init(&one, 1 << 16);
    oc_buf_init(&two, 1 << 16);
    assert_int_equal(LOAD(&go_style, NULL, "-skew=-1ms", "-seeds=x,y", "-seed=18446744073709551615",
                          "-fragmentation-threshold=0.1", "-v"),
                     0);
    for (size_t i = 0; i < OC_ARRAY_LEN(rows); i++) {
        one.len = 0;
        assert_int_equal(oc_opts_format(&opts, &rows[i], &one), 0);
        n = (size_t)snprintf(args[i], sizeof args[i], "-%s=%.*s", rows[i].name, (int)one.len,
                             one.len == 0 ? "" : (const char *)one.data);
        assert_true(n < sizeof args[i]);
        argv[i + 1] = args[i];
    }
    struct test_options before = values;
    assert_int_equal(load(&go_style, NULL, argv), 0);
    assert_int_equal(values.skew_ns, before.skew_ns);
    assert_true(values.seed == UINT64_MAX);
    assert_true(values.fraction == before.fraction);
    assert_int_equal(values.seeds.count, 2);
    assert_true(values.verbose);
    for (size_t i = 0; i < OC_ARRAY_LEN(rows); i++) {
        two.len = 0;
        assert_int_equal(oc_opts_format(&opts, &rows[i], &two), 0);
        assert_memory_equal(two.len == 0 ? "" : (const char *)two.data, strchr(args[i], '=') + 1,
                            two.len);
    }
    oc_buf_done(&one);
    oc_buf_done(&two);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_defaults, teardown),
        cmocka_unit_test_teardown(test_go_syntax, teardown),
        cmocka_unit_test_teardown(test_environment, teardown),
        cmocka_unit_test_teardown(test_bad_values, teardown),
        cmocka_unit_test_teardown(test_interspersed, teardown),
        cmocka_unit_test_teardown(test_commands, teardown),
        cmocka_unit_test_teardown(test_help, teardown),
        cmocka_unit_test_teardown(test_dump, teardown),
        cmocka_unit_test_teardown(test_ignored, teardown),
        cmocka_unit_test_teardown(test_dump_is_loadable, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
