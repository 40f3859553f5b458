/* core/codec: grpc_frame.h, percent.h, base64.h. Base64 vectors: RFC 4648 section 10. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "core/codec/base64.h"
#include "core/codec/grpc_frame.h"
#include "core/codec/percent.h"

static void test_base64(void **state) {
    static const char *const vectors[][2] = {
        {"", ""},
        {"f", "Zg=="},
        {"fo", "Zm8="},
        {"foo", "Zm9v"},
        {"foob", "Zm9vYg=="},
        {"fooba", "Zm9vYmE="},
        {"foobar", "Zm9vYmFy"},
        {"\xfb\xff\xbf", "+/+/"},
    };
    static const char *const also_good[][2] = {
        {"f", "Zg"}, {"fo", "Zm8"}, {"\xfb\xff\xbf", "-_-_"}, {"\xfb", "-w"}, {"\xfb", "-w=="}};
    static const char *const bad[] = {
        "Z",    "Zg=",  "Zg===", "====",   "=",     "Zm9v=", "+-+-",    "_/AA",
        "Zh==", "Zm9=", "Zm 9v", "Zm9v\n", "Zm9vZ", "Z===",  "Zg==Zg=="};
    uint8_t dst[64];
    size_t len = 0;

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(vectors); i++) {
        size_t n = oc_base64_encode(dst, oc_span_str(vectors[i][0]));

        assert_true(oc_span_equal(oc_span(dst, n), oc_span_str(vectors[i][1])));
        assert_int_equal(oc_base64_decode(dst, oc_span_str(vectors[i][1]), &len), 0);
        assert_true(oc_span_equal(oc_span(dst, len), oc_span_str(vectors[i][0])));
    }
    for (size_t i = 0; i < OC_ARRAY_LEN(also_good); i++) {
        assert_int_equal(oc_base64_decode(dst, oc_span_str(also_good[i][1]), &len), 0);
        assert_true(oc_span_equal(oc_span(dst, len), oc_span_str(also_good[i][0])));
    }
    len = 4711;
    for (size_t i = 0; i < OC_ARRAY_LEN(bad); i++) {
        assert_int_equal(oc_base64_decode(dst, oc_span_str(bad[i]), &len), OC_E_INVALID);
        assert_int_equal(len, 4711);
    }
    /* In place. */
    memcpy(dst, "Zm9vYmFy", 8);
    assert_int_equal(oc_base64_decode(dst, oc_span(dst, 8), &len), 0);
    assert_true(oc_span_equal(oc_span(dst, len), OC_SPAN_LIT("foobar")));
}

static void test_percent(void **state) {
    uint8_t dst[64];
    size_t n;

    (void)state;
    n = oc_percent_encode_grpc(dst, sizeof dst, OC_SPAN_LIT("50% of\n\xc3\xa4~"));
    assert_true(oc_span_equal(oc_span(dst, n), OC_SPAN_LIT("50%25 of%0A%C3%A4~")));
    n = oc_percent_decode_grpc(dst, OC_SPAN_LIT("50%25 of%0a%C3%A4~ %zz%4"));
    assert_true(oc_span_equal(oc_span(dst, n), OC_SPAN_LIT("50% of\n\xc3\xa4~ %zz%4")));
    n = oc_percent_encode_url(dst, sizeof dst, OC_SPAN_LIT("a/b c+d~-_.:"));
    assert_true(oc_span_equal(oc_span(dst, n), OC_SPAN_LIT("a%2Fb%20c%2Bd~-_.%3A")));
    /* Cut at a whole escape; the size is that of all. */
    memset(dst, 0xee, sizeof dst);
    assert_int_equal(oc_percent_encode_url(dst, 3, OC_SPAN_LIT("a/b")), 5);
    assert_int_equal(dst[0], 'a');
    assert_int_equal(dst[1], 0xee);
    assert_int_equal(oc_percent_decode_url(dst, OC_SPAN_LIT("a%2fb+c"), OC_PERCENT_PATH, &n), 0);
    assert_true(oc_span_equal(oc_span(dst, n), OC_SPAN_LIT("a/b+c")));
    assert_int_equal(oc_percent_decode_url(dst, OC_SPAN_LIT("a%00b+c"), OC_PERCENT_QUERY, &n), 0);
    assert_true(oc_span_equal(oc_span(dst, n), oc_span("a\0b c", 5)));
    assert_int_equal(oc_percent_decode_url(dst, OC_SPAN_LIT("%"), OC_PERCENT_PATH, &n),
                     OC_E_INVALID);
    assert_int_equal(oc_percent_decode_url(dst, OC_SPAN_LIT("%4"), OC_PERCENT_PATH, &n),
                     OC_E_INVALID);
    assert_int_equal(oc_percent_decode_url(dst, OC_SPAN_LIT("%g0"), OC_PERCENT_PATH, &n),
                     OC_E_INVALID);
}

static void test_query(void **state) {
    struct oc_span q = OC_SPAN_LIT("&prefix=a%3Db&&limit=5&flag&=x&e=&two=a=b&");
    static const char *const expected[][2] = {{"prefix", "a%3Db"}, {"limit", "5"}, {"flag", ""},
                                              {"", "x"},           {"e", ""},      {"two", "a=b"}};
    struct oc_span name;
    struct oc_span value;

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(expected); i++) {
        assert_true(oc_query_next(&q, &name, &value));
        assert_true(oc_span_equal(name, oc_span_str(expected[i][0])));
        assert_true(oc_span_equal(value, oc_span_str(expected[i][1])));
    }
    assert_false(oc_query_next(&q, &name, &value));
    q = OC_SPAN_EMPTY;
    assert_false(oc_query_next(&q, &name, &value));
}

static void test_frames_whole(void **state) {
    static const uint8_t bytes[] = {0, 0, 0, 0, 3, 'a', 'b', 'c', 1,  0,
                                    0, 0, 0, 0, 0, 0,   0,   2,   'x'};
    struct oc_grpc_reader r;
    struct oc_grpc_piece p;
    struct oc_span in = oc_span(bytes, sizeof bytes);

    (void)state;
    oc_grpc_reader_init(&r, 3);
    assert_int_equal(oc_grpc_reader_next(&r, &in, &p), 1);
    assert_true(p.begin && p.end && !p.compressed);
    assert_int_equal(p.message_len, 3);
    assert_true(oc_span_equal(p.bytes, OC_SPAN_LIT("abc")));
    assert_true(oc_grpc_reader_idle(&r));
    assert_int_equal(oc_grpc_reader_next(&r, &in, &p), 1);
    assert_true(p.begin && p.end && p.compressed);
    assert_int_equal(p.bytes.len, 0);
    assert_int_equal(oc_grpc_reader_next(&r, &in, &p), 1);
    assert_true(p.begin && !p.end);
    assert_int_equal(p.message_len, 2);
    assert_int_equal(p.bytes.len, 1);
    assert_int_equal(oc_grpc_reader_next(&r, &in, &p), 0);
    assert_false(oc_grpc_reader_idle(&r));
    in = OC_SPAN_LIT("y");
    assert_int_equal(oc_grpc_reader_next(&r, &in, &p), 1);
    assert_true(!p.begin && p.end);
    assert_int_equal(p.message_len, 2);
    assert_true(oc_grpc_reader_idle(&r));
}

/* Any split gives the same messages. */
static void test_frames_split(void **state) {
    struct oc_rng rng;

    (void)state;
    oc_rng_init(&rng, 11);
    for (int round = 0; round < 300; round++) {
        uint8_t bytes[600];
        uint32_t lens[8];
        size_t total = 0;
        size_t messages = 1 + (size_t)oc_rng_below(&rng, 8);
        struct oc_grpc_reader r;
        struct oc_grpc_piece p;
        size_t seen = 0;
        size_t got = 0;
        size_t payload_at = 0;

        for (size_t i = 0; i < messages; i++) {
            lens[i] = (uint32_t)oc_rng_below(&rng, 60);
            oc_grpc_head_write(bytes + total, lens[i]);
            total += OC_GRPC_HEAD_BYTES;
            for (uint32_t k = 0; k < lens[i]; k++) {
                bytes[total++] = (uint8_t)(i * 31 + k);
            }
        }
        oc_grpc_reader_init(&r, 60);
        for (size_t at = 0; at < total;) {
            size_t n = 1 + (size_t)oc_rng_below(&rng, total - at < 9 ? total - at : 9);
            struct oc_span in = oc_span(bytes + at, n);
            int e;

            while ((e = oc_grpc_reader_next(&r, &in, &p)) == 1) {
                assert_int_equal(p.message_len, lens[seen]);
                assert_int_equal(p.begin, payload_at == 0 && got == 0);
                got = 1;
                for (size_t k = 0; k < p.bytes.len; k++) {
                    assert_int_equal(p.bytes.p[k], (uint8_t)(seen * 31 + payload_at++));
                }
                if (p.end) {
                    assert_int_equal(payload_at, lens[seen++]);
                    payload_at = 0;
                    got = 0;
                }
            }
            assert_int_equal(e, 0);
            assert_int_equal(in.len, 0);
            at += n;
        }
        assert_int_equal(seen, messages);
        assert_true(oc_grpc_reader_idle(&r));
    }
}

static void test_frames_refuse(void **state) {
    struct oc_grpc_reader r;
    struct oc_grpc_piece p;
    struct oc_span in = oc_span("\0\0\0\0\x04", 5);

    (void)state;
    oc_grpc_reader_init(&r, 3);
    assert_int_equal(oc_grpc_reader_next(&r, &in, &p), OC_E_EXHAUSTED);
    assert_int_equal(p.message_len, 4);
    assert_int_equal(oc_grpc_reader_next(&r, &in, &p), OC_E_EXHAUSTED);
    assert_false(oc_grpc_reader_idle(&r));
    in = oc_span("\2\0\0\0\0", 5);
    oc_grpc_reader_init(&r, 3);
    assert_int_equal(oc_grpc_reader_next(&r, &in, &p), OC_E_INVALID);
    in = oc_span("\0\xff\xff\xff\xff", 5);
    oc_grpc_reader_init(&r, 128 << 20);
    assert_int_equal(oc_grpc_reader_next(&r, &in, &p), OC_E_EXHAUSTED);
    assert_true(p.message_len == UINT32_MAX);
}

static void test_timeout(void **state) {
    static const struct {
        const char *text;
        uint64_t ns;
    } good[] = {
        {"1n", 1},
        {"5u", 5000},
        {"100m", 100 * OC_NS_PER_MS},
        {"5S", 5 * OC_NS_PER_S},
        {"2M", 120 * OC_NS_PER_S},
        {"1H", 3600 * OC_NS_PER_S},
        {"00000007S", 7 * OC_NS_PER_S},
        {"0m", 0},
        {"99999999H", UINT64_MAX},
    };
    static const char *const bad[] = {"",    "1",    "S",   "123456789S", "1s",
                                      "-1S", "1.5S", " 1S", "1 S"};
    static const struct {
        uint64_t ns;
        const char *text;
    } formats[] = {
        {0, "0n"},
        {99999999, "99999999n"},
        {100000000, "100000u"},
        {100000001, "100001u"},
        {99999999999, "100000m"},
        {5 * OC_NS_PER_S, "5000000u"},
        {UINT64_MAX, "5124096H"},
    };
    char dst[OC_GRPC_TIMEOUT_MAX];
    uint64_t ns = 4711;

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(bad); i++) {
        assert_int_equal(oc_grpc_timeout_parse(oc_span_str(bad[i]), &ns), OC_E_INVALID);
        assert_int_equal(ns, 4711);
    }
    for (size_t i = 0; i < OC_ARRAY_LEN(good); i++) {
        assert_int_equal(oc_grpc_timeout_parse(oc_span_str(good[i].text), &ns), 0);
        assert_true(ns == good[i].ns);
    }
    for (size_t i = 0; i < OC_ARRAY_LEN(formats); i++) {
        assert_int_equal(oc_grpc_timeout_format(dst, formats[i].ns), strlen(formats[i].text));
        assert_string_equal(dst, formats[i].text);
        assert_int_equal(oc_grpc_timeout_parse(oc_span_str(dst), &ns), 0);
        assert_true(ns >= formats[i].ns);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base64),       cmocka_unit_test(test_percent),
        cmocka_unit_test(test_query),        cmocka_unit_test(test_frames_whole),
        cmocka_unit_test(test_frames_split), cmocka_unit_test(test_frames_refuse),
        cmocka_unit_test(test_timeout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
