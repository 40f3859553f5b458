/* The raw ceiling of small requests: the least an nghttp2 server can do. One thread, one epoll,
 * every request answered with its own body (echo) or with a fixed number of bytes, as a gRPC
 * message with trailers. No checks, no limits, no store: only what HTTP/2 itself costs.
 *
 *   echo_server PORT            echo the request's bytes
 *   echo_server PORT BYTES      answer BYTES bytes (5 of them the gRPC head)
 *
 * Prints "port N" when it listens (PORT 0: any). Ends with its standard input. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BODY_MAX 4096u
#define READ_MAX 65536u
#define EVENTS   64

struct stream {
    struct stream *next_free;
    size_t len;
    size_t sent;
    uint8_t body[BODY_MAX];
};

struct peer {
    int fd;
    nghttp2_session *session;
    const uint8_t *rest; /* bytes of nghttp2 that the socket did not take yet */
    size_t rest_len;
};

static struct stream *free_streams;
static size_t fixed_bytes;

#define NV(n, v)                                                                                   \
    {                                                                                              \
        (uint8_t *)(uintptr_t)(n), (uint8_t *)(uintptr_t)(v), sizeof(n) - 1, sizeof(v) - 1,        \
            NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE                           \
    }

static ssize_t on_read_body(nghttp2_session *session, int32_t id, uint8_t *buf, size_t length,
                            uint32_t *flags, nghttp2_data_source *source, void *user) {
    struct stream *st = source->ptr;
    size_t n = st->len - st->sent < length ? st->len - st->sent : length;
    nghttp2_nv trailer[] = {NV("grpc-status", "0")};

    (void)user;
    memcpy(buf, st->body + st->sent, n);
    st->sent += n;
    if (st->sent == st->len) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        (void)nghttp2_submit_trailer(session, id, trailer, 1);
    }
    return (ssize_t)n;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    struct stream *st = free_streams;

    (void)user;
    if (st != NULL) {
        free_streams = st->next_free;
    } else if ((st = malloc(sizeof *st)) == NULL) {
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    st->len = st->sent = 0;
    return nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, st);
}

static int on_data_chunk(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                         size_t len, void *user) {
    struct stream *st = nghttp2_session_get_stream_user_data(session, id);

    (void)flags;
    (void)user;
    if (st != NULL && st->len + len <= BODY_MAX) {
        memcpy(st->body + st->len, data, len);
        st->len += len;
    }
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    nghttp2_nv head[] = {NV(":status", "200"), NV("content-type", "application/grpc")};
    struct stream *st;

    (void)user;
    if (!(frame->hd.flags & NGHTTP2_FLAG_END_STREAM) ||
        (frame->hd.type != NGHTTP2_DATA && frame->hd.type != NGHTTP2_HEADERS)) {
        return 0;
    }
    st = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (st == NULL) {
        return 0;
    }
    if (fixed_bytes > 0) {
        uint32_t n = htonl((uint32_t)fixed_bytes - 5);

        memset(st->body, 'v', fixed_bytes);
        st->body[0] = 0;
        memcpy(st->body + 1, &n, sizeof n);
        st->len = fixed_bytes;
    }
    nghttp2_data_provider body = {.source.ptr = st, .read_callback = on_read_body};
    return nghttp2_submit_response(session, frame->hd.stream_id, head, 2, &body);
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *user) {
    struct stream *st = nghttp2_session_get_stream_user_data(session, id);

    (void)code;
    (void)user;
    if (st != NULL) {
        st->next_free = free_streams;
        free_streams = st;
    }
    return 0;
}

static int peer_flush(struct peer *p) {
    for (;;) {
        /* nghttp2 hands out frames one by one; they are gathered so that one turn is one send. */
        static uint8_t out[1 << 18];
        size_t n = 0;

        while (p->rest_len > 0 || n < sizeof out - 32768) {
            if (p->rest_len == 0) {
                ssize_t len = nghttp2_session_mem_send(p->session, &p->rest);

                if (len < 0) {
                    return -1;
                }
                if (len == 0) {
                    break;
                }
                p->rest_len = (size_t)len;
            }
            size_t take = p->rest_len < sizeof out - n ? p->rest_len : sizeof out - n;
            memcpy(out + n, p->rest, take);
            n += take;
            p->rest += take;
            p->rest_len -= take;
        }
        if (n == 0) {
            return 0;
        }
        for (size_t done = 0; done < n;) { /* small answers: blocking here is not worth avoiding */
            ssize_t w = send(p->fd, out + done, n - done, MSG_NOSIGNAL);

            if (w < 0 && errno == EAGAIN) {
                continue;
            }
            if (w <= 0) {
                return -1;
            }
            done += (size_t)w;
        }
    }
}

static int peer_read(struct peer *p) {
    static uint8_t in[READ_MAX];
    ssize_t n = recv(p->fd, in, sizeof in, 0);

    if (n <= 0) {
        return n < 0 && errno == EAGAIN ? 0 : -1;
    }
    if (nghttp2_session_mem_recv(p->session, in, (size_t)n) != n) {
        return -1;
    }
    return peer_flush(p);
}

static void peer_accept(int listener, int ep, nghttp2_session_callbacks *cb) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct peer *p = fd < 0 ? NULL : calloc(1, sizeof *p);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = p};
    nghttp2_settings_entry iv[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 1024},
                                   {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 20}};
    int one = 1;

    if (p == NULL || nghttp2_session_server_new(&p->session, cb, p) != 0) {
        exit(1);
    }
    p->fd = fd;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)nghttp2_submit_settings(p->session, NGHTTP2_FLAG_NONE, iv, 2);
    (void)epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
    (void)peer_flush(p);
}

static int listen_on(uint16_t port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;

    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa) != 0 || listen(fd, 256) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &len) != 0) {
        perror("listen");
        exit(1);
    }
    printf("port %u\n", ntohs(sa.sin_port));
    (void)fflush(stdout);
    return fd;
}

int main(int argc, char **argv) {
    nghttp2_session_callbacks *cb;
    int ep = epoll_create1(EPOLL_CLOEXEC);

    if (argc < 2 || nghttp2_session_callbacks_new(&cb) != 0) {
        fprintf(stderr, "usage: echo_server PORT [BYTES]\n");
        return 2;
    }
    fixed_bytes = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 0;
    if (fixed_bytes > BODY_MAX || (fixed_bytes > 0 && fixed_bytes < 5)) {
        fprintf(stderr, "BYTES must lie between 5 and %u\n", BODY_MAX);
        return 2;
    }
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data_chunk);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);

    int listener = listen_on((uint16_t)strtoul(argv[1], NULL, 10));
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    static struct peer stdin_peer;
    struct epoll_event ev_stdin = {.events = EPOLLIN, .data.ptr = &stdin_peer};

    (void)epoll_ctl(ep, EPOLL_CTL_ADD, listener, &ev);
    (void)epoll_ctl(ep, EPOLL_CTL_ADD, STDIN_FILENO, &ev_stdin); /* fails for files: then kill it */
    for (;;) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(ep, events, EVENTS, -1);

        for (int i = 0; i < n; i++) {
            struct peer *p = events[i].data.ptr;

            if (p == NULL) {
                peer_accept(listener, ep, cb);
            } else if (p == &stdin_peer) {
                return 0;
            } else if (peer_read(p) != 0) {
                (void)close(p->fd);
                nghttp2_session_del(p->session);
                free(p);
            }
        }
    }
}
