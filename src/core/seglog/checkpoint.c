/* Checkpoints: header, blocks of entries, trailer block.
 *
 * A block is a header of 32 bytes, entries, zeros to 8; its checksum is seeded with the file's
 * salt, so a block left over from another checkpoint never fits, and covers the block's index, so
 * that blocks cannot be swapped, repeated or left out. Entries are differences to the entry before
 * in the same block: keys by shared prefix, versions and expiry by difference, so that with 33-byte
 * keys an entry takes about 45 bytes (61 would be plain). */
#include "core/seglog/format.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "core/seglog/keydelta.h"
#include "core/seglog/varint.h"

#define BLOCK_HEADER_BYTES OC_CKPT_BLOCK_HEADER
#define TRAILER_BLOCK      1u /* block_header.flags */

/* The control byte of an entry. */
#define FLAGS_MASK   31u
#define HAS_EXPIRY   32u
#define SAME_SEGMENT 64u

struct block_header {
    uint32_t crc;         /* seeded by the salt; of the rest of the block, zeros included */
    uint32_t block_bytes; /* header and zeros included */
    uint64_t index;
    uint32_t shard;
    uint32_t entries;
    uint32_t payload_len; /* without the zeros */
    uint32_t flags;
};
static_assert(sizeof(struct block_header) == BLOCK_HEADER_BYTES, "disk layout");

struct trailer_payload {
    uint64_t entries;
    uint64_t blocks;
    uint32_t through_segment;
    uint32_t zero;
    uint64_t through_offset;
};
static_assert(sizeof(struct trailer_payload) == 32, "disk layout");

/* What an entry is a difference to. */
struct entry_base {
    uint64_t version;
    uint64_t segment;
    uint64_t expires_at_s;
};

struct oc_ckpt_writer {
    int (*write)(void *arg, struct oc_span bytes);
    void *arg;
    struct oc_ckpt_header header;
    struct oc_log_pos through;
    int failed; /* what every further call returns */
    bool header_written;
    uint32_t shard;
    uint64_t blocks;
    uint64_t entries;
    bool key_seen; /* in this shard; `key` is kept across blocks to check the order */
    struct oc_keydelta key;
    struct entry_base base;
    uint32_t block_entries;
    size_t len; /* of the block so far, header included */
    uint8_t block[OC_CKPT_BLOCK_MAX];
};

/* ---- header: written field by field, for struct oc_log_pos has padding ---- */
static void header_encode(uint8_t to[OC_CKPT_HEADER_BYTES], const struct oc_ckpt_header *h) {
    memset(to, 0, OC_CKPT_HEADER_BYTES);
    oc_store64(to, OC_CKPT_MAGIC);
    oc_store32(to + 8, OC_FORMAT_VERSION);
    oc_store32(to + 12, h->shards);
    oc_store64(to + 16, h->salt);
    oc_store32(to + 24, h->from.segment);
    oc_store64(to + 32, h->from.offset);
    oc_store64(to + 40, h->version_ceiling);
    memcpy(to + 48, h->boot_id, sizeof h->boot_id);
    oc_store32(to + 68, oc_crc32c(0, to, 68));
}

int oc_ckpt_header_decode(struct oc_span bytes, struct oc_ckpt_header *ret, struct oc_error *err) {
    const uint8_t *p = bytes.p;

    if (bytes.len < OC_CKPT_HEADER_BYTES) {
        return oc_error_set(err, OC_E_DATA_LOSS, "checkpoint header is cut short: %zu of %u bytes",
                            bytes.len, OC_CKPT_HEADER_BYTES);
    }
    if (oc_load64(p) != OC_CKPT_MAGIC || oc_load32(p + 28) != 0 || oc_load32(p + 64) != 0 ||
        oc_load32(p + 68) != oc_crc32c(0, p, 68)) {
        return oc_error_set(err, OC_E_DATA_LOSS, "not a checkpoint header, or a damaged one");
    }
    if (oc_load32(p + 8) != OC_FORMAT_VERSION) {
        return oc_error_set(err, OC_E_UNIMPLEMENTED,
                            "checkpoint has format %u; this program reads format %u (use a newer "
                            "release, or another directory)",
                            oc_load32(p + 8), OC_FORMAT_VERSION);
    }
    *ret = (struct oc_ckpt_header){.magic = OC_CKPT_MAGIC,
                                   .format = OC_FORMAT_VERSION,
                                   .shards = oc_load32(p + 12),
                                   .salt = oc_load64(p + 16),
                                   .from = {oc_load32(p + 24), oc_load64(p + 32)},
                                   .version_ceiling = oc_load64(p + 40),
                                   .crc = oc_load32(p + 68)};
    memcpy(ret->boot_id, p + 48, sizeof ret->boot_id);
    return OC_OK;
}

static uint32_t block_crc(uint64_t salt, const uint8_t *block, size_t len) {
    return oc_crc32c(oc_crc32c(0, &salt, sizeof salt), block + sizeof(uint32_t),
                     len - sizeof(uint32_t));
}

/* ---- writer ---- */
static void block_begin(struct oc_ckpt_writer *w) {
    w->len = BLOCK_HEADER_BYTES;
    w->block_entries = 0;
    w->base = (struct entry_base){0};
}

struct oc_ckpt_writer *oc_ckpt_writer_new(const struct oc_ckpt_header *h,
                                          int (*write)(void *arg, struct oc_span bytes),
                                          void *arg) {
    struct oc_ckpt_writer *w = calloc(1, sizeof *w);

    if (w == NULL || !oc_keydelta_init(&w->key)) {
        free(w);
        return NULL;
    }
    w->write = write;
    w->arg = arg;
    w->header = *h;
    w->through = h->from;
    block_begin(w);
    return w;
}

void oc_ckpt_writer_free(struct oc_ckpt_writer *w) {
    if (w != NULL) {
        oc_keydelta_done(&w->key);
        free(w);
    }
}

static int hand_over(struct oc_ckpt_writer *w, const uint8_t *p, size_t len) {
    if (w->failed == 0 && !w->header_written) {
        uint8_t header[OC_CKPT_HEADER_BYTES];

        header_encode(header, &w->header);
        w->header_written = true;
        w->failed = w->write(w->arg, oc_span(header, sizeof header));
    }
    if (w->failed == 0) {
        w->failed = w->write(w->arg, oc_span(p, len));
    }
    return w->failed;
}

static int block_end(struct oc_ckpt_writer *w, uint32_t flags) {
    struct block_header h = {.index = w->blocks,
                             .shard = w->shard,
                             .entries = w->block_entries,
                             .payload_len = (uint32_t)(w->len - BLOCK_HEADER_BYTES),
                             .flags = flags};

    while (w->len % 8 != 0) {
        w->block[w->len++] = 0;
    }
    h.block_bytes = (uint32_t)w->len;
    memcpy(w->block, &h, sizeof h);
    oc_store32(w->block, block_crc(w->header.salt, w->block, w->len));
    int rc = hand_over(w, w->block, w->len);
    w->blocks++;
    w->entries += w->block_entries;
    block_begin(w);
    return rc;
}

int oc_ckpt_writer_shard(struct oc_ckpt_writer *w, uint32_t shard) {
    if (w->failed == 0 && w->block_entries > 0) {
        (void)block_end(w, 0); /* its failure is kept in w->failed */
    }
    w->shard = shard;
    w->key_seen = false;
    return w->failed;
}

static uint8_t *entry_put(struct oc_ckpt_writer *w, uint8_t *to, const struct oc_ckpt_entry *e) {
    uint8_t *control = to++;

    *control = e->flags;
    to = oc_keydelta_put(&w->key, to, e->key);
    to = oc_varint_put(to, oc_zigzag(w->base.version, e->version));
    to = oc_varint_put(to, e->value_len);
    if (e->segment == w->base.segment) {
        *control |= SAME_SEGMENT;
    } else {
        to = oc_varint_put(to, oc_zigzag(w->base.segment, e->segment));
    }
    to = oc_varint_put(to, e->offset);
    if (e->expires_at_s != 0) {
        *control |= HAS_EXPIRY;
        to = oc_varint_put(to, oc_zigzag(w->base.expires_at_s, e->expires_at_s));
        w->base.expires_at_s = e->expires_at_s;
    }
    w->base.version = e->version;
    w->base.segment = e->segment;
    return to;
}

int oc_ckpt_writer_add(struct oc_ckpt_writer *w, const struct oc_ckpt_entry *e) {
    size_t room = 1 + 7 * OC_VARINT_MAX + e->key.len + 7; /* what it may take at most, and zeros */

    if (w->failed != 0) {
        return w->failed;
    }
    if (!OC_COUNT(e->key.len >= 1 && e->key.len <= OC_KEY_MAX && e->flags <= FLAGS_MASK &&
                  (!w->key_seen || oc_span_compare(oc_keydelta_span(&w->key), e->key) < 0))) {
        w->failed = OC_E_INVALID;
        return w->failed;
    }
    if (w->block_entries > 0 && room > sizeof w->block - w->len && block_end(w, 0) != 0) {
        return w->failed;
    }
    if (w->block_entries == 0) {
        w->key.len = 0;
    }
    uint8_t *end = entry_put(w, w->block + w->len, e);
    w->len = (size_t)(end - w->block);
    w->block_entries++;
    w->key_seen = true;
    return OC_OK;
}

void oc_ckpt_writer_through(struct oc_ckpt_writer *w, struct oc_log_pos through) {
    w->through = oc_log_pos_max(w->through, through);
}

int oc_ckpt_writer_done(struct oc_ckpt_writer *w) {
    if (w->failed == 0 && w->block_entries > 0) {
        (void)block_end(w, 0); /* its failure is kept in w->failed */
    }
    if (w->failed != 0) {
        return w->failed;
    }
    struct trailer_payload t = {.entries = w->entries,
                                .blocks = w->blocks,
                                .through_segment = w->through.segment,
                                .through_offset = w->through.offset};

    w->shard = 0;
    memcpy(w->block + BLOCK_HEADER_BYTES, &t, sizeof t);
    w->len = BLOCK_HEADER_BYTES + sizeof t;
    return block_end(w, TRAILER_BLOCK);
}

/* ---- reader ---- */

/* Verify the block at `bytes`. Returns as oc_ckpt_block_decode. */
static int block_open(struct oc_span bytes, const struct oc_ckpt_header *h, uint64_t block_index,
                      struct block_header *ret, size_t *need) {
    struct block_header b;

    if (bytes.len < BLOCK_HEADER_BYTES) {
        *need = BLOCK_HEADER_BYTES;
        return OC_AGAIN;
    }
    memcpy(&b, bytes.p, sizeof b);
    if (b.block_bytes < BLOCK_HEADER_BYTES || b.block_bytes > OC_CKPT_BLOCK_MAX ||
        b.block_bytes % 8 != 0 || b.payload_len > b.block_bytes - BLOCK_HEADER_BYTES ||
        b.block_bytes - BLOCK_HEADER_BYTES - b.payload_len >= 8 || b.index != block_index ||
        (b.flags & ~TRAILER_BLOCK) != 0) {
        return OC_E_DATA_LOSS;
    }
    if (bytes.len < b.block_bytes) {
        *need = b.block_bytes;
        return OC_AGAIN;
    }
    if (b.crc != block_crc(h->salt, bytes.p, b.block_bytes)) {
        return OC_E_DATA_LOSS;
    }
    for (uint32_t i = BLOCK_HEADER_BYTES + b.payload_len; i < b.block_bytes; i++) {
        if (bytes.p[i] != 0) {
            return OC_E_DATA_LOSS;
        }
    }
    bool is_trailer = (b.flags & TRAILER_BLOCK) != 0;

    if (is_trailer
            ? b.entries != 0 || b.shard != 0 || b.payload_len != sizeof(struct trailer_payload)
            : b.entries == 0 || b.shard >= h->shards) {
        return OC_E_DATA_LOSS;
    }
    *ret = b;
    return OC_OK;
}

int oc_ckpt_block_peek(struct oc_span bytes, size_t *block_bytes, uint32_t *shard, bool *last) {
    struct block_header b;

    if (bytes.len < sizeof b) {
        return OC_E_DATA_LOSS;
    }
    memcpy(&b, bytes.p, sizeof b);
    if (b.block_bytes < BLOCK_HEADER_BYTES || b.block_bytes > OC_CKPT_BLOCK_MAX) {
        return OC_E_DATA_LOSS;
    }
    *block_bytes = b.block_bytes;
    *shard = b.shard;
    *last = (b.flags & TRAILER_BLOCK) != 0;
    return OC_OK;
}

static bool take_entry(struct oc_span *s, struct oc_keydelta *key, struct entry_base *base,
                       struct oc_ckpt_entry *ret) {
    uint64_t version, value_len, segment = base->segment, offset, expires = 0;
    uint8_t control;

    if (s->len == 0) {
        return false;
    }
    control = s->p[0];
    s->p++;
    s->len--;
    if ((control & ~(FLAGS_MASK | HAS_EXPIRY | SAME_SEGMENT)) != 0 ||
        !oc_keydelta_take(key, s, true) || !oc_varint_take(s, &version) ||
        !oc_varint_take(s, &value_len)) {
        return false;
    }
    if ((control & SAME_SEGMENT) == 0) {
        if (!oc_varint_take(s, &segment) || segment == 0) {
            return false;
        }
        segment = oc_unzigzag(base->segment, segment);
    }
    if (!oc_varint_take(s, &offset) || segment > UINT32_MAX || offset > UINT32_MAX) {
        return false;
    }
    if ((control & HAS_EXPIRY) != 0) {
        if (!oc_varint_take(s, &expires)) {
            return false;
        }
        expires = oc_unzigzag(base->expires_at_s, expires);
        if (expires == 0 || expires > UINT32_MAX) {
            return false;
        }
        base->expires_at_s = expires;
    }
    base->version = oc_unzigzag(base->version, version);
    base->segment = segment;
    *ret = (struct oc_ckpt_entry){.key = oc_keydelta_span(key),
                                  .version = base->version,
                                  .value_len = value_len,
                                  .segment = (uint32_t)segment,
                                  .offset = (uint32_t)offset,
                                  .expires_at_s = (uint32_t)expires,
                                  .flags = control & FLAGS_MASK};
    return true;
}

static int each_entry(struct oc_span payload, const struct block_header *b,
                      int (*each)(void *arg, uint32_t shard, const struct oc_ckpt_entry *e),
                      void *arg) {
    struct entry_base base = {0};
    struct oc_keydelta key;
    int rc = OC_OK;

    if (!oc_keydelta_init(&key)) {
        return OC_E_EXHAUSTED;
    }
    for (uint32_t i = 0; rc == OC_OK && i < b->entries; i++) {
        struct oc_ckpt_entry e;

        rc = take_entry(&payload, &key, &base, &e) ? each(arg, b->shard, &e) : OC_E_DATA_LOSS;
    }
    oc_keydelta_done(&key);
    if (rc == OC_OK && payload.len != 0) {
        rc = OC_E_DATA_LOSS;
    }
    return rc;
}

int oc_ckpt_block_decode(struct oc_span bytes, const struct oc_ckpt_header *h, uint64_t block_index,
                         uint32_t *shard, bool *last, size_t *used, size_t *need,
                         int (*each)(void *arg, uint32_t shard, const struct oc_ckpt_entry *e),
                         void *arg) {
    struct oc_ckpt_trailer t;
    struct block_header b;
    int rc = block_open(bytes, h, block_index, &b, need);

    if (rc != OC_OK) {
        return rc;
    }
    if ((b.flags & TRAILER_BLOCK) != 0) {
        rc = oc_ckpt_trailer_decode(bytes, h, block_index, &t);
    } else if (each != NULL) {
        rc = each_entry(oc_span(bytes.p + BLOCK_HEADER_BYTES, b.payload_len), &b, each, arg);
    }
    if (rc == OC_OK) {
        *shard = b.shard;
        *last = (b.flags & TRAILER_BLOCK) != 0;
        *used = b.block_bytes;
    }
    return rc;
}

int oc_ckpt_trailer_decode(struct oc_span bytes, const struct oc_ckpt_header *h,
                           uint64_t block_index, struct oc_ckpt_trailer *ret) {
    struct trailer_payload t;
    struct block_header b;
    size_t need;

    if (block_open(bytes, h, block_index, &b, &need) != OC_OK || (b.flags & TRAILER_BLOCK) == 0) {
        return OC_E_DATA_LOSS;
    }
    memcpy(&t, bytes.p + BLOCK_HEADER_BYTES, sizeof t);
    struct oc_log_pos through = {t.through_segment, t.through_offset};

    if (t.zero != 0 || t.blocks != block_index || oc_log_pos_compare(through, h->from) < 0) {
        return OC_E_DATA_LOSS;
    }
    *ret = (struct oc_ckpt_trailer){.entries = t.entries, .blocks = t.blocks, .through = through};
    return OC_OK;
}
