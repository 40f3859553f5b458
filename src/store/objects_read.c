/* Lookups and verified reads. What a read returns has passed its checksums and is the record that
 * the lookup named: same key, same version. Anything else is a miss, and the entry is marked so
 * that the next read does not try again. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/event.h"
#include "base/plant.h"
#include "store/store.h"

#define MOVED_TRIES 3

static void object_of(const struct oc_entry *e, struct oc_object *ret) {
    *ret = (struct oc_object){.version = e->version,
                              .len = e->value_len,
                              .expires_at_s = e->expires_at_s,
                              .segment = e->segment,
                              .offset = e->offset,
                              .flags = e->flags};
}

uint32_t oc_objects_time_s(struct oc_objects *s) {
    struct oc_now now = oc_clock_now(s->cfg.clock);

    return oc_vclock_time_s(&s->log, &now);
}

int oc_objects_find(struct oc_objects *s, struct oc_span key, struct oc_object *ret) {
    struct oc_shard *shard = oc_shard_of(s, key);
    struct oc_entry e;

    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    pthread_mutex_lock(&shard->mu);
    bool there = oc_index_find(shard->index, key, &e);
    pthread_mutex_unlock(&shard->mu);
    if (!there || (e.flags & (OC_ENTRY_TOMBSTONE | OC_ENTRY_LOST)) != 0 ||
        (e.expires_at_s != 0 && oc_objects_time_s(s) >= e.expires_at_s)) {
        return OC_E_NOT_FOUND;
    }
    object_of(&e, ret);
    return 0;
}

bool oc_objects_unreadable(struct oc_objects *s, struct oc_span key, struct oc_object *obj) {
    struct oc_shard *shard = oc_shard_of(s, key);
    struct oc_entry e;
    bool moved = false, lost = false;

    pthread_mutex_lock(&shard->mu);
    if (oc_index_find(shard->index, key, &e) && e.version == obj->version) {
        if (e.segment != obj->segment || e.offset != obj->offset) {
            object_of(&e, obj);
            moved = true;
        } else if ((e.flags & OC_ENTRY_LOST) == 0) {
            e.flags |= OC_ENTRY_LOST;
            lost = oc_index_update(shard->index, key, e.version, &e);
        }
    }
    pthread_mutex_unlock(&shard->mu);
    if (lost) {
        oc_n_add(&s->lost_entries, 1);
        oc_n_add(&s->log.n.corrupt_records, 1);
        oc_event(OC_EV_QUARANTINE, obj->segment, obj->offset);
    }
    return moved;
}

bool oc_object_is_small(const struct oc_object *obj) {
    return (obj->flags & OC_ENTRY_FILE) == 0;
}

size_t oc_objects_read_room(struct oc_span key, const struct oc_object *obj) {
    return OC_REC_HEADER_BYTES + key.len + (size_t)obj->len;
}

/* OC_E_DATA_LOSS: the bytes there are not that record. */
static int read_record(struct oc_objects *s, struct oc_span key, const struct oc_object *obj,
                       void *dst, bool nowait, struct oc_span *ret_value) {
    size_t want = oc_objects_read_room(key, obj), need;
    uint64_t offset = (uint64_t)obj->offset * 8;
    struct oc_handle *h = NULL;
    struct oc_record r;
    int rc = oc_seglog_segment(&s->log, obj->segment, nowait, &h, NULL);

    if (rc != 0) {
        return rc == OC_E_NOT_FOUND ? OC_E_DATA_LOSS : rc;
    }
    int64_t n = s->log.disk->pread(h->file, dst, want, offset, nowait, NULL);
    uint64_t salt = h->salt;
    oc_handle_put(h);
    if (n == OC_DISK_WOULD_WAIT) {
        return OC_AGAIN;
    }
    if (n < 0) {
        return OC_E_UNAVAILABLE;
    }
    if (OC_PLANT(NO_VERIFY) && (size_t)n == want) {
        *ret_value = oc_span((const uint8_t *)dst + want - obj->len, (size_t)obj->len);
        return 0;
    }
    if ((size_t)n < want ||
        oc_rec_decode(oc_span(dst, want), salt, offset, offset + want + 8, &r, &need) != 0 ||
        r.kind != OC_REC_PUT || r.version != obj->version || !oc_span_equal(r.key, key) ||
        r.value.len != obj->len || !oc_rec_value_ok(&r)) {
        return OC_E_DATA_LOSS;
    }
    *ret_value = r.value;
    return 0;
}

int oc_objects_read(struct oc_objects *s, struct oc_span key, const struct oc_object *obj,
                    void *dst, bool nowait, struct oc_span *ret_value) {
    struct oc_object at = *obj;

    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    OC_CHECK(oc_object_is_small(obj));
    for (int i = 0; i < MOVED_TRIES; i++) {
        int rc = read_record(s, key, &at, dst, nowait, ret_value);

        if (rc != OC_E_DATA_LOSS) {
            return rc == 0 || rc == OC_AGAIN ? rc : OC_E_UNAVAILABLE;
        }
        if (!oc_objects_unreadable(s, key, &at) || !oc_object_is_small(&at)) {
            break;
        }
    }
    return OC_E_NOT_FOUND;
}

/* ---- large objects ---- */

struct oc_reader {
    uint32_t magic;
    struct oc_objects *store;
    struct oc_object obj;
    struct oc_handle *handle;
    size_t key_len;
    uint8_t key[];
};

/* The handle passes to the reader, or is put on failure. */
static int reader_make(struct oc_objects *s, struct oc_span key, const struct oc_object *obj,
                       struct oc_handle *h, struct oc_reader **ret, struct oc_error *err) {
    struct oc_reader *r = malloc(sizeof *r + key.len);
    if (r == NULL) {
        oc_handle_put(h);
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory for a reader");
    }
    *r = (struct oc_reader){
        .magic = OC_READER_MAGIC, .store = s, .obj = *obj, .handle = h, .key_len = key.len};
    memcpy(r->key, key.p, key.len);
    *ret = r;
    return 0;
}

int oc_reader_open(struct oc_objects *s, struct oc_span key, const struct oc_object *obj,
                   struct oc_reader **ret, struct oc_error *err) {
    struct oc_entry e = {.segment = obj->segment, .offset = obj->offset};
    struct oc_handle *h = NULL;

    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    OC_CHECK(!oc_object_is_small(obj));
    int rc = oc_files_get(&s->log.files, OC_KIND_VALUE, oc_entry_file(&e), 0, &h, err);
    if (rc == OC_E_NOT_FOUND) {
        struct oc_object at = *obj;

        /* Overwritten and unlinked since the lookup, or lost. */
        (void)oc_objects_unreadable(s, key, &at);
        return rc;
    }
    if (rc != 0) {
        return rc == OC_E_EXHAUSTED ? rc : OC_E_UNAVAILABLE;
    }
    return reader_make(s, key, obj, h, ret, err);
}

int oc_reader_try_open(struct oc_objects *s, struct oc_span key, const struct oc_object *obj,
                       struct oc_reader **ret) {
    struct oc_entry e = {.segment = obj->segment, .offset = obj->offset};

    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    OC_CHECK(!oc_object_is_small(obj));
    struct oc_handle *h = oc_files_peek(&s->log.files, OC_KIND_VALUE, oc_entry_file(&e));
    return h == NULL ? OC_AGAIN : reader_make(s, key, obj, h, ret, NULL);
}

int oc_reader_chunk(struct oc_reader *r, uint64_t offset, void *dst, bool nowait,
                    struct oc_span *ret) {
    struct oc_span value;

    OC_MAGIC_CHECK(r, OC_READER_MAGIC);
    if (offset >= r->obj.len) {
        return OC_E_RANGE;
    }
    int rc =
        oc_valfile_read(r->handle, r->obj.len, offset / OC_CHUNK_BYTES, dst, nowait, &value, NULL);
    if (rc == OC_E_DATA_LOSS) {
        (void)oc_objects_unreadable(r->store, oc_span(r->key, r->key_len), &r->obj);
    }
    if (rc == 0) {
        size_t skip = (size_t)(offset % OC_CHUNK_BYTES);

        *ret = oc_span(value.p + skip, value.len - skip);
    }
    return rc;
}

static void reader_free(struct oc_reader *r) {
    r->magic = 0;
    free(r);
}

void oc_reader_close(struct oc_reader *r) {
    OC_MAGIC_CHECK(r, OC_READER_MAGIC);
    oc_handle_put(r->handle);
    reader_free(r);
}

bool oc_reader_try_close(struct oc_reader *r) {
    OC_MAGIC_CHECK(r, OC_READER_MAGIC);
    if (!oc_handle_put_unless_last(r->handle)) {
        return false;
    }
    reader_free(r);
    return true;
}
