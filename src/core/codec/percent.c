/* Three alphabets over one encoder and one decoder. */
#include "core/codec/percent.h"

static bool grpc_plain(uint8_t c) {
    return c >= 0x20 && c <= 0x7e && c != '%';
}

static bool url_plain(uint8_t c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

static size_t encode(uint8_t *dst, size_t cap, struct oc_span in, bool (*plain)(uint8_t c)) {
    static const char hex[] = "0123456789ABCDEF";
    size_t size = 0;
    bool cut = false;

    for (size_t i = 0; i < in.len; i++) {
        uint8_t c = in.p[i];
        size_t n = plain(c) ? 1 : 3;

        cut = cut || size + n > cap;
        if (!cut && n == 1) {
            dst[size] = c;
        } else if (!cut) {
            dst[size] = '%';
            dst[size + 1] = (uint8_t)hex[c >> 4];
            dst[size + 2] = (uint8_t)hex[c & 15];
        }
        size += n;
    }
    return size;
}

size_t oc_percent_encode_grpc(void *dst, size_t cap, struct oc_span in) {
    return encode(dst, cap, in, grpc_plain);
}

size_t oc_percent_encode_url(void *dst, size_t cap, struct oc_span in) {
    return encode(dst, cap, in, url_plain);
}

static int hex_value(uint8_t c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte of the escape at in.p[i], or -1. */
static int escape_at(struct oc_span in, size_t i) {
    int high;
    int low;

    if (in.p[i] != '%' || in.len - i < 3) {
        return -1;
    }
    high = hex_value(in.p[i + 1]);
    low = hex_value(in.p[i + 2]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

size_t oc_percent_decode_grpc(void *dst, struct oc_span in) {
    uint8_t *out = dst;
    size_t len = 0;

    for (size_t i = 0; i < in.len; i++) {
        int c = escape_at(in, i);

        out[len++] = c >= 0 ? (uint8_t)c : in.p[i];
        i += c >= 0 ? 2 : 0;
    }
    return len;
}

int oc_percent_decode_url(void *dst, struct oc_span in, enum oc_percent_mode mode,
                          size_t *ret_len) {
    uint8_t *out = dst;
    size_t len = 0;

    for (size_t i = 0; i < in.len; i++) {
        int c = escape_at(in, i);

        if (c >= 0) {
            out[len++] = (uint8_t)c;
            i += 2;
        } else if (in.p[i] == '%') {
            return OC_E_INVALID;
        } else {
            out[len++] = mode == OC_PERCENT_QUERY && in.p[i] == '+' ? ' ' : in.p[i];
        }
    }
    *ret_len = len;
    return OC_OK;
}

/* The bytes up to `c` (taken off *s together with it), or all of them. */
static struct oc_span split_at(struct oc_span *s, int c) {
    const uint8_t *at = s->len == 0 ? NULL : memchr(s->p, c, s->len);
    struct oc_span head = *s;

    if (at == NULL) {
        *s = OC_SPAN_EMPTY;
        return head;
    }
    head.len = (size_t)(at - s->p);
    *s = oc_span(at + 1, s->len - head.len - 1);
    return head;
}

bool oc_query_next(struct oc_span *query, struct oc_span *ret_name, struct oc_span *ret_value) {
    while (query->len > 0) {
        struct oc_span part = split_at(query, '&');

        if (part.len > 0) {
            *ret_name = split_at(&part, '=');
            *ret_value = part;
            return true;
        }
    }
    return false;
}
