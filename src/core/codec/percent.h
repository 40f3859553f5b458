/* Percent-coding: the grpc-message trailer and URLs.
 *
 * Encoders return the size of the whole result and write only as much as fits in `cap`, in whole
 * escapes; a result larger than cap was cut. Nothing is terminated. The result is at most 3 times
 * the input. */
#ifndef OC_CORE_CODEC_PERCENT_H
#define OC_CORE_CODEC_PERCENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/span.h"

/* grpc-message: everything but printable ASCII is escaped, and the percent sign. */
size_t oc_percent_encode_grpc(void *dst, size_t cap, struct oc_span in);
/* Never fails, as the gRPC specification demands: what is no escape stays as it is. dst has room
 * for in.len bytes and may be in.p. Returns the length. */
size_t oc_percent_decode_grpc(void *dst, struct oc_span in);

/* One path segment or query component: everything but RFC 3986's unreserved characters is escaped.
 */
size_t oc_percent_encode_url(void *dst, size_t cap, struct oc_span in);

enum oc_percent_mode {
    OC_PERCENT_PATH,  /* a plus sign is a plus sign */
    OC_PERCENT_QUERY, /* a plus sign is a blank */
};
/* OC_E_INVALID for a percent sign without two hexadecimal digits. dst has room for in.len bytes and
 * may be in.p. */
int oc_percent_decode_url(void *dst, struct oc_span in, enum oc_percent_mode mode, size_t *ret_len);

/* The next `name=value` off the front of a query (without its question mark): false at the end.
 * Both are still encoded; a part without `=` has an empty value; empty parts are skipped. */
bool oc_query_next(struct oc_span *query, struct oc_span *ret_name, struct oc_span *ret_value);

#endif
