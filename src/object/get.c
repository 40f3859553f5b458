/* Get. What the page cache has of a small object is read and sent within the call's turn, without
 * any state of its own. Everything else becomes a struct oc_svc_get: movers read ahead of the
 * socket, one task at a time, and stop while the peer takes nothing.
 *
 * A message is built where the bytes were read: the value lies behind a record's or chunk's header
 * in the buffer, and the few bytes of the message's own head are written over that. */
#include <stdlib.h>

#include "object/internal.h"

/* Up to here a value is read into the worker's scratch and copied into the send queue. */
#define COPY_MAX 4096u
/* Chunks that one task reads: read while the ones before them are being sent. */
#define READ_AHEAD 2u
/* What large gets may read from the page cache on the worker's own thread in one turn. A chunk that
 * is cached costs less to read here than a mover costs to wake, and leaves the bytes in this CPU's
 * cache for the send that follows; the bound keeps small requests of the same turn from waiting
 * long. */
#define INLINE_TURN_BYTES (4 * OC_CHUNK_BYTES)
/* Buffers of one large get while there are many: those being read and a send queue full of them. */
#define BUFFERS_MAX 6u

/* A buffer of a large get; lies at the end of its block, behind the chunk. `ref` is what the send
 * queue holds. */
struct buffer {
    struct oc_ref ref;
    struct oc_svc_get *op; /* NULL: the get is over, the block goes back */
    struct oc_block *block;
    struct oc_list link; /* op->idle or op->out */
};
#define BUFFER_AT (OC_SVC_BULK_BLOCK - 128)
static_assert(sizeof(struct buffer) <= 128 && BUFFER_AT >= OC_CHUNK_HEADER_BYTES + OC_CHUNK_BYTES,
              "chunk and buffer share a block");

struct piece {
    struct oc_block *block;
    struct oc_span bytes; /* the part of the value that is to be sent; inside the block */
};

struct oc_svc_get {
    struct oc_svc_worker *w;
    struct oc_call *call; /* NULL once the call is over: then only clean up */
    struct oc_object obj;
    struct oc_span key; /* in `local` or `big_key` */
    uint8_t *big_key;
    uint64_t key_held;   /* oc_svc_hold_key */
    int64_t start, last; /* as asked for */
    uint64_t pos, end; /* of the value: [pos, end) is still to be read; the task's while it runs */
    struct oc_reader *reader;
    struct oc_svc_task task;
    struct oc_svc_waiter waiter;
    struct oc_list resume;    /* in the worker's list of gets to look at */
    struct oc_list idle, out; /* struct buffer.link: free ones, those with the send queue */
    unsigned held;            /* buffers, wherever they are */
    struct piece work[READ_AHEAD], ready[READ_AHEAD];
    unsigned work_count, read_count, ready_first, ready_count;
    bool bulk; /* its blocks are BULK ones with a struct buffer; else one LARGE block */
    bool task_runs, waiting;
    bool opened;  /* the object was found and begun; it is the one that is sent */
    bool sent;    /* a message has left: no way back to a miss */
    bool blocked; /* until `writable` */
    bool pumping;
    int result; /* of the last task; sent when `ready` is empty */
    uint8_t local[256];
};

static void pump(struct oc_svc_get *op);

size_t oc_svc_get_bytes(void) {
    return sizeof(struct oc_svc_get);
}

/* ---- answers ---- */

static void answer_miss(struct oc_svc_worker *w, struct oc_call *call) {
    oc_svc_count_read(w->svc, false, OC_E_NOT_FOUND, 0);
    oc_svc_refuse(w, call, OC_E_NOT_FOUND, "key not found");
}

static void answer_hit(struct oc_svc_worker *w, struct oc_call *call, const struct oc_object *obj) {
    oc_svc_count_read(w->svc, !oc_object_is_small(obj), 0, obj->len);
    oc_call_finish(call, 0, OC_SPAN_EMPTY);
}

/* The message's first bytes go in front of the value; returns the whole message. */
static struct oc_span build_message(const uint8_t *room, struct oc_span bytes) {
    uint8_t head[OC_CACHE_GET_RESPONSE_HEAD_MAX];
    size_t n = oc_cache_get_response_head(head, bytes.len);

    OC_CHECK((size_t)(bytes.p - room) >= n);
    uint8_t *at = (uint8_t *)(uintptr_t)bytes.p - n;
    memcpy(at, head, n);
    return oc_span(at, n + bytes.len);
}

/* ---- small and in the page cache: at once ---- */

struct request {
    struct oc_span key;
    struct oc_object obj;
    uint64_t begin, end;
};

/* 0: sent. OC_AGAIN: not without waiting. Anything else: as oc_objects_read. */
static int send_inline(struct oc_svc_worker *w, struct oc_call *call, const struct request *rq) {
    struct oc_objects *objects = w->svc->cfg.objects;
    size_t room = oc_objects_read_room(rq->key, &rq->obj);
    struct oc_block *block = NULL;
    uint8_t *dst = w->scratch;
    struct oc_span value;

    if (rq->obj.len > COPY_MAX || room > OC_SVC_SMALL_BLOCK) {
        block = oc_svc_block_get(w, room <= OC_SVC_SMALL_BLOCK ? OC_SVC_SMALL : OC_SVC_LARGE);
        if (block == NULL) {
            return OC_AGAIN;
        }
        dst = block->data;
    }
    int r = oc_objects_read(objects, rq->key, &rq->obj, dst, true, &value);
    if (r == 0) {
        struct oc_span part = oc_span(value.p + rq->begin, (size_t)(rq->end - rq->begin));
        struct oc_span message = build_message(dst, part);

        oc_svc_count_download(w->svc, part.len);
        if (block == NULL) {
            (void)oc_call_send_copy(call, message); /* the only message: nothing waits for room */
        } else {
            struct oc_slice slice = {message.p, message.len, &block->ref};

            (void)oc_call_send(call, &slice, 1);
        }
        answer_hit(w, call, &rq->obj);
    }
    if (block != NULL) {
        oc_block_put(block);
    }
    return r;
}

static int find(struct oc_svc_worker *w, const struct oc_cache_get_request *m, struct request *rq) {
    rq->key = m->key;
    if (m->key.len > OC_KEY_MAX) {
        return OC_E_NOT_FOUND; /* cannot have been put */
    }
    int r = oc_objects_find(w->svc->cfg.objects, m->key, &rq->obj);
    if (r == 0) {
        oc_svc_range(m->start, m->end, rq->obj.len, &rq->begin, &rq->end);
    }
    return r;
}

/* ---- everything else ---- */

static void get_free(struct oc_svc_get *op) {
    struct oc_svc_worker *w = op->w;

    free(op->big_key);
    (void)oc_svc_hold_key(w->svc, &op->key_held, 0); /* gives back only */
    oc_pool_put(&w->gets, op);
    w->live--;
}

static void run_close(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);

    oc_reader_close(OC_TAKE(OC_CONTAINER(task, struct oc_svc_get, task)->reader));
}

static void close_done(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);

    get_free(OC_CONTAINER(task, struct oc_svc_get, task));
}

static void submit(struct oc_svc_get *op, void (*run)(struct oc_job *),
                   void (*done)(struct oc_job *)) {
    struct oc_svc *s = op->w->svc;
    bool small = !op->opened && oc_object_is_small(&op->obj);

    op->task_runs = true;
    op->task.job.run = run;
    op->task.job.done = done;
    oc_svc_submit(op->w, small ? s->read_movers : s->bulk_movers, &op->task);
}

/* ---- buffers of a large get ---- */

static struct buffer *buffer_of(const struct oc_block *block) {
    return (struct buffer *)(void *)(block->data + BUFFER_AT);
}

/* On the worker's thread: the send queue has let go of it. Nothing is sent from here, as this may
 * run deep inside the sending of something else. */
static void buffer_released(struct oc_ref *ref) {
    struct buffer *b = OC_CONTAINER(ref, struct buffer, ref);
    struct oc_svc_get *op = b->op;

    oc_list_remove(&b->link);
    if (op == NULL) {
        oc_block_put(b->block);
        return;
    }
    oc_list_push_back(&op->idle, &b->link);
    if (oc_list_empty(&op->resume)) {
        oc_list_push_back(&op->w->resume, &op->resume);
        oc_loop_again(op->w->loop);
    }
}

static void buffer_add(struct oc_svc_get *op, struct oc_block *block) {
    struct buffer *b = buffer_of(block);

    *b = (struct buffer){.op = op, .block = block};
    oc_list_init(&b->link);
    oc_list_push_back(&op->idle, &b->link);
    op->held++;
}

static void buffer_drop(struct oc_svc_get *op, struct buffer *b) {
    oc_list_remove(&b->link);
    op->held--;
    oc_block_put(b->block);
}

/* Blocks that the get itself holds, in `work` or `ready`. */
static void block_drop(struct oc_svc_get *op, struct oc_block *block) {
    if (op->bulk) {
        oc_list_push_back(&op->idle, &buffer_of(block)->link);
    } else {
        oc_block_put(block);
    }
}

static void buffers_free(struct oc_svc_get *op) {
    while (!oc_list_empty(&op->idle)) {
        buffer_drop(op, OC_CONTAINER(op->idle.next, struct buffer, link));
    }
    oc_list_each_safe (it, tmp, &op->out) {
        struct buffer *b = OC_CONTAINER(it, struct buffer, link);

        oc_list_remove(&b->link);
        b->op = NULL;
    }
}

/* A block to read into, or NULL: then all are out, or `held` is 0 and one must be waited for. */
static struct oc_block *block_take(struct oc_svc_get *op, bool scarce) {
    if (!op->bulk) {
        return oc_svc_block_get(op->w, OC_SVC_LARGE);
    }
    if (oc_list_empty(&op->idle) && (op->held == 0 || (!scarce && op->held < BUFFERS_MAX))) {
        struct oc_block *block = oc_svc_block_get(op->w, OC_SVC_BULK);

        if (block != NULL) {
            buffer_add(op, block);
        }
    }
    struct oc_list *first = oc_list_pop_front(&op->idle);
    return first == NULL ? NULL : OC_CONTAINER(first, struct buffer, link)->block;
}

/* The call is over or about to be answered. */
static void get_release(struct oc_svc_get *op) {
    if (op->call != NULL) {
        oc_call_set_user(op->call, NULL);
        op->call = NULL;
    }
    oc_svc_wait_cancel(op->w, &op->waiter);
    if (op->task_runs || op->pumping) {
        return; /* they look at `call` when they come back */
    }
    for (; op->ready_count > 0; op->ready_count--) {
        block_drop(op, op->ready[op->ready_first++ % READ_AHEAD].block);
    }
    buffers_free(op);
    oc_list_remove(&op->resume);
    if (op->reader != NULL && !oc_reader_try_close(op->reader)) {
        submit(op, run_close, close_done);
    } else {
        get_free(op);
    }
}

static void get_fail(struct oc_svc_get *op, int code) {
    struct oc_svc_worker *w = op->w;
    struct oc_call *call = op->call;
    bool file = !oc_object_is_small(&op->obj);
    bool sent = op->sent;

    get_release(op);
    if (!sent && (code == OC_E_NOT_FOUND || code == OC_E_DATA_LOSS)) {
        answer_miss(w, call);
        return;
    }
    if (code == OC_E_NOT_FOUND) {
        code = OC_E_DATA_LOSS; /* half a value was sent and the rest is gone */
    }
    oc_svc_count_read(w->svc, file, code, 0);
    if (code == OC_E_EXHAUSTED) {
        oc_svc_refuse(w, call, code, "too many requests at once: no buffer is free");
    } else {
        oc_svc_fail(w, call, code);
    }
}

/* On a mover: the first bytes of what the index names. */
static int read_first(struct oc_svc_get *op, struct piece *p) {
    struct oc_objects *objects = op->w->svc->cfg.objects;
    struct oc_span value;
    int r;

    if (oc_object_is_small(&op->obj)) {
        if (oc_objects_read_room(op->key, &op->obj) > p->block->cap) {
            /* Was large when the buffer was chosen, and has a very long key: let the client ask
             * again. */
            return OC_E_UNAVAILABLE;
        }
        r = oc_objects_read(objects, op->key, &op->obj, p->block->data, false, &value);
        if (r == 0) {
            p->bytes = oc_span(value.p + op->pos, (size_t)(op->end - op->pos));
        }
        return r;
    }
    if (op->reader == NULL) {
        r = oc_reader_open(objects, op->key, &op->obj, &op->reader, NULL);
        if (r != 0) {
            return r;
        }
    }
    r = oc_reader_chunk(op->reader, op->pos, p->block->data, false, &p->bytes);
    if (r != 0) {
        oc_reader_close(OC_TAKE(op->reader));
    }
    return r;
}

/* What was found may be overwritten, or prove unreadable, before it is read; then whatever the
 * index names now counts. Twice is a miss. */
static int read_begin(struct oc_svc_get *op, struct piece *p) {
    int r = read_first(op, p);

    if (r == OC_E_NOT_FOUND || r == OC_E_DATA_LOSS) {
        r = oc_objects_find(op->w->svc->cfg.objects, op->key, &op->obj);
        if (r != 0) {
            return r;
        }
        oc_svc_range(op->start, op->last, op->obj.len, &op->pos, &op->end);
        p->bytes = OC_SPAN_EMPTY;
        return op->pos == op->end ? 0 : read_first(op, p);
    }
    return r;
}

static void run_read(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);
    struct oc_svc_get *op = OC_CONTAINER(task, struct oc_svc_get, task);

    op->result = 0;
    op->read_count = 0;
    while (op->read_count < op->work_count && op->result == 0) {
        struct piece *p = &op->work[op->read_count];
        bool opened = op->opened || op->read_count > 0;

        op->result = !opened
                         ? read_begin(op, p)
                         : oc_reader_chunk(op->reader, op->pos, p->block->data, false, &p->bytes);
        if (op->result == 0) {
            if (p->bytes.len > op->end - op->pos) {
                p->bytes.len = (size_t)(op->end - op->pos);
            }
            op->pos += p->bytes.len;
            op->read_count++;
        }
    }
}

static void read_done(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);
    struct oc_svc_get *op = OC_CONTAINER(task, struct oc_svc_get, task);

    op->task_runs = false;
    op->opened = op->opened || op->read_count > 0;
    for (unsigned i = 0; i < op->work_count; i++) {
        if (op->call != NULL && i < op->read_count && op->work[i].bytes.len > 0) {
            op->ready[(op->ready_first + op->ready_count++) % READ_AHEAD] = op->work[i];
        } else {
            block_drop(op, op->work[i].block);
        }
    }
    op->work_count = 0;
    if (op->call == NULL) {
        get_release(op);
    } else {
        pump(op);
    }
}

static void got_block(struct oc_svc_waiter *waiter, struct oc_block *block) {
    struct oc_svc_get *op = OC_CONTAINER(waiter, struct oc_svc_get, waiter);

    op->waiting = false;
    if (op->bulk) {
        buffer_add(op, block);
        (void)oc_list_pop_front(&op->idle); /* the same one: it was empty */
    }
    op->work[0].block = block;
    op->work_count = 1;
    submit(op, run_read, read_done);
}

static void gave_up(struct oc_svc_waiter *waiter) {
    struct oc_svc_get *op = OC_CONTAINER(waiter, struct oc_svc_get, waiter);

    op->waiting = false;
    get_fail(op, OC_E_EXHAUSTED);
}

/* One chunk that is in the page cache, at once. False: nothing was done, a mover has to. */
static bool read_inline(struct oc_svc_get *op) {
    struct piece p = {0};

    if (!op->bulk || op->w->inline_left < OC_CHUNK_BYTES) {
        return false;
    }
    if (op->reader == NULL &&
        oc_reader_try_open(op->w->svc->cfg.objects, op->key, &op->obj, &op->reader) != 0) {
        return false;
    }
    p.block = block_take(op, oc_svc_buffers_scarce(op->w));
    if (p.block == NULL) {
        return false;
    }
    int r = oc_reader_chunk(op->reader, op->pos, p.block->data, true, &p.bytes);
    if (r != 0) {
        /* Would wait, or went wrong: the mover's way tells which and looks the key up again. */
        block_drop(op, p.block);
        return false;
    }
    op->w->inline_left -= OC_CHUNK_BYTES;
    if (p.bytes.len > op->end - op->pos) {
        p.bytes.len = (size_t)(op->end - op->pos);
    }
    op->pos += p.bytes.len;
    op->opened = true;
    op->ready[(op->ready_first + op->ready_count++) % READ_AHEAD] = p;
    return true;
}

static void read_next(struct oc_svc_get *op) {
    bool scarce = oc_svc_buffers_scarce(op->w);
    /* The first task reads one chunk, so that the first message leaves as early as it can. */
    uint64_t left = (op->end - op->pos + OC_CHUNK_BYTES - 1) / OC_CHUNK_BYTES;
    unsigned want = op->opened && left >= READ_AHEAD && !scarce ? READ_AHEAD : 1;

    while (scarce && op->held > 1 && !oc_list_empty(&op->idle)) {
        buffer_drop(op, OC_CONTAINER(op->idle.next, struct buffer, link)); /* to others */
    }
    while (op->work_count < want) {
        struct oc_block *block = block_take(op, scarce);

        if (block == NULL) {
            break;
        }
        op->work[op->work_count++].block = block;
    }
    if (op->work_count > 0) {
        submit(op, run_read, read_done);
        return;
    }
    if (op->held > 0) {
        return; /* all are with the send queue, and come back */
    }
    op->waiter.got = got_block;
    op->waiter.gave_up = gave_up;
    op->waiting = true;
    int r = oc_svc_wait(op->w, &op->waiter, op->call, op->bulk ? OC_SVC_BULK : OC_SVC_LARGE);
    if (r != 0) {
        op->waiting = false;
        get_fail(op, r);
    }
}

static void send_piece(struct oc_svc_get *op, const struct piece *p) {
    struct oc_span message = build_message(p->block->data, p->bytes);
    struct oc_slice slice = {message.p, message.len, &p->block->ref};

    if (op->bulk) {
        struct buffer *b = buffer_of(p->block);

        oc_ref_init(&b->ref, buffer_released);
        oc_list_push_back(&op->out, &b->link);
        slice.owner = &b->ref;
    }
    op->sent = true;
    oc_svc_count_download(op->w->svc, p->bytes.len);
    op->blocked = !oc_call_send(op->call, &slice, 1);
    oc_ref_put(slice.owner);
}

static void send_ready(struct oc_svc_get *op) {
    op->pumping = true;
    while (op->call != NULL && op->ready_count > 0 && !op->blocked) {
        struct piece p = op->ready[op->ready_first++ % READ_AHEAD];

        op->ready_count--;
        send_piece(op, &p);
    }
    op->pumping = false;
}

static void get_end(struct oc_svc_get *op) {
    struct oc_svc_worker *w = op->w;
    struct oc_call *call = op->call;
    struct oc_object obj = op->obj;

    get_release(op);
    answer_hit(w, call, &obj);
}

static void pump(struct oc_svc_get *op) {
    do {
        send_ready(op);
        if (op->call == NULL) {
            get_release(op);
            return;
        }
        if (op->ready_count > 0 || op->task_runs || op->waiting) {
            return;
        }
        if (op->result != 0) {
            get_fail(op, op->result);
            return;
        }
        if (op->pos >= op->end && op->opened) {
            get_end(op);
            return;
        }
    } while (!op->blocked && read_inline(op)); /* bounded by the worker's share of the turn */
    if (!op->blocked) {
        read_next(op);
    }
}

void oc_svc_get_turn(struct oc_svc_worker *w) {
    struct oc_list *first;

    w->inline_left = INLINE_TURN_BYTES;
    /* Bounded: a get joins again only when a buffer of it was released, which happens after the
     * turn. */
    while ((first = oc_list_pop_front(&w->resume)) != NULL) {
        pump(OC_CONTAINER(first, struct oc_svc_get, resume));
    }
}

static void start_op(struct oc_svc_worker *w, struct oc_call *call, const struct request *rq,
                     const struct oc_cache_get_request *m) {
    struct oc_svc_get *op = (struct oc_svc_get *)oc_pool_get(&w->gets);
    uint8_t *copy = NULL;

    if (op != NULL) {
        copy = op->local;
        if (rq->key.len > sizeof op->local) {
            bool held = oc_svc_hold_key(w->svc, &op->key_held, rq->key.len);

            copy = op->big_key = held ? (uint8_t *)malloc(rq->key.len) : NULL;
        }
        if (copy == NULL) {
            (void)oc_svc_hold_key(w->svc, &op->key_held, 0); /* gives back only */
            oc_pool_put(&w->gets, op);
        }
    }
    if (copy == NULL) {
        oc_svc_refuse(w, call, OC_E_EXHAUSTED, "too many requests at once: no memory is free");
        return;
    }
    w->live++;
    memcpy(copy, rq->key.p, rq->key.len);
    op->w = w;
    op->call = call;
    op->key = oc_span(copy, rq->key.len);
    op->obj = rq->obj;
    op->start = m->start;
    op->last = m->end;
    op->pos = rq->begin;
    op->end = rq->end;
    oc_list_init(&op->task.link);
    oc_list_init(&op->waiter.link);
    oc_list_init(&op->resume);
    oc_list_init(&op->idle);
    oc_list_init(&op->out);
    op->bulk = !oc_object_is_small(&op->obj);
    oc_call_set_user(call, op);
    pump(op);
}

void oc_svc_get_message(struct oc_call *call, struct oc_span message) {
    struct oc_svc_worker *w = oc_svc_worker_of(call);
    struct oc_cache_get_request m;
    struct request rq;
    const char *text = NULL;

    if (oc_cache_get_request_decode(message, &m) != 0) {
        oc_svc_malformed(w, call);
        return;
    }
    int r = oc_svc_admit(OC_SVC_GET, m.key, m.key.len, &text);
    if (r != 0) {
        oc_svc_refuse(w, call, r, text);
        return;
    }
    /* Once more when what was found was overwritten, or found unreadable, in between. */
    for (int attempt = 0; attempt < 2; attempt++) {
        r = find(w, &m, &rq);
        if (r != 0) {
            break;
        }
        if (rq.begin == rq.end) {
            answer_hit(w, call, &rq.obj); /* empty: a stream without messages */
            return;
        }
        r = oc_object_is_small(&rq.obj) ? send_inline(w, call, &rq) : OC_AGAIN;
        if (r == 0) {
            return;
        }
        if (r == OC_AGAIN) {
            start_op(w, call, &rq, &m);
            return;
        }
        if (r != OC_E_NOT_FOUND) {
            oc_svc_count_read(w->svc, false, r, 0);
            oc_svc_fail(w, call, r);
            return;
        }
    }
    answer_miss(w, call);
}

void oc_svc_get_writable(struct oc_call *call) {
    struct oc_svc_get *op = (struct oc_svc_get *)oc_call_user(call);

    if (op != NULL) {
        op->blocked = false;
        if (!op->pumping) {
            pump(op);
        }
    }
}

void oc_svc_get_closed(struct oc_call *call, int code) {
    struct oc_svc_get *op = (struct oc_svc_get *)oc_call_user(call);

    (void)code; /* whatever ended it: the reading stops */
    if (op != NULL) {
        get_release(op);
    }
}
