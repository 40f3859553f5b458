/* A server connection that gets HTTP/2 from a peer that may be anybody. The first byte tells how
 * the rest is read: bit 0: whole frames are made of {type, flags, stream, length, payload}, else
 * raw bytes behind the preface; bits 1-3: how the bytes are cut; bits 4-6: how much the socket
 * takes at once. */
#include "../../unit/rpc/mem_io.h"

#include "base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const size_t cuts[8] = {0, 1, 2, 9, 33, 100, 1000, 16384};
static const size_t writes[8] = {0, 1, 17, 100, 1000, 5000, 30000, 0};
static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                              "\0\0\0\4\0\0\0\0\0";

static void put(struct oc_buf *b, const void *p, size_t len) {
    OC_CHECK(oc_buf_append(b, p, len) == OC_OK);
}

static void frames(struct oc_buf *b, const uint8_t *p, size_t len) {
    while (len >= 4) {
        size_t n = p[3] < len - 4 ? p[3] : len - 4;
        uint8_t head[9] = {0, 0, (uint8_t)n, p[0] & 15, p[1], 0, 0, 0, p[2]};

        put(b, head, sizeof head);
        put(b, p + 4, n);
        p += 4 + n;
        len -= 4 + n;
    }
}

static void start(struct mem_server *s) {
    mem_server_init(s);
    s->cfg.receive_budget_bytes = 1 << 20;
    s->cfg.send_budget_bytes = 1 << 20;
    s->cfg.max_header_bytes = 4096;
    s->cfg.max_streams_per_connection = 20;
    s->cfg.reset_burst = 20;
    mem_server_start(s);
    atomic_store(&s->svc.total_max, 1 << 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct mem_server s; /* for all inputs */
    struct mem_peer p;
    struct oc_buf b;

    if (size == 0) {
        return 0;
    }
    if (s.server == NULL) {
        start(&s);
    }
    oc_buf_init(&b, (size_t)1 << 26);
    put(&b, preface, sizeof preface - 1);
    if ((data[0] & 1) != 0) {
        frames(&b, data + 1, size - 1);
    } else {
        put(&b, data + 1, size - 1);
    }
    mem_peer_open(&p, &s);
    p.write_max = writes[data[0] >> 4 & 7];
    mem_peer_feed(&p, b.data, b.len, cuts[data[0] >> 1 & 7]);
    oc_buf_done(&b);
    if ((data[0] & 0x80) != 0 && p.conn != NULL) {
        server_conn_drain(p.conn);
        mem_peer_settle(&p);
        s.now.mono_ns += 70 * OC_NS_PER_S; /* beyond every timeout */
        server_deadline_fired(&s.w->deadline);
        server_tick(&s.w->tick);
        mem_peer_settle(&p);
    }
    mem_peer_close(&p);
    mem_server_check_empty(&s);
    return 0;
}
