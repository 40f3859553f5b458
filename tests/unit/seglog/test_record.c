/* Drives records, segment headers and chunks: exact bytes, every flipped bit, every truncation. */
#include "seglog_test.h"

/* Printed by vectors.py. */
static const uint8_t put_vector[] = {
    0xa3, 0x7b, 0x68, 0xa0, 0x20, 0x75, 0x83, 0x8e, 0x08, 0x07, 0x06, 0x05, 0x04, 0x03,
    0x02, 0x01, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x14, 0x13, 0x12, 0x11,
    0x03, 0x00, 0x01, 0x00, 0x6b, 0x65, 0x79, 0x76, 0x61, 0x6c, 0x75, 0x65,
};
static const uint8_t mark_vector[] = {
    0xf5, 0x71, 0x1a, 0x8f, 0x17, 0xda, 0xb4, 0x64, 0x09, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
    0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
};
static const uint8_t header_vector[] = {
    0x4f, 0x43, 0x53, 0x45, 0x47, 0x31, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00,
    0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07,
    0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x00, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x3c, 0x12, 0x22,
};
static const uint8_t chunk_vector[] = {
    0xae, 0x63, 0x91, 0xd9, 0x05, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
};

static struct oc_record vector_put(void) {
    struct oc_record r =
        put_record(OC_SPAN_LIT("key"), OC_SPAN_LIT("value"), UINT64_C(0x0102030405060708));

    r.expires_at_s = 0x11121314;
    return r;
}

static void test_exact_bytes_of_a_put(void **state) {
    struct oc_record r = vector_put();
    uint8_t bytes[40] = {0};

    (void)state;
    oc_rec_encode(bytes, SALT, 64, &r);
    memcpy(bytes + 35, "value", 5);
    assert_memory_equal(bytes, put_vector, sizeof put_vector);
}

static void test_exact_bytes_of_a_mark(void **state) {
    struct oc_mark mark = {.segment = 7, .offset = 0x1000};
    struct oc_record r = {.kind = OC_REC_MARK,
                          .value = oc_span(&mark, sizeof mark),
                          .version = UINT64_C(0x0102030405060709)};
    struct oc_mark got;
    uint8_t bytes[48] = {0};
    size_t need = 0;

    (void)state;
    oc_rec_encode(bytes, SALT, 112, &r);
    memcpy(bytes + OC_REC_HEADER_BYTES, &mark, sizeof mark);
    assert_memory_equal(bytes, mark_vector, sizeof mark_vector);
    assert_int_equal(oc_rec_decode(oc_span(bytes, 48), SALT, 112, 160, &r, &need), 0);
    assert_true(oc_rec_mark(&r, &got));
    assert_int_equal(got.segment, 7);
    assert_int_equal(got.offset, 0x1000);
}

static void test_exact_bytes_of_a_segment_header(void **state) {
    struct oc_seg_header h = {
        .segment = 7, .salt = SALT, .version_base = UINT64_C(0x0102030405060700)};
    struct oc_seg_header got;

    (void)state;
    for (unsigned i = 0; i < 16; i++) {
        h.boot_id[i] = (uint8_t)i;
    }
    oc_seg_header_encode(&h);
    assert_memory_equal(&h, header_vector, sizeof header_vector);
    assert_int_equal(oc_seg_header_decode(oc_span(header_vector, 64), &got, NULL), 0);
    assert_memory_equal(&h, &got, sizeof h);
}

static void test_exact_bytes_of_a_chunk_header(void **state) {
    struct oc_chunk_header h;

    (void)state;
    oc_chunk_encode(&h, 0x0a0b, 3, 5, oc_crc32c(0, "chunk", 5));
    assert_memory_equal(&h, chunk_vector, sizeof chunk_vector);
    assert_true(oc_chunk_ok(&h, 0x0a0b, 3, 5, oc_crc32c(0, "chunk", 5)));
    assert_false(oc_chunk_ok(&h, 0x0a0c, 3, 5, oc_crc32c(0, "chunk", 5)));
    assert_false(oc_chunk_ok(&h, 0x0a0b, 4, 5, oc_crc32c(0, "chunk", 5)));
    assert_false(oc_chunk_ok(&h, 0x0a0b, 3, 6, oc_crc32c(0, "chunk", 5)));
    assert_false(oc_chunk_ok(&h, 0x0a0b, 3, 5, oc_crc32c(0, "chunK", 5)));
}

static void test_every_flipped_bit_of_a_chunk_header(void **state) {
    uint32_t crc = oc_crc32c(0, "chunk", 5);

    (void)state;
    for (unsigned bit = 0; bit < 8 * sizeof chunk_vector; bit++) {
        uint8_t bytes[sizeof chunk_vector];
        struct oc_chunk_header h;

        memcpy(bytes, chunk_vector, sizeof bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        memcpy(&h, bytes, sizeof h);
        assert_false(oc_chunk_ok(&h, 0x0a0b, 3, 5, crc));
    }
}

static void test_every_flipped_bit_of_a_put(void **state) {
    (void)state;
    for (unsigned bit = 0; bit < 8 * sizeof put_vector; bit++) {
        uint8_t bytes[sizeof put_vector];
        struct oc_record r;
        size_t need = 0;

        memcpy(bytes, put_vector, sizeof bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int rc = oc_rec_decode(oc_span(bytes, sizeof bytes), SALT, 64, 104, &r, &need);

        if (bit / 8 < 35) {
            assert_int_equal(rc, OC_E_DATA_LOSS);
        } else {
            assert_int_equal(rc, 0); /* the head is intact: key and version are still known */
            assert_false(oc_rec_value_ok(&r));
        }
    }
}

static void test_every_flipped_bit_of_a_segment_header(void **state) {
    (void)state;
    for (unsigned bit = 0; bit < 8 * sizeof header_vector; bit++) {
        uint8_t bytes[sizeof header_vector];
        struct oc_seg_header h;

        memcpy(bytes, header_vector, sizeof bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(oc_seg_header_decode(oc_span(bytes, 64), &h, NULL), OC_E_DATA_LOSS);
    }
}

static void test_segment_header_of_a_newer_format_is_named(void **state) {
    struct oc_seg_header h = {.segment = 7};
    struct oc_error err = {0};

    (void)state;
    oc_seg_header_encode(&h);
    h.format = 2;
    h.crc = oc_crc32c(0, &h, offsetof(struct oc_seg_header, crc));
    assert_int_equal(oc_seg_header_decode(oc_span(&h, sizeof h), &h, &err), OC_E_UNIMPLEMENTED);
    assert_non_null(strstr(err.msg, "format 2"));
    for (size_t len = 0; len < sizeof header_vector; len++) {
        uint8_t *p = exact_copy(oc_span(header_vector, len));

        assert_int_equal(oc_seg_header_decode(oc_span(p, len), &h, &err), OC_E_DATA_LOSS);
        exact_free(p, len);
    }
}

static void test_truncation_asks_for_the_head_then_gives_what_is_there(void **state) {
    (void)state;
    for (size_t len = 0; len <= sizeof put_vector; len++) {
        uint8_t *p = exact_copy(oc_span(put_vector, len));
        struct oc_record r;
        size_t need = 0;
        int rc = oc_rec_decode(oc_span(p, len), SALT, 64, 104, &r, &need);

        if (len < 35) {
            assert_int_equal(rc, OC_AGAIN);
            assert_int_equal(need, len < 32 ? 32 : 35);
        } else {
            assert_int_equal(rc, 0);
            assert_int_equal(r.value.len, len - 35);
            assert_int_equal(r.value_len, 5);
            assert_int_equal(oc_rec_value_ok(&r), len == 40);
        }
        exact_free(p, len);
    }
}

static void test_a_record_must_fit_in_the_segment(void **state) {
    struct oc_record r;
    size_t need = 0;

    (void)state;
    for (uint64_t bytes = 0; bytes <= 110; bytes++) {
        int rc = oc_rec_decode(oc_span(put_vector, 40), SALT, 64, bytes, &r, &need);

        assert_int_equal(rc, bytes >= 104 ? 0 : OC_E_DATA_LOSS);
    }
    /* Nor is more asked for than the segment has: 31 bytes are no header. */
    assert_int_equal(oc_rec_decode(oc_span(put_vector, 8), SALT, 64, 95, &r, &need),
                     OC_E_DATA_LOSS);
    assert_int_equal(oc_rec_decode(oc_span(put_vector, 40), SALT, UINT64_MAX - 7, 104, &r, &need),
                     OC_E_DATA_LOSS);
    assert_int_equal(
        oc_rec_decode(oc_span(put_vector, 40), SALT, UINT64_MAX - 7, UINT64_MAX, &r, &need),
        OC_E_DATA_LOSS);
}

static void test_stale_records_are_rejected(void **state) {
    struct oc_record r;
    size_t need = 0;

    (void)state;
    for (uint64_t offset = 0; offset < (1 << 20); offset += 8) {
        int rc = oc_rec_decode(oc_span(put_vector, 40), SALT, offset, 1 << 21, &r, &need);

        assert_int_equal(rc, offset == 64 ? 0 : OC_E_DATA_LOSS);
    }
    for (unsigned bit = 0; bit < 64; bit++) {
        assert_int_equal(
            oc_rec_decode(oc_span(put_vector, 40), SALT ^ UINT64_C(1) << bit, 64, 104, &r, &need),
            OC_E_DATA_LOSS);
    }
}

static void test_zeros_are_no_record(void **state) {
    uint8_t zeros[512] = {0};
    struct oc_record r;
    size_t need = 0;

    (void)state;
    for (uint64_t offset = 0; offset < 4096; offset += 8) {
        assert_int_equal(oc_rec_decode(oc_span(zeros, 512), 0, offset, 8192, &r, &need),
                         OC_E_DATA_LOSS);
    }
}

/* Bytes of a head with valid checksum but any fields: what a fault of ours could have written. */
static int decode_fields(uint8_t kind, uint8_t zero, uint16_t key_len, uint64_t object_len,
                         uint32_t expires_at_s) {
    static uint8_t bytes[OC_REC_HEADER_BYTES + OC_KEY_MAX];
    struct oc_rec_header h = {.version = 1,
                              .object_len = object_len,
                              .expires_at_s = expires_at_s,
                              .key_len = key_len,
                              .kind = kind,
                              .zero = zero};
    uint64_t place[2] = {SALT, 64};
    struct oc_record r;
    size_t need = 0;

    memcpy(bytes, &h, sizeof h);
    uint32_t crc = oc_crc32c(0, place, sizeof place);
    crc = oc_crc32c(crc, bytes + 4, OC_REC_HEADER_BYTES - 4 + (size_t)key_len);
    oc_store32(bytes, crc);
    return oc_rec_decode(oc_span(bytes, sizeof bytes), SALT, 64, 1 << 30, &r, &need);
}

static void test_field_rules(void **state) {
    static const struct {
        uint8_t kind, zero;
        uint16_t key_len;
        uint64_t object_len;
        uint32_t expires_at_s;
        int want;
    } cases[] = {
        {OC_REC_PUT, 0, 1, 0, 0, 0},
        {OC_REC_PUT, 0, OC_KEY_MAX, OC_INLINE_MAX, 9, 0},
        {OC_REC_PUT, 1, 1, 0, 0, OC_E_DATA_LOSS},
        {OC_REC_PUT, 0, 0, 0, 0, OC_E_DATA_LOSS},
        {OC_REC_PUT, 0, 1, OC_INLINE_MAX + 1, 0, OC_E_DATA_LOSS},
        {OC_REC_PUT, 0, 1, UINT64_MAX, 0, OC_E_DATA_LOSS},
        {OC_REC_FILE, 0, 1, 0, 9, 0},
        {OC_REC_FILE, 0, 1, OC_FILE_LEN_MAX, 9, 0},
        {OC_REC_FILE, 0, 1, OC_FILE_LEN_MAX + 1, 9, OC_E_DATA_LOSS},
        {OC_REC_FILE, 0, 0, 5, 0, OC_E_DATA_LOSS},
        {OC_REC_TOMBSTONE, 0, 1, 0, 0, 0},
        {OC_REC_TOMBSTONE, 0, 1, 1, 0, OC_E_DATA_LOSS},
        {OC_REC_TOMBSTONE, 0, 1, 0, 1, OC_E_DATA_LOSS},
        {OC_REC_TOMBSTONE, 0, 0, 0, 0, OC_E_DATA_LOSS},
        {OC_REC_MARK, 0, 0, 0, 0, 0},
        {OC_REC_MARK, 0, 1, 0, 0, OC_E_DATA_LOSS},
        {OC_REC_MARK, 0, 0, 16, 0, OC_E_DATA_LOSS},
        {OC_REC_MARK, 0, 0, 0, 1, OC_E_DATA_LOSS},
        {0, 0, 1, 0, 0, OC_E_DATA_LOSS},
        {5, 0, 1, 0, 0, OC_E_DATA_LOSS},
        {255, 0, 1, 0, 0, OC_E_DATA_LOSS},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int rc = decode_fields(cases[i].kind, cases[i].zero, cases[i].key_len, cases[i].object_len,
                               cases[i].expires_at_s);

        if (rc != cases[i].want) {
            fail_msg("case %zu: %d, not %d", i, rc, cases[i].want);
        }
    }
}

static void test_file_reference_must_agree_with_its_record(void **state) {
    (void)state;
    for (int fault = 0; fault < 4; fault++) {
        struct oc_file_ref ref = {
            .file = 3, .len = 1000000, .chunk_bytes = OC_CHUNK_BYTES, .chunks_crc = 9};
        struct oc_file_ref got;
        struct oc_record r = {.kind = OC_REC_FILE,
                              .key = OC_SPAN_LIT("k"),
                              .value = oc_span(&ref, sizeof ref),
                              .object_len = 1000000,
                              .version = 1};
        struct oc_buf b;
        size_t need = 0;

        ref.len += fault == 1;
        ref.chunk_bytes += fault == 2;
        segment_begin(&b, SALT);
        append_record(&b, SALT, &r);
        b.data[64 + 32 + 1 + 20] ^= fault == 3;
        assert_int_equal(
            oc_rec_decode(oc_span(b.data + 64, b.len - 64), SALT, 64, b.len, &r, &need), 0);
        assert_int_equal(r.object_len, 1000000);
        assert_int_equal(r.value_len, sizeof ref);
        assert_int_equal(oc_rec_value_ok(&r), fault == 0);
        assert_int_equal(oc_rec_file_ref(&r, &got), fault == 0);
        if (fault == 0) {
            assert_memory_equal(&got, &ref, sizeof ref);
        }
        oc_buf_done(&b);
    }
}

static void test_round_trip(void **state) {
    static uint8_t key[OC_KEY_MAX], value[OC_INLINE_MAX];
    struct oc_rng rng;

    (void)state;
    oc_rng_init(&rng, 1);
    for (size_t i = 0; i < sizeof value; i++) {
        value[i] = (uint8_t)oc_rng_next(&rng);
        key[i % sizeof key] = (uint8_t)oc_rng_next(&rng);
    }
    for (int i = 0; i < 300; i++) {
        size_t key_len = 1 + oc_rng_below(&rng, i % 10 == 0 ? OC_KEY_MAX : 100);
        size_t value_len = oc_rng_below(&rng, i % 10 == 1 ? OC_INLINE_MAX + 1 : 300);
        struct oc_record in =
            put_record(oc_span(key, key_len), oc_span(value, value_len), oc_rng_next(&rng));
        struct oc_record out;
        struct oc_buf b;
        size_t need = 0;

        in.expires_at_s = (uint32_t)oc_rng_next(&rng);
        segment_begin(&b, SALT);
        append_record(&b, SALT, &in);
        assert_int_equal((b.len & 7), 0);
        assert_int_equal(
            oc_rec_decode(oc_span(b.data + 64, b.len - 64), SALT, 64, b.len, &out, &need), 0);
        assert_true(oc_span_equal(in.key, out.key));
        assert_true(oc_span_equal(in.value, out.value));
        assert_true(in.version == out.version && in.expires_at_s == out.expires_at_s);
        assert_true(in.kind == out.kind && in.object_len == out.object_len);
        assert_true(in.value_crc == out.value_crc && in.total_len == out.total_len);
        assert_true(oc_rec_value_ok(&out));
        oc_buf_done(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_bytes_of_a_put),
        cmocka_unit_test(test_exact_bytes_of_a_mark),
        cmocka_unit_test(test_exact_bytes_of_a_segment_header),
        cmocka_unit_test(test_exact_bytes_of_a_chunk_header),
        cmocka_unit_test(test_every_flipped_bit_of_a_chunk_header),
        cmocka_unit_test(test_every_flipped_bit_of_a_put),
        cmocka_unit_test(test_every_flipped_bit_of_a_segment_header),
        cmocka_unit_test(test_segment_header_of_a_newer_format_is_named),
        cmocka_unit_test(test_truncation_asks_for_the_head_then_gives_what_is_there),
        cmocka_unit_test(test_a_record_must_fit_in_the_segment),
        cmocka_unit_test(test_stale_records_are_rejected),
        cmocka_unit_test(test_zeros_are_no_record),
        cmocka_unit_test(test_field_rules),
        cmocka_unit_test(test_file_reference_must_agree_with_its_record),
        cmocka_unit_test(test_round_trip),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
