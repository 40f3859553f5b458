/* What the tests of seglog share: cmocka, a segment built in memory, exact copies for the
 * sanitizer. */
#ifndef OC_TESTS_UNIT_SEGLOG_TEST_H
#define OC_TESTS_UNIT_SEGLOG_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "core/seglog/format.h"

#define SALT UINT64_C(0x8877665544332211)

/* A copy with nothing behind its end, so that the sanitizer sees a read past it. */
static inline uint8_t *exact_copy(struct oc_span s) {
    uint8_t *p = malloc(s.len > 0 ? s.len : 1);

    assert_non_null(p);
    if (s.len > 0) {
        memcpy(p, s.p, s.len);
    }
    return s.len > 0 ? p : p + 1;
}
static inline void exact_free(uint8_t *p, size_t len) {
    free(len > 0 ? p : p - 1);
}

static inline struct oc_record put_record(struct oc_span key, struct oc_span value,
                                          uint64_t version) {
    return (struct oc_record){
        .kind = OC_REC_PUT,
        .key = key,
        .value = value,
        .value_len = value.len,
        .object_len = value.len,
        .version = version,
        .value_crc = oc_crc32c(0, value.p, value.len),
        .total_len = oc_rec_total(key.len, value.len),
    };
}

/* Append a record whose place in the segment is where it lands in `b`; returns that offset. */
static inline uint64_t append_record(struct oc_buf *b, uint64_t salt, const struct oc_record *r) {
    uint64_t offset = b->len;
    size_t value_len = (size_t)oc_rec_value_len(r->kind, r->object_len);
    size_t total = (size_t)oc_rec_total(r->key.len, value_len);

    assert_int_equal(oc_buf_reserve(b, total), 0);
    memset(b->data + b->len, 0, total);
    oc_rec_encode(b->data + b->len, salt, offset, r);
    if (value_len > 0) {
        memcpy(b->data + b->len + OC_REC_HEADER_BYTES + r->key.len, r->value.p, value_len);
    }
    b->len += total;
    return offset;
}

/* A fresh segment with its header; the first record's offset is its length. */
static inline void segment_begin(struct oc_buf *b, uint64_t salt) {
    struct oc_seg_header h = {.segment = 7, .salt = salt};

    oc_buf_init(b, 64 << 20);
    oc_seg_header_encode(&h);
    assert_int_equal(oc_buf_append(b, &h, sizeof h), 0);
}

#endif
