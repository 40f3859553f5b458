/* Records, segment headers and value file chunks.
 *
 * Checksums are bound to a place by feeding that place into them first: salt and offset for a
 * record, file and index for a chunk. CRC32C finds every difference that lies within 32 bits, so
 * two offsets below 4 GiB of one segment never share a checksum by chance; across segments and for
 * forgeries the salt, which nobody outside learns, leaves one chance in 2^32. */
#include "core/seglog/format.h"

#include <string.h>

#include "base/check.h"
#include "base/hash.h"

static bool fields_ok(unsigned kind, uint64_t key_len, uint64_t object_len, uint32_t expires_at_s) {
    switch (kind) {
    case OC_REC_PUT:
        return key_len >= 1 && key_len <= OC_KEY_MAX && object_len <= OC_INLINE_MAX;
    case OC_REC_FILE:
        return key_len >= 1 && key_len <= OC_KEY_MAX && object_len <= OC_FILE_LEN_MAX;
    case OC_REC_TOMBSTONE:
        return key_len >= 1 && key_len <= OC_KEY_MAX && object_len == 0 && expires_at_s == 0;
    case OC_REC_MARK:
        return key_len == 0 && object_len == 0 && expires_at_s == 0;
    default:
        return false;
    }
}

/* `head` starts with head_crc, which is left out. */
static uint32_t head_crc(const uint8_t *head, struct oc_span key, uint64_t salt, uint64_t offset) {
    uint64_t place[2] = {salt, offset};
    uint32_t crc = oc_crc32c(0, place, sizeof place);

    crc = oc_crc32c(crc, head + sizeof(uint32_t), OC_REC_HEADER_BYTES - sizeof(uint32_t));
    return oc_crc32c(crc, key.p, key.len);
}

void oc_rec_encode(void *dst, uint64_t salt, uint64_t offset, const struct oc_record *r) {
    uint8_t *to = dst;
    uint32_t value_crc = r->value_crc;
    struct oc_rec_header h = {
        .version = r->version,
        .object_len = r->object_len,
        .expires_at_s = r->expires_at_s,
        .key_len = (uint16_t)r->key.len,
        .kind = (uint8_t)r->kind,
    };

    OC_CHECK(fields_ok(r->kind, r->key.len, r->object_len, r->expires_at_s));
    OC_CHECK((offset & 7) == 0);
    if (r->kind != OC_REC_PUT) {
        OC_CHECK(r->value.len == oc_rec_value_len(r->kind, r->object_len));
        value_crc = oc_crc32c(0, r->value.p, r->value.len);
    }
    h.value_crc = value_crc ^ OC_VALUE_CRC_MASK;
    memcpy(to, &h, sizeof h);
    if (r->key.len > 0) {
        memcpy(to + sizeof h, r->key.p, r->key.len);
    }
    oc_store32(to, head_crc(to, r->key, salt, offset));
}

int oc_rec_decode(struct oc_span bytes, uint64_t salt, uint64_t offset, uint64_t segment_bytes,
                  struct oc_record *ret, size_t *need) {
    struct oc_rec_header h;

    if ((offset & 7) != 0 || offset > segment_bytes ||
        segment_bytes - offset < OC_REC_HEADER_BYTES) {
        return OC_E_DATA_LOSS;
    }
    if (bytes.len < OC_REC_HEADER_BYTES) {
        *need = OC_REC_HEADER_BYTES;
        return OC_AGAIN;
    }
    memcpy(&h, bytes.p, sizeof h);
    if (h.zero != 0 || !fields_ok(h.kind, h.key_len, h.object_len, h.expires_at_s)) {
        return OC_E_DATA_LOSS;
    }
    enum oc_rec_kind kind = (enum oc_rec_kind)h.kind;
    uint64_t value_len = oc_rec_value_len(kind, h.object_len);
    uint64_t total_len = oc_rec_total(h.key_len, value_len);
    size_t head_len = OC_REC_HEADER_BYTES + (size_t)h.key_len;

    if (total_len > segment_bytes - offset) {
        return OC_E_DATA_LOSS;
    }
    if (bytes.len < head_len) {
        *need = head_len;
        return OC_AGAIN;
    }
    struct oc_span key = oc_span(bytes.p + OC_REC_HEADER_BYTES, h.key_len);

    if (head_crc(bytes.p, key, salt, offset) != h.head_crc) {
        return OC_E_DATA_LOSS;
    }
    size_t at_hand = bytes.len - head_len;

    *ret = (struct oc_record){
        .kind = kind,
        .key = key,
        .value = oc_span(bytes.p + head_len, at_hand < value_len ? at_hand : (size_t)value_len),
        .value_len = value_len,
        .object_len = h.object_len,
        .version = h.version,
        .expires_at_s = h.expires_at_s,
        .value_crc = h.value_crc ^ OC_VALUE_CRC_MASK,
        .total_len = total_len,
    };
    return OC_OK;
}

bool oc_rec_value_ok(const struct oc_record *r) {
    if (r->value.len != oc_rec_value_len(r->kind, r->object_len) ||
        oc_crc32c(0, r->value.p, r->value.len) != r->value_crc) {
        return false;
    }
    if (r->kind == OC_REC_FILE) {
        struct oc_file_ref ref;

        memcpy(&ref, r->value.p, sizeof ref);
        return ref.len == r->object_len && ref.chunk_bytes == OC_CHUNK_BYTES;
    }
    if (r->kind == OC_REC_MARK) {
        struct oc_mark mark;

        memcpy(&mark, r->value.p, sizeof mark);
        return mark.zero == 0;
    }
    return true;
}

bool oc_rec_file_ref(const struct oc_record *r, struct oc_file_ref *ret) {
    if (r->kind != OC_REC_FILE || !oc_rec_value_ok(r)) {
        return false;
    }
    memcpy(ret, r->value.p, sizeof *ret);
    return true;
}

bool oc_rec_mark(const struct oc_record *r, struct oc_mark *ret) {
    if (r->kind != OC_REC_MARK || !oc_rec_value_ok(r)) {
        return false;
    }
    memcpy(ret, r->value.p, sizeof *ret);
    return true;
}

void oc_seg_header_encode(struct oc_seg_header *h) {
    h->magic = OC_SEG_MAGIC;
    h->format = OC_FORMAT_VERSION;
    h->crc = oc_crc32c(0, h, offsetof(struct oc_seg_header, crc));
}

int oc_seg_header_decode(struct oc_span bytes, struct oc_seg_header *ret, struct oc_error *err) {
    struct oc_seg_header h;

    if (bytes.len < sizeof h) {
        return oc_error_set(err, OC_E_DATA_LOSS, "segment header is cut short: %zu of %zu bytes",
                            bytes.len, sizeof h);
    }
    memcpy(&h, bytes.p, sizeof h);
    /* Magic, length and checksum stay as they are in every format, so that a flipped bit is never
     * mistaken for a newer one. */
    if (h.magic != OC_SEG_MAGIC ||
        h.crc != oc_crc32c(0, bytes.p, offsetof(struct oc_seg_header, crc))) {
        return oc_error_set(err, OC_E_DATA_LOSS, "not a segment header, or a damaged one");
    }
    if (h.format != OC_FORMAT_VERSION) {
        return oc_error_set(err, OC_E_UNIMPLEMENTED,
                            "segment %u has format %u; this program reads format %u (use a newer "
                            "release, or another directory)",
                            h.segment, h.format, OC_FORMAT_VERSION);
    }
    *ret = h;
    return OC_OK;
}

static uint32_t chunk_crc(uint64_t file, uint64_t index, uint32_t len, uint32_t bytes_crc) {
    /* The checksum of the bytes stands for them: a difference of 32 bits is always found. */
    uint64_t place[3] = {file, index, (uint64_t)len << 32 | bytes_crc};

    return oc_crc32c(0, place, sizeof place);
}

void oc_chunk_encode(struct oc_chunk_header *ret, uint64_t file, uint64_t index, uint32_t len,
                     uint32_t bytes_crc) {
    ret->crc = chunk_crc(file, index, len, bytes_crc);
    ret->len = len;
    ret->index = index;
}

bool oc_chunk_ok(const struct oc_chunk_header *h, uint64_t file, uint64_t index, uint32_t len,
                 uint32_t bytes_crc) {
    return h->index == index && h->len == len && h->crc == chunk_crc(file, index, len, bytes_crc);
}
