/* The object store: ordered keys, acknowledged writes, verified reads, on a segment log.
 *
 * Promises, in order: never wrong bytes; never an older value after a newer one was acknowledged;
 * bounded memory and disk. See docs/design/store.md for the rules and docs/invariants.md for their
 * numbers.
 *
 * Threading: every function may be called from any thread unless it says otherwise. Functions
 * marked BLOCKS do device I/O and belong on a mover or background thread; oc_objects_commit writes
 * to the page cache inline (and blocks only under -sync always, see there).
 *
 * Time is passed in; expiry compares with the greatest wall clock seen (persisted with the version
 * ceiling), so a clock that steps back never revives a key, and versions that run ahead of the
 * clock after a restart never expire one early. */
#ifndef OC_STORE_OBJECTS_H
#define OC_STORE_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/span.h"
#include "base/clock.h"
#include "io/disk.h"
#include "store/flight.h"

enum oc_sync_mode {
    OC_SYNC_NONE,     /* power loss may lose a suffix of the log */
    OC_SYNC_INTERVAL, /* … of at most about sync_interval_ms */
    OC_SYNC_ALWAYS,   /* nothing acknowledged */
};

struct oc_objects_config {
    const struct oc_disk *disk;
    const struct oc_clock *clock;
    uint64_t seed; /* for salts and ids */
    enum oc_sync_mode sync;
    uint64_t sync_interval_ms; /* default 1000 */
    uint64_t segment_bytes;    /* 0: the smaller of 64 MiB and a 64th of the cap, at least 1 MiB */
    uint64_t max_disk_bytes;   /* cap on physical bytes; 0: free space less a reserve */
    unsigned shards;           /* power of two; 0: 64 */
    unsigned recovery_threads; /* 0: as many as CPUs; 1 in the simulator: no threads are started */
    unsigned max_open_files;   /* value files and segments kept open; 0: 4096 */
    uint64_t checkpoint_bytes; /* write a checkpoint after so much log at the least; 0: 64 MiB */
};

struct oc_objects;

/* Opens the directory's format (creating an empty one) but loads nothing: fails fast on a foreign
 * file, a newer format, a read-only directory, naming it. BLOCKS. */
int oc_objects_open(const struct oc_objects_config *cfg, struct oc_objects **ret,
                    struct oc_error *err);
/* Rebuild the index; until it returns 0 no other call than progress and close is allowed. BLOCKS.
 */
int oc_objects_load(struct oc_objects *s, struct oc_error *err);
struct oc_load_progress {
    uint64_t bytes_done, bytes_total, records;
};
void oc_objects_load_progress(struct oc_objects *s, struct oc_load_progress *ret);
/* Flush, sync, write a checkpoint, free. No call may be in progress. `clean` false: free only, as
 * after a crash (the simulator). BLOCKS. */
void oc_objects_close(struct oc_objects *s, bool clean);

/* Periodic work: interval syncs, deferred unlinks, checkpoints, expiry sweep, version ceiling. Call
 * about every 100 ms from ONE background thread. BLOCKS. */
void oc_objects_tick(struct oc_objects *s);

/* ---- small writes: a batch is the writes of one loop turn; they go out in one pwritev ---- */
struct oc_write {
    struct oc_list link; /* internal */
    bool is_delete;
    struct oc_span key;       /* valid until commit returns */
    struct oc_slice value;    /* at most OC_INLINE_MAX bytes; borrowed until commit returns */
    uint32_t expires_at_s;    /* 0 = never */
    struct oc_upload *upload; /* non-NULL: commit this finished upload instead of `value` */
    int result;               /* after commit: 0 or OC_E_… */
    uint64_t version;         /* after commit, when result is 0 and something was written */
    /* internal, between append and publish: */
    uint32_t segment, value_crc;
    uint64_t offset;
};

struct oc_batch {
    struct oc_list writes; /* struct oc_write.link, in order */
    size_t count;
    uint64_t bytes;          /* about what will be appended; flush at OC_BATCH_BYTES */
    struct oc_flight flight; /* internal: between append and publish */
};
#define OC_BATCH_BYTES (1u << 20)

void oc_batch_init(struct oc_batch *b);
void oc_batch_add(struct oc_batch *b, struct oc_write *w);

/* append + publish: on return every write of the batch has its result and, when 0, is readable and
 * acknowledged to the mode's promise. Under OC_SYNC_ALWAYS this waits for the device: call it from
 * a mover there. The batch is empty afterwards; the writes are the caller's. Returns the number
 * that failed. */
size_t oc_objects_commit(struct oc_objects *s, struct oc_batch *b);
/* The two halves, so that the simulator can interleave writers between them. */
void oc_objects_append(struct oc_objects *s, struct oc_batch *b);
size_t oc_objects_publish(struct oc_objects *s, struct oc_batch *b);

/* ---- large writes: chunks go to a value file as they arrive; nothing is visible until committed
 * ---- */
struct oc_upload;
/* BLOCKS (creates the file). OC_E_EXHAUSTED when the disk or the cap is full. */
int oc_upload_begin(struct oc_objects *s, struct oc_upload **ret, struct oc_error *err);
/* Exactly OC_CHUNK_BYTES but for the last. In order, one at a time, from any thread. BLOCKS. */
int oc_upload_write(struct oc_upload *u, const void *bytes, size_t len, struct oc_error *err);
/* All bytes were written; under OC_SYNC_ALWAYS makes the file durable. Then commit with a struct
 * oc_write. BLOCKS. */
int oc_upload_finish(struct oc_upload *u, struct oc_error *err);
uint64_t oc_upload_len(const struct oc_upload *u);
/* Drop it: removes the file unless it was committed (or may have been: a failed commit is an
 * unknown outcome). Always the last call for an upload. BLOCKS. */
void oc_upload_free(struct oc_upload *u);

/* ---- reads ---- */
struct oc_object {
    uint64_t version;
    uint64_t len; /* value bytes */
    uint32_t expires_at_s;
    /* internal: */
    uint32_t segment, offset;
    uint8_t flags;
};
/* The time that expiry compares with, in whole seconds: the wall clock, or the highest seen so far
 * (also by earlier processes) when that is greater. */
uint32_t oc_objects_time_s(struct oc_objects *s);
/* Memory only. OC_E_NOT_FOUND when absent, expired or unreadable. */
int oc_objects_find(struct oc_objects *s, struct oc_span key, struct oc_object *ret);

/* Read a small object (len <= OC_INLINE_MAX and not in a file) whole and verified into dst, which
 * has room for oc_objects_read_room(key, obj) bytes; *ret_value points into dst. With `nowait`,
 * OC_AGAIN when it would wait for the device. OC_E_NOT_FOUND: gone or unreadable meanwhile
 * (counted, quarantined); callers look the key up once more and then give up. OC_E_UNAVAILABLE: the
 * device failed. */
size_t oc_objects_read_room(struct oc_span key, const struct oc_object *obj);
int oc_objects_read(struct oc_objects *s, struct oc_span key, const struct oc_object *obj,
                    void *dst, bool nowait, struct oc_span *ret_value);
bool oc_object_is_small(const struct oc_object *obj);

/* A reader of a large object: keeps its bytes readable though it is overwritten or deleted
 * meanwhile. */
struct oc_reader;
int oc_reader_open(struct oc_objects *s, struct oc_span key, const struct oc_object *obj,
                   struct oc_reader **ret, struct oc_error *err); /* BLOCKS, shortly */
/* As above without ever waiting: OC_AGAIN unless the object's file is open already. */
int oc_reader_try_open(struct oc_objects *s, struct oc_span key, const struct oc_object *obj,
                       struct oc_reader **ret);
/* Read and verify the chunk with the value byte `offset` into `dst` (OC_CHUNK_HEADER_BYTES +
 * OC_CHUNK_BYTES of room). *ret is the part of the value from `offset` to the chunk's end.
 * With `nowait`, OC_AGAIN. OC_E_DATA_LOSS: unreadable (quarantined and counted). BLOCKS unless
 * nowait. */
int oc_reader_chunk(struct oc_reader *r, uint64_t offset, void *dst, bool nowait,
                    struct oc_span *ret);
void oc_reader_close(struct oc_reader *r); /* BLOCKS when it is the last user of a removed file */
/* Closes without waiting and returns true, or returns false and does nothing. */
bool oc_reader_try_close(struct oc_reader *r);

/* ---- listing ---- */
/* Live keys with `prefix`, greater than `after` (empty: from the start), ascending, at most
 * `limit`. `each` may copy; it must not call the store; non-zero stops. *more: whether a live key
 * follows. */
int oc_objects_list(struct oc_objects *s, struct oc_span prefix, struct oc_span after, size_t limit,
                    int (*each)(void *arg, struct oc_span key, const struct oc_object *obj),
                    void *arg, bool *more);

/* ---- figures ---- */
struct oc_objects_stats {
    uint64_t keys, tombstones, value_bytes, key_bytes, index_bytes;
    uint64_t physical_bytes, cap_bytes, segments, value_files;
    uint64_t appended_bytes, appended_records, synced_bytes, syncs, sync_failures, write_failures;
    uint64_t corrupt_records, lost_entries, quarantined_segments;
    uint64_t checkpoints, checkpoint_bytes, expired, unlink_queue, open_files;
    uint64_t recovered_records, recovered_bytes, recovery_ms, cut_bytes;
};
void oc_objects_stats(struct oc_objects *s, struct oc_objects_stats *ret);

#endif
