/* What disk_posix.c (the operations) and disk_open.c (the data directory and its lock) share.
 * Internal to io/. */
#ifndef OC_IO_DISK_POSIX_H
#define OC_IO_DISK_POSIX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "io/disk.h"

#define OC_POSIX_DISK_MAGIC 0x4b534450u /* "PDSK" */
#define OC_POSIX_FILE_MAGIC 0x454c4946u /* "FILE" */

struct oc_posix_disk {
    struct oc_disk ops; /* first: an oc_disk * of ours is an oc_posix_disk * */
    uint32_t magic;
    int root_fd;
    int lock_fd;
    char *dir;           /* as it was given, for messages */
    uint8_t boot_id[16]; /* read once: it cannot change under a running process */
    _Atomic bool nowait_unsupported;
    _Atomic uint64_t open_files;
    _Atomic uint64_t preads, pwrites, syncs, bytes_read, bytes_written, would_wait;
};

struct oc_file {
    uint32_t magic;
    int fd;
    struct oc_posix_disk *disk;
    char path[]; /* relative, for messages */
};

/* Fill the table; ctx must be set by the caller. */
void oc_disk_posix_fill(struct oc_disk *ops);

/* "<what> '<dir>/<path>': <strerror> (<what to do>)"; path may be empty. Returns the code. */
int oc_disk_posix_fail(struct oc_error *err, int errnum, const char *what, const char *dir,
                       const char *path);

#endif
