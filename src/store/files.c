/* The cache of open files. A handle is counted by its users and, while it is listed, by the table;
 * the last one closes the file. So a file that is unlinked or pushed out of the cache stays
 * readable for whoever holds it. Opening happens outside the lock: two threads may open the same
 * file at once, and the second finds the first's handle listed and drops its own. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "store/seglog.h"

#define FILES_MIN 16u

void oc_file_path(char ret[OC_PATH_BYTES], enum oc_file_kind kind, uint64_t id) {
    if (kind == OC_KIND_SEGMENT) {
        (void)snprintf(ret, OC_PATH_BYTES, "seg/%016" PRIx64 ".seg", id);
    } else {
        /* The last two digits: ids ascend, so these spread evenly. */
        (void)snprintf(ret, OC_PATH_BYTES, "val/%02x/%016" PRIx64 ".val", (unsigned)(id & 0xff),
                       id);
    }
}

static size_t bucket_of(const struct oc_files *t, enum oc_file_kind kind, uint64_t id) {
    uint64_t h = (id * 2 + (uint64_t)kind) * UINT64_C(0x9e3779b97f4a7c15);

    return (size_t)(h >> 32) & t->bucket_mask;
}

int oc_files_init(struct oc_files *t, const struct oc_disk *disk, unsigned max_open) {
    size_t buckets = FILES_MIN;

    *t = (struct oc_files){.disk = disk, .max = max_open < FILES_MIN ? FILES_MIN : max_open};
    while (buckets < t->max) {
        buckets *= 2;
    }
    t->buckets = calloc(buckets, sizeof *t->buckets);
    if (t->buckets == NULL) {
        return OC_E_EXHAUSTED;
    }
    t->bucket_mask = buckets - 1;
    oc_list_init(&t->clock);
    pthread_mutex_init(&t->mu, NULL);
    return 0;
}

static void handle_free(struct oc_handle *h) {
    h->owner->disk->close(h->file);
    atomic_fetch_sub_explicit(&h->owner->open, 1, memory_order_relaxed);
    free(h);
}

void oc_handle_put(struct oc_handle *h) {
    if (h != NULL && atomic_fetch_sub_explicit(&h->refs, 1, memory_order_acq_rel) == 1) {
        handle_free(h);
    }
}

bool oc_handle_put_unless_last(struct oc_handle *h) {
    uint32_t refs = atomic_load_explicit(&h->refs, memory_order_relaxed);

    while (refs > 1) {
        if (atomic_compare_exchange_weak_explicit(&h->refs, &refs, refs - 1, memory_order_acq_rel,
                                                  memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

/* files.mu held. */
static struct oc_handle *lookup(struct oc_files *t, enum oc_file_kind kind, uint64_t id) {
    for (struct oc_handle *h = t->buckets[bucket_of(t, kind, id)]; h != NULL; h = h->next_hash) {
        if (h->id == id && h->kind == kind) {
            return h;
        }
    }
    return NULL;
}

/* files.mu held; the table's reference passes to the caller. */
static void unlist(struct oc_files *t, struct oc_handle *h) {
    struct oc_handle **at = &t->buckets[bucket_of(t, h->kind, h->id)];

    while (*at != h) {
        at = &(*at)->next_hash;
    }
    *at = h->next_hash;
    oc_list_remove(&h->clock);
    h->listed = false;
    t->count--;
}

/* files.mu held: second chance among the handles that only the table counts. NULL: all are in use.
 */
static struct oc_handle *pick_victim(struct oc_files *t) {
    for (unsigned i = 0; i < 2 * t->count; i++) {
        struct oc_handle *h = OC_CONTAINER(t->clock.next, struct oc_handle, clock);

        oc_list_remove(&h->clock);
        oc_list_push_back(&t->clock, &h->clock);
        if (atomic_load_explicit(&h->refs, memory_order_acquire) > 1) {
            continue;
        }
        if (!h->recent) {
            return h;
        }
        h->recent = false;
    }
    return NULL;
}

struct oc_handle *oc_files_peek(struct oc_files *t, enum oc_file_kind kind, uint64_t id) {
    pthread_mutex_lock(&t->mu);
    struct oc_handle *h = lookup(t, kind, id);
    if (h != NULL) {
        atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed);
        h->recent = true;
    }
    pthread_mutex_unlock(&t->mu);
    return h;
}

static int open_handle(struct oc_files *t, enum oc_file_kind kind, uint64_t id, unsigned flags,
                       struct oc_handle **ret, struct oc_error *err) {
    char path[OC_PATH_BYTES];
    struct oc_handle *h = calloc(1, sizeof *h);

    if (h == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory for an open file");
    }
    oc_file_path(path, kind, id);
    int rc = t->disk->open(t->disk->ctx, path, flags, &h->file, err);
    if (rc != 0) {
        free(h);
        return rc;
    }
    atomic_fetch_add_explicit(&t->open, 1, memory_order_relaxed);
    h->kind = kind;
    h->id = id;
    h->owner = t;
    atomic_init(&h->refs, 1);
    oc_list_init(&h->clock);
    *ret = h;
    return 0;
}

static int get(struct oc_files *t, enum oc_file_kind kind, uint64_t id, uint64_t salt,
               unsigned flags, struct oc_handle **ret, struct oc_error *err) {
    struct oc_handle *fresh = NULL, *drop = NULL;
    int rc = open_handle(t, kind, id, flags, &fresh, err);

    if (rc != 0) {
        return rc;
    }
    fresh->salt = salt;
    pthread_mutex_lock(&t->mu);
    struct oc_handle *h = lookup(t, kind, id);
    if (h != NULL) {
        drop = fresh;
    } else {
        if (t->count >= t->max) {
            drop = pick_victim(t);
            if (drop != NULL) {
                unlist(t, drop);
            } else if (kind == OC_KIND_VALUE) {
                pthread_mutex_unlock(&t->mu);
                oc_handle_put(fresh);
                return oc_error_set(err, OC_E_EXHAUSTED,
                                    "all %u open files are in use (raise the limit)", t->max);
            }
            /* Segments are held for the moment of a read only, so they pass the bound rather than
             * let large readers stop the log. */
        }
        h = fresh;
        h->listed = true;
        atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed); /* the table's */
        size_t bucket = bucket_of(t, kind, id);
        h->next_hash = t->buckets[bucket];
        t->buckets[bucket] = h;
        oc_list_push_back(&t->clock, &h->clock);
        t->count++;
    }
    if (h != fresh) {
        atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed);
    }
    h->recent = true;
    pthread_mutex_unlock(&t->mu);
    oc_handle_put(drop);
    *ret = h;
    return 0;
}

int oc_files_get(struct oc_files *t, enum oc_file_kind kind, uint64_t id, uint64_t salt,
                 struct oc_handle **ret, struct oc_error *err) {
    struct oc_handle *h = oc_files_peek(t, kind, id);

    if (h != NULL) {
        *ret = h;
        return 0;
    }
    return get(t, kind, id, salt, OC_OPEN_WRITE, ret, err);
}

int oc_files_create(struct oc_files *t, enum oc_file_kind kind, uint64_t id, uint64_t salt,
                    struct oc_handle **ret, struct oc_error *err) {
    return get(t, kind, id, salt, OC_OPEN_CREATE | OC_OPEN_EXCL, ret, err);
}

void oc_files_forget(struct oc_files *t, enum oc_file_kind kind, uint64_t id) {
    pthread_mutex_lock(&t->mu);
    struct oc_handle *h = lookup(t, kind, id);
    if (h != NULL) {
        unlist(t, h);
    }
    pthread_mutex_unlock(&t->mu);
    oc_handle_put(h);
}

void oc_files_done(struct oc_files *t) {
    struct oc_list *l;

    if (t->buckets == NULL) {
        return;
    }
    while ((l = oc_list_pop_front(&t->clock)) != NULL) {
        oc_handle_put(OC_CONTAINER(l, struct oc_handle, clock));
    }
    OC_COUNT(atomic_load(&t->open) == 0);
    free(t->buckets);
    t->buckets = NULL;
    pthread_mutex_destroy(&t->mu);
}
