/* gRPC client on nghttp2: a channel is one HTTP/2 connection to one address, made when needed, remade
 * with backoff after a failure. Everything runs on the channel's loop thread. */
#ifndef OC_RPC_CLIENT_H
#define OC_RPC_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/span.h"
#include "io/loop.h"

struct oc_channel;
struct oc_client_call;

struct oc_channel_config {
    const char *addr; /* "host:port" */
    uint64_t connect_timeout_ms;                 /* 0: 5000 */
    uint64_t keepalive_ms, keepalive_timeout_ms; /* 0: 30000, 10000 */
    uint64_t max_message_bytes;                  /* 0: 128 MiB */
    uint32_t stream_window, connection_window;   /* 0: 4 MiB, 16 MiB */
    unsigned max_queued_calls;                   /* 0: 65536; beyond: RESOURCE_EXHAUSTED */
};

struct oc_client_events {
    /* Response headers arrived (the header block is queried with oc_client_call_header). May be NULL. */
    void (*headers)(struct oc_client_call *call);
    /* One whole response message; PIECES-free: bounded by max_message_bytes; bytes gone on return. */
    void (*message)(struct oc_client_call *call, struct oc_span message);
    /* When set, used instead of `message`: bytes as they arrive; call oc_client_call_consumed. */
    void (*piece)(struct oc_client_call *call, struct oc_span bytes, uint64_t message_len, bool begin,
                  bool end);
    /* Send queue below its low-water mark again. May be NULL. */
    void (*writable)(struct oc_client_call *call);
    /* The last callback, exactly once: status 0 or OC_E_… and the server's message, decoded. */
    void (*closed)(struct oc_client_call *call, int code, struct oc_span message);
};

int oc_channel_new(struct oc_loop *loop, const struct oc_channel_config *cfg, struct oc_channel **ret,
                   struct oc_error *err);
/* Calls still open end with CANCELLED (closed is called); then frees itself on the loop. */
void oc_channel_free(struct oc_channel *ch);
enum oc_channel_state { OC_CHANNEL_IDLE, OC_CHANNEL_CONNECTING, OC_CHANNEL_READY, OC_CHANNEL_FAILING };
enum oc_channel_state oc_channel_state(const struct oc_channel *ch);

/* Start a call. deadline_ms 0 = none (else sent as grpc-timeout and kept locally). Metadata: pairs of
 * name, value; may be NULL. */
struct oc_metadata {
    const char *name;
    struct oc_span value;
};
int oc_client_call_new(struct oc_channel *ch, const char *path, const struct oc_client_events *events,
                       void *user, uint64_t deadline_ms, const struct oc_metadata *md, size_t md_count,
                       struct oc_client_call **ret);
void *oc_client_call_user(const struct oc_client_call *call);
/* Queue one message; false: wait for `writable`. */
bool oc_client_call_send(struct oc_client_call *call, const struct oc_slice *slices, size_t count);
bool oc_client_call_send_copy(struct oc_client_call *call, struct oc_span message);
void oc_client_call_half_close(struct oc_client_call *call);
/* RST_STREAM(CANCEL); closed is called with CANCELLED. */
void oc_client_call_cancel(struct oc_client_call *call);
void oc_client_call_consumed(struct oc_client_call *call, size_t n);
struct oc_span oc_client_call_header(const struct oc_client_call *call, const char *name);

#endif
