#include "rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static void guard_fired(struct oc_timer *timer) {
    struct rig *rig = (struct rig *)(void *)((char *)timer - offsetof(struct rig, guard));

    rig->timed_out = true;
    oc_loop_stop(rig->loop);
}

void rig_init(struct rig *rig) {
    struct oc_error err;

    memset(rig, 0, sizeof *rig);
    assert_int_equal(oc_loop_new(&rig->loop, &err), 0);
    rig_guard(rig);
}

void rig_guard(struct rig *rig) {
    rig->timed_out = false;
    oc_timer_init(&rig->guard, rig->loop, guard_fired);
}

void rig_run(struct rig *rig) {
    assert_int_equal(oc_timer_start(&rig->guard, RIG_DEADLINE_MS, 0), 0);
    oc_loop_run(rig->loop);
    assert_false(rig->timed_out);
}

void rig_done(struct rig *rig) {
    oc_loop_free(rig->loop);
}

struct loop_thread {
    struct oc_loop *loop;
    pthread_t thread;
};

static void *run_loop(void *arg) {
    oc_loop_run(((struct loop_thread *)arg)->loop);
    return NULL;
}

struct loop_thread *loop_thread_start(void) {
    struct loop_thread *t = calloc(1, sizeof *t);

    assert_non_null(t);
    assert_int_equal(oc_loop_new(&t->loop, NULL), 0);
    assert_int_equal(pthread_create(&t->thread, NULL, run_loop, t), 0);
    return t;
}

struct oc_loop *loop_thread_loop(struct loop_thread *t) {
    return t->loop;
}

void loop_thread_stop(struct loop_thread *t) {
    oc_loop_stop(t->loop);
    assert_int_equal(pthread_join(t->thread, NULL), 0);
    oc_loop_free(t->loop);
    free(t);
}

int peer_connect(uint16_t port) {
    struct timeval deadline = {.tv_sec = RIG_DEADLINE_MS / 1000};
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof deadline), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    return fd;
}

void peer_send(int fd, const void *p, size_t len) {
    const uint8_t *at = p;

    while (len > 0) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);

        assert_true(n > 0);
        at += n;
        len -= (size_t)n;
    }
}

int64_t peer_recv(int fd, void *p, size_t len) {
    size_t got = 0;

    while (got < len) {
        ssize_t n = recv(fd, (uint8_t *)p + got, len - got, 0);

        if (n < 0) {
            return -1;
        }
        if (n == 0) {
            break;
        }
        got += (size_t)n;
    }
    return (int64_t)got;
}
