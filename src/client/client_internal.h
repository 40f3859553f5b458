/* What the files of libocache share. Everything but the API functions themselves runs on the
 * client's loop thread; API functions hand an operation over as a letter (or begin it directly when
 * called there). */
#ifndef OC_CLIENT_INTERNAL_H
#define OC_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/mem.h"
#include "core/codec/cache_pb.h"
#include "io/loop.h"
#include "ocache.h"
#include "rpc/client.h"

#define CL_CLIENT_MAGIC 0x6f634c63u
#define CL_OP_MAGIC     0x6f634f70u

#define CL_BUCKETS        1024u
#define CL_UNARY_MAX      (4u << 20)   /* a larger value goes as a stream */
#define CL_MESSAGE_BYTES  (1u << 20)   /* pieces of a value in memory */
#define CL_BLOCK_BYTES    (256u << 10) /* pieces of a value from a reader */
#define CL_BLOCKS         4u           /* of them per upload */
#define CL_SMALL_MESSAGE  1000u        /* encoded on the stack and copied */
#define CL_LIST_ENTRIES   (1u << 20)   /* in a page; servers send a thousand */
#define CL_TOPOLOGY_BYTES (16u << 20)
#define CL_TOPOLOGY_NODES 4096u

enum cl_kind {
    CL_PUT,
    CL_PUT_STREAM,
    CL_GET,
    CL_GET_STREAM,
    CL_DELETE,
    CL_LIST,
    CL_LIST_VALUES,
    CL_TOPOLOGY,
};

enum cl_block_kind {
    CL_BLOCK_MORE,
    CL_BLOCK_LAST,   /* may be empty */
    CL_BLOCK_FAILED, /* the reader gave up */
};

/* A buffer of an upload: filled by whoever reads, referenced by the connection until sent. */
struct cl_block {
    struct oc_ref ref;
    struct oc_letter letter; /* the waiting form hands it to the loop thread */
    struct cl_feed *feed;
    struct cl_op *op; /* while the connection has it */
    struct cl_block *next;
    enum cl_block_kind kind;
    size_t len;
    uint8_t data[CL_BLOCK_BYTES];
};

/* The blocks of one upload. `returned` is called on the loop thread when one comes back. */
struct cl_feed {
    struct cl_block *blocks; /* free ones */
    unsigned allocated;
    void (*returned)(struct cl_feed *feed, struct cl_block *block);
};

struct cl_op {
    uint32_t magic;
    enum cl_kind kind;
    uint64_t id;
    struct ocache_client *client;
    struct oc_letter letter;
    struct oc_list link; /* client.buckets */
    struct ocache_options opt;
    ocache_done_fn done;
    void *user;
    size_t addr; /* SIZE_MAX: by key or round-robin */

    struct oc_span key;   /* or a list's prefix; in `strings` */
    struct oc_span value; /* CL_PUT: the caller's */
    struct oc_span start_key, token;
    int32_t limit;

    /* CL_PUT_STREAM */
    ocache_read_fn read;
    void (*begin_feed)(struct cl_op *op); /* the call is on a connection: start reading */
    struct cl_feed feed;
    unsigned blocks_out; /* with the connection */
    bool fed;            /* something was read: not repeatable */
    bool first_sent;     /* the message with the key */
    bool ended_input;
    bool in_read; /* cl_read_more is on the stack */
    /* CL_GET_STREAM: non-zero stops. Returns with the bytes consumed unless manual_window. */
    int (*piece)(struct cl_op *op, struct oc_span bytes);
    ocache_write_fn write;
    bool manual_window;

    bool stall_watched; /* no deadline, but the server must make progress */
    struct oc_client_call *call;
    struct oc_channel *channel; /* of the last try */
    unsigned tries;
    bool delivered;  /* a byte of the result went out */
    bool answered;   /* unary: the response message came */
    int forced_code; /* how to end whatever the call says; 0: as the call says */
    const char *forced_text;
    uint64_t begun_ns, progress_ns;
    uint64_t put_offset; /* CL_PUT as a stream */
    uint64_t unconsumed;
    size_t piece_bulk; /* value bytes within the piece being parsed */

    struct oc_pb_stream pb;
    uint8_t *gathered; /* CL_GET */
    size_t gathered_len, gathered_cap;
    bool value_seen; /* in the current message */
    struct ocache_list *list;
    struct ocache_topology *topology;

    struct ocache_result result;
    char message[512];
    uint8_t strings[]; /* copies of key, start_key, token */
};

struct cl_pool {
    char *addr;
    struct oc_channel **channels;
    unsigned count, next;
};

struct ocache_client {
    uint32_t magic;
    struct oc_loop *loop;
    pthread_t thread;
    struct ocache_config cfg;
    struct cl_pool *pools;
    size_t pool_count;
    size_t next_pool;
    _Atomic uint64_t next_id;
    struct oc_list buckets[CL_BUCKETS];
    size_t op_count;
    unsigned stream_count; /* operations that the stall watch looks after */
    struct oc_timer stall;
    bool freeing;
    unsigned channels_left;
    struct oc_letter free_letter;
    /* The thread's start. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started;
    int start_code;
    struct oc_error start_error;
};

/* ---- client.c ---- */
struct oc_channel *cl_channel_pick(struct ocache_client *client, const struct cl_op *op);
void cl_stall_watch(struct ocache_client *client, int change);

/* ---- op.c ---- */
struct cl_op *cl_op_new(struct ocache_client *client, enum cl_kind kind,
                        const struct ocache_options *opt, struct oc_span key,
                        struct oc_span start_key, struct oc_span token, struct oc_span value);
/* Hand it over; returns its number. The op is the client's from here on. */
uint64_t cl_op_submit(struct cl_op *op);
struct cl_op *cl_op_find(struct ocache_client *client, uint64_t id);
/* What the end will be, unless something worse comes. An empty text becomes the code's words. */
void cl_op_set_end(struct cl_op *op, int ocache_code, struct oc_span text);
/* End it with this code once its call is over, or now when there is none. */
void cl_op_abort(struct cl_op *op, int ocache_code, const char *text);

/* ---- request.c ---- */
/* First bytes of the request on a fresh call. False: out of memory. */
bool cl_request_send(struct cl_op *op);
void cl_request_writable(struct cl_op *op);
/* Takes the block over. Without a call it comes back at once. */
void cl_block_send(struct cl_op *op, struct cl_block *block);
/* A free block or, below the limit, a new one; NULL: wait for `returned`. The caller holds its one
 * reference. */
struct cl_block *cl_feed_take(struct cl_feed *feed);
/* From `returned`: make it a free one. */
void cl_feed_put(struct cl_feed *feed, struct cl_block *block);
/* Read into the block until it is full or the input ends; sets len and kind. */
void cl_block_fill(struct cl_block *block, ocache_read_fn read, void *user);
void cl_feed_done(struct cl_feed *feed);
void cl_read_more(struct cl_op *op);

/* ---- response.c ---- */
extern const struct oc_pb_stream_config cl_get_pb;
void cl_on_message(struct oc_client_call *call, struct oc_span message);
void cl_on_piece(struct oc_client_call *call, struct oc_span bytes, uint64_t message_len,
                 bool begin, bool end);
struct ocache_list *cl_list_parse(struct oc_span message, bool with_values);
/* 0 and a topology, or OC_E_PRECONDITION with the node's text, or OC_E_INTERNAL. */
int cl_topology_parse(struct oc_span message, struct ocache_topology **ret, char *text,
                      size_t text_size);

/* ---- error.c ---- */
int cl_error_set(struct ocache_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* "rpc error: code = NotFound desc = text" -> its code and text; else OCACHE_UNKNOWN and all of it.
 */
int cl_error_parse(struct oc_span text, struct oc_span *ret_text);

#endif
