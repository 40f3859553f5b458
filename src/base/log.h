/* Structured logs: one line per event on one descriptor, as text or JSON.
 *
 *     oc_log(OC_LOG_INFO, "listening", OC_F_STR("addr", addr), OC_F_U64("workers", n));
 *
 *     2026-01-31T12:00:00.123Z INFO listening addr=127.0.0.1:9000 workers=2
 *     {"ts":"2026-01-31T12:00:00.123Z","level":"info","msg":"listening","addr":"…","workers":2}
 *
 * A line is one write() of at most OC_LOG_LINE_MAX bytes, so lines of several threads or processes
 * never mix, not even on a pipe. What does not fit is cut and marked (truncated=true). Values come
 * from outside: control characters, quotes and invalid UTF-8 are escaped, so that none can forge a
 * line.
 *
 * Message and keys are literals of ours; keys are words of letters, digits and underscores. Only
 * programs and drivers log, at the edge; core/ never does. Any thread may log; configure before
 * threads start. */
#ifndef OC_BASE_LOG_H
#define OC_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/span.h"

enum oc_log_level {
    OC_LOG_DEBUG,
    OC_LOG_INFO,
    OC_LOG_WARN,
    OC_LOG_ERROR,
};

enum oc_log_format {
    OC_LOG_TEXT,
    OC_LOG_JSON,
};

#define OC_LOG_LINE_MAX 4096 /* PIPE_BUF: a write of this size to a pipe is atomic */

/* Defaults: INFO, TEXT, descriptor 2, no clock (then lines carry no time and nothing is held back).
 */
void oc_log_set_level(enum oc_log_level level);
void oc_log_set_format(enum oc_log_format format);
void oc_log_set_fd(int fd);
void oc_log_set_clock(
    const struct oc_clock *clock); /* borrowed for the process's life; NULL: none */
bool oc_log_enabled(enum oc_log_level level);

enum oc_log_kind {
    OC_LOG_F_STR,
    OC_LOG_F_SPAN,
    OC_LOG_F_U64,
    OC_LOG_F_I64,
    OC_LOG_F_F64,
    OC_LOG_F_BOOL,
    OC_LOG_F_DURATION,
};

struct oc_log_field {
    const char *key;
    enum oc_log_kind kind;
    union {
        const char *str;
        struct oc_span span;
        uint64_t u64;
        int64_t i64;
        double f64;
        bool flag;
    };
};

#define OC_F_STR(k, v)  ((struct oc_log_field){.key = (k), .kind = OC_LOG_F_STR, .str = (v)})
#define OC_F_SPAN(k, v) ((struct oc_log_field){.key = (k), .kind = OC_LOG_F_SPAN, .span = (v)})
#define OC_F_U64(k, v)  ((struct oc_log_field){.key = (k), .kind = OC_LOG_F_U64, .u64 = (v)})
#define OC_F_I64(k, v)  ((struct oc_log_field){.key = (k), .kind = OC_LOG_F_I64, .i64 = (v)})
#define OC_F_F64(k, v)  ((struct oc_log_field){.key = (k), .kind = OC_LOG_F_F64, .f64 = (v)})
#define OC_F_BOOL(k, v) ((struct oc_log_field){.key = (k), .kind = OC_LOG_F_BOOL, .flag = (v)})
/* Nanoseconds, written as in 1.5s. */
#define OC_F_DURATION(k, v)                                                                        \
    ((struct oc_log_field){.key = (k), .kind = OC_LOG_F_DURATION, .i64 = (int64_t)(v)})
/* The name of an enum oc_err. */
#define OC_F_CODE(k, v) OC_F_STR(k, oc_err_name(v))

void oc_log_write(enum oc_log_level level, const char *msg, const struct oc_log_field *fields,
                  size_t count);

#define OC_LOG_FIELDS_(...)                                                                        \
    ((const struct oc_log_field[]){{.key = NULL}, ##__VA_ARGS__} + 1),                             \
        sizeof((const struct oc_log_field[]){{.key = NULL}, ##__VA_ARGS__}) /                      \
                sizeof(struct oc_log_field) -                                                      \
            1

/* Fields are evaluated only when the level is enabled. */
#define oc_log(level, msg, ...)                                                                    \
    do {                                                                                           \
        if (oc_log_enabled(level)) {                                                               \
            oc_log_write((level), (msg), OC_LOG_FIELDS_(__VA_ARGS__));                             \
        }                                                                                          \
    } while (0)

/* ---- for faults that flood: per call site at most OC_LOG_BURST lines at once and one a second
 * after that. The next line that gets through says how many were not written (suppressed=N). ----
 */
#define OC_LOG_BURST 5

struct oc_log_site {
    const char *msg;
    _Atomic uint64_t ready_ns;   /* when the site's allowance is full again */
    _Atomic uint64_t suppressed; /* since the last line */
    _Atomic bool listed;
    struct oc_log_site *next;
};

/* True when the site may write now; *ret_suppressed is what the line is to report. */
bool oc_log_site_take(struct oc_log_site *site, uint64_t *ret_suppressed);
void oc_log_write_limited(struct oc_log_site *site, enum oc_log_level level,
                          const struct oc_log_field *fields, size_t count);

#define oc_log_limited(level, msg_, ...)                                                           \
    do {                                                                                           \
        static struct oc_log_site oc_site_ = {.msg = (msg_)};                                      \
        if (oc_log_enabled(level)) {                                                               \
            oc_log_write_limited(&oc_site_, (level), OC_LOG_FIELDS_(__VA_ARGS__));                 \
        }                                                                                          \
    } while (0)

/* Write what is still held back by sites that fell silent, one line each: call it now and then and
 * at the end. */
void oc_log_flush_suppressed(void);

/* Lines that could not be written (a full non-blocking pipe, a closed descriptor). */
uint64_t oc_log_lost(void);

#endif
