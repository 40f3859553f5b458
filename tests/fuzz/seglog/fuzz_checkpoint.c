/* Checkpoints: no bytes make the block decoder read outside them or ask for more than a block may
 * be; what decodes encodes to the same bytes.
 *
 * Input: a byte of modes. 0: the rest is a file. 1: the rest is the entries of one block, which
 * gets a right header. */
#include "seglog_fuzz.h"

#define BLOCK_HEADER 32u

struct rebuilt {
    struct oc_ckpt_writer *writer;
    uint64_t count;
};

static int add(void *arg, uint32_t shard, const struct oc_ckpt_entry *e) {
    struct rebuilt *x = arg;

    OC_CHECK(e->key.len >= 1 && e->key.len <= OC_KEY_MAX && e->flags < 32);
    (void)shard;
    x->count++;
    if (x->writer != NULL) {
        OC_CHECK(oc_ckpt_writer_add(x->writer, e) == OC_OK);
    }
    return 0;
}

static int keep(void *arg, struct oc_span bytes) {
    return oc_buf_append(arg, bytes.p, bytes.len);
}

static void raw_file(const uint8_t *data, size_t size) {
    struct oc_ckpt_header h;
    struct rebuilt x = {.writer = NULL};
    struct oc_ckpt_trailer t;
    size_t at = OC_CKPT_HEADER_BYTES;
    bool last = false;

    if (oc_ckpt_header_decode(oc_span(data, size), &h, NULL) != OC_OK) {
        return;
    }
    for (uint64_t index = 0; !last; index++) {
        uint32_t shard = 0;
        size_t used = 0, need = 0;
        struct oc_span left = oc_span(data + at, size - at);
        int rc = oc_ckpt_block_decode(left, &h, index, &shard, &last, &used, &need, add, &x);

        OC_CHECK(rc != OC_AGAIN || (need > left.len && need <= OC_CKPT_BLOCK_MAX));
        if (rc != OC_OK) {
            return;
        }
        OC_CHECK(used > 0 && used <= left.len && (last || shard < h.shards));
        OC_CHECK(oc_ckpt_trailer_decode(left, &h, index, &t) == (last ? OC_OK : OC_E_DATA_LOSS));
        at += used;
    }
}

/* A block of `entries` with right lengths and checksum. */
static size_t sign(uint8_t *block, const uint8_t *payload, size_t len, uint32_t entries) {
    size_t total = (BLOCK_HEADER + len + 7) & ~(size_t)7;

    memset(block, 0, total);
    oc_store32(block + 4, (uint32_t)total);
    oc_store32(block + 16, 5); /* shard */
    oc_store32(block + 20, entries);
    oc_store32(block + 24, (uint32_t)len);
    memcpy(block + BLOCK_HEADER, payload, len);
    oc_store32(block, fuzz_salted_crc(block + 4, total - 4));
    return total;
}

static void signed_block(const uint8_t *payload, size_t len) {
    static uint8_t block[OC_CKPT_BLOCK_MAX];
    struct oc_ckpt_header h = {.shards = 6, .salt = FUZZ_SALT};
    struct rebuilt x = {.writer = NULL};
    struct oc_buf again;
    uint32_t shard = 0;
    bool last = false;
    size_t used = 0, need = 0;

    if (len > OC_CKPT_BLOCK_MAX / 2) {
        return; /* the writer might have begun another block */
    }
    size_t total = sign(block, payload, len, UINT32_MAX);
    /* Only to count: fails at the end at the latest. */
    OC_CHECK(oc_ckpt_block_decode(oc_span(block, total), &h, 0, &shard, &last, &used, &need, add,
                                  &x) == OC_E_DATA_LOSS);
    total = sign(block, payload, len, (uint32_t)x.count);
    uint8_t *exact = fuzz_exact(block, total);
    oc_buf_init(&again, 1 << 20);
    x = (struct rebuilt){.writer = oc_ckpt_writer_new(&h, keep, &again)};
    OC_CHECK(x.writer != NULL && oc_ckpt_writer_shard(x.writer, 5) == OC_OK);
    if (oc_ckpt_block_decode(oc_span(exact, total), &h, 0, &shard, &last, &used, &need, add, &x) ==
        OC_OK) {
        OC_CHECK(shard == 5 && !last && used == total && x.count > 0);
        OC_CHECK(oc_ckpt_writer_done(x.writer) == OC_OK);
        OC_CHECK(again.len == OC_CKPT_HEADER_BYTES + total + 64);
        OC_CHECK(memcmp(again.data + OC_CKPT_HEADER_BYTES, exact, total) == 0);
    }
    oc_ckpt_writer_free(x.writer);
    oc_buf_done(&again);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    if ((data[0] & 1) != 0) {
        signed_block(data + 1, size - 1);
    } else {
        uint8_t *exact = fuzz_exact(data + 1, size - 1);

        raw_file(exact, size - 1);
        free(exact);
    }
    return 0;
}
