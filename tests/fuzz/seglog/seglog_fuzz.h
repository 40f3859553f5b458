/* What the fuzz targets of seglog share. An input never guesses a salted checksum, so each target
 * also has a mode that puts right checksums on the input's bytes: what is behind them must hold as
 * well. */
#ifndef OC_TESTS_FUZZ_SEGLOG_H
#define OC_TESTS_FUZZ_SEGLOG_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/mem.h"
#include "core/seglog/format.h"

#define FUZZ_SALT UINT64_C(0x5eed5a17c0ffee11)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline uint32_t fuzz_salted_crc(const void *p, size_t len) {
    uint64_t salt = FUZZ_SALT;

    return oc_crc32c(oc_crc32c(0, &salt, sizeof salt), p, len);
}

/* A copy with nothing behind its end, so that the sanitizer sees a read past it. */
static inline uint8_t *fuzz_exact(const uint8_t *p, size_t len) {
    uint8_t *copy = malloc(len);

    OC_CHECK(copy != NULL || len == 0);
    if (len > 0) {
        memcpy(copy, p, len);
    }
    return copy;
}

#endif
