/* A gRPC load generator on bare nghttp2, independent of our client: one thread, one epoll.
 *
 *   load ADDR:PORT OP -n REQUESTS -c CONNECTIONS -m STREAMS [-k KEYS] [-s VALUE_BYTES] [-r SEED]
 * [-u]
 *
 * OP: put      PutObject of VALUE_BYTES (small), key user%016x of a uniform key number
 *     preload  as put, but every key once, in order (REQUESTS is set to KEYS)
 *     get      Get of a uniform key
 *     stream   Put as a client stream, VALUE_BYTES in messages of 256 KiB
 * Every answer must have grpc-status 0 and, for get, VALUE_BYTES bytes of value; the value bytes
 * follow from the key number, so for small values each one is compared (not with -u: the echo
 * server's answers are made up). Prints one JSON line. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SMALL_MAX   4096u
#define MESSAGE_MAX 262144u
#define OUT_BYTES   (1u << 19)
#define PATTERN     65536u
#define LATENCIES   (1u << 22)

enum op_kind { OP_PUT, OP_GET, OP_STREAM };

struct request {
    struct request *next_free;
    struct peer *peer;
    uint64_t key;
    uint64_t begin_ns;
    uint64_t got;      /* response bytes, gRPC heads included */
    uint64_t value_at; /* value bytes sent so far (stream) */
    uint32_t status;   /* grpc-status; 99 = none seen */
    bool bad;
    size_t head_len, head_sent; /* bytes staged in head */
    uint8_t head[SMALL_MAX + 128];
    uint64_t piece_left; /* value bytes of the current message still to send */
};

struct peer {
    int fd;
    nghttp2_session *session;
    const uint8_t *rest;
    size_t rest_len;
    unsigned running;
    bool want_out;
    uint8_t *out;
    size_t out_len, out_sent;
};

static struct {
    enum op_kind op;
    bool sequential, unchecked;
    uint64_t requests, started, finished, failed, wrong;
    uint64_t keys, value_bytes, rng;
    unsigned connections, streams;
    uint64_t bytes;
} g = {.connections = 8, .streams = 32, .keys = 1000, .value_bytes = 100, .rng = 1};

static struct request *free_requests;
static uint32_t *latencies_us10; /* tenths of a microsecond */
static uint8_t pattern[PATTERN + MESSAGE_MAX];
static int ep;
static char authority[96];

static uint64_t now_ns(void) {
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static uint64_t next_random(void) {
    uint64_t z = (g.rng += 0x9e3779b97f4a7c15ull);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Where in the pattern the value of a key begins. */
static const uint8_t *value_of(uint64_t key) {
    return pattern + (key * 7919) % PATTERN;
}

static size_t put_varint(uint8_t *p, uint64_t v) {
    size_t n = 0;

    while (v >= 0x80) {
        p[n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    p[n++] = (uint8_t)v;
    return n;
}

/* gRPC head, key field and the head of the data field; returns the length staged in r->head. */
static size_t stage_message(struct request *r, bool with_key, uint64_t data_len) {
    uint8_t body[64];
    size_t n = 0;

    if (with_key) {
        char key[32];
        int len = snprintf(key, sizeof key, "user%016llx", (unsigned long long)r->key);

        body[n++] = 0x0a;
        n += put_varint(body + n, (uint64_t)len);
        memcpy(body + n, key, (size_t)len);
        n += (size_t)len;
    }
    if (data_len > 0) {
        body[n++] = 0x1a;
        n += put_varint(body + n, data_len);
    }
    uint32_t be = htonl((uint32_t)(n + data_len));
    r->head[0] = 0;
    memcpy(r->head + 1, &be, 4);
    memcpy(r->head + 5, body, n);
    return n + 5;
}

static void stage_next(struct request *r) {
    uint64_t left = g.value_bytes - r->value_at;
    uint64_t piece = left < MESSAGE_MAX ? left : MESSAGE_MAX;

    r->head_len = stage_message(r, r->value_at == 0, piece);
    r->head_sent = 0;
    r->piece_left = piece;
}

static ssize_t on_read_body(nghttp2_session *session, int32_t id, uint8_t *buf, size_t length,
                            uint32_t *flags, nghttp2_data_source *source, void *user) {
    struct request *r = source->ptr;
    size_t n = 0;

    (void)session;
    (void)id;
    (void)user;
    for (;;) {
        size_t take = r->head_len - r->head_sent;

        if (take > length - n) {
            take = length - n;
        }
        memcpy(buf + n, r->head + r->head_sent, take);
        r->head_sent += take;
        n += take;
        take = r->piece_left < length - n ? r->piece_left : length - n;
        if (take > 0) {
            memcpy(buf + n, pattern + (r->key * 7919 + r->value_at) % PATTERN, take);
            r->value_at += take;
            r->piece_left -= take;
            n += take;
        }
        if (r->head_sent < r->head_len || r->piece_left > 0) {
            return (ssize_t)n;
        }
        if (g.op != OP_STREAM || r->value_at == g.value_bytes) {
            *flags |= NGHTTP2_DATA_FLAG_EOF;
            return (ssize_t)n;
        }
        stage_next(r);
    }
}

static ssize_t read_length(nghttp2_session *session, uint8_t type, int32_t id, int32_t session_win,
                           int32_t stream_win, uint32_t max_frame, void *user) {
    int32_t n = session_win < stream_win ? session_win : stream_win;

    (void)session;
    (void)type;
    (void)id;
    (void)user;
    if (n > (int32_t)max_frame) {
        n = (int32_t)max_frame;
    }
    return n > 131072 ? 131072 : n;
}

#define NV(n, v, len)                                                                              \
    {                                                                                              \
        (uint8_t *)(uintptr_t)(n), (uint8_t *)(uintptr_t)(v), sizeof(n) - 1, (len),                \
            NGHTTP2_NV_FLAG_NO_COPY_NAME                                                           \
    }

static void start_request(struct peer *p) {
    static const char *const paths[] = {"/cache.CacheService/PutObject", "/cache.CacheService/Get",
                                        "/cache.CacheService/Put"};
    struct request *r = free_requests;
    const char *path = paths[g.op];
    nghttp2_nv nva[] = {NV(":method", "POST", 4),
                        NV(":scheme", "http", 4),
                        NV(":path", path, strlen(path)),
                        NV(":authority", authority, strlen(authority)),
                        NV("content-type", "application/grpc", 16),
                        NV("te", "trailers", 8)};

    if (r != NULL) {
        free_requests = r->next_free;
    } else if ((r = malloc(sizeof *r)) == NULL) {
        exit(1);
    }
    memset(r, 0, offsetof(struct request, head));
    r->peer = p;
    r->status = 99;
    r->key = g.sequential ? g.started : next_random() % g.keys;
    r->piece_left = 0;
    if (g.op == OP_STREAM) {
        stage_next(r);
    } else {
        r->head_len = stage_message(r, true, g.op == OP_PUT ? g.value_bytes : 0);
        if (g.op == OP_PUT) {
            memcpy(r->head + r->head_len, value_of(r->key), g.value_bytes);
            r->head_len += g.value_bytes;
        }
    }
    r->begin_ns = now_ns();
    nghttp2_data_provider body = {.source.ptr = r, .read_callback = on_read_body};
    if (nghttp2_submit_request(p->session, NULL, nva, 6, &body, r) < 0) {
        fprintf(stderr, "cannot submit a request\n");
        exit(1);
    }
    g.started++;
    p->running++;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags,
                     void *user) {
    struct request *r = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);

    (void)flags;
    (void)user;
    if (r != NULL && name_len == 11 && memcmp(name, "grpc-status", 11) == 0) {
        r->status = value_len == 1 ? (uint32_t)(value[0] - '0') : 98;
    }
    return 0;
}

static int on_data_chunk(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                         size_t len, void *user) {
    struct request *r = nghttp2_session_get_stream_user_data(session, id);

    (void)flags;
    (void)user;
    if (r == NULL) {
        return 0;
    }
    if (g.op == OP_GET && g.value_bytes <= 128 && g.value_bytes > 0 && !g.unchecked) {
        /* One message: 5 bytes of gRPC, 2 of protobuf, then the value. */
        for (size_t i = 0; i < len; i++) {
            uint64_t at = r->got + i;

            if (at >= 7 && data[i] != value_of(r->key)[at - 7]) {
                r->bad = true;
            }
        }
    }
    r->got += len;
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *user) {
    struct request *r = nghttp2_session_get_stream_user_data(session, id);
    struct peer *p = user;

    (void)code;
    if (r == NULL) {
        return 0;
    }
    if (g.finished < LATENCIES) {
        latencies_us10[g.finished] = (uint32_t)((now_ns() - r->begin_ns) / 100);
    }
    g.finished++;
    g.failed += r->status != 0;
    if (r->bad || (g.op == OP_GET && r->status == 0 && r->got < g.value_bytes)) {
        g.wrong++;
    }
    g.bytes += g.op == OP_GET ? r->got : g.value_bytes;
    r->next_free = free_requests;
    free_requests = r;
    p->running--;
    if (g.started < g.requests) {
        start_request(p);
    }
    return 0;
}

static void peer_events(struct peer *p) {
    bool want = p->out_sent < p->out_len;

    if (want != p->want_out) {
        struct epoll_event ev = {.events = want ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = p};

        p->want_out = want;
        (void)epoll_ctl(ep, EPOLL_CTL_MOD, p->fd, &ev);
    }
}

static int peer_flush(struct peer *p) {
    for (;;) {
        if (p->out_sent == p->out_len) {
            p->out_sent = p->out_len = 0;
            while (p->out_len < OUT_BYTES) {
                if (p->rest_len == 0) {
                    ssize_t n = nghttp2_session_mem_send(p->session, &p->rest);

                    if (n <= 0) {
                        if (n < 0) {
                            return -1;
                        }
                        break;
                    }
                    p->rest_len = (size_t)n;
                }
                size_t take = OUT_BYTES - p->out_len;
                take = take < p->rest_len ? take : p->rest_len;
                memcpy(p->out + p->out_len, p->rest, take);
                p->out_len += take;
                p->rest += take;
                p->rest_len -= take;
            }
            if (p->out_len == 0) {
                peer_events(p);
                return 0;
            }
        }
        ssize_t w = send(p->fd, p->out + p->out_sent, p->out_len - p->out_sent, MSG_NOSIGNAL);
        if (w < 0 && errno == EAGAIN) {
            peer_events(p);
            return 0;
        }
        if (w <= 0) {
            return -1;
        }
        p->out_sent += (size_t)w;
    }
}

static int peer_read(struct peer *p) {
    static uint8_t in[1 << 18];

    for (int i = 0; i < 8; i++) {
        ssize_t n = recv(p->fd, in, sizeof in, 0);

        if (n < 0 && errno == EAGAIN) {
            break;
        }
        if (n <= 0 || nghttp2_session_mem_recv(p->session, in, (size_t)n) != n) {
            return -1;
        }
        if ((size_t)n < sizeof in) {
            break;
        }
    }
    return peer_flush(p);
}

static struct peer *peer_connect(const struct sockaddr_in *sa, nghttp2_session_callbacks *cb) {
    struct peer *p = calloc(1, sizeof *p);
    nghttp2_settings_entry iv[] = {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 8 << 20},
                                   {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, 1 << 20},
                                   {NGHTTP2_SETTINGS_ENABLE_PUSH, 0}};
    int one = 1;

    if (p == NULL || (p->out = malloc(OUT_BYTES)) == NULL ||
        (p->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0 ||
        connect(p->fd, (const struct sockaddr *)sa, sizeof *sa) != 0 ||
        nghttp2_session_client_new(&p->session, cb, p) != 0) {
        perror("connect");
        exit(1);
    }
    (void)fcntl(p->fd, F_SETFL, O_NONBLOCK);
    (void)setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)nghttp2_submit_settings(p->session, NGHTTP2_FLAG_NONE, iv, 3);
    (void)nghttp2_session_set_local_window_size(p->session, NGHTTP2_FLAG_NONE, 0, 64 << 20);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = p};
    (void)epoll_ctl(ep, EPOLL_CTL_ADD, p->fd, &ev);
    return p;
}

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static double percentile_us(uint64_t count, double p) {
    uint64_t i = (uint64_t)(p * (double)count);

    return count == 0 ? 0 : latencies_us10[i < count ? i : count - 1] / 10.0;
}

static void report(double seconds) {
    uint64_t n = g.finished < LATENCIES ? g.finished : LATENCIES;

    qsort(latencies_us10, n, sizeof *latencies_us10, compare_u32);
    printf("{\"requests\": %llu, \"failed\": %llu, \"wrong\": %llu, \"seconds\": %.6f, "
           "\"per_s\": %.1f, \"gb_per_s\": %.4f, \"p50_us\": %.1f, \"p99_us\": %.1f, "
           "\"max_us\": %.1f}\n",
           (unsigned long long)g.finished, (unsigned long long)g.failed,
           (unsigned long long)g.wrong, seconds, (double)g.finished / seconds,
           (double)g.bytes / seconds / 1e9, percentile_us(n, 0.5), percentile_us(n, 0.99),
           percentile_us(n, 1.0));
}

static void parse(int argc, char **argv, struct sockaddr_in *sa) {
    static const char *const ops[] = {"put", "get", "stream", "preload"};
    char host[64];
    unsigned port = 0;
    int op = -1, c;

    if (argc >= 3 && sscanf(argv[1], "%63[^:]:%u", host, &port) == 2) {
        for (int i = 0; i < 4; i++) {
            op = strcmp(argv[2], ops[i]) == 0 ? i : op;
        }
    }
    optind = 3;
    while (op >= 0 && (c = getopt(argc, argv, "n:c:m:k:s:r:u")) != -1) {
        uint64_t v = optarg == NULL ? 0 : strtoull(optarg, NULL, 10);

        switch (c) {
        case 'n':
            g.requests = v;
            break;
        case 'c':
            g.connections = (unsigned)v;
            break;
        case 'm':
            g.streams = (unsigned)v;
            break;
        case 'k':
            g.keys = v;
            break;
        case 's':
            g.value_bytes = v;
            break;
        case 'r':
            g.rng = v;
            break;
        case 'u':
            g.unchecked = true;
            break;
        default:
            op = -1;
            break;
        }
    }
    g.sequential = op == 3;
    g.op = op == 3 ? OP_PUT : (enum op_kind)(op < 0 ? 0 : op);
    if (g.sequential) {
        g.requests = g.keys;
    }
    *sa = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (op < 0 || port > 65535 || inet_pton(AF_INET, host, &sa->sin_addr) != 1 || g.requests == 0 ||
        g.keys == 0 || (g.op == OP_PUT && g.value_bytes > SMALL_MAX)) {
        fprintf(stderr, "usage: load IPV4:PORT put|get|stream|preload -n N [-c C] [-m M] [-k KEYS] "
                        "[-s BYTES] [-r SEED] [-u]\n");
        exit(2);
    }
    (void)snprintf(authority, sizeof authority, "%s:%u", host, port);
}

static nghttp2_session_callbacks *callbacks(void) {
    nghttp2_session_callbacks *cb;

    if (nghttp2_session_callbacks_new(&cb) != 0) {
        exit(1);
    }
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data_chunk);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    nghttp2_session_callbacks_set_data_source_read_length_callback(cb, read_length);
    return cb;
}

int main(int argc, char **argv) {
    struct sockaddr_in sa;
    uint64_t seed = 42;

    parse(argc, argv, &sa);
    for (size_t i = 0; i < sizeof pattern; i++) {
        /* The second part repeats the first, so that a value may run over its end. */
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        pattern[i] = i < PATTERN ? (uint8_t)(seed >> 56) : pattern[i - PATTERN];
    }
    latencies_us10 = malloc(LATENCIES * sizeof *latencies_us10);
    ep = epoll_create1(EPOLL_CLOEXEC);
    if (latencies_us10 == NULL || ep < 0) {
        return 1;
    }
    nghttp2_session_callbacks *cb = callbacks();
    uint64_t begin = now_ns();
    for (unsigned i = 0; i < g.connections; i++) {
        struct peer *p = peer_connect(&sa, cb);

        for (unsigned k = 0; k < g.streams && g.started < g.requests; k++) {
            start_request(p);
        }
        if (peer_flush(p) != 0) {
            return 1;
        }
    }
    while (g.finished < g.requests) {
        struct epoll_event events[64];
        int n = epoll_wait(ep, events, 64, 10000);

        if (n <= 0) {
            fprintf(stderr, "no progress for 10 s: %llu of %llu done\n",
                    (unsigned long long)g.finished, (unsigned long long)g.requests);
            return 1;
        }
        for (int i = 0; i < n; i++) {
            struct peer *p = events[i].data.ptr;

            if (((events[i].events & EPOLLIN) != 0 ? peer_read(p) : peer_flush(p)) != 0) {
                fprintf(stderr, "connection lost\n");
                return 1;
            }
        }
    }
    report((double)(now_ns() - begin) / 1e9);
    return g.failed + g.wrong > 0 ? 1 : 0;
}
