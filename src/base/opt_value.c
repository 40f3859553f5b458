/* One value: parsed with its bounds, described, written back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/opt_int.h"
#include "base/parse.h"

struct oc_span oc_opt_word(const char *words, int n) {
    const char *p = words;

    for (; n > 0 && p != NULL; n--) {
        p = strchr(p, '|');
        p = p == NULL ? NULL : p + 1;
    }
    return p == NULL ? OC_SPAN_EMPTY : oc_span(p, strcspn(p, "|"));
}

static const char *kind_noun(enum oc_opt_kind kind) {
    static const char *const nouns[] = {
        [OC_OPT_BOOL] = "true or false",
        [OC_OPT_INT64] = "a whole number",
        [OC_OPT_UINT64] = "a whole number that is not negative",
        [OC_OPT_DOUBLE] = "a number",
        [OC_OPT_DURATION] = "a duration such as 500ms, 30s or 1h30m",
        [OC_OPT_SIZE] = "a size such as 65536, 64KiB or 30gb",
        [OC_OPT_ENUM] = "one of ",
        [OC_OPT_STRING] = "text",
        [OC_OPT_LIST] = "a list separated by commas",
    };

    return nouns[kind];
}

static bool bounded(const struct oc_opt *opt) {
    return opt->min != 0 || opt->max != 0;
}

static bool has_upper(const struct oc_opt *opt) {
    return opt->max != 0 || opt->min < 0;
}

/* A bound as text of the option's kind. */
static void bound_text(const struct oc_opt *opt, int64_t bound, char dst[OC_PARSE_TEXT_MAX]) {
    if (opt->kind == OC_OPT_DURATION) {
        (void)oc_format_duration(dst, bound);
    } else if (opt->kind == OC_OPT_SIZE) {
        (void)oc_format_size(dst, (uint64_t)bound);
    } else {
        (void)snprintf(dst, OC_PARSE_TEXT_MAX, "%lld", (long long)bound);
    }
}

void oc_opt_expected(const struct oc_opt *opt, char dst[OC_OPT_EXPECT_MAX]) {
    char low[OC_PARSE_TEXT_MAX];
    char high[OC_PARSE_TEXT_MAX];
    const char *noun = kind_noun(opt->kind);

    bound_text(opt, opt->min, low);
    bound_text(opt, opt->max, high);
    if (opt->kind == OC_OPT_ENUM) {
        size_t n = (size_t)snprintf(dst, OC_OPT_EXPECT_MAX, "%s%s", noun, opt->words);

        for (size_t i = 0; i < n && i < OC_OPT_EXPECT_MAX; i++) {
            dst[i] = dst[i] == '|' ? ' ' : dst[i];
        }
    } else if (opt->kind == OC_OPT_DOUBLE && (opt->dmin != 0 || opt->dmax != 0)) {
        (void)snprintf(dst, OC_OPT_EXPECT_MAX, "%s from %g to %g", noun, opt->dmin, opt->dmax);
    } else if (bounded(opt) && has_upper(opt) && opt->max != INT64_MAX) {
        (void)snprintf(dst, OC_OPT_EXPECT_MAX, "%s, from %s to %s", noun, low, high);
    } else if (bounded(opt)) {
        (void)snprintf(dst, OC_OPT_EXPECT_MAX, "%s, at least %s", noun, low);
    } else {
        (void)snprintf(dst, OC_OPT_EXPECT_MAX, "%s", noun);
    }
}

static int in_bounds_signed(const struct oc_opt *opt, int64_t v) {
    if (opt->kind == OC_OPT_DURATION && !bounded(opt)) {
        return v >= 0 ? OC_OK : OC_E_RANGE;
    }
    if (bounded(opt) && (v < opt->min || (has_upper(opt) && v > opt->max))) {
        return OC_E_RANGE;
    }
    return OC_OK;
}

static int in_bounds_unsigned(const struct oc_opt *opt, uint64_t v) {
    if (bounded(opt) &&
        ((opt->min > 0 && v < (uint64_t)opt->min) || (has_upper(opt) && v > (uint64_t)opt->max))) {
        return OC_E_RANGE;
    }
    return OC_OK;
}

static int set_signed(const struct oc_opt *opt, struct oc_span text, void *field) {
    int64_t v = 0;
    int r = opt->kind == OC_OPT_DURATION ? oc_parse_duration(text, &v) : oc_parse_int64(text, &v);

    r = r < 0 ? r : in_bounds_signed(opt, v);
    if (r == OC_OK) {
        *(int64_t *)field = v;
    }
    return r;
}

static int set_unsigned(const struct oc_opt *opt, struct oc_span text, void *field) {
    uint64_t v = 0;
    int r = opt->kind == OC_OPT_SIZE ? oc_parse_size(text, &v) : oc_parse_uint64(text, &v);

    r = r < 0 ? r : in_bounds_unsigned(opt, v);
    if (r == OC_OK) {
        *(uint64_t *)field = v;
    }
    return r;
}

static int set_double(const struct oc_opt *opt, struct oc_span text, void *field) {
    double v = 0;
    int r = oc_parse_double(text, &v);

    if (r == OC_OK && (opt->dmin != 0 || opt->dmax != 0) && (v < opt->dmin || v > opt->dmax)) {
        r = OC_E_RANGE;
    }
    if (r == OC_OK) {
        *(double *)field = v;
    }
    return r;
}

static int set_enum(const struct oc_opt *opt, struct oc_span text, void *field) {
    for (int i = 0;; i++) {
        struct oc_span word = oc_opt_word(opt->words, i);

        if (word.len == 0) {
            return OC_E_INVALID;
        }
        if (oc_span_equal(word, text)) {
            *(int *)field = i;
            return OC_OK;
        }
    }
}

static int set_string(struct oc_opts *o, struct oc_span text, void *field) {
    struct oc_span copy = oc_arena_copy(&o->arena, text);

    if (copy.p == NULL) {
        return OC_E_EXHAUSTED;
    }
    *(const char **)field = (const char *)copy.p;
    return OC_OK;
}

static struct oc_span trim(struct oc_span s) {
    while (s.len > 0 && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s = oc_span(s.p + 1, s.len - 1);
    }
    while (s.len > 0 && (s.p[s.len - 1] == ' ' || s.p[s.len - 1] == '\t')) {
        s.len--;
    }
    return s;
}

static int set_list(struct oc_opts *o, struct oc_span text, void *field) {
    struct oc_opt_list list = {NULL, 0};
    size_t max = 1;
    size_t begin = 0;

    for (size_t i = 0; i < text.len; i++) {
        max += text.p[i] == ',';
    }
    list.items = oc_arena_alloc(&o->arena, (max + 1) * sizeof *list.items);
    if (list.items == NULL) {
        return OC_E_EXHAUSTED;
    }
    for (size_t i = 0; i <= text.len; i++) {
        if (i < text.len && text.p[i] != ',') {
            continue;
        }
        struct oc_span item = trim(oc_span(text.p + begin, i - begin));

        begin = i + 1;
        if (item.len > 0 && set_string(o, item, &list.items[list.count++]) < 0) {
            return OC_E_EXHAUSTED;
        }
    }
    list.items[list.count] = NULL;
    *(struct oc_opt_list *)field = list;
    return OC_OK;
}

static int set_value(struct oc_opts *o, const struct oc_opt *opt, struct oc_span text) {
    void *field = oc_opt_field(o, opt);

    switch (opt->kind) {
    case OC_OPT_BOOL:
        return oc_parse_bool(text, field);
    case OC_OPT_INT64:
    case OC_OPT_DURATION:
        return set_signed(opt, text, field);
    case OC_OPT_UINT64:
    case OC_OPT_SIZE:
        return set_unsigned(opt, text, field);
    case OC_OPT_DOUBLE:
        return set_double(opt, text, field);
    case OC_OPT_ENUM:
        return set_enum(opt, text, field);
    case OC_OPT_STRING:
        return set_string(o, text, field);
    case OC_OPT_LIST:
        return set_list(o, text, field);
    }
    return OC_E_INTERNAL;
}

int oc_opt_set(struct oc_opts *o, const struct oc_opt *opt, struct oc_span text, const char *origin,
               struct oc_error *err) {
    char expected[OC_OPT_EXPECT_MAX];
    char shown[64];
    size_t n = text.len < sizeof shown ? text.len : sizeof shown - 1;
    int r = set_value(o, opt, text);

    if (r == OC_OK) {
        return r;
    }
    if (r == OC_E_EXHAUSTED) {
        return oc_error_set(err, OC_E_INVALID, "%s: the value is too long", origin);
    }
    for (size_t i = 0; i < n; i++) {
        shown[i] = (char)(text.p[i] >= 0x20 && text.p[i] != 0x7f ? text.p[i] : '?');
    }
    shown[n] = 0;
    oc_opt_expected(opt, expected);
    return oc_error_set(err, OC_E_INVALID, "bad value \"%s%s\" (%s): %sexpected %s", shown,
                        n < text.len ? "..." : "", origin, r == OC_E_RANGE ? "out of range, " : "",
                        expected);
}

/* The fewest digits that read back as the same value. */
static int format_double(double v, struct oc_buf *out) {
    char text[OC_PARSE_TEXT_MAX];
    double back = 0;

    for (int digits = 1; digits <= 17; digits++) {
        int n = snprintf(text, sizeof text, "%.*g", digits, v);

        if (oc_parse_double(oc_span(text, (size_t)n), &back) == OC_OK && back == v) {
            break;
        }
    }
    return oc_buf_printf(out, "%s", text);
}

static int format_list(const struct oc_opt_list *list, struct oc_buf *out) {
    int r = OC_OK;

    for (size_t i = 0; i < list->count && r == OC_OK; i++) {
        r = oc_buf_printf(out, "%s%s", i == 0 ? "" : ",", list->items[i]);
    }
    return r;
}

int oc_opts_format(const struct oc_opts *o, const struct oc_opt *opt, struct oc_buf *out) {
    const void *field = oc_opt_field(o, opt);
    char text[OC_PARSE_TEXT_MAX];

    switch (opt->kind) {
    case OC_OPT_BOOL:
        return oc_buf_printf(out, "%s", *(const bool *)field ? "true" : "false");
    case OC_OPT_INT64:
        return oc_buf_printf(out, "%lld", (long long)*(const int64_t *)field);
    case OC_OPT_UINT64:
        return oc_buf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)field);
    case OC_OPT_DOUBLE:
        return format_double(*(const double *)field, out);
    case OC_OPT_DURATION:
        return oc_buf_append(out, text, oc_format_duration(text, *(const int64_t *)field));
    case OC_OPT_SIZE:
        return oc_buf_append(out, text, oc_format_size(text, *(const uint64_t *)field));
    case OC_OPT_ENUM: {
        struct oc_span word = oc_opt_word(opt->words, *(const int *)field);

        return oc_buf_append(out, word.p, word.len);
    }
    case OC_OPT_STRING:
        return oc_buf_printf(out, "%s", *(const char *const *)field);
    case OC_OPT_LIST:
        return format_list(field, out);
    }
    return OC_E_INTERNAL;
}
