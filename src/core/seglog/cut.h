/* Where to cut the log after a power loss, as a pure machine over the facts that a recovery finds.
 *
 * The promise: after a power loss what survives is a prefix of everything acknowledged. Up to some
 * position the log is known to be durable, or settled (what is missing there was lost and reported
 * long ago); in front of it damage is a flipped bit and is skipped. Behind it the first thing that
 * is missing ends the log: the cut. Segments written under the running kernel never lost anything
 * to a power cut.
 *
 * Usage: init; durable() for every position known to be durable, in any order, from everywhere (the
 * checkpoint's from and through, every valid MARK, those behind damage included, a footer's mark);
 * then for each segment in ascending order of id segment(), fault()s in ascending order,
 * segment_end(); then done(). Segments and faults in front of oc_cut_settled() may be left out.
 *
 * Why the order of kernels settles the log: under another boot id a segment was only ever created
 * once that kernel's recovery had read everything before from the disk and made its cut durable. */
#ifndef OC_CORE_SEGLOG_CUT_H
#define OC_CORE_SEGLOG_CUT_H

#include "core/seglog/format.h"

struct oc_cut {
    uint8_t running[16]; /* the boot id of now */
    struct oc_log_pos durable;
    bool has_cut;
    struct oc_log_pos cut;
    /* the segment being fed, or the last one that was */
    bool any;
    bool open;
    bool complete;
    uint32_t segment;
    bool boot_known;
    uint8_t boot_id[16];   /* the last that was known */
    uint32_t boot_segment; /* whose */
    struct oc_log_pos end;
};

void oc_cut_init(struct oc_cut *c, const uint8_t running_boot_id[16]);
/* Everything in front of `before` is durable. Only in front of the first segment(). */
void oc_cut_durable(struct oc_cut *c, struct oc_log_pos before);
/* The segment's header, as far as it decoded; NULL when it did not: then nothing in the segment can
 * be read, and its end is OC_SEG_HEADER_BYTES, not complete. */
void oc_cut_segment(struct oc_cut *c, uint32_t segment, const struct oc_seg_header *h);
/* Of the segment being fed, [offset, end) is no good: no record there, or a record whose value
 * fails, or whose value file is missing, short or fails. Ranges inside a sealed segment's footer
 * are no fault. */
void oc_cut_fault(struct oc_cut *c, uint64_t offset, uint64_t end_offset);
/* The last good record ends at end_offset. `complete`: a valid footer says that no record is
 * missing behind it. Whether one is missing is told by the next segment's header (prev_segment,
 * prev_end); only where that says nothing does `complete` count. */
void oc_cut_segment_end(struct oc_cut *c, uint64_t end_offset, bool complete);
/* True when the log must be cut: everything at and behind *ret goes. A segment cut at or in front
 * of its first record goes as a whole. */
bool oc_cut_done(const struct oc_cut *c, struct oc_log_pos *ret);

/* What is known so far to be durable or settled. */
static inline struct oc_log_pos oc_cut_settled(const struct oc_cut *c) {
    return c->durable;
}

#endif
