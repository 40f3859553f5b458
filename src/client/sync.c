/* The API's waiting functions, built on the operations with callbacks. A waiting thread sleeps on a
 * condition of its own; user callbacks (readers, writers) run on that thread, never on the loop's,
 * so they may block: blocks and pieces travel between the two threads through small bounded queues.
 */
#include <stdlib.h>
#include <string.h>

#include "client/client_internal.h"

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    int code;
    char message[512];
    struct cl_op *op; /* valid inside the done callback only */
    /* Taken from the operation. */
    uint8_t *value;
    size_t value_len;
    struct ocache_list *list;
    struct ocache_topology *topology;
};

#define WAITER_INIT                                                                                \
    { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER }

static void waiter_done(struct waiter *w) {
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

static void on_done(void *user, const struct ocache_result *result) {
    struct waiter *w = user;
    struct cl_op *op =
        OC_CONTAINER((struct ocache_result *)(uintptr_t)result, struct cl_op, result);

    pthread_mutex_lock(&w->lock);
    w->code = result->code;
    memcpy(w->message, op->message, sizeof w->message);
    if (result->code == OCACHE_OK) {
        w->value = OC_TAKE(op->gathered);
        w->value_len = op->gathered_len;
        w->list = OC_TAKE(op->list);
        w->topology = OC_TAKE(op->topology);
    }
    w->done = true;
    /* Signalled under the lock: afterwards the waiter may be gone. */
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static int refuse_on_loop(struct ocache_client *client, struct ocache_error *err) {
    OC_MAGIC_CHECK(client, CL_CLIENT_MAGIC);
    if (oc_loop_current() == client->loop) {
        return cl_error_set(err, OCACHE_FAILED_PRECONDITION,
                            "a waiting function was called from a callback: use the _async form");
    }
    return 0;
}

static int wait_end(struct waiter *w, struct ocache_error *err) {
    pthread_mutex_lock(&w->lock);
    while (!w->done) {
        pthread_cond_wait(&w->changed,
                          &w->lock); /* every operation has a deadline or stall bound */
    }
    pthread_mutex_unlock(&w->lock);
    return w->code == OCACHE_OK ? 0 : cl_error_set(err, w->code, "%s", w->message);
}

static int no_memory(struct ocache_error *err) {
    return cl_error_set(err, OCACHE_RESOURCE_EXHAUSTED, "out of memory");
}

/* ---- short operations ---- */

int ocache_put(struct ocache_client *client, const void *key, size_t key_len, const void *value,
               size_t value_len, const struct ocache_options *opt, struct ocache_error *err) {
    struct waiter w = WAITER_INIT;
    int rv = refuse_on_loop(client, err);

    if (rv == 0) {
        rv = ocache_put_async(client, key, key_len, value, value_len, opt, on_done, &w) == 0
                 ? no_memory(err)
                 : wait_end(&w, err);
    }
    waiter_done(&w);
    return rv;
}

int ocache_delete(struct ocache_client *client, const void *key, size_t key_len,
                  const struct ocache_options *opt, struct ocache_error *err) {
    struct waiter w = WAITER_INIT;
    int rv = refuse_on_loop(client, err);

    if (rv == 0) {
        rv = ocache_delete_async(client, key, key_len, opt, on_done, &w) == 0 ? no_memory(err)
                                                                              : wait_end(&w, err);
    }
    waiter_done(&w);
    return rv;
}

int ocache_get(struct ocache_client *client, const void *key, size_t key_len,
               const struct ocache_options *opt, void **ret_value, size_t *ret_len,
               struct ocache_error *err) {
    struct waiter w = WAITER_INIT;
    int rv = refuse_on_loop(client, err);

    if (rv == 0) {
        rv = ocache_get_async(client, key, key_len, opt, on_done, &w) == 0 ? no_memory(err)
                                                                           : wait_end(&w, err);
    }
    if (rv == 0 && w.value == NULL) { /* an empty value came without any message */
        w.value = malloc(1);
        rv = w.value == NULL ? no_memory(err) : 0;
    }
    if (rv == 0) {
        w.value[w.value_len] = 0;
        *ret_value = w.value;
        *ret_len = w.value_len;
    }
    waiter_done(&w);
    return rv;
}

int ocache_get_range(struct ocache_client *client, const void *key, size_t key_len, int64_t start,
                     int64_t end, const struct ocache_options *opt, void **ret_value,
                     size_t *ret_len, struct ocache_error *err) {
    struct ocache_options range = {0};

    if (opt != NULL) {
        range = *opt;
    }
    range.start = start;
    range.end = end;
    return ocache_get(client, key, key_len, &range, ret_value, ret_len, err);
}

void ocache_free(void *value) {
    free(value);
}

int ocache_topology_get(struct ocache_client *client, const struct ocache_options *opt,
                        struct ocache_topology **ret, struct ocache_error *err) {
    struct waiter w = WAITER_INIT;
    int rv = refuse_on_loop(client, err);

    if (rv == 0) {
        rv = ocache_topology_async(client, opt, on_done, &w) == 0 ? no_memory(err)
                                                                  : wait_end(&w, err);
    }
    if (rv == 0) {
        *ret = w.topology;
    }
    waiter_done(&w);
    return rv;
}

/* ---- lists ---- */

static int list_page(struct ocache_client *client, bool with_values,
                     const struct ocache_list_query *query, const struct ocache_options *opt,
                     struct ocache_list **ret, struct ocache_error *err) {
    struct waiter w = WAITER_INIT;
    int rv = refuse_on_loop(client, err);

    if (rv == 0) {
        uint64_t id = with_values ? ocache_list_values_page_async(client, query, opt, on_done, &w)
                                  : ocache_list_page_async(client, query, opt, on_done, &w);

        rv = id == 0 ? no_memory(err) : wait_end(&w, err);
    }
    if (rv == 0) {
        *ret = w.list;
    }
    waiter_done(&w);
    return rv;
}

int ocache_list_page(struct ocache_client *client, const struct ocache_list_query *query,
                     const struct ocache_options *opt, struct ocache_list **ret,
                     struct ocache_error *err) {
    return list_page(client, false, query, opt, ret, err);
}

int ocache_list_values_page(struct ocache_client *client, const struct ocache_list_query *query,
                            const struct ocache_options *opt, struct ocache_list **ret,
                            struct ocache_error *err) {
    return list_page(client, true, query, opt, ret, err);
}

/* The next page's query: by the token, else (a server that gives none) behind the last key. False:
 * the server claims more but offers no way forward. */
static bool next_query(struct ocache_list_query *q, const struct ocache_list *page,
                       const struct ocache_list *before) {
    if (page->token_len > 0) {
        if (before != NULL && before->token_len == page->token_len &&
            memcmp(before->token, page->token, page->token_len) == 0) {
            return false;
        }
        q->token = page->token;
        q->token_len = page->token_len;
        return true;
    }
    if (page->count == 0) {
        return false;
    }
    q->token = NULL;
    q->token_len = 0;
    q->start_key = page->entries[page->count - 1].key;
    q->start_key_len = page->entries[page->count - 1].key_len;
    return true;
}

static int list_all(struct ocache_client *client, bool with_values,
                    const struct ocache_list_query *query, ocache_entry_fn fn, void *user,
                    const struct ocache_options *opt, struct ocache_error *err) {
    struct ocache_list_query q = {0};
    struct ocache_list *before = NULL, *page = NULL;
    bool more = true;
    int rv = 0;

    if (query != NULL) {
        q = *query;
    }
    while (more && rv == 0) {
        rv = list_page(client, with_values, &q, opt, &page, err);
        if (rv != 0) {
            break;
        }
        for (size_t i = 0; i < page->count && rv == 0; i++) {
            if (fn(user, &page->entries[i]) != 0) {
                rv = cl_error_set(err, OCACHE_CANCELLED, "stopped by the receiver");
            }
        }
        more = page->has_more;
        if (rv == 0 && more && !next_query(&q, page, before)) {
            rv = cl_error_set(err, OCACHE_INTERNAL,
                              "the server's list makes no progress from page to page");
        }
        ocache_list_free(before); /* the query now points into `page` */
        before = OC_TAKE(page);
    }
    ocache_list_free(before);
    return rv;
}

int ocache_list_all(struct ocache_client *client, const struct ocache_list_query *query,
                    ocache_entry_fn fn, void *user, const struct ocache_options *opt,
                    struct ocache_error *err) {
    return list_all(client, false, query, fn, user, opt, err);
}

int ocache_list_values_all(struct ocache_client *client, const struct ocache_list_query *query,
                           ocache_entry_fn fn, void *user, const struct ocache_options *opt,
                           struct ocache_error *err) {
    return list_all(client, true, query, fn, user, opt, err);
}

/* ---- uploads from a reader ---- */

struct upload {
    struct waiter w; /* its lock guards everything here */
    struct cl_feed feed;
    struct ocache_client *client;
    uint64_t id;
    bool begun;   /* the call is on a connection */
    unsigned out; /* blocks with the loop thread */
};

static void upload_begin(struct cl_op *op) {
    struct upload *u = op->user;

    pthread_mutex_lock(&u->w.lock);
    u->begun = true;
    pthread_cond_signal(&u->w.changed);
    pthread_mutex_unlock(&u->w.lock);
}

static void upload_returned(struct cl_feed *feed, struct cl_block *block) {
    struct upload *u = OC_CONTAINER(feed, struct upload, feed);

    pthread_mutex_lock(&u->w.lock);
    cl_feed_put(feed, block);
    u->out--;
    pthread_cond_signal(&u->w.changed);
    pthread_mutex_unlock(&u->w.lock);
}

static void upload_letter(struct oc_letter *letter) {
    struct cl_block *block = OC_CONTAINER(letter, struct cl_block, letter);
    struct upload *u = OC_CONTAINER(block->feed, struct upload, feed);
    struct cl_op *op = cl_op_find(u->client, u->id);

    if (op == NULL) {
        oc_ref_put(&block->ref); /* over already */
    } else {
        cl_block_send(op, block);
    }
}

/* A block to fill, or NULL when the operation is over. */
static struct cl_block *upload_wait_block(struct upload *u) {
    struct cl_block *block = NULL;

    pthread_mutex_lock(&u->w.lock);
    while (!u->w.done && (!u->begun || (block = cl_feed_take(&u->feed)) == NULL)) {
        pthread_cond_wait(&u->w.changed, &u->w.lock); /* deadline or stall bound of the operation */
    }
    pthread_mutex_unlock(&u->w.lock);
    return block;
}

static void upload_run(struct upload *u, ocache_read_fn read, void *user) {
    struct cl_block *block;
    enum cl_block_kind kind = CL_BLOCK_MORE;

    while (kind == CL_BLOCK_MORE && (block = upload_wait_block(u)) != NULL) {
        cl_block_fill(block, read, user);
        if (block->kind == CL_BLOCK_MORE && block->len < CL_BLOCK_BYTES) {
            block->kind = CL_BLOCK_FAILED; /* OCACHE_READ_LATER has no meaning here */
        }
        kind = block->kind;
        block->letter.fn = upload_letter;
        pthread_mutex_lock(&u->w.lock);
        u->out++;
        pthread_mutex_unlock(&u->w.lock);
        oc_loop_post(u->client->loop, &block->letter);
    }
    pthread_mutex_lock(&u->w.lock);
    while (!u->w.done || u->out > 0) {
        pthread_cond_wait(&u->w.changed, &u->w.lock);
    }
    pthread_mutex_unlock(&u->w.lock);
}

int ocache_put_stream(struct ocache_client *client, const void *key, size_t key_len,
                      ocache_read_fn read, void *user, const struct ocache_options *opt,
                      struct ocache_error *err) {
    struct upload u = {.w = WAITER_INIT, .client = client, .feed.returned = upload_returned};
    int rv = refuse_on_loop(client, err);
    struct cl_op *op = NULL;

    if (rv == 0) {
        op = cl_op_new(client, CL_PUT_STREAM, opt, oc_span(key, key_len), OC_SPAN_EMPTY,
                       OC_SPAN_EMPTY, OC_SPAN_EMPTY);
        rv = op == NULL ? no_memory(err) : 0;
    }
    if (op != NULL) {
        op->begin_feed = upload_begin;
        op->done = on_done;
        op->user = &u;
        u.id = op->id;
        (void)cl_op_submit(op);
        upload_run(&u, read, user);
        rv = wait_end(&u.w, err);
    }
    cl_feed_done(&u.feed);
    waiter_done(&u.w);
    return rv;
}

/* ---- downloads to a writer ---- */

struct piece {
    struct oc_letter letter; /* afterwards it carries the consumed bytes back */
    struct piece *next;
    struct ocache_client *client;
    uint64_t id;
    size_t len;
    uint8_t data[];
};

/* The server's flow-control window bounds the queue: it gets none back before the writer had the
 * bytes. */
struct download {
    struct waiter w;
    struct piece *first, **last;
};

static int download_piece(struct cl_op *op, struct oc_span bytes) {
    struct download *d = op->user;
    struct piece *piece = malloc(sizeof *piece + bytes.len);

    if (piece == NULL) {
        cl_op_abort(op, OCACHE_RESOURCE_EXHAUSTED, "out of memory");
        return 1;
    }
    *piece = (struct piece){.client = op->client, .id = op->id, .len = bytes.len};
    memcpy(piece->data, bytes.p, bytes.len);
    pthread_mutex_lock(&d->w.lock);
    *d->last = piece;
    d->last = &piece->next;
    pthread_cond_signal(&d->w.changed);
    pthread_mutex_unlock(&d->w.lock);
    return 0;
}

static void on_consumed(struct oc_letter *letter) {
    struct piece *piece = OC_CONTAINER(letter, struct piece, letter);
    struct cl_op *op = cl_op_find(piece->client, piece->id);

    if (op != NULL && op->call != NULL) {
        op->unconsumed -= piece->len;
        op->progress_ns = oc_loop_now(op->client->loop).mono_ns;
        oc_client_call_consumed(op->call, piece->len);
    }
    free(piece);
}

/* The next piece; NULL when all were taken and the operation is over. */
static struct piece *download_next(struct download *d) {
    struct piece *piece;

    pthread_mutex_lock(&d->w.lock);
    while ((piece = d->first) == NULL && !d->w.done) {
        pthread_cond_wait(&d->w.changed, &d->w.lock); /* deadline or stall bound of the operation */
    }
    if (piece != NULL) {
        d->first = piece->next;
        if (d->first == NULL) {
            d->last = &d->first;
        }
    }
    pthread_mutex_unlock(&d->w.lock);
    return piece;
}

static bool download_run(struct download *d, struct ocache_client *client, uint64_t id,
                         ocache_write_fn write, void *user) {
    struct piece *piece;
    bool stopped = false;

    while ((piece = download_next(d)) != NULL) {
        if (!stopped && write(user, piece->data, piece->len) != 0) {
            stopped = true;
            (void)ocache_cancel(client, id); /* without memory: the rest is read and dropped */
        }
        piece->letter.fn = on_consumed;
        oc_loop_post(client->loop, &piece->letter);
    }
    return stopped;
}

int ocache_get_stream(struct ocache_client *client, const void *key, size_t key_len,
                      ocache_write_fn write, void *user, const struct ocache_options *opt,
                      struct ocache_error *err) {
    struct download d = {.w = WAITER_INIT};
    int rv = refuse_on_loop(client, err);
    struct cl_op *op = NULL;

    d.last = &d.first;
    if (rv == 0) {
        op = cl_op_new(client, CL_GET_STREAM, opt, oc_span(key, key_len), OC_SPAN_EMPTY,
                       OC_SPAN_EMPTY, OC_SPAN_EMPTY);
        rv = op == NULL ? no_memory(err) : 0;
    }
    if (op != NULL) {
        op->piece = download_piece;
        op->manual_window = true;
        op->done = on_done;
        op->user = &d;
        uint64_t id = cl_op_submit(op);
        bool stopped = download_run(&d, client, id, write, user);
        rv = wait_end(&d.w, err);
        if (stopped) {
            rv = cl_error_set(err, OCACHE_CANCELLED, "stopped by the receiver");
        }
    }
    waiter_done(&d.w);
    return rv;
}
