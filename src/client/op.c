/* Operations: from submission to their one end. An operation makes one call, or two when the first
 * could not have had any effect that matters (see should_repeat). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client_internal.h"

static void op_try(struct cl_op *op);

static const char *path_of(const struct cl_op *op) {
    switch (op->kind) {
    case CL_PUT:
        return op->opt.force_stream || op->value.len > CL_UNARY_MAX
                   ? "/cache.CacheService/Put"
                   : "/cache.CacheService/PutObject";
    case CL_PUT_STREAM:
        return "/cache.CacheService/Put";
    case CL_GET:
    case CL_GET_STREAM:
        return "/cache.CacheService/Get";
    case CL_DELETE:
        return "/cache.CacheService/Delete";
    case CL_LIST:
        return "/cache.CacheService/List";
    case CL_LIST_VALUES:
        return "/cache.CacheService/ListWithValues";
    default:
        return "/cache.CacheService/GetTopology";
    }
}

static bool is_short(enum cl_kind kind, size_t value_len) {
    switch (kind) {
    case CL_PUT:
        return value_len <= CL_UNARY_MAX;
    case CL_PUT_STREAM:
    case CL_GET:
    case CL_GET_STREAM:
        return false;
    default:
        return true;
    }
}

/* ---- life ---- */

static struct oc_span copy_string(struct cl_op *op, size_t *at, struct oc_span s) {
    uint8_t *p = op->strings + *at;

    if (s.len > 0) {
        memcpy(p, s.p, s.len);
    }
    *at += s.len;
    return oc_span(p, s.len);
}

struct cl_op *cl_op_new(struct ocache_client *client, enum cl_kind kind,
                        const struct ocache_options *opt, struct oc_span key,
                        struct oc_span start_key, struct oc_span token, struct oc_span value) {
    size_t strings, total, at = 0;

    OC_MAGIC_CHECK(client, CL_CLIENT_MAGIC);
    if (!oc_add_ok(key.len, start_key.len, &strings) || !oc_add_ok(strings, token.len, &strings) ||
        !oc_add_ok(strings, sizeof(struct cl_op), &total)) {
        return NULL;
    }
    struct cl_op *op = malloc(total);
    if (op == NULL) {
        return NULL;
    }
    memset(op, 0, sizeof *op);
    op->magic = CL_OP_MAGIC;
    op->kind = kind;
    op->client = client;
    op->addr = SIZE_MAX;
    op->key = copy_string(op, &at, key);
    op->start_key = copy_string(op, &at, start_key);
    op->token = copy_string(op, &at, token);
    if (opt != NULL) {
        op->opt = *opt;
    }
    op->value = value;
    if (op->opt.deadline_ms == 0) {
        op->stall_watched = !is_short(kind, value.len);
        op->opt.deadline_ms = op->stall_watched ? OCACHE_NO_DEADLINE : client->cfg.deadline_ms;
    }
    oc_list_init(&op->link);
    oc_pb_stream_init(&op->pb, &cl_get_pb, op);
    op->id = atomic_fetch_add_explicit(&client->next_id, 1, memory_order_relaxed);
    return op;
}

static void op_free(struct cl_op *op) {
    struct ocache_client *client = op->client;

    if (!oc_list_empty(&op->link)) {
        oc_list_remove(&op->link);
        client->op_count--;
        if (op->stall_watched) {
            cl_stall_watch(client, -1);
        }
    }
    cl_feed_done(&op->feed);
    oc_pb_stream_done(&op->pb);
    free(op->gathered);
    ocache_list_free(op->list);
    ocache_topology_free(op->topology);
    op->magic = 0;
    free(op);
}

static void op_finish(struct cl_op *op) {
    if (op->result.code == OCACHE_OK) {
        op->message[0] = 0;
        op->result.value = op->gathered;
        op->result.value_len = op->gathered_len;
        op->result.list = op->list;
        op->result.topology = op->topology;
    }
    op->result.message = op->message;
    op->done(op->user, &op->result);
    op_free(op);
}

void cl_op_set_end(struct cl_op *op, int code, struct oc_span text) {
    op->result.code = code;
    (void)snprintf(op->message, sizeof op->message, "%.*s",
                   (int)(text.len < sizeof op->message ? text.len : sizeof op->message - 1),
                   (const char *)(text.len == 0 ? (const void *)"" : text.p));
    if (code != OCACHE_OK && op->message[0] == 0) {
        (void)snprintf(op->message, sizeof op->message, "%s", ocache_strerror(code));
    }
}

static void on_finish_letter(struct oc_letter *letter) {
    op_finish(OC_CONTAINER(letter, struct cl_op, letter));
}

/* For ends that are found while the operation is being started: `done` must not run inside of that.
 */
static void finish_later(struct cl_op *op, int code, const char *text) {
    cl_op_set_end(op, code, oc_span_str(text));
    op->letter.fn = on_finish_letter;
    oc_loop_post(op->client->loop, &op->letter);
}

/* ---- calls ---- */

/* `delivered` covers reads; a put from memory is as good as new; a put from a reader is one only
 * when nothing was read and the server cannot have begun it. */
static bool should_repeat(const struct cl_op *op, const struct oc_client_call *call, int code) {
    if (code != OC_E_UNAVAILABLE || op->tries != 1 || op->delivered || op->client->freeing) {
        return false;
    }
    return op->kind != CL_PUT_STREAM || (!op->fed && oc_client_call_unprocessed(call));
}

static void on_started(struct oc_client_call *call) {
    struct cl_op *op = oc_client_call_user(call);

    op->progress_ns = oc_loop_now(op->client->loop).mono_ns;
    if (op->kind == CL_PUT_STREAM) {
        op->begin_feed(op);
    }
}

static void on_writable(struct oc_client_call *call) {
    cl_request_writable(oc_client_call_user(call));
}

static void on_closed(struct oc_client_call *call, int code, struct oc_span message) {
    struct cl_op *op = oc_client_call_user(call);

    OC_MAGIC_CHECK(op, CL_OP_MAGIC);
    op->call = NULL;
    if (op->forced_code != 0) {
        cl_op_set_end(op, op->forced_code, oc_span_str(op->forced_text));
    } else if (should_repeat(op, call, code)) {
        op->gathered_len = 0;
        op->put_offset = 0;
        op->answered = false;
        op_try(op);
        return;
    } else if (code == 0 && !op->answered && op->kind != CL_GET && op->kind != CL_GET_STREAM) {
        cl_op_set_end(op, OCACHE_INTERNAL, OC_SPAN_LIT("the server sent no response message"));
    } else if (code != 0 || op->result.code == OCACHE_OK) {
        cl_op_set_end(op, -code, message); /* else the response message itself told of a failure */
    }
    op_finish(op);
}

static const struct oc_client_events unary_events = {
    .started = on_started,
    .message = cl_on_message,
    .writable = on_writable,
    .closed = on_closed,
};

static const struct oc_client_events get_events = {
    .started = on_started,
    .piece = cl_on_piece,
    .closed = on_closed,
};

static void op_try(struct cl_op *op) {
    uint64_t deadline_ms = op->opt.deadline_ms == OCACHE_NO_DEADLINE ? 0 : op->opt.deadline_ms;
    bool get = op->kind == CL_GET || op->kind == CL_GET_STREAM;

    op->tries++;
    if (deadline_ms != 0) {
        uint64_t gone_ms = (oc_loop_now(op->client->loop).mono_ns - op->begun_ns) / OC_NS_PER_MS;

        if (gone_ms >= deadline_ms) {
            finish_later(op, OCACHE_DEADLINE_EXCEEDED, "deadline exceeded");
            return;
        }
        deadline_ms -= gone_ms;
    }
    struct oc_channel *channel = cl_channel_pick(op->client, op);
    op->channel = channel;
    int rv = oc_client_call_new(channel, path_of(op), get ? &get_events : &unary_events, op,
                                deadline_ms, NULL, 0, &op->call);
    if (rv != 0) {
        finish_later(op, -rv, "too many operations in flight");
        return;
    }
    if (!cl_request_send(op)) {
        cl_op_abort(op, OCACHE_RESOURCE_EXHAUSTED, "out of memory");
    }
}

static void op_begin(struct cl_op *op) {
    struct ocache_client *client = op->client;

    if (client->freeing) {
        finish_later(op, OCACHE_CANCELLED, "the client is being freed");
        return;
    }
    if (!oc_utf8_valid(op->key) || !oc_utf8_valid(op->start_key) || !oc_utf8_valid(op->token)) {
        finish_later(op, OCACHE_INVALID_ARGUMENT, "key is not valid UTF-8");
        return;
    }
    op->begun_ns = op->progress_ns = oc_loop_now(client->loop).mono_ns;
    oc_list_push_back(&client->buckets[op->id % CL_BUCKETS], &op->link);
    client->op_count++;
    if (op->stall_watched) {
        cl_stall_watch(client, 1);
    }
    op_try(op);
}

static void on_begin_letter(struct oc_letter *letter) {
    op_begin(OC_CONTAINER(letter, struct cl_op, letter));
}

uint64_t cl_op_submit(struct cl_op *op) {
    uint64_t id = op->id;

    if (oc_loop_current() == op->client->loop) {
        op_begin(op);
    } else {
        op->letter.fn = on_begin_letter;
        oc_loop_post(op->client->loop, &op->letter);
    }
    return id;
}

struct cl_op *cl_op_find(struct ocache_client *client, uint64_t id) {
    oc_list_each (it, &client->buckets[id % CL_BUCKETS]) {
        struct cl_op *op = OC_CONTAINER(it, struct cl_op, link);

        if (op->id == id) {
            return op;
        }
    }
    return NULL;
}

void cl_op_abort(struct cl_op *op, int ocache_code, const char *text) {
    if (op->call != NULL && op->forced_code == 0) {
        op->forced_code = ocache_code;
        op->forced_text = text;
        oc_client_call_cancel(op->call); /* `closed` follows */
    }
}

/* ---- cancelling and resuming by number ---- */

struct nudge {
    struct oc_letter letter;
    struct ocache_client *client;
    uint64_t id; /* 0: all */
    bool cancel;
};

static void nudge_all(struct ocache_client *client) {
    for (size_t i = 0; i < CL_BUCKETS; i++) {
        oc_list_each (it, &client->buckets[i]) {
            cl_op_abort(OC_CONTAINER(it, struct cl_op, link), OCACHE_CANCELLED, "cancelled");
        }
    }
}

static void on_nudge(struct oc_letter *letter) {
    struct nudge *n = OC_CONTAINER(letter, struct nudge, letter);
    struct cl_op *op = n->id == 0 ? NULL : cl_op_find(n->client, n->id);

    if (n->id == 0) {
        nudge_all(n->client);
    } else if (op != NULL && n->cancel) {
        cl_op_abort(op, OCACHE_CANCELLED, "cancelled");
    } else if (op != NULL && op->kind == CL_PUT_STREAM && op->read != NULL) {
        cl_read_more(op);
    }
    free(n);
}

static int nudge(struct ocache_client *client, uint64_t id, bool cancel) {
    struct nudge *n = malloc(sizeof *n);

    OC_MAGIC_CHECK(client, CL_CLIENT_MAGIC);
    if (n == NULL) {
        return OCACHE_RESOURCE_EXHAUSTED;
    }
    *n = (struct nudge){.letter.fn = on_nudge, .client = client, .id = id, .cancel = cancel};
    oc_loop_post(client->loop, &n->letter);
    return 0;
}

int ocache_cancel(struct ocache_client *client, uint64_t op) {
    return op == 0 ? 0 : nudge(client, op, true);
}

int ocache_cancel_all(struct ocache_client *client) {
    return nudge(client, 0, true);
}

int ocache_resume(struct ocache_client *client, uint64_t op) {
    return op == 0 ? 0 : nudge(client, op, false);
}
