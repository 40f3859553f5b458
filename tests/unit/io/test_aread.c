/* Reads that wait: the same tests by io_uring and by movers, and the way from one to the other. */
#include <errno.h>
#include <ftw.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/aread.h"
#include "rig.h"

#define FILE_BYTES ((1 << 20) + 123)
#define DEPTH      32

struct bench {
    char dir[64];
    struct oc_disk *disk;
    struct oc_file *file;
    uint8_t *bytes;
    struct rig rig;
    struct oc_movers *movers;
    struct oc_aread *reader;
    unsigned done;
    unsigned stop_at;
};

struct one_read {
    struct oc_aread_req req;
    struct bench *bench;
    unsigned left; /* how often it is to be submitted again */
};

/* No assertions in here: the forked children of two tests use it too. */
static bool bench_init(struct bench *b, enum oc_aread_mode mode) {
    struct oc_aread_config cfg = {.depth = DEPTH, .mode = mode};
    struct iovec iov;

    memset(b, 0, sizeof *b);
    (void)snprintf(b->dir, sizeof b->dir, "/tmp/oc-test-aread-XXXXXX");
    b->bytes = malloc(FILE_BYTES);
    if (b->bytes == NULL || mkdtemp(b->dir) == NULL ||
        oc_disk_posix_open(b->dir, &b->disk, NULL) != 0 ||
        b->disk->open(b->disk->ctx, "data", OC_OPEN_CREATE, &b->file, NULL) != 0 ||
        oc_loop_new(&b->rig.loop, NULL) != 0 || oc_movers_new(&b->movers, 2, 100, NULL) != 0) {
        return false;
    }
    for (uint32_t i = 0, seed = 5; i < FILE_BYTES; i++) {
        seed = seed * 1664525u + 1013904223u;
        b->bytes[i] = (uint8_t)(seed >> 24);
    }
    iov = (struct iovec){b->bytes, FILE_BYTES};
    if (b->disk->pwritev(b->file, &iov, 1, 0, NULL) != 0 || b->disk->sync(b->file, NULL) != 0) {
        return false;
    }
    b->disk->drop_cache(b->file, 0, FILE_BYTES); /* so that reads do wait, where /tmp is a disk */
    cfg.disk = b->disk;
    cfg.movers = b->movers;
    return oc_aread_new(b->rig.loop, &cfg, &b->reader, NULL) == 0;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void bench_done(struct bench *b) {
    oc_aread_free(b->reader);
    oc_movers_free(b->movers);
    oc_loop_free(b->rig.loop);
    b->disk->close(b->file);
    oc_disk_posix_close(b->disk);
    (void)nftw(b->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS); /* the system cleans /tmp */
    free(b->bytes);
}

static void read_done(struct oc_aread_req *req) {
    struct one_read *r = OC_CONTAINER(req, struct one_read, req);
    struct bench *b = r->bench;

    assert_ptr_equal(oc_loop_current(), b->rig.loop);
    if (++b->done == b->stop_at) {
        oc_loop_stop(b->rig.loop);
    } else if (r->left > 0) {
        r->left--;
        assert_int_equal(memcmp(req->dst, b->bytes + req->offset, req->len_bytes), 0);
        req->offset = (req->offset + 70001) % (FILE_BYTES - req->len_bytes);
        assert_int_equal(oc_aread_submit(b->reader, req), 0);
    }
}

static struct one_read *read_new(struct bench *b, uint64_t offset, size_t len) {
    struct one_read *r = calloc(1, sizeof *r);

    r->bench = b;
    r->req = (struct oc_aread_req){.file = b->file,
                                   .dst = malloc(len + 1),
                                   .len_bytes = len,
                                   .offset = offset,
                                   .done = read_done};
    return r;
}

static void read_free(struct one_read *r) {
    free(r->req.dst);
    free(r);
}

static void bench_run(struct bench *b) {
    rig_guard(&b->rig);
    rig_run(&b->rig);
}

/* The mode a test is run with, from cmocka's state. */
static enum oc_aread_mode mode_of(void **state) {
    return *(const enum oc_aread_mode *)*state;
}

static void bench_start(struct bench *b, void **state) {
    assert_true(bench_init(b, mode_of(state)));
    if (mode_of(state) == OC_AREAD_MOVERS) {
        assert_string_equal(oc_aread_name(b->reader), "movers");
    } else if (strcmp(oc_aread_name(b->reader), "io_uring") != 0) {
        print_message("io_uring does not work here: movers are tested twice\n");
    }
}

static void test_reads_of_odd_sizes(void **state) {
    static const struct {
        uint64_t offset;
        size_t len;
        int64_t got;
    } cases[] = {
        {0, 1, 1},
        {1, 4095, 4095},
        {4097, 65536, 65536},
        {0, FILE_BYTES, FILE_BYTES},
        {0, FILE_BYTES + 5000, FILE_BYTES}, /* short at the end of the file */
        {FILE_BYTES - 1, 10, 1},
        {FILE_BYTES, 10, 0},
        {FILE_BYTES + 99999, 10, 0},
        {7, 0, 0},
    };
    enum { N = sizeof cases / sizeof cases[0] };
    struct bench b;
    struct one_read *reads[N];

    bench_start(&b, state);
    b.stop_at = N;
    for (int i = 0; i < N; i++) {
        reads[i] = read_new(&b, cases[i].offset, cases[i].len);
        assert_int_equal(oc_aread_submit(b.reader, &reads[i]->req), 0);
    }
    assert_int_equal(b.done, 0); /* never from inside */
    bench_run(&b);
    for (int i = 0; i < N; i++) {
        assert_int_equal(reads[i]->req.result, cases[i].got);
        if (cases[i].got > 0) {
            assert_memory_equal(reads[i]->req.dst, b.bytes + cases[i].offset, (size_t)cases[i].got);
        }
        read_free(reads[i]);
    }
    bench_done(&b);
}

static void test_depth_is_a_bound(void **state) {
    struct bench b;
    struct one_read *reads[DEPTH + 1];

    bench_start(&b, state);
    b.stop_at = DEPTH;
    for (int i = 0; i <= DEPTH; i++) {
        reads[i] = read_new(&b, (uint64_t)i * 1000, 1000);
        assert_int_equal(oc_aread_submit(b.reader, &reads[i]->req), i < DEPTH ? 0 : OC_E_EXHAUSTED);
    }
    bench_run(&b);
    for (int i = 0; i <= DEPTH; i++) {
        read_free(reads[i]);
    }
    bench_done(&b);
}

/* A few reads follow one another many times: the loop sleeps in between and each must wake it. */
static void test_reads_follow_one_another(void **state) {
    enum { N = 3, TIMES = 700 };
    struct bench b;
    struct one_read *reads[N];

    bench_start(&b, state);
    b.stop_at = N * TIMES;
    for (int i = 0; i < N; i++) {
        reads[i] = read_new(&b, (uint64_t)i * 99, 3000);
        reads[i]->left = TIMES - 1;
        assert_int_equal(oc_aread_submit(b.reader, &reads[i]->req), 0);
    }
    bench_run(&b);
    assert_int_equal(b.done, N * TIMES);
    for (int i = 0; i < N; i++) {
        read_free(reads[i]);
    }
    bench_done(&b);
}

static void test_read_that_fails(void **state) {
    struct bench b;
    /* Memory that nobody may write. */
    void *wall = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    bench_start(&b, state);
    assert_ptr_not_equal(wall, MAP_FAILED);
    b.stop_at = 1;
    struct one_read *r = read_new(&b, 0, 4096);
    void *dst = r->req.dst;
    r->req.dst = wall;
    assert_int_equal(oc_aread_submit(b.reader, &r->req), 0);
    bench_run(&b);
    assert_int_equal(r->req.result, OC_E_INTERNAL); /* EFAULT */
    assert_non_null(strstr(r->req.err.msg, "cannot read '/tmp/oc-test-aread-"));
    assert_non_null(strstr(r->req.err.msg, "/data': Bad address"));
    r->req.dst = dst;
    read_free(r);
    (void)munmap(wall, 4096);
    bench_done(&b);
}

static void test_ranges_that_no_file_has(void **state) {
    struct bench b;

    bench_start(&b, state);
    struct one_read *r = read_new(&b, UINT64_MAX, 1);
    assert_int_equal(oc_aread_submit(b.reader, &r->req), OC_E_INVALID);
    r->req.offset = INT64_MAX;
    assert_int_equal(oc_aread_submit(b.reader, &r->req), OC_E_INVALID);
    read_free(r);
    bench_done(&b);
}

static void test_stopping_waits_for_reads(void **state) {
    struct bench b;
    struct one_read *reads[DEPTH];

    bench_start(&b, state);
    for (int i = 0; i < DEPTH; i++) {
        reads[i] = read_new(&b, (uint64_t)i * 30000, 30000);
        assert_int_equal(oc_aread_submit(b.reader, &reads[i]->req), 0);
    }
    oc_loop_stop(b.rig.loop);
    bench_run(&b);
    assert_int_equal(b.done, DEPTH);
    struct oc_aread_req late = reads[0]->req;
    assert_int_equal(oc_aread_submit(b.reader, &late), OC_E_CANCELLED);
    for (int i = 0; i < DEPTH; i++) {
        assert_int_equal(reads[i]->req.result, 30000);
        read_free(reads[i]);
    }
    bench_done(&b);
}

static void test_bad_depths_are_refused(void **state) {
    struct oc_aread_config cfg = {.depth = 0};
    struct oc_aread *a = NULL;
    struct rig rig;

    (void)state;
    rig_init(&rig);
    assert_int_equal(oc_aread_new(rig.loop, &cfg, &a, NULL), OC_E_INVALID);
    cfg.depth = 1u << 20;
    assert_int_equal(oc_aread_new(rig.loop, &cfg, &a, NULL), OC_E_INVALID);
    assert_null(a);
    rig_done(&rig);
}

/* ---- a kernel that forbids: in a child of its own, since the ban cannot be lifted ---- */

static bool forbid(long call) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof code[0], code};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

enum child_result { CHILD_OK = 0, CHILD_NO_SECCOMP = 77 };

static void child_read_done(struct oc_aread_req *req) {
    struct one_read *r = OC_CONTAINER(req, struct one_read, req);

    if (++r->bench->done == r->bench->stop_at) {
        oc_loop_stop(r->bench->rig.loop);
    }
}

/* Forbids `call` before or after the reader is made, and reads. */
static int child(long call, bool before) {
    struct bench b;
    struct one_read *reads[4];

    (void)alarm(RIG_DEADLINE_MS / 1000);
    if (before && !forbid(call)) {
        return CHILD_NO_SECCOMP;
    }
    if (!bench_init(&b, OC_AREAD_AUTO)) {
        return 1;
    }
    bool uring = strcmp(oc_aread_name(b.reader), "io_uring") == 0;
    if (!before && (!uring || !forbid(call))) {
        return CHILD_NO_SECCOMP; /* or no io_uring to be broken */
    }
    if (before && uring) {
        return 2;
    }
    b.stop_at = 4;
    for (int i = 0; i < 4; i++) {
        reads[i] = read_new(&b, (uint64_t)i * 1000, 50000);
        reads[i]->req.done = child_read_done;
        if (oc_aread_submit(b.reader, &reads[i]->req) != 0) {
            return 3;
        }
    }
    oc_loop_run(b.rig.loop);
    for (int i = 0; i < 4; i++) {
        if (reads[i]->req.result != 50000 ||
            memcmp(reads[i]->req.dst, b.bytes + i * 1000, 50000) != 0) {
            return 5;
        }
        read_free(reads[i]);
    }
    if (strcmp(oc_aread_name(b.reader), "movers") != 0) {
        return 4;
    }
    bench_done(&b);
    return CHILD_OK;
}

static void in_child(long call, bool before) {
    int status = 0;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        _exit(child(call, before));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CHILD_NO_SECCOMP) {
        print_message("skipped: no io_uring here, or no seccomp to forbid it with\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), CHILD_OK);
}

static void test_setting_up_is_forbidden(void **state) {
    (void)state;
    in_child(SYS_io_uring_setup, true);
}

static void test_using_is_forbidden(void **state) {
    (void)state;
    in_child(SYS_io_uring_enter, true);
}

static void test_forbidden_in_the_middle(void **state) {
    (void)state;
    in_child(SYS_io_uring_enter, false);
}

int main(void) {
    static enum oc_aread_mode automatic = OC_AREAD_AUTO;
    static enum oc_aread_mode movers = OC_AREAD_MOVERS;
    const struct CMUnitTest tests[] = {
#define both_ways(test)                                                                            \
    cmocka_unit_test_prestate(test, &automatic), cmocka_unit_test_prestate(test, &movers)
        both_ways(test_reads_of_odd_sizes),
        both_ways(test_depth_is_a_bound),
        both_ways(test_reads_follow_one_another),
        both_ways(test_read_that_fails),
        both_ways(test_ranges_that_no_file_has),
        both_ways(test_stopping_waits_for_reads),
#undef both_ways
        cmocka_unit_test(test_bad_depths_are_refused),
        cmocka_unit_test(test_setting_up_is_forbidden),
        cmocka_unit_test(test_using_is_forbidden),
        cmocka_unit_test(test_forbidden_in_the_middle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
