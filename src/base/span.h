/* Borrowed bytes. A span never owns; its bytes must outlive it. */
#ifndef OC_BASE_SPAN_H
#define OC_BASE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct oc_span {
    const uint8_t *p; /* may be NULL when len is 0 */
    size_t len;       /* bytes */
};

#define OC_SPAN_EMPTY    ((struct oc_span){NULL, 0})
#define OC_SPAN_LIT(lit) ((struct oc_span){(const uint8_t *)(lit), sizeof(lit) - 1})

static inline struct oc_span oc_span(const void *p, size_t len) {
    return (struct oc_span){(const uint8_t *)p, len};
}

static inline struct oc_span oc_span_str(const char *s) {
    return (struct oc_span){(const uint8_t *)s, strlen(s)};
}

static inline bool oc_span_equal(struct oc_span a, struct oc_span b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.p, b.p, a.len) == 0);
}

static inline bool oc_span_starts_with(struct oc_span s, struct oc_span prefix) {
    return s.len >= prefix.len && (prefix.len == 0 || memcmp(s.p, prefix.p, prefix.len) == 0);
}

/* Bytewise order, shorter first on a tie: the order of every listing. */
static inline int oc_span_compare(struct oc_span a, struct oc_span b) {
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n == 0 ? 0 : memcmp(a.p, b.p, n);

    if (c != 0) {
        return c;
    }
    return (a.len > b.len) - (a.len < b.len);
}

/* Little-endian loads and stores at any alignment: every wire and disk integer of ours is LE. */
static inline uint16_t oc_load16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t oc_load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t oc_load64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void oc_store16(void *p, uint16_t v) {
    memcpy(p, &v, sizeof v);
}
static inline void oc_store32(void *p, uint32_t v) {
    memcpy(p, &v, sizeof v);
}
static inline void oc_store64(void *p, uint64_t v) {
    memcpy(p, &v, sizeof v);
}

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "disk and wire formats are written for little-endian machines; add the swaps here"
#endif

#endif
