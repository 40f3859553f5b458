/* Base64 and percent-coding: any bytes survive the round trip, and whatever decodes stays within
 * its bounds. */
#include <stdlib.h>

#include "base/check.h"
#include "core/codec/base64.h"
#include "core/codec/percent.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void base64(struct oc_span in, uint8_t *coded, uint8_t *plain) {
    size_t n = oc_base64_encode(coded, in);
    size_t len = 0;

    OC_CHECK(n == oc_base64_encoded_size(in.len));
    OC_CHECK(oc_base64_decode(plain, oc_span(coded, n), &len) == OC_OK);
    OC_CHECK(oc_span_equal(oc_span(plain, len), in));
    /* URL-safe and without padding. */
    for (size_t i = 0; i < n; i++) {
        coded[i] = coded[i] == '+' ? '-' : coded[i] == '/' ? '_' : coded[i];
    }
    while (n > 0 && coded[n - 1] == '=') {
        n--;
    }
    OC_CHECK(oc_base64_decode(plain, oc_span(coded, n), &len) == OC_OK);
    OC_CHECK(oc_span_equal(oc_span(plain, len), in));
    /* The input as a text: whatever is accepted has exactly one meaning. */
    if (oc_base64_decode(plain, in, &len) == OC_OK) {
        OC_CHECK(len <= oc_base64_decoded_max(in.len));
        n = oc_base64_encode(coded, oc_span(plain, len));
        OC_CHECK(n >= in.len && n < in.len + 3);
        for (size_t i = 0; i < in.len; i++) {
            OC_CHECK(coded[i] == (in.p[i] == '-' ? '+' : in.p[i] == '_' ? '/' : in.p[i]));
        }
    }
}

static void percent(struct oc_span in, uint8_t *coded, uint8_t *plain) {
    size_t n = oc_percent_encode_grpc(coded, 3 * in.len, in);
    size_t len;

    for (size_t i = 0; i < n; i++) {
        OC_CHECK(coded[i] >= 0x20 && coded[i] <= 0x7e);
    }
    len = oc_percent_decode_grpc(plain, oc_span(coded, n));
    OC_CHECK(oc_span_equal(oc_span(plain, len), in));
    n = oc_percent_encode_url(coded, 3 * in.len, in);
    OC_CHECK(oc_percent_decode_url(plain, oc_span(coded, n), OC_PERCENT_PATH, &len) == OC_OK);
    OC_CHECK(oc_span_equal(oc_span(plain, len), in));
    OC_CHECK(oc_percent_decode_url(plain, oc_span(coded, n), OC_PERCENT_QUERY, &len) == OC_OK);
    OC_CHECK(oc_span_equal(oc_span(plain, len), in));
    len = oc_percent_decode_grpc(plain, in);
    OC_CHECK(len <= in.len);
    if (oc_percent_decode_url(plain, in, OC_PERCENT_QUERY, &len) == OC_OK) {
        OC_CHECK(len <= in.len);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct oc_span in = oc_span(data, size);
    uint8_t *coded = malloc(3 * size + 8);
    uint8_t *plain = malloc(size + 8);
    struct oc_span name;
    struct oc_span value;
    struct oc_span query = in;
    size_t bytes = 0;

    OC_CHECK(coded != NULL && plain != NULL);
    base64(in, coded, plain);
    percent(in, coded, plain);
    while (oc_query_next(&query, &name, &value)) {
        bytes += name.len + value.len + 1;
        OC_CHECK(bytes <= size + 1);
    }
    free(coded);
    free(plain);
    return 0;
}
