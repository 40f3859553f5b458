/* Answers that are short on the wire and would be large, or long work, here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ocache.h"
#include "raw.h"

#define FRAME_BYTES 16384u

struct answer {
    const uint8_t *bytes;
    size_t len;
};

static bool give_answer(struct raw *r, void *arg) {
    const struct answer *a = arg;
    uint8_t body[256];
    size_t body_len;
    uint32_t stream;

    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_body(r, stream, body, sizeof body, &body_len));
    RAW(raw_ok_headers(r, stream));
    RAW(raw_message(r, stream, a->bytes, a->len, FRAME_BYTES));
    RAW(raw_trailers(r, stream, "0", NULL));
    return true;
}

static struct ocache_client *client_of(struct raw *r) {
    const char *addr = raw_addr(r);
    struct ocache_client *client;
    struct ocache_config cfg;

    ocache_config_init(&cfg);
    cfg.addrs = &addr;
    cfg.addr_count = 1;
    cfg.connections = 1;
    cfg.mode = OCACHE_MODE_SIMPLE;
    assert_int_equal(ocache_client_new(&cfg, &client, NULL), 0);
    return client;
}

/* `count` empty fields of this number, two bytes each. */
static uint8_t *empty_fields(unsigned number, size_t count) {
    uint8_t *p = malloc(2 * count);

    assert_non_null(p);
    for (size_t i = 0; i < count; i++) {
        p[2 * i] = (uint8_t)(number << 3 | 2);
        p[2 * i + 1] = 0;
    }
    return p;
}

static void list_of(size_t count, int code) {
    uint8_t *bytes = empty_fields(1, count);
    struct answer a = {bytes, 2 * count};
    struct raw *r = raw_start(give_answer, &a, 0);
    struct ocache_client *client = client_of(r);
    struct ocache_list *list = NULL;

    assert_int_equal(ocache_list_page(client, NULL, NULL, &list, NULL), code);
    if (code == OCACHE_OK) {
        assert_int_equal(list->count, count);
        ocache_list_free(list);
    }
    raw_wait(r);
    ocache_client_free(client);
    (void)raw_stop(r); /* a client that has had enough may hang up first */
    free(bytes);
}

static void test_list_entries(void **state) {
    (void)state;
    list_of(1u << 20, OCACHE_OK);
    list_of((1u << 20) + 1, OCACHE_INTERNAL);
}

static void topology_of(size_t nodes, int code) {
    uint8_t *bytes = empty_fields(2, nodes);
    size_t len = 2 * nodes, head = 0;
    uint8_t *message = malloc(len + 8);

    assert_non_null(message);
    message[head++] = 1 << 3 | 2; /* GetTopologyResponse.topology, and its length as a varint */
    for (size_t v = len; v > 0; v >>= 7) {
        message[head++] = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
    }
    memcpy(message + head, bytes, len);
    struct answer a = {message, head + len};
    struct raw *r = raw_start(give_answer, &a, 0);
    struct ocache_client *client = client_of(r);
    struct ocache_topology *topology = NULL;

    assert_int_equal(ocache_topology_get(client, NULL, &topology, NULL), code);
    if (code == OCACHE_OK) {
        assert_int_equal(topology->node_count, nodes);
        ocache_topology_free(topology);
    }
    raw_wait(r);
    ocache_client_free(client);
    assert_true(raw_stop(r));
    free(message);
    free(bytes);
}

static void test_topology_nodes(void **state) {
    (void)state;
    topology_of(4096, OCACHE_OK);
    topology_of(4097, OCACHE_RESOURCE_EXHAUSTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_entries),
        cmocka_unit_test(test_topology_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
