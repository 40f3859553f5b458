/* gRPC framing: random boundaries give the same messages as one piece, and nothing is lost. Input:
 * 4 bytes that seed the boundaries, then the stream. */
#include "base/check.h"
#include "base/mem.h"
#include "base/rng.h"
#include "core/codec/grpc_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MESSAGE_MAX 4096

struct outcome {
    struct oc_buf out; /* messages: length, flag, bytes, end mark */
    int result;
    bool idle;
};

static void put(struct outcome *o, const void *p, size_t n) {
    OC_CHECK(oc_buf_append(&o->out, p, n) == OC_OK);
}

static void feed(struct oc_grpc_reader *r, struct oc_span in, struct outcome *o) {
    struct oc_grpc_piece p;

    while (o->result == OC_OK && (o->result = oc_grpc_reader_next(r, &in, &p)) == 1) {
        OC_CHECK(p.message_len <= MESSAGE_MAX && p.bytes.len <= p.message_len);
        if (p.begin) {
            put(o, &p.message_len, sizeof p.message_len);
            put(o, &p.compressed, sizeof p.compressed);
        }
        put(o, p.bytes.p, p.bytes.len);
        put(o, "E", p.end ? 1 : 0);
        o->result = OC_OK;
    }
    OC_CHECK(o->result != OC_OK || in.len == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct oc_grpc_reader r;
    struct outcome one = {0};
    struct outcome many = {0};
    struct oc_rng rng;
    uint64_t ns = 0;

    if (size < 4) {
        return 0;
    }
    struct oc_span in = oc_span(data + 4, size - 4);
    oc_rng_init(&rng, oc_load32(data));
    oc_buf_init(&one.out, 4 * size + 64);
    oc_buf_init(&many.out, 4 * size + 64);
    oc_grpc_reader_init(&r, MESSAGE_MAX);
    feed(&r, in, &one);
    one.idle = oc_grpc_reader_idle(&r);
    oc_grpc_reader_init(&r, MESSAGE_MAX);
    for (struct oc_span left = in; left.len > 0 && many.result == OC_OK;) {
        size_t n = (size_t)oc_rng_below(&rng, left.len < 9 ? left.len + 1 : 9);

        feed(&r, oc_span(left.p, n), &many);
        left = oc_span(left.p + n, left.len - n);
    }
    many.idle = oc_grpc_reader_idle(&r);
    OC_CHECK(one.result == many.result && one.idle == many.idle);
    OC_CHECK(oc_span_equal(oc_buf_span(&one.out), oc_buf_span(&many.out)));
    if (oc_grpc_timeout_parse(in, &ns) == OC_OK) {
        char text[OC_GRPC_TIMEOUT_MAX];
        uint64_t again = 0;
        size_t n = oc_grpc_timeout_format(text, ns);

        OC_CHECK(oc_grpc_timeout_parse(oc_span(text, n), &again) == OC_OK && again >= ns);
    }
    oc_buf_done(&one.out);
    oc_buf_done(&many.out);
    return 0;
}
