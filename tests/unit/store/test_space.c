/* Behaviour at the cap: honest errors, reads go on, deletions make room. */
#include <stdio.h>
#include <string.h>

#include "rig.h"

#define MIB (UINT64_C(1) << 20)

static void key_of(size_t i, char ret[32]) {
    (void)snprintf(ret, 32, "space-%zu", i);
}

static uint64_t physical(struct rig *r) {
    struct oc_objects_stats st;

    oc_objects_stats(r->s, &st);
    return st.physical_bytes;
}

static void tick_a_while(struct rig *r) {
    for (int i = 0; i < 4; i++) {
        rig_pass_ms(r, 1500);
        oc_objects_tick(r->s);
    }
}

/* Small objects fill the segments that the cap allows. */
static void test_segments_up_to_the_cap(void **state) {
    struct rig r;
    char key[32];
    size_t n = 0;
    int rc = 0;

    (void)state;
    rig_init(&r);
    r.cfg.max_disk_bytes = 8 * MIB;
    rig_open(&r);
    while (n < 100000 && rc == 0) {
        key_of(n, key);
        rc = rig_put(&r, key, n, 20000);
        n += rc == 0;
        if (n % 50 == 0) {
            oc_objects_tick(r.s);
        }
    }
    assert_int_equal(rc, OC_E_EXHAUSTED);
    assert_true(physical(&r) <= 8 * MIB);
    /* Most of the cap holds data: 400 records are 7.6 MiB. */
    assert_in_range(n, 330, 420);
    /* Refused again and again, and nothing of it shows. */
    for (int i = 0; i < 5; i++) {
        assert_int_equal(rig_put(&r, "late", 1, 20000), OC_E_EXHAUSTED);
    }
    rig_expect_missing(&r, "late");
    assert_int_equal(rig_put(&r, "large", 1, 300000), OC_E_EXHAUSTED);
    for (size_t i = 0; i < n; i++) {
        key_of(i, key);
        rig_expect(&r, key, i, 20000);
    }
    /* Deletions have a share of the segment of their own. */
    for (size_t i = 0; i < 100; i++) {
        key_of(i, key);
        assert_int_equal(rig_delete(&r, key), 0);
    }
    rig_reopen(&r, false);
    for (size_t i = 0; i < n; i++) {
        key_of(i, key);
        if (i < 100) {
            rig_expect_missing(&r, key);
        } else {
            rig_expect(&r, key, i, 20000);
        }
    }
    rig_done(&r);
}

/* Value files fill it; deleting them makes room again. */
static void test_value_files_come_and_go(void **state) {
    struct rig r;
    char key[32];
    size_t n = 0;
    int rc = 0;

    (void)state;
    rig_init(&r);
    r.cfg.max_disk_bytes = 20 * MIB;
    rig_open(&r);
    while (n < 100 && rc == 0) {
        key_of(n, key);
        rc = rig_put(&r, key, n, 2 * MIB);
        n += rc == 0;
    }
    assert_int_equal(rc, OC_E_EXHAUSTED);
    assert_in_range(n, 7, 9);
    assert_int_equal(rig_count_values(&r), n); /* the one that failed left nothing */
    assert_true(physical(&r) <= 20 * MIB);
    for (size_t i = 0; i < n; i++) {
        key_of(i, key);
        rig_expect(&r, key, i, 2 * MIB);
        if (i % 2 == 0) {
            assert_int_equal(rig_delete(&r, key), 0);
        }
    }
    tick_a_while(&r);
    assert_int_equal(rig_count_values(&r), n / 2);
    assert_int_equal(rig_put(&r, "again", 77, 2 * MIB), 0);
    rig_expect(&r, "again", 77, 2 * MIB);
    uint64_t before = physical(&r);
    rig_reopen(&r, true);
    /* The new process counts what it finds; the checkpoint is new, the open segment was trimmed. */
    assert_true(physical(&r) <= before + MIB && physical(&r) + 2 * MIB >= before);
    for (int i = 0; i < 30; i++) { /* overwriting needs room for one more only */
        assert_int_equal(rig_put(&r, "again", 100 + (uint64_t)i, 2 * MIB), 0);
        tick_a_while(&r);
    }
    rig_expect(&r, "again", 129, 2 * MIB);
    rig_done(&r);
}

/* Full of value files, and the log full too: deletions are taken as long as the segment has room
 * for them, and what they free lets everything go on. */
static void test_full_log_and_full_disk(void **state) {
    struct rig r;
    char key[32];
    size_t files = 0, smalls = 0, deleted = 0;

    (void)state;
    rig_init(&r);
    r.cfg.max_disk_bytes = 4 * MIB;
    rig_open(&r);
    while (files < 50 && rig_put(&r, (key_of(files, key), key), files, 300000) == 0) {
        files++;
    }
    while (smalls < 10000 && rig_put(&r, "small", smalls, 3000) == 0) {
        smalls++;
    }
    assert_true(files >= 8 && smalls > 0 && smalls < 10000);
    while (deleted < files && rig_delete(&r, (key_of(deleted, key), key)) == 0) {
        deleted++;
    }
    assert_int_equal(deleted, files);
    tick_a_while(&r);
    assert_int_equal(rig_count_values(&r), 0);
    assert_int_equal(rig_put(&r, "again", 1, 300000), 0);
    rig_expect(&r, "again", 1, 300000);
    assert_int_equal(rig_put(&r, "small", 1, 3000), 0);
    rig_reopen(&r, false);
    rig_expect(&r, "again", 1, 300000);
    rig_expect(&r, "small", 1, 3000);
    rig_done(&r);
}

/* Several writes in one batch: those that fit are there, the others say why. */
static void test_a_batch_that_half_fits(void **state) {
    static uint8_t bytes[200000];
    struct oc_write w[12];
    char keys[12][32];
    struct oc_batch b;
    struct rig r;
    size_t ok = 0;

    (void)state;
    rig_init(&r);
    r.cfg.max_disk_bytes = 3 * MIB / 2;
    rig_open(&r);
    rig_fill(3, bytes, sizeof bytes);
    oc_batch_init(&b);
    for (size_t i = 0; i < 12; i++) {
        key_of(i, keys[i]);
        w[i] = (struct oc_write){.key = oc_span_str(keys[i]),
                                 .value = {.p = bytes, .len = sizeof bytes}};
        oc_batch_add(&b, &w[i]);
    }
    size_t failed = oc_objects_commit(r.s, &b);
    for (size_t i = 0; i < 12; i++) {
        assert_true(w[i].result == 0 || w[i].result == OC_E_EXHAUSTED);
        ok += w[i].result == 0;
    }
    assert_int_equal(ok + failed, 12);
    assert_int_equal(ok, 5); /* of 200 KB in 1 MiB */
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 12; i++) {
            if (w[i].result == 0) {
                rig_expect(&r, keys[i], 3, sizeof bytes);
            } else {
                rig_expect_missing(&r, keys[i]);
            }
        }
        rig_reopen(&r, false);
    }
    rig_done(&r);
}

/* A cap of 0 follows the free space of the volume, less a reserve. */
static void test_cap_from_free_space(void **state) {
    struct oc_objects_stats st;
    struct oc_disk_space v;
    struct rig r;

    (void)state;
    rig_init(&r);
    r.cfg.max_disk_bytes = 0;
    rig_open(&r);
    assert_int_equal(rig_put(&r, "k", 1, 10), 0);
    tick_a_while(&r);
    oc_objects_stats(r.s, &st);
    assert_int_equal(r.disk->space(r.disk->ctx, &v, NULL), 0);
    assert_true(st.cap_bytes > 0);
    assert_true(st.cap_bytes <= v.free_bytes + 64 * MIB);
    rig_done(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segments_up_to_the_cap),
        cmocka_unit_test(test_value_files_come_and_go),
        cmocka_unit_test(test_full_log_and_full_disk),
        cmocka_unit_test(test_a_batch_that_half_fits),
        cmocka_unit_test(test_cap_from_free_space),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
