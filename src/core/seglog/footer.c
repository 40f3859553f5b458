/* Segment footers: builder, encoder, decoder.
 *
 * Two equal copies follow the records, each: entries | zeros to 8 | trailer (64 bytes). Each
 * trailer says where everything is, so any valid trailer together with any valid copy of the
 * entries will do. The second trailer is the file's last 64 bytes; when it is damaged the first is
 * searched for, which the salted checksum makes safe. Lengths must add up to the file's size, so a
 * truncated file has no footer.
 *
 * Entries are left out when two copies would exceed 2 % of the record bytes. Why 2 %: bytes written
 * per byte put (key and value) must stay within 1.1 at 4 KiB values and 1.6 at 100 B. With 33-byte
 * keys a record is 4168 bytes for 4129 put (1.009) or 168 for 133 (1.263). Footers of at most 2 %
 * make that 1.030 and 1.288, which leaves checkpoints 7 % and 24 % of the log. Without the rule two
 * entries of 41 bytes per record of 168 would alone add 49 % at 100 B: 1.88. */
#include "core/seglog/format.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/plant.h"
#include "core/seglog/keydelta.h"
#include "core/seglog/varint.h"

#define TRAILER_BYTES 64u
#define HAS_ENTRIES   1u
/* One copy may take a hundredth, so two take 2 %. */
#define ENTRIES_SHARE 100u
/* While a segment fills, its first records may be smaller than the average: only entries this far
 * above their share are given up early. */
#define ENTRIES_SLACK 65536u
#define ENTRIES_MAX   ((size_t)1 << 29)

/* The control byte of an entry. */
#define KIND_MASK   7u
#define HAS_GAP     8u /* records do not follow each other directly: a MARK or damage is between */
#define HAS_EXPIRY  16u
#define CONTROL_ALL (KIND_MASK | HAS_GAP | HAS_EXPIRY)

struct trailer {
    uint64_t magic;
    uint32_t segment;
    uint32_t flags;
    uint64_t data_end;
    uint64_t records;
    uint64_t entries_len; /* without the zeros behind */
    uint64_t mark_offset;
    uint32_t mark_segment;
    uint32_t entries_crc; /* of entries and zeros, seeded by the salt */
    uint32_t zero;
    uint32_t crc; /* of all before, seeded by the salt */
};
static_assert(sizeof(struct trailer) == TRAILER_BYTES, "disk layout");

/* What an entry is a difference to. */
struct entry_base {
    uint64_t end; /* where the record before ended */
    uint64_t version;
    uint64_t expires_at_s;
};

struct oc_footer_builder {
    struct oc_buf entries;
    struct oc_keydelta key;
    struct entry_base base;
    uint64_t records;
    uint64_t record_bytes; /* MARKs included */
    uint64_t end;          /* of the last record, MARKs included */
    struct oc_log_pos mark;
    bool summary_only;
};

struct oc_footer_builder *oc_footer_new(void) {
    struct oc_footer_builder *b = calloc(1, sizeof *b);

    if (b == NULL || !oc_keydelta_init(&b->key)) {
        free(b);
        return NULL;
    }
    oc_buf_init(&b->entries, ENTRIES_MAX);
    b->base.end = b->end = OC_SEG_HEADER_BYTES;
    return b;
}

void oc_footer_free(struct oc_footer_builder *b) {
    if (b != NULL) {
        oc_buf_done(&b->entries);
        oc_keydelta_done(&b->key);
        free(b);
    }
}

static void give_entries_up(struct oc_footer_builder *b) {
    b->summary_only = true;
    oc_buf_done(&b->entries);
}

static void add_entry(struct oc_footer_builder *b, uint64_t offset, const struct oc_record *r) {
    uint64_t gap = (offset - b->base.end) / 8;
    unsigned control = r->kind;

    if (oc_buf_reserve(&b->entries, 1 + 6 * OC_VARINT_MAX + r->key.len) < 0) {
        give_entries_up(b);
        return;
    }
    uint8_t *start = b->entries.data + b->entries.len;
    uint8_t *to = start + 1;

    if (gap > 0) {
        control |= HAS_GAP;
        to = oc_varint_put(to, gap);
    }
    to = oc_varint_put(to, oc_zigzag(b->base.version, r->version));
    if (r->kind != OC_REC_TOMBSTONE) {
        to = oc_varint_put(to, r->object_len);
    }
    if (r->expires_at_s != 0) {
        control |= HAS_EXPIRY;
        to = oc_varint_put(to, oc_zigzag(b->base.expires_at_s, r->expires_at_s));
        b->base.expires_at_s = r->expires_at_s;
    }
    to = oc_keydelta_put(&b->key, to, r->key);
    *start = (uint8_t)control;
    b->entries.len += (size_t)(to - start);
    b->base.version = r->version;
    b->base.end = b->end;
}

int oc_footer_add(struct oc_footer_builder *b, uint64_t offset, const struct oc_record *r) {
    uint64_t total = oc_rec_total(r->key.len, oc_rec_value_len(r->kind, r->object_len));

    OC_CHECK(offset % 8 == 0 && offset >= b->end);
    b->end = offset + total;
    b->record_bytes += total;
    if (r->kind == OC_REC_MARK) {
        struct oc_mark mark;

        if (oc_rec_mark(r, &mark)) {
            b->mark = oc_log_pos_max(b->mark, (struct oc_log_pos){mark.segment, mark.offset});
        }
        return OC_OK;
    }
    b->records++;
    if (!b->summary_only) {
        add_entry(b, offset, r);
        if (b->entries.len > b->record_bytes / ENTRIES_SHARE + ENTRIES_SLACK) {
            give_entries_up(b);
        }
    }
    return OC_OK;
}

static size_t padded(uint64_t len) {
    return ((size_t)len + 7) & ~(size_t)7;
}

static uint32_t salted_crc(uint64_t salt, const void *p, size_t len) {
    return oc_crc32c(oc_crc32c(0, &salt, sizeof salt), p, len);
}

int oc_footer_encode(struct oc_footer_builder *b, uint64_t salt, uint32_t segment,
                     uint64_t data_end, struct oc_buf *out) {
    static const uint8_t zeros[8] = {0};
    bool with_entries =
        !b->summary_only && b->entries.len <= b->record_bytes / ENTRIES_SHARE && b->records > 0;
    size_t len = with_entries ? b->entries.len : 0;
    size_t copy = padded(len) + TRAILER_BYTES;
    int rc;

    OC_CHECK(data_end % 8 == 0 && data_end >= b->end);
    if ((rc = oc_buf_reserve(out, 2 * copy)) < 0) {
        return rc;
    }
    struct trailer t = {.magic = OC_FOOT_MAGIC,
                        .segment = segment,
                        .flags = with_entries ? HAS_ENTRIES : 0,
                        .data_end = data_end,
                        .records = b->records,
                        .entries_len = len,
                        .mark_offset = b->mark.offset,
                        .mark_segment = b->mark.segment};

    t.entries_crc = oc_crc32c(salted_crc(salt, b->entries.data, len), zeros, padded(len) - len);
    t.crc = salted_crc(salt, &t, offsetof(struct trailer, crc));
    for (int i = 0; i < 2; i++) {
        /* Reserved above: cannot fail. */
        (void)oc_buf_append(out, b->entries.data, len);
        (void)oc_buf_append(out, zeros, padded(len) - len);
        (void)oc_buf_append(out, &t, sizeof t);
    }
    return OC_OK;
}

/* The most that both copies take in a file of this size. */
static uint64_t footer_max(uint64_t file_bytes) {
    uint64_t max = 2 * (TRAILER_BYTES + 8 + file_bytes / ENTRIES_SHARE);

    return ((max < file_bytes ? max : file_bytes) + 7) & ~UINT64_C(7);
}

/* Is there a trailer at file position `at`, in `bytes`, that belongs there? */
static bool trailer_decode(const uint8_t *bytes, uint64_t at, uint64_t file_bytes, uint64_t salt,
                           uint32_t segment, struct trailer *ret) {
    struct trailer t;

    if (oc_load64(bytes) != OC_FOOT_MAGIC) {
        return false;
    }
    memcpy(&t, bytes, sizeof t);
    if (!OC_PLANT(TRUST_FOOTER) &&
        t.crc != salted_crc(salt, bytes, offsetof(struct trailer, crc))) {
        return false;
    }
    /* The first two keep the sums behind them from wrapping. */
    if (t.entries_len > file_bytes / 2 || t.data_end > file_bytes || t.segment != segment ||
        t.data_end < OC_SEG_HEADER_BYTES || t.data_end % 8 != 0 || (t.flags & ~HAS_ENTRIES) != 0 ||
        t.data_end + 2 * (padded(t.entries_len) + (uint64_t)TRAILER_BYTES) != file_bytes) {
        return false;
    }
    if (at != file_bytes - TRAILER_BYTES && at != t.data_end + padded(t.entries_len)) {
        return false;
    }
    *ret = t;
    return true;
}

/* Search the tail backwards for a trailer. */
static bool trailer_find(struct oc_span tail, uint64_t file_bytes, uint64_t salt, uint32_t segment,
                         struct trailer *ret) {
    for (size_t back = TRAILER_BYTES; back <= tail.len; back += 8) {
        if (trailer_decode(tail.p + tail.len - back, file_bytes - back, file_bytes, salt, segment,
                           ret)) {
            return true;
        }
    }
    return false;
}

/* Verify the copy of the entries that ends `back` bytes before the end of the file. */
static bool entries_ok(struct oc_span tail, size_t back, const struct trailer *t, uint64_t salt,
                       struct oc_span *ret) {
    size_t len = padded(t->entries_len);

    OC_CHECK(back + len <= tail.len);
    const uint8_t *p = tail.p + tail.len - back - len;

    if (!OC_PLANT(TRUST_FOOTER) && salted_crc(salt, p, len) != t->entries_crc) {
        return false;
    }
    *ret = oc_span(p, (size_t)t->entries_len);
    return true;
}

static int again(uint64_t bytes, size_t *need) {
    *need = (size_t)bytes;
    return OC_AGAIN;
}

int oc_footer_decode(struct oc_span tail, uint64_t file_bytes, uint64_t salt, uint32_t segment,
                     struct oc_footer_info *ret, size_t *need) {
    uint64_t max = footer_max(file_bytes);
    struct oc_span entries;
    struct trailer t;

    OC_CHECK(tail.len <= file_bytes);
    if (file_bytes % 8 != 0 || file_bytes > INT64_MAX ||
        file_bytes < OC_SEG_HEADER_BYTES + 2 * TRAILER_BYTES) {
        return OC_E_DATA_LOSS;
    }
    if (tail.len < TRAILER_BYTES) {
        return again(TRAILER_BYTES, need);
    }
    if (!trailer_decode(tail.p + tail.len - TRAILER_BYTES, file_bytes - TRAILER_BYTES, file_bytes,
                        salt, segment, &t)) {
        if (tail.len < max) {
            return again(max, need);
        }
        size_t skip = tail.len - (size_t)max;
        if (!trailer_find(oc_span(tail.p + skip, (size_t)max), file_bytes, salt, segment, &t)) {
            return OC_E_DATA_LOSS;
        }
    }
    size_t copy = padded(t.entries_len) + TRAILER_BYTES;

    if (tail.len < copy) {
        return again(copy, need);
    }
    if (!entries_ok(tail, TRAILER_BYTES, &t, salt, &entries)) {
        if (tail.len < 2 * copy) {
            return again(2 * copy, need);
        }
        if (!entries_ok(tail, copy + TRAILER_BYTES, &t, salt, &entries)) {
            return OC_E_DATA_LOSS;
        }
    }
    *ret = (struct oc_footer_info){.data_end = t.data_end,
                                   .records = t.records,
                                   .has_entries = (t.flags & HAS_ENTRIES) != 0,
                                   .entries = entries,
                                   .mark = {t.mark_segment, t.mark_offset}};
    return OC_OK;
}

/* Take one entry from the front of `s`; everything it says must be possible in this segment. */
static bool take_entry(struct oc_span *s, struct oc_keydelta *key, struct entry_base *base,
                       uint64_t data_end, uint64_t *offset, struct oc_record *ret) {
    uint64_t gap = 0, version, object_len = 0, expires = 0;
    uint8_t control;

    if (s->len == 0) {
        return false;
    }
    control = s->p[0];
    s->p++;
    s->len--;
    unsigned kind = control & KIND_MASK;

    if ((control & ~CONTROL_ALL) != 0 || kind < OC_REC_PUT || kind > OC_REC_TOMBSTONE ||
        ((control & HAS_GAP) != 0 && (!oc_varint_take(s, &gap) || gap == 0)) ||
        !oc_varint_take(s, &version) ||
        (kind != OC_REC_TOMBSTONE && !oc_varint_take(s, &object_len))) {
        return false;
    }
    if ((control & HAS_EXPIRY) != 0) {
        if (!oc_varint_take(s, &expires)) {
            return false;
        }
        expires = oc_unzigzag(base->expires_at_s, expires);
        base->expires_at_s = expires;
        if (expires == 0 || expires > UINT32_MAX || kind == OC_REC_TOMBSTONE) {
            return false;
        }
    }
    if (!oc_keydelta_take(key, s, false) ||
        object_len > (kind == OC_REC_PUT ? OC_INLINE_MAX : OC_FILE_LEN_MAX)) {
        return false;
    }
    uint64_t value_len = oc_rec_value_len((enum oc_rec_kind)kind, object_len);
    uint64_t total = oc_rec_total(key->len, value_len);

    /* base->end <= data_end always holds. */
    if (gap > (data_end - base->end) / 8 || total > data_end - base->end - gap * 8) {
        return false;
    }
    *offset = base->end + gap * 8;
    base->version = oc_unzigzag(base->version, version);
    base->end = *offset + total;
    *ret = (struct oc_record){.kind = (enum oc_rec_kind)kind,
                              .key = oc_keydelta_span(key),
                              .value_len = value_len,
                              .object_len = object_len,
                              .version = base->version,
                              .expires_at_s = (uint32_t)expires,
                              .total_len = total};
    return true;
}

int oc_footer_each(const struct oc_footer_info *f,
                   int (*each)(void *arg, uint64_t offset, const struct oc_record *r), void *arg) {
    struct entry_base base = {.end = OC_SEG_HEADER_BYTES};
    struct oc_span left = f->entries;
    struct oc_keydelta key;
    uint64_t count = 0;
    int rc = OC_OK;

    if (!f->has_entries) {
        return OC_OK;
    }
    if (!oc_keydelta_init(&key)) {
        return OC_E_EXHAUSTED;
    }
    for (; rc == OC_OK && left.len > 0; count++) {
        struct oc_record r;
        uint64_t offset;

        if (!take_entry(&left, &key, &base, f->data_end, &offset, &r)) {
            rc = OC_E_DATA_LOSS;
            break;
        }
        rc = each(arg, offset, &r);
    }
    oc_keydelta_done(&key);
    if (rc == OC_OK && count != f->records) {
        rc = OC_E_DATA_LOSS;
    }
    return rc;
}
