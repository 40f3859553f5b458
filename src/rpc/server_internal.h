/* What the files of the server share. A connection is driven through its transport table, so that
 * tests and fuzzers feed it bytes without a socket; everything runs on the worker's thread.
 *
 *   server.c        server, worker, stats, drain
 *   server_tick.c   deadlines and timeouts
 *   conn.c          transport, output batches, closing
 *   h2.c            nghttp2's callbacks
 *   h2_send.c       a stream's send queue
 *   h2_window.c     receive windows and their budget
 *   h2_mem.c        small memory for nghttp2
 *   grpc_recv.c     request heads and messages
 *   grpc_call.c     the oc_call_* functions
 *   http.c          routes, replies
 *   http1.c         HTTP/1.1 on llhttp
 *   health.c        grpc.health.v1 */
#ifndef OC_RPC_SERVER_INTERNAL_H
#define OC_RPC_SERVER_INTERNAL_H

#include <nghttp2/nghttp2.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include "base/list.h"
#include "core/codec/grpc_frame.h"
#include "rpc/server.h"

#define SERVER_WORKER_MAGIC 0x53725677u
#define SERVER_CONN_MAGIC   0x5372436eu
#define SERVER_CALL_MAGIC   0x5372436cu

#define SERVER_H2_WINDOW      65535u /* the protocol's initial window; each connection's floor */
#define SERVER_STREAM_MIN     4096u
#define SERVER_STREAM_MAX     (4u << 20) /* a stream's window grows to this */
#define SERVER_CONN_MAX       (8u << 20) /* a connection's window for bytes without a reservation */
#define SERVER_RECV_FRAME     (1u << 20) /* SETTINGS_MAX_FRAME_SIZE */
#define SERVER_SEND_FRAME     (256u << 10) /* largest DATA frame sent */
#define SERVER_SEND_HIGH      (1u << 20)   /* a call's queue: oc_call_send answers false */
#define SERVER_SEND_LOW       (512u << 10) /* ... until below this */
#define SERVER_SEND_FLOOR     (64u << 10)  /* ... or this while the process budget is exhausted */
#define SERVER_SEND_CONN      (4u << 20)  /* a connection's queues, while the budget is exhausted */
#define SERVER_SEND_COPY      1024u       /* slices up to this are copied into the batch */
#define SERVER_FRAME_SLICES   32u         /* slices of one DATA frame */
#define SERVER_OUT_IOVS       512u        /* of one batch; below IOV_MAX */
#define SERVER_OUT_BYTES      (1u << 20)  /* a batch is closed when it has so many bytes */
#define SERVER_OUT_COPY       (96u << 10) /* copied bytes of one batch */
#define SERVER_CONTROL_ROOM   (17u << 10) /* the most one nghttp2 step hands out at once */
#define SERVER_FRAME_ROOM     (SERVER_FRAME_SLICES * SERVER_SEND_COPY + 64u)
#define SERVER_TURN_BATCHES   4u /* per connection and loop turn */
#define SERVER_HEADERS_INLINE 6u
#define SERVER_REPLY_HEADERS  16u          /* added by oc_call_add_header */
#define SERVER_STATUS_BYTES   4096u        /* a grpc-message before encoding */
#define SERVER_BODY_MAX       (1u << 20)   /* plain HTTP request bodies are dropped up to this */
#define SERVER_PLAIN_HIGH     (256u << 10) /* queued plain replies of a connection: make no more */
#define SERVER_DRIP_BYTES     16384u       /* the least that moves in a stall time */
#define SERVER_GOAWAY_MAX     1024u        /* a peer's GOAWAY with its debug data */
#define SERVER_LINGER_MS      1000u /* a closed connection waits so long for the peer's end */
#define SERVER_WATCHERS_MAX   1024u /* health watches of one worker */
#define SERVER_MESSAGE_MAX    (128ull << 20)

struct server_conn;
struct http1;

/* ---- how a connection reaches the world ---- */
struct server_io {
    int64_t (*writev)(void *io, const struct iovec *iov, int count); /* as oc_tcp_try_writev */
    void (*want_write)(void *io); /* server_conn_writable once there is room */
    void (*read)(void *io, bool on);
    void (*shutdown)(void *io);          /* the sending side only */
    void (*close)(void *io, bool reset); /* then server_conn_closed, later */
};

/* ---- one batch of output; each worker has one, shared by its connections in turn ---- */
struct server_out {
    size_t bytes, copied;
    int iov_count, ref_count;
    struct iovec iov[SERVER_OUT_IOVS];
    struct oc_ref *refs[SERVER_OUT_IOVS];
    uint8_t copy[SERVER_OUT_COPY];
};

/* What the socket did not take of a batch: one block of memory. */
struct server_tail {
    struct iovec *iov;
    int iov_count, at;
    struct oc_ref **refs;
    int ref_count;
};

/* ---- a stream's send queue: messages of slices ---- */
#define SERVER_MSG_INLINE 224u
struct server_msg {
    struct server_msg *next;
    size_t left;   /* bytes not yet in a batch, head included */
    size_t offset; /* into slices[at] */
    unsigned at, count;
    struct oc_slice *slices; /* `fixed` or from malloc */
    uint8_t head_left;
    uint8_t head[OC_GRPC_HEAD_BYTES];
    struct oc_slice fixed[2];
    uint8_t bytes[SERVER_MSG_INLINE];
};

struct server_header {
    nghttp2_rcbuf *name, *value;
};
struct server_headers_more {
    struct server_headers_more *next;
    unsigned count;
    struct server_header headers[16];
};

struct server_reply_header {
    struct oc_span name, value;
};

enum server_content { CONTENT_OTHER, CONTENT_GRPC, CONTENT_GRPC_BAD };

/* A stream: a gRPC call or, with method NULL, a plain request or one that was refused. */
struct oc_call {
    uint32_t magic;
    int32_t stream_id;
    struct server_conn *conn;
    const struct oc_method *method;
    void *user;
    struct oc_list link;       /* conn.calls */
    struct oc_list write_link; /* conn.writable, later conn.flushing */
    uint64_t start_ns, deadline_ns;
    size_t heap_at; /* place in worker.heap + 1; 0: none */

    bool started : 1;       /* `start` was called: `closed` is owed */
    bool finished : 1;      /* the service (or we) gave the status */
    bool remote_closed : 1; /* END_STREAM came */
    bool stream_gone : 1;   /* nghttp2 knows it no more */
    bool responded : 1;     /* response HEADERS were submitted */
    bool deferred : 1;      /* nghttp2 waits for more data */
    bool eof : 1;           /* the last DATA and the trailers were submitted */
    bool want_writable : 1;
    bool plain : 1; /* plain HTTP */
    bool head_too_long : 1;
    bool bad_timeout : 1;
    bool assembling : 1;

    /* the request's head */
    enum server_content content;
    size_t header_bytes;
    uint64_t head_held; /* its part of conn.heads */
    nghttp2_rcbuf *path, *verb;
    unsigned header_count;
    struct server_header headers[SERVER_HEADERS_INLINE];
    struct server_headers_more *headers_more;

    /* the request's body */
    struct oc_grpc_reader reader;
    uint32_t messages;
    uint8_t *body; /* a message that came in more than one part */
    size_t body_len, body_cap;
    uint64_t unconsumed;      /* PIECES: with the service */
    uint64_t reserved;        /* taken from the receive budget for this stream alone */
    uint64_t held, open;      /* this stream's parts of conn.held and conn.open */
    int64_t credit;           /* what the peer may still send */
    uint32_t window;          /* its target */
    uint64_t consumed_since;  /* PIECES: since the window last grew */
    struct oc_list wait_link; /* worker.waiting: for a reservation; conn.plain_waiting */
    uint64_t received;        /* body bytes */
    uint64_t received_ns, mark_ns, mark_received; /* progress */

    /* the response */
    struct server_msg *out_head, *out_last;
    size_t queued;
    size_t framed; /* bytes of a DATA frame that nghttp2 holds ready */
    uint64_t sent_ns;
    uint64_t sent, sent_mark, sent_mark_ns; /* progress while something is queued */
    uint64_t flush_mark;                    /* conn.out_total when the stream ended */
    unsigned reply_count;
    struct server_reply_header *reply_headers; /* arena */
    int status;
    int close_code;
    struct oc_span status_text; /* encoded */
    struct oc_arena arena;
    struct oc_call *next_free;
};

enum server_proto { PROTO_UNKNOWN, PROTO_H2, PROTO_H1 };

struct server_conn {
    uint32_t magic;
    enum server_proto proto;
    struct oc_rpc_worker *w;
    const struct server_io *io;
    void *io_ctx;
    char peer[64];
    struct oc_list link;  /* worker.conns */
    struct oc_list dirty; /* worker.dirty */

    bool want_write : 1; /* waiting for server_conn_writable */
    bool dead : 1;       /* to be torn down at the next safe point */
    bool dead_reset : 1;
    bool closing : 1; /* io->close was called */
    bool ending : 1;  /* nothing more is served; close when the output is out */
    bool lingering : 1;
    bool peer_ended : 1;
    bool settings_seen : 1;
    bool ping_out : 1;
    bool draining : 1; /* the first GOAWAY was submitted */
    bool goaway_final : 1;
    bool in_recv : 1; /* inside nghttp2 or llhttp: nothing may be freed */
    bool in_send : 1;

    uint32_t service_number; /* oc_call_connection_number */
    int32_t head_stream;     /* whose head head_ns is about */
    uint8_t sniffed[24];
    uint8_t sniffed_len;

    uint64_t opened_ns, read_ns, write_ns, ping_ns, head_ns, linger_ns, active_ns, drain_ns;

    nghttp2_session *h2;
    struct oc_list calls;
    unsigned call_count;
    struct oc_call *hot; /* the stream last looked up */
    struct oc_list writable, flushing;
    uint64_t held;                /* received bytes that no reservation covers */
    uint64_t open;                /* reserved bytes that have not arrived yet */
    uint64_t charged;             /* of `held`, taken from the server's budget */
    uint64_t floor;               /* of `held`, counted in the worker's floor_used */
    uint32_t window;              /* target of the connection's window */
    uint64_t heads;               /* request heads that are kept */
    uint64_t heads_charged;       /* of `heads`, taken from the server's budget */
    size_t plain_queued;          /* bytes of plain replies that wait in streams' queues */
    struct oc_list plain_waiting; /* oc_call.wait_link: requests that are not answered for it */
    uint64_t queued;              /* bytes in its streams' send queues */
    uint64_t out_total, out_done;
    struct server_tail *tail;
    uint64_t reset_tokens_ns, reset_at_ns; /* token bucket, in nanoseconds of its rate */
    uint64_t junk_tokens_ns, junk_at_ns;

    struct http1 *h1;
};

/* ---- small memory for nghttp2 (h2_mem.c) ---- */
#if defined(__SANITIZE_ADDRESS__)
#define SERVER_POOLED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SERVER_POOLED 0
#endif
#endif
#ifndef SERVER_POOLED
#define SERVER_POOLED 1
#endif
#define SERVER_MEM_CLASSES 16u
struct server_mem {
    struct head *free[SERVER_MEM_CLASSES];
    size_t kept[SERVER_MEM_CLASSES];
};
void server_mem_init(struct server_mem *mem, nghttp2_mem *ret);
void server_mem_done(struct server_mem *mem);

struct server_counts {
    _Atomic uint64_t connections, streams, calls_total, refused_streams, resets_received,
        rapid_reset_closed, protocol_errors, http1_requests, bytes_in, bytes_out, stalled_closed,
        keepalive_closed, floor_used;
};

struct oc_rpc_worker {
    uint32_t magic;
    struct oc_rpc_server *s;
    struct oc_loop *loop;
    void *user;
    struct oc_list link; /* server.workers */
    struct oc_list conns, dirty, waiting;
    bool retrying; /* inside server_window_retry */
    bool pressed;  /* cfg.pressed said so in this tick */
    unsigned conn_count;
    const struct oc_now *frozen; /* tests: the time, instead of the loop's */
    uint64_t now_ns;
    uint64_t flushed_ns; /* the turn whose hook has run */
    struct oc_turn_hook hook;
    struct oc_timer tick, deadline, wait;
    uint64_t deadline_armed_ns;
    struct oc_call **heap;
    size_t heap_count, heap_cap;
    struct oc_call *free_calls;
    unsigned free_call_count;
    struct oc_pool msgs;
    struct server_mem mem;
    nghttp2_mem h2_mem;
    struct server_counts counts;
    int64_t send_unreported; /* queued bytes not yet added to the server's count */

    bool draining, drained_called;
    uint64_t drain_deadline_ns, drain_final_ms;
    void (*drained)(void *arg);
    void *drained_arg;

    struct oc_list watches; /* health */
    unsigned watch_count;
    bool watch_serving; /* what they were told last */

    char date[40]; /* the HTTP Date of date_s */
    uint64_t date_s;
    struct server_out out;
};

struct server_dispatch {
    uint64_t hash;
    const struct oc_method *method;
};

struct oc_rpc_server {
    struct oc_rpc_config cfg; /* defaults filled in */
    struct server_dispatch *table;
    size_t table_mask;
    nghttp2_session_callbacks *h2_callbacks;
    nghttp2_option *h2_options;
    uint32_t stream_window;
    struct oc_budget reserve; /* three quarters of receive_budget_bytes: promised to streams */
    struct oc_budget
        hold; /* the rest: what arrives without a promise, beyond each connection's floor */
    _Atomic uint64_t send_used;
    pthread_mutex_t lock; /* workers, gone */
    struct oc_list workers;
    struct oc_rpc_stats gone; /* counts of freed workers */
};

/* One writer, many readers. */
static inline void server_count(_Atomic uint64_t *c, uint64_t n) {
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n,
                          memory_order_relaxed);
}
static inline void server_uncount(_Atomic uint64_t *c, uint64_t n) {
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) - n,
                          memory_order_relaxed);
}

/* nghttp2 and llhttp take bytes they do not change without const. */
static inline uint8_t *server_unconst(const void *p) {
    return (uint8_t *)(uintptr_t)p;
}

/* ---- server.c ---- */
static inline struct oc_now server_now(const struct oc_rpc_worker *w) {
    return w->frozen != NULL ? *w->frozen : oc_loop_now(w->loop);
}
uint64_t server_worker_now(struct oc_rpc_worker *w); /* reads the loop's time into now_ns */
void server_worker_turn(struct oc_rpc_worker *w);    /* the end of a loop's turn */
const struct oc_method *server_method_find(const struct oc_rpc_server *s, struct oc_span path);
const struct oc_http_route *server_route_find(const struct oc_rpc_server *s, struct oc_span path);
bool server_serving(const struct oc_rpc_worker *w);
void server_worker_check_drained(struct oc_rpc_worker *w);
const char *server_date(struct oc_rpc_worker *w);

/* ---- server_tick.c ---- */
uint64_t server_tick_ms(const struct oc_rpc_config *cfg);
void server_tick(struct oc_timer *timer);
void server_deadline_fired(struct oc_timer *timer);
int server_deadline_add(struct oc_call *call);
void server_deadline_remove(struct oc_call *call);

/* ---- conn.c ---- */
struct server_conn *server_conn_new(struct oc_rpc_worker *w, const struct server_io *io,
                                    void *io_ctx, const char *peer);
void server_conn_accept_tcp(struct oc_rpc_worker *w, struct oc_tcp *tcp);
void server_conn_input(struct server_conn *conn, struct oc_span bytes);
void server_conn_writable(struct server_conn *conn);
void server_conn_ended(struct server_conn *conn, int code);
void server_conn_closed(struct server_conn *conn); /* frees it */
/* Its turn at the end of the loop's: send, close. */
void server_conn_turn(struct server_conn *conn);
void server_conn_dirty_slow(struct server_conn *conn);
static inline void server_conn_dirty(struct server_conn *conn) {
    if (oc_list_empty(&conn->dirty)) {
        server_conn_dirty_slow(conn);
    }
}
/* Tear down in its next turn. */
void server_conn_kill(struct server_conn *conn, bool reset);
void server_conn_want_write(struct server_conn *conn);
/* Serve nothing more; close when what was queued is out. */
void server_conn_end(struct server_conn *conn);
void server_conn_drain(struct server_conn *conn);

/* ---- output batch (conn.c) ---- */
void server_out_copy(struct server_out *out, const void *p, size_t len);
void server_out_ref(struct server_out *out, const uint8_t *p, size_t len, struct oc_ref *owner);
static inline bool server_out_room(const struct server_out *out, size_t copy, unsigned iovs) {
    return SERVER_OUT_COPY - out->copied >= copy &&
           SERVER_OUT_IOVS - (unsigned)out->iov_count >= iovs && out->bytes < SERVER_OUT_BYTES;
}

/* ---- h2.c ---- */
int server_h2_library(struct oc_rpc_server *s); /* callbacks and options, once */
int server_h2_start(struct server_conn *conn);
void server_h2_input(struct server_conn *conn, struct oc_span bytes);
/* Fill the worker's batch. False: the session is broken. */
bool server_h2_fill(struct server_conn *conn);
void server_h2_drain(struct server_conn *conn);
void server_h2_goaway_final(struct server_conn *conn);
void server_h2_ping(struct server_conn *conn, const char opaque[8]);
void server_h2_reset(struct oc_call *call, uint32_t code);
/* The peer misbehaves: GOAWAY with this code, then the end. */
void server_h2_terminate(struct server_conn *conn, uint32_t code);

/* ---- h2_window.c ---- */
void server_window_init(struct server_conn *conn);
/* The budget's account follows what the call holds; false: it does not allow so much, the call must
 * end. */
bool server_window_hold(struct oc_call *call);
/* As above for what the call keeps of its request's head. */
bool server_window_head(struct oc_call *call, uint64_t bytes);
/* Give the stream's window back as far as it is due. */
void server_window_stream(struct oc_call *call);
/* A message of this length begins and its bytes will be gathered in call->body. OC_OK: go on, with
 * or without a reservation; OC_AGAIN: it waits for one (server_call_reserved); OC_E_EXHAUSTED: it
 * can never be had. */
int server_window_reserve(struct oc_call *call, uint64_t len);
void server_window_unreserve(struct oc_call *call); /* the message is done with */
void server_window_consumed(struct oc_call *call, size_t n);
void server_window_release(struct oc_call *call);  /* the call needs no more */
void server_window_conn(struct server_conn *conn); /* give connection window back when it is due */
void server_window_retry(struct oc_rpc_worker *w);
void server_window_wait_fired(struct oc_timer *timer);

/* ---- grpc_call.c ---- */
struct oc_call *server_call_new(struct server_conn *conn, int32_t stream_id);
void server_call_free(struct oc_call *call);
/* The stream is closed (or the connection gone): `closed` now, or when the output is flushed. */
void server_call_stream_closed(struct oc_call *call, bool clean);
void server_call_closed(struct oc_call *call, int code); /* calls `closed` when it is owed */
void server_call_finish(struct oc_call *call, int code, struct oc_span text);
void server_call_finish_str(struct oc_call *call, int code, const char *text);
/* As finish, but the service is told at once that its call is over. */
void server_call_abort(struct oc_call *call, int code, const char *text);
void server_call_flushed(struct server_conn *conn);
int server_call_trailers(struct oc_call *call);
/* Submit the response's head; `data`: the send queue follows. */
void server_call_respond(struct oc_call *call, const nghttp2_nv *nv, size_t count, bool data);

/* ---- h2_send.c ---- */
bool server_send_slices(struct oc_call *call, const struct oc_slice *slices, size_t count,
                        bool framed);
bool server_send_copy(struct oc_call *call, struct oc_span bytes, bool framed);
void server_send_drop(struct oc_call *call);       /* the stream is gone */
bool server_send_drop_whole(struct oc_call *call); /* what has not begun; true: nothing is left */
size_t server_send_peek(const struct oc_call *call, size_t max);
void server_send_emit(struct oc_call *call, struct server_out *out, size_t n);
bool server_send_below_low(const struct oc_call *call);
bool server_send_refuses(const struct server_conn *conn); /* no new requests now */
void server_call_run_writable(struct server_conn *conn);

/* ---- grpc_recv.c ---- */
void server_call_header(struct oc_call *call, nghttp2_rcbuf *name, nghttp2_rcbuf *value);
void server_call_begin(struct oc_call *call);
void server_call_data(struct oc_call *call, struct oc_span bytes, bool last);
void server_call_half_closed(struct oc_call *call);
void server_call_body_drop(struct oc_call *call);
/* The reservation came through. */
void server_call_reserved(struct oc_call *call);

/* ---- http.c ---- */
struct oc_http {
    struct server_conn *conn;
    struct oc_call *call; /* NULL: HTTP/1.1 */
    struct oc_span method, path, query;
    bool replied;
};
const char *server_http_reason(int status);
bool server_http_no_body(int status);
void server_http_dispatch(struct oc_http *req);
/* A complete request over HTTP/2; it waits while too much of the replies before it is queued. */
void server_http_h2(struct oc_call *call);
void server_http_h2_waiting(
    struct server_conn *conn); /* serve who waits, as far as there is room */
/* A reply of the layer itself over HTTP/2. */
void server_http_h2_reply(struct oc_call *call, int status, const char *content_type,
                          struct oc_span body);

/* ---- http1.c ---- */
int http1_new(struct server_conn *conn, struct http1 **ret);
void http1_free(struct http1 *h1);
void http1_input(struct http1 *h1, struct oc_span bytes);
void http1_reply(struct http1 *h1, int status, const char *content_type, struct oc_span body);
/* Send what is queued. False: the connection is broken. */
bool http1_turn(struct http1 *h1);
bool http1_idle(const struct http1 *h1); /* between requests, nothing to send */
bool http1_mid_head(const struct http1 *h1);
uint64_t http1_body_since_ns(const struct http1 *h1); /* UINT64_MAX: not inside a body */
void http1_timeout(struct http1 *h1);                 /* 408 */
void http1_drain(struct http1 *h1);
bool http1_pending(const struct http1 *h1);

/* ---- health.c ---- */
bool server_is_health(const struct oc_method *method);
void server_health_tick(struct oc_rpc_worker *w);
void server_health_drain(struct oc_rpc_worker *w);

#endif
