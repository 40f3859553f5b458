/* The disk operations on a POSIX file system, all relative to the data directory's descriptor, so
 * that renaming the directory or changing the working directory under a running process changes
 * nothing. Our own files are never reached through a symbolic link. Opening and locking the
 * directory itself is in disk_open.c. */
#include "io/disk_posix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/check.h"
#include "io/iov.h"

#define FILE_MODE 0640
#define DIR_MODE  0755
/* A signal storm may interrupt a call; so often in a row it is something else. */
#define EINTR_MAX 1000

static void count(_Atomic uint64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static int code_of(int errnum) {
    switch (errnum) {
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENOTEMPTY:
    case EXDEV:
        return OC_E_PRECONDITION;
    case EFBIG:
        return OC_E_EXHAUSTED;
    default:
        return oc_err_from_errno(errnum);
    }
}

static const char *advice_for(int errnum) {
    switch (errnum) {
    case EACCES:
    case EPERM:
        return " (run as its owner or pass -disk DIR)";
    case EROFS:
        return " (mount it writable or pass -disk DIR)";
    case ENOSPC:
    case EDQUOT:
        return " (free space on the volume or pass -disk DIR)";
    case EMFILE:
    case ENFILE:
        return " (raise the limit of open files, ulimit -n)";
    case EIO:
        return " (the device failed; see the kernel log)";
    case ENOTDIR:
        return " (remove what is in its place or pass -disk DIR)";
    case ELOOP:
        return " (symbolic links are not followed here; put the real file in its place)";
    case ENAMETOOLONG:
        return " (pass -disk DIR with a shorter path)";
    default:
        return "";
    }
}

int oc_disk_posix_fail(struct oc_error *err, int errnum, const char *what, const char *dir,
                       const char *path) {
    char why[96];
    const char *advice = advice_for(errnum);

    /* The paths are cut so that the reason and the advice always fit. */
    return oc_error_set(err, code_of(errnum), "%s '%.120s%s%.80s': %.60s%s", what, dir,
                        path[0] == '\0' ? "" : "/", path, strerror_r(errnum, why, sizeof why),
                        advice);
}

static struct oc_posix_disk *disk_of(void *ctx) {
    struct oc_posix_disk *disk = ctx;

    OC_MAGIC_CHECK(disk, OC_POSIX_DISK_MAGIC);
    return disk;
}

static int file_fail(const struct oc_file *f, struct oc_error *err, int errnum, const char *what) {
    return oc_disk_posix_fail(err, errnum, what, f->disk->dir, f->path);
}

/* The contract of disk.h on paths: relative, no "..", no empty part. */
static int check_path(const char *path, bool empty_is_root, struct oc_error *err) {
    const char *part = path;

    if (path[0] == '\0' && empty_is_root) {
        return 0;
    }
    for (;;) {
        size_t len = strcspn(part, "/");

        if (len == 0 || (len == 1 && part[0] == '.') || (len == 2 && memcmp(part, "..", 2) == 0)) {
            return oc_error_set(err, OC_E_INVALID,
                                "'%.200s' is not a path inside the data directory", path);
        }
        if (part[len] == '\0') {
            return 0;
        }
        part += len + 1;
    }
}

/* The range is representable for the kernel (off_t is signed). */
static int check_range(const struct oc_file *f, uint64_t offset, uint64_t len,
                       struct oc_error *err) {
    if (offset > INT64_MAX || len > INT64_MAX - offset) {
        return file_fail(f, err, EFBIG, "cannot reach so far into");
    }
    return 0;
}

/* ---- open and close ---- */

static int open_flags(unsigned flags) {
    int oflags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

    if ((flags & (OC_OPEN_WRITE | OC_OPEN_CREATE)) != 0) {
        oflags |= O_RDWR;
    } else {
        oflags |= O_RDONLY;
    }
    if ((flags & OC_OPEN_CREATE) != 0) {
        oflags |= O_CREAT;
        if ((flags & OC_OPEN_EXCL) != 0) {
            oflags |= O_EXCL;
        }
    }
    return oflags;
}

/* O_NONBLOCK kept a FIFO in a file's place from blocking us; io_uring would take it for "never
 * wait", so it goes once the file is known to be a regular one. */
static int require_regular(int fd) {
    struct stat st;

    if (fstat(fd, &st) != 0) {
        return errno;
    }
    if (S_ISDIR(st.st_mode)) {
        return EISDIR;
    }
    if (!S_ISREG(st.st_mode)) {
        return EEXIST;
    }
    int status = fcntl(fd, F_GETFL);
    if (status < 0 || fcntl(fd, F_SETFL, status & ~O_NONBLOCK) != 0) {
        return errno;
    }
    return 0;
}

static int posix_open(void *ctx, const char *path, unsigned flags, struct oc_file **ret,
                      struct oc_error *err) {
    struct oc_posix_disk *disk = disk_of(ctx);
    const char *what = (flags & OC_OPEN_CREATE) != 0 ? "cannot create" : "cannot open";
    int rc = check_path(path, false, err);

    if (rc != 0) {
        return rc;
    }
    int fd = openat(disk->root_fd, path, open_flags(flags), FILE_MODE);
    if (fd < 0) {
        return oc_disk_posix_fail(err, errno, what, disk->dir, path);
    }
    int errnum = require_regular(fd);
    if (errnum != 0) {
        (void)close(fd); /* nothing was written through it */
        if (errnum == EEXIST) {
            return oc_error_set(err, OC_E_PRECONDITION,
                                "%s '%.120s/%.80s': not a regular file (remove it)", what,
                                disk->dir, path);
        }
        return oc_disk_posix_fail(err, errnum, what, disk->dir, path);
    }
    size_t path_bytes = strlen(path) + 1;
    struct oc_file *f = malloc(sizeof *f + path_bytes);
    if (f == NULL) {
        (void)close(fd); /* nothing was written through it */
        return oc_disk_posix_fail(err, ENOMEM, what, disk->dir, path);
    }
    f->magic = OC_POSIX_FILE_MAGIC;
    f->fd = fd;
    f->disk = disk;
    memcpy(f->path, path, path_bytes);
    count(&disk->open_files, 1);
    *ret = f;
    return 0;
}

static void posix_close(struct oc_file *f) {
    OC_MAGIC_CHECK(f, OC_POSIX_FILE_MAGIC);
    f->magic = 0;
    atomic_fetch_sub_explicit(&f->disk->open_files, 1, memory_order_relaxed);
    (void)close(f->fd); /* what must be durable was synced before; there is nobody to tell */
    free(f);
}

int oc_disk_posix_fd(const struct oc_file *f) {
    OC_MAGIC_CHECK(f, OC_POSIX_FILE_MAGIC);
    return f->fd;
}

/* ---- read and write ---- */

/* One read call. With *nowait it may say EAGAIN; where the file system does not know how, *nowait
 * is cleared for good and the read is an ordinary one (such file systems live in memory). */
static ssize_t read_once(struct oc_file *f, void *dst, size_t len, uint64_t offset, bool *nowait) {
    if (*nowait) {
        struct iovec iov = {dst, len};

        count(&f->disk->preads, 1);
        ssize_t n = preadv2(f->fd, &iov, 1, (off_t)offset, RWF_NOWAIT);
        if (n >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS)) {
            return n;
        }
        atomic_store_explicit(&f->disk->nowait_unsupported, true, memory_order_relaxed);
        *nowait = false;
    }
    count(&f->disk->preads, 1);
    return pread(f->fd, dst, len, (off_t)offset);
}

/* Linux 5.9 and 5.10 let a non-waiting read end at a page that is not cached, as if the file ended
 * there: an end before the file's size is "would wait". */
static bool is_end(const struct oc_file *f, uint64_t offset) {
    struct stat st;

    return fstat(f->fd, &st) == 0 && offset >= (uint64_t)st.st_size;
}

static int64_t posix_pread(struct oc_file *f, void *dst, size_t len, uint64_t offset, bool nowait,
                           struct oc_error *err) {
    size_t got = 0;
    int interrupts = 0;
    int rc = check_range(f, offset, len, err);

    OC_MAGIC_CHECK(f, OC_POSIX_FILE_MAGIC);
    if (rc != 0) {
        return rc;
    }
    if (nowait && atomic_load_explicit(&f->disk->nowait_unsupported, memory_order_relaxed)) {
        nowait = false;
    }
    while (got < len) {
        ssize_t n = read_once(f, (uint8_t *)dst + got, len - got, offset + got, &nowait);

        if (n > 0) {
            got += (size_t)n;
        } else if (n == 0) {
            if (nowait && !is_end(f, offset + got)) {
                count(&f->disk->would_wait, 1);
                return OC_DISK_WOULD_WAIT;
            }
            break;
        } else if (errno == EAGAIN && nowait) {
            count(&f->disk->would_wait, 1);
            return OC_DISK_WOULD_WAIT;
        } else if (errno != EINTR || ++interrupts > EINTR_MAX) {
            return file_fail(f, err, errno, "cannot read");
        }
    }
    count(&f->disk->bytes_read, got);
    return (int64_t)got;
}

static ssize_t write_once(struct oc_file *f, const struct oc_iov_cursor *c, uint64_t offset) {
    struct iovec room[OC_IOV_STEP];
    const struct iovec *iov;
    int n = oc_iov_next(c, room, &iov);

    count(&f->disk->pwrites, 1);
    return pwritev(f->fd, iov, n, (off_t)offset);
}

static int posix_pwritev(struct oc_file *f, const struct iovec *iov, int iov_count, uint64_t offset,
                         struct oc_error *err) {
    struct oc_iov_cursor c = {iov, iov_count, 0};
    uint64_t total = 0;
    int interrupts = 0;

    OC_MAGIC_CHECK(f, OC_POSIX_FILE_MAGIC);
    for (int i = 0; i < iov_count; i++) {
        if (__builtin_add_overflow(total, iov[i].iov_len, &total)) {
            return file_fail(f, err, EFBIG, "cannot write so much to");
        }
    }
    int rc = check_range(f, offset, total, err);
    if (rc != 0) {
        return rc;
    }
    oc_iov_advance(&c, 0); /* past empty entries */
    while (c.count > 0) {
        ssize_t n = write_once(f, &c, offset);

        if (n > 0) {
            offset += (uint64_t)n;
            count(&f->disk->bytes_written, (uint64_t)n);
            oc_iov_advance(&c, (size_t)n);
        } else if (n == 0) {
            return file_fail(f, err, EIO, "cannot write to"); /* no progress and no reason given */
        } else if (errno != EINTR || ++interrupts > EINTR_MAX) {
            return file_fail(f, err, errno, "cannot write to");
        }
    }
    return 0;
}

static int posix_sync(struct oc_file *f, struct oc_error *err) {
    OC_MAGIC_CHECK(f, OC_POSIX_FILE_MAGIC);
    count(&f->disk->syncs, 1);
    /* Never tried again, not even after EINTR: the kernel reports a write-back error once, and a
     * second call could claim that all is well. */
    if (fdatasync(f->fd) != 0) {
        return file_fail(f, err, errno, "cannot make durable");
    }
    return 0;
}

static int posix_truncate(struct oc_file *f, uint64_t len_bytes, struct oc_error *err) {
    int interrupts = 0;
    int rc = check_range(f, len_bytes, 0, err);

    OC_MAGIC_CHECK(f, OC_POSIX_FILE_MAGIC);
    if (rc != 0) {
        return rc;
    }
    while (ftruncate(f->fd, (off_t)len_bytes) != 0) {
        if (errno != EINTR || ++interrupts > EINTR_MAX) {
            return file_fail(f, err, errno, "cannot set the length of");
        }
    }
    return 0;
}

static int posix_reserve(struct oc_file *f, uint64_t len_bytes, struct oc_error *err) {
    int interrupts = 0;
    int rc = check_range(f, len_bytes, 0, err);

    OC_MAGIC_CHECK(f, OC_POSIX_FILE_MAGIC);
    if (rc != 0 || len_bytes == 0) {
        return rc;
    }
    while (fallocate(f->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)len_bytes) != 0) {
        if (errno == EOPNOTSUPP || errno == ENOSYS) {
            return 0; /* a full disk is then noticed by the write */
        }
        if (errno != EINTR || ++interrupts > EINTR_MAX) {
            return file_fail(f, err, errno, "cannot reserve space for");
        }
    }
    return 0;
}

static int posix_size(struct oc_file *f, uint64_t *ret_bytes, struct oc_error *err) {
    struct stat st;

    OC_MAGIC_CHECK(f, OC_POSIX_FILE_MAGIC);
    if (fstat(f->fd, &st) != 0) {
        return file_fail(f, err, errno, "cannot read the size of");
    }
    *ret_bytes = (uint64_t)st.st_size;
    return 0;
}

static void posix_drop_cache(struct oc_file *f, uint64_t offset, uint64_t len) {
    OC_MAGIC_CHECK(f, OC_POSIX_FILE_MAGIC);
    if (check_range(f, offset, len, NULL) == 0) {
        /* Advice: when it is not taken nothing is wrong. */
        (void)posix_fadvise(f->fd, (off_t)offset, (off_t)len, POSIX_FADV_DONTNEED);
    }
}

/* ---- directories ---- */

static int posix_make_dir(void *ctx, const char *path, struct oc_error *err) {
    struct oc_posix_disk *disk = disk_of(ctx);
    struct stat st;
    int rc = check_path(path, true, err);

    if (rc != 0 || path[0] == '\0') {
        return rc;
    }
    if (mkdirat(disk->root_fd, path, DIR_MODE) == 0) {
        return 0;
    }
    int errnum = errno;
    if (errnum == EEXIST && fstatat(disk->root_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (S_ISDIR(st.st_mode)) {
            return 0;
        }
        errnum = S_ISLNK(st.st_mode) ? ELOOP : ENOTDIR;
    }
    return oc_disk_posix_fail(err, errnum, "cannot create directory", disk->dir, path);
}

static int posix_rename(void *ctx, const char *from, const char *to, struct oc_error *err) {
    struct oc_posix_disk *disk = disk_of(ctx);
    char what[160];
    int rc = check_path(from, false, err);

    if (rc == 0) {
        rc = check_path(to, false, err);
    }
    if (rc != 0) {
        return rc;
    }
    if (renameat(disk->root_fd, from, disk->root_fd, to) != 0) {
        int errnum = errno;

        (void)snprintf(what, sizeof what, "cannot rename to '%.80s' the file",
                       to); /* cut is fine */
        return oc_disk_posix_fail(err, errnum, what, disk->dir, from);
    }
    return 0;
}

static int posix_unlink(void *ctx, const char *path, struct oc_error *err) {
    struct oc_posix_disk *disk = disk_of(ctx);
    int rc = check_path(path, false, err);

    if (rc != 0) {
        return rc;
    }
    if (unlinkat(disk->root_fd, path, 0) != 0) {
        return oc_disk_posix_fail(err, errno, "cannot remove", disk->dir, path);
    }
    return 0;
}

/* A descriptor of its own each time: directory offsets are shared by duplicates. Negative errno. */
static int open_dir(const struct oc_posix_disk *disk, const char *path) {
    int fd = openat(disk->root_fd, path[0] == '\0' ? "." : path,
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    return fd >= 0 ? fd : -errno;
}

static int posix_sync_dir(void *ctx, const char *path, struct oc_error *err) {
    struct oc_posix_disk *disk = disk_of(ctx);
    int rc = check_path(path, true, err);

    if (rc != 0) {
        return rc;
    }
    int fd = open_dir(disk, path);
    if (fd < 0) {
        return oc_disk_posix_fail(err, -fd, "cannot open directory", disk->dir, path);
    }
    count(&disk->syncs, 1);
    int errnum = fsync(fd) == 0 ? 0 : errno;
    (void)close(fd); /* a directory: nothing is lost with it */
    if (errnum != 0) {
        return oc_disk_posix_fail(err, errnum, "cannot make durable directory", disk->dir, path);
    }
    return 0;
}

/* The errno of reading the directory, or 0; what `each` said goes to *ret_stop. */
static int list_entries(DIR *dir, int (*each)(void *arg, const char *name, uint64_t size_bytes),
                        void *arg, int *ret_stop) {
    for (;;) {
        struct stat st;

        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            return errno;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == ENOENT) {
                continue; /* removed since */
            }
            return errno;
        }
        *ret_stop =
            each(arg, entry->d_name, S_ISREG(st.st_mode) ? (uint64_t)st.st_size : OC_DISK_NO_FILE);
        if (*ret_stop != 0) {
            return 0;
        }
    }
}

static int posix_list_dir(void *ctx, const char *path,
                          int (*each)(void *arg, const char *name, uint64_t size_bytes), void *arg,
                          struct oc_error *err) {
    struct oc_posix_disk *disk = disk_of(ctx);
    int stop = 0;
    int rc = check_path(path, true, err);

    if (rc != 0) {
        return rc;
    }
    int fd = open_dir(disk, path);
    if (fd < 0) {
        return oc_disk_posix_fail(err, -fd, "cannot open directory", disk->dir, path);
    }
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int errnum = errno;

        (void)close(fd); /* a directory: nothing is lost with it */
        return oc_disk_posix_fail(err, errnum, "cannot open directory", disk->dir, path);
    }
    int errnum = list_entries(dir, each, arg, &stop);
    (void)closedir(dir); /* closes fd; a directory: nothing is lost with it */
    if (errnum != 0) {
        return oc_disk_posix_fail(err, errnum, "cannot list directory", disk->dir, path);
    }
    return stop;
}

static int posix_space(void *ctx, struct oc_disk_space *ret, struct oc_error *err) {
    struct oc_posix_disk *disk = disk_of(ctx);
    struct statvfs vfs;

    if (fstatvfs(disk->root_fd, &vfs) != 0) {
        return oc_disk_posix_fail(err, errno, "cannot read the free space of", disk->dir, "");
    }
    ret->total_bytes = (uint64_t)vfs.f_blocks * vfs.f_frsize;
    ret->free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    return 0;
}

static void posix_boot_id(void *ctx, uint8_t ret[16]) {
    memcpy(ret, disk_of(ctx)->boot_id, 16);
}

void oc_disk_posix_fill(struct oc_disk *ops) {
    ops->open = posix_open;
    ops->close = posix_close;
    ops->pread = posix_pread;
    ops->pwritev = posix_pwritev;
    ops->sync = posix_sync;
    ops->truncate = posix_truncate;
    ops->reserve = posix_reserve;
    ops->size = posix_size;
    ops->drop_cache = posix_drop_cache;
    ops->make_dir = posix_make_dir;
    ops->rename = posix_rename;
    ops->unlink = posix_unlink;
    ops->sync_dir = posix_sync_dir;
    ops->list_dir = posix_list_dir;
    ops->space = posix_space;
    ops->boot_id = posix_boot_id;
}
