/* A log-linear histogram of 64-bit values (latencies in ns, sizes): every power of two is cut into
 * 64 buckets, so that a percentile is at most 1/128 (0.8 %) off the recorded value. About 30 KB;
 * recording is a few instructions. Not thread-safe: one per thread, merged at the end. */
#ifndef OC_BASE_HIST_H
#define OC_BASE_HIST_H

#include <stdint.h>

#define OC_HIST_SUB_BITS 6u
#define OC_HIST_SUB      (1u << OC_HIST_SUB_BITS)
#define OC_HIST_BUCKETS  ((64u - OC_HIST_SUB_BITS + 1u) * OC_HIST_SUB)

struct oc_hist {
    uint64_t count;
    uint64_t sum; /* wraps: 584 years of nanoseconds */
    uint64_t min; /* UINT64_MAX while empty */
    uint64_t max;
    double sum_squares; /* for the standard deviation */
    uint64_t buckets[OC_HIST_BUCKETS];
};

void oc_hist_init(struct oc_hist *h);
void oc_hist_add(struct oc_hist *into, const struct oc_hist *from);

static inline unsigned oc_hist_bucket(uint64_t v) {
    if (v < OC_HIST_SUB) {
        return (unsigned)v;
    }
    unsigned shift = 63u - (unsigned)__builtin_clzll(v) - OC_HIST_SUB_BITS;

    /* The top bit and the next 6; each shift has its own 64 buckets. */
    return (shift + 1) * OC_HIST_SUB + (unsigned)(v >> shift) - OC_HIST_SUB;
}

static inline void oc_hist_record(struct oc_hist *h, uint64_t v) {
    h->buckets[oc_hist_bucket(v)]++;
    h->count++;
    h->sum += v;
    h->sum_squares += (double)v * (double)v;
    h->min = v < h->min ? v : h->min;
    h->max = v > h->max ? v : h->max;
}

/* The value below or at which the fraction q (0 to 1) of all values lies: the middle of its bucket,
 * within [min, max]; q 0 is the minimum and q 1 the maximum, exactly. 0 while empty. */
uint64_t oc_hist_quantile(const struct oc_hist *h, double q);
double oc_hist_mean(const struct oc_hist *h);
double oc_hist_stddev(const struct oc_hist *h);

#endif
