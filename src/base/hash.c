/* Key hashes by xxHash, FNV-1a, and CRC32C: ISA-L where the build has it, SSE4.2 or a table
 * otherwise. Short inputs take the SSE4.2 path even beside ISA-L: its call overhead is 12 ns
 * against 5 (docs/design/dependencies.md section 6). */
#include "base/hash.h"

#include <pthread.h>
#include <xxhash.h>

#ifdef OC_HAVE_ISAL
#include <isa-l/crc.h>
#endif
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#define ISAL_MIN_BYTES 256u

static uint32_t crc_table[256];
static pthread_once_t crc_once = PTHREAD_ONCE_INIT;

static void crc_table_fill(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;

        for (int k = 0; k < 8; k++) {
            c = (c & 1) ? (c >> 1) ^ 0x82f63b78u : c >> 1;
        }
        crc_table[i] = c;
    }
}

static uint32_t crc_by_table(uint32_t state, const uint8_t *p, size_t len) {
    (void)pthread_once(&crc_once, crc_table_fill);
    for (size_t i = 0; i < len; i++) {
        state = crc_table[(state ^ p[i]) & 0xff] ^ (state >> 8);
    }
    return state;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_by_sse42(uint32_t state, const uint8_t *p,
                                                               size_t len) {
    uint64_t s = state;

    for (; len >= 8; p += 8, len -= 8) {
        s = _mm_crc32_u64(s, oc_load64(p));
    }
    state = (uint32_t)s;
    for (; len > 0; p++, len--) {
        state = _mm_crc32_u8(state, *p);
    }
    return state;
}
#endif

static bool have_sse42(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2") != 0;
#else
    return false;
#endif
}

uint32_t oc_crc32c(uint32_t crc, const void *data, size_t len) {
    uint32_t state = ~crc;

    if (len == 0) {
        return crc;
    }
#ifdef OC_HAVE_ISAL
    if (len >= ISAL_MIN_BYTES && len <= INT32_MAX) {
        /* ISA-L's prototype lacks the const it honours. */
        return ~crc32_iscsi((unsigned char *)(uintptr_t)data, (int)len, state);
    }
#endif
#if defined(__x86_64__)
    if (have_sse42()) {
        return ~crc_by_sse42(state, data, len);
    }
#endif
    return ~crc_by_table(state, data, len);
}

uint32_t oc_crc32c_copy(uint32_t crc, void *dst, const void *src, size_t len) {
    /* 16 KiB pieces stay in the first-level cache between the copy and the checksum. */
    const uint8_t *from = src;
    uint8_t *to = dst;

    while (len > 0) {
        size_t n = len < 16384 ? len : 16384;

        memcpy(to, from, n);
        crc = oc_crc32c(crc, to, n);
        to += n;
        from += n;
        len -= n;
    }
    return crc;
}

const char *oc_crc32c_name(void) {
#ifdef OC_HAVE_ISAL
    return "isal";
#else
    return have_sse42() ? "sse42" : "table";
#endif
}

uint64_t oc_hash_key(struct oc_span key) {
    return XXH3_64bits(key.p, key.len);
}

uint64_t oc_hash_seeded(struct oc_span data, uint64_t seed) {
    return XXH3_64bits_withSeed(data.p, data.len, seed);
}

uint32_t oc_fnv1a32(struct oc_span data) {
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < data.len; i++) {
        h = (h ^ data.p[i]) * 16777619u;
    }
    return h;
}
