/* Random operations on the index and on its model, over keys chosen to hurt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "model.h"

#define VERSIONS 50u

struct run {
    struct oc_index *ix;
    struct model m;
    struct oc_rng rng;
    enum key_shape shape; /* SHAPES: a mixture */
    uint8_t *buf;
    struct oc_index_cursor *cursor;
};

static void run_init(struct run *r, enum key_shape shape, uint64_t seed) {
    *r = (struct run){.shape = shape};
    oc_rng_init(&r->rng, seed);
    r->ix = oc_index_new();
    r->buf = malloc(OC_INDEX_KEY_MAX);
    r->cursor = calloc(1, sizeof *r->cursor);
    assert_non_null(r->ix);
    assert_non_null(r->buf);
    assert_non_null(r->cursor);
}

static void run_done(struct run *r) {
    oc_index_free(r->ix);
    model_done(&r->m);
    free(r->buf);
    free(r->cursor);
}

/* A key, often one that is there. */
static struct oc_span some_key(struct run *r, unsigned there_of_8) {
    enum key_shape shape = r->shape;

    if (r->m.n > 0 && oc_rng_below(&r->rng, 8) < there_of_8) {
        const struct model_row *row = &r->m.rows[oc_rng_below(&r->rng, r->m.n)];

        if (row->len > 0) {
            memcpy(r->buf, row->key, row->len);
        }
        return oc_span(r->buf, row->len);
    }
    if (shape == SHAPES) {
        /* Large keys are slow to compare: few of them. */
        shape = (enum key_shape)oc_rng_below(&r->rng,
                                             oc_rng_below(&r->rng, 20) == 0 ? SHAPES : SHAPES - 1);
    }
    return key_make(&r->rng, shape, r->buf);
}

static void do_apply(struct run *r) {
    struct oc_span key = some_key(r, 1);
    struct oc_entry e = entry_make(&r->rng, VERSIONS);
    struct oc_entry old = {.version = 77777};
    bool present = false;
    bool equal;
    size_t i = model_place(&r->m, key, &equal);
    struct oc_entry was = equal ? r->m.rows[i].e : old;
    bool ask = oc_rng_below(&r->rng, 2) == 0;
    int rc = oc_index_apply(r->ix, key, &e, ask ? &old : NULL, ask ? &present : NULL);

    assert_int_equal(rc, model_apply(&r->m, key, &e));
    if (ask) {
        assert_int_equal(present, equal);
        assert_true(entry_equal(&old, &was));
    }
}

static void do_find(struct run *r) {
    struct oc_span key = some_key(r, 4);
    struct oc_entry e;
    bool equal;
    size_t i = model_place(&r->m, key, &equal);

    assert_int_equal(oc_index_find(r->ix, key, &e), equal);
    if (equal) {
        assert_true(entry_equal(&e, &r->m.rows[i].e));
    }
}

static void do_update(struct run *r) {
    struct oc_span key = some_key(r, 7);
    struct oc_entry e = entry_make(&r->rng, VERSIONS);
    uint64_t version = e.version;
    bool equal;
    bool want;
    size_t i = model_place(&r->m, key, &equal);

    if (equal && oc_rng_below(&r->rng, 4) > 0) {
        version = r->m.rows[i].e.version;
        /* Sometimes the entry claims another version: refused. */
        e.version = version + (oc_rng_below(&r->rng, 4) == 0);
    }
    want = equal && r->m.rows[i].e.version == version && e.version == version;
    assert_int_equal(oc_index_update(r->ix, key, version, &e), want);
    if (want) {
        r->m.rows[i].e = e;
    }
}

static void do_remove(struct run *r) {
    struct oc_span key = some_key(r, 7);
    uint64_t version = oc_rng_below(&r->rng, VERSIONS);
    bool equal;
    bool want;
    size_t i = model_place(&r->m, key, &equal);

    if (equal && oc_rng_below(&r->rng, 8) > 0) {
        version = r->m.rows[i].e.version;
    }
    want = equal && r->m.rows[i].e.version == version;
    assert_int_equal(oc_index_remove(r->ix, key, version), want);
    if (want) {
        model_remove_at(&r->m, i);
    }
}

struct expect {
    const struct model *m;
    size_t i;
    size_t left;
};

static int expect_each(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct expect *x = arg;

    assert_true(x->i < x->m->n);
    assert_true(oc_span_equal(key, oc_span(x->m->rows[x->i].key, x->m->rows[x->i].len)));
    assert_true(entry_equal(e, &x->m->rows[x->i].e));
    x->i++;
    return --x->left == 0;
}

static void do_walk(struct run *r) {
    struct oc_span from = some_key(r, 4);
    bool exclusive = oc_rng_below(&r->rng, 2) == 0;
    size_t want = 1 + oc_rng_below(&r->rng, 150);
    struct expect x = {.m = &r->m, .left = want};
    bool equal;
    size_t first = model_place(&r->m, from, &equal);

    first += equal && exclusive;
    x.i = first;
    oc_index_walk(r->ix, from, exclusive, expect_each, &x);
    assert_int_equal(x.i, first + want < r->m.n ? first + want : r->m.n);
}

struct sweeping {
    struct run *r;
    size_t i; /* in the model */
};

/* Removes what has an odd segment, stops at some offsets; the model follows. */
static int sweep_each(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct sweeping *s = arg;
    struct model *m = &s->r->m;

    assert_true(s->i < m->n);
    assert_true(oc_span_equal(key, oc_span(m->rows[s->i].key, m->rows[s->i].len)));
    if (e->segment % 4 == 1) {
        model_remove_at(m, s->i);
        return OC_SWEEP_REMOVE;
    }
    s->i++;
    return e->offset % 16 == 0 ? OC_SWEEP_STOP : OC_SWEEP_NEXT;
}

/* One slice of a sweep that goes on while other operations change the index. */
static void do_sweep(struct run *r) {
    struct oc_index_cursor *c = r->cursor;
    struct sweeping s = {.r = r};
    size_t budget = oc_rng_below(&r->rng, 60);
    size_t visited;
    bool equal = false;

    if (c->done) {
        oc_index_cursor_reset(c);
    }
    s.i = c->started ? model_place(&r->m, oc_span(c->key, c->key_len), &equal) : 0;
    s.i += equal;
    visited = oc_index_sweep(r->ix, c, budget, sweep_each, &s);
    assert_true(visited <= budget);
    if (c->done) {
        assert_int_equal(s.i, r->m.n);
    }
}

static void do_one(struct run *r, bool growing) {
    unsigned dice = (unsigned)oc_rng_below(&r->rng, 100);

    if (dice < (growing ? 60u : 25u)) {
        do_apply(r);
    } else if (dice < 80) {
        do_remove(r);
    } else if (dice < 88) {
        do_find(r);
    } else if (dice < 94) {
        do_update(r);
    } else if (dice < 98) {
        do_walk(r);
    } else {
        do_sweep(r);
    }
}

/* Phases of growth and decline, until the last key is gone. */
static void run_ops(struct run *r, unsigned ops, unsigned phase, unsigned validate_every) {
    for (unsigned i = 0; i < ops; i++) {
        do_one(r, i / phase % 2 == 0);
        if (i % validate_every == 0) {
            oc_index_validate(r->ix);
        }
    }
    model_compare(&r->m, r->ix);
    while (r->m.n > 0) {
        size_t i = oc_rng_below(&r->rng, r->m.n);
        struct model_row *row = &r->m.rows[i];

        assert_true(oc_index_remove(r->ix, oc_span(row->key, row->len), row->e.version));
        model_remove_at(&r->m, i);
        if (r->m.n % validate_every == 0) {
            oc_index_validate(r->ix);
        }
    }
    model_compare(&r->m, r->ix);
}

static void test_small_validated_each_step(void **state) {
    (void)state;
    for (unsigned shape = 0; shape <= SHAPES; shape++) {
        struct run r;

        run_init(&r, shape, 1000 + shape);
        run_ops(&r, shape == SHAPE_CLASS_EDGES ? 400 : 1000, 300, 1);
        run_done(&r);
    }
}

static void test_larger(void **state) {
    (void)state;
    for (unsigned shape = 0; shape <= SHAPES; shape++) {
        struct run r;

        run_init(&r, shape, 2000 + shape);
        run_ops(&r, shape == SHAPE_CLASS_EDGES ? 1500 : 15000, 5000, 997);
        run_done(&r);
    }
}

/* Two levels of inner nodes, keys of two shapes; then down again. */
static void test_deep(void **state) {
    static const enum key_shape shapes[] = {SHAPE_RANDOM, SHAPE_TENANTS};
    struct run r;

    (void)state;
    run_init(&r, SHAPE_RANDOM, 42);
    for (unsigned i = 0; i < 30000; i++) {
        r.shape = shapes[i % 2];
        do_apply(&r);
    }
    oc_index_validate(r.ix);
    r.shape = SHAPE_RANDOM;
    run_ops(&r, 20000, 20001, 5000);
    run_done(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_validated_each_step),
        cmocka_unit_test(test_larger),
        cmocka_unit_test(test_deep),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
