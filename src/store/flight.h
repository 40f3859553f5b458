/* A batch between its append and its publication, as the log keeps track of it. */
#ifndef OC_STORE_FLIGHT_H
#define OC_STORE_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

#define OC_FLIGHT_FILTER_WORDS 4u

struct oc_flight {
    struct oc_list link;    /* the log's, under its lock */
    bool active;            /* between append and publication; its owner's */
    uint64_t first_version; /* no record of the batch is older */
    uint32_t segment;       /* the log's end when the batch began */
    uint64_t offset;
    uint64_t filter[OC_FLIGHT_FILTER_WORDS]; /* of the keys it puts: a bit for each */
};

static inline void oc_flight_note(struct oc_flight *f, uint64_t key_hash) {
    f->filter[key_hash >> 6 & (OC_FLIGHT_FILTER_WORDS - 1)] |= UINT64_C(1) << (key_hash & 63);
}
/* False: it does not put that key. */
static inline bool oc_flight_may_put(const struct oc_flight *f, uint64_t key_hash) {
    return (f->filter[key_hash >> 6 & (OC_FLIGHT_FILTER_WORDS - 1)] >> (key_hash & 63) & 1) != 0;
}

#endif
