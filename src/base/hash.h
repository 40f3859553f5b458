/* Hashes. xxh3-64 for keys inside a process and on our disk (seed and version are part of the
 * format); FNV-1a 32 where the ring demands it. */
#ifndef OC_BASE_HASH_H
#define OC_BASE_HASH_H

#include "base/span.h"

/* xxh3-64 of the key with seed 0 (xxHash 0.8 stable format). */
uint64_t oc_hash_key(struct oc_span key);

/* xxh3-64 with a seed. */
uint64_t oc_hash_seeded(struct oc_span data, uint64_t seed);

/* FNV-1a, 32 bits: offset basis 2166136261, prime 16777619. */
uint32_t oc_fnv1a32(struct oc_span data);

/* CRC32C (Castagnoli), reflected, initial and final xor ~0: crc("123456789") = 0xe3069283.
 * `crc` is the value of the bytes before (0 at the start), so pieces can be chained. */
uint32_t oc_crc32c(uint32_t crc, const void *data, size_t len);

/* As oc_crc32c, while copying: dst and src do not overlap. */
uint32_t oc_crc32c_copy(uint32_t crc, void *dst, const void *src, size_t len);

/* Which implementation the machine got: "isal", "sse42", "table". */
const char *oc_crc32c_name(void);

#endif
