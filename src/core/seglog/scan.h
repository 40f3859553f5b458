/* Reading a segment's records window by window, over damage. Pure: the caller reads, this decides
 * where records are. It pulls: hand the same window in until it asks for another. */
#ifndef OC_CORE_SEGLOG_SCAN_H
#define OC_CORE_SEGLOG_SCAN_H

#include "core/seglog/format.h"

enum oc_seg_scan_event {
    OC_SCAN_RECORD,  /* item.offset and item.record; its spans point into the window */
    OC_SCAN_SKIPPED, /* item.offset and item.skipped_bytes hold no record */
    OC_SCAN_NEED,    /* pass a window that starts at item.offset with at least item.need bytes */
    OC_SCAN_END,     /* everything up to end_bytes has been reported */
};

struct oc_seg_scan_item {
    uint64_t offset; /* in the segment file */
    struct oc_record record;
    uint64_t skipped_bytes;
    bool skipped_zeros; /* all of them are zero: never written, or written and lost */
    size_t need;        /* bytes; offset + need never passes end_bytes */
};

struct oc_seg_scan {
    uint64_t salt;
    uint64_t end_bytes;
    uint64_t offset; /* everything before was reported, or lies in the range being skipped */
    uint64_t bad_from;
    bool in_bad;
    bool bad_zeros;
    bool whole;
};

/* Scan [offset, end_bytes) of a segment with this salt. `offset` is a multiple of 8 at or behind
 * the segment header; end_bytes is where the records can end at most: the file's size, or a
 * footer's data_end. With `whole` a record is reported only once all of its value is in the window;
 * without, its value may be cut off at the window's end, and the next window asked for starts
 * behind the record, so that values need not be read at all. */
void oc_seg_scan_init(struct oc_seg_scan *s, uint64_t salt, uint64_t offset, uint64_t end_bytes,
                      bool whole);

/* The next thing in `window`, which is what the file has at window_offset. Where no record head
 * verifies, the search goes on in steps of 8 bytes until one does. A window of more than
 * OC_REC_TOTAL_MAX bytes always makes progress. A file that is shorter than end_bytes cannot
 * satisfy OC_SCAN_NEED; the caller then starts over with the right end. */
enum oc_seg_scan_event oc_seg_scan_next(struct oc_seg_scan *s, uint64_t window_offset,
                                        struct oc_span window, struct oc_seg_scan_item *ret);

#endif
