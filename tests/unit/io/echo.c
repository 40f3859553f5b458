#include "echo.h"

#include <stdlib.h>

#include "base/mem.h"

/* One turn's reads are the most that ever waits: reading stops while bytes wait. */
#define WAITING_MAX ((size_t)2 * 1024 * 1024)

struct echo {
    struct oc_tcp *tcp;
    struct echo_stats *stats;
    struct oc_buf waiting;
    size_t sent; /* of waiting */
};

static void flush(struct echo *e) {
    struct iovec iov = {e->waiting.data + e->sent, e->waiting.len - e->sent};
    int64_t n = oc_tcp_try_writev(e->tcp, &iov, 1);

    if (n < 0) {
        oc_tcp_close(e->tcp, false);
        return;
    }
    e->sent += (size_t)n;
    if (e->sent < e->waiting.len) {
        atomic_fetch_add(&e->stats->stopped, 1);
        oc_tcp_read_stop(e->tcp);
        oc_tcp_want_write(e->tcp);
        return;
    }
    e->waiting.len = 0;
    e->sent = 0;
    oc_tcp_read_start(e->tcp);
}

static void echo_read(void *user, struct oc_span bytes) {
    struct echo *e = user;
    int64_t n = 0;

    if (e->waiting.len == 0) {
        struct iovec iov = {(void *)(uintptr_t)bytes.p, bytes.len};

        n = oc_tcp_try_writev(e->tcp, &iov, 1);
        if (n < 0) {
            oc_tcp_close(e->tcp, false);
            return;
        }
    }
    if ((size_t)n < bytes.len) {
        if (oc_buf_append(&e->waiting, bytes.p + n, bytes.len - (size_t)n) != 0) {
            oc_tcp_close(e->tcp, true);
            return;
        }
        flush(e);
    }
}

static void echo_drained(void *user) {
    struct echo *e = user;

    atomic_fetch_add(&e->stats->drained, 1);
    flush(e);
}

static void echo_ended(void *user, int code) {
    struct echo *e = user;

    atomic_fetch_add(&e->stats->failed, code != 0);
    oc_tcp_close(e->tcp, false);
}

static void echo_closed(void *user) {
    struct echo *e = user;

    atomic_fetch_add(&e->stats->closed, 1);
    oc_buf_done(&e->waiting);
    free(e);
}

void echo_accepted(void *user, struct oc_tcp *tcp) {
    static const struct oc_tcp_events events = {echo_read, echo_drained, echo_ended, echo_closed};
    struct echo *e = calloc(1, sizeof *e);

    if (e == NULL) {
        oc_tcp_close(tcp, true);
        return;
    }
    e->tcp = tcp;
    e->stats = user;
    oc_buf_init(&e->waiting, WAITING_MAX);
    atomic_fetch_add(&e->stats->accepted, 1);
    oc_tcp_set_user(tcp, &events, e);
    oc_tcp_read_start(tcp);
}
