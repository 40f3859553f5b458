/* The object store's index: an ordered map from key bytes to where the newest record is. One
 * instance per shard; not thread-safe (the store holds the shard's lock). Order is bytewise.
 *
 * A B+-tree whose nodes hold the first 8 bytes of each key behind the node's common prefix, so that
 * a search touches a key only to confirm it. Items (header and key) live in slabs addressed by
 * 32-bit handles. Target: at most key length + 56 bytes a key with 64-byte keys, at any insertion
 * order. */
#ifndef OC_CORE_INDEX_INDEX_H
#define OC_CORE_INDEX_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/span.h"

#define OC_INDEX_KEY_MAX 65535u /* bytes */

enum oc_entry_flags {
    OC_ENTRY_TOMBSTONE = 1, /* deleted; kept until no older write can still arrive */
    OC_ENTRY_FILE =
        2, /* the value is in a file of its own: segment/offset name the commit record */
    OC_ENTRY_LOST = 4, /* the record proved unreadable: reads miss, the version still counts */
};

/* What the index knows of a key. A value type: copied in and out. */
struct oc_entry {
    uint64_t version;      /* hybrid logical clock, see core/seglog/format.h */
    uint64_t value_len;    /* bytes; < 2^48 */
    uint32_t segment;      /* id of the segment with the record */
    uint32_t offset;       /* of the record, in units of 8 bytes */
    uint32_t expires_at_s; /* unix seconds; 0 = never */
    uint8_t flags;         /* enum oc_entry_flags */
};

struct oc_index;

struct oc_index *oc_index_new(void); /* NULL when out of memory */
void oc_index_free(struct oc_index *ix);

/* Insert or replace if e->version is greater than the version there (a tombstone counts as there).
 * Returns 1 when applied, 0 when what was there is newer or equal, negative OC_E_…: EXHAUSTED when
 * out of memory (the index is as before), INVALID for a key or value length out of bounds. With
 * `old` non-NULL: *old_present says whether a key was there and *old gets its entry. */
int oc_index_apply(struct oc_index *ix, struct oc_span key, const struct oc_entry *e,
                   struct oc_entry *old, bool *old_present);
/* True and *ret when the key is there (tombstones included). */
bool oc_index_find(const struct oc_index *ix, struct oc_span key, struct oc_entry *ret);
/* Change the entry in place if its version still equals `version`; false otherwise. The new entry
 * must carry the same version. For marking LOST and for relocation. */
bool oc_index_update(struct oc_index *ix, struct oc_span key, uint64_t version,
                     const struct oc_entry *e);
/* Remove if the version equals `version`; true when removed. */
bool oc_index_remove(struct oc_index *ix, struct oc_span key, uint64_t version);

/* Walk in order from the first key >= `from` (or > `from` with `exclusive`). `each` returns
 * non-zero to stop; it must not change the index. The key span is valid during the call only. */
void oc_index_walk(const struct oc_index *ix, struct oc_span from, bool exclusive,
                   int (*each)(void *arg, struct oc_span key, const struct oc_entry *e), void *arg);

/* An incremental walk that survives changes in between: visits up to `budget` entries behind the
 * cursor in key order, so that a caller can let the shard's lock go between slices. What is there
 * throughout is visited exactly once; what is inserted or removed meanwhile may or may not be.
 *
 * The cursor holds a copy of the last key visited and is 64 KiB, of which only the bytes of that
 * key are touched; all zero is a cursor before the first key. It owns nothing. */
struct oc_index_cursor {
    bool started;
    bool done; /* the last slice reached the end; set by oc_index_sweep */
    uint16_t key_len;
    uint8_t key[OC_INDEX_KEY_MAX];
};
enum oc_sweep_verdict {
    OC_SWEEP_NEXT = 0,
    OC_SWEEP_STOP = 1,   /* end the slice behind this entry */
    OC_SWEEP_REMOVE = 2, /* remove this entry and go on */
};
/* Back to before the first key. */
void oc_index_cursor_reset(struct oc_index_cursor *c);
/* Returns the number of entries visited, at most `budget`; c->done is set when no key is left.
 * `each` returns enum oc_sweep_verdict and must not change the index itself. */
size_t oc_index_sweep(struct oc_index *ix, struct oc_index_cursor *c, size_t budget,
                      int (*each)(void *arg, struct oc_span key, const struct oc_entry *e),
                      void *arg);

/* Bulk load: keys in strictly ascending order into an empty index, several times faster than apply
 * and with full nodes. Falls back to apply for a key out of order. */
struct oc_index_loader;
struct oc_index_loader *oc_index_loader_new(struct oc_index *ix); /* NULL when out of memory */
/* 0, or negative: the loader stays usable and the index holds what was added before. */
int oc_index_loader_add(struct oc_index_loader *l, struct oc_span key, const struct oc_entry *e);
int oc_index_loader_done(struct oc_index_loader *l); /* frees the loader */

struct oc_index_stats {
    uint64_t keys; /* tombstones included */
    uint64_t tombstones;
    uint64_t with_expiry; /* entries with expires_at_s != 0 */
    uint64_t value_bytes; /* sum of value_len of entries that are not tombstones */
    uint64_t key_bytes;
    uint64_t memory_bytes; /* slabs and nodes, as allocated */
};
void oc_index_stats(const struct oc_index *ix, struct oc_index_stats *ret);

/* Debug: verifies every structural invariant; OC_CHECK-fails on a fault. */
void oc_index_validate(const struct oc_index *ix);

#endif
