/* Drives the resync scan over windows of every size: damage, forgeries, stale records, zeros. */
#include "seglog_test.h"

#include <stdio.h>

#include "core/seglog/scan.h"

/* What a scan found, as one line: "r64 s200+16 z300+64" - records, skipped ranges, skipped zeros.
 */
struct trace {
    char text[4096];
    size_t len;
    uint64_t records;
    uint64_t skipped;
};

static void trace_add(struct trace *t, char what, uint64_t offset, uint64_t bytes) {
    int n = bytes > 0 ? snprintf(t->text + t->len, sizeof t->text - t->len, "%c%llu+%llu ", what,
                                 (unsigned long long)offset, (unsigned long long)bytes)
                      : snprintf(t->text + t->len, sizeof t->text - t->len, "%c%llu ", what,
                                 (unsigned long long)offset);

    assert_true(n > 0 && (size_t)n < sizeof t->text - t->len);
    t->len += (size_t)n;
}

/* Read `file` through windows of `window_bytes` (or what is asked for, when that is more). Every
 * window is an exact copy. Checks the bookkeeping on the way: nothing is reported twice or left
 * out. */
static void scan(struct oc_span file, uint64_t from, size_t window_bytes, bool whole,
                 struct trace *t) {
    struct oc_seg_scan s;
    struct oc_seg_scan_item item;
    uint64_t window_offset = from, reported = from;
    uint8_t *window = exact_copy(OC_SPAN_EMPTY);
    size_t window_len = 0;
    enum oc_seg_scan_event event;

    memset(t, 0, sizeof *t);
    oc_seg_scan_init(&s, SALT, from, file.len, whole);
    while ((event = oc_seg_scan_next(&s, window_offset, oc_span(window, window_len), &item)) !=
           OC_SCAN_END) {
        if (event == OC_SCAN_NEED) {
            size_t len = item.need > window_bytes ? item.need : window_bytes;

            assert_true(item.need > 0 && item.offset + item.need <= file.len);
            /* It must not ask for what it has. */
            assert_true(item.offset + item.need > window_offset + window_len ||
                        item.offset < window_offset);
            if (len > file.len - item.offset) {
                len = file.len - (size_t)item.offset;
            }
            exact_free(window, window_len);
            window = exact_copy(oc_span(file.p + item.offset, len));
            window_offset = item.offset;
            window_len = len;
            continue;
        }
        assert_int_equal(item.offset, reported);
        if (event == OC_SCAN_SKIPPED) {
            assert_true(item.skipped_bytes > 0);
            reported += item.skipped_bytes;
            t->skipped += item.skipped_bytes;
            trace_add(t, item.skipped_zeros ? 'z' : 's', item.offset, item.skipped_bytes);
        } else {
            assert_int_equal(event, OC_SCAN_RECORD);
            reported += item.record.total_len;
            t->records++;
            trace_add(t, whole && !oc_rec_value_ok(&item.record) ? 'v' : 'r', item.offset, 0);
            if (whole) {
                assert_int_equal(item.record.value.len, item.record.value_len);
            }
        }
    }
    assert_int_equal(reported, file.len > from ? file.len : from);
    exact_free(window, window_len);
}

/* The same result whatever the windows, with values or without. */
static void assert_scan(const struct oc_buf *b, const char *want) {
    static const size_t windows[] = {0, 1, 8, 33, 64, 100, 1 << 20};
    struct trace t;

    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        for (int whole = 0; whole < 2; whole++) {
            scan(oc_buf_span(b), OC_SEG_HEADER_BYTES, windows[i], whole != 0, &t);
            if (t.len > 0) {
                t.text[t.len - 1] = 0;
            }
            assert_string_equal(t.text, want);
        }
    }
}

/* 64: "aaaa"; 120: "bbbb"; 176: "cccc": 56 bytes each. */
static void three_records(struct oc_buf *b) {
    static const char *const keys[] = {"aaaa", "bbbb", "cccc"};

    segment_begin(b, SALT);
    for (unsigned i = 0; i < 3; i++) {
        struct oc_record r = put_record(oc_span_str(keys[i]), OC_SPAN_LIT("0123456789abcdef"), i);

        append_record(b, SALT, &r);
    }
    assert_int_equal(b->len, 232);
}

static void test_clean_segment(void **state) {
    struct oc_buf b;

    (void)state;
    segment_begin(&b, SALT);
    assert_scan(&b, "");
    oc_buf_done(&b);
    three_records(&b);
    assert_scan(&b, "r64 r120 r176");
    oc_buf_done(&b);
}

static void test_damage_in_every_place(void **state) {
    struct oc_buf b;

    (void)state;
    three_records(&b);
    b.data[64] ^= 1;
    assert_scan(&b, "s64+56 r120 r176");
    b.data[176] ^= 1;
    assert_scan(&b, "s64+56 r120 s176+56");
    b.data[121] ^= 1;
    assert_scan(&b, "s64+168");
    b.data[64] ^= 1;
    assert_scan(&b, "r64 s120+112");
    memset(b.data + 120, 0, 56);
    assert_scan(&b, "r64 s120+112");
    b.data[176] ^= 1;
    assert_scan(&b, "r64 z120+56 r176");
    memset(b.data + 64, 0, 168);
    assert_scan(&b, "z64+168");
    oc_buf_done(&b);
}

static void test_every_flipped_bit_costs_at_most_its_record(void **state) {
    struct oc_buf b;
    struct trace t;

    (void)state;
    three_records(&b);
    for (size_t bit = 64 * 8; bit < b.len * 8; bit++) {
        size_t in_record = (bit / 8 - 64) % 56, record = 64 + (bit / 8 - 64) / 56 * 56;

        b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        scan(oc_buf_span(&b), 64, 77, true, &t);
        b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        char head[32], value[32];
        (void)snprintf(head, sizeof head, "s%zu+56 ", record);
        (void)snprintf(value, sizeof value, "v%zu ", record);
        if (in_record < 36) {
            assert_int_equal(t.records, 2);
            assert_non_null(strstr(t.text, head));
        } else if (in_record < 52) {
            assert_int_equal(t.records, 3);
            assert_non_null(strstr(t.text, value));
        } else { /* padding */
            assert_string_equal(t.text, "r64 r120 r176 ");
        }
    }
    oc_buf_done(&b);
}

static void test_every_truncation(void **state) {
    struct oc_buf b;
    struct trace t;

    (void)state;
    three_records(&b);
    for (size_t len = 0; len <= b.len; len++) {
        uint8_t *p = exact_copy(oc_span(b.data, len));

        for (size_t window = 1; window < 300; window += 97) {
            scan(oc_span(p, len), 64, window, true, &t);
            size_t whole_records = len < 64 ? 0 : (len - 64) / 56;
            size_t rest = len < 64 ? 0 : (len - 64) % 56;

            assert_int_equal(t.records, whole_records);
            assert_int_equal(t.skipped, rest);
        }
        exact_free(p, len);
    }
    oc_buf_done(&b);
}

static void test_a_record_inside_a_value_is_not_found(void **state) {
    struct oc_buf b, forged;
    struct trace t;

    (void)state;
    /* The value holds complete records: of another segment's salt at this very place, and of this
     * segment's salt (stolen from a reader of the file) at another place. */
    for (unsigned round = 0; round < 2; round++) {
        uint8_t value[1024];
        struct oc_record small = put_record(OC_SPAN_LIT("aaaa"), OC_SPAN_LIT("evil"), 99);

        segment_begin(&b, SALT);
        for (size_t at = 0; at < sizeof value; at += 40) {
            struct oc_buf one;
            size_t take = sizeof value - at < 40 ? sizeof value - at : 40;

            oc_buf_init(&one, 4096);
            assert_int_equal(oc_buf_reserve(&one, 4096), 0);
            if (round == 0) {
                one.len = 64 + 32 + 4 + 4 + at; /* where it will be */
                one.len = (one.len + 7) & ~(size_t)7;
            } else {
                one.len = 64;
            }
            size_t from = one.len;
            append_record(&one, round == 0 ? SALT ^ 1 : SALT, &small);
            memcpy(value + at, one.data + from, take);
            oc_buf_done(&one);
        }
        struct oc_record outer =
            put_record(OC_SPAN_LIT("kkkkkkkk"), oc_span(value, sizeof value), 1);
        append_record(&b, SALT, &outer);
        struct oc_record after = put_record(OC_SPAN_LIT("aaaa"), OC_SPAN_LIT("good"), 2);
        append_record(&b, SALT, &after);
        assert_scan(&b, "r64 r1128");
        b.data[70] ^= 4; /* the outer head is lost, so the search goes through the value */
        assert_scan(&b, "s64+1064 r1128");
        oc_buf_done(&b);
    }
    /* The counterpart: with the right salt at the right place it is found, so the test can fail. */
    segment_begin(&b, SALT);
    oc_buf_init(&forged, 4096);
    assert_int_equal(oc_buf_reserve(&forged, 4096), 0);
    forged.len = 104;
    struct oc_record inner = put_record(OC_SPAN_LIT("aaaa"), OC_SPAN_LIT("evil"), 99);
    append_record(&forged, SALT, &inner);
    struct oc_record outer =
        put_record(OC_SPAN_LIT("kkkkkkkk"), oc_span(forged.data + 104, forged.len - 104), 1);
    append_record(&b, SALT, &outer);
    b.data[70] ^= 4;
    scan(oc_buf_span(&b), 64, 64, true, &t);
    assert_string_equal(t.text, "s64+40 r104 ");
    oc_buf_done(&forged);
    oc_buf_done(&b);
}

static void test_stale_records_at_another_offset(void **state) {
    struct oc_buf b;

    (void)state;
    three_records(&b);
    memmove(b.data + 64 + 8, b.data + 64, b.len - 64 - 8);
    assert_scan(&b, "s64+168");
    oc_buf_done(&b);
    three_records(&b);
    memcpy(b.data + 120, b.data + 64, 56); /* a block written over the wrong place */
    assert_scan(&b, "r64 s120+56 r176");
    oc_buf_done(&b);
}

static void test_ends_before_the_header(void **state) {
    uint8_t bytes[80] = {0};
    struct trace t;

    (void)state;
    scan(oc_span(bytes, 0), 64, 8, false, &t);
    assert_int_equal(t.len, 0);
    scan(oc_span(bytes, 64), 64, 8, false, &t);
    assert_int_equal(t.len, 0);
    scan(oc_span(bytes, 69), 64, 8, false, &t);
    assert_string_equal(t.text, "z64+5 ");
}

static void test_values_need_not_be_read(void **state) {
    static uint8_t value[OC_INLINE_MAX];
    struct oc_record r = put_record(OC_SPAN_LIT("key"), oc_span(value, sizeof value), 1);
    struct oc_seg_scan_item item;
    struct oc_seg_scan s;
    struct oc_buf b;
    uint64_t total = oc_rec_total(3, sizeof value);

    (void)state;
    segment_begin(&b, SALT);
    append_record(&b, SALT, &r);
    append_record(&b, SALT, &r);
    oc_seg_scan_init(&s, SALT, 64, b.len, false);
    assert_int_equal(oc_seg_scan_next(&s, 64, oc_span(b.data + 64, 64), &item), OC_SCAN_RECORD);
    assert_int_equal(item.record.value_len, sizeof value);
    assert_int_equal(item.record.value.len, 64 - 35);
    assert_int_equal(oc_seg_scan_next(&s, 64, oc_span(b.data + 64, 64), &item), OC_SCAN_NEED);
    assert_int_equal(item.offset, 64 + total);
    assert_int_equal(item.need, 32);
    assert_int_equal(oc_seg_scan_next(&s, 64 + total, oc_span(b.data + 64 + total, 64), &item),
                     OC_SCAN_RECORD);
    assert_int_equal(oc_seg_scan_next(&s, 0, OC_SPAN_EMPTY, &item), OC_SCAN_END);
    assert_int_equal(oc_seg_scan_next(&s, 0, OC_SPAN_EMPTY, &item), OC_SCAN_END);
    oc_buf_done(&b);
}

/* A random segment with random damage: every record that was not touched is found. */
static void test_random_damage(void **state) {
    struct oc_rng rng;

    (void)state;
    oc_rng_init(&rng, 11);
    for (int round = 0; round < 60; round++) {
        uint64_t offsets[64];
        bool hit[64] = {false};
        uint8_t junk[3000];
        struct oc_buf b;
        struct trace t;
        size_t count = 1 + oc_rng_below(&rng, 40);

        segment_begin(&b, SALT);
        for (size_t i = 0; i < count; i++) {
            for (size_t k = 0; k < sizeof junk; k++) {
                /* Small bytes make many positions look like a head at first. */
                junk[k] = (uint8_t)(oc_rng_next(&rng) % 5);
            }
            struct oc_record r =
                put_record(oc_span(junk, 1 + oc_rng_below(&rng, 200)),
                           oc_span(junk + 200, oc_rng_below(&rng, sizeof junk - 200)), i);
            offsets[i] = append_record(&b, SALT, &r);
        }
        offsets[count] = b.len;
        for (uint64_t i = oc_rng_below(&rng, 8); i > 0; i--) {
            size_t which = (size_t)oc_rng_below(&rng, count);

            hit[which] = true;
            b.data[offsets[which] + 4 + oc_rng_below(&rng, 20)] ^= 0x40;
        }
        scan(oc_buf_span(&b), 64, 1 + (size_t)oc_rng_below(&rng, 5000), round % 2 == 0, &t);
        for (size_t i = 0; i < count; i++) {
            char word[32];

            (void)snprintf(word, sizeof word, "r%llu ", (unsigned long long)offsets[i]);
            assert_int_equal(strstr(t.text, word) != NULL, !hit[i]);
        }
        oc_buf_done(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clean_segment),
        cmocka_unit_test(test_damage_in_every_place),
        cmocka_unit_test(test_every_flipped_bit_costs_at_most_its_record),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_a_record_inside_a_value_is_not_found),
        cmocka_unit_test(test_stale_records_at_another_offset),
        cmocka_unit_test(test_ends_before_the_header),
        cmocka_unit_test(test_values_need_not_be_read),
        cmocka_unit_test(test_random_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
