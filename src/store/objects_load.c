/* Rebuilding the index: checkpoint, log, then the value files that nothing names are removed.
 *
 * Threads that read segments gather entries per shard and apply a bufferful at a time, so that a
 * shard's lock is taken rarely and its tree stays in the cache while it is worked on. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "store/store.h"

#define BUCKET_BYTES (48u << 10)
#define SWEEP_SLICE  4096u
#define VAL_DIRS     256u

struct item { /* at 8 bytes; the key follows */
    struct oc_entry entry;
    uint32_t key_len;
    uint32_t total;
};

struct bucket {
    uint8_t *bytes;
    size_t len;
};

struct file { /* a value file as found */
    uint64_t id;
    uint64_t size;
    _Atomic bool named;
};

struct loader {
    struct oc_objects *s;
    unsigned threads;
    struct bucket *buckets; /* threads * shards */
    struct file *files;     /* ascending ids */
    size_t file_count, file_cap;
    _Atomic unsigned next_shard;
};

/* ---- applying ---- */

static int apply_bucket(struct loader *l, unsigned shard_index, struct bucket *b) {
    struct oc_shard *shard = &l->s->shards[shard_index];
    int rc = 0;

    pthread_mutex_lock(&shard->mu);
    for (size_t at = 0; rc >= 0 && at < b->len;) {
        const struct item *i = (const struct item *)(const void *)(b->bytes + at);

        rc = oc_index_apply(shard->index, oc_span(i + 1, i->key_len), &i->entry, NULL, NULL);
        at += i->total;
    }
    pthread_mutex_unlock(&shard->mu);
    b->len = 0;
    return rc < 0 ? rc : 0;
}

static int add_record(void *arg, unsigned thread, uint32_t segment, uint64_t offset,
                      const struct oc_record *r) {
    struct loader *l = arg;
    struct oc_shard *shard = oc_shard_of(l->s, r->key);
    unsigned index = (unsigned)(shard - l->s->shards);
    struct bucket *b = &l->buckets[thread * l->s->shard_count + index];
    struct item item = {.entry = {.version = r->version,
                                  .value_len = r->object_len,
                                  .segment = segment,
                                  .offset = (uint32_t)(offset / 8),
                                  .expires_at_s = r->expires_at_s}};
    struct oc_file_ref ref;
    int rc = 0;

    if (r->kind == OC_REC_TOMBSTONE) {
        item.entry.flags = OC_ENTRY_TOMBSTONE;
    } else if (r->kind == OC_REC_FILE) {
        item.entry.flags = OC_ENTRY_FILE;
        if (oc_rec_file_ref(r, &ref)) {
            oc_entry_set_file(&item.entry, ref.file);
        } else {
            item.entry.flags = OC_ENTRY_LOST; /* nobody knows which file */
        }
    }
    item.key_len = (uint32_t)r->key.len;
    item.total = (uint32_t)((sizeof item + r->key.len + 7) & ~(size_t)7);
    if (b->len > 0 && b->len + item.total > BUCKET_BYTES) {
        rc = apply_bucket(l, index, b);
    }
    if (rc == 0 && b->bytes == NULL) {
        b->bytes = malloc(BUCKET_BYTES + sizeof item + OC_KEY_MAX + 8);
        rc = b->bytes == NULL ? OC_E_EXHAUSTED : 0;
    }
    if (rc == 0) {
        memcpy(b->bytes + b->len, &item, sizeof item);
        memcpy(b->bytes + b->len + sizeof item, r->key.p, r->key.len);
        b->len += item.total;
    }
    return rc;
}

static int flush_thread(void *arg, unsigned thread) {
    struct loader *l = arg;
    int rc = 0;

    for (unsigned i = thread; rc == 0 && i < l->s->shard_count; i += l->threads) {
        for (unsigned t = 0; rc == 0 && t < l->threads; t++) {
            rc = apply_bucket(l, i, &l->buckets[t * l->s->shard_count + i]);
        }
    }
    return rc;
}

static int replay_log(struct loader *l, struct oc_recovery *rec, struct oc_error *err) {
    struct oc_replay replay = {.arg = l, .record = add_record};
    size_t count = (size_t)l->threads * l->s->shard_count;

    l->buckets = calloc(count, sizeof *l->buckets);
    if (l->buckets == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory for the recovery");
    }
    int rc = oc_seglog_recover(&l->s->log, rec, &replay, err);
    if (rc == 0) {
        rc = oc_run_threads(l->threads, flush_thread, l);
    }
    for (size_t i = 0; i < count; i++) {
        free(l->buckets[i].bytes);
    }
    free(l->buckets);
    return rc;
}

/* ---- value files ---- */

static int list_file(void *arg, const char *name, uint64_t size_bytes) {
    struct loader *l = arg;
    uint64_t id = 0;
    size_t i;

    if (size_bytes == OC_DISK_NO_FILE) {
        return 0;
    }
    for (i = 0; i < 16; i++) {
        char c = name[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
            return 0; /* not ours: neither read nor touched */
        }
        id = id << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (strcmp(name + i, ".val") != 0) {
        return 0;
    }
    if (l->file_count == l->file_cap) {
        size_t cap = l->file_cap == 0 ? 256 : l->file_cap * 2;
        struct file *grown = reallocarray(l->files, cap, sizeof *grown);

        if (grown == NULL) {
            return OC_E_EXHAUSTED;
        }
        l->files = grown;
        l->file_cap = cap;
    }
    l->files[l->file_count].id = id;
    l->files[l->file_count].size = size_bytes;
    atomic_init(&l->files[l->file_count].named, false);
    l->file_count++;
    return 0;
}

static int by_id(const void *a, const void *b) {
    uint64_t x = ((const struct file *)a)->id, y = ((const struct file *)b)->id;

    return (x > y) - (x < y);
}

static int list_files(struct loader *l, struct oc_error *err) {
    const struct oc_disk *disk = l->s->log.disk;

    for (unsigned dir = 0; dir < VAL_DIRS; dir++) {
        static const char digit[] = "0123456789abcdef";
        char path[] = {'v', 'a', 'l', '/', digit[dir >> 4], digit[dir & 15], '\0'};
        int rc = disk->list_dir(disk->ctx, path, list_file, l, err);

        if (rc != 0 && rc != OC_E_NOT_FOUND) {
            return rc;
        }
    }
    if (l->file_count > 1) {
        qsort(l->files, l->file_count, sizeof *l->files, by_id);
    }
    return 0;
}

static struct file *find_file(const struct loader *l, uint64_t id) {
    size_t lo = 0, hi = l->file_count;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (l->files[mid].id < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < l->file_count && l->files[lo].id == id ? &l->files[lo] : NULL;
}

static int name_file(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct loader *l = arg;

    (void)key;
    if ((e->flags & OC_ENTRY_TOMBSTONE) != 0) {
        return OC_SWEEP_REMOVE; /* everything older has been applied */
    }
    if ((e->flags & OC_ENTRY_FILE) != 0) {
        struct file *f = find_file(l, oc_entry_file(e));

        /* One that is missing or short is found by the read that wants it. */
        if (f != NULL) {
            atomic_store_explicit(&f->named, true, memory_order_relaxed);
        }
    }
    return OC_SWEEP_NEXT;
}

static int finish_thread(void *arg, unsigned thread) {
    struct loader *l = arg;
    struct oc_index_cursor *cursor = calloc(1, sizeof *cursor);

    (void)thread;
    if (cursor == NULL) {
        return OC_E_EXHAUSTED;
    }
    for (;;) {
        unsigned i = atomic_fetch_add(&l->next_shard, 1);
        struct oc_index_stats st;

        if (i >= l->s->shard_count) {
            break;
        }
        struct oc_shard *shard = &l->s->shards[i];
        pthread_mutex_lock(&shard->mu);
        oc_index_stats(shard->index, &st);
        if (st.tombstones > 0 || l->file_count > 0) {
            oc_index_cursor_reset(cursor);
            (void)oc_index_sweep(shard->index, cursor, SIZE_MAX, name_file, l);
        }
        pthread_mutex_unlock(&shard->mu);
    }
    free(cursor);
    return 0;
}

static void settle_files(struct loader *l) {
    struct oc_seglog *log = &l->s->log;

    for (size_t i = 0; i < l->file_count; i++) {
        struct file *f = &l->files[i];

        oc_n_add(&log->n.value_files, 1);
        oc_space_force(&log->space, oc_space_round(f->size));
        /* What could not be read may have named it. And a record that was superseded may still
         * have: so an orphan goes the way of every superseded file (I21), not at once. */
        if (!atomic_load(&f->named) && !atomic_load(&log->suspect)) {
            oc_valfile_doom_orphan(log, f->id, f->size);
        }
    }
}

/* ---- the whole ---- */

static unsigned choose_threads(const struct oc_objects *s) {
    if (s->cfg.recovery_threads != 0) {
        return s->cfg.recovery_threads < OC_THREADS_MAX ? s->cfg.recovery_threads : OC_THREADS_MAX;
    }
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    return cpus < 1 ? 1 : cpus > 16 ? 16 : (unsigned)cpus;
}

static int load(struct loader *l, struct oc_error *err) {
    struct oc_objects *s = l->s;
    struct oc_recovery rec = {.threads = l->threads};
    int rc = oc_checkpoint_load(s, &rec, err);

    if (rc == 0) {
        rc = replay_log(l, &rec, err);
    }
    if (rc == 0) {
        rc = list_files(l, err);
    }
    if (rc == 0) {
        rc = oc_run_threads(l->threads, finish_thread, l);
        settle_files(l);
    }
    if (rc == 0) {
        rc = oc_vclock_open(&s->log, rec.newest_version, err);
    }
    /* What a start has found does not get lost by a later power cut, in any mode; under `always` it
     * counts as acknowledged and must not be given up with a later sync. */
    if (rc == 0 && !oc_seglog_is_durable(&s->log, oc_seglog_end_pos(&s->log)) &&
        oc_seglog_sync(&s->log, err) != 0 && s->cfg.sync == OC_SYNC_ALWAYS) {
        rc = OC_E_UNAVAILABLE;
    }
    return rc;
}

int oc_objects_load(struct oc_objects *s, struct oc_error *err) {
    struct loader l = {.s = s, .threads = choose_threads(s)};
    uint64_t start_ns = oc_clock_now(s->cfg.clock).mono_ns;

    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    OC_CHECK(!s->loaded);
    int rc = load(&l, err);
    free(l.files);
    oc_space_refresh(&s->log.space);
    uint64_t end_ns = oc_clock_now(s->cfg.clock).mono_ns;
    atomic_store(&s->recovery_ms, (end_ns - start_ns) / OC_NS_PER_MS);
    s->last_sync_ns = end_ns;
    s->last_space_ns = end_ns;
    s->loaded = rc == 0;
    return rc;
}

void oc_objects_load_progress(struct oc_objects *s, struct oc_load_progress *ret) {
    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    ret->bytes_done = oc_n_get(&s->log.n.bytes_done);
    ret->bytes_total = oc_n_get(&s->log.n.bytes_total);
    ret->records = oc_n_get(&s->log.n.recovered_records);
}
