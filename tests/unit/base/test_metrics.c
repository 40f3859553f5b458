/* base/metrics.h and base/hist.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hist.h"
#include "base/metrics.h"
#include "base/metrics_int.h"
#include "base/rng.h"

static const char *const methods[] = {"get", "put"};
static const char *const codes[] = {"OK", "say \"no\"\\\n", "NOT_FOUND"};
static const struct oc_metric_label by_method = {"method", methods, OC_ARRAY_LEN(methods)};
static const struct oc_metric_label by_code = {"code", codes, OC_ARRAY_LEN(codes)};
static const uint64_t bounds[] = {500000, 1000000, 2500000000};
static const struct oc_metric_buckets buckets = {bounds, OC_ARRAY_LEN(bounds)};

#define TEST_METRICS(X)                                                                            \
    X(COUNTER, calls, "t_calls_total", "Calls,\nfinished \\ all.",                                 \
      .labels = {&by_method, &by_code})                                                            \
    X(GAUGE, open, "t_open", "Open connections.")                                                  \
    X(GAUGE, lag, "t_lag_seconds", "Lag.", .decimals = 9)                                          \
    X(HISTOGRAM, time, "t_duration_seconds", "Time.", .labels = {&by_method}, .buckets = &buckets, \
      .decimals = 9, .sparse = true)                                                               \
    X(COUNTER, odd, "t_odd_total", "Rare.", .labels = {&by_code}, .sparse = true)

#define ID(kind, id, ...) M_##id,
enum test_metric { TEST_METRICS(ID) };
static const struct oc_metric table[] = {TEST_METRICS(OC_METRIC_ROW)};

static struct oc_metrics *new_metrics(void) {
    struct oc_metrics *m = NULL;

    assert_int_equal(oc_metrics_new(table, OC_ARRAY_LEN(table), &m), 0);
    return m;
}

static void test_exposition(void **state) {
    static const char expected[] =
        "# HELP t_calls_total Calls,\\nfinished \\\\ all.\n"
        "# TYPE t_calls_total counter\n"
        "t_calls_total{method=\"get\",code=\"OK\"} 3\n"
        "t_calls_total{method=\"get\",code=\"say \\\"no\\\"\\\\\\n\"} 0\n"
        "t_calls_total{method=\"get\",code=\"NOT_FOUND\"} 0\n"
        "t_calls_total{method=\"put\",code=\"OK\"} 0\n"
        "t_calls_total{method=\"put\",code=\"say \\\"no\\\"\\\\\\n\"} 1\n"
        "t_calls_total{method=\"put\",code=\"NOT_FOUND\"} 0\n"
        "# HELP t_open Open connections.\n"
        "# TYPE t_open gauge\n"
        "t_open -2\n"
        "# HELP t_lag_seconds Lag.\n"
        "# TYPE t_lag_seconds gauge\n"
        "t_lag_seconds -1.5\n"
        "# HELP t_duration_seconds Time.\n"
        "# TYPE t_duration_seconds histogram\n"
        "t_duration_seconds_bucket{method=\"put\",le=\"0.0005\"} 2\n"
        "t_duration_seconds_bucket{method=\"put\",le=\"0.001\"} 3\n"
        "t_duration_seconds_bucket{method=\"put\",le=\"2.5\"} 3\n"
        "t_duration_seconds_bucket{method=\"put\",le=\"+Inf\"} 4\n"
        "t_duration_seconds_sum{method=\"put\"} 3.001000002\n"
        "t_duration_seconds_count{method=\"put\"} 4\n"
        "# HELP t_odd_total Rare.\n"
        "# TYPE t_odd_total counter\n"
        "t_odd_total{code=\"NOT_FOUND\"} 9\n";
    struct oc_metrics *m = new_metrics();
    struct oc_buf out;
    uint32_t put = oc_metrics_series(m, M_time, 1, 0, 0);

    (void)state;
    oc_buf_init(&out, 1 << 16);
    oc_metrics_add(m, M_calls, oc_metrics_series(m, M_calls, 0, 0, 0), 3);
    oc_metrics_inc(m, M_calls, oc_metrics_series(m, M_calls, 1, 1, 0));
    oc_metrics_add(m, M_open, 0, 1);
    oc_metrics_add(m, M_open, 0, -3);
    oc_metrics_set(m, M_lag, 0, -1500000000);
    oc_metrics_observe(m, M_time, put, 1);
    oc_metrics_observe(m, M_time, put, 500000); /* a bound belongs to its bucket */
    oc_metrics_observe(m, M_time, put, 500001);
    oc_metrics_observe(m, M_time, put, 3000000000);
    oc_metrics_set(m, M_odd, 2, 9);
    assert_int_equal(oc_metrics_write(m, &out), 0);
    assert_int_equal(oc_buf_append(&out, "", 1), 0);
    assert_string_equal((const char *)out.data, expected);
    assert_int_equal(oc_metrics_value(m, M_time, put), 4);
    assert_int_equal(oc_metrics_value(m, M_open, 0), -2);
    /* A bound that is too small is an error, not a cut page. */
    struct oc_buf small;
    oc_buf_init(&small, 300);
    assert_int_equal(oc_metrics_write(m, &small), OC_E_EXHAUSTED);
    oc_buf_done(&small);
    oc_buf_done(&out);
    oc_metrics_free(m);
}

static void test_wrong_use_is_counted(void **state) {
    struct oc_metrics *m = new_metrics();
    struct oc_buf out;

    (void)state;
    assert_int_equal(oc_metrics_series(m, M_calls, 0, 3, 0), OC_METRIC_NO_SERIES);
    assert_int_equal(oc_metrics_series(m, M_open, 1, 0, 0), OC_METRIC_NO_SERIES);
    oc_metrics_inc(m, M_calls, OC_METRIC_NO_SERIES);
    oc_metrics_inc(m, 99, 0);
    oc_metrics_inc(m, M_time, 0);        /* a histogram is observed */
    oc_metrics_observe(m, M_open, 0, 1); /* a gauge is not */
    assert_int_equal(oc_metrics_value(m, M_open, 0), 0);
    assert_int_equal(oc_metrics_value(m, M_time, 0), 0);
    oc_buf_init(&out, 1 << 16);
    assert_int_equal(oc_metrics_write_count_sites(&out, "t_unexpected_total"), 0);
    assert_int_equal(oc_buf_append(&out, "", 1), 0);
    assert_non_null(strstr((const char *)out.data, "check=\"id < m->count\"} 1\n"));
    assert_non_null(strstr((const char *)out.data, "check=\"m->rows[id].width == 1\"} 1\n"));
    oc_buf_done(&out);
    oc_metrics_free(m);
}

#define THREADS 8
#define ROUNDS  20000

static void *count_thread(void *arg) {
    struct oc_metrics *m = arg;

    for (int i = 0; i < ROUNDS; i++) {
        oc_metrics_inc(m, M_calls, 0);
        oc_metrics_observe(m, M_time, 1, (uint64_t)i);
        oc_metrics_add(m, M_open, 0, i % 2 == 0 ? 1 : -1);
    }
    return NULL;
}

static void *scrape_thread(void *arg) {
    int64_t last = 0;

    while (last < (int64_t)THREADS * ROUNDS) {
        int64_t now = oc_metrics_value(arg, M_calls, 0);

        if (now < last) {
            return arg; /* went backwards */
        }
        last = now;
    }
    return NULL;
}

/* Counts survive their thread, nothing is lost, a counter never falls while others count. */
static void test_threads(void **state) {
    struct oc_metrics *m = new_metrics();
    pthread_t threads[THREADS];
    pthread_t scraper;
    void *fell = m;

    (void)state;
    assert_int_equal(pthread_create(&scraper, NULL, scrape_thread, m), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, count_thread, m), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(pthread_join(scraper, &fell), 0);
    assert_null(fell);
    /* One after the other: each takes over the cells of the one before. */
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[0], NULL, count_thread, m), 0);
        assert_int_equal(pthread_join(threads[0], NULL), 0);
    }
    size_t cells = 0;
    for (const struct oc_metric_cells *c = m->cells; c != NULL; c = c->next) {
        cells++;
    }
    assert_in_range(cells, 1, THREADS);
    assert_int_equal(oc_metrics_value(m, M_calls, 0), 2 * THREADS * ROUNDS);
    assert_int_equal(oc_metrics_value(m, M_time, 1), 2 * THREADS * ROUNDS);
    assert_int_equal(oc_metrics_value(m, M_open, 0), 0);
    oc_metrics_free(m);
}

static void *hold_thread(void *arg) {
    count_thread(arg);
    return NULL;
}

/* Tables come and go; a thread's memory of a freed one is never followed. */
static void test_many_tables(void **state) {
    struct oc_metrics *all[OC_METRICS_MAX];
    struct oc_metrics *extra = NULL;
    pthread_t t;

    (void)state;
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < OC_METRICS_MAX; i++) {
            all[i] = new_metrics();
            oc_metrics_add(all[i], M_open, 0, i);
        }
        assert_int_equal(oc_metrics_new(table, OC_ARRAY_LEN(table), &extra), OC_E_EXHAUSTED);
        assert_int_equal(pthread_create(&t, NULL, hold_thread, all[0]), 0);
        assert_int_equal(pthread_join(t, NULL), 0);
        for (unsigned i = 0; i < OC_METRICS_MAX; i++) {
            assert_int_equal(oc_metrics_value(all[i], M_open, 0), i);
            oc_metrics_free(all[i]);
        }
    }
}

static void collect(struct oc_metrics *m, void *arg) {
    oc_metrics_set(m, M_open, 0, ++*(int *)arg);
}

static void test_collect_and_info(void **state) {
    static const struct oc_metric_text texts[] = {{"version", "1.2\""}, {"commit", "abc"}};
    struct oc_metrics *m = new_metrics();
    struct oc_buf out;
    int calls = 40;

    (void)state;
    oc_buf_init(&out, 1 << 16);
    oc_metrics_on_collect(m, collect, &calls);
    assert_int_equal(oc_metrics_write(m, &out), 0);
    assert_int_equal(oc_metrics_write(m, &out), 0);
    assert_int_equal(calls, 42);
    assert_int_equal(oc_metrics_value(m, M_open, 0), 42);
    out.len = 0;
    assert_int_equal(oc_metrics_write_info(&out, "t_build_info", "Build.", texts, 2), 0);
    assert_int_equal(oc_buf_append(&out, "", 1), 0);
    assert_string_equal((const char *)out.data,
                        "# HELP t_build_info Build.\n"
                        "# TYPE t_build_info gauge\n"
                        "t_build_info{version=\"1.2\\\"\",commit=\"abc\"} 1\n");
    oc_buf_done(&out);
    oc_metrics_free(m);
}

/* ---- the log-linear histogram ---- */
static void test_hist_exact_and_bounds(void **state) {
    struct oc_hist *h = malloc(sizeof *h);

    (void)state;
    assert_non_null(h);
    oc_hist_init(h);
    assert_int_equal(oc_hist_quantile(h, 0.5), 0);
    for (uint64_t v = 1; v <= 100; v++) {
        oc_hist_record(h, v);
    }
    assert_int_equal(oc_hist_quantile(h, 0), 1);
    assert_int_equal(oc_hist_quantile(h, 0.5), 50); /* below 128 every value has its bucket */
    assert_int_equal(oc_hist_quantile(h, 0.99), 99);
    assert_int_equal(oc_hist_quantile(h, 1), 100);
    assert_true(oc_hist_mean(h) == 50.5);
    assert_true(fabs(oc_hist_stddev(h) - 28.866) < 0.001); /* sqrt((100^2 - 1) / 12) */
    for (unsigned bits = 0; bits < 64; bits++) {
        assert_true(oc_hist_bucket(UINT64_C(1) << bits) < OC_HIST_BUCKETS);
    }
    assert_int_equal(oc_hist_bucket(UINT64_MAX), OC_HIST_BUCKETS - 1);
    free(h);
}

static int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Against the sorted values themselves, over many magnitudes; in two halves that are merged. */
static void test_hist_error(void **state) {
    static const double quantiles[] = {0.01, 0.25, 0.5, 0.9, 0.99, 0.999};
    enum { N = 20000 };
    uint64_t *values = malloc(N * sizeof *values);
    struct oc_hist *a = malloc(sizeof *a);
    struct oc_hist *b = malloc(sizeof *b);
    struct oc_rng rng;

    (void)state;
    assert_true(values != NULL && a != NULL && b != NULL);
    oc_rng_init(&rng, 5);
    oc_hist_init(a);
    oc_hist_init(b);
    for (size_t i = 0; i < N; i++) {
        values[i] = oc_rng_next(&rng) >> oc_rng_below(&rng, 64);
        oc_hist_record(i % 2 == 0 ? a : b, values[i]);
    }
    oc_hist_add(a, b);
    qsort(values, N, sizeof *values, compare_u64);
    for (size_t i = 0; i < OC_ARRAY_LEN(quantiles); i++) {
        uint64_t exact = values[(size_t)ceil(quantiles[i] * N) - 1];
        uint64_t got = oc_hist_quantile(a, quantiles[i]);
        double error = fabs((double)got - (double)exact);

        assert_true(error <= (double)exact / 127);
    }
    assert_int_equal(a->count, N);
    assert_true(a->min == values[0] && a->max == values[N - 1]);
    free(values);
    free(a);
    free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exposition),       cmocka_unit_test(test_wrong_use_is_counted),
        cmocka_unit_test(test_threads),          cmocka_unit_test(test_many_tables),
        cmocka_unit_test(test_collect_and_info), cmocka_unit_test(test_hist_exact_and_bounds),
        cmocka_unit_test(test_hist_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
