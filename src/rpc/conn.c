/* A connection: which protocol it speaks, its output in batches, and how it ends.
 *
 * Output is made at the end of a loop turn: the frames of a batch are gathered in the worker's one
 * batch buffer and go out in one writev. Only when the socket does not take all of it, the rest is
 * moved to a tail of the connection's own, and no new frames are made until the tail is out. */
#include <stdio.h>
#include <stdlib.h>

#include "base/event.h"
#include "rpc/server_internal.h"

static const char h2_preface[24] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/* ---- the batch ---- */

void server_out_copy(struct server_out *out, const void *p, size_t len) {
    uint8_t *at = out->copy + out->copied;

    OC_CHECK(len <= SERVER_OUT_COPY - out->copied);
    memcpy(at, p, len);
    out->copied += len;
    out->bytes += len;
    if (out->iov_count > 0) {
        struct iovec *last = &out->iov[out->iov_count - 1];

        if ((uint8_t *)last->iov_base + last->iov_len == at) {
            last->iov_len += len;
            return;
        }
    }
    OC_CHECK(out->iov_count < (int)SERVER_OUT_IOVS);
    out->iov[out->iov_count++] = (struct iovec){at, len};
}

/* Takes over the caller's reference (owner may be NULL). */
void server_out_ref(struct server_out *out, const uint8_t *p, size_t len, struct oc_ref *owner) {
    OC_CHECK(out->iov_count < (int)SERVER_OUT_IOVS);
    out->iov[out->iov_count++] = (struct iovec){server_unconst(p), len};
    out->bytes += len;
    if (owner != NULL) {
        out->refs[out->ref_count++] = owner;
    }
}

static void refs_put(struct oc_ref **refs, int count) {
    for (int i = 0; i < count; i++) {
        oc_ref_put(refs[i]);
    }
}

static void out_reset(struct server_out *out) {
    out->bytes = 0;
    out->copied = 0;
    out->iov_count = 0;
    out->ref_count = 0;
}

/* ---- the tail ---- */

/* Skip n bytes of iov[*at ...]. */
static void iov_advance(struct iovec *iov, int count, int *at, size_t n) {
    while (n > 0 && *at < count) {
        struct iovec *v = &iov[*at];

        if (n < v->iov_len) {
            v->iov_base = (uint8_t *)v->iov_base + n;
            v->iov_len -= n;
            return;
        }
        n -= v->iov_len;
        (*at)++;
    }
}

static bool in_copy(const struct server_out *out, const struct iovec *v) {
    const uint8_t *p = v->iov_base;

    return p >= out->copy && p < out->copy + SERVER_OUT_COPY;
}

/* Keep what is left of the batch behind `sent` bytes. */
static int tail_save(struct server_conn *conn, struct server_out *out, size_t sent) {
    int at = 0;
    size_t copy = 0;

    iov_advance(out->iov, out->iov_count, &at, sent);
    int left = out->iov_count - at;
    for (int i = at; i < out->iov_count; i++) {
        copy += in_copy(out, &out->iov[i]) ? out->iov[i].iov_len : 0;
    }
    struct server_tail *t = malloc(sizeof *t + (size_t)left * sizeof *t->iov +
                                   (size_t)out->ref_count * sizeof(struct oc_ref *) + copy);
    if (t == NULL) {
        return OC_E_EXHAUSTED;
    }
    t->iov = (struct iovec *)(void *)(t + 1);
    t->refs = (struct oc_ref **)(void *)(t->iov + left);
    uint8_t *bytes = (uint8_t *)(t->refs + out->ref_count);
    t->iov_count = left;
    t->at = 0;
    for (int i = 0; i < left; i++) {
        t->iov[i] = out->iov[at + i];
        if (in_copy(out, &t->iov[i])) {
            memcpy(bytes, t->iov[i].iov_base, t->iov[i].iov_len);
            t->iov[i].iov_base = bytes;
            bytes += t->iov[i].iov_len;
        }
    }
    t->ref_count = out->ref_count;
    if (out->ref_count > 0) {
        memcpy(t->refs, out->refs, (size_t)out->ref_count * sizeof t->refs[0]);
    }
    conn->tail = t;
    return OC_OK;
}

static void tail_free(struct server_conn *conn) {
    struct server_tail *t = conn->tail;

    conn->tail = NULL;
    if (t != NULL) {
        refs_put(t->refs, t->ref_count);
        free(t);
    }
}

static void wrote(struct server_conn *conn, size_t n) {
    if (n > 0) {
        conn->out_done += n;
        conn->write_ns = conn->w->now_ns;
        server_count(&conn->w->counts.bytes_out, n);
    }
}

void server_conn_want_write(struct server_conn *conn) {
    if (!conn->want_write) {
        conn->want_write = true;
        conn->write_ns = conn->w->now_ns; /* the stall clock starts when bytes begin to wait */
        conn->io->want_write(conn->io_ctx);
    }
}

/* True when the tail is out. */
static bool tail_send(struct server_conn *conn) {
    struct server_tail *t = conn->tail;

    while (t->at < t->iov_count) {
        int64_t n = conn->io->writev(conn->io_ctx, t->iov + t->at, t->iov_count - t->at);

        if (n < 0) {
            server_conn_kill(conn, true);
            return false;
        }
        if (n == 0) {
            server_conn_want_write(conn);
            return false;
        }
        wrote(conn, (size_t)n);
        iov_advance(t->iov, t->iov_count, &t->at, (size_t)n);
    }
    tail_free(conn);
    return true;
}

/* True when the whole batch is out. */
static bool batch_send(struct server_conn *conn) {
    struct server_out *out = &conn->w->out;
    int64_t n = conn->io->writev(conn->io_ctx, out->iov, out->iov_count);

    conn->out_total += out->bytes;
    if (n == (int64_t)out->bytes) {
        wrote(conn, out->bytes);
        refs_put(out->refs, out->ref_count);
        return true;
    }
    if (n < 0 || tail_save(conn, out, (size_t)n) < 0) {
        refs_put(out->refs, out->ref_count);
        server_conn_kill(conn, true);
        return false;
    }
    wrote(conn, (size_t)n);
    server_conn_want_write(conn);
    return false;
}

/* ---- the end ---- */

static void drop_calls(struct server_conn *conn) {
    struct oc_list *link;

    while ((link = oc_list_pop_front(&conn->calls)) != NULL) {
        struct oc_call *call = OC_CONTAINER(link, struct oc_call, link);

        server_call_stream_closed(call, false);
    }
    while ((link = oc_list_pop_front(&conn->flushing)) != NULL) {
        struct oc_call *call = OC_CONTAINER(link, struct oc_call, write_link);

        server_call_closed(call, OC_OK);
        server_call_free(call);
    }
}

/* Let go of everything but the connection itself. */
static void conn_strip(struct server_conn *conn) {
    drop_calls(conn);
    OC_CHECK(conn->held == 0 && conn->charged == 0 && conn->heads_charged == 0);
    OC_CHECK(conn->queued == 0);
    nghttp2_session_del(conn->h2);
    conn->h2 = NULL;
    http1_free(conn->h1);
    conn->h1 = NULL;
    tail_free(conn);
}

static void conn_close(struct server_conn *conn, bool reset) {
    conn->closing = true;
    oc_list_remove(&conn->dirty);
    conn_strip(conn);
    oc_event(OC_EV_CONN_CLOSE, (uint64_t)(uintptr_t)conn, reset);
    conn->io->close(conn->io_ctx, reset);
}

/* Never at once: the caller may be deep inside nghttp2 or a callback of the service. */
void server_conn_kill(struct server_conn *conn, bool reset) {
    if (!conn->closing) {
        conn->dead = true;
        conn->dead_reset |= reset;
        server_conn_dirty(conn);
    }
}

void server_conn_end(struct server_conn *conn) {
    conn->ending = true;
    server_conn_dirty(conn);
}

/* Everything is out: say that it was all, and close when the peer has seen it. Closing at once
 * would make the kernel answer bytes that are still on their way with a reset, which may destroy
 * what we sent last. */
static void conn_linger(struct server_conn *conn) {
    if (conn->lingering) {
        return;
    }
    bool h1_done = conn->proto == PROTO_H1 && http1_idle(conn->h1);
    conn_strip(conn);
    if (conn->peer_ended || h1_done) {
        conn_close(conn, false);
        return;
    }
    conn->lingering = true;
    conn->io->shutdown(conn->io_ctx);
    conn->io->read(conn->io_ctx, true); /* HTTP/1.1 may have stopped it */
    conn->linger_ns = conn->w->now_ns + SERVER_LINGER_MS * OC_NS_PER_MS;
}

void server_conn_ended(struct server_conn *conn, int code) {
    if (conn->closing) {
        return;
    }
    server_worker_now(conn->w);
    conn->peer_ended = true;
    if (code == OC_OK && conn->proto == PROTO_H1 && !conn->lingering && http1_pending(conn->h1)) {
        server_conn_end(conn); /* half-closed: the answers still go out */
        return;
    }
    server_conn_kill(conn, code != OC_OK);
}

void server_conn_closed(struct server_conn *conn) {
    struct oc_rpc_worker *w = conn->w;

    OC_MAGIC_CHECK(conn, SERVER_CONN_MAGIC);
    if (!conn->closing) { /* the loop ends and closes what is left */
        conn->closing = true;
        oc_list_remove(&conn->dirty);
        conn_strip(conn);
    }
    oc_list_remove(&conn->link);
    w->conn_count--;
    server_uncount(&w->counts.connections, 1);
    conn->magic = 0;
    free(conn);
    server_worker_check_drained(w);
}

/* ---- the turn ---- */

static void h2_turn(struct server_conn *conn) {
    struct server_out *out = &conn->w->out;

    for (unsigned batch = 0; !conn->dead; batch++) {
        if (conn->tail != NULL) {
            if (!tail_send(conn)) {
                break;
            }
            server_call_flushed(conn);
            server_call_run_writable(conn);
        }
        if (batch == SERVER_TURN_BATCHES) {
            server_conn_dirty(conn); /* others first */
            break;
        }
        server_http_h2_waiting(conn);
        server_window_conn(conn);
        if (!nghttp2_session_want_write(conn->h2)) {
            break;
        }
        out_reset(out);
        conn->in_send = true;
        bool ok = server_h2_fill(conn);
        conn->in_send = false;
        if (!ok) {
            refs_put(out->refs, out->ref_count);
            server_conn_kill(conn, true);
            break;
        }
        if (out->bytes == 0) {
            break;
        }
        bool all = batch_send(conn);
        if (conn->dead) {
            break;
        }
        server_call_flushed(conn);
        server_call_run_writable(conn);
        if (!all) {
            break;
        }
    }
}

static void h2_check_end(struct server_conn *conn) {
    bool nothing_out = conn->tail == NULL && !nghttp2_session_want_write(conn->h2);

    if (!nothing_out) {
        return;
    }
    if (conn->ending || !nghttp2_session_want_read(conn->h2) ||
        (conn->goaway_final && conn->call_count == 0)) {
        conn->ending = true;
        conn_linger(conn);
    }
}

void server_conn_turn(struct server_conn *conn) {
    OC_MAGIC_CHECK(conn, SERVER_CONN_MAGIC);
    if (conn->closing) {
        return;
    }
    if (conn->dead) {
        conn_close(conn, conn->dead_reset);
        return;
    }
    if (conn->lingering) {
        return;
    }
    if (conn->proto == PROTO_H2) {
        if (!conn->want_write) {
            h2_turn(conn);
        }
        if (!conn->dead) {
            h2_check_end(conn);
        }
    } else if (conn->proto == PROTO_H1) {
        if (!conn->want_write && !http1_turn(conn->h1)) {
            server_conn_kill(conn, true);
        } else if (conn->ending && !http1_pending(conn->h1)) {
            conn_linger(conn);
        }
    } else if (conn->ending) {
        server_conn_kill(conn, false);
    }
    if (conn->dead && !conn->closing) {
        conn_close(conn, conn->dead_reset);
    }
}

void server_conn_dirty_slow(struct server_conn *conn) {
    struct oc_rpc_worker *w = conn->w;

    if (conn->closing) {
        return;
    }
    oc_list_push_back(&w->dirty, &conn->dirty);
    /* The hook of this turn has run already: come back before the loop sleeps. */
    if (w->flushed_ns == server_now(w).mono_ns) {
        oc_loop_again(w->loop);
    }
}

/* ---- input ---- */

static void choose(struct server_conn *conn, struct oc_span *bytes) {
    while (bytes->len > 0 && conn->sniffed_len < sizeof h2_preface) {
        if (bytes->p[0] != (uint8_t)h2_preface[conn->sniffed_len]) {
            conn->proto = PROTO_H1;
            return;
        }
        conn->sniffed[conn->sniffed_len++] = bytes->p[0];
        bytes->p++;
        bytes->len--;
    }
    if (conn->sniffed_len == sizeof h2_preface) {
        conn->proto = PROTO_H2;
    }
}

static void protocol_input(struct server_conn *conn, struct oc_span bytes) {
    if (conn->proto == PROTO_H2) {
        server_h2_input(conn, bytes);
    } else {
        http1_input(conn->h1, bytes);
    }
}

void server_conn_input(struct server_conn *conn, struct oc_span bytes) {
    OC_MAGIC_CHECK(conn, SERVER_CONN_MAGIC);
    if (conn->closing || conn->lingering || conn->dead || conn->ending) {
        return; /* read and dropped */
    }
    conn->read_ns = server_worker_now(conn->w);
    conn->ping_out = false;
    server_count(&conn->w->counts.bytes_in, bytes.len);
    if (conn->proto == PROTO_UNKNOWN) {
        choose(conn, &bytes);
        if (conn->proto == PROTO_UNKNOWN) {
            return;
        }
        int e = conn->proto == PROTO_H2 ? server_h2_start(conn) : http1_new(conn, &conn->h1);
        if (e < 0) {
            server_conn_kill(conn, true);
            return;
        }
        if (conn->sniffed_len > 0) {
            protocol_input(conn, oc_span(conn->sniffed, conn->sniffed_len));
        }
    }
    if (bytes.len > 0 && !conn->closing && !conn->dead && !conn->ending) {
        protocol_input(conn, bytes);
    }
    if (!conn->closing) {
        server_conn_dirty(conn);
    }
}

void server_conn_writable(struct server_conn *conn) {
    if (conn->closing) {
        return;
    }
    server_worker_now(conn->w);
    conn->want_write = false;
    server_conn_dirty(conn);
}

void server_conn_drain(struct server_conn *conn) {
    if (conn->closing || conn->lingering || conn->ending) {
        return;
    }
    if (conn->proto == PROTO_H2) {
        server_h2_drain(conn);
    } else if (conn->proto == PROTO_H1) {
        http1_drain(conn->h1);
    } else {
        server_conn_kill(conn, false);
    }
}

/* ---- birth ---- */

struct server_conn *server_conn_new(struct oc_rpc_worker *w, const struct server_io *io,
                                    void *io_ctx, const char *peer) {
    struct server_conn *conn = calloc(1, sizeof *conn);

    if (conn == NULL) {
        return NULL;
    }
    conn->magic = SERVER_CONN_MAGIC;
    conn->w = w;
    conn->io = io;
    conn->io_ctx = io_ctx;
    (void)snprintf(conn->peer, sizeof conn->peer, "%s", peer);
    oc_list_init(&conn->dirty);
    oc_list_init(&conn->calls);
    oc_list_init(&conn->writable);
    oc_list_init(&conn->flushing);
    oc_list_init(&conn->plain_waiting);
    conn->opened_ns = server_worker_now(w);
    conn->read_ns = conn->write_ns = conn->active_ns = conn->opened_ns;
    oc_list_push_back(&w->conns, &conn->link);
    w->conn_count++;
    server_count(&w->counts.connections, 1);
    oc_event(OC_EV_CONN_OPEN, (uint64_t)(uintptr_t)conn, 0);
    return conn;
}

static int64_t tcp_writev(void *io, const struct iovec *iov, int count) {
    return oc_tcp_try_writev(io, iov, count);
}
static void tcp_want_write(void *io) {
    oc_tcp_want_write(io);
}
static void tcp_read(void *io, bool on) {
    if (on) {
        oc_tcp_read_start(io);
    } else {
        oc_tcp_read_stop(io);
    }
}
static void tcp_close(void *io, bool reset) {
    oc_tcp_close(io, reset);
}
static void tcp_shutdown(void *io) {
    oc_tcp_shutdown(io);
}
static const struct server_io tcp_io = {tcp_writev, tcp_want_write, tcp_read, tcp_shutdown,
                                        tcp_close};

static void on_tcp_read(void *user, struct oc_span bytes) {
    server_conn_input(user, bytes);
}
static void on_tcp_drained(void *user) {
    server_conn_writable(user);
}
static void on_tcp_ended(void *user, int code) {
    server_conn_ended(user, code);
}
static void on_tcp_closed(void *user) {
    server_conn_closed(user);
}
static void on_refused_closed(void *user) {
    (void)user;
}
static const struct oc_tcp_events tcp_events = {on_tcp_read, on_tcp_drained, on_tcp_ended,
                                                on_tcp_closed};
static const struct oc_tcp_events refused_events = {NULL, NULL, NULL, on_refused_closed};

void server_conn_accept_tcp(struct oc_rpc_worker *w, struct oc_tcp *tcp) {
    struct server_conn *conn =
        w->draining ? NULL : server_conn_new(w, &tcp_io, tcp, oc_tcp_peer(tcp));

    if (conn == NULL) {
        oc_tcp_set_user(tcp, &refused_events, NULL);
        oc_tcp_close(tcp, true);
        return;
    }
    oc_tcp_set_user(tcp, &tcp_events, conn);
    oc_tcp_read_start(tcp);
}
