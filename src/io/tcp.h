/* TCP connections and listeners on loops. Everything here runs on the owning loop's thread. */
#ifndef OC_IO_TCP_H
#define OC_IO_TCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"
#include "base/span.h"
#include "io/loop.h"

struct oc_tcp;

struct oc_tcp_events {
    /* Bytes arrived; they live in the loop's shared read buffer (256 KiB) and are gone on return.
     */
    void (*read)(void *user, struct oc_span bytes);
    /* All queued bytes have been handed to the kernel. */
    void (*drained)(void *user);
    /* The peer closed its side or the connection failed (code: 0 for an orderly end, else OC_E_…).
     * Reading has stopped. The user answers with oc_tcp_close, now or later. */
    void (*ended)(void *user, int code);
    /* After oc_tcp_close: the last call; the user frees its state. */
    void (*closed)(void *user);
};

void oc_tcp_set_user(struct oc_tcp *tcp, const struct oc_tcp_events *events, void *user);
/* Start or stop reading (back-pressure). A new connection does not read until this is called. */
void oc_tcp_read_start(struct oc_tcp *tcp);
void oc_tcp_read_stop(struct oc_tcp *tcp);

/* Send as much as the kernel takes at once. Returns bytes taken (0 when the socket is full or
 * earlier bytes are still queued) or a negative OC_E_…; nothing is kept. */
int64_t oc_tcp_try_writev(struct oc_tcp *tcp, const struct iovec *iov, int iov_count);
/* Call `drained` once when the socket accepts bytes again. */
void oc_tcp_want_write(struct oc_tcp *tcp);
/* Nothing more will be sent: the peer sees the end behind what was taken so far. Reading goes on,
 * so that the close does not make the kernel answer bytes still on their way with a reset. */
void oc_tcp_shutdown(struct oc_tcp *tcp);
/* Close; `reset` sends RST. Bytes given to try_writev and taken are still sent when not reset.
 * Allowed in any callback; only `closed` is called after this, later. A second close does nothing.
 */
void oc_tcp_close(struct oc_tcp *tcp, bool reset);
/* "10.0.0.1:4711" or "[::1]:4711"; valid until close. */
const char *oc_tcp_peer(struct oc_tcp *tcp);
struct oc_loop *oc_tcp_loop(struct oc_tcp *tcp);
/* SO_RCVLOWAT: wake only when so many bytes are there (0 = every byte). Advice only. */
void oc_tcp_low_water(struct oc_tcp *tcp, size_t bytes);

/* Connect to "host:port" (name, IPv4, [IPv6]); names are resolved off the loop. `fn` is called
 * once. */
struct oc_connect;
int oc_tcp_connect(struct oc_loop *loop, const char *addr, uint64_t timeout_ms,
                   void (*fn)(void *arg, struct oc_tcp *tcp_or_null, const struct oc_error *err),
                   void *arg, struct oc_connect **ret);
/* `fn` will not be called. Does nothing inside `fn`; not allowed after it. */
void oc_tcp_connect_cancel(struct oc_connect *c);

/* ---- listener: accepts on one loop and hands each connection to the least loaded worker ---- */
struct oc_listener;

struct oc_worker_slot {
    struct oc_loop *loop;
    /* On that loop's thread: a fresh connection. */
    void (*accepted)(void *user, struct oc_tcp *tcp);
    void *user;
};

struct oc_listener_config {
    const char *addr; /* "host:port", ":9000" = every address, port 0 = any free one */
    unsigned
        max_connections; /* over all workers; more are closed at once and counted; 0 = no limit */
    struct oc_worker_slot *workers;
    unsigned worker_count;
};

int oc_listener_open(struct oc_loop *loop, const struct oc_listener_config *cfg,
                     struct oc_listener **ret, struct oc_error *err);
/* The port really bound. */
uint16_t oc_listener_port(const struct oc_listener *l);
struct oc_listener_stats {
    uint64_t accepted, refused, open;
};
void oc_listener_stats(const struct oc_listener *l, struct oc_listener_stats *ret); /* any thread */
/* Stop accepting; connections stay. On the loop's thread. */
void oc_listener_close(struct oc_listener *l);

/* Split "host:port"; host may be empty, IPv6 in brackets. OC_E_INVALID names what is wrong. */
int oc_addr_split(const char *addr, char *host, size_t host_len, uint16_t *ret_port,
                  struct oc_error *err);

#endif
