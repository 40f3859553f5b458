/* What operations send: requests encoded in place, values referenced where they lie, and the blocks
 * of uploads that come from a reader. */
#include <stdlib.h>
#include <string.h>

#include "client/client_internal.h"

/* The bytes of a message in front of its data; the connection holds it until they are sent. */
struct head {
    struct oc_ref ref;
    size_t len;
    uint8_t bytes[];
};

static void head_release(struct oc_ref *ref) {
    free(OC_CONTAINER(ref, struct head, ref));
}

static struct head *put_head(struct oc_span key, int64_t ttl_s, uint64_t data_len) {
    size_t len = oc_cache_put_request_head(NULL, 0, key, ttl_s, data_len);
    struct head *head = malloc(sizeof *head + len);

    if (head != NULL) {
        oc_ref_init(&head->ref, head_release);
        head->len = oc_cache_put_request_head(head->bytes, len, key, ttl_s, data_len);
    }
    return head;
}

enum sent { SENT_MORE, SENT_WAIT, SENT_NO_MEMORY };

static enum sent send_put(struct cl_op *op, bool first, struct oc_span data, struct oc_ref *owner) {
    struct oc_span key = first ? op->key : OC_SPAN_EMPTY;
    int64_t ttl_s = first && op->opt.ttl_s > 0 ? op->opt.ttl_s : 0;
    size_t head_len = oc_cache_put_request_head(NULL, 0, key, ttl_s, data.len);

    if (head_len + data.len <= CL_SMALL_MESSAGE) {
        uint8_t small[CL_SMALL_MESSAGE];

        (void)oc_cache_put_request_head(small, sizeof small, key, ttl_s, data.len);
        if (data.len > 0) {
            memcpy(small + head_len, data.p, data.len);
        }
        return oc_client_call_send_copy(op->call, oc_span(small, head_len + data.len)) ? SENT_MORE
                                                                                       : SENT_WAIT;
    }
    struct head *head = put_head(key, ttl_s, data.len);
    if (head == NULL) {
        return SENT_NO_MEMORY;
    }
    struct oc_slice slices[2] = {{head->bytes, head->len, &head->ref}, {data.p, data.len, owner}};
    bool more = oc_client_call_send(op->call, slices, 2);
    oc_ref_put(&head->ref);
    return more ? SENT_MORE : SENT_WAIT;
}

/* ---- values in memory ---- */

static bool put_whole(struct cl_op *op) {
    if (send_put(op, true, op->value, NULL) == SENT_NO_MEMORY) {
        return false;
    }
    oc_client_call_half_close(op->call);
    return true;
}

static bool put_more(struct cl_op *op) {
    enum sent sent = SENT_MORE;

    while (sent == SENT_MORE && (op->put_offset < op->value.len || !op->first_sent)) {
        size_t left = op->value.len - (size_t)op->put_offset;
        size_t len = left < CL_MESSAGE_BYTES ? left : CL_MESSAGE_BYTES;

        sent = send_put(op, !op->first_sent, oc_span(op->value.p + op->put_offset, len), NULL);
        op->first_sent = true;
        op->put_offset += len;
    }
    if (sent == SENT_NO_MEMORY) {
        return false;
    }
    if (op->put_offset == op->value.len) {
        oc_client_call_half_close(op->call);
    }
    return true;
}

void cl_request_writable(struct cl_op *op) {
    op->progress_ns = oc_loop_now(op->client->loop).mono_ns;
    if (op->kind == CL_PUT && op->put_offset < op->value.len && !put_more(op)) {
        cl_op_abort(op, OCACHE_RESOURCE_EXHAUSTED, "out of memory");
    }
}

/* ---- blocks ---- */

static void block_release(struct oc_ref *ref) {
    struct cl_block *block = OC_CONTAINER(ref, struct cl_block, ref);

    if (block->op != NULL) { /* the connection lets go of everything before an operation ends */
        block->op->blocks_out--;
        block->op->progress_ns = oc_loop_now(block->op->client->loop).mono_ns;
        block->op = NULL;
    }
    block->feed->returned(block->feed, block);
}

struct cl_block *cl_feed_take(struct cl_feed *feed) {
    struct cl_block *block = feed->blocks;

    if (block != NULL) {
        feed->blocks = block->next;
    } else if (feed->allocated < CL_BLOCKS) {
        block = malloc(sizeof *block);
        if (block == NULL) {
            return NULL;
        }
        feed->allocated++;
        block->feed = feed;
    } else {
        return NULL;
    }
    block->next = NULL;
    block->op = NULL;
    block->len = 0;
    oc_ref_init(&block->ref, block_release);
    return block;
}

void cl_feed_put(struct cl_feed *feed, struct cl_block *block) {
    block->next = feed->blocks;
    feed->blocks = block;
}

void cl_feed_done(struct cl_feed *feed) {
    while (feed->blocks != NULL) {
        struct cl_block *next = feed->blocks->next;

        free(feed->blocks);
        feed->blocks = next;
        feed->allocated--;
    }
    OC_CHECK(feed->allocated == 0);
}

void cl_block_fill(struct cl_block *block, ocache_read_fn read, void *user) {
    block->kind = CL_BLOCK_MORE;
    while (block->len < CL_BLOCK_BYTES) {
        size_t room = CL_BLOCK_BYTES - block->len;
        ptrdiff_t n = read(user, block->data + block->len, room);

        if (n == 0) {
            block->kind = CL_BLOCK_LAST;
            return;
        }
        if (n == OCACHE_READ_LATER) {
            return;
        }
        if (n < 0 || (size_t)n > room) {
            block->kind = CL_BLOCK_FAILED;
            return;
        }
        block->len += (size_t)n;
    }
}

void cl_block_send(struct cl_op *op, struct cl_block *block) {
    bool live = op->call != NULL && !oc_client_call_ended(op->call);
    enum sent sent = SENT_MORE;

    op->fed = true;
    if (live && block->kind == CL_BLOCK_FAILED) {
        cl_op_abort(op, OCACHE_CANCELLED, "the reader gave up");
    } else if (live) {
        if (block->len > 0 || !op->first_sent) {
            block->op = op;
            op->blocks_out++;
            sent = send_put(op, !op->first_sent, oc_span(block->data, block->len), &block->ref);
            op->first_sent = true;
        }
        if (sent == SENT_NO_MEMORY) {
            cl_op_abort(op, OCACHE_RESOURCE_EXHAUSTED, "out of memory");
        } else if (block->kind == CL_BLOCK_LAST) {
            op->ended_input = true;
            oc_client_call_half_close(op->call);
        }
    }
    oc_ref_put(&block->ref);
}

/* ---- the reader that runs on the loop thread ---- */

static void on_returned(struct cl_feed *feed, struct cl_block *block) {
    struct cl_op *op = OC_CONTAINER(feed, struct cl_op, feed);

    cl_feed_put(feed, block);
    cl_read_more(op);
}

void cl_read_more(struct cl_op *op) {
    if (op->in_read) {
        return; /* the loop below sees to it */
    }
    op->in_read = true;
    op->feed.returned = on_returned;
    while (!op->ended_input && op->call != NULL && !oc_client_call_ended(op->call)) {
        struct cl_block *block = cl_feed_take(&op->feed);

        if (block == NULL) {
            if (op->feed.allocated == 0) {
                cl_op_abort(op, OCACHE_RESOURCE_EXHAUSTED, "out of memory");
            }
            break;
        }
        cl_block_fill(block, op->read, op->user);
        if (block->kind == CL_BLOCK_MORE && block->len < CL_BLOCK_BYTES) {
            /* Nothing more is at hand: send what there is, come back with ocache_resume. */
            if (block->len == 0) {
                cl_feed_put(&op->feed, block);
            } else {
                cl_block_send(op, block);
            }
            break;
        }
        cl_block_send(op, block);
    }
    op->in_read = false;
}

/* ---- the small requests ---- */

static bool send_encoded(struct cl_op *op,
                         size_t (*encode)(const struct cl_op *op, void *dst, size_t cap)) {
    uint8_t small[CL_SMALL_MESSAGE];
    size_t len = encode(op, small, sizeof small);

    if (len <= sizeof small) {
        (void)oc_client_call_send_copy(op->call, oc_span(small, len));
    } else {
        uint8_t *big = malloc(len);

        if (big == NULL) {
            return false;
        }
        (void)encode(op, big, len);
        (void)oc_client_call_send_copy(op->call, oc_span(big, len));
        free(big);
    }
    oc_client_call_half_close(op->call);
    return true;
}

static size_t encode_get(const struct cl_op *op, void *dst, size_t cap) {
    struct oc_cache_get_request m = {op->key, op->opt.start, op->opt.end};

    return oc_cache_get_request_encode(dst, cap, &m);
}

static size_t encode_delete(const struct cl_op *op, void *dst, size_t cap) {
    return oc_cache_delete_request_encode(dst, cap, op->key);
}

static size_t encode_list(const struct cl_op *op, void *dst, size_t cap) {
    struct oc_cache_list_request m = {
        .prefix = op->key,
        .start_key = op->start_key,
        .limit = op->limit,
        .continuation_token = op->token,
    };

    return oc_cache_list_request_encode(dst, cap, &m);
}

static size_t encode_topology(const struct cl_op *op, void *dst, size_t cap) {
    (void)op;
    (void)dst;
    (void)cap;
    return 0;
}

bool cl_request_send(struct cl_op *op) {
    switch (op->kind) {
    case CL_PUT:
        op->put_offset = 0;
        op->first_sent = false;
        return op->opt.force_stream || op->value.len > CL_UNARY_MAX ? put_more(op) : put_whole(op);
    case CL_PUT_STREAM:
        op->first_sent = false;
        return true; /* the reader begins when the call is on a connection */
    case CL_GET:
    case CL_GET_STREAM:
        return send_encoded(op, encode_get);
    case CL_DELETE:
        return send_encoded(op, encode_delete);
    case CL_LIST:
    case CL_LIST_VALUES:
        return send_encoded(op, encode_list);
    default:
        return send_encoded(op, encode_topology);
    }
}
