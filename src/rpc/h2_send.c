/* A stream's send queue: messages made of counted slices. What is larger than SERVER_SEND_COPY goes
 * into the batch by reference, the rest is copied: an iovec costs the kernel more than a few
 * hundred bytes of memcpy. */
#include <stdlib.h>

#include "rpc/server_internal.h"

#define SEND_REPORT_BYTES (256 << 10) /* a worker's share of the count it keeps to itself */

/* Bytes copied for a queue when they do not fit into the message itself. */
struct send_copy {
    struct oc_ref ref;
    uint8_t bytes[];
};

static void send_copy_release(struct oc_ref *ref) {
    free(OC_CONTAINER(ref, struct send_copy, ref));
}

/* ---- the process's count of queued bytes ---- */

static void account(struct oc_call *call, int64_t n) {
    struct oc_rpc_worker *w = call->conn->w;

    call->conn->queued += (size_t)n; /* wraps as it should */
    if (call->plain) {
        call->conn->plain_queued += (size_t)n;
    }
    w->send_unreported += n;
    if (w->send_unreported > SEND_REPORT_BYTES || w->send_unreported < -SEND_REPORT_BYTES) {
        atomic_fetch_add_explicit(&w->s->send_used, (uint64_t)w->send_unreported,
                                  memory_order_relaxed);
        w->send_unreported = 0;
    }
}

static bool over_budget(const struct oc_rpc_worker *w) {
    /* The count may be behind zero by what other workers have not reported. */
    int64_t used =
        (int64_t)atomic_load_explicit(&w->s->send_used, memory_order_relaxed) + w->send_unreported;

    return used > 0 && (uint64_t)used > w->s->cfg.send_budget_bytes;
}

bool server_send_below_low(const struct oc_call *call) {
    return call->queued < SERVER_SEND_FLOOR ||
           (call->queued < SERVER_SEND_LOW && !over_budget(call->conn->w));
}

static bool above_high(const struct oc_call *call) {
    return call->queued >= SERVER_SEND_HIGH ||
           (call->queued >= SERVER_SEND_FLOOR && over_budget(call->conn->w));
}

/* Whoever does not read what it asked for gets nothing more to ask while memory is short. A few
 * slow readers among the calls of one client are no reason. */
bool server_send_refuses(const struct server_conn *conn) {
    return conn->queued > SERVER_SEND_CONN && over_budget(conn->w);
}

/* ---- queueing ---- */

static struct server_msg *msg_new(struct oc_call *call, size_t payload, bool framed) {
    struct server_msg *m = oc_pool_get(&call->conn->w->msgs);

    if (m == NULL) {
        return NULL;
    }
    m->slices = m->fixed;
    m->left = payload;
    if (framed) {
        oc_grpc_head_write(m->head, (uint32_t)payload);
        m->head_left = OC_GRPC_HEAD_BYTES;
        m->left += OC_GRPC_HEAD_BYTES;
    }
    return m;
}

static void msg_free(struct oc_call *call, struct server_msg *m) {
    while (m->at < m->count) {
        oc_ref_put(m->slices[m->at++].owner);
    }
    if (m->slices != m->fixed) {
        free(m->slices);
    }
    oc_pool_put(&call->conn->w->msgs, m);
}

/* False: the queue is above its high-water mark. */
static bool enqueue(struct oc_call *call, struct server_msg *m) {
    if (call->out_head == NULL) {
        call->out_head = m;
        call->sent_ns = call->sent_mark_ns = call->conn->w->now_ns;
        call->sent_mark = call->sent;
    } else {
        call->out_last->next = m;
    }
    call->out_last = m;
    call->queued += m->left;
    account(call, (int64_t)m->left);
    if (above_high(call)) {
        call->want_writable = true;
        return false;
    }
    return true;
}

bool server_send_slices(struct oc_call *call, const struct oc_slice *slices, size_t count,
                        bool framed) {
    size_t payload = 0;
    unsigned used = 0;

    for (size_t i = 0; i < count; i++) {
        payload += slices[i].len;
        used += slices[i].len > 0;
    }
    OC_CHECK(payload <=
             UINT32_MAX); /* gRPC's length has 32 bits; the service bounds its messages */
    struct server_msg *m = msg_new(call, payload, framed);
    if (m != NULL && used > OC_ARRAY_LEN(m->fixed)) {
        m->slices = malloc(used * sizeof *m->slices);
        if (m->slices == NULL) {
            m->slices = m->fixed;
            msg_free(call, m);
            m = NULL;
        }
    }
    if (m == NULL) {
        server_h2_reset(call, NGHTTP2_INTERNAL_ERROR); /* out of memory */
        return true;
    }
    for (size_t i = 0; i < count; i++) {
        if (slices[i].len > 0) {
            oc_ref_get(slices[i].owner);
            m->slices[m->count++] = slices[i];
        }
    }
    return enqueue(call, m);
}

bool server_send_copy(struct oc_call *call, struct oc_span bytes, bool framed) {
    if (bytes.len <= SERVER_MSG_INLINE) {
        struct server_msg *m = msg_new(call, bytes.len, framed);

        if (m == NULL) {
            server_h2_reset(call, NGHTTP2_INTERNAL_ERROR); /* out of memory */
            return true;
        }
        if (bytes.len > 0) {
            memcpy(m->bytes, bytes.p, bytes.len);
            m->fixed[0] = (struct oc_slice){m->bytes, bytes.len, NULL};
            m->count = 1;
        }
        return enqueue(call, m);
    }
    struct send_copy *copy = malloc(sizeof *copy + bytes.len);
    if (copy == NULL) {
        server_h2_reset(call, NGHTTP2_INTERNAL_ERROR); /* out of memory */
        return true;
    }
    oc_ref_init(&copy->ref, send_copy_release);
    memcpy(copy->bytes, bytes.p, bytes.len);
    struct oc_slice slice = {copy->bytes, bytes.len, &copy->ref};
    bool more = server_send_slices(call, &slice, 1, framed);
    oc_ref_put(&copy->ref);
    return more;
}

/* ---- dropping ---- */

void server_send_drop(struct oc_call *call) {
    struct server_msg *m = call->out_head;

    account(call, -(int64_t)call->queued);
    call->queued = 0;
    call->out_head = call->out_last = NULL;
    while (m != NULL) {
        struct server_msg *next = m->next;

        msg_free(call, m);
        m = next;
    }
}

static bool msg_begun(const struct server_msg *m) {
    return m->head_left < OC_GRPC_HEAD_BYTES;
}

bool server_send_drop_whole(struct oc_call *call) {
    if (call->framed > 0 || (call->out_head != NULL && msg_begun(call->out_head))) {
        return false;
    }
    server_send_drop(call);
    return true;
}

/* ---- into the batch ---- */

size_t server_send_peek(const struct oc_call *call, size_t max) {
    size_t n = 0;
    unsigned slices = 0;

    for (const struct server_msg *m = call->out_head; m != NULL && n < max; m = m->next) {
        if (slices == SERVER_FRAME_SLICES) {
            return n;
        }
        if (m->count - m->at + slices + 1 <= SERVER_FRAME_SLICES) {
            slices += m->count - m->at + 1; /* one for the head */
            n += m->left;
            continue;
        }
        n += m->head_left;
        slices++;
        for (unsigned i = m->at; i < m->count && slices < SERVER_FRAME_SLICES; i++, slices++) {
            n += m->slices[i].len - (i == m->at ? m->offset : 0);
        }
        break;
    }
    return n < max ? n : max;
}

static size_t emit_head(struct server_msg *m, struct server_out *out, size_t n) {
    size_t k = m->head_left < n ? m->head_left : n;

    server_out_copy(out, m->head + OC_GRPC_HEAD_BYTES - m->head_left, k);
    m->head_left = (uint8_t)(m->head_left - k);
    return k;
}

static size_t emit_slice(struct server_msg *m, struct server_out *out, size_t n) {
    struct oc_slice *s = &m->slices[m->at];
    size_t left = s->len - m->offset;
    size_t k = left < n ? left : n;
    bool whole = k == left;

    if (k <= SERVER_SEND_COPY) {
        server_out_copy(out, s->p + m->offset, k);
        if (whole) {
            oc_ref_put(s->owner);
        }
    } else {
        if (!whole) {
            oc_ref_get(s->owner);
        }
        server_out_ref(out, s->p + m->offset, k, s->owner);
    }
    m->offset = whole ? 0 : m->offset + k;
    m->at += whole;
    return k;
}

void server_send_emit(struct oc_call *call, struct server_out *out, size_t n) {
    OC_CHECK(n <= call->queued);
    call->queued -= n;
    call->sent += n;
    account(call, -(int64_t)n);
    while (n > 0) {
        struct server_msg *m = call->out_head;
        size_t k = m->head_left > 0 ? emit_head(m, out, n) : emit_slice(m, out, n);

        n -= k;
        m->left -= k;
        if (m->left == 0) {
            call->out_head = m->next;
            msg_free(call, m);
        }
    }
    if (call->out_head == NULL) {
        call->out_last = NULL;
    }
}

void server_call_run_writable(struct server_conn *conn) {
    struct oc_list *link;

    while (!conn->dead && (link = oc_list_pop_front(&conn->writable)) != NULL) {
        struct oc_call *call = OC_CONTAINER(link, struct oc_call, write_link);

        call->want_writable = false;
        if (!call->finished && call->method != NULL && call->method->writable != NULL) {
            call->method->writable(call);
        }
    }
}
