/* The real disk, on a real directory. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/disk.h"
#include "io/iov.h"
#include "rig.h"

struct place {
    char dir[64]; /* a fresh directory */
    char path[128];
    struct oc_disk *disk;
    struct oc_error err;
};

static void place_init(struct place *p) {
    memset(p, 0, sizeof *p);
    (void)snprintf(p->dir, sizeof p->dir, "/tmp/oc-test-disk-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
}

static void place_open(struct place *p) {
    place_init(p);
    if (oc_disk_posix_open(p->dir, &p->disk, &p->err) != 0) {
        fail_msg("%s", p->err.msg);
    }
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void place_done(struct place *p) {
    oc_disk_posix_close(p->disk);
    assert_int_equal(nftw(p->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static const char *in(struct place *p, const char *name) {
    (void)snprintf(p->path, sizeof p->path, "%s/%s", p->dir, name);
    return p->path;
}

#define has_text(err, text)                                                                        \
    do {                                                                                           \
        if (strstr((err)->msg, (text)) == NULL) {                                                  \
            fail_msg("'%s' does not say '%s'", (err)->msg, (text));                                \
        }                                                                                          \
    } while (0)

static struct oc_file *create(struct place *p, const char *path) {
    struct oc_file *f = NULL;

    if (p->disk->open(p->disk->ctx, path, OC_OPEN_CREATE, &f, &p->err) != 0) {
        fail_msg("%s", p->err.msg);
    }
    return f;
}

static int write_at(struct place *p, struct oc_file *f, const char *text, uint64_t offset) {
    struct iovec iov = {(void *)(uintptr_t)text, strlen(text)};

    return p->disk->pwritev(f, &iov, 1, offset, &p->err);
}

static void test_write_and_read_back(void **state) {
    struct place p;
    char got[64];
    uint64_t size;
    struct iovec iov[5] = {
        {(void *)"", 0}, {(void *)"abc", 3}, {NULL, 0}, {(void *)"defg", 4}, {NULL, 0}};

    (void)state;
    place_open(&p);
    struct oc_file *f = create(&p, "data");
    assert_int_equal(p.disk->pwritev(f, iov, 5, 2, &p.err), 0);
    assert_int_equal(p.disk->pwritev(f, iov, 0, 2, &p.err), 0); /* nothing is fine */
    assert_int_equal(p.disk->size(f, &size, &p.err), 0);
    assert_int_equal(size, 9);
    assert_int_equal(p.disk->pread(f, got, sizeof got, 0, false, &p.err), 9); /* to the end */
    assert_memory_equal(got, "\0\0abcdefg", 9);
    assert_int_equal(p.disk->pread(f, got, 3, 4, false, &p.err), 3);
    assert_memory_equal(got, "cde", 3);
    assert_int_equal(p.disk->pread(f, got, 3, 9, false, &p.err), 0);
    assert_int_equal(p.disk->pread(f, got, 3, 1000, true, &p.err),
                     0); /* the end, not "would wait" */
    assert_int_equal(p.disk->sync(f, &p.err), 0);
    assert_int_equal(p.disk->truncate(f, 4, &p.err), 0);
    assert_int_equal(p.disk->pread(f, got, sizeof got, 0, false, &p.err), 4);
    p.disk->close(f);

    assert_int_equal(p.disk->open(p.disk->ctx, "data", OC_OPEN_READ, &f, &p.err), 0);
    assert_int_equal(p.disk->pread(f, got, sizeof got, 0, true, &p.err), 4);
    assert_int_not_equal(write_at(&p, f, "x", 0), 0); /* read only */
    has_text(&p.err, "/data");
    p.disk->close(f);
    place_done(&p);
}

static void test_vector_longer_than_the_kernel_takes(void **state) {
    enum { N = 3001 };
    struct place p;
    static struct iovec iov[N];
    static char bytes[N * 3];
    static char got[N * 3 + 1];

    (void)state;
    place_open(&p);
    struct oc_file *f = create(&p, "data");
    for (int i = 0; i < N * 3; i++) {
        bytes[i] = (char)(i * 7 + i / 256);
    }
    for (int i = 0; i < N; i++) {
        iov[i] = (struct iovec){bytes + i * 3, 3};
    }
    assert_int_equal(p.disk->pwritev(f, iov, N, 5, &p.err), 0);
    assert_int_equal(p.disk->pread(f, got, sizeof got, 5, false, &p.err), N * 3);
    assert_memory_equal(got, bytes, N * 3);
    p.disk->close(f);
    place_done(&p);
}

/* Short writes inside an entry cannot be had from a real disk at will, so the cursor is driven as
 * if every call took `step` bytes: what it offers, in order, must be the vector's bytes. */
static void test_cursor_in_a_vector(void **state) {
    enum { N = 200, LEN = 5 * N };
    static char bytes[LEN];
    struct iovec iov[N];
    size_t total = 0;

    (void)state;
    for (int i = 0; i < LEN; i++) {
        bytes[i] = (char)(i * 31 + i / 256);
    }
    for (int i = 0; i < N; i++) { /* 0 to 4 bytes long */
        iov[i] = (struct iovec){bytes + total, (size_t)(i * 7 % 5)};
        total += iov[i].iov_len;
    }
    for (size_t step = 1; step < 300; step += 7) {
        struct oc_iov_cursor c = {iov, N, 0};
        struct iovec room[OC_IOV_STEP];
        size_t at = 0;

        oc_iov_advance(&c, 0);
        while (c.count > 0) {
            const struct iovec *next;
            int n = oc_iov_next(&c, room, &next);
            size_t took = 0;

            assert_true(n > 0);
            for (int i = 0; i < n && took < step; i++) {
                size_t part = next[i].iov_len < step - took ? next[i].iov_len : step - took;

                assert_memory_equal(next[i].iov_base, bytes + at + took, part);
                took += part;
            }
            assert_true(took > 0);
            at += took;
            oc_iov_advance(&c, took);
        }
        assert_int_equal(at, total);
    }
}

/* A limit on file sizes cuts a write short as a full disk does: what fits is written, and the rest
 * is refused when it is tried again. */
static void test_short_write_goes_on_and_fails(void **state) {
    struct place p;
    struct rlimit before;
    struct iovec iov[3] = {{(void *)"0123", 4}, {(void *)"456789", 6}, {(void *)"abcdef", 6}};
    char got[32];

    (void)state;
    place_open(&p);
    struct oc_file *f = create(&p, "data");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit limit = {.rlim_cur = 13, .rlim_max = before.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int rc = p.disk->pwritev(f, iov, 3, 0, &p.err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(rc, OC_E_EXHAUSTED); /* EFBIG */
    has_text(&p.err, "cannot write to");
    assert_int_equal(p.disk->pread(f, got, sizeof got, 0, false, &p.err), 13);
    assert_memory_equal(got, "0123456789abc", 13);
    struct oc_disk_counts counts;
    oc_disk_posix_counts(p.disk, &counts);
    assert_int_equal(counts.pwrites, 2);
    assert_int_equal(counts.bytes_written, 13);
    p.disk->close(f);
    place_done(&p);
}

static void test_offsets_out_of_range(void **state) {
    struct place p;
    char byte = 0;
    struct iovec huge[2] = {{&byte, SIZE_MAX}, {&byte, SIZE_MAX}};

    (void)state;
    place_open(&p);
    struct oc_file *f = create(&p, "data");
    assert_int_equal(p.disk->pread(f, &byte, 1, INT64_MAX, false, &p.err), OC_E_EXHAUSTED);
    assert_int_equal(p.disk->pread(f, &byte, 1, UINT64_MAX, false, &p.err), OC_E_EXHAUSTED);
    assert_int_equal(write_at(&p, f, "x", UINT64_MAX), OC_E_EXHAUSTED);
    assert_int_equal(p.disk->pwritev(f, huge, 2, 0, &p.err), OC_E_EXHAUSTED);
    assert_int_equal(p.disk->truncate(f, UINT64_MAX, &p.err), OC_E_EXHAUSTED);
    assert_int_equal(p.disk->reserve(f, UINT64_MAX, &p.err), OC_E_EXHAUSTED);
    p.disk->close(f);
    place_done(&p);
}

static void test_reserve_keeps_the_size(void **state) {
    struct place p;
    uint64_t size;
    struct stat st;

    (void)state;
    place_open(&p);
    struct oc_file *f = create(&p, "data");
    assert_int_equal(write_at(&p, f, "hello", 0), 0);
    assert_int_equal(p.disk->reserve(f, 1 << 20, &p.err), 0);
    assert_int_equal(p.disk->reserve(f, 0, &p.err), 0);
    assert_int_equal(p.disk->size(f, &size, &p.err), 0);
    assert_int_equal(size, 5);
    assert_int_equal(stat(in(&p, "data"), &st), 0);
    if (st.st_blocks < (1 << 20) / 512) {
        print_message("the file system of /tmp reserves nothing (fallocate)\n");
    }
    p.disk->close(f);
    place_done(&p);
}

static void test_read_without_waiting(void **state) {
    enum { LEN = 1 << 20 };
    struct place p;
    struct oc_disk_counts counts;
    char *bytes = malloc(LEN);
    char *got = malloc(LEN);

    (void)state;
    assert_true(bytes != NULL && got != NULL);
    place_open(&p);
    memset(bytes, 'x', LEN);
    struct oc_file *f = create(&p, "data");
    struct iovec iov = {bytes, LEN};
    assert_int_equal(p.disk->pwritev(f, &iov, 1, 0, &p.err), 0);
    assert_int_equal(p.disk->pread(f, got, LEN, 0, true, &p.err), LEN); /* just written: cached */
    assert_int_equal(p.disk->sync(f, &p.err), 0);
    p.disk->drop_cache(f, 0, LEN);
    memset(got, 0, LEN);
    int64_t n = p.disk->pread(f, got, LEN, 0, true, &p.err);
    oc_disk_posix_counts(p.disk, &counts);
    if (n == OC_DISK_WOULD_WAIT) {
        assert_int_equal(counts.would_wait, 1);
        assert_int_equal(counts.bytes_read, LEN);
    } else {
        print_message("the file system of /tmp keeps its cache\n");
        assert_int_equal(n, LEN);
        assert_int_equal(counts.would_wait, 0);
    }
    memset(got, 0, LEN);
    assert_int_equal(p.disk->pread(f, got, LEN, 0, false, &p.err), LEN);
    assert_memory_equal(got, bytes, LEN);
    memset(got, 0, LEN);
    assert_int_equal(p.disk->pread(f, got, LEN, 0, true, &p.err), LEN); /* cached again */
    assert_memory_equal(got, bytes, LEN);
    p.disk->close(f);
    place_done(&p);
    free(bytes);
    free(got);
}

struct listing {
    unsigned count;
    unsigned others; /* no regular files */
    uint64_t bytes;
    unsigned stop_at;
};

static int each_entry(void *arg, const char *name, uint64_t size_bytes) {
    struct listing *l = arg;

    if (size_bytes == OC_DISK_NO_FILE) {
        assert_true(strcmp(name, "sub") == 0 || strcmp(name, "link") == 0);
        l->others++;
        return 0;
    }
    assert_true(name[0] == 'f');
    l->count++;
    l->bytes += size_bytes;
    return l->count == l->stop_at ? 77 : 0;
}

static void test_directories(void **state) {
    struct place p;
    struct listing all = {0};
    struct listing one = {.stop_at = 1};

    (void)state;
    place_open(&p);
    struct oc_disk *d = p.disk;
    assert_int_equal(d->make_dir(d->ctx, "seg", &p.err), 0);
    assert_int_equal(d->make_dir(d->ctx, "seg", &p.err), 0);
    assert_int_equal(d->make_dir(d->ctx, "seg/sub", &p.err), 0);
    assert_int_equal(d->make_dir(d->ctx, "no/parent", &p.err), OC_E_NOT_FOUND);
    struct oc_file *f = create(&p, "seg/f1");
    assert_int_equal(write_at(&p, f, "12345", 0), 0);
    d->close(f);
    d->close(create(&p, "seg/f2"));
    assert_int_equal(symlink("f1", in(&p, "seg/link")), 0);
    assert_int_equal(d->list_dir(d->ctx, "seg", each_entry, &all, &p.err), 0);
    assert_int_equal(all.count, 2);
    assert_int_equal(all.bytes, 5);
    assert_int_equal(all.others, 2); /* named, but not taken for files */
    assert_int_equal(d->list_dir(d->ctx, "seg", each_entry, &one, &p.err), 77);
    assert_int_equal(one.count, 1);
    assert_int_equal(d->list_dir(d->ctx, "none", each_entry, &one, &p.err), OC_E_NOT_FOUND);
    has_text(&p.err, "/none");

    assert_int_equal(d->rename(d->ctx, "seg/f1", "seg/f2", &p.err), 0); /* replaces */
    assert_int_equal(d->rename(d->ctx, "seg/f1", "seg/f3", &p.err), OC_E_NOT_FOUND);
    has_text(&p.err, "seg/f1");
    has_text(&p.err, "seg/f3");
    assert_int_equal(d->sync_dir(d->ctx, "seg", &p.err), 0);
    assert_int_equal(d->sync_dir(d->ctx, "", &p.err), 0);
    assert_int_equal(d->sync_dir(d->ctx, "none", &p.err), OC_E_NOT_FOUND);
    assert_int_equal(d->unlink(d->ctx, "seg/f2", &p.err), 0);
    assert_int_equal(d->unlink(d->ctx, "seg/f2", &p.err), OC_E_NOT_FOUND);
    assert_int_not_equal(d->unlink(d->ctx, "seg/sub", &p.err), 0); /* a directory */
    place_done(&p);
}

static void test_open_flags_and_odd_files(void **state) {
    struct place p;
    struct oc_file *f = NULL;
    char name[300];

    (void)state;
    place_open(&p);
    struct oc_disk *d = p.disk;
    assert_int_equal(d->open(d->ctx, "a", OC_OPEN_WRITE, &f, &p.err), OC_E_NOT_FOUND);
    has_text(&p.err, "cannot open '/tmp/oc-test-disk-");
    has_text(&p.err, "/a': No such file or directory");
    d->close(create(&p, "a"));
    d->close(create(&p, "a")); /* there already: fine */
    assert_int_equal(d->open(d->ctx, "a", OC_OPEN_CREATE | OC_OPEN_EXCL, &f, &p.err), OC_E_EXISTS);
    assert_int_equal(d->open(d->ctx, "a/b", OC_OPEN_CREATE, &f, &p.err), OC_E_PRECONDITION);
    assert_int_equal(symlink("a", in(&p, "link")), 0);
    assert_int_equal(d->open(d->ctx, "link", OC_OPEN_READ, &f, &p.err), OC_E_PRECONDITION);
    has_text(&p.err, "symbolic links are not followed");
    assert_int_equal(mkfifo(in(&p, "fifo"), 0600), 0);
    assert_int_equal(d->open(d->ctx, "fifo", OC_OPEN_READ, &f, &p.err), OC_E_PRECONDITION);
    has_text(&p.err, "not a regular file");
    assert_int_equal(d->open(d->ctx, "a", OC_OPEN_READ, &f, &p.err), 0);
    assert_int_equal(fcntl(oc_disk_posix_fd(f), F_GETFL) & O_NONBLOCK, 0);
    assert_true((fcntl(oc_disk_posix_fd(f), F_GETFD) & FD_CLOEXEC) != 0);
    d->close(f);
    assert_int_equal(d->make_dir(d->ctx, "a", &p.err), OC_E_PRECONDITION); /* a file is there */
    assert_int_equal(d->make_dir(d->ctx, "dir", &p.err), 0);
    assert_int_equal(d->open(d->ctx, "dir", OC_OPEN_READ, &f, &p.err), OC_E_PRECONDITION);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(d->open(d->ctx, name, OC_OPEN_CREATE, &f, &p.err), OC_E_INVALID);
    has_text(&p.err, "File name too long");
    place_done(&p);
}

static void test_paths_stay_inside(void **state) {
    static const char *const bad[] = {"",     "/", "/etc/passwd", "..",   "../x", "a/../b",
                                      "a/..", ".", "./a",         "a//b", "a/"};
    struct place p;
    struct oc_file *f = NULL;

    (void)state;
    place_open(&p);
    struct oc_disk *d = p.disk;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(d->open(d->ctx, bad[i], OC_OPEN_CREATE, &f, &p.err), OC_E_INVALID);
        assert_int_equal(d->unlink(d->ctx, bad[i], &p.err), OC_E_INVALID);
        assert_int_equal(d->rename(d->ctx, bad[i], "x", &p.err), OC_E_INVALID);
        assert_int_equal(d->rename(d->ctx, "x", bad[i], &p.err), OC_E_INVALID);
        if (bad[i][0] != '\0') { /* "" is the root */
            assert_int_equal(d->make_dir(d->ctx, bad[i], &p.err), OC_E_INVALID);
            assert_int_equal(d->sync_dir(d->ctx, bad[i], &p.err), OC_E_INVALID);
            assert_int_equal(d->list_dir(d->ctx, bad[i], each_entry, NULL, &p.err), OC_E_INVALID);
        }
    }
    d->close(create(&p, "..x")); /* a name like any other */
    place_done(&p);
}

static void test_directory_is_made_with_its_parents(void **state) {
    struct place p;
    char dir[128];
    struct stat st;

    (void)state;
    place_init(&p);
    (void)snprintf(dir, sizeof dir, "%s/a//b/c/", p.dir);
    assert_int_equal(oc_disk_posix_open(dir, &p.disk, &p.err), 0);
    assert_int_equal(stat(in(&p, "a/b/c/LOCK"), &st), 0);
    assert_int_equal(st.st_size > 0, 1); /* the pid */
    place_done(&p);
}

static void test_directory_that_cannot_be(void **state) {
    struct place p;
    char dir[5000];

    (void)state;
    place_init(&p);
    int fd = open(in(&p, "file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(oc_disk_posix_open(in(&p, "file"), &p.disk, &p.err), OC_E_PRECONDITION);
    has_text(&p.err, "cannot open data directory '/tmp/oc-test-disk-");
    has_text(&p.err, "/file': Not a directory");
    has_text(&p.err, "-disk DIR");
    assert_int_equal(oc_disk_posix_open(in(&p, "file/x/y"), &p.disk, &p.err), OC_E_PRECONDITION);
    has_text(&p.err, "/file/x/y': Not a directory");
    assert_int_equal(oc_disk_posix_open("", &p.disk, &p.err), OC_E_INVALID);
    memset(dir, 'd', sizeof dir - 1);
    dir[sizeof dir - 1] = '\0';
    assert_int_equal(oc_disk_posix_open(dir, &p.disk, &p.err), OC_E_INVALID);
    has_text(&p.err, "File name too long (pass -disk DIR with a shorter path)");
    assert_int_equal(mkdir(in(&p, "LOCK"), 0700), 0); /* something in the lock's place */
    assert_int_equal(oc_disk_posix_open(p.dir, &p.disk, &p.err), OC_E_PRECONDITION);
    has_text(&p.err, "/LOCK': Is a directory");
    if (geteuid() == 0) {
        print_message("permissions do not bind root: that error is not tested\n");
    } else {
        assert_int_equal(mkdir(in(&p, "ro"), 0500), 0);
        assert_int_equal(oc_disk_posix_open(in(&p, "ro/x"), &p.disk, &p.err), OC_E_PERMISSION);
        has_text(&p.err, "run as its owner or pass -disk DIR");
    }
    assert_null(p.disk);
    place_done(&p);
}

static void test_second_opening_in_one_process(void **state) {
    struct place p;
    struct oc_disk *second = NULL;
    char text[32];

    (void)state;
    place_open(&p);
    (void)snprintf(text, sizeof text, "process %ld ", (long)getpid());
    assert_int_equal(oc_disk_posix_open(p.dir, &second, &p.err), OC_E_PRECONDITION);
    has_text(&p.err, "is in use by");
    has_text(&p.err, text);
    has_text(&p.err, "stop it or pass -disk DIR");
    oc_disk_posix_close(p.disk);
    assert_int_equal(oc_disk_posix_open(p.dir, &p.disk, &p.err), 0);
    place_done(&p);
}

static void test_lock_held_by_another_process_until_it_is_killed(void **state) {
    struct place p;
    int ready[2];
    char byte = 0;
    char text[32];

    (void)state;
    place_init(&p);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        byte = oc_disk_posix_open(p.dir, &p.disk, NULL) == 0 ? 'y' : 'n';
        (void)!write(ready[1], &byte, 1);
        (void)alarm(RIG_DEADLINE_MS / 1000); /* not for ever, should the parent die */
        for (;;) {
            (void)pause();
        }
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    int rc = oc_disk_posix_open(p.dir, &p.disk, &p.err);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(rc, OC_E_PRECONDITION);
    (void)snprintf(text, sizeof text, "process %ld ", (long)child);
    has_text(&p.err, text);
    assert_int_equal(oc_disk_posix_open(p.dir, &p.disk, &p.err), 0); /* the lock went with it */
    (void)close(ready[0]);
    (void)close(ready[1]);
    place_done(&p);
}

static void fill_until_it_fails(struct place *p, struct oc_file *f) {
    static char block[65536];
    struct iovec iov = {block, sizeof block};
    int rc = 0;

    for (uint64_t at = 0; rc == 0 && at < (4 << 20); at += sizeof block) {
        rc = p->disk->pwritev(f, &iov, 1, at, &p->err);
    }
    assert_int_equal(rc, OC_E_EXHAUSTED);
    has_text(&p->err, "No space left on device (free space on the volume");
}

static void test_full_and_read_only_volume(void **state) {
    struct place p;
    struct oc_disk_space space;

    (void)state;
    place_init(&p);
    /* A mount namespace of our own: nobody else sees the volume, and it goes with this process. */
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", p.dir, "tmpfs", 0, "size=1m") != 0) {
        print_message("skipped, mounting is not permitted: %s\n", strerror(errno));
        place_done(&p);
        skip();
    }
    assert_int_equal(oc_disk_posix_open(p.dir, &p.disk, &p.err), 0);
    assert_int_equal(p.disk->space(p.disk->ctx, &space, &p.err), 0);
    assert_int_equal(space.total_bytes, 1 << 20);
    assert_true(space.free_bytes <= 1 << 20 && space.free_bytes > 1 << 19);
    struct oc_file *f = create(&p, "full");
    assert_int_equal(p.disk->reserve(f, 2 << 20, &p.err), OC_E_EXHAUSTED);
    fill_until_it_fails(&p, f);
    p.disk->close(f);
    /* The lock file cannot be written now, but the lock can be taken. */
    oc_disk_posix_close(OC_TAKE(p.disk));
    assert_int_equal(oc_disk_posix_open(p.dir, &p.disk, &p.err), 0);
    oc_disk_posix_close(OC_TAKE(p.disk));
    assert_int_equal(mount("tmpfs", p.dir, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
    assert_int_equal(oc_disk_posix_open(p.dir, &p.disk, &p.err), OC_E_PERMISSION);
    has_text(&p.err, "Read-only file system (mount it writable or pass -disk DIR)");
    assert_int_equal(umount(p.dir), 0);
    place_done(&p);
}

static void test_boot_id_is_the_kernels(void **state) {
    struct place p;
    uint8_t id[16];
    char text[64] = "";
    char mine[64];
    int n = 0;

    (void)state;
    place_open(&p);
    p.disk->boot_id(p.disk->ctx, id);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file == NULL) {
        print_message("skipped, the kernel's boot id cannot be read: %s\n", strerror(errno));
        place_done(&p);
        skip();
    }
    assert_non_null(fgets(text, sizeof text, file));
    (void)fclose(file);
    for (int i = 0; i < 16; i++) {
        n += snprintf(mine + n, sizeof mine - (size_t)n, "%s%02x",
                      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
    }
    text[strcspn(text, "\n")] = '\0';
    assert_string_equal(mine, text);
    place_done(&p);
}

static void test_space(void **state) {
    struct place p;
    struct oc_disk_space space = {0};

    (void)state;
    place_open(&p);
    assert_int_equal(p.disk->space(p.disk->ctx, &space, &p.err), 0);
    assert_true(space.total_bytes > 0);
    assert_true(space.free_bytes <= space.total_bytes);
    place_done(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_and_read_back),
        cmocka_unit_test(test_vector_longer_than_the_kernel_takes),
        cmocka_unit_test(test_cursor_in_a_vector),
        cmocka_unit_test(test_short_write_goes_on_and_fails),
        cmocka_unit_test(test_offsets_out_of_range),
        cmocka_unit_test(test_reserve_keeps_the_size),
        cmocka_unit_test(test_read_without_waiting),
        cmocka_unit_test(test_directories),
        cmocka_unit_test(test_open_flags_and_odd_files),
        cmocka_unit_test(test_paths_stay_inside),
        cmocka_unit_test(test_directory_is_made_with_its_parents),
        cmocka_unit_test(test_directory_that_cannot_be),
        cmocka_unit_test(test_second_opening_in_one_process),
        cmocka_unit_test(test_lock_held_by_another_process_until_it_is_killed),
        cmocka_unit_test(test_boot_id_is_the_kernels),
        cmocka_unit_test(test_space),
        cmocka_unit_test(test_full_and_read_only_volume),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
