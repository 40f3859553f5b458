/* What a start makes of what it finds: torn tails, flipped bits, checkpoints good and bad,
 * directories that are not ours. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rig.h"

#define KEYS 40

static void key_of(size_t i, char ret[32]) {
    (void)snprintf(ret, 32, "recovery-%03zu", i);
}

static size_t len_of(size_t i) {
    return i % 7 == 0 ? 5000 : i * 13 % 300;
}

static void put_keys(struct rig *r, size_t from, size_t to) {
    char key[32];

    for (size_t i = from; i < to; i++) {
        key_of(i, key);
        assert_int_equal(rig_put(r, key, i + 1, len_of(i)), 0);
    }
}

static size_t count_present(struct rig *r, size_t from, size_t to) {
    size_t present = 0;
    char key[32];

    for (size_t i = from; i < to; i++) {
        key_of(i, key);
        present += (size_t)rig_has(r, key, i + 1, len_of(i));
    }
    return present;
}

/* The bytes of a file, to put it back as it was. */
struct copy {
    char path[512];
    uint8_t *bytes;
    size_t len;
};

static void copy_of(struct copy *c, const char *path) {
    (void)snprintf(c->path, sizeof c->path, "%s", path);
    c->len = (size_t)rig_file_size(path);
    c->bytes = malloc(c->len + 1);
    assert_non_null(c->bytes);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(c->bytes, 1, c->len, f), c->len);
    (void)fclose(f);
}

static void put_back(struct copy *c) {
    rig_write_file(c->path, c->bytes, c->len);
}

static void drop_newer_segments(struct rig *r, size_t keep) {
    char path[512];

    while (rig_nth_file(r, "seg", keep, path)) {
        assert_int_equal(unlink(path), 0);
    }
}

static void test_torn_tail(void **state) {
    struct copy c;
    struct rig r;
    char path[512];

    (void)state;
    rig_init(&r);
    rig_open(&r);
    put_keys(&r, 0, KEYS);
    rig_close(&r, false);
    assert_true(rig_nth_file(&r, "seg", 0, path));
    copy_of(&c, path);
    /* The last record, key 39, has 32 + 12 + 207 bytes and padding: 256. */
    static const size_t cuts[] = {1, 5, 6, 49, 200, 255, 256, 257, 300, 700};
    for (size_t k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
        rig_truncate(path, c.len - cuts[k]);
        rig_open(&r);
        size_t lost = KEYS - count_present(&r, 0, KEYS);
        /* Padding is not data: up to 5 bytes of it may be missing. But then the record does not end
         * where it should, and counts as torn. */
        size_t want = cuts[k] <= 256 ? 1 : cuts[k] == 257 || cuts[k] == 300 ? 2 : 0;
        if (want != 0) {
            assert_int_equal(lost, want);
        } else {
            assert_in_range(lost, 2, 5);
        }
        /* What is written now is found by the next start, behind the tear. */
        assert_int_equal(rig_put(&r, "behind", 77, 1000), 0);
        rig_reopen(&r, false);
        rig_expect(&r, "behind", 77, 1000);
        assert_int_equal(KEYS - count_present(&r, 0, KEYS), lost);
        rig_close(&r, false);
        drop_newer_segments(&r, 1);
        put_back(&c);
    }
    free(c.bytes);
    rig_done(&r);
}

/* One flipped byte costs one key, and never shows other bytes. */
static void test_flipped_bytes_in_a_segment(void **state) {
    struct copy c;
    struct rig r;
    char path[512];
    size_t losses = 0, rounds = 0;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    put_keys(&r, 0, KEYS);
    rig_close(&r, false);
    assert_true(rig_nth_file(&r, "seg", 0, path));
    copy_of(&c, path);
    for (size_t at = OC_SEG_HEADER_BYTES; at < c.len; at += 397) {
        rig_flip(path, at, (uint8_t)(1u << at % 8));
        rig_open(&r);
        size_t lost = KEYS - count_present(&r, 0, KEYS);
        assert_in_range(lost, 0, 1);
        losses += lost;
        rounds++;
        rig_close(&r, false);
        drop_newer_segments(&r, 1);
        put_back(&c);
    }
    /* Only padding may be hit without a loss, and that is less than a twentieth of these bytes. */
    assert_true(losses * 10 > rounds * 9);
    /* A damaged header hides the whole segment; nothing else. */
    rig_flip(path, 20, 4);
    rig_open(&r);
    assert_int_equal(count_present(&r, 0, KEYS), 0);
    put_keys(&r, 0, KEYS);
    rig_reopen(&r, false);
    assert_int_equal(count_present(&r, 0, KEYS), KEYS);
    free(c.bytes);
    rig_done(&r);
}

/* A value that was damaged while the store runs: a miss that is counted, and the deletion of such a
 * key is still written down. */
static void test_lost_entry(void **state) {
    struct oc_objects_stats st;
    struct rig r;
    char path[512];

    (void)state;
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(rig_put(&r, "k", 1, 1000), 0);
    assert_int_equal(rig_put(&r, "k", 2, 1000), 0);
    assert_true(rig_nth_file(&r, "seg", 0, path));
    rig_flip(path, rig_file_size(path) - 500, 1);
    assert_int_equal(rig_has(&r, "k", 2, 1000), 0);
    rig_expect_missing(&r, "k");
    oc_objects_stats(r.s, &st);
    assert_int_equal(st.lost_entries, 1);
    assert_true(st.corrupt_records >= 1);
    rig_reopen(&r, false);
    assert_int_equal(rig_has(&r, "k", 2, 1000), 0); /* not the older value either */
    assert_int_equal(rig_delete(&r, "k"), 0);
    rig_reopen(&r, true);
    rig_expect_missing(&r, "k");
    rig_done(&r);
}

static void test_damaged_value_file(void **state) {
    struct rig r;
    char path[512], sub[16];

    (void)state;
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(rig_put(&r, "large", 3, 1 << 20), 0);
    bool found = false;
    for (unsigned i = 0; i < 256 && !found; i++) {
        (void)snprintf(sub, sizeof sub, "val/%02x", i);
        found = rig_nth_file(&r, sub, 0, path);
    }
    assert_true(found);
    rig_flip(path, 600000, 8);
    assert_int_equal(rig_has(&r, "large", 3, 1 << 20), 0);
    rig_expect_missing(&r, "large");
    assert_int_equal(rig_put(&r, "large", 4, 1 << 20), 0);
    rig_expect(&r, "large", 4, 1 << 20);
    rig_close(&r, false);
    /* And one that is gone. */
    found = false;
    for (unsigned i = 0; i < 256; i++) {
        (void)snprintf(sub, sizeof sub, "val/%02x", i);
        while (rig_nth_file(&r, sub, 0, path)) {
            assert_int_equal(unlink(path), 0);
        }
    }
    rig_open(&r);
    assert_int_equal(rig_has(&r, "large", 4, 1 << 20), 0);
    rig_done(&r);
}

/* ---- checkpoints ---- */

static void grow(struct rig *r, size_t bytes) {
    for (size_t n = 0; n < bytes; n += 100000) {
        assert_int_equal(rig_put(r, "filler", n, 100000), 0);
    }
}

static void test_checkpoint_and_tail(void **state) {
    struct oc_objects_stats st;
    struct rig r;
    char path[512];

    (void)state;
    rig_init(&r);
    r.cfg.checkpoint_bytes = 2 << 20;
    rig_open(&r);
    put_keys(&r, 0, KEYS / 2);
    assert_int_equal(rig_put(&r, "gone", 1, 10), 0);
    assert_int_equal(rig_put(&r, "large", 9, 700000), 0);
    grow(&r, 3 << 20);
    oc_objects_tick(r.s);
    oc_objects_stats(r.s, &st);
    assert_int_equal(st.checkpoints, 1);
    put_keys(&r, KEYS / 2, KEYS);
    assert_int_equal(rig_delete(&r, "gone"), 0);
    rig_path(&r, "checkpoint.new", path);
    rig_write_file(path, "half a checkpoint", 17);
    rig_reopen(&r, false);
    assert_int_equal(access(path, F_OK), -1);
    oc_objects_stats(r.s, &st);
    /* The tail only: the second half of the keys and the deletion. */
    assert_int_equal(st.recovered_records, KEYS / 2 + 1);
    assert_int_equal(count_present(&r, 0, KEYS), KEYS);
    rig_expect(&r, "large", 9, 700000);
    rig_expect_missing(&r, "gone");
    rig_reopen(&r, true);
    oc_objects_stats(r.s, &st);
    assert_int_equal(st.recovered_records, 0);
    assert_int_equal(count_present(&r, 0, KEYS), KEYS);
    rig_expect(&r, "large", 9, 700000);
    rig_done(&r);
}

static void test_corrupt_checkpoint(void **state) {
    struct copy c;
    struct rig r;
    char path[512];

    (void)state;
    rig_init(&r);
    rig_open(&r);
    put_keys(&r, 0, KEYS);
    assert_int_equal(rig_put(&r, "large", 9, 700000), 0);
    assert_int_equal(rig_put(&r, "gone", 1, 10), 0);
    assert_int_equal(rig_delete(&r, "gone"), 0);
    rig_close(&r, true);
    rig_path(&r, "checkpoint", path);
    copy_of(&c, path);
    for (size_t at = 0; at < c.len + 100; at += 101) {
        if (at < c.len) {
            rig_flip(path, at, (uint8_t)(1u << at % 8));
        } else {
            rig_truncate(path, c.len - 1);
        }
        struct oc_objects_stats st;
        rig_open(&r);
        assert_int_equal(count_present(&r, 0, KEYS), KEYS);
        rig_expect(&r, "large", 9, 700000);
        rig_expect_missing(&r, "gone");
        oc_objects_stats(r.s, &st);
        assert_int_equal(st.keys, KEYS + 1);
        rig_close(&r, false);
        put_back(&c);
    }
    assert_int_equal(unlink(path), 0);
    rig_open(&r);
    assert_int_equal(count_present(&r, 0, KEYS), KEYS);
    rig_expect_missing(&r, "gone");
    free(c.bytes);
    rig_done(&r);
}

/* Another number of shards than the checkpoint was written with, other thread counts. */
static void test_other_shards_and_threads(void **state) {
    struct oc_objects_stats st;
    struct rig r;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    put_keys(&r, 0, KEYS);
    for (unsigned shards = 1; shards <= 256; shards *= 4) {
        r.cfg.shards = shards;
        r.cfg.recovery_threads = shards % 3 + 1;
        rig_reopen(&r, true);
        oc_objects_stats(r.s, &st);
        assert_int_equal(st.keys, KEYS);
        assert_int_equal(count_present(&r, 0, KEYS), KEYS);
        assert_int_equal(rig_put(&r, "one more, so that a checkpoint is due", shards, 3), 0);
        assert_int_equal(rig_delete(&r, "one more, so that a checkpoint is due"), 0);
    }
    rig_done(&r);
}

/* ---- a system that has no more threads (the linker sends the calls here) ---- */

static int threads_left = -1; /* negative: no limit */

int __real_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg) {
    if (threads_left == 0) {
        return EAGAIN;
    }
    threads_left -= threads_left > 0;
    return __real_pthread_create(ret, attr, fn, arg);
}

/* Whoever has to load with fewer threads than it wanted loads everything all the same, from the
 * checkpoint as from the log, and takes no value file for an orphan. */
static void test_fewer_threads_than_wanted(void **state) {
    struct oc_objects_stats st;
    struct rig r;

    (void)state;
    rig_init(&r);
    r.cfg.recovery_threads = 4;
    rig_open(&r);
    put_keys(&r, 0, KEYS);
    assert_int_equal(rig_put(&r, "large", 77, 600000), 0);
    for (int left = 0; left < 3; left++) {
        for (int clean = 0; clean < 2; clean++) {
            rig_close(&r, clean == 1);
            threads_left = left;
            rig_open(&r);
            threads_left = -1;
            oc_objects_stats(r.s, &st);
            assert_int_equal(st.keys, KEYS + 1);
            assert_int_equal(st.corrupt_records, 0);
            assert_int_equal(count_present(&r, 0, KEYS), KEYS);
            rig_expect(&r, "large", 77, 600000);
            assert_int_equal(rig_put(&r, "one more", (uint64_t)left, 3), 0);
            assert_int_equal(rig_delete(&r, "one more"), 0);
        }
    }
    rig_done(&r);
}

/* Many segments, with footers and without, read by several threads. */
static void test_many_segments(void **state) {
    struct oc_objects_stats st;
    struct rig r;
    char key[32];

    (void)state;
    rig_init(&r);
    r.cfg.checkpoint_bytes = UINT64_C(1) << 40; /* none but at a clean end */
    r.cfg.recovery_threads = 3;
    rig_open(&r);
    for (size_t i = 0; i < 200; i++) {
        key_of(i % 120, key);
        assert_int_equal(rig_put(&r, key, 1000 + i, 50000 + i), 0);
        if (i == 100) {
            oc_objects_tick(r.s);
        }
    }
    for (int round = 0; round < 3; round++) {
        rig_reopen(&r, false);
        oc_objects_stats(r.s, &st);
        assert_int_equal(st.keys, 120);
        assert_int_equal(st.recovered_records, 200);
        for (size_t i = 80; i < 200; i++) {
            key_of(i % 120, key);
            rig_expect(&r, key, 1000 + i, 50000 + i);
        }
        oc_objects_tick(r.s);
    }
    rig_done(&r);
}

/* ---- directories that are not ours ---- */

static void expect_refused(struct rig *r, int code, const char *named) {
    struct oc_error err = {0};

    assert_int_equal(rig_try_open(r, &err), code);
    if (strstr(err.msg, named) == NULL) {
        fail_msg("'%s' does not name %s", err.msg, named);
    }
}

static void test_foreign_directory(void **state) {
    struct rig r;
    char path[512];

    (void)state;
    rig_init(&r);
    rig_path(&r, "holiday.jpg", path);
    rig_write_file(path, "jpeg", 4);
    expect_refused(&r, OC_E_PRECONDITION, "holiday.jpg");
    assert_int_equal(rig_file_size(path), 4);
    assert_int_equal(rig_count_files(&r, ""), 2); /* it and LOCK: nothing was made */
    rig_path(&r, "seg", path);
    assert_int_equal(access(path, F_OK), -1);
    rig_path(&r, "holiday.jpg", path);
    assert_int_equal(unlink(path), 0);
    rig_path(&r, "photos", path);
    assert_int_equal(mkdir(path, 0755), 0);
    expect_refused(&r, OC_E_PRECONDITION, "photos");
    assert_int_equal(rig_count_files(&r, ""), 1);
    rig_path(&r, "seg", path);
    assert_int_equal(access(path, F_OK), -1);
    rig_path(&r, "photos", path);
    assert_int_equal(rmdir(path), 0);
    /* What a file system makes for itself is nobody's. */
    rig_path(&r, "lost+found", path);
    assert_int_equal(mkdir(path, 0755), 0);
    rig_open(&r);
    rig_close(&r, true);
    rig_path(&r, "holiday.jpg", path);
    /* In a directory of ours a stranger is left alone. */
    rig_write_file(path, "jpeg", 4);
    rig_path(&r, "seg/notes.txt", path);
    rig_write_file(path, "text", 4);
    rig_open(&r);
    assert_int_equal(rig_put(&r, "k", 1, 10), 0);
    rig_reopen(&r, true);
    rig_expect(&r, "k", 1, 10);
    assert_int_equal(rig_file_size(path), 4);
    rig_done(&r);
}

/* Without FORMAT nobody knows whose the values are: a start must not take them for orphans. */
static void test_values_without_format(void **state) {
    struct rig r;
    char path[512];

    (void)state;
    rig_init(&r);
    rig_open(&r);
    rig_close(&r, true);
    rig_path(&r, "FORMAT", path);
    assert_int_equal(unlink(path), 0);
    rig_path(&r, "CLOCK", path);
    assert_int_equal(unlink(path), 0);
    rig_path(&r, "checkpoint", path);
    (void)unlink(path); /* an empty store may have none */
    rig_path(&r, "val/ab/00000000000000ab.val", path);
    rig_write_file(path, "value", 5);
    expect_refused(&r, OC_E_PRECONDITION, "val/ab/00000000000000ab.val");
    assert_int_equal(rig_file_size(path), 5);
    assert_int_equal(unlink(path), 0);
    rig_open(&r); /* only empty directories are left, as an interrupted creation leaves them */
    rig_done(&r);
}

static void test_newer_format(void **state) {
    struct rig r;
    char path[512];

    (void)state;
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(rig_put(&r, "k", 1, 10), 0);
    rig_close(&r, true);
    rig_path(&r, "FORMAT", path);
    rig_write_file(path, "ocache objects 2\n", 17);
    expect_refused(&r, OC_E_UNIMPLEMENTED, "format 2");
    rig_write_file(path, "ocache objects 17\n", 18);
    expect_refused(&r, OC_E_UNIMPLEMENTED, "format 17");
    assert_int_equal(rig_file_size(path), 18);
    rig_write_file(path, "orbitkv blocks 1\n", 17);
    expect_refused(&r, OC_E_PRECONDITION, "orbitkv blocks 1");
    /* One bit that is not as it should be is put right. */
    rig_write_file(path, "ocache objects 1\n", 17);
    rig_flip(path, 3, 4);
    rig_open(&r);
    rig_expect(&r, "k", 1, 10);
    rig_reopen(&r, true);
    rig_expect(&r, "k", 1, 10);
    rig_done(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torn_tail),
        cmocka_unit_test(test_flipped_bytes_in_a_segment),
        cmocka_unit_test(test_lost_entry),
        cmocka_unit_test(test_damaged_value_file),
        cmocka_unit_test(test_checkpoint_and_tail),
        cmocka_unit_test(test_corrupt_checkpoint),
        cmocka_unit_test(test_other_shards_and_threads),
        cmocka_unit_test(test_fewer_threads_than_wanted),
        cmocka_unit_test(test_many_segments),
        cmocka_unit_test(test_foreign_directory),
        cmocka_unit_test(test_values_without_format),
        cmocka_unit_test(test_newer_format),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
