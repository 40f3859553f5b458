/* Drives segment footers: exact bytes, every flipped bit, every truncation, the 2 % rule. */
#include "seglog_test.h"

/* Printed by vectors.py: PUT "key" of 8000 bytes at
 * 64, MARK (7, 64) at 8104, TOMBSTONE "kez" at 8152, records end at 8192. One copy; the file has
 * two. */
static const uint8_t copy_vector[96] = {
    0x11, 0x90, 0x9c, 0xb0, 0xd0, 0x80, 0xc1, 0x81, 0x82, 0x02, 0xc0, 0x3e, 0xa8, 0xcc, 0x90, 0x91,
    0x02, 0x00, 0x03, 0x6b, 0x65, 0x79, 0x0b, 0x06, 0x04, 0x02, 0x01, 0x7a, 0x00, 0x00, 0x00, 0x00,
    0x4f, 0x43, 0x46, 0x4f, 0x4f, 0x54, 0x31, 0x00, 0x07, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
    0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x1c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x07, 0x00, 0x00, 0x00, 0x3c, 0x80, 0xf2, 0xe1, 0x00, 0x00, 0x00, 0x00, 0x80, 0x14, 0xf7, 0x56,
};
#define COPY     sizeof copy_vector
#define DATA_END 8192u
#define FILE_LEN (DATA_END + 2 * COPY)

struct seen {
    uint64_t count;
    uint64_t offsets[4];
    struct oc_record records[4];
    char keys[4][8];
};

static int see(void *arg, uint64_t offset, const struct oc_record *r) {
    struct seen *s = arg;

    assert_true(s->count < 4 && r->key.len < 8);
    s->offsets[s->count] = offset;
    s->records[s->count] = *r;
    memcpy(s->keys[s->count], r->key.p, r->key.len);
    s->count++;
    return 0;
}

/* The footer of the vector, built from records. */
static void build_vector(struct oc_buf *out) {
    struct oc_footer_builder *b = oc_footer_new();
    struct oc_mark m = {.segment = 7, .offset = 64};
    struct oc_record put = put_record(OC_SPAN_LIT("key"), OC_SPAN_EMPTY, 0x0102030405060708);
    struct oc_record mark = {.kind = OC_REC_MARK, .value = oc_span(&m, sizeof m), .version = 5};
    struct oc_record del = {
        .kind = OC_REC_TOMBSTONE, .key = OC_SPAN_LIT("kez"), .version = 0x010203040506070a};

    assert_non_null(b);
    put.object_len = 8000;
    put.expires_at_s = 0x11121314;
    mark.value_crc = oc_crc32c(0, &m, sizeof m);
    assert_int_equal(oc_footer_add(b, 64, &put), 0);
    assert_int_equal(oc_footer_add(b, 8104, &mark), 0);
    assert_int_equal(oc_footer_add(b, 8152, &del), 0);
    oc_buf_init(out, 1 << 20);
    assert_int_equal(oc_footer_encode(b, SALT, 7, DATA_END, out), 0);
    oc_footer_free(b);
}

static void assert_vector_info(const struct oc_footer_info *info) {
    struct seen s = {0};

    assert_int_equal(info->data_end, DATA_END);
    assert_int_equal(info->records, 2);
    assert_true(info->has_entries);
    assert_int_equal(info->mark.segment, 7);
    assert_int_equal(info->mark.offset, 64);
    assert_int_equal(oc_footer_each(info, see, &s), 0);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.offsets[0], 64);
    assert_int_equal(s.offsets[1], 8152);
    assert_string_equal(s.keys[0], "key");
    assert_string_equal(s.keys[1], "kez");
    assert_int_equal(s.records[0].kind, OC_REC_PUT);
    assert_int_equal(s.records[0].object_len, 8000);
    assert_int_equal(s.records[0].expires_at_s, 0x11121314);
    assert_true(s.records[0].version == 0x0102030405060708);
    assert_int_equal(s.records[0].total_len, 8040);
    assert_int_equal(s.records[1].kind, OC_REC_TOMBSTONE);
    assert_true(s.records[1].version == 0x010203040506070a);
}

static void test_exact_bytes(void **state) {
    struct oc_footer_info info;
    struct oc_buf b;
    size_t need = 0;

    (void)state;
    build_vector(&b);
    assert_int_equal(b.len, 2 * COPY);
    assert_memory_equal(b.data, copy_vector, COPY);
    assert_memory_equal(b.data + COPY, copy_vector, COPY);
    assert_int_equal(oc_footer_decode(oc_buf_span(&b), FILE_LEN, SALT, 7, &info, &need), 0);
    assert_vector_info(&info);
    oc_buf_done(&b);
}

/* The last `tail_max` bytes of a file at most, grown as the decoder asks. */
static int decode_pulling(struct oc_span file, uint64_t file_bytes, struct oc_footer_info *info) {
    size_t len = 0, need = 0;

    for (int rounds = 0; rounds < 4; rounds++) {
        int rc = oc_footer_decode(oc_span(file.p + file.len - len, len), file_bytes, SALT, 7, info,
                                  &need);

        if (rc != OC_AGAIN) {
            return rc;
        }
        assert_true(need > len && need <= file.len);
        len = need;
    }
    fail_msg("the decoder asks forever");
    return 0;
}

static void test_every_flipped_bit_is_survived_or_detected(void **state) {
    struct oc_footer_info info;
    static uint8_t file[FILE_LEN];

    (void)state;
    memcpy(file + DATA_END, copy_vector, COPY);
    memcpy(file + DATA_END + COPY, copy_vector, COPY);
    for (size_t bit = 0; bit < 8 * 2 * COPY; bit++) {
        size_t at = DATA_END + bit / 8;

        file[at] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(decode_pulling(oc_span(file, FILE_LEN), FILE_LEN, &info), 0);
        assert_vector_info(&info); /* the other copy */
        /* The same flip in both copies leaves nothing. */
        size_t other = at < DATA_END + COPY ? at + COPY : at - COPY;
        file[other] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(decode_pulling(oc_span(file, FILE_LEN), FILE_LEN, &info), OC_E_DATA_LOSS);
        file[other] ^= (uint8_t)(1u << bit % 8);
        file[at] ^= (uint8_t)(1u << bit % 8);
    }
}

static void test_one_copy_wiped(void **state) {
    struct oc_footer_info info;
    static uint8_t file[FILE_LEN];

    (void)state;
    for (int copy = 0; copy < 2; copy++) {
        memcpy(file + DATA_END, copy_vector, COPY);
        memcpy(file + DATA_END + COPY, copy_vector, COPY);
        memset(file + DATA_END + (copy == 0 ? 0 : COPY), 0xa5, COPY);
        assert_int_equal(decode_pulling(oc_span(file, FILE_LEN), FILE_LEN, &info), 0);
        assert_vector_info(&info);
    }
    /* One's trailer with the other's entries. */
    memcpy(file + DATA_END, copy_vector, COPY);
    memset(file + DATA_END, 0, 16);
    memset(file + FILE_LEN - 64, 0, 64);
    assert_int_equal(decode_pulling(oc_span(file, FILE_LEN), FILE_LEN, &info), OC_E_DATA_LOSS);
    memcpy(file + DATA_END + COPY, copy_vector, 32);
    assert_int_equal(decode_pulling(oc_span(file, FILE_LEN), FILE_LEN, &info), 0);
    assert_vector_info(&info);
}

static void test_any_truncation_or_growth_is_no_footer(void **state) {
    struct oc_footer_info info;
    static uint8_t file[FILE_LEN + 4096];

    (void)state;
    memcpy(file + DATA_END, copy_vector, COPY);
    memcpy(file + DATA_END + COPY, copy_vector, COPY);
    for (size_t len = 0; len < FILE_LEN; len++) {
        assert_int_equal(decode_pulling(oc_span(file, len), len, &info), OC_E_DATA_LOSS);
    }
    for (size_t len = FILE_LEN + 1; len <= sizeof file; len++) {
        assert_int_equal(decode_pulling(oc_span(file, len), len, &info), OC_E_DATA_LOSS);
    }
}

static void test_footer_of_another_segment(void **state) {
    struct oc_footer_info info;
    struct oc_buf b;
    size_t need = 0;

    (void)state;
    build_vector(&b);
    struct oc_span tail = oc_buf_span(&b);
    static uint8_t file[FILE_LEN];
    memcpy(file + DATA_END, tail.p, tail.len);
    struct oc_span whole = oc_span(file, FILE_LEN);
    assert_int_equal(oc_footer_decode(whole, FILE_LEN, SALT, 8, &info, &need), OC_E_DATA_LOSS);
    assert_int_equal(oc_footer_decode(whole, FILE_LEN, SALT + 1, 7, &info, &need), OC_E_DATA_LOSS);
    assert_int_equal(oc_footer_decode(whole, FILE_LEN, SALT, 7, &info, &need), 0);
    oc_buf_done(&b);
}

/* A segment of `count` records of key_len and value_len; returns the footer's length. */
static size_t footer_len(unsigned count, size_t key_len, uint64_t value_len, bool *has_entries) {
    struct oc_footer_builder *b = oc_footer_new();
    struct oc_footer_info info;
    uint64_t offset = 64;
    struct oc_buf out;
    struct oc_rng rng;
    uint8_t key[256];
    size_t need = 0;

    assert_non_null(b);
    oc_rng_init(&rng, 1);
    for (unsigned i = 0; i < count; i++) {
        struct oc_record r = put_record(oc_span(key, key_len), OC_SPAN_EMPTY,
                                        (UINT64_C(1790000000000000) + i * 20) << 8);

        for (size_t k = 0; k < key_len; k++) {
            key[k] = (uint8_t)oc_rng_next(&rng); /* nothing to share between keys */
        }
        r.object_len = value_len;
        assert_int_equal(oc_footer_add(b, offset, &r), 0);
        offset += oc_rec_total(key_len, value_len);
    }
    oc_buf_init(&out, 64 << 20);
    assert_int_equal(oc_footer_encode(b, SALT, 7, offset, &out), 0);
    assert_int_equal(oc_footer_decode(oc_buf_span(&out), offset + out.len, SALT, 7, &info, &need),
                     0);
    assert_int_equal(info.records, count);
    *has_entries = info.has_entries;
    assert_true(out.len <= offset / 50 + 2 * (64 + 8));
    oc_footer_free(b);
    size_t len = out.len;
    oc_buf_done(&out);
    return len;
}

static void test_entries_only_where_they_cost_at_most_two_percent(void **state) {
    bool has;

    (void)state;
    (void)footer_len(10000, 33, 4096, &has); /* about 40 bytes an entry, 41.7 allowed */
    assert_true(has);
    (void)footer_len(10000, 33, 3600, &has); /* 36.7 allowed */
    assert_false(has);
    assert_int_equal(footer_len(100000, 33, 100, &has), 128); /* given up early, two trailers */
    assert_false(has);
    assert_int_equal(footer_len(0, 33, 100, &has), 128);
    assert_false(has);
    (void)footer_len(100, 250, 262144, &has);
    assert_true(has);
}

static void test_small_records_first_do_not_cost_the_entries(void **state) {
    struct oc_footer_builder *b = oc_footer_new();
    struct oc_footer_info info;
    struct oc_buf out;
    uint64_t offset = 64;
    size_t need = 0;

    (void)state;
    assert_non_null(b);
    for (unsigned i = 0; i < 300; i++) {
        char key[16];
        memset(key, 'a' + (int)(i % 26), sizeof key);
        struct oc_record r = put_record(oc_span(key, sizeof key), OC_SPAN_EMPTY, 1000 + i);
        r.object_len = i < 200 ? 10 : OC_INLINE_MAX;
        assert_int_equal(oc_footer_add(b, offset, &r), 0);
        offset += oc_rec_total(16, r.object_len);
    }
    oc_buf_init(&out, 64 << 20);
    assert_int_equal(oc_footer_encode(b, SALT, 7, offset, &out), 0);
    assert_int_equal(oc_footer_decode(oc_buf_span(&out), offset + out.len, SALT, 7, &info, &need),
                     0);
    assert_true(info.has_entries);
    oc_buf_done(&out);
    oc_footer_free(b);
}

struct expected {
    struct oc_rng rng;
    uint64_t offset;
    uint64_t count;
    uint8_t key[300];
};

/* The same random records, whether added or compared. */
static struct oc_record draw(struct expected *x, uint64_t *offset) {
    size_t key_len = 1 + oc_rng_below(&x->rng, sizeof x->key);
    unsigned kind = 1 + (unsigned)oc_rng_below(&x->rng, 3);
    struct oc_record r;

    for (size_t k = oc_rng_below(&x->rng, key_len); k < key_len; k++) {
        x->key[k] = (uint8_t)(oc_rng_next(&x->rng) & 3);
    }
    r = put_record(oc_span(x->key, key_len), OC_SPAN_EMPTY, oc_rng_next(&x->rng));
    r.kind = (enum oc_rec_kind)kind;
    r.object_len = oc_rng_next(&x->rng) >> (kind == OC_REC_PUT ? 46 : 16);
    r.expires_at_s = oc_rng_below(&x->rng, 2) == 0 ? 0 : (uint32_t)oc_rng_next(&x->rng) | 1;
    if (kind == OC_REC_TOMBSTONE) {
        r.object_len = r.expires_at_s = 0;
    }
    if (oc_rng_below(&x->rng, 4) == 0) {
        x->offset += 8 * oc_rng_below(&x->rng, 1000);
    }
    *offset = x->offset;
    x->offset += oc_rec_total(key_len, oc_rec_value_len(r.kind, r.object_len));
    x->count++;
    return r;
}

static int compare(void *arg, uint64_t offset, const struct oc_record *r) {
    struct expected *x = arg;
    uint64_t want_offset;
    struct oc_record want = draw(x, &want_offset);

    assert_int_equal(offset, want_offset);
    assert_true(oc_span_equal(r->key, want.key));
    assert_int_equal(r->kind, want.kind);
    assert_true(r->version == want.version && r->object_len == want.object_len);
    assert_int_equal(r->expires_at_s, want.expires_at_s);
    return x->count == 500 ? 9 : 0;
}

static void test_round_trip(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct oc_footer_builder *b = oc_footer_new();
        struct expected x = {.offset = 64};
        struct oc_footer_info info;
        struct oc_buf out;
        size_t need = 0;

        assert_non_null(b);
        oc_rng_init(&x.rng, seed);
        for (unsigned i = 0; i < 400 + 10 * seed; i++) {
            uint64_t offset;
            struct oc_record r = draw(&x, &offset);
            assert_int_equal(oc_footer_add(b, offset, &r), 0);
        }
        oc_buf_init(&out, 64 << 20);
        assert_int_equal(oc_footer_encode(b, SALT, 7, x.offset, &out), 0);
        assert_int_equal(
            oc_footer_decode(oc_buf_span(&out), x.offset + out.len, SALT, 7, &info, &need), 0);
        assert_true(info.has_entries);
        assert_int_equal(info.records, x.count);
        uint64_t count = x.count;
        x = (struct expected){.offset = 64};
        oc_rng_init(&x.rng, seed);
        assert_int_equal(oc_footer_each(&info, compare, &x), count < 500 ? 0 : 9);
        assert_int_equal(x.count, count < 500 ? count : 500);
        oc_buf_done(&out);
        oc_footer_free(b);
    }
}

/* Entries that a checksum would vouch for but that cannot be: the walk must say so. */
static void test_impossible_entries(void **state) {
    static const struct {
        const char *bytes;
        size_t len;
        uint64_t records;
        int want;
    } cases[] = {
        {"\x01\x02\x05\x00\x01k", 6, 1, 0},
        {"\x01\x02\x05\x00\x01k", 6, 2, OC_E_DATA_LOSS},             /* one is missing */
        {"\x01\x02\x05\x00\x01k\x01", 7, 1, OC_E_DATA_LOSS},         /* something is left */
        {"\x00\x02\x05\x00\x01k", 6, 1, OC_E_DATA_LOSS},             /* kind */
        {"\x04\x02\x00\x00", 4, 1, OC_E_DATA_LOSS},                  /* MARKs have no entry */
        {"\x21\x02\x05\x00\x01k", 6, 1, OC_E_DATA_LOSS},             /* unknown control bit */
        {"\x01\x82\x00\x05\x00\x01k", 7, 1, OC_E_DATA_LOSS},         /* not the shortest integer */
        {"\x01\x02\x05\x01\x01k", 6, 1, OC_E_DATA_LOSS},             /* shares with nothing */
        {"\x01\x02\x05\x00\x00", 5, 1, OC_E_DATA_LOSS},              /* empty key */
        {"\x01\x02\x05\x00\x02k", 6, 1, OC_E_DATA_LOSS},             /* cut short */
        {"\x01\x02\xff\xff\xff\x7f\x00\x01k", 9, 1, OC_E_DATA_LOSS}, /* value too long */
        {"\x01\x02\x81\x10\x00\x01k", 7, 1, OC_E_DATA_LOSS},     /* 2049 bytes do not fit in 1024 */
        {"\x09\x00\x02\x05\x00\x01k", 7, 1, OC_E_DATA_LOSS},     /* a gap of nothing */
        {"\x09\xff\x7f\x02\x05\x00\x01k", 8, 1, OC_E_DATA_LOSS}, /* a gap over the end */
        {"\x11\x02\x05\x00\x00\x01k", 7, 1, OC_E_DATA_LOSS},     /* expires never, at length */
        {"\x13\x02\x02\x00\x01k", 6, 1, OC_E_DATA_LOSS},         /* a tombstone that expires */
        {"\x01\x02\x05\x00\x01k\x01\x02\x05\x00\x01k", 12, 2,
         OC_E_DATA_LOSS}, /* shares too little */
        {"\x01\x02\x05\x00\x01k\x01\x02\x05\x01\x00", 11, 2, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t *p = exact_copy(oc_span(cases[i].bytes, cases[i].len));
        struct oc_footer_info info = {.data_end = 1024,
                                      .records = cases[i].records,
                                      .has_entries = true,
                                      .entries = oc_span(p, cases[i].len)};
        struct seen s = {0};
        int rc = oc_footer_each(&info, see, &s);

        if (rc != cases[i].want) {
            fail_msg("case %zu: %d, not %d", i, rc, cases[i].want);
        }
        exact_free(p, cases[i].len);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_bytes),
        cmocka_unit_test(test_every_flipped_bit_is_survived_or_detected),
        cmocka_unit_test(test_one_copy_wiped),
        cmocka_unit_test(test_any_truncation_or_growth_is_no_footer),
        cmocka_unit_test(test_footer_of_another_segment),
        cmocka_unit_test(test_entries_only_where_they_cost_at_most_two_percent),
        cmocka_unit_test(test_small_records_first_do_not_cost_the_entries),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_impossible_entries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
