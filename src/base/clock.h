/* Time as a value. Nothing outside io/ reads a clock; `now` is passed in. */
#ifndef OC_BASE_CLOCK_H
#define OC_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic and wall time of one instant, taken together. */
struct oc_now {
    uint64_t mono_ns; /* CLOCK_MONOTONIC */
    uint64_t wall_ns; /* CLOCK_REALTIME, since 1970 */
};

#define OC_NS_PER_US 1000ull
#define OC_NS_PER_MS 1000000ull
#define OC_NS_PER_S  1000000000ull

/* The clock as an operation table: io/ implements it for real, the simulator virtually. */
struct oc_clock {
    struct oc_now (*now)(void *ctx);
    void *ctx;
};

static inline struct oc_now oc_clock_now(const struct oc_clock *clock) {
    return clock->now(clock->ctx);
}

#endif
