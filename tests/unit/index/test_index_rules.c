/* The contract of index.h, clause by clause. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "core/index/node.h"
#include "model.h"

static struct oc_entry entry_of(uint64_t version) {
    return (struct oc_entry){.version = version, .value_len = version * 10, .segment = 3};
}

static int put(struct oc_index *ix, const char *key, uint64_t version) {
    struct oc_entry e = entry_of(version);

    return oc_index_apply(ix, oc_span_str(key), &e, NULL, NULL);
}

static uint64_t version_of(const struct oc_index *ix, const char *key) {
    struct oc_entry e;

    return oc_index_find(ix, oc_span_str(key), &e) ? e.version : 0;
}

static void test_apply_greater_only(void **state) {
    struct oc_index *ix = oc_index_new();
    struct oc_entry e = entry_of(5);
    struct oc_entry old = {0};
    bool present = true;

    (void)state;
    assert_int_equal(oc_index_apply(ix, OC_SPAN_LIT("k"), &e, &old, &present), 1);
    assert_false(present);
    assert_int_equal(put(ix, "k", 5), 0);
    assert_int_equal(put(ix, "k", 4), 0);
    assert_int_equal(version_of(ix, "k"), 5);
    e = entry_of(6);
    e.flags = OC_ENTRY_TOMBSTONE;
    assert_int_equal(oc_index_apply(ix, OC_SPAN_LIT("k"), &e, &old, &present), 1);
    assert_true(present);
    assert_int_equal(old.version, 5);
    assert_int_equal(old.value_len, 50);
    /* The tombstone counts as there: an older write arriving late is refused. */
    e = entry_of(5);
    assert_int_equal(oc_index_apply(ix, OC_SPAN_LIT("k"), &e, &old, &present), 0);
    assert_true(present);
    assert_int_equal(old.version, 6);
    assert_int_equal(old.flags, OC_ENTRY_TOMBSTONE);
    assert_int_equal(version_of(ix, "k"), 6);
    oc_index_free(ix);
}

static void test_bounds_refused(void **state) {
    static uint8_t key[OC_INDEX_KEY_MAX + 1];
    struct oc_index *ix = oc_index_new();
    struct oc_entry e = entry_of(1);
    struct oc_index_loader *l = oc_index_loader_new(ix);

    (void)state;
    assert_int_equal(oc_index_apply(ix, oc_span(key, sizeof key), &e, NULL, NULL), OC_E_INVALID);
    assert_int_equal(oc_index_loader_add(l, oc_span(key, sizeof key), &e), OC_E_INVALID);
    e.value_len = 1ull << 48;
    assert_int_equal(oc_index_apply(ix, oc_span(key, 3), &e, NULL, NULL), OC_E_INVALID);
    e.value_len = (1ull << 48) - 1;
    assert_int_equal(oc_index_apply(ix, oc_span(key, 3), &e, NULL, NULL), 1);
    e.value_len = 0;
    assert_int_equal(oc_index_apply(ix, oc_span(key, OC_INDEX_KEY_MAX), &e, NULL, NULL), 1);
    assert_true(oc_index_find(ix, oc_span(key, 3), &e));
    assert_int_equal(e.value_len, (1ull << 48) - 1);
    assert_false(oc_index_find(ix, oc_span(key, sizeof key), &e));
    assert_false(oc_index_remove(ix, oc_span(key, sizeof key), 1));
    assert_int_equal(oc_index_loader_done(l), 0);
    oc_index_validate(ix);
    oc_index_free(ix);
}

static void test_update_and_remove_want_the_version(void **state) {
    struct oc_index *ix = oc_index_new();
    struct oc_entry e = entry_of(7);

    (void)state;
    assert_false(oc_index_update(ix, OC_SPAN_LIT("k"), 7, &e));
    assert_false(oc_index_remove(ix, OC_SPAN_LIT("k"), 7));
    assert_int_equal(put(ix, "k", 7), 1);
    e.flags = OC_ENTRY_LOST;
    e.segment = 99;
    assert_false(oc_index_update(ix, OC_SPAN_LIT("k"), 6, &e));
    assert_true(oc_index_update(ix, OC_SPAN_LIT("k"), 7, &e));
    assert_true(oc_index_find(ix, OC_SPAN_LIT("k"), &e));
    assert_int_equal(e.segment, 99);
    assert_int_equal(e.flags, OC_ENTRY_LOST);
    e.version = 8;
    assert_false(oc_index_update(ix, OC_SPAN_LIT("k"), 7, &e));
    assert_false(oc_index_remove(ix, OC_SPAN_LIT("k"), 8));
    assert_int_equal(version_of(ix, "k"), 7);
    assert_true(oc_index_remove(ix, OC_SPAN_LIT("k"), 7));
    assert_int_equal(version_of(ix, "k"), 0);
    oc_index_validate(ix);
    oc_index_free(ix);
}

/* ---- walk ---- */

struct collect {
    char text[256];
    size_t limit;
    size_t n;
};

/* "<hex>," per key. */
static int collect_each(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct collect *c = arg;
    size_t at = strlen(c->text);

    (void)e;
    for (size_t i = 0; i < key.len; i++) {
        at += (size_t)snprintf(c->text + at, sizeof c->text - at, "%02x", key.p[i]);
    }
    (void)snprintf(c->text + at, sizeof c->text - at, ",");
    return ++c->n == c->limit;
}

static void test_walk_boundaries(void **state) {
    static const struct oc_span keys[] = {
        OC_SPAN_LIT("\xff\xff"), OC_SPAN_LIT("a"),  OC_SPAN_LIT(""),    OC_SPAN_LIT("\0\0"),
        OC_SPAN_LIT("ab"),       OC_SPAN_LIT("\0"), OC_SPAN_LIT("a\0"), OC_SPAN_LIT("\xff"),
    };
    static const struct {
        struct oc_span from;
        bool exclusive;
        size_t limit;
        const char *want;
    } cases[] = {
        {OC_SPAN_LIT(""), false, 0, ",00,0000,61,6100,6162,ff,ffff,"},
        {OC_SPAN_LIT(""), true, 0, "00,0000,61,6100,6162,ff,ffff,"},
        {OC_SPAN_LIT(""), false, 2, ",00,"},
        {OC_SPAN_LIT("\0"), true, 2, "0000,61,"},
        {OC_SPAN_LIT("\0\0\0"), false, 1, "61,"},
        {OC_SPAN_LIT("a"), false, 2, "61,6100,"},
        {OC_SPAN_LIT("a"), true, 2, "6100,6162,"},
        {OC_SPAN_LIT("a\0\0"), true, 1, "6162,"},
        {OC_SPAN_LIT("b"), false, 0, "ff,ffff,"},
        {OC_SPAN_LIT("\xff\xff"), false, 0, "ffff,"},
        {OC_SPAN_LIT("\xff\xff"), true, 0, ""},
        {OC_SPAN_LIT("\xff\xff\x00"), false, 0, ""},
    };
    struct oc_index *ix = oc_index_new();
    struct oc_entry e = entry_of(1);
    struct collect none = {0};

    (void)state;
    oc_index_walk(ix, OC_SPAN_EMPTY, false, collect_each, &none);
    assert_int_equal(none.n, 0);
    for (size_t i = 0; i < OC_ARRAY_LEN(keys); i++) {
        assert_int_equal(oc_index_apply(ix, keys[i], &e, NULL, NULL), 1);
        oc_index_validate(ix);
    }
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        struct collect c = {.limit = cases[i].limit};

        oc_index_walk(ix, cases[i].from, cases[i].exclusive, collect_each, &c);
        assert_string_equal(c.text, cases[i].want);
    }
    oc_index_free(ix);
}

/* ---- sweep ---- */

#define SWEEP_KEYS 20000u

struct visits {
    uint8_t seen[SWEEP_KEYS];
    unsigned n;
};

static unsigned number_of(struct oc_span key) {
    char text[16] = {0};

    memcpy(text, key.p, key.len);
    return (unsigned)strtoul(text, NULL, 10);
}

static int visit_each(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct visits *v = arg;
    unsigned i = number_of(key);

    v->seen[i]++;
    v->n++;
    return i % 5 == 1 ? OC_SWEEP_REMOVE : (e->version == 2 ? OC_SWEEP_STOP : OC_SWEEP_NEXT);
}

static void number_key(char *buf, size_t size, unsigned i) {
    (void)snprintf(buf, size, "%08u", i);
}

/* Even keys are there throughout, odd ones come and go between slices. */
static void test_sweep_while_it_changes(void **state) {
    struct oc_index *ix = oc_index_new();
    struct oc_index_cursor *c = calloc(1, sizeof *c);
    struct visits *v = calloc(1, sizeof *v);
    struct oc_rng rng;
    char key[16];

    (void)state;
    oc_rng_init(&rng, 3);
    for (unsigned i = 0; i < SWEEP_KEYS; i += 2) {
        number_key(key, sizeof key, i);
        assert_int_equal(put(ix, key, 1), 1);
    }
    assert_int_equal(oc_index_sweep(ix, c, 0, visit_each, v), 0);
    assert_false(c->done);
    while (!c->done) {
        size_t visited = oc_index_sweep(ix, c, 37, visit_each, v);

        assert_true(visited <= 37);
        assert_true(visited == 37 || c->done);
        for (unsigned i = 0; i < 30; i++) {
            number_key(key, sizeof key, (unsigned)oc_rng_below(&rng, SWEEP_KEYS / 2) * 2 + 1);
            if (!oc_index_remove(ix, oc_span_str(key), 1)) {
                assert_int_equal(put(ix, key, 1), 1);
            }
        }
    }
    oc_index_validate(ix);
    for (unsigned i = 0; i < SWEEP_KEYS; i++) {
        number_key(key, sizeof key, i);
        assert_true(i % 2 == 0 ? v->seen[i] == 1 : v->seen[i] <= 1);
        if (i % 2 == 0) {
            assert_int_equal(version_of(ix, key), i % 5 == 1 ? 0 : 1);
        }
    }
    /* Done stays done until it is reset. */
    assert_int_equal(oc_index_sweep(ix, c, 10, visit_each, v), 0);
    oc_index_cursor_reset(c);
    assert_int_equal(oc_index_sweep(ix, c, 10, visit_each, v), 10);
    oc_index_free(ix);
    free(c);
    free(v);
}

static void test_sweep_stops(void **state) {
    struct oc_index *ix = oc_index_new();
    struct oc_index_cursor *c = calloc(1, sizeof *c);
    struct visits *v = calloc(1, sizeof *v);

    (void)state;
    assert_int_equal(put(ix, "2", 1), 1);
    assert_int_equal(put(ix, "3", 2), 1);
    assert_int_equal(put(ix, "4", 1), 1);
    assert_int_equal(oc_index_sweep(ix, c, 100, visit_each, v), 2);
    assert_false(c->done);
    assert_int_equal(oc_index_sweep(ix, c, 100, visit_each, v), 1);
    assert_true(c->done);
    oc_index_free(ix);
    free(c);
    free(v);
}

/* ---- loader ---- */

static double keys_per_leaf(const struct oc_index *ix) {
    return (double)oc_slabs_count(&ix->slabs, OC_SLAB_ITEM) /
           (double)oc_slabs_count(&ix->slabs, OC_SLAB_LEAF);
}

static void load_rows(struct oc_index *ix, const struct model *m, size_t from, size_t to) {
    struct oc_index_loader *l = oc_index_loader_new(ix);

    assert_non_null(l);
    for (size_t i = from; i < to; i++) {
        const struct model_row *row = &m->rows[i];

        assert_int_equal(oc_index_loader_add(l, oc_span(row->key, row->len), &row->e), 0);
        if (i % 1000 == 0) {
            oc_index_validate(ix); /* what is there is complete at any time */
        }
    }
    assert_int_equal(oc_index_loader_done(l), 0);
}

static void test_loader_is_apply(void **state) {
    (void)state;
    for (unsigned shape = 0; shape < SHAPES; shape++) {
        struct oc_index *ix = oc_index_new();
        uint8_t *buf = malloc(OC_INDEX_KEY_MAX);
        struct model m = {0};
        struct oc_rng rng;

        oc_rng_init(&rng, shape);
        for (unsigned i = 0; i < 12000; i++) {
            struct oc_entry e = entry_make(&rng, 1000);

            (void)model_apply(&m, key_make(&rng, shape, buf), &e); /* either answer is fine */
        }
        load_rows(ix, &m, 0, m.n);
        oc_index_validate(ix);
        model_compare(&m, ix);
        if (m.n > 5000) {
            assert_true(keys_per_leaf(ix) > 52.0);
        }
        oc_index_free(ix);
        model_done(&m);
        free(buf);
    }
}

static void test_loader_out_of_order(void **state) {
    static const char *const keys[] = {"m", "n", "o", "o", "b", "p", "a", "o", "q", "q"};
    struct oc_index *ix = oc_index_new();
    struct oc_index_loader *l = oc_index_loader_new(ix);
    struct collect c = {0};

    (void)state;
    for (unsigned i = 0; i < OC_ARRAY_LEN(keys); i++) {
        struct oc_entry e = entry_of(100 - i);

        assert_int_equal(oc_index_loader_add(l, oc_span_str(keys[i]), &e), 0);
    }
    assert_int_equal(oc_index_loader_done(l), 0);
    oc_index_validate(ix);
    oc_index_walk(ix, OC_SPAN_EMPTY, false, collect_each, &c);
    assert_string_equal(c.text, "61,62,6d,6e,6f,70,71,");
    assert_int_equal(version_of(ix, "o"), 98); /* the later one was older */
    oc_index_free(ix);
}

/* Behind keys that are there: the rest of the rows joins at the right edge. */
static void test_loader_continues(void **state) {
    struct oc_index *ix = oc_index_new();
    struct model m = {0};
    struct oc_rng rng;
    uint8_t buf[300];

    (void)state;
    oc_rng_init(&rng, 5);
    for (unsigned i = 0; i < 9000; i++) {
        struct oc_entry e = entry_make(&rng, 1000);

        assert_int_equal(model_apply(&m, key_make(&rng, SHAPE_RANDOM, buf), &e) >= 0, 1);
    }
    for (size_t i = 0; i < m.n / 2; i++) {
        struct model_row *row = &m.rows[i];

        assert_int_equal(oc_index_apply(ix, oc_span(row->key, row->len), &row->e, NULL, NULL), 1);
    }
    load_rows(ix, &m, m.n / 2, m.n);
    oc_index_validate(ix);
    model_compare(&m, ix);
    oc_index_free(ix);
    model_done(&m);
}

/* ---- order of insertion and fill ---- */

static void test_ascending_fills_leaves(void **state) {
    struct oc_index *ix = oc_index_new();
    struct oc_index *runs = oc_index_new();
    char key[32];

    (void)state;
    for (unsigned i = 0; i < 30000; i++) {
        (void)snprintf(key, sizeof key, "%08u", i);
        assert_int_equal(put(ix, key, 1), 1);
        /* Thirty sequences in turns of a thousand: each at its own place. */
        (void)snprintf(key, sizeof key, "%02u/%08u", i / 1000 % 3 * 10 + i / 3000, i);
        assert_int_equal(put(runs, key, 1), 1);
    }
    oc_index_validate(ix);
    oc_index_validate(runs);
    assert_true(keys_per_leaf(ix) > 55.0);
    assert_true(keys_per_leaf(runs) > 50.0);
    oc_index_free(ix);
    oc_index_free(runs);
}

static void test_descending_and_random_fill(void **state) {
    struct oc_index *down = oc_index_new();
    struct oc_index *random = oc_index_new();
    struct oc_rng rng;
    char key[32];

    (void)state;
    oc_rng_init(&rng, 11);
    for (unsigned i = 0; i < 50000; i++) {
        (void)snprintf(key, sizeof key, "%08u", 99999 - i);
        assert_int_equal(put(down, key, 1), 1);
        (void)snprintf(key, sizeof key, "%016llx", (unsigned long long)oc_rng_next(&rng));
        assert_int_equal(put(random, key, 1), 1);
    }
    oc_index_validate(down);
    oc_index_validate(random);
    assert_true(keys_per_leaf(down) > 0.6 * OC_LEAF_SLOTS);
    assert_true(keys_per_leaf(random) > 0.8 * OC_LEAF_SLOTS);
    oc_index_free(down);
    oc_index_free(random);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_apply_greater_only),
        cmocka_unit_test(test_bounds_refused),
        cmocka_unit_test(test_update_and_remove_want_the_version),
        cmocka_unit_test(test_walk_boundaries),
        cmocka_unit_test(test_sweep_while_it_changes),
        cmocka_unit_test(test_sweep_stops),
        cmocka_unit_test(test_loader_is_apply),
        cmocka_unit_test(test_loader_out_of_order),
        cmocka_unit_test(test_loader_continues),
        cmocka_unit_test(test_ascending_fills_leaves),
        cmocka_unit_test(test_descending_and_random_fill),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
