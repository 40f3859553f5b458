/* Value files: written chunk by chunk, read chunk by chunk, unlinked when nothing needs them.
 *
 * Ids ascend from the version clock's start, so an id is never given twice in the life of a
 * directory; chunks are bound to the id, so a file can never pass for another. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/event.h"
#include "base/hash.h"
#include "base/plant.h"
#include "store/seglog.h"

#define DIRS          256u
#define CREATE_TRIES  16
#define REAP_DELAY_NS OC_NS_PER_S

static void dir_path(char ret[8], unsigned dir) {
    static const char digit[] = "0123456789abcdef";

    memcpy(ret, "val/", 4);
    ret[4] = digit[dir >> 4];
    ret[5] = digit[dir & 15];
    ret[6] = '\0';
}

int oc_valfile_create(struct oc_seglog *log, struct oc_valfile *ret, struct oc_error *err) {
    struct oc_handle *h = NULL;
    int rc = OC_E_EXISTS;

    if (oc_n_get(&log->space.used) + OC_CHUNK_BYTES > oc_n_get(&log->space.cap)) {
        return oc_error_set(err, OC_E_EXHAUSTED, "storage capacity exceeded");
    }
    *ret = (struct oc_valfile){.log = log};
    for (int i = 0; i < CREATE_TRIES && rc == OC_E_EXISTS; i++) {
        ret->id = atomic_fetch_add(&log->next_file, 1) + 1;
        rc = oc_files_create(&log->files, OC_KIND_VALUE, ret->id, 0, &h, err);
    }
    if (rc != 0) {
        char path[OC_PATH_BYTES];

        oc_file_path(path, OC_KIND_VALUE, ret->id);
        if (rc != OC_E_EXISTS) {
            /* It may have been made before it failed; what stays is removed by the next load. */
            (void)log->disk->unlink(log->disk->ctx, path, NULL);
        }
        return rc == OC_E_EXHAUSTED ? rc : OC_E_UNAVAILABLE;
    }
    ret->handle = h;
    oc_n_add(&log->n.value_files, 1);
    return 0;
}

/* Account for the file as long as it is going to be. */
static bool charge(struct oc_valfile *f, uint64_t file_bytes) {
    uint64_t want = oc_space_round(file_bytes);

    if (want > f->charged) {
        if (!oc_space_take(&f->log->space, want - f->charged)) {
            return false;
        }
        f->charged = want;
    }
    return true;
}

int oc_valfile_append(struct oc_valfile *f, const void *bytes, size_t len, struct oc_error *err) {
    struct oc_chunk_header h;
    void *writable;

    if (f->ended || f->failed || len == 0 || len > OC_CHUNK_BYTES) {
        return oc_error_set(err, OC_E_INVALID, "a chunk of %zu bytes behind %llu others", len,
                            (unsigned long long)f->chunks);
    }
    if (!charge(f, oc_valfile_bytes(f->len + len))) {
        f->failed = true;
        return oc_error_set(err, OC_E_EXHAUSTED, "storage capacity exceeded");
    }
    oc_chunk_encode(&h, f->id, f->chunks, (uint32_t)len, oc_crc32c(0, bytes, len));
    /* struct iovec has no const; the bytes are only read. */
    memcpy(&writable, &bytes, sizeof writable);
    struct iovec iov[2] = {{&h, sizeof h}, {writable, len}};
    int rc = f->log->disk->pwritev(f->handle->file, iov, 2,
                                   f->chunks * (OC_CHUNK_HEADER_BYTES + OC_CHUNK_BYTES), err);
    if (rc != 0) {
        oc_n_add(&f->log->n.write_failures, 1);
        f->failed = true;
        return rc == OC_E_EXHAUSTED ? rc : OC_E_UNAVAILABLE;
    }
    f->chunks_crc = oc_crc32c(f->chunks_crc, &h.crc, sizeof h.crc);
    f->chunks++;
    f->len += len;
    f->ended = len < OC_CHUNK_BYTES;
    return 0;
}

static bool join(struct oc_seglog *log, uint64_t id, size_t max) {
    unsigned dir = (unsigned)(id & (DIRS - 1));

    pthread_mutex_lock(&log->val_mu);
    log->dirty_dirs[dir / 64] |= UINT64_C(1) << (dir % 64);
    bool joined = log->unsynced_values.count < max && oc_idvec_add(&log->unsynced_values, id) == 0;
    pthread_mutex_unlock(&log->val_mu);
    return joined;
}

void oc_valfile_join_sync(struct oc_seglog *log, uint64_t id) {
    while (!join(log, id, OC_UNSYNCED_VALUES_MAX)) {
        /* As many as are remembered: make room. When that fails they stay, and one more with them.
         */
        if (oc_seglog_sync(log, NULL) != 0) {
            (void)join(log, id, SIZE_MAX);
            return;
        }
    }
}

int oc_valfile_finish(struct oc_valfile *f, bool sync, struct oc_error *err) {
    struct oc_seglog *log = f->log;
    char dir[8];

    if (!sync) {
        oc_valfile_join_sync(log, f->id);
        return 0;
    }
    int rc = log->disk->sync(f->handle->file, err);
    if (rc == 0 && !OC_PLANT(LOST_RENAME)) {
        dir_path(dir, (unsigned)(f->id & (DIRS - 1)));
        rc = log->disk->sync_dir(log->disk->ctx, dir, err);
    }
    if (rc != 0) {
        oc_n_add(&log->n.sync_failures, 1);
        return OC_E_UNAVAILABLE;
    }
    return 0;
}

void oc_valfile_ref(const struct oc_valfile *f, struct oc_file_ref *ret) {
    *ret = (struct oc_file_ref){
        .file = f->id, .len = f->len, .chunk_bytes = OC_CHUNK_BYTES, .chunks_crc = f->chunks_crc};
}

static void unlink_now(struct oc_seglog *log, uint64_t id, uint64_t bytes) {
    char path[OC_PATH_BYTES];

    oc_file_path(path, OC_KIND_VALUE, id);
    oc_files_forget(&log->files, OC_KIND_VALUE, id);
    oc_event(OC_EV_UNLINK, id, 0);
    int rc = log->disk->unlink(log->disk->ctx, path, NULL);
    if (rc == OC_E_NOT_FOUND) {
        return; /* an earlier process removed it, and this one has not accounted for it */
    }
    if (rc != 0) {
        oc_n_add(&log->n.leaked_files, 1); /* stays accounted; the next load removes it */
        return;
    }
    atomic_fetch_sub_explicit(&log->n.value_files, 1, memory_order_relaxed);
    oc_space_give(&log->space, bytes);
}

void oc_valfile_discard(struct oc_valfile *f) {
    if (f->handle == NULL) {
        return;
    }
    oc_handle_put(OC_TAKE(f->handle));
    unlink_now(f->log, f->id, f->charged);
}

void oc_valfile_release(struct oc_valfile *f) {
    oc_handle_put(OC_TAKE(f->handle));
}

/* ---- reading ---- */

int oc_valfile_read(struct oc_handle *h, uint64_t value_len, uint64_t chunk, void *dst, bool nowait,
                    struct oc_span *ret, struct oc_error *err) {
    uint64_t before = chunk * OC_CHUNK_BYTES;

    if (before >= value_len) {
        return oc_error_set(err, OC_E_RANGE, "the value has no chunk %llu",
                            (unsigned long long)chunk);
    }
    uint64_t left = value_len - before;
    size_t len = left < OC_CHUNK_BYTES ? (size_t)left : OC_CHUNK_BYTES;
    size_t want = OC_CHUNK_HEADER_BYTES + len;
    int64_t n = h->owner->disk->pread(
        h->file, dst, want, chunk * (OC_CHUNK_HEADER_BYTES + OC_CHUNK_BYTES), nowait, err);

    if (n == OC_DISK_WOULD_WAIT) {
        return OC_AGAIN;
    }
    if (n < 0) {
        return OC_E_UNAVAILABLE;
    }
    struct oc_span value = oc_span((const uint8_t *)dst + OC_CHUNK_HEADER_BYTES, len);
    struct oc_chunk_header header;

    memcpy(&header, dst, sizeof header);
    if (!OC_PLANT(NO_VERIFY) &&
        ((size_t)n < want ||
         !oc_chunk_ok(&header, h->id, chunk, (uint32_t)len, oc_crc32c(0, value.p, value.len)))) {
        return oc_error_set(err, OC_E_DATA_LOSS, "chunk %llu of value file %llx is unreadable",
                            (unsigned long long)chunk, (unsigned long long)h->id);
    }
    *ret = value;
    return 0;
}

/* ---- durability ---- */

static int sync_dirty_dirs(struct oc_seglog *log, const uint64_t dirty[4], struct oc_error *err) {
    for (unsigned dir = 0; dir < DIRS; dir++) {
        char path[8];

        if ((dirty[dir / 64] >> (dir % 64) & 1) == 0) {
            continue;
        }
        dir_path(path, dir);
        int rc = log->disk->sync_dir(log->disk->ctx, path, err);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static int sync_value(struct oc_seglog *log, uint64_t id, bool again, struct oc_error *err) {
    struct oc_handle *h = NULL;
    uint64_t size;
    int rc = oc_files_get(&log->files, OC_KIND_VALUE, id, 0, &h, err);

    if (rc != 0) {
        return rc == OC_E_NOT_FOUND ? 0 : rc; /* unlinked since: no record needs it any more */
    }
    if (again) {
        rc = log->disk->size(h->file, &size, err);
        if (rc == 0) {
            rc = oc_salvage_rewrite(log, h, 0, size, err);
        }
    }
    if (rc == 0) {
        rc = log->disk->sync(h->file, err);
    }
    oc_handle_put(h);
    return rc;
}

int oc_valfile_sync_pending(struct oc_seglog *log, struct oc_error *err) {
    struct oc_idvec ids;
    uint64_t dirty[4];
    int rc = 0;

    pthread_mutex_lock(&log->val_mu);
    ids = log->unsynced_values;
    log->unsynced_values = (struct oc_idvec){0};
    memcpy(dirty, log->dirty_dirs, sizeof dirty);
    memset(log->dirty_dirs, 0, sizeof log->dirty_dirs);
    bool again = log->values_failed;
    log->values_failed = false;
    pthread_mutex_unlock(&log->val_mu);

    for (size_t i = 0; i < ids.count && rc == 0; i++) {
        rc = sync_value(log, ids.v[i], again, err);
    }
    if (rc == 0 && !OC_PLANT(LOST_RENAME)) {
        rc = sync_dirty_dirs(log, dirty, err);
    }
    for (size_t i = 0; i < ids.count && rc != 0; i++) {
        (void)join(log, ids.v[i], SIZE_MAX); /* out of memory: the log stays stalled all the same */
    }
    if (rc != 0) {
        pthread_mutex_lock(&log->val_mu);
        log->values_failed = true;
        pthread_mutex_unlock(&log->val_mu);
    }
    free(ids.v);
    return rc;
}

/* ---- unlinking ---- */

static int doom_add(struct oc_doomvec *v, struct oc_doomed d) {
    if (v->count == v->cap) {
        size_t cap = v->cap == 0 ? 64 : v->cap * 2;
        struct oc_doomed *grown = reallocarray(v->v, cap, sizeof *grown);

        if (grown == NULL) {
            return OC_E_EXHAUSTED;
        }
        v->v = grown;
        v->cap = cap;
    }
    v->v[v->count++] = d;
    return 0;
}

static void doom(struct oc_seglog *log, struct oc_doomed d, size_t max) {
    pthread_mutex_lock(&log->unlink_mu);
    bool full = log->doomed.count + log->armed.count >= max || doom_add(&log->doomed, d) != 0;
    pthread_mutex_unlock(&log->unlink_mu);
    if (full) {
        oc_n_add(&log->n.leaked_files, 1); /* stays accounted; the next load removes it */
    }
}

void oc_valfile_doom(struct oc_seglog *log, uint64_t file, uint64_t value_len) {
    doom(log, (struct oc_doomed){file, oc_space_round(oc_valfile_bytes(value_len))},
         OC_UNLINK_QUEUE_MAX);
}

void oc_valfile_doom_orphan(struct oc_seglog *log, uint64_t file, uint64_t size) {
    doom(log, (struct oc_doomed){file, oc_space_round(size)}, SIZE_MAX);
}

bool oc_valfile_doomed_many(struct oc_seglog *log) {
    pthread_mutex_lock(&log->unlink_mu);
    bool many = log->doomed.count + log->armed.count >= OC_UNLINK_QUEUE_MAX / 4 * 3;
    pthread_mutex_unlock(&log->unlink_mu);
    return many;
}

/* One thread at a time: arm what has gathered. The log's end is taken after the list, so it is
 * behind every record that supersedes one of the files. */
static void arm(struct oc_seglog *log) {
    bool fresh = false;

    pthread_mutex_lock(&log->unlink_mu);
    if (log->armed.count == 0 && log->doomed.count > 0) {
        struct oc_doomvec empty = log->armed;

        log->armed = log->doomed;
        log->doomed = empty;
        fresh = true;
    }
    pthread_mutex_unlock(&log->unlink_mu);
    if (fresh) {
        log->armed_at = oc_seglog_end_pos(log);
        log->armed_at_ns = oc_clock_now(log->cfg.clock).mono_ns;
    }
}

static void unlink_armed(struct oc_seglog *log) {
    struct oc_doomvec v;

    pthread_mutex_lock(&log->unlink_mu);
    v = log->armed;
    log->armed = (struct oc_doomvec){0};
    pthread_mutex_unlock(&log->unlink_mu);
    for (size_t i = 0; i < v.count; i++) {
        unlink_now(log, v.v[i].file, v.v[i].bytes);
    }
    free(v.v);
}

/* A recovery that knows less to be durable than is would take a file's absence for a loss. So the
 * mark itself must be durable before the file goes. */
static bool marked_up_to(struct oc_seglog *log, struct oc_log_pos pos, bool force) {
    if (oc_seglog_is_marked(log, pos)) {
        return true;
    }
    if (!force || oc_seglog_sync(log, NULL) != 0 || oc_seglog_mark(log) != 0 ||
        oc_seglog_sync(log, NULL) != 0) {
        return false;
    }
    return oc_seglog_is_marked(log, pos);
}

static void reap(struct oc_seglog *log, bool force) {
    arm(log);
    pthread_mutex_lock(&log->unlink_mu);
    size_t armed = log->armed.count;
    pthread_mutex_unlock(&log->unlink_mu);
    if (armed == 0) {
        return;
    }
    bool due = force || armed >= OC_UNLINK_QUEUE_MAX / 4 ||
               oc_clock_now(log->cfg.clock).mono_ns >= log->armed_at_ns + REAP_DELAY_NS;

    if (OC_PLANT(EARLY_UNLINK) || marked_up_to(log, log->armed_at, due)) {
        unlink_armed(log);
    }
}

void oc_valfile_reap(struct oc_seglog *log, bool force) {
    if (!atomic_exchange_explicit(&log->reaping, true, memory_order_acquire)) {
        reap(log, force);
        atomic_store_explicit(&log->reaping, false, memory_order_release);
    }
}
