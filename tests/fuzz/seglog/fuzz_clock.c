/* CLOCK: no bytes make the decoder read outside them; the slot that wins encodes to the bytes it
 * has.
 *
 * Input: a byte of modes (1, 2: put a right checksum on slot 0, slot 1), a byte that cuts the file,
 * then the slots' bytes one after the other. */
#include "seglog_fuzz.h"

#include "core/seglog/hlc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t file[OC_CLOCK_FILE_BYTES] = {0};
    struct oc_clock_slot slot;

    if (size < 2 || size > 2 + 2 * OC_CLOCK_SLOT_BYTES) {
        return 0;
    }
    for (size_t i = 0; i < size - 2; i++) {
        file[i / OC_CLOCK_SLOT_BYTES * OC_CLOCK_STRIDE + i % OC_CLOCK_SLOT_BYTES] = data[2 + i];
    }
    for (size_t i = 0; i < 2; i++) {
        uint8_t *at = file + i * OC_CLOCK_STRIDE;

        if ((data[0] & 1u << i) != 0) {
            oc_store64(at, OC_CLOCK_MAGIC);
            oc_store32(at + 28, oc_crc32c(0, at, 28));
        }
    }
    size_t len = sizeof file - (data[1] < OC_CLOCK_SLOT_BYTES + 1 ? data[1] : data[1] * 16u);
    uint8_t *exact = fuzz_exact(file, len);

    if (oc_clock_decode(oc_span(exact, len), &slot) == OC_OK) {
        uint64_t at = oc_clock_slot_offset(slot.sequence);
        uint8_t bytes[OC_CLOCK_SLOT_BYTES];

        OC_CHECK(at + sizeof bytes <= len);
        oc_clock_slot_encode(bytes, &slot);
        OC_CHECK(memcmp(bytes, exact + at, sizeof bytes) == 0);
    }
    free(exact);
    return 0;
}
