/* The store as a whole: opening, closing, figures. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "store/store.h"

#define DEFAULT_SHARDS           64u
#define DEFAULT_OPEN_FILES       4096u
#define DEFAULT_SYNC_INTERVAL_MS 1000u
#define DEFAULT_CHECKPOINT_BYTES (UINT64_C(64) << 20)

static void fill_in(struct oc_objects_config *cfg) {
    cfg->shards = cfg->shards == 0 ? DEFAULT_SHARDS : cfg->shards;
    cfg->max_open_files = cfg->max_open_files == 0 ? DEFAULT_OPEN_FILES : cfg->max_open_files;
    cfg->sync_interval_ms =
        cfg->sync_interval_ms == 0 ? DEFAULT_SYNC_INTERVAL_MS : cfg->sync_interval_ms;
    cfg->checkpoint_bytes =
        cfg->checkpoint_bytes == 0 ? DEFAULT_CHECKPOINT_BYTES : cfg->checkpoint_bytes;
}

static void shard_done(struct oc_shard *shard) {
    struct oc_list *l;

    while ((l = oc_list_pop_front(&shard->tombstones)) != NULL) {
        free(OC_CONTAINER(l, struct oc_tombstone, link));
    }
    oc_index_free(shard->index);
    pthread_mutex_destroy(&shard->mu);
}

static void store_free(struct oc_objects *s) {
    for (unsigned i = 0; i < s->shard_count; i++) {
        shard_done(&s->shards[i]);
    }
    free(s->shards);
    free(s->sweep);
    free(s->dump);
    s->magic = 0;
    free(s);
}

static int make_shards(struct oc_objects *s) {
    s->shards = aligned_alloc(64, s->cfg.shards * sizeof *s->shards);
    s->sweep = calloc(1, sizeof *s->sweep);
    s->dump = calloc(1, sizeof *s->dump);
    if (s->shards == NULL || s->sweep == NULL || s->dump == NULL) {
        return OC_E_EXHAUSTED;
    }
    while (s->shard_count < s->cfg.shards) {
        struct oc_shard *shard = &s->shards[s->shard_count];

        memset(shard, 0, sizeof *shard);
        shard->index = oc_index_new();
        if (shard->index == NULL) {
            return OC_E_EXHAUSTED;
        }
        oc_list_init(&shard->tombstones);
        pthread_mutex_init(&shard->mu, NULL);
        s->shard_count++;
    }
    return 0;
}

int oc_objects_open(const struct oc_objects_config *cfg, struct oc_objects **ret,
                    struct oc_error *err) {
    struct oc_objects *s = calloc(1, sizeof *s);
    int rc;

    if (s == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory for the store");
    }
    s->cfg = *cfg;
    fill_in(&s->cfg);
    if ((s->cfg.shards & (s->cfg.shards - 1)) != 0 || s->cfg.shards > OC_SHARDS_MAX) {
        rc = oc_error_set(err, OC_E_INVALID, "%u shards: must be a power of two up to %u",
                          s->cfg.shards, OC_SHARDS_MAX);
    } else {
        rc = oc_store_format_open(cfg->disk, err);
    }
    if (rc == 0) {
        rc = make_shards(s);
        rc = rc == 0 ? 0 : oc_error_set(err, rc, "out of memory for the index");
    }
    if (rc == 0) {
        struct oc_seglog_config log = {.disk = cfg->disk,
                                       .clock = cfg->clock,
                                       .seed = cfg->seed,
                                       .ack_after_sync = cfg->sync == OC_SYNC_ALWAYS,
                                       .segment_bytes = cfg->segment_bytes,
                                       .max_disk_bytes = cfg->max_disk_bytes,
                                       .max_open_files = s->cfg.max_open_files};

        rc = oc_seglog_init(&s->log, &log, err);
    }
    if (rc != 0) {
        store_free(s);
        return rc;
    }
    s->magic = OC_OBJECTS_MAGIC;
    *ret = s;
    return 0;
}

void oc_objects_close(struct oc_objects *s, bool clean) {
    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    clean = clean && s->loaded;
    if (clean) {
        bool changed = oc_n_get(&s->log.n.appended_bytes) != s->checkpoint_at_bytes;

        /* What fails here costs the next start a longer replay, or was promised to no one. */
        if (changed || oc_n_get(&s->log.n.recovered_records) > 0) {
            (void)oc_checkpoint_write(s, NULL, NULL);
        }
        if (!oc_seglog_is_durable(&s->log, oc_seglog_end_pos(&s->log))) {
            (void)oc_seglog_sync(&s->log, NULL);
        }
        oc_valfile_reap(&s->log, true);
    }
    oc_vclock_close(&s->log, clean);
    oc_seglog_done(&s->log);
    store_free(s);
}

static void add_shard(struct oc_shard *shard, struct oc_objects_stats *ret) {
    struct oc_index_stats st;

    pthread_mutex_lock(&shard->mu);
    oc_index_stats(shard->index, &st);
    pthread_mutex_unlock(&shard->mu);
    ret->keys += st.keys - st.tombstones;
    ret->tombstones += st.tombstones;
    ret->value_bytes += st.value_bytes;
    ret->key_bytes += st.key_bytes;
    ret->index_bytes += st.memory_bytes;
}

void oc_objects_stats(struct oc_objects *s, struct oc_objects_stats *ret) {
    struct oc_seglog *log = &s->log;

    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    *ret = (struct oc_objects_stats){
        .physical_bytes = oc_n_get(&log->space.used),
        .cap_bytes = oc_n_get(&log->space.cap),
        .value_files = oc_n_get(&log->n.value_files),
        .appended_bytes = oc_n_get(&log->n.appended_bytes),
        .appended_records = oc_n_get(&log->n.appended_records),
        .synced_bytes = oc_n_get(&log->n.synced_bytes),
        .syncs = oc_n_get(&log->n.syncs),
        .sync_failures = oc_n_get(&log->n.sync_failures),
        .write_failures = oc_n_get(&log->n.write_failures),
        .corrupt_records = oc_n_get(&log->n.corrupt_records),
        .lost_entries = oc_n_get(&s->lost_entries),
        .quarantined_segments = oc_n_get(&log->n.quarantined_segments),
        .checkpoints = oc_n_get(&s->checkpoints),
        .checkpoint_bytes = oc_n_get(&s->checkpoint_bytes),
        .expired = oc_n_get(&s->expired),
        .open_files = oc_n_get(&log->files.open),
        .recovered_records = oc_n_get(&log->n.recovered_records),
        .recovered_bytes = oc_n_get(&log->n.recovered_bytes),
        .recovery_ms = oc_n_get(&s->recovery_ms),
        .cut_bytes = oc_n_get(&log->n.cut_bytes),
    };
    pthread_mutex_lock(&log->segs.mu);
    ret->segments = log->segs.count;
    pthread_mutex_unlock(&log->segs.mu);
    pthread_mutex_lock(&log->unlink_mu);
    ret->unlink_queue = log->doomed.count + log->armed.count;
    pthread_mutex_unlock(&log->unlink_mu);
    for (unsigned i = 0; i < s->shard_count; i++) {
        add_shard(&s->shards[i], ret);
    }
}
