/* Between aread.c (the interface, and reads by movers) and aread_uring.c. */
#ifndef OC_IO_AREAD_IMPL_H
#define OC_IO_AREAD_IMPL_H

#include "io/aread.h"
#include "io/loop_impl.h"

struct oc_uring;

struct oc_aread {
    uint32_t magic;
    struct oc_loop *loop;
    struct oc_disk *disk;
    struct oc_movers *movers;
    unsigned depth;
    unsigned under_way;
    struct oc_uring *uring; /* NULL: movers */
};

/* The read is over, on the loop's thread. */
void oc_aread_finish(struct oc_aread *a, struct oc_aread_req *req);
/* OC_E_EXHAUSTED when the movers' queue is full. */
int oc_aread_by_mover(struct oc_aread *a, struct oc_aread_req *req);

/* NULL when io_uring does not work here. */
struct oc_uring *oc_uring_new(struct oc_aread *a);
void oc_uring_free(struct oc_uring *u);
void oc_uring_submit(struct oc_uring *u, struct oc_aread_req *req);
/* It has failed for good: further reads go to the movers. */
bool oc_uring_broken(const struct oc_uring *u);

#endif
