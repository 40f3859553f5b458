/* The index's model in tests: a sorted array, so simple that it is right by inspection. And the
 * keys that tests are made of. */
#ifndef TESTS_UNIT_INDEX_MODEL_H
#define TESTS_UNIT_INDEX_MODEL_H

#include "base/rng.h"
#include "core/index/index.h"

struct model_row {
    uint8_t *key;
    size_t len;
    struct oc_entry e;
};

struct model {
    struct model_row *rows;
    size_t n;
    size_t cap;
};

void model_done(struct model *m);
/* The first row with a key >= `key`; *equal says whether it is that key. */
size_t model_place(const struct model *m, struct oc_span key, bool *equal);
/* The same contract as oc_index_apply's. */
int model_apply(struct model *m, struct oc_span key, const struct oc_entry *e);
void model_remove_at(struct model *m, size_t i);

/* Asserts that every key, entry and count agrees. */
void model_compare(const struct model *m, const struct oc_index *ix);

enum key_shape {
    SHAPE_TWO_LETTERS, /* 0..12 letters out of two */
    SHAPE_ZERO_AND_FF, /* 0..9 bytes 0x00 or 0xff */
    SHAPE_LONG_PREFIX, /* up to 300 bytes, most of them shared */
    SHAPE_ONE_LETTER,  /* prefixes of one another, 0..300 */
    SHAPE_RANDOM,      /* 1..300 random bytes */
    SHAPE_TENANTS,     /* "bucket/tenant-000012/object-000000000345", padded to 64 */
    SHAPE_GAP,         /* 2 digits, 20 fixed bytes, 2 digits: heads do not tell keys apart */
    SHAPE_CLASS_EDGES, /* lengths around the edges of size classes, up to 65535 */
    SHAPES,
};

/* A key of the shape into `buf` (OC_INDEX_KEY_MAX bytes); few enough different ones to meet again.
 */
struct oc_span key_make(struct oc_rng *rng, enum key_shape shape, uint8_t *buf);
/* An entry with a version below `versions`. */
struct oc_entry entry_make(struct oc_rng *rng, uint64_t versions);
bool entry_equal(const struct oc_entry *a, const struct oc_entry *b);

#endif
