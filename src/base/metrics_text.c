/* The Prometheus text format, version 0.0.4
 * (https://prometheus.io/docs/instrumenting/exposition_formats/). */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/metrics_int.h"

/* Appends until the first failure, which it remembers. */
struct text {
    struct oc_buf *out;
    int result;
};

static void put(struct text *t, const char *s) {
    if (t->result == OC_OK) {
        t->result = oc_buf_append(t->out, s, strlen(s));
    }
}

/* Backslash and newline are escaped, in label values the quote, too. */
static void put_escaped(struct text *t, const char *s, bool label) {
    for (; *s != 0; s++) {
        char one[2] = {*s, 0};

        if (*s == '\n') {
            put(t, "\\n");
        } else if (*s == '\\') {
            put(t, "\\\\");
        } else if (*s == '"' && label) {
            put(t, "\\\"");
        } else {
            put(t, one);
        }
    }
}

static void put_head(struct text *t, const char *name, const char *help, const char *type) {
    put(t, "# HELP ");
    put(t, name);
    put(t, " ");
    put_escaped(t, help, false);
    put(t, "\n# TYPE ");
    put(t, name);
    put(t, " ");
    put(t, type);
    put(t, "\n");
}

/* value * 10^-decimals, exactly. */
static void put_decimal(struct text *t, uint64_t value, bool minus, unsigned decimals) {
    char digits[64];
    uint64_t scale = 1;
    int n;

    for (unsigned i = 0; i < decimals; i++) {
        scale *= 10;
    }
    n = snprintf(digits, sizeof digits, "%s%llu", minus && value != 0 ? "-" : "",
                 (unsigned long long)(value / scale));
    if (value % scale != 0) {
        n += snprintf(digits + n, sizeof digits - (size_t)n, ".%0*llu", (int)decimals,
                      (unsigned long long)(value % scale));
        while (digits[n - 1] == '0') {
            digits[--n] = 0;
        }
    }
    put(t, digits);
}

static void put_label(struct text *t, bool *first, const char *name, const char *value) {
    put(t, *first ? "{" : ",");
    put(t, name);
    put(t, "=\"");
    put_escaped(t, value, true);
    put(t, "\"");
    *first = false;
}

/* name, suffix and the labels of the series; the braces are left open when `open` says so. */
static void put_series(struct text *t, const struct oc_metric *d, const char *suffix,
                       uint32_t series, bool *open) {
    uint32_t stride = 1;
    bool first = true;

    put(t, d->name);
    put(t, suffix);
    for (unsigned i = 0; i < OC_METRIC_LABELS_MAX && d->labels[i] != NULL; i++) {
        stride *= d->labels[i]->count;
    }
    for (unsigned i = 0; i < OC_METRIC_LABELS_MAX && d->labels[i] != NULL; i++) {
        const struct oc_metric_label *l = d->labels[i];

        stride /= l->count;
        put_label(t, &first, l->name, l->values[series / stride % l->count]);
    }
    *open = !first;
}

static void put_value_line(struct text *t, const struct oc_metric *d, uint32_t series,
                           uint64_t cell) {
    int64_t v = (int64_t)cell;
    bool minus = d->kind == OC_METRIC_GAUGE && v < 0;
    bool open;

    put_series(t, d, "", series, &open);
    put(t, open ? "} " : " ");
    put_decimal(t, minus ? 0 - cell : cell, minus, d->decimals);
    put(t, "\n");
}

static void put_histogram(struct text *t, const struct oc_metric *d, uint32_t series,
                          const uint64_t *cells) {
    const struct oc_metric_buckets *b = d->buckets;
    uint64_t total = 0;
    bool open;

    for (unsigned i = 0; i <= b->count; i++) {
        total += cells[i];
        put_series(t, d, "_bucket", series, &open);
        put(t, open ? ",le=\"" : "{le=\"");
        if (i < b->count) {
            put_decimal(t, b->bounds[i], false, d->decimals);
        } else {
            put(t, "+Inf");
        }
        put(t, "\"} ");
        put_decimal(t, total, false, 0);
        put(t, "\n");
    }
    put_series(t, d, "_sum", series, &open);
    put(t, open ? "} " : " ");
    put_decimal(t, cells[b->count + 1], false, d->decimals);
    put(t, "\n");
    put_series(t, d, "_count", series, &open);
    put(t, open ? "} " : " ");
    put_decimal(t, total, false, 0);
    put(t, "\n");
}

static bool all_zero(const uint64_t *cells, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (cells[i] != 0) {
            return false;
        }
    }
    return true;
}

int oc_metrics_write(struct oc_metrics *m, struct oc_buf *out) {
    static const char *const types[] = {"counter", "gauge", "histogram"};
    struct text t = {out, OC_OK};
    void (*collect)(struct oc_metrics * m, void *arg);
    void *arg;

    (void)pthread_mutex_lock(&m->lock);
    collect = m->collect;
    arg = m->collect_arg;
    (void)pthread_mutex_unlock(&m->lock);
    if (collect != NULL) {
        collect(m, arg);
    }
    for (unsigned id = 0; id < m->count && t.result == OC_OK; id++) {
        const struct oc_metric *d = &m->table[id];

        put_head(&t, d->name, d->help, types[d->kind]);
        for (uint32_t s = 0; s < m->rows[id].series; s++) {
            uint64_t cells[OC_METRIC_BUCKETS_MAX + 2];

            oc_metrics_sum(m, id, s, cells);
            if (d->sparse && all_zero(cells, m->rows[id].width)) {
                continue;
            }
            if (d->kind == OC_METRIC_HISTOGRAM) {
                put_histogram(&t, d, s, cells);
            } else {
                put_value_line(&t, d, s, cells[0]);
            }
        }
    }
    return t.result;
}

int oc_metrics_write_info(struct oc_buf *out, const char *name, const char *help,
                          const struct oc_metric_text *texts, size_t count) {
    struct text t = {out, OC_OK};
    bool first = true;

    put_head(&t, name, help, "gauge");
    put(&t, name);
    for (size_t i = 0; i < count; i++) {
        put_label(&t, &first, texts[i].label, texts[i].value);
    }
    put(&t, first ? " 1\n" : "} 1\n");
    return t.result;
}

int oc_metrics_write_count_sites(struct oc_buf *out, const char *name) {
    struct text t = {out, OC_OK};

    put_head(&t, name, "Checks of unexpected but safe states that failed.", "counter");
    for (const struct oc_count_site *s = oc_count_sites(); s != NULL; s = s->next) {
        char site[160];
        bool first = true;

        (void)snprintf(site, sizeof site, "%s:%d", s->file, s->line);
        put(&t, name);
        put_label(&t, &first, "site", site);
        put_label(&t, &first, "check", s->expr);
        put(&t, "} ");
        put_decimal(&t, atomic_load_explicit(&s->hits, memory_order_relaxed), false, 0);
        put(&t, "\n");
    }
    return t.result;
}
