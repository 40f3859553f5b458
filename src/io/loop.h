/* An event loop on one thread, its timers, its mailbox, and the movers: threads that do what may
 * block. A loop and everything on it belongs to the thread that runs it; only oc_loop_post,
 * oc_loop_stop and oc_movers_submit may be called from elsewhere.
 *
 * One turn of the loop: sleep until something happens; sockets; letters; timers; libuv's handles;
 * `closed` callbacks; end-of-turn hooks. Whatever any of these leaves to be done (a letter, a
 * readable socket, a closed connection) keeps the next turn from sleeping, so nothing waits for an
 * unrelated event. */
#ifndef OC_IO_LOOP_H
#define OC_IO_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"
#include "base/clock.h"

struct oc_loop;

int oc_loop_new(struct oc_loop **ret, struct oc_error *err);
/* Not running. Letters that came after the run (the ends of movers' jobs) are delivered here. */
void oc_loop_free(struct oc_loop *loop);
/* Runs until oc_loop_stop; then closes what is left on the loop (connections get `closed`, connects
 * OC_E_CANCELLED), forgets running timers and returns. Once per loop. A name lookup that is under
 * way holds this up until the system's resolver gives up. */
void oc_loop_run(struct oc_loop *loop);
void oc_loop_stop(struct oc_loop *loop); /* any thread; also before the run */
/* The time, read once per loop turn. */
struct oc_now oc_loop_now(struct oc_loop *loop);
/* The real clock, as a table; reads the time at every call. */
const struct oc_clock *oc_clock_real(void);
/* 64 bits of randomness from the system, to seed a generator with. */
uint64_t oc_random_seed(void);
/* The loop that the calling thread runs, or NULL. */
struct oc_loop *oc_loop_current(void);
/* The uv_loop_t, for io/ and rpc/ only. Ask anew before every start of a libuv handle: asking is
 * what makes the loop attend to libuv before it sleeps. */
void *oc_loop_thread_handle(struct oc_loop *loop);

/* ---- mailbox: run fn(arg) on the loop's thread, in order of posting. The letter belongs to the
 * poster until fn was called. Wakes the loop only if it sleeps. Any thread. ---- */
struct oc_letter {
    struct oc_letter *next;
    void (*fn)(struct oc_letter *letter);
};
void oc_loop_post(struct oc_loop *loop, struct oc_letter *letter);

/* ---- end of turn: called once per turn after all events of the turn were handled and before the
 * loop sleeps, in the order of adding. This is where a turn's writes go out together. They are
 * cheap and run every turn. A hook that makes work for a hook before it calls oc_loop_again. ----
 */
struct oc_turn_hook {
    struct oc_list link;
    void (*fn)(struct oc_turn_hook *hook);
};
void oc_loop_hook_add(struct oc_loop *loop, struct oc_turn_hook *hook);
void oc_loop_hook_remove(struct oc_turn_hook *hook); /* also from inside any hook */
/* Do not sleep before the next turn: there is more to do. On the loop's thread. */
void oc_loop_again(struct oc_loop *loop);

/* ---- timers: milliseconds, one-shot unless repeat_ms > 0. They never fire early. ---- */
struct oc_timer {
    struct oc_loop *loop;
    void (*fn)(struct oc_timer *timer);
    uint64_t due_ns; /* internal, like all below */
    uint64_t seq;    /* order among equals */
    uint64_t repeat_ms;
    size_t slot; /* 1 + place in the loop's heap; 0: not running */
};
void oc_timer_init(struct oc_timer *t, struct oc_loop *loop, void (*fn)(struct oc_timer *timer));
/* Starts anew when it is running. OC_E_EXHAUSTED when out of memory. */
int oc_timer_start(struct oc_timer *t, uint64_t timeout_ms, uint64_t repeat_ms);
void oc_timer_stop(struct oc_timer *t);
void oc_timer_done(struct oc_timer *t); /* stops; the struct may be freed at once, even in its fn */
static inline bool oc_timer_running(const struct oc_timer *t) {
    return t->slot != 0;
}

/* ---- movers ---- */
struct oc_movers;

struct oc_job {
    struct oc_letter letter;          /* internal */
    struct oc_job *next;              /* internal */
    struct oc_loop *home;             /* internal: where `done` runs */
    void (*run)(struct oc_job *job);  /* on a mover thread; may block */
    void (*done)(struct oc_job *job); /* on the submitting loop's thread; owns the job again */
};

/* `threads` threads, at most `max_queued` jobs waiting. */
int oc_movers_new(struct oc_movers **ret, unsigned threads, size_t max_queued,
                  struct oc_error *err);
/* Finishes queued jobs, then joins. Loops that jobs came from must still accept letters. */
void oc_movers_free(struct oc_movers *m);
/* OC_E_EXHAUSTED when the queue is full, OC_E_UNAVAILABLE when it is being freed (nothing was
 * taken). `home` may be NULL: then `done` is called on the mover thread. */
int oc_movers_submit(struct oc_movers *m, struct oc_loop *home, struct oc_job *job);
struct oc_movers_stats {
    uint64_t submitted, refused;
    uint64_t queued;     /* waiting now */
    uint64_t max_queued; /* the bound */
    uint64_t threads;
    uint64_t idle; /* threads that wait for work */
};
void oc_movers_stats(struct oc_movers *m, struct oc_movers_stats *ret);

/* ---- signals ---- */
struct oc_signal;
int oc_signal_watch(struct oc_loop *loop, int signum, void (*fn)(void *arg, int signum), void *arg,
                    struct oc_signal **ret, struct oc_error *err);
void oc_signal_unwatch(struct oc_signal *s);

#endif
