/* The options table: any argument vector and environment is loaded or refused with a message, and
 * what was loaded can be dumped. Input: one byte of flags, then arguments separated by zero bytes;
 * those behind an empty argument are the environment. */
#include <string.h>

#include "base/check.h"
#include "base/opt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_OPTIONS(X)                                                                            \
    X(BOOL, flag, "flag", "false", "a switch", .letter = 'f')                                      \
    X(INT64, i64, "i64", "0", "a number", .min = -100, .max = 100)                                 \
    X(UINT64, u64, "u64", "0", "a number")                                                         \
    X(DOUBLE, real, "real", "0.5", "a fraction", .dmax = 1)                                        \
    X(DURATION, duration, "duration", "1s", "a time", .commands = "one two")                       \
    X(SIZE, size, "max-size", "1mb", "bytes", .min = 1, .max = 1 << 30)                            \
    X(ENUM, word, "word", "none", "a word", .words = "none|some|all")                              \
    X(STRING, text, "text", "x", "a text", .letter = 't')                                          \
    X(LIST, list, "list", "a,b", "a list", .letter = 'l')

struct fuzz_options {
    FUZZ_OPTIONS(OC_OPT_FIELD)
};
#define ROW(...) OC_OPT_ROW(struct fuzz_options, __VA_ARGS__)
static const struct oc_opt rows[] = {FUZZ_OPTIONS(ROW)};

#define ARGS_MAX 64

static void check_values(const struct fuzz_options *v) {
    OC_CHECK(v->i64 >= -100 && v->i64 <= 100);
    OC_CHECK(v->real >= 0 && v->real <= 1);
    OC_CHECK(v->duration >= 0);
    OC_CHECK(v->size >= 1 && v->size <= 1 << 30);
    OC_CHECK(v->word >= 0 && v->word <= 2);
    OC_CHECK(v->text != NULL);
    for (size_t i = 0; i < v->list.count; i++) {
        OC_CHECK(v->list.items[i][0] != 0 && strchr(v->list.items[i], ',') == NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char text[4096];
    char *argv[ARGS_MAX + 1] = {text + sizeof text - 1};
    char *envp[ARGS_MAX + 1] = {NULL};
    int argc = 1;
    size_t envc = 0;
    bool in_env = false;
    struct oc_opt_table table = {.program = "p",
                                 .usage = "[flags]",
                                 .env_prefix = "P_",
                                 .opts = rows,
                                 .count = OC_ARRAY_LEN(rows)};
    struct fuzz_options values = {0};
    struct oc_opts opts;
    struct oc_error err = {0};
    struct oc_buf out;

    if (size == 0 || size >= sizeof text) {
        return 0;
    }
    table.interspersed = (data[0] & 1) != 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    text[sizeof text - 1] = 0;
    for (char *p = text; p < text + size && argc < ARGS_MAX && envc < ARGS_MAX;
         p += strlen(p) + 1) {
        if (*p == 0 && !in_env) {
            in_env = true;
        } else if (in_env) {
            envp[envc++] = p;
        } else {
            argv[argc++] = p;
        }
    }
    oc_buf_init(&out, 1 << 20);
    int r = oc_opts_load(&opts, &table, &values, argc, argv, envp, &err);
    OC_CHECK(r == OC_OK || r == OC_OPT_HELP || (r == OC_E_INVALID && err.msg[0] != 0));
    check_values(&values);
    if (r == OC_OK) {
        OC_CHECK(oc_opts_dump(&opts, &out) == OC_OK);
        OC_CHECK(opts.arg_count < (size_t)argc && opts.args[opts.arg_count] == NULL);
        (void)oc_opts_check_command(&opts, "one", &err); /* either answer is right */
    } else if (r == OC_OPT_HELP) {
        OC_CHECK(oc_opts_help(&opts, "two", &out) == OC_OK);
    }
    oc_opts_done(&opts);
    oc_buf_done(&out);
    return 0;
}
