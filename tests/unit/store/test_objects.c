/* The store's promises in normal running and over restarts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

static const size_t sizes[] = {0, 1, 100, 4095, 4096, 262144, 262145, 1 << 20, 10 << 20};
#define SIZES (sizeof sizes / sizeof sizes[0])

static void key_of(size_t i, char ret[32]) {
    (void)snprintf(ret, 32, "key-%zu", i);
}

static void expect_all(struct rig *r, uint64_t generation) {
    char key[32];

    for (size_t i = 0; i < SIZES; i++) {
        key_of(i, key);
        rig_expect(r, key, generation * 100 + i, sizes[i]);
    }
}

static void put_all(struct rig *r, uint64_t generation) {
    char key[32];

    for (size_t i = 0; i < SIZES; i++) {
        key_of(i, key);
        assert_int_equal(rig_put(r, key, generation * 100 + i, sizes[i]), 0);
    }
}

/* `arg` points to {sync mode, clean close}. */
static void sizes_survive(enum oc_sync_mode sync, bool clean) {
    struct rig r;
    char key[32];

    rig_init(&r);
    r.cfg.sync = sync;
    rig_open(&r);
    rig_expect_missing(&r, "key-0");
    put_all(&r, 1);
    expect_all(&r, 1);
    rig_reopen(&r, clean);
    expect_all(&r, 1);
    put_all(&r, 2);
    expect_all(&r, 2);
    oc_objects_tick(r.s);
    rig_reopen(&r, clean);
    expect_all(&r, 2);
    for (size_t i = 0; i < SIZES; i += 2) {
        key_of(i, key);
        assert_int_equal(rig_delete(&r, key), 0);
        rig_expect_missing(&r, key);
    }
    rig_reopen(&r, clean);
    for (size_t i = 0; i < SIZES; i++) {
        key_of(i, key);
        if (i % 2 == 0) {
            rig_expect_missing(&r, key);
        } else {
            rig_expect(&r, key, 200 + i, sizes[i]);
        }
    }
    /* Only the value files of what is there are left, once the tick has had its time. */
    for (int i = 0; i < 5; i++) {
        rig_pass_ms(&r, 2000);
        oc_objects_tick(r.s);
    }
    assert_int_equal(rig_count_values(&r), 1);
    rig_done(&r);
}

static void test_sizes(void **state) {
    (void)state;
    for (int sync = OC_SYNC_NONE; sync <= OC_SYNC_ALWAYS; sync++) {
        sizes_survive((enum oc_sync_mode)sync, false);
        sizes_survive((enum oc_sync_mode)sync, true);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
