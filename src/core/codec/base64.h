/* Base64 (RFC 4648): what the JSON of the HTTP side and binary gRPC metadata use. */
#ifndef OC_CORE_CODEC_BASE64_H
#define OC_CORE_CODEC_BASE64_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/span.h"

/* Encoded size with padding. len at most SIZE_MAX / 2. */
static inline size_t oc_base64_encoded_size(size_t len) {
    return (len + 2) / 3 * 4;
}
/* At least what decoding gives. */
static inline size_t oc_base64_decoded_max(size_t len) {
    return len / 4 * 3 + 3;
}

/* Standard alphabet, padded. dst has room for oc_base64_encoded_size(in.len); returns that size. */
size_t oc_base64_encode(void *dst, struct oc_span in);

/* Standard or URL-safe alphabet (not both in one text), with all of its padding or none of it.
 * OC_E_INVALID for anything else, blanks and stray bits behind the last byte included. dst has room
 * for oc_base64_decoded_max(in.len) and may be in.p. */
int oc_base64_decode(void *dst, struct oc_span in, size_t *ret_len);

#endif
