/* base/parse.h: the right values are those of Go's strconv and time packages where the text is
 * Go's. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/parse.h"
#include "base/rng.h"

static void test_bool(void **state) {
    bool v = false;

    (void)state;
    assert_int_equal(oc_parse_bool(OC_SPAN_LIT("True"), &v), 0);
    assert_true(v);
    assert_int_equal(oc_parse_bool(OC_SPAN_LIT("f"), &v), 0);
    assert_false(v);
    assert_int_equal(oc_parse_bool(OC_SPAN_LIT("1"), &v), 0);
    assert_true(v);
    assert_int_equal(oc_parse_bool(OC_SPAN_LIT("yes"), &v), OC_E_INVALID);
    assert_int_equal(oc_parse_bool(OC_SPAN_LIT("tRUE"), &v), OC_E_INVALID);
    assert_int_equal(oc_parse_bool(OC_SPAN_LIT(""), &v), OC_E_INVALID);
    assert_true(v);
}

static void test_integers(void **state) {
    static const struct {
        const char *text;
        int result;
        int64_t value;
    } cases[] = {
        {"0", 0, 0},
        {"-0", 0, 0},
        {"007", 0, 7},
        {"+12", 0, 12},
        {"0x1F", 0, 31},
        {"-0x10", 0, -16},
        {"9223372036854775807", 0, INT64_MAX},
        {"-9223372036854775808", 0, INT64_MIN},
        {"9223372036854775808", OC_E_RANGE, 0},
        {"-9223372036854775809", OC_E_RANGE, 0},
        {"99999999999999999999999", OC_E_RANGE, 0},
        {"99999999999999999999999x", OC_E_INVALID, 0},
        {"", OC_E_INVALID, 0},
        {"-", OC_E_INVALID, 0},
        {"0x", OC_E_INVALID, 0},
        {"1 ", OC_E_INVALID, 0},
        {" 1", OC_E_INVALID, 0},
        {"1e3", OC_E_INVALID, 0},
        {"--1", OC_E_INVALID, 0},
    };

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        int64_t v = 4711;

        assert_int_equal(oc_parse_int64(oc_span_str(cases[i].text), &v), cases[i].result);
        assert_int_equal(v, cases[i].result == 0 ? cases[i].value : 4711);
    }
    uint64_t u = 1;
    assert_int_equal(oc_parse_uint64(OC_SPAN_LIT("18446744073709551615"), &u), 0);
    assert_true(u == UINT64_MAX);
    assert_int_equal(oc_parse_uint64(OC_SPAN_LIT("18446744073709551616"), &u), OC_E_RANGE);
    assert_int_equal(oc_parse_uint64(OC_SPAN_LIT("-1"), &u), OC_E_INVALID);
}

static void test_double(void **state) {
    double v = 7;

    (void)state;
    assert_int_equal(oc_parse_double(OC_SPAN_LIT("0.5"), &v), 0);
    assert_true(v == 0.5);
    assert_int_equal(oc_parse_double(OC_SPAN_LIT("-1.25e2"), &v), 0);
    assert_true(v == -125.0);
    assert_int_equal(oc_parse_double(OC_SPAN_LIT("1e999"), &v), OC_E_RANGE);
    assert_int_equal(oc_parse_double(OC_SPAN_LIT("inf"), &v), OC_E_INVALID);
    assert_int_equal(oc_parse_double(OC_SPAN_LIT("nan"), &v), OC_E_INVALID);
    assert_int_equal(oc_parse_double(OC_SPAN_LIT("0x1p3"), &v), OC_E_INVALID);
    assert_int_equal(oc_parse_double(OC_SPAN_LIT("."), &v), OC_E_INVALID);
    assert_int_equal(oc_parse_double(OC_SPAN_LIT("1e"), &v), OC_E_INVALID);
    assert_int_equal(oc_parse_double(OC_SPAN_LIT("1\0"), &v), OC_E_INVALID);
    assert_true(v == -125.0);
}

static void test_duration(void **state) {
    static const struct {
        const char *text;
        int result;
        int64_t ns;
    } cases[] = {
        {"0", 0, 0},
        {"+0", 0, 0},
        {"5s", 0, 5000000000},
        {"1h30m", 0, 5400000000000},
        {"1.5h", 0, 5400000000000},
        {"500ms", 0, 500000000},
        {"-2m3.4s", 0, -123400000000},
        {"1us", 0, 1000},
        {"1\xc2\xb5s", 0, 1000},
        {"1\xce\xbcs", 0, 1000},
        {"39h9m14.425s", 0, 140954425000000},
        {".5s", 0, 500000000},
        {"1.s", 0, 1000000000},
        {"0.3333333333333333333h", 0, 1200000000000 - 1},
        {"9223372036854775807ns", 0, INT64_MAX},
        {"9223372036854775808ns", OC_E_RANGE, 0},
        {"3000000h", OC_E_RANGE, 0},
        {"1", OC_E_INVALID, 0},
        {"1.5", OC_E_INVALID, 0},
        {"", OC_E_INVALID, 0},
        {"s", OC_E_INVALID, 0},
        {".s", OC_E_INVALID, 0},
        {"1d", OC_E_INVALID, 0},
        {"1h 30m", OC_E_INVALID, 0},
        {"1h-30m", OC_E_INVALID, 0},
        {"-", OC_E_INVALID, 0},
    };

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        int64_t ns = 4711;

        assert_int_equal(oc_parse_duration(oc_span_str(cases[i].text), &ns), cases[i].result);
        assert_int_equal(ns, cases[i].result == 0 ? cases[i].ns : 4711);
    }
}

static void test_size(void **state) {
    static const struct {
        const char *text;
        int result;
        uint64_t bytes;
    } cases[] = {
        {"0", 0, 0},
        {"1000", 0, 1000},
        {"12b", 0, 12},
        {"1k", 0, 1024},
        {"1kb", 0, 1024},
        {"64KiB", 0, 65536},
        {"30gb", 0, 30ull << 30},
        {"30GiB", 0, 30ull << 30},
        {"1.5m", 0, 3 << 19},
        {"2T", 0, 2ull << 40},
        {"1p", 0, 1ull << 50},
        {"16383p", 0, 16383ull << 50},
        {"16384p", OC_E_RANGE, 0},
        {"18446744073709551616", OC_E_RANGE, 0},
        {"1.5", OC_E_INVALID, 0},
        {"1.5b", OC_E_INVALID, 0},
        {"-1", OC_E_INVALID, 0},
        {"", OC_E_INVALID, 0},
        {"k", OC_E_INVALID, 0},
        {"1ki", OC_E_INVALID, 0},
        {"1bb", OC_E_INVALID, 0},
        {"1 k", OC_E_INVALID, 0},
        {"1kbb", OC_E_INVALID, 0},
        {"1x", OC_E_INVALID, 0},
    };

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        uint64_t bytes = 4711;

        assert_int_equal(oc_parse_size(oc_span_str(cases[i].text), &bytes), cases[i].result);
        assert_true(bytes == (cases[i].result == 0 ? cases[i].bytes : 4711));
    }
}

static void test_format(void **state) {
    static const struct {
        int64_t ns;
        const char *text;
    } durations[] = {
        /* As Go's Duration.String, except that micro is written "us". */
        {0, "0s"},
        {1, "1ns"},
        {1100, "1.1us"},
        {2200000, "2.2ms"},
        {3300000000, "3.3s"},
        {245000000000, "4m5s"},
        {245001000000, "4m5.001s"},
        {18367001000000, "5h6m7.001s"},
        {3600000000000, "1h0m0s"},
        {-1500000000, "-1.5s"},
        {INT64_MAX, "2562047h47m16.854775807s"},
        {INT64_MIN, "-2562047h47m16.854775808s"},
    };
    char text[OC_PARSE_TEXT_MAX];

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(durations); i++) {
        assert_int_equal(oc_format_duration(text, durations[i].ns), strlen(durations[i].text));
        assert_string_equal(text, durations[i].text);
    }
    assert_int_equal(oc_format_size(text, 30ull << 30), 5);
    assert_string_equal(text, "30GiB");
    assert_int_equal(oc_format_size(text, 1000), 4);
    assert_string_equal(text, "1000");
    assert_int_equal(oc_format_size(text, 0), 1);
    assert_string_equal(text, "0");
}

static void test_format_round_trip(void **state) {
    struct oc_rng rng;
    char text[OC_PARSE_TEXT_MAX];

    (void)state;
    oc_rng_init(&rng, 7);
    for (int i = 0; i < 20000; i++) {
        uint64_t v = oc_rng_next(&rng) >> oc_rng_below(&rng, 64);
        int64_t ns = (int64_t)(v >> 1);
        int64_t back_ns = -1;
        uint64_t back = 0;
        size_t n = oc_format_duration(text, ns);

        assert_int_equal(oc_parse_duration(oc_span(text, n), &back_ns), 0);
        assert_int_equal(back_ns, ns);
        n = oc_format_size(text, v);
        assert_int_equal(oc_parse_size(oc_span(text, n), &back), 0);
        assert_true(back == v);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bool),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_double),
        cmocka_unit_test(test_duration),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_format_round_trip),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
