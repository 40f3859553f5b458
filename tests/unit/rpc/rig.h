/* What the tests of the RPC server share: the real server on a loop thread over loopback, and peers
 * that are not ours: an HTTP/2 client on bare nghttp2, and plain sockets. */
#ifndef OC_TESTS_RPC_RIG_H
#define OC_TESTS_RPC_RIG_H

#include <nghttp2/nghttp2.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/mem.h"
#include "mem_io.h"
#include "service.h"

#define RIG_DEADLINE_MS 60000

/* ---- the server ---- */
struct rig {
    struct service svc;
    struct oc_rpc_config cfg; /* limits may be set between rig_init and rig_start */
    struct oc_rpc_server *server;
    struct rig_thread *thread;
    uint16_t port;
};

void rig_init(struct rig *rig);
void rig_start(struct rig *rig);
/* Drain at once; every call must have been closed. */
void rig_stop(struct rig *rig);
void rig_drain(struct rig *rig, uint64_t timeout_ms); /* begins it */
bool rig_drained(struct rig *rig);
struct oc_rpc_stats rig_stats(struct rig *rig);

uint64_t rig_now_ms(void);

/* Polls a condition that another thread makes true. */
#define wait_for(cond)                                                                             \
    do {                                                                                           \
        uint64_t end_ms_ = rig_now_ms() + RIG_DEADLINE_MS;                                         \
        while (!(cond)) {                                                                          \
            assert_true(rig_now_ms() < end_ms_);                                                   \
            (void)sched_yield();                                                                   \
        }                                                                                          \
    } while (0)

/* ---- a plain socket ---- */
int peer_connect(uint16_t port);
void peer_send(int fd, const void *p, size_t len);
/* As much as comes within `ms` or until the end: the length; *ended tells which. */
size_t peer_recv_for(int fd, void *p, size_t cap, uint64_t ms, bool *ended);
/* Until the end or the deadline (which fails the test). A reset counts as an end. */
size_t peer_recv_all(int fd, void *p, size_t cap);

/* ---- an HTTP/2 client ---- */
#define H2C_STREAMS 1200
#define H2C_TEXT    16384

struct h2c_stream {
    int32_t id;
    /* what is sent */
    uint8_t *out;
    size_t out_len, out_at, frame_max;
    bool out_open, deferred;
    /* what came */
    int http_status, grpc_status; /* -1: none */
    char grpc_message[H2C_TEXT];  /* still encoded */
    char headers[2048];           /* "name: value\n" of all but the above */
    struct oc_buf body;
    bool headers_done, end_stream, closed, hold_window;
    uint32_t close_code;
};

struct h2c {
    int fd;               /* -1: `mem` */
    struct mem_peer *mem; /* fed in parts of `part` bytes */
    size_t part, mem_read;
    nghttp2_session *s;
    bool manual_window; /* streams with hold_window get no window back */
    bool no_ping_ack;
    bool ended; /* the server closed */
    bool dead;  /* nghttp2 gave up */
    int goaways;
    int32_t goaway_last;
    uint32_t goaway_code;
    bool settings_seen;
    uint32_t max_streams;
    unsigned pings_seen;
    size_t count;
    struct h2c_stream *streams[H2C_STREAMS];
};

struct h2c_options {
    uint32_t initial_window; /* 0: 65535 */
    bool manual_window;
    bool no_ping_ack;
    uint32_t assume_streams; /* before the server's SETTINGS; 0: 100 */
};

void h2c_open(struct h2c *h, uint16_t port, const struct h2c_options *options);
/* On a connection without a socket. */
void h2c_open_mem(struct h2c *h, struct mem_peer *p, size_t part);
void h2c_close(struct h2c *h);
/* Send what is due, then read for at most `ms`. */
void h2c_step(struct h2c *h, int ms);
/* Drive the connection until the condition holds. */
#define h2c_wait(h, cond)                                                                          \
    do {                                                                                           \
        uint64_t end_ms_ = rig_now_ms() + RIG_DEADLINE_MS;                                         \
        while (!(cond)) {                                                                          \
            assert_true(rig_now_ms() < end_ms_);                                                   \
            h2c_step(h, 5);                                                                        \
        }                                                                                          \
    } while (0)

/* A request; names and values as "name", "value", ..., NULL. `body` is sent as given (copied), in
 * frames of at most frame_max bytes (0: as large as allowed); `open`: no END_STREAM at its end. */
struct h2c_stream *h2c_request(struct h2c *h, const char *method, const char *path,
                               const char *const *headers, const void *body, size_t len,
                               size_t frame_max, bool open);
/* A gRPC request: POST with the usual headers. `extra` may be NULL. */
struct h2c_stream *h2c_grpc(struct h2c *h, const char *path, const char *const *extra,
                            const void *body, size_t len, size_t frame_max, bool open);
/* More bytes on an open request. */
void h2c_more(struct h2c *h, struct h2c_stream *st, const void *body, size_t len, bool open);
void h2c_reset(struct h2c *h, struct h2c_stream *st, uint32_t code);
/* One unary call with one message, to its end. */
struct h2c_stream *h2c_unary(struct h2c *h, const char *path, const void *message, size_t len);

/* The gRPC frame of a message appended to buf. */
void grpc_append(struct oc_buf *buf, const void *message, size_t len);
/* The n-th message of a response body; false when there is none. */
bool grpc_message(const struct oc_buf *body, size_t n, struct oc_span *ret);
void assert_status(const struct h2c_stream *st, int status, const char *message);

#endif
