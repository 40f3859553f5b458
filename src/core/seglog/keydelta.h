/* Internal to seglog: keys as differences to the key before, for footers and checkpoints: how many
 * bytes are shared, how many follow, those. The shared part is always as long as it can be. */
#ifndef OC_CORE_SEGLOG_KEYDELTA_H
#define OC_CORE_SEGLOG_KEYDELTA_H

#include <stdlib.h>

#include "core/seglog/format.h"
#include "core/seglog/varint.h"

struct oc_keydelta {
    uint8_t *key; /* OC_KEY_MAX bytes; the key before */
    size_t len;
};

static inline bool oc_keydelta_init(struct oc_keydelta *k) {
    k->len = 0;
    k->key = malloc(OC_KEY_MAX);
    return k->key != NULL;
}
static inline void oc_keydelta_done(struct oc_keydelta *k) {
    free(k->key);
    k->key = NULL;
}
static inline struct oc_span oc_keydelta_span(const struct oc_keydelta *k) {
    return oc_span(k->key, k->len);
}

/* Writes at most 2 * OC_VARINT_MAX + key.len bytes; returns the byte behind. */
static inline uint8_t *oc_keydelta_put(struct oc_keydelta *k, uint8_t *to, struct oc_span key) {
    size_t shared = oc_shared_prefix(oc_keydelta_span(k), key);
    size_t rest = key.len - shared;

    to = oc_varint_put(to, shared);
    to = oc_varint_put(to, rest);
    if (rest > 0) {
        memcpy(to, key.p + shared, rest);
        memcpy(k->key + shared, key.p + shared, rest);
    }
    k->len = key.len;
    return to + rest;
}

/* Takes a key from the front of `s` into k; false when it is not one. With `ascending` it must also
 * be greater than the one before (which the empty key of the start is not an exception to). */
static inline bool oc_keydelta_take(struct oc_keydelta *k, struct oc_span *s, bool ascending) {
    uint64_t shared, rest;

    if (!oc_varint_take(s, &shared) || !oc_varint_take(s, &rest) || shared > k->len ||
        rest > s->len || rest > OC_KEY_MAX - shared || shared + rest == 0) {
        return false;
    }
    bool differ_inside = shared < k->len && rest > 0;

    if (differ_inside && (s->p[0] == k->key[shared] || (ascending && s->p[0] < k->key[shared]))) {
        return false;
    }
    if (ascending && rest == 0) {
        return false; /* the same key, or a prefix of the one before */
    }
    if (rest > 0) {
        memcpy(k->key + shared, s->p, (size_t)rest);
    }
    k->len = (size_t)(shared + rest);
    s->p += rest;
    s->len -= (size_t)rest;
    return true;
}

#endif
