/* Small bounded hash maps for modules: bytes -> pointer and u64 -> pointer. Open addressing with
 * linear probing, no tombstones. Not thread-safe. Values are not NULL and not owned. Growing
 * doubles the table in one go: for maps of up to some 100 000 entries. */
#ifndef OC_BASE_MAP_H
#define OC_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/span.h"

/* ---- bytes -> pointer. Keys are borrowed: usually they live in the value. ---- */
struct oc_map_entry {
    uint64_t hash;
    struct oc_span key;
    void *value; /* NULL: free */
};

struct oc_map {
    struct oc_map_entry *entries;
    size_t cap; /* 0 or a power of two */
    size_t count;
    size_t max_count;
    uint64_t seed;
};

/* Allocates nothing. `seed`: random where keys come from outside, so that nobody can aim at one
 * chain. */
void oc_map_init(struct oc_map *m, size_t max_count, uint64_t seed);
void oc_map_done(struct oc_map *m);
void *oc_map_find(const struct oc_map *m, struct oc_span key); /* NULL: absent */
/* Insert or replace (the key as well); *ret_old (may be NULL) is the value replaced, or NULL.
 * OC_E_EXHAUSTED at the bound or without memory, nothing changed. */
int oc_map_put(struct oc_map *m, struct oc_span key, void *value, void **ret_old);
void *oc_map_remove(struct oc_map *m, struct oc_span key); /* the value, or NULL */
/* Walk in no order: start with *at = 0; false at the end. The map must not change meanwhile. */
bool oc_map_next(const struct oc_map *m, size_t *at, struct oc_span *ret_key, void **ret_value);

/* ---- u64 -> pointer ---- */
struct oc_map64_entry {
    uint64_t key;
    void *value; /* NULL: free */
};

struct oc_map64 {
    struct oc_map64_entry *entries;
    size_t cap;
    size_t count;
    size_t max_count;
    uint64_t seed;
};

void oc_map64_init(struct oc_map64 *m, size_t max_count, uint64_t seed);
void oc_map64_done(struct oc_map64 *m);
void *oc_map64_find(const struct oc_map64 *m, uint64_t key);
int oc_map64_put(struct oc_map64 *m, uint64_t key, void *value, void **ret_old);
void *oc_map64_remove(struct oc_map64 *m, uint64_t key);
bool oc_map64_next(const struct oc_map64 *m, size_t *at, uint64_t *ret_key, void **ret_value);

#endif
