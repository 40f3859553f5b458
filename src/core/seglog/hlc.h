/* The version clock and the file that keeps it from repeating.
 *
 * A version is microseconds since 1970 << 8 plus a count. Each is greater than the one before
 * whatever the wall clock does, and no version above the ceiling is given; the ceiling is durable
 * in the file CLOCK before it counts. A start resumes at the ceiling, so a version is never given
 * twice.
 *
 * CLOCK: two slots, OC_CLOCK_STRIDE bytes apart so that they never share a page or sector. Slot
 * (sequence & 1) is written next, so the newest valid slot is never overwritten: when the write
 * tears, the other still holds the ceiling that was durable before. */
#ifndef OC_CORE_SEGLOG_HLC_H
#define OC_CORE_SEGLOG_HLC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/span.h"

#define OC_HLC_AHEAD_S 60u /* how far a new ceiling is ahead */
#define OC_HLC_RENEW_S 30u /* a ceiling nearer than this wants renewal */

/* Not thread-safe: the append mutex protects it. Zero is a clock that has given nothing. */
struct oc_hlc {
    uint64_t last;    /* the greatest version given or seen */
    uint64_t ceiling; /* durable */
};

/* The version of an instant, and back. */
static inline uint64_t oc_hlc_at(uint64_t wall_ns) {
    return wall_ns / 1000 << 8;
}
static inline uint64_t oc_hlc_wall_s(uint64_t version) {
    return (version >> 8) / 1000000;
}

/* Resume with the ceiling that CLOCK holds: every version up to it may have been given. Nothing is
 * given until a new ceiling is raised. */
void oc_hlc_resume(struct oc_hlc *h, uint64_t ceiling);
/* A version found in the log, or one from elsewhere: all that follow will be greater. */
void oc_hlc_see(struct oc_hlc *h, uint64_t version);
/* 0 and the next version. OC_AGAIN: raise the ceiling first. When only the wall clock is above the
 * ceiling (CLOCK could not be renewed for a while), versions go on by counting, behind the wall
 * clock. */
int oc_hlc_next(struct oc_hlc *h, uint64_t wall_ns, uint64_t *ret);
/* Is it time to make a new ceiling durable? */
bool oc_hlc_wants_ceiling(const struct oc_hlc *h, uint64_t wall_ns);
/* The ceiling to write then; not smaller than the present one. */
uint64_t oc_hlc_new_ceiling(const struct oc_hlc *h, uint64_t wall_ns);
/* `ceiling` is durable in CLOCK. A smaller one than the present changes nothing. */
void oc_hlc_raise(struct oc_hlc *h, uint64_t ceiling);

/* ---- the file CLOCK ---- */
#define OC_CLOCK_MAGIC      UINT64_C(0x314b434f4c434f) /* "OCLOCK1" */
#define OC_CLOCK_SLOT_BYTES 32u
#define OC_CLOCK_STRIDE     4096u
#define OC_CLOCK_FILE_BYTES (OC_CLOCK_STRIDE + OC_CLOCK_SLOT_BYTES)

struct oc_clock_slot {
    uint64_t sequence; /* counts the writes from 1 */
    uint64_t ceiling;
};

static inline uint64_t oc_clock_slot_offset(uint64_t sequence) {
    return (sequence & 1) * OC_CLOCK_STRIDE;
}
void oc_clock_slot_encode(uint8_t ret[OC_CLOCK_SLOT_BYTES], const struct oc_clock_slot *slot);
/* From the file's bytes (as many as it has), the newest valid slot; the ceiling is the greatest of
 * any valid slot. OC_E_DATA_LOSS when none is valid: then only the log says which versions were
 * given. */
int oc_clock_decode(struct oc_span file, struct oc_clock_slot *ret);

#endif
