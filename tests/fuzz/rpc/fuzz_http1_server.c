/* A server connection that gets HTTP/1.1. Whatever way the bytes are cut and the answers are taken,
 * the answers are the same. The first byte chooses the cut. */
#include "../../unit/rpc/mem_io.h"

#include "base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void talk(struct mem_server *s, struct mem_peer *p, const uint8_t *data, size_t size,
                 size_t part, size_t write_max) {
    mem_peer_open(p, s);
    p->write_max = write_max;
    mem_peer_feed(p, data, size, part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct mem_server s; /* for all inputs */
    struct mem_peer whole, cut;

    if (size < 2 || data[1] == 'P') {
        return 0; /* P may begin the other protocol, which fuzz_h2_server is for */
    }
    if (s.server == NULL) {
        mem_server_init(&s);
        s.cfg.max_header_bytes = 512;
        mem_server_start(&s);
    }
    talk(&s, &whole, data + 1, size - 1, 0, 0);
    talk(&s, &cut, data + 1, size - 1, 1 + data[0] % 64u,
         data[0] >> 6 == 0 ? 0 : data[0] % 50u + 1);
    OC_CHECK(whole.out.len == cut.out.len);
    OC_CHECK(whole.out.len == 0 || memcmp(whole.out.data, cut.out.data, whole.out.len) == 0);
    OC_CHECK((whole.conn == NULL || whole.shut) == (cut.conn == NULL || cut.shut));
    mem_peer_close(&whole);
    mem_peer_close(&cut);
    mem_server_check_empty(&s);
    return 0;
}
