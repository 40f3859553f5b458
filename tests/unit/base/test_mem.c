/* base/mem.h and base/map.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"

static void test_budget(void **state) {
    struct oc_budget b;

    (void)state;
    oc_budget_init(&b, 100);
    assert_true(oc_budget_take(&b, 60));
    assert_false(oc_budget_take(&b, 41));
    assert_true(oc_budget_take(&b, 40));
    assert_false(oc_budget_take(&b, 1));
    assert_false(oc_budget_take(&b, UINT64_MAX));
    oc_budget_give(&b, 100);
    assert_true(oc_budget_take(&b, 100));
    assert_int_equal(b.denied, 3);
}

static void *budget_thread(void *arg) {
    struct oc_budget *b = arg;

    for (int i = 0; i < 20000; i++) {
        if (oc_budget_take(b, 3)) {
            OC_CHECK(atomic_load(&b->used) <= b->limit);
            oc_budget_give(b, 3);
        }
    }
    return NULL;
}

static void test_budget_threads(void **state) {
    struct oc_budget b;
    pthread_t t[4];

    (void)state;
    oc_budget_init(&b, 10);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, budget_thread, &b), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(t[i], NULL), 0);
    }
    assert_int_equal(b.used, 0);
}

static void test_arena(void **state) {
    struct oc_arena a;
    uint8_t *p[100];

    (void)state;
    oc_arena_init(&a, 65536);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 100; i++) {
            p[i] = oc_arena_alloc(&a, i * 7);
            assert_non_null(p[i]);
            assert_int_equal((uintptr_t)p[i] % 16, 0);
            memset(p[i], (int)i, i * 7);
        }
        for (size_t i = 0; i < 100; i++) {
            for (size_t k = 0; k < i * 7; k++) {
                assert_int_equal(p[i][k], i);
            }
        }
        assert_null(oc_arena_alloc(&a, 65536));
        assert_null(oc_arena_alloc(&a, SIZE_MAX));
        assert_null(oc_arena_alloc(&a, SIZE_MAX - 15));
        oc_arena_reset(&a);
        assert_non_null(oc_arena_alloc(&a, 65536)); /* larger than a block, exactly the bound */
        assert_null(oc_arena_alloc(&a, 1));
        oc_arena_reset(&a);
    }
    struct oc_span s = oc_arena_copy(&a, OC_SPAN_LIT("abc"));
    assert_string_equal((const char *)s.p, "abc");
    s = oc_arena_copy(&a, OC_SPAN_EMPTY);
    assert_true(s.p != NULL && s.len == 0);
    oc_arena_done(&a);
}

static void test_pool(void **state) {
    struct oc_pool p;
    uint64_t *o[3];

    (void)state;
    oc_pool_init(&p, 24, 3, 1);
    for (int i = 0; i < 3; i++) {
        o[i] = oc_pool_get(&p);
        assert_non_null(o[i]);
        o[i][0] = o[i][1] = o[i][2] = 7;
    }
    assert_null(oc_pool_get(&p));
    for (int i = 0; i < 3; i++) {
        oc_pool_put(&p, o[i]);
    }
    assert_int_equal(p.cached, 1);
    o[0] = oc_pool_get(&p);
    assert_true(o[0][0] == 0 && o[0][1] == 0 && o[0][2] == 0); /* zeroed again */
    oc_pool_put(&p, o[0]);
    oc_pool_done(&p);
}

static void test_blocks(void **state) {
    struct oc_blockpool *p = oc_blockpool_new(8192, 20000);
    struct oc_blockpool_stats s;
    struct oc_block *a = oc_block_get(p);
    struct oc_block *b = oc_block_get(p);

    (void)state;
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(a->cap, 8192);
    assert_int_equal((uintptr_t)a->data % 4096, 0);
    assert_null(oc_block_get(p)); /* a third would pass the bound */
    memset(a->data, 1, a->cap);
    a->len = 100;
    oc_ref_get(&a->ref);
    oc_block_put(a);
    oc_blockpool_stats(p, &s);
    assert_int_equal(s.in_use_bytes, 16384); /* still referenced */
    assert_int_equal(s.denied, 1);
    oc_block_put(a);
    oc_blockpool_stats(p, &s);
    assert_int_equal(s.in_use_bytes, 8192);
    assert_int_equal(s.allocated_bytes, 16384);
    struct oc_block *c = oc_block_get(p);
    assert_ptr_equal(c, a); /* reused, not mapped again */
    assert_int_equal(c->len, 0);
    oc_block_put(b);
    oc_block_put(c);
    oc_blockpool_free(p);
}

static void test_buf(void **state) {
    struct oc_buf b;

    (void)state;
    oc_buf_init(&b, 1000);
    assert_int_equal(oc_buf_append(&b, "abc", 3), 0);
    assert_int_equal(oc_buf_append(&b, NULL, 0), 0);
    assert_int_equal(oc_buf_printf(&b, "%d-%s", 5, "x"), 0);
    assert_true(oc_span_equal(oc_buf_span(&b), OC_SPAN_LIT("abc5-x")));
    for (int i = 0; i < 994; i++) {
        assert_int_equal(oc_buf_append(&b, "y", 1), 0);
    }
    assert_int_equal(oc_buf_append(&b, "z", 1), OC_E_EXHAUSTED);
    assert_int_equal(b.len, 1000);
    assert_int_equal(oc_buf_reserve(&b, SIZE_MAX), OC_E_EXHAUSTED);
    oc_buf_done(&b);
    assert_int_equal(oc_buf_append(&b, "again", 5), 0); /* the bound is kept */
    assert_int_equal(b.max_bytes, 1000);
    oc_buf_done(&b);
}

/* ---- the maps against an array ---- */
#define KEYS 300

static void test_map(void **state) {
    static char keys[KEYS][16];
    int values[KEYS];
    int *model[KEYS] = {NULL};
    size_t count = 0;
    struct oc_map m;
    struct oc_rng rng;

    (void)state;
    oc_rng_init(&rng, 9);
    oc_map_init(&m, 200, 0x1234);
    assert_null(oc_map_find(&m, OC_SPAN_LIT("x")));
    assert_null(oc_map_remove(&m, OC_SPAN_LIT("x")));
    for (int i = 0; i < KEYS; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "k%d", i);
    }
    for (int step = 0; step < 30000; step++) {
        size_t k = (size_t)oc_rng_below(&rng, KEYS);
        struct oc_span key = oc_span_str(keys[k]);
        void *old = &m;

        assert_ptr_equal(oc_map_find(&m, key), model[k]);
        if (oc_rng_below(&rng, 3) == 0) {
            assert_ptr_equal(oc_map_remove(&m, key), model[k]);
            count -= model[k] != NULL;
            model[k] = NULL;
        } else {
            int *v = &values[oc_rng_below(&rng, KEYS)];
            int r = oc_map_put(&m, key, v, &old);

            if (model[k] == NULL && count == 200) {
                assert_int_equal(r, OC_E_EXHAUSTED);
                continue;
            }
            assert_int_equal(r, 0);
            assert_ptr_equal(old, model[k]);
            count += model[k] == NULL;
            model[k] = v;
        }
        assert_int_equal(m.count, count);
    }
    size_t at = 0;
    size_t seen = 0;
    struct oc_span key;
    void *value;
    while (oc_map_next(&m, &at, &key, &value)) {
        assert_ptr_equal(model[strtoul((const char *)key.p + 1, NULL, 10)], value);
        seen++;
    }
    assert_int_equal(seen, count);
    oc_map_done(&m);
    assert_int_equal(m.count, 0);
    assert_null(oc_map_find(&m, OC_SPAN_LIT("k1")));
}

static void test_map64(void **state) {
    int values[KEYS];
    int *model[KEYS] = {NULL};
    size_t count = 0;
    struct oc_map64 m;
    struct oc_rng rng;

    (void)state;
    oc_rng_init(&rng, 10);
    oc_map64_init(&m, 200, 0);
    assert_null(oc_map64_find(&m, 0));
    for (int step = 0; step < 30000; step++) {
        uint64_t k = oc_rng_below(&rng, KEYS);
        uint64_t key = k << 40; /* keys that differ in high bits only */
        void *old = &m;

        assert_ptr_equal(oc_map64_find(&m, key), model[k]);
        if (oc_rng_below(&rng, 3) == 0) {
            assert_ptr_equal(oc_map64_remove(&m, key), model[k]);
            count -= model[k] != NULL;
            model[k] = NULL;
        } else {
            int *v = &values[oc_rng_below(&rng, KEYS)];
            int r = oc_map64_put(&m, key, v, &old);

            if (model[k] == NULL && count == 200) {
                assert_int_equal(r, OC_E_EXHAUSTED);
                continue;
            }
            assert_int_equal(r, 0);
            assert_ptr_equal(old, model[k]);
            count += model[k] == NULL;
            model[k] = v;
        }
        assert_int_equal(m.count, count);
    }
    size_t at = 0;
    size_t seen = 0;
    uint64_t key;
    void *value;
    while (oc_map64_next(&m, &at, &key, &value)) {
        assert_ptr_equal(model[key >> 40], value);
        seen++;
    }
    assert_int_equal(seen, count);
    oc_map64_done(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget), cmocka_unit_test(test_budget_threads),
        cmocka_unit_test(test_arena),  cmocka_unit_test(test_pool),
        cmocka_unit_test(test_blocks), cmocka_unit_test(test_buf),
        cmocka_unit_test(test_map),    cmocka_unit_test(test_map64),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
