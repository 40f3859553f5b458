/* gRPC's length-prefixed messages (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md):
 * one flag byte, the length as 4 bytes big-endian, the message. Sans-I/O; bytes may arrive at any
 * boundary. */
#ifndef OC_CORE_CODEC_GRPC_FRAME_H
#define OC_CORE_CODEC_GRPC_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/span.h"

#define OC_GRPC_HEAD_BYTES 5

struct oc_grpc_reader {
    uint64_t max_message_bytes;
    uint64_t left; /* bytes of the current message not yet seen */
    uint32_t message_len;
    uint8_t head[OC_GRPC_HEAD_BYTES];
    uint8_t head_bytes; /* of the next message's head; 0 inside a message */
    bool in_message;
    int failed;
};

/* A part of one message. Each message gives one piece with `begin` (as soon as its head is
 * complete, so `bytes` may be empty) and one with `end`; they may be the same. */
struct oc_grpc_piece {
    struct oc_span bytes; /* points into the input */
    uint32_t message_len;
    bool compressed; /* the flag; what to do about it is the caller's decision */
    bool begin;
    bool end;
};

void oc_grpc_reader_init(struct oc_grpc_reader *r, uint64_t max_message_bytes);

/* Take the next piece off the front of *in: 1, or 0 when the input is used up.
 * OC_E_EXHAUSTED: the message is longer than the limit (ret->message_len says how long);
 * OC_E_INVALID: a flag byte other than 0 and 1. Errors stay. */
int oc_grpc_reader_next(struct oc_grpc_reader *r, struct oc_span *in, struct oc_grpc_piece *ret);

/* True between messages: the end of the stream is fine here, and a truncation elsewhere. */
bool oc_grpc_reader_idle(const struct oc_grpc_reader *r);

static inline void oc_grpc_head_write(uint8_t dst[OC_GRPC_HEAD_BYTES], uint32_t message_len) {
    dst[0] = 0; /* not compressed */
    dst[1] = (uint8_t)(message_len >> 24);
    dst[2] = (uint8_t)(message_len >> 16);
    dst[3] = (uint8_t)(message_len >> 8);
    dst[4] = (uint8_t)message_len;
}

/* The grpc-timeout header: 1 to 8 digits and a unit of H M S m u n. Nanoseconds, saturating at
 * UINT64_MAX (8 digits of hours are more than 64 bits hold). OC_E_INVALID for anything else. */
int oc_grpc_timeout_parse(struct oc_span text, uint64_t *ret_ns);

/* The shortest unit that needs at most 8 digits, rounded up so that the peer never gives up early.
 * Returns the length; dst is terminated. */
#define OC_GRPC_TIMEOUT_MAX 10 /* 8 digits, unit, terminator */
size_t oc_grpc_timeout_format(char dst[OC_GRPC_TIMEOUT_MAX], uint64_t timeout_ns);

#endif
