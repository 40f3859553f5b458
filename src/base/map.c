/* Two maps of one build: linear probing at most three quarters full; removal shifts the rest of the
 * chain back, so that chains never rot. */
#include "base/map.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/hash.h"

#define CAP_MIN 16u

/* The table's size for one more entry, or 0 when none is allowed. */
static size_t cap_for(size_t cap, size_t count, size_t max_count) {
    if (count >= max_count) {
        return 0;
    }
    if (cap == 0) {
        return CAP_MIN;
    }
    if (count + 1 <= cap / 4 * 3) {
        return cap;
    }
    return cap > SIZE_MAX / 2 ? 0 : cap * 2;
}

/* Whether an entry whose chain starts at `home` and that stands at `at` may move back to `hole`. */
static bool may_move(size_t home, size_t hole, size_t at, size_t mask) {
    return ((at - home) & mask) >= ((at - hole) & mask);
}

void oc_map_init(struct oc_map *m, size_t max_count, uint64_t seed) {
    *m = (struct oc_map){.max_count = max_count, .seed = seed};
}

void oc_map_done(struct oc_map *m) {
    free(m->entries);
    oc_map_init(m, m->max_count, m->seed);
}

/* The entry of the key, or the free one where it would go. The table is never full. */
static struct oc_map_entry *map_slot(const struct oc_map *m, uint64_t hash, struct oc_span key) {
    size_t mask = m->cap - 1;
    size_t i = hash & mask;

    while (m->entries[i].value != NULL &&
           (m->entries[i].hash != hash || !oc_span_equal(m->entries[i].key, key))) {
        i = (i + 1) & mask;
    }
    return &m->entries[i];
}

void *oc_map_find(const struct oc_map *m, struct oc_span key) {
    return m->count == 0 ? NULL : map_slot(m, oc_hash_seeded(key, m->seed), key)->value;
}

static int map_grow(struct oc_map *m) {
    size_t cap = cap_for(m->cap, m->count, m->max_count);
    struct oc_map bigger = *m;

    if (cap == m->cap) {
        return OC_OK;
    }
    bigger.entries = cap == 0 ? NULL : calloc(cap, sizeof *bigger.entries);
    if (bigger.entries == NULL) {
        return OC_E_EXHAUSTED;
    }
    bigger.cap = cap;
    for (size_t i = 0; i < m->cap; i++) {
        if (m->entries[i].value != NULL) {
            *map_slot(&bigger, m->entries[i].hash, m->entries[i].key) = m->entries[i];
        }
    }
    free(m->entries);
    *m = bigger;
    return OC_OK;
}

int oc_map_put(struct oc_map *m, struct oc_span key, void *value, void **ret_old) {
    uint64_t hash = oc_hash_seeded(key, m->seed);
    struct oc_map_entry *e = m->cap == 0 ? NULL : map_slot(m, hash, key);
    void *old = e == NULL ? NULL : e->value;

    OC_CHECK(value != NULL);
    if (old == NULL) {
        int r = map_grow(m);

        if (r < 0) {
            return r;
        }
        e = map_slot(m, hash, key);
        m->count++;
    }
    *e = (struct oc_map_entry){hash, key, value};
    if (ret_old != NULL) {
        *ret_old = old;
    }
    return OC_OK;
}

void *oc_map_remove(struct oc_map *m, struct oc_span key) {
    struct oc_map_entry *e = m->count == 0 ? NULL : map_slot(m, oc_hash_seeded(key, m->seed), key);
    void *value = e == NULL ? NULL : e->value;
    size_t mask = m->cap - 1;

    if (value == NULL) {
        return NULL;
    }
    size_t hole = (size_t)(e - m->entries);
    for (size_t i = (hole + 1) & mask; m->entries[i].value != NULL; i = (i + 1) & mask) {
        if (may_move(m->entries[i].hash & mask, hole, i, mask)) {
            m->entries[hole] = m->entries[i];
            hole = i;
        }
    }
    m->entries[hole].value = NULL;
    m->count--;
    return value;
}

bool oc_map_next(const struct oc_map *m, size_t *at, struct oc_span *ret_key, void **ret_value) {
    for (; *at < m->cap; ++*at) {
        if (m->entries[*at].value != NULL) {
            *ret_key = m->entries[*at].key;
            *ret_value = m->entries[*at].value;
            ++*at;
            return true;
        }
    }
    return false;
}

void oc_map64_init(struct oc_map64 *m, size_t max_count, uint64_t seed) {
    *m = (struct oc_map64){.max_count = max_count, .seed = seed};
}

void oc_map64_done(struct oc_map64 *m) {
    free(m->entries);
    oc_map64_init(m, m->max_count, m->seed);
}

/* The finaliser of splitmix64: every bit of the key reaches the low bits. */
static size_t map64_home(const struct oc_map64 *m, uint64_t key) {
    uint64_t z = key ^ m->seed;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (size_t)(z ^ (z >> 31)) & (m->cap - 1);
}

static struct oc_map64_entry *map64_slot(const struct oc_map64 *m, uint64_t key) {
    size_t i = map64_home(m, key);

    while (m->entries[i].value != NULL && m->entries[i].key != key) {
        i = (i + 1) & (m->cap - 1);
    }
    return &m->entries[i];
}

void *oc_map64_find(const struct oc_map64 *m, uint64_t key) {
    return m->count == 0 ? NULL : map64_slot(m, key)->value;
}

static int map64_grow(struct oc_map64 *m) {
    size_t cap = cap_for(m->cap, m->count, m->max_count);
    struct oc_map64 bigger = *m;

    if (cap == m->cap) {
        return OC_OK;
    }
    bigger.entries = cap == 0 ? NULL : calloc(cap, sizeof *bigger.entries);
    if (bigger.entries == NULL) {
        return OC_E_EXHAUSTED;
    }
    bigger.cap = cap;
    for (size_t i = 0; i < m->cap; i++) {
        if (m->entries[i].value != NULL) {
            *map64_slot(&bigger, m->entries[i].key) = m->entries[i];
        }
    }
    free(m->entries);
    *m = bigger;
    return OC_OK;
}

int oc_map64_put(struct oc_map64 *m, uint64_t key, void *value, void **ret_old) {
    struct oc_map64_entry *e = m->cap == 0 ? NULL : map64_slot(m, key);
    void *old = e == NULL ? NULL : e->value;

    OC_CHECK(value != NULL);
    if (old == NULL) {
        int r = map64_grow(m);

        if (r < 0) {
            return r;
        }
        e = map64_slot(m, key);
        m->count++;
    }
    *e = (struct oc_map64_entry){key, value};
    if (ret_old != NULL) {
        *ret_old = old;
    }
    return OC_OK;
}

void *oc_map64_remove(struct oc_map64 *m, uint64_t key) {
    struct oc_map64_entry *e = m->count == 0 ? NULL : map64_slot(m, key);
    void *value = e == NULL ? NULL : e->value;
    size_t mask = m->cap - 1;

    if (value == NULL) {
        return NULL;
    }
    size_t hole = (size_t)(e - m->entries);
    for (size_t i = (hole + 1) & mask; m->entries[i].value != NULL; i = (i + 1) & mask) {
        if (may_move(map64_home(m, m->entries[i].key), hole, i, mask)) {
            m->entries[hole] = m->entries[i];
            hole = i;
        }
    }
    m->entries[hole].value = NULL;
    m->count--;
    return value;
}

bool oc_map64_next(const struct oc_map64 *m, size_t *at, uint64_t *ret_key, void **ret_value) {
    for (; *at < m->cap; ++*at) {
        if (m->entries[*at].value != NULL) {
            *ret_key = m->entries[*at].key;
            *ret_value = m->entries[*at].value;
            ++*at;
            return true;
        }
    }
    return false;
}
