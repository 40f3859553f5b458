/* The generated help and the dump. */
#include <stdio.h>
#include <string.h>

#include "base/opt_int.h"

#define HELP_COLUMNS 80u
#define HELP_INDENT  6u

/* Append `text` in lines of at most HELP_COLUMNS, each indented. */
static int wrap(struct oc_buf *out, const char *text, unsigned indent) {
    unsigned column = 0;
    int r = OC_OK;

    while (*text != 0 && r == OC_OK) {
        unsigned n = (unsigned)strcspn(text, " ");

        if (column > 0 && column + 1 + n > HELP_COLUMNS) {
            r = oc_buf_printf(out, "\n");
            column = 0;
        }
        if (r == OC_OK && column == 0) {
            r = oc_buf_printf(out, "%*s%.*s", (int)indent, "", (int)n, text);
            column = indent + n;
        } else if (r == OC_OK) {
            r = oc_buf_printf(out, " %.*s", (int)n, text);
            column += 1 + n;
        }
        text += n;
        text += strspn(text, " ");
    }
    return r == OC_OK ? oc_buf_printf(out, "\n") : r;
}

static const char *placeholder(const struct oc_opt *opt) {
    static const char *const names[] = {
        [OC_OPT_BOOL] = "",          [OC_OPT_INT64] = " number",      [OC_OPT_UINT64] = " number",
        [OC_OPT_DOUBLE] = " number", [OC_OPT_DURATION] = " duration", [OC_OPT_SIZE] = " size",
        [OC_OPT_ENUM] = " word",     [OC_OPT_STRING] = " text",       [OC_OPT_LIST] = " list",
    };

    return names[opt->kind];
}

static int help_option(const struct oc_opts *o, const struct oc_opt *opt, struct oc_buf *out) {
    char flag[OC_OPT_FLAG_MAX];
    char env[OC_OPT_ENV_MAX];
    char expected[OC_OPT_EXPECT_MAX];
    char text[1536];
    char letter[8] = "";
    bool quote = opt->kind == OC_OPT_STRING || opt->kind == OC_OPT_LIST;
    int r;

    if (opt->letter != 0) {
        (void)snprintf(letter, sizeof letter, "-%c, ", opt->letter);
    }
    r = oc_buf_printf(out, "  %s%s%s\n", letter, oc_opt_flag_text(o, opt, flag), placeholder(opt));
    oc_opt_expected(opt, expected);
    (void)oc_opt_env_name(o, opt, env);
    (void)snprintf(text, sizeof text, "%s%s%s%s (default %s%s%s%s%s)", opt->help,
                   opt->kind == OC_OPT_ENUM ? "; " : "", opt->kind == OC_OPT_ENUM ? expected : "",
                   opt->ignored ? "; accepted and ignored" : "", quote ? "\"" : "", opt->initial,
                   quote ? "\"" : "", env[0] != 0 ? "; " : "", env);
    return r == OC_OK ? wrap(out, text, HELP_INDENT) : r;
}

int oc_opts_help(const struct oc_opts *o, const char *command, struct oc_buf *out) {
    const struct oc_opt_table *t = o->table;
    int r = oc_buf_printf(out, "Usage: %s %s\n", t->program, t->usage);

    if (r == OC_OK && t->about != NULL) {
        r = oc_buf_printf(out, "\n");
        r = r == OC_OK ? wrap(out, t->about, 0) : r;
    }
    if (r == OC_OK) {
        r = oc_buf_printf(out, "\nFlags:\n");
    }
    for (size_t i = 0; i < t->count && r == OC_OK; i++) {
        if (!t->opts[i].hidden && oc_opt_belongs(&t->opts[i], command)) {
            r = help_option(o, &t->opts[i], out);
        }
    }
    return r;
}

int oc_opts_dump(struct oc_opts *o, struct oc_buf *out) {
    int r = OC_OK;

    for (size_t i = 0; i < o->table->count && r == OC_OK; i++) {
        const struct oc_opt *opt = &o->table->opts[i];

        r = oc_buf_printf(out, "%s = ", opt->name);
        r = r == OC_OK ? oc_opts_format(o, opt, out) : r;
        r = r == OC_OK ? oc_buf_printf(out, " (%s)\n", oc_opts_origin(o, opt->name)) : r;
    }
    return r;
}
