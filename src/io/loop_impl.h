/* The inside of a loop, for the files of io/ only.
 *
 * Sockets live in an epoll set of our own, edge-triggered: a connection is registered once and
 * costs no further epoll_ctl, whatever it stops and starts. libuv (signals, name lookups) is a
 * guest: its own descriptor sits in the same set and uv_run is called only when it has something to
 * do. */
#ifndef OC_IO_LOOP_IMPL_H
#define OC_IO_LOOP_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <uv.h>

#include "base/check.h"
#include "base/list.h"
#include "io/loop.h"

#define OC_LOOP_MAGIC      0x504f4f4cu /* "LOOP" */
#define OC_LOOP_READ_BYTES ((size_t)256 * 1024)
#define OC_LOOP_EVENTS     256

/* Something in the epoll set. It must stay allocated until the end of the turn in which its
 * descriptor was closed: see oc_loop_defer. */
struct oc_poll {
    void (*ready)(struct oc_poll *p, uint32_t events);
};

/* A call at the end of this turn or the next, on an empty stack: how things end and are freed. */
struct oc_deferred {
    struct oc_list link;
    void (*fn)(struct oc_deferred *d);
};

struct oc_loop {
    uint32_t magic;
    int epoll_fd;
    int wake_fd; /* eventfd, edge-triggered: never read */
    struct oc_poll wake_poll;
    struct oc_poll uv_poll;
    uv_loop_t uv;
    bool uv_due; /* uv_run before sleeping */
    bool again;  /* do not sleep */
    bool running;
    bool closing; /* stopped; whatever is left is being closed */
    struct oc_now now;

    _Atomic bool stop;
    _Atomic bool asleep;              /* set before sleeping; who clears it owes the wake-up */
    _Atomic(struct oc_letter *) mail; /* newest first */

    struct oc_list hooks;
    struct oc_list deferred;
    struct oc_list ready; /* oc_tcp.ready_link: to be served this turn */
    struct oc_list tcps;
    struct oc_list listeners;
    struct oc_list connects;
    struct oc_list signals;

    size_t reads; /* of areads, under way */

    struct oc_timer **heap; /* by due_ns, seq */
    size_t heap_len;
    size_t heap_cap;
    uint64_t timer_seq;

    uint8_t *read_buffer; /* OC_LOOP_READ_BYTES, shared by all connections */
    struct epoll_event events[OC_LOOP_EVENTS];
};

/* 0 or a negative OC_E_…; the pointer of the event is `p`. */
int oc_loop_poll_add(struct oc_loop *loop, int fd, uint32_t events, struct oc_poll *p);
void oc_loop_poll_change(struct oc_loop *loop, int fd, uint32_t events, struct oc_poll *p);
/* The link must be initialised or in no list. */
void oc_loop_defer(struct oc_loop *loop, struct oc_deferred *d);
static inline void oc_loop_uv_due(struct oc_loop *loop) {
    loop->uv_due = true;
}

/* timers.c */
void oc_timers_run(struct oc_loop *loop);
/* Nanoseconds until the next one is due; UINT64_MAX when there is none. */
uint64_t oc_timers_next_ns(const struct oc_loop *loop, uint64_t mono_ns);
void oc_timers_forget(struct oc_loop *loop);

/* clock.c */
uint64_t oc_mono_ns(void);
struct oc_now oc_now_real(void);

/* tcp.c, listener.c, connect.c, signals.c: used by the loop's turn and its end */
void oc_tcp_serve_ready(struct oc_loop *loop);
void oc_tcp_close_all(struct oc_loop *loop);
void oc_listener_close_all(struct oc_loop *loop);
void oc_connect_cancel_all(struct oc_loop *loop);
void oc_signal_unwatch_all(struct oc_loop *loop);

#endif
