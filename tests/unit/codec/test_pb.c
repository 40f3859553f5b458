/* core/codec/pb.h. Wire bytes come from the protobuf encoding guide (150 = 96 01, "testing" = 12 07
 * …) or are counted out by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "base/check.h"
#include "base/rng.h"
#include "core/codec/pb.h"

static void test_reader_vectors(void **state) {
    static const uint8_t bytes[] = {
        0x08, 0x96, 0x01,                                     /* 1: 150 */
        0x12, 0x07, 't',  'e',  's',  't',  'i',  'n',  'g',  /* 2: "testing" */
        0x1d, 0x78, 0x56, 0x34, 0x12,                         /* 3: fixed32 0x12345678 */
        0x21, 1,    2,    3,    4,    5,    6,    7,    8,    /* 4: fixed64 */
        0x28, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, /* 5: int64 -2 */
        0xff, 0x01,                                           /* … */
        0xf8, 0xff, 0xff, 0xff, 0x0f, 0x01,                   /* 2^29-1: 1 */
        0x32, 0x00,                                           /* 6: "" */
    };
    struct oc_pb_reader r = oc_pb_reader(oc_span(bytes, sizeof bytes));
    struct oc_pb_field f;
    struct oc_span text;
    int64_t i64 = 0;
    int32_t i32 = 0;
    bool flag = false;

    (void)state;
    assert_int_equal(oc_pb_next(&r, &f), 1);
    assert_int_equal(f.number, 1);
    assert_int_equal(f.value, 150);
    assert_int_equal(oc_pb_as_bytes(&f, &text), OC_E_INVALID);
    assert_int_equal(oc_pb_as_bool(&f, &flag), 0);
    assert_true(flag);
    assert_int_equal(oc_pb_next(&r, &f), 1);
    assert_int_equal(oc_pb_as_string(&f, &text), 0);
    assert_true(oc_span_equal(text, OC_SPAN_LIT("testing")));
    assert_int_equal(oc_pb_as_int64(&f, &i64), OC_E_INVALID);
    assert_int_equal(oc_pb_next(&r, &f), 1);
    assert_int_equal(f.wire, OC_PB_FIXED32);
    assert_int_equal(f.value, 0x12345678);
    assert_int_equal(oc_pb_as_int64(&f, &i64), OC_E_INVALID);
    assert_int_equal(oc_pb_next(&r, &f), 1);
    assert_true(f.value == 0x0807060504030201ull);
    assert_int_equal(oc_pb_next(&r, &f), 1);
    assert_int_equal(oc_pb_as_int64(&f, &i64), 0);
    assert_int_equal(i64, -2);
    assert_int_equal(oc_pb_as_int32(&f, &i32), 0);
    assert_int_equal(i32, -2);
    assert_int_equal(oc_pb_next(&r, &f), 1);
    assert_int_equal(f.number, OC_PB_FIELD_MAX);
    assert_int_equal(oc_pb_next(&r, &f), 1);
    assert_int_equal(f.bytes.len, 0);
    assert_int_equal(oc_pb_next(&r, &f), 0);
    assert_int_equal(oc_pb_next(&r, &f), 0);
}

static void test_reader_refuses(void **state) {
#define BAD(...)                                                                                   \
    { (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}) }
    const struct {
        const uint8_t *p;
        size_t len;
    } cases[] = {
        BAD(0x08),                               /* no value */
        BAD(0x08, 0x80),                         /* varint cut */
        BAD(0x88),                               /* tag cut */
        BAD(0x00, 0x01),                         /* field 0 */
        BAD(0x02, 0x00),                         /* field 0, length-delimited */
        BAD(0x80, 0x80, 0x80, 0x80, 0x10, 0x01), /* field 2^29 */
        BAD(0x0b),                               /* group start */
        BAD(0x0c),                               /* group end */
        BAD(0x0e, 0x00),                         /* wire type 6 */
        BAD(0x0f, 0x00),                         /* wire type 7 */
        BAD(0x0a, 0x02, 'a'),                    /* length beyond the end */
        BAD(0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01), /* 2^64-1 bytes */
        BAD(0x0a),                                                             /* length cut */
        BAD(0x0d, 1, 2, 3),                                                    /* fixed32 cut */
        BAD(0x09, 1, 2, 3, 4, 5, 6, 7),                                        /* fixed64 cut */
        BAD(0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02), /* 65 bits */
        BAD(0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00), /* 11 bytes */
    };
#undef BAD

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        struct oc_pb_reader r = oc_pb_reader(oc_span(cases[i].p, cases[i].len));
        struct oc_pb_field f = {.number = 4711};

        assert_int_equal(oc_pb_next(&r, &f), OC_E_INVALID);
        assert_int_equal(f.number, 4711);
        assert_ptr_equal(r.p, cases[i].p);
    }
    /* More bytes than needed are no fault: 1 as 81 00, and the longest form of 0. */
    static const uint8_t padded[] = {0x08, 0x81, 0x00, 0x08, 0x80, 0x80, 0x80,
                                     0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00};
    struct oc_pb_reader r = oc_pb_reader(oc_span(padded, sizeof padded));
    struct oc_pb_field f;
    assert_int_equal(oc_pb_next(&r, &f), 1);
    assert_int_equal(f.value, 1);
    assert_int_equal(oc_pb_next(&r, &f), 1);
    assert_int_equal(f.value, 0);
    assert_int_equal(oc_pb_next(&r, &f), 0);
}

static void test_writer(void **state) {
    static const uint8_t expected[] = {0x08, 0x96, 0x01, 0x12, 0x03, 'a',  'b',
                                       'c',  0x18, 0xff, 0xff, 0xff, 0xff, 0xff,
                                       0xff, 0xff, 0xff, 0xff, 0x01, 0x20, 0x01};
    uint8_t dst[64];
    struct oc_pb_writer w = oc_pb_writer(dst, sizeof expected);

    (void)state;
    oc_pb_put_uint64(&w, 1, 150);
    oc_pb_put_bytes(&w, 2, OC_SPAN_LIT("abc"));
    oc_pb_put_int64(&w, 3, -1);
    oc_pb_put_bool(&w, 4, true);
    assert_false(w.overflow);
    assert_ptr_equal(w.p, dst + sizeof expected);
    assert_memory_equal(dst, expected, sizeof expected);
    /* No room: nothing of the item is written, and nothing after it. */
    for (size_t cap = 0; cap < sizeof expected; cap++) {
        uint8_t small[sizeof expected + 1];

        memset(small, 0xee, sizeof small);
        w = oc_pb_writer(small, cap);
        oc_pb_put_uint64(&w, 1, 150);
        oc_pb_put_bytes(&w, 2, OC_SPAN_LIT("abc"));
        oc_pb_put_int64(&w, 3, -1);
        oc_pb_put_bool(&w, 4, true);
        assert_true(w.overflow);
        assert_true(w.p <= small + cap);
        assert_memory_equal(small, expected, (size_t)(w.p - small));
        for (const uint8_t *p = w.p; p < small + sizeof small; p++) {
            assert_int_equal(*p, 0xee);
        }
    }
}

static void test_sizes(void **state) {
    (void)state;
    assert_int_equal(oc_pb_varint_size(0), 1);
    for (unsigned bits = 1; bits <= 64; bits++) {
        uint64_t top = bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;

        assert_int_equal(oc_pb_varint_size(top), (bits + 6) / 7);
        assert_int_equal(oc_pb_varint_size(UINT64_C(1) << (bits - 1)), (bits + 6) / 7);
    }
    assert_int_equal(oc_pb_tag_size(15), 1);
    assert_int_equal(oc_pb_tag_size(16), 2);
    assert_int_equal(oc_pb_len_size(1, 128), 3);
    assert_int_equal(oc_pb_tag_size(OC_PB_FIELD_MAX), 5);
}

static void test_utf8(void **state) {
    static const char *const good[] = {
        "",
        "plain ASCII, longer than eight bytes",
        "\xc2\x80",
        "\xdf\xbf",
        "\xe0\xa0\x80",
        "\xed\x9f\xbf",
        "\xee\x80\x80",
        "\xef\xbf\xbf",
        "\xf0\x90\x80\x80",
        "\xf4\x8f\xbf\xbf",
        "12345678\xe2\x82\xac 12345678",
    };
    static const char *const bad[] = {
        "\x80",                 /* a continuation alone */
        "\xc0\xaf",             /* overlong */
        "\xc1\xbf",             /* overlong */
        "\xe0\x9f\xbf",         /* overlong */
        "\xf0\x8f\xbf\xbf",     /* overlong */
        "\xed\xa0\x80",         /* surrogate */
        "\xed\xbf\xbf",         /* surrogate */
        "\xf4\x90\x80\x80",     /* above U+10FFFF */
        "\xf5\x80\x80\x80",     /* above U+10FFFF */
        "\xff",                 /* never */
        "\xc2",                 /* cut */
        "\xe2\x82",             /* cut */
        "\xf0\x90\x80",         /* cut */
        "\xe2\x28\xa1",         /* bad second byte */
        "\xe2\x82\x28",         /* bad third byte */
        "\xf0\x90\x80\x28",     /* bad fourth byte */
        "12345678\xffqwertyui", /* behind a fast step */
    };

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(good); i++) {
        assert_true(oc_utf8_valid(oc_span_str(good[i])));
    }
    for (size_t i = 0; i < OC_ARRAY_LEN(bad); i++) {
        assert_false(oc_utf8_valid(oc_span_str(bad[i])));
    }
    assert_true(oc_utf8_valid(oc_span("a\0b", 3)));
}

/* ---- the streaming parser, recorded as text ---- */
struct record {
    char text[512];
    size_t len;
    int fail_bulk; /* returned by bulk when not 0 */
};

static void note(struct record *rec, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct record *rec, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    rec->len += (size_t)vsnprintf(rec->text + rec->len, sizeof rec->text - rec->len, fmt, ap);
    va_end(ap);
    assert_true(rec->len < sizeof rec->text);
}

static int on_varint(void *user, uint32_t number, uint64_t value) {
    note(user, "%u=%llu ", number, (unsigned long long)value);
    return 0;
}
static int on_bytes(void *user, uint32_t number, struct oc_span bytes, uint64_t total) {
    note(user, "%u='%.*s'/%llu ", number, (int)bytes.len,
         bytes.len == 0 ? "" : (const char *)bytes.p, (unsigned long long)total);
    return 0;
}
static int on_bulk_begin(void *user, uint64_t total) {
    note(user, "[%llu] ", (unsigned long long)total);
    return 0;
}
static int on_bulk(void *user, struct oc_span piece) {
    struct record *rec = user;

    assert_true(piece.len > 0);
    note(rec, "<%.*s>", (int)piece.len, (const char *)piece.p);
    return rec->fail_bulk;
}

static const struct oc_pb_stream_config stream_config = {
    .bulk_field = 3,
    .collect_fields = 1 << 1 | 1 << 5,
    .varint_fields = 1 << 2,
    .collect_max = 4,
    .varint = on_varint,
    .bytes = on_bytes,
    .bulk_begin = on_bulk_begin,
    .bulk = on_bulk,
};

/* Feed in pieces of `step` bytes; the result of the whole. */
static int stream_run(struct oc_pb_stream *s, struct oc_span message, size_t step) {
    oc_pb_stream_begin(s, message.len);
    for (size_t i = 0; i < message.len; i += step) {
        size_t n = message.len - i < step ? message.len - i : step;
        int r = oc_pb_stream_feed(s, oc_span(message.p + i, n));

        if (r < 0) {
            return r;
        }
    }
    return oc_pb_stream_finish(s);
}

static void test_stream(void **state) {
    static const uint8_t message[] = {
        0x1a, 0x03, 'a',  'b',  'c',                   /* bulk before the key */
        0x0a, 0x02, 'k',  '1',                         /* key */
        0x10, 0x96, 0x01,                              /* ttl 150 */
        0x3a, 0x02, 0xff, 0xff,                        /* 7: skipped */
        0x41, 1,    2,    3,    4,   5,   6,   7,   8, /* 8: fixed64, skipped */
        0x48, 0x05,                                    /* 9: varint, not asked for */
        0x2a, 0x06, 'l',  'o',  'n', 'g', 'e', 'r',    /* 5: beyond collect_max */
        0x2a, 0x00,                                    /* 5: empty */
        0x1a, 0x02, 'x',  'y',                         /* bulk again: replaces */
        0x1a, 0x00,                                    /* and again, empty */
    };
    struct record rec = {0};
    struct oc_pb_stream s;

    (void)state;
    oc_pb_stream_init(&s, &stream_config, &rec);
    assert_int_equal(stream_run(&s, oc_span(message, sizeof message), sizeof message), 0);
    assert_string_equal(rec.text, "[3] <abc>1='k1'/2 2=150 5='long'/6 5=''/0 [2] <xy>[0] ");
    for (size_t step = 1; step < sizeof message; step++) {
        size_t out = 0;

        rec = (struct record){0};
        assert_int_equal(stream_run(&s, oc_span(message, sizeof message), step), 0);
        /* The pieces of the bulk field may be split, nothing else may differ. */
        for (size_t i = 0; i < rec.len; i++) {
            if (rec.text[i] == '>' && rec.text[i + 1] == '<') {
                i++;
            } else {
                rec.text[out++] = rec.text[i];
            }
        }
        rec.text[out] = 0;
        assert_string_equal(rec.text, "[3] <abc>1='k1'/2 2=150 5='long'/6 5=''/0 [2] <xy>[0] ");
    }
    oc_pb_stream_done(&s);
}

static void test_stream_refuses(void **state) {
    static const struct {
        const char *bytes;
        size_t len;
        uint64_t declared;
    } cases[] = {
        {"\x1a\x03"
         "ab",
         4, 4},              /* bulk beyond the message */
        {"\x0a\x05k", 3, 3}, /* key beyond the message */
        {"\x10", 1, 1},      /* varint missing */
        {"\x10\x80", 2, 2},  /* varint cut */
        {"\x00\x01", 2, 2},  /* field 0 */
        {"\x0b", 1, 1},      /* group */
        {"\x18\x01", 2, 2},  /* bulk as a varint */
        {"\x08\x01", 2, 2},  /* key as a varint */
        {"\x12\x01"
         "a",
         3, 3},                                                   /* ttl as bytes */
        {"\x0d\1\2\3\4", 5, 5},                                   /* key as fixed32 */
        {"\x41\1\2\3", 4, 4},                                     /* fixed64 cut */
        {"\x10\x01", 2, 3},                                       /* bytes missing */
        {"\x10\x01\x10\x02", 4, 2},                               /* bytes behind the end */
        {"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11, 11}, /* 65 bits */
        {"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, 11}, /* 2^64-1 bytes */
    };
    struct record rec = {0};
    struct oc_pb_stream s;

    (void)state;
    oc_pb_stream_init(&s, &stream_config, &rec);
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        for (size_t step = 1; step <= cases[i].len; step++) {
            int r = 0;

            rec = (struct record){0};
            oc_pb_stream_begin(&s, cases[i].declared);
            for (size_t at = 0; at < cases[i].len && r == 0; at += step) {
                size_t n = cases[i].len - at < step ? cases[i].len - at : step;

                r = oc_pb_stream_feed(&s, oc_span(cases[i].bytes + at, n));
            }
            r = r == 0 ? oc_pb_stream_finish(&s) : r;
            assert_int_equal(r, OC_E_INVALID);
            /* A length that the message cannot hold is refused before anybody makes room for it. */
            assert_null(strchr(rec.text, '['));
        }
    }
    oc_pb_stream_done(&s);
}

static void test_stream_callback_failure_stays(void **state) {
    static const uint8_t message[] = {0x1a, 0x02, 'a', 'b', 0x10, 0x01};
    struct record rec = {.fail_bulk = OC_E_EXHAUSTED};
    struct oc_pb_stream s;

    (void)state;
    oc_pb_stream_init(&s, &stream_config, &rec);
    oc_pb_stream_begin(&s, sizeof message);
    assert_int_equal(oc_pb_stream_feed(&s, oc_span(message, 3)), OC_E_EXHAUSTED);
    assert_int_equal(oc_pb_stream_feed(&s, oc_span(message + 3, 3)), OC_E_EXHAUSTED);
    assert_int_equal(oc_pb_stream_finish(&s), OC_E_EXHAUSTED);
    assert_string_equal(rec.text, "[2] <a>");
    rec = (struct record){0};
    assert_int_equal(stream_run(&s, oc_span(message, sizeof message), 6), 0);
    assert_string_equal(rec.text, "[2] <ab>2=1 ");
    oc_pb_stream_done(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_vectors), cmocka_unit_test(test_reader_refuses),
        cmocka_unit_test(test_writer),         cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_utf8),           cmocka_unit_test(test_stream),
        cmocka_unit_test(test_stream_refuses), cmocka_unit_test(test_stream_callback_failure_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
