/* Timers: a binary heap of pointers to the users' own structs. No handle to close: a timer that
 * is stopped is gone, so its struct may be freed at once. */
#include <stdlib.h>

#include "base/check.h"
#include "io/loop_impl.h"

#define HEAP_FIRST 64

static bool before(const struct oc_timer *a, const struct oc_timer *b) {
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->seq < b->seq;
}

static void put(struct oc_loop *loop, size_t i, struct oc_timer *t) {
    loop->heap[i] = t;
    t->slot = i + 1;
}

static void sift_up(struct oc_loop *loop, size_t i, struct oc_timer *t) {
    while (i > 0 && before(t, loop->heap[(i - 1) / 2])) {
        put(loop, i, loop->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    put(loop, i, t);
}

static void sift_down(struct oc_loop *loop, size_t i, struct oc_timer *t) {
    for (;;) {
        size_t child = 2 * i + 1;

        if (child + 1 < loop->heap_len && before(loop->heap[child + 1], loop->heap[child])) {
            child++;
        }
        if (child >= loop->heap_len || !before(loop->heap[child], t)) {
            break;
        }
        put(loop, i, loop->heap[child]);
        i = child;
    }
    put(loop, i, t);
}

static void heap_remove(struct oc_loop *loop, struct oc_timer *t) {
    size_t i = t->slot - 1;

    OC_CHECK(i < loop->heap_len && loop->heap[i] == t);
    t->slot = 0;
    loop->heap_len--;
    struct oc_timer *last = loop->heap[loop->heap_len];
    if (last == t) {
        return;
    }
    if (i > 0 && before(last, loop->heap[(i - 1) / 2])) {
        sift_up(loop, i, last);
    } else {
        sift_down(loop, i, last);
    }
}

static int heap_room(struct oc_loop *loop) {
    if (loop->heap_len < loop->heap_cap) {
        return 0;
    }
    size_t cap = loop->heap_cap == 0 ? HEAP_FIRST : loop->heap_cap * 2;
    struct oc_timer **heap = reallocarray(loop->heap, cap, sizeof *heap);
    if (heap == NULL) {
        return OC_E_EXHAUSTED;
    }
    loop->heap = heap;
    loop->heap_cap = cap;
    return 0;
}

static void heap_add(struct oc_loop *loop, struct oc_timer *t, uint64_t from_ns, uint64_t ms) {
    uint64_t ns;

    if (__builtin_mul_overflow(ms, OC_NS_PER_MS, &ns) ||
        __builtin_add_overflow(from_ns, ns, &t->due_ns)) {
        t->due_ns = UINT64_MAX; /* never */
    }
    t->seq = loop->timer_seq++;
    sift_up(loop, loop->heap_len++, t);
}

void oc_timer_init(struct oc_timer *t, struct oc_loop *loop, void (*fn)(struct oc_timer *timer)) {
    *t = (struct oc_timer){.loop = loop, .fn = fn};
}

int oc_timer_start(struct oc_timer *t, uint64_t timeout_ms, uint64_t repeat_ms) {
    oc_timer_stop(t);
    int rc = heap_room(t->loop);
    if (rc != 0) {
        return rc;
    }
    t->repeat_ms = repeat_ms;
    /* Not the turn's cached time: behind a long turn the timer would fire early. */
    heap_add(t->loop, t, oc_mono_ns(), timeout_ms);
    return 0;
}

void oc_timer_stop(struct oc_timer *t) {
    if (t->slot != 0) {
        heap_remove(t->loop, t);
    }
}

void oc_timer_done(struct oc_timer *t) {
    oc_timer_stop(t);
}

/* Timers that are started in here wait for the next turn, even those due at once: sockets come
 * first. */
void oc_timers_run(struct oc_loop *loop) {
    uint64_t first_new = loop->timer_seq;

    while (loop->heap_len > 0) {
        struct oc_timer *t = loop->heap[0];

        if (t->due_ns > loop->now.mono_ns || t->seq >= first_new) {
            break;
        }
        heap_remove(loop, t);
        if (t->repeat_ms > 0) {
            heap_add(loop, t, loop->now.mono_ns, t->repeat_ms); /* the room it just had */
        }
        t->fn(t); /* may free it */
    }
}

uint64_t oc_timers_next_ns(const struct oc_loop *loop, uint64_t mono_ns) {
    if (loop->heap_len == 0) {
        return UINT64_MAX;
    }
    uint64_t due_ns = loop->heap[0]->due_ns;
    return due_ns > mono_ns ? due_ns - mono_ns : 0;
}

void oc_timers_forget(struct oc_loop *loop) {
    while (loop->heap_len > 0) {
        heap_remove(loop, loop->heap[loop->heap_len - 1]);
    }
}
