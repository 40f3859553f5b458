/* Table driven, four characters at a time. */
#include "core/codec/base64.h"

#include <stdbool.h>

static const char standard[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t oc_base64_encode(void *dst, struct oc_span in) {
    uint8_t *out = dst;
    size_t i;

    for (i = 0; in.len - i >= 3; i += 3) {
        uint32_t v = (uint32_t)in.p[i] << 16 | (uint32_t)in.p[i + 1] << 8 | in.p[i + 2];

        *out++ = (uint8_t)standard[v >> 18];
        *out++ = (uint8_t)standard[v >> 12 & 63];
        *out++ = (uint8_t)standard[v >> 6 & 63];
        *out++ = (uint8_t)standard[v & 63];
    }
    if (in.len - i > 0) {
        bool two = in.len - i == 2;
        uint32_t v = (uint32_t)in.p[i] << 16 | (two ? (uint32_t)in.p[i + 1] << 8 : 0);

        *out++ = (uint8_t)standard[v >> 18];
        *out++ = (uint8_t)standard[v >> 12 & 63];
        *out++ = two ? (uint8_t)standard[v >> 6 & 63] : (uint8_t)'=';
        *out++ = '=';
    }
    return oc_base64_encoded_size(in.len);
}

#define BAD      0x80u /* no character of either alphabet */
#define STANDARD 0x40u /* the + or / of the standard alphabet */
#define URL_SAFE 0xc0u /* the - or _ of the URL-safe one */

/* The value in the low six bits, and marks for the characters in which the alphabets differ. */
static uint8_t value_of(uint8_t c) {
    if (c >= 'A' && c <= 'Z') {
        return (uint8_t)(c - 'A');
    }
    if (c >= 'a' && c <= 'z') {
        return (uint8_t)(c - 'a' + 26);
    }
    if (c >= '0' && c <= '9') {
        return (uint8_t)(c - '0' + 52);
    }
    switch (c) {
    case '+':
        return STANDARD | 62;
    case '/':
        return STANDARD | 63;
    case '-':
        return URL_SAFE | 62;
    case '_':
        return URL_SAFE | 63;
    default:
        return BAD;
    }
}

int oc_base64_decode(void *dst, struct oc_span in, size_t *ret_len) {
    uint8_t *out = dst;
    size_t n = in.len;
    size_t len = 0;
    uint32_t bits = 0;
    uint8_t alphabet = 0;

    if (n % 4 == 0 && n > 0 && in.p[n - 1] == '=') {
        n -= in.p[n - 2] == '=' ? 2 : 1;
    }
    if (n % 4 == 1) {
        return OC_E_INVALID;
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t v = value_of(in.p[i]);
        uint8_t mark = v & URL_SAFE;

        if (mark == BAD || (mark != 0 && alphabet != 0 && mark != alphabet)) {
            return OC_E_INVALID;
        }
        alphabet = mark != 0 ? mark : alphabet;
        bits = bits << 6 | (v & 63u);
        if (i % 4 == 3) {
            out[len++] = (uint8_t)(bits >> 16);
            out[len++] = (uint8_t)(bits >> 8);
            out[len++] = (uint8_t)bits;
            bits = 0;
        }
    }
    if (n % 4 == 2) {
        out[len++] = (uint8_t)(bits >> 4);
        bits &= 15;
    } else if (n % 4 == 3) {
        out[len++] = (uint8_t)(bits >> 10);
        out[len++] = (uint8_t)(bits >> 2);
        bits &= 3;
    }
    if (bits != 0) {
        return OC_E_INVALID;
    }
    *ret_len = len;
    return OC_OK;
}
