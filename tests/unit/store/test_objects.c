/* The store's promises in normal running and over restarts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "store/store.h" /* only for the inside of an upload */

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

/* ---- batches ---- */

#define MANY 3000 /* more records than one vector or one staging round takes */

static void test_large_batch(void **state) {
    struct oc_write *w = calloc(MANY, sizeof *w);
    char(*keys)[32] = calloc(MANY, sizeof *keys);
    uint8_t *bytes = malloc(8192);
    struct oc_batch b;
    struct rig r;

    (void)state;
    assert_true(w != NULL && keys != NULL && bytes != NULL);
    rig_init(&r);
    rig_open(&r);
    oc_batch_init(&b);
    for (size_t i = 0; i < MANY; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "batch-%zu", i);
        /* Small values are copied, large ones go out from where they are; all have these bytes. */
        rig_fill(5, bytes, 8192);
        w[i].key = oc_span_str(keys[i]);
        w[i].value = (struct oc_slice){.p = bytes, .len = i % 3 == 0 ? 8192 : i % 100};
        oc_batch_add(&b, &w[i]);
    }
    assert_int_equal(b.count, MANY);
    assert_int_equal(oc_objects_commit(r.s, &b), 0);
    assert_int_equal(b.count, 0);
    for (int round = 0; round < 2; round++) {
        uint64_t last = 0;

        for (size_t i = 0; i < MANY; i++) {
            assert_int_equal(w[i].result, 0);
            assert_true(w[i].version > last);
            last = w[i].version;
            rig_expect(&r, keys[i], 5, w[i].value.len);
        }
        rig_reopen(&r, false);
    }
    rig_done(&r);
    free(w);
    free(keys);
    free(bytes);
}

static void test_order_in_a_batch(void **state) {
    static const char k[] = "k";
    struct oc_write w[4] = {
        {.key = oc_span_str(k), .value = {.p = (const uint8_t *)"one", .len = 3}},
        {.key = oc_span_str(k), .is_delete = true},
        {.key = oc_span_str(k), .value = {.p = (const uint8_t *)"three", .len = 5}},
        {.key = oc_span_str(k), .is_delete = true},
    };
    struct oc_batch b;
    struct oc_object obj;
    struct rig r;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    for (size_t count = 1; count <= 4; count++) {
        oc_batch_init(&b);
        for (size_t i = 0; i < count; i++) {
            oc_batch_add(&b, &w[i]);
        }
        assert_int_equal(oc_objects_commit(r.s, &b), 0);
        for (int round = 0; round < 2; round++) {
            int rc = oc_objects_find(r.s, oc_span_str(k), &obj);

            assert_int_equal(rc, count % 2 == 1 ? 0 : OC_E_NOT_FOUND);
            if (rc == 0) {
                assert_int_equal(obj.len, count == 1 ? 3 : 5);
            }
            rig_reopen(&r, false);
        }
    }
    rig_done(&r);
}

static void test_bad_writes(void **state) {
    static uint8_t big[OC_INLINE_MAX + 1];
    struct oc_write w[4] = {
        {.key = OC_SPAN_EMPTY, .value = {.p = big, .len = 1}},
        {.key = oc_span_str("a"), .value = {.p = big, .len = sizeof big}},
        {.key = oc_span(big, OC_KEY_MAX + 1), .value = {.p = big, .len = 1}},
        {.key = oc_span_str("good"), .value = {.p = big, .len = 1}},
    };
    struct oc_batch b;
    struct rig r;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    oc_batch_init(&b);
    for (size_t i = 0; i < 4; i++) {
        oc_batch_add(&b, &w[i]);
    }
    assert_int_equal(oc_objects_commit(r.s, &b), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(w[i].result, OC_E_INVALID);
    }
    assert_int_equal(w[3].result, 0);
    rig_expect_missing(&r, "a");
    rig_done(&r);
}

static void test_longest_key(void **state) {
    char *key = malloc(OC_KEY_MAX + 1);
    struct rig r;

    (void)state;
    assert_non_null(key);
    memset(key, 'k', OC_KEY_MAX);
    key[OC_KEY_MAX] = '\0';
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(rig_put(&r, key, 1, OC_INLINE_MAX), 0);
    rig_expect(&r, key, 1, OC_INLINE_MAX);
    assert_int_equal(rig_put(&r, key, 2, 300000), 0);
    rig_expect(&r, key, 2, 300000);
    rig_reopen(&r, false);
    rig_expect(&r, key, 2, 300000);
    rig_reopen(&r, true);
    rig_expect(&r, key, 2, 300000);
    rig_done(&r);
    free(key);
}

/* ---- deletion ---- */

static void test_delete_of_absent_writes_nothing(void **state) {
    struct oc_objects_stats before, after;
    struct rig r;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(rig_put(&r, "there", 1, 10), 0);
    oc_objects_stats(r.s, &before);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(rig_delete(&r, "absent"), 0);
    }
    oc_objects_stats(r.s, &after);
    assert_int_equal(before.appended_bytes, after.appended_bytes);
    assert_int_equal(rig_delete(&r, "there"), 0);
    oc_objects_stats(r.s, &after);
    assert_true(before.appended_bytes < after.appended_bytes);
    /* Nothing older was in flight: the tombstone is not in memory any more. */
    assert_int_equal(after.tombstones, 0);
    assert_int_equal(after.keys, 0);
    rig_reopen(&r, false);
    rig_expect_missing(&r, "there");
    oc_objects_stats(r.s, &after);
    assert_int_equal(after.tombstones, 0);
    rig_done(&r);
}

/* Two batches of one key publish in the wrong order; the deletion is the newer one. */
static void test_tombstone_waits_for_older_flights(void **state) {
    struct oc_write put = {.key = oc_span_str("k"), .value = {.p = (const uint8_t *)"v", .len = 1}};
    struct oc_write del = {.key = oc_span_str("k"), .is_delete = true};
    struct oc_objects_stats st;
    struct oc_batch first, second;
    struct rig r;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    oc_batch_init(&first);
    oc_batch_init(&second);
    oc_batch_add(&first, &put);
    oc_batch_add(&second, &del);
    oc_objects_append(r.s, &first);
    oc_objects_append(r.s, &second);
    assert_int_equal(oc_objects_publish(r.s, &second), 0);
    oc_objects_stats(r.s, &st);
    assert_int_equal(st.tombstones, 1);
    oc_objects_tick(r.s);
    assert_int_equal(oc_objects_publish(r.s, &first), 0);
    rig_expect_missing(&r, "k");
    oc_objects_tick(r.s);
    oc_objects_stats(r.s, &st);
    assert_int_equal(st.tombstones, 0);
    rig_expect_missing(&r, "k");
    rig_reopen(&r, false);
    rig_expect_missing(&r, "k");
    rig_done(&r);
}

/* ---- uploads and readers ---- */

static void test_upload_rules(void **state) {
    static uint8_t chunk[OC_CHUNK_BYTES];
    struct oc_upload *u = NULL;
    struct oc_write w = {.key = oc_span_str("k")};
    struct oc_objects_stats st;
    struct oc_batch b;
    struct rig r;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(oc_upload_begin(r.s, &u, NULL), 0);
    assert_int_equal(oc_upload_write(u, chunk, sizeof chunk, NULL), 0);
    assert_int_equal(oc_upload_write(u, chunk, 10, NULL), 0);
    /* Behind a short chunk there is no other. */
    assert_int_equal(oc_upload_write(u, chunk, 10, NULL), OC_E_INVALID);
    w.upload = u;
    oc_batch_init(&b);
    oc_batch_add(&b, &w);
    assert_int_equal(oc_objects_commit(r.s, &b), 1);
    assert_int_equal(w.result, OC_E_PRECONDITION); /* not finished */
    assert_int_equal(rig_count_values(&r), 1);
    oc_upload_free(u);
    assert_int_equal(rig_count_values(&r), 0);
    oc_objects_stats(r.s, &st);
    assert_int_equal(st.value_files, 0);
    rig_expect_missing(&r, "k");
    /* An upload that a crash interrupts leaves nothing either. */
    assert_int_equal(oc_upload_begin(r.s, &u, NULL), 0);
    assert_int_equal(oc_upload_write(u, chunk, sizeof chunk, NULL), 0);
    assert_int_equal(oc_upload_finish(u, NULL), 0);
    assert_int_equal(rig_count_values(&r), 1);
    u->committed = true; /* freed without removing the file, as if the process had died */
    oc_upload_free(u);
    rig_reopen(&r, false);
    assert_int_equal(rig_put(&r, "other", 1, 1), 0);
    for (int i = 0; i < 3; i++) {
        rig_pass_ms(&r, 2000);
        oc_objects_tick(r.s);
    }
    assert_int_equal(rig_count_values(&r), 0);
    rig_done(&r);
}

static void test_reader_outlives_its_object(void **state) {
    const size_t len = 3 * OC_CHUNK_BYTES + 77;
    uint8_t *want = malloc(len), *chunk = malloc(OC_CHUNK_HEADER_BYTES + OC_CHUNK_BYTES);
    struct oc_span k = oc_span_str("k"), piece;
    struct oc_reader *reader = NULL;
    struct oc_object obj;
    struct rig r;

    (void)state;
    assert_true(want != NULL && chunk != NULL);
    rig_fill(1, want, len);
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(rig_put(&r, "k", 1, len), 0);
    assert_int_equal(oc_objects_find(r.s, k, &obj), 0);
    assert_false(oc_object_is_small(&obj));
    assert_int_equal(oc_reader_open(r.s, k, &obj, &reader, NULL), 0);
    assert_int_equal(rig_delete(&r, "k"), 0);
    for (int i = 0; i < 3; i++) {
        rig_pass_ms(&r, 2000);
        oc_objects_tick(r.s);
    }
    assert_int_equal(rig_count_values(&r), 0);
    for (uint64_t at = 5; at < len; at += piece.len) {
        assert_int_equal(oc_reader_chunk(reader, at, chunk, false, &piece), 0);
        assert_memory_equal(piece.p, want + at, piece.len);
    }
    assert_int_equal(oc_reader_chunk(reader, len, chunk, false, &piece), OC_E_RANGE);
    oc_reader_close(reader);
    /* Who comes with the old lookup finds nothing. */
    assert_int_equal(oc_reader_open(r.s, k, &obj, &reader, NULL), OC_E_NOT_FOUND);
    rig_done(&r);
    free(want);
    free(chunk);
}

static void test_open_files_are_bounded(void **state) {
    struct oc_reader *readers[20] = {NULL};
    struct oc_objects_stats st;
    struct rig r;
    char key[32];
    size_t opened = 0;

    (void)state;
    rig_init(&r);
    r.cfg.max_open_files = 16;
    rig_open(&r);
    for (size_t i = 0; i < 20; i++) {
        key_of(i, key);
        assert_int_equal(rig_put(&r, key, i, 300000), 0);
    }
    for (size_t i = 0; i < 20; i++) {
        struct oc_object obj;

        key_of(i, key);
        assert_int_equal(oc_objects_find(r.s, oc_span_str(key), &obj), 0);
        int rc = oc_reader_open(r.s, oc_span_str(key), &obj, &readers[i], NULL);
        if (rc == 0) {
            opened++;
        } else {
            assert_int_equal(rc, OC_E_EXHAUSTED);
        }
    }
    assert_true(opened >= 14 && opened <= 16);
    /* Small objects can be written and read meanwhile. */
    assert_int_equal(rig_put(&r, "small", 1, 100), 0);
    rig_expect(&r, "small", 1, 100);
    for (size_t i = 0; i < 20; i++) {
        if (readers[i] != NULL) {
            oc_reader_close(readers[i]);
        }
    }
    for (size_t i = 0; i < 20; i++) {
        key_of(i, key);
        rig_expect(&r, key, i, 300000);
    }
    oc_objects_stats(r.s, &st);
    assert_true(st.open_files <= 17);
    rig_done(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_large_batch),
        cmocka_unit_test(test_order_in_a_batch),
        cmocka_unit_test(test_bad_writes),
        cmocka_unit_test(test_longest_key),
        cmocka_unit_test(test_delete_of_absent_writes_nothing),
        cmocka_unit_test(test_tombstone_waits_for_older_flights),
        cmocka_unit_test(test_upload_rules),
        cmocka_unit_test(test_reader_outlives_its_object),
        cmocka_unit_test(test_open_files_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
