#include "mem_io.h"

#include "base/check.h"

#define SETTLE_ROUNDS 100000

static int64_t mem_writev(void *io, const struct iovec *iov, int count) {
    struct mem_peer *p = io;
    size_t taken = 0;

    OC_CHECK(!p->closing && count > 0 && count <= 1024);
    if (p->shut) {
        return OC_E_UNAVAILABLE;
    }
    for (int i = 0; i < count; i++) {
        size_t n = iov[i].iov_len;

        OC_CHECK(n > 0);
        if (p->write_max != 0 && n > p->write_max - taken) {
            n = p->write_max - taken;
        }
        OC_CHECK(oc_buf_append(&p->out, iov[i].iov_base, n) == OC_OK);
        taken += n;
        if (n < iov[i].iov_len) {
            break;
        }
    }
    return (int64_t)taken;
}

static void mem_want_write(void *io) {
    ((struct mem_peer *)io)->want_write = true;
}

static void mem_read(void *io, bool on) {
    ((struct mem_peer *)io)->reading = on;
}

static void mem_shutdown(void *io) {
    ((struct mem_peer *)io)->shut = true;
}

static void mem_close(void *io, bool reset) {
    struct mem_peer *p = io;

    OC_CHECK(!p->closing);
    p->closing = true;
    p->reset = reset;
}

static const struct server_io mem_io = {mem_writev, mem_want_write, mem_read, mem_shutdown,
                                        mem_close};

void mem_server_init(struct mem_server *s) {
    *s = (struct mem_server){0};
    service_config(&s->svc, &s->cfg);
}

void mem_server_start(struct mem_server *s) {
    struct oc_error err;

    OC_CHECK(oc_rpc_server_new(&s->cfg, &s->server, &err) == OC_OK);
    OC_CHECK(oc_loop_new(&s->loop, &err) == OC_OK);
    s->sw = service_worker_new(&s->svc, s->loop);
    OC_CHECK(oc_rpc_worker_new(s->server, s->loop, s->sw, &s->w) == OC_OK);
    s->now = (struct oc_now){OC_NS_PER_S, 1800000000 * OC_NS_PER_S};
    s->w->frozen = &s->now;
}

void mem_server_check_empty(struct mem_server *s) {
    OC_CHECK(atomic_load(&s->svc.started) == atomic_load(&s->svc.closed));
    OC_CHECK(atomic_load(&s->server->reserve.used) == 0);
    OC_CHECK(atomic_load(&s->server->hold.used) == 0);
    OC_CHECK(atomic_load(&s->w->counts.floor_used) == 0);
    OC_CHECK((int64_t)atomic_load(&s->server->send_used) + s->w->send_unreported == 0);
    OC_CHECK(s->w->conn_count == 0 && s->w->heap_count == 0 && s->w->watch_count == 0);
    OC_CHECK(s->w->msgs.live == 0);
}

void mem_server_stop(struct mem_server *s) {
    mem_server_check_empty(s);
    oc_rpc_worker_free(s->w);
    service_worker_free(s->sw);
    oc_loop_free(s->loop);
    oc_rpc_server_free(s->server);
}

void mem_peer_open(struct mem_peer *p, struct mem_server *s) {
    *p = (struct mem_peer){.reading = true};
    oc_buf_init(&p->out, (size_t)1 << 30);
    p->conn = server_conn_new(s->w, &mem_io, p, "memory:1");
    OC_CHECK(p->conn != NULL);
}

void mem_peer_settle(struct mem_peer *p) {
    for (int round = 0; p->conn != NULL; round++) {
        struct oc_rpc_worker *w = p->conn->w;

        OC_CHECK(round < SETTLE_ROUNDS);
        if (p->closing) {
            server_conn_closed(OC_TAKE(p->conn));
            return;
        }
        if (p->want_write) {
            p->want_write = false;
            server_conn_writable(p->conn);
        } else if (oc_list_empty(&w->dirty)) {
            return;
        }
        server_worker_turn(w);
    }
}

void mem_peer_feed(struct mem_peer *p, const void *bytes, size_t len, size_t part) {
    const uint8_t *at = bytes;

    while (len > 0 && p->conn != NULL) {
        size_t n = part != 0 && part < len ? part : len;

        server_conn_input(p->conn, oc_span(at, n));
        at += n;
        len -= n;
        mem_peer_settle(p);
    }
}

void mem_peer_close(struct mem_peer *p) {
    if (p->conn != NULL) {
        server_conn_ended(p->conn, OC_OK);
        mem_peer_settle(p);
    }
    if (p->conn != NULL) { /* half-closed, or waiting for time to pass */
        server_conn_kill(p->conn, true);
        mem_peer_settle(p);
    }
    OC_CHECK(p->conn == NULL);
    oc_buf_done(&p->out);
}
