/* What operations receive: the value in pieces, results, lists, the topology. Everything from the
 * wire is checked here; what is malformed ends the operation with OCACHE_INTERNAL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client_internal.h"
#include "proto/cache.pb-c.h"

static void malformed(struct cl_op *op) {
    cl_op_abort(op, OCACHE_INTERNAL, "malformed response from the server");
}

/* ---- values ---- */

static int gather_reserve(struct cl_op *op, uint64_t total) {
    uint64_t need;

    if (!oc_add_ok((uint64_t)op->gathered_len, total, &need) ||
        need > op->client->cfg.max_value_bytes) {
        cl_op_abort(op, OCACHE_RESOURCE_EXHAUSTED,
                    "value larger than max_value_bytes: use the streaming form");
        return OC_E_EXHAUSTED;
    }
    need++; /* the zero byte behind it */
    if (need <= op->gathered_cap) {
        return 0;
    }
    uint64_t cap = op->gathered_cap * 2 > need ? op->gathered_cap * 2 : need;
    uint8_t *bigger = realloc(op->gathered, (size_t)cap);
    if (bigger == NULL) {
        cl_op_abort(op, OCACHE_RESOURCE_EXHAUSTED, "out of memory for the value");
        return OC_E_EXHAUSTED;
    }
    op->gathered = bigger;
    op->gathered_cap = (size_t)cap;
    return 0;
}

static int on_bulk_begin(void *user, uint64_t total) {
    struct cl_op *op = user;

    if (op->value_seen) {
        return OC_E_INVALID; /* one field per message: the earlier bytes may be gone already */
    }
    op->value_seen = true;
    return op->kind == CL_GET ? gather_reserve(op, total) : 0;
}

static int on_bulk(void *user, struct oc_span piece) {
    struct cl_op *op = user;

    op->piece_bulk += piece.len;
    if (op->kind == CL_GET) {
        OC_CHECK(piece.len < op->gathered_cap - op->gathered_len);
        memcpy(op->gathered + op->gathered_len, piece.p, piece.len);
        op->gathered_len += piece.len;
        return 0;
    }
    op->delivered = true;
    op->unconsumed += piece.len;
    if (op->piece(op, piece) != 0) {
        cl_op_abort(op, OCACHE_CANCELLED, "stopped by the receiver");
        return OC_E_CANCELLED;
    }
    return 0;
}

const struct oc_pb_stream_config cl_get_pb = {
    .bulk_field = OC_CACHE_GET_RESPONSE_DATA,
    .bulk_begin = on_bulk_begin,
    .bulk = on_bulk,
};

void cl_on_piece(struct oc_client_call *call, struct oc_span bytes, uint64_t message_len,
                 bool begin, bool end) {
    struct cl_op *op = oc_client_call_user(call);
    int rv;

    op->progress_ns = oc_loop_now(op->client->loop).mono_ns;
    if (begin) {
        op->value_seen = false;
        oc_pb_stream_begin(&op->pb, message_len);
    }
    op->piece_bulk = 0;
    rv = oc_pb_stream_feed(&op->pb, bytes);
    if (rv == 0 && end) {
        rv = oc_pb_stream_finish(&op->pb);
    }
    if (rv != 0) {
        malformed(op); /* unless it was ended above already */
    }
    if (op->call == NULL || oc_client_call_ended(op->call)) {
        return;
    }
    if (!op->manual_window) {
        op->unconsumed -= op->kind == CL_GET_STREAM ? op->piece_bulk : 0;
        oc_client_call_consumed(call, bytes.len);
    } else {
        oc_client_call_consumed(call, bytes.len - op->piece_bulk);
    }
}

/* ---- results ---- */

static void on_result(struct cl_op *op, struct oc_span message) {
    struct oc_cache_result result;
    struct oc_span text;

    if (oc_cache_result_decode(message, &result) != 0) {
        malformed(op);
    } else if (!result.success || result.error.len > 0) {
        int code = cl_error_parse(result.error, &text);

        cl_op_set_end(op, code, text);
    }
}

void cl_on_message(struct oc_client_call *call, struct oc_span message) {
    struct cl_op *op = oc_client_call_user(call);
    char text[sizeof op->message] = "";
    int rv;

    if (op->answered) {
        malformed(op);
        return;
    }
    op->answered = true;
    switch (op->kind) {
    case CL_LIST:
    case CL_LIST_VALUES:
        op->list = cl_list_parse(message, op->kind == CL_LIST_VALUES);
        if (op->list == NULL) {
            malformed(op);
        }
        break;
    case CL_TOPOLOGY:
        rv = cl_topology_parse(message, &op->topology, text, sizeof text);
        if (rv != 0) {
            cl_op_set_end(op, -rv, oc_span_str(text));
        }
        break;
    default:
        on_result(op, message);
        break;
    }
}

/* ---- lists: two passes, one allocation ---- */

struct list_size {
    size_t count, bytes;
};

static int next_entry(struct oc_cache_list_reader *r, bool with_values,
                      struct oc_cache_key_value *kv) {
    memset(kv, 0, sizeof *kv);
    return with_values ? oc_cache_list_next_entry(r, kv) : oc_cache_list_next_key(r, &kv->key);
}

static int list_measure(struct oc_span message, bool with_values, struct list_size *ret) {
    struct oc_cache_list_reader r = oc_cache_list_reader(message);
    struct oc_cache_key_value kv;
    int rv;

    *ret = (struct list_size){0, 1};
    while ((rv = next_entry(&r, with_values, &kv)) > 0) {
        if (++ret->count > CL_LIST_ENTRIES) {
            return OC_E_INVALID; /* two bytes make an entry, which takes many times that here */
        }
        ret->bytes += kv.key.len + 1 + kv.value.len; /* all within the message: cannot overflow */
    }
    ret->bytes += r.continuation_token.len;
    return rv;
}

static uint8_t *put_bytes(uint8_t *at, struct oc_span s, const void **ret) {
    *ret = at;
    if (s.len > 0) {
        memcpy(at, s.p, s.len);
    }
    return at + s.len;
}

struct ocache_list *cl_list_parse(struct oc_span message, bool with_values) {
    struct oc_cache_list_reader r = oc_cache_list_reader(message);
    struct oc_cache_key_value kv;
    struct list_size size;
    const void *p;

    if (list_measure(message, with_values, &size) != 0) {
        return NULL;
    }
    struct ocache_list *list = malloc(sizeof *list + size.count * sizeof(struct ocache_entry) +
                                      size.bytes); /* both bounded: see list_measure */
    if (list == NULL) {
        return NULL;
    }
    struct ocache_entry *entry = (struct ocache_entry *)(void *)(list + 1);
    uint8_t *at = (uint8_t *)(entry + size.count);
    *list = (struct ocache_list){.entries = entry, .count = size.count};
    while (next_entry(&r, with_values, &kv) > 0) {
        *entry = (struct ocache_entry){.key_len = kv.key.len,
                                       .value_len = kv.value.len,
                                       .value_length = kv.value_length,
                                       .value_omitted = kv.value_omitted};
        at = put_bytes(at, kv.key, &p);
        entry->key = p;
        *at++ = 0;
        at = put_bytes(at, kv.value, &entry->value);
        entry++;
    }
    list->has_more = r.has_more;
    list->token_len = r.continuation_token.len;
    at = put_bytes(at, r.continuation_token, &p);
    list->token = p;
    *at = 0;
    return list;
}

void ocache_list_free(struct ocache_list *list) {
    free(list);
}

/* ---- topology ---- */

struct topology {
    struct ocache_topology pub;
    struct oc_arena arena;
};

static const char *arena_string(struct oc_arena *arena, const char *s) {
    return (const char *)oc_arena_copy(arena, oc_span_str(s == NULL ? "" : s)).p;
}

static bool copy_tokens(struct oc_arena *arena, const Cache__RingConfig *ring,
                        struct ocache_node *node) {
    for (size_t i = 0; ring != NULL && i < ring->n_node_tokens; i++) {
        const Cache__NodeTokens *nt = ring->node_tokens[i];

        if (strcmp(nt->node_id, node->id) != 0) {
            continue;
        }
        uint32_t *tokens = oc_arena_alloc(arena, nt->n_tokens * sizeof *tokens);
        if (tokens == NULL) {
            return false;
        }
        if (nt->n_tokens > 0) {
            memcpy(tokens, nt->tokens, nt->n_tokens * sizeof *tokens);
        }
        node->tokens = tokens;
        node->token_count = nt->n_tokens;
        return true;
    }
    return true;
}

static bool copy_topology(const Cache__ClusterTopology *from, struct topology *to) {
    struct ocache_node *nodes = oc_arena_alloc(&to->arena, from->n_nodes * sizeof *nodes);

    if (nodes == NULL) {
        return false;
    }
    to->pub.epoch = from->epoch;
    to->pub.replication_factor =
        from->ring_config == NULL ? 0 : from->ring_config->replication_factor;
    to->pub.nodes = nodes;
    to->pub.node_count = from->n_nodes;
    for (size_t i = 0; i < from->n_nodes; i++) {
        const Cache__NodeInfo *n = from->nodes[i];

        nodes[i] = (struct ocache_node){
            .id = arena_string(&to->arena, n->id),
            .address = arena_string(&to->arena, n->address),
            .listen_address = arena_string(&to->arena, n->listen_address),
            .status = (int)n->status,
            .joined_at_s = n->joined_at,
        };
        if (nodes[i].id == NULL || nodes[i].address == NULL || nodes[i].listen_address == NULL ||
            !copy_tokens(&to->arena, from->ring_config, &nodes[i])) {
            return false;
        }
    }
    return true;
}

/* The tokens of every node are looked for among those of all. */
static bool too_many_nodes(const Cache__ClusterTopology *t) {
    return t->n_nodes > CL_TOPOLOGY_NODES ||
           (t->ring_config != NULL && t->ring_config->n_node_tokens > CL_TOPOLOGY_NODES);
}

int cl_topology_parse(struct oc_span message, struct ocache_topology **ret, char *text,
                      size_t text_size) {
    if (message.len > CL_TOPOLOGY_BYTES) {
        (void)snprintf(text, text_size, "topology of %zu bytes is larger than %u", message.len,
                       CL_TOPOLOGY_BYTES);
        return OC_E_EXHAUSTED;
    }
    Cache__GetTopologyResponse *m =
        cache__get_topology_response__unpack(NULL, message.len, message.p);
    int rv = 0;

    if (m == NULL) {
        (void)snprintf(text, text_size, "malformed response from the server");
        return OC_E_INTERNAL;
    }
    if (m->topology == NULL || m->error[0] != 0) {
        (void)snprintf(text, text_size, "%s", m->error[0] != 0 ? m->error : "no topology");
        rv = OC_E_PRECONDITION;
    } else if (too_many_nodes(m->topology)) {
        (void)snprintf(text, text_size, "topology of more than %u nodes", CL_TOPOLOGY_NODES);
        rv = OC_E_EXHAUSTED;
    } else {
        struct topology *t = calloc(1, sizeof *t);

        if (t != NULL) {
            oc_arena_init(&t->arena, 8 * (size_t)CL_TOPOLOGY_BYTES);
        }
        if (t == NULL || !copy_topology(m->topology, t)) {
            ocache_topology_free(t == NULL ? NULL : &t->pub);
            (void)snprintf(text, text_size, "out of memory for the topology");
            rv = OC_E_EXHAUSTED;
        } else {
            *ret = &t->pub;
        }
    }
    cache__get_topology_response__free_unpacked(m, NULL);
    return rv;
}

void ocache_topology_free(struct ocache_topology *topology) {
    if (topology != NULL) {
        struct topology *t = OC_CONTAINER(topology, struct topology, pub);

        oc_arena_done(&t->arena);
        free(t);
    }
}
