/* A batch between its append and its publication, as the log keeps track of it. */
#ifndef OC_STORE_FLIGHT_H
#define OC_STORE_FLIGHT_H

#include <stdint.h>

#include "base/list.h"

struct oc_flight {
    struct oc_list link;
    uint64_t first_version; /* no record of the batch is older */
    uint32_t segment;       /* the log's end when the batch began */
    uint64_t offset;
};

#endif
