/* Reads that wait for the device, without a thread of the loop waiting: by io_uring where the
 * kernel permits it, else by movers. One reader belongs to one loop and is used on its thread (or
 * before it runs). Meant for what is not in the page cache: try oc_disk.pread with `nowait` first,
 * which is cheaper than either. */
#ifndef OC_IO_AREAD_H
#define OC_IO_AREAD_H

#include "io/disk.h"
#include "io/loop.h"

struct oc_aread;

enum oc_aread_mode {
    OC_AREAD_AUTO,   /* io_uring if it works here */
    OC_AREAD_MOVERS, /* never io_uring: for tests, and for the operator's doubt */
};

struct oc_aread_config {
    struct oc_disk *disk;     /* the real one; its files are what is read */
    struct oc_movers *movers; /* outlives the loop's run */
    unsigned depth;           /* reads under way at once, 1 to 4096 */
    enum oc_aread_mode mode;
};

/* One read. The caller owns it and fills the first part; file and dst stay untouched until `done`.
 */
struct oc_aread_req {
    struct oc_file *file;
    void *dst;
    size_t len_bytes;
    uint64_t offset;
    /* On the loop's thread, never from inside oc_aread_submit. */
    void (*done)(struct oc_aread_req *req);

    int64_t result;      /* bytes read (short only at the end of the file) or a negative OC_E_… */
    struct oc_error err; /* why, when negative */

    /* internal */
    struct oc_aread *reader;
    struct oc_list link;
    size_t got_bytes;
    unsigned retries;
    struct oc_job job;
};

int oc_aread_new(struct oc_loop *loop, const struct oc_aread_config *cfg, struct oc_aread **ret,
                 struct oc_error *err);
/* Not while the loop runs. Nothing may be under way: so it is once oc_loop_run has returned. */
void oc_aread_free(struct oc_aread *a);
/* The reads of one turn go to the kernel together at its end. OC_E_EXHAUSTED: `depth` are under
 * way, or the movers' queue is full; OC_E_CANCELLED: the loop is stopping. Then nothing was taken.
 */
int oc_aread_submit(struct oc_aread *a, struct oc_aread_req *req);
/* How short reads are made: "io_uring" or "movers". */
const char *oc_aread_name(const struct oc_aread *a);

#endif
