/* Writers, readers, a lister and the background thread at once: nothing but what was written is
 * seen, and never an older value after a newer one. Most of its worth is under the thread
 * sanitizer. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "rig.h"

#define WRITERS    3
#define READERS    2
#define KEYS       24 /* a third for each writer, so that each knows the newest of its own */
#define RUN_NS     (2 * OC_NS_PER_S)
#define WRITES_MAX 40000 /* of one writer, should the machine be very fast */
#define VALUE_HEAD 16

struct shared {
    struct rig *r;
    _Atomic uint64_t acked[KEYS]; /* the newest acknowledged generation of each key */
    /* Odd while a batch that deletes the key and puts it again is on its way: between the two a
     * miss is a right answer. */
    _Atomic uint64_t deletions[KEYS];
    _Atomic bool stop;
    _Atomic uint64_t failures;
};

struct worker {
    struct shared *sh;
    unsigned id;
    pthread_t thread;
    uint64_t done;
};

static uint64_t real_ns(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * OC_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* Waiting threads have deadlines, so time must pass here as it does for them: no clock of the
 * test's. */
static struct oc_now real_now(void *ctx) {
    struct timespec wall;

    (void)ctx;
    clock_gettime(CLOCK_REALTIME, &wall);
    return (struct oc_now){.mono_ns = real_ns(),
                           .wall_ns = (uint64_t)wall.tv_sec * OC_NS_PER_S + (uint64_t)wall.tv_nsec};
}

static void key_of(size_t i, char ret[32]) {
    (void)snprintf(ret, 32, "thread-%zu", i);
}

/* A value says which key and generation it is and repeats that to its end. */
static void make_value(uint8_t *dst, size_t len, uint64_t key, uint64_t generation) {
    for (size_t at = 0; at < len; at += VALUE_HEAD) {
        uint64_t head[2] = {key, generation};

        memcpy(dst + at, head, len - at < VALUE_HEAD ? len - at : VALUE_HEAD);
    }
}

static bool value_ok(const uint8_t *p, size_t len, uint64_t key, uint64_t *generation) {
    uint64_t head[2];

    if (len < VALUE_HEAD) {
        return false;
    }
    memcpy(head, p, VALUE_HEAD);
    *generation = head[1];
    for (size_t at = VALUE_HEAD; at < len; at += VALUE_HEAD) {
        if (memcmp(p + at, head, len - at < VALUE_HEAD ? len - at : VALUE_HEAD) != 0) {
            return false;
        }
    }
    return head[0] == key;
}

static void expect(struct shared *sh, bool ok) {
    if (!ok) {
        atomic_fetch_add(&sh->failures, 1);
    }
}

static struct oc_upload *upload(struct shared *sh, const uint8_t *bytes, size_t len) {
    struct oc_upload *u = NULL;

    if (oc_upload_begin(sh->r->s, &u, NULL) != 0) {
        return NULL;
    }
    for (size_t at = 0; at < len; at += OC_CHUNK_BYTES) {
        size_t n = len - at < OC_CHUNK_BYTES ? len - at : OC_CHUNK_BYTES;

        expect(sh, oc_upload_write(u, bytes + at, n, NULL) == 0);
    }
    expect(sh, oc_upload_finish(u, NULL) == 0);
    return u;
}

static void *write_keys(void *arg) {
    struct worker *w = arg;
    struct shared *sh = w->sh;
    uint8_t *bytes = malloc(2 * OC_CHUNK_BYTES);
    struct oc_rng rng;

    oc_rng_init(&rng, w->id);
    for (uint64_t g = 1; !atomic_load(&sh->stop) && g < WRITES_MAX; g++) {
        size_t k = w->id + WRITERS * oc_rng_below(&rng, KEYS / WRITERS);
        bool large = oc_rng_below(&rng, 100) == 0;
        size_t len = large ? OC_INLINE_MAX + 1 + oc_rng_below(&rng, 1000)
                           : VALUE_HEAD + oc_rng_below(&rng, 6000);
        struct oc_write put = {.value = {.p = bytes, .len = len}};
        struct oc_write del = {.is_delete = true};
        struct oc_batch b;
        char key[32];

        key_of(k, key);
        make_value(bytes, len, k, g);
        oc_batch_init(&b);
        put.key = del.key = oc_span_str(key);
        if (large) {
            put.upload = upload(sh, bytes, len);
            put.value.len = 0;
            expect(sh, put.upload != NULL);
        }
        bool deletes = oc_rng_below(&rng, 4) == 0;
        if (deletes) {
            oc_batch_add(&b, &del);
            atomic_fetch_add(&sh->deletions[k], 1);
        }
        oc_batch_add(&b, &put);
        expect(sh, oc_objects_commit(sh->r->s, &b) == 0);
        if (deletes) {
            atomic_fetch_add(&sh->deletions[k], 1);
        }
        atomic_store(&sh->acked[k], g);
        if (put.upload != NULL) {
            oc_upload_free(put.upload);
        }
        w->done++;
    }
    free(bytes);
    return NULL;
}

/* Reads the key once; 0, or OC_E_NOT_FOUND. */
static int read_key(struct shared *sh, size_t k, uint8_t *dst, uint64_t *generation) {
    struct oc_reader *reader = NULL;
    struct oc_object obj;
    struct oc_span key, value;
    char name[32];

    key_of(k, name);
    key = oc_span_str(name);
    int rc = oc_objects_find(sh->r->s, key, &obj);
    if (rc == 0 && oc_object_is_small(&obj)) {
        rc = oc_objects_read(sh->r->s, key, &obj, dst, false, &value);
    } else if (rc == 0) {
        rc = oc_reader_open(sh->r->s, key, &obj, &reader, NULL);
        if (rc == 0) {
            rc = oc_reader_chunk(reader, 0, dst, false, &value);
            oc_reader_close(reader);
        }
    }
    if (rc == 0) {
        expect(sh, value_ok(value.p, value.len, k, generation));
    }
    return rc;
}

static void *read_keys(void *arg) {
    struct worker *w = arg;
    struct shared *sh = w->sh;
    uint8_t *dst = malloc(2 * OC_CHUNK_BYTES);
    struct oc_rng rng;

    oc_rng_init(&rng, 100 + w->id);
    while (!atomic_load(&sh->stop)) {
        size_t k = oc_rng_below(&rng, KEYS);
        uint64_t floor = atomic_load(&sh->acked[k]), generation = 0;
        uint64_t deletions = atomic_load(&sh->deletions[k]);
        int rc = OC_E_NOT_FOUND;

        /* Overwritten between lookup and opening: look up once more; here, as writers never pause,
         * a few times. */
        for (int i = 0; i < 20 && rc == OC_E_NOT_FOUND && floor > 0; i++) {
            rc = read_key(sh, k, dst, &generation);
        }
        if (rc == OC_E_NOT_FOUND && floor > 0) {
            expect(sh, deletions % 2 == 1 || atomic_load(&sh->deletions[k]) != deletions);
        } else if (floor > 0) {
            expect(sh, rc == 0 && generation >= floor);
        }
        w->done++;
    }
    free(dst);
    return NULL;
}

static int count_key(void *arg, struct oc_span key, const struct oc_object *obj) {
    (void)key;
    (void)obj;
    (*(size_t *)arg)++;
    return 0;
}

static void *tick_and_list(void *arg) {
    struct worker *w = arg;
    struct shared *sh = w->sh;

    while (!atomic_load(&sh->stop)) {
        struct oc_objects_stats st;
        size_t count = 0;
        bool more;

        oc_objects_tick(sh->r->s);
        expect(sh, oc_objects_list(sh->r->s, OC_SPAN_EMPTY, OC_SPAN_EMPTY, 100, count_key, &count,
                                   &more) == 0);
        expect(sh, count <= KEYS && !more);
        oc_objects_stats(sh->r->s, &st);
        expect(sh, st.keys <= KEYS);
        w->done++;
    }
    return NULL;
}

static void run(enum oc_sync_mode sync) {
    struct worker workers[WRITERS + READERS + 1];
    struct shared sh = {.stop = false};
    struct rig r;
    uint8_t *dst = malloc(2 * OC_CHUNK_BYTES);

    rig_init(&r);
    r.clock.now = real_now;
    r.cfg.sync = sync;
    r.cfg.sync_interval_ms = 50;
    r.cfg.max_disk_bytes = UINT64_C(2) << 30;
    r.cfg.segment_bytes = 4 << 20;
    r.cfg.checkpoint_bytes = 8 << 20;
    r.cfg.max_open_files = 16;
    rig_open(&r);
    sh.r = &r;
    for (unsigned i = 0; i < WRITERS + READERS + 1; i++) {
        void *(*fn)(void *) = i < WRITERS             ? write_keys
                              : i < WRITERS + READERS ? read_keys
                                                      : tick_and_list;

        workers[i] = (struct worker){.sh = &sh, .id = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, fn, &workers[i]), 0);
    }
    for (uint64_t end_ns = real_ns() + RUN_NS; real_ns() < end_ns;) {
        struct timespec step = {.tv_nsec = 20 * 1000 * 1000};

        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &step, NULL); /* the length of the run */
    }
    atomic_store(&sh.stop, true);
    for (unsigned i = 0; i < WRITERS + READERS + 1; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_true(workers[i].done > 0);
    }
    assert_int_equal(atomic_load(&sh.failures), 0);
    for (int round = 0; round < 2; round++) {
        for (size_t k = 0; k < KEYS; k++) {
            uint64_t generation = 0;

            if (atomic_load(&sh.acked[k]) > 0) {
                assert_int_equal(read_key(&sh, k, dst, &generation), 0);
                assert_int_equal(generation, atomic_load(&sh.acked[k]));
            }
        }
        rig_reopen(&r, round == 1);
    }
    assert_int_equal(atomic_load(&sh.failures), 0);
    free(dst);
    rig_done(&r);
}

static void test_threads(void **state) {
    (void)state;
    run(OC_SYNC_INTERVAL);
}

static void test_threads_group_commit(void **state) {
    (void)state;
    run(OC_SYNC_ALWAYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_threads_group_commit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
