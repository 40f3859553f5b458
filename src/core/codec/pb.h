/* Protobuf in place: a bounded reader, an appending writer, and a streaming parser for messages
 * whose one `bytes` field is large. Wire format: https://protobuf.dev/programming-guides/encoding/.
 *
 * Nothing here copies payload. Every length is checked against what is really there. Refused with
 * OC_E_INVALID: truncation, field number 0 or above 2^29-1, varints beyond 64 bits, groups and the
 * unused wire types. Varints that are longer than needed are accepted, as every parser does. */
#ifndef OC_CORE_CODEC_PB_H
#define OC_CORE_CODEC_PB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/span.h"

enum oc_pb_wire {
    OC_PB_VARINT = 0,
    OC_PB_FIXED64 = 1,
    OC_PB_LEN = 2,
    OC_PB_FIXED32 = 5,
};

#define OC_PB_FIELD_MAX  536870911u /* 2^29 - 1 */
#define OC_PB_VARINT_MAX 10         /* bytes of the longest varint */

/* ---- reading a whole message ---- */
struct oc_pb_reader {
    const uint8_t *p;
    const uint8_t *end;
};

struct oc_pb_field {
    uint32_t number;
    enum oc_pb_wire wire;
    uint64_t value;       /* VARINT, FIXED32, FIXED64 */
    struct oc_span bytes; /* LEN: points into the message */
};

static inline struct oc_pb_reader oc_pb_reader(struct oc_span message) {
    return (struct oc_pb_reader){message.p, message.len == 0 ? message.p : message.p + message.len};
}

/* The next field: 1, or 0 at the end of the message, or OC_E_INVALID. */
int oc_pb_next(struct oc_pb_reader *r, struct oc_pb_field *ret);

/* One varint at the reader's position, for packed fields: 1, 0 at the end, or OC_E_INVALID. */
int oc_pb_next_varint(struct oc_pb_reader *r, uint64_t *ret);

/* Typed views of a field, for those that the caller knows: OC_E_INVALID when the wire type is
 * another. */
int oc_pb_as_uint64(const struct oc_pb_field *f, uint64_t *ret);
int oc_pb_as_int64(const struct oc_pb_field *f, int64_t *ret);
int oc_pb_as_int32(const struct oc_pb_field *f, int32_t *ret); /* the low 32 bits, as proto3 says */
int oc_pb_as_bool(const struct oc_pb_field *f, bool *ret);
int oc_pb_as_bytes(const struct oc_pb_field *f, struct oc_span *ret);
int oc_pb_as_string(const struct oc_pb_field *f, struct oc_span *ret); /* must be valid UTF-8 */

/* Well-formed UTF-8 as Unicode defines it: no overlong forms, no surrogates, at most U+10FFFF. */
bool oc_utf8_valid(struct oc_span s);

/* ---- sizes ---- */
size_t oc_pb_varint_size(uint64_t v);
static inline size_t oc_pb_tag_size(uint32_t number) {
    return oc_pb_varint_size((uint64_t)number << 3);
}
/* Tag and value. */
static inline size_t oc_pb_uint64_size(uint32_t number, uint64_t v) {
    return oc_pb_tag_size(number) + oc_pb_varint_size(v);
}
/* Tag and length, without the bytes themselves. */
static inline size_t oc_pb_len_size(uint32_t number, uint64_t len) {
    return oc_pb_tag_size(number) + oc_pb_varint_size(len);
}

/* ---- writing into the caller's memory ----
 * Compute the size first. A writer that runs out of room writes nothing more and says so in
 * `overflow`; `p` is then where the last complete item ended. Zero values are written as told:
 * leaving defaults out is the caller's business. */
struct oc_pb_writer {
    uint8_t *p;
    uint8_t *end;
    bool overflow;
};

static inline struct oc_pb_writer oc_pb_writer(void *dst, size_t cap) {
    uint8_t *p = (uint8_t *)dst;

    return (struct oc_pb_writer){p, cap == 0 ? p : p + cap, false};
}

void oc_pb_put_varint(struct oc_pb_writer *w, uint64_t v); /* bare, without a tag */
void oc_pb_put_uint64(struct oc_pb_writer *w, uint32_t number, uint64_t v);
void oc_pb_put_int64(struct oc_pb_writer *w, uint32_t number, int64_t v);
void oc_pb_put_bool(struct oc_pb_writer *w, uint32_t number, bool v);
/* Tag and length of a field whose `len` bytes follow by other means. */
void oc_pb_put_len(struct oc_pb_writer *w, uint32_t number, uint64_t len);
void oc_pb_put_bytes(struct oc_pb_writer *w, uint32_t number, struct oc_span bytes);

/* As proto3 encodes: nothing at all for a default value. */
static inline size_t oc_pb_bytes_opt_size(uint32_t number, struct oc_span s) {
    return s.len == 0 ? 0 : oc_pb_len_size(number, s.len) + s.len;
}
static inline size_t oc_pb_int64_opt_size(uint32_t number, int64_t v) {
    return v == 0 ? 0 : oc_pb_uint64_size(number, (uint64_t)v);
}
static inline void oc_pb_put_bytes_opt(struct oc_pb_writer *w, uint32_t number, struct oc_span s) {
    if (s.len > 0) {
        oc_pb_put_bytes(w, number, s);
    }
}
static inline void oc_pb_put_int64_opt(struct oc_pb_writer *w, uint32_t number, int64_t v) {
    if (v != 0) {
        oc_pb_put_int64(w, number, v);
    }
}

/* ---- one message in pieces ----
 * Pieces of one message of known length are fed at any boundaries, callbacks hear the fields in the
 * order of the wire:
 *  - the varint fields in `varint_fields` by `varint`;
 *  - the length-delimited fields in `collect_fields` by `bytes`, whole, but at most `collect_max`
 * bytes of each: `total` tells how long the field really is;
 *  - the field `bulk_field` by `bulk_begin(total)` and then `bulk` for each piece as it arrives,
 * without a copy (none when total is 0). When the field occurs again, bulk_begin is called again:
 * by proto3's rule the last one wins, so whatever came before is to be forgotten;
 *  - everything else is skipped, whatever its length. A field that the caller names but that comes
 * with another wire type is refused. A callback returns 0, or a negative code that ends the parsing
 * and is what feed returns from then on. Callbacks may be NULL. Memory held: at most collect_max
 * bytes, and only while a collected field is split over pieces. */
struct oc_pb_stream_config {
    uint32_t bulk_field;     /* 0: none */
    uint64_t collect_fields; /* bit n: field number n (1 to 63) is collected */
    uint64_t varint_fields;  /* bit n: field number n (1 to 63) is a varint that is wanted */
    size_t collect_max;      /* bytes of one field */
    int (*varint)(void *user, uint32_t number, uint64_t value);
    int (*bytes)(void *user, uint32_t number, struct oc_span bytes, uint64_t total);
    int (*bulk_begin)(void *user, uint64_t total);
    int (*bulk)(void *user, struct oc_span piece);
};

enum oc_pb_stream_state {
    OC_PB_S_TAG,
    OC_PB_S_VALUE,
    OC_PB_S_LEN,
    OC_PB_S_SKIP,
    OC_PB_S_COLLECT,
    OC_PB_S_BULK,
};

struct oc_pb_stream {
    const struct oc_pb_stream_config *cfg;
    void *user;
    struct oc_buf collected;
    uint64_t message_left; /* bytes of the message not yet fed */
    uint64_t field_left;   /* bytes of the current field not yet fed */
    uint64_t field_total;
    uint64_t varint; /* the varint being read */
    uint32_t number; /* the current field */
    uint8_t varint_bytes;
    uint8_t state; /* enum oc_pb_stream_state */
    int failed;    /* 0 or what feed keeps returning */
};

/* cfg is borrowed for the stream's life. */
void oc_pb_stream_init(struct oc_pb_stream *s, const struct oc_pb_stream_config *cfg, void *user);
void oc_pb_stream_done(struct oc_pb_stream *s);
/* A new message of this length starts; also forgets an earlier failure. */
void oc_pb_stream_begin(struct oc_pb_stream *s, uint64_t message_len);
/* 0, OC_E_INVALID (also for bytes behind the message's end), OC_E_EXHAUSTED (no memory to collect)
 * or what a callback returned. */
int oc_pb_stream_feed(struct oc_pb_stream *s, struct oc_span piece);
/* All pieces were fed: 0 when the message was complete, else OC_E_INVALID or the earlier failure.
 */
int oc_pb_stream_finish(const struct oc_pb_stream *s);

#endif
