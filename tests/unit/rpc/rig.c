#include "rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/loop.h"

/* ---- the server ---- */

struct rig_thread {
    struct rig *rig;
    pthread_t id;
    struct oc_loop *loop;
    struct oc_rpc_worker *w;
    struct service_worker *sw;
    struct oc_listener *listener;
    struct oc_letter drain;
    uint64_t drain_ms;
    _Atomic bool ready, drained;
};

uint64_t rig_now_ms(void) {
    return oc_clock_now(oc_clock_real()).mono_ns / OC_NS_PER_MS;
}

void rig_init(struct rig *rig) {
    *rig = (struct rig){0};
    service_config(&rig->svc, &rig->cfg);
}

static void accepted(void *user, struct oc_tcp *tcp) {
    oc_rpc_worker_accept(user, tcp);
}

static void *run(void *arg) {
    struct rig_thread *t = arg;

    oc_loop_run(t->loop);
    return NULL;
}

static void drained(void *arg) {
    struct rig_thread *t = arg;

    atomic_store(&t->drained, true);
}

static void drain_letter(struct oc_letter *letter) {
    struct rig_thread *t = OC_CONTAINER(letter, struct rig_thread, drain);

    oc_listener_close(t->listener);
    oc_rpc_worker_drain(t->w, t->drain_ms, drained, t);
}

void rig_start(struct rig *rig) {
    struct rig_thread *t = calloc(1, sizeof *t);
    struct oc_error err = {0};

    assert_non_null(t);
    t->rig = rig;
    rig->thread = t;
    if (oc_rpc_server_new(&rig->cfg, &rig->server, &err) != 0) {
        fail_msg("%s", err.msg);
    }
    assert_int_equal(oc_loop_new(&t->loop, &err), 0);
    t->sw = service_worker_new(&rig->svc, t->loop);
    assert_int_equal(oc_rpc_worker_new(rig->server, t->loop, t->sw, &t->w), 0);
    assert_ptr_equal(oc_rpc_worker_loop(t->w), t->loop);
    struct oc_worker_slot slot = {t->loop, accepted, t->w};
    struct oc_listener_config lc = {.addr = "127.0.0.1:0", .workers = &slot, .worker_count = 1};
    if (oc_listener_open(t->loop, &lc, &t->listener, &err) != 0) {
        fail_msg("%s", err.msg);
    }
    rig->port = oc_listener_port(t->listener);
    assert_int_equal(pthread_create(&t->id, NULL, run, t), 0);
}

void rig_drain(struct rig *rig, uint64_t timeout_ms) {
    struct rig_thread *t = rig->thread;

    t->drain_ms = timeout_ms;
    t->drain.fn = drain_letter;
    oc_loop_post(t->loop, &t->drain);
}

bool rig_drained(struct rig *rig) {
    return atomic_load(&rig->thread->drained);
}

struct oc_rpc_stats rig_stats(struct rig *rig) {
    struct oc_rpc_stats st;

    oc_rpc_server_stats(rig->server, &st);
    return st;
}

void rig_stop(struct rig *rig) {
    struct rig_thread *t = rig->thread;

    if (t->drain.fn == NULL) {
        rig_drain(rig, 1);
    }
    wait_for(atomic_load(&t->drained));
    oc_loop_stop(t->loop);
    assert_int_equal(pthread_join(t->id, NULL), 0);
    assert_int_equal(atomic_load(&rig->svc.started), atomic_load(&rig->svc.closed));
    struct oc_rpc_stats st = rig_stats(rig);
    assert_int_equal(st.connections, 0);
    assert_int_equal(st.receive_used, 0);
    oc_rpc_worker_free(t->w);
    assert_int_equal(rig_stats(rig).send_used, 0);
    service_worker_free(t->sw);
    oc_loop_free(t->loop);
    oc_rpc_server_free(rig->server);
    free(t);
}

/* ---- a plain socket ---- */

int peer_connect(uint16_t port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), 0);
    return fd;
}

/* A peer that was closed or reset takes nothing more; that is for the reading side to notice. */
void peer_send(int fd, const void *p, size_t len) {
    const uint8_t *at = p;
    uint64_t end_ms = rig_now_ms() + RIG_DEADLINE_MS;

    while (len > 0) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL | MSG_DONTWAIT);

        assert_true(rig_now_ms() < end_ms);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            struct pollfd pfd = {fd, POLLOUT, 0};
            (void)poll(&pfd, 1, 100);
            continue;
        }
        if (n < 0) {
            assert_true(errno == EPIPE || errno == ECONNRESET);
            return;
        }
        at += n;
        len -= (size_t)n;
    }
}

size_t peer_recv_for(int fd, void *p, size_t cap, uint64_t ms, bool *ended) {
    uint64_t end_ms = rig_now_ms() + ms;
    size_t got = 0;

    *ended = false;
    while (got < cap) {
        uint64_t now = rig_now_ms();
        struct pollfd pfd = {fd, POLLIN, 0};

        if (now >= end_ms || poll(&pfd, 1, (int)(end_ms - now)) == 0) {
            return got;
        }
        ssize_t n = recv(fd, (uint8_t *)p + got, cap - got, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            *ended = true;
            return got;
        }
        got += n > 0 ? (size_t)n : 0;
    }
    return got;
}

size_t peer_recv_all(int fd, void *p, size_t cap) {
    bool ended;
    size_t n = peer_recv_for(fd, p, cap, RIG_DEADLINE_MS, &ended);

    assert_true(ended);
    return n;
}

/* ---- the HTTP/2 client ---- */

static struct h2c_stream *find(nghttp2_session *s, int32_t id) {
    return nghttp2_session_get_stream_user_data(s, id);
}

static int on_header(nghttp2_session *s, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags,
                     void *user) {
    struct h2c_stream *st = find(s, frame->hd.stream_id);

    (void)flags;
    (void)user;
    assert_non_null(st);
    if (name_len == 7 && memcmp(name, ":status", 7) == 0) {
        st->http_status = (int)strtol((const char *)value, NULL, 10);
    } else if (name_len == 11 && memcmp(name, "grpc-status", 11) == 0) {
        st->grpc_status = (int)strtol((const char *)value, NULL, 10);
    } else if (name_len == 12 && memcmp(name, "grpc-message", 12) == 0) {
        assert_true(value_len < sizeof st->grpc_message);
        memcpy(st->grpc_message, value, value_len);
        st->grpc_message[value_len] = 0;
    } else {
        size_t at = strlen(st->headers);
        (void)snprintf(st->headers + at, sizeof st->headers - at, "%.*s: %.*s\n", (int)name_len,
                       (const char *)name, (int)value_len, (const char *)value);
    }
    return 0;
}

static int on_data(nghttp2_session *s, uint8_t flags, int32_t id, const uint8_t *data, size_t len,
                   void *user) {
    struct h2c *h = user;
    struct h2c_stream *st = find(s, id);

    (void)flags;
    assert_non_null(st);
    assert_int_equal(oc_buf_append(&st->body, data, len), 0);
    if (h->manual_window) {
        if (!st->hold_window) {
            assert_int_equal(nghttp2_session_consume(s, id, len), 0);
        } else {
            assert_int_equal(nghttp2_session_consume_connection(s, len), 0);
        }
    }
    return 0;
}

static int on_frame(nghttp2_session *s, const nghttp2_frame *frame, void *user) {
    struct h2c *h = user;
    struct h2c_stream *st = frame->hd.stream_id > 0 ? find(s, frame->hd.stream_id) : NULL;

    if (st != NULL && (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA)) {
        st->headers_done = true;
        st->end_stream |= (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    }
    if (frame->hd.type == NGHTTP2_GOAWAY) {
        h->goaways++;
        h->goaway_last = frame->goaway.last_stream_id;
        h->goaway_code = frame->goaway.error_code;
    } else if (frame->hd.type == NGHTTP2_SETTINGS && (frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) {
        h->settings_seen = true;
        h->max_streams =
            nghttp2_session_get_remote_settings(s, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
    } else if (frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) {
        h->pings_seen++;
    }
    return 0;
}

static int on_close(nghttp2_session *s, int32_t id, uint32_t code, void *user) {
    struct h2c_stream *st = find(s, id);

    (void)user;
    if (st != NULL) {
        st->closed = true;
        st->close_code = code;
    }
    return 0;
}

static ssize_t read_body(nghttp2_session *s, int32_t id, uint8_t *buf, size_t len, uint32_t *flags,
                         nghttp2_data_source *source, void *user) {
    struct h2c_stream *st = source->ptr;
    size_t left = st->out_len - st->out_at;
    size_t n = left < len ? left : len;

    (void)s;
    (void)id;
    (void)user;
    if (st->frame_max != 0 && n > st->frame_max) {
        n = st->frame_max;
    }
    if (n > 0) {
        memcpy(buf, st->out + st->out_at, n);
        st->out_at += n;
    }
    if (st->out_at == st->out_len) {
        if (!st->out_open) {
            *flags |= NGHTTP2_DATA_FLAG_EOF;
        } else if (n == 0) {
            st->deferred = true;
            return NGHTTP2_ERR_DEFERRED;
        }
    }
    return (ssize_t)n;
}

static void session_open(struct h2c *h, const struct h2c_options *options) {
    static const struct h2c_options none;
    const struct h2c_options *o = options != NULL ? options : &none;
    nghttp2_session_callbacks *cb;
    nghttp2_option *opt;
    nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, o->initial_window},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, 1 << 20},
    };

    h->manual_window = o->manual_window;
    h->no_ping_ack = o->no_ping_ack;
    assert_int_equal(nghttp2_session_callbacks_new(&cb), 0);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_close);
    assert_int_equal(nghttp2_option_new(&opt), 0);
    nghttp2_option_set_no_auto_window_update(opt, o->manual_window);
    nghttp2_option_set_no_auto_ping_ack(opt, o->no_ping_ack);
    nghttp2_option_set_max_outbound_ack(opt, 100000);
    if (o->assume_streams != 0) {
        nghttp2_option_set_peer_max_concurrent_streams(opt, o->assume_streams);
    }
    assert_int_equal(nghttp2_session_client_new2(&h->s, cb, h, opt), 0);
    nghttp2_session_callbacks_del(cb);
    nghttp2_option_del(opt);
    assert_int_equal(nghttp2_submit_settings(h->s, NGHTTP2_FLAG_NONE,
                                             settings + (o->initial_window == 0),
                                             2 - (o->initial_window == 0)),
                     0);
}

void h2c_open(struct h2c *h, uint16_t port, const struct h2c_options *options) {
    *h = (struct h2c){.fd = peer_connect(port)};
    session_open(h, options);
}

void h2c_open_mem(struct h2c *h, struct mem_peer *p, size_t part) {
    *h = (struct h2c){.fd = -1, .mem = p, .part = part};
    session_open(h, NULL);
}

void h2c_close(struct h2c *h) {
    nghttp2_session_del(h->s);
    for (size_t i = 0; i < h->count; i++) {
        free(h->streams[i]->out);
        oc_buf_done(&h->streams[i]->body);
        free(h->streams[i]);
    }
    if (h->fd >= 0) {
        (void)close(h->fd);
    }
}

static void send_due(struct h2c *h) {
    const uint8_t *p;
    ssize_t n;

    while (!h->dead && (n = nghttp2_session_mem_send(h->s, &p)) != 0) {
        assert_true(n > 0);
        if (h->mem != NULL) {
            mem_peer_feed(h->mem, p, (size_t)n, h->part);
        } else {
            peer_send(h->fd, p, (size_t)n);
        }
    }
}

static void receive(struct h2c *h, const uint8_t *p, size_t n) {
    ssize_t r = nghttp2_session_mem_recv(h->s, p, n);

    if (r < 0) {
        h->dead = true;
        fail_msg("the server sent what nghttp2 refuses: %s", nghttp2_strerror((int)r));
    }
}

void h2c_step(struct h2c *h, int ms) {
    uint8_t buf[65536];
    struct pollfd pfd = {h->fd, POLLIN, 0};

    if (!h->ended) {
        send_due(h);
    }
    if (h->ended) {
        (void)sched_yield();
        return;
    }
    if (h->mem != NULL) {
        size_t at = h->mem_read;

        h->mem_read = h->mem->out.len;
        receive(h, h->mem->out.data + at, h->mem_read - at);
        h->ended = h->mem->conn == NULL;
        return;
    }
    if (poll(&pfd, 1, ms) <= 0) {
        return;
    }
    ssize_t n = recv(h->fd, buf, sizeof buf, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        h->ended = true;
        return;
    }
    receive(h, buf, (size_t)n);
}

static nghttp2_nv nv_of(const char *name, const char *value) {
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name),
                        strlen(value), NGHTTP2_NV_FLAG_NONE};
}

struct h2c_stream *h2c_request(struct h2c *h, const char *method, const char *path,
                               const char *const *headers, const void *body, size_t len,
                               size_t frame_max, bool open) {
    struct h2c_stream *st = calloc(1, sizeof *st);
    nghttp2_data_provider provider = {.source.ptr = st, .read_callback = read_body};
    nghttp2_nv nv[64] = {nv_of(":method", method), nv_of(":scheme", "http"),
                         nv_of(":authority", "localhost"), nv_of(":path", path)};
    size_t n = 4;

    assert_non_null(st);
    assert_true(h->count < H2C_STREAMS);
    for (; headers != NULL && headers[0] != NULL && n < OC_ARRAY_LEN(nv); headers += 2) {
        nv[n++] = nv_of(headers[0], headers[1]);
    }
    st->http_status = st->grpc_status = -1;
    st->frame_max = frame_max;
    st->out_open = open;
    oc_buf_init(&st->body, (size_t)1 << 30);
    if (len > 0) {
        st->out = malloc(len);
        assert_non_null(st->out);
        memcpy(st->out, body, len);
        st->out_len = len;
    }
    bool data = len > 0 || open;
    st->id = nghttp2_submit_request(h->s, NULL, nv, n, data ? &provider : NULL, st);
    assert_true(st->id > 0);
    h->streams[h->count++] = st;
    return st;
}

struct h2c_stream *h2c_grpc(struct h2c *h, const char *path, const char *const *extra,
                            const void *body, size_t len, size_t frame_max, bool open) {
    const char *headers[64] = {"content-type", "application/grpc", "te", "trailers"};

    for (size_t n = 4; extra != NULL && extra[0] != NULL && n < 62; n += 2, extra += 2) {
        headers[n] = extra[0];
        headers[n + 1] = extra[1];
    }
    return h2c_request(h, "POST", path, headers, body, len, frame_max, open);
}

void h2c_more(struct h2c *h, struct h2c_stream *st, const void *body, size_t len, bool open) {
    size_t left = st->out_len - st->out_at;
    uint8_t *out = malloc(left + len + 1);

    assert_non_null(out);
    if (left > 0) {
        memcpy(out, st->out + st->out_at, left);
    }
    if (len > 0) {
        memcpy(out + left, body, len);
    }
    free(st->out);
    st->out = out;
    st->out_at = 0;
    st->out_len = left + len;
    st->out_open = open;
    if (st->deferred) {
        st->deferred = false;
        (void)nghttp2_session_resume_data(h->s, st->id); /* fails when the stream was reset */
    }
}

void h2c_reset(struct h2c *h, struct h2c_stream *st, uint32_t code) {
    assert_int_equal(nghttp2_submit_rst_stream(h->s, NGHTTP2_FLAG_NONE, st->id, code), 0);
}

struct h2c_stream *h2c_unary(struct h2c *h, const char *path, const void *message, size_t len) {
    struct oc_buf frame;
    struct h2c_stream *st;

    oc_buf_init(&frame, SIZE_MAX);
    grpc_append(&frame, message, len);
    st = h2c_grpc(h, path, NULL, frame.data, frame.len, 0, false);
    oc_buf_done(&frame);
    h2c_wait(h, st->closed);
    return st;
}

void grpc_append(struct oc_buf *buf, const void *message, size_t len) {
    uint8_t head[5] = {0, (uint8_t)(len >> 24), (uint8_t)(len >> 16), (uint8_t)(len >> 8),
                       (uint8_t)len};

    assert_int_equal(oc_buf_append(buf, head, sizeof head), 0);
    assert_int_equal(oc_buf_append(buf, message, len), 0);
}

bool grpc_message(const struct oc_buf *body, size_t n, struct oc_span *ret) {
    size_t at = 0;

    while (body->len - at >= 5) {
        const uint8_t *p = body->data + at;
        size_t len = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];

        assert_int_equal(p[0], 0);
        if (body->len - at - 5 < len) {
            return false;
        }
        if (n-- == 0) {
            *ret = oc_span(p + 5, len);
            return true;
        }
        at += 5 + len;
    }
    return false;
}

void assert_status(const struct h2c_stream *st, int status, const char *message) {
    assert_int_equal(st->http_status, 200);
    assert_int_equal(st->grpc_status, status);
    assert_non_null(strstr(st->headers, "content-type: application/grpc\n"));
    if (message != NULL) {
        assert_string_equal(st->grpc_message, message);
    }
}
