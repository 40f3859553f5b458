/* Connections: read, write, close.
 *
 * Registered once, edge-triggered. An event only marks the connection (readable, writable) and puts
 * it in the loop's ready list; it is served from there once per turn, so a busy peer has its share
 * and no more, and starting or stopping either direction is a matter of flags. */
#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "io/tcp_impl.h"

/* Bytes that one connection may read per turn, so that one fast peer does not starve the others. */
#define READ_TURN_BYTES ((size_t)1024 * 1024)
/* Unread bytes thrown away at an orderly close: see close_socket. */
#define CLOSE_DISCARD_ROUNDS 4

static void make_ready(struct oc_tcp *t) {
    if (oc_list_empty(&t->ready_link) && !t->closing) {
        oc_list_push_back(&t->loop->ready, &t->ready_link);
    }
}

static void tcp_event(struct oc_poll *p, uint32_t events) {
    struct oc_tcp *t = OC_CONTAINER(p, struct oc_tcp, poll);

    OC_DCHECK(t->magic == OC_TCP_MAGIC);
    if (t->closing) {
        return; /* closed earlier in this turn */
    }
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
        /* Let the next read or write fetch the reason. */
        t->readable = true;
        t->writable = true;
        t->hangup = true;
        t->failed = t->failed || (events & EPOLLERR) != 0;
    }
    if ((events & (EPOLLIN | EPOLLRDHUP)) != 0) {
        t->readable = true;
        t->hangup = t->hangup || (events & EPOLLRDHUP) != 0;
    }
    if ((events & EPOLLOUT) != 0) {
        t->writable = true;
    }
    if ((t->reading && t->readable) || (t->want_write && t->writable) || t->failed) {
        make_ready(t);
    }
}

/* ---- serving ---- */

static void end(struct oc_tcp *t, int code) {
    t->reading = false;
    t->readable = false;
    if (!t->ended) {
        t->ended = true;
        if (t->events != NULL) {
            t->events->ended(t->user, code);
        }
    }
}

static int read_errno(int errnum) {
    return errnum == ETIMEDOUT ? OC_E_DEADLINE : OC_E_UNAVAILABLE; /* all else: the peer is gone */
}

static void read_some(struct oc_tcp *t) {
    uint8_t *buffer = t->loop->read_buffer;
    size_t budget = READ_TURN_BYTES;

    while (t->reading && t->readable && !t->closing && budget > 0) {
        size_t ask = budget < OC_LOOP_READ_BYTES ? budget : OC_LOOP_READ_BYTES;
        ssize_t n = recv(t->fd, buffer, ask, 0);

        if (n > 0) {
            budget -= (size_t)n;
            /* Less than asked for: the socket is empty, and what comes next raises a new event.
             * Behind a hangup there is no new event, so read on to the end. */
            if ((size_t)n < ask && !t->hangup) {
                t->readable = false;
            }
            t->events->read(t->user, oc_span(buffer, (size_t)n));
        } else if (n == 0) {
            end(t, 0);
        } else if (errno == EAGAIN) {
            t->readable = false;
            t->hangup = false; /* an error that was cleared by a write; the next event tells */
        } else if (errno != EINTR) {
            end(t, read_errno(errno));
        }
    }
}

/* The connection broke while the user was not reading. */
static void report_failure(struct oc_tcp *t) {
    int errnum = 0;
    socklen_t len = sizeof errnum;

    t->failed = false;
    if (getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &errnum, &len) != 0 || errnum == 0) {
        errnum = ECONNRESET; /* a write has fetched it already */
    }
    end(t, read_errno(errnum));
}

static void serve(struct oc_tcp *t) {
    if (t->failed && !t->reading) {
        report_failure(t);
    }
    if (t->want_write && t->writable && !t->closing) {
        t->want_write = false;
        t->events->drained(t->user);
    }
    if (t->reading && t->readable && !t->closing) {
        read_some(t);
    }
    if ((t->reading && t->readable) || (t->want_write && t->writable)) {
        make_ready(t);
    }
}

/* Those that become ready meanwhile have their turn in the next one. */
void oc_tcp_serve_ready(struct oc_loop *loop) {
    struct oc_list batch;
    struct oc_list *link;

    if (oc_list_empty(&loop->ready)) {
        return;
    }
    oc_list_init(&batch);
    oc_list_insert_before(&loop->ready, &batch);
    oc_list_remove(&loop->ready); /* `batch` now heads the ring */
    while ((link = oc_list_pop_front(&batch)) != NULL) {
        serve(OC_CONTAINER(link, struct oc_tcp, ready_link));
    }
}

/* ---- life ---- */

struct oc_tcp *oc_tcp_alloc(int fd, const union oc_sockaddr *addr) {
    struct oc_tcp *t = calloc(1, sizeof *t);
    int on = 1;

    if (t == NULL) {
        return NULL;
    }
    t->poll.ready = tcp_event;
    t->magic = OC_TCP_MAGIC;
    t->fd = fd;
    t->addr = *addr;
    oc_list_init(&t->link);
    oc_list_init(&t->ready_link);
    oc_list_init(&t->closed.link);
    /* We gather a turn's writes ourselves; what is sent is meant to go. Fails only when the
     * connection is dead already, which the first read tells. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return t;
}

int oc_tcp_attach(struct oc_tcp *t, struct oc_loop *loop) {
    int rc = oc_loop_poll_add(loop, t->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &t->poll);

    if (rc == 0) {
        t->loop = loop;
        t->writable = true;
        oc_list_push_back(&loop->tcps, &t->link);
    }
    return rc;
}

static void uncount(struct oc_tcp *t) {
    if (t->counts != NULL) {
        atomic_fetch_sub_explicit(&t->counts->open, 1, memory_order_relaxed);
        atomic_fetch_sub_explicit(&t->counts->open_at[t->worker], 1, memory_order_relaxed);
        oc_listener_counts_unref(OC_TAKE(t->counts));
    }
}

void oc_tcp_discard(struct oc_tcp *t) {
    (void)close(t->fd); /* nobody has used it */
    uncount(t);
    t->magic = 0;
    free(t);
}

void oc_tcp_set_user(struct oc_tcp *t, const struct oc_tcp_events *events, void *user) {
    OC_MAGIC_CHECK(t, OC_TCP_MAGIC);
    t->events = events;
    t->user = user;
}

static void tcp_closed(struct oc_deferred *d) {
    struct oc_tcp *t = OC_CONTAINER(d, struct oc_tcp, closed);
    const struct oc_tcp_events *events = t->events;
    void *user = t->user;

    oc_list_remove(&t->link);
    uncount(t);
    t->magic = 0;
    free(t);
    if (events != NULL) {
        events->closed(user);
    }
}

/* An orderly close: the peer sees the end after all that was sent. Bytes that we have not read make
 * the kernel send a reset, which can overtake our last words at the peer: those here already are
 * thrown away first. */
static void close_socket(const struct oc_tcp *t, bool reset) {
    if (reset) {
        struct linger now = {.l_onoff = 1, .l_linger = 0};

        (void)setsockopt(t->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* dead is as good */
    } else if (!t->ended) {
        (void)shutdown(t->fd, SHUT_WR); /* fails when the peer is gone: as good */
        for (int i = 0; i < CLOSE_DISCARD_ROUNDS; i++) {
            if (recv(t->fd, NULL, OC_LOOP_READ_BYTES, MSG_TRUNC | MSG_DONTWAIT) <= 0) {
                break;
            }
        }
    }
    (void)close(t->fd); /* also leaves the epoll set; a socket has nothing to report here */
}

void oc_tcp_close(struct oc_tcp *t, bool reset) {
    OC_MAGIC_CHECK(t, OC_TCP_MAGIC);
    if (t->closing) {
        return;
    }
    t->closing = true;
    t->reading = false;
    t->want_write = false;
    oc_list_remove(&t->ready_link);
    close_socket(t, reset);
    t->fd = -1;
    t->closed.fn = tcp_closed;
    oc_loop_defer(t->loop, &t->closed);
}

void oc_tcp_close_all(struct oc_loop *loop) {
    oc_list_each (it, &loop->tcps) {
        oc_tcp_close(OC_CONTAINER(it, struct oc_tcp, link), false); /* leaves the list later */
    }
}

/* ---- use ---- */

void oc_tcp_read_start(struct oc_tcp *t) {
    OC_MAGIC_CHECK(t, OC_TCP_MAGIC);
    OC_CHECK(t->events != NULL);
    if (!t->ended && !t->closing) {
        t->reading = true;
        if (t->readable) {
            make_ready(t);
        }
    }
}

void oc_tcp_read_stop(struct oc_tcp *t) {
    OC_MAGIC_CHECK(t, OC_TCP_MAGIC);
    t->reading = false;
}

static size_t iov_bytes(const struct iovec *iov, int count) {
    size_t total = 0;

    for (int i = 0; i < count; i++) {
        total += iov[i].iov_len; /* memory that exists: cannot overflow */
    }
    return total;
}

int64_t oc_tcp_try_writev(struct oc_tcp *t, const struct iovec *iov, int iov_count) {
    struct msghdr msg = {0};
    int count = iov_count < IOV_MAX ? iov_count : IOV_MAX;
    ssize_t n;

    OC_MAGIC_CHECK(t, OC_TCP_MAGIC);
    if (t->closing) {
        return OC_E_CANCELLED;
    }
    if (!t->writable || count <= 0) {
        return 0;
    }
    msg.msg_iov = (struct iovec *)(uintptr_t)iov; /* sendmsg does not change it */
    msg.msg_iovlen = (size_t)count;
    do {
        n = sendmsg(t->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n >= 0) {
        /* Cut short: the kernel is full and raises an event when it is not. */
        if ((size_t)n < iov_bytes(iov, count)) {
            t->writable = false;
        }
        return n;
    }
    if (errno == EAGAIN) {
        t->writable = false;
        return 0;
    }
    return read_errno(errno);
}

void oc_tcp_want_write(struct oc_tcp *t) {
    OC_MAGIC_CHECK(t, OC_TCP_MAGIC);
    OC_CHECK(t->events != NULL);
    if (!t->closing) {
        t->want_write = true;
        if (t->writable) {
            make_ready(t);
        }
    }
}

void oc_tcp_shutdown(struct oc_tcp *t) {
    OC_MAGIC_CHECK(t, OC_TCP_MAGIC);
    if (!t->closing) {
        (void)shutdown(t->fd, SHUT_WR); /* fails when the peer is gone: as good */
    }
}

const char *oc_tcp_peer(struct oc_tcp *t) {
    OC_MAGIC_CHECK(t, OC_TCP_MAGIC);
    if (t->peer[0] == '\0') {
        oc_sockaddr_print(&t->addr, t->peer, sizeof t->peer);
    }
    return t->peer;
}

struct oc_loop *oc_tcp_loop(struct oc_tcp *t) {
    OC_MAGIC_CHECK(t, OC_TCP_MAGIC);
    return t->loop;
}

void oc_tcp_low_water(struct oc_tcp *t, size_t bytes) {
    int value = bytes == 0 ? 1 : bytes < INT_MAX ? (int)bytes : INT_MAX;

    OC_MAGIC_CHECK(t, OC_TCP_MAGIC);
    if (!t->closing) {
        (void)setsockopt(t->fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value); /* advice only */
    }
}
