/* Any bytes, read whole and read as a stream at random boundaries: both must agree on every field
 * and on whether the message is one. Input: 4 bytes that seed the boundaries, then the message. */
#include "base/check.h"
#include "base/rng.h"
#include "core/codec/pb.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define COLLECT_MAX 6
#define BULK_FIELD  3u
#define COLLECTED   (UINT64_C(1) << 1 | UINT64_C(1) << 5)
#define VARINTS     (UINT64_C(1) << 2 | UINT64_C(1) << 7)

/* Every field becomes a record in a buffer, so that the two ways can be compared. */
struct record {
    struct oc_buf out;
};

static void note(struct record *rec, char what, uint32_t number, uint64_t value,
                 struct oc_span bytes) {
    OC_CHECK(oc_buf_append(&rec->out, &what, 1) == OC_OK);
    OC_CHECK(oc_buf_append(&rec->out, &number, sizeof number) == OC_OK);
    OC_CHECK(oc_buf_append(&rec->out, &value, sizeof value) == OC_OK);
    OC_CHECK(oc_buf_append(&rec->out, bytes.p, bytes.len) == OC_OK);
}

static int on_varint(void *user, uint32_t number, uint64_t value) {
    OC_CHECK(number < 64 && (VARINTS >> number & 1) != 0);
    note(user, 'v', number, value, OC_SPAN_EMPTY);
    return OC_OK;
}
static int on_bytes(void *user, uint32_t number, struct oc_span bytes, uint64_t total) {
    OC_CHECK(bytes.len <= COLLECT_MAX && bytes.len <= total);
    note(user, 'b', number, total, bytes);
    return OC_OK;
}
static int on_bulk_begin(void *user, uint64_t total) {
    note(user, 'B', BULK_FIELD, total, OC_SPAN_EMPTY);
    return OC_OK;
}
static int on_bulk(void *user, struct oc_span piece) {
    struct record *rec = user;

    OC_CHECK(piece.len > 0);
    OC_CHECK(oc_buf_append(&rec->out, piece.p, piece.len) == OC_OK);
    return OC_OK;
}

static const struct oc_pb_stream_config config = {
    .bulk_field = BULK_FIELD,
    .collect_fields = COLLECTED,
    .varint_fields = VARINTS,
    .collect_max = COLLECT_MAX,
    .varint = on_varint,
    .bytes = on_bytes,
    .bulk_begin = on_bulk_begin,
    .bulk = on_bulk,
};

static int read_whole(struct oc_span message, struct record *rec) {
    struct oc_pb_reader r = oc_pb_reader(message);
    struct oc_pb_field f;
    int n;

    while ((n = oc_pb_next(&r, &f)) == 1) {
        bool collected = f.number < 64 && (COLLECTED >> f.number & 1) != 0;
        bool wanted = f.number < 64 && (VARINTS >> f.number & 1) != 0;
        struct oc_span s = f.bytes;

        if ((collected || f.number == BULK_FIELD) && f.wire != OC_PB_LEN) {
            return OC_E_INVALID;
        }
        if (wanted && f.wire != OC_PB_VARINT) {
            return OC_E_INVALID;
        }
        if (f.number == BULK_FIELD) {
            note(rec, 'B', f.number, s.len, s);
        } else if (collected) {
            s.len = s.len > COLLECT_MAX ? COLLECT_MAX : s.len;
            note(rec, 'b', f.number, f.bytes.len, s);
        } else if (wanted) {
            note(rec, 'v', f.number, f.value, OC_SPAN_EMPTY);
        }
        (void)oc_utf8_valid(f.bytes); /* only has to come back */
    }
    return n;
}

static int read_stream(struct oc_span message, struct oc_rng *rng, struct record *rec) {
    struct oc_pb_stream s;
    int r = OC_OK;

    oc_pb_stream_init(&s, &config, rec);
    oc_pb_stream_begin(&s, message.len);
    while (message.len > 0 && r == OC_OK) {
        uint64_t most =
            oc_rng_below(rng, 4) == 0 ? message.len : (message.len < 5 ? message.len : 5);
        size_t n = (size_t)oc_rng_below(rng, most + 1);

        r = oc_pb_stream_feed(&s, oc_span(message.p, n));
        message = oc_span(message.p + n, message.len - n);
    }
    r = r == OC_OK ? oc_pb_stream_finish(&s) : r;
    oc_pb_stream_done(&s);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct record whole;
    struct record stream;
    struct oc_rng rng;

    if (size < 4) {
        return 0;
    }
    struct oc_span message = oc_span(data + 4, size - 4);
    oc_rng_init(&rng, oc_load32(data));
    oc_buf_init(&whole.out, 64 * size + 64);
    oc_buf_init(&stream.out, 64 * size + 64);
    int a = read_whole(message, &whole);
    int b = read_stream(message, &rng, &stream);
    OC_CHECK(a == b);
    if (a == OC_OK) {
        OC_CHECK(oc_span_equal(oc_buf_span(&whole.out), oc_buf_span(&stream.out)));
    }
    oc_buf_done(&whole.out);
    oc_buf_done(&stream.out);
    return 0;
}
