/* Metrics from a table, counted without contention, written as Prometheus text.
 *
 *     #define APP_METRICS(X) \
 *         X(COUNTER, calls, "app_calls_total", "Calls finished.", .labels = {&by_method, &by_code})
 * \
 *         X(GAUGE, connections, "app_connections", "Open connections.") \
 *         X(HISTOGRAM, latency, "app_call_duration_seconds", "Time per call.", \ .labels =
 * {&by_method}, .buckets = &oc_buckets_latency, .decimals = 9) #define ID(kind, id, ...)
 * APP_M_##id, enum app_metric { APP_METRICS(ID) }; static const struct oc_metric app_metrics[] = {
 * APP_METRICS(OC_METRIC_ROW) };
 *
 * Columns: kind, id, name, help, then other members of struct oc_metric by name. Values are
 * integers in the smallest unit (nanoseconds, bytes); `decimals` moves the point when they are
 * written, so that what is exposed is in base units (seconds, bytes) and exact.
 *
 * Threading: every thread counts in cells of its own (relaxed loads and stores, no locked
 * instruction), registered at its first use; a scrape adds them up. The cells of a thread that
 * ended keep their counts and go to the next new thread. All functions may be called from any
 * thread. */
#ifndef OC_BASE_METRICS_H
#define OC_BASE_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

enum oc_metric_kind {
    OC_METRIC_COUNTER,
    OC_METRIC_GAUGE,
    OC_METRIC_HISTOGRAM,
};

/* A label with a fixed set of values. */
struct oc_metric_label {
    const char *name;
    const char *const *values;
    unsigned count;
};

/* Upper bounds, ascending, inclusive; +Inf is implied. */
struct oc_metric_buckets {
    const uint64_t *bounds;
    unsigned count;
};
#define OC_METRIC_BUCKETS_MAX 32

extern const struct oc_metric_buckets oc_buckets_latency; /* ns: 10 us to 10 s; use .decimals = 9 */
extern const struct oc_metric_buckets oc_buckets_bytes;   /* 64 B to 1 GiB in powers of 4 */

#define OC_METRIC_LABELS_MAX 3

struct oc_metric {
    const char *name;
    const char *help;
    enum oc_metric_kind kind;
    const struct oc_metric_label *labels[OC_METRIC_LABELS_MAX]; /* NULL behind the last */
    const struct oc_metric_buckets *buckets;                    /* HISTOGRAM only */
    unsigned decimals; /* the exposed value is the recorded one times 10^-decimals; at most 9 */
    bool sparse;       /* leave out series that are zero */
};

#define OC_METRIC_ROW(kind_, id_, name_, help_, ...)                                               \
    {.kind = OC_METRIC_##kind_, .name = (name_), .help = (help_), ##__VA_ARGS__},

/* The live cells of one table. At most OC_METRICS_MAX exist at a time. */
struct oc_metrics;
#define OC_METRICS_MAX 16

/* The table is borrowed. A table at odds with the rules of the text format stops the program. */
int oc_metrics_new(const struct oc_metric *table, size_t count, struct oc_metrics **ret);
void oc_metrics_free(struct oc_metrics *m); /* no thread may use it any more */

/* The series of these label values, counted as the table lists the labels; unused ones are 0. A
 * value outside its set gives OC_METRIC_NO_SERIES, for which all of the following do nothing but
 * count a check. */
#define OC_METRIC_NO_SERIES UINT32_MAX
uint32_t oc_metrics_series(const struct oc_metrics *m, unsigned id, unsigned a, unsigned b,
                           unsigned c);

/* Counters and gauges: this thread's share, which for a gauge may be negative. */
void oc_metrics_add(struct oc_metrics *m, unsigned id, uint32_t series, int64_t n);
static inline void oc_metrics_inc(struct oc_metrics *m, unsigned id, uint32_t series) {
    oc_metrics_add(m, id, series, 1);
}
/* Histograms. */
void oc_metrics_observe(struct oc_metrics *m, unsigned id, uint32_t series, uint64_t value);
/* Counters and gauges that somebody else keeps: the value of all threads together, usually set by a
 * collector. Adds to what oc_metrics_add counted; use one of the two for a metric. */
void oc_metrics_set(struct oc_metrics *m, unsigned id, uint32_t series, int64_t value);

/* Called at the beginning of every write, to set what is only known by asking. One per table. It
 * must not write or free the table. */
void oc_metrics_on_collect(struct oc_metrics *m, void (*collect)(struct oc_metrics *m, void *arg),
                           void *arg);

/* Append the text exposition. Counters of histograms are consistent with their buckets. */
int oc_metrics_write(struct oc_metrics *m, struct oc_buf *out);

/* The present value of one counter or gauge, or the number of observations: for tests and status
 * pages. */
int64_t oc_metrics_value(struct oc_metrics *m, unsigned id, uint32_t series);

/* One gauge of value 1 whose labels carry texts: build information. */
struct oc_metric_text {
    const char *label;
    const char *value;
};
int oc_metrics_write_info(struct oc_buf *out, const char *name, const char *help,
                          const struct oc_metric_text *texts, size_t count);

/* The OC_COUNT sites that fired so far as one counter with the labels `site` and `check`. */
int oc_metrics_write_count_sites(struct oc_buf *out, const char *name);

#endif
