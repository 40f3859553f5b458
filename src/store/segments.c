/* Segments: the table of all of them, opening the next one, sealing and poisoning.
 *
 * A segment's file is made ahead of its use, with its blocks reserved but without a header; the
 * header goes out with the first records. So it can say where the log really was when the segment
 * took over (prev_segment, prev_end): what lies behind that position in older segments is not part
 * of the log, and what is missing before it is a hole. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/event.h"
#include "base/plant.h"
#include "store/seglog.h"

/* ids only ever grow, so that a leftover never gets in the way; but not without end */
#define CREATE_TRIES 16

int oc_idvec_add(struct oc_idvec *v, uint64_t id) {
    if (v->count == v->cap) {
        size_t cap = v->cap == 0 ? 64 : v->cap * 2;
        uint64_t *grown = reallocarray(v->v, cap, sizeof *grown);

        if (grown == NULL) {
            return OC_E_EXHAUSTED;
        }
        v->v = grown;
        v->cap = cap;
    }
    v->v[v->count++] = id;
    return 0;
}

int oc_segments_add(struct oc_segments *t, struct oc_segment *seg) {
    int rc = 0;

    pthread_mutex_lock(&t->mu);
    if (t->count == t->cap) {
        size_t cap = t->cap == 0 ? 64 : t->cap * 2;
        struct oc_segment **grown = reallocarray(t->v, cap, sizeof(*grown));

        if (grown == NULL) {
            rc = OC_E_EXHAUSTED;
        } else {
            t->v = grown;
            t->cap = cap;
        }
    }
    if (rc == 0) {
        OC_CHECK(t->count == 0 || t->v[t->count - 1]->id < seg->id);
        t->v[t->count++] = seg;
    }
    pthread_mutex_unlock(&t->mu);
    return rc;
}

struct oc_segment *oc_segments_find(struct oc_segments *t, uint32_t id) {
    struct oc_segment *found = NULL;

    pthread_mutex_lock(&t->mu);
    size_t lo = 0, hi = t->count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (t->v[mid]->id < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo < t->count && t->v[lo]->id == id) {
        found = t->v[lo];
    }
    pthread_mutex_unlock(&t->mu);
    return found;
}

int oc_seglog_segment(struct oc_seglog *log, uint32_t id, bool nowait, struct oc_handle **ret,
                      struct oc_error *err) {
    struct oc_handle *h = oc_files_peek(&log->files, OC_KIND_SEGMENT, id);

    if (h != NULL) {
        *ret = h;
        return 0;
    }
    struct oc_segment *seg = oc_segments_find(&log->segs, id);
    if (seg == NULL) {
        return oc_error_set(err, OC_E_NOT_FOUND, "there is no segment %u", id);
    }
    if (nowait) {
        return OC_AGAIN;
    }
    return oc_files_get(&log->files, OC_KIND_SEGMENT, id, seg->salt, ret, err);
}

/* Make the file of a new segment. No lock is needed; `id` and `salt` were given out by the caller.
 */
static int create_file(struct oc_seglog *log, uint32_t id, uint64_t salt, struct oc_segment **ret,
                       struct oc_handle **ret_handle, struct oc_error *err) {
    char path[OC_PATH_BYTES];
    struct oc_handle *h = NULL;

    if (!oc_space_take(&log->space, log->segment_bytes)) {
        return oc_error_set(err, OC_E_EXHAUSTED, "storage capacity exceeded");
    }
    struct oc_segment *seg = calloc(1, sizeof *seg);
    int rc = seg == NULL ? oc_error_set(err, OC_E_EXHAUSTED, "out of memory for a segment")
                         : oc_files_create(&log->files, OC_KIND_SEGMENT, id, salt, &h, err);
    if (rc == 0) {
        rc = log->disk->reserve(h->file, log->segment_bytes, err);
        if (rc != 0) {
            oc_file_path(path, OC_KIND_SEGMENT, id);
            oc_files_forget(&log->files, OC_KIND_SEGMENT, id);
            oc_handle_put(h);
            /* An empty file that stays is removed by the next recovery. */
            (void)log->disk->unlink(log->disk->ctx, path, NULL);
        }
    }
    if (rc != 0) {
        free(seg);
        oc_space_give(&log->space, log->segment_bytes);
        return rc;
    }
    *seg = (struct oc_segment){.id = id,
                               .salt = salt,
                               .state = OC_SEGMENT_OPEN,
                               .end = OC_SEG_HEADER_BYTES,
                               .charged = log->segment_bytes};
    *ret = seg;
    *ret_handle = h;
    return 0;
}

static void discard_file(struct oc_seglog *log, struct oc_segment *seg, struct oc_handle *h) {
    char path[OC_PATH_BYTES];

    oc_file_path(path, OC_KIND_SEGMENT, seg->id);
    oc_files_forget(&log->files, OC_KIND_SEGMENT, seg->id);
    oc_handle_put(h);
    /* What stays is an empty file, which the next recovery removes. */
    (void)log->disk->unlink(log->disk->ctx, path, NULL);
    oc_space_give(&log->space, seg->charged);
    free(seg);
}

/* append_mu held. */
static int create_inline(struct oc_seglog *log) {
    int rc = OC_E_EXHAUSTED;

    if (log->now.mono_ns < log->retry_at_ns) {
        return log->retry_code;
    }
    /* At the cap a look costs nothing, so the first batch after space came back gets it. */
    if (oc_n_get(&log->space.used) + log->segment_bytes > oc_n_get(&log->space.cap)) {
        return OC_E_EXHAUSTED;
    }
    for (int i = 0; i < CREATE_TRIES; i++) {
        uint32_t id = log->next_segment++;

        rc = create_file(log, id, oc_rng_next(&log->rng), &log->spare, &log->spare_handle, NULL);
        if (rc != OC_E_EXISTS) {
            break;
        }
    }
    if (rc != 0) {
        rc = rc == OC_E_EXHAUSTED ? OC_E_EXHAUSTED : OC_E_UNAVAILABLE;
        oc_n_add(&log->n.write_failures, 1);
        log->retry_code = rc;
        log->retry_at_ns = log->now.mono_ns + OC_SEGMENT_RETRY_NS;
    }
    return rc;
}

/* append_mu held: the open segment takes no more records. */
static void close_open(struct oc_seglog *log, enum oc_segment_state state) {
    struct oc_segment *seg = log->open;

    oc_event(state == OC_SEGMENT_SEALED ? OC_EV_LOG_SEAL : OC_EV_LOG_POISON, seg->id, seg->end);
    seg->state = state;
    log->untrimmed++;
    log->open = NULL;
    oc_handle_put(OC_TAKE(log->open_handle));
}

void oc_segments_poison_open(struct oc_seglog *log) {
    OC_CHECK(log->open != NULL);
    oc_footer_free(OC_TAKE(log->open->footer));
    oc_n_add(&log->n.quarantined_segments, 1);
    atomic_store(&log->suspect, true);
    close_open(log, OC_SEGMENT_POISONED);
}

int oc_segments_roll(struct oc_seglog *log) {
    int rc = 0;

    if (log->spare == NULL) {
        rc = create_inline(log);
        if (rc != 0) {
            return rc;
        }
    }
    /* Whatever is appended must be found by the sync, so its place there is taken first. */
    if (oc_idvec_add(&log->unsynced, log->spare->id) != 0) {
        return OC_E_EXHAUSTED;
    }
    if (oc_segments_add(&log->segs, log->spare) != 0) {
        log->unsynced.count--;
        return OC_E_EXHAUSTED;
    }
    if (log->open != NULL) {
        close_open(log, OC_SEGMENT_SEALED);
    }
    log->open = OC_TAKE(log->spare);
    log->open_handle = OC_TAKE(log->spare_handle);
    log->open->footer = oc_footer_new(); /* NULL: it will have none, which costs a scan one day */
    log->header_due = true;
    log->header = (struct oc_seg_header){
        .segment = log->open->id,
        .salt = log->open->salt,
        .version_base = log->last_written,
        .flags = oc_log_pos_compare(log->end, log->durable) <= 0 ? OC_SEG_SETTLED : 0,
        .prev_segment = log->end.segment,
        .prev_end = (uint32_t)(log->end.offset / 8),
    };
    memcpy(log->header.boot_id, log->boot_id, sizeof log->header.boot_id);
    oc_seg_header_encode(&log->header);
    log->seg_dir_dirty = !OC_PLANT(LOST_RENAME);
    return 0;
}

void oc_segments_prepare_spare(struct oc_seglog *log) {
    struct oc_segment *seg = NULL;
    struct oc_handle *h = NULL;

    pthread_mutex_lock(&log->append_mu);
    bool wanted =
        log->spare == NULL && log->open != NULL && log->open->end >= log->segment_bytes / 2;
    uint32_t id = wanted ? log->next_segment++ : 0;
    uint64_t salt = wanted ? oc_rng_next(&log->rng) : 0;
    pthread_mutex_unlock(&log->append_mu);

    /* When it fails the append that needs the segment tries again and answers for it. */
    if (!wanted || create_file(log, id, salt, &seg, &h, NULL) != 0) {
        return;
    }
    pthread_mutex_lock(&log->append_mu);
    if (log->spare == NULL && (log->open == NULL || log->open->id < id)) {
        log->spare = OC_TAKE(seg);
        log->spare_handle = OC_TAKE(h);
    }
    pthread_mutex_unlock(&log->append_mu);
    if (seg != NULL) {
        discard_file(log, seg, h);
    }
}

/* Write the footer behind the records and give back what was reserved and not used. */
static void write_footer(struct oc_seglog *log, struct oc_segment *seg, uint64_t end,
                         struct oc_footer_builder *footer, uint64_t *ret_bytes) {
    struct oc_handle *h = NULL;
    struct oc_buf buf;

    *ret_bytes = end;
    oc_buf_init(&buf, (size_t)(2 * log->segment_bytes) + 4096);
    if (oc_seglog_segment(log, seg->id, false, &h, NULL) == 0) {
        if (footer != NULL && oc_footer_encode(footer, seg->salt, seg->id, end, &buf) == 0) {
            struct iovec iov = {buf.data, buf.len};

            if (log->disk->pwritev(h->file, &iov, 1, end, NULL) == 0) {
                *ret_bytes = end + buf.len;
            } else {
                oc_n_add(&log->n.write_failures, 1);
            }
        }
        /* Failing leaves blocks reserved behind the end and no footer: both only cost. */
        (void)log->disk->truncate(h->file, *ret_bytes, NULL);
        oc_handle_put(h);
    }
    oc_buf_done(&buf);
}

/* append_mu held. */
static struct oc_segment *find_closed(struct oc_seglog *log) {
    struct oc_segment *found = NULL;

    if (log->untrimmed == 0) {
        return NULL;
    }
    log->untrimmed--;
    pthread_mutex_lock(&log->segs.mu);
    for (size_t i = log->segs.count; i > 0 && found == NULL; i--) {
        struct oc_segment *seg = log->segs.v[i - 1];

        if (seg->state == OC_SEGMENT_SEALED ||
            (seg->state == OC_SEGMENT_POISONED && !seg->trimmed)) {
            found = seg;
        }
    }
    pthread_mutex_unlock(&log->segs.mu);
    return found;
}

void oc_segments_seal(struct oc_seglog *log) {
    for (;;) {
        uint64_t bytes;

        pthread_mutex_lock(&log->append_mu);
        struct oc_segment *seg = find_closed(log);
        if (seg == NULL) {
            pthread_mutex_unlock(&log->append_mu);
            return;
        }
        struct oc_footer_builder *footer = OC_TAKE(seg->footer);
        uint64_t end = seg->end;
        seg->trimmed = true;
        if (seg->state == OC_SEGMENT_SEALED) {
            seg->state = OC_SEGMENT_DONE;
        }
        pthread_mutex_unlock(&log->append_mu);

        write_footer(log, seg, end, footer, &bytes);
        oc_footer_free(footer);

        pthread_mutex_lock(&log->append_mu);
        uint64_t charged = seg->charged;
        seg->charged = oc_space_round(bytes);
        uint64_t now_charged = seg->charged;
        pthread_mutex_unlock(&log->append_mu);
        oc_space_force(&log->space, now_charged);
        oc_space_give(&log->space, charged);
    }
}
