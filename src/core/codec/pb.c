/* The reader and writer of whole messages; the streaming parser is in pb_stream.c. */
#include "core/codec/pb.h"

/* 1: read, 0: at the end, negative: cut short or beyond 64 bits. */
int oc_pb_next_varint(struct oc_pb_reader *r, uint64_t *ret) {
    const uint8_t *p = r->p;
    uint64_t v = 0;

    if (p == r->end) {
        return 0;
    }
    if (*p < 0x80) {
        *ret = *p;
        r->p = p + 1;
        return 1;
    }
    for (unsigned shift = 0; shift < 70 && p < r->end; shift += 7) {
        uint8_t b = *p++;

        if (shift == 63 && b > 1) {
            return OC_E_INVALID;
        }
        v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) {
            *ret = v;
            r->p = p;
            return 1;
        }
    }
    return OC_E_INVALID;
}

static bool tag_ok(uint64_t tag) {
    uint64_t number = tag >> 3;

    return number >= 1 && number <= OC_PB_FIELD_MAX;
}

int oc_pb_next(struct oc_pb_reader *r, struct oc_pb_field *ret) {
    struct oc_pb_reader at = *r;
    struct oc_pb_field f = {0};
    uint64_t v;
    int n = oc_pb_next_varint(&at, &v);

    if (n <= 0) {
        return n;
    }
    if (!tag_ok(v)) {
        return OC_E_INVALID;
    }
    f.number = (uint32_t)(v >> 3);
    f.wire = (enum oc_pb_wire)(v & 7);
    switch (f.wire) {
    case OC_PB_VARINT:
        if (oc_pb_next_varint(&at, &f.value) != 1) {
            return OC_E_INVALID;
        }
        break;
    case OC_PB_FIXED64:
        if (at.end - at.p < 8) {
            return OC_E_INVALID;
        }
        f.value = oc_load64(at.p);
        at.p += 8;
        break;
    case OC_PB_FIXED32:
        if (at.end - at.p < 4) {
            return OC_E_INVALID;
        }
        f.value = oc_load32(at.p);
        at.p += 4;
        break;
    case OC_PB_LEN:
        if (oc_pb_next_varint(&at, &v) != 1 || v > (uint64_t)(at.end - at.p)) {
            return OC_E_INVALID;
        }
        f.bytes = oc_span(at.p, (size_t)v);
        at.p += v;
        break;
    default: /* groups (3, 4) and the unused 6 and 7 */
        return OC_E_INVALID;
    }
    *r = at;
    *ret = f;
    return 1;
}

int oc_pb_as_uint64(const struct oc_pb_field *f, uint64_t *ret) {
    if (f->wire != OC_PB_VARINT) {
        return OC_E_INVALID;
    }
    *ret = f->value;
    return OC_OK;
}

int oc_pb_as_int64(const struct oc_pb_field *f, int64_t *ret) {
    uint64_t v;
    int r = oc_pb_as_uint64(f, &v);

    if (r == OC_OK) {
        *ret = (int64_t)v;
    }
    return r;
}

int oc_pb_as_int32(const struct oc_pb_field *f, int32_t *ret) {
    uint64_t v;
    int r = oc_pb_as_uint64(f, &v);

    if (r == OC_OK) {
        *ret = (int32_t)(uint32_t)v;
    }
    return r;
}

int oc_pb_as_bool(const struct oc_pb_field *f, bool *ret) {
    uint64_t v;
    int r = oc_pb_as_uint64(f, &v);

    if (r == OC_OK) {
        *ret = v != 0;
    }
    return r;
}

int oc_pb_as_bytes(const struct oc_pb_field *f, struct oc_span *ret) {
    if (f->wire != OC_PB_LEN) {
        return OC_E_INVALID;
    }
    *ret = f->bytes;
    return OC_OK;
}

int oc_pb_as_string(const struct oc_pb_field *f, struct oc_span *ret) {
    if (f->wire != OC_PB_LEN || !oc_utf8_valid(f->bytes)) {
        return OC_E_INVALID;
    }
    *ret = f->bytes;
    return OC_OK;
}

/* Length of the well-formed sequence at p (Unicode 15, table 3-7), 0 when there is none. */
static size_t utf8_sequence(const uint8_t *p, size_t left) {
    uint8_t low = 0x80;
    uint8_t high = 0xbf;
    size_t len;

    if (p[0] < 0x80) {
        return 1;
    }
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        len = 2;
    } else if ((p[0] & 0xf0) == 0xe0) {
        len = 3;
        low = p[0] == 0xe0 ? 0xa0 : low;   /* shorter forms exist below U+0800 */
        high = p[0] == 0xed ? 0x9f : high; /* surrogates */
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        len = 4;
        low = p[0] == 0xf0 ? 0x90 : low;
        high = p[0] == 0xf4 ? 0x8f : high;
    } else {
        return 0;
    }
    if (left < len || p[1] < low || p[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return len;
}

bool oc_utf8_valid(struct oc_span s) {
    size_t i = 0;

    while (i < s.len) {
        if (s.len - i >= 8 && (oc_load64(s.p + i) & 0x8080808080808080ull) == 0) {
            i += 8;
            continue;
        }
        size_t n = utf8_sequence(s.p + i, s.len - i);
        if (n == 0) {
            return false;
        }
        i += n;
    }
    return true;
}

size_t oc_pb_varint_size(uint64_t v) {
    unsigned bits = 64u - (unsigned)__builtin_clzll(v | 1);

    return (bits + 6) / 7;
}

static bool writer_room(struct oc_pb_writer *w, size_t need) {
    if (w->overflow || need > (size_t)(w->end - w->p)) {
        w->overflow = true;
    }
    return !w->overflow;
}

static void write_varint(struct oc_pb_writer *w, uint64_t v) {
    while (v >= 0x80) {
        *w->p++ = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    *w->p++ = (uint8_t)v;
}

void oc_pb_put_varint(struct oc_pb_writer *w, uint64_t v) {
    if (writer_room(w, oc_pb_varint_size(v))) {
        write_varint(w, v);
    }
}

void oc_pb_put_uint64(struct oc_pb_writer *w, uint32_t number, uint64_t v) {
    if (writer_room(w, oc_pb_uint64_size(number, v))) {
        write_varint(w, (uint64_t)number << 3 | OC_PB_VARINT);
        write_varint(w, v);
    }
}

void oc_pb_put_int64(struct oc_pb_writer *w, uint32_t number, int64_t v) {
    oc_pb_put_uint64(w, number, (uint64_t)v);
}

void oc_pb_put_bool(struct oc_pb_writer *w, uint32_t number, bool v) {
    oc_pb_put_uint64(w, number, v ? 1 : 0);
}

void oc_pb_put_len(struct oc_pb_writer *w, uint32_t number, uint64_t len) {
    if (writer_room(w, oc_pb_len_size(number, len))) {
        write_varint(w, (uint64_t)number << 3 | OC_PB_LEN);
        write_varint(w, len);
    }
}

void oc_pb_put_bytes(struct oc_pb_writer *w, uint32_t number, struct oc_span bytes) {
    size_t need;

    if (!oc_add_ok(oc_pb_len_size(number, bytes.len), bytes.len, &need)) {
        w->overflow = true;
        return;
    }
    if (writer_room(w, need)) {
        write_varint(w, (uint64_t)number << 3 | OC_PB_LEN);
        write_varint(w, bytes.len);
        if (bytes.len > 0) {
            memcpy(w->p, bytes.p, bytes.len);
            w->p += bytes.len;
        }
    }
}
