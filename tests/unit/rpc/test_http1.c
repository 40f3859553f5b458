/* HTTP/1.1: a table of requests and what they are answered with, at any split; then keep-alive,
 * timeouts and slow readers over real sockets. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mem_io.h"
#include "rig.h"

#define H "Host: a\r\n"

struct http_case {
    const char *in;
    const char *statuses; /* of all answers, in order */
    bool closes;
    const char *contains; /* in the answers; may be NULL */
    const char *lacks;
};

static const struct http_case cases[] = {
    {"GET /health HTTP/1.1\r\n" H "\r\n", "200", false,
     "Content-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"status\":\"ok\"}",
     "Connection"},
    {"HEAD /health HTTP/1.1\r\n" H "\r\n", "200", false, "Content-Length: 15\r\n\r\n", "status"},
    {"GET /echo?a=b%20c HTTP/1.1\r\n" H "\r\n", "200", false, "GET|/echo|a=b%20c|", NULL},
    {"OPTIONS /echo HTTP/1.1\r\n" H "\r\n", "200", false, "OPTIONS|/echo||", NULL},
    {"GET /nope HTTP/1.1\r\n" H "\r\n", "404", false, "not found", NULL},
    {"GET /health/ HTTP/1.1\r\n" H "\r\n", "404", false, NULL, NULL},
    {"GET /post HTTP/1.1\r\n" H "\r\n", "405", false, NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "204", false, NULL, "Content-"},
    /* pipelined, with bodies between */
    {"GET /health HTTP/1.1\r\n" H "\r\nGET /nope HTTP/1.1\r\n" H "\r\nPOST /post HTTP/1.1\r\n" H
     "Content-Length: 3\r\n\r\nabcGET /health HTTP/1.1\r\n" H "\r\n",
     "200 404 204 200", false, NULL, NULL},
    {"\r\n\r\nGET /health HTTP/1.1\r\n" H "\r\n\r\n\r\nGET /health HTTP/1.1\r\n" H "\r\n",
     "200 200", false, NULL, NULL},
    /* chunked, with extension and trailer */
    {"POST /post HTTP/1.1\r\n" H
     "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"
     "GET /health HTTP/1.1\r\n" H "\r\n",
     "204 200", false, NULL, NULL},
    /* a Host in the trailer is no Host */
    {"POST /post HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nHost: b\r\n\r\n", "204",
     false, NULL, NULL},
    /* the connection's life */
    {"GET /health HTTP/1.1\r\n" H "Connection: close\r\n\r\nGET /health HTTP/1.1\r\n" H "\r\n",
     "200", true, "Connection: close\r\n", NULL},
    {"GET /health HTTP/1.0\r\n\r\n", "200", true, "Connection: close\r\n", NULL},
    {"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /health HTTP/1.0\r\n\r\n",
     "200 200", true, "Connection: keep-alive\r\n", NULL},
    {"GET /health HTTP/1.1\r\n" H
     "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\nGET /nope HTTP/1.1\r\n" H "\r\n",
     "200 404", false, NULL, NULL},
    {"GET /health HTTP/1.1\r\n" H
     "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n"
     "\r\nabGET /nope HTTP/1.1\r\n" H "\r\n",
     "200 404", false, NULL, NULL},
    /* an old way to write long fields, which some join and others do not: RFC 9112 lets a server
       refuse it */
    {"GET /health HTTP/1.1\r\n" H "X: 1\r\n Host: b\r\n\r\nGET /nope HTTP/1.1\r\n" H "\r\n", "400",
     true, NULL, NULL},
    {"GET /health HTTP/1.1\r\n" H "X: 1 2\t3 \r\nY:\r\nZ: \t \r\n\r\n", "200", false, NULL, NULL},
    {"GET /health HTTP/1.1\r\n" H ": 1\r\n\r\n", "400", true, NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H
     "Transfer-Encoding:\r\n chunked\r\n\r\n1\r\na\r\n0\r\n\r\nGET /nope HTTP/1.1\r\n" H "\r\n",
     "400", true, NULL, NULL},
    /* a bare line feed may end a line, says RFC 9112; a bare carriage return may not (below) */
    {"GET /health HTTP/1.1\n" H "\nGET /nope HTTP/1.1\r\n" H "\r\n", "200 404", false, NULL, NULL},
    /* expectations */
    {"POST /post HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab", "100 204",
     false, NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Expect: 100-Continue\r\nContent-Length: 0\r\n\r\n", "204", false,
     NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 9999999\r\n\r\n", "413",
     true, NULL, "100 Continue"},
    {"POST /post HTTP/1.1\r\n" H "Expect: tea\r\nContent-Length: 2\r\n\r\nab", "417", true, NULL,
     NULL},
    {"POST /post HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab", "204", true,
     NULL, "100 Continue"},
    /* what could be read in two ways */
    {"POST /post HTTP/1.1\r\n" H "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     "400", true, NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
     "400", true, NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "400", true,
     NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400", true,
     NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Content-Length: +3\r\n\r\nabc", "400", true, NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Content-Length: 3,3\r\n\r\nabc", "400", true, NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Content-Length: 99999999999999999999999\r\n\r\n", "400", true,
     NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n", "400", true, NULL,
     NULL},
    {"POST /post HTTP/1.1\r\n" H "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", "400", true,
     NULL, NULL},
    {"POST /post HTTP/1.1\r\n" H "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "400", true, NULL,
     NULL},
    {"POST /post HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nx\r\nabc", "400", true, NULL,
     NULL},
    {"POST /post HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", "400", true,
     NULL, NULL},
    {"POST /post HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400", true, NULL, NULL},
    {"GET /health HTTP/1.1\r\n" H "X: a\rb\r\n\r\n", "400", true, NULL, NULL},
    {"GET /health HTTP/1.1\r\n" H "X\x01: a\r\n\r\n", "400", true, NULL, NULL},
    {"GET /health HTTP/1.1\r\n\r\n", "400", true, "one Host", NULL},
    {"GET /health HTTP/1.1\r\n" H H "\r\n", "400", true, "one Host", NULL},
    /* no request at all */
    {"GET /health HTTP/1.2\r\n" H "\r\n", "505", true, NULL, NULL},
    {"GET /health HTTP/2.0\r\n" H "\r\n", "505", true, NULL, NULL},
    {"GET /health HTTP/3.0\r\n" H "\r\n", "505", true, NULL, NULL},
    {"GET /health HTTP/0.9\r\n\r\n", "505", true, NULL, NULL},
    {"GET /health\r\n\r\n", "505", true, NULL, NULL},
    {"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n", "400", true, NULL, NULL},
    {"\x16\x03\x01\x02", "400", true, NULL, NULL},
    {"NOSUCH /health HTTP/1.1\r\n" H "\r\n", "400", true, NULL, NULL},
    {"CONNECT a:1 HTTP/1.1\r\n" H "\r\n", "405", true, NULL, NULL},
    {"GET /ok HTTP/1.1\r\n" H "\r\nGET /health HTTP/9.9\r\n\r\n", "404 505", true, NULL, NULL},
};

/* The statuses of a series of answers. Bodies are skipped by their Content-Length. */
static void statuses_of(const uint8_t *p, size_t len, bool head, char *ret, size_t cap) {
    size_t used = 0;

    ret[0] = 0;
    while (len > 0) {
        const char *end = memmem(p, len, "\r\n\r\n", 4);
        char line[2048];

        assert_true(len > 13 && memcmp(p, "HTTP/1.1 ", 9) == 0);
        assert_non_null(end);
        size_t n = (size_t)(end + 4 - (const char *)p);
        assert_true(n < sizeof line);
        memcpy(line, p, n);
        line[n] = 0;
        used += (size_t)snprintf(ret + used, cap - used, "%s%.3s", used > 0 ? " " : "", line + 9);
        assert_true(used < cap);
        const char *length = strstr(line, "Content-Length: ");
        if (length != NULL && !head) {
            n += strtoul(length + 16, NULL, 10);
        }
        assert_true(n <= len);
        p += n;
        len -= n;
    }
}

static void check_case(struct mem_server *s, const struct http_case *c, size_t part,
                       size_t write_max) {
    struct mem_peer p;
    char statuses[256];

    mem_peer_open(&p, s);
    p.write_max = write_max;
    mem_peer_feed(&p, c->in, strlen(c->in), part);
    statuses_of(p.out.data, p.out.len, memcmp(c->in, "HEAD", 4) == 0, statuses, sizeof statuses);
    bool closed = p.conn == NULL || p.shut;
    bool contains = c->contains == NULL ||
                    memmem(p.out.data, p.out.len, c->contains, strlen(c->contains)) != NULL;
    bool lacks =
        c->lacks == NULL || memmem(p.out.data, p.out.len, c->lacks, strlen(c->lacks)) == NULL;
    if (strcmp(statuses, c->statuses) != 0 || closed != c->closes || !contains || !lacks) {
        fail_msg("parts of %zu: %s\n-> %s (closed %d)\n%.*s", part, c->in, statuses, closed,
                 (int)p.out.len, (const char *)p.out.data);
    }
    mem_peer_close(&p);
}

static void requests_at_any_split(void **state) {
    static const size_t parts[] = {0, 1, 2, 3, 7, 20};
    struct mem_server s;

    (void)state;
    mem_server_init(&s);
    mem_server_start(&s);
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        for (size_t k = 0; k < OC_ARRAY_LEN(parts); k++) {
            check_case(&s, &cases[i], parts[k], k % 2 == 0 ? 0 : 5);
        }
    }
    mem_server_stop(&s);
}

static void expect_status(struct mem_server *s, const struct oc_buf *in, const char *expected,
                          size_t part) {
    struct mem_peer p;
    char statuses[64];

    mem_peer_open(&p, s);
    mem_peer_feed(&p, in->data, in->len, part);
    statuses_of(p.out.data, p.out.len, false, statuses, sizeof statuses);
    assert_string_equal(statuses, expected);
    mem_peer_close(&p);
}

static void put(struct oc_buf *b, const char *text) {
    assert_int_equal(oc_buf_append(b, text, strlen(text)), 0);
}

static void fill(struct oc_buf *b, char c, size_t n) {
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(oc_buf_append(b, &c, 1), 0);
    }
}

static void bounds(void **state) {
    struct mem_server s;
    struct oc_buf b;

    (void)state;
    mem_server_init(&s);
    mem_server_start(&s);
    oc_buf_init(&b, 1 << 24);
    for (size_t part = 0; part <= 1000; part += 500) {
        /* a path of 8192 bytes is the longest */
        b.len = 0;
        put(&b, "GET /");
        fill(&b, 'x', 8191);
        put(&b, " HTTP/1.1\r\n" H "\r\n");
        expect_status(&s, &b, "404", part);
        b.len = 0;
        put(&b, "GET /");
        fill(&b, 'x', 8192);
        put(&b, " HTTP/1.1\r\n" H "\r\n");
        expect_status(&s, &b, "414", part);
        /* 32 KiB of fields: one large value, one large name, many small ones */
        b.len = 0;
        put(&b, "GET /health HTTP/1.1\r\n" H "X: ");
        fill(&b, 'y', 33000);
        put(&b, "\r\n\r\n");
        expect_status(&s, &b, "431", part);
        b.len = 0;
        put(&b, "GET /health HTTP/1.1\r\n" H);
        fill(&b, 'z', 33000);
        put(&b, ": 1\r\n\r\n");
        expect_status(&s, &b, "431", part);
        b.len = 0;
        put(&b, "GET /health HTTP/1.1\r\n" H);
        for (int i = 0; i < 6000; i++) {
            put(&b, "a:b\r\n");
        }
        put(&b, "\r\n");
        expect_status(&s, &b, "431", part);
        /* 1 MiB of body, by length, in chunks, and in chunk extensions */
        b.len = 0;
        put(&b, "POST /post HTTP/1.1\r\n" H "Content-Length: 1048576\r\n\r\n");
        fill(&b, 'b', 1 << 20);
        expect_status(&s, &b, "204", part);
        b.len = 0;
        put(&b, "POST /post HTTP/1.1\r\n" H "Content-Length: 1048577\r\n\r\n");
        expect_status(&s, &b, "413", part);
        b.len = 0;
        put(&b, "POST /post HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n100001\r\n");
        fill(&b, 'b', (1 << 20) + 1);
        expect_status(&s, &b, "413", part);
        b.len = 0;
        put(&b, "POST /post HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1;");
        fill(&b, 'e', (1 << 20) + 1);
        expect_status(&s, &b, "413", part);
        b.len = 0;
        put(&b, "POST /post HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nT: ");
        fill(&b, 't', 33000);
        expect_status(&s, &b, "431", part);
    }
    oc_buf_done(&b);
    mem_server_stop(&s);
}

/* More pipelined requests than answers fit: the server stops reading, and answers all of them. */
static void pipelining_is_bounded(void **state) {
    enum { REQUESTS = 20 };
    static const char request[] = "GET /big HTTP/1.1\r\n" H "\r\n";
    struct mem_server s;
    struct mem_peer p;
    struct oc_buf b;

    (void)state;
    mem_server_init(&s);
    mem_server_start(&s);
    oc_buf_init(&b, 1 << 20);
    for (int i = 0; i < REQUESTS; i++) {
        put(&b, request);
    }
    for (size_t part = 0; part < 20; part += 19) {
        mem_peer_open(&p, &s);
        server_conn_input(p.conn, oc_span(b.data, b.len));
        assert_false(p.reading); /* after the first answer of 1 MiB */
        p.write_max = 100000;
        mem_peer_settle(&p);
        assert_true(p.reading);
        assert_true(p.out.len > REQUESTS * (1u << 20));
        assert_true(p.out.len < REQUESTS * ((1u << 20) + 300));
        assert_int_equal(atomic_load(&s.w->counts.http1_requests), REQUESTS);
        atomic_store(&s.w->counts.http1_requests, 0);
        mem_peer_close(&p);
    }
    oc_buf_done(&b);
    mem_server_stop(&s);
}

/* ---- over sockets ---- */

static size_t recv_until(int fd, uint8_t *got, size_t cap, const char *text) {
    uint64_t end_ms = rig_now_ms() + RIG_DEADLINE_MS;
    size_t n = 0;
    bool ended;

    while (memmem(got, n, text, strlen(text)) == NULL) {
        n += peer_recv_for(fd, got + n, cap - n, 10, &ended);
        assert_true(rig_now_ms() < end_ms && n < cap);
    }
    return n;
}

static void half_closed_peer_is_answered(void **state) {
    static const char in[] = "GET /big HTTP/1.1\r\n" H "\r\nGET /big HTTP/1.1\r\n" H "\r\n";
    struct rig rig;
    uint8_t *got = malloc(4 << 20);

    (void)state;
    rig_init(&rig);
    rig_start(&rig);
    int fd = peer_connect(rig.port);
    peer_send(fd, in, sizeof in - 1);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    size_t n = peer_recv_all(fd, got, 4 << 20);
    assert_true(n > 2 << 20);
    (void)close(fd);
    free(got);
    rig_stop(&rig);
}

static void timeouts(void **state) {
    static const struct {
        const char *in;
        const char *out;
    } table[] = {
        {"GET /hea", "408"},
        {"GET /health HTTP/1.1\r\nHost:", "408"},
        {"POST /post HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nab", "408"},
        {"GET /health HTTP/1.1\r\n" H "\r\n", "200"}, /* then idle: closed without a word */
        {"", ""},
    };
    struct rig rig;
    uint8_t got[4096];

    (void)state;
    rig_init(&rig);
    rig.cfg.handshake_ms = 300;
    rig.cfg.stall_ms = 400;
    rig_start(&rig);
    for (size_t i = 0; i < OC_ARRAY_LEN(table); i++) {
        char statuses[32];
        uint64_t begin_ms = rig_now_ms();
        int fd = peer_connect(rig.port);

        peer_send(fd, table[i].in, strlen(table[i].in));
        size_t n = peer_recv_all(fd, got, sizeof got);
        statuses_of(got, n, false, statuses, sizeof statuses);
        assert_string_equal(statuses, table[i].out);
        assert_true(rig_now_ms() - begin_ms >= 299);
        (void)close(fd);
    }
    assert_int_equal(rig_stats(&rig).stalled_closed, 4);
    rig_stop(&rig);
}

/* A byte at a time keeps a head no longer than a silent peer does. */
static void dripping_head(void **state) {
    struct rig rig;
    uint8_t got[1024];
    size_t n = 0;
    bool ended = false;

    (void)state;
    rig_init(&rig);
    rig.cfg.handshake_ms = 100;
    rig_start(&rig);
    int fd = peer_connect(rig.port);
    peer_send(fd, "GET /health HTTP/1.1\r\nX: ", 25);
    uint64_t begin_ms = rig_now_ms();
    while (!ended) {
        peer_send(fd, "y", 1);
        n += peer_recv_for(fd, got + n, sizeof got - n, 10, &ended);
        assert_true(rig_now_ms() - begin_ms < RIG_DEADLINE_MS);
    }
    assert_true(n > 12 && memcmp(got, "HTTP/1.1 408", 12) == 0);
    (void)close(fd);
    rig_stop(&rig);
}

static void reader_that_does_not_read(void **state) {
    struct rig rig;

    (void)state;
    rig_init(&rig);
    rig.cfg.stall_ms = 400;
    rig_start(&rig);
    int fd = peer_connect(rig.port);
    for (int i = 0; i < 50; i++) {
        peer_send(fd, "GET /big HTTP/1.1\r\n" H "\r\n", 30);
    }
    wait_for(rig_stats(&rig).stalled_closed == 1);
    wait_for(rig_stats(&rig).connections == 0);
    (void)close(fd);
    rig_stop(&rig);
}

static void keep_alive_serves_many(void **state) {
    struct rig rig;
    uint8_t got[1024];

    (void)state;
    rig_init(&rig);
    rig_start(&rig);
    int fd = peer_connect(rig.port);
    for (int i = 0; i < 100; i++) {
        peer_send(fd, "GET /health HTTP/1.1\r\n" H "\r\n", 33);
        (void)recv_until(fd, got, sizeof got, "{\"status\":\"ok\"}");
    }
    assert_int_equal(rig_stats(&rig).http1_requests, 100);
    assert_int_equal(rig_stats(&rig).connections, 1);
    (void)close(fd);
    rig_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_at_any_split),
        cmocka_unit_test(bounds),
        cmocka_unit_test(pipelining_is_bounded),
        cmocka_unit_test(half_closed_peer_is_answered),
        cmocka_unit_test(timeouts),
        cmocka_unit_test(dripping_head),
        cmocka_unit_test(reader_that_does_not_read),
        cmocka_unit_test(keep_alive_serves_many),
    };

    return cmocka_run_group_tests_name("http1", tests, NULL, NULL);
}
