/* Walks in key order. */
#include "base/err.h"
#include "core/index/node.h"

/* Items are scattered in memory: they are fetched so many ahead. */
#define WALK_AHEAD 10u

static void descend_left(const struct oc_index *ix, struct oc_path *path, unsigned from) {
    uint32_t node = oc_inner_at(ix, path->nodes[from])->children[path->children[from]];

    OC_CHECK(path->levels <= OC_TREE_LEVELS);
    for (unsigned i = from + 1; i < path->levels; i++) {
        path->nodes[i] = node;
        path->children[i] = 0;
        node = oc_inner_at(ix, node)->children[0];
    }
    path->leaf = node;
}

/* On to the leaf to the right; false at the end. */
static bool next_leaf(const struct oc_index *ix, struct oc_path *path) {
    for (unsigned i = path->levels; i-- > 0;) {
        if (path->children[i] < oc_inner_at(ix, path->nodes[i])->n) {
            path->children[i]++;
            descend_left(ix, path, i);
            return true;
        }
    }
    return false;
}

static void prefetch_next_leaf(const struct oc_index *ix, const struct oc_path *path) {
    const struct oc_inner *parent;
    unsigned i;

    if (path->levels == 0) {
        return;
    }
    parent = oc_inner_at(ix, path->nodes[path->levels - 1]);
    i = path->children[path->levels - 1];
    if (i < parent->n) {
        const char *p = (const char *)oc_leaf_at(ix, parent->children[i + 1]);

        for (size_t at = 0; at < offsetof(struct oc_leaf, heads); at += 64) {
            __builtin_prefetch(p + at);
        }
    }
}

/* Returns what `each` returned to stop, or 0 at the end. */
static int walk(const struct oc_index *ix, struct oc_span from, bool exclusive,
                int (*each)(void *arg, struct oc_span key, const struct oc_entry *e), void *arg) {
    struct oc_path path;
    struct oc_place place;
    unsigned slot;

    oc_descend(ix, from, &path);
    place = oc_leaf_place(ix, oc_leaf_at(ix, path.leaf), from);
    slot = place.slot + (place.equal && exclusive);
    do {
        const struct oc_leaf *l = oc_leaf_at(ix, path.leaf);

        for (unsigned i = slot; i < l->n && i < slot + WALK_AHEAD; i++) {
            oc_prefetch_item(ix, l->items[i]);
        }
        prefetch_next_leaf(ix, &path);
        for (; slot < l->n; slot++) {
            const struct oc_item *it = oc_item_at(ix, l->items[slot]);
            struct oc_entry e;
            int rc;

            if (slot + WALK_AHEAD < l->n) {
                oc_prefetch_item(ix, l->items[slot + WALK_AHEAD]);
            }
            oc_item_load(it, &e);
            rc = each(arg, oc_span(it->key, it->key_len), &e);
            if (rc != 0) {
                return rc;
            }
        }
        slot = 0;
    } while (next_leaf(ix, &path));
    return 0;
}

void oc_index_walk(const struct oc_index *ix, struct oc_span from, bool exclusive,
                   int (*each)(void *arg, struct oc_span key, const struct oc_entry *e),
                   void *arg) {
    OC_MAGIC_CHECK(ix, OC_INDEX_MAGIC);
    if (ix->root != OC_SLAB_NONE) {
        (void)walk(ix, from, exclusive, each, arg); /* the caller knows why it stopped */
    }
}

/* ---- sweep ---- */

void oc_index_cursor_reset(struct oc_index_cursor *c) {
    c->started = false;
    c->done = false;
    c->key_len = 0;
}

struct sweep {
    int (*each)(void *arg, struct oc_span key, const struct oc_entry *e);
    void *arg;
    struct oc_index_cursor *cursor;
    size_t budget;
    size_t visited;
    int verdict;      /* of the last entry */
    uint64_t version; /* of the last entry */
};

static int sweep_each(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct sweep *s = arg;

    s->verdict = s->each(s->arg, key, e);
    s->version = e->version;
    s->visited++;
    if (s->verdict == OC_SWEEP_NEXT && s->visited < s->budget) {
        return 0;
    }
    /* The walk pauses here: the cursor takes the key. */
    s->cursor->started = true;
    s->cursor->key_len = (uint16_t)key.len;
    if (key.len > 0) {
        memcpy(s->cursor->key, key.p, key.len);
    }
    return 1;
}

size_t oc_index_sweep(struct oc_index *ix, struct oc_index_cursor *c, size_t budget,
                      int (*each)(void *arg, struct oc_span key, const struct oc_entry *e),
                      void *arg) {
    struct sweep s = {.each = each, .arg = arg, .cursor = c, .budget = budget};

    OC_MAGIC_CHECK(ix, OC_INDEX_MAGIC);
    while (!c->done && s.visited < budget) {
        struct oc_span from = oc_span(c->key, c->key_len);

        if (ix->root == OC_SLAB_NONE || walk(ix, from, c->started, sweep_each, &s) == 0) {
            c->done = true;
        } else if (s.verdict == OC_SWEEP_REMOVE) {
            OC_CHECK(oc_index_remove(ix, oc_span(c->key, c->key_len), s.version));
        } else if (s.verdict == OC_SWEEP_STOP) {
            break;
        }
    }
    return s.visited;
}
