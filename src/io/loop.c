/* The loop's turn, its mailbox and its hooks; what lives inside a loop is described in loop_impl.h.
 *
 * The mailbox is a lock-free stack that the loop takes as a whole and turns round, so letters
 * arrive in the order of posting. The poster wakes the loop only when it finds `asleep` set, and
 * clears it: a burst of letters costs one write to the eventfd. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "io/loop_impl.h"

/* Letters that post letters after the end: so many rounds and it is a cycle. */
#define LAST_MAIL_ROUNDS 10000

static _Thread_local struct oc_loop *current_loop;

/* ---- making and freeing ---- */

static void wake_ready(struct oc_poll *p, uint32_t events) {
    (void)p;
    (void)events; /* waking up was all; edge-triggered, so the counter need not be read */
}

static void uv_ready(struct oc_poll *p, uint32_t events) {
    (void)events; /* libuv asks its own set what happened */
    OC_CONTAINER(p, struct oc_loop, uv_poll)->uv_due = true;
}

static int open_descriptors(struct oc_loop *loop, struct oc_error *err) {
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->epoll_fd < 0 || loop->wake_fd < 0) {
        return oc_error_errno(err, errno, "cannot create an event loop (ulimit -n is its limit)");
    }
    loop->wake_poll.ready = wake_ready;
    loop->uv_poll.ready = uv_ready;
    int rc = oc_loop_poll_add(loop, loop->wake_fd, EPOLLIN | EPOLLET, &loop->wake_poll);
    if (rc == 0) {
        rc = oc_loop_poll_add(loop, uv_backend_fd(&loop->uv), EPOLLIN, &loop->uv_poll);
    }
    if (rc != 0) {
        return oc_error_set(err, rc, "cannot create an event loop: epoll refused its descriptors");
    }
    return 0;
}

static void close_descriptors(struct oc_loop *loop) {
    if (loop->epoll_fd >= 0) {
        (void)close(loop->epoll_fd); /* holds no data */
    }
    if (loop->wake_fd >= 0) {
        (void)close(loop->wake_fd); /* holds no data */
    }
    OC_CHECK(uv_loop_close(&loop->uv) == 0); /* every handle was closed */
    free(loop->read_buffer);
    free(loop->heap);
    loop->magic = 0;
    free(loop);
}

int oc_loop_new(struct oc_loop **ret, struct oc_error *err) {
    struct oc_loop *loop = calloc(1, sizeof *loop);

    if (loop == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "cannot create an event loop: out of memory");
    }
    int uv_rc = uv_loop_init(&loop->uv);
    if (uv_rc != 0) {
        free(loop);
        return oc_error_errno(err, -uv_rc, "cannot create an event loop (ulimit -n is its limit)");
    }
    loop->magic = OC_LOOP_MAGIC;
    loop->epoll_fd = -1;
    loop->wake_fd = -1;
    oc_list_init(&loop->hooks);
    oc_list_init(&loop->deferred);
    oc_list_init(&loop->ready);
    oc_list_init(&loop->tcps);
    oc_list_init(&loop->listeners);
    oc_list_init(&loop->connects);
    oc_list_init(&loop->signals);
    loop->now = oc_now_real();
    /* On a page: the kernel copies to unaligned memory at half the speed. */
    loop->read_buffer = aligned_alloc(4096, OC_LOOP_READ_BYTES);
    int rc = loop->read_buffer != NULL
                 ? open_descriptors(loop, err)
                 : oc_error_set(err, OC_E_EXHAUSTED, "cannot create an event loop: out of memory");
    if (rc != 0) {
        close_descriptors(loop);
        return rc;
    }
    *ret = loop;
    return 0;
}

int oc_loop_poll_add(struct oc_loop *loop, int fd, uint32_t events, struct oc_poll *p) {
    struct epoll_event ev = {.events = events, .data.ptr = p};

    return epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0 ? 0 : oc_err_from_errno(errno);
}

void oc_loop_poll_change(struct oc_loop *loop, int fd, uint32_t events, struct oc_poll *p) {
    struct epoll_event ev = {.events = events, .data.ptr = p};

    /* It was added before and needs no memory now. */
    OC_CHECK(epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, fd, &ev) == 0);
}

void oc_loop_defer(struct oc_loop *loop, struct oc_deferred *d) {
    oc_list_push_back(&loop->deferred, &d->link);
}

/* ---- mailbox ---- */

static void wake(struct oc_loop *loop) {
    uint64_t one = 1;

    if (atomic_exchange(&loop->asleep, false)) {
        /* Can only fail when the counter is full, and then the loop has been woken. */
        (void)!write(loop->wake_fd, &one, sizeof one);
    }
}

void oc_loop_post(struct oc_loop *loop, struct oc_letter *letter) {
    OC_MAGIC_CHECK(loop, OC_LOOP_MAGIC);
    struct oc_letter *head = atomic_load_explicit(&loop->mail, memory_order_relaxed);
    do {
        letter->next = head;
        /* Sequentially consistent, like `asleep`: either the loop sees the letter before it sleeps
         * or we see that it sleeps. */
    } while (!atomic_compare_exchange_weak(&loop->mail, &head, letter));
    if (loop != current_loop && atomic_load(&loop->asleep)) {
        wake(loop);
    }
}

static bool has_mail(struct oc_loop *loop) {
    return atomic_load(&loop->mail) != NULL;
}

static void deliver_mail(struct oc_loop *loop) {
    if (atomic_load_explicit(&loop->mail, memory_order_relaxed) == NULL) {
        return;
    }
    struct oc_letter *newest = atomic_exchange_explicit(&loop->mail, NULL, memory_order_acquire);
    struct oc_letter *oldest = NULL;
    while (newest != NULL) {
        struct oc_letter *next = newest->next;

        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        struct oc_letter *letter = oldest;

        oldest = letter->next;
        letter->fn(letter); /* may free it or post it again */
    }
}

/* ---- hooks and deferred calls ---- */

static void take_all(struct oc_list *from, struct oc_list *to) {
    oc_list_init(to);
    if (!oc_list_empty(from)) {
        oc_list_insert_before(from, to);
        oc_list_remove(from); /* `to` now heads the ring */
    }
}

void oc_loop_hook_add(struct oc_loop *loop, struct oc_turn_hook *hook) {
    oc_list_push_back(&loop->hooks, &hook->link);
}

void oc_loop_hook_remove(struct oc_turn_hook *hook) {
    oc_list_remove(&hook->link);
}

void oc_loop_again(struct oc_loop *loop) {
    loop->again = true;
}

/* Each hook is back in the loop's list before it runs, so it may remove itself or any other. */
static void run_hooks(struct oc_loop *loop) {
    struct oc_list batch;
    struct oc_list *link;

    take_all(&loop->hooks, &batch);
    while ((link = oc_list_pop_front(&batch)) != NULL) {
        struct oc_turn_hook *hook = OC_CONTAINER(link, struct oc_turn_hook, link);

        oc_list_push_back(&loop->hooks, link);
        hook->fn(hook);
    }
}

static void run_deferred(struct oc_loop *loop) {
    struct oc_list batch;
    struct oc_list *link;

    take_all(&loop->deferred, &batch);
    while ((link = oc_list_pop_front(&batch)) != NULL) {
        struct oc_deferred *d = OC_CONTAINER(link, struct oc_deferred, link);

        d->fn(d); /* may free it */
    }
}

/* ---- the turn ---- */

/* libuv's share: run it when its descriptor was ready, when a handle was started, or when one of
 * its timers or closings is due. */
static void run_uv(struct oc_loop *loop) {
    if (loop->uv_due || (uv_loop_alive(&loop->uv) != 0 && uv_backend_timeout(&loop->uv) == 0)) {
        loop->uv_due = false;
        (void)uv_run(&loop->uv, UV_RUN_NOWAIT); /* says only whether handles are left */
    }
}

/* How long the loop may sleep, in milliseconds; -1 = until something happens. */
static int sleep_ms(struct oc_loop *loop) {
    int ms = -1;

    if (loop->again || loop->uv_due || !oc_list_empty(&loop->ready) ||
        !oc_list_empty(&loop->deferred) || has_mail(loop) ||
        (!loop->closing && atomic_load(&loop->stop))) {
        return 0;
    }
    if (loop->heap_len > 0) {
        uint64_t ns = oc_timers_next_ns(loop, oc_mono_ns());
        uint64_t up = ns / OC_NS_PER_MS + (ns % OC_NS_PER_MS != 0);

        ms = up < INT_MAX ? (int)up : INT_MAX;
    }
    if (uv_loop_alive(&loop->uv) != 0) {
        uv_update_time(&loop->uv);
        int uv_ms = uv_backend_timeout(&loop->uv);
        if (uv_ms >= 0 && (ms < 0 || uv_ms < ms)) {
            ms = uv_ms;
        }
    }
    return ms;
}

static int wait_events(struct oc_loop *loop) {
    int ms = sleep_ms(loop);
    bool sleep = ms != 0;

    if (sleep) {
        atomic_store(&loop->asleep, true);
        /* What came between the look above and this store saw no sleeper and woke nobody. */
        if (has_mail(loop) || (!loop->closing && atomic_load(&loop->stop))) {
            ms = 0;
        }
    }
    int n = epoll_wait(loop->epoll_fd, loop->events, OC_LOOP_EVENTS, ms);
    OC_CHECK(n >= 0 || errno == EINTR);
    if (sleep) {
        atomic_store(&loop->asleep, false);
    }
    loop->again = false;
    return n;
}

static void turn(struct oc_loop *loop) {
    int n = wait_events(loop);

    loop->now = oc_now_real();
    for (int i = 0; i < n; i++) {
        struct oc_poll *p = loop->events[i].data.ptr;

        p->ready(p, loop->events[i].events);
    }
    oc_tcp_serve_ready(loop);
    deliver_mail(loop);
    oc_timers_run(loop);
    run_uv(loop);
    run_deferred(loop);
    run_hooks(loop);
}

static bool anything_left(struct oc_loop *loop) {
    return !oc_list_empty(&loop->tcps) || !oc_list_empty(&loop->listeners) ||
           !oc_list_empty(&loop->connects) || !oc_list_empty(&loop->signals) ||
           !oc_list_empty(&loop->deferred) || loop->reads > 0 || uv_loop_alive(&loop->uv) != 0 ||
           has_mail(loop);
}

void oc_loop_run(struct oc_loop *loop) {
    OC_MAGIC_CHECK(loop, OC_LOOP_MAGIC);
    OC_CHECK(!loop->running && !loop->closing && current_loop == NULL);
    loop->running = true;
    current_loop = loop;
    /* Acquire: what the stopper did before is done before anything is closed. */
    while (!atomic_load_explicit(&loop->stop, memory_order_acquire)) {
        turn(loop);
    }
    loop->closing = true; /* from now on nothing new can be opened */
    oc_listener_close_all(loop);
    oc_connect_cancel_all(loop);
    oc_tcp_close_all(loop);
    oc_signal_unwatch_all(loop);
    while (anything_left(loop)) {
        turn(loop);
    }
    oc_timers_forget(loop);
    loop->running = false;
    current_loop = NULL;
}

void oc_loop_stop(struct oc_loop *loop) {
    OC_MAGIC_CHECK(loop, OC_LOOP_MAGIC);
    atomic_store(&loop->stop, true);
    wake(loop);
}

void oc_loop_free(struct oc_loop *loop) {
    if (loop == NULL) {
        return;
    }
    OC_MAGIC_CHECK(loop, OC_LOOP_MAGIC);
    OC_CHECK(!loop->running);
    if (!loop->closing) {
        atomic_store(&loop->stop, true); /* never ran: close what was opened on it */
        oc_loop_run(loop);
    }
    for (int round = 0; has_mail(loop); round++) {
        OC_CHECK(round < LAST_MAIL_ROUNDS);
        deliver_mail(loop);
        run_deferred(loop);
    }
    close_descriptors(loop);
}

struct oc_now oc_loop_now(struct oc_loop *loop) {
    return loop->running ? loop->now : oc_now_real();
}

struct oc_loop *oc_loop_current(void) {
    return current_loop;
}

void *oc_loop_thread_handle(struct oc_loop *loop) {
    loop->uv_due = true;
    return &loop->uv;
}
