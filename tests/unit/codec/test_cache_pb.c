/* core/codec/cache_pb.h against protobuf-c's code for the same .proto files, in both directions. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"
#include "core/codec/cache_pb.h"
#include "proto/cache.pb-c.h"

static char key_text[] = "user/\xe2\x82\xac";
static char error_text[] = "missing key";

static ProtobufCBinaryData binary(const char *s) {
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

static void test_put_request(void **state) {
    Cache__PutRequest m = CACHE__PUT_REQUEST__INIT;
    struct oc_cache_put_request got;
    uint8_t theirs[128];
    uint8_t ours[128];
    size_t n;

    (void)state;
    m.key = key_text;
    m.ttl_seconds = -5;
    m.data = binary("some data");
    n = cache__put_request__pack(&m, theirs);
    assert_int_equal(oc_cache_put_request_decode(oc_span(theirs, n), &got), 0);
    assert_true(oc_span_equal(got.key, oc_span_str(key_text)));
    assert_int_equal(got.ttl_seconds, -5);
    assert_true(oc_span_equal(got.data, OC_SPAN_LIT("some data")));
    /* Our head and the data are byte for byte their message. */
    size_t head = oc_cache_put_request_head(ours, sizeof ours, oc_span_str(key_text), -5, 9);
    assert_int_equal(head + 9, n);
    memcpy(ours + head, "some data", 9);
    assert_memory_equal(ours, theirs, n);
    assert_int_equal(oc_cache_put_request_head(NULL, 0, oc_span_str(key_text), -5, 9), head);
    assert_int_equal(oc_cache_put_request_head(NULL, 0, OC_SPAN_EMPTY, 0, 0), 0);
    /* Empty message: all defaults. */
    assert_int_equal(oc_cache_put_request_decode(OC_SPAN_EMPTY, &got), 0);
    assert_int_equal(got.key.len, 0);
    assert_int_equal(got.data.len, 0);
    assert_int_equal(got.ttl_seconds, 0);
    /* The last occurrence wins, unknown fields are skipped, bad strings are refused. */
    assert_int_equal(oc_cache_put_request_decode(OC_SPAN_LIT("\x0a\x01"
                                                             "a\x22\x01?\x0a\x01"
                                                             "b"),
                                                 &got),
                     0);
    assert_true(oc_span_equal(got.key, OC_SPAN_LIT("b")));
    got.ttl_seconds = 77;
    assert_int_equal(oc_cache_put_request_decode(OC_SPAN_LIT("\x0a\x01\xff"), &got), OC_E_INVALID);
    assert_int_equal(oc_cache_put_request_decode(OC_SPAN_LIT("\x12\x01\x01"), &got), OC_E_INVALID);
    assert_int_equal(oc_cache_put_request_decode(OC_SPAN_LIT("\x10\x01\x1a\x05"), &got),
                     OC_E_INVALID);
    assert_int_equal(got.ttl_seconds, 77);
}

static void test_responses(void **state) {
    Cache__PutResponse put = CACHE__PUT_RESPONSE__INIT;
    Cache__DeleteResponse del = CACHE__DELETE_RESPONSE__INIT;
    Cache__GetResponse get = CACHE__GET_RESPONSE__INIT;
    struct oc_cache_result got;
    struct oc_span data;
    uint8_t theirs[64];
    uint8_t ours[64];
    size_t n;

    (void)state;
    put.success = 1;
    put.error = error_text;
    n = cache__put_response__pack(&put, theirs);
    assert_int_equal(oc_cache_result_encode(ours, sizeof ours, true, oc_span_str(error_text)), n);
    assert_memory_equal(ours, theirs, n);
    del.error = error_text;
    n = cache__delete_response__pack(&del, theirs);
    assert_int_equal(oc_cache_result_encode(ours, sizeof ours, false, oc_span_str(error_text)), n);
    assert_memory_equal(ours, theirs, n);
    assert_int_equal(oc_cache_result_decode(oc_span(theirs, n), &got), 0);
    assert_false(got.success);
    assert_true(oc_span_equal(got.error, oc_span_str(error_text)));
    /* One byte too little room: the size, and not a byte written. */
    memset(ours, 0xee, sizeof ours);
    assert_int_equal(oc_cache_result_encode(ours, n - 1, false, oc_span_str(error_text)), n);
    assert_int_equal(ours[0], 0xee);

    get.data = binary("0123456789");
    n = cache__get_response__pack(&get, theirs);
    size_t head = oc_cache_get_response_head(ours, 10);
    assert_int_equal(head + 10, n);
    assert_memory_equal(ours, theirs, head);
    assert_int_equal(oc_cache_get_response_decode(oc_span(theirs, n), &data), 0);
    assert_true(oc_span_equal(data, OC_SPAN_LIT("0123456789")));
    assert_int_equal(oc_cache_get_response_head(ours, 0), 0);
    assert_int_equal(oc_cache_get_response_head(ours, UINT64_MAX), OC_CACHE_GET_RESPONSE_HEAD_MAX);
    assert_int_equal(oc_cache_get_response_decode(OC_SPAN_LIT("\x08\x01"), &data), OC_E_INVALID);
}

static void test_requests(void **state) {
    Cache__GetRequest get = CACHE__GET_REQUEST__INIT;
    Cache__DeleteRequest del = CACHE__DELETE_REQUEST__INIT;
    struct oc_cache_get_request got;
    struct oc_span key;
    uint8_t theirs[64];
    uint8_t ours[64];
    size_t n;

    (void)state;
    get.key = key_text;
    get.start = 7;
    get.end = INT64_MAX;
    n = cache__get_request__pack(&get, theirs);
    assert_int_equal(oc_cache_get_request_decode(oc_span(theirs, n), &got), 0);
    assert_true(oc_span_equal(got.key, oc_span_str(key_text)));
    assert_int_equal(got.start, 7);
    assert_int_equal(got.end, INT64_MAX);
    assert_int_equal(oc_cache_get_request_encode(ours, sizeof ours, &got), n);
    assert_memory_equal(ours, theirs, n);
    del.key = key_text;
    n = cache__delete_request__pack(&del, theirs);
    assert_int_equal(oc_cache_delete_request_decode(oc_span(theirs, n), &key), 0);
    assert_true(oc_span_equal(key, oc_span_str(key_text)));
    assert_int_equal(oc_cache_delete_request_encode(ours, sizeof ours, key), n);
    assert_memory_equal(ours, theirs, n);
    assert_int_equal(oc_cache_delete_request_decode(OC_SPAN_LIT("\x0a\x02\xc3"), &key),
                     OC_E_INVALID);
}

static void test_list(void **state) {
    Cache__ListRequest request = CACHE__LIST_REQUEST__INIT;
    struct oc_cache_list_request got;
    uint8_t theirs[256];
    uint8_t ours[256];
    size_t n;

    (void)state;
    request.prefix = key_text;
    request.start_key = error_text;
    request.limit = -3;
    request.continuation_token = error_text;
    n = cache__list_request__pack(&request, theirs);
    assert_int_equal(oc_cache_list_request_decode(oc_span(theirs, n), &got), 0);
    assert_int_equal(got.limit, -3);
    assert_true(oc_span_equal(got.prefix, oc_span_str(key_text)));
    assert_true(oc_span_equal(got.start_key, oc_span_str(error_text)));
    assert_true(oc_span_equal(got.continuation_token, oc_span_str(error_text)));
    assert_int_equal(oc_cache_list_request_encode(ours, sizeof ours, &got), n);
    assert_memory_equal(ours, theirs, n);

    /* Keys with a zero byte come through whole, which is why this is written by hand. */
    n = oc_cache_list_key_encode(ours, sizeof ours, oc_span("a\0b", 3));
    n += oc_cache_list_key_encode(ours + n, sizeof ours - n, oc_span_str(key_text));
    n += oc_cache_list_tail_encode(ours + n, sizeof ours - n, oc_span_str(error_text), true);
    Cache__ListResponse *m = cache__list_response__unpack(NULL, n, ours);
    assert_non_null(m);
    assert_int_equal(m->n_keys, 2);
    assert_string_equal(m->keys[1], key_text);
    assert_string_equal(m->continuation_token, error_text);
    assert_true(m->has_more);
    cache__list_response__free_unpacked(m, NULL);
    struct oc_cache_list_reader r = oc_cache_list_reader(oc_span(ours, n));
    struct oc_span key;
    assert_int_equal(oc_cache_list_next_key(&r, &key), 1);
    assert_true(oc_span_equal(key, oc_span("a\0b", 3)));
    assert_int_equal(oc_cache_list_next_key(&r, &key), 1);
    assert_true(oc_span_equal(key, oc_span_str(key_text)));
    assert_int_equal(oc_cache_list_next_key(&r, &key), 0);
    assert_true(oc_span_equal(r.continuation_token, oc_span_str(error_text)));
    assert_true(r.has_more);
}

static void test_list_with_values(void **state) {
    const struct oc_cache_key_value entry = {oc_span_str(key_text), OC_SPAN_LIT("val"), 3, false};
    const struct oc_cache_key_value omitted = {OC_SPAN_LIT("big"), OC_SPAN_EMPTY, 1 << 30, true};
    struct oc_cache_key_value got;
    uint8_t ours[256];
    uint8_t theirs[256];
    size_t n;

    (void)state;
    n = oc_cache_list_entry_encode(ours, sizeof ours, &entry);
    assert_int_equal(oc_cache_list_entry_encode(ours, n - 1, &entry), n);
    n += oc_cache_list_entry_encode(ours + n, sizeof ours - n, &omitted);
    n += oc_cache_list_tail_encode(ours + n, sizeof ours - n, OC_SPAN_EMPTY, false);
    Cache__ListWithValuesResponse *m = cache__list_with_values_response__unpack(NULL, n, ours);
    assert_non_null(m);
    assert_int_equal(m->n_entries, 2);
    assert_string_equal(m->entries[0]->key, key_text);
    assert_int_equal(m->entries[0]->value.len, 3);
    assert_int_equal(m->entries[1]->value_length, 1 << 30);
    assert_true(m->entries[1]->value_omitted);
    assert_int_equal(cache__list_with_values_response__pack(m, theirs), n);
    assert_memory_equal(ours, theirs, n);
    cache__list_with_values_response__free_unpacked(m, NULL);
    struct oc_cache_list_reader r = oc_cache_list_reader(oc_span(theirs, n));
    assert_int_equal(oc_cache_list_next_entry(&r, &got), 1);
    assert_true(oc_span_equal(got.value, OC_SPAN_LIT("val")));
    assert_int_equal(oc_cache_list_next_entry(&r, &got), 1);
    assert_true(got.value_omitted);
    assert_int_equal(got.value_length, 1 << 30);
    assert_int_equal(oc_cache_list_next_entry(&r, &got), 0);
    assert_false(r.has_more);
    /* An entry that is malformed inside. */
    r = oc_cache_list_reader(OC_SPAN_LIT("\x0a\x02\x0a\x05"));
    assert_int_equal(oc_cache_list_next_entry(&r, &got), OC_E_INVALID);
}

/* ---- the streaming PutRequest ---- */
struct sink {
    uint8_t bytes[512];
    size_t len;
    uint64_t total;
    int begins;
};

static int sink_begin(void *user, uint64_t total) {
    struct sink *k = user;

    k->len = 0;
    k->total = total;
    k->begins++;
    return 0;
}
static int sink_data(void *user, struct oc_span piece) {
    struct sink *k = user;

    assert_true(k->len + piece.len <= sizeof k->bytes);
    memcpy(k->bytes + k->len, piece.p, piece.len);
    k->len += piece.len;
    return 0;
}
static const struct oc_cache_put_events sink_events = {sink_begin, sink_data};

static int feed_split(struct oc_cache_put_stream *s, struct oc_span message, struct oc_rng *rng) {
    oc_cache_put_stream_begin(s, message.len);
    while (message.len > 0) {
        size_t n = 1 + (size_t)oc_rng_below(rng, message.len);
        int r = oc_cache_put_stream_feed(s, oc_span(message.p, n));

        if (r < 0) {
            return r;
        }
        message = oc_span(message.p + n, message.len - n);
    }
    return oc_cache_put_stream_finish(s);
}

static void test_put_stream(void **state) {
    struct oc_rng rng;
    uint8_t value[300];
    uint8_t message[400];

    (void)state;
    oc_rng_init(&rng, 3);
    for (size_t i = 0; i < sizeof value; i++) {
        value[i] = (uint8_t)oc_rng_next(&rng);
    }
    for (int round = 0; round < 500; round++) {
        struct oc_cache_put_stream s;
        struct sink sink = {0};
        size_t len = (size_t)oc_rng_below(&rng, sizeof value);
        size_t n =
            oc_cache_put_request_head(message, sizeof message, oc_span_str(key_text), 60, len);

        memcpy(message + n, value, len);
        oc_cache_put_stream_init(&s, 16, &sink_events, &sink);
        assert_int_equal(feed_split(&s, oc_span(message, n + len), &rng), 0);
        assert_true(oc_span_equal(oc_buf_span(&s.key), oc_span_str(key_text)));
        assert_int_equal(s.key_len, strlen(key_text));
        assert_int_equal(s.ttl_seconds, 60);
        assert_int_equal(sink.len, len);
        assert_memory_equal(sink.bytes, value, len);
        /* A second message: its key and ttl do not count. */
        n = oc_cache_put_request_head(message, sizeof message, OC_SPAN_LIT("other"), 1, 5);
        memcpy(message + n, "again", 5);
        assert_int_equal(feed_split(&s, oc_span(message, n + 5), &rng), 0);
        assert_true(oc_span_equal(oc_buf_span(&s.key), oc_span_str(key_text)));
        assert_int_equal(s.ttl_seconds, 60);
        assert_memory_equal(sink.bytes, "again", 5);
        oc_cache_put_stream_done(&s);
    }
}

static void test_put_stream_long_key(void **state) {
    static const char name[] = "a key of twenty-six bytes.";
    struct oc_cache_put_stream s;
    struct sink sink = {0};
    struct oc_rng rng;
    uint8_t message[64];
    size_t n = oc_cache_put_request_head(message, sizeof message, OC_SPAN_LIT(name), 0, 0);

    (void)state;
    oc_rng_init(&rng, 4);
    for (int round = 0; round < 50; round++) {
        oc_cache_put_stream_init(&s, 16, &sink_events, &sink);
        assert_int_equal(feed_split(&s, oc_span(message, n), &rng), 0);
        assert_int_equal(s.key_len, 26);
        assert_int_equal(s.key.len, 16);
        assert_int_equal(sink.begins, 0);
        oc_cache_put_stream_done(&s);
    }
    /* Not UTF-8. */
    oc_cache_put_stream_init(&s, 16, &sink_events, &sink);
    assert_int_equal(feed_split(&s, OC_SPAN_LIT("\x0a\x02\xc3("), &rng), OC_E_INVALID);
    oc_cache_put_stream_done(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_request),
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_list_with_values),
        cmocka_unit_test(test_put_stream),
        cmocka_unit_test(test_put_stream_long_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
