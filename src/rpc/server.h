/* The server side of both protocols on one port: HTTP/2 with gRPC (nghttp2) and HTTP/1.1 (llhttp).
 * The first bytes of a connection decide which is spoken. Knows nothing of what the methods mean.
 *
 * Threading: one oc_rpc_server per process, one oc_rpc_worker per loop. A connection and its calls
 * live on one worker; every callback and every oc_call_* function runs on that worker's thread. */
#ifndef OC_RPC_SERVER_H
#define OC_RPC_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/span.h"
#include "io/loop.h"
#include "io/tcp.h"

struct oc_call; /* one gRPC call */

struct oc_method {
    const char *path; /* "/cache.CacheService/Get" */
    /* PIECES off: `message` gets each request message whole (bounded by max_message_bytes; larger
     * ones are refused with RESOURCE_EXHAUSTED). PIECES on: `piece` gets the bytes as they arrive.
     */
    bool pieces;
    bool request_stream;        /* more than one request message is allowed */
    uint64_t max_message_bytes; /* 0: 128 MiB */
    /* The call begins; user data is set with oc_call_set_user. Refuse with oc_call_finish. May be
     * NULL. */
    void (*start)(struct oc_call *call, void *service);
    /* PIECES off. The bytes are gone on return. */
    void (*message)(struct oc_call *call, struct oc_span message);
    /* PIECES on. message_len is the length of the message these bytes belong to; begin/end mark its
     * first and last piece (an empty message is one empty piece with both). The bytes are gone on
     * return, but count against the stream's flow-control window until oc_call_consumed. */
    void (*piece)(struct oc_call *call, struct oc_span bytes, uint64_t message_len, bool begin,
                  bool end);
    /* The client half-closed after complete messages. */
    void (*half_closed)(struct oc_call *call);
    /* The send queue fell under its low-water mark after oc_call_send returned false. May be NULL.
     */
    void (*writable)(struct oc_call *call);
    /* The last callback, exactly once for every started call: finished, cancelled, reset, deadline
     * or connection lost (code says which; 0 = finished and flushed to the kernel or the peer is
     * gone after that). Free user data here. The call is invalid afterwards. */
    void (*closed)(struct oc_call *call, int code);
};

void oc_call_set_user(struct oc_call *call, void *user);
void *oc_call_user(const struct oc_call *call);
struct oc_rpc_worker *oc_call_worker(const struct oc_call *call);
const struct oc_method *oc_call_method(const struct oc_call *call);
struct oc_arena *oc_call_arena(struct oc_call *call); /* freed when the call closes; 64 KiB bound */
uint64_t oc_call_deadline_ns(const struct oc_call *call); /* monotonic; UINT64_MAX = none */
const char *oc_call_peer(const struct oc_call *call);
/* A number of the connection's for the service's own use; 0 at first. */
uint32_t *oc_call_connection_number(const struct oc_call *call);
/* A request header by lower-case name; len 0 when absent. Valid until closed. Not kept are what the
 * layer itself reads: :method, :scheme, :path, te, content-type, grpc-timeout,
 * grpc-accept-encoding. */
struct oc_span oc_call_header(const struct oc_call *call, const char *name);
/* Add to the response's initial headers; before the first send or finish. Copied. */
int oc_call_add_header(struct oc_call *call, const char *name, struct oc_span value);

/* Queue one response message made of these slices (each owner is referenced until sent). False:
 * queued all the same, but wait for `writable` before sending more. */
bool oc_call_send(struct oc_call *call, const struct oc_slice *slices, size_t count);
/* As above for small messages: copied. */
bool oc_call_send_copy(struct oc_call *call, struct oc_span message);
/* End the call with a status (0 or OC_E_…) and a message (any bytes; percent-encoded by the layer).
 * Before half-close: the request side is reset with NO_ERROR as gRPC servers do. */
void oc_call_finish(struct oc_call *call, int code, struct oc_span message);
bool oc_call_finished(const struct oc_call *call);
/* PIECES: give n received bytes' window back. */
void oc_call_consumed(struct oc_call *call, size_t n);

/* ---- plain HTTP, spoken over HTTP/1.1 or HTTP/2 ---- */
struct oc_http;
struct oc_http_route {
    const char *path; /* exact */
    void (*handle)(struct oc_http *req, void *service);
};
struct oc_span oc_http_method(const struct oc_http *req);
struct oc_span oc_http_path(const struct oc_http *req); /* without the query, still encoded */
struct oc_span oc_http_query(const struct oc_http *req);
/* Answer at once; body is copied. HEAD gets the headers only. */
void oc_http_reply(struct oc_http *req, int status, const char *content_type, struct oc_span body);

/* ---- the server ---- */
struct oc_rpc_config {
    const struct oc_method *methods;
    size_t method_count;
    const struct oc_http_route *routes;
    size_t route_count;
    /* Answers requests for any other path; NULL: 404 with a plain text. */
    void (*not_found)(struct oc_http *req, void *service);
    void *service;            /* passed to start and handle */
    const char *service_name; /* grpc.health.v1 answers for "" and for this; may be NULL */
    /* Limits; 0 = the default in brackets. */
    unsigned max_streams_per_connection; /* [1024] */
    uint64_t receive_budget_bytes;       /* [256 MiB] unconsumed request bytes, whole process */
    uint64_t send_budget_bytes;          /* [256 MiB] queued response bytes, whole process */
    uint64_t max_header_bytes;           /* [32 KiB] per request */
    unsigned reset_burst, reset_per_s;   /* [1000, 33] rapid-reset defence */
    uint64_t keepalive_ms, keepalive_timeout_ms; /* [60000, 20000] our pings to silent peers */
    /* [0 = never] close connections without calls; HTTP/1.1's in any case after stall_ms */
    uint64_t idle_ms;
    /* [10000] from accept to HTTP/2's preface and SETTINGS or HTTP/1.1's first request head, and
     * for every further head that has begun */
    uint64_t handshake_ms;
    /* [60000] a request body (while the service waits for it) or a response without any progress; a
     * message that has begun, and a response, must move by 16 KiB in this time */
    uint64_t stall_ms;
    /* While this returns true somebody waits for what slow peers hold: those that stand still are
     * given up after pressed_stall_ms [5000], when that is less than stall_ms. May be NULL; called
     * on every worker, now and then. */
    bool (*pressed)(void *service);
    uint64_t pressed_stall_ms;
    /* While this returns false every method but grpc.health.v1's answers UNAVAILABLE; routes decide
     * for themselves. May be NULL. */
    bool (*open_for_calls)(void *service);
    /* Called for every finished call, for metrics and request logs. May be NULL. */
    void (*observe)(void *service, const struct oc_method *method, int code, uint64_t duration_ns,
                    const char *peer);
};

struct oc_rpc_server;
struct oc_rpc_worker;
int oc_rpc_server_new(const struct oc_rpc_config *cfg, struct oc_rpc_server **ret,
                      struct oc_error *err);
void oc_rpc_server_free(struct oc_rpc_server *s); /* workers gone */
/* On the loop's thread, or before it runs. worker user data is for the service's own per-worker
 * state. Turn hooks that finish calls are added before this, so that they run before the one that
 * sends. */
int oc_rpc_worker_new(struct oc_rpc_server *s, struct oc_loop *loop, void *user,
                      struct oc_rpc_worker **ret);
void *oc_rpc_worker_user(const struct oc_rpc_worker *w);
struct oc_loop *oc_rpc_worker_loop(const struct oc_rpc_worker *w);
/* Hand a fresh connection over. */
void oc_rpc_worker_accept(struct oc_rpc_worker *w, struct oc_tcp *tcp);
/* GOAWAY on every connection; new streams are refused; `done` is called (once) when the last call
 * has ended or after timeout_ms, when what is left has been reset. */
void oc_rpc_worker_drain(struct oc_rpc_worker *w, uint64_t timeout_ms, void (*done)(void *arg),
                         void *arg);
void oc_rpc_worker_free(struct oc_rpc_worker *w); /* drained */

struct oc_rpc_stats {
    /* connections, streams, receive_used and send_used are what is there now; the rest counts up */
    uint64_t connections, streams, calls_total, refused_streams, resets_received,
        rapid_reset_closed, protocol_errors, http1_requests, receive_used, receive_denied,
        send_used, bytes_in, bytes_out, stalled_closed, keepalive_closed;
};
void oc_rpc_server_stats(struct oc_rpc_server *s, struct oc_rpc_stats *ret); /* any thread */

/* grpc.health.v1 Check and Watch for service "" and `service_name`; append to the method table. The
 * status is SERVING while open_for_calls is true and the server is not draining. */
extern const struct oc_method oc_health_methods[2];

#endif
