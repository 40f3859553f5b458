/* The badly behaving disk; see sim_disk.h. Paths are kept flat ("seg/0001.seg"); a directory is the
 * part before the last slash. */
#include "sim_disk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/span.h"

#define SECTOR 512u

/* One unsynced change of a file's content. */
struct change {
    struct change *next;
    bool is_truncate;
    bool doomed;     /* a sync failed on it: no later sync makes it durable */
    uint64_t offset; /* or the new length */
    size_t len;
    uint8_t bytes[];
};

struct inode {
    struct inode *next;
    uint8_t *now, *durable;
    size_t now_len, now_cap, durable_len, durable_cap;
    struct change *first, *last;
    bool named, durably_named; /* for garbage collection after a restart */
};

struct name {
    struct name *next;
    char path[128];
    struct inode *inode;
};

enum dir_op_kind { DIR_LINK, DIR_UNLINK, DIR_RENAME };

struct dir_op {
    struct dir_op *next;
    enum dir_op_kind kind;
    char path[128], to[128];
    struct inode *inode;
};

struct oc_file {
    struct sim_disk *disk;
    struct inode *inode;
    char path[128];
    struct oc_file *next;
};

struct sim_disk {
    struct oc_disk table;
    struct oc_rng rng;
    struct sim_faults faults;
    struct inode *inodes;
    struct name *names, *durable_names;
    struct dir_op *ops, *last_op; /* unsynced, oldest first */
    struct oc_file *open;
    uint64_t calls, die_at;
    bool dead;
    uint8_t boot[16];
};

static bool chance(struct sim_disk *d, unsigned p) {
    return p != 0 && oc_rng_below(&d->rng, 65536) < p;
}

static void *grow(uint8_t *p, size_t *cap, size_t need) {
    if (need <= *cap) {
        return p;
    }
    size_t n = *cap < 4096 ? 4096 : *cap;
    while (n < need) {
        n *= 2;
    }
    p = realloc(p, n);
    OC_CHECK(p != NULL);
    *cap = n;
    return p;
}

static void put_bytes(uint8_t **data, size_t *len, size_t *cap, uint64_t offset, const void *bytes,
                      size_t n) {
    if (n == 0) {
        return;
    }
    *data = grow(*data, cap, offset + n);
    if (offset > *len) {
        memset(*data + *len, 0, offset - *len);
    }
    memcpy(*data + offset, bytes, n);
    if (offset + n > *len) {
        *len = offset + n;
    }
}

static void set_len(uint8_t **data, size_t *len, size_t *cap, uint64_t n) {
    if (n > *len) {
        *data = grow(*data, cap, n);
        memset(*data + *len, 0, n - *len);
    }
    *len = n;
}

static struct name *name_find(struct name *list, const char *path) {
    while (list != NULL && strcmp(list->path, path) != 0) {
        list = list->next;
    }
    return list;
}

static void name_set(struct name **list, const char *path, struct inode *inode) {
    struct name *n = name_find(*list, path);

    if (n == NULL) {
        n = calloc(1, sizeof *n);
        OC_CHECK(n != NULL);
        (void)snprintf(n->path, sizeof n->path, "%s", path);
        n->next = *list;
        *list = n;
    }
    n->inode = inode;
}

static void name_drop(struct name **list, const char *path) {
    for (; *list != NULL; list = &(*list)->next) {
        if (strcmp((*list)->path, path) == 0) {
            struct name *n = *list;

            *list = n->next;
            free(n);
            return;
        }
    }
}

/* "seg/1.seg" lies in "seg", "FORMAT" in "". */
static bool in_dir(const char *path, const char *dir) {
    size_t n = strlen(dir);
    const char *slash = strrchr(path, '/');

    if (n == 0) {
        return slash == NULL;
    }
    return slash == path + n && memcmp(path, dir, n) == 0;
}

/* Counts a changing call; true when the process dies in it. */
static bool dies(struct sim_disk *d) {
    d->calls++;
    if (d->die_at != 0 && d->calls >= d->die_at) {
        d->dead = true;
    }
    return d->dead;
}

static int gone(struct oc_error *err) {
    return oc_error_set(err, OC_E_UNAVAILABLE, "simulated: the process is dead");
}

static uint64_t used_bytes(const struct sim_disk *d) {
    uint64_t n = 0;

    for (const struct name *m = d->names; m != NULL; m = m->next) {
        n += m->inode->now_len;
    }
    return n;
}

static struct inode *inode_new(struct sim_disk *d) {
    struct inode *i = calloc(1, sizeof *i);

    OC_CHECK(i != NULL);
    i->next = d->inodes;
    d->inodes = i;
    return i;
}

static void dir_op_add(struct sim_disk *d, enum dir_op_kind kind, const char *path, const char *to,
                       struct inode *inode) {
    struct dir_op *op = calloc(1, sizeof *op);

    OC_CHECK(op != NULL);
    op->kind = kind;
    op->inode = inode;
    (void)snprintf(op->path, sizeof op->path, "%s", path);
    (void)snprintf(op->to, sizeof op->to, "%s", to);
    if (d->last_op != NULL) {
        d->last_op->next = op;
    } else {
        d->ops = op;
    }
    d->last_op = op;
}

static void dir_op_apply(struct name **list, const struct dir_op *op) {
    switch (op->kind) {
    case DIR_LINK:
        name_set(list, op->path, op->inode);
        break;
    case DIR_UNLINK:
        name_drop(list, op->path);
        break;
    case DIR_RENAME:
        name_drop(list, op->path);
        name_set(list, op->to, op->inode);
        break;
    }
}

static int sim_open(void *ctx, const char *path, unsigned flags, struct oc_file **ret,
                    struct oc_error *err) {
    struct sim_disk *d = ctx;
    struct name *n = name_find(d->names, path);

    OC_CHECK(strlen(path) < sizeof n->path && strstr(path, "..") == NULL && path[0] != '/');
    if (d->dead) {
        return gone(err);
    }
    if (n != NULL && (flags & OC_OPEN_CREATE) && (flags & OC_OPEN_EXCL)) {
        return oc_error_set(err, OC_E_EXISTS, "%s: File exists", path);
    }
    if (n == NULL) {
        if (!(flags & OC_OPEN_CREATE)) {
            return oc_error_errno(err, ENOENT, "cannot open %s", path);
        }
        if (dies(d)) {
            return gone(err);
        }
        struct inode *inode = inode_new(d);
        name_set(&d->names, path, inode);
        dir_op_add(d, DIR_LINK, path, "", inode);
        n = name_find(d->names, path);
    }
    struct oc_file *f = calloc(1, sizeof *f);
    OC_CHECK(f != NULL);
    f->disk = d;
    f->inode = n->inode;
    (void)snprintf(f->path, sizeof f->path, "%s", path);
    f->next = d->open;
    d->open = f;
    *ret = f;
    return OC_OK;
}

static void sim_close(struct oc_file *f) {
    for (struct oc_file **p = &f->disk->open; *p != NULL; p = &(*p)->next) {
        if (*p == f) {
            *p = f->next;
            break;
        }
    }
    free(f);
}

static int64_t sim_pread(struct oc_file *f, void *dst, size_t len, uint64_t offset, bool nowait,
                         struct oc_error *err) {
    struct sim_disk *d = f->disk;
    struct inode *i = f->inode;

    if (d->dead) {
        return gone(err);
    }
    if (nowait && chance(d, 16384)) {
        return OC_DISK_WOULD_WAIT;
    }
    if (chance(d, d->faults.read_eio)) {
        return oc_error_errno(err, EIO, "cannot read %s", f->path);
    }
    if (offset >= i->now_len) {
        return 0;
    }
    size_t n = i->now_len - offset < len ? i->now_len - offset : len;
    memcpy(dst, i->now + offset, n);
    return (int64_t)n;
}

static void record_write(struct inode *i, uint64_t offset, const uint8_t *bytes, size_t len) {
    struct change *c = malloc(sizeof *c + len);

    OC_CHECK(c != NULL);
    *c = (struct change){.offset = offset, .len = len};
    memcpy(c->bytes, bytes, len);
    if (i->last != NULL) {
        i->last->next = c;
    } else {
        i->first = c;
    }
    i->last = c;
    put_bytes(&i->now, &i->now_len, &i->now_cap, offset, bytes, len);
}

static int sim_pwritev(struct oc_file *f, const struct iovec *iov, int iov_count, uint64_t offset,
                       struct oc_error *err) {
    struct sim_disk *d = f->disk;
    uint8_t *all;
    size_t len = 0, at = 0;
    int error = 0;

    if (d->dead) {
        return gone(err);
    }
    for (int k = 0; k < iov_count; k++) {
        len += iov[k].iov_len;
    }
    all = malloc(len + 1);
    OC_CHECK(all != NULL);
    for (int k = 0; k < iov_count; k++) {
        if (iov[k].iov_len > 0) {
            memcpy(all + at, iov[k].iov_base, iov[k].iov_len);
        }
        at += iov[k].iov_len;
    }
    uint64_t grows = offset + len > f->inode->now_len ? offset + len - f->inode->now_len : 0;
    bool died = dies(d);
    if (!died && used_bytes(d) + grows > d->faults.space_bytes) {
        error = ENOSPC;
    } else if (!died && chance(d, d->faults.write_eio)) {
        error = EIO;
    }
    if (died || error != 0) {
        /* Any leading part may have been done. */
        len = (size_t)oc_rng_below(&d->rng, len + 1);
    }
    if (len > 0) {
        record_write(f->inode, offset, all, len);
    }
    free(all);
    if (died) {
        return gone(err);
    }
    return error == 0 ? OC_OK : oc_error_errno(err, error, "cannot write %s", f->path);
}

static void change_apply(struct inode *i, const struct change *c, size_t len) {
    if (c->is_truncate) {
        set_len(&i->durable, &i->durable_len, &i->durable_cap, c->offset);
    } else {
        put_bytes(&i->durable, &i->durable_len, &i->durable_cap, c->offset, c->bytes, len);
    }
}

static int sim_sync(struct oc_file *f, struct oc_error *err) {
    struct sim_disk *d = f->disk;
    struct inode *i = f->inode;

    if (d->dead || dies(d)) {
        return gone(err);
    }
    if (chance(d, d->faults.sync_eio)) {
        /* The kernel marks the pages clean all the same: these writes are in nobody's care now. */
        for (struct change *c = i->first; c != NULL; c = c->next) {
            c->doomed = c->doomed || oc_rng_below(&d->rng, 2) == 0;
        }
        return oc_error_errno(err, EIO, "cannot sync %s", f->path);
    }
    struct change **p = &i->first;
    i->last = NULL;
    while (*p != NULL) {
        struct change *c = *p;

        if (c->doomed) {
            i->last = c;
            p = &c->next;
            continue;
        }
        change_apply(i, c, c->len);
        *p = c->next;
        free(c);
    }
    return OC_OK;
}

static int sim_truncate(struct oc_file *f, uint64_t len_bytes, struct oc_error *err) {
    struct sim_disk *d = f->disk;
    struct inode *i = f->inode;

    if (d->dead || dies(d)) {
        return gone(err);
    }
    if (chance(d, d->faults.write_eio)) {
        return oc_error_errno(err, EIO, "cannot truncate %s", f->path);
    }
    struct change *c = calloc(1, sizeof *c);
    OC_CHECK(c != NULL);
    c->is_truncate = true;
    c->offset = len_bytes;
    if (i->last != NULL) {
        i->last->next = c;
    } else {
        i->first = c;
    }
    i->last = c;
    set_len(&i->now, &i->now_len, &i->now_cap, len_bytes);
    return OC_OK;
}

static int sim_reserve(struct oc_file *f, uint64_t len_bytes, struct oc_error *err) {
    struct sim_disk *d = f->disk;

    if (d->dead) {
        return gone(err);
    }
    uint64_t more = len_bytes > f->inode->now_len ? len_bytes - f->inode->now_len : 0;
    if (used_bytes(d) + more > d->faults.space_bytes) {
        return oc_error_errno(err, ENOSPC, "cannot reserve space for %s", f->path);
    }
    return OC_OK;
}

static int sim_size(struct oc_file *f, uint64_t *ret_bytes, struct oc_error *err) {
    if (f->disk->dead) {
        return gone(err);
    }
    *ret_bytes = f->inode->now_len;
    return OC_OK;
}

static void sim_drop_cache(struct oc_file *f, uint64_t offset, uint64_t len) {
    (void)f;
    (void)offset;
    (void)len;
}

static int sim_make_dir(void *ctx, const char *path, struct oc_error *err) {
    struct sim_disk *d = ctx;

    (void)path; /* paths are flat: a directory is there as soon as a name has it */
    return d->dead ? gone(err) : OC_OK;
}

static int sim_rename(void *ctx, const char *from, const char *to, struct oc_error *err) {
    struct sim_disk *d = ctx;
    struct name *n = name_find(d->names, from);

    if (d->dead || dies(d)) {
        return gone(err);
    }
    if (n == NULL) {
        return oc_error_errno(err, ENOENT, "cannot rename %s", from);
    }
    struct inode *inode = n->inode;
    dir_op_add(d, DIR_RENAME, from, to, inode);
    name_drop(&d->names, from);
    name_set(&d->names, to, inode);
    return OC_OK;
}

static int sim_unlink(void *ctx, const char *path, struct oc_error *err) {
    struct sim_disk *d = ctx;
    struct name *n = name_find(d->names, path);

    if (d->dead || dies(d)) {
        return gone(err);
    }
    if (n == NULL) {
        return oc_error_errno(err, ENOENT, "cannot unlink %s", path);
    }
    dir_op_add(d, DIR_UNLINK, path, "", n->inode);
    name_drop(&d->names, path);
    return OC_OK;
}

static int sim_sync_dir(void *ctx, const char *path, struct oc_error *err) {
    struct sim_disk *d = ctx;

    if (d->dead || dies(d)) {
        return gone(err);
    }
    if (chance(d, d->faults.sync_eio)) {
        return oc_error_errno(err, EIO, "cannot sync directory '%s'", path);
    }
    struct dir_op **p = &d->ops;
    d->last_op = NULL;
    while (*p != NULL) {
        struct dir_op *op = *p;

        if (!in_dir(op->path, path)) {
            d->last_op = op;
            p = &op->next;
            continue;
        }
        dir_op_apply(&d->durable_names, op);
        *p = op->next;
        free(op);
    }
    return OC_OK;
}

/* Directories are not kept (see sim_make_dir), so files are all that there is to name. */
static int sim_list_dir(void *ctx, const char *path,
                        int (*each)(void *arg, const char *name, uint64_t size_bytes), void *arg,
                        struct oc_error *err) {
    struct sim_disk *d = ctx;
    size_t skip = strlen(path) == 0 ? 0 : strlen(path) + 1;

    if (d->dead) {
        return gone(err);
    }
    for (struct name *n = d->names, *next; n != NULL; n = next) {
        next = n->next;
        if (in_dir(n->path, path)) {
            int r = each(arg, n->path + skip, n->inode->now_len);

            if (r != 0) {
                return r < 0 ? r : OC_OK;
            }
        }
    }
    return OC_OK;
}

static int sim_space(void *ctx, struct oc_disk_space *ret, struct oc_error *err) {
    struct sim_disk *d = ctx;
    uint64_t used = used_bytes(d);

    if (d->dead) {
        return gone(err);
    }
    ret->total_bytes = d->faults.space_bytes;
    ret->free_bytes = used < ret->total_bytes ? ret->total_bytes - used : 0;
    return OC_OK;
}

static void sim_boot_id(void *ctx, uint8_t ret[16]) {
    memcpy(ret, ((struct sim_disk *)ctx)->boot, 16);
}

static void new_boot(struct sim_disk *d) {
    oc_store64(d->boot, oc_rng_next(&d->rng));
    oc_store64(d->boot + 8, oc_rng_next(&d->rng));
}

struct sim_disk *sim_disk_new(uint64_t seed, uint64_t space_bytes) {
    struct sim_disk *d = calloc(1, sizeof *d);

    OC_CHECK(d != NULL);
    oc_rng_init(&d->rng, seed);
    d->faults.space_bytes = space_bytes;
    new_boot(d);
    d->table = (struct oc_disk){
        .ctx = d,
        .open = sim_open,
        .close = sim_close,
        .pread = sim_pread,
        .pwritev = sim_pwritev,
        .sync = sim_sync,
        .truncate = sim_truncate,
        .reserve = sim_reserve,
        .size = sim_size,
        .drop_cache = sim_drop_cache,
        .make_dir = sim_make_dir,
        .rename = sim_rename,
        .unlink = sim_unlink,
        .sync_dir = sim_sync_dir,
        .list_dir = sim_list_dir,
        .space = sim_space,
        .boot_id = sim_boot_id,
    };
    return d;
}

static void changes_free(struct inode *i) {
    while (i->first != NULL) {
        struct change *c = i->first;

        i->first = c->next;
        free(c);
    }
    i->last = NULL;
}

static void ops_free(struct sim_disk *d) {
    while (d->ops != NULL) {
        struct dir_op *op = d->ops;

        d->ops = op->next;
        free(op);
    }
    d->last_op = NULL;
}

static void names_free(struct name **list) {
    while (*list != NULL) {
        struct name *n = *list;

        *list = n->next;
        free(n);
    }
}

static void inode_free(struct inode *i) {
    changes_free(i);
    free(i->now);
    free(i->durable);
    free(i);
}

void sim_disk_free(struct sim_disk *d) {
    while (d->open != NULL) {
        sim_close(d->open);
    }
    while (d->inodes != NULL) {
        struct inode *i = d->inodes;

        d->inodes = i->next;
        inode_free(i);
    }
    ops_free(d);
    names_free(&d->names);
    names_free(&d->durable_names);
    free(d);
}

const struct oc_disk *sim_disk_table(struct sim_disk *d) {
    return &d->table;
}

void sim_disk_faults(struct sim_disk *d, const struct sim_faults *faults) {
    d->faults = *faults;
}

void sim_disk_die_at(struct sim_disk *d, uint64_t nth) {
    d->die_at = nth == 0 ? 0 : d->calls + nth;
}

bool sim_disk_dead(const struct sim_disk *d) {
    return d->dead;
}

uint64_t sim_disk_calls(const struct sim_disk *d) {
    return d->calls;
}

/* Drop inodes that nothing can reach any more. */
static void collect(struct sim_disk *d) {
    for (struct inode *i = d->inodes; i != NULL; i = i->next) {
        i->named = false;
    }
    for (struct name *n = d->names; n != NULL; n = n->next) {
        n->inode->named = true;
    }
    for (struct name *n = d->durable_names; n != NULL; n = n->next) {
        n->inode->named = true;
    }
    for (struct dir_op *op = d->ops; op != NULL; op = op->next) {
        op->inode->named = true;
    }
    for (struct inode **p = &d->inodes; *p != NULL;) {
        struct inode *i = *p;

        if (i->named) {
            p = &i->next;
        } else {
            *p = i->next;
            inode_free(i);
        }
    }
}

void sim_disk_restart(struct sim_disk *d) {
    while (d->open != NULL) {
        sim_close(d->open);
    }
    d->dead = false;
    d->die_at = 0;
    collect(d);
}

/* What of a file's unsynced changes survives: nothing, everything, a prefix, or any subset; a
 * surviving write may be torn at a sector. */
static void inode_lose_power(struct sim_disk *d, struct inode *i) {
    unsigned mode = (unsigned)oc_rng_below(&d->rng, 4);
    uint64_t keep = 0;

    for (struct change *c = i->first; c != NULL; c = c->next) {
        keep++;
    }
    keep = mode == 2 ? oc_rng_below(&d->rng, keep + 1) : keep;
    for (struct change *c = i->first; c != NULL; c = c->next) {
        bool survives =
            mode == 1 || (mode == 2 && keep > 0) || (mode == 3 && oc_rng_below(&d->rng, 2) == 0);
        size_t len = c->len;

        keep -= keep > 0;
        if (!survives || (c->doomed && oc_rng_below(&d->rng, 4) != 0)) {
            continue;
        }
        if (mode >= 2 && len > SECTOR && oc_rng_below(&d->rng, 4) == 0) {
            len = (size_t)oc_rng_below(&d->rng, len / SECTOR + 1) * SECTOR;
        }
        change_apply(i, c, len);
    }
    changes_free(i);
    i->now_len = 0;
    put_bytes(&i->now, &i->now_len, &i->now_cap, 0, i->durable, i->durable_len);
}

void sim_disk_power_loss(struct sim_disk *d) {
    while (d->open != NULL) {
        sim_close(d->open);
    }
    /* Directory changes are journalled: some prefix of them survives. */
    uint64_t count = 0;
    for (struct dir_op *op = d->ops; op != NULL; op = op->next) {
        count++;
    }
    uint64_t keep = oc_rng_below(&d->rng, count + 1);
    for (struct dir_op *op = d->ops; op != NULL && keep > 0; op = op->next, keep--) {
        dir_op_apply(&d->durable_names, op);
    }
    ops_free(d);
    names_free(&d->names);
    for (struct name *n = d->durable_names; n != NULL; n = n->next) {
        name_set(&d->names, n->path, n->inode);
    }
    collect(d);
    for (struct inode *i = d->inodes; i != NULL; i = i->next) {
        inode_lose_power(d, i);
    }
    new_boot(d);
    d->dead = false;
    d->die_at = 0;
}

bool sim_disk_flip(struct sim_disk *d, const char *prefix, struct sim_flip *ret) {
    uint64_t total = 0;

    for (struct name *n = d->names; n != NULL; n = n->next) {
        if (strncmp(n->path, prefix, strlen(prefix)) == 0) {
            total += n->inode->now_len;
        }
    }
    if (total == 0) {
        return false;
    }
    uint64_t at = oc_rng_below(&d->rng, total);
    for (struct name *n = d->names; n != NULL; n = n->next) {
        struct inode *i = n->inode;

        if (strncmp(n->path, prefix, strlen(prefix)) != 0) {
            continue;
        }
        if (at < i->now_len) {
            uint8_t bit = (uint8_t)(1u << oc_rng_below(&d->rng, 8));

            i->now[at] ^= bit;
            if (at < i->durable_len) {
                i->durable[at] ^= bit;
            }
            (void)snprintf(ret->path, sizeof ret->path, "%s", n->path);
            ret->offset = at;
            ret->size = i->now_len;
            return true;
        }
        at -= i->now_len;
    }
    return false;
}

uint64_t sim_disk_used(const struct sim_disk *d) {
    return used_bytes(d);
}

size_t sim_disk_count(const struct sim_disk *d, const char *prefix) {
    size_t n = 0;

    for (const struct name *m = d->names; m != NULL; m = m->next) {
        n += strncmp(m->path, prefix, strlen(prefix)) == 0;
    }
    return n;
}
