/* Cells: counting and adding up. The text is made in metrics_text.c.
 *
 * A thread finds its cells by the table's slot in a thread-local array; the generation beside the
 * pointer tells whether the slot still belongs to the same table, so that a stale pointer is never
 * followed. */
#include "base/metrics.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/metrics_int.h"

static const uint64_t latency_bounds[] = {
    10 * OC_NS_PER_US,   25 * OC_NS_PER_US,  50 * OC_NS_PER_US,  100 * OC_NS_PER_US,
    250 * OC_NS_PER_US,  500 * OC_NS_PER_US, 1 * OC_NS_PER_MS,   2500 * OC_NS_PER_US,
    5 * OC_NS_PER_MS,    10 * OC_NS_PER_MS,  25 * OC_NS_PER_MS,  50 * OC_NS_PER_MS,
    100 * OC_NS_PER_MS,  250 * OC_NS_PER_MS, 500 * OC_NS_PER_MS, 1 * OC_NS_PER_S,
    2500 * OC_NS_PER_MS, 5 * OC_NS_PER_S,    10 * OC_NS_PER_S,
};
const struct oc_metric_buckets oc_buckets_latency = {latency_bounds, OC_ARRAY_LEN(latency_bounds)};

static const uint64_t byte_bounds[] = {1u << 6,  1u << 8,  1u << 10, 1u << 12, 1u << 14,
                                       1u << 16, 1u << 18, 1u << 20, 1u << 22, 1u << 24,
                                       1u << 26, 1u << 28, 1u << 30};
const struct oc_metric_buckets oc_buckets_bytes = {byte_bounds, OC_ARRAY_LEN(byte_bounds)};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct oc_metrics *registry[OC_METRICS_MAX];
static uint64_t next_generation = 1;

struct tls_entry {
    uint64_t generation;
    struct oc_metric_cells *cells;
};
static __thread struct tls_entry mine[OC_METRICS_MAX];
static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

/* A thread ends: its cells become free for the next one. */
static void thread_exit(void *entries) {
    struct tls_entry *e = entries;

    (void)pthread_mutex_lock(&registry_lock);
    for (unsigned i = 0; i < OC_METRICS_MAX; i++) {
        if (registry[i] != NULL && e[i].generation == registry[i]->generation) {
            e[i].cells->owned = false;
        }
        e[i].generation = 0;
    }
    (void)pthread_mutex_unlock(&registry_lock);
}

static void exit_key_make(void) {
    OC_CHECK(pthread_key_create(&exit_key, thread_exit) == 0);
}

static bool name_ok(const char *s) {
    for (const char *p = s; *p != 0; p++) {
        bool letter = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || *p == '_';

        if (!letter && (p == s || *p < '0' || *p > '9')) {
            return false;
        }
    }
    return *s != 0;
}

/* Series of one metric, with its rules checked: a fault here is a fault of the table. */
static uint32_t row_series(const struct oc_metric *d) {
    uint32_t series = 1;
    size_t len = strlen(d->name);

    OC_CHECK(name_ok(d->name) && d->help != NULL && d->decimals <= 9);
    /* Gauges may end so too: existing dashboards know ocache_keys_total. */
    OC_CHECK(d->kind != OC_METRIC_COUNTER || (len > 6 && strcmp(d->name + len - 6, "_total") == 0));
    OC_CHECK((d->kind == OC_METRIC_HISTOGRAM) == (d->buckets != NULL));
    for (unsigned i = 0; i < OC_METRIC_LABELS_MAX && d->labels[i] != NULL; i++) {
        OC_CHECK(name_ok(d->labels[i]->name) && strcmp(d->labels[i]->name, "le") != 0);
        OC_CHECK(d->labels[i]->count > 0);
        OC_CHECK(oc_mul_ok(series, (uint32_t)d->labels[i]->count, &series) && series <= 1u << 16);
    }
    if (d->buckets != NULL) {
        OC_CHECK(d->buckets->count > 0 && d->buckets->count <= OC_METRIC_BUCKETS_MAX);
        for (unsigned i = 1; i < d->buckets->count; i++) {
            OC_CHECK(d->buckets->bounds[i] > d->buckets->bounds[i - 1]);
        }
    }
    return series;
}

int oc_metrics_new(const struct oc_metric *table, size_t count, struct oc_metrics **ret) {
    struct oc_metrics *m = calloc(1, sizeof *m);
    unsigned slot = 0;

    OC_CHECK(pthread_once(&exit_once, exit_key_make) == 0);
    if (m == NULL || (m->rows = calloc(count + 1, sizeof *m->rows)) == NULL) {
        free(m);
        return OC_E_EXHAUSTED;
    }
    m->table = table;
    m->count = count;
    for (size_t i = 0; i < count; i++) {
        struct oc_metric_place *row = &m->rows[i];

        row->series = row_series(&table[i]);
        /* A histogram's series: one cell per bucket, one for +Inf, one for the sum. */
        row->width = table[i].buckets == NULL ? 1 : table[i].buckets->count + 2;
        row->first = (uint32_t)m->cell_count;
        m->cell_count += (size_t)row->series * row->width;
        OC_CHECK(m->cell_count < 1u << 24);
    }
    m->shared = calloc(m->cell_count + 1, sizeof *m->shared);
    OC_CHECK(pthread_mutex_init(&m->lock, NULL) == 0);
    (void)pthread_mutex_lock(&registry_lock);
    while (slot < OC_METRICS_MAX && registry[slot] != NULL) {
        slot++;
    }
    if (slot < OC_METRICS_MAX && m->shared != NULL) {
        m->slot = slot;
        m->generation = next_generation++;
        registry[slot] = m;
    }
    (void)pthread_mutex_unlock(&registry_lock);
    if (m->generation == 0) {
        oc_metrics_free(m);
        return OC_E_EXHAUSTED;
    }
    *ret = m;
    return OC_OK;
}

void oc_metrics_free(struct oc_metrics *m) {
    if (m == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&registry_lock);
    if (registry[m->slot] == m) {
        registry[m->slot] = NULL;
    }
    (void)pthread_mutex_unlock(&registry_lock);
    while (m->cells != NULL) {
        struct oc_metric_cells *next = m->cells->next;

        free(m->cells);
        m->cells = next;
    }
    (void)pthread_mutex_destroy(&m->lock);
    free(m->shared);
    free(m->rows);
    free(m);
}

/* The slow path: cells for this thread, those of a thread that ended first. NULL without memory. */
static struct oc_metric_cells *cells_claim(struct oc_metrics *m) {
    struct oc_metric_cells *c;

    (void)pthread_mutex_lock(&registry_lock); /* `owned` is the registry's */
    (void)pthread_mutex_lock(&m->lock);
    for (c = m->cells; c != NULL && c->owned; c = c->next) {
    }
    if (c == NULL) {
        size_t bytes = sizeof *c + m->cell_count * sizeof c->v[0];

        /* Whole cache lines, so that two threads never write to the same one. */
        c = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
        if (c != NULL) {
            memset(c, 0, bytes);
            c->next = m->cells;
            m->cells = c;
        }
    }
    if (c != NULL) {
        c->owned = true;
        mine[m->slot] = (struct tls_entry){m->generation, c};
    }
    (void)pthread_mutex_unlock(&m->lock);
    (void)pthread_mutex_unlock(&registry_lock);
    if (c != NULL) {
        (void)pthread_setspecific(exit_key, mine); /* failing only keeps the cells owned for ever */
    }
    return c;
}

static inline void cell_add(_Atomic uint64_t *cell, uint64_t n) {
    /* Only the owner writes: no read-modify-write instruction is needed. */
    atomic_store_explicit(cell, atomic_load_explicit(cell, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

/* The first cell of the series in this thread's cells, or NULL. */
static inline _Atomic uint64_t *cell_of(struct oc_metrics *m, unsigned id, uint32_t series) {
    const struct tls_entry *e = &mine[m->slot];
    struct oc_metric_cells *c = e->generation == m->generation ? e->cells : cells_claim(m);

    if (c == NULL || !OC_COUNT(id < m->count) || !OC_COUNT(series < m->rows[id].series)) {
        return NULL;
    }
    return &c->v[m->rows[id].first + (size_t)series * m->rows[id].width];
}

uint32_t oc_metrics_series(const struct oc_metrics *m, unsigned id, unsigned a, unsigned b,
                           unsigned c) {
    const unsigned values[OC_METRIC_LABELS_MAX] = {a, b, c};
    uint32_t series = 0;

    if (!OC_COUNT(id < m->count)) {
        return OC_METRIC_NO_SERIES;
    }
    for (unsigned i = 0; i < OC_METRIC_LABELS_MAX; i++) {
        const struct oc_metric_label *label = m->table[id].labels[i];
        unsigned count = label == NULL ? 1 : label->count;

        if (values[i] >= count) {
            return OC_METRIC_NO_SERIES;
        }
        series = series * count + values[i];
    }
    return series;
}

void oc_metrics_add(struct oc_metrics *m, unsigned id, uint32_t series, int64_t n) {
    _Atomic uint64_t *cell = cell_of(m, id, series);

    if (cell != NULL && OC_COUNT(m->rows[id].width == 1)) {
        cell_add(cell, (uint64_t)n);
    }
}

void oc_metrics_observe(struct oc_metrics *m, unsigned id, uint32_t series, uint64_t value) {
    _Atomic uint64_t *cell = cell_of(m, id, series);
    unsigned low = 0;

    if (cell == NULL || !OC_COUNT(m->rows[id].width > 1)) {
        return;
    }
    const struct oc_metric_buckets *b = m->table[id].buckets;
    for (unsigned high = b->count; low < high;) {
        unsigned middle = (low + high) / 2;

        if (value <= b->bounds[middle]) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    cell_add(&cell[low], 1);
    cell_add(&cell[b->count + 1], value);
}

void oc_metrics_set(struct oc_metrics *m, unsigned id, uint32_t series, int64_t value) {
    if (OC_COUNT(id < m->count) && OC_COUNT(series < m->rows[id].series) &&
        OC_COUNT(m->rows[id].width == 1)) {
        atomic_store_explicit(&m->shared[m->rows[id].first + series], (uint64_t)value,
                              memory_order_relaxed);
    }
}

void oc_metrics_on_collect(struct oc_metrics *m, void (*collect)(struct oc_metrics *m, void *arg),
                           void *arg) {
    (void)pthread_mutex_lock(&m->lock);
    m->collect = collect;
    m->collect_arg = arg;
    (void)pthread_mutex_unlock(&m->lock);
}

void oc_metrics_sum(struct oc_metrics *m, unsigned id, uint32_t series, uint64_t *dst) {
    const struct oc_metric_place *row = &m->rows[id];
    size_t first = row->first + (size_t)series * row->width;

    for (uint32_t i = 0; i < row->width; i++) {
        dst[i] = atomic_load_explicit(&m->shared[first + i], memory_order_relaxed);
    }
    (void)pthread_mutex_lock(&m->lock);
    for (struct oc_metric_cells *c = m->cells; c != NULL; c = c->next) {
        for (uint32_t i = 0; i < row->width; i++) {
            dst[i] += atomic_load_explicit(&c->v[first + i], memory_order_relaxed);
        }
    }
    (void)pthread_mutex_unlock(&m->lock);
}

int64_t oc_metrics_value(struct oc_metrics *m, unsigned id, uint32_t series) {
    uint64_t cells[OC_METRIC_BUCKETS_MAX + 2];
    uint64_t total = 0;

    if (!OC_COUNT(id < m->count) || !OC_COUNT(series < m->rows[id].series)) {
        return 0;
    }
    oc_metrics_sum(m, id, series, cells);
    if (m->rows[id].width == 1) {
        return (int64_t)cells[0];
    }
    for (uint32_t i = 0; i + 1 < m->rows[id].width; i++) {
        total += cells[i];
    }
    return (int64_t)total;
}
