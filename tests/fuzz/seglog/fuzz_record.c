/* Records and the scan: whatever a segment holds, the scan accounts for every byte exactly once,
 * reads only what it was given, and what it takes for a record encodes to the same bytes.
 *
 * Input: a byte of modes (1: put right checksums on plausible heads; 2: with values), a byte for
 * the windows' size, then the segment behind its header. */
#include "seglog_fuzz.h"

#include "core/seglog/scan.h"

static uint32_t head_crc(const uint8_t *head, size_t key_len, uint64_t offset) {
    uint64_t place[2] = {FUZZ_SALT, offset};
    uint32_t crc = oc_crc32c(0, place, sizeof place);

    return oc_crc32c(crc, head + 4, OC_REC_HEADER_BYTES - 4 + key_len);
}

/* Walk the segment, giving every plausible head its checksum. */
static void sign_heads(uint8_t *segment, size_t len) {
    size_t at = 0;

    while (len - at >= OC_REC_HEADER_BYTES) {
        struct oc_rec_header h;
        struct oc_record r;
        size_t need = 0;

        memcpy(&h, segment + at, sizeof h);
        if (len - at - OC_REC_HEADER_BYTES >= h.key_len) {
            uint32_t before = h.head_crc;

            oc_store32(segment + at, head_crc(segment + at, h.key_len, OC_SEG_HEADER_BYTES + at));
            if (oc_rec_decode(oc_span(segment + at, len - at), FUZZ_SALT, OC_SEG_HEADER_BYTES + at,
                              OC_SEG_HEADER_BYTES + len, &r, &need) == OC_OK) {
                at += (size_t)r.total_len;
                continue;
            }
            oc_store32(segment + at, before);
        }
        at += 8;
    }
}

static void check_record(const struct oc_seg_scan_item *item, const uint8_t *segment, size_t len) {
    const struct oc_record *r = &item->record;
    size_t at = (size_t)(item->offset - OC_SEG_HEADER_BYTES);
    size_t head_len = OC_REC_HEADER_BYTES + r->key.len;
    struct oc_file_ref ref;
    struct oc_mark mark;

    OC_CHECK(r->value_len == oc_rec_value_len(r->kind, r->object_len));
    OC_CHECK(r->total_len == oc_rec_total(r->key.len, r->value_len));
    OC_CHECK(r->total_len <= len - at && r->value.len <= r->value_len);
    OC_CHECK(memcmp(r->value.p, segment + at + head_len, r->value.len) == 0);
    if (oc_rec_file_ref(r, &ref)) {
        OC_CHECK(r->kind == OC_REC_FILE && ref.len == r->object_len);
    }
    OC_CHECK(!oc_rec_mark(r, &mark) || r->kind == OC_REC_MARK);
    if (r->kind == OC_REC_PUT || (oc_rec_value_ok(r) && r->value.len == r->value_len)) {
        uint8_t *again = malloc(head_len);

        OC_CHECK(again != NULL);
        oc_rec_encode(again, FUZZ_SALT, item->offset, r);
        OC_CHECK(memcmp(again, segment + at, head_len) == 0);
        free(again);
    }
}

static void scan(const uint8_t *segment, size_t len, size_t window_bytes, bool whole) {
    uint64_t end = OC_SEG_HEADER_BYTES + len, reported = OC_SEG_HEADER_BYTES, window_offset = 0;
    struct oc_seg_scan s;
    struct oc_seg_scan_item item;
    uint8_t *window = NULL;
    size_t window_len = 0;
    enum oc_seg_scan_event event;

    oc_seg_scan_init(&s, FUZZ_SALT, OC_SEG_HEADER_BYTES, end, whole);
    while ((event = oc_seg_scan_next(&s, window_offset, oc_span(window, window_len), &item)) !=
           OC_SCAN_END) {
        if (event == OC_SCAN_NEED) {
            size_t at = (size_t)(item.offset - OC_SEG_HEADER_BYTES);
            size_t take = item.need > window_bytes ? item.need : window_bytes;

            OC_CHECK(item.need > 0 && item.need <= OC_REC_TOTAL_MAX && item.need <= len - at);
            /* What is asked for is not at hand already: the scan makes progress. */
            OC_CHECK(item.offset < window_offset ||
                     item.offset + item.need > window_offset + window_len);
            free(window);
            window_len = take < len - at ? take : len - at;
            window = fuzz_exact(segment + at, window_len);
            window_offset = item.offset;
            continue;
        }
        OC_CHECK(item.offset == reported);
        if (event == OC_SCAN_RECORD) {
            check_record(&item, segment, len);
            OC_CHECK(!whole || item.record.value.len == item.record.value_len);
            reported += item.record.total_len;
        } else {
            OC_CHECK(item.skipped_bytes > 0);
            reported += item.skipped_bytes;
        }
    }
    OC_CHECK(reported == end);
    free(window);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct oc_seg_header h;

    if (size >= OC_SEG_HEADER_BYTES &&
        oc_seg_header_decode(oc_span(data, size), &h, NULL) == OC_OK) {
        oc_seg_header_encode(&h);
        OC_CHECK(memcmp(&h, data, sizeof h) == 0);
    }
    if (size < 2) {
        return 0;
    }
    uint8_t *segment = fuzz_exact(data + 2, size - 2);

    if ((data[0] & 1) != 0) {
        sign_heads(segment, size - 2);
    }
    scan(segment, size - 2, (size_t)data[1] * 8, (data[0] & 2) != 0);
    free(segment);
    return 0;
}
