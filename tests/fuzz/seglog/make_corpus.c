/* Writes the corpora of this folder's fuzz targets: `make_seglog_corpus tests/fuzz/corpus`. Run it
 * again after a change of format, and commit what it wrote. */
#include "seglog_fuzz.h"

#include <stdio.h>

#include "core/seglog/hlc.h"

static const char *root;

static void put_file(const char *target, const char *name, const uint8_t *modes, size_t modes_len,
                     struct oc_span bytes) {
    char path[4096];
    FILE *f;

    OC_CHECK(snprintf(path, sizeof path, "%s/%s/%s", root, target, name) < (int)sizeof path);
    f = fopen(path, "wb");
    if (f == NULL) {
        fprintf(stderr, "cannot write %s (make the folder first)\n", path);
        exit(1);
    }
    OC_CHECK(fwrite(modes, 1, modes_len, f) == modes_len);
    OC_CHECK(fwrite(bytes.p, 1, bytes.len, f) == bytes.len);
    OC_CHECK(fclose(f) == 0);
}

static void append(struct oc_buf *b, const struct oc_record *r) {
    size_t value_len = (size_t)oc_rec_value_len(r->kind, r->object_len);
    size_t total = (size_t)oc_rec_total(r->key.len, value_len);

    OC_CHECK(oc_buf_reserve(b, total) == OC_OK);
    memset(b->data + b->len, 0, total);
    oc_rec_encode(b->data + b->len, FUZZ_SALT, b->len, r);
    if (value_len > 0) {
        memcpy(b->data + b->len + OC_REC_HEADER_BYTES + r->key.len, r->value.p, value_len);
    }
    b->len += total;
}

/* One record of each kind behind a segment header. */
static void build_segment(struct oc_buf *b) {
    struct oc_seg_header h = {.segment = 7, .salt = FUZZ_SALT};
    struct oc_file_ref ref = {.file = 3, .len = 1000000, .chunk_bytes = OC_CHUNK_BYTES};
    struct oc_mark mark = {.segment = 7, .offset = 64};
    struct oc_record put = {.kind = OC_REC_PUT,
                            .key = OC_SPAN_LIT("a key"),
                            .value = OC_SPAN_LIT("a value"),
                            .object_len = 7,
                            .version = 256,
                            .expires_at_s = 99,
                            .value_crc = oc_crc32c(0, "a value", 7)};
    struct oc_record file = {.kind = OC_REC_FILE,
                             .key = OC_SPAN_LIT("a kez"),
                             .value = oc_span(&ref, sizeof ref),
                             .object_len = ref.len,
                             .version = 257};
    struct oc_record marked = {
        .kind = OC_REC_MARK, .value = oc_span(&mark, sizeof mark), .version = 258};
    struct oc_record del = {.kind = OC_REC_TOMBSTONE, .key = OC_SPAN_LIT("a key"), .version = 259};

    oc_buf_init(b, 1 << 20);
    oc_seg_header_encode(&h);
    OC_CHECK(oc_buf_append(b, &h, sizeof h) == OC_OK);
    append(b, &put);
    append(b, &file);
    append(b, &marked);
    append(b, &del);
}

static void make_records(void) {
    static const uint8_t modes[][2] = {{0, 0}, {1, 3}, {2, 200}, {3, 1}};
    struct oc_buf b;

    build_segment(&b);
    struct oc_span records = oc_span(b.data + OC_SEG_HEADER_BYTES, b.len - OC_SEG_HEADER_BYTES);
    put_file("seglog_record", "header", NULL, 0, oc_span(b.data, OC_SEG_HEADER_BYTES));
    for (unsigned i = 0; i < 4; i++) {
        char name[32];

        (void)snprintf(name, sizeof name, "kinds-%u", i);
        put_file("seglog_record", name, modes[i], 2, records);
    }
    put_file("seglog_record", "torn", modes[2], 2, oc_span(records.p, records.len - 9));
    b.data[OC_SEG_HEADER_BYTES + 5] ^= 1;
    put_file("seglog_record", "flipped", modes[0], 2, records);
    memset(b.data + OC_SEG_HEADER_BYTES, 0, 64);
    put_file("seglog_record", "zeros", modes[2], 2, records);
    oc_buf_done(&b);
}

static void make_footers(void) {
    static const uint8_t raw = 0;
    static const uint8_t entries_mode[9] = {1, 0, 0, 0, 0, 16, 0, 0, 0};
    struct oc_footer_builder *f = oc_footer_new();
    struct oc_buf b;
    size_t need = 0;

    OC_CHECK(f != NULL);
    build_segment(&b);
    size_t data_end = b.len;
    for (size_t at = OC_SEG_HEADER_BYTES; at < data_end;) {
        struct oc_record r;

        OC_CHECK(oc_rec_decode(oc_span(b.data + at, data_end - at), FUZZ_SALT, at, data_end, &r,
                               &need) == OC_OK);
        OC_CHECK(oc_footer_add(f, at, &r) == OC_OK);
        at += (size_t)r.total_len;
    }
    OC_CHECK(oc_footer_encode(f, FUZZ_SALT, 7, data_end, &b) == OC_OK);
    put_file("seglog_footer", "summary", &raw, 1, oc_buf_span(&b));
    b.data[b.len - 1] ^= 1;
    put_file("seglog_footer", "first-copy", &raw, 1, oc_buf_span(&b));
    put_file("seglog_footer", "torn", &raw, 1, oc_span(b.data, b.len - 8));
    /* A put, one behind a gap that shares its key's start, a tombstone, a file. */
    static const char entries[] = "\x11\x80\x04\x85\x20\xc6\x01\x00\x05"
                                  "a key"
                                  "\x09\x06\x02\x85\x20\x04\x01z"
                                  "\x03\x02\x04\x00"
                                  "\x02\x02\xc0\x84\x3d\x00\x01"
                                  "b";
    put_file("seglog_footer", "entries", entries_mode, 9,
             oc_span((const uint8_t *)entries, sizeof entries - 1));
    oc_footer_free(f);
    oc_buf_done(&b);
}

static int keep(void *arg, struct oc_span bytes) {
    return oc_buf_append(arg, bytes.p, bytes.len);
}

static void make_checkpoints(void) {
    static const uint8_t raw = 0, block = 1;
    static const char *const keys[] = {"a", "a key", "a kez", "b"};
    struct oc_ckpt_header h = {.shards = 3, .salt = FUZZ_SALT, .from = {7, 64}};
    struct oc_buf b;

    oc_buf_init(&b, 1 << 20);
    struct oc_ckpt_writer *w = oc_ckpt_writer_new(&h, keep, &b);
    OC_CHECK(w != NULL);
    for (uint32_t shard = 0; shard < 3; shard++) {
        OC_CHECK(oc_ckpt_writer_shard(w, shard) == OC_OK);
        for (unsigned i = 0; i < 4; i++) {
            struct oc_ckpt_entry e = {.key = oc_span_str(keys[i]),
                                      .version = 1000 - i * 300,
                                      .value_len = i * 100,
                                      .segment = 7 + i / 2,
                                      .offset = 8 * i,
                                      .expires_at_s = i % 2 * 99,
                                      .flags = (uint8_t)i};

            OC_CHECK(oc_ckpt_writer_add(w, &e) == OC_OK);
        }
    }
    OC_CHECK(oc_ckpt_writer_done(w) == OC_OK);
    oc_ckpt_writer_free(w);
    put_file("seglog_checkpoint", "file", &raw, 1, oc_buf_span(&b));
    put_file("seglog_checkpoint", "no-trailer", &raw, 1, oc_span(b.data, b.len - 64));
    put_file("seglog_checkpoint", "torn", &raw, 1, oc_span(b.data, 150));
    const uint8_t *first = b.data + OC_CKPT_HEADER_BYTES;
    put_file("seglog_checkpoint", "block", &block, 1, oc_span(first + 32, oc_load32(first + 24)));
    oc_buf_done(&b);
}

static void make_clocks(void) {
    static const uint8_t modes[][2] = {{0, 0}, {3, 0}, {0, 9}, {1, 255}};
    uint8_t slots[2 * OC_CLOCK_SLOT_BYTES];

    oc_clock_slot_encode(slots, &(struct oc_clock_slot){4, 4000});
    oc_clock_slot_encode(slots + OC_CLOCK_SLOT_BYTES, &(struct oc_clock_slot){5, 5000});
    for (unsigned i = 0; i < 4; i++) {
        char name[32];

        (void)snprintf(name, sizeof name, "slots-%u", i);
        put_file("seglog_clock", name, modes[i], 2, oc_span(slots, sizeof slots));
    }
    slots[40] ^= 1;
    put_file("seglog_clock", "torn", modes[0], 2, oc_span(slots, sizeof slots));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS_DIR\n", argv[0]);
        return 1;
    }
    root = argv[1];
    make_records();
    make_footers();
    make_checkpoints();
    make_clocks();
    return 0;
}
