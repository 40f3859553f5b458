/* gRPC client on nghttp2: a channel is one HTTP/2 connection to one address, made when needed,
 * remade with backoff after a failure. Everything runs on the channel's loop thread.
 *
 * Life of a channel: IDLE until the first call; CONNECTING while calls queue (bounded); READY;
 * after a connection that never worked FAILING for the backoff time (0.1 s growing by 1.6 to 10 s,
 * jittered), during which calls fail at once with UNAVAILABLE. A GOAWAY or a lost connection that
 * had worked leads back to IDLE: the next call connects anew while calls below the GOAWAY's last
 * stream id finish.
 *
 * Life of a call: no callback ever runs inside oc_client_call_new, _send, _half_close, _cancel or
 * oc_channel_free. `closed` comes from the loop, exactly once, and always after every other
 * callback. */
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
    const char *addr;            /* "host:port"; copied */
    uint64_t connect_timeout_ms; /* TCP and the server's SETTINGS. 0: 5000 */
    uint64_t keepalive_ms,
        keepalive_timeout_ms;   /* PING after silence, also without calls. 0: 30000, 10000 */
    uint64_t max_message_bytes; /* of a response. 0: 128 MiB */
    uint32_t stream_window, connection_window; /* bytes we let the server send. 0: 4 MiB, 16 MiB */
    unsigned max_queued_calls;                 /* 0: 65536; beyond: RESOURCE_EXHAUSTED */
};

struct oc_client_events {
    /* The call got a place on a working connection; until then the server knows nothing of it. May
     * be NULL. */
    void (*started)(struct oc_client_call *call);
    /* Response headers arrived (queried with oc_client_call_header). Not called for a response that
     * is a status alone. May be NULL. */
    void (*headers)(struct oc_client_call *call);
    /* One whole response message, bounded by max_message_bytes; bytes gone on return. */
    void (*message)(struct oc_client_call *call, struct oc_span message);
    /* When set, used instead of `message`: bytes as they arrive; call oc_client_call_consumed.
     * message_len is the length of the message these bytes belong to; begin and end mark its first
     * and last piece (an empty message is one empty piece with both). */
    void (*piece)(struct oc_client_call *call, struct oc_span bytes, uint64_t message_len,
                  bool begin, bool end);
    /* Send queue below its low-water mark (256 KiB) again after oc_client_call_send returned false.
     * May be NULL. */
    void (*writable)(struct oc_client_call *call);
    /* The last callback, exactly once: status 0 or OC_E_… and the server's message, decoded. The
     * call is invalid afterwards. */
    void (*closed)(struct oc_client_call *call, int code, struct oc_span message);
};

int oc_channel_new(struct oc_loop *loop, const struct oc_channel_config *cfg,
                   struct oc_channel **ret, struct oc_error *err);
/* Calls still open end with CANCELLED (closed is called); then frees itself on the loop, which must
 * run until then. `freed` (may be NULL) is the last thing called. */
void oc_channel_free(struct oc_channel *ch, void (*freed)(void *arg), void *arg);
enum oc_channel_state {
    OC_CHANNEL_IDLE,
    OC_CHANNEL_CONNECTING,
    OC_CHANNEL_READY,
    OC_CHANNEL_FAILING,
};
enum oc_channel_state oc_channel_state(const struct oc_channel *ch);
const char *oc_channel_addr(const struct oc_channel *ch);
/* Calls that have begun and not ended, queued ones included. */
unsigned oc_channel_calls(const struct oc_channel *ch);

/* Start a call. `path` is a literal or outlives the call. deadline_ms 0 = none (else sent as
 * grpc-timeout and kept locally). Metadata: pairs of lower-case name and value, copied; may be
 * NULL; at most 16 KiB. Fails with OC_E_EXHAUSTED (too many queued calls, no memory, metadata too
 * large); then no callback comes. Everything else, an unreachable server included, is reported by
 * `closed`. */
struct oc_metadata {
    const char *name;
    struct oc_span value;
};
int oc_client_call_new(struct oc_channel *ch, const char *path,
                       const struct oc_client_events *events, void *user, uint64_t deadline_ms,
                       const struct oc_metadata *md, size_t md_count, struct oc_client_call **ret);
void *oc_client_call_user(const struct oc_client_call *call);
/* Queue one message. The slices' bytes are used without a copy until sent or until `closed`,
 * whichever comes first; owners are referenced as long. False: queued all the same, but wait for
 * `writable` (the queue holds more than 1 MiB). Ignored after half-close or when the call has ended
 * already. */
bool oc_client_call_send(struct oc_client_call *call, const struct oc_slice *slices, size_t count);
bool oc_client_call_send_copy(struct oc_client_call *call, struct oc_span message);
void oc_client_call_half_close(struct oc_client_call *call);
/* RST_STREAM(CANCEL); closed is called with CANCELLED and no other callback comes before it. */
void oc_client_call_cancel(struct oc_client_call *call);
/* `piece` only: give n received bytes' window back. */
void oc_client_call_consumed(struct oc_client_call *call, size_t n);
/* A response header or trailer by lower-case name; len 0 when absent. Valid until `closed` returns.
 */
struct oc_span oc_client_call_header(const struct oc_client_call *call, const char *name);
/* It is over and `closed` is due: sending is pointless. */
bool oc_client_call_ended(const struct oc_client_call *call);
/* For `closed`: the server has certainly not begun to process this call (never sent, refused, above
 * a GOAWAY's last stream id), so that any call may be repeated. */
bool oc_client_call_unprocessed(const struct oc_client_call *call);

#endif
