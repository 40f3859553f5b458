/* Channels: when to connect, which connection a call goes to, backoff, and the end-of-turn
 * hook that sends everything together and delivers what ended. Callbacks that end calls run only in
 * the hook, so that no API function is re-entered by its own consequences. */
#include "rpc/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/client_internal.h"

#define BACKOFF_FIRST_MS 100.0
#define BACKOFF_MAX_MS   10000.0
#define BACKOFF_FACTOR   1.6
#define BACKOFF_JITTER   0.2

uint64_t client_now_ns(struct oc_channel *ch) {
    return oc_loop_now(ch->loop).mono_ns;
}

static void on_wake(struct oc_letter *letter) {
    struct oc_channel *ch = OC_CONTAINER(letter, struct oc_channel, wake);

    /* Being awake is all that was wanted: the hook follows at the end of this turn. */
    ch->wake_posted = false;
    ch->dirty = true;
}

/* The hook runs before the loop sleeps, so within a turn a mark is enough, unless this turn's run
 * is over already (another channel's callback in its hook): the loop's time tells the turns apart.
 * Before the loop runs there is no turn. */
void client_channel_dirty(struct oc_channel *ch) {
    bool hook_follows =
        ch->in_hook || (oc_loop_current() == ch->loop && ch->hook_ran_ns != client_now_ns(ch));

    ch->dirty = true;
    if (!hook_follows && !ch->wake_posted) {
        ch->wake_posted = true;
        oc_loop_post(ch->loop, &ch->wake);
    }
}

/* ---- failing ---- */

static void fail_queue(struct oc_channel *ch) {
    while (!oc_list_empty(&ch->queue)) {
        struct oc_client_call *call = OC_CONTAINER(ch->queue.next, struct oc_client_call, link);

        call->unprocessed = true;
        client_call_end(call, OC_E_UNAVAILABLE, NGHTTP2_CANCEL, "%s", ch->why);
    }
}

static void on_backoff(struct oc_timer *timer) {
    struct oc_channel *ch = OC_CONTAINER(timer, struct oc_channel, backoff);

    if (ch->state == OC_CHANNEL_FAILING) {
        ch->state = OC_CHANNEL_IDLE;
    }
}

static void channel_fail(struct oc_channel *ch, const char *why) {
    double ms = BACKOFF_FIRST_MS;

    for (unsigned i = 0; i < ch->failures && ms < BACKOFF_MAX_MS; i++) {
        ms *= BACKOFF_FACTOR;
    }
    ms = ms < BACKOFF_MAX_MS ? ms : BACKOFF_MAX_MS;
    ms *= 1.0 + BACKOFF_JITTER * (2.0 * oc_rng_unit(&ch->rng) - 1.0);
    ch->failures++;
    (void)snprintf(ch->why, sizeof ch->why, "connection error: %.150s", why);
    ch->state = OC_CHANNEL_FAILING;
    if (oc_timer_start(&ch->backoff, (uint64_t)ms, 0) != 0) {
        ch->state = OC_CHANNEL_IDLE; /* no memory for a timer: the next call tries at once */
    }
    fail_queue(ch);
}

/* ---- connecting ---- */

static void on_connected(void *arg, struct oc_tcp *tcp, const struct oc_error *err) {
    struct oc_channel *ch = arg;
    struct client_conn *conn;

    ch->connect = NULL;
    ch->conn_count++;
    if (tcp == NULL) {
        ch->conn_count--;
        channel_fail(ch, err->msg);
    } else if (client_conn_new(ch, tcp, &conn) != 0) {
        ch->conn_count--;
        oc_tcp_close(tcp, true);
        channel_fail(ch, "out of memory");
    } else {
        ch->current = conn;
    }
    client_channel_dirty(ch);
}

static void channel_connect(struct oc_channel *ch) {
    ch->state = OC_CHANNEL_CONNECTING;
    int rv = oc_tcp_connect(ch->loop, ch->addr, ch->cfg.connect_timeout_ms, on_connected, ch,
                            &ch->connect);
    if (rv != 0) {
        ch->connect = NULL;
        channel_fail(ch, oc_err_name(rv));
    }
}

void client_channel_ready(struct oc_channel *ch, struct client_conn *conn) {
    if (!conn->ready) {
        conn->ready = true;
        (void)oc_timer_start(&conn->timer, ch->cfg.keepalive_ms, 0); /* it runs: has room */
        if (ch->current == conn) {
            ch->state = OC_CHANNEL_READY;
        }
    }
    client_channel_dirty(ch);
}

void client_channel_conn_ended(struct oc_channel *ch, struct client_conn *conn) {
    if (ch->current != conn) {
        return;
    }
    ch->current = NULL;
    if (conn->proved) {
        ch->failures = 0;
        ch->state = OC_CHANNEL_IDLE;
    } else if (conn->ready && ch->failures == 0) {
        ch->failures = 1; /* once is bad luck: a server being restarted */
        ch->state = OC_CHANNEL_IDLE;
    } else if (!ch->freeing) {
        char why[sizeof ch->why];

        /* A server that greets and hangs up, or is none of ours, must not be hammered. */
        (void)snprintf(why, sizeof why, "%s: %.120s", ch->addr,
                       conn->why[0] != 0          ? conn->why
                       : conn->goaway_why != NULL ? conn->goaway_why
                                                  : "closed before any response");
        channel_fail(ch, why);
    }
}

void client_channel_conn_freed(struct oc_channel *ch) {
    ch->conn_count--;
    client_channel_dirty(ch);
}

/* ---- the end of a turn ---- */

static void assign(struct oc_channel *ch) {
    while (!oc_list_empty(&ch->queue)) {
        struct oc_client_call *call = OC_CONTAINER(ch->queue.next, struct oc_client_call, link);

        if (ch->state == OC_CHANNEL_IDLE) {
            channel_connect(ch);
        } else if (ch->state == OC_CHANNEL_FAILING) {
            fail_queue(ch);
        }
        if (ch->current == NULL || !client_conn_has_room(ch->current)) {
            return;
        }
        int rv = client_conn_start(ch->current, call);
        if (rv == 0) {
            ch->queued--;
            if (call->events->started != NULL) {
                call->events->started(call);
            }
        } else if (rv < 0) {
            client_call_end(call, rv, NGHTTP2_CANCEL, "out of memory");
        }
    }
}

static struct oc_client_call *next_writable(struct client_conn *conn) {
    oc_list_each (it, &conn->calls) {
        struct oc_client_call *call = OC_CONTAINER(it, struct oc_client_call, link);

        if (call->writable_due) {
            return call;
        }
    }
    return NULL;
}

/* Looks from the front each time: a callback may end any call. */
static void deliver_writable(struct client_conn *conn) {
    struct oc_client_call *call;

    while ((call = next_writable(conn)) != NULL) {
        call->writable_due = false;
        call->events->writable(call);
    }
}

/* Connections that only finish their calls are few: a peer that answers GOAWAY to everything and
 * never closes does not collect them here. */
static void limit_draining(struct oc_channel *ch) {
    unsigned over = ch->conn_count > CLIENT_DRAINING_MAX ? ch->conn_count - CLIENT_DRAINING_MAX : 0;

    oc_list_each (it, &ch->conns) {
        struct client_conn *conn = OC_CONTAINER(it, struct client_conn, link);

        if (over > 0 && conn != ch->current && !conn->dead) {
            client_conn_kill(conn, "too many connections still draining");
            over--;
        }
    }
}

static void turn_once(struct oc_channel *ch) {
    struct oc_list ending;

    ch->dirty = false;
    if (!ch->freeing) {
        assign(ch);
    }
    limit_draining(ch);
    oc_list_each_safe (it, next, &ch->conns) {
        struct client_conn *conn = OC_CONTAINER(it, struct client_conn, link);

        if (conn->writable_due) {
            conn->writable_due = false;
            deliver_writable(conn);
        }
        if (conn->dirty) {
            client_conn_turn(conn); /* may free it */
        }
    }
    oc_list_init(&ending);
    while (!oc_list_empty(&ch->ending)) {
        oc_list_push_back(&ending, oc_list_pop_front(&ch->ending));
    }
    while (!oc_list_empty(&ending)) {
        struct oc_list *it = oc_list_pop_front(&ending);

        client_call_deliver_closed(OC_CONTAINER(it, struct oc_client_call, link));
    }
}

static void channel_gone(struct oc_channel *ch) {
    void (*freed)(void *arg) = ch->freed;
    void *arg = ch->freed_arg;

    OC_CHECK(ch->call_count == 0);
    oc_loop_hook_remove(&ch->hook);
    oc_timer_done(&ch->backoff);
    oc_pool_done(&ch->call_pool);
    oc_pool_done(&ch->copy_pool);
    free(ch->addr);
    ch->magic = 0;
    free(ch);
    if (freed != NULL) {
        freed(arg);
    }
}

static void on_hook(struct oc_turn_hook *hook) {
    struct oc_channel *ch = OC_CONTAINER(hook, struct oc_channel, hook);

    ch->hook_ran_ns = client_now_ns(ch);
    if (!ch->dirty) {
        return;
    }
    ch->in_hook = true;
    for (unsigned round = 0; ch->dirty && round < CLIENT_TURN_ROUNDS; round++) {
        turn_once(ch);
    }
    ch->in_hook = false;
    if (ch->dirty) {
        client_channel_dirty(ch); /* enough for one turn: sockets and timers first */
    } else if (ch->freeing && ch->conn_count == 0 && ch->connect == NULL && ch->call_count == 0 &&
               !ch->wake_posted) {
        channel_gone(ch);
    }
}

/* ---- the API ---- */

static void defaults(struct oc_channel_config *cfg) {
    cfg->connect_timeout_ms = cfg->connect_timeout_ms == 0 ? 5000 : cfg->connect_timeout_ms;
    cfg->keepalive_ms = cfg->keepalive_ms == 0 ? 30000 : cfg->keepalive_ms;
    cfg->keepalive_timeout_ms = cfg->keepalive_timeout_ms == 0 ? 10000 : cfg->keepalive_timeout_ms;
    cfg->max_message_bytes = cfg->max_message_bytes == 0 ? 128u << 20 : cfg->max_message_bytes;
    cfg->stream_window = cfg->stream_window == 0 ? 4u << 20 : cfg->stream_window;
    cfg->connection_window = cfg->connection_window == 0 ? 16u << 20 : cfg->connection_window;
    cfg->max_queued_calls = cfg->max_queued_calls == 0 ? 65536 : cfg->max_queued_calls;
}

int oc_channel_new(struct oc_loop *loop, const struct oc_channel_config *cfg,
                   struct oc_channel **ret, struct oc_error *err) {
    char host[256];
    uint16_t port;
    int rv = oc_addr_split(cfg->addr, host, sizeof host, &port, err);

    if (rv != 0) {
        return rv;
    }
    if (cfg->stream_window > INT32_MAX || cfg->connection_window > INT32_MAX) {
        return oc_error_set(err, OC_E_INVALID, "flow-control windows are at most %d bytes",
                            INT32_MAX);
    }
    struct oc_channel *ch = calloc(1, sizeof *ch);
    char *addr = strdup(cfg->addr);
    if (ch == NULL || addr == NULL) {
        free(ch);
        free(addr);
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory");
    }
    ch->magic = CLIENT_CHANNEL_MAGIC;
    ch->loop = loop;
    ch->cfg = *cfg;
    ch->cfg.addr = ch->addr = addr;
    defaults(&ch->cfg);
    oc_list_init(&ch->queue);
    oc_list_init(&ch->ending);
    oc_list_init(&ch->conns);
    ch->wake.fn = on_wake;
    ch->hook.fn = on_hook;
    oc_timer_init(&ch->backoff, loop, on_backoff);
    oc_rng_init(&ch->rng, oc_random_seed());
    oc_pool_init(&ch->call_pool, sizeof(struct oc_client_call), 0, 256);
    oc_pool_init(&ch->copy_pool, sizeof(struct client_copy) + CLIENT_SMALL_COPY_BYTES, 0, 256);
    oc_loop_hook_add(loop, &ch->hook);
    *ret = ch;
    return 0;
}

void oc_channel_free(struct oc_channel *ch, void (*freed)(void *arg), void *arg) {
    OC_MAGIC_CHECK(ch, CLIENT_CHANNEL_MAGIC);
    OC_CHECK(!ch->freeing);
    ch->freeing = true;
    ch->freed = freed;
    ch->freed_arg = arg;
    while (!oc_list_empty(&ch->queue)) {
        oc_client_call_cancel(OC_CONTAINER(ch->queue.next, struct oc_client_call, link));
    }
    oc_list_each (it, &ch->conns) {
        struct client_conn *conn = OC_CONTAINER(it, struct client_conn, link);

        while (!oc_list_empty(&conn->calls)) {
            oc_client_call_cancel(OC_CONTAINER(conn->calls.next, struct oc_client_call, link));
        }
        client_conn_kill(conn, "channel closed");
    }
    if (ch->connect != NULL) {
        oc_tcp_connect_cancel(ch->connect);
        ch->connect = NULL;
    }
    client_channel_dirty(ch);
}

enum oc_channel_state oc_channel_state(const struct oc_channel *ch) {
    return ch->state;
}

const char *oc_channel_addr(const struct oc_channel *ch) {
    return ch->addr;
}

unsigned oc_channel_calls(const struct oc_channel *ch) {
    return ch->call_count;
}
