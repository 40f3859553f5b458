/* Signals on a loop, by libuv's handler. */
#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "io/loop_impl.h"

struct oc_signal {
    uv_signal_t handle; /* handle.data is the oc_signal */
    struct oc_loop *loop;
    struct oc_list link;
    void (*fn)(void *arg, int signum);
    void *arg;
    bool closing;
};

static void signal_came(uv_signal_t *handle, int signum) {
    struct oc_signal *s = handle->data;

    s->fn(s->arg, signum);
}

static void signal_closed(uv_handle_t *handle) {
    struct oc_signal *s = handle->data;

    oc_list_remove(&s->link);
    free(s);
}

int oc_signal_watch(struct oc_loop *loop, int signum, void (*fn)(void *arg, int signum), void *arg,
                    struct oc_signal **ret, struct oc_error *err) {
    struct oc_signal *s = calloc(1, sizeof *s);

    if (s == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "cannot watch signal %d: out of memory", signum);
    }
    int rc = uv_signal_init(oc_loop_thread_handle(loop), &s->handle);
    if (rc != 0) {
        free(s);
        return oc_error_errno(err, -rc, "cannot watch signal %d", signum);
    }
    s->handle.data = s;
    s->loop = loop;
    s->fn = fn;
    s->arg = arg;
    oc_list_init(&s->link);
    oc_list_push_back(&loop->signals, &s->link);
    rc = uv_signal_start(&s->handle, signal_came, signum);
    if (rc != 0) {
        oc_signal_unwatch(s);
        return oc_error_errno(err, -rc, "cannot watch signal %d", signum);
    }
    *ret = s;
    return 0;
}

void oc_signal_unwatch(struct oc_signal *s) {
    if (s != NULL && !s->closing) {
        s->closing = true;
        uv_close((uv_handle_t *)&s->handle, signal_closed);
        oc_loop_uv_due(s->loop);
    }
}

void oc_signal_unwatch_all(struct oc_loop *loop) {
    oc_list_each (it, &loop->signals) {
        oc_signal_unwatch(OC_CONTAINER(it, struct oc_signal, link));
    }
}
