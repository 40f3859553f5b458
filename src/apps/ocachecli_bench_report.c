/* What `ocachecli bench` prints: plain tables for people, JSON for programs. Latencies are measured
 * in nanoseconds and shown in microseconds. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "apps/ocachecli.h"
#include "apps/ocachecli_bench.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/parse.h"

#define BAR_COLUMNS   40
#define MAX_TIME_ROWS 20u

static const char *const op_names[BENCH_OPS] = {"read", "update"};

static double seconds(uint64_t ns) {
    return (double)ns / (double)OC_NS_PER_S;
}

static double per_second(uint64_t n, uint64_t ns) {
    return ns == 0 ? 0.0 : (double)n / seconds(ns);
}

static double us(uint64_t ns) {
    return (double)ns / (double)OC_NS_PER_US;
}

struct trend {
    double min, max, mean, stddev, slope; /* operations per second; slope per second */
    uint64_t count;
};

/* Whole seconds only: the last one is cut short by the end. */
static struct trend trend_of(const struct bench_result *r) {
    uint64_t n = r->duration_ns / OC_NS_PER_S;
    struct trend t = {.min = INFINITY};
    double sum = 0, squares = 0, sxy = 0, sxx = 0;

    n = n < r->second_count ? n : r->second_count;
    for (uint64_t i = 0; i < n; i++) {
        double v = (double)r->per_second[i];
        double x = (double)i - ((double)n - 1) / 2;

        t.min = v < t.min ? v : t.min;
        t.max = v > t.max ? v : t.max;
        sum += v;
        squares += v * v;
        sxy += x * v;
        sxx += x * x;
    }
    t.count = n;
    if (n > 0) {
        t.mean = sum / (double)n;
        t.stddev = sqrt(fmax(0.0, squares / (double)n - t.mean * t.mean));
        t.slope = sxx > 0 ? sxy / sxx : 0;
    } else {
        t.min = 0;
    }
    return t;
}

/* Steady within 1 % of the mean per second. */
static const char *trend_word(const struct trend *t) {
    if (fabs(t->slope) <= t->mean * 0.01) {
        return "steady";
    }
    return t->slope > 0 ? "rising" : "falling";
}

static void print_summary(const struct bench_result *r) {
    char size[OC_PARSE_TEXT_MAX];

    (void)oc_format_size(size, r->value_size);
    printf("BENCHMARK RESULTS\n\n");
    printf("  Workload            %s, %s over %" PRIu64 " keys (seed %" PRIu64 ")\n", r->workload,
           r->distribution, r->num_keys, r->seed);
    printf("  Value Size          %s (%" PRIu64 " bytes)\n", size, r->value_size);
    printf("  Concurrency         %" PRIu64 " over %" PRIu64 " connections per address\n",
           r->concurrency, r->connections);
    printf("  Streaming Mode      %s\n", r->streaming ? "yes" : "no");
    printf("  Preload             %.3f s, %" PRIu64 " failures\n", seconds(r->preload_ns),
           r->preload_failures);
    printf("  Total Operations    %" PRIu64 "\n", r->done);
    printf("  Total Duration      %.3f s\n", seconds(r->duration_ns));
    printf("  Total Errors        %" PRIu64 "\n", r->errors);
    printf("  Error Rate          %.2f %%\n",
           r->done == 0 ? 0.0 : 100.0 * (double)r->errors / (double)r->done);
    printf("  Throughput          %.1f ops/s\n", per_second(r->done, r->duration_ns));
    printf("  Read                %.1f MB/s\n", per_second(r->bytes_read, r->duration_ns) / 1e6);
    printf("  Written             %.1f MB/s\n", per_second(r->bytes_written, r->duration_ns) / 1e6);
    printf("  Wrong bytes: %" PRIu64 "\n", r->wrong_bytes);
    if (r->stopped_workers > 0) {
        printf("  Stopped early: %" PRIu64 " of %" PRIu64 " workers lost the server\n",
               r->stopped_workers, r->concurrency);
    }
}

static void print_latencies(const struct bench_result *r) {
    printf("\nPer-Operation Latency Statistics (microseconds)\n\n");
    printf("  %-9s %10s %8s %9s %9s %9s %9s %9s %9s %9s\n", "Operation", "Count", "Errors", "Min",
           "P50", "P95", "P99", "P99.9", "Max", "Avg");
    for (int op = 0; op < BENCH_OPS; op++) {
        const struct oc_hist *h = &r->latency[op];

        if (h->count + r->op_errors[op] == 0) {
            continue;
        }
        printf("  %-9s %10" PRIu64 " %8" PRIu64 " %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f\n",
               op_names[op], h->count + r->op_errors[op], r->op_errors[op],
               us(h->count == 0 ? 0 : h->min), us(oc_hist_quantile(h, 0.5)),
               us(oc_hist_quantile(h, 0.95)), us(oc_hist_quantile(h, 0.99)),
               us(oc_hist_quantile(h, 0.999)), us(h->max), oc_hist_mean(h) / OC_NS_PER_US);
    }
}

static void print_bar(double part) {
    int n = (int)(part * BAR_COLUMNS + 0.5);

    for (int i = 0; i < n && i < BAR_COLUMNS; i++) {
        putchar('#');
    }
    putchar('\n');
}

/* Powers of two of microseconds, from the first that holds anything to the last. */
static void print_distribution(const struct bench_result *r) {
    uint64_t bands[40] = {0};
    uint64_t total = 0, most = 0;
    unsigned first = 40, last = 0;

    for (int op = 0; op < BENCH_OPS; op++) {
        for (unsigned i = 0; i < OC_HIST_BUCKETS; i++) {
            uint64_t n = r->latency[op].buckets[i];
            unsigned shift = i < OC_HIST_SUB ? 0 : i / OC_HIST_SUB - 1;
            uint64_t low = i < OC_HIST_SUB ? i : (uint64_t)(OC_HIST_SUB + i % OC_HIST_SUB) << shift;
            uint64_t low_us = low / OC_NS_PER_US;
            unsigned band = low_us == 0 ? 0 : 64u - (unsigned)__builtin_clzll(low_us);

            band = band < 39 ? band : 39;
            if (n > 0) {
                bands[band] += n;
                first = band < first ? band : first;
                last = band > last ? band : last;
            }
            total += n;
        }
    }
    if (total == 0) {
        return;
    }
    printf("\nLatency Distribution Histogram\n\n");
    for (unsigned i = first; i <= last; i++) {
        most = bands[i] > most ? bands[i] : most;
    }
    for (unsigned i = first; i <= last; i++) {
        printf("  < %9" PRIu64 " us %10" PRIu64 " %6.2f %%  ", (uint64_t)1 << i, bands[i],
               100.0 * (double)bands[i] / (double)total);
        print_bar((double)bands[i] / (double)most);
    }
}

static void print_throughput(const struct bench_result *r) {
    struct trend t = trend_of(r);
    uint64_t step = (t.count + MAX_TIME_ROWS - 1) / MAX_TIME_ROWS;

    if (t.count < 2) {
        return; /* too short to have a course */
    }
    printf("\nThroughput Analysis (operations per second)\n\n");
    printf("  Minimum %.0f   Maximum %.0f   Average %.0f   Std Deviation %.0f   Trend %s\n", t.min,
           t.max, t.mean, t.stddev, trend_word(&t));
    printf("\nThroughput Over Time:\n\n");
    for (uint64_t i = 0; i + step <= t.count; i += step) {
        uint64_t sum = 0;

        for (uint64_t k = 0; k < step; k++) {
            sum += r->per_second[i + k];
        }
        printf("  %6" PRIu64 " s %10.0f  ", i + step, (double)sum / (double)step);
        print_bar((double)sum / (double)step / (t.max > 0 ? t.max : 1));
    }
}

static void print_errors(const struct bench_result *r) {
    if (r->error_kind_count == 0) {
        return;
    }
    printf("\nError Analysis\n\n");
    for (unsigned i = 0; i < r->error_kind_count; i++) {
        const struct bench_error *e = &r->error_kinds[i];

        printf("  %-7s %-18s %10" PRIu64 "  %s\n", op_names[e->op], ocache_code_name(e->code),
               e->count, e->message);
    }
}

void bench_report(const struct bench_result *r) {
    print_summary(r);
    print_latencies(r);
    print_distribution(r);
    print_throughput(r);
    print_errors(r);
}

/* ---- JSON ---- */

static json_t *latency_json(const struct bench_result *r, int op) {
    const struct oc_hist *h = &r->latency[op];

    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "count",
                     (json_int_t)(h->count + r->op_errors[op]), "errors",
                     (json_int_t)r->op_errors[op], "min_us", us(h->count == 0 ? 0 : h->min),
                     "p50_us", us(oc_hist_quantile(h, 0.5)), "p95_us",
                     us(oc_hist_quantile(h, 0.95)), "p99_us", us(oc_hist_quantile(h, 0.99)),
                     "p999_us", us(oc_hist_quantile(h, 0.999)), "max_us", us(h->max), "avg_us",
                     oc_hist_mean(h) / OC_NS_PER_US);
}

static json_t *errors_json(const struct bench_result *r) {
    json_t *list = json_array();

    for (unsigned i = 0; i < r->error_kind_count && list != NULL; i++) {
        const struct bench_error *e = &r->error_kinds[i];
        json_t *row = json_pack("{s:s, s:s, s:I, s:s}", "operation", op_names[e->op], "code",
                                ocache_code_name(e->code), "count", (json_int_t)e->count, "message",
                                e->message);

        if (row == NULL || json_array_append_new(list, row) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static json_t *seconds_json(const struct bench_result *r) {
    json_t *list = json_array();

    for (uint64_t i = 0; i < r->second_count && list != NULL; i++) {
        if (json_array_append_new(list, json_integer((json_int_t)r->per_second[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static json_t *summary_json(const struct bench_result *r) {
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:b, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I, "
        "s:I, s:I}",
        "workload", r->workload, "distribution", r->distribution, "num_keys",
        (json_int_t)r->num_keys, "value_size", (json_int_t)r->value_size, "concurrency",
        (json_int_t)r->concurrency, "connections", (json_int_t)r->connections, "streaming",
        (int)r->streaming, "preload_s", seconds(r->preload_ns), "preload_failures",
        (json_int_t)r->preload_failures, "operations", (json_int_t)r->done, "errors",
        (json_int_t)r->errors, "duration_s", seconds(r->duration_ns), "throughput_ops_s",
        per_second(r->done, r->duration_ns), "read_bytes_s",
        per_second(r->bytes_read, r->duration_ns), "written_bytes_s",
        per_second(r->bytes_written, r->duration_ns), "wrong_bytes", (json_int_t)r->wrong_bytes,
        "wrong_values", (json_int_t)r->wrong_values, "stopped_workers",
        (json_int_t)r->stopped_workers);
}

int bench_report_json(const struct bench_result *r) {
    json_t *root = summary_json(r);
    char seed[24];
    char *text = NULL;

    /* As text: JSON readers lose digits above 2^53. */
    (void)snprintf(seed, sizeof seed, "%" PRIu64, r->seed);
    if (root != NULL && json_object_set_new(root, "seed", json_string(seed)) == 0 &&
        json_object_set_new(root, "read", latency_json(r, BENCH_READ)) == 0 &&
        json_object_set_new(root, "update", latency_json(r, BENCH_UPDATE)) == 0 &&
        json_object_set_new(root, "error_kinds", errors_json(r)) == 0 &&
        json_object_set_new(root, "per_second", seconds_json(r)) == 0) {
        text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    }
    json_decref(root);
    if (text == NULL) {
        fprintf(stderr, "Benchmark failed: out of memory\n");
        return CLI_FAILED;
    }
    puts(text);
    free(text);
    return 0;
}
