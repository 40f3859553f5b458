/* Shared by the two files of the metrics; nobody else includes it. */
#ifndef OC_BASE_METRICS_INT_H
#define OC_BASE_METRICS_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/metrics.h"

/* One thread's cells of one table. Never freed before the table. */
struct oc_metric_cells {
    struct oc_metric_cells *next;
    bool owned; /* by a living thread; under the registry's lock */
    _Alignas(64) _Atomic uint64_t v[];
};

/* Where a metric's cells lie. */
struct oc_metric_place {
    uint32_t first;
    uint32_t series;
    uint32_t width; /* cells per series */
};

struct oc_metrics {
    const struct oc_metric *table;
    size_t count;
    struct oc_metric_place *rows;
    size_t cell_count;
    _Atomic uint64_t *shared; /* what oc_metrics_set keeps */
    unsigned slot;
    uint64_t generation;  /* never 0, never used twice */
    pthread_mutex_t lock; /* cells list, collector; taken after the registry's lock */
    struct oc_metric_cells *cells;
    void (*collect)(struct oc_metrics *m, void *arg);
    void *collect_arg;
};

/* The series' cells of all threads added up; dst has room for its width. */
void oc_metrics_sum(struct oc_metrics *m, unsigned id, uint32_t series, uint64_t *dst);

#endif
