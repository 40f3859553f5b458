/* PutObject, Put and Delete up to the commit: the request is parsed as it arrives and the value
 * copied once, into the call's own memory, a small buffer, or chunk after chunk of a large one.
 * Nothing here blocks. */
#include <stdlib.h>

#include "object/internal.h"

#define WRITES_KEPT 256u

static const char no_memory[] = "too many uploads at once: no buffer is free";

static int data_begin(void *user, uint64_t total);
static int data_piece(void *user, struct oc_span piece);
static const struct oc_cache_put_events events = {data_begin, data_piece};

static void got_block(struct oc_svc_waiter *waiter, struct oc_block *block);
static void gave_up(struct oc_svc_waiter *waiter);

static struct oc_svc_write *write_alloc(struct oc_svc_worker *w) {
    struct oc_svc_write *op = w->free_writes;

    if (op != NULL) {
        w->free_writes = op->next_free;
        w->free_write_count--;
    } else {
        op = (struct oc_svc_write *)malloc(sizeof *op);
    }
    if (op != NULL) {
        memset(op, 0, offsetof(struct oc_svc_write, next_free));
    }
    return op;
}

static void write_give(struct oc_svc_worker *w, struct oc_svc_write *op) {
    if (w->free_write_count >= WRITES_KEPT) {
        free(op);
        return;
    }
    op->next_free = w->free_writes;
    w->free_writes = op;
    w->free_write_count++;
}

void oc_svc_writes_done(struct oc_svc_worker *w) {
    while (w->free_writes != NULL) {
        struct oc_svc_write *op = w->free_writes;

        w->free_writes = op->next_free;
        free(op);
    }
}

struct oc_svc_write *oc_svc_write_new(struct oc_svc_worker *w, struct oc_call *call) {
    struct oc_svc_write *op = write_alloc(w);

    if (op == NULL) {
        return NULL;
    }
    w->live++;
    op->w = w;
    op->call = call;
    op->fill = op->local;
    op->fill_cap = sizeof op->local;
    oc_list_init(&op->link);
    oc_list_init(&op->waiter.link);
    oc_list_init(&op->task.link);
    oc_buf_init(&op->spill, OC_SVC_SPILL_MAX);
    oc_call_set_user(call, op);
    return op;
}

static void drop_buffers(struct oc_svc_write *op) {
    if (op->block != NULL) {
        oc_block_put(OC_TAKE(op->block));
    }
    if (op->spare != NULL) {
        oc_block_put(OC_TAKE(op->spare));
    }
    while (op->chunk_count > 0) {
        oc_block_put(op->chunks[op->chunk_first++ % OC_SVC_CHUNKS]);
        op->chunk_count--;
    }
    oc_buf_done(&op->spill);
    oc_buf_init(&op->spill, OC_SVC_SPILL_MAX);
}

void oc_svc_write_free(struct oc_svc_write *op) {
    struct oc_svc_worker *w = op->w;

    OC_CHECK(!op->pending && !op->committing && !op->task_runs && op->upload == NULL);
    drop_buffers(op);
    if (!op->is_delete) {
        oc_cache_put_stream_done(&op->in);
    }
    free(op->big_key);
    (void)oc_svc_hold_key(w->svc, &op->key_held, 0); /* gives back only */
    write_give(w, op);
    w->live--;
}

void oc_svc_write_release(struct oc_svc_write *op) {
    if (op->call != NULL) {
        oc_call_set_user(op->call, NULL);
        op->call = NULL;
    }
    oc_svc_wait_cancel(op->w, &op->waiter);
    if (op->pending) {
        oc_svc_commit_cancel(op);
    }
    /* What a mover or a commit holds is cleaned up when it comes back. */
    if (op->committing || op->task_runs) {
        return;
    }
    drop_buffers(op);
    if (op->upload != NULL) {
        oc_svc_upload_release(op);
        return;
    }
    oc_svc_write_free(op);
}

void oc_svc_write_fail(struct oc_svc_write *op, int code, const char *text) {
    struct oc_call *call = op->call;
    struct oc_svc_worker *w = op->w;

    oc_svc_write_release(op);
    if (call == NULL) {
        return;
    }
    if (text != NULL) {
        oc_svc_refuse(w, call, code, text);
    } else {
        oc_svc_fail(w, call, code);
    }
}

void oc_svc_write_credit(struct oc_svc_write *op, size_t bytes) {
    op->unconsumed += bytes;
    if (op->call != NULL && !op->waiting && op->chunk_count < 2 && op->unconsumed > 0) {
        size_t n = op->unconsumed;

        op->unconsumed = 0;
        oc_call_consumed(op->call, n);
    }
}

/* ---- collecting the value ---- */

static void use_block(struct oc_svc_write *op, struct oc_block *block, size_t cap) {
    if (op->fill_len > 0) {
        memcpy(block->data, op->fill, op->fill_len);
    }
    if (op->block != NULL) {
        oc_block_put(op->block);
    }
    op->block = block;
    op->fill = block->data;
    op->fill_cap = cap;
}

/* More room behind fill_len. 0, OC_AGAIN when the caller must spill (a buffer is being waited for),
 * or OC_E_EXHAUSTED. */
static int make_room(struct oc_svc_write *op, size_t wanted) {
    if (op->fill_len == OC_CHUNK_BYTES) {
        int r = oc_svc_upload_chunk(op);

        if (r != 0) {
            return r;
        }
    }
    size_t need = op->fill_len + wanted;
    bool small =
        op->flushed == 0 && need <= OC_SVC_SMALL_BLOCK && op->fill_cap < OC_SVC_SMALL_BLOCK;
    enum oc_svc_block size = small ? OC_SVC_SMALL : OC_SVC_BULK;
    struct oc_block *block = op->spare != NULL ? OC_TAKE(op->spare) : oc_svc_block_get(op->w, size);
    if (block == NULL) {
        op->waiter.got = got_block;
        op->waiter.gave_up = gave_up;
        int r = oc_svc_wait(op->w, &op->waiter, op->call, size);

        op->waiting = r == 0;
        return r == 0 ? OC_AGAIN : r;
    }
    use_block(op, block, small ? OC_SVC_SMALL_BLOCK : OC_CHUNK_BYTES);
    return 0;
}

/* A chunk is queued only when a byte comes behind it: a value of exactly one chunk stays one
 * record. */
static int store(struct oc_svc_write *op, struct oc_span piece) {
    while (piece.len > 0) {
        if (op->fill_len == op->fill_cap) {
            int r = make_room(op, piece.len);

            if (r == OC_AGAIN) {
                return oc_buf_append(&op->spill, piece.p, piece.len);
            }
            if (r != 0) {
                return r;
            }
        }
        size_t room = op->fill_cap - op->fill_len;
        size_t n = piece.len < room ? piece.len : room;

        memcpy(op->fill + op->fill_len, piece.p, n);
        op->fill_len += n;
        piece.p += n;
        piece.len -= n;
    }
    return 0;
}

static int data_begin(void *user, uint64_t total) {
    struct oc_svc_write *op = (struct oc_svc_write *)user;
    uint64_t len = oc_svc_write_len(op);

    if (op->data_seen && len > op->message_start) {
        /* The field came before in this message and its last occurrence counts. What has left the
         * buffer cannot be taken back; no encoder writes such a message. */
        if (op->waiting || op->flushed > op->message_start) {
            return OC_E_INVALID;
        }
        op->fill_len = (size_t)(op->message_start - op->flushed);
    }
    op->data_seen = true;
    /* The size is known and over what is at hand: take the right buffer at once. */
    if (!op->waiting && total > 0 && op->flushed == 0 && op->fill_len < OC_CHUNK_BYTES &&
        op->fill_len + total > op->fill_cap) {
        uint64_t need = op->fill_len + total;
        size_t wanted = need < OC_CHUNK_BYTES ? (size_t)total : OC_CHUNK_BYTES - op->fill_len;
        int r = make_room(op, wanted);

        return r == OC_AGAIN ? 0 : r;
    }
    return 0;
}

static int data_piece(void *user, struct oc_span piece) {
    struct oc_svc_write *op = (struct oc_svc_write *)user;

    if (op->waiting) {
        return oc_buf_append(&op->spill, piece.p, piece.len);
    }
    return store(op, piece);
}

/* Everything is here: commit it, or first the rest of an upload. */
static void complete(struct oc_svc_write *op) {
    if (op->flushed > 0) {
        oc_svc_upload_end(op);
        return;
    }
    op->write.value = (struct oc_slice){.p = op->fill, .len = op->fill_len};
    oc_svc_commit_add(op);
}

static void got_block(struct oc_svc_waiter *waiter, struct oc_block *block) {
    struct oc_svc_write *op = OC_CONTAINER(waiter, struct oc_svc_write, waiter);
    struct oc_buf spill = op->spill;

    op->waiting = false;
    use_block(op, block, waiter->size == OC_SVC_SMALL ? OC_SVC_SMALL_BLOCK : OC_CHUNK_BYTES);
    oc_buf_init(&op->spill, OC_SVC_SPILL_MAX);
    int r = store(op, oc_buf_span(&spill));
    oc_buf_done(&spill);
    if (r != 0) {
        oc_svc_write_fail(op, OC_E_EXHAUSTED, no_memory);
        return;
    }
    if (op->waiting) {
        return;
    }
    if (op->half_closed) {
        complete(op);
    } else {
        oc_svc_write_credit(op, 0);
    }
}

void oc_svc_write_recycle(struct oc_svc_write *op, struct oc_block *block) {
    if (op->call != NULL && op->waiting) {
        oc_svc_wait_cancel(op->w, &op->waiter);
        op->waiter.size = OC_SVC_BULK;
        got_block(&op->waiter, block);
    } else if (op->call != NULL && op->block == NULL && op->spare == NULL && !op->all_queued) {
        op->spare = block;
    } else {
        oc_block_put(block);
    }
}

static void gave_up(struct oc_svc_waiter *waiter) {
    oc_svc_write_fail(OC_CONTAINER(waiter, struct oc_svc_write, waiter), OC_E_EXHAUSTED, no_memory);
}

/* ---- the calls ---- */

void oc_svc_put_start(struct oc_call *call, void *service) {
    struct oc_svc_worker *w = oc_svc_worker_of(call);
    struct oc_svc_write *op = oc_svc_write_new(w, call);

    (void)service; /* reached through the worker */
    if (op == NULL) {
        oc_svc_refuse(w, call, OC_E_EXHAUSTED, no_memory);
        return;
    }
    oc_cache_put_stream_init(&op->in, OC_KEY_MAX, &events, op);
}

/* The first message decides key and ttl, so a bad key is refused before the value is sent. */
static int check_first(struct oc_svc_write *op, const char **text) {
    struct oc_span key = oc_buf_span(&op->in.key);

    return oc_svc_admit(OC_SVC_PUT, key, op->in.key_len, text);
}

/* Returns 0 or the status, with *text NULL for the plain text of the code. */
static int take_piece(struct oc_svc_write *op, struct oc_span bytes, bool end, const char **text) {
    int r = oc_cache_put_stream_feed(&op->in, bytes);

    if (r == 0 && end) {
        r = oc_cache_put_stream_finish(&op->in);
    }
    if (op->in.key_len > OC_KEY_MAX) {
        return check_first(op, text);
    }
    if (r == 0 &&
        !oc_svc_hold_key(op->w->svc, &op->key_held, op->in.key.cap + op->in.pb.collected.cap)) {
        r = OC_E_EXHAUSTED;
    }
    if (r == 0) {
        return end && op->in.messages == 1 ? check_first(op, text) : 0;
    }
    if (r == OC_E_EXHAUSTED) {
        *text = no_memory;
    }
    return r;
}

void oc_svc_put_piece(struct oc_call *call, struct oc_span bytes, uint64_t message_len, bool begin,
                      bool end) {
    struct oc_svc_write *op = (struct oc_svc_write *)oc_call_user(call);
    const char *text = NULL;

    if (op == NULL) {
        /* Answered already; what is still on its way is thrown away. */
        oc_call_consumed(call, bytes.len);
        return;
    }
    if (begin) {
        op->message_start = oc_svc_write_len(op);
        op->data_seen = false;
        oc_cache_put_stream_begin(&op->in, message_len);
    }
    int r = take_piece(op, bytes, end, &text);
    if (r == 0) {
        oc_svc_write_credit(op, bytes.len);
        return;
    }
    oc_call_consumed(call, bytes.len);
    if (r == OC_E_INVALID && text == NULL) {
        struct oc_svc_worker *w = op->w;

        oc_svc_write_release(op);
        oc_svc_malformed(w, call);
        return;
    }
    oc_svc_write_fail(op, r, text);
}

void oc_svc_put_half_closed(struct oc_call *call) {
    struct oc_svc_write *op = (struct oc_svc_write *)oc_call_user(call);

    if (op == NULL) {
        return;
    }
    if (op->in.messages == 0) {
        oc_svc_write_fail(op, OC_E_INVALID, "no message: a put needs at least one, with the key");
        return;
    }
    op->half_closed = true;
    op->write.key = oc_buf_span(&op->in.key);
    op->write.expires_at_s =
        oc_svc_expiry_s(oc_svc_now_s(op->w), op->in.ttl_seconds, op->w->svc->cfg.default_ttl_s);
    if (!op->waiting) {
        complete(op);
    }
}

void oc_svc_delete_message(struct oc_call *call, struct oc_span message) {
    struct oc_svc_worker *w = oc_svc_worker_of(call);
    struct oc_span key;
    const char *text = NULL;

    if (oc_cache_delete_request_decode(message, &key) != 0) {
        oc_svc_malformed(w, call);
        return;
    }
    int r = oc_svc_admit(OC_SVC_DELETE, key, key.len, &text);
    if (r != 0) {
        oc_svc_refuse(w, call, r, text);
        return;
    }
    struct oc_svc_write *op = oc_svc_write_new(w, call);
    if (op == NULL) {
        oc_svc_refuse(w, call, OC_E_EXHAUSTED, no_memory);
        return;
    }
    op->is_delete = true;
    uint8_t *copy = op->local;
    if (key.len > sizeof op->local) {
        bool held = oc_svc_hold_key(w->svc, &op->key_held, key.len);

        copy = op->big_key = held ? (uint8_t *)malloc(key.len) : NULL;
        if (copy == NULL) {
            oc_svc_write_fail(op, OC_E_EXHAUSTED, no_memory);
            return;
        }
    }
    memcpy(copy, key.p, key.len);
    op->write.is_delete = true;
    op->write.key = oc_span(copy, key.len);
    oc_svc_commit_add(op);
}

void oc_svc_write_closed(struct oc_call *call, int code) {
    struct oc_svc_write *op = (struct oc_svc_write *)oc_call_user(call);

    (void)code; /* whatever ended it: nobody hears the answer, and nothing uncommitted is kept */
    if (op != NULL) {
        oc_svc_write_release(op);
    }
}
