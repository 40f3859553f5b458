/* What the tests of io share: a loop that cannot run for ever, loops on threads of their own, and a
 * plain blocking socket as the peer that is not ours. */
#ifndef OC_TESTS_IO_RIG_H
#define OC_TESTS_IO_RIG_H

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/check.h"

#include "io/loop.h"

#define RIG_DEADLINE_MS 20000

struct rig {
    struct oc_loop *loop;
    struct oc_timer guard;
    bool timed_out;
};

void rig_init(struct rig *rig);
void rig_guard(struct rig *rig); /* as rig_init, for a loop that is there already */
/* Runs the loop until it is stopped; fails the test when that takes longer than the deadline. */
void rig_run(struct rig *rig);
void rig_done(struct rig *rig);

struct loop_thread;
struct loop_thread *loop_thread_start(void);
struct oc_loop *loop_thread_loop(struct loop_thread *t);
void loop_thread_stop(struct loop_thread *t); /* joins and frees the loop */

/* A blocking socket connected to 127.0.0.1:port whose reads and writes give up at the deadline. */
int peer_connect(uint16_t port);
void peer_send(int fd, const void *p, size_t len);
/* Bytes until `len` are there or the stream ends; -1 on an error. */
int64_t peer_recv(int fd, void *p, size_t len);

/* Polls a condition that another thread makes true: yields, and gives up at the deadline. */
#define wait_for(cond)                                                                             \
    do {                                                                                           \
        uint64_t start_ns_ = oc_clock_now(oc_clock_real()).mono_ns;                                \
        while (!(cond)) {                                                                          \
            assert_true(oc_clock_now(oc_clock_real()).mono_ns - start_ns_ <                        \
                        RIG_DEADLINE_MS * OC_NS_PER_MS);                                           \
            (void)sched_yield();                                                                   \
        }                                                                                          \
    } while (0)

#endif
