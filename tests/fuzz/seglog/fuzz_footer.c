/* Footers: no tail makes the decoder read outside it or ask forever; entries that are consistent
 * encode to the same bytes.
 *
 * Input: a byte of modes. 0: the rest is the tail of a file. 1: the rest is entries, which get two
 * trailers with right checksums; 8 bytes first say where the records end. */
#include "seglog_fuzz.h"

struct rebuilt {
    struct oc_footer_builder *builder;
    uint64_t count;
    uint64_t end;
};

static int add(void *arg, uint64_t offset, const struct oc_record *r) {
    struct rebuilt *x = arg;

    OC_CHECK(offset >= x->end && r->key.len >= 1 && r->value.len == 0);
    x->end = offset + r->total_len;
    x->count++;
    if (x->builder != NULL) {
        OC_CHECK(oc_footer_add(x->builder, offset, r) == OC_OK);
    }
    return 0;
}

/* Give the decoder as much as it asks for of the file's last bytes. */
static int decode(const uint8_t *tail, size_t len, uint64_t file_bytes,
                  struct oc_footer_info *info) {
    size_t give = 0, need = 0;

    for (int rounds = 0;; rounds++) {
        OC_CHECK(rounds < 4); /* or it asks forever */
        uint8_t *exact = fuzz_exact(tail + len - give, give);
        int rc = oc_footer_decode(oc_span(exact, give), file_bytes, FUZZ_SALT, 7, info, &need);

        if (rc == OC_OK && info->entries.len > 0) { /* point into what lives on */
            info->entries.p = tail + len - give + (info->entries.p - exact);
        }
        free(exact);
        if (rc != OC_AGAIN) {
            return rc;
        }
        OC_CHECK(need > give && need <= file_bytes);
        if (need > len) {
            return OC_E_DATA_LOSS; /* the input is no whole tail */
        }
        give = need;
    }
}

static void sign(struct oc_buf *b, const uint8_t *entries, size_t len, uint64_t data_end,
                 uint64_t records) {
    static const uint8_t zeros[8] = {0};
    size_t pad = (8 - len % 8) % 8;
    uint8_t trailer[64] = {0};

    oc_store64(trailer, OC_FOOT_MAGIC);
    oc_store32(trailer + 8, 7);
    oc_store32(trailer + 12, len > 0);
    oc_store64(trailer + 16, data_end);
    oc_store64(trailer + 24, records);
    oc_store64(trailer + 32, len);
    oc_store32(trailer + 52, oc_crc32c(fuzz_salted_crc(entries, len), zeros, pad));
    oc_store32(trailer + 60, fuzz_salted_crc(trailer, 60));
    for (int i = 0; i < 2; i++) {
        OC_CHECK(oc_buf_append(b, entries, len) == OC_OK);
        OC_CHECK(oc_buf_append(b, zeros, pad) == OC_OK);
        OC_CHECK(oc_buf_append(b, trailer, sizeof trailer) == OC_OK);
    }
}

static void signed_entries(const uint8_t *entries, size_t len, uint64_t data_end) {
    struct oc_footer_info info = {.data_end = data_end,
                                  .records = UINT64_MAX,
                                  .has_entries = len > 0,
                                  .entries = oc_span(entries, len)};
    struct rebuilt x = {.builder = NULL};
    struct oc_buf file, again;

    oc_buf_init(&file, 1 << 24);
    oc_buf_init(&again, 1 << 24);
    (void)oc_footer_each(&info, add, &x); /* only to count */
    sign(&file, entries, len, data_end, x.count);
    x = (struct rebuilt){.builder = oc_footer_new()};
    OC_CHECK(x.builder != NULL);
    if (decode(file.data, file.len, data_end + file.len, &info) == OC_OK &&
        oc_footer_each(&info, add, &x) == OC_OK && len > 0) {
        OC_CHECK(x.count == info.records && x.end <= data_end);
        OC_CHECK(oc_footer_encode(x.builder, FUZZ_SALT, 7, data_end, &again) == OC_OK);
        /* The 2 % rule may leave the entries out. */
        OC_CHECK(again.len == 128 ||
                 (again.len == file.len && memcmp(again.data, file.data, file.len) == 0));
    }
    oc_footer_free(x.builder);
    oc_buf_done(&file);
    oc_buf_done(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct oc_footer_info info;
    struct rebuilt x = {.builder = NULL};

    if (size < 9) {
        return 0;
    }
    uint64_t data_end = (oc_load64(data + 1) >> 24 << 3) + OC_SEG_HEADER_BYTES;

    if ((data[0] & 1) != 0) {
        signed_entries(data + 9, size - 9, data_end);
    } else if (decode(data + 1, size - 1, size - 1, &info) == OC_OK) {
        (void)oc_footer_each(&info, add, &x);
    }
    return 0;
}
