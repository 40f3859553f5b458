/* The resync scan. A position that decodes is a record, for its checksum is salted; anything else
 * is skipped in steps of 8, first over whole runs of zeros, then by the two bytes that hold kind
 * and zero, so that the checksum is computed at about one in 2^14 positions of random bytes. */
#include "core/seglog/scan.h"

#include "base/check.h"

#define STEP 8u

void oc_seg_scan_init(struct oc_seg_scan *s, uint64_t salt, uint64_t offset, uint64_t end_bytes,
                      bool whole) {
    OC_CHECK(offset % STEP == 0);
    *s = (struct oc_seg_scan){.salt = salt,
                              .end_bytes = end_bytes > offset
                                               ? end_bytes
                                               : offset, /* not even a header: nothing to scan */
                              .offset = offset,
                              .whole = whole};
}

static void bad_step(struct oc_seg_scan *s, uint64_t bytes, bool zeros) {
    if (!s->in_bad) {
        s->in_bad = true;
        s->bad_zeros = true;
        s->bad_from = s->offset;
    }
    s->bad_zeros = s->bad_zeros && zeros;
    s->offset += bytes;
}

static enum oc_seg_scan_event skipped(struct oc_seg_scan *s, struct oc_seg_scan_item *ret) {
    *ret = (struct oc_seg_scan_item){.offset = s->bad_from,
                                     .skipped_bytes = s->offset - s->bad_from,
                                     .skipped_zeros = s->bad_zeros};
    s->in_bad = false;
    return OC_SCAN_SKIPPED;
}

static enum oc_seg_scan_event need(const struct oc_seg_scan *s, size_t bytes,
                                   struct oc_seg_scan_item *ret) {
    uint64_t left = s->end_bytes - s->offset;

    *ret =
        (struct oc_seg_scan_item){.offset = s->offset, .need = bytes < left ? bytes : (size_t)left};
    return OC_SCAN_NEED;
}

static bool all_zero(struct oc_span bytes) {
    for (size_t i = 0; i < bytes.len; i++) {
        if (bytes.p[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Skip what cannot be the start of a record, as far as `left` (the window from s->offset on) shows
 * it: afterwards s->offset is at a candidate, or too few bytes are left to tell. */
static void skip_hopeless(struct oc_seg_scan *s, struct oc_span left) {
    size_t at = 0;
    bool zeros = true;

    while (left.len - at >= OC_REC_HEADER_BYTES) {
        uint16_t kind_zero = oc_load16(left.p + at + offsetof(struct oc_rec_header, kind));

        if (kind_zero >= OC_REC_PUT && kind_zero <= OC_REC_MARK) {
            break;
        }
        zeros = zeros && oc_load64(left.p + at) == 0;
        at += STEP;
    }
    if (at > 0) {
        bad_step(s, at, zeros);
    }
}

/* No record fits in what is left of the segment. */
static enum oc_seg_scan_event last_bytes(struct oc_seg_scan *s, struct oc_span left,
                                         struct oc_seg_scan_item *ret) {
    uint64_t rest = s->end_bytes - s->offset;

    if (rest > 0) {
        if (left.len < rest) {
            return need(s, (size_t)rest, ret);
        }
        bad_step(s, rest, all_zero(oc_span(left.p, (size_t)rest)));
    }
    if (s->in_bad) {
        return skipped(s, ret);
    }
    *ret = (struct oc_seg_scan_item){.offset = s->end_bytes};
    return OC_SCAN_END;
}

enum oc_seg_scan_event oc_seg_scan_next(struct oc_seg_scan *s, uint64_t window_offset,
                                        struct oc_span window, struct oc_seg_scan_item *ret) {
    for (;;) {
        struct oc_span left = OC_SPAN_EMPTY;
        struct oc_record r;
        size_t need_bytes = OC_REC_HEADER_BYTES;

        if (s->offset >= window_offset && s->offset - window_offset < window.len) {
            size_t skip = (size_t)(s->offset - window_offset);

            left = oc_span(window.p + skip, window.len - skip);
            if (left.len > s->end_bytes - s->offset) {
                left.len = (size_t)(s->end_bytes - s->offset);
            }
        }
        if (s->end_bytes - s->offset < OC_REC_HEADER_BYTES) {
            return last_bytes(s, left, ret);
        }
        int rc = oc_rec_decode(left, s->salt, s->offset, s->end_bytes, &r, &need_bytes);

        if (rc == OC_AGAIN) {
            return need(s, need_bytes, ret);
        }
        if (rc == OC_OK) {
            if (s->in_bad) {
                return skipped(s, ret);
            }
            if (s->whole && r.value.len < r.value_len) {
                return need(s, OC_REC_HEADER_BYTES + r.key.len + (size_t)r.value_len, ret);
            }
            *ret = (struct oc_seg_scan_item){.offset = s->offset, .record = r};
            s->offset += r.total_len;
            return OC_SCAN_RECORD;
        }
        bad_step(s, STEP, oc_load64(left.p) == 0);
        left.p += STEP;
        left.len -= STEP;
        skip_hopeless(s, left);
    }
}
