/* What the files of the object service share. Everything with a worker belongs to that worker's
 * thread unless it says otherwise. */
#ifndef OC_OBJECT_INTERNAL_H
#define OC_OBJECT_INTERNAL_H

#include <pthread.h>

#include "core/codec/cache_pb.h"
#include "core/seglog/format.h"
#include "object/metrics.h"
#include "object/rules.h"
#include "object/service.h"

/* Buffers. A small one holds a record of up to 64 KiB with a usual key, a large one any record, a
 * bulk one a chunk. SMALL and LARGE are for what comes and goes with a turn or one read. BULK ones
 * are held by transfers for as long as their peer takes, and have a pool of their own: however many
 * of them there are, an object of one record finds a buffer. */
enum oc_svc_block { OC_SVC_SMALL, OC_SVC_LARGE, OC_SVC_BULK, OC_SVC_BLOCKS };
#define OC_SVC_SMALL_BLOCK ((size_t)68 << 10)
#define OC_SVC_LARGE_BLOCK ((size_t)324 << 10)
#define OC_SVC_BULK_BLOCK  ((size_t)260 << 10)
static_assert(OC_SVC_LARGE_BLOCK >= OC_REC_HEADER_BYTES + OC_KEY_MAX + OC_INLINE_MAX + 8,
              "a record fits in a large block");
static_assert(OC_SVC_BULK_BLOCK >= OC_CHUNK_HEADER_BYTES + OC_CHUNK_BYTES,
              "a chunk fits in a bulk block");

/* Values of calls that never need a buffer of their own. */
#define OC_SVC_INLINE 2048u

/* Get, Delete and List requests are a key or three and a few numbers. */
#define OC_SVC_REQUEST_MAX ((uint64_t)1 << 20)

/* Keys live as long as their call; up to this long they are not worth counting. */
#define OC_SVC_KEY_FREE 1024u

enum oc_svc_load { OC_SVC_LOAD_RUNS, OC_SVC_LOADED, OC_SVC_LOAD_FAILED };

/* What a worker's waiters for one size of buffer got of the pool that all workers share. */
struct oc_svc_share {
    _Atomic unsigned waiting;
    _Atomic uint64_t served; /* while others wait, who has the least is next */
};

struct oc_svc {
    struct oc_svc_config cfg;
    _Atomic int phase;
    struct oc_blockpool *pools[OC_SVC_BLOCKS];
    struct oc_budget keys;       /* long keys of calls in progress */
    _Atomic unsigned waiting;    /* operations that wait for a buffer, of all workers */
    struct oc_svc_share *shares; /* cfg.workers times OC_SVC_BLOCKS of them */
    struct oc_movers *read_movers;
    struct oc_movers *bulk_movers;
    struct oc_movers *commit_movers; /* NULL unless sync is ALWAYS */
    struct oc_svc_worker **workers;  /* cfg.workers of them; NULL when not (or no longer) there */
    pthread_mutex_t attached;        /* the two below; a leaf */
    struct oc_rpc_server *rpc;       /* for the metrics page; NULL until attached */
    const struct oc_listener *listeners[2];
    _Atomic uint64_t load_ms;                     /* set when the load has ended */
    _Atomic int load;                             /* enum oc_svc_load */
    struct oc_method methods[OC_SVC_METHODS + 2]; /* ours, then the health service's */
    struct oc_metrics *metrics;
};

/* ---- waiting for a buffer (buffers.c) ---- */
struct oc_svc_waiter {
    struct oc_list link; /* initialised; in a list of the worker's while waiting */
    enum oc_svc_block size;
    uint32_t *others; /* how many calls of its connection wait */
    uint64_t round;   /* served in the order of these */
    bool dropped;     /* it lost its place; gave_up is due */
    uint64_t deadline_ns;
    void (*got)(struct oc_svc_waiter *waiter, struct oc_block *block); /* owns the block */
    void (*gave_up)(struct oc_svc_waiter *waiter);
};

/* ---- a job for a mover that must not be lost when the movers' queue is full ---- */
struct oc_svc_task {
    struct oc_job job;
    struct oc_list link;      /* in the worker's list while refused */
    struct oc_movers *movers; /* where it goes */
};

struct oc_svc_worker {
    struct oc_svc *svc;
    unsigned index;
    struct oc_loop *loop;
    struct oc_turn_hook hook;
    struct oc_timer timer; /* runs while somebody waits or a task was refused */

    struct oc_list waiting[OC_SVC_BLOCKS]; /* struct oc_svc_waiter.link */
    size_t waiting_count;
    struct oc_list dropped; /* struct oc_svc_waiter.link */
    struct oc_list refused; /* struct oc_svc_task.link */

    struct oc_list resume; /* gets to look at: buffers of theirs came back */
    size_t inline_left;    /* bytes that large gets may still read on this thread in this turn */

    struct oc_list pending; /* struct oc_svc_write.link: complete, to be committed this turn */
    uint64_t pending_bytes;
    struct oc_svc_commit *commit; /* the batch on a mover; only under sync ALWAYS */
    bool commit_runs;

    struct oc_svc_write *free_writes; /* kept for reuse, by next_free */
    size_t free_write_count;
    struct oc_pool gets;  /* struct oc_svc_get */
    struct oc_pool lists; /* struct oc_svc_list */
    size_t live;          /* writes, gets, lists */
    uint8_t *scratch;     /* one record of the inline read path; OC_SVC_SMALL_BLOCK bytes */
};

static inline struct oc_svc_worker *oc_svc_worker_of(const struct oc_call *call) {
    return (struct oc_svc_worker *)oc_rpc_worker_user(oc_call_worker(call));
}

void oc_svc_buffers_init(struct oc_svc_worker *w);
void oc_svc_buffers_done(struct oc_svc_worker *w);
/* A buffer now, or NULL: none is free or others wait for one already. */
struct oc_block *oc_svc_block_get(struct oc_svc_worker *w, enum oc_svc_block size);
/* More than half of the bulk buffers are in use: read ahead less. */
bool oc_svc_buffers_scarce(struct oc_svc_worker *w);
/* Wait for one on behalf of `call`. OC_E_EXHAUSTED when too many wait already; then nothing will be
 * called. Connections have turns, and when the list is full the one with the most in it yields, so
 * that many calls of one peer do not shut out the few of another. */
int oc_svc_wait(struct oc_svc_worker *w, struct oc_svc_waiter *waiter, const struct oc_call *call,
                enum oc_svc_block size);
void oc_svc_wait_cancel(struct oc_svc_worker *w, struct oc_svc_waiter *waiter);
/* The end of a turn, or the timer: serve who waits, submit what was refused. */
void oc_svc_buffers_turn(struct oc_svc_worker *w);
/* `done` runs on w's loop. Never fails: a refused task is submitted again until it is taken. */
void oc_svc_submit(struct oc_svc_worker *w, struct oc_movers *movers, struct oc_svc_task *task);

/* ---- every operation (service.c) ---- */
/* The one place that an operation on a key passes before anything is done for it: its key is
 * checked here, and here is where a node that is not the key's owner would hand the call on. 0, or
 * a status whose text is *ret_text (static). key_len is the key's true length: `key` may hold only
 * its beginning. */
enum oc_svc_op { OC_SVC_PUT, OC_SVC_DELETE, OC_SVC_GET };
int oc_svc_admit(enum oc_svc_op op, struct oc_span key, uint64_t key_len, const char **ret_text);
/* End a call with an error of the store; counts it. */
void oc_svc_fail(struct oc_svc_worker *w, struct oc_call *call, int code);
/* … with a text of our own. */
void oc_svc_refuse(struct oc_svc_worker *w, struct oc_call *call, int code, const char *text);
/* … because its message could not be parsed. */
void oc_svc_malformed(struct oc_svc_worker *w, struct oc_call *call);
/* enum oc_svc_method, or -1 for a method of another service. */
int oc_svc_method_index(const struct oc_svc *s, const struct oc_method *method);
uint64_t oc_svc_now_s(struct oc_svc_worker *w);
/* An operation's share in the budget for long keys becomes that of `bytes` of key; 0 gives it back.
 * False: there is none left, *held is as before, and the call is to be refused. */
bool oc_svc_hold_key(struct oc_svc *s, uint64_t *held, uint64_t bytes);

/* ---- writes: put.c receives them, upload.c moves large ones, commit.c commits ---- */
/* Received bytes that found no buffer; what a peer may send before it gets window back. They count
 * as unconsumed in the rpc server's receive budget. */
#define OC_SVC_SPILL_MAX ((size_t)16 << 20)

/* Full chunks of an upload that wait for a mover. A peer can only send as much as its window
 * allows, so this is more than any upload needs; one that would need more is refused. */
#define OC_SVC_CHUNKS 64u

struct oc_svc_write {
    struct oc_list link; /* in the worker's pending list or a commit's */
    struct oc_svc_worker *w;
    struct oc_call *call; /* NULL once the call is over: then the write only cleans up */
    struct oc_write write;
    struct oc_cache_put_stream in; /* puts only */
    struct oc_span key;            /* deletes: in `local` or `big_key` */
    uint8_t *big_key;
    uint64_t key_held; /* oc_svc_hold_key */
    bool is_delete;
    bool pending;     /* in the pending list */
    bool committing;  /* in a commit on a mover */
    bool half_closed; /* the client has sent everything */
    bool waiting;     /* for a buffer; bytes go to `spill` meanwhile */
    bool data_seen;   /* in the current message */
    struct oc_svc_waiter waiter;
    struct oc_buf spill;
    size_t unconsumed; /* bytes whose window was not given back yet */

    uint8_t *fill;          /* where bytes go: `local` or block->data */
    struct oc_block *block; /* NULL: local */
    size_t fill_len, fill_cap;
    uint64_t flushed;       /* value bytes in chunks already queued */
    uint64_t message_start; /* value length when the current message began */

    /* upload.c: a value larger than one chunk */
    struct oc_upload *upload;
    struct oc_svc_task task;
    bool task_runs;
    struct oc_block
        *spare; /* kept for the next chunk: an upload that has begun never waits for one */
    unsigned chunk_first;  /* counts up; the slot is its remainder */
    unsigned chunk_count;  /* queued, those at work included */
    unsigned chunks_taken; /* at work: by the task that runs */
    bool all_queued;       /* nothing comes behind what is in the ring */
    bool finishing;        /* the task at work is the last one */
    int task_result;

    /* From here on a new write is not zeroed: the small ones would pay for it. */
    struct oc_svc_write *next_free;
    struct oc_block *chunks[OC_SVC_CHUNKS]; /* ring of full chunks */
    uint8_t local[OC_SVC_INLINE];
};

/* Whole value received so far, spilled bytes included. */
static inline uint64_t oc_svc_write_len(const struct oc_svc_write *op) {
    return op->flushed + op->fill_len + op->spill.len;
}

struct oc_svc_write *oc_svc_write_new(struct oc_svc_worker *w, struct oc_call *call);
/* The call is over or was answered: give back everything, by a mover where that may block. */
void oc_svc_write_release(struct oc_svc_write *op);
/* Answer with an error and release. */
void oc_svc_write_fail(struct oc_svc_write *op, int code, const char *text);
/* Give window back for what is stored; holds it back while the disk is behind. */
void oc_svc_write_credit(struct oc_svc_write *op, size_t bytes);

/* A chunk was written: its block goes to the upload itself when it needs one, else to the pool. May
 * end in the write's failure and release. */
void oc_svc_write_recycle(struct oc_svc_write *op, struct oc_block *block);

/* The fill buffer is a full chunk and more is coming: queue it. OC_E_EXHAUSTED. */
int oc_svc_upload_chunk(struct oc_svc_write *op);
/* Everything was received and flushed > 0: write the rest, finish, then commit. */
void oc_svc_upload_end(struct oc_svc_write *op);
/* Drop the upload (committed or not) and then the write itself, on a mover. */
void oc_svc_upload_release(struct oc_svc_write *op);
void oc_svc_write_free(struct oc_svc_write *op); /* memory only */

/* Complete: commit with this turn. */
void oc_svc_commit_add(struct oc_svc_write *op);
/* The call went away before its write was committed. */
void oc_svc_commit_cancel(struct oc_svc_write *op);
void oc_svc_commit_turn(struct oc_svc_worker *w);
int oc_svc_commit_init(struct oc_svc_worker *w);
void oc_svc_commit_done(struct oc_svc_worker *w);
void oc_svc_writes_done(struct oc_svc_worker *w); /* the kept ones */

/* ---- the handlers of the method table ---- */
void oc_svc_put_start(struct oc_call *call, void *service);
void oc_svc_put_piece(struct oc_call *call, struct oc_span bytes, uint64_t message_len, bool begin,
                      bool end);
void oc_svc_put_half_closed(struct oc_call *call);
void oc_svc_delete_message(struct oc_call *call, struct oc_span message);
void oc_svc_write_closed(struct oc_call *call, int code);
void oc_svc_get_message(struct oc_call *call, struct oc_span message);
void oc_svc_get_turn(struct oc_svc_worker *w);
void oc_svc_get_writable(struct oc_call *call);
void oc_svc_get_closed(struct oc_call *call, int code);
size_t oc_svc_get_bytes(void);
void oc_svc_list_message(struct oc_call *call, struct oc_span message);
void oc_svc_list_values_message(struct oc_call *call, struct oc_span message);
void oc_svc_list_closed(struct oc_call *call, int code);
size_t oc_svc_list_bytes(void);

/* ---- pages (pages.c) ---- */
extern const struct oc_http_route oc_svc_route_table[];
extern const size_t oc_svc_route_count;

#endif
