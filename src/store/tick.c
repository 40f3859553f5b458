/* What the background thread does every 100 ms or so. */
#include <stdlib.h>

#include "base/check.h"
#include "store/store.h"

#define SPACE_EVERY_NS     OC_NS_PER_S
#define CHECKPOINT_RETRY   (10 * OC_NS_PER_S)
#define PERSIST_TIME_EVERY (10 * OC_NS_PER_S)
#define SWEEP_SLICE        1024u  /* entries under one lock */
#define SWEEP_PER_TICK     65536u /* entries looked at by one tick */

/* Due at their time, also while something long runs. */
static void tick_urgent(struct oc_objects *s) {
    struct oc_now now = oc_clock_now(s->cfg.clock);

    oc_vclock_tick(&s->log);
    oc_segments_prepare_spare(&s->log);
    if (s->cfg.sync == OC_SYNC_INTERVAL &&
        now.mono_ns - s->last_sync_ns >= s->cfg.sync_interval_ms * OC_NS_PER_MS) {
        s->last_sync_ns = now.mono_ns;
        if (!oc_seglog_is_durable(&s->log, oc_seglog_end_pos(&s->log))) {
            /* A failure is counted, poisons the segment and makes a checkpoint due. */
            (void)oc_seglog_sync(&s->log, NULL);
        }
    }
}

/* ---- expiry ---- */

struct sweep {
    uint32_t now_s;
    uint32_t durable_s;
    bool waiting; /* for a durable time that is later */
    uint64_t horizon;
    struct oc_doomvec files;
    uint64_t removed;
};

static int sweep_one(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct sweep *w = arg;

    (void)key;
    if (e->expires_at_s == 0 || w->now_s < e->expires_at_s || e->version >= w->horizon) {
        return OC_SWEEP_NEXT;
    }
    if (w->durable_s < e->expires_at_s) {
        w->waiting = true;
        return OC_SWEEP_NEXT;
    }
    if ((e->flags & OC_ENTRY_FILE) != 0) {
        if (w->files.count == w->files.cap) {
            return OC_SWEEP_NEXT; /* the next round */
        }
        w->files.v[w->files.count++] = (struct oc_doomed){oc_entry_file(e), e->value_len};
    }
    w->removed++;
    return OC_SWEEP_REMOVE;
}

/* Remove what has expired from memory: in slices, and only in shards that have entries with expiry.
 * The log needs no record of it: whoever replays it comes to the same conclusion. */
static void sweep_expired(struct oc_objects *s) {
    struct oc_doomed files[SWEEP_SLICE];
    size_t budget = SWEEP_PER_TICK;

    for (unsigned visits = 0; visits < 2 * s->shard_count && budget > 0; visits++) {
        struct oc_shard *shard = &s->shards[s->sweep_shard];
        struct sweep w = {.now_s = oc_objects_time_s(s),
                          .durable_s = oc_vclock_durable_s(&s->log),
                          .horizon = oc_seglog_horizon(&s->log),
                          .files = {.v = files, .cap = SWEEP_SLICE}};
        struct oc_index_stats st;

        pthread_mutex_lock(&shard->mu);
        oc_index_stats(shard->index, &st);
        s->sweep->done = st.with_expiry == 0;
        if (!s->sweep->done) {
            size_t slice = budget < SWEEP_SLICE ? budget : SWEEP_SLICE;

            budget -= oc_index_sweep(shard->index, s->sweep, slice, sweep_one, &w);
        }
        pthread_mutex_unlock(&shard->mu);
        for (size_t i = 0; i < w.files.count; i++) {
            oc_valfile_doom(&s->log, files[i].file, files[i].bytes);
        }
        oc_n_add(&s->expired, w.removed);
        s->expiry_waits = s->expiry_waits || w.waiting;
        if (s->sweep->done) {
            oc_index_cursor_reset(s->sweep);
            s->sweep_shard = (s->sweep_shard + 1) % s->shard_count;
        } else {
            visits--; /* the same shard again; the budget ends it */
        }
    }
}

/* ---- checkpoints ---- */

static bool checkpoint_due(struct oc_objects *s, const struct oc_now *now) {
    uint64_t grown = oc_n_get(&s->log.n.appended_bytes) - s->checkpoint_at_bytes;
    uint64_t limit = oc_n_get(&s->checkpoint_bytes) * OC_CHECKPOINT_FACTOR;

    if (now->mono_ns < s->checkpoint_retry_ns) {
        return false;
    }
    limit = limit < s->cfg.checkpoint_bytes ? s->cfg.checkpoint_bytes : limit;
    return grown >= limit;
}

void oc_objects_tick(struct oc_objects *s) {
    struct oc_now now = oc_clock_now(s->cfg.clock);

    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    OC_CHECK(s->loaded);
    if (now.mono_ns - s->last_space_ns >= SPACE_EVERY_NS) {
        s->last_space_ns = now.mono_ns;
        oc_space_refresh(&s->log.space);
    }
    tick_urgent(s);
    oc_segments_seal(&s->log);
    oc_objects_prune(s);
    sweep_expired(s);
    if (s->expiry_waits && now.mono_ns >= s->persist_time_ns) {
        s->persist_time_ns = now.mono_ns + PERSIST_TIME_EVERY;
        s->expiry_waits = false;
        (void)oc_vclock_persist(&s->log); /* the next time, then */
    }
    oc_valfile_reap(&s->log, false);
    if (checkpoint_due(s, &now) && oc_checkpoint_write(s, tick_urgent, NULL) != 0) {
        s->checkpoint_retry_ns = oc_clock_now(s->cfg.clock).mono_ns + CHECKPOINT_RETRY;
    }
}
