/* Buffers and jobs that are not there at once. A bounded list of waiters per worker is served, the
 * connections in turns, at the end of each turn and, as buffers also come back on other threads, by
 * a timer that runs only while somebody waits. */
#include "object/internal.h"

#define RETRY_MS 5

static void timer_fired(struct oc_timer *timer) {
    oc_svc_buffers_turn(OC_CONTAINER(timer, struct oc_svc_worker, timer));
}

void oc_svc_buffers_init(struct oc_svc_worker *w) {
    for (int size = 0; size < OC_SVC_BLOCKS; size++) {
        oc_list_init(&w->waiting[size]);
    }
    oc_list_init(&w->refused);
    oc_list_init(&w->dropped);
    oc_timer_init(&w->timer, w->loop, timer_fired);
}

void oc_svc_buffers_done(struct oc_svc_worker *w) {
    OC_CHECK(w->waiting_count == 0 && oc_list_empty(&w->refused));
    oc_timer_done(&w->timer);
}

static bool somebody_waits(const struct oc_svc_worker *w) {
    return w->waiting_count > 0 || !oc_list_empty(&w->refused) || !oc_list_empty(&w->dropped);
}

/* Without the timer (out of memory for it) the turns themselves are what serves. */
static void want_timer(struct oc_svc_worker *w) {
    if (!oc_timer_running(&w->timer)) {
        (void)OC_COUNT(oc_timer_start(&w->timer, RETRY_MS, RETRY_MS) == 0);
    }
}

/* ---- the workers' shares in a pool ---- */

static struct oc_svc_share *share_of(const struct oc_svc *s, unsigned worker,
                                     enum oc_svc_block size) {
    return &s->shares[worker * OC_SVC_BLOCKS + size];
}

static uint64_t served(const struct oc_svc_share *share) {
    return atomic_load_explicit(&share->served, memory_order_relaxed);
}

/* The least that another worker with waiters was served; UINT64_MAX: no other has any. */
static uint64_t least_of_others(const struct oc_svc_worker *w, enum oc_svc_block size) {
    const struct oc_svc *s = w->svc;
    uint64_t least = UINT64_MAX;

    if (atomic_load_explicit(&s->waiting, memory_order_relaxed) == 0) {
        return least; /* the usual case */
    }
    for (unsigned i = 0; i < s->cfg.workers; i++) {
        const struct oc_svc_share *share = share_of(s, i, size);

        if (i != w->index && atomic_load_explicit(&share->waiting, memory_order_relaxed) > 0 &&
            served(share) < least) {
            least = served(share);
        }
    }
    return least;
}

/* Buffers come back where they were used, so without turns a worker whose peers take the most would
 * keep them all. Who is not at its turn leaves the buffer to the other, which looks within
 * RETRY_MS. */
static bool my_turn(const struct oc_svc_worker *w, enum oc_svc_block size) {
    return served(share_of(w->svc, w->index, size)) <= least_of_others(w, size);
}

static void join(struct oc_svc_worker *w, enum oc_svc_block size) {
    struct oc_svc_share *share = share_of(w->svc, w->index, size);
    uint64_t least = least_of_others(w, size);

    /* Nobody saves up turns while it has no use for them. */
    if (oc_list_empty(&w->waiting[size]) && least != UINT64_MAX && served(share) < least) {
        atomic_store_explicit(&share->served, least, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&share->waiting, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->svc->waiting, 1, memory_order_relaxed);
}

/* ---- buffers ---- */

struct oc_block *oc_svc_block_get(struct oc_svc_worker *w, enum oc_svc_block size) {
    if (!oc_list_empty(&w->waiting[size]) || least_of_others(w, size) != UINT64_MAX) {
        return NULL;
    }
    return oc_block_get(w->svc->pools[size]);
}

bool oc_svc_buffers_scarce(struct oc_svc_worker *w) {
    struct oc_blockpool_stats stats;

    oc_blockpool_stats(w->svc->pools[OC_SVC_BULK], &stats);
    return stats.in_use_bytes > stats.limit_bytes / 2;
}

static struct oc_svc_waiter *waiter_of(struct oc_list *link) {
    return OC_CONTAINER(link, struct oc_svc_waiter, link);
}

static void leave(struct oc_svc_worker *w, struct oc_svc_waiter *waiter) {
    oc_list_remove(&waiter->link);
    --*waiter->others;
    w->waiting_count--;
    atomic_fetch_sub_explicit(&share_of(w->svc, w->index, waiter->size)->waiting, 1,
                              memory_order_relaxed);
    atomic_fetch_sub_explicit(&w->svc->waiting, 1, memory_order_relaxed);
    oc_svc_count(w->svc, OC_SVC_X_buffer_waiting, -1);
}

/* False: nobody has waiting calls to spare. */
static bool make_place(struct oc_svc_worker *w, struct oc_list *list, uint64_t round) {
    if (w->waiting_count < w->svc->cfg.max_waiters) {
        return true;
    }
    if (oc_list_empty(list) || waiter_of(list->prev)->round <= round) {
        return false;
    }
    struct oc_svc_waiter *last = waiter_of(list->prev);
    leave(w, last);
    last->dropped = true;
    oc_list_push_back(&w->dropped, &last->link);
    return true;
}

int oc_svc_wait(struct oc_svc_worker *w, struct oc_svc_waiter *waiter, const struct oc_call *call,
                enum oc_svc_block size) {
    struct oc_list *list = &w->waiting[size];
    struct oc_list *before;

    /* A connection's n-th waiter is served in the n-th round from now. */
    waiter->others = oc_call_connection_number(call);
    waiter->round = *waiter->others + (oc_list_empty(list) ? 0 : waiter_of(list->next)->round);
    if (!make_place(w, list, waiter->round)) {
        oc_svc_count(w->svc, OC_SVC_X_buffer_refused, 1);
        return OC_E_EXHAUSTED;
    }
    oc_svc_count(w->svc, OC_SVC_X_buffer_waits, 1);
    waiter->size = size;
    waiter->dropped = false;
    join(w, size);
    waiter->deadline_ns = oc_loop_now(w->loop).mono_ns + w->svc->cfg.wait_ms * OC_NS_PER_MS;
    before = list->prev;
    while (before != list && waiter_of(before)->round > waiter->round) {
        before = before->prev;
    }
    oc_list_insert_before(before->next, &waiter->link);
    ++*waiter->others;
    w->waiting_count++;
    oc_svc_count(w->svc, OC_SVC_X_buffer_waiting, 1);
    want_timer(w);
    return 0;
}

void oc_svc_wait_cancel(struct oc_svc_worker *w, struct oc_svc_waiter *waiter) {
    if (oc_list_empty(&waiter->link)) {
        return;
    }
    if (waiter->dropped) {
        oc_list_remove(&waiter->link);
    } else {
        leave(w, waiter);
    }
}

void oc_svc_submit(struct oc_svc_worker *w, struct oc_movers *movers, struct oc_svc_task *task) {
    task->movers = movers;
    if (!oc_list_empty(&w->refused) || oc_movers_submit(movers, w->loop, &task->job) != 0) {
        oc_list_push_back(&w->refused, &task->link);
        want_timer(w);
    }
}

static void submit_refused(struct oc_svc_worker *w) {
    struct oc_list *first;

    while ((first = oc_list_pop_front(&w->refused)) != NULL) {
        struct oc_svc_task *task = OC_CONTAINER(first, struct oc_svc_task, link);

        if (oc_movers_submit(task->movers, w->loop, &task->job) != 0) {
            oc_list_push_front(&w->refused, &task->link);
            return;
        }
    }
}

static void give_up(struct oc_svc_worker *w, struct oc_svc_waiter *waiter) {
    oc_svc_wait_cancel(w, waiter);
    oc_svc_count(w->svc, OC_SVC_X_buffer_refused, 1);
    waiter->gave_up(waiter);
}

/* The first whose time is over; they stand in the order of rounds, not of time. */
static struct oc_svc_waiter *overdue(struct oc_list *list, uint64_t now_ns) {
    oc_list_each (link, list) {
        if (now_ns >= waiter_of(link)->deadline_ns) {
            return waiter_of(link);
        }
    }
    return NULL;
}

/* A waiter may begin to wait anew when it is served: whoever joins meanwhile is left for the next
 * turn. */
static void serve(struct oc_svc_worker *w, enum oc_svc_block size, uint64_t now_ns) {
    struct oc_list *list = &w->waiting[size];
    struct oc_svc_waiter *late;

    for (size_t n = w->waiting_count; n > 0 && !oc_list_empty(list) && my_turn(w, size); n--) {
        struct oc_svc_waiter *waiter = waiter_of(list->next);
        struct oc_block *block = oc_block_get(w->svc->pools[size]);

        if (block == NULL) {
            break;
        }
        oc_svc_wait_cancel(w, waiter);
        atomic_fetch_add_explicit(&share_of(w->svc, w->index, size)->served, 1,
                                  memory_order_relaxed);
        waiter->got(waiter, block);
    }
    while ((late = overdue(list, now_ns)) != NULL) {
        give_up(w, late);
    }
}

void oc_svc_buffers_turn(struct oc_svc_worker *w) {
    if (!somebody_waits(w)) {
        return;
    }
    submit_refused(w);
    while (!oc_list_empty(&w->dropped)) {
        give_up(w, waiter_of(w->dropped.next));
    }
    for (int size = 0; size < OC_SVC_BLOCKS; size++) {
        serve(w, (enum oc_svc_block)size, oc_loop_now(w->loop).mono_ns);
    }
    if (!somebody_waits(w)) {
        oc_timer_stop(&w->timer);
    }
}
