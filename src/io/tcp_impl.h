/* What the files about sockets share. Internal to io/. */
#ifndef OC_IO_TCP_IMPL_H
#define OC_IO_TCP_IMPL_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "io/loop_impl.h"
#include "io/tcp.h"

#define OC_TCP_MAGIC  0x4e4e4f43u /* "CONN" */
#define OC_HOST_BYTES 256         /* a DNS name has at most 253 characters */
#define OC_PEER_BYTES 64          /* "[" + 45 characters of an IPv6 address + "%scope]:65535" */

/* Counts that connections of a listener keep up to date after the listener is gone. */
struct oc_listener_counts {
    _Atomic uint64_t refs;
    _Atomic uint64_t accepted;
    _Atomic uint64_t refused;
    _Atomic uint64_t open;
    _Atomic uint64_t open_at[]; /* per worker */
};

union oc_sockaddr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

struct oc_tcp {
    struct oc_poll poll; /* first: what the epoll event points to */
    uint32_t magic;
    int fd;
    struct oc_loop *loop;
    const struct oc_tcp_events *events;
    void *user;
    bool reading;    /* the user wants bytes */
    bool readable;   /* there may be some */
    bool hangup;     /* the peer's end is among what may be read */
    bool writable;   /* the kernel may take some */
    bool want_write; /* `drained` is owed */
    bool failed;     /* the kernel reported an error: tell even when not reading */
    bool ended;      /* told */
    bool closing;
    struct oc_list link;       /* in loop->tcps */
    struct oc_list ready_link; /* in loop->ready, or alone */
    struct oc_deferred closed;
    struct oc_listener_counts *counts; /* NULL for outgoing connections */
    unsigned worker;
    /* On the way from the listener to its worker. */
    struct oc_letter letter;
    struct oc_worker_slot slot; /* a copy: the listener may be gone on arrival */
    union oc_sockaddr addr;
    char peer[OC_PEER_BYTES]; /* made when asked for */
};

/* A connection around a non-blocking descriptor, not yet on a loop. NULL when out of memory. */
struct oc_tcp *oc_tcp_alloc(int fd, const union oc_sockaddr *addr);
/* Put it on the loop. On failure nothing was taken over. */
int oc_tcp_attach(struct oc_tcp *tcp, struct oc_loop *loop);
/* Drop one that was never attached, with its descriptor. */
void oc_tcp_discard(struct oc_tcp *tcp);

void oc_listener_counts_unref(struct oc_listener_counts *c);

void oc_sockaddr_print(const union oc_sockaddr *addr, char *dst, size_t len_bytes);
socklen_t oc_sockaddr_len(const union oc_sockaddr *addr);
/* A numeric address ("" = false): no lookup. */
bool oc_sockaddr_parse(const char *host, uint16_t port, union oc_sockaddr *ret);
void oc_sockaddr_set_port(union oc_sockaddr *addr, uint16_t port);
/* From getaddrinfo; false for families we do not speak. */
bool oc_sockaddr_take(const struct sockaddr *from, uint16_t port, union oc_sockaddr *ret);

#endif
