/* The arithmetic of requests: the tables of what a range and a time to live mean. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/check.h"
#include "object/rules.h"

static void test_range(void **state) {
    static const struct {
        int64_t start, end;
        uint64_t len, begin, behind;
    } cases[] = {
        {0, 0, 10, 0, 10},   /* everything */
        {-1, -1, 10, 0, 10}, /* … said otherwise */
        {INT64_MIN, INT64_MIN, 10, 0, 10},
        {3, 0, 10, 3, 10}, /* to the end */
        {3, -7, 10, 3, 10},
        {3, 5, 10, 3, 6},  /* the end is inclusive */
        {9, 9, 10, 9, 10}, /* the last byte */
        {0, 9, 10, 0, 10},
        {0, 10, 10, 0, 10}, /* clamped */
        {0, 1, 10, 0, 2},
        {-5, 2, 10, 0, 3},   /* a negative start is 0 */
        {10, 0, 10, 10, 10}, /* behind the value: empty */
        {11, 20, 10, 10, 10},
        {5, 4, 10, 5, 5}, /* the end before the start: empty */
        {9, 1, 10, 2, 2},
        {0, INT64_MAX, 10, 0, 10}, /* no overflow */
        {INT64_MAX, INT64_MAX, 10, 10, 10},
        {4, INT64_MAX, 10, 4, 10},
        {0, 0, 0, 0, 0}, /* an empty value has only empty ranges */
        {0, 5, 0, 0, 0},
        {3, 5, 0, 0, 0},
        {INT64_MAX, 0, UINT64_C(1) << 48, UINT64_C(1) << 48, UINT64_C(1) << 48},
        {(INT64_C(1) << 40), (INT64_C(1) << 40) + 99, UINT64_C(1) << 48, UINT64_C(1) << 40,
         (UINT64_C(1) << 40) + 100},
    };

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        uint64_t begin = 77, behind = 77;

        oc_svc_range(cases[i].start, cases[i].end, cases[i].len, &begin, &behind);
        /* Where an empty range lies does not matter, but it must be inside the value. */
        bool empty = cases[i].begin == cases[i].behind;
        if (empty ? begin != behind || behind > cases[i].len
                  : begin != cases[i].begin || behind != cases[i].behind) {
            fail_msg("case %zu: got [%llu, %llu)", i, (unsigned long long)begin,
                     (unsigned long long)behind);
        }
    }
}

static void test_expiry(void **state) {
    static const struct {
        uint64_t now;
        int64_t ttl;
        uint64_t fallback;
        uint32_t at;
    } cases[] = {
        {1700000000, 60, 0, 1700000060},
        {1700000000, 0, 0, 0}, /* no default: never */
        {1700000000, -1, 0, 0},
        {1700000000, INT64_MIN, 30, 1700000030}, /* not positive: the default */
        {1700000000, 0, 30, 1700000030},
        {1700000000, 5, 30, 1700000005},        /* the own one wins */
        {1700000000, INT64_MAX, 0, UINT32_MAX}, /* does not fit: the last second there is */
        {1700000000, 1, UINT64_MAX, 1700000001},
        {1700000000, 0, UINT64_MAX, UINT32_MAX},
        {UINT64_MAX, 10, 0, UINT32_MAX},
        {UINT32_MAX - 10, 10, 0, UINT32_MAX},
        {UINT32_MAX - 10, 9, 0, UINT32_MAX - 1},
        {0, 1, 0, 1},
    };

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        uint32_t at = oc_svc_expiry_s(cases[i].now, cases[i].ttl, cases[i].fallback);

        if (at != cases[i].at) {
            fail_msg("case %zu: got %u", i, at);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range),
        cmocka_unit_test(test_expiry),
    };
    return cmocka_run_group_tests_name("object rules", tests, NULL, NULL);
}
