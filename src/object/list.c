/* List and ListWithValues, on a mover: a walk may pass many expired entries, and values are read
 * from the device. A page is collected key batch by key batch (nothing but copying happens under
 * the store's locks) and encoded into pooled buffers that are sent as they are. It ends at the
 * limit asked for, or early at a number of bytes; then has_more and the token say where it goes on.
 */
#include <stdlib.h>

#include "object/internal.h"

#define LIMIT_MAX       1000u
#define PAGE_BYTES      ((uint64_t)8 << 20)
#define VALUE_BYTES_MAX ((uint64_t)1 << 20) /* larger ones are left out of a page */
#define SLICES          192u

struct oc_svc_list {
    struct oc_svc_worker *w;
    struct oc_call *call; /* NULL once the call is over */
    struct oc_svc_task task;
    struct oc_svc_waiter waiter;
    bool task_runs;
    bool values;
    bool batch_full; /* the walk stopped because the batch block was full: a key follows */
    size_t limit;
    uint8_t *names; /* the prefix, then OC_KEY_MAX bytes for `after` */
    uint64_t names_held;
    struct oc_span prefix, after;
    struct oc_block *batch;         /* keys of one walk of the store */
    struct oc_block *scratch;       /* one value */
    struct oc_block *out;           /* where the message grows */
    size_t out_start;               /* first byte of `out` that is in no slice yet */
    struct oc_slice slices[SLICES]; /* each with a reference on its block */
    unsigned slice_count;
    uint64_t bytes;
    size_t emitted;
    uint64_t omitted;
    int result;
};

size_t oc_svc_list_bytes(void) {
    return sizeof(struct oc_svc_list);
}

/* ---- the message under construction ---- */

static struct oc_block *new_block(struct oc_svc_list *op) {
    return oc_block_get(op->w->svc->pools[OC_SVC_LARGE]);
}

/* Close the slice that grows at the end of `out`; there is always room for it (see room_for). */
static void close_slice(struct oc_svc_list *op) {
    if (op->out != NULL && op->out->len > op->out_start) {
        OC_CHECK(op->slice_count < SLICES);
        oc_ref_get(&op->out->ref);
        op->slices[op->slice_count++] = (struct oc_slice){
            op->out->data + op->out_start, op->out->len - op->out_start, &op->out->ref};
        op->out_start = op->out->len;
    }
}

/* Contiguous room of `len` bytes, at most a block; NULL when no buffer is free. */
static uint8_t *reserve(struct oc_svc_list *op, size_t len) {
    if (op->out == NULL || op->out->cap - op->out->len < len) {
        struct oc_block *b = new_block(op);

        if (b == NULL) {
            return NULL;
        }
        close_slice(op);
        if (op->out != NULL) {
            oc_block_put(op->out);
        }
        b->len = 0;
        op->out = b;
        op->out_start = 0;
    }
    return op->out->data + op->out->len;
}

static void commit_bytes(struct oc_svc_list *op, size_t len) {
    op->out->len += len;
    op->bytes += len;
}

static int append_key(struct oc_svc_list *op, struct oc_span key) {
    size_t len = oc_cache_list_key_encode(NULL, 0, key);
    uint8_t *p = reserve(op, len);

    if (p == NULL) {
        return OC_E_EXHAUSTED;
    }
    (void)oc_cache_list_key_encode(p, len, key);
    commit_bytes(op, len);
    return 0;
}

/* An entry without its value (left out), or with one that is at hand. */
static int append_entry(struct oc_svc_list *op, const struct oc_cache_key_value *kv) {
    size_t len = oc_cache_list_entry_encode(NULL, 0, kv);
    uint8_t *p = reserve(op, len);

    if (p == NULL) {
        return OC_E_EXHAUSTED;
    }
    (void)oc_cache_list_entry_encode(p, len, kv);
    commit_bytes(op, len);
    return 0;
}

/* ---- values ---- */

static int append_small(struct oc_svc_list *op, struct oc_span key, const struct oc_object *obj) {
    struct oc_cache_key_value kv = {.key = key, .value_length = (int64_t)obj->len};
    int r = oc_objects_read(op->w->svc->cfg.objects, key, obj, op->scratch->data, false, &kv.value);

    return r == 0 ? append_entry(op, &kv) : r;
}

/* Each chunk becomes a slice of its own; the entry's head goes in front of them. */
static int append_chunks(struct oc_svc_list *op, struct oc_reader *reader, struct oc_span key,
                         const struct oc_object *obj) {
    struct oc_slice chunks[VALUE_BYTES_MAX / OC_CHUNK_BYTES];
    unsigned count = 0;
    int r = 0;

    for (uint64_t at = 0; at < obj->len && r == 0;) {
        struct oc_block *b = new_block(op);
        struct oc_span piece;

        r = b == NULL ? OC_E_EXHAUSTED : oc_reader_chunk(reader, at, b->data, false, &piece);
        if (r == 0 &&
            (piece.len == 0 || piece.len > obj->len - at || count == OC_ARRAY_LEN(chunks))) {
            r = OC_E_DATA_LOSS;
        }
        if (r == 0) {
            chunks[count++] = (struct oc_slice){piece.p, piece.len, &b->ref};
            at += piece.len;
        } else if (b != NULL) {
            oc_block_put(b);
        }
    }
    /* The same bytes as oc_cache_list_entry_encode writes, with the value left to the chunks: key =
     * 1, value = 2, value_length = 3. */
    size_t inner = oc_pb_len_size(1, key.len) + key.len + oc_pb_len_size(2, obj->len) +
                   (size_t)obj->len + oc_pb_uint64_size(3, obj->len);
    size_t head = oc_pb_len_size(1, inner) + oc_pb_len_size(1, key.len) + key.len +
                  oc_pb_len_size(2, obj->len);
    uint8_t *p = r == 0 ? reserve(op, head + OC_PB_VARINT_MAX + 1) : NULL;
    if (p == NULL) {
        while (count > 0) {
            oc_ref_put(chunks[--count].owner);
        }
        return r == 0 ? OC_E_EXHAUSTED : r;
    }
    struct oc_pb_writer w = oc_pb_writer(p, head);
    oc_pb_put_len(&w, 1, inner);
    oc_pb_put_bytes(&w, 1, key);
    oc_pb_put_len(&w, 2, obj->len);
    OC_CHECK(!w.overflow && w.p == p + head);
    commit_bytes(op, head);
    close_slice(op);
    OC_CHECK(op->slice_count + count <= SLICES);
    memcpy(op->slices + op->slice_count, chunks, count * sizeof chunks[0]);
    op->slice_count += count;
    op->bytes += obj->len;
    w = oc_pb_writer(op->out->data + op->out->len, OC_PB_VARINT_MAX + 1);
    oc_pb_put_uint64(&w, 3, obj->len);
    commit_bytes(op, (size_t)(w.p - (op->out->data + op->out->len)));
    return 0;
}

static int append_value(struct oc_svc_list *op, struct oc_span key, const struct oc_object *obj) {
    struct oc_reader *reader = NULL;

    if (obj->len > VALUE_BYTES_MAX) {
        struct oc_cache_key_value kv = {
            .key = key, .value_length = (int64_t)obj->len, .value_omitted = true};

        op->omitted++;
        return append_entry(op, &kv);
    }
    if (obj->len == 0 || oc_object_is_small(obj)) {
        return append_small(op, key, obj);
    }
    int r = oc_reader_open(op->w->svc->cfg.objects, key, obj, &reader, NULL);
    if (r == 0) {
        r = append_chunks(op, reader, key, obj);
        oc_reader_close(reader);
    }
    return r;
}

/* The page is full when the next entry would pass its bytes, or might need more slices than there
 * are. An empty page takes any entry. */
static bool room_for(const struct oc_svc_list *op, const struct oc_object *obj, size_t key_len) {
    uint64_t len = key_len;

    if (op->values && obj->len <= VALUE_BYTES_MAX) {
        len += obj->len;
    }
    return op->emitted == 0 || (op->bytes + len <= PAGE_BYTES && op->slice_count + 8 <= SLICES);
}

/* One entry. 0, OC_E_NOT_FOUND when its object is gone meanwhile, or what ends the page. */
static int append(struct oc_svc_list *op, struct oc_span key, struct oc_object *obj) {
    if (!op->values) {
        return append_key(op, key);
    }
    int r = append_value(op, key, obj);
    if (r == OC_E_NOT_FOUND || r == OC_E_DATA_LOSS) {
        /* Overwritten, deleted, or unreadable since the walk: what is there now counts. */
        r = oc_objects_find(op->w->svc->cfg.objects, key, obj);
        if (r == 0) {
            r = append_value(op, key, obj);
        }
        if (r == OC_E_DATA_LOSS) {
            r = OC_E_NOT_FOUND;
        }
    }
    return r;
}

/* ---- the walk ---- */

/* In the batch block, unaligned: the object, the key's length, the key. */
struct collected {
    struct oc_object obj;
    uint32_t key_len;
};

/* Under the store's locks. Stops when the block is full. */
static int collect(void *arg, struct oc_span key, const struct oc_object *obj) {
    struct oc_svc_list *op = (struct oc_svc_list *)arg;
    struct oc_block *b = op->batch;
    struct collected head = {*obj, (uint32_t)key.len};

    if (b->cap - b->len < sizeof head + key.len) {
        op->batch_full = true;
        return 1;
    }
    memcpy(b->data + b->len, &head, sizeof head);
    memcpy(b->data + b->len + sizeof head, key.p, key.len);
    b->len += sizeof head + key.len;
    return 0;
}

/* Encode what was collected. *more: the page is full and entries are left. */
static int emit_batch(struct oc_svc_list *op, bool *more) {
    for (size_t at = 0; at < op->batch->len;) {
        struct collected head;

        memcpy(&head, op->batch->data + at, sizeof head);
        struct oc_span key = oc_span(op->batch->data + at + sizeof head, head.key_len);
        if (!room_for(op, &head.obj, key.len)) {
            *more = true;
            return 0;
        }
        int r = append(op, key, &head.obj);
        if (r == OC_E_EXHAUSTED && op->emitted > 0) {
            *more = true; /* no buffer for it: the page ends here */
            return 0;
        }
        if (r != 0 && r != OC_E_NOT_FOUND) {
            return r;
        }
        op->emitted += r == 0;
        memcpy(op->names + op->prefix.len, key.p, key.len);
        op->after = oc_span(op->names + op->prefix.len, key.len);
        at += sizeof head + key.len;
    }
    return 0;
}

static int build_page(struct oc_svc_list *op) {
    struct oc_objects *objects = op->w->svc->cfg.objects;
    bool more = false, full = false;

    op->scratch = new_block(op);
    if (op->scratch == NULL) {
        return OC_E_EXHAUSTED;
    }
    /* Another round only when the block was full before the limit; no key has a prefix that is too
     * long. */
    op->batch_full = op->prefix.len <= OC_KEY_MAX;
    while (op->batch_full && !full && op->emitted < op->limit) {
        op->batch_full = false;
        op->batch->len = 0;
        int r = oc_objects_list(objects, op->prefix, op->after, op->limit - op->emitted, collect,
                                op, &more);
        if (r >= 0) {
            r = emit_batch(op, &full);
        }
        if (r < 0) {
            return r;
        }
    }
    more = more || full || op->batch_full;
    size_t len = oc_cache_list_tail_encode(NULL, 0, more ? op->after : OC_SPAN_EMPTY, more);
    uint8_t *p = reserve(op, len);
    if (p == NULL) {
        return OC_E_EXHAUSTED;
    }
    (void)oc_cache_list_tail_encode(p, len, more ? op->after : OC_SPAN_EMPTY, more);
    commit_bytes(op, len);
    close_slice(op);
    return 0;
}

/* ---- the call ---- */

static void drop_block(struct oc_block **b) {
    if (*b != NULL) {
        oc_block_put(OC_TAKE(*b));
    }
}

static void list_release(struct oc_svc_list *op) {
    struct oc_svc_worker *w = op->w;

    if (op->call != NULL) {
        oc_call_set_user(op->call, NULL);
        op->call = NULL;
    }
    oc_svc_wait_cancel(w, &op->waiter);
    if (op->task_runs) {
        return; /* freed when it comes back */
    }
    while (op->slice_count > 0) {
        oc_ref_put(op->slices[--op->slice_count].owner);
    }
    drop_block(&op->batch);
    drop_block(&op->scratch);
    drop_block(&op->out);
    free(op->names);
    (void)oc_svc_hold_key(w->svc, &op->names_held, 0); /* gives back only */
    oc_pool_put(&w->lists, op);
    w->live--;
}

static void list_fail(struct oc_svc_list *op, int code) {
    struct oc_svc_worker *w = op->w;
    struct oc_call *call = op->call;

    list_release(op);
    if (code == OC_E_EXHAUSTED) {
        oc_svc_refuse(w, call, code, "too many requests at once: no buffer is free");
    } else {
        oc_svc_fail(w, call, code);
    }
}

static void run_list(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);
    struct oc_svc_list *op = OC_CONTAINER(task, struct oc_svc_list, task);

    op->result = build_page(op);
}

static void list_done(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);
    struct oc_svc_list *op = OC_CONTAINER(task, struct oc_svc_list, task);
    struct oc_svc_worker *w = op->w;
    struct oc_call *call = op->call;

    op->task_runs = false;
    if (call == NULL) {
        list_release(op);
        return;
    }
    if (op->result != 0) {
        list_fail(op, op->result);
        return;
    }
    oc_svc_count(w->svc, OC_SVC_X_values_omitted, (int64_t)op->omitted);
    oc_call_set_user(call, NULL);
    op->call = NULL;
    if (op->slice_count == 0) {
        (void)oc_call_send_copy(call, OC_SPAN_EMPTY); /* an empty page is an empty message */
    } else {
        (void)oc_call_send(call, op->slices, op->slice_count); /* the only message */
    }
    list_release(op);
    oc_call_finish(call, 0, OC_SPAN_EMPTY);
}

static void start_list(struct oc_svc_list *op, struct oc_block *batch) {
    struct oc_svc *s = op->w->svc;

    op->batch = batch;
    op->task_runs = true;
    op->task.job.run = run_list;
    op->task.job.done = list_done;
    oc_svc_submit(op->w, op->values ? s->bulk_movers : s->read_movers, &op->task);
}

static void got_block(struct oc_svc_waiter *waiter, struct oc_block *block) {
    start_list(OC_CONTAINER(waiter, struct oc_svc_list, waiter), block);
}

static void gave_up(struct oc_svc_waiter *waiter) {
    list_fail(OC_CONTAINER(waiter, struct oc_svc_list, waiter), OC_E_EXHAUSTED);
}

static struct oc_svc_list *list_new(struct oc_svc_worker *w,
                                    const struct oc_cache_list_request *m) {
    struct oc_svc_list *op = (struct oc_svc_list *)oc_pool_get(&w->lists);

    if (op == NULL) {
        return NULL;
    }
    struct oc_span after = m->continuation_token.len > 0 ? m->continuation_token : m->start_key;
    if (after.len > OC_KEY_MAX) {
        after.len = OC_KEY_MAX; /* no key lies between it and its first OC_KEY_MAX bytes */
    }
    if (oc_svc_hold_key(w->svc, &op->names_held, m->prefix.len + after.len)) {
        op->names = (uint8_t *)malloc(m->prefix.len + OC_KEY_MAX);
    }
    if (op->names == NULL) {
        (void)oc_svc_hold_key(w->svc, &op->names_held, 0); /* gives back only */
        oc_pool_put(&w->lists, op);
        return NULL;
    }
    w->live++;
    op->w = w;
    oc_list_init(&op->task.link);
    oc_list_init(&op->waiter.link);
    if (m->prefix.len > 0) {
        memcpy(op->names, m->prefix.p, m->prefix.len);
    }
    if (after.len > 0) {
        memcpy(op->names + m->prefix.len, after.p, after.len);
    }
    op->prefix = oc_span(op->names, m->prefix.len);
    op->after = oc_span(op->names + m->prefix.len, after.len);
    op->limit = m->limit <= 0 || (uint32_t)m->limit > LIMIT_MAX ? LIMIT_MAX : (size_t)m->limit;
    return op;
}

static void list(struct oc_call *call, struct oc_span message, bool values) {
    struct oc_svc_worker *w = oc_svc_worker_of(call);
    struct oc_cache_list_request m;

    if (oc_cache_list_request_decode(message, &m) != 0) {
        oc_svc_malformed(w, call);
        return;
    }
    struct oc_svc_list *op = list_new(w, &m);
    if (op == NULL) {
        oc_svc_refuse(w, call, OC_E_EXHAUSTED, "too many requests at once: no memory is free");
        return;
    }
    op->values = values;
    op->call = call;
    oc_call_set_user(call, op);
    struct oc_block *batch = oc_svc_block_get(w, OC_SVC_LARGE);
    if (batch != NULL) {
        batch->len = 0;
        start_list(op, batch);
        return;
    }
    op->waiter.got = got_block;
    op->waiter.gave_up = gave_up;
    int r = oc_svc_wait(w, &op->waiter, call, OC_SVC_LARGE);
    if (r != 0) {
        list_fail(op, r);
    }
}

void oc_svc_list_message(struct oc_call *call, struct oc_span message) {
    list(call, message, false);
}

void oc_svc_list_values_message(struct oc_call *call, struct oc_span message) {
    list(call, message, true);
}

void oc_svc_list_closed(struct oc_call *call, int code) {
    struct oc_svc_list *op = (struct oc_svc_list *)oc_call_user(call);

    (void)code; /* whatever ended it */
    if (op != NULL) {
        list_release(op);
    }
}
