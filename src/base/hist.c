/* The reading side; recording is inline. */
#include "base/hist.h"

#include <math.h>
#include <string.h>

void oc_hist_init(struct oc_hist *h) {
    memset(h, 0, sizeof *h);
    h->min = UINT64_MAX;
}

void oc_hist_add(struct oc_hist *into, const struct oc_hist *from) {
    for (unsigned i = 0; i < OC_HIST_BUCKETS; i++) {
        into->buckets[i] += from->buckets[i];
    }
    into->count += from->count;
    into->sum += from->sum;
    into->sum_squares += from->sum_squares;
    into->min = from->min < into->min ? from->min : into->min;
    into->max = from->max > into->max ? from->max : into->max;
}

static uint64_t bucket_middle(unsigned bucket) {
    if (bucket < OC_HIST_SUB) {
        return bucket;
    }
    unsigned shift = bucket / OC_HIST_SUB - 1;
    uint64_t low = (uint64_t)(bucket % OC_HIST_SUB + OC_HIST_SUB) << shift;

    return low + ((UINT64_C(1) << shift) - 1) / 2;
}

uint64_t oc_hist_quantile(const struct oc_hist *h, double q) {
    uint64_t seen = 0;
    double rank = ceil(q * (double)h->count);

    if (h->count == 0) {
        return 0;
    }
    if (q <= 0 || q >= 1) {
        return q <= 0 ? h->min : h->max;
    }
    for (unsigned i = 0; i < OC_HIST_BUCKETS; i++) {
        seen += h->buckets[i];
        if (h->buckets[i] != 0 && (double)seen >= rank) {
            uint64_t v = bucket_middle(i);

            v = v < h->min ? h->min : v;
            return v > h->max ? h->max : v;
        }
    }
    return h->max;
}

double oc_hist_mean(const struct oc_hist *h) {
    return h->count == 0 ? 0 : (double)h->sum / (double)h->count;
}

double oc_hist_stddev(const struct oc_hist *h) {
    double mean = oc_hist_mean(h);
    double variance = h->count == 0 ? 0 : h->sum_squares / (double)h->count - mean * mean;

    return variance > 0 ? sqrt(variance) : 0; /* rounding may leave it just below zero */
}
