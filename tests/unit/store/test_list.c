/* Listing against a model, and expiry to the second. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "rig.h"

/* ---- listing ---- */

#define NAMES 600

struct names {
    char v[NAMES][40];
    bool there[NAMES];
};

struct listed {
    size_t count, limit, stop_at;
    char last[40];
    const struct names *names;
    struct oc_span prefix, after;
};

static int compare_names(const void *a, const void *b) {
    return strcmp(a, b);
}

static int each(void *arg, struct oc_span key, const struct oc_object *obj) {
    struct listed *l = arg;

    assert_true(key.len < sizeof l->last);
    assert_true(oc_span_starts_with(key, l->prefix));
    assert_true(oc_span_compare(key, l->after) > 0 || l->after.len == 0);
    assert_int_equal(obj->len, key.len);
    memcpy(l->last, key.p, key.len);
    l->last[key.len] = '\0';
    l->count++;
    return l->stop_at != 0 && l->count == l->stop_at;
}

/* What must come: the names that are there, in order. */
static void check_page(struct rig *r, struct names *n, const char *prefix, const char *after,
                       size_t limit) {
    struct listed l = {.names = n, .prefix = oc_span_str(prefix), .after = oc_span_str(after)};
    size_t want = 0;
    const char *last = "";
    bool more = false, want_more = false;

    for (size_t i = 0; i < NAMES; i++) {
        if (n->there[i] && strncmp(n->v[i], prefix, strlen(prefix)) == 0 &&
            strcmp(n->v[i], after) > 0) {
            if (want == limit) {
                want_more = true;
                break;
            }
            want++;
            last = n->v[i];
        }
    }
    assert_int_equal(oc_objects_list(r->s, l.prefix, l.after, limit, each, &l, &more), 0);
    assert_int_equal(l.count, want);
    assert_string_equal(l.last, last);
    assert_int_equal(more, want_more);
}

static void make_names(struct names *n, struct oc_rng *rng) {
    for (size_t i = 0; i < NAMES; i++) {
        /* Few letters, so that many share prefixes; unique by the number. */
        (void)snprintf(n->v[i], sizeof n->v[i], "%.*s%zu", (int)oc_rng_below(rng, 12),
                       &"abababbabaab"[oc_rng_below(rng, 4)], i);
    }
    qsort(n->v, NAMES, sizeof n->v[0], compare_names);
}

static void test_list_against_model(void **state) {
    struct names *n = calloc(1, sizeof *n);
    struct oc_rng rng;
    struct rig r;

    (void)state;
    assert_non_null(n);
    oc_rng_init(&rng, 11);
    make_names(n, &rng);
    rig_init(&r);
    r.cfg.shards = 16;
    rig_open(&r);
    check_page(&r, n, "", "", 10);
    for (size_t i = 0; i < NAMES; i++) {
        assert_int_equal(rig_put_ttl(&r, n->v[i], i, strlen(n->v[i]), i % 5 == 0 ? 1800000001 : 0),
                         0);
        n->there[i] = true;
    }
    for (size_t i = 0; i < NAMES; i += 3) {
        assert_int_equal(rig_delete(&r, n->v[i]), 0);
        n->there[i] = false;
    }
    rig_pass_ms(&r, 2000);
    for (size_t i = 0; i < NAMES; i += 5) {
        n->there[i] = false; /* expired, and nobody has swept yet */
    }
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 300; i++) {
            char prefix[40] = "", after[40] = "";

            (void)snprintf(prefix, sizeof prefix, "%.*s", (int)oc_rng_below(&rng, 6),
                           n->v[oc_rng_below(&rng, NAMES)]);
            if (i % 2 == 0) {
                (void)snprintf(after, sizeof after, "%s", n->v[oc_rng_below(&rng, NAMES)]);
            }
            check_page(&r, n, prefix, after, i % 3 == 0 ? 1000 : oc_rng_below(&rng, 30));
        }
        check_page(&r, n, "", "", NAMES);
        check_page(&r, n, "zzz", "", 10);
        oc_objects_tick(r.s); /* and now somebody has */
    }
    rig_done(&r);
    free(n);
}

static void test_list_stops(void **state) {
    struct listed l = {.prefix = OC_SPAN_EMPTY, .after = OC_SPAN_EMPTY, .stop_at = 2};
    struct rig r;
    bool more = false;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(rig_put(&r, "a", 1, 1), 0);
    assert_int_equal(rig_put(&r, "b", 1, 1), 0);
    assert_int_equal(oc_objects_list(r.s, l.prefix, l.after, 10, each, &l, &more), 0);
    assert_int_equal(l.count, 2);
    assert_false(more);
    assert_int_equal(rig_put(&r, "c", 1, 1), 0);
    l.count = 0;
    assert_int_equal(oc_objects_list(r.s, l.prefix, l.after, 10, each, &l, &more), 0);
    assert_int_equal(l.count, 2);
    assert_true(more);
    rig_done(&r);
}

static int count_long(void *arg, struct oc_span key, const struct oc_object *obj) {
    size_t *count = arg;

    (void)obj;
    assert_in_range(key.len, 3 * (OC_KEY_MAX / 4), OC_KEY_MAX);
    (*count)++;
    return 0;
}

/* Keys larger than a shard's buffer. */
static void test_list_of_long_keys(void **state) {
    char *key = malloc(OC_KEY_MAX + 1);
    struct rig r;
    size_t count = 0;
    bool more = true;

    (void)state;
    assert_non_null(key);
    memset(key, 'x', OC_KEY_MAX + 1);
    rig_init(&r);
    r.cfg.shards = 2;
    rig_open(&r);
    for (size_t i = 0; i < 12; i++) {
        key[OC_KEY_MAX - i * 1000] = '\0';
        key[100] = (char)('a' + i);
        assert_int_equal(rig_put(&r, key, i, 10), 0);
    }
    assert_int_equal(
        oc_objects_list(r.s, OC_SPAN_LIT("xx"), OC_SPAN_EMPTY, 100, count_long, &count, &more), 0);
    assert_int_equal(count, 12);
    assert_false(more);
    rig_done(&r);
    free(key);
}

/* ---- expiry ---- */

#define NOW_S UINT32_C(1800000000) /* the rig's clock starts there, at a whole second */

static void test_expiry_is_exact(void **state) {
    struct oc_object obj;
    struct rig r;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(oc_objects_time_s(r.s), NOW_S);
    assert_int_equal(rig_put_ttl(&r, "k", 1, 10, NOW_S + 2), 0);
    assert_int_equal(oc_objects_find(r.s, oc_span_str("k"), &obj), 0);
    assert_int_equal(obj.expires_at_s, NOW_S + 2);
    rig_pass_ms(&r, 1999);
    rig_expect(&r, "k", 1, 10);
    rig_pass_ms(&r, 1);
    rig_expect_missing(&r, "k");
    assert_int_equal(rig_put_ttl(&r, "k", 2, 10, NOW_S + 100), 0);
    rig_expect(&r, "k", 2, 10);
    rig_done(&r);
}

static void test_clock_that_steps_back(void **state) {
    struct oc_objects_stats st;
    struct rig r;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(rig_put_ttl(&r, "k", 1, 10, NOW_S + 10), 0);
    assert_int_equal(rig_put_ttl(&r, "large", 1, 300000, NOW_S + 10), 0);
    assert_int_equal(rig_put(&r, "stays", 1, 10), 0);
    rig_pass_ms(&r, 12000);
    rig_expect_missing(&r, "k");
    for (int i = 0; i < 3; i++) { /* persists the time, sweeps, unlinks */
        rig_pass_ms(&r, 11000);
        oc_objects_tick(r.s);
    }
    oc_objects_stats(r.s, &st);
    assert_int_equal(st.expired, 2);
    assert_int_equal(st.keys, 1);
    assert_int_equal(rig_count_values(&r), 0);
    atomic_fetch_sub(&r.wall_ns, 3600 * OC_NS_PER_S);
    rig_expect_missing(&r, "k");
    assert_true(oc_objects_time_s(r.s) >= NOW_S + 45);
    for (int clean = 0; clean < 2; clean++) {
        rig_reopen(&r, clean == 1);
        rig_expect_missing(&r, "k");
        rig_expect_missing(&r, "large");
        rig_expect(&r, "stays", 1, 10);
        /* Versions go on rising all the same. */
        assert_int_equal(rig_put(&r, "stays", 1, 10), 0);
    }
    rig_done(&r);
}

/* Behind a kill versions run up to a minute ahead of the clock; expiry does not. */
static void test_versions_ahead_expire_nothing(void **state) {
    struct rig r;

    (void)state;
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(rig_put(&r, "a", 1, 10), 0);
    for (int i = 0; i < 3; i++) {
        rig_reopen(&r, i == 2);
        assert_int_equal(rig_put_ttl(&r, "k", 2, 10, NOW_S + 5), 0);
        rig_expect(&r, "k", 2, 10);
        assert_int_equal(oc_objects_time_s(r.s), NOW_S);
    }
    rig_reopen(&r, false);
    rig_expect(&r, "k", 2, 10);
    rig_pass_ms(&r, 5000);
    rig_expect_missing(&r, "k");
    rig_done(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_against_model),
        cmocka_unit_test(test_list_stops),
        cmocka_unit_test(test_list_of_long_keys),
        cmocka_unit_test(test_expiry_is_exact),
        cmocka_unit_test(test_clock_that_steps_back),
        cmocka_unit_test(test_versions_ahead_expire_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
