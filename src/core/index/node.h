/* Nodes, items and the state of one index. Internal to core/index.
 *
 * Leaf (512 bytes, 56 slots): one fingerprint byte a key (of its hash) in the first cache line, so
 * that a lookup reads that line, one line of handles and one item; and the first 4 bytes of each
 * key behind the leaf's common prefix, so that an insertion finds its place with one look at an
 * item. Inner node (1600 bytes, 61 separators): 8 bytes of each separator behind the separators'
 * common prefix, its head; where several heads are equal (keys like "tenant/object": the same
 * tenant and the fixed text behind it), 8 bytes behind the common prefix of that run of separators,
 * its tail. A separator is the shortest string that divides its two subtrees, an object of its own.
 * Keys below child i are < separator i and >= separator i - 1. */
#ifndef OC_CORE_INDEX_NODE_H
#define OC_CORE_INDEX_NODE_H

#include <assert.h>

#include "base/check.h"
#include "base/span.h"
#include "core/index/index.h"
#include "core/index/slab.h"

#define OC_LEAF_SLOTS  56u
#define OC_INNER_SLOTS 61u
#define OC_TREE_LEVELS                                                                             \
    16u /* inner levels; an inner node has at least two children: far from reached */
#define OC_INDEX_MAGIC   0x6f637831u
#define OC_VALUE_LEN_MAX ((1ull << 48) - 1)

enum oc_node_kind {
    OC_NODE_LEAF = 1,
    OC_NODE_INNER = 2,
};

struct oc_leaf {
    uint16_t prefix_len; /* bytes that all keys here share; all keys are at least that long */
    uint8_t kind;        /* enum oc_node_kind; OC_SLAB_FREED */
    uint8_t n;
    uint8_t spare[4];
    uint8_t prints[OC_LEAF_SLOTS];
    uint32_t items[OC_LEAF_SLOTS]; /* handles, in key order */
    uint32_t heads[OC_LEAF_SLOTS]; /* big-endian, zero-padded behind a short key */
};

struct oc_inner {
    uint16_t prefix_len; /* where heads begin: all separators here share so many bytes */
    uint8_t kind;
    uint8_t n;          /* separators; children are one more */
    uint16_t known_len; /* <= prefix_len: every key that a search brings here shares so many */
    uint8_t spare[2];
    uint64_t heads[OC_INNER_SLOTS];
    uint64_t tails[OC_INNER_SLOTS]; /* of slots in a run of equal heads; else undefined */
    uint16_t skips[OC_INNER_SLOTS]; /* of the first slot in a run: where its tails begin */
    uint8_t spare_skips[2];
    uint32_t separators[OC_INNER_SLOTS];
    uint32_t children[OC_INNER_SLOTS + 1];
};

static_assert(sizeof(struct oc_leaf) == 512, "a leaf is eight cache lines");
static_assert(sizeof(struct oc_inner) == 1600, "an inner node is 25 cache lines, 10 in a block");

struct oc_item {
    uint64_t version;
    uint32_t segment;
    uint32_t offset;
    uint32_t expires_at_s;
    uint32_t value_len_low;
    uint16_t value_len_high;
    uint16_t key_len;
    uint8_t flags; /* enum oc_entry_flags; OC_SLAB_FREED */
    uint8_t key[];
} __attribute__((packed));

static_assert(offsetof(struct oc_item, flags) == 28, "slab.c marks freed items there");
static_assert(offsetof(struct oc_item, key) == 29, "the bound on bytes a key counts on it");

struct oc_separator {
    uint16_t len;
    uint8_t mark; /* OC_SLAB_FREED */
    uint8_t bytes[];
};

static_assert(offsetof(struct oc_separator, bytes) == 3, "slab.c marks freed separators at byte 2");

struct oc_index {
    uint32_t magic;
    uint32_t root;   /* OC_SLAB_NONE: no keys */
    uint32_t levels; /* of inner nodes above the leaves */
    /* Whether insertions come in sequence: then leaves are split where they happen, not in the
     * middle. */
    uint32_t run_leaf;
    uint32_t run_slot;
    uint32_t run_len;
    struct oc_slabs slabs;
    struct oc_index_stats stats; /* all but memory_bytes */
};

/* How a search came down: inner nodes from the root, and which child was taken in each. */
struct oc_path {
    unsigned levels;
    uint32_t leaf; /* handle */
    uint32_t nodes[OC_TREE_LEVELS];
    uint8_t children[OC_TREE_LEVELS];
};

static inline struct oc_leaf *oc_leaf_at(const struct oc_index *ix, uint32_t handle) {
    return __builtin_assume_aligned(oc_slabs_at(&ix->slabs, handle), 64);
}
static inline struct oc_inner *oc_inner_at(const struct oc_index *ix, uint32_t handle) {
    return __builtin_assume_aligned(oc_slabs_at(&ix->slabs, handle), 64);
}
static inline struct oc_item *oc_item_at(const struct oc_index *ix, uint32_t handle) {
    return oc_slabs_at(&ix->slabs, handle);
}
static inline struct oc_separator *oc_separator_at(const struct oc_index *ix, uint32_t handle) {
    return oc_slabs_at(&ix->slabs, handle);
}
static inline struct oc_span oc_item_key(const struct oc_index *ix, uint32_t handle) {
    const struct oc_item *it = oc_item_at(ix, handle);

    return oc_span(it->key, it->key_len);
}
static inline struct oc_span oc_separator_span(const struct oc_index *ix, uint32_t handle) {
    const struct oc_separator *s = oc_separator_at(ix, handle);

    return oc_span(s->bytes, s->len);
}
static inline void oc_prefetch_item(const struct oc_index *ix, uint32_t handle) {
    const char *p = oc_slabs_at(&ix->slabs, handle);

    __builtin_prefetch(p);
    __builtin_prefetch(p + 64);
}

/* ---- items (index.c) ---- */

void oc_item_load(const struct oc_item *it, struct oc_entry *ret);
/* OC_SLAB_NONE when out of memory. */
uint32_t oc_item_new(struct oc_index *ix, struct oc_span key, const struct oc_entry *e);
/* Within the bounds of the format. */
bool oc_entry_ok(struct oc_span key, const struct oc_entry *e);
void oc_stats_add(struct oc_index_stats *stats, size_t key_len, const struct oc_entry *e);

/* ---- bytes ---- */

/* Length of the common prefix. */
size_t oc_common_prefix(struct oc_span a, struct oc_span b);
/* The 8 (4) bytes at `at` as a big-endian number, zero-padded; at <= s.len. */
uint64_t oc_head64(struct oc_span s, size_t at);
uint32_t oc_head32(struct oc_span s, size_t at);
/* A byte of the key's hash that does not depend on any few bits of it (they may pick the shard). */
uint8_t oc_fingerprint(struct oc_span key);

/* ---- search ---- */

/* The child for a key. */
unsigned oc_inner_child(const struct oc_index *ix, const struct oc_inner *n, struct oc_span key);
/* The slot with exactly this key, by fingerprint; OC_LEAF_SLOTS: none. */
unsigned oc_leaf_find(const struct oc_index *ix, const struct oc_leaf *l, struct oc_span key,
                      uint8_t print);
struct oc_place {
    unsigned slot;     /* number of keys < the key */
    bool equal;        /* the key is in that slot */
    size_t prefix_len; /* of the leaf, once the key is in it */
};
struct oc_place oc_leaf_place(const struct oc_index *ix, const struct oc_leaf *l,
                              struct oc_span key);
/* Down to the leaf for the key; the index is not empty. */
void oc_descend(const struct oc_index *ix, struct oc_span key, struct oc_path *ret);

/* ---- change of one node; none of these allocates ---- */

void oc_leaf_insert(const struct oc_index *ix, struct oc_leaf *l, const struct oc_place *place,
                    uint32_t item, uint8_t print);
void oc_leaf_remove(struct oc_leaf *l, unsigned slot);
/* Prefix and heads afresh from the separators, those from `from` up to `to` being new. */
void oc_inner_refresh(const struct oc_index *ix, struct oc_inner *n, unsigned from, unsigned to);

/* ---- change of the tree ---- */

/* An item into a full leaf; OC_E_EXHAUSTED leaves the same keys behind. */
int oc_tree_grow(struct oc_index *ix, struct oc_path *path, const struct oc_place *place,
                 uint32_t item, uint8_t print);
/* An item with a key above all others; leaves and inner nodes are left nearly full. */
int oc_tree_append(struct oc_index *ix, struct oc_path *path, uint32_t item, uint8_t print);
/* A leaf, or two and a separator, into one after a removal, and what follows above. */
void oc_tree_shrink(struct oc_index *ix, struct oc_path *path);
/* Leaves i and i + 1 of the parent become one (at the left one's handle) if they have at most
 * `max_keys` together; true when they did. */
bool oc_leaves_merge(struct oc_index *ix, struct oc_inner *parent, unsigned i, unsigned max_keys);
/* A few steps of compaction where classes became sparse. */
void oc_tree_compact(struct oc_index *ix);

#define OC_LEAF_MERGE  52u /* two leaves become one at so many keys together */
#define OC_INNER_MERGE 56u /* two inner nodes become one at so many separators */
#define OC_INNER_MIN   15u /* below, an inner node takes from its sibling */

/* Gathers keys of neighbouring leaves and lays them out anew (spread.c). */
#define OC_SPREAD_LEAVES 4u
struct oc_spread {
    unsigned n;
    uint32_t items[OC_SPREAD_LEAVES * OC_LEAF_SLOTS];
    uint32_t heads[OC_SPREAD_LEAVES * OC_LEAF_SLOTS];
    uint32_t prefixes[OC_SPREAD_LEAVES * OC_LEAF_SLOTS]; /* the head's; UINT32_MAX: no head yet */
    uint8_t prints[OC_SPREAD_LEAVES * OC_LEAF_SLOTS];
};
void oc_spread_take(struct oc_spread *s, const struct oc_leaf *l);
void oc_spread_insert(struct oc_spread *s, unsigned at, uint32_t item, uint8_t print);
/* Fill a leaf with entries [from, to). */
void oc_spread_fill(const struct oc_index *ix, const struct oc_spread *s, unsigned from,
                    unsigned to, struct oc_leaf *l);
/* Children [first, first + had) of a parent become `now` ones with the separators between them; the
 * separators that were between them are freed. The parent has room. */
void oc_inner_replace(struct oc_index *ix, struct oc_inner *parent, unsigned first, unsigned had,
                      const uint32_t *children, const uint32_t *separators, unsigned now);

#endif
