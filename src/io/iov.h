/* A position in somebody else's vector, which is not ours to change. Internal to io/. */
#ifndef OC_IO_IOV_H
#define OC_IO_IOV_H

#include <limits.h>
#include <stdint.h>
#include <sys/uio.h>

/* Entries that are copied at a time behind a call that was cut short inside an entry. */
#define OC_IOV_STEP 64

struct oc_iov_cursor {
    const struct iovec *iov;
    int count;   /* entries left; 0: everything is done */
    size_t skip; /* bytes of iov[0] that are done */
};

/* `done` bytes more are done; also passes over empty entries. */
static inline void oc_iov_advance(struct oc_iov_cursor *c, size_t done) {
    while (c->count > 0 && done >= c->iov->iov_len - c->skip) {
        done -= c->iov->iov_len - c->skip;
        c->skip = 0;
        c->iov++;
        c->count--;
    }
    c->skip += done;
}

/* What the next call is made with: the caller's own vector, or `room` when its first entry is done
 * in part. Returns the entries, at most IOV_MAX. */
static inline int oc_iov_next(const struct oc_iov_cursor *c, struct iovec room[OC_IOV_STEP],
                              const struct iovec **ret) {
    int n = 0;

    if (c->skip == 0) {
        *ret = c->iov;
        return c->count < IOV_MAX ? c->count : IOV_MAX;
    }
    for (; n < c->count && n < OC_IOV_STEP; n++) {
        room[n] = c->iov[n];
    }
    room[0].iov_base = (uint8_t *)room[0].iov_base + c->skip;
    room[0].iov_len -= c->skip;
    *ret = room;
    return n;
}

#endif
