#include "rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define START_WALL_S UINT64_C(1800000000)

static struct oc_now rig_now(void *ctx) {
    struct rig *r = ctx;

    return (struct oc_now){.mono_ns = atomic_load(&r->mono_ns),
                           .wall_ns = atomic_load(&r->wall_ns)};
}

void rig_init(struct rig *r) {
    const char *base = getenv("OC_TEST_DIR");

    memset(r, 0, sizeof *r);
    (void)snprintf(r->dir, sizeof r->dir, "%.200s/oc-store-XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(r->dir));
    atomic_store(&r->wall_ns, START_WALL_S * OC_NS_PER_S);
    atomic_store(&r->mono_ns, 1000 * OC_NS_PER_S);
    r->clock = (struct oc_clock){.now = rig_now, .ctx = r};
    r->cfg = (struct oc_objects_config){.clock = &r->clock,
                                        .seed = 7,
                                        .sync = OC_SYNC_NONE,
                                        .max_disk_bytes = UINT64_C(1) << 30,
                                        .segment_bytes = UINT64_C(1) << 20,
                                        .shards = 8,
                                        .recovery_threads = 2};
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void rig_done(struct rig *r) {
    if (r->s != NULL) {
        rig_close(r, false);
    }
    assert_int_equal(nftw(r->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

int rig_try_open(struct rig *r, struct oc_error *err) {
    int rc = oc_disk_posix_open(r->dir, &r->disk, err);

    if (rc != 0) {
        return rc;
    }
    r->cfg.disk = r->disk;
    rc = oc_objects_open(&r->cfg, &r->s, err);
    if (rc == 0) {
        rc = oc_objects_load(r->s, err);
        if (rc != 0) {
            oc_objects_close(r->s, false);
        }
    }
    if (rc != 0) {
        r->s = NULL;
        oc_disk_posix_close(r->disk);
        r->disk = NULL;
    }
    return rc;
}

void rig_open(struct rig *r) {
    struct oc_error err = {0};
    int rc = rig_try_open(r, &err);

    if (rc != 0) {
        fail_msg("open: %s: %s", oc_err_name(rc), err.msg);
    }
}

void rig_close(struct rig *r, bool clean) {
    oc_objects_close(r->s, clean);
    r->s = NULL;
    oc_disk_posix_close(r->disk);
    r->disk = NULL;
}

void rig_reopen(struct rig *r, bool clean) {
    rig_close(r, clean);
    rig_pass_ms(r, 5);
    rig_open(r);
}

void rig_pass_ms(struct rig *r, uint64_t ms) {
    atomic_fetch_add(&r->wall_ns, ms * OC_NS_PER_MS);
    atomic_fetch_add(&r->mono_ns, ms * OC_NS_PER_MS);
}

void rig_fill(uint64_t id, void *dst, size_t len) {
    uint8_t *to = dst;
    uint64_t x = id * UINT64_C(0x9e3779b97f4a7c15) + 1;

    for (size_t i = 0; i < len; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(to + i, &x, len - i < 8 ? len - i : 8);
    }
}

static int put_upload(struct rig *r, struct oc_write *w, const uint8_t *bytes, size_t len) {
    struct oc_upload *u = NULL;
    int rc = oc_upload_begin(r->s, &u, NULL);

    if (rc != 0) {
        return rc;
    }
    for (size_t at = 0; rc == 0 && at < len; at += OC_CHUNK_BYTES) {
        rc = oc_upload_write(u, bytes + at, len - at < OC_CHUNK_BYTES ? len - at : OC_CHUNK_BYTES,
                             NULL);
    }
    if (rc == 0) {
        rc = oc_upload_finish(u, NULL);
    }
    if (rc == 0) {
        struct oc_batch b;

        assert_int_equal(oc_upload_len(u), len);
        oc_batch_init(&b);
        w->upload = u;
        oc_batch_add(&b, w);
        (void)oc_objects_commit(r->s, &b);
        rc = w->result;
    }
    oc_upload_free(u);
    return rc;
}

int rig_put_ttl(struct rig *r, const char *key, uint64_t id, size_t len, uint32_t expires_at_s) {
    uint8_t *bytes = malloc(len + 1);
    struct oc_write w = {.key = oc_span_str(key), .expires_at_s = expires_at_s};
    struct oc_batch b;
    int rc;

    assert_non_null(bytes);
    rig_fill(id, bytes, len);
    if (len > OC_INLINE_MAX) {
        rc = put_upload(r, &w, bytes, len);
    } else {
        oc_batch_init(&b);
        w.value = (struct oc_slice){.p = bytes, .len = len};
        oc_batch_add(&b, &w);
        (void)oc_objects_commit(r->s, &b);
        rc = w.result;
    }
    free(bytes);
    return rc;
}

int rig_put(struct rig *r, const char *key, uint64_t id, size_t len) {
    return rig_put_ttl(r, key, id, len, 0);
}

int rig_delete(struct rig *r, const char *key) {
    struct oc_write w = {.key = oc_span_str(key), .is_delete = true};
    struct oc_batch b;

    oc_batch_init(&b);
    oc_batch_add(&b, &w);
    (void)oc_objects_commit(r->s, &b);
    return w.result;
}

static int get_small(struct rig *r, struct oc_span key, const struct oc_object *obj,
                     uint8_t **ret) {
    struct oc_span value;
    size_t room = oc_objects_read_room(key, obj);
    uint8_t *dst = malloc(room);

    assert_non_null(dst);
    int rc = oc_objects_read(r->s, key, obj, dst, false, &value);
    if (rc == 0) {
        assert_int_equal(value.len, obj->len);
        memmove(dst, value.p, value.len);
        *ret = dst;
        return 0;
    }
    free(dst);
    return rc;
}

static int get_large(struct rig *r, struct oc_span key, const struct oc_object *obj,
                     uint8_t **ret) {
    struct oc_reader *reader = NULL;
    uint8_t *dst = malloc(obj->len + 1);
    uint8_t *chunk = malloc(OC_CHUNK_HEADER_BYTES + OC_CHUNK_BYTES);
    int rc = oc_reader_open(r->s, key, obj, &reader, NULL);

    assert_true(dst != NULL && chunk != NULL);
    for (uint64_t at = 0; rc == 0 && at < obj->len;) {
        struct oc_span piece;

        rc = oc_reader_chunk(reader, at, chunk, false, &piece);
        if (rc == 0) {
            memcpy(dst + at, piece.p, piece.len);
            at += piece.len;
        }
    }
    if (reader != NULL) {
        oc_reader_close(reader);
    }
    free(chunk);
    if (rc == 0) {
        *ret = dst;
    } else {
        free(dst);
    }
    return rc;
}

int rig_get(struct rig *r, const char *key, uint8_t **ret, size_t *ret_len) {
    struct oc_span k = oc_span_str(key);
    struct oc_object obj;
    int rc = oc_objects_find(r->s, k, &obj);

    if (rc == 0) {
        rc = oc_object_is_small(&obj) ? get_small(r, k, &obj, ret) : get_large(r, k, &obj, ret);
        *ret_len = (size_t)obj.len;
    }
    return rc;
}

int rig_has(struct rig *r, const char *key, uint64_t id, size_t len) {
    uint8_t *bytes = NULL, *want = malloc(len + 1);
    size_t got_len = 0;
    int rc = rig_get(r, key, &bytes, &got_len);
    bool same = false;

    assert_non_null(want);
    if (rc == 0) {
        rig_fill(id, want, len);
        same = got_len == len && memcmp(bytes, want, len) == 0;
        free(bytes);
    } else if (rc != OC_E_NOT_FOUND && rc != OC_E_DATA_LOSS) {
        fail_msg("get %s: %s", key, oc_err_name(rc));
    }
    free(want);
    if (rc == 0 && !same) {
        fail_msg("%s has other bytes (%zu) than value %llu of %zu", key, got_len,
                 (unsigned long long)id, len);
    }
    return rc == 0;
}

void rig_expect(struct rig *r, const char *key, uint64_t id, size_t len) {
    if (!rig_has(r, key, id, len)) {
        fail_msg("%s is missing", key);
    }
}

void rig_expect_missing(struct rig *r, const char *key) {
    struct oc_object obj;

    assert_int_equal(oc_objects_find(r->s, oc_span_str(key), &obj), OC_E_NOT_FOUND);
}

void rig_path(const struct rig *r, const char *name, char ret[512]) {
    (void)snprintf(ret, 512, "%s/%s", r->dir, name);
}

static int not_dot(const struct dirent *d) {
    return d->d_name[0] != '.' && d->d_type == DT_REG;
}

bool rig_nth_file(const struct rig *r, const char *sub, size_t n, char ret[512]) {
    struct dirent **list = NULL;
    char path[512];

    rig_path(r, sub, path);
    int count = scandir(path, &list, not_dot, alphasort);
    bool there = count > 0 && n < (size_t)count;

    if (there) {
        (void)snprintf(ret, 512, "%.300s/%.200s", path, list[n]->d_name);
    }
    for (int i = 0; i < count; i++) {
        free(list[i]);
    }
    free(list);
    return there;
}

size_t rig_count_files(const struct rig *r, const char *sub) {
    char path[512];
    size_t n = 0;

    while (rig_nth_file(r, sub, n, path)) {
        n++;
    }
    return n;
}

size_t rig_count_values(const struct rig *r) {
    size_t n = 0;

    for (unsigned i = 0; i < 256; i++) {
        char sub[16];

        (void)snprintf(sub, sizeof sub, "val/%02x", i);
        n += rig_count_files(r, sub);
    }
    return n;
}

uint64_t rig_file_size(const char *path) {
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

void rig_truncate(const char *path, uint64_t len) {
    assert_int_equal(truncate(path, (off_t)len), 0);
}

void rig_flip(const char *path, uint64_t offset, uint8_t mask) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= mask;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

void rig_write_file(const char *path, const void *bytes, size_t len) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    close(fd);
}
