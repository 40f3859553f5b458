/* The disk as an operation table. io/disk_posix.c implements it for real, the simulator with a disk
 * that tears, drops, flips and fails. Everything in store/ goes through it.
 *
 * Paths are relative to the data directory the disk was opened on, '/' separated, never absolute
 * and never containing "..". Calls block and may be made from any thread. Unless said otherwise
 * they return 0 or a negative OC_E_… with the text in `err` (may be NULL) naming the path. */
#ifndef OC_IO_DISK_H
#define OC_IO_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"

struct oc_file; /* an open file; opaque, owned by the disk that opened it */

enum oc_open_flags {
    OC_OPEN_READ = 0,
    OC_OPEN_WRITE = 1,  /* read and write */
    OC_OPEN_CREATE = 2, /* create if missing (implies WRITE) */
    OC_OPEN_EXCL = 4,   /* with CREATE: fail with OC_E_EXISTS if it is there */
};

struct oc_disk_space {
    uint64_t total_bytes; /* of the volume */
    uint64_t free_bytes;  /* available to this user */
};

struct oc_disk {
    void *ctx;
    int (*open)(void *ctx, const char *path, unsigned flags, struct oc_file **ret,
                struct oc_error *err);
    void (*close)(struct oc_file *f);

    /* Bytes read (short only at the end of the file) or negative. With `nowait` the call returns
     * OC_DISK_WOULD_WAIT instead of waiting for a device (data not in the page cache). */
    int64_t (*pread)(struct oc_file *f, void *dst, size_t len, uint64_t offset, bool nowait,
                     struct oc_error *err);
    /* Writes everything or fails; after a failure any part may have been written. */
    int (*pwritev)(struct oc_file *f, const struct iovec *iov, int iov_count, uint64_t offset,
                   struct oc_error *err);
    /* Data, and the metadata needed to read it back, are durable on success. */
    int (*sync)(struct oc_file *f, struct oc_error *err);
    int (*truncate)(struct oc_file *f, uint64_t len_bytes, struct oc_error *err);
    /* Reserve blocks for [0, len) without changing the file's size; OC_E_EXHAUSTED when full. */
    int (*reserve)(struct oc_file *f, uint64_t len_bytes, struct oc_error *err);
    int (*size)(struct oc_file *f, uint64_t *ret_bytes, struct oc_error *err);
    /* Tell the system that cached pages of the range are not worth keeping. Advice only. */
    void (*drop_cache)(struct oc_file *f, uint64_t offset, uint64_t len);

    int (*make_dir)(void *ctx, const char *path, struct oc_error *err); /* fine if it exists */
    int (*rename)(void *ctx, const char *from, const char *to, struct oc_error *err);
    int (*unlink)(void *ctx, const char *path, struct oc_error *err);
    /* Creations, renames and unlinks in the directory `path` ("" = the root) are durable on
     * success. */
    int (*sync_dir)(void *ctx, const char *path, struct oc_error *err);
    /* Calls `each` for every entry of the directory but "." and "..", with OC_DISK_NO_FILE as the
     * size of what is no regular file (a directory, a link, …); stops on non-zero and returns that.
     */
    int (*list_dir)(void *ctx, const char *path,
                    int (*each)(void *arg, const char *name, uint64_t size_bytes), void *arg,
                    struct oc_error *err);
    int (*space)(void *ctx, struct oc_disk_space *ret, struct oc_error *err);
    /* Identity of the running kernel: equal ids mean that no power was lost in between, so what was
     * written to the page cache then is still what a read returns now. 16 bytes. */
    void (*boot_id)(void *ctx, uint8_t ret[16]);
};

#define OC_DISK_WOULD_WAIT INT64_C(-1000)
#define OC_DISK_NO_FILE    UINT64_MAX

/* Open the real disk on `dir`: create it with its parents (mode 0755) if missing, take an exclusive
 * lock on <dir>/LOCK. Errors: the directory cannot be made, is not a directory, is not writable, or
 * is in use by another process (named by its pid where known). */
int oc_disk_posix_open(const char *dir, struct oc_disk **ret, struct oc_error *err);
/* Releases the lock. All files must be closed. */
void oc_disk_posix_close(struct oc_disk *disk);
/* The descriptor behind a file of the real disk, for readers inside io/. It stays the file's. */
int oc_disk_posix_fd(const struct oc_file *f);
/* For benchmarks: the system calls made so far. */
struct oc_disk_counts {
    uint64_t preads, pwrites, syncs, bytes_read, bytes_written, would_wait;
};
void oc_disk_posix_counts(const struct oc_disk *disk, struct oc_disk_counts *ret);

#endif
