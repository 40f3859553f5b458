/* Values as people write them: numbers, sizes, durations, booleans. Whole text or nothing: every
 * parser answers OC_E_INVALID for text it does not understand to the last byte and OC_E_RANGE for a
 * value that does not fit, and leaves *ret alone then. */
#ifndef OC_BASE_PARSE_H
#define OC_BASE_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/span.h"

/* 1 0 t f T F true false TRUE FALSE True False (Go's strconv.ParseBool). */
int oc_parse_bool(struct oc_span s, bool *ret);

/* Decimal, or hexadecimal behind 0x; an optional sign for int64. Leading zeros mean nothing. */
int oc_parse_int64(struct oc_span s, int64_t *ret);
int oc_parse_uint64(struct oc_span s, uint64_t *ret);

/* Decimal with optional fraction and exponent, finite; the dot is the decimal sign in every locale.
 */
int oc_parse_double(struct oc_span s, double *ret);

/* Go's time.ParseDuration: [sign] (number unit)+ with the units ns us ms s m h, fractions allowed,
 * as in 1h30m, 1.5h, 500ms. A unit is needed except for 0. Nanoseconds. */
int oc_parse_duration(struct oc_span s, int64_t *ret_ns);

/* Bytes: a number, with an optional fraction when a unit follows, and b, k, m, g, t, p with an
 * optional b or ib, in any case. All units are powers of 1024: 30gb = 30g = 30GiB = 30 * 2^30. */
int oc_parse_size(struct oc_span s, uint64_t *ret_bytes);

/* The shortest text that parses back to the same value: "1h30m0s" as Go prints it, "64KiB", "1000".
 * Returns the length; dst is terminated. */
#define OC_PARSE_TEXT_MAX 40
size_t oc_format_duration(char dst[OC_PARSE_TEXT_MAX], int64_t ns);
size_t oc_format_size(char dst[OC_PARSE_TEXT_MAX], uint64_t bytes);

#endif
