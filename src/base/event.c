/* Per-thread rings of 256 events. A ring is never freed, so that a dump can walk them at any time;
 * the ring of a thread that ended is handed to the next new one. */
#include "base/event.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"

#define RING_EVENTS 256u /* power of two */

struct event {
    uint64_t tick; /* a global order number, not a time: base reads no clock */
    uint64_t a;
    uint64_t b;
    uint32_t kind;
};

struct event_ring {
    struct event events[RING_EVENTS];
    _Atomic uint64_t written;
    _Atomic bool owned;
    struct event_ring *next;
};

static _Atomic(struct event_ring *) rings;
static _Atomic uint64_t ticks;
static __thread struct event_ring *mine;
static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

static const struct {
    const char *name;
    const char *a;
    const char *b;
} kinds[] = {
#define X(name, a, b) {#name, a, b},
    OC_EVENT_TABLE(X)
#undef X
};

static void ring_disown(void *ring) {
    atomic_store(&((struct event_ring *)ring)->owned, false);
}

static void exit_key_make(void) {
    OC_CHECK(pthread_key_create(&exit_key, ring_disown) == 0);
}

static struct event_ring *ring_claim(void) {
    struct event_ring *r;

    (void)pthread_once(&exit_once, exit_key_make);
    for (r = atomic_load(&rings); r != NULL; r = r->next) {
        bool expected = false;

        if (atomic_compare_exchange_strong(&r->owned, &expected, true)) {
            break;
        }
    }
    if (r == NULL) {
        r = calloc(1, sizeof *r);
        if (r == NULL) {
            return NULL;
        }
        atomic_store(&r->owned, true);
        r->next = atomic_load(&rings);
        while (!atomic_compare_exchange_weak(&rings, &r->next, r)) {
        }
    }
    (void)pthread_setspecific(exit_key, r); /* on failure the ring stays owned: a bounded leak */
    return r;
}

void oc_event(enum oc_event_kind kind, uint64_t a, uint64_t b) {
    if (mine == NULL && (mine = ring_claim()) == NULL) {
        return;
    }
    uint64_t n = atomic_load_explicit(&mine->written, memory_order_relaxed);
    struct event *e = &mine->events[n % RING_EVENTS];

    e->tick = atomic_fetch_add_explicit(&ticks, 1, memory_order_relaxed);
    e->kind = (uint32_t)kind;
    e->a = a;
    e->b = b;
    atomic_store_explicit(&mine->written, n + 1, memory_order_release);
}

/* snprintf with integers only does not allocate in glibc; good enough on the way to abort(). */
static void event_print(int fd, const struct event *e) {
    char line[160];
    uint32_t k = e->kind < OC_EV_KINDS ? e->kind : 0;
    int n = snprintf(line, sizeof line, "  #%llu %s %s=%llu %s=%llu\n", (unsigned long long)e->tick,
                     kinds[k].name, kinds[k].a, (unsigned long long)e->a, kinds[k].b,
                     (unsigned long long)e->b);

    if (n > 0) {
        (void)!write(fd, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
    }
}

void oc_event_dump(int fd) {
    for (struct event_ring *r = atomic_load(&rings); r != NULL; r = r->next) {
        uint64_t end = atomic_load_explicit(&r->written, memory_order_acquire);
        uint64_t begin = end > RING_EVENTS ? end - RING_EVENTS : 0;
        static const char head[] = "events of one thread, oldest first:\n";

        if (end == begin) {
            continue;
        }
        (void)!write(fd, head, sizeof head - 1);
        for (uint64_t i = begin; i < end; i++) {
            event_print(fd, &r->events[i % RING_EVENTS]);
        }
    }
}
