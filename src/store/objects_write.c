/* Small writes: append the batch to the log, then publish it in the index. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/plant.h"
#include "store/store.h"

void oc_batch_init(struct oc_batch *b) {
    *b = (struct oc_batch){.count = 0};
    oc_list_init(&b->writes);
}

void oc_batch_add(struct oc_batch *b, struct oc_write *w) {
    oc_list_push_back(&b->writes, &w->link);
    b->count++;
    b->bytes += oc_rec_total(w->key.len, w->upload != NULL ? sizeof(struct oc_file_ref)
                                         : w->is_delete    ? 0
                                                           : w->value.len);
}

static struct oc_write *write_of(struct oc_list *l) {
    return OC_CONTAINER(l, struct oc_write, link);
}

/* Written: it has a place in the log. */
static bool is_written(const struct oc_write *w) {
    return w->result == 0 && w->version != 0;
}

static void write_failed(void *cookie, int code, bool in_doubt) {
    struct oc_write *w = cookie;

    w->result = code;
    w->version = 0;
    if (w->upload != NULL && in_doubt) {
        /* The bytes were handed to the kernel, so a later start may find the record. It must find
         * the file with it: the outcome is the old value or the new one, never a miss. */
        w->upload->in_doubt = true;
    }
}

/* ---- append ---- */

/* Does the deletion have to be written? Not when the index does not have the key, unless something
 * unreadable may hide it, or a batch in flight (this one included) may be about to put it there. */
static bool delete_needed(struct oc_objects *s, struct oc_span key, const struct oc_flight *own) {
    struct oc_shard *shard = oc_shard_of(s, key);
    uint64_t hash = oc_hash_key(key);
    struct oc_entry e;

    if (atomic_load(&s->log.suspect) || oc_flight_may_put(own, hash) ||
        oc_seglog_may_put(&s->log, hash)) {
        return true;
    }
    pthread_mutex_lock(&shard->mu);
    bool there = oc_index_find(shard->index, key, &e);
    pthread_mutex_unlock(&shard->mu);
    return there && (e.flags & OC_ENTRY_TOMBSTONE) == 0;
}

static int check_write(const struct oc_write *w) {
    if (w->key.len == 0 || w->key.len > OC_KEY_MAX) {
        return OC_E_INVALID;
    }
    if (w->is_delete) {
        return 0;
    }
    if (w->upload != NULL) {
        OC_MAGIC_CHECK(w->upload, OC_UPLOAD_MAGIC);
        return w->upload->finished && !w->upload->committed ? 0 : OC_E_PRECONDITION;
    }
    return w->value.len <= OC_INLINE_MAX ? 0 : OC_E_INVALID;
}

/* What can be done before the stream is taken. Returns how many writes go to the log. */
static size_t prepare(struct oc_objects *s, struct oc_batch *b) {
    size_t count = 0;

    memset(b->flight.filter, 0, sizeof b->flight.filter);
    oc_list_each (l, &b->writes) {
        struct oc_write *w = write_of(l);

        w->version = 0;
        w->segment = 0;
        w->result = check_write(w);
        if (w->result != 0) {
            continue;
        }
        if (w->is_delete) {
            w->segment = delete_needed(s, w->key, &b->flight) ? 1 : 0;
        } else {
            oc_flight_note(&b->flight, oc_hash_key(w->key));
            if (w->upload == NULL) {
                w->value_crc = oc_crc32c(0, w->value.p, w->value.len);
            }
            w->segment = 1;
        }
        count += w->segment;
    }
    return count;
}

static void append_one(struct oc_objects *s, struct oc_write *w) {
    struct oc_append_record r = {.key = w->key, .expires_at_s = w->expires_at_s};

    if (w->is_delete) {
        r.kind = OC_REC_TOMBSTONE;
        r.expires_at_s = 0;
    } else if (w->upload != NULL) {
        r.kind = OC_REC_FILE;
        r.value = oc_span(&w->upload->ref, sizeof w->upload->ref);
        r.object_len = w->upload->ref.len;
    } else {
        r.kind = OC_REC_PUT;
        r.value = oc_span(w->value.p, w->value.len);
        r.object_len = w->value.len;
        r.value_crc = w->value_crc;
    }
    if (w->is_delete && OC_PLANT(DROP_TOMBSTONE)) {
        /* Deleted from memory only, by a version that the log never sees. */
        w->result = oc_vclock_next(&s->log, &w->version);
        return;
    }
    w->result = oc_seglog_add(&s->log, &r, w);
    if (w->result == 0) {
        w->version = r.version;
        w->segment = r.segment;
        w->offset = r.offset;
    }
}

void oc_objects_append(struct oc_objects *s, struct oc_batch *b) {
    struct oc_log_pos end;
    uint64_t epoch;

    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    OC_CHECK(s->loaded);
    if (oc_valfile_doomed_many(&s->log)) {
        oc_valfile_reap(&s->log, true);
    }
    size_t count = prepare(s, b);
    if (count == 0) {
        return;
    }
    oc_seglog_begin(&s->log, &b->flight, write_failed);
    oc_list_each (l, &b->writes) {
        struct oc_write *w = write_of(l);

        if (w->result == 0 && w->segment == 1) {
            append_one(s, w);
        }
    }
    oc_seglog_end(&s->log, &end, &epoch);
    if (s->cfg.sync == OC_SYNC_ALWAYS && !OC_PLANT(EARLY_ACK)) {
        int rc = oc_seglog_wait_durable(&s->log, end, epoch);

        oc_list_each (l, &b->writes) {
            if (rc != 0 && is_written(write_of(l))) {
                write_failed(write_of(l), rc, true);
            }
        }
    }
}

/* ---- publish ---- */

static struct oc_entry entry_of(const struct oc_write *w) {
    struct oc_entry e = {
        .version = w->version, .segment = w->segment, .offset = (uint32_t)(w->offset / 8)};

    if (w->is_delete) {
        e.flags = OC_ENTRY_TOMBSTONE;
        return e;
    }
    e.expires_at_s = w->expires_at_s;
    e.value_len = w->value.len;
    if (w->upload != NULL) {
        e.flags = OC_ENTRY_FILE;
        e.value_len = w->upload->ref.len;
        oc_entry_set_file(&e, w->upload->ref.file);
    }
    return e;
}

static void publish_one(struct oc_objects *s, struct oc_write *w) {
    struct oc_shard *shard = oc_shard_of(s, w->key);
    struct oc_entry e = entry_of(w), old;
    bool present = false;

    pthread_mutex_lock(&shard->mu);
    int rc = oc_index_apply(shard->index, w->key, &e, &old, &present);
    pthread_mutex_unlock(&shard->mu);
    if (w->upload != NULL) {
        w->upload->committed = true;
    }
    if (rc < 0) {
        /* The record is in the log and the index has no memory for it: an unknown outcome. */
        atomic_store(&s->log.suspect, true);
        write_failed(w, OC_E_EXHAUSTED, true);
        return;
    }
    if (rc == 1 && present && (old.flags & OC_ENTRY_FILE) != 0) {
        oc_valfile_doom(&s->log, oc_entry_file(&old), old.value_len);
    } else if (rc == 0 && (e.flags & OC_ENTRY_FILE) != 0) {
        oc_valfile_doom(&s->log, oc_entry_file(&e), e.value_len);
    }
}

/* A tombstone that an older write in flight could still meet stays in the index until that landed.
 */
static void keep_tombstone(struct oc_objects *s, const struct oc_write *w) {
    struct oc_shard *shard = oc_shard_of(s, w->key);
    struct oc_tombstone *t = NULL;

    pthread_mutex_lock(&shard->mu);
    if (shard->tombstone_count < OC_TOMBSTONES_MAX) {
        t = malloc(sizeof *t + w->key.len);
    }
    if (t == NULL) {
        if (!shard->tombstones_lost) {
            shard->tombstones_lost = true;
            atomic_fetch_add(&s->tombstones_waiting, 1);
        }
    } else {
        t->version = w->version;
        t->key_len = (uint32_t)w->key.len;
        memcpy(t->key, w->key.p, w->key.len);
        oc_list_push_back(&shard->tombstones, &t->link);
        shard->tombstone_count++;
        atomic_fetch_add(&s->tombstones_waiting, 1);
    }
    pthread_mutex_unlock(&shard->mu);
}

static void settle_tombstone(struct oc_objects *s, const struct oc_write *w) {
    struct oc_shard *shard = oc_shard_of(s, w->key);

    if (w->version >= oc_seglog_horizon(&s->log)) {
        keep_tombstone(s, w);
        return;
    }
    pthread_mutex_lock(&shard->mu);
    (void)oc_index_remove(shard->index, w->key, w->version); /* false: overwritten since */
    pthread_mutex_unlock(&shard->mu);
}

static int drop_any(void *arg, struct oc_span key, const struct oc_entry *e) {
    uint64_t horizon = *(const uint64_t *)arg;

    (void)key;
    return (e->flags & OC_ENTRY_TOMBSTONE) != 0 && e->version < horizon ? OC_SWEEP_REMOVE
                                                                        : OC_SWEEP_NEXT;
}

/* shard->mu held: tombstones that no list remembers. Rare, so all at once. */
static void drop_lost(struct oc_objects *s, struct oc_shard *shard, uint64_t horizon) {
    struct oc_index_stats st;

    oc_index_cursor_reset(s->dump);
    (void)oc_index_sweep(shard->index, s->dump, SIZE_MAX, drop_any, &horizon);
    oc_index_stats(shard->index, &st);
    if (st.tombstones <= shard->tombstone_count) {
        shard->tombstones_lost = false;
        atomic_fetch_sub(&s->tombstones_waiting, 1);
    }
}

void oc_objects_prune(struct oc_objects *s) {
    uint64_t horizon = oc_seglog_horizon(&s->log);

    for (unsigned i = 0; i < s->shard_count && atomic_load(&s->tombstones_waiting) > 0; i++) {
        struct oc_shard *shard = &s->shards[i];

        pthread_mutex_lock(&shard->mu);
        while (!oc_list_empty(&shard->tombstones)) {
            struct oc_tombstone *t =
                OC_CONTAINER(shard->tombstones.next, struct oc_tombstone, link);

            if (t->version >= horizon) {
                break;
            }
            (void)oc_index_remove(shard->index, oc_span(t->key, t->key_len), t->version);
            oc_list_remove(&t->link);
            shard->tombstone_count--;
            atomic_fetch_sub(&s->tombstones_waiting, 1);
            free(t);
        }
        if (shard->tombstones_lost) {
            drop_lost(s, shard, horizon);
        }
        pthread_mutex_unlock(&shard->mu);
    }
}

size_t oc_objects_publish(struct oc_objects *s, struct oc_batch *b) {
    size_t failed = 0;
    bool deleted = false;

    oc_list_each (l, &b->writes) {
        struct oc_write *w = write_of(l);

        if (is_written(w)) {
            publish_one(s, w);
            deleted = deleted || w->is_delete;
        }
        failed += w->result != 0;
    }
    if (b->flight.active) {
        b->flight.active = false;
        oc_seglog_land(&s->log, &b->flight);
    }
    struct oc_list *l;
    while ((l = oc_list_pop_front(&b->writes)) != NULL) {
        struct oc_write *w = write_of(l);

        if (deleted && w->is_delete && is_written(w)) {
            settle_tombstone(s, w);
        }
    }
    b->count = 0;
    b->bytes = 0;
    return failed;
}

size_t oc_objects_commit(struct oc_objects *s, struct oc_batch *b) {
    oc_objects_append(s, b);
    return oc_objects_publish(s, b);
}
