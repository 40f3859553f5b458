/* The reader is a five-byte collector in front of a countdown. */
#include "core/codec/grpc_frame.h"

#include <stdio.h>

#include "base/clock.h"

void oc_grpc_reader_init(struct oc_grpc_reader *r, uint64_t max_message_bytes) {
    *r = (struct oc_grpc_reader){.max_message_bytes = max_message_bytes};
}

/* Collect the head; true when it is complete. */
static bool head_fill(struct oc_grpc_reader *r, struct oc_span *in) {
    size_t need = OC_GRPC_HEAD_BYTES - r->head_bytes;
    size_t n = in->len < need ? in->len : need;

    if (n > 0) {
        memcpy(r->head + r->head_bytes, in->p, n);
        r->head_bytes = (uint8_t)(r->head_bytes + n);
        in->p += n;
        in->len -= n;
    }
    return r->head_bytes == OC_GRPC_HEAD_BYTES;
}

static int message_start(struct oc_grpc_reader *r, struct oc_grpc_piece *ret) {
    const uint8_t *h = r->head;
    uint32_t len = (uint32_t)h[1] << 24 | (uint32_t)h[2] << 16 | (uint32_t)h[3] << 8 | h[4];

    ret->message_len = len;
    if (h[0] > 1) {
        return r->failed = OC_E_INVALID;
    }
    if (len > r->max_message_bytes) {
        return r->failed = OC_E_EXHAUSTED;
    }
    r->in_message = true;
    r->message_len = len;
    r->left = len;
    r->head_bytes = 0;
    return OC_OK;
}

int oc_grpc_reader_next(struct oc_grpc_reader *r, struct oc_span *in, struct oc_grpc_piece *ret) {
    *ret = (struct oc_grpc_piece){.message_len = r->message_len};
    if (r->failed != OC_OK) {
        return r->failed;
    }
    if (!r->in_message) {
        if (!head_fill(r, in)) {
            return 0;
        }
        int e = message_start(r, ret);
        if (e < 0) {
            return e;
        }
        ret->begin = true;
    } else if (in->len == 0) {
        return 0;
    }
    size_t n = r->left < in->len ? (size_t)r->left : in->len;
    ret->bytes = oc_span(in->p, n);
    ret->compressed = r->head[0] == 1;
    if (n > 0) {
        in->p += n;
        in->len -= n;
        r->left -= n;
    }
    ret->end = r->left == 0;
    r->in_message = !ret->end;
    return 1;
}

bool oc_grpc_reader_idle(const struct oc_grpc_reader *r) {
    return !r->in_message && r->head_bytes == 0 && r->failed == OC_OK;
}

static const struct {
    char unit;
    uint64_t ns;
} timeout_units[] = {
    {'n', 1},           {'u', OC_NS_PER_US},     {'m', OC_NS_PER_MS},
    {'S', OC_NS_PER_S}, {'M', 60 * OC_NS_PER_S}, {'H', 3600 * OC_NS_PER_S},
};
#define TIMEOUT_UNITS      (sizeof timeout_units / sizeof timeout_units[0])
#define TIMEOUT_VALUE_MAX  99999999u /* 8 digits */
#define TIMEOUT_DIGITS_MAX 8u

int oc_grpc_timeout_parse(struct oc_span text, uint64_t *ret_ns) {
    uint64_t v = 0;

    if (text.len < 2 || text.len > TIMEOUT_DIGITS_MAX + 1) {
        return OC_E_INVALID;
    }
    for (size_t i = 0; i < text.len - 1; i++) {
        if (text.p[i] < '0' || text.p[i] > '9') {
            return OC_E_INVALID;
        }
        v = v * 10 + (uint64_t)(text.p[i] - '0');
    }
    for (size_t i = 0; i < TIMEOUT_UNITS; i++) {
        if (text.p[text.len - 1] == (uint8_t)timeout_units[i].unit) {
            if (__builtin_mul_overflow(v, timeout_units[i].ns, ret_ns)) {
                *ret_ns = UINT64_MAX;
            }
            return OC_OK;
        }
    }
    return OC_E_INVALID;
}

size_t oc_grpc_timeout_format(char dst[OC_GRPC_TIMEOUT_MAX], uint64_t timeout_ns) {
    uint64_t v = TIMEOUT_VALUE_MAX;
    size_t i;

    for (i = 0; i < TIMEOUT_UNITS; i++) {
        uint64_t ns = timeout_units[i].ns;

        v = timeout_ns / ns + (timeout_ns % ns != 0);
        if (v <= TIMEOUT_VALUE_MAX) {
            break;
        }
    }
    /* UINT64_MAX ns are 5 million hours: the last unit always fits. */
    int n = snprintf(dst, OC_GRPC_TIMEOUT_MAX, "%u%c", (unsigned)v, timeout_units[i].unit);
    return (size_t)n;
}
