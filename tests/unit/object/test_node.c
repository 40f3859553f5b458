/* The embeddable node through its public header: its life, its errors, what its functions say when.
 */
#include <arpa/inet.h>
#include <ftw.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ocache.h"
#include "ocache_node.h"

static char dir[64];

static int setup(void **state) {
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/oc-test-node-XXXXXX");
    return mkdtemp(dir) == NULL ? -1 : 0;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int teardown(void **state) {
    (void)state;
    return nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static struct ocache_node_config config(void) {
    struct ocache_node_config cfg;

    ocache_node_config_init(&cfg);
    assert_string_equal(cfg.listen_addr, ":9000");
    assert_string_equal(cfg.listen_http, ":9001");
    cfg.disk = dir;
    cfg.listen_addr = cfg.listen_http = "127.0.0.1:0";
    return cfg;
}

static struct ocache_local_node *start(const struct ocache_node_config *cfg) {
    struct ocache_local_node *node = NULL;
    struct ocache_error err = {0};

    if (ocache_node_start(cfg, &node, &err) != 0) {
        fail_msg("%s", err.message);
    }
    return node;
}

static void wait_loaded(struct ocache_local_node *node) {
    struct ocache_error err = {0};

    if (ocache_node_wait_loaded(node, UINT64_MAX, &err) != 0) {
        fail_msg("%s", err.message);
    }
}

static struct ocache_client *client_of(const struct ocache_local_node *node) {
    char addr[32];
    const char *addrs[] = {addr};
    struct ocache_config cfg;
    struct ocache_client *client = NULL;

    (void)snprintf(addr, sizeof addr, "127.0.0.1:%u", ocache_node_grpc_port(node));
    ocache_config_init(&cfg);
    cfg.addrs = addrs;
    cfg.addr_count = 1;
    cfg.mode = OCACHE_MODE_SIMPLE;
    assert_int_equal(ocache_client_new(&cfg, &client, NULL), 0);
    return client;
}

static void put(const struct ocache_local_node *node, const char *key, const char *value) {
    struct ocache_client *c = client_of(node);
    struct ocache_error err = {0};

    if (ocache_put(c, key, strlen(key), value, strlen(value), NULL, &err) != 0) {
        fail_msg("%s", err.message);
    }
    ocache_client_free(c);
}

static int get(const struct ocache_local_node *node, const char *key, char value[64]) {
    struct ocache_client *c = client_of(node);
    void *got = NULL;
    size_t len = 0;
    int r = ocache_get(c, key, strlen(key), NULL, &got, &len, NULL);

    if (r == 0) {
        (void)snprintf(value, 64, "%.*s", (int)len, (const char *)got);
        ocache_free(got);
    }
    ocache_client_free(c);
    return r;
}

static void test_life(void **state) {
    struct ocache_node_config cfg = config();
    struct ocache_load load;
    char value[64];

    (void)state;
    cfg.workers = 2;
    for (int round = 0; round < 3; round++) {
        struct ocache_local_node *node = start(&cfg);

        assert_int_not_equal(ocache_node_grpc_port(node), 0);
        assert_int_not_equal(ocache_node_http_port(node), ocache_node_grpc_port(node));
        assert_int_equal(ocache_node_workers(node), 2);
        wait_loaded(node);
        assert_true(ocache_node_is_ready(node));
        ocache_node_load(node, &load);
        assert_int_equal(load.keys, round);
        if (round > 0) {
            assert_int_equal(get(node, "0", value), 0);
            assert_string_equal(value, "value 0");
        }
        char key[16], text[32];
        (void)snprintf(key, sizeof key, "%d", round);
        (void)snprintf(text, sizeof text, "value %d", round);
        put(node, key, text);
        assert_int_equal(ocache_node_stop(node, 5000), 0);
    }
}

static void test_hold_ready(void **state) {
    struct ocache_node_config cfg = config();

    (void)state;
    cfg.hold_ready = true;
    struct ocache_local_node *node = start(&cfg);
    wait_loaded(node);
    assert_false(ocache_node_is_ready(node));
    char value[64];
    assert_int_equal(get(node, "k", value), OCACHE_UNAVAILABLE);
    ocache_node_mark_ready(node);
    assert_true(ocache_node_is_ready(node));
    assert_int_equal(get(node, "k", value), OCACHE_NOT_FOUND);
    put(node, "k", "v");
    assert_int_equal(ocache_node_stop(node, 5000), 0);
}

static void test_refused(void **state) {
    struct ocache_node_config cfg = config();
    struct ocache_local_node *node = NULL;
    struct ocache_error err = {0};

    (void)state;
    cfg.disk = NULL;
    assert_int_equal(ocache_node_start(&cfg, &node, &err), OCACHE_INVALID_ARGUMENT);
    cfg = config();
    cfg.listen_http = "nonsense";
    assert_int_not_equal(ocache_node_start(&cfg, &node, &err), 0);
    assert_non_null(strstr(err.message, "nonsense"));
    assert_int_not_equal(ocache_node_start(&cfg, &node, NULL), 0);

    /* Nothing was left behind: the directory and both ports can be used. */
    cfg = config();
    node = start(&cfg);
    wait_loaded(node);

    struct ocache_local_node *second = NULL;
    assert_int_not_equal(ocache_node_start(&cfg, &second, &err), 0);
    assert_non_null(strstr(err.message, dir));
    assert_null(second);

    char taken[32];
    char other[80];
    (void)snprintf(other, sizeof other, "%s/other", dir);
    (void)snprintf(taken, sizeof taken, "127.0.0.1:%u", ocache_node_http_port(node));
    cfg.disk = other;
    cfg.listen_http = taken;
    assert_int_not_equal(ocache_node_start(&cfg, &second, &err), 0);
    assert_non_null(strstr(err.message, taken));
    assert_int_equal(ocache_node_stop(node, 5000), 0);

    cfg.listen_http = "127.0.0.1:0";
    second = start(&cfg);
    assert_int_equal(ocache_node_stop(second, 5000), 0);
}

/* Stopping while nothing is loaded yet must not wait for anything but the load. */
static void test_stop_at_once(void **state) {
    struct ocache_node_config cfg = config();

    (void)state;
    for (int i = 0; i < 20; i++) {
        struct ocache_local_node *node = start(&cfg);
        assert_int_equal(ocache_node_stop(node, 30000), 0);
    }
}

struct record {
    atomic_uint calls, failed;
    char method[64];
};

static void on_call(void *user, const struct ocache_call_record *r) {
    struct record *rec = user;

    atomic_fetch_add(&rec->calls, 1);
    atomic_fetch_add(&rec->failed, r->code != 0);
    if (strncmp(r->peer, "127.0.0.1:", 10) == 0) {
        (void)snprintf(rec->method, sizeof rec->method, "%s", r->method);
    }
}

static void test_call_records(void **state) {
    struct record rec = {0};
    struct ocache_node_config cfg = config();
    char value[64];

    (void)state;
    cfg.on_call = on_call;
    cfg.user = &rec;
    cfg.workers = 1;
    struct ocache_local_node *node = start(&cfg);
    wait_loaded(node);
    put(node, "k", "v");
    assert_int_equal(get(node, "nothing", value), OCACHE_NOT_FOUND);
    assert_int_equal(ocache_node_stop(node, 5000), 0);
    assert_int_equal(atomic_load(&rec.calls), 2);
    assert_int_equal(atomic_load(&rec.failed), 1);
    assert_string_equal(rec.method, "/cache.CacheService/Get");
}

static void test_two_nodes(void **state) {
    struct ocache_node_config a = config(), b = config();
    char other[80], value[64];

    (void)state;
    (void)snprintf(other, sizeof other, "%s/deep/er", dir);
    char first[80];
    (void)snprintf(first, sizeof first, "%s/first", dir);
    a.disk = first;
    b.disk = other;
    struct ocache_local_node *one = start(&a), *two = start(&b);
    wait_loaded(one);
    wait_loaded(two);
    put(one, "k", "one");
    put(two, "k", "two");
    assert_int_equal(get(one, "k", value), 0);
    assert_string_equal(value, "one");
    assert_int_equal(ocache_node_stop(one, 5000), 0);
    assert_int_equal(get(two, "k", value), 0);
    assert_string_equal(value, "two");
    assert_int_equal(ocache_node_stop(two, 5000), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_life, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hold_ready, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_call_records, setup, teardown),
        cmocka_unit_test_setup_teardown(test_two_nodes, setup, teardown),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("object node", tests, NULL, NULL);
}
