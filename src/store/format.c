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

struct search {
    const char *dir;
    char stranger[128]; /* what does not belong there */
};

static bool one_of(const char *name, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_value_dir(const char *name) {
    return strlen(name) == 2 && strspn(name, "0123456789abcdef") == 2;
}

static int look(void *arg, const char *name, uint64_t size_bytes) {
    static const char *const root_files[] = {"LOCK", "FORMAT.new"};
    /* The first two are ours, the others do not disturb: what mkfs makes, what the ring keeps. */
    static const char *const root_dirs[] = {"seg", "val", "lost+found", "coordinator"};
    struct search *s = arg;
    bool file = size_bytes != OC_DISK_NO_FILE;
    bool root = s->dir[0] == '\0', known = false;

    if (root) {
        known = file ? one_of(name, root_files, OC_ARRAY_LEN(root_files))
                     : one_of(name, root_dirs, OC_ARRAY_LEN(root_dirs));
    } else if (strcmp(s->dir, "val") == 0) {
        known = !file && is_value_dir(name);
    }
    if (known) {
        return 0;
    }
    (void)snprintf(s->stranger, sizeof s->stranger, "%.40s%s%.80s", s->dir, root ? "" : "/", name);
    return 1;
}

static int check_empty_dir(const struct oc_disk *disk, const char *dir, struct oc_error *err) {
    struct search s = {.dir = dir};
    int rc = disk->list_dir(disk->ctx, dir, look, &s, err);

    if (rc > 0) {
        return oc_error_set(err, OC_E_PRECONDITION,
                            "the data directory holds '%s' and no FORMAT: it is not a cache "
                            "directory (empty it or pass -disk DIR with another one)",
                            s.stranger);
    }
    return rc == OC_E_NOT_FOUND && dir[0] != '\0' ? 0 : rc;
}

/* A directory without FORMAT must be empty but for what an interrupted creation leaves. */
static int check_empty(const struct oc_disk *disk, struct oc_error *err) {
    static const char *const dirs[] = {"", "seg", "val"};
    int rc = 0;

    for (size_t i = 0; i < OC_ARRAY_LEN(dirs) && rc == 0; i++) {
        rc = check_empty_dir(disk, dirs[i], err);
    }
    for (unsigned i = 0; i < VAL_DIRS && rc == 0; i++) {
        char path[16];

        (void)snprintf(path, sizeof path, "val/%02x", i);
        rc = check_empty_dir(disk, path, err);
    }
    return rc;
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
