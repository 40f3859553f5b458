/* Written by hand because strtol and its kin take blanks, locales and half a text. */
#include "base/parse.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"

int oc_parse_bool(struct oc_span s, bool *ret) {
    static const char *const yes[] = {"1", "t", "T", "true", "TRUE", "True"};
    static const char *const no[] = {"0", "f", "F", "false", "FALSE", "False"};

    for (size_t i = 0; i < OC_ARRAY_LEN(yes); i++) {
        if (oc_span_equal(s, oc_span_str(yes[i]))) {
            *ret = true;
            return OC_OK;
        }
        if (oc_span_equal(s, oc_span_str(no[i]))) {
            *ret = false;
            return OC_OK;
        }
    }
    return OC_E_INVALID;
}

static int digit_value(uint8_t c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

int oc_parse_uint64(struct oc_span s, uint64_t *ret) {
    unsigned base = 10;
    uint64_t v = 0;

    if (s.len > 2 && s.p[0] == '0' && (s.p[1] == 'x' || s.p[1] == 'X')) {
        base = 16;
        s = oc_span(s.p + 2, s.len - 2);
    }
    if (s.len == 0) {
        return OC_E_INVALID;
    }
    bool fits = true;
    for (size_t i = 0; i < s.len; i++) {
        unsigned d = (unsigned)digit_value(s.p[i]);

        if (d >= base) {
            return OC_E_INVALID;
        }
        fits = fits && oc_mul_ok(v, (uint64_t)base, &v) && oc_add_ok(v, (uint64_t)d, &v);
    }
    if (!fits) {
        return OC_E_RANGE;
    }
    *ret = v;
    return OC_OK;
}

/* Take a sign off the front: true for minus. */
static bool take_sign(struct oc_span *s) {
    bool minus = s->len > 0 && s->p[0] == '-';

    if (minus || (s->len > 0 && s->p[0] == '+')) {
        *s = oc_span(s->p + 1, s->len - 1);
    }
    return minus;
}

int oc_parse_int64(struct oc_span s, int64_t *ret) {
    bool minus = take_sign(&s);
    uint64_t v = 0;
    int r = oc_parse_uint64(s, &v);

    if (r < 0) {
        return r;
    }
    if (v > (uint64_t)INT64_MAX + (minus ? 1 : 0)) {
        return OC_E_RANGE;
    }
    *ret = (int64_t)(minus ? 0 - v : v);
    return OC_OK;
}

/* number = digits [. digits] [e [sign] digits], so that strtod sees nothing exotic (hex, inf,
 * blanks). */
static bool looks_like_double(const char *p) {
    size_t digits = 0;

    p += *p == '-' || *p == '+';
    for (; (*p >= '0' && *p <= '9'); p++) {
        digits++;
    }
    if (*p == '.') {
        for (p++; (*p >= '0' && *p <= '9'); p++) {
            digits++;
        }
    }
    if (digits == 0) {
        return false;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '-' || *p == '+';
        if (*p < '0' || *p > '9') {
            return false;
        }
        while (*p >= '0' && *p <= '9') {
            p++;
        }
    }
    return *p == 0;
}

int oc_parse_double(struct oc_span s, double *ret) {
    char text[64];
    double v;

    if (s.len == 0 || s.len >= sizeof text) {
        return OC_E_INVALID;
    }
    memcpy(text, s.p, s.len);
    text[s.len] = 0;
    if (strlen(text) != s.len || !looks_like_double(text)) {
        return OC_E_INVALID;
    }
    /* Our programs never call setlocale, so the decimal sign is the dot. */
    errno = 0;
    v = strtod(text, NULL);
    if (!isfinite(v)) {
        return OC_E_RANGE;
    }
    *ret = v;
    return OC_OK;
}

/* A number with an optional fraction, off the front of *s. The fraction is kept as numerator over a
 * power of ten; digits beyond 18 places are dropped. */
struct decimal {
    uint64_t whole;
    uint64_t part;
    uint64_t scale; /* part / scale < 1 */
};

static int take_decimal(struct oc_span *s, struct decimal *ret) {
    struct decimal d = {0, 0, 1};
    size_t digits = 0;
    size_t i = 0;
    bool fits = true;

    for (; i < s->len && s->p[i] >= '0' && s->p[i] <= '9'; i++, digits++) {
        fits = fits && oc_mul_ok(d.whole, UINT64_C(10), &d.whole) &&
               oc_add_ok(d.whole, (uint64_t)(s->p[i] - '0'), &d.whole);
    }
    if (i < s->len && s->p[i] == '.') {
        for (i++; i < s->len && s->p[i] >= '0' && s->p[i] <= '9'; i++, digits++) {
            if (d.scale < UINT64_C(1000000000000000000)) {
                d.part = d.part * 10 + (uint64_t)(s->p[i] - '0');
                d.scale *= 10;
            }
        }
    }
    if (digits == 0) {
        return OC_E_INVALID;
    }
    *s = oc_span(s->p + i, s->len - i);
    *ret = d;
    return fits ? OC_OK : OC_E_RANGE;
}

static bool decimal_times(const struct decimal *d, uint64_t unit, uint64_t *ret) {
    uint64_t v;
    uint64_t part = (uint64_t)((unsigned __int128)d->part * unit / d->scale);

    if (!oc_mul_ok(d->whole, unit, &v) || !oc_add_ok(v, part, &v)) {
        return false;
    }
    *ret = v;
    return true;
}

/* The longest unit at the front of *s; 0 when there is none. */
static uint64_t take_duration_unit(struct oc_span *s) {
    static const struct {
        const char *text;
        uint64_t ns;
    } units[] = {
        {"ns", 1},
        {"us", OC_NS_PER_US},
        {"\xc2\xb5s", OC_NS_PER_US}, /* U+00B5 micro sign */
        {"\xce\xbcs", OC_NS_PER_US}, /* U+03BC Greek mu */
        {"ms", OC_NS_PER_MS},
        {"s", OC_NS_PER_S},
        {"m", 60 * OC_NS_PER_S},
        {"h", 3600 * OC_NS_PER_S},
    };

    for (size_t i = 0; i < OC_ARRAY_LEN(units); i++) {
        struct oc_span unit = oc_span_str(units[i].text);

        if (oc_span_starts_with(*s, unit)) {
            *s = oc_span(s->p + unit.len, s->len - unit.len);
            return units[i].ns;
        }
    }
    return 0;
}

int oc_parse_duration(struct oc_span s, int64_t *ret_ns) {
    bool minus = take_sign(&s);
    uint64_t total = 0;
    bool fits = true;

    if (oc_span_equal(s, OC_SPAN_LIT("0"))) {
        *ret_ns = 0;
        return OC_OK;
    }
    if (s.len == 0) {
        return OC_E_INVALID;
    }
    while (s.len > 0) {
        struct decimal d;
        uint64_t ns = 0;
        int r = take_decimal(&s, &d);
        uint64_t unit = r == OC_E_INVALID ? 0 : take_duration_unit(&s);

        if (unit == 0) {
            return OC_E_INVALID;
        }
        fits = fits && r == OC_OK && decimal_times(&d, unit, &ns) && oc_add_ok(total, ns, &total);
    }
    if (!fits || total > INT64_MAX) {
        return OC_E_RANGE;
    }
    *ret_ns = minus ? -(int64_t)total : (int64_t)total;
    return OC_OK;
}

/* Power of 1024 for the unit text; -1 when it is none. */
static int size_unit(struct oc_span s) {
    static const char letters[] = "kmgtp";
    char lower[4] = {0};

    if (s.len > 3) {
        return -1;
    }
    for (size_t i = 0; i < s.len; i++) {
        lower[i] = (char)(s.p[i] >= 'A' && s.p[i] <= 'Z' ? s.p[i] + 32 : s.p[i]);
    }
    if (lower[0] == 0 || (lower[0] == 'b' && s.len == 1)) {
        return s.len <= 1 ? 0 : -1;
    }
    const char *at = strchr(letters, lower[0]);
    bool tail_ok = s.len == 1 || (s.len == 2 && lower[1] == 'b') ||
                   (s.len == 3 && lower[1] == 'i' && lower[2] == 'b');
    return at == NULL || !tail_ok ? -1 : (int)(at - letters) + 1;
}

int oc_parse_size(struct oc_span s, uint64_t *ret_bytes) {
    struct decimal d;
    uint64_t v;
    int r = take_decimal(&s, &d);
    int unit = r == OC_E_INVALID ? -1 : size_unit(s);

    if (unit < 0 || (unit == 0 && d.scale > 1)) {
        return OC_E_INVALID;
    }
    if (r < 0 || !decimal_times(&d, UINT64_C(1) << (10 * unit), &v)) {
        return OC_E_RANGE;
    }
    *ret_bytes = v;
    return OC_OK;
}

/* "1.5" of 1500 over 1000: at most 9 fraction digits, trailing zeros dropped. */
static size_t format_fraction(char *dst, size_t cap, uint64_t v, uint64_t unit, const char *name) {
    uint64_t part = v % unit;
    unsigned digits = 0;

    for (uint64_t u = unit; u > 1; u /= 10) {
        digits++;
    }
    if (part == 0) {
        return (size_t)snprintf(dst, cap, "%llu%s", (unsigned long long)(v / unit), name);
    }
    while (part % 10 == 0) {
        part /= 10;
        digits--;
    }
    return (size_t)snprintf(dst, cap, "%llu.%0*llu%s", (unsigned long long)(v / unit), (int)digits,
                            (unsigned long long)part, name);
}

size_t oc_format_duration(char dst[OC_PARSE_TEXT_MAX], int64_t ns) {
    uint64_t v = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
    size_t n = 0;

    if (ns < 0) {
        dst[n++] = '-';
    }
    if (v < OC_NS_PER_S) {
        uint64_t unit = v < OC_NS_PER_US ? 1 : v < OC_NS_PER_MS ? OC_NS_PER_US : OC_NS_PER_MS;
        const char *name = v == 0 ? "s" : unit == 1 ? "ns" : unit == OC_NS_PER_US ? "us" : "ms";

        return n + format_fraction(dst + n, OC_PARSE_TEXT_MAX - n, v, unit, name);
    }
    uint64_t hours = v / (3600 * OC_NS_PER_S);
    uint64_t minutes = v / (60 * OC_NS_PER_S) % 60;
    if (hours > 0) {
        n += (size_t)snprintf(dst + n, OC_PARSE_TEXT_MAX - n, "%lluh", (unsigned long long)hours);
    }
    if (hours > 0 || minutes > 0) {
        n += (size_t)snprintf(dst + n, OC_PARSE_TEXT_MAX - n, "%llum", (unsigned long long)minutes);
    }
    return n + format_fraction(dst + n, OC_PARSE_TEXT_MAX - n, v % (60 * OC_NS_PER_S), OC_NS_PER_S,
                               "s");
}

size_t oc_format_size(char dst[OC_PARSE_TEXT_MAX], uint64_t bytes) {
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned unit = 0;

    while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < OC_ARRAY_LEN(units)) {
        bytes /= 1024;
        unit++;
    }
    return (size_t)snprintf(dst, OC_PARSE_TEXT_MAX, "%llu%s", (unsigned long long)bytes,
                            units[unit]);
}
