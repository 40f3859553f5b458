/* Loading: defaults, environment, flags; positional arguments; suggestions for slips. */
#include "base/opt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/opt_int.h"

#define OPT_ARENA_BYTES (1u << 20)

static const char *dashes(const struct oc_opts *o) {
    return o->table->interspersed ? "--" : "-";
}

char *oc_opt_flag_text(const struct oc_opts *o, const struct oc_opt *opt,
                       char dst[OC_OPT_FLAG_MAX]) {
    (void)snprintf(dst, OC_OPT_FLAG_MAX, "%s%s", dashes(o), opt->name);
    return dst;
}

char *oc_opt_env_name(const struct oc_opts *o, const struct oc_opt *opt, char dst[OC_OPT_ENV_MAX]) {
    const char *prefix = o->table->env_prefix;
    int n;

    dst[0] = 0;
    if (prefix == NULL) {
        return dst;
    }
    n = snprintf(dst, OC_OPT_ENV_MAX, "%s%s", prefix, opt->name);
    OC_CHECK(n > 0 && n < OC_OPT_ENV_MAX); /* a fault of the table */
    for (char *p = dst + strlen(prefix); *p != 0; p++) {
        if (*p >= 'a' && *p <= 'z') {
            *p = (char)(*p - 32);
        } else if (*p == '-') {
            *p = '_';
        }
    }
    return dst;
}

static const struct oc_opt *find_name(const struct oc_opts *o, struct oc_span name) {
    for (size_t i = 0; i < o->table->count; i++) {
        if (oc_span_equal(oc_span_str(o->table->opts[i].name), name)) {
            return &o->table->opts[i];
        }
    }
    return NULL;
}

/* By alias, or by a name that is one letter. `letter` is not 0. */
static const struct oc_opt *find_letter(const struct oc_opts *o, char letter) {
    for (size_t i = 0; i < o->table->count; i++) {
        const struct oc_opt *opt = &o->table->opts[i];

        if (opt->letter == letter || (opt->name[0] == letter && opt->name[1] == 0)) {
            return opt;
        }
    }
    return NULL;
}

static size_t index_of(const struct oc_opts *o, const struct oc_opt *opt) {
    return (size_t)(opt - o->table->opts);
}

/* ---- suggestions: edit distance with swaps of neighbours ---- */
#define NEAR_MAX 48

static size_t min3(size_t a, size_t b, size_t c) {
    size_t m = a < b ? a : b;

    return m < c ? m : c;
}

static size_t edit_distance(const char *a, const char *b) {
    size_t rows[3][NEAR_MAX + 1];
    size_t la = strlen(a);
    size_t lb = strlen(b);

    if (la > NEAR_MAX || lb > NEAR_MAX) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= lb; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= la; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3];
        const size_t *above2 = rows[(i + 1) % 3];

        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            row[j] =
                min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                above2[j - 2] + 1 < row[j]) {
                row[j] = above2[j - 2] + 1;
            }
        }
    }
    return rows[la % 3][lb];
}

const char *oc_opts_nearest(const char *word, const char *(*name_at)(void *arg, size_t i),
                            void *arg, size_t count) {
    const char *best = NULL;
    size_t best_distance = strlen(word) / 3 + 1;

    for (size_t i = 0; i < count; i++) {
        const char *name = name_at(arg, i);
        size_t d = edit_distance(word, name);

        /* A word of which nothing would be left is no slip. */
        if (d < strlen(word) && (d < best_distance || (d == best_distance && best == NULL))) {
            best = name;
            best_distance = d;
        }
    }
    return best;
}

static const char *table_name_at(void *arg, size_t i) {
    const struct oc_opt_table *t = arg;

    return t->opts[i].hidden ? "" : t->opts[i].name;
}

static int unknown_flag(const struct oc_opts *o, struct oc_span name, struct oc_error *err) {
    char word[64];
    int n = name.len < sizeof word ? (int)name.len : (int)sizeof word - 1;
    const char *near;

    (void)snprintf(word, sizeof word, "%.*s", n, (const char *)name.p);
    near = oc_opts_nearest(word, table_name_at, (void *)(uintptr_t)o->table, o->table->count);
    if (near != NULL) {
        return oc_error_set(err, OC_E_INVALID,
                            "unknown flag %s%s; did you mean %s%s? (%shelp lists all)", dashes(o),
                            word, dashes(o), near, dashes(o));
    }
    return oc_error_set(err, OC_E_INVALID, "unknown flag %s%s (%shelp lists all)", dashes(o), word,
                        dashes(o));
}

/* ---- flags ---- */
struct cursor {
    int argc;
    char *const *argv;
    int at;
};

static int set_flag(struct oc_opts *o, const struct oc_opt *opt, struct oc_span value,
                    struct oc_error *err) {
    char flag[OC_OPT_FLAG_MAX];
    char origin[OC_OPT_FLAG_MAX + 8];
    int r;

    (void)snprintf(origin, sizeof origin, "flag %s", oc_opt_flag_text(o, opt, flag));
    r = oc_opt_set(o, opt, value, origin, err);
    if (r == OC_OK) {
        o->sources[index_of(o, opt)] = OC_OPT_FROM_FLAG;
    }
    return r;
}

/* The flag's value: behind `=` (has_value), `true` for a boolean, else the next argument. */
static int take_value(struct oc_opts *o, const struct oc_opt *opt, struct cursor *c, bool has_value,
                      struct oc_span value, struct oc_error *err) {
    if (!has_value && opt->kind == OC_OPT_BOOL) {
        value = OC_SPAN_LIT("true");
    } else if (!has_value) {
        if (c->at >= c->argc) {
            char flag[OC_OPT_FLAG_MAX];
            char expected[OC_OPT_EXPECT_MAX];

            oc_opt_expected(opt, expected);
            return oc_error_set(err, OC_E_INVALID, "flag %s needs a value: %s",
                                oc_opt_flag_text(o, opt, flag), expected);
        }
        value = oc_span_str(c->argv[c->at++]);
    }
    return set_flag(o, opt, value, err);
}

static bool is_help(const struct oc_opts *o, struct oc_span name) {
    return (oc_span_equal(name, OC_SPAN_LIT("help")) && find_name(o, name) == NULL) ||
           (oc_span_equal(name, OC_SPAN_LIT("h")) && find_name(o, name) == NULL &&
            find_letter(o, 'h') == NULL);
}

/* -abc, -xVALUE, -x VALUE, -x=VALUE. `letters` starts behind the dash. */
static int take_letters(struct oc_opts *o, const char *letters, struct cursor *c,
                        struct oc_error *err) {
    for (const char *p = letters; *p != 0; p++) {
        const struct oc_opt *opt = find_letter(o, *p);
        int r;

        if (opt == NULL && *p == 'h') {
            return OC_OPT_HELP;
        }
        if (opt == NULL) {
            return unknown_flag(o, oc_span_str(letters), err);
        }
        if (opt->kind == OC_OPT_BOOL && p[1] != '=') {
            r = set_flag(o, opt, OC_SPAN_LIT("true"), err);
            if (r < 0) {
                return r;
            }
            continue;
        }
        bool has_value = p[1] != 0;
        return take_value(o, opt, c, has_value, oc_span_str(p + 1 + (p[1] == '=')), err);
    }
    return OC_OK;
}

/* One argument that starts with a dash and is neither `-` nor `--`. */
static int take_flag(struct oc_opts *o, const char *arg, struct cursor *c, struct oc_error *err) {
    bool two = arg[1] == '-';
    const char *name = arg + 1 + two;
    const char *equals = strchr(name, '=');
    struct oc_span key = oc_span(name, equals == NULL ? strlen(name) : (size_t)(equals - name));
    const struct oc_opt *opt = find_name(o, key);

    if (key.len == 0 || name[0] == '-') {
        return oc_error_set(err, OC_E_INVALID, "bad flag syntax: %.80s", arg);
    }
    if (is_help(o, key)) {
        return OC_OPT_HELP;
    }
    if (opt == NULL && key.len == 1) {
        opt = find_letter(o, name[0]);
    }
    if (opt == NULL && o->table->interspersed && !two && find_letter(o, name[0]) != NULL) {
        return take_letters(o, name, c, err);
    }
    if (opt == NULL) {
        return unknown_flag(o, key, err);
    }
    return take_value(o, opt, c, equals != NULL,
                      equals == NULL ? OC_SPAN_EMPTY : oc_span_str(equals + 1), err);
}

static int load_flags(struct oc_opts *o, int argc, char *const *argv, struct oc_error *err) {
    struct cursor c = {argc, argv, 1};
    bool flags = true;

    while (c.at < argc) {
        const char *arg = argv[c.at++];

        if (!flags || arg[0] != '-' || arg[1] == 0) {
            o->args[o->arg_count++] = arg;
            flags = flags && o->table->interspersed;
        } else if (strcmp(arg, "--") == 0) {
            flags = false;
        } else {
            int r = take_flag(o, arg, &c, err);

            if (r != OC_OK) {
                return r;
            }
        }
    }
    return OC_OK;
}

/* ---- environment and defaults ---- */
static const char *env_find(char *const *envp, const char *name) {
    size_t len = strlen(name);

    for (; envp != NULL && *envp != NULL && len > 0; envp++) {
        if (strncmp(*envp, name, len) == 0 && (*envp)[len] == '=') {
            return *envp + len + 1;
        }
    }
    return NULL;
}

static int load_env(struct oc_opts *o, char *const *envp, struct oc_error *err) {
    for (size_t i = 0; i < o->table->count; i++) {
        const struct oc_opt *opt = &o->table->opts[i];
        char name[OC_OPT_ENV_MAX];
        char origin[OC_OPT_ENV_MAX + 16];
        const char *value = env_find(envp, oc_opt_env_name(o, opt, name));
        int r;

        if (value == NULL || o->sources[i] == OC_OPT_FROM_FLAG) {
            continue;
        }
        (void)snprintf(origin, sizeof origin, "environment %s", name);
        r = oc_opt_set(o, opt, oc_span_str(value), origin, err);
        if (r < 0) {
            return r;
        }
        o->sources[i] = OC_OPT_FROM_ENV;
    }
    return OC_OK;
}

static void load_defaults(struct oc_opts *o) {
    for (size_t i = 0; i < o->table->count; i++) {
        const struct oc_opt *opt = &o->table->opts[i];
        struct oc_error err;
        int r = oc_opt_set(o, opt, oc_span_str(opt->initial), opt->name, &err);

        if (r < 0) {
            fprintf(stderr, "options table: %s: %s\n", opt->name, err.msg);
        }
        OC_CHECK(r == OC_OK);
    }
}

int oc_opts_load(struct oc_opts *o, const struct oc_opt_table *table, void *values, int argc,
                 char *const *argv, char *const *envp, struct oc_error *err) {
    size_t args = argc > 0 ? (size_t)argc : 0;
    int r;

    *o = (struct oc_opts){.table = table, .values = values};
    oc_arena_init(&o->arena, OPT_ARENA_BYTES);
    o->sources = calloc(table->count + 1, sizeof *o->sources);
    o->args = calloc(args + 1, sizeof *o->args);
    if (o->sources == NULL || o->args == NULL) {
        return oc_error_set(err, OC_E_INVALID, "out of memory");
    }
    load_defaults(o);
    /* Flags first, so that a variable they override is not even looked at. */
    r = load_flags(o, argc, argv, err);
    return r == OC_OK ? load_env(o, envp, err) : r;
}

void oc_opts_done(struct oc_opts *o) {
    oc_arena_done(&o->arena);
    free(o->sources);
    free(o->args);
    *o = (struct oc_opts){0};
}

/* Whether the blank-separated list has the word. */
static bool has_word(const char *list, const char *word) {
    size_t len = strlen(word);

    while (*list != 0) {
        size_t n = strcspn(list, " ");

        if (n == len && strncmp(list, word, n) == 0) {
            return true;
        }
        list += n;
        list += strspn(list, " ");
    }
    return false;
}

bool oc_opt_belongs(const struct oc_opt *opt, const char *command) {
    return command == NULL || opt->commands == NULL || has_word(opt->commands, command);
}

int oc_opts_check_command(const struct oc_opts *o, const char *command, struct oc_error *err) {
    for (size_t i = 0; i < o->table->count; i++) {
        const struct oc_opt *opt = &o->table->opts[i];
        char flag[OC_OPT_FLAG_MAX];

        if (o->sources[i] == OC_OPT_FROM_FLAG && !oc_opt_belongs(opt, command)) {
            return oc_error_set(err, OC_E_INVALID,
                                "flag %s does not belong to '%s' (it is for: %s)",
                                oc_opt_flag_text(o, opt, flag), command, opt->commands);
        }
    }
    return OC_OK;
}

const char *oc_opts_origin(struct oc_opts *o, const char *name) {
    const struct oc_opt *opt = find_name(o, oc_span_str(name));
    char part[OC_OPT_ENV_MAX];
    char text[OC_OPT_ENV_MAX + 16];
    int n;

    OC_CHECK(opt != NULL);
    switch (o->sources[index_of(o, opt)]) {
    case OC_OPT_FROM_FLAG:
        n = snprintf(text, sizeof text, "flag %s", oc_opt_flag_text(o, opt, part));
        break;
    case OC_OPT_FROM_ENV:
        n = snprintf(text, sizeof text, "environment %s", oc_opt_env_name(o, opt, part));
        break;
    default:
        return "default";
    }
    struct oc_span copy = oc_arena_copy(&o->arena, oc_span(text, (size_t)n));
    return copy.p == NULL ? "set" : (const char *)copy.p;
}

bool oc_opts_is_set(const struct oc_opts *o, const char *name) {
    const struct oc_opt *opt = find_name(o, oc_span_str(name));

    OC_CHECK(opt != NULL);
    return o->sources[index_of(o, opt)] != OC_OPT_FROM_DEFAULT;
}

const struct oc_opt *oc_opts_next_ignored(const struct oc_opts *o, size_t *at) {
    while (*at < o->table->count) {
        size_t i = (*at)++;

        if (o->table->opts[i].ignored && o->sources[i] != OC_OPT_FROM_DEFAULT) {
            return &o->table->opts[i];
        }
    }
    return NULL;
}
