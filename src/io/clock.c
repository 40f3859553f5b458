/* The real clock and the system's randomness. */
#include <errno.h>
#include <sys/random.h>
#include <time.h>

#include "base/check.h"
#include "io/loop_impl.h"

static uint64_t read_ns(clockid_t id) {
    struct timespec ts;

    OC_CHECK(clock_gettime(id, &ts) == 0); /* cannot fail for the clocks used here */
    return (uint64_t)ts.tv_sec * OC_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t oc_mono_ns(void) {
    return read_ns(CLOCK_MONOTONIC);
}

struct oc_now oc_now_real(void) {
    return (struct oc_now){read_ns(CLOCK_MONOTONIC), read_ns(CLOCK_REALTIME)};
}

static struct oc_now real_now(void *ctx) {
    (void)ctx; /* there is one real clock */
    return oc_now_real();
}

const struct oc_clock *oc_clock_real(void) {
    static const struct oc_clock real = {real_now, NULL};

    return &real;
}

uint64_t oc_random_seed(void) {
    uint64_t seed;
    ssize_t n;

    do {
        n = getrandom(&seed, sizeof seed, 0); /* waits only before the pool was ever filled */
    } while (n < 0 && errno == EINTR);
    OC_CHECK(n == (ssize_t)sizeof seed);
    return seed;
}
