/* The append stream. Records of a batch are assembled as one vector: heads, keys and small values
 * in the staging buffer, large values where the caller has them. One write sends it; only a batch
 * that passes a bound (vector, staging, segment) takes more. A record counts once its write
 * succeeded. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/event.h"
#include "base/hash.h"
#include "base/plant.h"
#include "store/seglog.h"

#define STAGE_BYTES ((1u << 20) + OC_REC_TOTAL_MAX)
#define MARK_TOTAL  (OC_REC_HEADER_BYTES + sizeof(struct oc_mark))
/* What one record may add to the vector: the piece before a large value, and the value. */
#define IOV_PER_RECORD 2u
/* Puts leave this part of a segment to deletions, so that space can be freed when it has run out,
 * and deletions leave a little to the MARKs without which no value file is unlinked. */
#define DELETE_SHARE 64u
#define MARK_BYTES   4096u

static void log_mutexes(struct oc_seglog *log) {
    pthread_mutexattr_t adaptive;

    /* An append takes a few microseconds and waking a sleeper fifty: spin first. */
    pthread_mutexattr_init(&adaptive);
    pthread_mutexattr_settype(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&log->append_mu, &adaptive);
    pthread_mutexattr_destroy(&adaptive);

    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&log->sync_cond, &monotonic);
    pthread_condattr_destroy(&monotonic);

    pthread_mutex_init(&log->segs.mu, NULL);
    pthread_mutex_init(&log->flight_mu, NULL);
    pthread_mutex_init(&log->sync_mu, NULL);
    pthread_mutex_init(&log->clock_mu, NULL);
    pthread_mutex_init(&log->val_mu, NULL);
    pthread_mutex_init(&log->unlink_mu, NULL);
}

static uint64_t choose_segment_bytes(const struct oc_seglog *log) {
    uint64_t bytes = log->cfg.segment_bytes;
    uint64_t cap = atomic_load(&log->space.cap);

    if (bytes == 0) {
        bytes = cap / 64 < OC_SEGMENT_BYTES_MAX ? cap / 64 : OC_SEGMENT_BYTES_MAX;
    }
    if (bytes < OC_SEGMENT_BYTES_MIN) {
        bytes = OC_SEGMENT_BYTES_MIN;
    }
    /* Record offsets are kept in 32 bits of 8 bytes. */
    if (bytes > UINT64_C(1) << 32) {
        bytes = UINT64_C(1) << 32;
    }
    return bytes & ~UINT64_C(4095);
}

int oc_seglog_init(struct oc_seglog *log, const struct oc_seglog_config *cfg,
                   struct oc_error *err) {
    *log = (struct oc_seglog){.cfg = *cfg, .disk = cfg->disk, .next_segment = 1};
    log_mutexes(log);
    oc_list_init(&log->flights);
    atomic_init(&log->horizon, UINT64_MAX);
    log->disk->boot_id(log->disk->ctx, log->boot_id);
    oc_space_init(&log->space, cfg->disk, cfg->max_disk_bytes);
    log->segment_bytes = choose_segment_bytes(log);
    log->iov_count = 1; /* entry 0 is the header's */
    log->stage = malloc(STAGE_BYTES);
    log->iov = calloc(OC_IOV_MAX, sizeof *log->iov);
    log->pending = calloc(OC_PENDING_MAX, sizeof *log->pending);
    if (oc_files_init(&log->files, cfg->disk, cfg->max_open_files) != 0 || log->stage == NULL ||
        log->iov == NULL || log->pending == NULL) {
        oc_seglog_done(log);
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory for the segment log");
    }
    return 0;
}

void oc_seglog_done(struct oc_seglog *log) {
    oc_handle_put(log->open_handle);
    oc_handle_put(log->spare_handle);
    free(log->spare);
    oc_files_done(&log->files);
    for (size_t i = 0; i < log->segs.count; i++) {
        oc_footer_free(log->segs.v[i]->footer);
        free(log->segs.v[i]);
    }
    free(log->segs.v);
    free(log->stage);
    free(log->iov);
    free(log->pending);
    free(log->unsynced.v);
    free(log->unsynced_values.v);
    free(log->doomed.v);
    free(log->armed.v);
#ifdef OC_PLANTED_BUGS
    free(log->late);
#endif
    pthread_mutex_destroy(&log->append_mu);
    pthread_cond_destroy(&log->sync_cond);
    pthread_mutex_destroy(&log->segs.mu);
    pthread_mutex_destroy(&log->flight_mu);
    pthread_mutex_destroy(&log->sync_mu);
    pthread_mutex_destroy(&log->clock_mu);
    pthread_mutex_destroy(&log->val_mu);
    pthread_mutex_destroy(&log->unlink_mu);
}

/* ---- flights ---- */

void oc_seglog_begin(struct oc_seglog *log, struct oc_flight *flight,
                     void (*failed)(void *cookie, int code, bool in_doubt)) {
    pthread_mutex_lock(&log->append_mu);
    log->now = oc_clock_now(log->cfg.clock);
    log->failed = failed;
    flight->active = true;
    flight->first_version = log->hlc.last + 1;
    flight->segment = log->end.segment;
    flight->offset = log->end.offset;
    pthread_mutex_lock(&log->flight_mu);
    if (oc_list_empty(&log->flights)) {
        atomic_store_explicit(&log->horizon, flight->first_version, memory_order_release);
    }
    oc_list_push_back(&log->flights, &flight->link);
    pthread_mutex_unlock(&log->flight_mu);
}

void oc_seglog_land(struct oc_seglog *log, struct oc_flight *flight) {
    uint64_t horizon = UINT64_MAX;

    pthread_mutex_lock(&log->flight_mu);
    oc_list_remove(&flight->link);
    if (!oc_list_empty(&log->flights)) {
        horizon = OC_CONTAINER(log->flights.next, struct oc_flight, link)->first_version;
    }
    atomic_store_explicit(&log->horizon, horizon, memory_order_release);
    pthread_mutex_unlock(&log->flight_mu);
}

bool oc_seglog_may_put(struct oc_seglog *log, uint64_t key_hash) {
    bool may = false;

    pthread_mutex_lock(&log->flight_mu);
    oc_list_each (l, &log->flights) {
        may = may || oc_flight_may_put(OC_CONTAINER(l, struct oc_flight, link), key_hash);
    }
    pthread_mutex_unlock(&log->flight_mu);
    return may;
}

struct oc_log_pos oc_seglog_replay_from(struct oc_seglog *log) {
    pthread_mutex_lock(&log->append_mu);
    struct oc_log_pos pos = log->end;
    pthread_mutex_lock(&log->flight_mu);
    if (!oc_list_empty(&log->flights)) {
        struct oc_flight *f = OC_CONTAINER(log->flights.next, struct oc_flight, link);

        pos = (struct oc_log_pos){.segment = f->segment, .offset = f->offset};
    }
    pthread_mutex_unlock(&log->flight_mu);
    pthread_mutex_unlock(&log->append_mu);
    return pos;
}

struct oc_log_pos oc_seglog_end_pos(struct oc_seglog *log) {
    pthread_mutex_lock(&log->append_mu);
    struct oc_log_pos pos = log->end;
    pthread_mutex_unlock(&log->append_mu);
    return pos;
}

/* ---- writing; append_mu held in all of these ---- */

static void reset_batch(struct oc_seglog *log) {
    log->stage_len = 0;
    log->piece_start = 0;
    log->staged_bytes = 0;
    log->mark_staged = false;
    log->iov_count = 1; /* entry 0 is the header's */
    log->pending_count = 0;
}

static void push_piece(struct oc_seglog *log) {
    if (log->stage_len > log->piece_start) {
        log->iov[log->iov_count++] =
            (struct iovec){log->stage + log->piece_start, log->stage_len - log->piece_start};
        log->piece_start = log->stage_len;
    }
}

/* The write failed: the file ends where it did before, or takes no more records. */
static bool roll_back(struct oc_seglog *log) {
    uint64_t keep = log->header_due ? 0 : log->open->end;

    oc_n_add(&log->n.write_failures, 1);
    if (log->disk->truncate(log->open_handle->file, keep, NULL) != 0) {
        oc_segments_poison_open(log);
        return false;
    }
    /* Truncating gave the reserved blocks back. Without them the next write says so itself. */
    (void)log->disk->reserve(log->open_handle->file, log->segment_bytes, NULL);
    return true;
}

static void written(struct oc_seglog *log) {
    struct oc_segment *seg = log->open;

    log->header_due = false;
    seg->end += log->staged_bytes;
    log->end = (struct oc_log_pos){.segment = seg->id, .offset = seg->end};
    if (log->mark_staged) {
        log->mark_value = log->durable;
        log->mark_at = log->end;
    }
    log->unsynced_bytes += log->staged_bytes;
    oc_n_add(&log->n.appended_bytes, log->staged_bytes);
    oc_n_add(&log->n.appended_records, log->pending_count);
    for (uint32_t i = 0; i < log->pending_count; i++) {
        const struct oc_pending *p = &log->pending[i];

        log->last_written = p->record.version;
        if (seg->footer != NULL && oc_footer_add(seg->footer, p->offset, &p->record) != 0) {
            oc_footer_free(OC_TAKE(seg->footer));
        }
    }
}

#ifdef OC_PLANTED_BUGS
static void write_late(struct oc_seglog *log) {
    struct oc_handle *h = NULL;

    if (log->late_len == 0) {
        return;
    }
    if (oc_seglog_segment(log, log->late_segment, false, &h, NULL) == 0) {
        struct iovec iov = {log->late, log->late_len};

        (void)log->disk->pwritev(h->file, &iov, 1, log->late_offset, NULL);
        oc_handle_put(h);
    }
    log->late_len = 0;
}

/* EARLY_ACK: keep the bytes and write them with the next batch. */
static int write_early_ack(struct oc_seglog *log, const struct iovec *iov, int count,
                           uint64_t offset) {
    write_late(log);
    for (int i = 0; i < count; i++) {
        uint8_t *grown = realloc(log->late, log->late_len + iov[i].iov_len);

        if (grown == NULL) {
            return OC_E_EXHAUSTED;
        }
        log->late = grown;
        memcpy(log->late + log->late_len, iov[i].iov_base, iov[i].iov_len);
        log->late_len += iov[i].iov_len;
    }
    log->late_offset = offset;
    log->late_segment = log->open->id;
    return 0;
}
#endif

static int write_vector(struct oc_seglog *log) {
    int first = log->header_due ? 0 : 1;
    int count = (int)log->iov_count - first;
    uint64_t offset = log->header_due ? 0 : log->open->end;

    log->iov[0] = (struct iovec){&log->header, sizeof log->header};
#ifdef OC_PLANTED_BUGS
    if (OC_PLANT(EARLY_ACK)) {
        return write_early_ack(log, log->iov + first, count, offset);
    }
#endif
    return log->disk->pwritev(log->open_handle->file, log->iov + first, count, offset, NULL);
}

int oc_seglog_flush(struct oc_seglog *log) {
    if (log->staged_bytes == 0) {
        return 0;
    }
    push_piece(log);
    oc_event(OC_EV_LOG_APPEND, log->open->id, log->open->end);
    int rc = write_vector(log);
    if (rc == 0) {
        written(log);
    } else {
        rc = rc == OC_E_EXHAUSTED ? OC_E_EXHAUSTED : OC_E_UNAVAILABLE;
        log->mark_due = log->mark_due || log->mark_staged;
        bool in_doubt = !roll_back(log);
        for (uint32_t i = 0; i < log->pending_count; i++) {
            if (log->pending[i].cookie != NULL) {
                log->failed(log->pending[i].cookie, rc, in_doubt);
            }
        }
    }
    reset_batch(log);
    return rc;
}

/* Room for `bytes` in the open segment, after a roll if need be. */
static int make_room(struct oc_seglog *log, uint64_t bytes, enum oc_rec_kind kind) {
    uint64_t limit = log->segment_bytes;

    if (kind == OC_REC_TOMBSTONE) {
        limit -= MARK_BYTES;
    } else if (kind != OC_REC_MARK) {
        limit -= log->segment_bytes / DELETE_SHARE;
    }
    if (log->open != NULL && log->open->end + log->staged_bytes + bytes <= limit) {
        return 0;
    }
    /* A failure is answered to the records it concerns; this one has another chance. */
    (void)oc_seglog_flush(log);
    return oc_segments_roll(log);
}

static void stage_value(struct oc_seglog *log, const struct oc_append_record *r, uint64_t total) {
    size_t pad = (size_t)(total - OC_REC_HEADER_BYTES - r->key.len - r->value.len);

    if (r->value.len >= OC_STAGE_VALUE_MAX) {
        void *bytes;

        push_piece(log);
        /* struct iovec has no const; the bytes are only read. */
        memcpy(&bytes, &r->value.p, sizeof bytes);
        log->iov[log->iov_count++] = (struct iovec){bytes, r->value.len};
    } else if (r->value.len > 0) {
        memcpy(log->stage + log->stage_len, r->value.p, r->value.len);
        log->stage_len += r->value.len;
    }
    memset(log->stage + log->stage_len, 0, pad);
    log->stage_len += pad;
}

static void stage_record(struct oc_seglog *log, struct oc_append_record *r, uint64_t total,
                         void *cookie) {
    uint64_t offset = log->open->end + log->staged_bytes;
    struct oc_pending *p = &log->pending[log->pending_count++];

    p->cookie = cookie;
    p->offset = offset;
    p->record = (struct oc_record){.kind = r->kind,
                                   .key = r->key,
                                   .value = r->value,
                                   .value_len = r->value.len,
                                   .object_len = r->object_len,
                                   .version = r->version,
                                   .expires_at_s = r->expires_at_s,
                                   .value_crc = r->value_crc,
                                   .total_len = total};
    oc_rec_encode(log->stage + log->stage_len, log->open->salt, offset, &p->record);
    log->stage_len += OC_REC_HEADER_BYTES + r->key.len;
    stage_value(log, r, total);
    log->staged_bytes += total;
    r->segment = log->open->id;
    r->offset = offset;
}

/* Tell a later recovery how far the log is known to be durable. */
static int stage_mark(struct oc_seglog *log) {
    /* In the log's own memory: the footer's builder looks at it after the write. */
    log->mark = (struct oc_mark){.segment = log->durable.segment, .offset = log->durable.offset};
    struct oc_append_record r = {.kind = OC_REC_MARK,
                                 .value = oc_span(&log->mark, sizeof log->mark),
                                 .value_crc = oc_crc32c(0, &log->mark, sizeof log->mark)};
    int rc = oc_vclock_next(log, &r.version);

    if (rc == 0) {
        stage_record(log, &r, MARK_TOTAL, NULL);
        log->mark_due = false;
        log->mark_staged = true;
    }
    return rc;
}

int oc_seglog_mark(struct oc_seglog *log) {
    int rc = 0;

    pthread_mutex_lock(&log->append_mu);
    log->now = oc_clock_now(log->cfg.clock);
    if (log->mark_due) {
        rc = make_room(log, MARK_TOTAL, OC_REC_MARK);
        if (rc == 0) {
            rc = stage_mark(log);
        }
        if (rc == 0) {
            rc = oc_seglog_flush(log);
        }
    }
    pthread_mutex_unlock(&log->append_mu);
    return rc;
}

int oc_seglog_add(struct oc_seglog *log, struct oc_append_record *r, void *cookie) {
    uint64_t total = oc_rec_total(r->key.len, r->value.len);
    size_t staged =
        (size_t)total + MARK_TOTAL - (r->value.len >= OC_STAGE_VALUE_MAX ? r->value.len : 0);

    if (log->stage_len + staged > STAGE_BYTES || log->pending_count + 2 > OC_PENDING_MAX ||
        log->iov_count + IOV_PER_RECORD + 1 > OC_IOV_MAX) {
        (void)oc_seglog_flush(log); /* its records are told */
    }
    int rc = make_room(log, total + MARK_TOTAL, r->kind);
    if (rc == 0 && log->mark_due) {
        rc = stage_mark(log);
    }
    if (rc == 0) {
        rc = oc_vclock_next(log, &r->version);
    }
    if (rc == 0) {
        stage_record(log, r, total, cookie);
    }
    return rc;
}

void oc_seglog_end(struct oc_seglog *log, struct oc_log_pos *ret_end, uint64_t *ret_epoch) {
    (void)oc_seglog_flush(log); /* its records are told */
    *ret_end = log->end;
    *ret_epoch = log->void_epoch;
    pthread_mutex_unlock(&log->append_mu);
}
