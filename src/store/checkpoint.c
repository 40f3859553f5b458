/* Checkpoints: the index as a file, so that a start replays only the log's tail.
 *
 * Written shard by shard while writers go on; entries are newer or older than the moment it began,
 * and the replay from `from` (the start of the oldest batch in flight then) makes the result exact,
 * because application is by version. It is published only once the log it points into is durable.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/event.h"
#include "base/plant.h"
#include "store/store.h"

#define NEW_NAME    "checkpoint.new"
#define NAME        "checkpoint"
#define SLICE_BYTES (256u << 10)
#define SLICE_MAX   2048u /* entries under one lock */

/* ---- writing ---- */

struct output {
    const struct oc_disk *disk;
    struct oc_file *file;
    uint64_t offset;
    struct oc_error *err;
};

static int write_out(void *arg, struct oc_span bytes) {
    struct output *o = arg;
    void *p;

    /* struct iovec has no const; the bytes are only read. */
    memcpy(&p, &bytes.p, sizeof p);
    struct iovec iov = {p, bytes.len};
    int rc = o->disk->pwritev(o->file, &iov, 1, o->offset, o->err);
    o->offset += bytes.len;
    return rc;
}

struct slice_item { /* at 8 bytes; the key follows */
    struct oc_entry entry;
    uint32_t key_len;
    uint32_t total;
};

struct slice {
    uint8_t *bytes; /* SLICE_BYTES and one item */
    size_t len;
};

static int take(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct slice *s = arg;
    struct slice_item *i = (struct slice_item *)(void *)(s->bytes + s->len);
    size_t total = (sizeof *i + key.len + 7) & ~(size_t)7;

    *i = (struct slice_item){*e, (uint32_t)key.len, (uint32_t)total};
    memcpy(i + 1, key.p, key.len);
    s->len += total;
    return s->len >= SLICE_BYTES ? OC_SWEEP_STOP : OC_SWEEP_NEXT;
}

static int write_slice(struct oc_ckpt_writer *w, const struct slice *s) {
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < s->len;) {
        const struct slice_item *i = (const struct slice_item *)(const void *)(s->bytes + at);
        struct oc_ckpt_entry e = {.key = oc_span(i + 1, i->key_len),
                                  .version = i->entry.version,
                                  .value_len = i->entry.value_len,
                                  .segment = i->entry.segment,
                                  .offset = i->entry.offset,
                                  .expires_at_s = i->entry.expires_at_s,
                                  .flags = i->entry.flags};

        rc = oc_ckpt_writer_add(w, &e);
        at += i->total;
    }
    return rc;
}

static int write_shards(struct oc_objects *s, struct oc_ckpt_writer *w,
                        void (*between)(struct oc_objects *s)) {
    struct slice slice = {.bytes =
                              malloc(SLICE_BYTES + sizeof(struct slice_item) + OC_KEY_MAX + 8)};
    int rc = slice.bytes == NULL ? OC_E_EXHAUSTED : 0;

    for (unsigned i = 0; rc == 0 && i < s->shard_count; i++) {
        struct oc_shard *shard = &s->shards[i];

        oc_index_cursor_reset(s->dump);
        rc = oc_ckpt_writer_shard(w, i);
        while (rc == 0 && !s->dump->done) {
            slice.len = 0;
            pthread_mutex_lock(&shard->mu);
            (void)oc_index_sweep(shard->index, s->dump, SLICE_MAX, take, &slice);
            pthread_mutex_unlock(&shard->mu);
            rc = write_slice(w, &slice);
            if (between != NULL) {
                between(s);
            }
        }
    }
    free(slice.bytes);
    return rc;
}

static int write_file(struct oc_objects *s, const struct oc_ckpt_header *h, struct output *out,
                      void (*between)(struct oc_objects *s), struct oc_error *err) {
    struct oc_ckpt_writer *w = oc_ckpt_writer_new(h, write_out, out);
    int rc = w == NULL ? oc_error_set(err, OC_E_EXHAUSTED, "out of memory for a checkpoint") : 0;

    if (rc == 0) {
        rc = write_shards(s, w, between);
    }
    if (rc == 0) {
        oc_ckpt_writer_through(w, oc_seglog_end_pos(&s->log));
        rc = oc_ckpt_writer_done(w);
    }
    oc_ckpt_writer_free(w);
    if (rc == 0) {
        rc = out->disk->sync(out->file, err);
    }
    return rc;
}

static int publish(struct oc_objects *s, struct oc_error *err) {
    const struct oc_disk *disk = s->log.disk;
    int rc = OC_PLANT(CHECKPOINT_AHEAD) ? 0 : oc_seglog_sync(&s->log, err);

    if (rc == 0) {
        rc = disk->rename(disk->ctx, NEW_NAME, NAME, err);
    }
    if (rc == 0 && !OC_PLANT(LOST_RENAME)) {
        rc = disk->sync_dir(disk->ctx, "", err);
    }
    return rc;
}

int oc_checkpoint_write(struct oc_objects *s, void (*between)(struct oc_objects *s),
                        struct oc_error *err) {
    struct output out = {.disk = s->log.disk, .err = err};
    struct oc_ckpt_header h = {.shards = s->shard_count};
    uint64_t appended = oc_n_get(&s->log.n.appended_bytes);

    h.from = oc_seglog_replay_from(&s->log);
    memcpy(h.boot_id, s->log.boot_id, sizeof h.boot_id);
    pthread_mutex_lock(&s->log.append_mu);
    h.salt = oc_rng_next(&s->log.rng);
    h.version_ceiling = s->log.hlc.last;
    pthread_mutex_unlock(&s->log.append_mu);
    int rc = out.disk->open(out.disk->ctx, NEW_NAME, OC_OPEN_CREATE, &out.file, err);
    if (rc != 0) {
        return rc;
    }
    rc = out.disk->truncate(out.file, 0, err);
    if (rc == 0) {
        rc = write_file(s, &h, &out, between, err);
    }
    if (rc == 0) {
        out.disk->drop_cache(out.file, 0, out.offset);
    }
    out.disk->close(out.file);
    if (rc == 0) {
        rc = publish(s, err);
    }
    if (rc != 0) {
        /* What stays is removed by the next load. */
        (void)out.disk->unlink(out.disk->ctx, NEW_NAME, NULL);
        return rc;
    }
    oc_space_force(&s->log.space, oc_space_round(out.offset));
    oc_space_give(&s->log.space, s->checkpoint_charged);
    s->checkpoint_charged = oc_space_round(out.offset);
    s->checkpoint_at_bytes = appended;
    oc_n_add(&s->checkpoints, 1);
    atomic_store(&s->checkpoint_bytes, out.offset);
    oc_event(OC_EV_CHECKPOINT, h.from.segment, h.from.offset);
    return 0;
}

/* ---- loading: every thread walks the block headers and decodes the blocks of its own shards ----
 */

struct load {
    struct oc_objects *s;
    struct oc_file *file;
    unsigned threads;
    uint64_t size;
    struct oc_ckpt_header h;
    struct oc_ckpt_trailer trailer; /* of thread 0 */
    _Atomic uint64_t entries;
    _Atomic uint64_t newest;
};

struct lane {
    struct load *l;
    struct oc_index_loader *loader; /* of `shard`, when the shards are the same as ours */
    struct oc_shard *shard;
    uint64_t entries, newest;
};

static int put_entry(void *arg, uint32_t shard, const struct oc_ckpt_entry *e) {
    struct lane *lane = arg;
    struct oc_objects *s = lane->l->s;
    struct oc_entry entry = {.version = e->version,
                             .value_len = e->value_len,
                             .segment = e->segment,
                             .offset = e->offset,
                             .expires_at_s = e->expires_at_s,
                             .flags = e->flags};

    lane->entries++;
    lane->newest = e->version > lane->newest ? e->version : lane->newest;
    if (lane->loader != NULL) {
        return oc_shard_of(s, e->key) == &s->shards[shard]
                   ? oc_index_loader_add(lane->loader, e->key, &entry)
                   : OC_E_DATA_LOSS;
    }
    struct oc_shard *to = oc_shard_of(s, e->key);
    pthread_mutex_lock(&to->mu);
    int rc = oc_index_apply(to->index, e->key, &entry, NULL, NULL);
    pthread_mutex_unlock(&to->mu);
    return rc < 0 ? rc : 0;
}

static int end_shard(struct lane *lane) {
    int rc = 0;

    if (lane->loader != NULL) {
        rc = oc_index_loader_done(OC_TAKE(lane->loader));
        pthread_mutex_unlock(&lane->shard->mu);
    }
    return rc;
}

static int begin_shard(struct lane *lane, uint32_t shard) {
    struct oc_objects *s = lane->l->s;
    int rc = end_shard(lane);

    if (rc != 0 || lane->l->h.shards != s->shard_count) {
        return rc;
    }
    /* Nobody else wants it yet; the lock is for the rule. */
    lane->shard = &s->shards[shard];
    pthread_mutex_lock(&lane->shard->mu);
    lane->loader = oc_index_loader_new(lane->shard->index);
    if (lane->loader == NULL) {
        pthread_mutex_unlock(&lane->shard->mu);
        return OC_E_EXHAUSTED;
    }
    return 0;
}

static int read_at(struct load *l, void *dst, size_t len, uint64_t offset) {
    if (offset > l->size || len > l->size - offset) {
        return OC_E_DATA_LOSS;
    }
    int64_t n = l->s->log.disk->pread(l->file, dst, len, offset, false, NULL);
    if (n < 0) {
        return (int)n;
    }
    return (size_t)n == len ? 0 : OC_E_DATA_LOSS;
}

/* One block of ours, or the trailer. */
static int load_block(struct load *l, struct lane *lane, uint8_t *block, size_t len,
                      uint64_t offset, uint64_t index) {
    size_t used = 0, need = 0;
    uint32_t shard = 0;
    bool last = false;
    int rc = read_at(l, block, len, offset);

    if (rc == 0) {
        rc = oc_ckpt_block_decode(oc_span(block, len), &l->h, index, &shard, &last, &used, &need,
                                  put_entry, lane);
    }
    oc_n_add(&l->s->log.n.bytes_done, len);
    return rc == OC_AGAIN || (rc == 0 && used != len) ? OC_E_DATA_LOSS : rc;
}

static int load_blocks(struct load *l, struct lane *lane, unsigned thread, uint8_t *block) {
    uint64_t offset = OC_CKPT_HEADER_BYTES, index = 0;
    uint32_t current = UINT32_MAX;
    bool last = false;
    int rc = 0;

    while (rc == 0 && !last) {
        uint32_t shard;
        size_t len;

        rc = read_at(l, block, OC_CKPT_BLOCK_HEADER, offset);
        if (rc == 0) {
            rc = oc_ckpt_block_peek(oc_span(block, OC_CKPT_BLOCK_HEADER), &len, &shard, &last);
        }
        if (rc == 0 && shard >= l->h.shards) {
            rc = OC_E_DATA_LOSS;
        }
        if (rc == 0 && (last || shard % l->threads == thread)) {
            if (!last && shard != current) {
                rc = begin_shard(lane, shard);
                current = shard;
            }
            if (rc == 0) {
                rc = load_block(l, lane, block, len, offset, index);
            }
            if (rc == 0 && last && thread == 0) {
                rc = oc_ckpt_trailer_decode(oc_span(block, len), &l->h, index, &l->trailer);
            }
        }
        if (rc == 0) {
            offset += len;
            index++;
        }
    }
    return rc;
}

static int load_thread(void *arg, unsigned thread) {
    struct load *l = arg;
    struct lane lane = {.l = l};
    uint8_t *block = malloc(OC_CKPT_BLOCK_MAX);
    int rc = block == NULL ? OC_E_EXHAUSTED : load_blocks(l, &lane, thread, block);
    int ended = end_shard(&lane);

    free(block);
    atomic_fetch_add(&l->entries, lane.entries);
    uint64_t newest = atomic_load(&l->newest);
    while (lane.newest > newest &&
           !atomic_compare_exchange_weak(&l->newest, &newest, lane.newest)) {
    }
    return rc != 0 ? rc : ended;
}

static int forget_all(struct oc_objects *s) {
    for (unsigned i = 0; i < s->shard_count; i++) {
        oc_index_free(s->shards[i].index);
        s->shards[i].index = oc_index_new();
        if (s->shards[i].index == NULL) {
            return OC_E_EXHAUSTED;
        }
    }
    return 0;
}

static int load_file(struct load *l, struct oc_recovery *rec, struct oc_error *err) {
    struct oc_objects *s = l->s;
    uint8_t header[OC_CKPT_HEADER_BYTES];
    int rc = s->log.disk->size(l->file, &l->size, err);

    if (rc == 0) {
        rc = read_at(l, header, sizeof header, 0);
    }
    if (rc == 0) {
        rc = oc_ckpt_header_decode(oc_span(header, sizeof header), &l->h, err);
    }
    if (rc == 0 && l->h.shards == 0) {
        rc = OC_E_DATA_LOSS;
    }
    if (rc != 0) {
        return rc;
    }
    l->threads = rec->threads < l->h.shards ? rec->threads : l->h.shards;
    oc_n_add(&s->log.n.bytes_total, l->size);
    rc = oc_run_threads(l->threads, load_thread, l);
    if (rc == 0 && atomic_load(&l->entries) != l->trailer.entries) {
        rc = OC_E_DATA_LOSS;
    }
    return rc;
}

int oc_checkpoint_load(struct oc_objects *s, struct oc_recovery *rec, struct oc_error *err) {
    const struct oc_disk *disk = s->log.disk;
    struct load l = {.s = s};

    /* Left by a writer that did not live to publish it. */
    (void)disk->unlink(disk->ctx, NEW_NAME, NULL);
    int rc = disk->open(disk->ctx, NAME, OC_OPEN_READ, &l.file, err);
    if (rc != 0) {
        return rc == OC_E_NOT_FOUND ? 0 : rc;
    }
    rc = load_file(&l, rec, err);
    disk->close(l.file);
    if (rc == 0) {
        rec->from = l.h.from;
        rec->through = l.trailer.through;
        rec->newest_version = atomic_load(&l.newest) > l.h.version_ceiling ? atomic_load(&l.newest)
                                                                           : l.h.version_ceiling;
        s->checkpoint_charged = oc_space_round(l.size);
        oc_space_force(&s->log.space, s->checkpoint_charged);
        atomic_store(&s->checkpoint_bytes, l.size);
        return 0;
    }
    if (rc == OC_E_UNIMPLEMENTED || rc == OC_E_EXHAUSTED) {
        return oc_error_set(err, rc, "cannot load the checkpoint: %s",
                            rc == OC_E_UNIMPLEMENTED ? "it has a newer format (use a newer release "
                                                       "or another directory)"
                                                     : "out of memory");
    }
    /* Damaged or unreadable: the segments have everything. */
    oc_n_add(&s->log.n.corrupt_records, 1);
    return forget_all(s) == 0 ? 0 : oc_error_set(err, OC_E_EXHAUSTED, "out of memory");
}
