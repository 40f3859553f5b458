/* Internal to seglog: the variable-length integers of footers and checkpoints. 7 bits a byte, low
 * bits first, at most 10 bytes; only the shortest form is accepted, so that equal facts are equal
 * bytes. */
#ifndef OC_CORE_SEGLOG_VARINT_H
#define OC_CORE_SEGLOG_VARINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/span.h"

#define OC_VARINT_MAX 10u /* bytes */

/* Returns the byte behind what was written. */
static inline uint8_t *oc_varint_put(uint8_t *to, uint64_t v) {
    while (v >= 0x80) {
        *to++ = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    *to++ = (uint8_t)v;
    return to;
}

/* Takes one from the front of `s`; false when it is cut short, too large or not the shortest form.
 */
static inline bool oc_varint_take(struct oc_span *s, uint64_t *ret) {
    uint64_t v = 0;

    for (unsigned i = 0; i < OC_VARINT_MAX && i < s->len; i++) {
        uint8_t byte = s->p[i];

        if (i == OC_VARINT_MAX - 1 && byte > 1) {
            return false;
        }
        v |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            if (byte == 0 && i > 0) {
                return false;
            }
            s->p += i + 1;
            s->len -= i + 1;
            *ret = v;
            return true;
        }
    }
    return false;
}

/* Differences of either sign, small ones short; exact for any two values because it wraps. */
static inline uint64_t oc_zigzag(uint64_t from, uint64_t to) {
    uint64_t d = to - from;

    return d << 1 ^ (uint64_t) - (d >> 63);
}
static inline uint64_t oc_unzigzag(uint64_t from, uint64_t z) {
    return from + (z >> 1 ^ (uint64_t) - (z & 1));
}

/* How many leading bytes two keys share. */
static inline size_t oc_shared_prefix(struct oc_span a, struct oc_span b) {
    size_t n = a.len < b.len ? a.len : b.len;
    size_t i = 0;

    while (i + 8 <= n && oc_load64(a.p + i) == oc_load64(b.p + i)) {
        i += 8;
    }
    while (i < n && a.p[i] == b.p[i]) {
        i++;
    }
    return i;
}

#endif
