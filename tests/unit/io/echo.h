/* An echo server on our tcp: the smallest honest user of it (keeps what the kernel does not take,
 * stops reading meanwhile). */
#ifndef OC_TESTS_IO_ECHO_H
#define OC_TESTS_IO_ECHO_H

#include <stdatomic.h>

#include "io/tcp.h"

struct echo_stats {
    _Atomic uint64_t accepted;
    _Atomic uint64_t closed;
    _Atomic uint64_t stopped; /* how often reading was stopped: the peer takes nothing */
    _Atomic uint64_t drained; /* how often that ended */
    _Atomic uint64_t failed;  /* ended with a code other than 0 */
};

/* The `accepted` of a worker slot; user is the echo_stats. */
void echo_accepted(void *user, struct oc_tcp *tcp);

#endif
