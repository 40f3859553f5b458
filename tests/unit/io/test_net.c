/* Listeners, outgoing connections and addresses, over loopback. Connections themselves: test_tcp.c.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "echo.h"
#include "io/tcp.h"
#include "rig.h"

/* ---- a listener and two workers, each on a thread of its own ---- */

struct server {
    struct loop_thread *threads[3];
    struct oc_listener *listener;
    struct echo_stats stats[2];
    const char *addr;
    unsigned max_connections;
    struct oc_letter letter;
    struct oc_error err;
    int rc;
    _Atomic bool done;
};

static void open_on_loop(struct oc_letter *letter) {
    struct server *s = OC_CONTAINER(letter, struct server, letter);
    struct oc_worker_slot slots[2];

    for (int i = 0; i < 2; i++) {
        slots[i] =
            (struct oc_worker_slot){loop_thread_loop(s->threads[i]), echo_accepted, &s->stats[i]};
    }
    struct oc_listener_config cfg = {.addr = s->addr,
                                     .max_connections = s->max_connections,
                                     .workers = slots,
                                     .worker_count = 2};
    s->rc = oc_listener_open(loop_thread_loop(s->threads[2]), &cfg, &s->listener, &s->err);
    atomic_store(&s->done, true);
}

static void close_on_loop(struct oc_letter *letter) {
    struct server *s = OC_CONTAINER(letter, struct server, letter);

    oc_listener_close(s->listener);
    atomic_store(&s->done, true);
}

static void on_listener_loop(struct server *s, void (*fn)(struct oc_letter *letter)) {
    atomic_store(&s->done, false);
    s->letter.fn = fn;
    oc_loop_post(loop_thread_loop(s->threads[2]), &s->letter);
    wait_for(atomic_load(&s->done));
}

static int server_try_start(struct server *s, const char *addr, unsigned max_connections) {
    memset(s, 0, sizeof *s);
    s->addr = addr;
    s->max_connections = max_connections;
    for (int i = 0; i < 3; i++) {
        s->threads[i] = loop_thread_start();
    }
    on_listener_loop(s, open_on_loop);
    return s->rc;
}

static uint16_t server_start(struct server *s, const char *addr, unsigned max_connections) {
    if (server_try_start(s, addr, max_connections) != 0) {
        fail_msg("%s", s->err.msg);
    }
    assert_int_not_equal(oc_listener_port(s->listener), 0);
    return oc_listener_port(s->listener);
}

static void server_stop(struct server *s) {
    for (int i = 2; i >= 0; i--) {
        loop_thread_stop(s->threads[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(s->stats[i].accepted, s->stats[i].closed);
    }
}

static struct oc_listener_stats stats_of(const struct server *s) {
    struct oc_listener_stats stats;

    oc_listener_stats(s->listener, &stats);
    return stats;
}

static bool echoes(int fd) {
    char got[5];

    if (send(fd, "hello", 5, MSG_NOSIGNAL) != 5 || peer_recv(fd, got, 5) != 5) {
        return false;
    }
    return memcmp(got, "hello", 5) == 0;
}

/* ---- listeners ---- */

static void test_a_thousand_connections_are_spread_evenly(void **state) {
    enum { N = 1000 };
    struct server s;
    struct rlimit files;
    static int fds[N];

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < 2 * N + 100) {
        print_message("skipped: only %lu files may be open\n", (unsigned long)files.rlim_max);
        skip();
    }
    uint16_t port = server_start(&s, "127.0.0.1:0", N);
    for (int i = 0; i < N; i++) {
        fds[i] = peer_connect(port);
    }
    for (int i = 0; i < N; i++) {
        peer_send(fds[i], &i, sizeof i);
    }
    for (int i = 0; i < N; i++) {
        int got = -1;

        assert_int_equal(peer_recv(fds[i], &got, sizeof got), sizeof got);
        assert_int_equal(got, i);
    }
    assert_int_equal(s.stats[0].accepted, N / 2);
    assert_int_equal(s.stats[1].accepted, N / 2);
    assert_int_equal(stats_of(&s).open, N);
    for (int i = 0; i < N; i++) {
        (void)close(fds[i]);
    }
    wait_for(stats_of(&s).open == 0);
    assert_int_equal(stats_of(&s).accepted, N);
    assert_int_equal(stats_of(&s).refused, 0);
    server_stop(&s);
}

static void test_the_least_loaded_worker_is_chosen(void **state) {
    enum { N = 10 };
    struct server s;
    int fds[N];

    (void)state;
    uint16_t port = server_start(&s, "127.0.0.1:0", 0);
    for (int i = 0; i < N; i++) { /* one after the other: they alternate */
        fds[i] = peer_connect(port);
        assert_true(echoes(fds[i]));
    }
    assert_int_equal(s.stats[0].accepted, N / 2);
    for (int i = 0; i < N; i += 2) { /* all of one worker's */
        (void)close(fds[i]);
    }
    wait_for(stats_of(&s).open == N / 2);
    uint64_t before[2] = {s.stats[0].accepted, s.stats[1].accepted};
    int empty = s.stats[0].closed > 0 ? 0 : 1;
    for (int i = 0; i < N; i += 2) {
        fds[i] = peer_connect(port);
        assert_true(echoes(fds[i]));
    }
    assert_int_equal(s.stats[empty].accepted, before[empty] + N / 2);
    assert_int_equal(s.stats[1 - empty].accepted, before[1 - empty]);
    for (int i = 0; i < N; i++) {
        (void)close(fds[i]);
    }
    server_stop(&s);
}

static void test_equally_loaded_workers_take_turns(void **state) {
    enum { N = 10 };
    struct server s;

    (void)state;
    uint16_t port = server_start(&s, "127.0.0.1:0", 0);
    for (int i = 0; i < N; i++) { /* never two at a time: both workers are always empty */
        int fd = peer_connect(port);

        assert_true(echoes(fd));
        (void)close(fd);
        wait_for(stats_of(&s).open == 0);
    }
    assert_int_equal(s.stats[0].accepted, N / 2);
    assert_int_equal(s.stats[1].accepted, N / 2);
    server_stop(&s);
}

static void test_more_than_max_connections_are_closed_at_once(void **state) {
    struct server s;
    int fds[5];
    char byte;

    (void)state;
    uint16_t port = server_start(&s, "127.0.0.1:0", 3);
    for (int i = 0; i < 5; i++) {
        fds[i] = peer_connect(port);
    }
    for (int i = 0; i < 3; i++) {
        assert_true(echoes(fds[i]));
    }
    for (int i = 3; i < 5; i++) {
        assert_int_equal(recv(fds[i], &byte, 1, 0), 0);
        (void)close(fds[i]);
    }
    assert_int_equal(stats_of(&s).refused, 2);
    (void)close(fds[0]);
    wait_for(stats_of(&s).open == 2);
    fds[0] = peer_connect(port); /* there is room again */
    assert_true(echoes(fds[0]));
    for (int i = 0; i < 3; i++) {
        (void)close(fds[i]);
    }
    server_stop(&s);
}

static void test_out_of_descriptors(void **state) {
    struct server s;
    struct rlimit before;
    char byte;

    (void)state;
    uint16_t port = server_start(&s, "127.0.0.1:0", 0);
    int first = peer_connect(port);
    assert_true(echoes(first));
    /* The peer's socket is made while there is a descriptor left; then there is none. */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int next = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    assert_true(fd >= 0 && next >= 0);
    (void)close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit none = {.rlim_cur = (rlim_t)next, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int rc = connect(fd, (struct sockaddr *)&addr, sizeof addr);
    ssize_t n = rc == 0 ? recv(fd, &byte, 1, 0) : -1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, 0);
    assert_int_equal(n, 0); /* taken in and closed, not left waiting */
    assert_int_equal(stats_of(&s).refused, 1);
    assert_true(echoes(first));
    (void)close(fd);
    /* Accepts again; one that comes while the listener still believes in the shortage may be
     * refused. */
    bool served = false;
    for (int tries = 0; tries < 2 && !served; tries++) {
        fd = peer_connect(port);
        served = echoes(fd);
        (void)close(fd);
    }
    assert_true(served);
    (void)close(first);
    server_stop(&s);
}

static int connect_to(int family, uint16_t port) {
    struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};

    if (family == AF_INET) {
        return peer_connect(port);
    }
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&v6, sizeof v6) != 0) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

static bool have_ipv6(void) {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool have = fd >= 0 && bind(fd, (struct sockaddr *)&v6, sizeof v6) == 0;

    if (fd >= 0) {
        (void)close(fd);
    }
    return have;
}

static void test_every_address(void **state) {
    static const int families[] = {AF_INET, AF_INET6};
    struct server s;

    (void)state;
    uint16_t port = server_start(&s, ":0", 0);
    for (int i = 0; i < 2; i++) {
        if (families[i] == AF_INET6 && !have_ipv6()) {
            print_message("no IPv6 here: only IPv4 is tested\n");
            continue;
        }
        int fd = connect_to(families[i], port);
        assert_true(fd >= 0);
        assert_true(echoes(fd));
        (void)close(fd);
    }
    server_stop(&s);
}

static void test_closed_listener_keeps_its_connections(void **state) {
    struct server s;

    (void)state;
    uint16_t port = server_start(&s, "localhost:0", 0); /* a name */
    int fd = connect_to(AF_INET, port);
    assert_true(echoes(fd));
    on_listener_loop(&s, close_on_loop);
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(other, (struct sockaddr *)&addr, sizeof addr), -1);
    assert_int_equal(errno, ECONNREFUSED);
    (void)close(other);
    assert_true(echoes(fd));
    (void)close(fd);
    server_stop(&s);
}

static void test_addresses_that_cannot_be_listened_on(void **state) {
    static const struct {
        const char *addr;
        int code;
        const char *text;
    } cases[] = {
        {"127.0.0.1", OC_E_INVALID, "the port is missing"},
        {"203.0.113.1:0", OC_E_UNAVAILABLE,
         "cannot listen on '203.0.113.1:0': Cannot assign requested address (no interface"},
        {"no..such..host:0", OC_E_INVALID, "cannot listen on 'no..such..host:0': "},
    };
    struct server s;
    struct server second;
    char addr[32];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(server_try_start(&s, cases[i].addr, 0), cases[i].code);
        if (strstr(s.err.msg, cases[i].text) == NULL) {
            fail_msg("'%s' does not say '%s'", s.err.msg, cases[i].text);
        }
        server_stop(&s);
    }
    uint16_t port = server_start(&s, ":0", 0);
    (void)snprintf(addr, sizeof addr, ":%u", port);
    assert_int_equal(server_try_start(&second, addr, 0), OC_E_UNAVAILABLE);
    assert_non_null(strstr(second.err.msg,
                           "Address already in use (another process holds the port; "
                           "stop it or pass -listen-addr)"));
    server_stop(&second);
    server_stop(&s);
}

/* ---- outgoing connections ---- */

struct dial {
    struct rig rig;
    struct oc_connect *connect;
    struct oc_tcp *tcp;
    struct oc_error err;
    unsigned calls;
    unsigned closes;
    char got[8];
    size_t got_len;
    bool cancel_inside;
    struct oc_turn_hook hook;
    unsigned turns;
    unsigned cancel_at; /* turn; 0 = never */
    bool cancel_before; /* before the first turn */
};

static void dial_read(void *user, struct oc_span bytes) {
    struct dial *d = user;

    assert_true(d->got_len + bytes.len <= sizeof d->got);
    memcpy(d->got + d->got_len, bytes.p, bytes.len);
    d->got_len += bytes.len;
    if (d->got_len == 5) {
        oc_tcp_close(d->tcp, false);
    }
}

static void dial_unexpected(void *user) {
    (void)user;
    fail();
}

static void dial_ended(void *user, int code) {
    (void)user;
    (void)code;
    fail();
}

static void dial_closed(void *user) {
    struct dial *d = user;

    d->closes++;
    oc_loop_stop(d->rig.loop);
}

static const struct oc_tcp_events dial_events = {dial_read, dial_unexpected, dial_ended,
                                                 dial_closed};

static void dialled(void *arg, struct oc_tcp *tcp, const struct oc_error *err) {
    struct dial *d = arg;

    d->calls++;
    d->tcp = tcp;
    if (d->cancel_inside) {
        oc_tcp_connect_cancel(d->connect);
    }
    if (tcp == NULL) {
        d->err = *err;
        oc_loop_stop(d->rig.loop);
        return;
    }
    assert_null(err);
    oc_tcp_set_user(tcp, &dial_events, d);
    oc_tcp_read_start(tcp);
    assert_int_equal(oc_tcp_try_writev(tcp, &(struct iovec){(void *)"hello", 5}, 1), 5);
}

static void dial_hook(struct oc_turn_hook *hook) {
    struct dial *d = OC_CONTAINER(hook, struct dial, hook);

    d->turns++;
    if (d->turns == d->cancel_at && !d->cancel_before) {
        assert_int_equal(d->calls, 0); /* or it would be too late to cancel */
        oc_tcp_connect_cancel(d->connect);
    }
    if (d->cancel_at > 0) {
        if (d->turns > d->cancel_at + 10) {
            oc_loop_stop(d->rig.loop);
        }
        oc_loop_again(d->rig.loop);
    }
}

static void dial(struct dial *d, const char *addr, uint64_t timeout_ms) {
    rig_init(&d->rig);
    d->hook.fn = dial_hook;
    oc_loop_hook_add(d->rig.loop, &d->hook);
    assert_int_equal(oc_tcp_connect(d->rig.loop, addr, timeout_ms, dialled, d, &d->connect), 0);
    assert_int_equal(d->calls, 0); /* later */
    if (d->cancel_before) {
        oc_tcp_connect_cancel(d->connect);
    }
    rig_run(&d->rig);
    rig_done(&d->rig);
}

static void test_connect_and_echo(void **state) {
    static const char *const hosts[] = {"127.0.0.1", "localhost", "[::1]"};
    struct server s;

    (void)state;
    uint16_t port = server_start(&s, ":0", 0);
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        struct dial d = {.cancel_inside = i == 0};
        char addr[64];

        if (hosts[i][0] == '[' && !have_ipv6()) {
            print_message("no IPv6 here: only IPv4 is tested\n");
            continue;
        }
        (void)snprintf(addr, sizeof addr, "%s:%u", hosts[i], port);
        dial(&d, addr, RIG_DEADLINE_MS);
        assert_int_equal(d.calls, 1);
        assert_int_equal(d.closes, 1);
        assert_memory_equal(d.got, "hello", 5);
    }
    server_stop(&s);
}

/* A port that was bound a moment ago and listens no more. */
static uint16_t unused_port(int *ret_fd) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    *ret_fd = fd; /* bound but not listening: refuses, and stays ours */
    return ntohs(addr.sin_port);
}

static void test_connect_refused(void **state) {
    struct dial d = {0};
    char addr[64];
    int fd;

    (void)state;
    (void)snprintf(addr, sizeof addr, "127.0.0.1:%u", unused_port(&fd));
    dial(&d, addr, RIG_DEADLINE_MS);
    assert_int_equal(d.calls, 1);
    assert_int_equal(d.err.code, OC_E_UNAVAILABLE);
    assert_non_null(strstr(d.err.msg, "cannot connect to '127.0.0.1:"));
    assert_non_null(strstr(d.err.msg, "Connection refused"));
    (void)close(fd);
}

/* A listener that never accepts and whose backlog is full: the kernel drops what knocks. */
static void test_connect_timeout_and_cancel(void **state) {
    enum { N = 8 };
    char addr[64];
    int fd;
    int fillers[N];
    uint16_t port = unused_port(&fd);
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    (void)state;
    assert_int_equal(listen(fd, 0), 0);
    for (int i = 0; i < N; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        assert_true(fillers[i] >= 0);
        (void)!connect(fillers[i], (struct sockaddr *)&to,
                       sizeof to); /* goes on in the background */
    }
    (void)snprintf(addr, sizeof addr, "127.0.0.1:%u", port);
    struct dial late = {0};
    uint64_t start_ns = oc_clock_now(oc_clock_real()).mono_ns;
    dial(&late, addr, 150);
    assert_true(oc_clock_now(oc_clock_real()).mono_ns - start_ns >= 150 * OC_NS_PER_MS);
    assert_int_equal(late.calls, 1);
    assert_int_equal(late.err.code, OC_E_DEADLINE);
    assert_non_null(strstr(late.err.msg, "Connection timed out"));
    for (unsigned turn = 1; turn <= 4; turn++) {
        struct dial cancelled = {.cancel_at = turn};

        dial(&cancelled, addr, RIG_DEADLINE_MS);
        assert_int_equal(cancelled.calls, 0);
    }
    struct dial never = {.cancel_at = 1, .cancel_before = true};
    dial(&never, addr, RIG_DEADLINE_MS);
    assert_int_equal(never.calls, 0);
    for (int i = 0; i < N; i++) {
        (void)close(fillers[i]);
    }
    (void)close(fd);
}

/* An empty label fails in the resolver itself: no packet leaves the machine. */
static void test_connect_to_a_name_that_is_not_there(void **state) {
    struct dial d = {0};
    struct dial cancelled = {.cancel_at = 1}; /* the lookup has begun, its answer is not in */

    (void)state;
    dial(&d, "no..such..host:80", RIG_DEADLINE_MS / 2);
    assert_int_equal(d.calls, 1);
    assert_true(d.err.code == OC_E_UNAVAILABLE || d.err.code == OC_E_DEADLINE);
    assert_non_null(strstr(d.err.msg, "cannot connect to 'no..such..host:80': "));
    dial(&cancelled, "no..such..host:80", RIG_DEADLINE_MS);
    assert_int_equal(cancelled.calls, 0);
}

static void stop_first(struct oc_letter *letter) {
    (void)letter;
    oc_loop_stop(oc_loop_current());
}

static void test_stopping_the_loop_ends_a_connect(void **state) {
    struct dial d = {0};
    struct oc_letter letter = {NULL, stop_first};

    (void)state;
    rig_init(&d.rig);
    assert_int_equal(
        oc_tcp_connect(d.rig.loop, "localhost:9", RIG_DEADLINE_MS, dialled, &d, &d.connect), 0);
    oc_loop_post(d.rig.loop, &letter);
    rig_run(&d.rig);
    assert_int_equal(d.calls, 1);
    assert_int_equal(d.err.code, OC_E_CANCELLED);
    rig_done(&d.rig);
}

static void test_addresses_that_are_none(void **state) {
    static const char *const bad[] = {"", "host", ":80", "host:", "host:0", "host:65536", "::1:80"};
    struct rig rig;
    struct oc_connect *c;

    (void)state;
    rig_init(&rig);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(oc_tcp_connect(rig.loop, bad[i], 1, dialled, NULL, &c), OC_E_INVALID);
    }
    rig_done(&rig);
}

/* ---- addresses as text ---- */

static void test_addr_split(void **state) {
    static const struct {
        const char *addr;
        const char *host; /* NULL: no address, and `text` is in the message */
        uint16_t port;
        const char *text;
    } cases[] = {
        {":9000", "", 9000, NULL},
        {"host:0", "host", 0, NULL},
        {"10.0.0.1:65535", "10.0.0.1", 65535, NULL},
        {"[::1]:80", "::1", 80, NULL},
        {"[fe80::1%eth0]:80", "fe80::1%eth0", 80, NULL},
        {"0123456789012345678:1", "0123456789012345678", 1, NULL},
        {"01234567890123456789:1", NULL, 0, "too long"},
        {"", NULL, 0, "port is missing"},
        {"host", NULL, 0, "port is missing"},
        {"[::1]", NULL, 0, "port is missing"},
        {"[::1]80", NULL, 0, "port is missing"},
        {"[::1", NULL, 0, "']' is missing"},
        {"[]:80", NULL, 0, "nothing between the brackets"},
        {"::1:80", NULL, 0, "needs brackets"},
        {"host:", NULL, 0, "not a number"},
        {"host:65536", NULL, 0, "not a number"},
        {"host:-1", NULL, 0, "not a number"},
        {"host:+80", NULL, 0, "not a number"},
        {"host: 80", NULL, 0, "not a number"},
        {"host:80x", NULL, 0, "not a number"},
        {"host:000080", NULL, 0, "not a number"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char host[20] = "untouched";
        uint16_t port = 7;
        struct oc_error err = {0};
        int rc = oc_addr_split(cases[i].addr, host, sizeof host, &port, &err);

        if (cases[i].host != NULL) {
            assert_int_equal(rc, 0);
            assert_string_equal(host, cases[i].host);
            assert_int_equal(port, cases[i].port);
        } else {
            assert_int_equal(rc, OC_E_INVALID);
            assert_non_null(strstr(err.msg, cases[i].text));
            assert_string_equal(host, "untouched");
            assert_int_equal(port, 7);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addr_split),
        cmocka_unit_test(test_the_least_loaded_worker_is_chosen),
        cmocka_unit_test(test_equally_loaded_workers_take_turns),
        cmocka_unit_test(test_more_than_max_connections_are_closed_at_once),
        cmocka_unit_test(test_out_of_descriptors),
        cmocka_unit_test(test_every_address),
        cmocka_unit_test(test_closed_listener_keeps_its_connections),
        cmocka_unit_test(test_addresses_that_cannot_be_listened_on),
        cmocka_unit_test(test_connect_and_echo),
        cmocka_unit_test(test_connect_refused),
        cmocka_unit_test(test_connect_timeout_and_cancel),
        cmocka_unit_test(test_connect_to_a_name_that_is_not_there),
        cmocka_unit_test(test_stopping_the_loop_ends_a_connect),
        cmocka_unit_test(test_addresses_that_are_none),
        cmocka_unit_test(test_a_thousand_connections_are_spread_evenly),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
