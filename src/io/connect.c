/* Outgoing connections: look the name up off the loop, try its addresses in turn. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "io/tcp_impl.h"

#define CONNECT_MAGIC 0x54434e43u /* "CNCT" */
#define ADDRS_MAX     16

struct oc_connect {
    struct oc_poll poll; /* first */
    uint32_t magic;
    int fd; /* of the attempt under way, or -1 */
    struct oc_loop *loop;
    struct oc_list link; /* in loop->connects */
    uv_getaddrinfo_t lookup;
    bool looking_up;
    bool over; /* fn was called, or never will be */
    uint64_t deadline_ns;
    struct oc_timer timer;   /* of the attempt, or of the lookup */
    struct oc_deferred step; /* begin, or be freed */
    void (*fn)(void *arg, struct oc_tcp *tcp_or_null, const struct oc_error *err);
    void *arg;
    struct oc_error last; /* why the last attempt failed */
    unsigned addr_count;
    unsigned addr_next;
    union oc_sockaddr addrs[ADDRS_MAX];
    uint16_t port;
    char host[OC_HOST_BYTES];
};

static void free_step(struct oc_deferred *d) {
    struct oc_connect *c = OC_CONTAINER(d, struct oc_connect, step);

    oc_list_remove(&c->link);
    c->magic = 0;
    free(c);
}

/* From here on nothing is called any more; a lookup that is under way frees it when it returns. */
static void retire(struct oc_connect *c) {
    c->over = true;
    oc_timer_done(&c->timer);
    if (c->fd >= 0) {
        (void)close(c->fd); /* also leaves the epoll set */
        c->fd = -1;
    }
    oc_list_remove(&c->step.link);
    if (!c->looking_up) {
        c->step.fn = free_step;
        oc_loop_defer(c->loop, &c->step);
    } else {
        /* Fails when a thread is at it already: then its end is awaited. */
        (void)uv_cancel((uv_req_t *)&c->lookup);
        oc_loop_uv_due(c->loop);
    }
}

static void finish(struct oc_connect *c, struct oc_tcp *tcp) {
    c->over = true;
    c->fn(c->arg, tcp, tcp != NULL ? NULL : &c->last);
    retire(c);
}

static void try_next(struct oc_connect *c);

static void attempt_failed(struct oc_connect *c, int errnum) {
    char peer[OC_PEER_BYTES];

    oc_sockaddr_print(&c->addrs[c->addr_next - 1], peer, sizeof peer);
    (void)oc_error_errno(&c->last, errnum, "cannot connect to '%.200s:%u' at %s", c->host, c->port,
                         peer); /* the code is kept for fn */
    if (c->fd >= 0) {
        (void)close(c->fd); /* also leaves the epoll set */
        c->fd = -1;
    }
    try_next(c);
}

static void connected(struct oc_connect *c) {
    struct oc_tcp *tcp;

    oc_timer_stop(&c->timer);
    /* Out of our registration, into the connection's own. */
    (void)epoll_ctl(c->loop->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL); /* absent when it was instant */
    tcp = oc_tcp_alloc(c->fd, &c->addrs[c->addr_next - 1]);
    if (tcp == NULL || oc_tcp_attach(tcp, c->loop) != 0) {
        free(tcp);
        attempt_failed(c, ENOMEM);
        return;
    }
    c->fd = -1; /* the connection's now */
    finish(c, tcp);
}

static void connect_event(struct oc_poll *p, uint32_t events) {
    struct oc_connect *c = OC_CONTAINER(p, struct oc_connect, poll);
    int errnum = 0;
    socklen_t len = sizeof errnum;

    (void)events; /* SO_ERROR says which it is */
    if (c->over || c->fd < 0) {
        return; /* given up earlier in this turn */
    }
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &errnum, &len) != 0) {
        errnum = errno;
    }
    if (errnum != 0) {
        attempt_failed(c, errnum);
    } else {
        connected(c);
    }
}

/* The errno of starting, or 0; *ret_done when it is connected already. */
static int start_attempt(struct oc_connect *c, const union oc_sockaddr *addr, bool *ret_done) {
    *ret_done = false;
    c->fd = socket(addr->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        return errno;
    }
    if (connect(c->fd, &addr->any, oc_sockaddr_len(addr)) == 0) {
        *ret_done = true;
        return 0;
    }
    if (errno != EINPROGRESS && errno != EINTR) { /* interrupted, it goes on all the same */
        return errno;
    }
    return oc_loop_poll_add(c->loop, c->fd, EPOLLOUT, &c->poll) == 0 ? 0 : ENOMEM;
}

static uint64_t ms_left(const struct oc_connect *c) {
    uint64_t now_ns = oc_mono_ns();

    return now_ns < c->deadline_ns ? (c->deadline_ns - now_ns) / OC_NS_PER_MS + 1 : 0;
}

/* The next address gets its share of the time that is left, so that one that never answers does not
 * use up the time of the others. */
static void try_next(struct oc_connect *c) {
    bool done = false;

    if (c->addr_next == c->addr_count) {
        finish(c, NULL);
        return;
    }
    unsigned left = c->addr_count - c->addr_next;
    uint64_t ms = ms_left(c);
    const union oc_sockaddr *addr = &c->addrs[c->addr_next++];
    int errnum = ms > 0 ? start_attempt(c, addr, &done) : ETIMEDOUT;
    if (errnum == 0 && !done && oc_timer_start(&c->timer, (ms + left - 1) / left, 0) != 0) {
        errnum = ENOMEM;
    }
    if (errnum != 0) {
        attempt_failed(c, errnum); /* comes back here, at most ADDRS_MAX deep */
    } else if (done) {
        connected(c);
    }
}

static void out_of_time(struct oc_timer *timer) {
    struct oc_connect *c = OC_CONTAINER(timer, struct oc_connect, timer);

    if (!c->looking_up) {
        attempt_failed(c, ETIMEDOUT);
        return;
    }
    (void)oc_error_set(&c->last, OC_E_DEADLINE,
                       "cannot connect to '%.200s:%u': looking up the name took too long", c->host,
                       c->port); /* kept for fn */
    finish(c, NULL);
}

static void looked_up(uv_getaddrinfo_t *req, int status, struct addrinfo *list) {
    struct oc_connect *c = req->data;

    c->looking_up = false;
    for (const struct addrinfo *it = list; it != NULL && c->addr_count < ADDRS_MAX;
         it = it->ai_next) {
        c->addr_count += oc_sockaddr_take(it->ai_addr, c->port, &c->addrs[c->addr_count]);
    }
    uv_freeaddrinfo(list);
    if (c->over) {
        retire(c);
        return;
    }
    oc_timer_stop(&c->timer);
    (void)oc_error_set(&c->last, OC_E_UNAVAILABLE,
                       "cannot connect to '%.200s:%u': cannot look up the name: %s", c->host,
                       c->port, status != 0 ? uv_strerror(status) : "it has no address");
    try_next(c);
}

static void begin(struct oc_deferred *d) {
    struct oc_connect *c = OC_CONTAINER(d, struct oc_connect, step);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};

    if (c->addr_count > 0) {
        try_next(c);
        return;
    }
    c->lookup.data = c;
    int rc = uv_getaddrinfo(oc_loop_thread_handle(c->loop), &c->lookup, looked_up, c->host, NULL,
                            &hints);
    if (rc == 0) {
        c->looking_up = true;
        rc = oc_timer_start(&c->timer, ms_left(c), 0) == 0 ? 0 : UV_ENOMEM;
    }
    if (rc != 0) {
        (void)oc_error_set(&c->last, OC_E_UNAVAILABLE,
                           "cannot connect to '%.200s:%u': cannot look up the name: %s", c->host,
                           c->port, uv_strerror(rc)); /* kept for fn */
        finish(c, NULL);
    }
}

int oc_tcp_connect(struct oc_loop *loop, const char *addr, uint64_t timeout_ms,
                   void (*fn)(void *arg, struct oc_tcp *tcp_or_null, const struct oc_error *err),
                   void *arg, struct oc_connect **ret) {
    char host[OC_HOST_BYTES];
    uint16_t port;
    uint64_t timeout_ns;
    int rc = oc_addr_split(addr, host, sizeof host, &port, NULL);

    if (rc != 0 || host[0] == '\0' || port == 0) {
        return OC_E_INVALID;
    }
    if (loop->closing) {
        return OC_E_CANCELLED;
    }
    struct oc_connect *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return OC_E_EXHAUSTED;
    }
    c->magic = CONNECT_MAGIC;
    c->poll.ready = connect_event;
    c->fd = -1;
    c->loop = loop;
    c->fn = fn;
    c->arg = arg;
    c->port = port;
    memcpy(c->host, host, sizeof c->host);
    oc_list_init(&c->link);
    oc_list_init(&c->step.link);
    oc_timer_init(&c->timer, loop, out_of_time);
    if (__builtin_mul_overflow(timeout_ms, OC_NS_PER_MS, &timeout_ns) ||
        __builtin_add_overflow(oc_mono_ns(), timeout_ns, &c->deadline_ns)) {
        c->deadline_ns = UINT64_MAX;
    }
    c->addr_count = oc_sockaddr_parse(host, port, &c->addrs[0]);
    c->step.fn = begin; /* later, so that fn is never called from in here */
    oc_loop_defer(loop, &c->step);
    oc_list_push_back(&loop->connects, &c->link);
    *ret = c;
    return 0;
}

void oc_tcp_connect_cancel(struct oc_connect *c) {
    OC_MAGIC_CHECK(c, CONNECT_MAGIC);
    if (!c->over) {
        retire(c);
    }
}

void oc_connect_cancel_all(struct oc_loop *loop) {
    oc_list_each_safe (it, next, &loop->connects) {
        struct oc_connect *c = OC_CONTAINER(it, struct oc_connect, link);

        if (!c->over) {
            (void)oc_error_set(&c->last, OC_E_CANCELLED,
                               "cannot connect to '%.200s:%u': shutting down", c->host,
                               c->port); /* kept for fn */
            finish(c, NULL);
        }
    }
}
