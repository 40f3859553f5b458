/* The small headers of base: span, list, err, hash, rng, check, event. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/event.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/rng.h"
#include "base/span.h"

static void test_span(void **state) {
    static const char *const ascending[] = {"", "a", "a!", "aa", "b", "\x7f", "\x80", "\xff"};

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(ascending); i++) {
        for (size_t j = 0; j < OC_ARRAY_LEN(ascending); j++) {
            struct oc_span a = oc_span_str(ascending[i]);
            struct oc_span b = oc_span_str(ascending[j]);
            int c = oc_span_compare(a, b);

            assert_true(i == j ? c == 0 : i < j ? c < 0 : c > 0);
            assert_int_equal(oc_span_equal(a, b), i == j);
        }
    }
    assert_true(oc_span_starts_with(OC_SPAN_LIT("abc"), OC_SPAN_LIT("ab")));
    assert_true(oc_span_starts_with(OC_SPAN_LIT("abc"), OC_SPAN_EMPTY));
    assert_false(oc_span_starts_with(OC_SPAN_LIT("a"), OC_SPAN_LIT("ab")));
    assert_int_equal(oc_load32("\x01\x02\x03\x04"), 0x04030201);
    uint8_t b[9] = {0};
    oc_store64(b + 1, 0x0807060504030201ull);
    assert_memory_equal(b, "\0\1\2\3\4\5\6\7\10", 9);
}

struct item {
    int value;
    struct oc_list link;
};

static void test_list(void **state) {
    struct oc_list head;
    struct item items[4];
    int order = 0;

    (void)state;
    oc_list_init(&head);
    assert_true(oc_list_empty(&head));
    assert_null(oc_list_pop_front(&head));
    for (int i = 0; i < 4; i++) {
        items[i].value = i;
    }
    oc_list_push_back(&head, &items[1].link);
    oc_list_push_back(&head, &items[3].link);
    oc_list_push_front(&head, &items[0].link);
    oc_list_insert_before(&items[3].link, &items[2].link);
    oc_list_each (it, &head) {
        assert_int_equal(OC_CONTAINER(it, struct item, link)->value, order++);
    }
    assert_int_equal(order, 4);
    oc_list_each_safe (it, next, &head) {
        if (OC_CONTAINER(it, struct item, link)->value % 2 == 0) {
            oc_list_remove(it);
            assert_true(oc_list_empty(it));
        }
    }
    assert_ptr_equal(oc_list_pop_front(&head), &items[1].link);
    assert_ptr_equal(oc_list_pop_front(&head), &items[3].link);
    assert_true(oc_list_empty(&head));
}

static void test_err(void **state) {
    struct oc_error err = {.code = 4711};

    (void)state;
    assert_int_equal(oc_error_set(NULL, OC_E_RANGE, "nobody listens"), OC_E_RANGE);
    assert_int_equal(oc_error_set(&err, OC_E_RANGE, "%s is %d", "x", 5), OC_E_RANGE);
    assert_int_equal(err.code, OC_E_RANGE);
    assert_string_equal(err.msg, "x is 5");
    assert_int_equal(oc_error_errno(&err, ENOSPC, "cannot write '%s'", "/d"), OC_E_EXHAUSTED);
    assert_string_equal(err.msg, "cannot write '/d': No space left on device");
    assert_int_equal(oc_error_errno(NULL, ENOENT, "x"), OC_E_NOT_FOUND);
    char longer[1000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(oc_error_errno(&err, EACCES, "%s", longer), OC_E_PERMISSION);
    assert_non_null(strstr(err.msg, ": Permission denied"));
    assert_int_equal(oc_error_set(&err, OC_E_INVALID, "%s", longer), OC_E_INVALID);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    /* Numbers and names of the gRPC status codes. */
    assert_string_equal(oc_err_name(OC_OK), "OK");
    assert_string_equal(oc_err_name(-5), "NOT_FOUND");
    assert_string_equal(oc_err_name(OC_E_UNAUTHENTICATED), "UNAUTHENTICATED");
    assert_int_equal(OC_E_UNAUTHENTICATED, -16);
    assert_int_equal(OC_E_UNAVAILABLE, -14);
    assert_string_equal(oc_err_name(-17), "UNKNOWN");
    assert_string_equal(oc_err_name(INT32_MIN), "UNKNOWN");
    assert_int_equal(oc_err_from_errno(0), 0);
    assert_int_equal(oc_err_from_errno(EIO), OC_E_UNAVAILABLE);
    assert_int_equal(oc_err_from_errno(EXDEV), OC_E_INTERNAL);
}

static void test_fnv(void **state) {
    (void)state;
    /* http://www.isthe.com/chongo/tech/comp/fnv/, FNV-1a, 32 bits. */
    assert_int_equal(oc_fnv1a32(OC_SPAN_EMPTY), 0x811c9dc5);
    assert_int_equal(oc_fnv1a32(OC_SPAN_LIT("a")), 0xe40c292c);
    assert_int_equal(oc_fnv1a32(OC_SPAN_LIT("foobar")), 0xbf9cf968);
}

static void test_crc32c(void **state) {
    static const uint8_t zeros[32];
    uint8_t data[2000];
    uint8_t copy[sizeof data];
    struct oc_rng rng;

    (void)state;
    /* The check value of the catalogue of CRCs, and RFC 3720 B.4. */
    assert_int_equal(oc_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(oc_crc32c(0, zeros, 32), 0x8a9136aa);
    memset(data, 0xff, 32);
    assert_int_equal(oc_crc32c(0, data, 32), 0x62a8ab43);
    for (uint8_t i = 0; i < 32; i++) {
        data[i] = i;
    }
    assert_int_equal(oc_crc32c(0, data, 32), 0x46dd794e);
    assert_int_equal(oc_crc32c(77, data, 0), 77);
    /* All implementations and all splits agree: short and long inputs take different ones. */
    oc_rng_init(&rng, 1);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)oc_rng_next(&rng);
    }
    for (int round = 0; round < 200; round++) {
        size_t from = (size_t)oc_rng_below(&rng, 16);
        size_t len = (size_t)oc_rng_below(&rng, sizeof data - from);
        size_t split = (size_t)oc_rng_below(&rng, len + 1);
        uint32_t whole = oc_crc32c(0, data + from, len);
        uint32_t bytewise = 0;

        for (size_t i = 0; i < len; i++) {
            bytewise = oc_crc32c(bytewise, data + from + i, 1);
        }
        assert_int_equal(whole, bytewise);
        assert_int_equal(
            oc_crc32c(oc_crc32c(0, data + from, split), data + from + split, len - split), whole);
        memset(copy, 0, sizeof copy);
        assert_int_equal(oc_crc32c_copy(0, copy, data + from, len), whole);
        assert_memory_equal(copy, data + from, len);
    }
    assert_non_null(oc_crc32c_name());
}

static void test_key_hash(void **state) {
    (void)state;
    /* XXH3_64bits of the empty input, from xxHash's own sanity table. */
    assert_true(oc_hash_key(OC_SPAN_EMPTY) == 0x2d06800538d394c2ull);
    assert_true(oc_hash_key(OC_SPAN_LIT("a")) == oc_hash_seeded(OC_SPAN_LIT("a"), 0));
    assert_true(oc_hash_key(OC_SPAN_LIT("a")) != oc_hash_seeded(OC_SPAN_LIT("a"), 1));
    assert_true(oc_hash_key(OC_SPAN_LIT("a")) != oc_hash_key(OC_SPAN_LIT("b")));
}

static void test_rng(void **state) {
    struct oc_rng a;
    struct oc_rng b;
    unsigned buckets[10] = {0};
    double sum = 0;

    (void)state;
    /* splitmix64 from seed 0 starts with this value (its authors' test vector), so the state is
     * known. */
    oc_rng_init(&a, 0);
    assert_true(a.s[0] == 0xe220a8397b1dcdafull);
    oc_rng_init(&a, 42);
    oc_rng_init(&b, 42);
    for (int i = 0; i < 1000; i++) {
        assert_true(oc_rng_next(&a) == oc_rng_next(&b));
    }
    for (int i = 0; i < 100000; i++) {
        uint64_t v = oc_rng_below(&a, 10);
        double u = oc_rng_unit(&a);

        assert_true(v < 10 && u >= 0 && u < 1);
        buckets[v]++;
        sum += u;
    }
    for (int i = 0; i < 10; i++) {
        assert_in_range(buckets[i], 9500, 10500); /* five standard deviations are 475 */
    }
    assert_true(sum > 49500 && sum < 50500);
    assert_int_equal(oc_rng_below(&a, 1), 0);
}

static int count_twice(bool ok) {
    return OC_COUNT(ok) ? 1 : 0;
}

static void test_count(void **state) {
    const struct oc_count_site *site;

    (void)state;
    assert_int_equal(count_twice(true), 1);
    for (site = oc_count_sites(); site != NULL; site = site->next) {
        assert_string_not_equal(site->expr, "ok");
    }
    assert_int_equal(count_twice(false), 0);
    assert_int_equal(count_twice(false), 0);
    site = oc_count_sites();
    assert_string_equal(site->expr, "ok");
    assert_int_equal(site->hits, 2);
}

static void test_take_and_cleanup(void **state) {
    OC_CLEANUP(oc_free_ptr) char *s = malloc(3);
    char *other = OC_TAKE(s);
    size_t v;

    (void)state;
    assert_null(s);
    assert_non_null(other);
    s = other; /* the sanitizer sees a leak if the attribute did nothing */
    assert_true(oc_add_ok((size_t)1, (size_t)2, &v) && v == 3);
    assert_false(oc_add_ok(SIZE_MAX, (size_t)1, &v));
    assert_false(oc_mul_ok(SIZE_MAX, (size_t)2, &v));
}

static void *record_events(void *arg) {
    for (uint64_t i = 0; i < 1000; i++) {
        oc_event(OC_EV_UPLOAD, i, *(uint64_t *)arg);
    }
    return NULL;
}

/* A failing check ends the process with SIGABRT and shows where, and what happened before. */
static void test_failed_check_dumps(void **state) {
    int fds[2];
    char text[65536];
    size_t len = 0;
    ssize_t n;
    int status = 0;
    uint64_t arg = 77;
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, record_events, &arg), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)dup2(fds[1], STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        oc_event(OC_EV_LOG_SEAL, 5, 6);
        OC_CHECK(arg == 78);
        _exit(0);
    }
    (void)close(fds[1]);
    while ((n = read(fds[0], text + len, sizeof text - 1 - len)) > 0) {
        len += (size_t)n;
    }
    text[len] = 0;
    (void)close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "check failed: arg == 78 at "));
    assert_non_null(strstr(text, "test_base.c"));
    assert_non_null(strstr(text, "LOG_SEAL segment=5 bytes=6\n"));
    assert_non_null(strstr(text, "UPLOAD file=999 bytes=77\n"));
    assert_null(strstr(text, "UPLOAD file=743 bytes=77\n")); /* only the last 256 of a thread */
    assert_non_null(strstr(text, "UPLOAD file=744 bytes=77\n"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_span),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_err),
        cmocka_unit_test(test_fnv),
        cmocka_unit_test(test_crc32c),
        cmocka_unit_test(test_key_hash),
        cmocka_unit_test(test_rng),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_take_and_cleanup),
        cmocka_unit_test(test_failed_check_dumps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
