/* The cut rule. One candidate is kept: the first fault behind what is durable. A later segment that
 * settles everything before itself takes the candidate back, so that only the last run of segments
 * of one lost kernel can end in a cut. */
#include "core/seglog/cut.h"

#include <string.h>

#include "base/check.h"
#include "base/plant.h"

void oc_cut_init(struct oc_cut *c, const uint8_t running_boot_id[16]) {
    memset(c, 0, sizeof *c);
    memcpy(c->running, running_boot_id, sizeof c->running);
}

void oc_cut_durable(struct oc_cut *c, struct oc_log_pos before) {
    OC_CHECK(!c->any);
    c->durable = oc_log_pos_max(c->durable, before);
}

/* Nothing good is in [from, to), which was written under the segment's kernel. */
static void lost(struct oc_cut *c, struct oc_log_pos from, struct oc_log_pos to) {
    bool power_lost = !c->boot_known || memcmp(c->boot_id, c->running, sizeof c->running) != 0;

    if (c->has_cut || !power_lost || oc_log_pos_compare(to, c->durable) <= 0) {
        return;
    }
    if (OC_PLANT(SKIP_HOLE)) {
        return;
    }
    c->has_cut = true;
    c->cut = oc_log_pos_max(from, c->durable);
}

/* Does this segment's existence prove that everything before it is settled? Another kernel than the
 * last one says so, unless its header tells of segments in between that are missing: those may be
 * that same kernel's, lost with the power. */
static bool settles(const struct oc_cut *c, const struct oc_seg_header *h) {
    if (h == NULL) {
        return false;
    }
    bool other_kernel = c->boot_known && memcmp(h->boot_id, c->boot_id, sizeof c->boot_id) != 0;
    return (h->flags & OC_SEG_SETTLED) != 0 || (other_kernel && h->prev_segment <= c->boot_segment);
}

/* Where the log must have been when this segment took over. Its header says so; without one all
 * that is sure is that it lies in front of the segment. */
static struct oc_log_pos taken_over_at(uint32_t segment, const struct oc_seg_header *h) {
    if (h != NULL && h->prev_segment != 0) {
        return (struct oc_log_pos){h->prev_segment, (uint64_t)h->prev_end * 8};
    }
    return (struct oc_log_pos){segment, 0};
}

/* Does this segment go on where the one before ended? Without a header that says where that was,
 * ids without a gap and a complete segment before are the proof. */
static bool follows(const struct oc_cut *c, uint32_t segment, const struct oc_seg_header *h) {
    if (h != NULL && h->prev_segment != 0) {
        return oc_log_pos_compare(taken_over_at(segment, h), c->any ? c->end : c->durable) <= 0;
    }
    if (c->any) {
        return c->complete && segment - c->segment == 1;
    }
    return c->durable.segment == 0 || segment <= c->durable.segment ||
           segment - c->durable.segment == 1;
}

void oc_cut_segment(struct oc_cut *c, uint32_t segment, const struct oc_seg_header *h) {
    struct oc_log_pos start = {segment, 0};
    bool first = !c->any;
    bool gap = !follows(c, segment, h);

    OC_CHECK(!c->open && (first || segment > c->segment));
    if (settles(c, h)) {
        c->durable = oc_log_pos_max(c->durable, start);
        c->has_cut = false;
        gap = false;
    } else if (!first && gap) {
        lost(c, c->end, taken_over_at(segment, h));
    }
    if (h != NULL) {
        c->boot_known = true;
        memcpy(c->boot_id, h->boot_id, sizeof c->boot_id);
        c->boot_segment = segment;
    }
    c->any = true;
    c->open = true;
    c->complete = false;
    c->segment = segment;
    c->end = start;
    if (first && gap) {
        lost(c, c->durable, taken_over_at(segment, h)); /* what lay between is missing */
    }
    if (h == NULL) {
        lost(c, start, (struct oc_log_pos){segment, OC_SEG_HEADER_BYTES});
    }
}

void oc_cut_fault(struct oc_cut *c, uint64_t offset, uint64_t end_offset) {
    OC_CHECK(c->open && offset < end_offset);
    lost(c, (struct oc_log_pos){c->segment, offset}, (struct oc_log_pos){c->segment, end_offset});
}

void oc_cut_segment_end(struct oc_cut *c, uint64_t end_offset, bool complete) {
    OC_CHECK(c->open);
    c->open = false;
    c->complete = complete;
    c->end = (struct oc_log_pos){c->segment, end_offset};
}

bool oc_cut_done(const struct oc_cut *c, struct oc_log_pos *ret) {
    OC_CHECK(!c->open);
    if (c->has_cut) {
        *ret = c->cut;
    }
    return c->has_cut;
}
