/* CPU quotas from cgroup files as kernels write them, and figures of the running process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "object/cpus.h"
#include "object/process.h"

static char root[64];

static void path_of(char *dst, size_t cap, const char *name) {
    int n = snprintf(dst, cap, "%s/%s", root, name);
    assert_true(n > 0 && (size_t)n < cap);
}

static void put_dir(const char *name) {
    char path[256];
    path_of(path, sizeof path, name);
    assert_int_equal(mkdir(path, 0755), 0);
}

static void put_file(const char *name, const char *text) {
    char path[256];
    path_of(path, sizeof path, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static unsigned quota(void) {
    char membership[256];
    path_of(membership, sizeof membership, "membership");
    return oc_cpus_quota(membership, root);
}

static int setup(void **state) {
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/oc-test-cpus-XXXXXX");
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int teardown(void **state) {
    static const char *const names[] = {"cpu/pod/cpu.cfs_quota_us",
                                        "cpu/pod/cpu.cfs_period_us",
                                        "cpu/cpu.cfs_quota_us",
                                        "cpu/pod",
                                        "cpu",
                                        "a/b/cpu.max",
                                        "a/cpu.max",
                                        "cpu.max",
                                        "a/b",
                                        "a",
                                        "membership"};
    char path[256];

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(names); i++) {
        path_of(path, sizeof path, names[i]);
        (void)remove(path); /* not every test makes all of them */
    }
    return rmdir(root);
}

static void test_version_2(void **state) {
    (void)state;
    put_dir("a");
    put_dir("a/b");
    put_file("membership", "0::/a/b\n");
    assert_int_equal(quota(), 0); /* no file, no quota */
    put_file("a/b/cpu.max", "max 100000\n");
    assert_int_equal(quota(), 0);
    put_file("a/b/cpu.max", "150000 100000\n");
    assert_int_equal(quota(), 2); /* rounded up */
    put_file("a/b/cpu.max", "50000 100000\n");
    assert_int_equal(quota(), 1);
    put_file("a/b/cpu.max", "800000 100000\n");
    put_file("a/cpu.max", "300000 100000\n");
    assert_int_equal(quota(), 3); /* a level above limits too */
    put_file("cpu.max", "200000 100000\n");
    assert_int_equal(quota(), 2); /* in a container the own group is the root */
    put_file("cpu.max", "nonsense");
    assert_int_equal(quota(), 3);
    put_file("cpu.max", "100000 0\n");
    assert_int_equal(quota(), 3); /* no division by it */
}

static void test_version_1(void **state) {
    (void)state;
    put_dir("cpu");
    put_dir("cpu/pod");
    put_file("membership", "5:memory:/pod\n4:cpu,cpuacct:/pod\n3:cpuset:/elsewhere\n");
    assert_int_equal(quota(), 0);
    put_file("cpu/pod/cpu.cfs_quota_us", "-1\n");
    put_file("cpu/pod/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(), 0);
    put_file("cpu/pod/cpu.cfs_quota_us", "250000\n");
    assert_int_equal(quota(), 3);
}

static void test_usable(void **state) {
    (void)state;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    assert_true(oc_cpus_usable() >= 1);
    assert_true(oc_cpus_usable() <= (unsigned)online);
}

static void test_process(void **state) {
    struct oc_process_stats before, after;

    (void)state;
    oc_process_stats(&before);
    assert_true(before.resident_bytes > 100000);
    assert_true(before.virtual_bytes >= before.resident_bytes);
    assert_true(before.open_fds >= 1);
    assert_true(before.start_time_cs > UINT64_C(150000000000)); /* after 2017 */
    int fd = dup(1);
    assert_true(fd >= 0);
    size_t len = (size_t)32 << 20;
    unsigned char *p = malloc(len);
    assert_non_null(p);
    memset(p, 1, len);
    oc_process_stats(&after);
    assert_int_equal(after.open_fds, before.open_fds + 1);
    assert_true(after.resident_bytes >= before.resident_bytes + len / 2);
    assert_true(after.cpu_ns >= before.cpu_ns);
    assert_int_equal(after.start_time_cs, before.start_time_cs);
    assert_int_equal(p[len / 2], 1);
    free(p);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_version_2, setup, teardown),
        cmocka_unit_test_setup_teardown(test_version_1, setup, teardown),
        cmocka_unit_test(test_usable),
        cmocka_unit_test(test_process),
    };
    return cmocka_run_group_tests_name("object machine", tests, NULL, NULL);
}
