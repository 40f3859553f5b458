/* Listeners: accept on one loop, hand each connection to the worker with the fewest. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "io/tcp_impl.h"

#define LISTENER_MAGIC 0x4e54534cu /* "LSTN" */
#define BACKLOG        4096        /* cut by net.core.somaxconn */
#define ACCEPTS_TURN   64          /* per turn: those connected already want service too */
#define PAUSE_MS       100         /* when the system cannot give us connections */

struct oc_listener {
    struct oc_poll poll; /* first */
    uint32_t magic;
    int fd;
    int reserve_fd; /* given up to be able to accept, and refuse, when descriptors run out */
    bool closing;
    bool paused;
    struct oc_loop *loop;
    struct oc_list link; /* in loop->listeners */
    struct oc_timer pause;
    struct oc_deferred freed;
    uint16_t port;
    unsigned max_connections;
    unsigned next; /* where the search for the least loaded worker starts */
    struct oc_listener_counts *counts;
    unsigned worker_count;
    struct oc_worker_slot workers[];
};

void oc_listener_counts_unref(struct oc_listener_counts *c) {
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1) {
        free(c);
    }
}

static uint64_t relaxed(const _Atomic uint64_t *v) {
    return atomic_load_explicit(v, memory_order_relaxed);
}

/* ---- binding ---- */

static int listen_fail(struct oc_error *err, const char *addr, int errnum) {
    const char *advice = "";
    char why[96];

    switch (errnum) {
    case EADDRINUSE:
        advice = " (another process holds the port; stop it or pass -listen-addr)";
        break;
    case EADDRNOTAVAIL:
        advice = " (no interface of this machine has that address; pass -listen-addr)";
        break;
    case EACCES:
    case EPERM:
        advice = " (ports below 1024 need privileges; pass -listen-addr with a higher one)";
        break;
    case EAFNOSUPPORT:
        advice = " (this machine does not speak that kind of address; pass -listen-addr)";
        break;
    case EMFILE:
    case ENFILE:
        advice = " (raise the limit of open files, ulimit -n)";
        break;
    default:
        break;
    }
    int code = errnum == EADDRINUSE || errnum == EADDRNOTAVAIL || errnum == EAFNOSUPPORT
                   ? OC_E_UNAVAILABLE
                   : oc_err_from_errno(errnum);
    return oc_error_set(err, code, "cannot listen on '%.200s': %s%s", addr,
                        strerror_r(errnum, why, sizeof why), advice);
}

/* A listening descriptor or a negative errno. */
static int listen_on(const union oc_sockaddr *addr) {
    int on = 1;
    int off = 0;
    int fd = socket(addr->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -errno;
    }
    /* A port whose last owner's connections linger may be had; one that is in use may not. The
     * accepted inherit TCP_NODELAY. [::] takes IPv4 too. Failures show in bind, or harm nothing. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (addr->any.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&addr->v6.sin6_addr)) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (bind(fd, &addr->any, oc_sockaddr_len(addr)) != 0 || listen(fd, BACKLOG) != 0) {
        int errnum = errno;

        (void)close(fd); /* never used */
        return -errnum;
    }
    return fd;
}

/* Every address: [::] with IPv4 mapped into it, or 0.0.0.0 where there is no IPv6. */
static int listen_on_all(uint16_t port) {
    union oc_sockaddr addr;

    (void)oc_sockaddr_parse("::", port, &addr); /* is an address */
    int fd = listen_on(&addr);
    if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL || fd == -EPROTONOSUPPORT) {
        (void)oc_sockaddr_parse("0.0.0.0", port, &addr); /* is an address */
        fd = listen_on(&addr);
    }
    return fd;
}

static int listen_on_name(const char *addr_text, const char *host, uint16_t port,
                          struct oc_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    int fd = -EADDRNOTAVAIL;
    int rc = getaddrinfo(host, NULL, &hints, &list);

    if (rc != 0) {
        return oc_error_set(err, OC_E_INVALID, "cannot listen on '%.200s': %s (pass -listen-addr)",
                            addr_text, gai_strerror(rc));
    }
    for (const struct addrinfo *it = list; it != NULL && fd < 0; it = it->ai_next) {
        union oc_sockaddr addr;

        if (oc_sockaddr_take(it->ai_addr, port, &addr)) {
            fd = listen_on(&addr);
        }
    }
    freeaddrinfo(list);
    return fd >= 0 ? fd : listen_fail(err, addr_text, -fd);
}

/* The descriptor, or a negative OC_E_…. */
static int open_socket(const char *addr_text, struct oc_error *err) {
    char host[OC_HOST_BYTES];
    union oc_sockaddr addr;
    uint16_t port;
    int rc = oc_addr_split(addr_text, host, sizeof host, &port, err);

    if (rc != 0) {
        return rc;
    }
    if (host[0] != '\0' && !oc_sockaddr_parse(host, port, &addr)) {
        return listen_on_name(addr_text, host, port, err);
    }
    int fd = host[0] == '\0' ? listen_on_all(port) : listen_on(&addr);
    return fd >= 0 ? fd : listen_fail(err, addr_text, -fd);
}

static uint16_t bound_port(int fd) {
    union oc_sockaddr addr;
    socklen_t len = sizeof addr;

    OC_CHECK(getsockname(fd, &addr.any, &len) == 0); /* ours, and bound */
    return ntohs(addr.any.sa_family == AF_INET ? addr.v4.sin_port : addr.v6.sin6_port);
}

/* ---- accepting ---- */

static int open_reserve(void) {
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static unsigned least_loaded(struct oc_listener *l) {
    unsigned best = l->next;

    for (unsigned i = 1; i < l->worker_count; i++) {
        unsigned w = (l->next + i) % l->worker_count;

        if (relaxed(&l->counts->open_at[w]) < relaxed(&l->counts->open_at[best])) {
            best = w;
        }
    }
    l->next = (best + 1) % l->worker_count; /* equals take turns */
    return best;
}

/* On the worker's thread. */
static void begin(struct oc_tcp *t) {
    if (t->slot.loop->closing || oc_tcp_attach(t, t->slot.loop) != 0) {
        atomic_fetch_add_explicit(&t->counts->refused, 1, memory_order_relaxed);
        oc_tcp_discard(t);
        return;
    }
    t->slot.accepted(t->slot.user, t);
}

static void arrive(struct oc_letter *letter) {
    begin(OC_CONTAINER(letter, struct oc_tcp, letter));
}

static void refuse(struct oc_listener *l, int fd) {
    atomic_fetch_add_explicit(&l->counts->refused, 1, memory_order_relaxed);
    (void)close(fd); /* nobody has used it */
}

static void hand_over(struct oc_listener *l, int fd, const union oc_sockaddr *addr) {
    struct oc_listener_counts *c = l->counts;

    if (l->max_connections > 0 && relaxed(&c->open) >= l->max_connections) {
        refuse(l, fd);
        return;
    }
    struct oc_tcp *t = oc_tcp_alloc(fd, addr);
    if (t == NULL) {
        refuse(l, fd);
        return;
    }
    t->worker = least_loaded(l);
    t->slot = l->workers[t->worker];
    t->counts = c;
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->accepted, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->open, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->open_at[t->worker], 1, memory_order_relaxed);
    if (t->slot.loop == l->loop) {
        begin(t);
    } else {
        t->letter.fn = arrive;
        oc_loop_post(t->slot.loop, &t->letter);
    }
}

/* The socket stays readable while nobody can be accepted: rest, or the loop would spin. */
static void pause_accepting(struct oc_listener *l) {
    if (!l->paused && oc_timer_start(&l->pause, PAUSE_MS, 0) == 0) {
        l->paused = true;
        oc_loop_poll_change(l->loop, l->fd, 0, &l->poll);
    }
}

static void resume_accepting(struct oc_timer *timer) {
    struct oc_listener *l = OC_CONTAINER(timer, struct oc_listener, pause);

    l->paused = false;
    if (l->reserve_fd < 0) {
        l->reserve_fd = open_reserve();
    }
    oc_loop_poll_change(l->loop, l->fd, EPOLLIN, &l->poll);
}

/* Out of descriptors: the reserve lets us take the peer in and close it, so that it learns at once.
 * False when nobody was waiting: accept wants its descriptor before it looks. */
static bool refuse_one(struct oc_listener *l) {
    int fd = -1;

    if (l->reserve_fd >= 0) {
        (void)close(l->reserve_fd); /* /dev/null */
        fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            refuse(l, fd);
        }
        l->reserve_fd = open_reserve();
    }
    if (l->reserve_fd < 0) {
        pause_accepting(l);
    }
    return fd >= 0;
}

static void listener_event(struct oc_poll *p, uint32_t events) {
    struct oc_listener *l = OC_CONTAINER(p, struct oc_listener, poll);

    (void)events; /* whatever it is, accept says */
    for (int i = 0; i < ACCEPTS_TURN && !l->closing && !l->paused; i++) {
        union oc_sockaddr addr;
        socklen_t len = sizeof addr;
        int fd = accept4(l->fd, &addr.any, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            hand_over(l, fd, &addr);
            continue;
        }
        switch (errno) {
        case EAGAIN:
            return;
        case EMFILE:
        case ENFILE:
            if (!refuse_one(l)) {
                return;
            }
            break;
        case ENOBUFS:
        case ENOMEM:
            pause_accepting(l);
            break;
        default:
            break; /* that one connection is gone (accept(2) passes its errors on); take the next */
        }
    }
}

/* ---- life ---- */

static int counts_new(struct oc_listener *l) {
    struct oc_listener_counts *c = calloc(1, sizeof *c + l->worker_count * sizeof c->open_at[0]);

    if (c == NULL) {
        return OC_E_EXHAUSTED;
    }
    atomic_init(&c->refs, 1);
    l->counts = c;
    return 0;
}

static void listener_free(struct oc_listener *l) {
    if (l->fd >= 0) {
        (void)close(l->fd); /* holds no data */
    }
    if (l->reserve_fd >= 0) {
        (void)close(l->reserve_fd); /* /dev/null */
    }
    if (l->counts != NULL) {
        oc_listener_counts_unref(l->counts);
    }
    l->magic = 0;
    free(l);
}

int oc_listener_open(struct oc_loop *loop, const struct oc_listener_config *cfg,
                     struct oc_listener **ret, struct oc_error *err) {
    OC_CHECK(cfg->worker_count > 0);
    if (loop->closing) {
        return oc_error_set(err, OC_E_CANCELLED, "cannot listen on '%.200s': shutting down",
                            cfg->addr);
    }
    size_t slots_bytes = cfg->worker_count * sizeof cfg->workers[0];
    struct oc_listener *l = calloc(1, sizeof *l + slots_bytes);
    if (l == NULL) {
        return listen_fail(err, cfg->addr, ENOMEM);
    }
    l->magic = LISTENER_MAGIC;
    l->poll.ready = listener_event;
    l->loop = loop;
    l->max_connections = cfg->max_connections;
    l->worker_count = cfg->worker_count;
    memcpy(l->workers, cfg->workers, slots_bytes);
    oc_list_init(&l->link);
    oc_list_init(&l->freed.link);
    oc_timer_init(&l->pause, loop, resume_accepting);
    l->reserve_fd = -1;
    l->fd = open_socket(cfg->addr, err);
    if (l->fd < 0) {
        int rc = l->fd;

        listener_free(l);
        return rc;
    }
    l->port = bound_port(l->fd);
    l->reserve_fd = open_reserve();
    int rc = counts_new(l);
    if (rc == 0) {
        rc = oc_loop_poll_add(loop, l->fd, EPOLLIN, &l->poll);
    }
    if (rc != 0) {
        listener_free(l);
        return listen_fail(err, cfg->addr, ENOMEM);
    }
    oc_list_push_back(&loop->listeners, &l->link);
    *ret = l;
    return 0;
}

uint16_t oc_listener_port(const struct oc_listener *l) {
    OC_MAGIC_CHECK(l, LISTENER_MAGIC);
    return l->port;
}

void oc_listener_stats(const struct oc_listener *l, struct oc_listener_stats *ret) {
    OC_MAGIC_CHECK(l, LISTENER_MAGIC);
    ret->accepted = relaxed(&l->counts->accepted);
    ret->refused = relaxed(&l->counts->refused);
    ret->open = relaxed(&l->counts->open);
}

static void free_deferred(struct oc_deferred *d) {
    struct oc_listener *l = OC_CONTAINER(d, struct oc_listener, freed);

    oc_list_remove(&l->link);
    listener_free(l);
}

void oc_listener_close(struct oc_listener *l) {
    OC_MAGIC_CHECK(l, LISTENER_MAGIC);
    if (l->closing) {
        return;
    }
    l->closing = true;
    oc_timer_done(&l->pause);
    (void)close(l->fd); /* also leaves the epoll set */
    l->fd = -1;
    l->freed.fn = free_deferred;
    oc_loop_defer(l->loop, &l->freed); /* an event of this turn may still point here */
}

void oc_listener_close_all(struct oc_loop *loop) {
    oc_list_each (it, &loop->listeners) {
        oc_listener_close(OC_CONTAINER(it, struct oc_listener, link)); /* leaves the list later */
    }
}
