/* The public face: find, apply, update, remove, walk, sweep; see index.h for the contract and
 * node.h for the structure. */
#include "core/index/index.h"

#include <stdlib.h>

#include "base/err.h"
#include "core/index/node.h"

struct oc_index *oc_index_new(void) {
    struct oc_index *ix = calloc(1, sizeof *ix);

    if (ix != NULL) {
        ix->magic = OC_INDEX_MAGIC;
        ix->root = OC_SLAB_NONE;
        ix->run_leaf = OC_SLAB_NONE;
        oc_slabs_init(&ix->slabs);
    }
    return ix;
}

void oc_index_free(struct oc_index *ix) {
    if (ix != NULL) {
        OC_MAGIC_CHECK(ix, OC_INDEX_MAGIC);
        oc_slabs_done(&ix->slabs);
        ix->magic = 0;
        free(ix);
    }
}

/* ---- items ---- */

void oc_item_load(const struct oc_item *it, struct oc_entry *ret) {
    ret->version = it->version;
    ret->value_len = it->value_len_low | (uint64_t)it->value_len_high << 32;
    ret->segment = it->segment;
    ret->offset = it->offset;
    ret->expires_at_s = it->expires_at_s;
    ret->flags = it->flags;
}

static void item_store(struct oc_item *it, const struct oc_entry *e) {
    it->version = e->version;
    it->value_len_low = (uint32_t)e->value_len;
    it->value_len_high = (uint16_t)(e->value_len >> 32);
    it->segment = e->segment;
    it->offset = e->offset;
    it->expires_at_s = e->expires_at_s;
    it->flags = e->flags;
}

uint32_t oc_item_new(struct oc_index *ix, struct oc_span key, const struct oc_entry *e) {
    uint32_t handle =
        oc_slabs_alloc(&ix->slabs, OC_SLAB_ITEM, offsetof(struct oc_item, key) + key.len);
    struct oc_item *it;

    if (handle != OC_SLAB_NONE) {
        it = oc_item_at(ix, handle);
        item_store(it, e);
        it->key_len = (uint16_t)key.len;
        if (key.len > 0) {
            memcpy(it->key, key.p, key.len);
        }
    }
    return handle;
}

bool oc_entry_ok(struct oc_span key, const struct oc_entry *e) {
    return key.len <= OC_INDEX_KEY_MAX && e->value_len <= OC_VALUE_LEN_MAX &&
           (e->flags & OC_SLAB_FREED) == 0;
}

void oc_stats_add(struct oc_index_stats *stats, size_t key_len, const struct oc_entry *e) {
    bool tombstone = (e->flags & OC_ENTRY_TOMBSTONE) != 0;

    stats->keys++;
    stats->key_bytes += key_len;
    stats->tombstones += tombstone;
    stats->with_expiry += e->expires_at_s != 0;
    stats->value_bytes += tombstone ? 0 : e->value_len;
}

static void stats_drop(struct oc_index_stats *stats, size_t key_len, const struct oc_entry *e) {
    bool tombstone = (e->flags & OC_ENTRY_TOMBSTONE) != 0;

    stats->keys--;
    stats->key_bytes -= key_len;
    stats->tombstones -= tombstone;
    stats->with_expiry -= e->expires_at_s != 0;
    stats->value_bytes -= tombstone ? 0 : e->value_len;
}

static void item_change(struct oc_index *ix, struct oc_item *it, const struct oc_entry *before,
                        const struct oc_entry *e) {
    stats_drop(&ix->stats, it->key_len, before);
    oc_stats_add(&ix->stats, it->key_len, e);
    item_store(it, e);
}

/* ---- one key ---- */

/* Down to the leaf with its lines on their way; the hash is computed meanwhile. The first `bytes`
 * of the leaf are wanted. */
static unsigned leaf_and_slot(const struct oc_index *ix, struct oc_span key, size_t bytes,
                              struct oc_path *path, uint8_t *print) {
    const char *line;

    oc_descend(ix, key, path);
    line = (const char *)oc_leaf_at(ix, path->leaf);
    for (size_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(line + i);
    }
    *print = oc_fingerprint(key);
    return oc_leaf_find(ix, oc_leaf_at(ix, path->leaf), key, *print);
}

/* NULL: not there. */
static struct oc_item *item_find(const struct oc_index *ix, struct oc_span key,
                                 struct oc_path *path, unsigned *slot) {
    uint8_t print;

    OC_MAGIC_CHECK(ix, OC_INDEX_MAGIC);
    if (ix->root == OC_SLAB_NONE) {
        return NULL;
    }
    *slot = leaf_and_slot(ix, key, offsetof(struct oc_leaf, heads), path, &print);
    if (*slot == OC_LEAF_SLOTS) {
        return NULL;
    }
    return oc_item_at(ix, oc_leaf_at(ix, path->leaf)->items[*slot]);
}

bool oc_index_find(const struct oc_index *ix, struct oc_span key, struct oc_entry *ret) {
    struct oc_path path;
    unsigned slot;
    const struct oc_item *it = item_find(ix, key, &path, &slot);

    if (it != NULL) {
        oc_item_load(it, ret);
    }
    return it != NULL;
}

static bool root_new(struct oc_index *ix) {
    uint32_t handle = oc_slabs_alloc(&ix->slabs, OC_SLAB_LEAF, sizeof(struct oc_leaf));
    struct oc_leaf *l;

    if (handle == OC_SLAB_NONE) {
        return false;
    }
    l = oc_leaf_at(ix, handle);
    l->prefix_len = 0;
    l->kind = OC_NODE_LEAF;
    l->n = 0;
    ix->root = handle;
    ix->levels = 0;
    return true;
}

/* Notice insertions that come in sequence. */
static void run_note(struct oc_index *ix, uint32_t leaf, unsigned slot) {
    bool follows = leaf == ix->run_leaf && slot == ix->run_slot + 1;

    ix->run_len = follows ? ix->run_len + (ix->run_len < UINT32_MAX) : 0;
    ix->run_leaf = leaf;
    ix->run_slot = slot;
}

/* A key that is not there. */
static int insert(struct oc_index *ix, struct oc_span key, const struct oc_entry *e,
                  struct oc_path *path, uint8_t print) {
    struct oc_leaf *l = oc_leaf_at(ix, path->leaf);
    struct oc_place place = oc_leaf_place(ix, l, key);
    uint32_t item = oc_item_new(ix, key, e);
    int rc = 0;

    OC_CHECK(!place.equal);
    if (item == OC_SLAB_NONE) {
        return OC_E_EXHAUSTED;
    }
    if (l->n < OC_LEAF_SLOTS) {
        oc_leaf_insert(ix, l, &place, item, print);
        run_note(ix, path->leaf, place.slot);
    } else {
        rc = oc_tree_grow(ix, path, &place, item, print);
        if (rc != 0) {
            oc_slabs_free(&ix->slabs, item);
            return rc;
        }
        oc_tree_compact(ix);
    }
    oc_stats_add(&ix->stats, key.len, e);
    return rc;
}

/* What insert() began for nothing: an empty root. */
static void root_drop_empty(struct oc_index *ix) {
    if (ix->levels == 0 && oc_leaf_at(ix, ix->root)->n == 0) {
        oc_slabs_free(&ix->slabs, ix->root);
        ix->root = OC_SLAB_NONE;
    }
}

int oc_index_apply(struct oc_index *ix, struct oc_span key, const struct oc_entry *e,
                   struct oc_entry *old, bool *old_present) {
    struct oc_path path;
    struct oc_entry was;
    unsigned slot;
    uint8_t print;
    int rc;

    OC_MAGIC_CHECK(ix, OC_INDEX_MAGIC);
    if (!oc_entry_ok(key, e)) {
        return OC_E_INVALID;
    }
    if (ix->root == OC_SLAB_NONE && !root_new(ix)) {
        return OC_E_EXHAUSTED;
    }
    slot = leaf_and_slot(ix, key, sizeof(struct oc_leaf), &path, &print);
    if (slot == OC_LEAF_SLOTS) {
        rc = insert(ix, key, e, &path, print);
        if (rc != 0) {
            root_drop_empty(ix);
            return rc;
        }
    } else {
        struct oc_item *it = oc_item_at(ix, oc_leaf_at(ix, path.leaf)->items[slot]);

        oc_item_load(it, &was);
        rc = e->version > was.version;
        if (rc == 1) {
            item_change(ix, it, &was, e);
        }
    }
    if (old != NULL) {
        *old_present = slot != OC_LEAF_SLOTS;
        *old = slot != OC_LEAF_SLOTS ? was : *old;
    }
    return slot == OC_LEAF_SLOTS ? 1 : rc;
}

bool oc_index_update(struct oc_index *ix, struct oc_span key, uint64_t version,
                     const struct oc_entry *e) {
    struct oc_path path;
    struct oc_entry was;
    unsigned slot;
    struct oc_item *it = item_find(ix, key, &path, &slot);

    if (it == NULL || it->version != version || e->version != version || !oc_entry_ok(key, e)) {
        return false;
    }
    oc_item_load(it, &was);
    item_change(ix, it, &was, e);
    return true;
}

bool oc_index_remove(struct oc_index *ix, struct oc_span key, uint64_t version) {
    struct oc_path path;
    struct oc_entry was;
    unsigned slot;
    const struct oc_item *it = item_find(ix, key, &path, &slot);
    struct oc_leaf *l;

    if (it == NULL || it->version != version) {
        return false;
    }
    oc_item_load(it, &was);
    stats_drop(&ix->stats, it->key_len, &was);
    l = oc_leaf_at(ix, path.leaf);
    oc_slabs_free(&ix->slabs, l->items[slot]);
    oc_leaf_remove(l, slot);
    oc_tree_shrink(ix, &path);
    oc_tree_compact(ix);
    return true;
}

void oc_index_stats(const struct oc_index *ix, struct oc_index_stats *ret) {
    OC_MAGIC_CHECK(ix, OC_INDEX_MAGIC);
    *ret = ix->stats;
    ret->memory_bytes = sizeof *ix + oc_slabs_bytes(&ix->slabs);
}
