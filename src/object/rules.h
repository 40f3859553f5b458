/* The rules of requests that are pure arithmetic. */
#ifndef OC_OBJECT_RULES_H
#define OC_OBJECT_RULES_H

#include <stdint.h>

/* Unix second at which a value put at now_s with this ttl is dead; 0 = never. ttl_s <= 0 means the
 * default. What does not fit in 32 bits expires at the last second that does (in 2106). */
uint32_t oc_svc_expiry_s(uint64_t now_s, int64_t ttl_s, uint64_t default_ttl_s);

/* The part [*ret_begin, *ret_end) of a value of `len` bytes that a request for start…end means (end
 * inclusive; end <= 0: to the end of the value; negative start: 0). Empty when nothing is meant. */
void oc_svc_range(int64_t start, int64_t end, uint64_t len, uint64_t *ret_begin, uint64_t *ret_end);

#endif
