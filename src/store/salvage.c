/* After a failed sync the kernel holds the data and no longer knows that it must still be written:
 * a second sync that succeeds proves nothing. What proves something is to write the same bytes once
 * more and sync that.
 *
 * The next process cannot see from the kernel that this is needed, so a file UNSYNCED with the boot
 * id tells it. It need not be durable itself: after a power cut the cut rule looks at what is
 * there. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "store/seglog.h"

#define NAME       "UNSYNCED"
#define COPY_BYTES (1u << 20)

void oc_salvage_note(struct oc_seglog *log) {
    const struct oc_disk *disk = log->disk;
    struct iovec iov = {log->boot_id, sizeof log->boot_id};
    struct oc_file *f = NULL;

    /* Without it only a kill behind a failed sync, followed by a power cut, would show a
     * difference. */
    if (disk->open(disk->ctx, NAME, OC_OPEN_CREATE, &f, NULL) == 0) {
        (void)disk->pwritev(f, &iov, 1, 0, NULL);
        disk->close(f);
    }
}

void oc_salvage_done(struct oc_seglog *log) {
    (void)log->disk->unlink(log->disk->ctx, NAME, NULL); /* one too many only costs */
}

bool oc_salvage_wanted(struct oc_seglog *log) {
    const struct oc_disk *disk = log->disk;
    uint8_t id[sizeof log->boot_id];
    struct oc_file *f = NULL;

    if (disk->open(disk->ctx, NAME, OC_OPEN_READ, &f, NULL) != 0) {
        return false;
    }
    int64_t n = disk->pread(f, id, sizeof id, 0, false, NULL);
    disk->close(f);
    return n != (int64_t)sizeof id || memcmp(id, log->boot_id, sizeof id) == 0;
}

int oc_salvage_rewrite(struct oc_seglog *log, struct oc_handle *h, uint64_t from, uint64_t end,
                       struct oc_error *err) {
    uint8_t *buffer = malloc(COPY_BYTES);
    int rc = buffer == NULL ? OC_E_EXHAUSTED : 0;

    while (rc == 0 && from < end) {
        size_t want = end - from < COPY_BYTES ? (size_t)(end - from) : COPY_BYTES;
        int64_t n = log->disk->pread(h->file, buffer, want, from, false, err);
        struct iovec iov = {buffer, want};

        if (n != (int64_t)want) {
            rc = OC_E_UNAVAILABLE;
        } else {
            rc = log->disk->pwritev(h->file, &iov, 1, from, err);
        }
        from += want;
    }
    free(buffer);
    return rc;
}
