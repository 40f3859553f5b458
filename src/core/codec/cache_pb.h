/* The hot messages of cache.CacheService (src/proto/cache.proto), both directions, in place.
 *
 * Decoders return 0, or OC_E_INVALID for malformed bytes, a known field of another wire type, or a
 * string that is not UTF-8. Spans in a decoded message point into its bytes. Unknown fields are
 * skipped, of a repeated scalar the last one wins.
 *
 * Encoders return the size of the whole encoding and write it only when it fits in `cap` (as
 * snprintf would): call with cap 0 to learn the size. Fields with default values are left out. */
#ifndef OC_CORE_CODEC_CACHE_PB_H
#define OC_CORE_CODEC_CACHE_PB_H

#include "core/codec/pb.h"

/* ---- PutRequest ---- */
struct oc_cache_put_request {
    struct oc_span key;
    int64_t ttl_seconds;
    struct oc_span data;
};
int oc_cache_put_request_decode(struct oc_span message, struct oc_cache_put_request *ret);
/* All but the data's own bytes, which the caller sends behind it from where they lie. Nothing is
 * written of the data field when data_len is 0. */
size_t oc_cache_put_request_head(void *dst, size_t cap, struct oc_span key, int64_t ttl_seconds,
                                 uint64_t data_len);

/* ---- PutRequest in pieces, for the messages of one Put stream or one large PutObject ---- */
struct oc_cache_put_events {
    /* The value's bytes of this message follow, `total` of them. A second data_begin within one
     * message means that the bytes since the first are void (a field given twice; last one wins).
     */
    int (*data_begin)(void *user, uint64_t total);
    int (*data)(void *user, struct oc_span piece);
};

struct oc_cache_put_stream {
    struct oc_pb_stream_config cfg;
    struct oc_pb_stream pb; /* points to cfg and to this struct: it must not move */
    const struct oc_cache_put_events *events;
    void *user;
    struct oc_buf key;   /* of the first message: its first key_max bytes */
    uint64_t key_len;    /* its true length; beyond key_max it is too long */
    int64_t ttl_seconds; /* of the first message */
    uint64_t messages;   /* begun so far */
};

/* key_max: the longest key that is kept. Memory held: at most twice that. */
void oc_cache_put_stream_init(struct oc_cache_put_stream *s, size_t key_max,
                              const struct oc_cache_put_events *events, void *user);
void oc_cache_put_stream_done(struct oc_cache_put_stream *s);
/* One message: begin, feed its pieces, finish. Key and ttl are those of the first message; they are
 * complete when its finish returned 0 (data may come before them). Key and ttl of later messages
 * are ignored, as the service's contract has it. Codes as oc_pb_stream_feed and _finish. */
void oc_cache_put_stream_begin(struct oc_cache_put_stream *s, uint64_t message_len);
int oc_cache_put_stream_feed(struct oc_cache_put_stream *s, struct oc_span piece);
int oc_cache_put_stream_finish(struct oc_cache_put_stream *s);

/* ---- PutResponse and DeleteResponse have the same shape ---- */
struct oc_cache_result {
    bool success;
    struct oc_span error;
};
int oc_cache_result_decode(struct oc_span message, struct oc_cache_result *ret);
size_t oc_cache_result_encode(void *dst, size_t cap, bool success, struct oc_span error);

/* ---- GetRequest ---- */
struct oc_cache_get_request {
    struct oc_span key;
    int64_t start;
    int64_t end;
};
int oc_cache_get_request_decode(struct oc_span message, struct oc_cache_get_request *ret);
size_t oc_cache_get_request_encode(void *dst, size_t cap, const struct oc_cache_get_request *m);

/* ---- GetResponse ---- */
int oc_cache_get_response_decode(struct oc_span message, struct oc_span *ret_data);
/* The bytes in front of data_len bytes of data; returns their number (0 for data_len 0). */
#define OC_CACHE_GET_RESPONSE_HEAD_MAX (1 + OC_PB_VARINT_MAX)
size_t oc_cache_get_response_head(uint8_t dst[OC_CACHE_GET_RESPONSE_HEAD_MAX], uint64_t data_len);
#define OC_CACHE_GET_RESPONSE_DATA 1u /* the bulk_field for an oc_pb_stream over GetResponse */

/* ---- DeleteRequest ---- */
int oc_cache_delete_request_decode(struct oc_span message, struct oc_span *ret_key);
size_t oc_cache_delete_request_encode(void *dst, size_t cap, struct oc_span key);

/* ---- the List family: by hand because keys may contain zero bytes (see src/proto/README.md) ----
 */
struct oc_cache_list_request {
    struct oc_span prefix;
    struct oc_span start_key; /* exclusive */
    int32_t limit;
    struct oc_span continuation_token;
};
int oc_cache_list_request_decode(struct oc_span message, struct oc_cache_list_request *ret);
size_t oc_cache_list_request_encode(void *dst, size_t cap, const struct oc_cache_list_request *m);

/* Both responses are written as a sequence of appends in any number, then the tail; the
 * concatenation is the message. The same sequence read back: `_next` gives 1 and an item, or 0 when
 * the message is at its end, with continuation_token and has_more filled in as they passed. */
struct oc_cache_key_value {
    struct oc_span key;
    struct oc_span value;
    int64_t value_length;
    bool value_omitted;
};
size_t oc_cache_list_key_encode(void *dst, size_t cap, struct oc_span key);
size_t oc_cache_list_entry_encode(void *dst, size_t cap, const struct oc_cache_key_value *kv);
size_t oc_cache_list_tail_encode(void *dst, size_t cap, struct oc_span continuation_token,
                                 bool has_more);

struct oc_cache_list_reader {
    struct oc_pb_reader pb;
    struct oc_span continuation_token;
    bool has_more;
};
static inline struct oc_cache_list_reader oc_cache_list_reader(struct oc_span message) {
    return (struct oc_cache_list_reader){.pb = oc_pb_reader(message)};
}
int oc_cache_list_next_key(struct oc_cache_list_reader *r, struct oc_span *ret);
int oc_cache_list_next_entry(struct oc_cache_list_reader *r, struct oc_cache_key_value *ret);

#endif
