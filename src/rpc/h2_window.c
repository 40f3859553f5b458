/* Receive windows: how much a peer may send, so that the bytes waiting in this process stay
 * bounded.
 *
 * nghttp2 gives no window back by itself here. Two accounts make up receive_budget_bytes:
 *  - reserve: bytes promised to one stream before they come: a message that has to be gathered gets
 * its whole length or waits in line (in the order of coming, holding no more than its first
 * window), so that messages never wait for each other's end; a PIECES stream that is really
 * consumed gets a larger window;
 *  - hold: bytes that came without a promise, beyond the floor of one initial window that every
 *    connection has for itself. When it is used up the call that holds more is ended with
 *    RESOURCE_EXHAUSTED; windows shrink to the floor long before.
 *
 * What a connection may still send is computed, not counted: max(window - held, 0) + open, where
 * open is what was promised to its streams and has not come. So a promise can always be used,
 * whatever the other streams of the connection hold, and nothing can leak away. */
#include "rpc/server_internal.h"

#define SMALL_MESSAGE 16384u /* gathered without a reservation */
#define WAIT_RETRY_MS 5u     /* budget freed by another worker is noticed after this */
#define CREDIT_MAX    (1 << 30)

static bool pressed(const struct oc_rpc_server *s) {
    return atomic_load_explicit(&s->hold.used, memory_order_relaxed) > s->hold.limit / 2;
}

void server_window_init(struct server_conn *conn) {
    uint64_t share = (conn->w->s->reserve.limit + conn->w->s->hold.limit) / 64;

    conn->window = share < SERVER_H2_WINDOW  ? SERVER_H2_WINDOW
                   : share > SERVER_CONN_MAX ? SERVER_CONN_MAX
                                             : (uint32_t)share;
}

void server_window_conn(struct server_conn *conn) {
    int64_t window = pressed(conn->w->s) ? SERVER_H2_WINDOW : conn->window;
    int64_t held = (int64_t)conn->held;
    int64_t want = (window > held ? window - held : 0) + (int64_t)conn->open;

    want = want < CREDIT_MAX ? want : CREDIT_MAX;
    int64_t more = want - nghttp2_session_get_local_window_size(conn->h2);
    if (more > 0 && more >= want / 4 &&
        nghttp2_submit_window_update(conn->h2, NGHTTP2_FLAG_NONE, 0, (int32_t)more) != 0) {
        server_conn_kill(conn, true);
    }
}

void server_window_stream(struct oc_call *call) {
    if (call->remote_closed || call->finished || call->stream_gone) {
        return;
    }
    uint64_t held = call->assembling ? (call->reserved > 0 ? 0 : call->body_len) : call->unconsumed;
    int64_t more = (int64_t)call->window - (int64_t)held - call->credit;
    if (more > 0 && more >= call->window / 4) {
        call->credit += more;
        if (nghttp2_submit_window_update(call->conn->h2, NGHTTP2_FLAG_NONE, call->stream_id,
                                         (int32_t)more) != 0) {
            server_conn_kill(call->conn, true);
            return;
        }
        server_conn_dirty(call->conn);
    }
}

/* ---- accounts ---- */

static bool charge(struct server_conn *conn) {
    struct oc_rpc_server *s = conn->w->s;
    uint64_t want = conn->held > SERVER_H2_WINDOW ? conn->held - SERVER_H2_WINDOW : 0;
    bool ok = true;

    if (want > conn->charged) {
        ok = oc_budget_take(&s->hold, want - conn->charged);
        conn->charged = ok ? want : conn->charged;
    } else if (want < conn->charged) {
        oc_budget_give(&s->hold, conn->charged - want);
        conn->charged = want;
    }
    uint64_t floor = conn->held < SERVER_H2_WINDOW ? conn->held : SERVER_H2_WINDOW;
    if (floor != conn->floor) {
        server_count(&conn->w->counts.floor_used, floor - conn->floor); /* wraps as it should */
        conn->floor = floor;
    }
    return ok;
}

bool server_window_hold(struct oc_call *call) {
    struct server_conn *conn = call->conn;
    uint64_t here = call->assembling ? call->body_len : call->unconsumed;
    uint64_t covered = here < call->reserved ? here : call->reserved;
    uint64_t held = here - covered;
    uint64_t open = call->reserved - covered;

    if (open == call->open && held == call->held) {
        return true;
    }
    conn->open += open - call->open;
    call->open = open;
    if (held == call->held) {
        return true;
    }
    conn->held += held - call->held;
    call->held = held;
    return charge(conn);
}

bool server_window_head(struct oc_call *call, uint64_t bytes) {
    struct server_conn *conn = call->conn;
    struct oc_rpc_server *s = conn->w->s;

    conn->heads += bytes - call->head_held;
    call->head_held = bytes;
    uint64_t want = conn->heads > SERVER_H2_WINDOW ? conn->heads - SERVER_H2_WINDOW : 0;
    bool ok = true;
    if (want > conn->heads_charged) {
        ok = oc_budget_take(&s->hold, want - conn->heads_charged);
        conn->heads_charged = ok ? want : conn->heads_charged;
    } else if (want < conn->heads_charged) {
        oc_budget_give(&s->hold, conn->heads_charged - want);
        conn->heads_charged = want;
    }
    return ok;
}

/* ---- reservations ---- */

static void wait_for(struct oc_call *call) {
    struct oc_rpc_worker *w = call->conn->w;

    oc_list_push_back(&w->waiting, &call->wait_link);
    if (!oc_timer_running(&w->wait)) {
        /* Without memory for the timer the next release on this worker does it. */
        (void)oc_timer_start(&w->wait, WAIT_RETRY_MS, WAIT_RETRY_MS);
    }
}

/* The window that lets the rest of the message come without a stop, within reason. */
static void reserved(struct oc_call *call, uint64_t len) {
    uint64_t base = call->conn->w->s->stream_window;
    uint64_t window = len < SERVER_STREAM_MAX ? len : SERVER_STREAM_MAX;

    call->reserved = len;
    call->window = (uint32_t)(window > base ? window : base);
}

int server_window_reserve(struct oc_call *call, uint64_t len) {
    struct oc_rpc_worker *w = call->conn->w;
    struct oc_rpc_server *s = w->s;

    if (len <= SMALL_MESSAGE) {
        call->window = s->stream_window > len ? s->stream_window : (uint32_t)len;
        return OC_OK;
    }
    if (len > s->reserve.limit) {
        return OC_E_EXHAUSTED;
    }
    bool fits_window = len <= s->stream_window;
    if ((fits_window || oc_list_empty(&w->waiting)) && oc_budget_take(&s->reserve, len)) {
        reserved(call, len);
        return OC_OK;
    }
    if (fits_window) {
        return OC_OK;
    }
    wait_for(call);
    return OC_AGAIN;
}

void server_window_unreserve(struct oc_call *call) {
    struct oc_rpc_worker *w = call->conn->w;

    oc_list_remove(&call->wait_link);
    if (call->reserved > 0) {
        oc_budget_give(&w->s->reserve, call->reserved);
        call->reserved = 0;
    }
    call->window = w->s->stream_window;
    (void)server_window_hold(call); /* gives back only */
    if (!oc_list_empty(&w->waiting)) {
        server_window_retry(w);
    }
}

void server_window_retry(struct oc_rpc_worker *w) {
    if (w->retrying) {
        return; /* a call ended below: the loop goes on with what it gave back */
    }
    w->retrying = true;
    while (!oc_list_empty(&w->waiting)) {
        struct oc_call *call = OC_CONTAINER(w->waiting.next, struct oc_call, wait_link);
        uint64_t len = call->reader.message_len;

        if (!oc_budget_take(&w->s->reserve, len)) {
            break;
        }
        oc_list_remove(&call->wait_link);
        reserved(call, len);
        (void)server_window_hold(call); /* gives back only */
        server_call_reserved(call);
    }
    if (oc_list_empty(&w->waiting)) {
        oc_timer_stop(&w->wait);
    }
    w->retrying = false;
}

void server_window_wait_fired(struct oc_timer *timer) {
    struct oc_rpc_worker *w = OC_CONTAINER(timer, struct oc_rpc_worker, wait);

    server_worker_now(w);
    server_window_retry(w);
}

/* ---- PIECES ---- */

static void grow(struct oc_call *call) {
    struct oc_rpc_server *s = call->conn->w->s;
    uint32_t more = call->window * 3;

    if (call->window + more > SERVER_STREAM_MAX) {
        more = SERVER_STREAM_MAX - call->window;
    }
    if (more > 0 && !pressed(s) && oc_list_empty(&call->conn->w->waiting) &&
        oc_budget_take(&s->reserve, more)) {
        call->reserved += more;
        call->window += more;
    }
}

void server_window_consumed(struct oc_call *call, size_t n) {
    OC_CHECK(n <= call->unconsumed);
    call->unconsumed -= n;
    call->consumed_since += n;
    if (call->remote_closed) {
        (void)server_window_hold(call); /* gives back only */
        server_conn_dirty(call->conn);
        return;
    }
    if (call->consumed_since >= call->window) {
        call->consumed_since = 0;
        grow(call);
    }
    (void)server_window_hold(call); /* gives back only */
    server_window_stream(call);
    server_conn_dirty(call->conn);
}

void server_window_release(struct oc_call *call) {
    call->unconsumed = 0;
    server_call_body_drop(call);
    server_window_unreserve(call);
}
