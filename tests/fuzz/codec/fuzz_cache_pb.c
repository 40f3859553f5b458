/* The cache service's messages: whatever decodes encodes to something that decodes to the same, and
 * a PutRequest means the same whole and in pieces. Input: one byte that seeds the boundaries, the
 * message. */
#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"
#include "core/codec/cache_pb.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct sink {
    struct oc_buf data;
};

static int data_begin(void *user, uint64_t total) {
    struct sink *k = user;

    (void)total;
    k->data.len = 0;
    return OC_OK;
}
static int data_piece(void *user, struct oc_span piece) {
    struct sink *k = user;

    return oc_buf_append(&k->data, piece.p, piece.len);
}
static const struct oc_cache_put_events events = {data_begin, data_piece};

static void put_both_ways(struct oc_span message, struct oc_rng *rng) {
    struct oc_cache_put_request whole;
    struct oc_cache_put_stream s;
    struct sink sink;
    struct oc_span left = message;
    int a = oc_cache_put_request_decode(message, &whole);
    int b = OC_OK;

    oc_buf_init(&sink.data, message.len + 1);
    oc_cache_put_stream_init(&s, message.len + 1, &events, &sink);
    oc_cache_put_stream_begin(&s, message.len);
    while (left.len > 0 && b == OC_OK) {
        size_t n = 1 + (size_t)oc_rng_below(rng, left.len);

        b = oc_cache_put_stream_feed(&s, oc_span(left.p, n));
        left = oc_span(left.p + n, left.len - n);
    }
    b = b == OC_OK ? oc_cache_put_stream_finish(&s) : b;
    OC_CHECK(a == b);
    if (a == OC_OK) {
        OC_CHECK(oc_span_equal(whole.key, oc_buf_span(&s.key)) && s.key_len == whole.key.len);
        OC_CHECK(whole.ttl_seconds == s.ttl_seconds);
        OC_CHECK(oc_span_equal(whole.data, oc_buf_span(&sink.data)));
    }
    oc_cache_put_stream_done(&s);
    oc_buf_done(&sink.data);
}

static void put_round_trip(struct oc_span message) {
    struct oc_cache_put_request m;
    struct oc_cache_put_request again;

    if (oc_cache_put_request_decode(message, &m) < 0) {
        return;
    }
    size_t head = oc_cache_put_request_head(NULL, 0, m.key, m.ttl_seconds, m.data.len);
    uint8_t *p = malloc(head + m.data.len + 1);
    OC_CHECK(p != NULL);
    OC_CHECK(oc_cache_put_request_head(p, head, m.key, m.ttl_seconds, m.data.len) == head);
    if (m.data.len > 0) {
        memcpy(p + head, m.data.p, m.data.len);
    }
    OC_CHECK(oc_cache_put_request_decode(oc_span(p, head + m.data.len), &again) == OC_OK);
    OC_CHECK(oc_span_equal(m.key, again.key) && oc_span_equal(m.data, again.data) &&
             m.ttl_seconds == again.ttl_seconds);
    free(p);
}

static void requests_round_trip(struct oc_span message) {
    struct oc_cache_get_request get;
    struct oc_cache_get_request get_again;
    struct oc_cache_list_request list;
    struct oc_cache_list_request list_again;
    uint8_t dst[4200];

    if (oc_cache_get_request_decode(message, &get) == OC_OK) {
        size_t n = oc_cache_get_request_encode(dst, sizeof dst, &get);

        OC_CHECK(n <= sizeof dst &&
                 oc_cache_get_request_decode(oc_span(dst, n), &get_again) == OC_OK);
        OC_CHECK(oc_span_equal(get.key, get_again.key) && get.start == get_again.start &&
                 get.end == get_again.end);
    }
    if (oc_cache_list_request_decode(message, &list) == OC_OK) {
        size_t n = oc_cache_list_request_encode(dst, sizeof dst, &list);

        OC_CHECK(n <= sizeof dst &&
                 oc_cache_list_request_decode(oc_span(dst, n), &list_again) == OC_OK);
        OC_CHECK(oc_span_equal(list.prefix, list_again.prefix) && list.limit == list_again.limit &&
                 oc_span_equal(list.start_key, list_again.start_key) &&
                 oc_span_equal(list.continuation_token, list_again.continuation_token));
    }
}

static void responses_only_come_back(struct oc_span message) {
    struct oc_cache_result result;
    struct oc_cache_key_value kv;
    struct oc_span s;
    struct oc_cache_list_reader keys = oc_cache_list_reader(message);
    struct oc_cache_list_reader entries = oc_cache_list_reader(message);

    (void)oc_cache_result_decode(message, &result);
    (void)oc_cache_get_response_decode(message, &s);
    (void)oc_cache_delete_request_decode(message, &s);
    while (oc_cache_list_next_key(&keys, &s) == 1) {
        OC_CHECK(s.len == 0 || (s.p >= message.p && s.p + s.len <= message.p + message.len));
    }
    while (oc_cache_list_next_entry(&entries, &kv) == 1) {
        OC_CHECK(kv.value.len <= message.len);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct oc_rng rng;

    if (size < 1 || size > 4096) {
        return 0;
    }
    struct oc_span message = oc_span(data + 1, size - 1);
    oc_rng_init(&rng, data[0]);
    put_both_ways(message, &rng);
    put_round_trip(message);
    requests_round_trip(message);
    responses_only_come_back(message);
    return 0;
}
