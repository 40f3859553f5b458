/* Memory: failing allocations, bytes a key, and what is left after deletions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "core/index/node.h"
#include "model.h"

/* ---- failing allocations ---- */

struct deny {
    uint64_t asked;
    uint64_t from; /* this one fails, and `more` behind it */
    uint64_t more;
};

static bool deny(void *arg) {
    struct deny *d = arg;
    uint64_t i = d->asked++;

    return i >= d->from && i <= d->from + d->more;
}

/* The script: keys of several shapes in and out, enough for three levels and every kind of split.
 */
#define SCRIPT_OPS 3600u

struct script {
    struct oc_index *ix;
    struct model m;
    struct oc_rng rng;
    struct deny d;
    unsigned failures;
    uint8_t *buf;
};

static void script_apply(struct script *s, struct oc_span key, const struct oc_entry *e) {
    struct oc_entry old = {.version = 4711};
    bool present = true;
    int rc = oc_index_apply(s->ix, key, e, &old, &present);

    if (rc == OC_E_EXHAUSTED) {
        s->failures++;
        assert_int_equal(old.version, 4711);
        /* An item refused leaves nothing to be wrong: looked at now and then. The rest always. */
        if (s->d.from > 0 || s->failures % 8 == 0 || s->m.n % 8 == 0) {
            oc_index_validate(s->ix);
            model_compare(&s->m, s->ix);
        }
        return;
    }
    assert_int_equal(rc, model_apply(&s->m, key, e));
}

static void script_step(struct script *s, unsigned i) {
    static const enum key_shape shapes[] = {SHAPE_RANDOM, SHAPE_TENANTS, SHAPE_RANDOM, SHAPE_GAP};
    struct oc_entry e = entry_make(&s->rng, 1000);
    enum key_shape shape = i % 200 == 0 ? SHAPE_CLASS_EDGES : shapes[i % 4];
    struct oc_span key = key_make(&s->rng, shape, s->buf);

    if (i % 8 == 7 && s->m.n > 0) {
        size_t at = oc_rng_below(&s->rng, s->m.n);
        struct model_row *row = &s->m.rows[at];

        assert_true(oc_index_remove(s->ix, oc_span(row->key, row->len), row->e.version));
        model_remove_at(&s->m, at);
        return;
    }
    script_apply(s, key, &e);
}

static void script_init(struct script *s) {
    oc_rng_init(&s->rng, 17);
    s->ix = oc_index_new();
    s->buf = malloc(OC_INDEX_KEY_MAX);
    assert_non_null(s->ix);
    assert_non_null(s->buf);
    s->ix->slabs.deny = deny;
    s->ix->slabs.deny_arg = &s->d;
}

static void script_done(struct script *s) {
    oc_index_validate(s->ix);
    model_compare(&s->m, s->ix);
    oc_index_free(s->ix);
    model_done(&s->m);
    free(s->buf);
}

/* Runs the script with allocation number `from` (and `more`) failing; returns how many were asked
 * for.
 */
static uint64_t script_run(uint64_t from, uint64_t more, unsigned *failures) {
    struct script s = {.d = {.from = from, .more = more}};

    script_init(&s);
    for (unsigned i = 0; i < SCRIPT_OPS; i++) {
        script_step(&s, i);
    }
    *failures = s.failures;
    script_done(&s);
    return s.d.asked;
}

/* Each operation is tried with its first allocation failing, then its second, ... until it
 * succeeds: so every allocation of the script fails once, and what a failure left behind is gone on
 * from. */
static void test_each_allocation_fails(void **state) {
    struct script s = {.d = {.from = UINT64_MAX}};
    unsigned most = 0;

    (void)state;
    script_init(&s);
    for (unsigned i = 0; i < SCRIPT_OPS; i++) {
        struct oc_rng before = s.rng;
        unsigned tries = 0;

        do {
            s.rng = before;
            s.failures = 0;
            s.d = (struct deny){.from = tries++};
            script_step(&s, i);
        } while (s.failures > 0);
        most = tries > most ? tries : most;
    }
    assert_true(most > 5); /* an insertion that split leaves and inner nodes was among them */
    script_done(&s);
}

/* The same from the start each time, so that nothing comes from an earlier failure; every 41st. */
static void test_one_allocation_fails(void **state) {
    unsigned failures;
    uint64_t total = script_run(UINT64_MAX, 0, &failures);

    (void)state;
    assert_int_equal(failures, 0);
    assert_true(total > SCRIPT_OPS / 2);
    for (uint64_t i = 0; i < total; i += 41) {
        (void)script_run(i, 0, &failures); /* how many it asked for depends on what failed */
        assert_int_equal(failures, 1);
    }
}

/* Out of memory for a while: nothing can be added, everything can be read and removed. */
static void test_allocations_fail_for_a_while(void **state) {
    unsigned failures;
    uint64_t total = script_run(UINT64_MAX, 0, &failures);

    (void)state;
    for (uint64_t i = 0; i < total; i += 197) {
        (void)script_run(i, 40, &failures);
        assert_true(failures > 0);
    }
}

static void test_loader_fails_cleanly(void **state) {
    uint64_t total = 1;

    (void)state;
    for (uint64_t fail = 0; fail < total; fail++) {
        struct oc_index *ix = oc_index_new();
        struct deny d = {.from = fail};
        struct oc_index_loader *l = oc_index_loader_new(ix);
        struct oc_entry e = {.version = 1};
        unsigned failures = 0;
        struct oc_index_stats st;
        char key[16];

        ix->slabs.deny = deny;
        ix->slabs.deny_arg = &d;
        for (unsigned i = 0; i < 1200; i++) {
            int rc;

            (void)snprintf(key, sizeof key, "%08u", i);
            rc = oc_index_loader_add(l, oc_span_str(key), &e);
            if (rc != 0) {
                assert_int_equal(rc, OC_E_EXHAUSTED);
                failures++;
                oc_index_validate(ix);
                rc = oc_index_loader_add(l, oc_span_str(key), &e); /* usable: try again */
            }
            assert_int_equal(rc, 0);
        }
        assert_int_equal(failures, 1);
        assert_int_equal(oc_index_loader_done(l), 0);
        oc_index_stats(ix, &st);
        assert_int_equal(st.keys, 1200);
        oc_index_validate(ix);
        oc_index_free(ix);
        total = d.asked - 1; /* the repeated one more than a run without failure asks for */
    }
}

/* ---- how much memory ---- */

static uint64_t memory_of(const struct oc_index *ix) {
    struct oc_index_stats st;

    oc_index_stats(ix, &st);
    return st.memory_bytes;
}

static void key64(char *buf, size_t size, bool tenants, uint64_t i) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull;

    x ^= x >> 29;
    if (tenants) {
        (void)snprintf(buf, size, "bucket/tenant-%06u/object-%036u", (unsigned)(x % 100),
                       (unsigned)i);
    } else {
        (void)snprintf(buf, size, "%016llx%016llx%016llx%016llx", (unsigned long long)x,
                       (unsigned long long)~x, (unsigned long long)i, (unsigned long long)x);
    }
}

static void fill64(struct oc_index *ix, bool tenants, uint64_t from, uint64_t to) {
    struct oc_entry e = {.version = 1};
    char key[80];

    for (uint64_t i = from; i < to; i++) {
        key64(key, sizeof key, tenants, i);
        assert_int_equal(strlen(key), 64);
        assert_int_equal(oc_index_apply(ix, oc_span_str(key), &e, NULL, NULL), 1);
    }
}

/* Removes the keys of [0, to) but those that are multiples of `keep`: from every block. */
static void drop64(struct oc_index *ix, bool tenants, uint64_t to, uint64_t keep) {
    char key[80];

    for (uint64_t i = 0; i < to; i++) {
        if (i % keep != 0) {
            key64(key, sizeof key, tenants, i);
            assert_true(oc_index_remove(ix, oc_span_str(key), 1));
        }
    }
}

/* The bound of the contract is key length + 56 in random order; we hold 48 with a shard's usual
 * load. */
static void test_bytes_a_key(void **state) {
    (void)state;
    for (int tenants = 0; tenants < 2; tenants++) {
        struct oc_index *ix = oc_index_new();

        fill64(ix, tenants != 0, 0, 150000);
        assert_true(memory_of(ix) <= 150000ull * (64 + 48));
        oc_index_free(ix);
    }
}

static void test_after_deleting_most(void **state) {
    (void)state;
    for (int tenants = 0; tenants < 2; tenants++) {
        struct oc_index *ix = oc_index_new();
        struct oc_index *fresh = oc_index_new();
        struct oc_entry e;
        char key[80];

        fill64(ix, tenants != 0, 0, 100000);
        drop64(ix, tenants != 0, 100000, 10);
        oc_index_validate(ix);
        fill64(fresh, tenants != 0, 0, 10000);
        assert_true(memory_of(ix) <= 2 * memory_of(fresh));
        for (uint64_t i = 0; i < 100000; i += 10) {
            key64(key, sizeof key, tenants != 0, i);
            assert_true(oc_index_find(ix, oc_span_str(key), &e));
            assert_true(oc_index_remove(ix, oc_span_str(key), 1));
        }
        oc_index_validate(ix);
        assert_true(memory_of(ix) < 64 * 1024);
        fill64(ix, tenants != 0, 0, 10000); /* and it is good for another life */
        oc_index_validate(ix);
        oc_index_free(ix);
        oc_index_free(fresh);
    }
}

/* As many in as out, of sizes that drift: memory stays by the content. */
static void test_churn_of_sizes(void **state) {
    struct oc_index *ix = oc_index_new();
    struct oc_entry e = {.version = 1};
    struct oc_index_stats st;
    char key[512];
    const unsigned live = 20000;

    (void)state;
    for (unsigned i = 0; i < 8 * live; i++) {
        unsigned width = 24 + i / live * 40 + i % 7;

        (void)snprintf(key, sizeof key, "%0*u", (int)width, i * 2654435761u);
        assert_int_equal(oc_index_apply(ix, oc_span_str(key), &e, NULL, NULL), 1);
        if (i >= live) {
            unsigned gone = i - live;

            width = 24 + gone / live * 40 + gone % 7;
            (void)snprintf(key, sizeof key, "%0*u", (int)width, gone * 2654435761u);
            assert_true(oc_index_remove(ix, oc_span_str(key), 1));
        }
        if (i % live == live - 1) {
            oc_index_validate(ix);
            oc_index_stats(ix, &st);
            assert_int_equal(st.keys, live);
            assert_true(st.memory_bytes < 2 * (st.key_bytes + 48ull * live));
        }
    }
    oc_index_free(ix);
}

static void test_small_when_idle(void **state) {
    struct oc_index *ix = oc_index_new();
    struct oc_entry e = {.version = 1};

    (void)state;
    assert_true(memory_of(ix) < 4096);
    assert_int_equal(oc_index_apply(ix, OC_SPAN_LIT("one"), &e, NULL, NULL), 1);
    assert_true(memory_of(ix) < 48 * 1024); /* a block for items, one for leaves, and tables */
    oc_index_free(ix);
}

/* Keys whose items fill blocks alone or in runs: taken, found, given back. */
static void test_large_keys(void **state) {
    struct oc_index *ix = oc_index_new();
    uint8_t *key = malloc(OC_INDEX_KEY_MAX);
    struct oc_entry e = {.version = 1};
    uint64_t key_bytes = 0;

    (void)state;
    assert_non_null(key);
    memset(key, 'x', OC_INDEX_KEY_MAX);
    for (unsigned i = 0; i < 600; i++) {
        size_t len = OC_INDEX_KEY_MAX - i * 100;

        key[len - 1] = (uint8_t)i;
        key[5] = (uint8_t)(i * 7);
        assert_int_equal(oc_index_apply(ix, oc_span(key, len), &e, NULL, NULL), 1);
        key_bytes += len;
        key[len - 1] = 'x';
    }
    oc_index_validate(ix);
    assert_true(memory_of(ix) < 2 * key_bytes);
    for (unsigned i = 0; i < 600; i++) {
        size_t len = OC_INDEX_KEY_MAX - i * 100;

        key[len - 1] = (uint8_t)i;
        key[5] = (uint8_t)(i * 7);
        assert_true(oc_index_find(ix, oc_span(key, len), &e));
        assert_true(oc_index_remove(ix, oc_span(key, len), 1));
        key[len - 1] = 'x';
    }
    oc_index_validate(ix);
    assert_true(memory_of(ix) < 128 * 1024);
    oc_index_free(ix);
    free(key);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_allocation_fails),
        cmocka_unit_test(test_one_allocation_fails),
        cmocka_unit_test(test_allocations_fail_for_a_while),
        cmocka_unit_test(test_loader_fails_cleanly),
        cmocka_unit_test(test_bytes_a_key),
        cmocka_unit_test(test_after_deleting_most),
        cmocka_unit_test(test_churn_of_sizes),
        cmocka_unit_test(test_small_when_idle),
        cmocka_unit_test(test_large_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
