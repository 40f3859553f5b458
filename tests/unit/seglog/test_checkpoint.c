/* Drives checkpoints: exact bytes, every flipped bit, every truncation, swapped blocks, size. */
#include "seglog_test.h"

#include <stdio.h>

/* Printed by vectors.py. */
static const uint8_t header_vector[] = {
    0x4f, 0x43, 0x43, 0x4b, 0x50, 0x54, 0x31, 0x00, 0x01, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00,
    0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x07, 0x06, 0x05, 0x04,
    0x03, 0x02, 0x01, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b,
    0x0c, 0x0d, 0x0e, 0x0f, 0x00, 0x00, 0x00, 0x00, 0x3b, 0xd9, 0xa9, 0x81,
};
static const uint8_t block_vector[] = {
    0x77, 0xb9, 0x05, 0x1c, 0x38, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x17, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x61, 0x62, 0x63, 0xd0, 0x0f, 0x05, 0x0e,
    0x08, 0x62, 0x02, 0x01, 0x64, 0x13, 0xc0, 0x84, 0x3d, 0xac, 0x02, 0xc6, 0x01, 0x00,
};
static const uint8_t trailer_vector[] = {
    0x7c, 0x59, 0xc0, 0x2d, 0x40, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
};

static struct oc_ckpt_header vector_header(void) {
    struct oc_ckpt_header h = {
        .shards = 4, .salt = SALT, .from = {7, 64}, .version_ceiling = 0x0102030405060708};

    for (unsigned i = 0; i < 16; i++) {
        h.boot_id[i] = (uint8_t)i;
    }
    return h;
}

static int keep(void *arg, struct oc_span bytes) {
    return oc_buf_append(arg, bytes.p, bytes.len);
}

/* The file of the vectors: header, block, trailer. */
static void build_vector(struct oc_buf *out) {
    struct oc_ckpt_header h = vector_header();
    struct oc_ckpt_entry a = {
        .key = OC_SPAN_LIT("abc"), .version = 1000, .value_len = 5, .segment = 7, .offset = 8};
    struct oc_ckpt_entry b = {.key = OC_SPAN_LIT("abd"),
                              .version = 990,
                              .value_len = 1000000,
                              .segment = 7,
                              .offset = 300,
                              .expires_at_s = 99,
                              .flags = 2};
    struct oc_ckpt_writer *w;

    oc_buf_init(out, 1 << 20);
    w = oc_ckpt_writer_new(&h, keep, out);
    assert_non_null(w);
    assert_int_equal(oc_ckpt_writer_shard(w, 0), 0);
    assert_int_equal(oc_ckpt_writer_shard(w, 1), 0);
    assert_int_equal(oc_ckpt_writer_add(w, &a), 0);
    assert_int_equal(oc_ckpt_writer_add(w, &b), 0);
    oc_ckpt_writer_through(w, (struct oc_log_pos){9, 4096});
    assert_int_equal(oc_ckpt_writer_done(w), 0);
    oc_ckpt_writer_free(w);
}

static void test_exact_bytes(void **state) {
    struct oc_ckpt_header h;
    struct oc_buf b;

    (void)state;
    build_vector(&b);
    assert_int_equal(b.len, 72 + 56 + 64);
    assert_memory_equal(b.data, header_vector, 72);
    assert_memory_equal(b.data + 72, block_vector, 56);
    assert_memory_equal(b.data + 128, trailer_vector, 64);
    assert_int_equal(oc_ckpt_header_decode(oc_buf_span(&b), &h, NULL), 0);
    assert_int_equal(h.shards, 4);
    assert_true(h.salt == SALT && h.version_ceiling == 0x0102030405060708);
    assert_true(h.from.segment == 7 && h.from.offset == 64);
    assert_int_equal(h.boot_id[15], 15);
    oc_buf_done(&b);
}

struct loaded {
    uint64_t entries;
    uint32_t keys_hash; /* over everything passed on */
    struct oc_ckpt_trailer trailer;
};

static int load_entry(void *arg, uint32_t shard, const struct oc_ckpt_entry *e) {
    struct loaded *l = arg;
    uint64_t facts[6] = {shard,      e->version, e->value_len,
                         e->segment, e->offset,  e->expires_at_s + ((uint64_t)e->flags << 32)};

    l->entries++;
    l->keys_hash = oc_crc32c(l->keys_hash, e->key.p, e->key.len);
    l->keys_hash = oc_crc32c(l->keys_hash, facts, sizeof facts);
    return 0;
}

/* Read a whole file as the store does; 0 only when it is complete and adds up. */
static int load(struct oc_span file, struct loaded *l) {
    struct oc_ckpt_header h;
    struct oc_span left = file;
    bool last = false;
    int rc = oc_ckpt_header_decode(file, &h, NULL);

    memset(l, 0, sizeof *l);
    if (rc != 0) {
        return rc;
    }
    left = oc_span(file.p + OC_CKPT_HEADER_BYTES, file.len - OC_CKPT_HEADER_BYTES);
    for (uint64_t index = 0; !last; index++) {
        uint32_t shard = 0;
        size_t used = 0, need = 0;

        rc = oc_ckpt_block_decode(left, &h, index, &shard, &last, &used, &need, load_entry, l);
        if (rc == OC_AGAIN) {
            assert_true(need > left.len && need <= OC_CKPT_BLOCK_MAX);
            return OC_E_DATA_LOSS;
        }
        if (rc != 0) {
            return rc;
        }
        if (last && (rc = oc_ckpt_trailer_decode(left, &h, index, &l->trailer)) != 0) {
            return rc;
        }
        left = oc_span(left.p + used, left.len - used);
    }
    return l->trailer.entries == l->entries && left.len == 0 ? 0 : OC_E_DATA_LOSS;
}

static void test_load(void **state) {
    struct loaded l;
    struct oc_buf b;

    (void)state;
    build_vector(&b);
    assert_int_equal(load(oc_buf_span(&b), &l), 0);
    assert_int_equal(l.entries, 2);
    assert_int_equal(l.trailer.blocks, 1);
    assert_int_equal(l.trailer.through.segment, 9);
    assert_int_equal(l.trailer.through.offset, 4096);
    oc_buf_done(&b);
}

static void test_every_flipped_bit_and_every_truncation(void **state) {
    struct loaded l;
    struct oc_buf b;

    (void)state;
    build_vector(&b);
    for (size_t bit = 0; bit < 8 * b.len; bit++) {
        b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(load(oc_buf_span(&b), &l), OC_E_DATA_LOSS);
        assert_int_equal(l.entries, bit / 8 < 128 ? 0 : 2); /* nothing of a damaged block */
        b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t len = 0; len < b.len; len++) {
        uint8_t *p = exact_copy(oc_span(b.data, len));

        assert_int_equal(load(oc_span(p, len), &l), OC_E_DATA_LOSS);
        exact_free(p, len);
    }
    assert_int_equal(load(oc_buf_span(&b), &l), 0);
    oc_buf_done(&b);
}

struct random_file {
    struct oc_buf out;
    size_t block_at[64]; /* where each piece that was written begins */
    size_t pieces;
};

static int keep_piece(void *arg, struct oc_span bytes) {
    struct random_file *f = arg;

    assert_true(f->pieces < 64);
    f->block_at[f->pieces++] = f->out.len;
    return oc_buf_append(&f->out, bytes.p, bytes.len);
}

/* Ascending random keys in `shards` shards; everything added goes through load_entry into `want`.
 */
static void build_random(struct random_file *f, struct oc_rng *rng, uint32_t shards, size_t max_key,
                         struct loaded *want) {
    static uint8_t key[OC_KEY_MAX];
    struct oc_ckpt_header h = {.shards = shards, .salt = oc_rng_next(rng)};
    struct oc_ckpt_writer *w = oc_ckpt_writer_new(&h, keep_piece, f);

    memset(want, 0, sizeof *want);
    assert_non_null(w);
    for (uint32_t shard = 0; shard < shards; shard++) {
        size_t len = 1;

        memset(key, 0, sizeof key);
        assert_int_equal(oc_ckpt_writer_shard(w, shard), 0);
        for (uint64_t i = 0; i < 200; i++) {
            /* The next key: keep a part, make the byte behind it greater, draw the rest. */
            size_t at = oc_rng_below(rng, len);
            while (at > 0 && key[at] == 255) {
                at--;
            }
            if (key[at] == 255) {
                break;
            }
            key[at]++;
            len = at + 1 + oc_rng_below(rng, max_key - at);
            for (size_t k = at + 1; k < len; k++) {
                key[k] = (uint8_t)oc_rng_next(rng);
            }
            struct oc_ckpt_entry e = {.key = oc_span(key, len),
                                      .version = oc_rng_next(rng),
                                      .value_len = oc_rng_next(rng) >> oc_rng_below(rng, 64),
                                      .segment = (uint32_t)oc_rng_below(rng, 3),
                                      .offset = (uint32_t)oc_rng_next(rng),
                                      .expires_at_s = (uint32_t)oc_rng_below(rng, 3),
                                      .flags = (uint8_t)oc_rng_below(rng, 32)};
            assert_int_equal(oc_ckpt_writer_add(w, &e), 0);
            load_entry(want, shard, &e);
        }
    }
    assert_int_equal(oc_ckpt_writer_done(w), 0);
    oc_ckpt_writer_free(w);
}

static void test_round_trip(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct random_file f = {.pieces = 0};
        struct loaded want, got;
        struct oc_rng rng;

        oc_rng_init(&rng, seed);
        oc_buf_init(&f.out, 64 << 20);
        build_random(&f, &rng, 1 + (uint32_t)seed % 5, seed == 3 ? 30000 : 60, &want);
        assert_int_equal(load(oc_buf_span(&f.out), &got), 0);
        assert_true(got.entries == want.entries && got.keys_hash == want.keys_hash);
        oc_buf_done(&f.out);
    }
}

static void test_missing_swapped_and_foreign_blocks(void **state) {
    struct random_file f = {.pieces = 0};
    struct loaded want, got;
    struct oc_rng rng;

    (void)state;
    oc_rng_init(&rng, 77);
    oc_buf_init(&f.out, 64 << 20);
    build_random(&f, &rng, 4, 60, &want);
    assert_int_equal(f.pieces, 6); /* header, a block a shard, trailer */
    for (size_t i = 1; i < 6; i++) {
        /* Without one block, without the tail. */
        size_t from = f.block_at[i];
        size_t to = i + 1 < f.pieces ? f.block_at[i + 1] : f.out.len;
        struct oc_buf cut;

        oc_buf_init(&cut, 64 << 20);
        assert_int_equal(oc_buf_append(&cut, f.out.data, from), 0);
        assert_int_equal(load(oc_buf_span(&cut), &got), OC_E_DATA_LOSS);
        assert_int_equal(oc_buf_append(&cut, f.out.data + to, f.out.len - to), 0);
        assert_int_equal(load(oc_buf_span(&cut), &got), OC_E_DATA_LOSS);
        oc_buf_done(&cut);
    }
    /* A block of the same place and length from another checkpoint. */
    struct oc_ckpt_header h;
    assert_int_equal(oc_ckpt_header_decode(oc_buf_span(&f.out), &h, NULL), 0);
    struct oc_ckpt_header foreign = h;
    foreign.salt++;
    uint32_t shard;
    bool last;
    size_t used, need;
    struct oc_span block = oc_span(f.out.data + f.block_at[1], f.out.len - f.block_at[1]);
    assert_int_equal(oc_ckpt_block_decode(block, &h, 0, &shard, &last, &used, &need, NULL, NULL),
                     0);
    assert_int_equal(used, f.block_at[2] - f.block_at[1]);
    assert_int_equal(
        oc_ckpt_block_decode(block, &foreign, 0, &shard, &last, &used, &need, NULL, NULL),
        OC_E_DATA_LOSS);
    assert_int_equal(oc_ckpt_block_decode(block, &h, 1, &shard, &last, &used, &need, NULL, NULL),
                     OC_E_DATA_LOSS);
    foreign = h;
    foreign.shards = 0; /* the block's shard is not one of the file's */
    assert_int_equal(
        oc_ckpt_block_decode(block, &foreign, 0, &shard, &last, &used, &need, NULL, NULL),
        OC_E_DATA_LOSS);
    oc_buf_done(&f.out);
}

static void test_blocks_are_bounded_and_entries_small(void **state) {
    struct oc_ckpt_header h = {.shards = 1, .salt = SALT};
    struct random_file f = {.pieces = 0};
    struct loaded got;
    struct oc_rng rng;
    enum { KEYS = 100000 };

    (void)state;
    oc_rng_init(&rng, 5);
    oc_buf_init(&f.out, 64 << 20);
    struct oc_ckpt_writer *w = oc_ckpt_writer_new(&h, keep_piece, &f);
    assert_non_null(w);
    assert_int_equal(oc_ckpt_writer_shard(w, 0), 0);
    for (uint64_t i = 0; i < KEYS; i++) {
        /* 33 bytes, random but for their order, as the hashes of content are; an hour of writes. */
        char key[34];
        (void)snprintf(key, sizeof key, "%09llx%016llx%08llx", (unsigned long long)(i << 19),
                       (unsigned long long)oc_rng_next(&rng),
                       (unsigned long long)(oc_rng_next(&rng) >> 32));
        struct oc_ckpt_entry e = {
            .key = oc_span(key, 33),
            .version = (UINT64_C(1790000000000000) + oc_rng_below(&rng, 3600000000)) << 8,
            .value_len = 4096,
            .segment = (uint32_t)oc_rng_below(&rng, 1000),
            .offset = (uint32_t)oc_rng_below(&rng, 1 << 23)};
        assert_int_equal(oc_ckpt_writer_add(w, &e), 0);
    }
    assert_int_equal(oc_ckpt_writer_done(w), 0);
    oc_ckpt_writer_free(w);
    for (size_t i = 1; i + 1 < f.pieces; i++) {
        size_t len = f.block_at[i + 1] - f.block_at[i];
        assert_true(len <= OC_CKPT_BLOCK_MAX);
        assert_true(len > OC_CKPT_BLOCK_MAX - 200 || i + 2 == f.pieces);
    }
    assert_int_equal(load(oc_buf_span(&f.out), &got), 0);
    assert_int_equal(got.entries, KEYS);
    assert_true(f.out.len / KEYS < 50);
    print_message("%.1f bytes an entry\n", (double)f.out.len / KEYS);
    oc_buf_done(&f.out);
}

static void test_largest_keys_fit(void **state) {
    static uint8_t key[OC_KEY_MAX];
    struct oc_ckpt_header h = {.shards = 1, .salt = SALT};
    struct random_file f = {.pieces = 0};
    struct loaded got;

    (void)state;
    oc_buf_init(&f.out, 64 << 20);
    struct oc_ckpt_writer *w = oc_ckpt_writer_new(&h, keep_piece, &f);
    assert_non_null(w);
    for (unsigned i = 0; i < 10; i++) {
        struct oc_ckpt_entry e = {.key = oc_span(key, sizeof key),
                                  .version = i % 2 == 0 ? UINT64_MAX : 0,
                                  .value_len = UINT64_MAX,
                                  .segment = i % 2 == 0 ? UINT32_MAX : 0,
                                  .offset = UINT32_MAX,
                                  .expires_at_s = i % 3 == 0 ? UINT32_MAX : 1};
        memset(key, (int)i, sizeof key);
        assert_int_equal(oc_ckpt_writer_add(w, &e), 0);
    }
    assert_int_equal(oc_ckpt_writer_done(w), 0);
    oc_ckpt_writer_free(w);
    assert_int_equal(load(oc_buf_span(&f.out), &got), 0);
    assert_int_equal(got.entries, 10);
    oc_buf_done(&f.out);
}

static int refuse(void *arg, struct oc_span bytes) {
    int *left = arg;

    (void)bytes;
    return (*left)-- > 0 ? 0 : OC_E_EXHAUSTED;
}

static void test_a_failed_write_sticks(void **state) {
    struct oc_ckpt_header h = {.shards = 9};
    struct oc_ckpt_entry e = {.key = OC_SPAN_LIT("k")};

    (void)state;
    for (int pieces = 0; pieces <= 3; pieces++) {
        int left = pieces;
        struct oc_ckpt_writer *w = oc_ckpt_writer_new(&h, refuse, &left);

        assert_non_null(w);
        assert_int_equal(oc_ckpt_writer_add(w, &e), 0);
        assert_int_equal(oc_ckpt_writer_shard(w, 1), pieces < 2 ? OC_E_EXHAUSTED : 0);
        assert_int_equal(oc_ckpt_writer_add(w, &e), pieces < 2 ? OC_E_EXHAUSTED : 0);
        left = pieces == 3 ? 2 : 0;
        assert_int_equal(oc_ckpt_writer_done(w), pieces == 3 ? 0 : OC_E_EXHAUSTED);
        oc_ckpt_writer_free(w);
    }
}

static void test_keys_out_of_order_are_refused(void **state) {
    static const char *const pairs[][2] = {{"b", "a"}, {"a", "a"}, {"ab", "a"}, {"b", ""}};
    struct oc_ckpt_header h = {.shards = 9};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        int left = 9;
        struct oc_ckpt_writer *w = oc_ckpt_writer_new(&h, refuse, &left);
        struct oc_ckpt_entry a = {.key = oc_span_str(pairs[i][0])};
        struct oc_ckpt_entry b = {.key = oc_span_str(pairs[i][1])};

        assert_non_null(w);
        assert_int_equal(oc_ckpt_writer_add(w, &a), 0);
        assert_int_equal(oc_ckpt_writer_add(w, &b), OC_E_INVALID);
        assert_int_equal(oc_ckpt_writer_done(w), OC_E_INVALID);
        oc_ckpt_writer_free(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_bytes),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_every_flipped_bit_and_every_truncation),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_missing_swapped_and_foreign_blocks),
        cmocka_unit_test(test_blocks_are_bounded_and_entries_small),
        cmocka_unit_test(test_largest_keys_fit),
        cmocka_unit_test(test_a_failed_write_sticks),
        cmocka_unit_test(test_keys_out_of_order_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
