/* Bulk loading: keys that come in order go to the right edge without a search. */
#include <stdlib.h>

#include "base/err.h"
#include "core/index/node.h"

/* Leaves are left so full: 95 %, so that the first insertions afterwards do not split. */
#define LEAF_LOAD 53u

struct oc_index_loader {
    struct oc_index *ix;
    struct oc_path edge; /* the way to the last leaf */
    bool edge_known;     /* `edge` is the right edge as it is now */
};

struct oc_index_loader *oc_index_loader_new(struct oc_index *ix) {
    struct oc_index_loader *l = calloc(1, sizeof *l);

    OC_MAGIC_CHECK(ix, OC_INDEX_MAGIC);
    if (l != NULL) {
        l->ix = ix;
    }
    return l;
}

static void edge_find(struct oc_index_loader *l) {
    uint32_t node = l->ix->root;

    l->edge.levels = l->ix->levels;
    for (unsigned i = 0; i < l->edge.levels; i++) {
        const struct oc_inner *n = oc_inner_at(l->ix, node);

        l->edge.nodes[i] = node;
        l->edge.children[i] = n->n;
        node = n->children[n->n];
    }
    l->edge.leaf = node;
    l->edge_known = true;
}

/* Behind all others, at the right edge. */
static int append(struct oc_index_loader *l, struct oc_span key, const struct oc_entry *e,
                  size_t prefix_len) {
    struct oc_index *ix = l->ix;
    struct oc_leaf *leaf = oc_leaf_at(ix, l->edge.leaf);
    uint32_t item = oc_item_new(ix, key, e);
    int rc = 0;

    if (item == OC_SLAB_NONE) {
        return OC_E_EXHAUSTED;
    }
    if (leaf->n < LEAF_LOAD) {
        struct oc_place place = {.slot = leaf->n, .prefix_len = prefix_len};

        oc_leaf_insert(ix, leaf, &place, item, oc_fingerprint(key));
    } else {
        l->edge_known = false;
        rc = oc_tree_append(ix, &l->edge, item, oc_fingerprint(key));
    }
    if (rc == 0) {
        oc_stats_add(&ix->stats, key.len, e);
    } else {
        oc_slabs_free(&ix->slabs, item);
    }
    return rc;
}

int oc_index_loader_add(struct oc_index_loader *l, struct oc_span key, const struct oc_entry *e) {
    struct oc_index *ix = l->ix;
    const struct oc_leaf *leaf;
    struct oc_span last;
    int rc;

    if (!oc_entry_ok(key, e)) {
        return OC_E_INVALID;
    }
    if (ix->root != OC_SLAB_NONE) {
        if (!l->edge_known) {
            edge_find(l);
        }
        leaf = oc_leaf_at(ix, l->edge.leaf);
        last = oc_item_key(ix, leaf->items[leaf->n - 1]);
        if (oc_span_compare(last, key) < 0) {
            size_t common = oc_common_prefix(last, key);

            return append(l, key, e, common < leaf->prefix_len ? common : leaf->prefix_len);
        }
    }
    /* The first key, or one out of order. */
    l->edge_known = false;
    rc = oc_index_apply(ix, key, e, NULL, NULL);
    return rc < 0 ? rc : 0;
}

int oc_index_loader_done(struct oc_index_loader *l) {
    free(l);
    return 0;
}
