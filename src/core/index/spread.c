/* Laying keys of neighbouring leaves out anew: what splitting, evening out and merging share. */
#include "core/index/node.h"

#define NO_HEAD UINT32_MAX

void oc_spread_take(struct oc_spread *s, const struct oc_leaf *l) {
    OC_CHECK(s->n + l->n <= OC_ARRAY_LEN(s->items));
    memcpy(&s->items[s->n], l->items, l->n * sizeof l->items[0]);
    memcpy(&s->heads[s->n], l->heads, l->n * sizeof l->heads[0]);
    memcpy(&s->prints[s->n], l->prints, l->n);
    for (unsigned i = 0; i < l->n; i++) {
        s->prefixes[s->n + i] = l->prefix_len;
    }
    s->n += l->n;
}

void oc_spread_insert(struct oc_spread *s, unsigned at, uint32_t item, uint8_t print) {
    unsigned behind = s->n - at;

    OC_CHECK(at <= s->n && s->n < OC_ARRAY_LEN(s->items));
    memmove(&s->items[at + 1], &s->items[at], behind * sizeof s->items[0]);
    memmove(&s->heads[at + 1], &s->heads[at], behind * sizeof s->heads[0]);
    memmove(&s->prefixes[at + 1], &s->prefixes[at], behind * sizeof s->prefixes[0]);
    memmove(&s->prints[at + 1], &s->prints[at], behind);
    s->items[at] = item;
    s->prefixes[at] = NO_HEAD;
    s->prints[at] = print;
    s->n++;
}

void oc_spread_fill(const struct oc_index *ix, const struct oc_spread *s, unsigned from,
                    unsigned to, struct oc_leaf *l) {
    unsigned n = to - from;
    size_t prefix_len;

    OC_CHECK(n > 0 && n <= OC_LEAF_SLOTS && to <= s->n);
    prefix_len =
        oc_common_prefix(oc_item_key(ix, s->items[from]), oc_item_key(ix, s->items[to - 1]));
    for (unsigned i = 0; i < n; i++) {
        if (s->prefixes[from + i] != prefix_len) {
            oc_prefetch_item(ix, s->items[from + i]);
        }
    }
    for (unsigned i = 0; i < n; i++) {
        l->heads[i] = s->prefixes[from + i] == prefix_len
                          ? s->heads[from + i]
                          : oc_head32(oc_item_key(ix, s->items[from + i]), prefix_len);
    }
    memcpy(l->items, &s->items[from], n * sizeof l->items[0]);
    memcpy(l->prints, &s->prints[from], n);
    l->prefix_len = (uint16_t)prefix_len;
    l->kind = OC_NODE_LEAF;
    l->n = (uint8_t)n;
}

void oc_inner_replace(struct oc_index *ix, struct oc_inner *parent, unsigned first, unsigned had,
                      const uint32_t *children, const uint32_t *separators, unsigned now) {
    unsigned n = parent->n + now - had;
    unsigned tail = parent->n + 1u - first - had; /* children behind, and separators before them */

    OC_CHECK(first + had <= parent->n + 1u && had > 0 && now > 0 && n <= OC_INNER_SLOTS);
    for (unsigned i = 0; i + 1 < had; i++) {
        oc_slabs_free(&ix->slabs, parent->separators[first + i]);
    }
    memmove(&parent->separators[first + now - 1], &parent->separators[first + had - 1],
            tail * sizeof parent->separators[0]);
    memmove(&parent->heads[first + now - 1], &parent->heads[first + had - 1],
            tail * sizeof parent->heads[0]);
    memmove(&parent->children[first + now], &parent->children[first + had],
            tail * sizeof parent->children[0]);
    memcpy(&parent->children[first], children, now * sizeof children[0]);
    if (now > 1) {
        memcpy(&parent->separators[first], separators, (now - 1) * sizeof separators[0]);
    }
    parent->n = (uint8_t)n;
    oc_inner_refresh(ix, parent, first, first + now - 1);
}
