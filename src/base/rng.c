/* xoshiro256** seeded by splitmix64 (Blackman and Vigna, public description of both generators). */
#include "base/rng.h"

#include "base/check.h"

static uint64_t splitmix64(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

void oc_rng_init(struct oc_rng *rng, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        rng->s[i] = splitmix64(&seed);
    }
}

uint64_t oc_rng_next(struct oc_rng *rng) {
    uint64_t *s = rng->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t oc_rng_below(struct oc_rng *rng, uint64_t bound) {
    OC_DCHECK(bound > 0);
    /* Multiply-shift; the bias of at most bound / 2^64 is of no consequence here. */
    return (uint64_t)(((unsigned __int128)oc_rng_next(rng) * bound) >> 64);
}

double oc_rng_unit(struct oc_rng *rng) {
    return (double)(oc_rng_next(rng) >> 11) * 0x1.0p-53;
}
