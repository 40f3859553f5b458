/* The load of `ocachecli bench`: operation mix, key choice, value bytes and their verification.
 * Pure functions of a seed, so that they can be tested and a run can be repeated. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "apps/ocachecli_bench.h"
#include "base/check.h"
#include "base/parse.h"

#define ZIPF_THETA   0.99
#define OFFSET_SPACE (1u << 20) /* different windows */

/* ---- mix ---- */

static int mix_part(struct oc_span part, struct bench_mix *mix, struct oc_error *err) {
    static const struct oc_span names[BENCH_OPS] = {{(const uint8_t *)"read=", 5},
                                                    {(const uint8_t *)"update=", 7}};

    for (int op = 0; op < BENCH_OPS; op++) {
        struct oc_span number = oc_span(part.p + names[op].len, part.len - names[op].len);
        uint64_t weight;

        if (!oc_span_starts_with(part, names[op])) {
            continue;
        }
        if (oc_parse_uint64(number, &weight) != 0 || weight > 1000000) {
            return oc_error_set(err, OC_E_INVALID, "workload: bad weight in '%.*s'", (int)part.len,
                                (const char *)part.p);
        }
        mix->weights[op] = weight;
        return 0;
    }
    return oc_error_set(err, OC_E_INVALID,
                        "workload '%.*s' is none of A, B, C and not weights as in "
                        "read=70,update=30",
                        (int)part.len, (const char *)part.p);
}

int bench_mix_parse(const char *text, struct bench_mix *ret, struct oc_error *err) {
    static const struct {
        const char *name;
        uint64_t read, update;
    } known[] = {{"A", 50, 50}, {"B", 95, 5}, {"C", 100, 0}};
    struct bench_mix mix = {.total = 0};
    const char *at = text;

    (void)snprintf(mix.name, sizeof mix.name, "%s", text);
    for (size_t i = 0; i < OC_ARRAY_LEN(known); i++) {
        if (strcasecmp(text, known[i].name) == 0) {
            mix.weights[BENCH_READ] = known[i].read;
            mix.weights[BENCH_UPDATE] = known[i].update;
            mix.total = 100;
            (void)snprintf(mix.name, sizeof mix.name, "%s", known[i].name);
            *ret = mix;
            return 0;
        }
    }
    for (;;) {
        size_t len = strcspn(at, ",");
        int rv = mix_part(oc_span(at, len), &mix, err);

        if (rv != 0) {
            return rv;
        }
        if (at[len] == 0) {
            break;
        }
        at += len + 1;
    }
    mix.total = mix.weights[BENCH_READ] + mix.weights[BENCH_UPDATE];
    if (mix.total == 0) {
        return oc_error_set(err, OC_E_INVALID, "workload '%.100s' has no weight above 0", text);
    }
    *ret = mix;
    return 0;
}

enum bench_op bench_mix_pick(const struct bench_mix *mix, struct oc_rng *rng) {
    return oc_rng_below(rng, mix->total) < mix->weights[BENCH_READ] ? BENCH_READ : BENCH_UPDATE;
}

/* ---- keys ---- */

static uint64_t fnv1a64(uint64_t index) {
    uint64_t h = 14695981039346656037u;

    for (int i = 0; i < 8; i++) {
        h ^= (index >> (8 * i)) & 0xff;
        h *= 1099511628211u;
    }
    return h;
}

/* J. Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994. */
void bench_keys_init(struct bench_keys *keys, uint64_t count, bool zipfian) {
    *keys = (struct bench_keys){.count = count, .zipfian = zipfian && count > 1};
    if (!keys->zipfian) {
        return;
    }
    for (uint64_t i = 1; i <= count; i++) {
        keys->zeta_n += 1.0 / pow((double)i, ZIPF_THETA);
    }
    double zeta_2 = 1.0 + 1.0 / pow(2.0, ZIPF_THETA);
    keys->alpha = 1.0 / (1.0 - ZIPF_THETA);
    keys->eta = count == 2 ? 0.0
                           : (1.0 - pow(2.0 / (double)count, 1.0 - ZIPF_THETA)) /
                                 (1.0 - zeta_2 / keys->zeta_n);
}

uint64_t bench_keys_pick(const struct bench_keys *keys, struct oc_rng *rng) {
    uint64_t rank;

    if (!keys->zipfian) {
        return oc_rng_below(rng, keys->count);
    }
    double u = oc_rng_unit(rng);
    double uz = u * keys->zeta_n;
    if (uz < 1.0) {
        rank = 0;
    } else if (uz < 1.0 + pow(0.5, ZIPF_THETA)) {
        rank = 1;
    } else {
        rank = (uint64_t)((double)keys->count * pow(keys->eta * u - keys->eta + 1.0, keys->alpha));
    }
    /* Scattered, so that popular keys are not neighbours. */
    return fnv1a64(rank < keys->count ? rank : keys->count - 1) % keys->count;
}

size_t bench_key_name(uint64_t index, char dst[BENCH_KEY_MAX]) {
    return (size_t)snprintf(dst, BENCH_KEY_MAX, "user%llx", (unsigned long long)fnv1a64(index));
}

/* ---- values ---- */

int bench_values_init(struct bench_values *v, size_t value_size, uint64_t seed) {
    size_t total = value_size + OFFSET_SPACE;
    struct oc_rng rng;

    v->bytes = malloc(total + sizeof(uint64_t));
    if (v->bytes == NULL) {
        return OC_E_EXHAUSTED;
    }
    v->value_size = value_size;
    v->salt = seed;
    oc_rng_init(&rng, seed);
    for (size_t i = 0; i < total; i += sizeof(uint64_t)) {
        oc_store64(v->bytes + i, oc_rng_next(&rng));
    }
    return 0;
}

void bench_values_done(struct bench_values *v) {
    free(v->bytes);
    v->bytes = NULL;
}

const uint8_t *bench_value(const struct bench_values *v, uint64_t key, uint32_t generation) {
    uint64_t h = fnv1a64(key ^ ((uint64_t)generation << 40) ^ v->salt);

    return v->bytes + ((h ^ (h >> 32)) & (OFFSET_SPACE - 1));
}

/* ---- generations ---- */

uint32_t bench_write_begin(struct bench_key_state *k) {
    if (k->writing > 0) {
        k->overlapped = true;
    }
    k->writing++;
    return ++k->issued;
}

void bench_write_end(struct bench_key_state *k, uint32_t generation, bool ok) {
    OC_CHECK(k->writing > 0);
    k->writing--;
    k->uncertain = k->uncertain || !ok;
    if (k->writing > 0) {
        return;
    }
    if (!k->overlapped && !k->uncertain) {
        k->floor = generation;
    }
    k->overlapped = false;
}

/* ---- verification ---- */

void bench_check_begin(struct bench_check *c, const struct bench_values *values, uint64_t key,
                       const struct bench_key_state *state) {
    c->values = values;
    c->state = state;
    c->key = key;
    c->floor = state->floor;
    c->seen = 0;
    c->expected = NULL;
    c->wrong = 0;
}

/* Which of the generations that may be there is it? Newest first: the usual one. */
static void identify(struct bench_check *c, size_t have) {
    for (uint32_t g = c->state->issued;; g--) {
        const uint8_t *candidate = bench_value(c->values, c->key, g);

        if (memcmp(candidate, c->head, have) == 0) {
            c->expected = candidate;
            return;
        }
        if (g == c->floor || g == 0) {
            break;
        }
    }
    /* None: counted as wrong against the newest, byte by byte. */
    c->expected = bench_value(c->values, c->key, c->state->issued);
}

static void compare(struct bench_check *c, const uint8_t *p, size_t offset, size_t len) {
    size_t inside = offset < c->values->value_size ? c->values->value_size - offset : 0;
    size_t n = len < inside ? len : inside;

    if (n > 0 && memcmp(p, c->expected + offset, n) != 0) {
        for (size_t i = 0; i < n; i++) {
            c->wrong += p[i] != c->expected[offset + i];
        }
    }
    c->wrong += len - n; /* bytes beyond the value */
}

void bench_check_piece(struct bench_check *c, struct oc_span piece) {
    if (c->expected == NULL) {
        size_t have = c->seen;
        size_t n = piece.len < BENCH_CHECK_HEAD - have ? piece.len : BENCH_CHECK_HEAD - have;

        memcpy(c->head + have, piece.p, n);
        c->seen += n;
        if (c->seen < BENCH_CHECK_HEAD && c->seen < c->values->value_size) {
            return;
        }
        identify(c, c->seen < c->values->value_size ? c->seen : c->values->value_size);
        compare(c, c->head, 0, c->seen);
        piece = oc_span(piece.p + n, piece.len - n);
    }
    compare(c, piece.p, c->seen, piece.len);
    c->seen += piece.len;
}

uint64_t bench_check_end(struct bench_check *c) {
    if (c->seen < c->values->value_size) {
        c->wrong += c->values->value_size - c->seen;
    }
    return c->wrong;
}
