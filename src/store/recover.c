/* Bringing the log back: which segments there are, what of them counts, the cut after a power loss,
 * the replay (by several threads, a segment at a time), and the state from which appending goes on.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/event.h"
#include "store/seglog.h"

/* ---- threads ---- */

struct runner {
    int (*fn)(void *arg, unsigned thread);
    void *arg;
    unsigned thread;
    int rc;
};

static void *run(void *arg) {
    struct runner *r = arg;

    r->rc = r->fn(r->arg, r->thread);
    return NULL;
}

int oc_run_threads(unsigned threads, int (*fn)(void *arg, unsigned thread), void *arg) {
    struct runner runners[OC_THREADS_MAX];
    pthread_t ids[OC_THREADS_MAX];
    unsigned started = 0;
    int rc = 0;

    OC_CHECK(threads >= 1 && threads <= OC_THREADS_MAX);
    for (unsigned i = 0; i + 1 < threads; i++) {
        runners[i] = (struct runner){fn, arg, i, 0};
        if (pthread_create(&ids[i], NULL, run, &runners[i]) != 0) {
            break; /* the shares of those that are missing are done here */
        }
        started++;
    }
    for (unsigned i = started; i < threads; i++) {
        int one = fn(arg, i);

        rc = rc != 0 ? rc : one;
    }
    for (unsigned i = 0; i < started; i++) {
        pthread_join(ids[i], NULL);
        rc = rc != 0 ? rc : runners[i].rc;
    }
    return rc;
}

/* ---- what is there ---- */

struct listing {
    struct oc_foundvec found;
    struct oc_idvec empty;
};

static bool parse_name(const char *name, uint32_t *ret) {
    uint64_t id = 0;
    size_t i;

    for (i = 0; i < 16; i++) {
        char c = name[i];

        if (c >= '0' && c <= '9') {
            id = id << 4 | (uint64_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            id = id << 4 | (uint64_t)(c - 'a' + 10);
        } else {
            return false;
        }
    }
    *ret = (uint32_t)id;
    return strcmp(name + i, ".seg") == 0 && id != 0 && id < UINT32_MAX;
}

static int list_one(void *arg, const char *name, uint64_t size_bytes) {
    struct listing *l = arg;
    struct oc_foundvec *f = &l->found;
    uint32_t id;

    if (size_bytes == OC_DISK_NO_FILE || !parse_name(name, &id)) {
        return 0; /* not ours: neither read nor touched */
    }
    if (size_bytes == 0) {
        return oc_idvec_add(&l->empty, id); /* prepared and never used */
    }
    if (f->count == f->cap) {
        size_t cap = f->cap == 0 ? 64 : f->cap * 2;
        struct oc_found *grown = reallocarray(f->v, cap, sizeof *grown);

        if (grown == NULL) {
            return OC_E_EXHAUSTED;
        }
        f->v = grown;
        f->cap = cap;
    }
    f->v[f->count++] = (struct oc_found){.id = id, .size = size_bytes, .limit = UINT64_MAX};
    return 0;
}

static int by_id(const void *a, const void *b) {
    uint32_t x = ((const struct oc_found *)a)->id, y = ((const struct oc_found *)b)->id;

    return (x > y) - (x < y);
}

static int read_header(struct oc_seglog *log, struct oc_found *seg, struct oc_error *err) {
    uint8_t bytes[OC_SEG_HEADER_BYTES];
    struct oc_handle *h = NULL;
    int rc = oc_files_get(&log->files, OC_KIND_SEGMENT, seg->id, 0, &h, err);

    if (rc != 0) {
        return rc;
    }
    int64_t n = log->disk->pread(h->file, bytes, sizeof bytes, 0, false, NULL);
    if (n < 0) {
        atomic_store(&log->suspect, true);
        n = 0;
    }
    rc = oc_seg_header_decode(oc_span(bytes, (size_t)n), &seg->header, err);
    seg->readable = rc == 0 && seg->header.segment == seg->id;
    h->salt = seg->readable ? seg->header.salt : 0;
    oc_handle_put(h);
    if (!seg->readable && rc != OC_E_UNIMPLEMENTED) {
        oc_n_add(&log->n.quarantined_segments, 1);
        return 0;
    }
    return rc;
}

/* What a later segment's header gave up does not count. */
static void apply_limits(struct oc_foundvec *found) {
    struct oc_log_pos from = {UINT32_MAX, UINT64_MAX};

    for (size_t i = found->count; i > 0; i--) {
        struct oc_found *seg = &found->v[i - 1];

        if (seg->id > from.segment) {
            seg->is_void = true;
            seg->limit = 0;
            continue;
        }
        if (seg->id == from.segment) {
            seg->limit = from.offset;
        }
        if (seg->readable) {
            from =
                (struct oc_log_pos){seg->header.prev_segment, (uint64_t)seg->header.prev_end * 8};
        } else {
            from = (struct oc_log_pos){UINT32_MAX, UINT64_MAX};
        }
    }
}

static int list_segments(struct oc_seglog *log, struct oc_foundvec *ret, struct oc_error *err) {
    struct listing l = {0};
    int rc = log->disk->list_dir(log->disk->ctx, "seg", list_one, &l, err);

    *ret = l.found;
    if (l.found.count > 0) {
        qsort(l.found.v, l.found.count, sizeof *l.found.v, by_id);
        log->next_segment = l.found.v[l.found.count - 1].id + 1;
    }
    for (size_t i = 0; i < l.empty.count && rc == 0; i++) {
        char path[OC_PATH_BYTES];

        log->next_segment =
            l.empty.v[i] >= log->next_segment ? (uint32_t)l.empty.v[i] + 1 : log->next_segment;
        oc_file_path(path, OC_KIND_SEGMENT, l.empty.v[i]);
        /* One that stays costs its reserved blocks until the next start. */
        (void)log->disk->unlink(log->disk->ctx, path, NULL);
    }
    free(l.empty.v);
    for (size_t i = 0; i < l.found.count && rc == 0; i++) {
        rc = read_header(log, &l.found.v[i], err);
    }
    if (rc == 0) {
        apply_limits(&l.found);
    }
    return rc;
}

/* ---- replay ---- */

struct file_at {
    struct oc_log_pos pos;
    uint64_t file;
};

struct lane { /* what one thread gathers */
    uint8_t *buffer;
    uint64_t newest;
    struct oc_log_pos mark;
    struct file_at *files; /* value files committed under the running kernel: maybe not synced */
    size_t file_count, file_cap;
};

struct replay {
    struct oc_seglog *log;
    const struct oc_recovery *rec;
    const struct oc_replay *cb;
    struct oc_foundvec *found;
    struct oc_segment **segments; /* one per found */
    _Atomic size_t next;
    _Atomic int failed;
    struct lane lanes[OC_THREADS_MAX];
};

struct reading { /* one segment by one thread */
    struct replay *p;
    struct lane *lane;
    unsigned thread;
    struct oc_found *seg;
    struct oc_handle *handle;
    struct oc_footer_builder *footer;
    uint64_t from, end;
    bool damaged;
    bool unsynced;
};

static int note_file(struct reading *g, uint64_t offset, uint64_t file) {
    struct lane *lane = g->lane;

    if (lane->file_count == lane->file_cap) {
        size_t cap = lane->file_cap == 0 ? 64 : lane->file_cap * 2;
        struct file_at *grown = reallocarray(lane->files, cap, sizeof *grown);

        if (grown == NULL) {
            return OC_E_EXHAUSTED;
        }
        lane->files = grown;
        lane->file_cap = cap;
    }
    lane->files[lane->file_count++] = (struct file_at){{g->seg->id, offset}, file};
    return 0;
}

static int replay_record(void *arg, uint64_t offset, const struct oc_record *r) {
    struct reading *g = arg;
    struct oc_record record = *r;
    struct oc_file_ref ref;
    struct oc_mark mark;
    int rc = 0;

    g->end = offset + r->total_len;
    if (g->footer != NULL && oc_footer_add(g->footer, offset, r) != 0) {
        oc_footer_free(OC_TAKE(g->footer));
    }
    if (r->version > g->lane->newest) {
        g->lane->newest = r->version;
    }
    if (r->kind == OC_REC_MARK) {
        if (oc_rec_mark(r, &mark)) {
            g->lane->mark =
                oc_log_pos_max(g->lane->mark, (struct oc_log_pos){mark.segment, mark.offset});
        }
        return 0;
    }
    if (offset < g->from) {
        return 0;
    }
    if (r->kind == OC_REC_FILE) {
        if (!oc_rec_file_ref(r, &ref)) {
            record.value = OC_SPAN_EMPTY;
        } else if (g->unsynced) {
            rc = note_file(g, offset, ref.file);
        }
    }
    oc_n_add(&g->p->log->n.recovered_records, 1);
    return rc != 0 ? rc : g->p->cb->record(g->p->cb->arg, g->thread, g->seg->id, offset, &record);
}

static void replay_bad(void *arg, uint64_t offset, uint64_t bytes) {
    struct reading *g = arg;

    oc_event(OC_EV_QUARANTINE, g->seg->id, offset);
    (void)bytes;
    g->damaged = true;
    oc_n_add(&g->p->log->n.corrupt_records, 1);
}

/* A footer's entry has no value; that of a FILE is read from the record. */
static int replay_entry(void *arg, uint64_t offset, const struct oc_record *r) {
    struct reading *g = arg;
    uint8_t bytes[sizeof(struct oc_file_ref)];
    struct oc_record record = *r;

    if (r->kind == OC_REC_FILE && offset >= g->from) {
        struct oc_record head;
        size_t need, len = OC_REC_HEADER_BYTES + r->key.len + sizeof bytes;
        uint8_t *whole = g->lane->buffer;
        int64_t n = g->p->log->disk->pread(g->handle->file, whole, len, offset, false, NULL);

        if (n == (int64_t)len && oc_rec_decode(oc_span(whole, len), g->handle->salt, offset,
                                               g->end + len, &head, &need) == 0) {
            record.value = head.value;
            record.value_crc = head.value_crc;
            record.value_len = head.value_len;
        } else if (n < 0) {
            atomic_store(&g->p->log->suspect, true);
        }
    }
    uint64_t end = g->end;
    int rc = replay_record(g, offset, &record);
    g->end = end; /* the footer says where the records end */
    return rc;
}

static int read_segment(struct reading *g, struct oc_segment *seg) {
    struct oc_seglog *log = g->p->log;
    struct oc_walk walk = {.arg = g, .record = replay_record, .bad = replay_bad};
    uint64_t end = g->seg->size < g->seg->limit ? g->seg->size : g->seg->limit;
    struct oc_footer_info info;
    uint8_t *bytes = NULL;
    int rc;

    bool footer =
        oc_segment_footer(log, g->handle, g->seg->size, &bytes, &info) == 0 && info.data_end <= end;
    if (footer && info.has_entries) {
        g->end = info.data_end;
        rc = oc_footer_each(&info, replay_entry, g);
        if (rc == 0) {
            g->lane->mark = oc_log_pos_max(g->lane->mark, info.mark);
            oc_n_add(&log->n.bytes_done, g->seg->size);
        }
    } else {
        if (!footer) {
            g->footer = oc_footer_new();
        }
        g->end = OC_SEG_HEADER_BYTES;
        rc = oc_segment_walk(log, g->handle, OC_SEG_HEADER_BYTES, footer ? info.data_end : end,
                             false, g->lane->buffer, &walk);
    }
    free(bytes);
    seg->end = g->end;
    seg->state = OC_SEGMENT_DONE;
    if (rc == 0 && !footer && !g->damaged) {
        seg->state = OC_SEGMENT_SEALED;
        seg->footer = OC_TAKE(g->footer);
    }
    oc_footer_free(g->footer);
    oc_n_add(&log->n.recovered_bytes, g->end);
    oc_event(OC_EV_RECOVER, seg->id, g->end);
    return rc;
}

static int replay_one(struct replay *p, unsigned thread, size_t i) {
    struct oc_found *found = &p->found->v[i];
    struct reading g = {.p = p,
                        .lane = &p->lanes[thread],
                        .thread = thread,
                        .seg = found,
                        .unsynced = memcmp(found->header.boot_id, p->log->boot_id,
                                           sizeof found->header.boot_id) == 0};

    g.from = found->id == p->rec->from.segment ? p->rec->from.offset : 0;
    int rc = oc_files_get(&p->log->files, OC_KIND_SEGMENT, found->id, found->header.salt, &g.handle,
                          NULL);
    if (rc == 0) {
        rc = read_segment(&g, p->segments[i]);
        oc_handle_put(g.handle);
    }
    return rc;
}

static bool to_replay(const struct replay *p, size_t i) {
    const struct oc_found *seg = &p->found->v[i];

    return seg->readable && !seg->is_void && seg->id >= p->rec->from.segment;
}

static int replay_thread(void *arg, unsigned thread) {
    struct replay *p = arg;
    int rc = 0;

    p->lanes[thread].buffer = malloc(OC_WALK_BUFFER_BYTES);
    if (p->lanes[thread].buffer == NULL) {
        rc = OC_E_EXHAUSTED;
    }
    while (rc == 0 && atomic_load(&p->failed) == 0) {
        size_t i = atomic_fetch_add(&p->next, 1);

        if (i >= p->found->count) {
            break;
        }
        if (to_replay(p, i)) {
            rc = replay_one(p, thread, i);
        }
    }
    if (rc != 0) {
        atomic_store(&p->failed, rc);
    }
    free(OC_TAKE(p->lanes[thread].buffer));
    return rc;
}

/* ---- the table, and where appending goes on ---- */

static int make_table(struct replay *p) {
    struct oc_seglog *log = p->log;

    p->segments = calloc(p->found->count + 1, sizeof(*p->segments));
    if (p->segments == NULL) {
        return OC_E_EXHAUSTED;
    }
    for (size_t i = 0; i < p->found->count; i++) {
        struct oc_found *f = &p->found->v[i];
        struct oc_segment *seg = calloc(1, sizeof *seg);

        if (seg == NULL) {
            return OC_E_EXHAUSTED;
        }
        *seg = (struct oc_segment){.id = f->id,
                                   .salt = f->readable ? f->header.salt : 0,
                                   .state = OC_SEGMENT_DONE,
                                   .trimmed = true,
                                   .end = f->size,
                                   .charged = oc_space_round(f->size)};
        if (oc_segments_add(&log->segs, seg) != 0) {
            free(seg);
            return OC_E_EXHAUSTED;
        }
        oc_space_force(&log->space, seg->charged);
        p->segments[i] = seg;
        if (to_replay(p, i)) {
            oc_n_add(&log->n.bytes_total, f->size);
        }
    }
    return 0;
}

/* A process before this one saw a sync fail: then only writing again makes durable. */
static void doubt_unsynced(struct oc_seglog *log, bool same_boot) {
    if (!oc_salvage_wanted(log)) {
        return;
    }
    if (!same_boot) {
        oc_salvage_done(log);
        return;
    }
    log->stalled = true;
    log->values_failed = true;
    for (size_t i = 0; i < log->segs.count; i++) {
        if (log->segs.v[i]->id >= log->durable.segment) {
            log->segs.v[i]->sync_failed = true;
        }
    }
}

static int set_end(struct replay *p, struct oc_recovery *rec) {
    struct oc_seglog *log = p->log;
    struct oc_log_pos mark = oc_log_pos_max(rec->from, rec->through);
    bool same_boot = false;

    log->end = oc_log_pos_max(rec->from, (struct oc_log_pos){0, 0});
    for (size_t i = 0; i < p->found->count; i++) {
        const struct oc_found *f = &p->found->v[i];

        if (to_replay(p, i)) {
            log->end = oc_log_pos_max(log->end, (struct oc_log_pos){f->id, p->segments[i]->end});
            same_boot = memcmp(f->header.boot_id, log->boot_id, sizeof log->boot_id) == 0;
            log->untrimmed += p->segments[i]->state == OC_SEGMENT_SEALED;
        }
    }
    for (unsigned t = 0; t < rec->threads; t++) {
        mark = oc_log_pos_max(mark, p->lanes[t].mark);
        if (p->lanes[t].newest > rec->newest_version) {
            rec->newest_version = p->lanes[t].newest;
        }
    }
    /* What another kernel left was read from the device just now. */
    log->durable = same_boot ? mark : log->end;
    log->marked = mark;
    log->mark_due = log->durable.segment != 0;
    for (size_t i = 0; i < p->found->count; i++) {
        if (same_boot && to_replay(p, i) && p->found->v[i].id >= log->durable.segment &&
            oc_idvec_add(&log->unsynced, p->found->v[i].id) != 0) {
            return OC_E_EXHAUSTED;
        }
    }
    log->seg_dir_dirty = same_boot;
    doubt_unsynced(log, same_boot);
    for (unsigned t = 0; t < rec->threads; t++) {
        for (size_t i = 0; i < p->lanes[t].file_count; i++) {
            if (oc_log_pos_compare(p->lanes[t].files[i].pos, log->durable) >= 0) {
                oc_valfile_join_sync(log, p->lanes[t].files[i].file);
            }
        }
    }
    return 0;
}

int oc_seglog_recover(struct oc_seglog *log, struct oc_recovery *rec,
                      const struct oc_replay *replay, struct oc_error *err) {
    struct oc_foundvec found = {0};
    struct replay *p = calloc(1, sizeof *p);
    uint32_t newest_used = oc_log_pos_max(rec->from, rec->through).segment;

    if (p == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory for the recovery");
    }
    int rc = list_segments(log, &found, err);
    if (rc == 0) {
        rc = oc_recover_cut(log, rec, &found, err);
    }
    if (rc == 0) {
        *p = (struct replay){.log = log, .rec = rec, .cb = replay, .found = &found};
        rc = make_table(p);
        if (rc == 0) {
            rc = oc_run_threads(rec->threads, replay_thread, p);
        }
        if (rc == 0) {
            rc = set_end(p, rec);
        }
        if (rc != 0) {
            (void)oc_error_set(err, rc, "cannot read the segments back: %s", oc_err_name(rc));
        }
    }
    log->next_segment = log->next_segment > newest_used ? log->next_segment : newest_used + 1;
    for (unsigned t = 0; t < OC_THREADS_MAX; t++) {
        free(p->lanes[t].files);
    }
    free(p->segments);
    free(p);
    free(found.v);
    return rc;
}
