/* The segment log as an engine: segments, one append stream, group commit, value files, recovery.
 * It knows records and files, not objects, so that every store on this disk format shares it.
 *
 * Threading: any function from any thread unless it says otherwise. Locks, in order:
 *   append_mu   held across the write of a batch and the opening of a segment (the one stream);
 *     clock_mu  held across the write of CLOCK; taken alone or under append_mu
 *     files.mu, segs.mu, flight_mu, val_mu, unlink_mu: leaves, memory work only
 *   sync_mu     memory work only; the thread that syncs gives it up meanwhile
 * No lock but append_mu and clock_mu is held across I/O. */
#ifndef OC_STORE_SEGLOG_H
#define OC_STORE_SEGLOG_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/rng.h"
#include "core/seglog/format.h"
#include "core/seglog/hlc.h"
#include "io/disk.h"
#include "store/flight.h"

#define OC_SEGMENT_BYTES_MAX   (UINT64_C(64) << 20)
#define OC_SEGMENT_BYTES_MIN   (UINT64_C(1) << 20)
#define OC_PATH_BYTES          64u
#define OC_UNSYNCED_VALUES_MAX 4096u  /* value files whose sync is left to the next log sync */
#define OC_UNLINK_QUEUE_MAX    65536u /* value files waiting for their unlinking */
#define OC_STAGE_VALUE_MAX     4096u  /* values below are copied next to their head */
#define OC_PENDING_MAX         2048u  /* records per write */
#define OC_IOV_MAX             1024u
#define OC_SEGMENT_RETRY_NS    (100 * OC_NS_PER_MS)

/* ---- open files: a bounded, counted cache (files.c) ---- */
enum oc_file_kind { OC_KIND_SEGMENT, OC_KIND_VALUE };

struct oc_handle {
    _Atomic uint32_t refs; /* users, and one of the table's while it is listed */
    bool listed;           /* under files.mu, as are recent and the links */
    bool recent;
    enum oc_file_kind kind;
    uint64_t id;
    uint64_t salt; /* of a segment; 0 for a value file */
    struct oc_file *file;
    struct oc_files *owner;
    struct oc_handle *next_hash;
    struct oc_list clock;
};

struct oc_files {
    const struct oc_disk *disk;
    pthread_mutex_t mu;
    struct oc_handle **buckets;
    size_t bucket_mask;
    struct oc_list clock;
    unsigned count, max;
    _Atomic uint64_t open; /* handles whose file is open, listed or not */
};

int oc_files_init(struct oc_files *t, const struct oc_disk *disk, unsigned max_open);
void oc_files_done(struct oc_files *t); /* nobody uses a handle any more */
/* The handle when the file is open already, else NULL. Never blocks on a device. */
struct oc_handle *oc_files_peek(struct oc_files *t, enum oc_file_kind kind, uint64_t id);
/* Open it if need be. OC_E_NOT_FOUND when there is no such file; OC_E_EXHAUSTED when as many files
 * as allowed are in use at this moment. BLOCKS. */
int oc_files_get(struct oc_files *t, enum oc_file_kind kind, uint64_t id, uint64_t salt,
                 struct oc_handle **ret, struct oc_error *err);
/* Create it (OC_E_EXISTS if it is there). BLOCKS. */
int oc_files_create(struct oc_files *t, enum oc_file_kind kind, uint64_t id, uint64_t salt,
                    struct oc_handle **ret, struct oc_error *err);
void oc_handle_put(struct oc_handle *h);
/* Gives a reference back unless it is the last one, whose return would close the file; then false.
 */
bool oc_handle_put_unless_last(struct oc_handle *h);
/* Take it out of the cache; users keep what they have. */
void oc_files_forget(struct oc_files *t, enum oc_file_kind kind, uint64_t id);
void oc_file_path(char ret[OC_PATH_BYTES], enum oc_file_kind kind, uint64_t id);

/* ---- space: physical bytes under the cap (space.c) ---- */
struct oc_space {
    const struct oc_disk *disk;
    uint64_t configured; /* 0: follow the free space */
    _Atomic uint64_t used;
    _Atomic uint64_t cap;
};
void oc_space_init(struct oc_space *s, const struct oc_disk *disk, uint64_t max_disk_bytes);
void oc_space_refresh(struct oc_space *s); /* BLOCKS */
bool oc_space_take(struct oc_space *s, uint64_t bytes);
void oc_space_force(struct oc_space *s,
                    uint64_t bytes); /* it is on the disk whatever the cap says */
void oc_space_give(struct oc_space *s, uint64_t bytes);
static inline uint64_t oc_space_round(uint64_t bytes) {
    return (bytes + 4095) & ~UINT64_C(4095);
}

/* ---- segments (segments.c) ---- */
enum oc_segment_state {
    OC_SEGMENT_OPEN,
    OC_SEGMENT_SEALED, /* full; the tick gives it its footer */
    OC_SEGMENT_DONE,
    OC_SEGMENT_POISONED, /* a write or a sync failed; no footer */
};

struct oc_segment {
    uint32_t id; /* fixed, as is the salt */
    uint64_t salt;
    /* the rest: under append_mu */
    enum oc_segment_state state;
    uint64_t end;     /* bytes: the records' end */
    uint64_t charged; /* bytes accounted in space */
    bool trimmed;     /* the tick gave back what was reserved and not used */
    bool sync_failed; /* behind `durable` it must be written again before a sync counts */
    struct oc_footer_builder *footer; /* NULL: none will be written */
};

struct oc_segments {
    pthread_mutex_t mu;
    struct oc_segment **v; /* ascending ids */
    size_t count, cap;
};

struct oc_pending { /* a record between encoding and the write */
    void *cookie;
    uint64_t offset;
    struct oc_record record;
};

struct oc_idvec { /* ids that wait for a sync */
    uint64_t *v;
    size_t count, cap;
};
int oc_idvec_add(struct oc_idvec *v, uint64_t id);

/* A value file that waits for its unlinking. */
struct oc_doomed {
    uint64_t file;
    uint64_t bytes; /* physical */
};
struct oc_doomvec {
    struct oc_doomed *v;
    size_t count, cap;
};

struct oc_seglog_config {
    const struct oc_disk *disk;
    const struct oc_clock *clock;
    uint64_t seed;
    bool ack_after_sync; /* what is not yet durable was not acknowledged either (-sync always) */
    uint64_t segment_bytes;
    uint64_t max_disk_bytes;
    unsigned max_open_files;
};

struct oc_seglog_counters {
    _Atomic uint64_t appended_bytes, appended_records, syncs, synced_bytes, sync_failures;
    _Atomic uint64_t write_failures, corrupt_records, quarantined_segments, leaked_files;
    _Atomic uint64_t value_files, recovered_records, recovered_bytes, cut_bytes;
    _Atomic uint64_t bytes_done, bytes_total; /* of the recovery */
};

struct oc_seglog {
    struct oc_seglog_config cfg;
    const struct oc_disk *disk;
    struct oc_files files;
    struct oc_space space;
    struct oc_segments segs;
    struct oc_seglog_counters n;
    uint8_t boot_id[16];
    uint64_t segment_bytes;
    _Atomic bool suspect; /* something unreadable may hold newer versions than the index knows */

    pthread_mutex_t append_mu;
    /* -- under append_mu -- */
    struct oc_rng rng;
    uint32_t next_segment;
    struct oc_segment *open; /* NULL: the next record opens one */
    struct oc_handle *open_handle;
    size_t untrimmed;         /* closed segments that the tick has not seen to */
    struct oc_segment *spare; /* prepared by the tick */
    struct oc_handle *spare_handle;
    bool header_due; /* the open segment's header goes out with its first records */
    struct oc_seg_header header;
    struct oc_log_pos end; /* of the log */
    struct oc_log_pos durable;
    bool mark_due;
    struct oc_log_pos mark_value, mark_at; /* the last MARK written, and the end of its record */
    struct oc_log_pos marked;              /* a recovery will know this much to be durable */
    bool stalled; /* a sync failed behind acknowledged records: nothing later is called durable
                     until they were written once more */
    uint64_t void_epoch; /* counts the times that the log behind `durable` was given up */
    struct oc_log_pos void_from;
    struct oc_hlc hlc;
    uint64_t last_written; /* the newest version on the disk */
    uint64_t retry_at_ns;
    int retry_code;
    struct oc_now now;        /* of the batch */
    struct oc_idvec unsynced; /* segments */
    uint64_t unsynced_bytes;
    bool seg_dir_dirty;
    /* the batch being assembled */
    void (*failed)(void *cookie, int code, bool in_doubt);
    uint8_t *stage;
    size_t stage_len, piece_start;
    uint64_t staged_bytes; /* behind open->end */
    bool mark_staged;
    struct oc_mark mark;
    uint32_t iov_count;
    struct iovec *iov;
    uint32_t pending_count;
    struct oc_pending *pending;
#ifdef OC_PLANTED_BUGS
    uint8_t *late; /* EARLY_ACK: acknowledged, not yet written */
    size_t late_len;
    uint64_t late_offset;
    uint32_t late_segment;
#endif

    pthread_mutex_t flight_mu;
    struct oc_list flights;   /* by first_version */
    _Atomic uint64_t horizon; /* no write in flight is older */

    pthread_mutex_t sync_mu;
    pthread_cond_t sync_cond;
    /* -- under sync_mu -- */
    bool syncing;
    uint64_t rounds_started, rounds_done, last_failed_round;

    _Atomic uint64_t time_us;         /* the highest wall clock seen: expiry never runs backwards */
    _Atomic uint64_t time_durable_us; /* … as CLOCK has it */
    pthread_mutex_t clock_mu;
    /* -- under clock_mu -- */
    struct oc_file *clock_file;
    uint64_t clock_sequence;
    uint64_t clock_ceiling; /* the last one written */

    pthread_mutex_t val_mu;
    struct oc_idvec unsynced_values;
    bool values_failed;     /* their last sync failed */
    uint64_t dirty_dirs[4]; /* a bit per val/xx with creations not yet durable */
    _Atomic uint64_t next_file;

    pthread_mutex_t unlink_mu;
    struct oc_doomvec doomed; /* joined since the last arming */
    struct oc_doomvec armed;  /* may go once the log is durable up to armed_at */
    _Atomic bool reaping;
    struct oc_log_pos armed_at; /* the reaper's, as is the next */
    uint64_t armed_at_ns;
};

int oc_seglog_init(struct oc_seglog *log, const struct oc_seglog_config *cfg, struct oc_error *err);
void oc_seglog_done(struct oc_seglog *log);

/* ---- appending (seglog_append.c): begin, add …, end; append_mu is held in between ---- */
struct oc_append_record {
    enum oc_rec_kind kind;
    struct oc_span key, value; /* stay where they are until end */
    uint64_t object_len;
    uint32_t expires_at_s;
    uint32_t value_crc; /* of a PUT's value */
    /* out: */
    uint64_t version;
    uint32_t segment;
    uint64_t offset;
};
/* `failed` is called from add and end for records that were accepted and could not be written. In
 * doubt: what was written of them could not be taken back, so a later start may find them. */
void oc_seglog_begin(struct oc_seglog *log, struct oc_flight *flight,
                     void (*failed)(void *cookie, int code, bool in_doubt));
/* 0: accepted. OC_E_EXHAUSTED: no space; OC_E_UNAVAILABLE: the device failed. */
int oc_seglog_add(struct oc_seglog *log, struct oc_append_record *r, void *cookie);
/* Writes what is left. *ret_end and *ret_epoch are for oc_seglog_wait_durable. */
void oc_seglog_end(struct oc_seglog *log, struct oc_log_pos *ret_end, uint64_t *ret_epoch);
/* The flight is over: everything of it is in the index or given up. */
void oc_seglog_land(struct oc_seglog *log, struct oc_flight *flight);
/* May a batch in flight put that key? */
bool oc_seglog_may_put(struct oc_seglog *log, uint64_t key_hash);
/* No write in flight is older than this version. */
static inline uint64_t oc_seglog_horizon(struct oc_seglog *log) {
    return atomic_load_explicit(&log->horizon, memory_order_acquire);
}
/* Where a replay must start to see all that the index may not have: the start of the oldest flight.
 */
struct oc_log_pos oc_seglog_replay_from(struct oc_seglog *log);
struct oc_log_pos oc_seglog_end_pos(struct oc_seglog *log);
/* Append the MARK that is due now rather than with the next batch. */
int oc_seglog_mark(struct oc_seglog *log);
/* append_mu held: write out what was assembled. */
int oc_seglog_flush(struct oc_seglog *log);

/* ---- segments.c ---- */
/* append_mu held: seal the open segment and open the next. */
int oc_segments_roll(struct oc_seglog *log);
/* append_mu held: no more appends to the open segment. */
void oc_segments_poison_open(struct oc_seglog *log);
/* Keep one segment ready (the tick). BLOCKS. */
void oc_segments_prepare_spare(struct oc_seglog *log);
/* Write footers of sealed segments (the tick). BLOCKS. */
void oc_segments_seal(struct oc_seglog *log);
int oc_segments_add(struct oc_segments *t, struct oc_segment *seg);
struct oc_segment *oc_segments_find(struct oc_segments *t, uint32_t id);
/* A segment's open file. With `nowait` OC_AGAIN instead of opening it. OC_E_NOT_FOUND. */
int oc_seglog_segment(struct oc_seglog *log, uint32_t id, bool nowait, struct oc_handle **ret,
                      struct oc_error *err);

/* ---- durability (seglog_sync.c) ---- */
/* Make everything appended so far durable. BLOCKS. */
int oc_seglog_sync(struct oc_seglog *log, struct oc_error *err);
/* Until the log is durable up to `end`, which an append returned together with `epoch`; joins the
 * sync that is due. OC_E_UNAVAILABLE: it failed, and the records are not part of the log. BLOCKS.
 */
int oc_seglog_wait_durable(struct oc_seglog *log, struct oc_log_pos end, uint64_t epoch);
bool oc_seglog_is_durable(struct oc_seglog *log, struct oc_log_pos pos);
/* A recovery will know that. */
bool oc_seglog_is_marked(struct oc_seglog *log, struct oc_log_pos pos);

/* ---- writing again what a failed sync left in doubt (salvage.c) ---- */
void oc_salvage_note(struct oc_seglog *log);
void oc_salvage_done(struct oc_seglog *log);
bool oc_salvage_wanted(struct oc_seglog *log);
int oc_salvage_rewrite(struct oc_seglog *log, struct oc_handle *h, uint64_t from, uint64_t end,
                       struct oc_error *err);

/* ---- versions and time (vclock.c) ---- */
/* Go on behind everything ever given, and make the first ceiling durable. BLOCKS. */
int oc_vclock_open(struct oc_seglog *log, uint64_t newest_version, struct oc_error *err);
/* The format that CLOCK says the directory has; 0 when it cannot tell. */
uint32_t oc_vclock_format(const struct oc_disk *disk);
/* `clean`: let the next start go on without a gap. BLOCKS. */
void oc_vclock_close(struct oc_seglog *log, bool clean);
/* append_mu held. OC_E_UNAVAILABLE: the ceiling cannot be raised. */
int oc_vclock_next(struct oc_seglog *log, uint64_t *ret);
/* Raise the ceiling before it is needed (the tick). BLOCKS. */
void oc_vclock_tick(struct oc_seglog *log);
/* max(wall clock, the highest seen, also by earlier processes), in whole seconds. */
uint32_t oc_vclock_time_s(struct oc_seglog *log, const struct oc_now *now);
/* The part of it that every later start will know too. */
uint32_t oc_vclock_durable_s(struct oc_seglog *log);
/* Make the present time durable. BLOCKS. */
int oc_vclock_persist(struct oc_seglog *log);

/* ---- value files (valfile.c) ---- */
struct oc_valfile { /* one being written */
    struct oc_seglog *log;
    struct oc_handle *handle;
    uint64_t id, len, chunks;
    uint64_t charged;
    uint32_t chunks_crc;
    bool ended;  /* a chunk shorter than the others was written */
    bool failed; /* one was not written */
};
int oc_valfile_create(struct oc_seglog *log, struct oc_valfile *ret, struct oc_error *err);
int oc_valfile_append(struct oc_valfile *f, const void *bytes, size_t len, struct oc_error *err);
/* With `sync` durable on return, else by the next log sync. */
int oc_valfile_finish(struct oc_valfile *f, bool sync, struct oc_error *err);
void oc_valfile_ref(const struct oc_valfile *f, struct oc_file_ref *ret);
void oc_valfile_discard(struct oc_valfile *f); /* removes the file */
void oc_valfile_release(struct oc_valfile *f); /* the file stays */
static inline uint64_t oc_valfile_bytes(uint64_t value_len) {
    uint64_t chunks = (value_len + OC_CHUNK_BYTES - 1) / OC_CHUNK_BYTES;

    return value_len + chunks * OC_CHUNK_HEADER_BYTES;
}
/* Read and verify one chunk of a value of value_len bytes; dst has room for header and chunk. *ret
 * is the chunk's value bytes. OC_AGAIN (nowait), OC_E_DATA_LOSS, OC_E_UNAVAILABLE. */
int oc_valfile_read(struct oc_handle *h, uint64_t value_len, uint64_t chunk, void *dst, bool nowait,
                    struct oc_span *ret, struct oc_error *err);
/* Unlink once the log as it ends now is durable. Never blocks on a device. */
void oc_valfile_doom(struct oc_seglog *log, uint64_t file, uint64_t value_len);
/* The same for a file that a load found and nothing names, of `size` bytes; beyond the queue's
 * bound. */
void oc_valfile_doom_orphan(struct oc_seglog *log, uint64_t file, uint64_t size);
bool oc_valfile_doomed_many(struct oc_seglog *log);
/* Unlink what may go; with `force` sync the log for it. BLOCKS. */
void oc_valfile_reap(struct oc_seglog *log, bool force);
void oc_valfile_join_sync(struct oc_seglog *log, uint64_t id);
/* The part of a log sync that concerns value files. What fails stays pending. */
int oc_valfile_sync_pending(struct oc_seglog *log, struct oc_error *err);

/* ---- reading segments (segscan.c) ---- */
struct oc_walk {
    void *arg;
    /* Non-zero stops. The value of FILE and MARK is complete, that of PUT only with `whole`. */
    int (*record)(void *arg, uint64_t offset, const struct oc_record *r);
    /* Nothing readable in the range. May be NULL. */
    void (*bad)(void *arg, uint64_t offset, uint64_t bytes);
};
#define OC_WALK_BUFFER_BYTES ((UINT32_C(2) << 20) + OC_REC_TOTAL_MAX)
/* All records of [offset, end) in order. `buffer` has OC_WALK_BUFFER_BYTES. What the device cannot
 * read is bad and makes the log suspect. BLOCKS. */
int oc_segment_walk(struct oc_seglog *log, struct oc_handle *h, uint64_t offset, uint64_t end,
                    bool whole, void *buffer, const struct oc_walk *walk);
/* The footer of a segment file; *ret_info points into *ret_bytes, which the caller frees. */
int oc_segment_footer(struct oc_seglog *log, struct oc_handle *h, uint64_t file_bytes,
                      uint8_t **ret_bytes, struct oc_footer_info *ret_info);

/* ---- recovery (recover.c, recover_tail.c) ---- */
struct oc_replay {
    void *arg;
    /* Every record from `from` to the log's end, in any order; `thread` is below the number of
     * threads. A FILE without a value is one whose value cannot be read. Non-zero stops. */
    int (*record)(void *arg, unsigned thread, uint32_t segment, uint64_t offset,
                  const struct oc_record *r);
};
struct oc_recovery {           /* in: */
    struct oc_log_pos from;    /* replay from here, … */
    struct oc_log_pos through; /* … and this much is known to be durable (a checkpoint) */
    uint64_t newest_version;   /* in: known so far; out: with what was found */
    unsigned threads;          /* 1 to OC_THREADS_MAX */
};
/* List the segments, find the end of the log, make the cut durable, replay. On success the log is
 * ready for appends but for oc_vclock_open. BLOCKS. */
int oc_seglog_recover(struct oc_seglog *log, struct oc_recovery *rec,
                      const struct oc_replay *replay, struct oc_error *err);
#define OC_THREADS_MAX 64u
/* Run fn(arg, 0 … threads - 1), each once: the last, and those for which the system has no thread,
 * on this one; with 1 no thread is made. At most OC_THREADS_MAX. A failure is returned. */
int oc_run_threads(unsigned threads, int (*fn)(void *arg, unsigned thread), void *arg);

/* A segment as found. */
struct oc_found {
    uint32_t id;
    bool readable;  /* the header is good */
    bool is_void;   /* given up by a later segment */
    uint64_t size;  /* of the file */
    uint64_t limit; /* records end here at most */
    struct oc_seg_header header;
};
struct oc_foundvec {
    struct oc_found *v;
    size_t count, cap;
};
/* Where the log ends after a power loss; makes the cut durable and takes what is behind it out of
 * `found`. */
int oc_recover_cut(struct oc_seglog *log, const struct oc_recovery *rec, struct oc_foundvec *found,
                   struct oc_error *err);

static inline void oc_n_add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}
static inline uint64_t oc_n_get(_Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
