/* After a power loss: where does the log end? Everything known to be durable is found first (the
 * checkpoint, the newest MARKs); the little behind it is read and verified whole, values and value
 * files included, and fed to the cut rule (core/seglog/cut.h). The cut is made durable before
 * anything else happens: newest first, so that dying half-way leaves a prefix too. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "core/seglog/cut.h"
#include "store/seglog.h"

#define IO_TRIES 3

struct tail {
    struct oc_seglog *log;
    struct oc_foundvec *found;
    struct oc_cut cut;
    struct oc_log_pos durable; /* while it is looked for */
    uint8_t *buffer;
    uint8_t *chunk;
    /* of the segment being read: */
    struct oc_found *seg;
    uint64_t records_end;
    struct oc_error *err;
};

/* ---- what is durable: MARKs, from the newest segment back to the first that has one ---- */

static int look_for_mark(void *arg, uint64_t offset, const struct oc_record *r) {
    struct tail *t = arg;
    struct oc_mark mark;

    (void)offset;
    if (oc_rec_mark(r, &mark)) {
        t->durable = oc_log_pos_max(t->durable, (struct oc_log_pos){mark.segment, mark.offset});
    }
    return 0;
}

static int find_marks_in(struct tail *t, struct oc_found *seg) {
    struct oc_walk walk = {.arg = t, .record = look_for_mark};
    struct oc_handle *h = NULL;
    struct oc_footer_info info;
    uint8_t *bytes = NULL;
    int rc = oc_files_get(&t->log->files, OC_KIND_SEGMENT, seg->id, seg->header.salt, &h, t->err);

    if (rc != 0) {
        return rc;
    }
    if (oc_segment_footer(t->log, h, seg->size, &bytes, &info) == 0) {
        t->durable = oc_log_pos_max(t->durable, info.mark);
        free(bytes);
    } else {
        rc = oc_segment_walk(t->log, h, OC_SEG_HEADER_BYTES,
                             seg->size < seg->limit ? seg->size : seg->limit, false, t->buffer,
                             &walk);
    }
    oc_handle_put(h);
    return rc;
}

static int find_durable(struct tail *t, const struct oc_recovery *rec) {
    struct oc_log_pos known = oc_log_pos_max(rec->from, rec->through);

    for (size_t i = t->found->count; i > 0; i--) {
        struct oc_found *seg = &t->found->v[i - 1];

        if (seg->id < known.segment) {
            break;
        }
        if (!seg->readable) {
            continue;
        }
        /* MARKs of segments that were given up were true when they were written. */
        int rc = find_marks_in(t, seg);
        if (rc != 0) {
            return rc;
        }
        if (t->durable.segment != 0) {
            break; /* MARKs only grow */
        }
    }
    t->durable = oc_log_pos_max(t->durable, known);
    return 0;
}

/* ---- the part behind it ---- */

static bool behind_durable(const struct tail *t, uint64_t end) {
    struct oc_log_pos pos = {t->seg->id, end};

    return oc_log_pos_compare(pos, t->durable) > 0;
}

static bool file_ok(struct tail *t, const struct oc_file_ref *ref) {
    uint64_t chunks = (ref->len + OC_CHUNK_BYTES - 1) / OC_CHUNK_BYTES;
    struct oc_handle *h = NULL;
    bool ok = oc_files_get(&t->log->files, OC_KIND_VALUE, ref->file, 0, &h, NULL) == 0;

    for (uint64_t i = 0; ok && i < chunks; i++) {
        struct oc_span value;
        int rc = OC_E_UNAVAILABLE;

        for (int k = 0; k < IO_TRIES && rc == OC_E_UNAVAILABLE; k++) {
            rc = oc_valfile_read(h, ref->len, i, t->chunk, false, &value, NULL);
        }
        ok = rc == 0;
    }
    oc_handle_put(h);
    return ok;
}

static int check_record(void *arg, uint64_t offset, const struct oc_record *r) {
    struct tail *t = arg;
    struct oc_file_ref ref;
    uint64_t end = offset + r->total_len;

    t->records_end = end;
    if (behind_durable(t, end) &&
        (!oc_rec_value_ok(r) || (oc_rec_file_ref(r, &ref) && !file_ok(t, &ref)))) {
        oc_cut_fault(&t->cut, offset, end);
    }
    return 0;
}

static void bad_range(void *arg, uint64_t offset, uint64_t bytes) {
    struct tail *t = arg;

    oc_cut_fault(&t->cut, offset, offset + bytes);
}

static int feed_segment(struct tail *t, struct oc_found *seg) {
    struct oc_walk walk = {.arg = t, .record = check_record, .bad = bad_range};
    struct oc_handle *h = NULL;
    struct oc_footer_info info;
    uint8_t *bytes = NULL;
    uint64_t end = seg->size < seg->limit ? seg->size : seg->limit;
    bool footer = false;

    t->seg = seg;
    t->records_end = OC_SEG_HEADER_BYTES;
    oc_cut_segment(&t->cut, seg->id, seg->readable ? &seg->header : NULL);
    if (!seg->readable) {
        oc_cut_segment_end(&t->cut, OC_SEG_HEADER_BYTES, false);
        return 0;
    }
    int rc = oc_files_get(&t->log->files, OC_KIND_SEGMENT, seg->id, seg->header.salt, &h, t->err);
    if (rc != 0) {
        return rc;
    }
    if (oc_segment_footer(t->log, h, seg->size, &bytes, &info) == 0) {
        footer = info.data_end <= end;
        end = footer ? info.data_end : end;
        free(bytes);
    }
    rc = oc_segment_walk(t->log, h, OC_SEG_HEADER_BYTES, end, true, t->buffer, &walk);
    oc_handle_put(h);
    oc_cut_segment_end(&t->cut, t->records_end, footer && t->records_end == end);
    return rc;
}

/* ---- making it so ---- */

static int remove_segment(struct oc_seglog *log, const struct oc_found *seg, struct oc_error *err) {
    char path[OC_PATH_BYTES];

    oc_n_add(&log->n.cut_bytes, seg->size);
    oc_files_forget(&log->files, OC_KIND_SEGMENT, seg->id);
    oc_file_path(path, OC_KIND_SEGMENT, seg->id);
    return log->disk->unlink(log->disk->ctx, path, err);
}

static int shorten_segment(struct oc_seglog *log, struct oc_found *seg, uint64_t len,
                           struct oc_error *err) {
    struct oc_handle *h = NULL;
    int rc = oc_files_get(&log->files, OC_KIND_SEGMENT, seg->id, seg->header.salt, &h, err);

    if (rc == 0) {
        rc = log->disk->truncate(h->file, len, err);
        if (rc == 0) {
            rc = log->disk->sync(h->file, err);
        }
        oc_handle_put(h);
    }
    if (rc == 0) {
        oc_n_add(&log->n.cut_bytes, seg->size > len ? seg->size - len : 0);
        seg->size = len;
        seg->limit = len < seg->limit ? len : seg->limit;
    }
    return rc;
}

static int make_cut(struct tail *t, struct oc_log_pos at) {
    struct oc_foundvec *found = t->found;
    const struct oc_disk *disk = t->log->disk;
    bool removed = false;
    int rc = 0;

    while (rc == 0 && found->count > 0) {
        struct oc_found *seg = &found->v[found->count - 1];

        if (seg->id < at.segment) {
            break;
        }
        if (seg->id == at.segment && at.offset > OC_SEG_HEADER_BYTES && seg->readable) {
            rc = at.offset < seg->size ? shorten_segment(t->log, seg, at.offset, t->err) : 0;
            break;
        }
        rc = remove_segment(t->log, seg, t->err);
        removed = true;
        found->count--;
    }
    if (rc == 0 && removed) {
        rc = disk->sync_dir(disk->ctx, "seg", t->err);
    }
    return rc;
}

static bool power_was_lost(const struct oc_seglog *log, const struct oc_foundvec *found) {
    for (size_t i = found->count; i > 0; i--) {
        if (found->v[i - 1].readable) {
            return memcmp(found->v[i - 1].header.boot_id, log->boot_id, sizeof log->boot_id) != 0;
        }
    }
    return found->count > 0;
}

int oc_recover_cut(struct oc_seglog *log, const struct oc_recovery *rec, struct oc_foundvec *found,
                   struct oc_error *err) {
    struct tail t = {.log = log, .found = found, .err = err};
    struct oc_log_pos at;
    int rc;

    if (!power_was_lost(log, found)) {
        return 0;
    }
    t.buffer = malloc(OC_WALK_BUFFER_BYTES);
    t.chunk = malloc(OC_CHUNK_HEADER_BYTES + OC_CHUNK_BYTES);
    if (t.buffer == NULL || t.chunk == NULL) {
        rc = oc_error_set(err, OC_E_EXHAUSTED, "out of memory for the recovery");
    } else {
        rc = find_durable(&t, rec);
    }
    if (rc == 0) {
        oc_cut_init(&t.cut, log->boot_id);
        oc_cut_durable(&t.cut, t.durable);
        for (size_t i = 0; rc == 0 && i < found->count; i++) {
            struct oc_found *seg = &found->v[i];

            if (seg->id >= t.durable.segment && !seg->is_void) {
                rc = feed_segment(&t, seg);
            }
        }
    }
    if (rc == 0 && oc_cut_done(&t.cut, &at)) {
        rc = make_cut(&t, at);
    }
    free(t.buffer);
    free(t.chunk);
    return rc;
}
