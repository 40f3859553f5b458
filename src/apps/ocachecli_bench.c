/* `ocachecli bench`: a closed loop of `concurrency` operations in flight, driven by the client's
 * callbacks on its own thread, so that the load costs as little as it can. The main thread shows
 * progress and waits.
 *
 * Everything in struct bench belongs to the client's thread while a phase runs, but for what `lock`
 * guards. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/ocachecli.h"
#include "apps/ocachecli_bench.h"
#include "base/check.h"
#include "io/loop.h"

#define OP_DEADLINE_MS    5000
#define PROGRESS_MS       500
#define PRELOAD_TOLERANCE 10 /* per cent of failures that abort */
#define NO_MEMORY         "out of memory"

struct bench;

struct slot {
    struct bench *bench;
    enum bench_op op;
    uint64_t key;
    uint32_t generation;
    uint64_t begun_ns;
    char key_name[BENCH_KEY_MAX];
    size_t key_len;
    struct bench_check check;
};

struct bench {
    struct cli *cli;
    struct bench_mix mix;
    struct bench_keys keys;
    struct bench_values values;
    struct bench_key_state *states;
    struct slot *slots;
    struct ocache_options op_options;
    struct oc_rng rng;
    struct bench_result *result;
    bool preloading;
    uint64_t next_preload;
    uint64_t to_start;         /* operations; UINT64_MAX with a duration */
    uint64_t begun_ns, end_ns; /* end_ns UINT64_MAX: by count */
    uint64_t flying;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t shown_done; /* for the progress line */
    bool over;
};

static uint64_t now_ns(void) {
    return oc_clock_now(oc_clock_real()).mono_ns;
}

static void start_next(struct slot *s);

/* ---- one operation ---- */

static void count_error(struct bench *b, enum bench_op op, const struct ocache_result *result) {
    struct bench_result *r = b->result;

    r->errors++;
    r->op_errors[op]++;
    for (unsigned i = 0; i < r->error_kind_count; i++) {
        struct bench_error *e = &r->error_kinds[i];

        if (e->code == result->code && e->op == op) {
            e->count++;
            return;
        }
    }
    if (r->error_kind_count < BENCH_ERRORS) {
        struct bench_error *e = &r->error_kinds[r->error_kind_count++];

        *e = (struct bench_error){.code = result->code, .op = op, .count = 1};
        (void)snprintf(e->message, sizeof e->message, "%s", result->message);
    }
}

static void count_second(struct bench *b, uint64_t now) {
    uint64_t second = (now - b->begun_ns) / OC_NS_PER_S;

    if (second < BENCH_SECONDS) {
        b->result->per_second[second]++;
        if (second >= b->result->second_count) {
            b->result->second_count = second + 1;
        }
    }
}

static void phase_over(struct bench *b) {
    pthread_mutex_lock(&b->lock);
    b->over = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void slot_stop(struct slot *s) {
    if (--s->bench->flying == 0) {
        phase_over(s->bench);
    }
}

static void record(struct slot *s, const struct ocache_result *result) {
    struct bench *b = s->bench;
    struct bench_result *r = b->result;
    uint64_t now = now_ns();

    r->done++;
    count_second(b, now);
    if (result->code != OCACHE_OK) {
        count_error(b, s->op, result);
        return;
    }
    oc_hist_record(&r->latency[s->op], now - s->begun_ns);
    if (s->op == BENCH_UPDATE) {
        r->bytes_written += b->values.value_size;
        return;
    }
    r->bytes_read += s->check.seen;
    uint64_t wrong = bench_check_end(&s->check);
    r->wrong_bytes += wrong;
    r->wrong_values += wrong > 0;
}

static void on_done(void *user, const struct ocache_result *result) {
    struct slot *s = user;
    struct bench *b = s->bench;
    bool lost = result->code == OCACHE_UNAVAILABLE || result->code == OCACHE_CANCELLED;

    if (s->op == BENCH_UPDATE) {
        bench_write_end(&b->states[s->key], s->generation, result->code == OCACHE_OK);
    }
    if (b->preloading) {
        if (result->code != OCACHE_OK) {
            b->result->preload_failures++;
            count_error(b, BENCH_UPDATE, result);
        }
    } else if (!cli_interrupted()) {
        record(s, result);
    }
    pthread_mutex_lock(&b->lock);
    b->shown_done++;
    pthread_mutex_unlock(&b->lock);
    if (lost && !b->preloading) {
        b->result->stopped_workers++;
        slot_stop(s);
    } else {
        start_next(s);
    }
}

static int on_piece(void *user, const void *data, size_t len) {
    struct slot *s = user;

    bench_check_piece(&s->check, oc_span(data, len));
    return 0;
}

static void start_op(struct slot *s) {
    struct bench *b = s->bench;
    struct bench_key_state *state = &b->states[s->key];
    struct ocache_client *client = b->cli->client;
    const uint8_t *value = NULL;
    uint64_t id;

    s->key_len = bench_key_name(s->key, s->key_name);
    if (s->op == BENCH_UPDATE) {
        s->generation = bench_write_begin(state);
        value = bench_value(&b->values, s->key, s->generation);
    } else {
        bench_check_begin(&s->check, &b->values, s->key, state);
    }
    s->begun_ns = now_ns();
    if (s->op == BENCH_UPDATE) {
        id = ocache_put_async(client, s->key_name, s->key_len, value, b->values.value_size,
                              &b->op_options, on_done, s);
    } else {
        id = ocache_get_stream_async(client, s->key_name, s->key_len, &b->op_options, on_piece,
                                     on_done, s);
    }
    if (id == 0) {
        struct ocache_result failed = {.code = OCACHE_CANCELLED, .message = NO_MEMORY};

        on_done(s, &failed);
    }
}

static void start_next(struct slot *s) {
    struct bench *b = s->bench;

    if (cli_interrupted()) {
        slot_stop(s);
    } else if (b->preloading) {
        if (b->next_preload == b->keys.count) {
            slot_stop(s);
            return;
        }
        s->op = BENCH_UPDATE;
        s->key = b->next_preload++;
        start_op(s);
    } else if (b->to_start == 0 || (b->end_ns != UINT64_MAX && now_ns() >= b->end_ns)) {
        slot_stop(s);
    } else {
        b->to_start -= b->to_start != UINT64_MAX;
        s->op = bench_mix_pick(&b->mix, &b->rng);
        s->key = bench_keys_pick(&b->keys, &b->rng);
        start_op(s);
    }
}

/* ---- phases ---- */

/* The first operations are started from the client's own thread too: an operation without meaning
 * is asked for, whose end begins the phase. */
static void on_kick(void *user, const struct ocache_result *result) {
    struct bench *b = user;
    uint64_t slots = b->cli->opt->concurrency > 0 ? (uint64_t)b->cli->opt->concurrency : 1;

    (void)result;
    b->flying = slots;
    for (uint64_t i = 0; i < slots; i++) {
        start_next(&b->slots[i]);
    }
}

static void progress(const struct bench *b, uint64_t done, uint64_t total) {
    if (b->end_ns != UINT64_MAX && !b->preloading) {
        fprintf(stderr, "\r\033[K%" PRIu64 " operations", done);
    } else {
        fprintf(stderr, "\r\033[K%s %" PRIu64 "/%" PRIu64 " (%.0f %%)",
                b->preloading ? "preloading" : "operations", done, total,
                100.0 * (double)done / (double)total);
    }
    fflush(stderr);
}

static void wait_phase(struct bench *b, bool show, uint64_t total) {
    pthread_mutex_lock(&b->lock);
    while (!b->over) {
        struct timespec until;
        uint64_t at = oc_clock_now(oc_clock_real()).wall_ns + PROGRESS_MS * OC_NS_PER_MS;

        until.tv_sec = (time_t)(at / OC_NS_PER_S);
        until.tv_nsec = (long)(at % OC_NS_PER_S);
        (void)pthread_cond_timedwait(&b->changed, &b->lock, &until); /* `over` says what happened */
        if (show && !b->over) {
            progress(b, b->shown_done, total);
        }
    }
    pthread_mutex_unlock(&b->lock);
    if (show) {
        fprintf(stderr, "\r\033[K");
    }
}

static int run_phase(struct bench *b, bool show, uint64_t total) {
    struct ocache_options opt = {.deadline_ms = OP_DEADLINE_MS};

    b->over = false;
    b->shown_done = 0;
    if (ocache_topology_async(b->cli->client, &opt, on_kick, b) == 0) {
        return OC_E_EXHAUSTED;
    }
    wait_phase(b, show, total);
    return 0;
}

static int preload(struct bench *b, bool show) {
    struct bench_result *r = b->result;
    uint64_t t = now_ns();

    b->preloading = true;
    if (run_phase(b, show, b->keys.count) != 0) {
        fprintf(stderr, "Benchmark failed: " NO_MEMORY "\n");
        return CLI_FAILED;
    }
    b->preloading = false;
    r->preload_ns = now_ns() - t;
    if (cli_interrupted()) {
        return 0;
    }
    if (r->preload_failures * 100 >= b->keys.count * PRELOAD_TOLERANCE) {
        const struct bench_error *e = &r->error_kinds[0];
        struct ocache_error first = {.code = e->code};

        (void)snprintf(first.message, sizeof first.message, "%s", e->message);
        fprintf(stderr,
                "Benchmark failed: %" PRIu64 " of %" PRIu64 " keys could not be preloaded: ",
                r->preload_failures, b->keys.count);
        cli_print_error(stderr, &first);
        fputc('\n', stderr);
        return CLI_FAILED;
    }
    /* Keys that failed have no known value; what was counted so far is not the run's. */
    r->errors = 0;
    memset(r->op_errors, 0, sizeof r->op_errors);
    r->error_kind_count = 0;
    return 0;
}

static void measure(struct bench *b, bool show) {
    const struct cli_options *opt = b->cli->opt;
    struct bench_result *r = b->result;

    b->begun_ns = now_ns();
    b->end_ns = opt->duration_ns > 0 ? b->begun_ns + (uint64_t)opt->duration_ns : UINT64_MAX;
    b->to_start = opt->duration_ns > 0 ? UINT64_MAX : (uint64_t)opt->num_ops;
    if (run_phase(b, show, (uint64_t)opt->num_ops) != 0) {
        r->stopped_workers = r->concurrency;
    }
    r->duration_ns = now_ns() - b->begun_ns;
}

/* ---- the command ---- */

static int bench_init(struct bench *b) {
    const struct cli_options *opt = b->cli->opt;
    struct bench_result *r = b->result;
    uint64_t seed = opt->seed != 0 ? opt->seed : oc_random_seed();

    r->seed = seed;
    r->workload = b->mix.name;
    r->distribution = opt->distribution == 0 ? "uniform" : "zipfian";
    r->num_keys = (uint64_t)opt->num_keys;
    r->concurrency = (uint64_t)opt->concurrency;
    r->connections = (uint64_t)opt->connection_pool_size;
    r->value_size = opt->value_size;
    r->streaming = opt->force_streaming || opt->value_size > 4u << 20;
    oc_hist_init(&r->latency[BENCH_READ]);
    oc_hist_init(&r->latency[BENCH_UPDATE]);
    oc_rng_init(&b->rng, seed);
    bench_keys_init(&b->keys, r->num_keys, opt->distribution == 1);
    b->op_options = (struct ocache_options){.deadline_ms = OP_DEADLINE_MS,
                                            .force_stream = opt->force_streaming};
    if (opt->timeout_ns > 0) {
        b->op_options.deadline_ms = cli_operation(b->cli).deadline_ms;
    }
    b->states = calloc(r->num_keys, sizeof *b->states);
    b->slots = calloc(r->concurrency, sizeof *b->slots);
    r->per_second = calloc(BENCH_SECONDS, sizeof *r->per_second);
    if (b->states == NULL || b->slots == NULL || r->per_second == NULL ||
        bench_values_init(&b->values, (size_t)opt->value_size, seed) != 0) {
        fprintf(stderr, "Benchmark failed: " NO_MEMORY "\n");
        return CLI_FAILED;
    }
    for (uint64_t i = 0; i < r->concurrency; i++) {
        b->slots[i].bench = b;
    }
    return 0;
}

static void bench_done(struct bench *b) {
    bench_values_done(&b->values);
    free(b->states);
    free(b->slots);
    free(b->result->per_second);
    free(b->result);
}

static int bench_run(struct bench *b) {
    const struct cli_options *opt = b->cli->opt;
    bool show = !opt->no_progress && !opt->json && isatty(STDERR_FILENO);

    if (cli_connect(b->cli, (unsigned)opt->connection_pool_size) != 0) {
        return CLI_FAILED;
    }
    int rv = preload(b, show);
    if (rv == 0 && !cli_interrupted()) {
        measure(b, show);
    }
    cli_disconnect(b->cli);
    if (rv != 0) {
        return rv;
    }
    if (cli_interrupted()) {
        fprintf(stderr, "Benchmark cancelled\n");
        return CLI_FAILED;
    }
    if (opt->json) {
        rv = bench_report_json(b->result);
    } else {
        bench_report(b->result);
    }
    rv = rv == 0 ? cli_flush() : rv;
    return b->result->wrong_bytes > 0 ? CLI_FAILED : rv;
}

int cli_bench(struct cli *cli) {
    struct bench b = {.cli = cli,
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .changed = PTHREAD_COND_INITIALIZER,
                      .end_ns = UINT64_MAX};
    struct oc_error err = {0};

    if (bench_mix_parse(cli->opt->workload, &b.mix, &err) != 0) {
        fprintf(stderr, "Benchmark failed: %s\n", err.msg);
        return CLI_FAILED;
    }
    b.result = calloc(1, sizeof *b.result);
    if (b.result == NULL) {
        fprintf(stderr, "Benchmark failed: " NO_MEMORY "\n");
        return CLI_FAILED;
    }
    int rv = bench_init(&b);
    if (rv == 0) {
        rv = bench_run(&b);
    }
    bench_done(&b);
    return rv;
}
