/* What the files of the gRPC client share: channel (client.c), connection (client_conn.c: nghttp2,
 * the socket), call (client_call.c: the send queue, message framing, statuses). */
#ifndef OC_RPC_CLIENT_INTERNAL_H
#define OC_RPC_CLIENT_INTERNAL_H

#include <nghttp2/nghttp2.h>

#include "base/list.h"
#include "base/rng.h"
#include "core/codec/grpc_frame.h"
#include "io/tcp.h"
#include "rpc/client.h"

#define CLIENT_CHANNEL_MAGIC 0x6f634368u
#define CLIENT_CALL_MAGIC    0x6f63436cu

#define CLIENT_NO_RST UINT32_MAX /* client_call_end: the stream is gone already */

#define CLIENT_FRAME_BYTES       (256u << 10) /* largest DATA frame either way */
#define CLIENT_SEND_HIGH         (1u << 20) /* a call's queue: oc_client_call_send answers false */
#define CLIENT_SEND_LOW          (256u << 10) /* ... until below this */
#define CLIENT_OUT_SEGMENTS      256u         /* one writev; below IOV_MAX */
#define CLIENT_OUT_BYTES         (1u << 20)   /* handed to the socket layer at once */
#define CLIENT_CONTROL_BYTES     (128u << 10) /* frame headers and control frames of one batch */
#define CLIENT_CONTROL_ROOM      (33u << 10)  /* the most that one nghttp2 step can add to it */
#define CLIENT_CALL_HEADER_BYTES (16u << 10)  /* metadata sent; headers and trailers received */
#define CLIENT_SMALL_COPY_BYTES  1024u        /* pooled copies of small messages */
#define CLIENT_MESSAGE_KEEP      (64u << 10)  /* gathering buffer kept between messages of a call */
#define CLIENT_DRAINING_MAX      8u           /* connections that only finish their calls */
#define CLIENT_TURN_ROUNDS       16u          /* of the end-of-turn hook before the loop goes on */

/* Copied bytes with their count; small ones come from the channel's pool. */
struct client_copy {
    struct oc_ref ref;
    struct oc_channel *ch; /* NULL: from malloc */
    uint8_t bytes[];
};

/* A call's queued bytes, in order: a growing ring of slices. */
struct client_sendq {
    struct oc_slice fixed[4];
    struct oc_slice *slices; /* `fixed` or from malloc */
    size_t cap, head, count;
    size_t bytes;
};

struct client_header {
    struct client_header *next;
    struct oc_span name, value;
};

enum client_call_state {
    CLIENT_CALL_QUEUED, /* in channel.queue */
    CLIENT_CALL_OPEN,   /* in conn.calls, has a stream */
    CLIENT_CALL_ENDING, /* in channel.ending: closed is due */
};

struct client_conn;

struct oc_client_call {
    uint32_t magic;
    enum client_call_state state;
    struct oc_list link;
    struct oc_channel *ch;
    struct client_conn *conn;
    const struct oc_client_events *events;
    void *user;
    const char *path;
    int32_t stream_id;

    struct oc_timer deadline;

    struct client_sendq out;
    bool half_closed;   /* by our side */
    bool eof_sent;      /* END_STREAM is in the out chain */
    bool deferred;      /* nghttp2 waits for oc_client_call_send */
    bool want_writable; /* oc_client_call_send answered false */
    bool writable_due;
    bool request_sent; /* HEADERS reached the out chain */
    bool unprocessed;

    bool headers_done; /* the final response HEADERS were seen */
    bool grpc_content;
    int http_status;
    int grpc_status; /* -1: none seen */
    struct oc_span grpc_message;
    struct client_header *headers;
    struct client_header *metadata;
    size_t metadata_count;
    struct oc_arena arena;

    struct oc_grpc_reader reader;
    struct oc_buf message; /* only what spans frames */
    uint64_t unconsumed;   /* bytes handed out by `piece` */

    int end_code;
    struct oc_span end_message;
};

struct client_segment {
    const uint8_t *p;
    size_t len;
    struct oc_ref *owner;
    struct oc_client_call *call; /* whose bytes; NULL: ours */
};

struct client_conn {
    struct oc_list link; /* channel.conns */
    struct oc_channel *ch;
    struct oc_tcp *tcp;
    nghttp2_session *session;
    struct oc_list calls;
    unsigned call_count;
    bool ready;      /* the server's SETTINGS came */
    bool proved;     /* a response came: the connection is worth remaking at once */
    bool going_away; /* no new calls */
    bool dead;       /* to be closed at the end of the turn */
    bool in_nghttp2; /* inside mem_recv or mem_send: the session must not be freed */
    bool closing;    /* oc_tcp_close was called */
    bool want_write; /* socket full: waiting for `drained` */
    bool dirty;
    bool writable_due;      /* of one of its calls */
    char why[160];          /* what ended it */
    const char *goaway_why; /* the server's GOAWAY error, static; NULL: none */
    struct oc_timer timer;  /* first the SETTINGS timeout, then keepalive */
    uint64_t last_read_ns;
    bool ping_out;

    struct client_segment segments[CLIENT_OUT_SEGMENTS]; /* a ring */
    size_t seg_head, seg_count;
    size_t out_bytes;
    size_t control_used;
    uint8_t control[CLIENT_CONTROL_BYTES];
};

struct oc_channel {
    uint32_t magic;
    struct oc_loop *loop;
    struct oc_channel_config cfg;
    char *addr;
    enum oc_channel_state state;
    struct oc_list queue;
    unsigned queued;
    unsigned call_count;
    struct oc_list ending;
    struct oc_list conns;
    struct client_conn
        *current; /* where new calls go; NULL unless CONNECTING (SETTINGS due) or READY */
    unsigned conn_count;
    struct oc_connect *connect;
    unsigned failures; /* in a row */
    char why[192];     /* the last failure, for calls refused while FAILING */
    struct oc_timer backoff;
    struct oc_turn_hook hook;
    struct oc_letter wake;
    bool wake_posted;
    uint64_t hook_ran_ns; /* the loop's time when the hook last ran */
    bool dirty;
    bool in_hook;
    bool freeing;
    void (*freed)(void *arg);
    void *freed_arg;
    struct oc_rng rng;
    struct oc_pool call_pool, copy_pool;
};

/* ---- client.c ---- */
void client_channel_dirty(struct oc_channel *ch);
/* The current connection is no longer for new calls (GOAWAY, or gone when `lost`). */
void client_channel_conn_ended(struct oc_channel *ch, struct client_conn *conn);
void client_channel_ready(struct oc_channel *ch, struct client_conn *conn);
void client_channel_conn_freed(struct oc_channel *ch);
uint64_t client_now_ns(struct oc_channel *ch);

/* ---- client_conn.c ---- */
int client_conn_new(struct oc_channel *ch, struct oc_tcp *tcp, struct client_conn **ret);
bool client_conn_has_room(struct client_conn *conn);
int client_conn_start(struct client_conn *conn, struct oc_client_call *call);
/* Send what is due; free the connection's session when it is dead. */
void client_conn_turn(struct client_conn *conn);
void client_conn_dirty(struct client_conn *conn);
void client_conn_kill(struct client_conn *conn, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The call lets go of its stream and of its bytes in the out chain. `rst`: an HTTP/2 error code to
 * send; NO_ERROR: the server ended its side, send it only if ours is open; CLIENT_NO_RST. */
void client_conn_detach(struct client_conn *conn, struct oc_client_call *call, uint32_t rst);
void client_conn_resume(struct client_conn *conn, struct oc_client_call *call);
void client_conn_consume(struct client_conn *conn, int32_t stream_id, size_t n);

/* ---- client_call.c ---- */
/* End the call (first one wins): closed is due at the end of the turn. */
void client_call_end(struct oc_client_call *call, int code, uint32_t rst, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void client_call_deliver_closed(struct oc_client_call *call);
void client_call_on_header(struct oc_client_call *call, struct oc_span name, struct oc_span value);
void client_call_on_headers_end(struct oc_client_call *call, bool end_stream);
void client_call_on_data(struct oc_client_call *call, const uint8_t *p, size_t len);
void client_call_on_end_stream(struct oc_client_call *call);
void client_call_on_stream_close(struct oc_client_call *call, uint32_t h2_error);
/* Bytes that one DATA frame may take, at most `max_bytes` in at most `max_slices` slices. */
size_t client_sendq_peek(const struct client_sendq *q, size_t max_bytes, size_t max_slices);
/* Take up to `max_bytes` of the first slice; the owner's reference moves along (or is added). */
struct oc_slice client_sendq_take(struct client_sendq *q, size_t max_bytes);
void client_call_sent_some(struct oc_client_call *call);

struct client_copy *client_copy_new(struct oc_channel *ch, size_t len);

#endif
