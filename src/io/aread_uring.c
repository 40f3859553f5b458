/* Reads by io_uring. Completions ring an eventfd in the loop's epoll set; the submissions of a turn
 * are one system call. Where the kernel has no io_uring, forbids it (containers often do) or has no
 * memory for it, there is none, and movers read. Should it fail later, reads that it has not taken,
 * and all later ones, go to the movers. */
#include "io/aread_impl.h"
#include "io/disk_posix.h"

#ifdef OC_HAVE_URING

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"

/* EINTR and EAGAIN for one read, so often in a row: it will not do any more. */
#define RETRIES_MAX 1000

struct oc_uring {
    struct oc_poll poll; /* first: of the eventfd */
    struct io_uring ring;
    int event_fd;
    struct oc_aread *reader;
    struct oc_list unsent; /* waiting for the end of the turn */
    struct oc_list
        prepared; /* in the submission queue, not yet taken by the kernel; oldest first */
    struct oc_deferred flush;
    bool broken;
};

static void flush_later(struct oc_uring *u) {
    if (oc_list_empty(&u->flush.link)) {
        oc_loop_defer(u->reader->loop, &u->flush);
    }
}

static void enqueue(struct oc_uring *u, struct oc_aread_req *req) {
    oc_list_push_back(&u->unsent, &req->link);
    flush_later(u);
}

/* ---- completions ---- */

static void fail(struct oc_uring *u, struct oc_aread_req *req, int errnum) {
    req->result =
        oc_disk_posix_fail(&req->err, errnum, "cannot read", req->file->disk->dir, req->file->path);
    oc_aread_finish(u->reader, req);
}

static void completed(struct oc_uring *u, struct oc_aread_req *req, int res) {
    if (res == -EINTR || res == -EAGAIN) {
        if (++req->retries > RETRIES_MAX) {
            fail(u, req, -res);
        } else {
            enqueue(u, req);
        }
        return;
    }
    if (res < 0) {
        fail(u, req, -res);
        return;
    }
    req->got_bytes += (size_t)res;
    if (res > 0 && req->got_bytes < req->len_bytes) {
        enqueue(u, req); /* cut short; only an empty read is the end of the file */
        return;
    }
    req->result = (int64_t)req->got_bytes;
    oc_aread_finish(u->reader, req);
}

static void rang(struct oc_poll *p, uint32_t events) {
    struct oc_uring *u = OC_CONTAINER(p, struct oc_uring, poll);
    struct io_uring_cqe *cqe;

    (void)events; /* edge-triggered: the eventfd need not be read */
    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        struct oc_aread_req *req = io_uring_cqe_get_data(cqe);
        int res = cqe->res;

        io_uring_cqe_seen(&u->ring, cqe);
        completed(u, req, res);
    }
}

/* ---- submissions ---- */

static void prepare(struct oc_uring *u) {
    while (!oc_list_empty(&u->unsent)) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

        if (sqe == NULL) {
            return; /* full; the rest follows when the kernel has taken these */
        }
        struct oc_list *link = oc_list_pop_front(&u->unsent);
        struct oc_aread_req *req = OC_CONTAINER(link, struct oc_aread_req, link);
        /* The length fits: reads here are short, see aread.c. */
        io_uring_prep_read(sqe, oc_disk_posix_fd(req->file), (uint8_t *)req->dst + req->got_bytes,
                           (unsigned)(req->len_bytes - req->got_bytes),
                           req->offset + req->got_bytes);
        io_uring_sqe_set_data(sqe, req);
        oc_list_push_back(&u->prepared, link);
    }
}

static void give_to_movers(struct oc_uring *u, struct oc_list *list) {
    struct oc_list *link;

    while ((link = oc_list_pop_front(list)) != NULL) {
        struct oc_aread_req *req = OC_CONTAINER(link, struct oc_aread_req, link);

        if (oc_aread_by_mover(u->reader, req) != 0) {
            fail(u, req, EAGAIN);
        }
    }
}

/* What is in the submission queue stays there: it is never submitted again. Reads that the kernel
 * has taken still complete. */
static void give_up(struct oc_uring *u) {
    u->broken = true;
    give_to_movers(u, &u->prepared);
    give_to_movers(u, &u->unsent);
}

static void flush(struct oc_deferred *d) {
    struct oc_uring *u = OC_CONTAINER(d, struct oc_uring, flush);

    if (u->broken) {
        give_to_movers(u, &u->unsent); /* a remainder of one that the kernel had taken */
        return;
    }
    prepare(u);
    int n = io_uring_submit(&u->ring);
    for (int i = 0; i < n; i++) {
        OC_CHECK(oc_list_pop_front(&u->prepared) != NULL);
    }
    if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY) {
        give_up(u);
    } else if (!oc_list_empty(&u->prepared) || !oc_list_empty(&u->unsent)) {
        flush_later(u);
    }
}

void oc_uring_submit(struct oc_uring *u, struct oc_aread_req *req) {
    enqueue(u, req);
}

bool oc_uring_broken(const struct oc_uring *u) {
    return u->broken;
}

/* ---- life ---- */

/* Setting a ring up may be permitted where using it is not: let a request that does nothing go
 * round. */
static bool works(struct io_uring *ring) {
    struct __kernel_timespec second = {.tv_sec = 1};
    struct io_uring_cqe *cqe = NULL;
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool can_read = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;

    if (probe != NULL) {
        io_uring_free_probe(probe);
    }
    if (!can_read || sqe == NULL) {
        return false;
    }
    io_uring_prep_nop(sqe);
    if (io_uring_submit(ring) != 1 || io_uring_wait_cqe_timeout(ring, &cqe, &second) != 0) {
        return false;
    }
    io_uring_cqe_seen(ring, cqe);
    return true;
}

struct oc_uring *oc_uring_new(struct oc_aread *a) {
    struct oc_uring *u = calloc(1, sizeof *u);

    if (u == NULL) {
        return NULL;
    }
    /* The completion queue is twice as long as the submission queue, and no more than `depth` reads
     * are under way: it cannot overflow. Completions need not interrupt a loop that is running, it
     * comes by the kernel soon; older kernels do not know that flag. */
    if (io_uring_queue_init(a->depth, &u->ring, IORING_SETUP_COOP_TASKRUN) != 0 &&
        io_uring_queue_init(a->depth, &u->ring, 0) != 0) {
        free(u);
        return NULL;
    }
    u->poll.ready = rang;
    u->reader = a;
    u->flush.fn = flush;
    oc_list_init(&u->flush.link);
    oc_list_init(&u->unsent);
    oc_list_init(&u->prepared);
    u->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->event_fd < 0 || !works(&u->ring) ||
        io_uring_register_eventfd(&u->ring, u->event_fd) != 0 ||
        oc_loop_poll_add(a->loop, u->event_fd, EPOLLIN | EPOLLET, &u->poll) != 0) {
        oc_uring_free(u);
        return NULL;
    }
    return u;
}

void oc_uring_free(struct oc_uring *u) {
    if (u == NULL) {
        return;
    }
    oc_list_remove(&u->flush.link);
    io_uring_queue_exit(&u->ring);
    if (u->event_fd >= 0) {
        (void)close(u->event_fd); /* also leaves the epoll set */
    }
    free(u);
}

#else /* built without liburing: movers only */

struct oc_uring *oc_uring_new(struct oc_aread *a) {
    (void)a;
    return NULL;
}

void oc_uring_free(struct oc_uring *u) {
    (void)u; /* there is never one */
}

void oc_uring_submit(struct oc_uring *u, struct oc_aread_req *req) {
    (void)u;
    (void)req;
    OC_CHECK(false); /* there is never one */
}

bool oc_uring_broken(const struct oc_uring *u) {
    (void)u;
    return true;
}

#endif
