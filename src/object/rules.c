/* Expiry and ranges, without overflow whatever a client sends. */
#include "base/check.h"
#include "object/rules.h"

uint32_t oc_svc_expiry_s(uint64_t now_s, int64_t ttl_s, uint64_t default_ttl_s) {
    uint64_t ttl = ttl_s > 0 ? (uint64_t)ttl_s : default_ttl_s;
    uint64_t at;

    if (ttl == 0) {
        return 0;
    }
    return oc_add_ok(now_s, ttl, &at) && at <= UINT32_MAX ? (uint32_t)at : UINT32_MAX;
}

void oc_svc_range(int64_t start, int64_t end, uint64_t len, uint64_t *ret_begin,
                  uint64_t *ret_end) {
    uint64_t begin = start > 0 ? (uint64_t)start : 0;
    /* `end` is inclusive, and INT64_MAX + 1 fits in 64 bits without a sign. */
    uint64_t behind = end > 0 && (uint64_t)end < len ? (uint64_t)end + 1 : len;

    if (begin > behind) {
        begin = behind;
    }
    *ret_begin = begin;
    *ret_end = behind;
}
