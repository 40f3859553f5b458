/* The parts of `ocachecli bench`: what is asked (load), the run (bench), the report. */
#ifndef OC_APPS_OCACHECLI_BENCH_H
#define OC_APPS_OCACHECLI_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hist.h"
#include "base/rng.h"
#include "base/span.h"

/* ---- load: which operation, which key, which bytes ---- */

enum bench_op { BENCH_READ, BENCH_UPDATE, BENCH_OPS };

struct bench_mix {
    uint64_t weights[BENCH_OPS];
    uint64_t total;
    char name[64];
};

/* "A", "B", "C" or "read=70,update=30". */
int bench_mix_parse(const char *text, struct bench_mix *ret, struct oc_error *err);
enum bench_op bench_mix_pick(const struct bench_mix *mix, struct oc_rng *rng);

/* Uniform, or Zipf with exponent 0.99 over scattered keys (the usual model of a cache's
 * popularity). */
struct bench_keys {
    uint64_t count;
    bool zipfian;
    double zeta_n, eta, alpha;
};
void bench_keys_init(struct bench_keys *keys, uint64_t count, bool zipfian);
uint64_t bench_keys_pick(const struct bench_keys *keys, struct oc_rng *rng);
/* "user%x" of the 64-bit FNV-1a of the index's 8 bytes, least significant first. */
#define BENCH_KEY_MAX 24
size_t bench_key_name(uint64_t index, char dst[BENCH_KEY_MAX]);

/* Values are windows of one random buffer, at an offset that key and generation give: nothing is
 * made within the timed section, and the bytes of another key, generation or offset do not match.
 */
struct bench_values {
    uint8_t *bytes;
    size_t value_size;
    uint64_t salt;
};
int bench_values_init(struct bench_values *v, size_t value_size, uint64_t seed);
void bench_values_done(struct bench_values *v);
const uint8_t *bench_value(const struct bench_values *v, uint64_t key, uint32_t generation);

/* What is known about a key's generations. */
struct bench_key_state {
    uint32_t issued; /* the newest generation sent */
    uint32_t floor;  /* the oldest that a read beginning now may return */
    uint16_t writing;
    bool overlapped; /* writes overlapped: their order at the server is unknown */
    bool uncertain;  /* a write failed: it may have happened, or happen any time later */
};
uint32_t bench_write_begin(struct bench_key_state *k);
void bench_write_end(struct bench_key_state *k, uint32_t generation, bool ok);

/* Checks one value as it arrives. */
#define BENCH_CHECK_HEAD 32
struct bench_check {
    const struct bench_values *values;
    const struct bench_key_state *state;
    uint64_t key;
    uint32_t floor; /* when the read began */
    uint8_t head[BENCH_CHECK_HEAD];
    size_t seen;
    const uint8_t *expected; /* once enough was seen to know the generation */
    uint64_t wrong;
};
void bench_check_begin(struct bench_check *c, const struct bench_values *values, uint64_t key,
                       const struct bench_key_state *state);
void bench_check_piece(struct bench_check *c, struct oc_span piece);
/* Wrong bytes of the whole value; a missing or surplus byte counts too. */
uint64_t bench_check_end(struct bench_check *c);

/* ---- results ---- */

#define BENCH_ERRORS  24
#define BENCH_SECONDS 86400u

struct bench_error {
    int code;
    enum bench_op op;
    uint64_t count;
    char message[160]; /* of the first */
};

struct bench_result {
    const char *workload;
    const char *distribution;
    uint64_t num_keys, concurrency, connections, seed;
    uint64_t value_size;
    bool streaming;
    uint64_t duration_ns;
    uint64_t preload_ns, preload_failures;
    uint64_t done, errors;
    uint64_t wrong_bytes, wrong_values;
    uint64_t bytes_read, bytes_written;
    uint64_t stopped_workers;
    bool cancelled;
    struct oc_hist latency[BENCH_OPS]; /* ns, of successes */
    uint64_t op_errors[BENCH_OPS];
    struct bench_error error_kinds[BENCH_ERRORS];
    unsigned error_kind_count;
    uint64_t *per_second; /* operations finished in each second */
    uint64_t second_count;
};

void bench_report(const struct bench_result *r);
int bench_report_json(const struct bench_result *r);

#endif
