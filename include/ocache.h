/* libocache: the C client of an OCache node or of several independent ones.
 *
 * Plain C11, usable from C++. Link with -locache (pkg-config ocache).
 *
 * Threads. A client has one thread of its own that does all network work. Every function may be
 * called from any thread unless it says otherwise; one client can serve the whole process.
 * Functions named
 * ..._async return at once and report through a callback on the client's thread. Such a callback
 * must not block and must not call the waiting functions (they refuse with
 * OCACHE_FAILED_PRECONDITION there); starting further ..._async operations is fine and cheap.
 *
 * Errors. Functions that can fail return 0 (OCACHE_OK) or a positive enum ocache_code, the numbers
 * of the gRPC status codes. `err` may be NULL; it is written only on failure.
 *
 * Keys are 1 to 65535 bytes of UTF-8 and may contain zero bytes, hence the explicit lengths. Values
 * are any bytes, none included. Sizes are bytes, times are in the unit that the name ends with
 * (_ms, _s).
 *
 * Repeating. An operation that failed with OCACHE_UNAVAILABLE before any byte of its result was
 * delivered is repeated once, on another connection, within its deadline. A put from a reader
 * callback is repeated only when the server certainly has not begun it and nothing was read yet. */
#ifndef OCACHE_H
#define OCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

/* The gRPC status codes (https://grpc.io/docs/guides/status-codes/). */
enum ocache_code {
    OCACHE_OK = 0,
    OCACHE_CANCELLED = 1,
    OCACHE_UNKNOWN = 2,
    OCACHE_INVALID_ARGUMENT = 3,
    OCACHE_DEADLINE_EXCEEDED = 4,
    OCACHE_NOT_FOUND = 5,
    OCACHE_ALREADY_EXISTS = 6,
    OCACHE_PERMISSION_DENIED = 7,
    OCACHE_RESOURCE_EXHAUSTED = 8,
    OCACHE_FAILED_PRECONDITION = 9,
    OCACHE_ABORTED = 10,
    OCACHE_OUT_OF_RANGE = 11,
    OCACHE_UNIMPLEMENTED = 12,
    OCACHE_INTERNAL = 13,
    OCACHE_UNAVAILABLE = 14,
    OCACHE_DATA_LOSS = 15,
    OCACHE_UNAUTHENTICATED = 16
};

struct ocache_error {
    int code;          /* enum ocache_code */
    char message[512]; /* for a person; always terminated */
};

/* "not found" and so on; never NULL, static. */
const char *ocache_strerror(int code);
/* "NotFound" and so on, as gRPC libraries print codes; never NULL, static. */
const char *ocache_code_name(int code);

/* ---- the client ---- */

struct ocache_client;

enum ocache_mode {
    OCACHE_MODE_AUTO = 0,   /* ask the nodes; a node answers for every key, so this is simple */
    OCACHE_MODE_SIMPLE = 1, /* key to address by hash; lists go round-robin */
    OCACHE_MODE_CLUSTER =
        2 /* routing by the ring: not built yet, refused with OCACHE_UNIMPLEMENTED */
};

#define OCACHE_NO_DEADLINE UINT64_MAX

struct ocache_config {
    /* "host:port" each; copied. In simple mode a key belongs to address fnv1a32(key) mod
     * addr_count, so the order matters. At most 1024. */
    const char *const *addrs;
    size_t addr_count;
    enum ocache_mode mode;
    unsigned connections;          /* per address; 0: 4; at most 64 */
    uint64_t connect_timeout_ms;   /* 0: 5000 */
    uint64_t deadline_ms;          /* of deletes, lists, topology, puts up to 4 MiB; 0: 30000 */
    uint64_t stall_ms;             /* gets and longer puts: longest wait for progress; 0: 30000 */
    uint64_t keepalive_ms;         /* PING after silence, also when idle; 0: 30000 */
    uint64_t keepalive_timeout_ms; /* an unanswered PING ends the connection; 0: 10000 */
    uint64_t max_value_bytes; /* the largest value that ocache_get gathers in memory; 0: 1 GiB */
    uint64_t detect_ms; /* OCACHE_MODE_AUTO: the longest that ocache_client_new takes; 0: 2000 */
};

/* All zero: every field has its default. */
void ocache_config_init(struct ocache_config *cfg);

/* Connections are made when first needed: an unreachable server shows in the first operation. With
 * OCACHE_MODE_AUTO this waits for the first node's answer, at most detect_ms. Fails with
 * OCACHE_INVALID_ARGUMENT (addresses), OCACHE_UNIMPLEMENTED (cluster mode),
 * OCACHE_RESOURCE_EXHAUSTED. */
int ocache_client_new(const struct ocache_config *cfg, struct ocache_client **ret,
                      struct ocache_error *err);
/* Cancels what is in flight (callbacks run), joins the client's thread. No other call on the client
 * may be running or follow; not from a callback. NULL is fine. */
void ocache_client_free(struct ocache_client *client);
/* The mode in effect, never OCACHE_MODE_AUTO. */
enum ocache_mode ocache_client_mode(const struct ocache_client *client);
/* The address that serves this key: valid until the client is freed. */
const char *ocache_client_addr_for(const struct ocache_client *client, const void *key,
                                   size_t key_len);

/* What an operation may be told besides its key. A pointer to it may be NULL: all zero. */
struct ocache_options {
    /* Of the whole operation. 0: the client's deadline_ms for short operations; for gets and
     * streams none, but the client's stall_ms holds. OCACHE_NO_DEADLINE: none, and no stall_ms for
     * short operations. */
    uint64_t deadline_ms;
    int64_t ttl_s; /* puts: seconds to live; <= 0: the server's default */
    /* Gets: first and last byte wanted, counted from 0. end <= 0 means to the end of the value; a
     * range beyond the value is cut, one behind it is empty. */
    int64_t start;
    int64_t end;
    bool force_stream; /* ocache_put: send as a stream also when short */
};

/* ---- waiting functions ---- */

/* Store a value; readers see it whole or not at all. Values above 4 MiB are streamed without a
 * copy. */
int ocache_put(struct ocache_client *client, const void *key, size_t key_len, const void *value,
               size_t value_len, const struct ocache_options *opt, struct ocache_error *err);

/* Give up to `cap` bytes of the value: their number, 0 at the end, negative to give up (the put
 * ends with OCACHE_CANCELLED and stores nothing). Called on the thread that called
 * ocache_put_stream; may block. */
typedef ptrdiff_t (*ocache_read_fn)(void *user, void *buf, size_t cap);

/* Store a value of any length as it comes from `read`. An empty one is stored as an empty value. */
int ocache_put_stream(struct ocache_client *client, const void *key, size_t key_len,
                      ocache_read_fn read, void *user, const struct ocache_options *opt,
                      struct ocache_error *err);

/* The value or a range of it, in memory that the caller frees with ocache_free; never NULL on
 * success, with one zero byte behind the value. OCACHE_NOT_FOUND when there is none. */
int ocache_get(struct ocache_client *client, const void *key, size_t key_len,
               const struct ocache_options *opt, void **ret_value, size_t *ret_len,
               struct ocache_error *err);
/* As above; start and end override those of `opt`. */
int ocache_get_range(struct ocache_client *client, const void *key, size_t key_len, int64_t start,
                     int64_t end, const struct ocache_options *opt, void **ret_value,
                     size_t *ret_len, struct ocache_error *err);
void ocache_free(void *value);

/* A piece of the value, in order, valid during the call. Non-zero stops the get, which then ends
 * with OCACHE_CANCELLED. */
typedef int (*ocache_write_fn)(void *user, const void *data, size_t len);

/* Hand the value over as it arrives, on the calling thread; `write` may block (the server waits).
 * After a failure some of the value may have been written already. */
int ocache_get_stream(struct ocache_client *client, const void *key, size_t key_len,
                      ocache_write_fn write, void *user, const struct ocache_options *opt,
                      struct ocache_error *err);

/* Success also when the key is absent. */
int ocache_delete(struct ocache_client *client, const void *key, size_t key_len,
                  const struct ocache_options *opt, struct ocache_error *err);

/* ---- lists: bytewise ascending by key; each page is a scan of its own ---- */

struct ocache_entry {
    const char *key; /* key_len bytes and a zero byte; valid as long as the list */
    size_t key_len;
    /* With values only. A value above 1 MiB is left out: value_omitted is set and value_length
     * tells its size. */
    const void *value;
    size_t value_len;
    int64_t value_length;
    bool value_omitted;
};

struct ocache_list {
    const struct ocache_entry *entries;
    size_t count;
    bool has_more;
    const char *token; /* continue here; token_len bytes; empty unless has_more */
    size_t token_len;
};

struct ocache_list_query {
    const void *prefix; /* NULL or empty: every key */
    size_t prefix_len;
    const void *start_key; /* exclusive; token goes first when both are given */
    size_t start_key_len;
    const void *token;
    size_t token_len;
    int32_t limit; /* entries per page; <= 0 or above 1000: 1000 */
};

/* One page. Free it with ocache_list_free. */
int ocache_list_page(struct ocache_client *client, const struct ocache_list_query *query,
                     const struct ocache_options *opt, struct ocache_list **ret,
                     struct ocache_error *err);
int ocache_list_values_page(struct ocache_client *client, const struct ocache_list_query *query,
                            const struct ocache_options *opt, struct ocache_list **ret,
                            struct ocache_error *err);
void ocache_list_free(struct ocache_list *list);

/* One entry; valid during the call. Non-zero stops (the list then returns OCACHE_CANCELLED). */
typedef int (*ocache_entry_fn)(void *user, const struct ocache_entry *entry);

/* Every key under the query's prefix, page after page, on the calling thread. The deadline is that
 * of each page. */
int ocache_list_all(struct ocache_client *client, const struct ocache_list_query *query,
                    ocache_entry_fn fn, void *user, const struct ocache_options *opt,
                    struct ocache_error *err);
int ocache_list_values_all(struct ocache_client *client, const struct ocache_list_query *query,
                           ocache_entry_fn fn, void *user, const struct ocache_options *opt,
                           struct ocache_error *err);

/* ---- topology ---- */

enum ocache_node_status {
    OCACHE_NODE_ACTIVE = 0,
    OCACHE_NODE_JOINING = 1,
    OCACHE_NODE_LEAVING = 2,
    OCACHE_NODE_DOWN = 3
};

struct ocache_node {
    const char *id;
    const char *address;        /* as published for the cluster */
    const char *listen_address; /* for clients */
    int status;           /* enum ocache_node_status, or a number that this version does not know */
    uint64_t joined_at_s; /* unix time */
    const uint32_t *tokens; /* ascending */
    size_t token_count;
};

struct ocache_topology {
    uint64_t epoch;
    int32_t replication_factor;
    const struct ocache_node *nodes;
    size_t node_count;
};

/* Ask one node (round-robin). OCACHE_FAILED_PRECONDITION with the node's text ("cluster mode not
 * enabled") when it knows of no cluster. Free with ocache_topology_free. */
int ocache_topology_get(struct ocache_client *client, const struct ocache_options *opt,
                        struct ocache_topology **ret, struct ocache_error *err);
void ocache_topology_free(struct ocache_topology *topology);

/* ---- operations with callbacks ---- */

struct ocache_result {
    int code;            /* enum ocache_code */
    const char *message; /* never NULL; empty on success */
    const void *value;   /* ocache_get_async */
    size_t value_len;
    const struct ocache_list *list;         /* the list operations */
    const struct ocache_topology *topology; /* ocache_topology_async */
};

/* The end of an operation, exactly once, on the client's thread. Everything in the result is gone
 * on return. */
typedef void (*ocache_done_fn)(void *user, const struct ocache_result *result);

/* Each returns the operation's number (never 0, never used again), or 0 when it could not be
 * started for want of memory: then `done` is not called. Keys, queries and options are copied;
 * `value` must stay valid until `done`. */
uint64_t ocache_put_async(struct ocache_client *client, const void *key, size_t key_len,
                          const void *value, size_t value_len, const struct ocache_options *opt,
                          ocache_done_fn done, void *user);
uint64_t ocache_get_async(struct ocache_client *client, const void *key, size_t key_len,
                          const struct ocache_options *opt, ocache_done_fn done, void *user);
uint64_t ocache_delete_async(struct ocache_client *client, const void *key, size_t key_len,
                             const struct ocache_options *opt, ocache_done_fn done, void *user);
uint64_t ocache_list_page_async(struct ocache_client *client, const struct ocache_list_query *query,
                                const struct ocache_options *opt, ocache_done_fn done, void *user);
uint64_t ocache_list_values_page_async(struct ocache_client *client,
                                       const struct ocache_list_query *query,
                                       const struct ocache_options *opt, ocache_done_fn done,
                                       void *user);
uint64_t ocache_topology_async(struct ocache_client *client, const struct ocache_options *opt,
                               ocache_done_fn done, void *user);

/* `piece` gets the value as it arrives, on the client's thread; non-zero stops the get. The pieces'
 * bytes count as consumed when `piece` returns. */
uint64_t ocache_get_stream_async(struct ocache_client *client, const void *key, size_t key_len,
                                 const struct ocache_options *opt, ocache_write_fn piece,
                                 ocache_done_fn done, void *user);

/* For ocache_put_stream_async: nothing to read now; ocache_resume when there is. */
#define OCACHE_READ_LATER ((ptrdiff_t)-2)
/* `read` is called on the client's thread and must not block. */
uint64_t ocache_put_stream_async(struct ocache_client *client, const void *key, size_t key_len,
                                 ocache_read_fn read, const struct ocache_options *opt,
                                 ocache_done_fn done, void *user);
/* Call `read` again. OCACHE_RESOURCE_EXHAUSTED without memory, else 0, also for a number that is
 * over. */
int ocache_resume(struct ocache_client *client, uint64_t op);
/* The operation ends with OCACHE_CANCELLED unless it has ended already; `done` is called either
 * way. As ocache_resume for the rest. */
int ocache_cancel(struct ocache_client *client, uint64_t op);
/* All operations in flight, the waiting functions' included. */
int ocache_cancel_all(struct ocache_client *client);

/* "0.1.0" */
const char *ocache_version(void);

#ifdef __cplusplus
}
#endif

#endif
