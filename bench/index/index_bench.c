/* Measures core/index: resident bytes a key, time of a lookup, rates of insertion, loading and
 * walking.
 *
 *   index_bench [-n KEYS] [-shape hex|tenants|random] [-tenants T] [-shards S] [-key BYTES] [-raw]
 *
 * Lookups are timed one by one by the wall clock, everything else by processor time.
 * The raw ceiling printed beside lookups is a dependent read of one random cache line of a table as
 * large as the index: what a lookup that touched memory once would take. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/rng.h"
#include "core/index/index.h"

#define LOOKUPS   500000u
#define KEY_MAX   1024u
#define SHARD_MAX 1024u

enum shape {
    HEX,
    TENANTS,
    RANDOM,
};

struct setup {
    uint64_t n;
    unsigned shards;
    enum shape shape;
    unsigned tenants;
    size_t key_len;
    unsigned bits; /* n <= 2^bits */
    struct oc_index *ix[SHARD_MAX];
};

static uint64_t now_ns(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Rates are by processor time: nothing here waits, and a busy machine does not count. */
static uint64_t cpu_ns(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* cannot fail */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t resident_bytes(void) {
    unsigned long long size = 0;
    unsigned long long resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (f == NULL || fscanf(f, "%llu %llu", &size, &resident) != 2) {
        perror("/proc/self/statm");
        exit(1);
    }
    (void)fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* A permutation of [0, n): each round is one of [0, 2^bits), walked until it is below n. */
static uint64_t permute(const struct setup *s, uint64_t i) {
    uint64_t mask = (1ull << s->bits) - 1;

    do {
        for (unsigned round = 0; round < 3; round++) {
            i = (i * 0x9e3779b97f4a7c15ull + 0x7f4a7c15ull + round) & mask;
            i ^= i >> (s->bits / 2);
        }
    } while (i >= s->n);
    return i;
}

/* The i-th key in order of insertion. */
static struct oc_span make_key(const struct setup *s, uint64_t i, uint8_t *buf) {
    static const char digits[] = "0123456789abcdef";
    uint64_t p = permute(s, i);
    char text[KEY_MAX + 1];

    if (s->shape == TENANTS) {
        (void)snprintf(text, sizeof text, "bucket/tenant-%06u/object-%0*" PRIu64,
                       (unsigned)(p % s->tenants), (int)s->key_len - 28, p / s->tenants);
        memcpy(buf, text, s->key_len);
        return oc_span(buf, s->key_len);
    }
    for (size_t at = 0; at < s->key_len; at++) {
        uint64_t word = mix(p + (at / 8) * 0x632be59bd9b4e019ull + 1);
        unsigned byte = (unsigned)(word >> (at % 8 * 8)) & 0xff;

        buf[at] = s->shape == HEX ? (uint8_t)digits[byte & 15] : (uint8_t)byte;
    }
    return oc_span(buf, s->key_len);
}

static struct oc_index *shard_of(const struct setup *s, struct oc_span key) {
    return s->ix[s->shards == 1 ? 0 : oc_hash_key(key) % s->shards];
}

static uint64_t indexes_new(struct setup *s) {
    uint64_t before = resident_bytes();

    for (unsigned i = 0; i < s->shards; i++) {
        s->ix[i] = oc_index_new();
        if (s->ix[i] == NULL) {
            fprintf(stderr, "out of memory\n");
            exit(1);
        }
    }
    return resident_bytes() - before;
}

static void insert_all(struct setup *s) {
    uint8_t buf[KEY_MAX];
    struct oc_entry e = {.version = 1, .value_len = 4096, .segment = 1};
    uint64_t idle = indexes_new(s);
    uint64_t before = resident_bytes();
    uint64_t t0 = cpu_ns();
    uint64_t keys_ns;
    uint64_t all_ns;
    double bytes;
    uint64_t memory = 0;

    for (uint64_t i = 0; i < s->n; i++) {
        (void)make_key(s, i, buf);
    }
    keys_ns = cpu_ns() - t0; /* making the keys is not the index's work */
    t0 = cpu_ns();
    for (uint64_t i = 0; i < s->n; i++) {
        struct oc_span key = make_key(s, i, buf);

        e.offset = (uint32_t)i;
        if (oc_index_apply(shard_of(s, key), key, &e, NULL, NULL) != 1) {
            fprintf(stderr, "insertion %" PRIu64 " failed\n", i);
            exit(1);
        }
    }
    all_ns = cpu_ns() - t0;
    bytes = (double)(resident_bytes() - before) / (double)s->n;
    for (unsigned i = 0; i < s->shards; i++) {
        struct oc_index_stats st;

        oc_index_stats(s->ix[i], &st);
        memory += st.memory_bytes;
    }
    printf("idle          %8.1f KiB resident for %u indexes\n", (double)idle / 1024, s->shards);
    printf("memory        %8.1f bytes/key resident (key + %.1f); stats say %.1f\n", bytes,
           bytes - (double)s->key_len, (double)memory / (double)s->n);
    printf("insert        %8.0f ns/key, %.0f keys/s\n", (double)(all_ns - keys_ns) / (double)s->n,
           (double)s->n * 1e9 / (double)(all_ns - keys_ns));
}

static int by_value(const void *a, const void *b) {
    const uint32_t *x = a;
    const uint32_t *y = b;

    return (*x > *y) - (*x < *y);
}

static uint64_t clock_cost_ns(void) {
    uint64_t least = UINT64_MAX;

    for (unsigned i = 0; i < 100000; i++) {
        uint64_t t0 = now_ns();
        uint64_t t = now_ns() - t0;

        least = t < least ? t : least;
    }
    return least;
}

static void print_times(const char *what, uint32_t *ns, unsigned n, uint64_t clock_ns) {
    uint64_t sum = 0;

    qsort(ns, n, sizeof *ns, by_value);
    for (unsigned i = 0; i < n; i++) {
        sum += ns[i];
    }
    printf("%-13s %8" PRId64 " ns median, %" PRId64 " ns p99, %.0f ns mean\n", what,
           (int64_t)ns[n / 2] - (int64_t)clock_ns, (int64_t)ns[n / 100 * 99] - (int64_t)clock_ns,
           (double)sum / n - (double)clock_ns);
}

/* Zipf with exponent 0.99 by inverting the continuous distribution; ranks are scattered by mix().
 */
static uint64_t zipf(const struct setup *s, struct oc_rng *rng) {
    const double power = 0.01;
    double u = oc_rng_unit(rng);
    double x = pow(u * (pow((double)s->n, power) - 1) + 1, 1 / power);
    uint64_t rank = (uint64_t)x - 1;

    return mix(rank) % s->n;
}

enum pick {
    UNIFORM,
    ZIPF,
    ABSENT,
};

static void lookups(const struct setup *s, const char *what, enum pick pick, uint64_t clock_ns) {
    uint32_t *ns = calloc(LOOKUPS, sizeof *ns);
    uint8_t buf[KEY_MAX];
    struct oc_rng rng;
    struct oc_entry e;

    oc_rng_init(&rng, 7);
    for (unsigned i = 0; ns != NULL && i < LOOKUPS; i++) {
        uint64_t which = pick == ZIPF ? zipf(s, &rng) : oc_rng_below(&rng, s->n);
        struct oc_span key = make_key(s, which, buf);
        struct oc_index *ix;
        uint64_t t0;
        bool found;

        if (pick == ABSENT) {
            buf[key.len - 1] ^= 0x40;
        }
        ix = shard_of(s, key);
        t0 = now_ns();
        found = oc_index_find(ix, key, &e);
        ns[i] = (uint32_t)(now_ns() - t0);
        if (found != (pick != ABSENT) || (found && e.offset != (uint32_t)which)) {
            fprintf(stderr, "wrong answer for key %" PRIu64 "\n", which);
            exit(1);
        }
    }
    if (ns == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    print_times(what, ns, LOOKUPS, clock_ns);
    free(ns);
}

static void raw_reads(const struct setup *s, uint64_t clock_ns) {
    size_t lines = s->n * (s->key_len + 56) / 64 + 1;
    uint8_t *table = malloc(lines * 64);
    uint32_t *ns = calloc(LOOKUPS, sizeof *ns);
    struct oc_rng rng;
    volatile uint8_t sink = 0;

    if (table == NULL || ns == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    memset(table, 1, lines * 64);
    oc_rng_init(&rng, 9);
    for (unsigned i = 0; i < LOOKUPS; i++) {
        size_t at = oc_rng_below(&rng, lines) * 64;
        uint64_t t0 = now_ns();

        sink = (uint8_t)(sink + table[at]);
        ns[i] = (uint32_t)(now_ns() - t0);
    }
    print_times("raw one line", ns, LOOKUPS, clock_ns);
    free(ns);
    free(table);
}

struct load {
    struct oc_index_loader *l;
    uint64_t keys;
    uint64_t bytes;
};

static int count_each(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct load *w = arg;

    w->keys++;
    w->bytes += key.len + e->segment;
    return 0;
}

static int load_each(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct load *w = arg;

    w->keys++;
    return oc_index_loader_add(w->l, key, e) != 0;
}

/* Walks all; then loads a copy of each index from a walk of it. */
static void walk_and_load(struct setup *s) {
    struct load w = {0};
    uint64_t t0 = cpu_ns();
    uint64_t walk_ns;
    uint64_t load_ns;
    uint64_t before;

    for (unsigned i = 0; i < s->shards; i++) {
        oc_index_walk(s->ix[i], OC_SPAN_EMPTY, false, count_each, &w);
    }
    walk_ns = cpu_ns() - t0;
    printf("walk          %8.0f ns/key, %.1f M keys/s\n", (double)walk_ns / (double)w.keys,
           (double)w.keys * 1e3 / (double)walk_ns);
    before = resident_bytes();
    t0 = cpu_ns();
    w.keys = 0;
    for (unsigned i = 0; i < s->shards; i++) {
        struct oc_index *copy = oc_index_new();

        w.l = copy != NULL ? oc_index_loader_new(copy) : NULL;
        if (w.l == NULL) {
            fprintf(stderr, "out of memory\n");
            exit(1);
        }
        oc_index_walk(s->ix[i], OC_SPAN_EMPTY, false, load_each, &w);
        (void)oc_index_loader_done(w.l); /* what it would report, load_each saw */
        if (s->shards == 1) {
            printf("memory loaded %8.1f bytes/key resident\n",
                   (double)(resident_bytes() - before) / (double)w.keys);
        }
        oc_index_free(copy);
    }
    load_ns = cpu_ns() - t0;
    printf("bulk load     %8.0f ns/key, %.1f M keys/s (the walk of the source subtracted)\n",
           (double)(load_ns - walk_ns) / (double)w.keys,
           (double)w.keys * 1e3 / (double)(load_ns - walk_ns));
}

static void remove_most(struct setup *s) {
    uint8_t buf[KEY_MAX];
    uint64_t keep = s->n / 10;
    uint64_t t0 = cpu_ns();
    uint64_t memory = 0;

    for (uint64_t i = keep; i < s->n; i++) {
        struct oc_span key = make_key(s, i, buf);

        if (!oc_index_remove(shard_of(s, key), key, 1)) {
            fprintf(stderr, "removal %" PRIu64 " failed\n", i);
            exit(1);
        }
    }
    for (unsigned i = 0; i < s->shards; i++) {
        struct oc_index_stats st;

        oc_index_stats(s->ix[i], &st);
        memory += st.memory_bytes;
    }
    printf("remove 90 %%   %8.0f ns/key with making it; then %.1f bytes/key left\n",
           (double)(cpu_ns() - t0) / (double)(s->n - keep), (double)memory / (double)keep);
}

static void usage(void) {
    fprintf(stderr, "usage: index_bench [-n KEYS] [-shape hex|tenants|random] [-tenants T]"
                    " [-shards S] [-key BYTES] [-raw]\n");
    exit(2);
}

static uint64_t number(const char *text, uint64_t least, uint64_t most) {
    char *end;
    unsigned long long v = strtoull(text, &end, 10);

    if (*text == '\0' || *end != '\0' || v < least || v > most) {
        usage();
    }
    return v;
}

static void parse(struct setup *s, int argc, char **argv, bool *raw) {
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(argv[i], "-raw") == 0) {
            *raw = true;
            continue;
        }
        if (strcmp(argv[i], "-n") == 0) {
            s->n = number(value, 1000, 1000000000);
        } else if (strcmp(argv[i], "-tenants") == 0) {
            s->tenants = (unsigned)number(value, 1, 999999);
        } else if (strcmp(argv[i], "-shards") == 0) {
            s->shards = (unsigned)number(value, 1, SHARD_MAX);
        } else if (strcmp(argv[i], "-key") == 0) {
            s->key_len = number(value, 40, KEY_MAX);
        } else if (strcmp(argv[i], "-shape") == 0 && strcmp(value, "hex") == 0) {
            s->shape = HEX;
        } else if (strcmp(argv[i], "-shape") == 0 && strcmp(value, "tenants") == 0) {
            s->shape = TENANTS;
        } else if (strcmp(argv[i], "-shape") == 0 && strcmp(value, "random") == 0) {
            s->shape = RANDOM;
        } else {
            usage();
        }
        i++;
    }
}

int main(int argc, char **argv) {
    static struct setup s = {
        .n = 1000000, .shards = 1, .shape = HEX, .tenants = 1000, .key_len = 64};
    static const char *const names[] = {"hex", "tenants", "random"};
    bool raw = false;
    uint64_t clock_ns = clock_cost_ns();

    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* a long run shows its progress; else no harm */
    parse(&s, argc, argv, &raw);
    while ((1ull << s.bits) < s.n) {
        s.bits++;
    }
    printf("%" PRIu64 " keys of %zu bytes (%s), %u index%s; clock %" PRIu64 " ns subtracted\n", s.n,
           s.key_len, names[s.shape], s.shards, s.shards == 1 ? "" : "es", clock_ns);
    insert_all(&s);
    lookups(&s, "find uniform", UNIFORM, clock_ns);
    lookups(&s, "find zipf", ZIPF, clock_ns);
    lookups(&s, "find absent", ABSENT, clock_ns);
    if (raw) {
        raw_reads(&s, clock_ns);
    }
    walk_and_load(&s);
    remove_most(&s);
    for (unsigned i = 0; i < s.shards; i++) {
        oc_index_free(s.ix[i]);
    }
    return 0;
}
