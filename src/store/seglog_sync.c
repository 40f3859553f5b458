/* Durability. Syncs run in rounds: whoever needs one and finds none running leads the next;
 * everybody who appended before it took its snapshot is served by it.
 *
 * When a sync fails, what the kernel still has of the unsynced part is unknown and asking again
 * proves nothing. Two cases:
 * - nothing behind `durable` was acknowledged (ack_after_sync): that part of the log is given up.
 *   The next segment's header says that the log goes on from `durable`, and the batches get an
 *   error.
 * - it was acknowledged (or is waiting for the interval): it stays in the log and is read from the
 *   page cache, but no later position is called durable (`stalled`), so that a power loss still
 *   leaves a prefix, until it was written once more and that was synced (salvage.c). */
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "base/event.h"
#include "store/seglog.h"

#define WAIT_STEP_NS     OC_NS_PER_S
#define WAIT_DEADLINE_NS (60 * OC_NS_PER_S)

struct round {
    struct oc_log_pos target;
    uint64_t bytes;
    bool sync_dir;
    struct oc_idvec segments;
};

static int snapshot(struct oc_seglog *log, struct round *r) {
    struct oc_idvec next = {0};

    pthread_mutex_lock(&log->append_mu);
    /* The open segment goes on taking records: it is part of the next round too. */
    if (log->open != NULL && oc_idvec_add(&next, log->open->id) != 0) {
        pthread_mutex_unlock(&log->append_mu);
        return OC_E_EXHAUSTED;
    }
    *r = (struct round){.target = log->end,
                        .bytes = log->unsynced_bytes,
                        .sync_dir = log->seg_dir_dirty,
                        .segments = log->unsynced};
    log->unsynced = next;
    log->unsynced_bytes = 0;
    log->seg_dir_dirty = false;
    pthread_mutex_unlock(&log->append_mu);
    return 0;
}

/* What of the segment has to be written again; nothing when its last sync did not fail. */
static void doubtful(struct oc_seglog *log, uint32_t id, uint64_t *from, uint64_t *end) {
    struct oc_segment *seg = oc_segments_find(&log->segs, id);

    *from = *end = 0;
    pthread_mutex_lock(&log->append_mu);
    if (seg != NULL && seg->sync_failed) {
        *from = log->durable.segment == id ? log->durable.offset : 0;
        *end = seg->end;
    }
    pthread_mutex_unlock(&log->append_mu);
}

static void set_sync_failed(struct oc_seglog *log, uint32_t id, bool failed) {
    struct oc_segment *seg = oc_segments_find(&log->segs, id);

    pthread_mutex_lock(&log->append_mu);
    if (seg != NULL) {
        seg->sync_failed = failed;
    }
    pthread_mutex_unlock(&log->append_mu);
}

static int sync_segment(struct oc_seglog *log, uint32_t id, struct oc_error *err) {
    struct oc_handle *h = NULL;
    uint64_t from, end;
    int rc = oc_seglog_segment(log, id, false, &h, err);

    if (rc != 0) {
        return rc;
    }
    doubtful(log, id, &from, &end);
    if (from < end) {
        rc = oc_salvage_rewrite(log, h, from, end, err);
    }
    if (rc == 0) {
        rc = log->disk->sync(h->file, err);
        set_sync_failed(log, id, rc != 0);
    }
    oc_handle_put(h);
    return rc;
}

static int sync_segments(struct oc_seglog *log, const struct round *r, struct oc_error *err) {
    for (size_t i = 0; i < r->segments.count; i++) {
        int rc = sync_segment(log, (uint32_t)r->segments.v[i], err);

        if (rc != 0) {
            return rc;
        }
    }
    return r->sync_dir ? log->disk->sync_dir(log->disk->ctx, "seg", err) : 0;
}

/* append_mu held. */
static void give_up_unsynced(struct oc_seglog *log) {
    if (log->open != NULL) {
        oc_segments_poison_open(log);
    }
    pthread_mutex_lock(&log->segs.mu);
    for (size_t i = log->segs.count; i > 0; i--) {
        struct oc_segment *seg = log->segs.v[i - 1];

        if (seg->id < log->durable.segment) {
            break;
        }
        seg->state = OC_SEGMENT_POISONED;
        seg->end = seg->id == log->durable.segment ? log->durable.offset : OC_SEG_HEADER_BYTES;
        oc_footer_free(OC_TAKE(seg->footer));
    }
    pthread_mutex_unlock(&log->segs.mu);
    atomic_store(&log->suspect, true);
    log->end = log->durable;
    log->mark_due = true; /* the last one may be among what is given up */
    log->mark_at = (struct oc_log_pos){UINT32_MAX, UINT64_MAX};
    log->void_epoch++;
    log->void_from = log->durable;
    log->unsynced.count = 0;
    log->unsynced_bytes = 0;
}

/* append_mu held: what the round had not synced waits for the next one. */
static void put_back(struct oc_seglog *log, const struct round *r) {
    struct oc_idvec all = {0};

    for (size_t i = 0; i < r->segments.count; i++) {
        (void)oc_idvec_add(&all, r->segments.v[i]); /* `stalled` covers a lost one */
    }
    for (size_t i = 0; i < log->unsynced.count; i++) {
        if (all.count == 0 || log->unsynced.v[i] > all.v[all.count - 1]) {
            (void)oc_idvec_add(&all, log->unsynced.v[i]);
        }
    }
    free(log->unsynced.v);
    log->unsynced = all;
    log->unsynced_bytes += r->bytes;
}

static void round_failed(struct oc_seglog *log, const struct round *r) {
    oc_n_add(&log->n.sync_failures, 1);
    oc_salvage_note(log);
    pthread_mutex_lock(&log->append_mu);
    log->seg_dir_dirty = log->seg_dir_dirty || r->sync_dir;
    if (log->cfg.ack_after_sync) {
        give_up_unsynced(log);
    } else {
        log->stalled = true;
        put_back(log, r);
        if (log->open != NULL) {
            oc_segments_poison_open(log);
        }
    }
    pthread_mutex_unlock(&log->append_mu);
}

static void round_succeeded(struct oc_seglog *log, const struct round *r) {
    pthread_mutex_lock(&log->append_mu);
    bool settled = log->stalled; /* all that was in doubt was part of this round */
    log->stalled = false;
    if (oc_log_pos_compare(r->target, log->durable) > 0) {
        log->durable = r->target;
        log->mark_due = true;
    }
    if (oc_log_pos_compare(log->mark_at, log->durable) <= 0) {
        log->marked = oc_log_pos_max(log->marked, log->mark_value);
    }
    pthread_mutex_unlock(&log->append_mu);
    if (settled) {
        oc_salvage_done(log);
    }
    oc_n_add(&log->n.syncs, 1);
    oc_n_add(&log->n.synced_bytes, r->bytes);
    oc_event(OC_EV_LOG_SYNC, r->target.segment, r->target.offset);
}

static int run_round(struct oc_seglog *log, struct oc_error *err) {
    struct round r;

    if (snapshot(log, &r) != 0) {
        return oc_error_set(err, OC_E_UNAVAILABLE, "out of memory for a sync");
    }
    int rc = oc_valfile_sync_pending(log, err);
    if (rc == 0) {
        rc = sync_segments(log, &r, err);
    }
    if (rc == 0) {
        round_succeeded(log, &r);
    } else {
        round_failed(log, &r);
    }
    free(r.segments.v);
    return rc == 0 ? 0 : OC_E_UNAVAILABLE;
}

static bool wait_a_step(struct oc_seglog *log, uint64_t deadline_ns) {
    uint64_t now_ns = oc_clock_now(log->cfg.clock).mono_ns;
    uint64_t until_ns = now_ns + WAIT_STEP_NS;
    struct timespec ts = {.tv_sec = (time_t)(until_ns / OC_NS_PER_S),
                          .tv_nsec = (long)(until_ns % OC_NS_PER_S)};

    if (now_ns >= deadline_ns) {
        return false;
    }
    /* Woken or timed out, the caller looks again. */
    (void)pthread_cond_timedwait(&log->sync_cond, &log->sync_mu, &ts);
    return true;
}

struct need {
    bool known;
    struct oc_log_pos end;
    uint64_t epoch;
};

/* 0 durable, 1 not yet, negative given up. */
static int look(struct oc_seglog *log, const struct need *need) {
    int rc = 1;

    pthread_mutex_lock(&log->append_mu);
    if (log->void_epoch != need->epoch) {
        bool spared = log->void_epoch == need->epoch + 1 &&
                      oc_log_pos_compare(need->end, log->void_from) <= 0;

        rc = spared ? 0 : OC_E_UNAVAILABLE;
    } else if (oc_log_pos_compare(need->end, log->durable) <= 0) {
        rc = 0;
    }
    pthread_mutex_unlock(&log->append_mu);
    return rc;
}

/* A round that starts after this call, or (with a known end) one that covers it. */
static int join_rounds(struct oc_seglog *log, const struct need *need, struct oc_error *err) {
    uint64_t deadline_ns = oc_clock_now(log->cfg.clock).mono_ns + WAIT_DEADLINE_NS;
    int rc = 1;

    pthread_mutex_lock(&log->sync_mu);
    uint64_t wanted = log->rounds_started + 1;
    while (rc == 1) {
        if (need->known) {
            pthread_mutex_unlock(&log->sync_mu);
            rc = look(log, need);
            pthread_mutex_lock(&log->sync_mu);
            if (rc != 1) {
                break;
            }
        }
        if (log->rounds_done >= wanted) {
            rc = log->last_failed_round >= wanted ? OC_E_UNAVAILABLE : 0;
        } else if (!log->syncing) {
            uint64_t round = ++log->rounds_started;

            log->syncing = true;
            pthread_mutex_unlock(&log->sync_mu);
            int result = run_round(log, err);
            pthread_mutex_lock(&log->sync_mu);
            log->syncing = false;
            log->rounds_done = round;
            if (result != 0) {
                log->last_failed_round = round;
            }
            pthread_cond_broadcast(&log->sync_cond);
        } else if (!wait_a_step(log, deadline_ns)) {
            /* Nobody knows what becomes of those records. */
            atomic_store(&log->suspect, true);
            rc = oc_error_set(err, OC_E_UNAVAILABLE, "the device does not finish a sync");
        }
    }
    pthread_mutex_unlock(&log->sync_mu);
    return rc;
}

int oc_seglog_sync(struct oc_seglog *log, struct oc_error *err) {
    struct need need = {.known = false};

    return join_rounds(log, &need, err);
}

int oc_seglog_wait_durable(struct oc_seglog *log, struct oc_log_pos end, uint64_t epoch) {
    struct need need = {.known = true, .end = end, .epoch = epoch};

    return join_rounds(log, &need, NULL);
}

bool oc_seglog_is_durable(struct oc_seglog *log, struct oc_log_pos pos) {
    pthread_mutex_lock(&log->append_mu);
    bool yes = oc_log_pos_compare(pos, log->durable) <= 0;
    pthread_mutex_unlock(&log->append_mu);
    return yes;
}

bool oc_seglog_is_marked(struct oc_seglog *log, struct oc_log_pos pos) {
    pthread_mutex_lock(&log->append_mu);
    bool yes = oc_log_pos_compare(pos, log->marked) <= 0;
    pthread_mutex_unlock(&log->append_mu);
    return yes;
}
