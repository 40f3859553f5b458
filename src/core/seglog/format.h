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
#define OC_FILE_LEN_MAX       ((UINT64_C(1) << 48) - 1) /* what an index entry can tell of */
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
    uint32_t flags;        /* enum oc_seg_flags */
    /* Where the log was when this segment took over: the segment before and the end of its records
     * in units of 8 bytes; both 0 in the first segment of all. What older segments hold behind that
     * position was given up and is not part of the log. */
    uint32_t prev_segment;
    uint32_t prev_end;
    uint32_t crc; /* of all before */
};
enum oc_seg_flags {
    /* Before this segment was created everything before it was made durable or given up: set on the
     * first one after a recovery and after a poisoned one, so that what is missing at the end of
     * the one before is no reason to cut the log (core/seglog/cut.h). */
    OC_SEG_SETTLED = 1,
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

static inline int oc_log_pos_compare(struct oc_log_pos a, struct oc_log_pos b) {
    if (a.segment != b.segment) {
        return a.segment < b.segment ? -1 : 1;
    }
    return (a.offset > b.offset) - (a.offset < b.offset);
}
static inline struct oc_log_pos oc_log_pos_max(struct oc_log_pos a, struct oc_log_pos b) {
    return oc_log_pos_compare(a, b) < 0 ? b : a;
}

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
 * none; object_len is at most OC_INLINE_MAX for PUT, OC_FILE_LEN_MAX for FILE and 0 for TOMBSTONE
 * and MARK, which never expire.
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
 * Entries carry key and meta of every record but MARKs, of which the trailer keeps the greatest, so
 * that a load need not touch values; for segments of small values, where that would cost more than
 * it saves, the footer has no entries (summary only). The rule, and its arithmetic, are in
 * footer.c. ---- */
struct oc_footer_builder; /* memory: at most about 2 % of the segment + 128 KiB */
struct oc_footer_builder *oc_footer_new(void); /* NULL when out of memory */
void oc_footer_free(struct oc_footer_builder *b);
/* Records in the order of their offsets; of a MARK the value must be complete. Out of memory makes
 * the footer summary only; 0 always. */
int oc_footer_add(struct oc_footer_builder *b, uint64_t offset, const struct oc_record *r);
/* Append both copies to `out`. data_end: where the records end = where the footer begins in the
 * file; a multiple of 8. OC_E_EXHAUSTED when `out` is full. */
int oc_footer_encode(struct oc_footer_builder *b, uint64_t salt, uint32_t segment,
                     uint64_t data_end, struct oc_buf *out);

struct oc_footer_info {
    uint64_t data_end;
    uint64_t records; /* without MARKs */
    bool has_entries;
    struct oc_span entries; /* into the caller's bytes; verified */
    struct oc_log_pos mark; /* the greatest of the segment's MARKs; (0, 0) when it has none */
};
/* `tail` is the last tail.len bytes of a file of file_bytes. 0: a verified copy was found (the
 * second is tried when the first is bad). OC_AGAIN: *need bytes from the end are needed, more than
 * tail.len and at most about 2 % of the file. OC_E_DATA_LOSS: no valid footer. */
int oc_footer_decode(struct oc_span tail, uint64_t file_bytes, uint64_t salt, uint32_t segment,
                     struct oc_footer_info *ret, size_t *need);
/* Walk verified entries; `r->value` is empty and value_crc 0; the key is valid during the call.
 * Non-zero from `each` stops and is returned; OC_E_DATA_LOSS when the entries are inconsistent
 * (some may have been passed on), OC_E_EXHAUSTED when out of memory. */
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
static_assert(sizeof(struct oc_ckpt_header) == 72, "disk layout");
#define OC_CKPT_HEADER_BYTES 72u
#define OC_CKPT_BLOCK_MAX    262144u /* bytes, header and padding included */
#define OC_CKPT_BLOCK_HEADER 32u     /* bytes */

struct oc_ckpt_entry {
    struct oc_span key;
    uint64_t version, value_len;
    uint32_t segment, offset, expires_at_s;
    uint8_t flags; /* at most 31 */
};

/* What the last block says of the file. */
struct oc_ckpt_trailer {
    uint64_t entries; /* in all blocks */
    uint64_t blocks;  /* before the trailer */
    /* Entries may point to records up to here: the log before this position was durable before the
     * checkpoint was published. Not smaller than the header's `from`. */
    struct oc_log_pos through;
};

/* Writer: for each shard call shard(), then add() in ascending key order. `write` gets the header
 * (magic, format and crc are filled in) and then complete blocks of up to OC_CKPT_BLOCK_MAX bytes,
 * in order; its failure is returned by the call that caused it and by all later ones. Keys out of
 * order: OC_E_INVALID. */
struct oc_ckpt_writer;
struct oc_ckpt_writer *oc_ckpt_writer_new(const struct oc_ckpt_header *h,
                                          int (*write)(void *arg, struct oc_span bytes), void *arg);
int oc_ckpt_writer_shard(struct oc_ckpt_writer *w, uint32_t shard);
int oc_ckpt_writer_add(struct oc_ckpt_writer *w, const struct oc_ckpt_entry *e);
/* The log's end once all entries have been added; without this call `through` is the header's from.
 */
void oc_ckpt_writer_through(struct oc_ckpt_writer *w, struct oc_log_pos through);
int oc_ckpt_writer_done(struct oc_ckpt_writer *w); /* flushes, writes the trailer */
void oc_ckpt_writer_free(struct oc_ckpt_writer *w);

/* Of the file's first OC_CKPT_HEADER_BYTES; the first block follows. Errors as
 * oc_seg_header_decode. */
int oc_ckpt_header_decode(struct oc_span bytes, struct oc_ckpt_header *ret, struct oc_error *err);
/* How long the block is that begins with these OC_CKPT_BLOCK_HEADER bytes, and whose: for passing
 * over blocks. Nothing is verified but that the length can be one; OC_E_DATA_LOSS otherwise. */
int oc_ckpt_block_peek(struct oc_span bytes, size_t *block_bytes, uint32_t *shard, bool *last);
/* Reader of one block at `bytes` (as many as are at hand). 0: *used bytes were a valid block of
 * `shard` and each entry was passed to `each` (NULL: only verify); a trailer block sets *last.
 * OC_AGAIN with *need (at most OC_CKPT_BLOCK_MAX). OC_E_DATA_LOSS. Blocks are independent of each
 * other, so that threads can share the work. Non-zero from `each` stops and is returned.
 * OC_E_EXHAUSTED: out of memory. */
int oc_ckpt_block_decode(struct oc_span bytes, const struct oc_ckpt_header *h, uint64_t block_index,
                         uint32_t *shard, bool *last, size_t *used, size_t *need,
                         int (*each)(void *arg, uint32_t shard, const struct oc_ckpt_entry *e),
                         void *arg);
/* The totals of the trailer block at `bytes`: what was read must add up to them. OC_E_DATA_LOSS
 * when `bytes` does not begin with a valid trailer of this index. */
int oc_ckpt_trailer_decode(struct oc_span bytes, const struct oc_ckpt_header *h,
                           uint64_t block_index, struct oc_ckpt_trailer *ret);

#endif
