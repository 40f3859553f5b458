/* The interface of reads that wait, and their way by movers; the way by io_uring is in
 * aread_uring.c. */
#include "io/aread.h"

#include <stdlib.h>

#include "base/check.h"
#include "io/aread_impl.h"

#define AREAD_MAGIC 0x44415241u /* "ARAD" */
#define DEPTH_MAX   4096
/* The kernel copies what io_uring read from the page cache on the loop's thread. Above this that
 * would hold up the loop for longer than handing the read to a mover costs. */
#define URING_READ_MAX ((size_t)64 * 1024)

void oc_aread_finish(struct oc_aread *a, struct oc_aread_req *req) {
    OC_CHECK(a->under_way > 0 && a->loop->reads > 0);
    a->under_way--;
    a->loop->reads--;
    req->done(req); /* may free it */
}

static void read_on_mover(struct oc_job *job) {
    struct oc_aread_req *req = OC_CONTAINER(job, struct oc_aread_req, job);
    struct oc_disk *disk = req->reader->disk;
    uint8_t *dst = req->dst;
    int64_t n = disk->pread(req->file, dst + req->got_bytes, req->len_bytes - req->got_bytes,
                            req->offset + req->got_bytes, false, &req->err);

    req->result = n < 0 ? n : n + (int64_t)req->got_bytes;
}

static void mover_done(struct oc_job *job) {
    struct oc_aread_req *req = OC_CONTAINER(job, struct oc_aread_req, job);

    oc_aread_finish(req->reader, req);
}

int oc_aread_by_mover(struct oc_aread *a, struct oc_aread_req *req) {
    req->job = (struct oc_job){.run = read_on_mover, .done = mover_done};
    return oc_movers_submit(a->movers, a->loop, &req->job);
}

int oc_aread_new(struct oc_loop *loop, const struct oc_aread_config *cfg, struct oc_aread **ret,
                 struct oc_error *err) {
    if (cfg->depth == 0 || cfg->depth > DEPTH_MAX) {
        return oc_error_set(err, OC_E_INVALID, "cannot keep %u reads under way (1 to %d)",
                            cfg->depth, DEPTH_MAX);
    }
    struct oc_aread *a = calloc(1, sizeof *a);
    if (a == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "cannot create a reader: out of memory");
    }
    a->magic = AREAD_MAGIC;
    a->loop = loop;
    a->disk = cfg->disk;
    a->movers = cfg->movers;
    a->depth = cfg->depth;
    if (cfg->mode == OC_AREAD_AUTO) {
        a->uring = oc_uring_new(a);
    }
    *ret = a;
    return 0;
}

void oc_aread_free(struct oc_aread *a) {
    if (a == NULL) {
        return;
    }
    OC_MAGIC_CHECK(a, AREAD_MAGIC);
    OC_CHECK(a->under_way == 0);
    oc_uring_free(a->uring);
    a->magic = 0;
    free(a);
}

int oc_aread_submit(struct oc_aread *a, struct oc_aread_req *req) {
    OC_MAGIC_CHECK(a, AREAD_MAGIC);
    if (a->loop->closing) {
        return OC_E_CANCELLED;
    }
    /* Also because io_uring takes the offset -1 for "where the file stands". */
    if (req->offset > INT64_MAX || req->len_bytes > INT64_MAX - req->offset) {
        return OC_E_INVALID;
    }
    if (a->under_way >= a->depth) {
        return OC_E_EXHAUSTED;
    }
    req->reader = a;
    req->got_bytes = 0;
    req->retries = 0;
    oc_list_init(&req->link);
    if (a->uring != NULL && req->len_bytes <= URING_READ_MAX && !oc_uring_broken(a->uring)) {
        oc_uring_submit(a->uring, req);
    } else {
        int rc = oc_aread_by_mover(a, req);

        if (rc != 0) {
            return rc;
        }
    }
    a->under_way++;
    a->loop->reads++;
    return 0;
}

const char *oc_aread_name(const struct oc_aread *a) {
    OC_MAGIC_CHECK(a, AREAD_MAGIC);
    return a->uring != NULL && !oc_uring_broken(a->uring) ? "io_uring" : "movers";
}
