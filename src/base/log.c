/* A line is built in a buffer on the stack and leaves with one write. */
#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/parse.h"

static _Atomic int log_level = OC_LOG_INFO;
static _Atomic int log_format = OC_LOG_TEXT;
static _Atomic int log_fd = STDERR_FILENO;
static _Atomic(const struct oc_clock *) log_clock;
static _Atomic(struct oc_log_site *) log_sites;
static _Atomic uint64_t log_lost;

static const char *const level_text[] = {"DEBUG", "INFO", "WARN", "ERROR"};
static const char *const level_json[] = {"debug", "info", "warn", "error"};

#define TAIL_TEXT " truncated=true\n"
#define TAIL_JSON ",\"truncated\":true}\n"
#define TAIL_MAX  sizeof TAIL_JSON

#define VALUE_MAX   1024u /* bytes of one value before escaping */
#define MESSAGE_MAX 512u  /* fits whatever it is made of */

void oc_log_set_level(enum oc_log_level level) {
    atomic_store(&log_level, (int)level);
}
void oc_log_set_format(enum oc_log_format format) {
    atomic_store(&log_format, (int)format);
}
void oc_log_set_fd(int fd) {
    atomic_store(&log_fd, fd);
}
void oc_log_set_clock(const struct oc_clock *clock) {
    atomic_store(&log_clock, clock);
}
bool oc_log_enabled(enum oc_log_level level) {
    return (int)level >= atomic_load_explicit(&log_level, memory_order_relaxed);
}
uint64_t oc_log_lost(void) {
    return atomic_load_explicit(&log_lost, memory_order_relaxed);
}

struct line {
    char *p; /* OC_LOG_LINE_MAX bytes */
    size_t len;
    bool full; /* something did not fit */
    bool json;
};

static void put(struct line *l, const char *s, size_t n) {
    if (l->full || n > OC_LOG_LINE_MAX - TAIL_MAX - l->len) {
        l->full = true;
        return;
    }
    memcpy(l->p + l->len, s, n);
    l->len += n;
}

static void put_str(struct line *l, const char *s) {
    put(l, s, strlen(s));
}

/* Length of the printable UTF-8 character at p; 0: a control character or no character at all. */
static size_t printable(const uint8_t *p, size_t left) {
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;

    if (p[0] < 0x20 || p[0] == 0x7f || (p[0] >= 0x80 && p[0] < 0xc2) || p[0] > 0xf4 || n > left) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    /* Overlong forms, surrogates, what is above U+10FFFF, and the control characters U+0080 to
     * U+009F. */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f) ||
        (p[0] == 0xc2 && p[1] < 0xa0)) {
        return 0;
    }
    /* Line and paragraph separator. */
    if (p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9)) {
        return 0;
    }
    return n;
}

static void put_escape(struct line *l, uint8_t c) {
    char text[8];

    switch (c) {
    case '\n':
        put_str(l, "\\n");
        break;
    case '\r':
        put_str(l, "\\r");
        break;
    case '\t':
        put_str(l, "\\t");
        break;
    default:
        /* JSON has no escape for bytes; those that are no text become the replacement character. */
        if (l->json && c >= 0x80) {
            put_str(l, "\\ufffd");
        } else {
            (void)snprintf(text, sizeof text, l->json ? "\\u%04x" : "\\x%02x", c);
            put_str(l, text);
        }
    }
}

/* As much of the value as fits, escaped. */
static void put_escaped(struct line *l, struct oc_span s) {
    for (size_t i = 0; i < s.len && !l->full;) {
        size_t n = printable(s.p + i, s.len - i);

        if (n == 0) {
            put_escape(l, s.p[i]);
            n = 1;
        } else if (s.p[i] == '"' || s.p[i] == '\\') {
            char two[2] = {'\\', (char)s.p[i]};

            put(l, two, 2);
        } else {
            put(l, (const char *)s.p + i, n);
        }
        i += n;
    }
}

/* A bare word needs no quotes in text. */
static bool is_word(struct oc_span s) {
    for (size_t i = 0; i < s.len; i++) {
        if (s.p[i] <= ' ' || s.p[i] >= 0x7f || s.p[i] == '"' || s.p[i] == '=' || s.p[i] == '\\') {
            return false;
        }
    }
    return s.len > 0;
}

static void put_string(struct line *l, struct oc_span s) {
    bool cut = s.len > VALUE_MAX;
    bool quote;

    s.len = cut ? VALUE_MAX : s.len;
    quote = l->json || cut || !is_word(s);
    put_str(l, quote ? "\"" : "");
    put_escaped(l, s);
    put_str(l, cut ? "..." : "");
    put_str(l, quote ? "\"" : "");
}

static void put_value(struct line *l, const struct oc_log_field *f) {
    char text[OC_PARSE_TEXT_MAX];

    switch (f->kind) {
    case OC_LOG_F_STR:
        if (f->str == NULL) {
            put_str(l, "null");
        } else {
            put_string(l, oc_span_str(f->str));
        }
        return;
    case OC_LOG_F_SPAN:
        put_string(l, f->span);
        return;
    case OC_LOG_F_DURATION:
        put_string(l, oc_span(text, oc_format_duration(text, f->i64)));
        return;
    case OC_LOG_F_BOOL:
        put_str(l, f->flag ? "true" : "false");
        return;
    case OC_LOG_F_F64:
        /* JSON has no number for what is not finite. */
        (void)snprintf(text, sizeof text, isfinite(f->f64) ? "%.6g" : "null", f->f64);
        break;
    case OC_LOG_F_I64:
        (void)snprintf(text, sizeof text, "%lld", (long long)f->i64);
        break;
    case OC_LOG_F_U64:
        (void)snprintf(text, sizeof text, "%llu", (unsigned long long)f->u64);
        break;
    }
    put_str(l, text);
}

/* A field stands whole or not at all. */
static void put_field(struct line *l, const struct oc_log_field *f) {
    size_t before = l->len;

    put_str(l, l->json ? ",\"" : " ");
    put_str(l, f->key);
    put_str(l, l->json ? "\":" : "=");
    put_value(l, f);
    if (l->full) {
        l->len = before;
    }
}

static void put_time(struct line *l, const struct oc_clock *clock) {
    char text[64];
    struct tm tm;
    uint64_t wall_ns = oc_clock_now(clock).wall_ns;
    time_t s = (time_t)(wall_ns / OC_NS_PER_S);
    size_t n;

    if (gmtime_r(&s, &tm) == NULL) {
        return;
    }
    n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(text + n, sizeof text - n, ".%03uZ",
                   (unsigned)(wall_ns % OC_NS_PER_S / OC_NS_PER_MS));
    put_str(l, l->json ? "\"ts\":\"" : "");
    put_str(l, text);
    put_str(l, l->json ? "\"," : " ");
}

static void line_out(const struct line *l) {
    ssize_t n;

    do {
        n = write(atomic_load(&log_fd), l->p, l->len);
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)l->len) {
        atomic_fetch_add_explicit(&log_lost, 1, memory_order_relaxed);
    }
}

static void line_write(enum oc_log_level level, const char *msg, const struct oc_log_field *fields,
                       size_t count, uint64_t suppressed) {
    char buffer[OC_LOG_LINE_MAX];
    struct line l = {.p = buffer, .json = atomic_load(&log_format) == OC_LOG_JSON};
    const struct oc_clock *clock = atomic_load(&log_clock);
    int saved_errno = errno;

    put_str(&l, l.json ? "{" : "");
    if (clock != NULL) {
        put_time(&l, clock);
    }
    put_str(&l, l.json ? "\"level\":\"" : "");
    put_str(&l, (l.json ? level_json : level_text)[level]);
    put_str(&l, l.json ? "\",\"msg\":\"" : " ");
    put_escaped(&l, oc_span(msg, strnlen(msg, MESSAGE_MAX)));
    put_str(&l, l.json ? "\"" : "");
    if (suppressed > 0) {
        put_field(&l, &OC_F_U64("suppressed", suppressed));
    }
    for (size_t i = 0; i < count && !l.full; i++) {
        put_field(&l, &fields[i]);
    }
    const char *tail = l.full ? (l.json ? TAIL_JSON : TAIL_TEXT) : l.json ? "}\n" : "\n";
    memcpy(l.p + l.len, tail, strlen(tail)); /* TAIL_MAX bytes were kept free */
    l.len += strlen(tail);
    line_out(&l);
    errno = saved_errno; /* logging between a failure and its report changes nothing */
}

void oc_log_write(enum oc_log_level level, const char *msg, const struct oc_log_field *fields,
                  size_t count) {
    line_write(level, msg, fields, count, 0);
}

/* The allowance as one number: the time at which it will be full again. A line moves it on by a
 * second; a line is refused when it would lie more than the burst ahead of now. */
bool oc_log_site_take(struct oc_log_site *site, uint64_t *ret_suppressed) {
    const struct oc_clock *clock = atomic_load(&log_clock);
    uint64_t now = clock == NULL ? 0 : oc_clock_now(clock).mono_ns;
    uint64_t ready = atomic_load_explicit(&site->ready_ns, memory_order_relaxed);
    uint64_t next;

    do {
        next = (ready > now ? ready : now) + OC_NS_PER_S;
        if (clock != NULL && next > now + OC_LOG_BURST * OC_NS_PER_S) {
            atomic_fetch_add_explicit(&site->suppressed, 1, memory_order_relaxed);
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&site->ready_ns, &ready,
                                                    clock == NULL ? 0 : next, memory_order_relaxed,
                                                    memory_order_relaxed));
    *ret_suppressed = atomic_exchange_explicit(&site->suppressed, 0, memory_order_relaxed);
    return true;
}

void oc_log_write_limited(struct oc_log_site *site, enum oc_log_level level,
                          const struct oc_log_field *fields, size_t count) {
    uint64_t suppressed = 0;

    if (!atomic_exchange_explicit(&site->listed, true, memory_order_acq_rel)) {
        struct oc_log_site *head = atomic_load(&log_sites);

        do {
            site->next = head;
        } while (!atomic_compare_exchange_weak(&log_sites, &head, site));
    }
    if (oc_log_site_take(site, &suppressed)) {
        line_write(level, site->msg, fields, count, suppressed);
    }
}

void oc_log_flush_suppressed(void) {
    for (struct oc_log_site *s = atomic_load(&log_sites); s != NULL; s = s->next) {
        uint64_t n = atomic_exchange_explicit(&s->suppressed, 0, memory_order_relaxed);

        if (n > 0) {
            line_write(OC_LOG_WARN, s->msg, NULL, 0, n);
        }
    }
}
