/* The API's operations with callbacks: an operation is filled in and handed over. */
#include "client/client_internal.h"

static uint64_t start(struct cl_op *op, ocache_done_fn done, void *user) {
    if (op == NULL) {
        return 0;
    }
    op->done = done;
    op->user = user;
    return cl_op_submit(op);
}

static struct cl_op *keyed(struct ocache_client *client, enum cl_kind kind, const void *key,
                           size_t key_len, const struct ocache_options *opt) {
    return cl_op_new(client, kind, opt, oc_span(key, key_len), OC_SPAN_EMPTY, OC_SPAN_EMPTY,
                     OC_SPAN_EMPTY);
}

uint64_t ocache_put_async(struct ocache_client *client, const void *key, size_t key_len,
                          const void *value, size_t value_len, const struct ocache_options *opt,
                          ocache_done_fn done, void *user) {
    return start(cl_op_new(client, CL_PUT, opt, oc_span(key, key_len), OC_SPAN_EMPTY, OC_SPAN_EMPTY,
                           oc_span(value, value_len)),
                 done, user);
}

uint64_t ocache_get_async(struct ocache_client *client, const void *key, size_t key_len,
                          const struct ocache_options *opt, ocache_done_fn done, void *user) {
    return start(keyed(client, CL_GET, key, key_len, opt), done, user);
}

uint64_t ocache_delete_async(struct ocache_client *client, const void *key, size_t key_len,
                             const struct ocache_options *opt, ocache_done_fn done, void *user) {
    return start(keyed(client, CL_DELETE, key, key_len, opt), done, user);
}

static uint64_t list_async(struct ocache_client *client, enum cl_kind kind,
                           const struct ocache_list_query *query, const struct ocache_options *opt,
                           ocache_done_fn done, void *user) {
    static const struct ocache_list_query everything;
    const struct ocache_list_query *q = query == NULL ? &everything : query;
    struct cl_op *op = cl_op_new(client, kind, opt, oc_span(q->prefix, q->prefix_len),
                                 oc_span(q->start_key, q->start_key_len),
                                 oc_span(q->token, q->token_len), OC_SPAN_EMPTY);

    if (op != NULL) {
        op->limit = q->limit;
    }
    return start(op, done, user);
}

uint64_t ocache_list_page_async(struct ocache_client *client, const struct ocache_list_query *query,
                                const struct ocache_options *opt, ocache_done_fn done, void *user) {
    return list_async(client, CL_LIST, query, opt, done, user);
}

uint64_t ocache_list_values_page_async(struct ocache_client *client,
                                       const struct ocache_list_query *query,
                                       const struct ocache_options *opt, ocache_done_fn done,
                                       void *user) {
    return list_async(client, CL_LIST_VALUES, query, opt, done, user);
}

uint64_t ocache_topology_async(struct ocache_client *client, const struct ocache_options *opt,
                               ocache_done_fn done, void *user) {
    return start(keyed(client, CL_TOPOLOGY, NULL, 0, opt), done, user);
}

static int piece_to_user(struct cl_op *op, struct oc_span bytes) {
    return op->write(op->user, bytes.p, bytes.len);
}

uint64_t ocache_get_stream_async(struct ocache_client *client, const void *key, size_t key_len,
                                 const struct ocache_options *opt, ocache_write_fn piece,
                                 ocache_done_fn done, void *user) {
    struct cl_op *op = keyed(client, CL_GET_STREAM, key, key_len, opt);

    if (op != NULL) {
        op->piece = piece_to_user;
        op->write = piece;
    }
    return start(op, done, user);
}

uint64_t ocache_put_stream_async(struct ocache_client *client, const void *key, size_t key_len,
                                 ocache_read_fn read, const struct ocache_options *opt,
                                 ocache_done_fn done, void *user) {
    struct cl_op *op = keyed(client, CL_PUT_STREAM, key, key_len, opt);

    if (op != NULL) {
        op->begin_feed = cl_read_more;
        op->read = read;
    }
    return start(op, done, user);
}
