/* Time: a heap of deadlines with one timer, and a slow tick that looks at every connection for what
 * has stood still too long. */
#include <stdlib.h>

#include "rpc/server_internal.h"

#define TICK_MIN_MS 5u
#define TICK_MAX_MS 1000u

/* ---- deadlines ---- */

static void heap_set(struct oc_rpc_worker *w, size_t at, struct oc_call *call) {
    w->heap[at] = call;
    call->heap_at = at + 1;
}

static void heap_up(struct oc_rpc_worker *w, size_t at, struct oc_call *call) {
    while (at > 0) {
        size_t parent = (at - 1) / 2;

        if (w->heap[parent]->deadline_ns <= call->deadline_ns) {
            break;
        }
        heap_set(w, at, w->heap[parent]);
        at = parent;
    }
    heap_set(w, at, call);
}

static void heap_down(struct oc_rpc_worker *w, size_t at, struct oc_call *call) {
    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= w->heap_count) {
            break;
        }
        if (child + 1 < w->heap_count &&
            w->heap[child + 1]->deadline_ns < w->heap[child]->deadline_ns) {
            child++;
        }
        if (w->heap[child]->deadline_ns >= call->deadline_ns) {
            break;
        }
        heap_set(w, at, w->heap[child]);
        at = child;
    }
    heap_set(w, at, call);
}

static void arm(struct oc_rpc_worker *w, uint64_t deadline_ns) {
    uint64_t ns = deadline_ns > w->now_ns ? deadline_ns - w->now_ns : 0;

    w->deadline_armed_ns = deadline_ns;
    if (oc_timer_start(&w->deadline, ns / OC_NS_PER_MS + 1, 0) < 0) {
        w->deadline_armed_ns = UINT64_MAX; /* the next one tries again */
    }
}

int server_deadline_add(struct oc_call *call) {
    struct oc_rpc_worker *w = call->conn->w;

    if (call->deadline_ns == UINT64_MAX) {
        return OC_OK;
    }
    if (w->heap_count == w->heap_cap) {
        size_t cap = w->heap_cap == 0 ? 256 : w->heap_cap * 2;
        struct oc_call **heap = realloc(w->heap, cap * sizeof(struct oc_call *));

        if (heap == NULL) {
            return OC_E_EXHAUSTED;
        }
        w->heap = heap;
        w->heap_cap = cap;
    }
    heap_up(w, w->heap_count++, call);
    if (call->deadline_ns < w->deadline_armed_ns) {
        arm(w, call->deadline_ns);
    }
    return OC_OK;
}

void server_deadline_remove(struct oc_call *call) {
    struct oc_rpc_worker *w = call->conn->w;

    if (call->heap_at == 0) {
        return;
    }
    size_t at = call->heap_at - 1;
    struct oc_call *last = w->heap[--w->heap_count];
    call->heap_at = 0;
    if (last == call) {
        return;
    }
    if (at > 0 && w->heap[(at - 1) / 2]->deadline_ns > last->deadline_ns) {
        heap_up(w, at, last);
    } else {
        heap_down(w, at, last);
    }
}

void server_deadline_fired(struct oc_timer *timer) {
    struct oc_rpc_worker *w = OC_CONTAINER(timer, struct oc_rpc_worker, deadline);

    server_worker_now(w);
    w->deadline_armed_ns = UINT64_MAX;
    while (w->heap_count > 0 && w->heap[0]->deadline_ns <= w->now_ns) {
        struct oc_call *call = w->heap[0];

        server_deadline_remove(call);
        server_call_abort(call, OC_E_DEADLINE, "deadline exceeded");
    }
    if (w->heap_count > 0) {
        arm(w, w->heap[0]->deadline_ns);
    }
}

/* ---- the tick ---- */

uint64_t server_tick_ms(const struct oc_rpc_config *cfg) {
    uint64_t times[] = {cfg->keepalive_ms, cfg->keepalive_timeout_ms, cfg->handshake_ms,
                        cfg->stall_ms, cfg->idle_ms != 0 ? cfg->idle_ms : cfg->stall_ms};
    uint64_t least = TICK_MAX_MS * 8;

    for (size_t i = 0; i < OC_ARRAY_LEN(times); i++) {
        least = times[i] < least ? times[i] : least;
    }
    return least / 8 > TICK_MIN_MS ? least / 8 : TICK_MIN_MS;
}

static bool passed(const struct oc_rpc_worker *w, uint64_t since_ns, uint64_t ms) {
    return w->now_ns > since_ns && w->now_ns - since_ns > ms * OC_NS_PER_MS;
}

static uint64_t stall_ms(const struct oc_rpc_worker *w) {
    return w->pressed ? w->s->cfg.pressed_stall_ms : w->s->cfg.stall_ms;
}

/* A message that has begun grows by SERVER_DRIP_BYTES in every stall time, or it is given up: a
 * peer that drips single bytes must not hold a reservation for hours. Between messages a stream may
 * be slow, but not while others wait. */
static bool body_stalled(struct oc_call *call) {
    const struct oc_rpc_worker *w = call->conn->w;

    if (call->remote_closed || call->unconsumed > 0 || !oc_list_empty(&call->wait_link)) {
        call->mark_ns = call->received_ns = w->now_ns; /* it waits for us, not we for it */
        call->mark_received = call->received;
        return false;
    }
    if (passed(w, call->received_ns, stall_ms(w))) {
        return true;
    }
    if (passed(w, call->mark_ns, stall_ms(w))) {
        uint64_t got = call->received - call->mark_received;

        if ((call->reader.in_message || w->pressed) && got < SERVER_DRIP_BYTES &&
            call->mark_received > 0) {
            return true;
        }
        call->mark_ns = w->now_ns;
        call->mark_received = call->received;
    }
    return false;
}

/* The same for a response: a peer that gives single bytes of window must not hold buffers. */
static bool response_stalled(struct oc_call *call) {
    const struct oc_rpc_worker *w = call->conn->w;

    if (call->queued == 0) {
        return false;
    }
    if (passed(w, call->sent_ns, stall_ms(w))) {
        return true;
    }
    if (passed(w, call->sent_mark_ns, stall_ms(w))) {
        if (call->sent - call->sent_mark < SERVER_DRIP_BYTES) {
            return true;
        }
        call->sent_mark = call->sent;
        call->sent_mark_ns = w->now_ns;
    }
    return false;
}

static void tick_call(struct oc_call *call) {
    struct oc_rpc_worker *w = call->conn->w;

    if (!call->finished && (call->started || call->plain) && body_stalled(call)) {
        server_count(&w->counts.stalled_closed, 1);
        if (call->plain) {
            server_http_h2_reply(call, 408, "text/plain; charset=utf-8",
                                 OC_SPAN_LIT("the request made no progress"));
        } else {
            server_call_abort(call, OC_E_DEADLINE, "the request made no progress");
        }
        return;
    }
    if (response_stalled(call)) {
        server_count(&w->counts.stalled_closed, 1);
        call->sent_ns = call->sent_mark_ns = w->now_ns; /* once */
        server_h2_reset(call, NGHTTP2_CANCEL);
        if (!call->finished) {
            server_call_abort(call, OC_E_DEADLINE, "the response was not read");
        }
    }
}

static void tick_h2(struct server_conn *conn) {
    const struct oc_rpc_config *cfg = &conn->w->s->cfg;
    struct oc_rpc_worker *w = conn->w;

    /* No SETTINGS, or a header block that never ends. */
    if ((!conn->settings_seen && passed(w, conn->opened_ns, cfg->handshake_ms)) ||
        (conn->head_ns != 0 && passed(w, conn->head_ns, cfg->handshake_ms))) {
        server_count(&w->counts.stalled_closed, 1);
        server_conn_kill(conn, true);
        return;
    }
    oc_list_each_safe (link, next, &conn->calls) {
        tick_call(OC_CONTAINER(link, struct oc_call, link));
    }
    if (conn->ping_out && passed(w, conn->ping_ns, cfg->keepalive_timeout_ms)) {
        server_count(&w->counts.keepalive_closed, 1);
        server_conn_kill(conn, true);
        return;
    }
    if (!conn->ping_out && passed(w, conn->read_ns, cfg->keepalive_ms)) {
        conn->ping_out = true;
        conn->ping_ns = w->now_ns;
        server_h2_ping(conn, NULL);
    }
    if (cfg->idle_ms != 0 && conn->call_count == 0 && passed(w, conn->active_ns, cfg->idle_ms)) {
        server_h2_drain(conn);
    }
    if (conn->draining && !conn->goaway_final && passed(w, conn->drain_ns, w->drain_final_ms)) {
        server_h2_goaway_final(conn); /* the ping between the two is not answered */
    }
}

static void tick_h1(struct server_conn *conn) {
    const struct oc_rpc_config *cfg = &conn->w->s->cfg;
    struct oc_rpc_worker *w = conn->w;
    uint64_t idle_ms = cfg->idle_ms != 0 ? cfg->idle_ms : cfg->stall_ms;

    if (http1_mid_head(conn->h1)) {
        if (passed(w, conn->head_ns, cfg->handshake_ms)) {
            server_count(&w->counts.stalled_closed, 1);
            http1_timeout(conn->h1);
        }
    } else if (http1_idle(conn->h1)) {
        if (passed(w, conn->active_ns, idle_ms)) {
            server_conn_end(conn);
        }
    } else if (!http1_pending(conn->h1) &&
               (passed(w, conn->read_ns, cfg->stall_ms) ||
                passed(w, http1_body_since_ns(conn->h1), 2 * cfg->stall_ms))) {
        server_count(&w->counts.stalled_closed, 1);
        http1_timeout(conn->h1);
    }
}

static void tick_conn(struct server_conn *conn) {
    const struct oc_rpc_config *cfg = &conn->w->s->cfg;
    struct oc_rpc_worker *w = conn->w;

    if (conn->closing || conn->dead) {
        return;
    }
    if (conn->lingering) {
        if (w->now_ns > conn->linger_ns) {
            server_conn_kill(conn, false);
        }
        return;
    }
    /* Output that waits for the socket: the peer reads nothing at all. */
    if (conn->want_write && passed(w, conn->write_ns, stall_ms(w))) {
        server_count(&w->counts.stalled_closed, 1);
        server_conn_kill(conn, true);
        return;
    }
    if (conn->proto == PROTO_H2) {
        tick_h2(conn);
    } else if (conn->proto == PROTO_H1) {
        tick_h1(conn);
    } else if (passed(w, conn->opened_ns, cfg->handshake_ms)) {
        server_count(&w->counts.stalled_closed, 1);
        server_conn_kill(conn, false);
    }
}

void server_tick(struct oc_timer *timer) {
    struct oc_rpc_worker *w = OC_CONTAINER(timer, struct oc_rpc_worker, tick);

    const struct oc_rpc_config *cfg = &w->s->cfg;

    server_worker_now(w);
    w->pressed = cfg->pressed != NULL && cfg->pressed(cfg->service);
    oc_list_each_safe (link, next, &w->conns) {
        tick_conn(OC_CONTAINER(link, struct server_conn, link));
    }
    server_health_tick(w);
    if (w->draining && w->now_ns > w->drain_deadline_ns) {
        oc_list_each_safe (link, next, &w->conns) {
            server_conn_kill(OC_CONTAINER(link, struct server_conn, link), true);
        }
    }
}
