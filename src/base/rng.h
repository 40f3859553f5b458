/* Random numbers as values: xoshiro256**, seeded explicitly, so that a run can be replayed. */
#ifndef OC_BASE_RNG_H
#define OC_BASE_RNG_H

#include <stdint.h>

struct oc_rng {
    uint64_t s[4];
};

void oc_rng_init(struct oc_rng *rng, uint64_t seed);
uint64_t oc_rng_next(struct oc_rng *rng);
/* Uniform in [0, bound); bound > 0. */
uint64_t oc_rng_below(struct oc_rng *rng, uint64_t bound);
/* Uniform in [0, 1). */
double oc_rng_unit(struct oc_rng *rng);

#endif
