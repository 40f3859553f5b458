/* The segment log's bytes on disk, and the rules that read them back. Pure: bytes in, facts out.
 *
 * Every integer is little-endian; every structure is 8-byte aligned in its file. Checksums are
 * CRC32C.
 *
 * Version: a hybrid logical clock of 64 bits: microseconds since 1970 << 8, plus a count; the next
 * version is max(last + 1, wall_us << 8). It orders writes on one node and, once values move
 * between nodes, across them.
 *
 * Segment file "seg/<id as 16 hex digits>.seg":
 *     segment header (64 bytes) | records … | [footer entries | footer trailer] x 2
 * Record: header (32 bytes) | key | value | zero padding to 8.
 * A record's head checksum covers header and key and is seeded with the segment's salt and the
 * record's offset, so stale, moved or forged records (a value that looks like a record) are never
 * taken for one. The padding is written as zero and not looked at: a flipped bit there costs
 * nothing.
 *
 * Value file "val/<2 hex>/<id as 16 hex digits>.val": chunks, each a chunk header (16 bytes) and up
 * to OC_CHUNK_BYTES of value; all but the last are full. The log record of kind OC_REC_FILE commits
 * it. */
#ifndef OC_CORE_SEGLOG_FORMAT_H
#define OC_CORE_SEGLOG_FORMAT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/span.h"

#define OC_FORMAT_VERSION 1u
#define OC_SEG_MAGIC      UINT64_C(0x31474553434f)   /* "OCSEG1" */
#define OC_FOOT_MAGIC     UINT64_C(0x31544f4f46434f) /* "OCFOOT1" */
#define OC_CKPT_MAGIC     UINT64_C(0x3154504b43434f) /* "OCCKPT1" */

#define OC_SEG_HEADER_BYTES   64u
#define OC_REC_HEADER_BYTES   32u
#define OC_CHUNK_HEADER_BYTES 16u
#define OC_CHUNK_BYTES        262144u /* value bytes per chunk of a value file */
#define OC_INLINE_MAX         262144u /* largest value stored as one record */
#define OC_KEY_MAX            65535u
#define OC_VALUE_CRC_MASK     0x6f637643u /* so that zeros are not the checksum of nothing */
#define OC_REC_TOTAL_MAX      (OC_REC_HEADER_BYTES + OC_KEY_MAX + OC_INLINE_MAX + 7u)

enum oc_rec_kind {
    OC_REC_PUT = 1,       /* value bytes follow the key */
    OC_REC_FILE = 2,      /* the value is in a value file: a struct oc_file_ref follows the key */
    OC_REC_TOMBSTONE = 3, /* no value */
    OC_REC_MARK = 4,      /* no key; a struct oc_mark follows: what is known to be durable */
};

struct oc_seg_header {
    uint64_t magic;
    uint32_t format;       /* OC_FORMAT_VERSION */
    uint32_t segment;      /* id; equals the file name */
    uint64_t salt;         /* random; seeds record checksums */
    uint8_t boot_id[16];   /* of the kernel the segment was written under */
    uint64_t version_base; /* every record in it is newer than this */
    uint32_t reserved[3];
    uint32_t crc; /* of all before */
};
static_assert(sizeof(struct oc_seg_header) == OC_SEG_HEADER_BYTES, "disk layout");

struct oc_rec_header {
    uint32_t head_crc;  /* of the rest of the header and the key, seeded by salt and offset */
    uint32_t value_crc; /* of the stored value, xor OC_VALUE_CRC_MASK */
    uint64_t version;
    uint64_t object_len; /* the object's size. Stored behind the key: for PUT just as many bytes,
                            for FILE and MARK their struct, for TOMBSTONE nothing */
    uint32_t expires_at_s;
    uint16_t key_len;
    uint8_t kind; /* enum oc_rec_kind */
    uint8_t zero;
};
static_assert(sizeof(struct oc_rec_header) == OC_REC_HEADER_BYTES, "disk layout");

struct oc_file_ref {
    uint64_t file;        /* id of the value file */
    uint64_t len;         /* value bytes in it; equals the record's object_len */
    uint32_t chunk_bytes; /* OC_CHUNK_BYTES */
    uint32_t chunks_crc;  /* CRC32C over the chunk checksums in order */
};
static_assert(sizeof(struct oc_file_ref) == 24, "disk layout");

/* Everything in the log before (segment, offset) is durable. */
struct oc_mark {
    uint32_t segment;
    uint32_t zero;
    uint64_t offset;
};
static_assert(sizeof(struct oc_mark) == 16, "disk layout");

/* Where something is. */
struct oc_log_pos {
    uint32_t segment;
    uint64_t offset; /* bytes */
};

/* A record as read: spans point into the caller's bytes. */
struct oc_record {
    enum oc_rec_kind kind;
    struct oc_span key;
    struct oc_span value; /* value.len may be smaller than value_len when only the head was given */
    uint64_t value_len;   /* bytes stored behind the key; oc_rec_value_len() of the two below */
    uint64_t object_len;
    uint64_t version;
    uint32_t expires_at_s; /* 0 = never */
    uint32_t value_crc;    /* oc_crc32c(0, value) */
    uint64_t total_len;    /* header + key + value + padding */
};

/* ---- records ---- */
static inline uint64_t oc_rec_total(size_t key_len, uint64_t value_len) {
    return (OC_REC_HEADER_BYTES + key_len + value_len + 7) & ~UINT64_C(7);
}

/* The bytes stored behind the key, as kind and object_len say. */
static inline uint64_t oc_rec_value_len(enum oc_rec_kind kind, uint64_t object_len) {
    switch (kind) {
    case OC_REC_PUT:
        return object_len;
    case OC_REC_FILE:
        return sizeof(struct oc_file_ref);
    case OC_REC_MARK:
        return sizeof(struct oc_mark);
    case OC_REC_TOMBSTONE:
        return 0;
    }
    return 0;
}

/* What a record may look like: PUT, FILE and TOMBSTONE have a key of 1 to OC_KEY_MAX bytes, MARK
 * none; object_len is at most OC_INLINE_MAX for PUT and 0 for TOMBSTONE and MARK, which never
 * expire.
 *
 * Write header and key (not the value) to dst, which has OC_REC_HEADER_BYTES + key.len bytes. Of
 * `r` kind, key, version, object_len and expires_at_s count; value_crc for PUT only: of the other
 * kinds the value must be complete (a struct oc_file_ref, a struct oc_mark, empty) and its checksum
 * is computed here. A record against the rules above is a fault of the caller and stops the
 * process. */
void oc_rec_encode(void *dst, uint64_t salt, uint64_t offset, const struct oc_record *r);

/* Parse and verify the head at `bytes` (the record's first bytes as far as they are at hand).
 * 0: *ret is filled, its value span holds what of the value is inside `bytes`.
 * OC_AGAIN: more bytes are needed to tell; *need says how many from the record's start.
 * OC_E_DATA_LOSS: not a record that was written here. */
int oc_rec_decode(struct oc_span bytes, uint64_t salt, uint64_t offset, uint64_t segment_bytes,
                  struct oc_record *ret, size_t *need);
/* The value's checksum holds, and for FILE and MARK its struct is one (false when r->value is not
 * complete). A record whose head decodes and whose value is bad is still known by key and version.
 */
bool oc_rec_value_ok(const struct oc_record *r);
/* The struct behind the key of a FILE or MARK; false when oc_rec_value_ok is, or the kind is
 * another. */
bool oc_rec_file_ref(const struct oc_record *r, struct oc_file_ref *ret);
bool oc_rec_mark(const struct oc_record *r, struct oc_mark *ret);

/* ---- segment header ---- */
void oc_seg_header_encode(struct oc_seg_header *h); /* fills magic, format and crc */
/* OC_E_UNIMPLEMENTED: a newer format (err names it); OC_E_DATA_LOSS: not a header of ours. */
int oc_seg_header_decode(struct oc_span bytes, struct oc_seg_header *ret, struct oc_error *err);

/* ---- footer: written when a segment is sealed, twice in a row, each copy complete and verifiable.
 * Entries carry key and meta of every record, so that a load need not touch values; for segments of
 * small values, where that would cost more than it saves, the footer has no entries (summary only).
 * ---- */
struct oc_footer_builder; /* bounded by the segment */
struct oc_footer_builder *oc_footer_new(void);
void oc_footer_free(struct oc_footer_builder *b);
int oc_footer_add(struct oc_footer_builder *b, uint64_t offset, const struct oc_record *r);
/* Append both copies to `out`. data_end: where the records end = where the footer begins in the
 * file. */
int oc_footer_encode(struct oc_footer_builder *b, uint64_t salt, uint32_t segment,
                     uint64_t data_end, struct oc_buf *out);

struct oc_footer_info {
    uint64_t data_end;
    uint64_t records;
    bool has_entries;
    struct oc_span entries; /* into the caller's bytes; verified */
};
/* `tail` is the last tail.len bytes of a file of file_bytes. 0: a verified copy was found (the
 * second is tried when the first is bad). OC_AGAIN: *need more bytes from the end are needed.
 * OC_E_DATA_LOSS: no valid footer. */
int oc_footer_decode(struct oc_span tail, uint64_t file_bytes, uint64_t salt, uint32_t segment,
                     struct oc_footer_info *ret, size_t *need);
/* Walk verified entries; `r->value` is empty. Non-zero from `each` stops and is returned;
 * OC_E_DATA_LOSS when the entries are inconsistent. */
int oc_footer_each(const struct oc_footer_info *f,
                   int (*each)(void *arg, uint64_t offset, const struct oc_record *r), void *arg);

/* ---- value file chunks ---- */
struct oc_chunk_header {
    uint32_t crc; /* of the rest of the header, file id, and the bytes */
    uint32_t len;
    uint64_t index;
};
static_assert(sizeof(struct oc_chunk_header) == OC_CHUNK_HEADER_BYTES, "disk layout");
/* crc of `bytes` given as computed so far by oc_crc32c(0, bytes) over the chunk's value bytes */
void oc_chunk_encode(struct oc_chunk_header *ret, uint64_t file, uint64_t index, uint32_t len,
                     uint32_t bytes_crc);
bool oc_chunk_ok(const struct oc_chunk_header *h, uint64_t file, uint64_t index, uint32_t len,
                 uint32_t bytes_crc);

/* ---- checkpoint: the index of one shard group as a stream of blocks, each with its own checksum
 * and bound to the file's header; a missing trailer means the file is not complete. ---- */
struct oc_ckpt_header {
    uint64_t magic;
    uint32_t format;
    uint32_t shards;
    uint64_t salt;
    struct oc_log_pos from; /* replay starts here; 16 bytes with padding */
    uint64_t version_ceiling;
    uint8_t boot_id[16];
    uint32_t reserved;
    uint32_t crc;
};

struct oc_ckpt_entry {
    struct oc_span key;
    uint64_t version, value_len;
    uint32_t segment, offset, expires_at_s;
    uint8_t flags;
};

/* Writer: call add in ascending key order per shard; blocks of about 256 KiB are handed to `write`.
 */
struct oc_ckpt_writer;
struct oc_ckpt_writer *oc_ckpt_writer_new(const struct oc_ckpt_header *h,
                                          int (*write)(void *arg, struct oc_span bytes), void *arg);
int oc_ckpt_writer_shard(struct oc_ckpt_writer *w, uint32_t shard);
int oc_ckpt_writer_add(struct oc_ckpt_writer *w, const struct oc_ckpt_entry *e);
int oc_ckpt_writer_done(struct oc_ckpt_writer *w); /* flushes, writes the trailer */
void oc_ckpt_writer_free(struct oc_ckpt_writer *w);

int oc_ckpt_header_decode(struct oc_span bytes, struct oc_ckpt_header *ret, struct oc_error *err);
/* Reader of one block at `bytes` (as many as are at hand). 0: *used bytes were a valid block of
 * `shard` and each entry was passed to `each`; a trailer block sets *last. OC_AGAIN with *need.
 * OC_E_DATA_LOSS. */
int oc_ckpt_block_decode(struct oc_span bytes, const struct oc_ckpt_header *h, uint64_t block_index,
                         uint32_t *shard, bool *last, size_t *used, size_t *need,
                         int (*each)(void *arg, uint32_t shard, const struct oc_ckpt_entry *e),
                         void *arg);

#endif
