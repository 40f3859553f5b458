/* The data directory itself: made with its parents, opened, locked against a second process, and
 * the kernel's boot id read. The operations on files inside are in disk_posix.c. */
#include "io/disk_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"

#define DIR_MODE  0755
#define LOCK_MODE 0640
#define LOCK_NAME "LOCK"

/* Make durable that `path`'s directory has a new entry. Best effort: a file system that cannot sync
 * directories has nothing to offer instead. */
static void sync_parent(char *path) {
    char *slash = strrchr(path, '/');
    const char *parent = ".";

    if (slash == path) {
        parent = "/";
    } else if (slash != NULL) {
        *slash = '\0';
        parent = path;
    }
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* see above */
        (void)close(fd); /* a directory: nothing is lost with it */
    }
    if (slash != NULL && slash != path) {
        *slash = '/';
    }
}

/* mkdir -p. Returns an errno; the part that failed is what `path` then holds. */
static int make_with_parents(char *path) {
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != '\0') {
            continue;
        }
        char kept = *p;
        *p = '\0';
        if (mkdir(path, DIR_MODE) == 0) {
            sync_parent(path);
        } else if (errno != EEXIST) {
            struct stat st;
            int errnum = errno;

            /* Some file systems say "read-only" or "permission denied" for what is there already.
             */
            if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
                return errnum;
            }
        }
        *p = kept;
        if (kept == '\0') {
            return 0;
        }
    }
}

static int open_root(const char *dir, int *ret_fd, struct oc_error *err) {
    char path[PATH_MAX];
    size_t len = strlen(dir);

    if (len == 0) {
        return oc_error_set(err, OC_E_INVALID, "the data directory has no name (pass -disk DIR)");
    }
    if (len >= sizeof path) {
        return oc_disk_posix_fail(err, ENAMETOOLONG, "cannot create data directory", dir, "");
    }
    /* A data directory may itself be a symbolic link: where it lies is the operator's choice. */
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        memcpy(path, dir, len + 1);
        int errnum = make_with_parents(path);
        if (errnum != 0) {
            return oc_disk_posix_fail(err, errnum, "cannot create data directory", dir, "");
        }
        fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (fd < 0) {
        return oc_disk_posix_fail(err, errno, "cannot open data directory", dir, "");
    }
    *ret_fd = fd;
    return 0;
}

/* The pid in the lock file, 0 when there is none to be read. */
static long read_lock_pid(int fd) {
    char text[32];
    char *end = NULL;
    ssize_t n = pread(fd, text, sizeof text - 1, 0);

    if (n <= 0) {
        return 0;
    }
    text[n] = '\0';
    errno = 0;
    long pid = strtol(text, &end, 10);
    return errno == 0 && end != text && *end == '\n' && pid > 0 ? pid : 0;
}

static int write_lock_pid(int fd) {
    char text[32];
    int len = snprintf(text, sizeof text, "%ld\n", (long)getpid());

    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)len, 0) != len) {
        return errno != 0 ? errno : EIO;
    }
    return 0;
}

static int in_use(const char *dir, long pid, struct oc_error *err) {
    if (pid > 0) {
        return oc_error_set(err, OC_E_PRECONDITION,
                            "data directory '%.200s' is in use by process %ld (stop it or pass "
                            "-disk DIR with another directory)",
                            dir, pid);
    }
    return oc_error_set(err, OC_E_PRECONDITION,
                        "data directory '%.200s' is in use by another process (stop it or pass "
                        "-disk DIR with another directory)",
                        dir);
}

/* flock belongs to the open file: it goes with the process however that ends, and a second opening
 * in the same process is refused too. */
static int take_lock(struct oc_posix_disk *disk, struct oc_error *err) {
    int fd = openat(disk->root_fd, LOCK_NAME,
                    O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, LOCK_MODE);

    if (fd < 0) {
        return oc_disk_posix_fail(err, errno, "cannot write in data directory: cannot open",
                                  disk->dir, LOCK_NAME);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int errnum = errno;
        long pid = read_lock_pid(fd);

        (void)close(fd); /* not ours */
        if (errnum == EWOULDBLOCK) {
            return in_use(disk->dir, pid, err);
        }
        return oc_disk_posix_fail(err, errnum, "cannot lock", disk->dir, LOCK_NAME);
    }
    errno = 0;
    int errnum = write_lock_pid(fd);
    /* On a full disk the lock alone must do: the node may be starting in order to make room. */
    if (errnum != 0 && errnum != ENOSPC && errnum != EDQUOT) {
        (void)close(fd); /* releases the lock */
        return oc_disk_posix_fail(err, errnum, "cannot write", disk->dir, LOCK_NAME);
    }
    disk->lock_fd = fd;
    return 0;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return -1;
}

static bool parse_boot_id(const char *text, uint8_t ret[16]) {
    unsigned digits = 0;

    for (; *text != '\0' && *text != '\n'; text++) {
        int d = hex_digit(*text);

        if (*text == '-') {
            continue;
        }
        if (d < 0 || digits == 32) {
            return false;
        }
        ret[digits / 2] = (uint8_t)(ret[digits / 2] << 4 | d);
        digits++;
    }
    return digits == 32;
}

/* An id that cannot be read must not equal any other, or a power loss would go unnoticed: then it
 * is random, and every start is treated as one after a power loss. */
static void read_boot_id(uint8_t ret[16]) {
    char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;

    if (fd >= 0) {
        (void)close(fd); /* only read */
    }
    text[n > 0 ? n : 0] = '\0';
    memset(ret, 0, 16);
    if (!parse_boot_id(text, ret)) {
        OC_CHECK(getrandom(ret, 16, 0) == 16); /* up to 256 bytes are never cut short */
    }
}

int oc_disk_posix_open(const char *dir, struct oc_disk **ret, struct oc_error *err) {
    struct oc_posix_disk *disk = calloc(1, sizeof *disk);
    char *dir_copy = strdup(dir);

    if (disk == NULL || dir_copy == NULL) {
        free(disk);
        free(dir_copy);
        return oc_disk_posix_fail(err, ENOMEM, "cannot open data directory", dir, "");
    }
    disk->magic = OC_POSIX_DISK_MAGIC;
    disk->dir = dir_copy;
    disk->root_fd = -1;
    disk->lock_fd = -1;
    disk->ops.ctx = disk;
    oc_disk_posix_fill(&disk->ops);
    read_boot_id(disk->boot_id);
    int rc = open_root(dir, &disk->root_fd, err);
    if (rc == 0) {
        rc = take_lock(disk, err);
    }
    if (rc != 0) {
        oc_disk_posix_close(&disk->ops);
        return rc;
    }
    *ret = &disk->ops;
    return 0;
}

void oc_disk_posix_close(struct oc_disk *ops) {
    if (ops == NULL) {
        return;
    }
    struct oc_posix_disk *disk = ops->ctx;
    OC_MAGIC_CHECK(disk, OC_POSIX_DISK_MAGIC);
    OC_CHECK(atomic_load(&disk->open_files) == 0);
    if (disk->lock_fd >= 0) {
        (void)!ftruncate(disk->lock_fd, 0); /* a pid left behind is only misleading */
        (void)close(disk->lock_fd);         /* releases the lock */
    }
    if (disk->root_fd >= 0) {
        (void)close(disk->root_fd); /* a directory: nothing is lost with it */
    }
    disk->magic = 0;
    free(disk->dir);
    free(disk);
}

void oc_disk_posix_counts(const struct oc_disk *ops, struct oc_disk_counts *ret) {
    struct oc_posix_disk *disk = ops->ctx;

    OC_MAGIC_CHECK(disk, OC_POSIX_DISK_MAGIC);
    ret->preads = atomic_load_explicit(&disk->preads, memory_order_relaxed);
    ret->pwrites = atomic_load_explicit(&disk->pwrites, memory_order_relaxed);
    ret->syncs = atomic_load_explicit(&disk->syncs, memory_order_relaxed);
    ret->bytes_read = atomic_load_explicit(&disk->bytes_read, memory_order_relaxed);
    ret->bytes_written = atomic_load_explicit(&disk->bytes_written, memory_order_relaxed);
    ret->would_wait = atomic_load_explicit(&disk->would_wait, memory_order_relaxed);
}
