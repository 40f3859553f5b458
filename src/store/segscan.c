/* Reading a segment from one end to the other, window by window, over damage and over what the
 * device does not give back. */
#include <stdlib.h>

#include "base/check.h"
#include "core/seglog/scan.h"
#include "store/seglog.h"

#define IO_SKIP_BYTES   4096u
#define IO_FAILURES_MAX 64u /* in one segment; the rest of it then counts as unreadable */
#define IO_TRIES        3
#define FOOTER_TAIL     65536u
#define FOOTER_TRIES    4

struct walker {
    struct oc_seglog *log;
    struct oc_handle *h;
    uint64_t end;
    bool whole;
    uint8_t *buffer;
    uint64_t window_at;
    size_t window_len;
    unsigned io_failures;
    struct oc_seg_scan scan;
    const struct oc_walk *cb;
};

static void bad(struct walker *w, uint64_t offset, uint64_t bytes) {
    if (bytes > 0 && w->cb->bad != NULL) {
        w->cb->bad(w->cb->arg, offset, bytes);
    }
}

/* The window from `offset` on. What cannot be read is skipped by starting the scan behind it. */
static void read_window(struct walker *w, uint64_t offset) {
    uint64_t left = w->end - offset;
    size_t want = left < OC_WALK_BUFFER_BYTES ? (size_t)left : OC_WALK_BUFFER_BYTES;
    int64_t n = -1;

    for (int i = 0; i < IO_TRIES && n < 0; i++) {
        n = w->log->disk->pread(w->h->file, w->buffer, want, offset, false, NULL);
    }
    if (n < 0) {
        uint64_t skip =
            ++w->io_failures < IO_FAILURES_MAX && left > IO_SKIP_BYTES ? IO_SKIP_BYTES : left;

        atomic_store(&w->log->suspect, true);
        bad(w, offset, skip);
        w->window_at = offset;
        w->window_len = 0;
        oc_seg_scan_init(&w->scan, w->h->salt, offset + skip, w->end, w->whole);
        return;
    }
    if ((size_t)n < want) {
        /* The file is shorter than it said: it ends here. */
        bad(w, offset + (uint64_t)n, left - (uint64_t)n);
        w->end = offset + (uint64_t)n;
        oc_seg_scan_init(&w->scan, w->h->salt, offset, w->end, w->whole);
    }
    w->window_at = offset;
    w->window_len = (size_t)n;
    oc_n_add(&w->log->n.bytes_done, (uint64_t)n);
}

/* 1: go on, 0: done, negative or what a callback said otherwise. */
static int step(struct walker *w) {
    struct oc_seg_scan_item item;
    struct oc_span window = oc_span(w->buffer, w->window_len);

    switch (oc_seg_scan_next(&w->scan, w->window_at, window, &item)) {
    case OC_SCAN_RECORD:
        if (item.record.kind != OC_REC_PUT && item.record.value.len < item.record.value_len) {
            /* The little that FILE and MARK carry is always wanted: see it in a window of its own.
             */
            oc_seg_scan_init(&w->scan, w->h->salt, item.offset, w->end, w->whole);
            w->window_len = 0;
            return OC_AGAIN;
        }
        {
            int rc = w->cb->record(w->cb->arg, item.offset, &item.record);

            return rc == 0 ? OC_AGAIN : rc;
        }
    case OC_SCAN_SKIPPED:
        bad(w, item.offset, item.skipped_bytes);
        return OC_AGAIN;
    case OC_SCAN_NEED:
        read_window(w, item.offset);
        return OC_AGAIN;
    case OC_SCAN_END:
        break;
    }
    return 0;
}

int oc_segment_walk(struct oc_seglog *log, struct oc_handle *h, uint64_t offset, uint64_t end,
                    bool whole, void *buffer, const struct oc_walk *walk) {
    struct walker w = {
        .log = log, .h = h, .end = end, .whole = whole, .buffer = buffer, .cb = walk};
    int rc = OC_AGAIN;

    if (offset >= end) {
        return 0;
    }
    oc_seg_scan_init(&w.scan, h->salt, offset, end, whole);
    while (rc == OC_AGAIN) {
        rc = step(&w);
    }
    return rc;
}

int oc_segment_footer(struct oc_seglog *log, struct oc_handle *h, uint64_t file_bytes,
                      uint8_t **ret_bytes, struct oc_footer_info *ret_info) {
    size_t need = FOOTER_TAIL;
    int rc = OC_AGAIN;

    for (int i = 0; i < FOOTER_TRIES && rc == OC_AGAIN; i++) {
        size_t len = need < file_bytes ? need : (size_t)file_bytes;
        uint8_t *bytes = malloc(len + 1);

        if (bytes == NULL) {
            return OC_E_EXHAUSTED;
        }
        int64_t n = log->disk->pread(h->file, bytes, len, file_bytes - len, false, NULL);
        if (n != (int64_t)len) {
            free(bytes);
            return OC_E_DATA_LOSS;
        }
        rc = oc_footer_decode(oc_span(bytes, len), file_bytes, h->salt, (uint32_t)h->id, ret_info,
                              &need);
        if (rc == 0) {
            *ret_bytes = bytes;
            return 0;
        }
        free(bytes);
        if (rc == OC_AGAIN && (need <= len || need > file_bytes)) {
            return OC_E_DATA_LOSS;
        }
    }
    return OC_E_DATA_LOSS;
}
