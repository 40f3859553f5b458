/* The streaming parser: a byte machine for tags and varints, and bulk steps for everything longer,
 * so that its cost does not grow with the payload. */
#include "core/codec/pb.h"

static bool in_set(uint64_t fields, uint32_t number) {
    return number < 64 && (fields >> number & 1) != 0;
}

void oc_pb_stream_init(struct oc_pb_stream *s, const struct oc_pb_stream_config *cfg, void *user) {
    *s = (struct oc_pb_stream){.cfg = cfg, .user = user, .state = OC_PB_S_TAG};
    OC_CHECK((cfg->collect_fields & cfg->varint_fields) == 0);
    OC_CHECK(!in_set(cfg->collect_fields | cfg->varint_fields, cfg->bulk_field));
    oc_buf_init(&s->collected, cfg->collect_max);
}

void oc_pb_stream_done(struct oc_pb_stream *s) {
    oc_buf_done(&s->collected);
}

void oc_pb_stream_begin(struct oc_pb_stream *s, uint64_t message_len) {
    s->message_left = message_len;
    s->field_left = 0;
    s->varint = 0;
    s->varint_bytes = 0;
    s->state = OC_PB_S_TAG;
    s->failed = OC_OK;
}

/* A field that the caller waits for must come as what it is; any other may be anything. */
static bool wire_allowed(const struct oc_pb_stream *s, uint64_t wire) {
    if (s->number == s->cfg->bulk_field || in_set(s->cfg->collect_fields, s->number)) {
        return wire == OC_PB_LEN;
    }
    return !in_set(s->cfg->varint_fields, s->number) || wire == OC_PB_VARINT;
}

/* `left` is what the message has behind the bytes read so far. */
static int field_of_length(struct oc_pb_stream *s, uint64_t len, uint64_t left) {
    if (len > left) {
        return OC_E_INVALID;
    }
    s->field_left = len;
    s->field_total = len;
    if (s->number == s->cfg->bulk_field) {
        s->state = len > 0 ? OC_PB_S_BULK : OC_PB_S_TAG;
        return s->cfg->bulk_begin == NULL ? OC_OK : s->cfg->bulk_begin(s->user, len);
    }
    if (in_set(s->cfg->collect_fields, s->number)) {
        s->collected.len = 0;
        s->state = len > 0 ? OC_PB_S_COLLECT : OC_PB_S_TAG;
        if (len == 0 && s->cfg->bytes != NULL) {
            return s->cfg->bytes(s->user, s->number, OC_SPAN_EMPTY, 0);
        }
        return OC_OK;
    }
    s->state = len > 0 ? OC_PB_S_SKIP : OC_PB_S_TAG;
    return OC_OK;
}

static int tag_read(struct oc_pb_stream *s, uint64_t tag, uint64_t left) {
    uint64_t number = tag >> 3;
    uint64_t fixed = 0;

    if (number < 1 || number > OC_PB_FIELD_MAX) {
        return OC_E_INVALID;
    }
    s->number = (uint32_t)number;
    if (!wire_allowed(s, tag & 7)) {
        return OC_E_INVALID;
    }
    switch (tag & 7) {
    case OC_PB_VARINT:
        s->state = OC_PB_S_VALUE;
        return OC_OK;
    case OC_PB_LEN:
        s->state = OC_PB_S_LEN;
        return OC_OK;
    case OC_PB_FIXED64:
        fixed = 8;
        break;
    case OC_PB_FIXED32:
        fixed = 4;
        break;
    default: /* groups (3, 4) and the unused 6 and 7 */
        return OC_E_INVALID;
    }
    if (fixed > left) {
        return OC_E_INVALID;
    }
    s->field_left = fixed;
    s->state = OC_PB_S_SKIP;
    return OC_OK;
}

/* One varint byte. */
static int step_varint(struct oc_pb_stream *s, uint8_t b, uint64_t left) {
    if (s->varint_bytes == OC_PB_VARINT_MAX - 1 && b > 1) {
        return OC_E_INVALID;
    }
    s->varint |= (uint64_t)(b & 0x7f) << (7 * s->varint_bytes);
    s->varint_bytes++;
    if (b >= 0x80) {
        return OC_OK;
    }
    uint64_t v = s->varint;
    s->varint = 0;
    s->varint_bytes = 0;
    switch (s->state) {
    case OC_PB_S_TAG:
        return tag_read(s, v, left);
    case OC_PB_S_LEN:
        return field_of_length(s, v, left);
    default:
        s->state = OC_PB_S_TAG;
        if (s->cfg->varint == NULL || !in_set(s->cfg->varint_fields, s->number)) {
            return OC_OK;
        }
        return s->cfg->varint(s->user, s->number, v);
    }
}

static int step_collect(struct oc_pb_stream *s, struct oc_span piece) {
    struct oc_span whole = piece;
    size_t max = s->cfg->collect_max;

    if (s->collected.len > 0 || s->field_left > 0) {
        size_t room = max - s->collected.len;
        int r = oc_buf_append(&s->collected, piece.p, piece.len < room ? piece.len : room);

        if (r < 0) {
            return r;
        }
        whole = oc_buf_span(&s->collected);
    }
    if (s->field_left > 0) {
        return OC_OK;
    }
    if (whole.len > max) {
        whole.len = max;
    }
    return s->cfg->bytes == NULL ? OC_OK : s->cfg->bytes(s->user, s->number, whole, s->field_total);
}

/* A piece of the current field's bytes; field_left is already less by it. */
static int step_bytes(struct oc_pb_stream *s, struct oc_span piece) {
    uint8_t state = s->state;

    if (s->field_left == 0) {
        s->state = OC_PB_S_TAG;
    }
    if (state == OC_PB_S_BULK) {
        return s->cfg->bulk == NULL ? OC_OK : s->cfg->bulk(s->user, piece);
    }
    return state == OC_PB_S_COLLECT ? step_collect(s, piece) : OC_OK;
}

int oc_pb_stream_feed(struct oc_pb_stream *s, struct oc_span piece) {
    if (s->failed != OC_OK) {
        return s->failed;
    }
    if (piece.len > s->message_left) {
        return s->failed = OC_E_INVALID;
    }
    while (piece.len > 0) {
        size_t n = 1;

        if (s->state >= OC_PB_S_SKIP) {
            n = s->field_left < piece.len ? (size_t)s->field_left : piece.len;
            s->field_left -= n;
            s->message_left -= n;
            s->failed = step_bytes(s, oc_span(piece.p, n));
        } else {
            s->message_left--;
            s->failed = step_varint(s, *piece.p, s->message_left);
        }
        if (s->failed != OC_OK) {
            return s->failed;
        }
        piece.p += n;
        piece.len -= n;
    }
    return OC_OK;
}

int oc_pb_stream_finish(const struct oc_pb_stream *s) {
    if (s->failed != OC_OK) {
        return s->failed;
    }
    return s->message_left == 0 && s->state == OC_PB_S_TAG && s->varint_bytes == 0 ? OC_OK
                                                                                   : OC_E_INVALID;
}
