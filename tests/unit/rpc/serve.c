/* The tests' service as a program, for peers that are programs: curl, h2load, grpcio.
 *
 *   rpc_serve [PORT [WORKERS]]   prints "port N"; drains and ends with its standard input or
 * SIGTERM */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>

#include "base/check.h"
#include "base/mem.h"
#include "service.h"

#define WORKERS_MAX 8

struct thread {
    pthread_t id;
    struct oc_loop *loop;
    struct oc_rpc_worker *w;
    struct service_worker *sw;
    struct oc_letter drain;
};

static struct service svc;
static struct thread threads[WORKERS_MAX];

static void *run(void *arg) {
    struct thread *t = arg;

    oc_loop_run(t->loop);
    return NULL;
}

static void drained(void *arg) {
    struct thread *t = arg;

    oc_rpc_worker_free(t->w);
    oc_loop_stop(t->loop);
}

static void drain(struct oc_letter *letter) {
    struct thread *t = OC_CONTAINER(letter, struct thread, drain);

    oc_rpc_worker_drain(t->w, 5000, drained, t);
}

static void accepted(void *user, struct oc_tcp *tcp) {
    oc_rpc_worker_accept(user, tcp);
}

static void on_term(void *arg, int signum) {
    (void)signum;
    oc_loop_stop(arg);
}

int main(int argc, char **argv) {
    unsigned workers = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1;
    struct oc_worker_slot slots[WORKERS_MAX];
    struct oc_rpc_config cfg = {0};
    struct oc_rpc_server *server;
    struct oc_error err = {0};
    struct oc_loop *loop;
    struct oc_listener *listener;
    struct oc_signal *term;
    char addr[64];

    oc_mem_init();
    OC_CHECK(workers >= 1 && workers <= WORKERS_MAX);
    service_config(&svc, &cfg);
    OC_CHECK(oc_rpc_server_new(&cfg, &server, &err) == 0);
    OC_CHECK(oc_loop_new(&loop, &err) == 0);
    for (unsigned i = 0; i < workers; i++) {
        struct thread *t = &threads[i];

        OC_CHECK(oc_loop_new(&t->loop, &err) == 0);
        t->sw = service_worker_new(&svc, t->loop);
        OC_CHECK(oc_rpc_worker_new(server, t->loop, t->sw, &t->w) == 0);
        t->drain.fn = drain;
        slots[i] = (struct oc_worker_slot){t->loop, accepted, t->w};
        OC_CHECK(pthread_create(&t->id, NULL, run, t) == 0);
    }
    (void)snprintf(addr, sizeof addr, "127.0.0.1:%s", argc > 1 ? argv[1] : "0");
    struct oc_listener_config lc = {.addr = addr, .workers = slots, .worker_count = workers};
    if (oc_listener_open(loop, &lc, &listener, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    printf("port %u\n", oc_listener_port(listener));
    (void)fflush(stdout);
    OC_CHECK(oc_signal_watch(loop, SIGTERM, on_term, loop, &term, &err) == 0);
    oc_loop_run(loop);
    for (unsigned i = 0; i < workers; i++) {
        oc_loop_post(threads[i].loop, &threads[i].drain);
        (void)pthread_join(threads[i].id, NULL);
        oc_loop_free(threads[i].loop);
    }
    oc_loop_free(loop);
    oc_rpc_server_free(server);
    return 0;
}
