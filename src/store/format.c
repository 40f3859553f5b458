/* The data directory: is it ours, is it one we can read, or can it become one? Nothing is touched
 * until that is known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

#define FORMAT_TEXT   "ocache objects 1\n"
#define FORMAT_PREFIX "ocache objects "
#define FORMAT_MAX    256u
#define VAL_DIRS      256u

struct stranger {
    const char *dir;
    char name[128];
};

static int look(void *arg, const char *name, uint64_t size_bytes) {
    struct stranger *f = arg;
    bool root = f->dir[0] == '\0';

    (void)size_bytes;
    if (root && (strcmp(name, "LOCK") == 0 || strcmp(name, "FORMAT.new") == 0)) {
        return 0;
    }
    (void)snprintf(f->name, sizeof f->name, "%.40s%s%.80s", f->dir, root ? "" : "/", name);
    return 1;
}

/* A directory without FORMAT must be empty but for what an interrupted creation leaves. */
static int check_empty(const struct oc_disk *disk, struct oc_error *err) {
    static const char *const dirs[] = {"", "seg", "val"};

    for (size_t i = 0; i < OC_ARRAY_LEN(dirs); i++) {
        struct stranger f = {.dir = dirs[i]};
        int rc = disk->list_dir(disk->ctx, dirs[i], look, &f, err);

        if (rc > 0) {
            return oc_error_set(err, OC_E_PRECONDITION,
                                "the data directory holds '%s' and no FORMAT: it is not a cache "
                                "directory (empty it or pass -disk DIR with another one)",
                                f.name);
        }
        if (rc < 0 && !(rc == OC_E_NOT_FOUND && i > 0)) {
            return rc;
        }
    }
    return 0;
}

static int check_text(const char *text, size_t len, struct oc_error *err) {
    char line[64];
    size_t prefix = sizeof FORMAT_PREFIX - 1;

    if (len == sizeof FORMAT_TEXT - 1 && memcmp(text, FORMAT_TEXT, len) == 0) {
        return 0;
    }
    size_t n = 0;
    while (n < len && n < sizeof line - 1 && text[n] >= ' ' && text[n] <= '~') {
        line[n] = text[n];
        n++;
    }
    line[n] = '\0';
    if (n > prefix && memcmp(line, FORMAT_PREFIX, prefix) == 0) {
        return oc_error_set(err, OC_E_UNIMPLEMENTED,
                            "the data directory has format %s; this program reads format 1 (use a "
                            "newer release or another directory)",
                            line + prefix);
    }
    return oc_error_set(err, OC_E_PRECONDITION,
                        "the data directory's FORMAT says '%s', not 'ocache objects 1': it belongs "
                        "to something else",
                        line);
}

/* One bit is not what it should be, and CLOCK, which has a checksum, says which format this is. */
static bool is_flipped_bit(const struct oc_disk *disk, const char *text, size_t len) {
    unsigned bits = 0;

    if (len != sizeof FORMAT_TEXT - 1) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        bits += (unsigned)__builtin_popcount((unsigned char)(text[i] ^ FORMAT_TEXT[i]));
    }
    return bits == 1 && oc_vclock_format(disk) == OC_FORMAT_VERSION;
}

static int make_dirs(const struct oc_disk *disk, struct oc_error *err) {
    int rc = disk->make_dir(disk->ctx, "seg", err);

    if (rc == 0) {
        rc = disk->make_dir(disk->ctx, "val", err);
    }
    for (unsigned i = 0; i < VAL_DIRS && rc == 0; i++) {
        char path[16];

        (void)snprintf(path, sizeof path, "val/%02x", i);
        rc = disk->make_dir(disk->ctx, path, err);
    }
    return rc;
}

static int write_format(const struct oc_disk *disk, struct oc_error *err) {
    char text[] = FORMAT_TEXT;
    struct iovec iov = {text, sizeof text - 1};
    struct oc_file *f = NULL;
    int rc = disk->open(disk->ctx, "FORMAT.new", OC_OPEN_CREATE, &f, err);

    if (rc != 0) {
        return rc;
    }
    rc = disk->truncate(f, 0, err);
    if (rc == 0) {
        rc = disk->pwritev(f, &iov, 1, 0, err);
    }
    if (rc == 0) {
        rc = disk->sync(f, err);
    }
    disk->close(f);
    if (rc == 0) {
        rc = disk->rename(disk->ctx, "FORMAT.new", "FORMAT", err);
    }
    return rc != 0 ? rc : disk->sync_dir(disk->ctx, "", err);
}

int oc_store_format_open(const struct oc_disk *disk, struct oc_error *err) {
    char text[FORMAT_MAX];
    struct oc_file *f = NULL;
    int rc = disk->open(disk->ctx, "FORMAT", OC_OPEN_READ, &f, err);

    if (rc == OC_E_NOT_FOUND) {
        rc = check_empty(disk, err);
        if (rc == 0) {
            rc = make_dirs(disk, err);
        }
        if (rc == 0) {
            rc = disk->sync_dir(disk->ctx, "val", err);
        }
        return rc != 0 ? rc : write_format(disk, err);
    }
    if (rc != 0) {
        return rc;
    }
    int64_t n = disk->pread(f, text, sizeof text, 0, false, err);
    disk->close(f);
    if (n < 0) {
        return (int)n;
    }
    if (is_flipped_bit(disk, text, (size_t)n)) {
        rc = write_format(disk, err);
    } else {
        rc = check_text(text, (size_t)n, err);
    }
    /* A creation that was interrupted behind FORMAT is not possible, but directories that somebody
     * removed are made again. */
    return rc != 0 ? rc : make_dirs(disk, err);
}
