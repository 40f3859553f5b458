/* Versions and time.
 *
 * The file CLOCK holds the ceiling of versions (core/seglog/hlc.h) and, behind each of its slots,
 * the highest wall clock seen. Expiry goes by that and never by versions: after a start that found
 * the ceiling above the wall clock they run ahead of it, and objects would die early. A clock that
 * is set back between two processes can therefore show again what expired since CLOCK was last
 * written (a minute at most), but never what was removed: expired objects are removed only once the
 * time that condemned them is durable (I23). */
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/plant.h"
#include "store/seglog.h"

#define TIME_MAGIC UINT64_C(0x31454d4954434f) /* "OCTIME1" */
#define TIME_AT    64u                        /* behind the start of a slot */

struct time_slot {
    uint64_t magic;
    uint64_t sequence;
    uint64_t wall_us; /* the highest wall clock seen */
    uint32_t format;  /* of the directory */
    uint32_t crc;
};
static_assert(sizeof(struct time_slot) == 32, "disk layout");

#define FILE_BYTES (OC_CLOCK_STRIDE + TIME_AT + sizeof(struct time_slot))

static void time_seen(struct oc_seglog *log, uint64_t wall_us) {
    uint64_t seen = atomic_load_explicit(&log->time_us, memory_order_relaxed);

    while (seen < wall_us &&
           !atomic_compare_exchange_weak_explicit(&log->time_us, &seen, wall_us,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

static uint32_t whole_s(uint64_t us) {
    return us / 1000000 < UINT32_MAX ? (uint32_t)(us / 1000000) : UINT32_MAX;
}

uint32_t oc_vclock_time_s(struct oc_seglog *log, const struct oc_now *now) {
    time_seen(log, now->wall_ns / OC_NS_PER_US);
    return whole_s(atomic_load_explicit(&log->time_us, memory_order_relaxed));
}

uint32_t oc_vclock_durable_s(struct oc_seglog *log) {
    return whole_s(atomic_load_explicit(&log->time_durable_us, memory_order_relaxed));
}

/* clock_mu held. Makes `ceiling` durable. */
static int write_clock(struct oc_seglog *log, uint64_t ceiling, struct oc_error *err) {
    uint8_t bytes[TIME_AT + sizeof(struct time_slot)] = {0};
    struct oc_clock_slot slot = {.sequence = log->clock_sequence + 1, .ceiling = ceiling};
    struct time_slot t = {.magic = TIME_MAGIC,
                          .sequence = slot.sequence,
                          .wall_us = atomic_load(&log->time_us),
                          .format = OC_FORMAT_VERSION};
    struct iovec iov = {bytes, sizeof bytes};

    oc_clock_slot_encode(bytes, &slot);
    t.crc = oc_crc32c(0, &t, offsetof(struct time_slot, crc));
    memcpy(bytes + TIME_AT, &t, sizeof t);
    int rc = log->disk->pwritev(log->clock_file, &iov, 1, oc_clock_slot_offset(slot.sequence), err);
    if (rc == 0) {
        rc = log->disk->sync(log->clock_file, err);
    }
    if (rc == 0) {
        log->clock_sequence = slot.sequence;
        log->clock_ceiling = ceiling;
        atomic_store(&log->time_durable_us, t.wall_us);
    }
    return rc;
}

/* Make a ceiling durable that was chosen before the lock was taken: a greater one may be there by
 * now, and versions up to it given out. */
static int renew_clock(struct oc_seglog *log, uint64_t ceiling) {
    int rc = 0;

    pthread_mutex_lock(&log->clock_mu);
    if (ceiling > log->clock_ceiling) {
        rc = write_clock(log, ceiling, NULL);
    }
    pthread_mutex_unlock(&log->clock_mu);
    if (rc != 0) {
        oc_n_add(&log->n.write_failures, 1);
    }
    return rc;
}

/* The newest of the time slots; zero when there is none. */
static struct time_slot read_time(struct oc_span file) {
    struct time_slot best = {0};

    for (uint64_t i = 0; i < 2; i++) {
        uint64_t at = oc_clock_slot_offset(i) + TIME_AT;
        struct time_slot t;

        if (file.len < at + sizeof t) {
            continue;
        }
        memcpy(&t, file.p + at, sizeof t);
        if (t.magic == TIME_MAGIC && t.crc == oc_crc32c(0, &t, offsetof(struct time_slot, crc)) &&
            t.sequence > best.sequence) {
            best = t;
        }
    }
    return best;
}

uint32_t oc_vclock_format(const struct oc_disk *disk) {
    uint8_t bytes[FILE_BYTES];
    struct oc_file *f = NULL;

    if (disk->open(disk->ctx, "CLOCK", OC_OPEN_READ, &f, NULL) != 0) {
        return 0;
    }
    int64_t n = disk->pread(f, bytes, sizeof bytes, 0, false, NULL);
    disk->close(f);
    return n > 0 ? read_time(oc_span(bytes, (size_t)n)).format : 0;
}

static int read_clock(struct oc_seglog *log, struct oc_clock_slot *slot, struct time_slot *t,
                      struct oc_error *err) {
    uint8_t bytes[FILE_BYTES];
    int64_t n = log->disk->pread(log->clock_file, bytes, sizeof bytes, 0, false, err);

    if (n < 0) {
        return (int)n;
    }
    *slot = (struct oc_clock_slot){0};
    if (n > 0 && oc_clock_decode(oc_span(bytes, (size_t)n), slot) != 0) {
        /* Both slots are gone: only the log says which versions were given. */
        (void)OC_COUNT(n == 0);
    }
    *t = read_time(oc_span(bytes, (size_t)n));
    return 0;
}

int oc_vclock_open(struct oc_seglog *log, uint64_t newest_version, struct oc_error *err) {
    struct oc_now now = oc_clock_now(log->cfg.clock);
    struct oc_clock_slot slot;
    struct time_slot t;
    const struct oc_disk *disk = log->disk;
    int rc = disk->open(disk->ctx, "CLOCK", OC_OPEN_CREATE, &log->clock_file, err);

    if (rc != 0) {
        return rc;
    }
    /* A volume that is full later must not keep a start from renewing it. What cannot be reserved
     * now is written below all the same, or is the error there. */
    (void)disk->reserve(log->clock_file, FILE_BYTES, NULL);
    pthread_mutex_lock(&log->clock_mu);
    rc = read_clock(log, &slot, &t, err);
    if (rc == 0) {
        time_seen(log, t.wall_us);
        log->clock_sequence = slot.sequence > t.sequence ? slot.sequence : t.sequence;
        oc_hlc_resume(&log->hlc, slot.ceiling);
        oc_hlc_see(&log->hlc, newest_version);
        log->last_written = newest_version;
        (void)oc_vclock_time_s(log, &now);
        /* Distinct for every start, whatever the seed: salts and file ids are never repeated. */
        oc_rng_init(&log->rng, log->cfg.seed ^ (log->hlc.last * UINT64_C(0x9e3779b97f4a7c15)));
        atomic_store(&log->next_file, log->hlc.last > oc_hlc_at(now.wall_ns)
                                          ? log->hlc.last
                                          : oc_hlc_at(now.wall_ns));
        uint64_t ceiling = oc_hlc_new_ceiling(&log->hlc, now.wall_ns);
        rc = write_clock(log, ceiling, err);
        if (rc == 0) {
            oc_hlc_raise(&log->hlc, ceiling);
        }
    }
    pthread_mutex_unlock(&log->clock_mu);
    if (rc == 0 && slot.sequence == 0 && !OC_PLANT(LOST_RENAME)) {
        rc = disk->sync_dir(disk->ctx, "", err); /* the file is new */
    }
    return rc;
}

void oc_vclock_close(struct oc_seglog *log, bool clean) {
    if (log->clock_file == NULL) {
        return;
    }
    if (clean) {
        pthread_mutex_lock(&log->clock_mu);
        /* Failing leaves the higher ceiling: the next start only skips some versions. */
        (void)write_clock(log, log->hlc.last, NULL);
        pthread_mutex_unlock(&log->clock_mu);
    }
    log->disk->close(OC_TAKE(log->clock_file));
}

int oc_vclock_next(struct oc_seglog *log, uint64_t *ret) {
    int rc = oc_hlc_next(&log->hlc, log->now.wall_ns, ret);

    if (rc != OC_AGAIN) {
        return rc;
    }
    uint64_t ceiling = oc_hlc_new_ceiling(&log->hlc, log->now.wall_ns);

    if (renew_clock(log, ceiling) != 0) {
        return OC_E_UNAVAILABLE;
    }
    oc_hlc_raise(&log->hlc, ceiling);
    rc = oc_hlc_next(&log->hlc, log->now.wall_ns, ret);
    return OC_COUNT(rc == 0) ? 0 : OC_E_INTERNAL;
}

int oc_vclock_persist(struct oc_seglog *log) {
    pthread_mutex_lock(&log->clock_mu);
    int rc = write_clock(log, log->clock_ceiling, NULL);
    pthread_mutex_unlock(&log->clock_mu);
    if (rc != 0) {
        oc_n_add(&log->n.write_failures, 1);
    }
    return rc;
}

void oc_vclock_tick(struct oc_seglog *log) {
    struct oc_now now = oc_clock_now(log->cfg.clock);

    (void)oc_vclock_time_s(log, &now);
    pthread_mutex_lock(&log->append_mu);
    bool wanted = oc_hlc_wants_ceiling(&log->hlc, now.wall_ns);
    uint64_t ceiling = wanted ? oc_hlc_new_ceiling(&log->hlc, now.wall_ns) : 0;
    pthread_mutex_unlock(&log->append_mu);
    if (!wanted || renew_clock(log, ceiling) != 0) {
        return; /* a failure: tried again by the next tick, or when needed */
    }
    pthread_mutex_lock(&log->append_mu);
    oc_hlc_raise(&log->hlc, ceiling);
    pthread_mutex_unlock(&log->append_mu);
}
