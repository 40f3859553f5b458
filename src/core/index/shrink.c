/* Removal's part: merging nodes, and compaction, which moves objects out of sparse blocks so that
 * memory follows the live content. Nothing here needs new memory. */
#include "core/index/node.h"

/* Objects moved a kind and call. One would keep up with deletions; the second catches up. */
#define COMPACT_STEPS 2u

bool oc_leaves_merge(struct oc_index *ix, struct oc_inner *parent, unsigned i, unsigned max_keys) {
    uint32_t left = parent->children[i];
    uint32_t right = parent->children[i + 1];
    struct oc_spread s = {.n = 0};

    if (oc_leaf_at(ix, left)->n + oc_leaf_at(ix, right)->n > (int)max_keys) {
        return false;
    }
    oc_spread_take(&s, oc_leaf_at(ix, left));
    oc_spread_take(&s, oc_leaf_at(ix, right));
    oc_spread_fill(ix, &s, 0, s.n, oc_leaf_at(ix, left));
    oc_inner_replace(ix, parent, i, 2, &left, NULL, 1);
    oc_slabs_free(&ix->slabs, right);
    return true;
}

/* All separators and children of two neighbouring inner nodes, with the separator between them. */
struct pair {
    unsigned n;
    uint32_t separators[2 * OC_INNER_SLOTS + 1];
    uint32_t children[2 * OC_INNER_SLOTS + 2];
};

static void pair_take(struct pair *p, const struct oc_inner *n) {
    memcpy(&p->separators[p->n], n->separators, n->n * sizeof n->separators[0]);
    memcpy(&p->children[p->n], n->children, (n->n + 1u) * sizeof n->children[0]);
    p->n += n->n;
}

static void pair_fill(const struct oc_index *ix, const struct pair *p, unsigned from, unsigned to,
                      struct oc_inner *n) {
    memcpy(n->separators, &p->separators[from], (to - from) * sizeof n->separators[0]);
    memcpy(n->children, &p->children[from], (to - from + 1) * sizeof n->children[0]);
    n->n = (uint8_t)(to - from);
    oc_inner_refresh(ix, n, 0, n->n);
}

/* Children i and i + 1 of the parent become one if they fit, else are evened out. True: became one.
 */
static bool inner_join(struct oc_index *ix, struct oc_inner *parent, unsigned i) {
    uint32_t right = parent->children[i + 1];
    struct oc_inner *l = oc_inner_at(ix, parent->children[i]);
    struct oc_inner *r = oc_inner_at(ix, right);
    struct pair p = {.n = 0};
    unsigned tail = parent->n - i - 1u;

    pair_take(&p, l);
    p.separators[p.n++] = parent->separators[i];
    pair_take(&p, r);
    /* Both may get keys of the other: what all of them share is known of each. */
    l->known_len = l->known_len < r->known_len ? l->known_len : r->known_len;
    r->known_len = l->known_len;
    if (p.n > OC_INNER_MERGE) {
        unsigned mid = p.n / 2;

        pair_fill(ix, &p, 0, mid, l);
        pair_fill(ix, &p, mid + 1, p.n, r);
        parent->separators[i] = p.separators[mid];
        oc_inner_refresh(ix, parent, i, i + 1);
        return false;
    }
    pair_fill(ix, &p, 0, p.n, l);
    memmove(&parent->separators[i], &parent->separators[i + 1],
            tail * sizeof parent->separators[0]);
    memmove(&parent->heads[i], &parent->heads[i + 1], tail * sizeof parent->heads[0]);
    memmove(&parent->children[i + 1], &parent->children[i + 2], tail * sizeof parent->children[0]);
    parent->n--;
    oc_inner_refresh(ix, parent, 0, 0);
    oc_slabs_free(&ix->slabs, right);
    return true;
}

/* The inner node at `level` lost a child. */
static void inner_shrink(struct oc_index *ix, struct oc_path *path, unsigned level) {
    for (; level > 0; level--) {
        struct oc_inner *n = oc_inner_at(ix, path->nodes[level]);
        struct oc_inner *parent = oc_inner_at(ix, path->nodes[level - 1]);
        unsigned i = path->children[level - 1];
        unsigned left_n = i > 0 ? oc_inner_at(ix, parent->children[i - 1])->n : UINT8_MAX;
        unsigned right_n = i < parent->n ? oc_inner_at(ix, parent->children[i + 1])->n : UINT8_MAX;
        unsigned least = left_n < right_n ? left_n : right_n;

        if (n->n >= OC_INNER_MIN && n->n + least + 1 > OC_INNER_MERGE) {
            return;
        }
        if (!inner_join(ix, parent, left_n <= right_n ? i - 1 : i)) {
            return;
        }
    }
    if (oc_inner_at(ix, ix->root)->n == 0) {
        uint32_t root = ix->root;

        ix->root = oc_inner_at(ix, root)->children[0];
        ix->levels--;
        oc_slabs_free(&ix->slabs, root);
    }
}

void oc_tree_shrink(struct oc_index *ix, struct oc_path *path) {
    const struct oc_leaf *l = oc_leaf_at(ix, path->leaf);
    unsigned max_keys = l->n == 0 ? OC_LEAF_SLOTS : OC_LEAF_MERGE;
    struct oc_inner *parent;
    unsigned i;

    if (path->levels == 0) {
        if (l->n == 0) {
            oc_slabs_free(&ix->slabs, ix->root);
            ix->root = OC_SLAB_NONE;
        }
        return;
    }
    parent = oc_inner_at(ix, path->nodes[path->levels - 1]);
    i = path->children[path->levels - 1];
    if ((i > 0 && oc_leaves_merge(ix, parent, i - 1, max_keys)) ||
        (i < parent->n && oc_leaves_merge(ix, parent, i, max_keys))) {
        inner_shrink(ix, path, path->levels - 1);
    }
}

/* ---- compaction ---- */

static bool repoint_item(struct oc_index *ix, uint32_t from, uint32_t to) {
    struct oc_path path;
    struct oc_leaf *l;

    oc_descend(ix, oc_item_key(ix, from), &path);
    l = oc_leaf_at(ix, path.leaf);
    for (unsigned i = 0; i < l->n; i++) {
        if (l->items[i] == from) {
            l->items[i] = to;
            return true;
        }
    }
    return false;
}

static bool repoint_separator(struct oc_index *ix, uint32_t from, uint32_t to) {
    struct oc_path path;

    oc_descend(ix, oc_separator_span(ix, from), &path);
    for (unsigned i = 0; i < path.levels; i++) {
        struct oc_inner *n = oc_inner_at(ix, path.nodes[i]);
        unsigned child = path.children[i];

        if (child > 0 && n->separators[child - 1] == from) {
            n->separators[child - 1] = to;
            return true;
        }
    }
    return false;
}

static bool repoint_node(struct oc_index *ix, uint32_t from, uint32_t to) {
    struct oc_path path;
    uint32_t node = from;

    if (ix->root == from) {
        ix->root = to;
        return true;
    }
    /* Any key below the node leads to it. */
    while (oc_leaf_at(ix, node)->kind == OC_NODE_INNER) {
        node = oc_inner_at(ix, node)->children[0];
    }
    oc_descend(ix, oc_item_key(ix, oc_leaf_at(ix, node)->items[0]), &path);
    for (unsigned i = 0; i < path.levels; i++) {
        struct oc_inner *n = oc_inner_at(ix, path.nodes[i]);

        if (n->children[path.children[i]] == from) {
            n->children[path.children[i]] = to;
            return true;
        }
    }
    return false;
}

/* Whoever holds the handle `from` holds `to` instead; false: nobody does. */
static bool repoint(struct oc_index *ix, enum oc_slab_kind kind, uint32_t from, uint32_t to) {
    switch (kind) {
    case OC_SLAB_ITEM:
        return repoint_item(ix, from, to);
    case OC_SLAB_SEPARATOR:
        return repoint_separator(ix, from, to);
    default:
        return repoint_node(ix, from, to);
    }
}

void oc_tree_compact(struct oc_index *ix) {
    struct oc_slabs *s = &ix->slabs;

    for (unsigned kind = 0; kind < OC_SLAB_KINDS; kind++) {
        for (unsigned step = 0; step < COMPACT_STEPS; step++) {
            uint32_t from = oc_slabs_victim(s, kind);
            uint32_t to;

            if (from == OC_SLAB_NONE) {
                break;
            }
            to = oc_slabs_realloc(s, from);
            memcpy(oc_slabs_at(s, to), oc_slabs_at(s, from), oc_slabs_object_bytes(s, from));
            OC_CHECK(repoint(ix, kind, from, to));
            oc_slabs_free(s, from);
        }
    }
}
