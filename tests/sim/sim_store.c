/* The simulator of the object store: the objects that ship, on a disk that misbehaves, under a
 * virtual clock, in one thread, one seed a run. Writers are interleaved between append and publish;
 * the process dies in the middle of calls; power is lost; bits flip; writes and syncs fail; space
 * runs out. After every start the model says whether what is there was promised.
 *
 * There is no protocol logic here: only calls, faults and the model. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "core/seglog/format.h"
#include "model.h"
#include "sim_disk.h"
#include "sim_store.h"
#include "store/objects.h"

#define WRITERS      3u
#define BATCH_WRITES 6u
#define VALUE_MAX    (3u * OC_CHUNK_BYTES)
#define LIVES        6u /* starts of the process in one run */

/* A batch on its way: built and appended, not yet published. */
struct writer {
    struct oc_batch batch;
    struct oc_write writes[BATCH_WRITES];
    struct model_key *keys[BATCH_WRITES];
    size_t index[BATCH_WRITES]; /* among the key's writes */
    uint8_t *values[BATCH_WRITES];
    bool may_miss[BATCH_WRITES]; /* nothing to delete would have been a right answer */
    size_t count;
    bool appended;
};

struct sim {
    struct oc_rng rng;
    uint64_t seed;
    struct sim_disk *disk;
    struct oc_objects *store;
    struct model model;
    struct writer writers[WRITERS];
    struct oc_clock clock;
    struct oc_objects_config cfg;
    uint64_t mono_ns;
    uint64_t acked_seq;         /* newest acknowledged write */
    uint64_t tick_ns, tick_seq; /* an earlier tick and what was acknowledged before it */
    uint64_t floor_seq;         /* what the sync mode promises to survive a power loss */
    uint64_t sync_failures;
    bool sync_faults; /* syncs have failed since the last start */
    bool verbose;
    uint8_t *scratch, *chunk;
    struct model_seen seen[MODEL_KEYS];
    uint8_t *seen_bytes[MODEL_KEYS];
};

static void tell(const struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void tell(const struct sim *s, const char *fmt, ...) {
    va_list ap;

    if (!s->verbose) {
        return;
    }
    va_start(ap, fmt);
    (void)vprintf(fmt, ap);
    va_end(ap);
    (void)putchar('\n');
    (void)fflush(stdout);
}

static struct oc_now sim_now(void *ctx) {
    struct sim *s = ctx;

    return (struct oc_now){.mono_ns = s->mono_ns, .wall_ns = s->model.wall_ns};
}

static void advance(struct sim *s, uint64_t ns) {
    s->mono_ns += ns;
    s->model.wall_ns += ns;
    if (s->model.wall_ns > s->model.wall_max_ns) {
        s->model.wall_max_ns = s->model.wall_ns;
    }
}

static uint64_t below(struct sim *s, uint64_t n) {
    return oc_rng_below(&s->rng, n);
}

static bool failed(const struct sim *s) {
    return s->model.fault[0] != 0;
}

/* ---- writing ---- */

static uint32_t pick_len(struct sim *s) {
    switch (below(s, 10)) {
    case 0:
        return 0;
    case 1:
        return (uint32_t)below(s, 8);
    case 2:
        return (uint32_t)(OC_INLINE_MAX - below(s, 3));
    case 3:
        return (uint32_t)below(s, 60000);
    default:
        return (uint32_t)below(s, 600);
    }
}

/* A value too large for a record: uploaded chunk by chunk. NULL when it could not be (full,
 * failing). */
static struct oc_upload *upload(struct sim *s, const uint8_t *bytes, uint32_t len) {
    struct oc_upload *u = NULL;
    int r = oc_upload_begin(s->store, &u, NULL);

    for (uint32_t at = 0; r == 0 && at < len; at += OC_CHUNK_BYTES) {
        r = oc_upload_write(u, bytes + at, len - at < OC_CHUNK_BYTES ? len - at : OC_CHUNK_BYTES,
                            NULL);
        if (below(s, 24) == 0) {
            r = -1; /* the client went away */
        }
    }
    r = r == 0 ? oc_upload_finish(u, NULL) : r;
    if (r != 0 && u != NULL) {
        oc_upload_free(u);
        u = NULL;
    }
    return u;
}

static bool write_build(struct sim *s, struct writer *w, size_t i) {
    struct oc_write *o = &w->writes[i];
    struct model_key *k = &s->model.keys[below(s, MODEL_KEYS)];
    uint32_t len = pick_len(s);

    for (size_t j = 0; j < i; j++) {
        if (w->keys[j] == k) {
            return false; /* one write a key in a batch keeps the model's order unambiguous */
        }
    }
    *o = (struct oc_write){.key = model_name(k)};
    w->keys[i] = k;
    w->values[i] = NULL;
    if (below(s, 4) == 0) {
        o->is_delete = true;
        return true;
    }
    if (below(s, 12) == 0) {
        len = OC_INLINE_MAX + 1 + (uint32_t)below(s, VALUE_MAX - OC_INLINE_MAX - 1);
    }
    uint64_t value = s->model.next_value++;
    w->values[i] = malloc(len + 8u);
    OC_CHECK(w->values[i] != NULL);
    model_value(value, w->values[i], len);
    if (below(s, 5) == 0) {
        o->expires_at_s = (uint32_t)(s->model.wall_ns / OC_NS_PER_S + 1 + below(s, 8));
    }
    if (len > OC_INLINE_MAX) {
        o->upload = upload(s, w->values[i], len);
        if (o->upload == NULL) {
            free(w->values[i]);
            return false;
        }
    } else {
        o->value = (struct oc_slice){.p = w->values[i], .len = len};
    }
    /* The model learns of it when it is appended; until then the id waits in `version`. */
    o->version = value;
    w->index[i] = len;
    return true;
}

static void writer_drop(struct writer *w) {
    for (size_t i = 0; i < w->count; i++) {
        if (w->writes[i].upload != NULL) {
            oc_upload_free(w->writes[i].upload);
        }
        free(w->values[i]);
    }
    w->count = 0;
    w->appended = false;
}

static void writer_append(struct sim *s, struct writer *w) {
    size_t want = 1 + below(s, BATCH_WRITES);

    oc_batch_init(&w->batch);
    w->count = 0;
    for (size_t i = 0; i < want && !sim_disk_dead(s->disk); i++) {
        if (write_build(s, w, w->count)) {
            w->count++;
        }
    }
    for (size_t i = 0; i < w->count; i++) {
        struct oc_write *o = &w->writes[i];

        w->may_miss[i] = model_may_miss(&s->model, w->keys[i]);
        w->index[i] = model_begin(&s->model, w->keys[i], o->is_delete ? 0 : o->version,
                                  (uint32_t)w->index[i], o->expires_at_s);
        o->version = 0;
        oc_batch_add(&w->batch, o);
    }
    if (w->count > 0) {
        w->appended = true;
        oc_objects_append(s->store, &w->batch);
        tell(s, "append %zu writes up to seq %llu", w->count,
             (unsigned long long)s->model.next_seq - 1);
    }
}

static void writer_publish(struct sim *s, struct writer *w) {
    size_t bad = oc_objects_publish(s->store, &w->batch);

    if (sim_disk_dead(s->disk)) {
        return; /* nobody is there to be told */
    }
    for (size_t i = 0; i < w->count; i++) {
        struct model_write *mw = &w->keys[i]->writes[w->index[i]];

        if (w->writes[i].result == 0 && w->writes[i].is_delete && w->writes[i].version == 0) {
            model_ack_nothing(&s->model, w->keys[i], w->index[i], w->may_miss[i]);
        } else if (w->writes[i].result == 0) {
            model_ack(w->keys[i], w->index[i]);
            if (mw->seq > s->acked_seq) {
                s->acked_seq = mw->seq;
            }
            if (s->cfg.sync == OC_SYNC_ALWAYS && s->acked_seq > s->floor_seq) {
                s->floor_seq = s->acked_seq;
            }
        }
        tell(s, "  key %td seq %llu value %llu: %s", w->keys[i] - s->model.keys,
             (unsigned long long)mw->seq, (unsigned long long)mw->value,
             oc_err_name(w->writes[i].result));
    }
    if (bad > w->count) {
        model_fault(&s->model, "publish reports %zu failures of %zu writes", bad, w->count);
    }
    writer_drop(w);
}

/* ---- reading ---- */

/* A large object in pieces. Returns 0, OC_E_NOT_FOUND or another error. */
static int read_large(struct sim *s, struct oc_span key, const struct oc_object *obj,
                      uint8_t *dst) {
    struct oc_reader *r = NULL;
    int e = oc_reader_open(s->store, key, obj, &r, NULL);
    uint64_t at = 0;

    while (e == 0 && at < obj->len) {
        struct oc_span piece;

        e = oc_reader_chunk(r, at, s->chunk, below(s, 2) == 0, &piece);
        if (e == OC_AGAIN) {
            e = oc_reader_chunk(r, at, s->chunk, false, &piece);
        }
        if (e == 0) {
            memcpy(dst + at, piece.p, piece.len);
            at += piece.len;
        }
    }
    if (r != NULL) {
        oc_reader_close(r);
    }
    return e == OC_E_DATA_LOSS ? OC_E_NOT_FOUND : e;
}

/* What a client would get: looks up, reads, looks up once more when the bytes are gone. 1: an error
 * that is neither a value nor a miss. `dst` has room for VALUE_MAX. */
static int look(struct sim *s, struct model_key *k, uint8_t *dst, struct model_seen *seen) {
    struct oc_span key = model_name(k);

    for (int attempt = 0; attempt < 2; attempt++) {
        struct oc_object obj;
        int e = oc_objects_find(s->store, key, &obj);

        if (e == 0 && obj.len > VALUE_MAX) {
            model_fault(&s->model, "a value of %llu bytes", (unsigned long long)obj.len);
            return 1;
        }
        *seen = (struct model_seen){.found = e == 0, .expires_at_s = e == 0 ? obj.expires_at_s : 0};
        if (e == 0 && oc_object_is_small(&obj)) {
            struct oc_span value;

            e = oc_objects_read(s->store, key, &obj, s->scratch, below(s, 2) == 0, &value);
            if (e == OC_AGAIN) {
                e = oc_objects_read(s->store, key, &obj, s->scratch, false, &value);
            }
            if (e == 0) {
                OC_CHECK(value.len <= VALUE_MAX);
                if (value.len > 0) {
                    memcpy(dst, value.p, value.len);
                }
                seen->bytes = oc_span(dst, value.len);
            }
        } else if (e == 0) {
            e = read_large(s, key, &obj, dst);
            seen->bytes = oc_span(dst, obj.len);
        }
        if (e == 0) {
            return 0;
        }
        *seen = (struct model_seen){.found = false};
        if (e != OC_E_NOT_FOUND) {
            return 1;
        }
    }
    return 0;
}

static void read_one(struct sim *s) {
    struct model_key *k = &s->model.keys[below(s, MODEL_KEYS)];
    struct model_seen seen;

    if (look(s, k, s->seen_bytes[0], &seen) == 0 && !sim_disk_dead(s->disk)) {
        (void)model_check_read(&s->model, k, &seen);
    }
}

struct listing {
    struct sim *s;
    struct oc_span prefix, after;
    size_t at; /* the next key that may come, in sorted order */
    size_t count;
    uint8_t last[80];
    size_t last_len;
};

static int list_each(void *arg, struct oc_span key, const struct oc_object *obj) {
    struct listing *l = arg;
    struct model *m = &l->s->model;

    (void)obj;
    if (l->count > 0 && oc_span_compare(oc_span(l->last, l->last_len), key) >= 0) {
        model_fault(m, "the listing is not in order");
    }
    if (!oc_span_starts_with(key, l->prefix) || oc_span_compare(key, l->after) <= 0) {
        model_fault(m, "the listing leaves its bounds");
    }
    for (size_t i = 0; i < MODEL_KEYS; i++) {
        bool either, is = oc_span_equal(model_name(&m->keys[i]), key);

        if (is && !model_listed(m, &m->keys[i], &either) && !either) {
            model_fault(m, "key %zu is listed but must not be there", i);
        }
    }
    OC_CHECK(key.len <= sizeof l->last);
    memcpy(l->last, key.p, key.len);
    l->last_len = key.len;
    l->count++;
    return 0;
}

static void list_some(struct sim *s) {
    struct model_key *k = &s->model.keys[below(s, MODEL_KEYS)];
    struct oc_span name = model_name(k);
    size_t limit = 1 + below(s, MODEL_KEYS + 4);
    bool more = false;
    struct listing l = {.s = s};

    l.prefix = below(s, 2) == 0 ? oc_span(name.p, below(s, name.len + 1)) : OC_SPAN_EMPTY;
    k = &s->model.keys[below(s, MODEL_KEYS)];
    l.after = below(s, 2) == 0 ? model_name(k) : OC_SPAN_EMPTY;
    if (oc_objects_list(s->store, l.prefix, l.after, limit, list_each, &l, &more) != 0) {
        return;
    }
    /* Every key that must be in the range is either listed or behind the last one of a full page.
     */
    size_t must = 0;
    for (size_t i = 0; i < MODEL_KEYS; i++) {
        bool either;
        struct oc_span n = model_name(&s->model.keys[i]);
        bool in = oc_span_starts_with(n, l.prefix) && oc_span_compare(n, l.after) > 0;
        bool before = l.count > 0 && oc_span_compare(n, oc_span(l.last, l.last_len)) <= 0;

        if (in && model_listed(&s->model, &s->model.keys[i], &either) && !either) {
            if (before || l.count < limit) {
                must++;
            } else if (!more) {
                model_fault(&s->model, "has_more is false though key %zu follows", i);
            }
        }
    }
    if (must > l.count) {
        model_fault(&s->model, "a listing of %zu lacks keys: %zu must be in it", l.count, must);
    }
}

/* ---- running ---- */

static void tick(struct sim *s) {
    struct oc_objects_stats st;
    uint64_t acked = s->acked_seq, at = s->mono_ns;

    oc_objects_tick(s->store);
    oc_objects_stats(s->store, &st);
    if (st.sync_failures != s->sync_failures) {
        s->sync_failures = st.sync_failures;
        s->sync_faults = true;
        s->tick_ns = 0;
        return;
    }
    if (sim_disk_dead(s->disk) || s->cfg.sync != OC_SYNC_INTERVAL) {
        return;
    }
    if (s->tick_ns == 0) {
        s->tick_ns = at;
        s->tick_seq = acked;
    } else if (at - s->tick_ns >= s->cfg.sync_interval_ms * OC_NS_PER_MS) {
        /* What was acknowledged an interval ago has been synced by this tick at the latest. */
        s->floor_seq = s->tick_seq > s->floor_seq ? s->tick_seq : s->floor_seq;
        s->tick_ns = at;
        s->tick_seq = acked;
    }
}

static void step(struct sim *s) {
    struct writer *w = &s->writers[below(s, WRITERS)];
    uint64_t r = below(s, 100);

    advance(s, below(s, 3 * OC_NS_PER_MS));
    if (r < 60) {
        if (w->appended) {
            writer_publish(s, w);
        } else {
            writer_append(s, w);
        }
    } else if (r < 82) {
        read_one(s);
    } else if (r < 86) {
        list_some(s);
    } else if (r < 99) {
        advance(s, below(s, 300) * OC_NS_PER_MS);
        tick(s);
    } else {
        /* The wall clock is set: forward, or back. */
        if (below(s, 2) == 0) {
            advance(s, below(s, 5) * OC_NS_PER_S);
        } else {
            s->model.wall_ns -= below(s, 5) * OC_NS_PER_S;
        }
    }
}

static void config(struct sim *s) {
    s->clock = (struct oc_clock){.now = sim_now, .ctx = s};
    s->cfg = (struct oc_objects_config){
        .disk = sim_disk_table(s->disk),
        .clock = &s->clock,
        .seed = s->seed,
        .sync = (enum oc_sync_mode)below(s, 3),
        .sync_interval_ms = 500,
        .segment_bytes = 1u << 20,
        .max_disk_bytes = UINT64_C(1) << 40,
        .shards = 4,
        .recovery_threads = 1,
        .max_open_files = 8,
        .checkpoint_bytes = 1u << 20,
    };
}

static void faults(struct sim *s, bool on) {
    struct sim_faults f = {.space_bytes = UINT64_C(1) << 40};

    if (on && below(s, 3) == 0) {
        f.write_eio = (unsigned)below(s, 1500);
    }
    if (on && below(s, 4) == 0) {
        f.sync_eio = (unsigned)below(s, 3000);
    }
    if (on && below(s, 4) == 0) {
        f.read_eio = (unsigned)below(s, 1500);
    }
    if (on && below(s, 5) == 0) {
        f.space_bytes = sim_disk_used(s->disk) + (3u << 20) + below(s, 8u << 20);
    }
    sim_disk_faults(s->disk, &f);
}

/* False when the store could not be opened (recorded as a violation). */
static bool start(struct sim *s) {
    struct oc_error err = {0};
    int r = oc_objects_open(&s->cfg, &s->store, &err);

    if (r == 0) {
        r = oc_objects_load(s->store, &err);
        if (r != 0) {
            oc_objects_close(s->store, false);
        }
    }
    if (r != 0) {
        s->store = NULL;
        model_fault(&s->model, "the store does not open: %s: %s", oc_err_name(r), err.msg);
        return false;
    }
    s->sync_failures = 0;
    return true;
}

static bool look_at_all(struct sim *s) {
    for (size_t i = 0; i < MODEL_KEYS; i++) {
        if (look(s, &s->model.keys[i], s->seen_bytes[i], &s->seen[i]) != 0) {
            model_fault(&s->model, "key %zu cannot be read though nothing fails", i);
            return false;
        }
    }
    return true;
}

enum ending { DEATH, POWER, CLEAN, FLIP };

static const char *const ending_names[] = {"the process dies", "power is lost", "clean end",
                                           "clean end and a flipped bit"};

/* One flipped bit costs one record, or everything in a segment whose header it hits; a checkpoint,
 * a footer or a clock costs nothing. */
static void check_flip(struct sim *s, const struct sim_flip *flip) {
    size_t wrong = 0, last = 0;
    bool header = strncmp(flip->path, "seg/", 4) == 0 && flip->offset < OC_SEG_HEADER_BYTES;
    bool data = strncmp(flip->path, "seg/", 4) == 0 || strncmp(flip->path, "val/", 4) == 0;

    for (size_t i = 0; i < MODEL_KEYS; i++) {
        struct model_key *k = &s->model.keys[i];

        if (!model_check_ever(&s->model, k, &s->seen[i])) {
            return;
        }
        if (!model_check_read(&s->model, k, &s->seen[i])) {
            tell(s, "  %s", s->model.fault);
            s->model.fault[0] = 0;
            wrong++;
            last = i;
        }
    }
    if (!header && wrong > (data ? 1u : 0u)) {
        model_fault(&s->model, "one bit in %s at %llu of %llu cost %zu keys (the last is %zu)",
                    flip->path, (unsigned long long)flip->offset, (unsigned long long)flip->size,
                    wrong, last);
    }
}

static void check_after(struct sim *s, enum ending end, const struct sim_flip *flip) {
    if (!look_at_all(s)) {
        return;
    }
    for (size_t i = 0; i < MODEL_KEYS; i++) {
        struct model_key *k = &s->model.keys[i];

        if (end == DEATH || end == CLEAN) {
            (void)model_check_read(&s->model, k, &s->seen[i]);
        } else if (end == POWER) {
            (void)model_check_ever(&s->model, k, &s->seen[i]);
        }
    }
    if (end == POWER && !failed(s) && !(s->sync_faults && s->cfg.sync != OC_SYNC_ALWAYS)) {
        (void)model_check_prefix(&s->model, s->seen, s->floor_seq);
    }
    if (end == FLIP && !failed(s)) {
        check_flip(s, flip);
    }
    size_t large = 0;
    for (size_t i = 0; i < MODEL_KEYS && !failed(s); i++) {
        model_collapse(&s->model, &s->model.keys[i], &s->seen[i]);
        large += s->seen[i].found && s->seen[i].bytes.len > OC_INLINE_MAX;
    }
    size_t files = sim_disk_count(s->disk, "val/");
    if (!failed(s) && end != FLIP && files < large) {
        model_fault(&s->model, "%zu value files for %zu large values", files, large);
    }
    list_some(s);
}

static void end_life(struct sim *s, enum ending end, struct sim_flip *flip) {
    bool clean = (end == CLEAN || end == FLIP) && !sim_disk_dead(s->disk);

    if (clean) {
        for (size_t i = 0; i < WRITERS; i++) {
            if (s->writers[i].appended) {
                writer_publish(s, &s->writers[i]);
            }
        }
        faults(s, false);
    } else {
        sim_disk_die_at(s->disk, 1);
    }
    for (size_t i = 0; i < WRITERS; i++) {
        writer_drop(&s->writers[i]);
    }
    oc_objects_close(s->store, clean);
    s->store = NULL;
    if (end == POWER) {
        sim_disk_power_loss(s->disk);
    } else {
        sim_disk_restart(s->disk);
    }
    if (end == FLIP) {
        static const char *const where[] = {"seg/",       "seg/",  "val/",
                                            "checkpoint", "CLOCK", "FORMAT"};

        if (!sim_disk_flip(s->disk, where[below(s, OC_ARRAY_LEN(where))], flip)) {
            (void)sim_disk_flip(s->disk, "seg/", flip);
        }
        tell(s, "flipped a bit of %s at %llu", flip->path, (unsigned long long)flip->offset);
    }
    faults(s, false);
    s->model.wall_ns += below(s, 3) * OC_NS_PER_S;
    if (s->model.wall_ns > s->model.wall_max_ns) {
        s->model.wall_max_ns = s->model.wall_ns;
    }
}

static void sim_free(struct sim *s) {
    if (s->store != NULL) {
        sim_disk_die_at(s->disk, 1);
        for (size_t i = 0; i < WRITERS; i++) {
            writer_drop(&s->writers[i]);
        }
        oc_objects_close(s->store, false);
    }
    sim_disk_free(s->disk);
    model_done(&s->model);
    free(s->scratch);
    free(s->chunk);
    for (size_t i = 0; i < MODEL_KEYS; i++) {
        free(s->seen_bytes[i]);
    }
    free(s);
}

static void live(struct sim *s, enum ending end) {
    uint64_t steps = 20 + below(s, 260);

    faults(s, true);
    if (end == DEATH || end == POWER) {
        sim_disk_die_at(s->disk, 1 + below(s, 220));
    }
    for (uint64_t i = 0; i < steps && !failed(s) && !sim_disk_dead(s->disk); i++) {
        step(s);
    }
}

bool sim_run_seed(uint64_t seed, bool verbose, char *why, size_t why_len) {
    struct sim *s = calloc(1, sizeof *s);

    OC_CHECK(s != NULL);
    s->seed = seed;
    s->verbose = verbose;
    oc_rng_init(&s->rng, seed * 2 + 1);
    s->mono_ns = OC_NS_PER_S;
    s->disk = sim_disk_new(seed, UINT64_C(1) << 40);
    s->scratch = malloc(VALUE_MAX + 70000);
    s->chunk = malloc(OC_CHUNK_HEADER_BYTES + OC_CHUNK_BYTES);
    OC_CHECK(s->scratch != NULL && s->chunk != NULL);
    for (size_t i = 0; i < MODEL_KEYS; i++) {
        s->seen_bytes[i] = malloc(VALUE_MAX);
        OC_CHECK(s->seen_bytes[i] != NULL);
    }
    model_init(&s->model, UINT64_C(1700000000) * OC_NS_PER_S);
    config(s);
    tell(s, "sync mode %d", (int)s->cfg.sync);
    bool up = start(s);
    for (unsigned n = 0; up && n < LIVES && !failed(s); n++) {
        uint64_t r = below(s, 20);
        enum ending end = r < 9 ? DEATH : r < 15 ? POWER : r < 16 ? CLEAN : FLIP;
        struct sim_flip flip = {0};

        live(s, end);
        if (failed(s)) {
            break;
        }
        tell(s, "-- %s at %llu calls", ending_names[end],
             (unsigned long long)sim_disk_calls(s->disk));
        if (sim_disk_dead(s->disk) && end != POWER) {
            end = DEATH;
        }
        end_life(s, end, &flip);
        up = start(s);
        if (up) {
            check_after(s, end, &flip);
            s->acked_seq = s->floor_seq = s->tick_ns = s->tick_seq = 0;
            s->sync_faults = false;
            s->model.next_seq = 1;
        }
    }
    bool ok = !failed(s);
    (void)snprintf(why, why_len, "%s", s->model.fault);
    sim_free(s);
    return ok;
}
