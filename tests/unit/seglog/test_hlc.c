/* Drives the version clock and the slots of CLOCK. */
#include "seglog_test.h"

#include "core/seglog/hlc.h"

#define S     UINT64_C(1000000000) /* ns */
#define WALL  (UINT64_C(1790000000) * S)
#define PER_S (UINT64_C(1000000) << 8)

/* Printed by vectors.py. */
static const uint8_t slot_vector[OC_CLOCK_SLOT_BYTES] = {
    0x4f, 0x43, 0x4c, 0x4f, 0x43, 0x4b, 0x31, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x00, 0x00, 0x00, 0x00, 0x6d, 0xd2, 0xcb, 0x20,
};

static uint64_t next(struct oc_hlc *h, uint64_t wall_ns) {
    uint64_t v = 0;

    assert_int_equal(oc_hlc_next(h, wall_ns, &v), 0);
    return v;
}

static void test_nothing_above_the_durable_ceiling(void **state) {
    struct oc_hlc h = {0, 0};
    uint64_t v = 77;

    (void)state;
    assert_int_equal(oc_hlc_next(&h, WALL, &v), OC_AGAIN);
    assert_true(v == 77 && h.last == 0);
    assert_true(oc_hlc_wants_ceiling(&h, WALL));
    assert_true(oc_hlc_new_ceiling(&h, WALL) == oc_hlc_at(WALL) + 60 * PER_S);
    oc_hlc_raise(&h, oc_hlc_at(WALL) + 1);
    assert_true(next(&h, WALL) == oc_hlc_at(WALL));
    assert_true(next(&h, WALL) == oc_hlc_at(WALL) + 1);
    assert_int_equal(oc_hlc_next(&h, WALL, &v), OC_AGAIN);
    oc_hlc_raise(&h, oc_hlc_at(WALL)); /* lower: no effect */
    assert_true(h.ceiling == oc_hlc_at(WALL) + 1);
}

static void test_versions_follow_the_wall_and_never_step_back(void **state) {
    struct oc_hlc h = {0, UINT64_MAX};
    uint64_t a = next(&h, WALL);
    uint64_t b = next(&h, WALL);
    uint64_t c = next(&h, WALL - 3600 * S);
    uint64_t d = next(&h, WALL + S);

    (void)state;
    assert_true(a == oc_hlc_at(WALL) && b == a + 1 && c == a + 2 && d == oc_hlc_at(WALL + S));
    assert_true(oc_hlc_wall_s(d) == 1790000001);
    oc_hlc_see(&h, d + 1000);
    assert_true(next(&h, WALL) == d + 1001);
    oc_hlc_see(&h, d); /* older: no effect */
    assert_true(next(&h, WALL) == d + 1002);
}

static void test_a_late_ceiling_slows_the_clock_but_does_not_stop_it(void **state) {
    struct oc_hlc h = {0, 0};
    uint64_t v;

    (void)state;
    oc_hlc_raise(&h, oc_hlc_at(WALL) + 3);
    v = next(&h, WALL);
    assert_true(next(&h, WALL + 100 * S) == v + 1);
    assert_true(next(&h, WALL + 100 * S) == v + 2);
    assert_true(next(&h, WALL + 100 * S) == v + 3);
    assert_int_equal(oc_hlc_next(&h, WALL + 100 * S, &v), OC_AGAIN);
    oc_hlc_raise(&h, oc_hlc_new_ceiling(&h, WALL + 100 * S));
    assert_true(next(&h, WALL + 100 * S) == oc_hlc_at(WALL + 100 * S));
}

static void test_ceiling_is_renewed_ahead(void **state) {
    struct oc_hlc h = {0, 0};

    (void)state;
    oc_hlc_raise(&h, oc_hlc_new_ceiling(&h, WALL));
    assert_false(oc_hlc_wants_ceiling(&h, WALL));
    assert_false(oc_hlc_wants_ceiling(&h, WALL + 30 * S));
    assert_true(oc_hlc_wants_ceiling(&h, WALL + 30 * S + 1000));
    assert_true(oc_hlc_wants_ceiling(&h, WALL + 1000 * S));
    assert_true(oc_hlc_new_ceiling(&h, WALL + 30 * S) == h.ceiling + 30 * PER_S);
    /* The wall clock steps back: the ceiling stays where it is. */
    assert_true(oc_hlc_new_ceiling(&h, WALL - 3600 * S) == h.ceiling);
    oc_hlc_see(&h, UINT64_MAX - 1);
    assert_true(oc_hlc_wants_ceiling(&h, WALL));
    assert_true(oc_hlc_new_ceiling(&h, WALL) == UINT64_MAX);
    oc_hlc_raise(&h, UINT64_MAX);
    assert_true(next(&h, WALL) == UINT64_MAX);
    uint64_t v;
    assert_int_equal(oc_hlc_next(&h, WALL, &v), OC_AGAIN); /* the end of time: no wrap */
}

static void test_a_restart_never_repeats_a_version(void **state) {
    struct oc_hlc h = {0, 0};
    struct oc_rng rng;
    uint64_t durable = 0, newest = 0, wall = WALL;

    (void)state;
    oc_rng_init(&rng, 9);
    for (int i = 0; i < 100000; i++) {
        uint64_t v;

        wall += oc_rng_below(&rng, 2 * S);
        wall -= oc_rng_below(&rng, 2 * S);
        switch (oc_rng_below(&rng, 200)) {
        case 0: /* crash and restart */
            h = (struct oc_hlc){0, 0};
            oc_hlc_resume(&h, durable);
            break;
        case 1: /* the write of CLOCK became durable, but the process did not live to see it */
            durable = oc_hlc_new_ceiling(&h, wall);
            h = (struct oc_hlc){0, 0};
            oc_hlc_resume(&h, durable);
            break;
        default:
            break;
        }
        if (oc_hlc_next(&h, wall, &v) == OC_AGAIN) {
            durable = oc_hlc_new_ceiling(&h, wall);
            oc_hlc_raise(&h, durable);
            v = next(&h, wall);
        }
        assert_true(v > newest && v <= durable);
        newest = v;
    }
}

static void write_slot(uint8_t *file, uint64_t sequence, uint64_t ceiling) {
    struct oc_clock_slot slot = {sequence, ceiling};

    oc_clock_slot_encode(file + oc_clock_slot_offset(sequence), &slot);
}

static void test_exact_bytes_of_a_slot(void **state) {
    struct oc_clock_slot slot = {3, 0x0102030405060708};
    uint8_t bytes[OC_CLOCK_SLOT_BYTES];

    (void)state;
    oc_clock_slot_encode(bytes, &slot);
    assert_memory_equal(bytes, slot_vector, sizeof bytes);
    assert_int_equal(oc_clock_slot_offset(3), 4096);
    assert_int_equal(oc_clock_slot_offset(4), 0);
}

static void test_the_newest_valid_slot_wins(void **state) {
    static uint8_t file[OC_CLOCK_FILE_BYTES];
    struct oc_clock_slot got = {0, 0};
    struct oc_span span = oc_span(file, sizeof file);

    (void)state;
    assert_int_equal(oc_clock_decode(span, &got), OC_E_DATA_LOSS);
    for (uint64_t sequence = 1; sequence < 6; sequence++) {
        write_slot(file, sequence, 1000 * sequence);
        assert_int_equal(oc_clock_decode(span, &got), 0);
        assert_true(got.sequence == sequence && got.ceiling == 1000 * sequence);
    }
    /* Every flipped bit of the newest falls back to the other, and the next write goes over it. */
    for (unsigned bit = 0; bit < 8 * OC_CLOCK_SLOT_BYTES; bit++) {
        uint8_t *at = &file[oc_clock_slot_offset(5) + bit / 8];

        *at ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(oc_clock_decode(span, &got), 0);
        assert_true(got.sequence == 4 && got.ceiling == 4000);
        assert_true(oc_clock_slot_offset(got.sequence + 1) == oc_clock_slot_offset(5));
        file[bit / 8] ^= 0x80; /* and the other as well: none */
        assert_int_equal(oc_clock_decode(span, &got), OC_E_DATA_LOSS);
        file[bit / 8] ^= 0x80;
        *at ^= (uint8_t)(1u << bit % 8);
    }
}

static void test_every_truncation_of_clock(void **state) {
    static uint8_t file[OC_CLOCK_FILE_BYTES];
    struct oc_clock_slot got = {0, 0};

    (void)state;
    write_slot(file, 4, 4000);
    write_slot(file, 5, 5000);
    for (size_t len = 0; len <= sizeof file; len++) {
        uint8_t *p = exact_copy(oc_span(file, len));
        int rc = oc_clock_decode(oc_span(p, len), &got);

        assert_int_equal(rc, len < OC_CLOCK_SLOT_BYTES ? OC_E_DATA_LOSS : 0);
        if (rc == 0) {
            assert_int_equal(got.ceiling, len == sizeof file ? 5000 : 4000);
        }
        exact_free(p, len);
    }
}

static void test_a_slot_in_the_wrong_place_does_not_count(void **state) {
    static uint8_t file[OC_CLOCK_FILE_BYTES];
    struct oc_clock_slot slot = {5, 5000}, got = {0, 0};

    (void)state;
    oc_clock_slot_encode(file, &slot);
    assert_int_equal(oc_clock_decode(oc_span(file, sizeof file), &got), OC_E_DATA_LOSS);
    /* A clean stop takes its unused ceiling back. */
    write_slot(file, 4, 9000);
    write_slot(file, 5, 5000);
    assert_int_equal(oc_clock_decode(oc_span(file, sizeof file), &got), 0);
    assert_true(got.sequence == 5 && got.ceiling == 5000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_above_the_durable_ceiling),
        cmocka_unit_test(test_versions_follow_the_wall_and_never_step_back),
        cmocka_unit_test(test_a_late_ceiling_slows_the_clock_but_does_not_stop_it),
        cmocka_unit_test(test_ceiling_is_renewed_ahead),
        cmocka_unit_test(test_a_restart_never_repeats_a_version),
        cmocka_unit_test(test_exact_bytes_of_a_slot),
        cmocka_unit_test(test_the_newest_valid_slot_wins),
        cmocka_unit_test(test_every_truncation_of_clock),
        cmocka_unit_test(test_a_slot_in_the_wrong_place_does_not_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
