/* The object store's insides: the segment log (seglog.h) and an ordered index in shards.
 *
 * Locks: a shard's mutex comes behind the log's append_mu and before the leaves; it is held for
 * memory work only, and no two shards are locked at once. */
#ifndef OC_STORE_STORE_H
#define OC_STORE_STORE_H

#include "base/hash.h"
#include "core/index/index.h"
#include "store/objects.h"
#include "store/seglog.h"

#define OC_OBJECTS_MAGIC     UINT32_C(0x4f424a53)
#define OC_UPLOAD_MAGIC      UINT32_C(0x55504c44)
#define OC_READER_MAGIC      UINT32_C(0x52454144)
#define OC_SHARDS_MAX        4096u
#define OC_TOMBSTONES_MAX    256u /* remembered by a shard; more are found by a sweep */
#define OC_CHECKPOINT_FACTOR 10u

/* A deletion whose tombstone waits in the index until no older write can arrive. */
struct oc_tombstone {
    struct oc_list link;
    uint64_t version;
    uint32_t key_len;
    uint8_t key[];
};

struct oc_shard {
    _Alignas(64) pthread_mutex_t mu;
    struct oc_index *index;
    struct oc_list tombstones; /* oldest first */
    unsigned tombstone_count;
    bool tombstones_lost; /* some are in the index only */
};

struct oc_objects {
    uint32_t magic;
    bool loaded;
    struct oc_objects_config cfg;
    struct oc_seglog log;
    struct oc_shard *shards;
    unsigned shard_count;
    _Atomic uint64_t tombstones_waiting; /* in the lists of all shards, and lost ones */
    _Atomic uint64_t lost_entries, expired, checkpoints, checkpoint_bytes, recovery_ms;
    /* the tick's own */
    uint64_t last_sync_ns, last_space_ns;
    uint64_t checkpoint_at_bytes; /* appended_bytes when the last one began */
    uint64_t checkpoint_retry_ns;
    uint64_t checkpoint_charged; /* bytes accounted for the file */
    unsigned sweep_shard;
    bool expiry_waits; /* for a later time in CLOCK */
    uint64_t persist_time_ns;
    struct oc_index_cursor *sweep;
    struct oc_index_cursor *dump;
};

static inline struct oc_shard *oc_shard_of(struct oc_objects *s, struct oc_span key) {
    return &s->shards[oc_hash_key(key) >> 32 & (s->shard_count - 1)];
}

static inline uint64_t oc_entry_file(const struct oc_entry *e) {
    return (uint64_t)e->segment << 32 | e->offset;
}
/* Where a record is, or with OC_ENTRY_FILE the id of the value file in the same two fields. */
static inline void oc_entry_set_file(struct oc_entry *e, uint64_t file) {
    e->segment = (uint32_t)(file >> 32);
    e->offset = (uint32_t)file;
}

struct oc_upload {
    uint32_t magic;
    bool finished;
    bool committed; /* the file belongs to the index */
    bool in_doubt;  /* the commit failed, and its record may be in the log all the same */
    struct oc_objects *store;
    struct oc_valfile file;
    struct oc_file_ref ref;
};

/* The key's entry is unreadable if it still is this very record: mark it so that reads miss. True
 * when the record moved instead and *obj is where it is now. */
bool oc_objects_unreadable(struct oc_objects *s, struct oc_span key, struct oc_object *obj);
/* Take tombstones that nothing waits for any more out of the index. */
void oc_objects_prune(struct oc_objects *s);

/* checkpoint.c */
/* BLOCKS, long. `between` is called now and then while it runs, and may be NULL. */
int oc_checkpoint_write(struct oc_objects *s, void (*between)(struct oc_objects *s),
                        struct oc_error *err);
/* Load the last checkpoint into the (empty) shards. 0 with rec->from at 0:0 when there is none or
 * it is no good; only a failing device or a newer format is an error. */
int oc_checkpoint_load(struct oc_objects *s, struct oc_recovery *rec, struct oc_error *err);

/* format.c: the directory itself */
int oc_store_format_open(const struct oc_disk *disk, struct oc_error *err);

#endif
