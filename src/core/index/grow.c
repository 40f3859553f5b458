/* Insertion into a full leaf. Before a leaf is split its keys are evened out with a neighbour's,
 * and when the neighbours are full too, three leaves become four: leaves stay more than four fifths
 * full under random insertion, which the bound on bytes a key needs.
 *
 * Everything is allocated before anything changes, except that an inner node may already have been
 * split when a later allocation fails: that changes no key. */
#include "core/index/node.h"

#include "base/err.h"

/* A neighbour takes keys over if it has so many free slots; fewer would have us back too soon. */
#define EVEN_OUT_FREE 6u
/* So many insertions side by side are a sequence. */
#define RUN_MIN 8u
/* Inner nodes are left so full by the loader: about 95 %. */
#define INNER_LOAD 58u

/* Which children of the parent are laid out anew, and how many keys each gets. */
struct layout {
    unsigned first;
    unsigned had;
    unsigned now;
    unsigned counts[OC_SPREAD_LEAVES];
};

/* ---- inner nodes ---- */

static bool root_push(struct oc_index *ix, struct oc_path *path) {
    uint32_t handle = OC_SLAB_NONE;
    struct oc_inner *root;

    if (ix->levels < OC_TREE_LEVELS) {
        handle = oc_slabs_alloc(&ix->slabs, OC_SLAB_INNER, sizeof *root);
    }
    if (handle == OC_SLAB_NONE) {
        return false;
    }
    root = oc_inner_at(ix, handle);
    root->prefix_len = 0;
    root->kind = OC_NODE_INNER;
    root->n = 0;
    root->known_len = 0;
    root->children[0] = ix->root;
    ix->root = handle;
    ix->levels++;
    memmove(&path->nodes[1], &path->nodes[0], path->levels * sizeof path->nodes[0]);
    memmove(&path->children[1], &path->children[0], path->levels);
    path->nodes[0] = handle;
    path->children[0] = 0;
    path->levels++;
    return true;
}

static void root_pop(struct oc_index *ix, struct oc_path *path) {
    uint32_t handle = ix->root;

    ix->root = oc_inner_at(ix, handle)->children[0];
    ix->levels--;
    oc_slabs_free(&ix->slabs, handle);
    path->levels--;
    memmove(&path->nodes[0], &path->nodes[1], path->levels * sizeof path->nodes[0]);
    memmove(&path->children[0], &path->children[1], path->levels);
}

static bool rightmost(const struct oc_index *ix, const struct oc_path *path, unsigned level) {
    for (unsigned i = 0; i <= level; i++) {
        if (path->children[i] != oc_inner_at(ix, path->nodes[i])->n) {
            return false;
        }
    }
    return true;
}

/* The separators next to the node at `level` in the nodes above; OC_SLAB_NONE at the tree's edge.
 */
static void bounds_of(const struct oc_index *ix, const struct oc_path *path, unsigned level,
                      uint32_t *low, uint32_t *high) {
    *low = OC_SLAB_NONE;
    *high = OC_SLAB_NONE;
    for (unsigned i = 0; i < level; i++) {
        const struct oc_inner *n = oc_inner_at(ix, path->nodes[i]);
        unsigned child = path->children[i];

        *low = child > 0 ? n->separators[child - 1] : *low;
        *high = child < n->n ? n->separators[child] : *high;
    }
}

/* How many bytes all keys between two separators share. */
static uint16_t known_between(const struct oc_index *ix, uint32_t low, uint32_t high) {
    if (low == OC_SLAB_NONE || high == OC_SLAB_NONE) {
        return 0;
    }
    return (uint16_t)oc_common_prefix(oc_separator_span(ix, low), oc_separator_span(ix, high));
}

/* Split the inner node at `level` into itself and `right`; its parent has room. */
static void inner_split(struct oc_index *ix, struct oc_path *path, unsigned level, uint32_t right) {
    struct oc_inner *l = oc_inner_at(ix, path->nodes[level]);
    struct oc_inner *r = oc_inner_at(ix, right);
    struct oc_inner *parent = oc_inner_at(ix, path->nodes[level - 1]);
    /* At the right edge nothing more comes to the left one: leave it full. */
    unsigned mid = rightmost(ix, path, level) ? l->n - 2u : l->n / 2u;
    uint32_t children[2] = {path->nodes[level], right};
    uint32_t separator = l->separators[mid];
    uint32_t low;
    uint32_t high;

    bounds_of(ix, path, level, &low, &high);
    r->known_len = known_between(ix, separator, high);
    l->known_len = known_between(ix, low, separator);
    r->kind = OC_NODE_INNER;
    r->prefix_len = l->prefix_len;
    r->n = (uint8_t)(l->n - mid - 1);
    memcpy(r->separators, &l->separators[mid + 1], r->n * sizeof r->separators[0]);
    memcpy(r->heads, &l->heads[mid + 1], r->n * sizeof r->heads[0]);
    memcpy(r->children, &l->children[mid + 1], (r->n + 1u) * sizeof r->children[0]);
    l->n = (uint8_t)mid;
    oc_inner_refresh(ix, l, 0, 0);
    oc_inner_refresh(ix, r, 0, 0);
    oc_inner_replace(ix, parent, path->children[level - 1], 1, children, &separator, 2);
    if (path->children[level] > mid) {
        path->nodes[level] = right;
        path->children[level] = (uint8_t)(path->children[level] - mid - 1);
        path->children[level - 1]++;
    }
}

/* The inner node at `level` gets to have fewer than `full` separators; false when out of memory. */
static bool inner_make_room(struct oc_index *ix, struct oc_path *path, unsigned level,
                            unsigned full) {
    bool pushed = false;
    uint32_t right;

    if (oc_inner_at(ix, path->nodes[level])->n < full) {
        return true;
    }
    if (level == 0) {
        if (!root_push(ix, path)) {
            return false;
        }
        pushed = true;
        level = 1;
    } else {
        unsigned before = path->levels;

        if (!inner_make_room(ix, path, level - 1, full)) {
            return false;
        }
        level += path->levels - before;
    }
    right = oc_slabs_alloc(&ix->slabs, OC_SLAB_INNER, sizeof(struct oc_inner));
    if (right == OC_SLAB_NONE) {
        if (pushed) {
            root_pop(ix, path);
        }
        return false;
    }
    inner_split(ix, path, level, right);
    return true;
}

/* ---- leaves ---- */

static uint32_t separator_new(struct oc_index *ix, struct oc_span left, struct oc_span right) {
    size_t len = oc_common_prefix(left, right) + 1;
    uint32_t handle =
        oc_slabs_alloc(&ix->slabs, OC_SLAB_SEPARATOR, offsetof(struct oc_separator, bytes) + len);
    struct oc_separator *s;

    OC_CHECK(len <= right.len);
    if (handle != OC_SLAB_NONE) {
        s = oc_separator_at(ix, handle);
        s->len = (uint16_t)len;
        s->mark = 0;
        memcpy(s->bytes, right.p, len);
    }
    return handle;
}

static unsigned free_slots(const struct oc_index *ix, const struct oc_inner *parent, unsigned i) {
    return i > parent->n ? 0 : OC_LEAF_SLOTS - oc_leaf_at(ix, parent->children[i])->n;
}

static void prefetch_leaf(const struct oc_index *ix, uint32_t handle) {
    const char *p = (const char *)oc_leaf_at(ix, handle);

    for (unsigned i = 0; i < sizeof(struct oc_leaf); i += 64) {
        __builtin_prefetch(p + i);
    }
}

/* What to do about full child `i`, into whose `slot` a key wants. */
static struct layout layout_choose(const struct oc_index *ix, const struct oc_inner *parent,
                                   unsigned i, unsigned slot, bool in_run) {
    struct layout lay = {.first = i, .had = 1, .now = 2};
    unsigned free_left;
    unsigned free_right;
    unsigned keys = OC_LEAF_SLOTS + 1;

    if (in_run) {
        lay.counts[0] = slot < OC_LEAF_SLOTS ? slot + 1 : OC_LEAF_SLOTS;
        lay.counts[1] = OC_LEAF_SLOTS + 1 - lay.counts[0];
        return lay;
    }
    if (i > 0) {
        prefetch_leaf(ix, parent->children[i - 1]);
    }
    if (i < parent->n) {
        prefetch_leaf(ix, parent->children[i + 1]);
    }
    free_left = i == 0 ? 0 : free_slots(ix, parent, i - 1);
    free_right = free_slots(ix, parent, i + 1);
    if (free_left >= EVEN_OUT_FREE || free_right >= EVEN_OUT_FREE) {
        lay.first = free_left >= free_right ? i - 1 : i;
        lay.had = 2;
    } else {
        lay.first = i > 0 ? i - 1 : i;
        lay.had = 1u + (i > 0) + (i < parent->n);
        lay.now = lay.had + 1;
    }
    for (unsigned j = lay.first; j < lay.first + lay.had; j++) {
        keys += j == i ? 0 : oc_leaf_at(ix, parent->children[j])->n;
    }
    for (unsigned j = 0; j < lay.now; j++) {
        lay.counts[j] = keys / lay.now + (j < keys % lay.now);
    }
    return lay;
}

/* Lay out; OC_E_EXHAUSTED changes nothing. The parent has room. */
static int layout_apply(struct oc_index *ix, struct oc_inner *parent, const struct layout *lay,
                        const struct oc_spread *s) {
    uint32_t children[OC_SPREAD_LEAVES];
    uint32_t separators[OC_SPREAD_LEAVES];
    unsigned leaves = lay->had;
    unsigned seps = 0;
    unsigned at = 0;

    memcpy(children, &parent->children[lay->first], lay->had * sizeof children[0]);
    for (; leaves < lay->now; leaves++) {
        children[leaves] = oc_slabs_alloc(&ix->slabs, OC_SLAB_LEAF, sizeof(struct oc_leaf));
        if (children[leaves] == OC_SLAB_NONE) {
            goto failed;
        }
    }
    for (; seps + 1 < lay->now; seps++) {
        at += lay->counts[seps];
        separators[seps] =
            separator_new(ix, oc_item_key(ix, s->items[at - 1]), oc_item_key(ix, s->items[at]));
        if (separators[seps] == OC_SLAB_NONE) {
            goto failed;
        }
    }
    at = 0;
    for (unsigned i = 0; i < lay->now; i++) {
        oc_spread_fill(ix, s, at, at + lay->counts[i], oc_leaf_at(ix, children[i]));
        at += lay->counts[i];
    }
    OC_CHECK(at == s->n);
    oc_inner_replace(ix, parent, lay->first, lay->had, children, separators, lay->now);
    return 0;

failed:
    while (seps-- > 0) {
        oc_slabs_free(&ix->slabs, separators[seps]);
    }
    while (leaves-- > lay->had) {
        oc_leaf_at(ix, children[leaves])->kind = OC_NODE_LEAF; /* it was never filled */
        oc_slabs_free(&ix->slabs, children[leaves]);
    }
    return OC_E_EXHAUSTED;
}

/* The sequence goes on where its last key is now; what is behind it joins the next leaf if it can.
 */
static void run_follow(struct oc_index *ix, struct oc_inner *parent, unsigned i, unsigned slot) {
    bool in_left = slot < OC_LEAF_SLOTS;

    ix->run_leaf = parent->children[in_left ? i : i + 1];
    ix->run_slot = in_left ? slot : 0;
    if (i + 2 <= parent->n) {
        (void)oc_leaves_merge(ix, parent, i + 1, OC_LEAF_MERGE); /* only if they fit */
    }
}

static int leaf_grow(struct oc_index *ix, struct oc_path *path, unsigned slot, uint32_t item,
                     uint8_t print) {
    bool in_run = ix->run_len >= RUN_MIN && ix->run_leaf == path->leaf && slot == ix->run_slot + 1;
    unsigned level = path->levels - 1;
    struct oc_inner *parent = oc_inner_at(ix, path->nodes[level]);
    struct layout lay = layout_choose(ix, parent, path->children[level], slot, in_run);
    struct oc_spread s = {.n = 0};
    unsigned before = 0;
    int rc;

    if (lay.now > lay.had && parent->n == OC_INNER_SLOTS) {
        if (!inner_make_room(ix, path, level, OC_INNER_SLOTS)) {
            return OC_E_EXHAUSTED;
        }
        level = path->levels - 1;
        parent = oc_inner_at(ix, path->nodes[level]);
        lay = layout_choose(ix, parent, path->children[level], slot, in_run);
    }
    for (unsigned i = lay.first; i < lay.first + lay.had; i++) {
        before += i < path->children[level] ? oc_leaf_at(ix, parent->children[i])->n : 0u;
        oc_spread_take(&s, oc_leaf_at(ix, parent->children[i]));
    }
    oc_spread_insert(&s, before + slot, item, print);
    rc = layout_apply(ix, parent, &lay, &s);
    if (rc == 0 && in_run) {
        run_follow(ix, parent, path->children[level], slot);
    }
    return rc;
}

int oc_tree_grow(struct oc_index *ix, struct oc_path *path, const struct oc_place *place,
                 uint32_t item, uint8_t print) {
    bool pushed = false;
    int rc;

    if (path->levels == 0) {
        if (!root_push(ix, path)) {
            return OC_E_EXHAUSTED;
        }
        pushed = true;
    }
    rc = leaf_grow(ix, path, place->slot, item, print);
    if (rc != 0 && pushed) {
        root_pop(ix, path);
    }
    return rc;
}

/* The right edge, with room for one more leaf; false when out of memory. */
static bool edge_make_room(struct oc_index *ix, struct oc_path *path, bool *pushed) {
    *pushed = false;
    if (path->levels == 0) {
        *pushed = root_push(ix, path);
        return *pushed;
    }
    return inner_make_room(ix, path, path->levels - 1, INNER_LOAD);
}

int oc_tree_append(struct oc_index *ix, struct oc_path *path, uint32_t item, uint8_t print) {
    struct layout lay = {.had = 1, .now = 2};
    struct oc_spread s = {.n = 0};
    struct oc_inner *parent;
    bool pushed;
    int rc;

    if (!edge_make_room(ix, path, &pushed)) {
        return OC_E_EXHAUSTED;
    }
    parent = oc_inner_at(ix, path->nodes[path->levels - 1]);
    lay.first = parent->n;
    oc_spread_take(&s, oc_leaf_at(ix, path->leaf));
    lay.counts[0] = s.n;
    lay.counts[1] = 1;
    oc_spread_insert(&s, s.n, item, print);
    rc = layout_apply(ix, parent, &lay, &s);
    if (rc != 0 && pushed) {
        root_pop(ix, path);
    }
    return rc;
}
