/* The version clock and the slots of CLOCK. */
#include "core/seglog/hlc.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

#define VERSIONS_PER_S (UINT64_C(1000000) << 8)

struct slot_bytes {
    uint64_t magic;
    uint64_t sequence;
    uint64_t ceiling;
    uint32_t zero;
    uint32_t crc; /* of all before */
};
static_assert(sizeof(struct slot_bytes) == OC_CLOCK_SLOT_BYTES, "disk layout");

static uint64_t greater(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

void oc_hlc_resume(struct oc_hlc *h, uint64_t ceiling) {
    h->last = greater(h->last, ceiling);
    h->ceiling = greater(h->ceiling, ceiling);
}

void oc_hlc_see(struct oc_hlc *h, uint64_t version) {
    h->last = greater(h->last, version);
}

int oc_hlc_next(struct oc_hlc *h, uint64_t wall_ns, uint64_t *ret) {
    uint64_t wall = oc_hlc_at(wall_ns);

    if (h->last >= h->ceiling) {
        return OC_AGAIN; /* also keeps last + 1 from wrapping */
    }
    h->last = wall > h->last && wall <= h->ceiling ? wall : h->last + 1;
    *ret = h->last;
    return OC_OK;
}

bool oc_hlc_wants_ceiling(const struct oc_hlc *h, uint64_t wall_ns) {
    uint64_t at = greater(h->last, oc_hlc_at(wall_ns));

    return h->ceiling < at || h->ceiling - at < OC_HLC_RENEW_S * VERSIONS_PER_S;
}

uint64_t oc_hlc_new_ceiling(const struct oc_hlc *h, uint64_t wall_ns) {
    uint64_t at = greater(h->last, oc_hlc_at(wall_ns));
    uint64_t ahead;

    if (!oc_add_ok(at, OC_HLC_AHEAD_S * VERSIONS_PER_S, &ahead)) {
        ahead = UINT64_MAX;
    }
    return greater(h->ceiling, ahead);
}

void oc_hlc_raise(struct oc_hlc *h, uint64_t ceiling) {
    h->ceiling = greater(h->ceiling, ceiling);
}

void oc_clock_slot_encode(uint8_t ret[OC_CLOCK_SLOT_BYTES], const struct oc_clock_slot *slot) {
    struct slot_bytes b = {
        .magic = OC_CLOCK_MAGIC, .sequence = slot->sequence, .ceiling = slot->ceiling};

    b.crc = oc_crc32c(0, &b, offsetof(struct slot_bytes, crc));
    memcpy(ret, &b, sizeof b);
}

static bool slot_decode(struct oc_span file, uint64_t at, struct oc_clock_slot *ret) {
    struct slot_bytes b;

    if (file.len < at || file.len - at < sizeof b) {
        return false;
    }
    memcpy(&b, file.p + at, sizeof b);
    if (b.magic != OC_CLOCK_MAGIC || b.zero != 0 || oc_clock_slot_offset(b.sequence) != at ||
        b.crc != oc_crc32c(0, file.p + at, offsetof(struct slot_bytes, crc))) {
        return false;
    }
    *ret = (struct oc_clock_slot){.sequence = b.sequence, .ceiling = b.ceiling};
    return true;
}

int oc_clock_decode(struct oc_span file, struct oc_clock_slot *ret) {
    struct oc_clock_slot best = {0, 0};
    bool any = false;

    for (uint64_t i = 0; i < 2; i++) {
        struct oc_clock_slot slot;

        if (slot_decode(file, oc_clock_slot_offset(i), &slot) &&
            (!any || slot.sequence > best.sequence)) {
            best = slot;
            any = true;
        }
    }
    if (!any) {
        return OC_E_DATA_LOSS;
    }
    *ret = best;
    return OC_OK;
}
