/* Every structural invariant, checked from the root down. */
#include "core/index/node.h"

struct check {
    const struct oc_index *ix;
    struct oc_index_stats seen;
    uint64_t leaves;
    uint64_t inners;
    uint64_t separators;
    uint32_t last_item; /* OC_SLAB_NONE: none yet */
};

static void check_item(struct check *c, const struct oc_leaf *l, unsigned slot) {
    const struct oc_index *ix = c->ix;
    uint32_t handle = l->items[slot];
    struct oc_span key;
    struct oc_entry e;

    OC_CHECK(oc_slabs_live(&ix->slabs, handle, OC_SLAB_ITEM));
    key = oc_item_key(ix, handle);
    OC_CHECK(oc_slabs_object_bytes(&ix->slabs, handle) >= offsetof(struct oc_item, key) + key.len);
    OC_CHECK(l->prints[slot] == oc_fingerprint(key));
    OC_CHECK(key.len >= l->prefix_len && l->heads[slot] == oc_head32(key, l->prefix_len));
    OC_CHECK(oc_common_prefix(key, oc_item_key(ix, l->items[0])) >= l->prefix_len);
    /* Strictly ascending over all leaves: so no key, and no handle, is there twice. */
    OC_CHECK(c->last_item == OC_SLAB_NONE ||
             oc_span_compare(oc_item_key(ix, c->last_item), key) < 0);
    c->last_item = handle;
    oc_item_load(oc_item_at(ix, handle), &e);
    oc_stats_add(&c->seen, key.len, &e);
}

/* Where heads are equal, the tails are those behind the run's common prefix. */
static void check_tails(const struct oc_index *ix, const struct oc_inner *n) {
    unsigned high;

    for (unsigned low = 0; low < n->n; low = high) {
        struct oc_span first = oc_separator_span(ix, n->separators[low]);

        for (high = low + 1; high < n->n && n->heads[high] == n->heads[low];) {
            high++;
        }
        for (unsigned i = low; i < high && high - low > 1; i++) {
            struct oc_span s = oc_separator_span(ix, n->separators[i]);

            OC_CHECK(oc_common_prefix(first, s) >= n->skips[low]);
            OC_CHECK(n->tails[i] == oc_head64(s, n->skips[low]));
        }
    }
}

/* Keys of the leaf are >= low and < high; OC_SLAB_NONE: no bound. */
static void check_leaf(struct check *c, uint32_t handle, uint32_t low, uint32_t high) {
    const struct oc_index *ix = c->ix;
    const struct oc_leaf *l = oc_leaf_at(ix, handle);

    OC_CHECK(oc_slabs_live(&ix->slabs, handle, OC_SLAB_LEAF));
    OC_CHECK(l->kind == OC_NODE_LEAF && l->n > 0 && l->n <= OC_LEAF_SLOTS);
    for (unsigned i = 0; i < l->n; i++) {
        check_item(c, l, i);
    }
    OC_CHECK(low == OC_SLAB_NONE ||
             oc_span_compare(oc_separator_span(ix, low), oc_item_key(ix, l->items[0])) <= 0);
    OC_CHECK(high == OC_SLAB_NONE ||
             oc_span_compare(oc_separator_span(ix, high), oc_item_key(ix, l->items[l->n - 1])) > 0);
    c->leaves++;
}

static void check_separators(struct check *c, const struct oc_inner *n, uint32_t low,
                             uint32_t high) {
    const struct oc_index *ix = c->ix;
    size_t common;

    OC_CHECK(n->kind == OC_NODE_INNER && n->n > 0 && n->n <= OC_INNER_SLOTS);
    for (unsigned i = 0; i < n->n; i++) {
        uint32_t before = i > 0 ? n->separators[i - 1] : low;
        struct oc_span s;

        OC_CHECK(oc_slabs_live(&ix->slabs, n->separators[i], OC_SLAB_SEPARATOR));
        s = oc_separator_span(ix, n->separators[i]);
        OC_CHECK(s.len >= n->prefix_len && n->heads[i] == oc_head64(s, n->prefix_len));
        OC_CHECK(before == OC_SLAB_NONE || oc_span_compare(oc_separator_span(ix, before), s) < 0);
        c->separators++;
    }
    common = oc_common_prefix(oc_separator_span(ix, n->separators[0]),
                              oc_separator_span(ix, n->separators[n->n - 1]));
    OC_CHECK(n->prefix_len == common || (n->prefix_len == n->known_len && n->prefix_len < common));
    OC_CHECK(n->known_len == 0 || (low != OC_SLAB_NONE && high != OC_SLAB_NONE &&
                                   oc_common_prefix(oc_separator_span(ix, low),
                                                    oc_separator_span(ix, high)) >= n->known_len));
    OC_CHECK(high == OC_SLAB_NONE || oc_span_compare(oc_separator_span(ix, n->separators[n->n - 1]),
                                                     oc_separator_span(ix, high)) < 0);
    check_tails(ix, n);
    c->inners++;
}

static void check_node(struct check *c, uint32_t handle, unsigned level, uint32_t low,
                       uint32_t high) {
    const struct oc_inner *n;

    if (level == c->ix->levels) {
        check_leaf(c, handle, low, high);
        return;
    }
    OC_CHECK(oc_slabs_live(&c->ix->slabs, handle, OC_SLAB_INNER));
    n = oc_inner_at(c->ix, handle);
    check_separators(c, n, low, high);
    for (unsigned i = 0; i <= n->n; i++) {
        check_node(c, n->children[i], level + 1, i > 0 ? n->separators[i - 1] : low,
                   i < n->n ? n->separators[i] : high);
    }
}

void oc_index_validate(const struct oc_index *ix) {
    struct check c = {.ix = ix, .last_item = OC_SLAB_NONE};

    OC_MAGIC_CHECK(ix, OC_INDEX_MAGIC);
    OC_CHECK(ix->levels <= OC_TREE_LEVELS);
    oc_slabs_validate(&ix->slabs);
    if (ix->root != OC_SLAB_NONE) {
        check_node(&c, ix->root, 0, OC_SLAB_NONE, OC_SLAB_NONE);
    }
    /* Everything allocated was seen, each object once: nothing leaks, nothing is shared. */
    OC_CHECK(c.seen.keys == oc_slabs_count(&ix->slabs, OC_SLAB_ITEM));
    OC_CHECK(c.leaves == oc_slabs_count(&ix->slabs, OC_SLAB_LEAF));
    OC_CHECK(c.inners == oc_slabs_count(&ix->slabs, OC_SLAB_INNER));
    OC_CHECK(c.separators == oc_slabs_count(&ix->slabs, OC_SLAB_SEPARATOR));
    OC_CHECK(memcmp(&c.seen, &ix->stats, sizeof c.seen) == 0);
}
