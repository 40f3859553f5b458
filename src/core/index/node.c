/* Search in nodes and change of one node; see node.h. */
#include "core/index/node.h"

#include "base/hash.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- bytes ---- */

size_t oc_common_prefix(struct oc_span a, struct oc_span b) {
    size_t n = a.len < b.len ? a.len : b.len;
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        uint64_t diff = oc_load64(a.p + i) ^ oc_load64(b.p + i);

        if (diff != 0) {
            return i + (size_t)__builtin_ctzll(diff) / 8;
        }
    }
    while (i < n && a.p[i] == b.p[i]) {
        i++;
    }
    return i;
}

uint64_t oc_head64(struct oc_span s, size_t at) {
    uint64_t v = 0;
    size_t n = s.len - at;

    if (n >= 8) {
        return __builtin_bswap64(oc_load64(s.p + at));
    }
    for (size_t i = 0; i < n; i++) {
        v |= (uint64_t)s.p[at + i] << (56 - 8 * i);
    }
    return v;
}

uint32_t oc_head32(struct oc_span s, size_t at) {
    if (s.len - at >= 4) {
        return __builtin_bswap32(oc_load32(s.p + at));
    }
    return (uint32_t)(oc_head64(s, at) >> 32);
}

uint8_t oc_fingerprint(struct oc_span key) {
    return (uint8_t)(oc_hash_key(key) * 0x9e3779b97f4a7c15ull >> 56);
}

/* ---- inner nodes ---- */

#define KNOWN_SLACK 2u

static unsigned heads64_below(const uint64_t *heads, unsigned n, uint64_t head) {
    const uint64_t *p = heads;

    while (n > 1) {
        unsigned half = n / 2;

        p += p[half - 1] < head ? half : 0;
        n -= half;
    }
    return (unsigned)(p - heads) + (n == 1 && *p < head);
}

static unsigned heads32_below(const uint32_t *heads, unsigned n, uint32_t head) {
    const uint32_t *p = heads;

    while (n > 1) {
        unsigned half = n / 2;

        p += p[half - 1] < head ? half : 0;
        n -= half;
    }
    return (unsigned)(p - heads) + (n == 1 && *p < head);
}

/* -1, 0, 1: bytes [from, to) of the key against those of the separator, which is long enough. */
static int compare_part(const struct oc_index *ix, struct oc_span key, uint32_t separator,
                        size_t from, size_t to) {
    size_t len = key.len < to ? key.len : to;

    return oc_span_compare(oc_span(key.p + from, len - from),
                           oc_span(oc_separator_at(ix, separator)->bytes + from, to - from));
}

/* The number of separators in [low, high) that are <= key, plus low: by their bytes. */
static unsigned child_by_bytes(const struct oc_index *ix, const struct oc_inner *n,
                               struct oc_span key, unsigned low, unsigned high) {
    while (low < high) {
        unsigned mid = (low + high) / 2;

        if (oc_span_compare(oc_separator_span(ix, n->separators[mid]), key) <= 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

/* The end of the run of equal heads (or tails) that begins at `low`. */
static unsigned run_end(const uint64_t *heads, unsigned low, unsigned n) {
    return heads[low] == UINT64_MAX ? n : low + heads64_below(heads + low, n - low, heads[low] + 1);
}

/* The same in a run of equal heads: by their tails first. */
static unsigned child_in_run(const struct oc_index *ix, const struct oc_inner *n,
                             struct oc_span key, unsigned low, unsigned high) {
    size_t skip = n->skips[low];
    uint64_t tail;
    unsigned at;
    int c;

    for (unsigned i = low; i < high; i += 64 / sizeof n->tails[0]) {
        __builtin_prefetch(&n->tails[i]);
    }
    c = compare_part(ix, key, n->separators[low], n->prefix_len, skip);
    if (c != 0) {
        return c < 0 ? low : high;
    }
    tail = oc_head64(key, skip);
    at = low + heads64_below(n->tails + low, high - low, tail);
    if (at == high || n->tails[at] != tail) {
        return at;
    }
    return child_by_bytes(ix, n, key, at, run_end(n->tails, at, high));
}

unsigned oc_inner_child(const struct oc_index *ix, const struct oc_inner *n, struct oc_span key) {
    unsigned low;
    unsigned high;
    uint64_t head;

    if (n->prefix_len > n->known_len) {
        int c = compare_part(ix, key, n->separators[0], n->known_len, n->prefix_len);

        if (c != 0) {
            return c < 0 ? 0 : n->n;
        }
    }
    head = oc_head64(key, n->prefix_len);
    low = heads64_below(n->heads, n->n, head);
    if (low == n->n || n->heads[low] != head) {
        return low;
    }
    high = run_end(n->heads, low, n->n);
    return high - low > 1 ? child_in_run(ix, n, key, low, high)
                          : child_by_bytes(ix, n, key, low, high);
}

static void refresh_runs(const struct oc_index *ix, struct oc_inner *n) {
    unsigned high;

    for (unsigned low = 0; low < n->n; low = high) {
        size_t skip;

        high = run_end(n->heads, low, n->n);
        if (high - low < 2) {
            continue;
        }
        skip = oc_common_prefix(oc_separator_span(ix, n->separators[low]),
                                oc_separator_span(ix, n->separators[high - 1]));
        n->skips[low] = (uint16_t)skip;
        for (unsigned i = low; i < high; i++) {
            n->tails[i] = oc_head64(oc_separator_span(ix, n->separators[i]), skip);
        }
    }
}

void oc_inner_refresh(const struct oc_index *ix, struct oc_inner *n, unsigned from, unsigned to) {
    size_t prefix_len;

    if (n->n == 0) {
        n->prefix_len = n->known_len;
        return;
    }
    prefix_len = oc_common_prefix(oc_separator_span(ix, n->separators[0]),
                                  oc_separator_span(ix, n->separators[n->n - 1]));
    /* A byte or two of the heads are a fair price for not having to look at a separator. */
    if (prefix_len - n->known_len <= KNOWN_SLACK) {
        prefix_len = n->known_len;
    }
    if (prefix_len != n->prefix_len) {
        n->prefix_len = (uint16_t)prefix_len;
        from = 0;
        to = n->n;
    }
    for (unsigned i = from; i < to; i++) {
        n->heads[i] = oc_head64(oc_separator_span(ix, n->separators[i]), prefix_len);
    }
    refresh_runs(ix, n);
}

/* ---- leaves ---- */

/* Bit per slot whose fingerprint is `print`. */
static uint64_t leaf_candidates(const struct oc_leaf *l, uint8_t print) {
    uint64_t mask = 0;
#ifdef __SSE2__
    /* The leaf's first line: 8 bytes of header, then the fingerprints. */
    const __m128i *line = (const __m128i *)(const void *)l;
    __m128i want = _mm_set1_epi8((char)print);

    for (unsigned i = 0; i < 4; i++) {
        __m128i same = _mm_cmpeq_epi8(_mm_load_si128(line + i), want);

        mask |= (uint64_t)(uint32_t)_mm_movemask_epi8(same) << (16 * i);
    }
    mask >>= offsetof(struct oc_leaf, prints);
#else
    for (unsigned i = 0; i < OC_LEAF_SLOTS; i++) {
        mask |= (uint64_t)(l->prints[i] == print) << i;
    }
#endif
    return mask & ((1ull << l->n) - 1);
}

unsigned oc_leaf_find(const struct oc_index *ix, const struct oc_leaf *l, struct oc_span key,
                      uint8_t print) {
    for (uint64_t mask = leaf_candidates(l, print); mask != 0; mask &= mask - 1) {
        unsigned slot = (unsigned)__builtin_ctzll(mask);

        oc_prefetch_item(ix, l->items[slot]);
        if (oc_span_equal(oc_item_key(ix, l->items[slot]), key)) {
            return slot;
        }
    }
    return OC_LEAF_SLOTS;
}

/* Among slots [low, high) with the key's head: bytes decide. */
static struct oc_place place_among(const struct oc_index *ix, const struct oc_leaf *l,
                                   struct oc_span key, unsigned low, unsigned high) {
    bool equal = false;

    while (low < high && !equal) {
        unsigned mid = (low + high) / 2;
        int c = oc_span_compare(oc_item_key(ix, l->items[mid]), key);

        if (c < 0) {
            low = mid + 1;
        } else {
            high = mid;
            equal = c == 0;
            low = equal ? mid : low;
        }
    }
    return (struct oc_place){low, equal, l->prefix_len};
}

struct oc_place oc_leaf_place(const struct oc_index *ix, const struct oc_leaf *l,
                              struct oc_span key) {
    uint32_t head;
    unsigned low;
    unsigned high;
    size_t common;
    struct oc_span near;

    if (l->n == 0) {
        return (struct oc_place){0, false, key.len};
    }
    if (l->n == 1) {
        struct oc_span only = oc_item_key(ix, l->items[0]);
        int c = oc_span_compare(only, key);

        return (struct oc_place){c < 0, c == 0, oc_common_prefix(only, key)};
    }
    /* Search as if the key had the prefix; the item next to the place tells whether it has. */
    head = key.len >= l->prefix_len ? oc_head32(key, l->prefix_len) : 0;
    low = heads32_below(l->heads, l->n, head);
    near = oc_item_key(ix, l->items[low < l->n ? low : low - 1]);
    common = oc_common_prefix(near, key);
    if (common < l->prefix_len) {
        bool above = oc_span_compare(near, key) < 0;

        return (struct oc_place){above ? l->n : 0, false, common};
    }
    for (high = low; high < l->n && l->heads[high] == head;) {
        high++;
    }
    return place_among(ix, l, key, low, high);
}

static void leaf_set_prefix(const struct oc_index *ix, struct oc_leaf *l, size_t prefix_len) {
    for (unsigned i = 0; i < l->n; i++) {
        oc_prefetch_item(ix, l->items[i]);
    }
    for (unsigned i = 0; i < l->n; i++) {
        l->heads[i] = oc_head32(oc_item_key(ix, l->items[i]), prefix_len);
    }
    l->prefix_len = (uint16_t)prefix_len;
}

void oc_leaf_insert(const struct oc_index *ix, struct oc_leaf *l, const struct oc_place *place,
                    uint32_t item, uint8_t print) {
    unsigned slot = place->slot;
    unsigned behind = l->n - slot;

    OC_CHECK(l->n < OC_LEAF_SLOTS && slot <= l->n);
    if (place->prefix_len != l->prefix_len) {
        leaf_set_prefix(ix, l, place->prefix_len);
    }
    memmove(&l->prints[slot + 1], &l->prints[slot], behind);
    memmove(&l->items[slot + 1], &l->items[slot], behind * sizeof l->items[0]);
    memmove(&l->heads[slot + 1], &l->heads[slot], behind * sizeof l->heads[0]);
    l->prints[slot] = print;
    l->items[slot] = item;
    l->heads[slot] = oc_head32(oc_item_key(ix, item), l->prefix_len);
    l->n++;
}

void oc_leaf_remove(struct oc_leaf *l, unsigned slot) {
    unsigned behind = l->n - slot - 1u;

    OC_CHECK(slot < l->n);
    memmove(&l->prints[slot], &l->prints[slot + 1], behind);
    memmove(&l->items[slot], &l->items[slot + 1], behind * sizeof l->items[0]);
    memmove(&l->heads[slot], &l->heads[slot + 1], behind * sizeof l->heads[0]);
    l->n--;
}

/* ---- the way down ---- */

/* All lines at once: one wait, where a search that finds its way line by line would wait thrice. */
static void prefetch_inner(const struct oc_inner *n) {
    const char *p = (const char *)n;

    for (size_t at = 0; at < sizeof *n; at += 64) {
        __builtin_prefetch(p + at);
    }
}

void oc_descend(const struct oc_index *ix, struct oc_span key, struct oc_path *ret) {
    uint32_t node = ix->root;

    ret->levels = ix->levels;
    for (unsigned i = 0; i < ix->levels; i++) {
        const struct oc_inner *n = oc_inner_at(ix, node);
        unsigned child = oc_inner_child(ix, n, key);

        ret->nodes[i] = node;
        ret->children[i] = (uint8_t)child;
        node = n->children[child];
        if (i + 1 < ix->levels) {
            prefetch_inner(oc_inner_at(ix, node));
        }
    }
    ret->leaf = node;
}
