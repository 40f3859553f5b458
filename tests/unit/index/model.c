#include "model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"

void model_done(struct model *m) {
    for (size_t i = 0; i < m->n; i++) {
        free(m->rows[i].key);
    }
    free(m->rows);
    *m = (struct model){0};
}

size_t model_place(const struct model *m, struct oc_span key, bool *equal) {
    size_t low = 0;
    size_t high = m->n;

    *equal = false;
    while (low < high) {
        size_t mid = (low + high) / 2;
        int c = oc_span_compare(oc_span(m->rows[mid].key, m->rows[mid].len), key);

        *equal |= c == 0;
        if (c < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

int model_apply(struct model *m, struct oc_span key, const struct oc_entry *e) {
    bool equal;
    size_t i = model_place(m, key, &equal);
    struct model_row *row;

    if (equal) {
        if (e->version <= m->rows[i].e.version) {
            return 0;
        }
        m->rows[i].e = *e;
        return 1;
    }
    if (m->n == m->cap) {
        m->cap = m->cap == 0 ? 64 : m->cap * 2;
        m->rows = realloc(m->rows, m->cap * sizeof *m->rows);
        assert_non_null(m->rows);
    }
    memmove(&m->rows[i + 1], &m->rows[i], (m->n - i) * sizeof *m->rows);
    m->n++;
    row = &m->rows[i];
    *row = (struct model_row){.key = malloc(key.len + 1), .len = key.len, .e = *e};
    assert_non_null(row->key);
    if (key.len > 0) {
        memcpy(row->key, key.p, key.len);
    }
    return 1;
}

void model_remove_at(struct model *m, size_t i) {
    free(m->rows[i].key);
    memmove(&m->rows[i], &m->rows[i + 1], (m->n - i - 1) * sizeof *m->rows);
    m->n--;
}

bool entry_equal(const struct oc_entry *a, const struct oc_entry *b) {
    return a->version == b->version && a->value_len == b->value_len && a->segment == b->segment &&
           a->offset == b->offset && a->expires_at_s == b->expires_at_s && a->flags == b->flags;
}

struct compare {
    const struct model *m;
    size_t i;
};

static int compare_each(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct compare *c = arg;

    assert_true(c->i < c->m->n);
    assert_true(oc_span_equal(key, oc_span(c->m->rows[c->i].key, c->m->rows[c->i].len)));
    assert_true(entry_equal(e, &c->m->rows[c->i].e));
    c->i++;
    return 0;
}

void model_compare(const struct model *m, const struct oc_index *ix) {
    struct compare c = {.m = m};
    struct oc_index_stats want = {.keys = m->n};
    struct oc_index_stats got;

    oc_index_walk(ix, OC_SPAN_EMPTY, false, compare_each, &c);
    assert_int_equal(c.i, m->n);
    for (size_t i = 0; i < m->n; i++) {
        const struct model_row *row = &m->rows[i];
        bool tombstone = (row->e.flags & OC_ENTRY_TOMBSTONE) != 0;

        want.tombstones += tombstone;
        want.with_expiry += row->e.expires_at_s != 0;
        want.value_bytes += tombstone ? 0 : row->e.value_len;
        want.key_bytes += row->len;
    }
    oc_index_stats(ix, &got);
    assert_int_equal(got.keys, want.keys);
    assert_int_equal(got.tombstones, want.tombstones);
    assert_int_equal(got.with_expiry, want.with_expiry);
    assert_int_equal(got.value_bytes, want.value_bytes);
    assert_int_equal(got.key_bytes, want.key_bytes);
}

/* ---- keys ---- */

static size_t fill_of_two(struct oc_rng *rng, uint8_t *buf, size_t max, uint8_t a, uint8_t b) {
    size_t len = oc_rng_below(rng, max + 1);

    for (size_t i = 0; i < len; i++) {
        buf[i] = oc_rng_below(rng, 2) == 0 ? a : b;
    }
    return len;
}

static size_t long_prefix(struct oc_rng *rng, uint8_t *buf) {
    static const uint16_t shared[] = {0, 5, 40, 180, 290};
    size_t len = shared[oc_rng_below(rng, OC_ARRAY_LEN(shared))];

    memset(buf, 'p', len);
    for (size_t i = oc_rng_below(rng, 4); i-- > 0;) {
        buf[len++] = (uint8_t)('a' + oc_rng_below(rng, 12));
    }
    return len;
}

static size_t class_edge(struct oc_rng *rng, uint8_t *buf) {
    /* Sizes of items at which the kind of class changes, less the 29 bytes of an item's head. */
    static const uint32_t edges[] = {32,   64,   256,  264,   512,   1024,  1056,  2048,
                                     2340, 5460, 8192, 16384, 32768, 49152, 65536, 65564};
    size_t len = edges[oc_rng_below(rng, OC_ARRAY_LEN(edges))] - 31 + oc_rng_below(rng, 4);

    len = len > OC_INDEX_KEY_MAX ? OC_INDEX_KEY_MAX : len;
    memset(buf, 'k', len);
    buf[oc_rng_below(rng, 2) == 0 ? 0 : len - 1] = (uint8_t)oc_rng_below(rng, 6);
    return len;
}

struct oc_span key_make(struct oc_rng *rng, enum key_shape shape, uint8_t *buf) {
    char text[80];
    size_t len;

    switch (shape) {
    case SHAPE_TWO_LETTERS:
        return oc_span(buf, fill_of_two(rng, buf, 12, 'a', 'b'));
    case SHAPE_ZERO_AND_FF:
        return oc_span(buf, fill_of_two(rng, buf, 9, 0, 0xff));
    case SHAPE_LONG_PREFIX:
        return oc_span(buf, long_prefix(rng, buf));
    case SHAPE_ONE_LETTER:
        return oc_span(buf, fill_of_two(rng, buf, 300, 0, 0));
    case SHAPE_RANDOM:
        len = 1 + oc_rng_below(rng, 300);
        for (size_t i = 0; i < len; i++) {
            buf[i] = (uint8_t)oc_rng_next(rng);
        }
        return oc_span(buf, len);
    case SHAPE_TENANTS:
        (void)snprintf(text, sizeof text,
                       "bucket/tenant-%06u/object-%012u/v1-xxxxxxxxxxxxxxxxxxxxx",
                       (unsigned)oc_rng_below(rng, 30), (unsigned)oc_rng_below(rng, 200));
        memcpy(buf, text, 64);
        return oc_span(buf, 64);
    case SHAPE_GAP:
        (void)snprintf(text, sizeof text, "%02u------fixed-gap------%02u",
                       (unsigned)oc_rng_below(rng, 100), (unsigned)oc_rng_below(rng, 100));
        len = strlen(text);
        memcpy(buf, text, len);
        return oc_span(buf, len);
    default:
        return oc_span(buf, class_edge(rng, buf));
    }
}

struct oc_entry entry_make(struct oc_rng *rng, uint64_t versions) {
    struct oc_entry e = {
        .version = oc_rng_below(rng, versions),
        .value_len = oc_rng_next(rng) >> 16,
        .segment = (uint32_t)oc_rng_next(rng),
        .offset = (uint32_t)oc_rng_next(rng),
        .flags = (uint8_t)oc_rng_below(rng, 8),
    };

    if (oc_rng_below(rng, 2) == 0) {
        e.expires_at_s = (uint32_t)oc_rng_next(rng);
    }
    return e;
}
