#include "raw.h"

#include <arpa/inet.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_PAYLOAD (1u << 20)
#define MAX_FIELDS  32
#define MAX_CONNS   64

struct field {
    char name[64];
    char value[512];
};

struct raw {
    pthread_t thread;
    raw_script script;
    void *arg;
    int listener;
    int fd;
    int all[MAX_CONNS];
    unsigned count;
    uint16_t port;
    char addr[32];
    int bad_line;
    bool finished, joined;
    bool ended; /* the last receive met the end of the client's bytes */
    nghttp2_hd_inflater *inflater;
    struct field fields[MAX_FIELDS];
    unsigned field_count;
    uint8_t payload[MAX_PAYLOAD];
};

static void *raw_main(void *arg) {
    struct raw *r = arg;

    r->finished = r->script(r, r->arg);
    /* What is still open is closed by raw_stop, so that the client sees no end it was not told of.
     */
    return NULL;
}

static int listen_on(uint16_t port, uint16_t *ret) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t len = sizeof sa;
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof sa) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &len) != 0) {
        perror("raw server");
        abort();
    }
    *ret = ntohs(sa.sin_port);
    return fd;
}

struct raw *raw_start(raw_script script, void *arg, uint16_t port) {
    struct raw *r = calloc(1, sizeof *r);

    r->script = script;
    r->arg = arg;
    r->fd = -1;
    r->listener = listen_on(port, &r->port);
    (void)snprintf(r->addr, sizeof r->addr, "127.0.0.1:%u", r->port);
    if (pthread_create(&r->thread, NULL, raw_main, r) != 0) {
        abort();
    }
    return r;
}

const char *raw_addr(const struct raw *r) {
    return r->addr;
}

uint16_t raw_port(const struct raw *r) {
    return r->port;
}

void raw_wait(struct raw *r) {
    if (!r->joined) {
        pthread_join(r->thread, NULL);
        r->joined = true;
    }
}

static void inflater_done(struct raw *r) {
    if (r->inflater != NULL) {
        nghttp2_hd_inflate_del(r->inflater);
        r->inflater = NULL;
    }
}

bool raw_stop(struct raw *r) {
    bool ok;

    raw_wait(r);
    ok = r->finished && r->bad_line == 0;
    if (!ok) {
        fprintf(stderr, "raw server's script failed at line %d\n", r->bad_line);
    }
    for (unsigned i = 0; i < r->count; i++) {
        if (r->all[i] >= 0) {
            close(r->all[i]);
        }
    }
    close(r->listener);
    inflater_done(r);
    free(r);
    return ok;
}

uint16_t raw_dead_port(void) {
    uint16_t port;

    close(listen_on(0, &port));
    return port;
}

bool raw_note(struct raw *r, bool ok, int line) {
    if (!ok && r->bad_line == 0) {
        r->bad_line = line;
    }
    return ok;
}

/* ---- bytes ---- */

bool raw_accept(struct raw *r) {
    struct pollfd pfd = {.fd = r->listener, .events = POLLIN};
    struct timeval limit = {.tv_sec = RAW_DEADLINE_S};

    if (r->count == MAX_CONNS || poll(&pfd, 1, RAW_DEADLINE_S * 1000) != 1) {
        return false;
    }
    r->fd = accept(r->listener, NULL, NULL);
    if (r->fd < 0) {
        return false;
    }
    (void)setsockopt(r->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(r->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    r->all[r->count++] = r->fd;
    inflater_done(r);
    return nghttp2_hd_inflate_new(&r->inflater) == 0;
}

void raw_hang_up(struct raw *r) {
    for (unsigned i = 0; i < r->count; i++) {
        if (r->all[i] == r->fd) {
            r->all[i] = -1;
        }
    }
    close(r->fd);
    r->fd = -1;
}

bool raw_send(struct raw *r, const void *p, size_t len) {
    const uint8_t *at = p;

    while (len > 0) {
        ssize_t n = send(r->fd, at, len, MSG_NOSIGNAL);

        if (n <= 0) {
            return false;
        }
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static bool receive(struct raw *r, void *p, size_t len) {
    uint8_t *at = p;

    while (len > 0) {
        ssize_t n = recv(r->fd, at, len, 0);

        r->ended = n == 0;
        if (n <= 0) {
            return false;
        }
        at += n;
        len -= (size_t)n;
    }
    return true;
}

bool raw_ended(const struct raw *r) {
    return r->ended;
}

bool raw_eof(struct raw *r) {
    uint8_t buf[4096];
    ssize_t n;

    do {
        n = recv(r->fd, buf, sizeof buf, 0);
    } while (n > 0);
    return n == 0;
}

/* ---- frames ---- */

static void put32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
}

static uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

bool raw_frame(struct raw *r, uint8_t type, uint8_t flags, uint32_t stream, const void *payload,
               size_t len) {
    uint8_t head[9] = {(uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len, type, flags};

    put32(head + 5, stream);
    return raw_send(r, head, sizeof head) && (len == 0 || raw_send(r, payload, len));
}

bool raw_greet(struct raw *r, const struct raw_settings *settings) {
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    char got[sizeof preface - 1];
    uint8_t payload[18];
    size_t n = 0;
    struct raw_in in;
    struct {
        uint16_t id;
        uint32_t value;
    } all[] = {{3, settings == NULL ? 0 : settings->max_streams},
               {4, settings == NULL ? 0 : settings->initial_window},
               {5, settings == NULL ? 0 : settings->max_frame}};

    if (!receive(r, got, sizeof got) || memcmp(got, preface, sizeof got) != 0 ||
        !raw_next(r, &in) || in.type != RAW_SETTINGS) {
        return false;
    }
    for (unsigned i = 0; i < 3; i++) {
        if (all[i].value != 0) {
            payload[n] = 0;
            payload[n + 1] = (uint8_t)all[i].id;
            put32(payload + n + 2, all[i].value);
            n += 6;
        }
    }
    return raw_frame(r, RAW_SETTINGS, 0, 0, payload, n) &&
           raw_frame(r, RAW_SETTINGS, RAW_ACK, 0, NULL, 0);
}

bool raw_next(struct raw *r, struct raw_in *in) {
    uint8_t head[9];

    if (!receive(r, head, sizeof head)) {
        return false;
    }
    in->len = (uint32_t)head[0] << 16 | (uint32_t)head[1] << 8 | head[2];
    in->type = head[3];
    in->flags = head[4];
    in->stream = get32(head + 5) & 0x7fffffff;
    in->payload = r->payload;
    return in->len <= MAX_PAYLOAD && receive(r, r->payload, in->len);
}

bool raw_expect(struct raw *r, uint8_t type, struct raw_in *in) {
    for (;;) {
        if (!raw_next(r, in)) {
            return false;
        }
        if (in->type == type) {
            return true;
        }
        if (in->type == RAW_PING && (in->flags & RAW_ACK) == 0 &&
            !raw_frame(r, RAW_PING, RAW_ACK, 0, in->payload, 8)) {
            return false;
        }
    }
}

/* Two, because the answer to a PING overtakes frames that are due. */
bool raw_quiet(struct raw *r) {
    struct raw_in in;

    for (unsigned i = 0; i < 2; i++) {
        if (!raw_frame(r, RAW_PING, 0, 0, "roundtrp", 8)) {
            return false;
        }
        do {
            if (!raw_next(r, &in) ||
                (in.type != RAW_PING && in.type != RAW_WINDOW && in.type != RAW_SETTINGS)) {
                return false;
            }
        } while (in.type != RAW_PING || (in.flags & RAW_ACK) == 0);
    }
    return true;
}

static bool inflate_fields(struct raw *r, const uint8_t *p, size_t len) {
    r->field_count = 0;
    for (;;) {
        nghttp2_nv nv;
        int flags = 0;
        ssize_t n = nghttp2_hd_inflate_hd2(r->inflater, &nv, &flags, p, len, 1);

        if (n < 0) {
            return false;
        }
        p += n;
        len -= (size_t)n;
        if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0 && r->field_count < MAX_FIELDS) {
            struct field *f = &r->fields[r->field_count++];

            (void)snprintf(f->name, sizeof f->name, "%.*s", (int)nv.namelen, (char *)nv.name);
            (void)snprintf(f->value, sizeof f->value, "%.*s", (int)nv.valuelen, (char *)nv.value);
        }
        if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) {
            nghttp2_hd_inflate_end_headers(r->inflater);
            return true;
        }
    }
}

bool raw_request(struct raw *r, uint32_t *stream) {
    struct raw_in in;

    if (!raw_expect(r, RAW_HEADERS, &in) || (in.flags & RAW_END_HEADERS) == 0) {
        return false;
    }
    *stream = in.stream;
    size_t skip = (in.flags & 0x20) != 0 ? 5 : 0; /* priority */
    return inflate_fields(r, in.payload + skip, in.len - skip);
}

const char *raw_header(struct raw *r, const char *name) {
    for (unsigned i = 0; i < r->field_count; i++) {
        if (strcmp(r->fields[i].name, name) == 0) {
            return r->fields[i].value;
        }
    }
    return NULL;
}

bool raw_body(struct raw *r, uint32_t stream, uint8_t *data, size_t cap, size_t *len) {
    struct raw_in in;

    *len = 0;
    do {
        if (!raw_expect(r, RAW_DATA, &in) || in.stream != stream) {
            return false;
        }
        if (data != NULL) {
            if (*len + in.len > cap) {
                return false;
            }
            memcpy(data + *len, in.payload, in.len);
        }
        *len += in.len;
        if (in.len > 0 && (!raw_window(r, 0, in.len) || !raw_window(r, stream, in.len))) {
            return false;
        }
    } while ((in.flags & RAW_END_STREAM) == 0);
    return true;
}

bool raw_window(struct raw *r, uint32_t stream, uint32_t increment) {
    uint8_t p[4];

    put32(p, increment);
    return raw_frame(r, RAW_WINDOW, 0, stream, p, sizeof p);
}

bool raw_rst(struct raw *r, uint32_t stream, uint32_t code) {
    uint8_t p[4];

    put32(p, code);
    return raw_frame(r, RAW_RST, 0, stream, p, sizeof p);
}

bool raw_goaway(struct raw *r, uint32_t last_stream, uint32_t code) {
    uint8_t p[8];

    put32(p, last_stream);
    put32(p + 4, code);
    return raw_frame(r, RAW_GOAWAY, 0, 0, p, sizeof p);
}

/* ---- header blocks: literal fields without indexing (RFC 7541, 6.2.2), no Huffman ---- */

static size_t put_string(uint8_t *p, const char *s, size_t len) {
    size_t n = 0;

    if (len < 127) {
        p[n++] = (uint8_t)len;
    } else { /* an integer with a 7-bit prefix */
        size_t rest = len - 127;

        p[n++] = 127;
        while (rest >= 128) {
            p[n++] = (uint8_t)(rest % 128 + 128);
            rest /= 128;
        }
        p[n++] = (uint8_t)rest;
    }
    memcpy(p + n, s, len);
    return n + len;
}

bool raw_headers(struct raw *r, uint32_t stream, uint8_t flags, const char *const *pairs) {
    static __thread uint8_t block[128 << 10];
    size_t n = 0;

    for (; *pairs != NULL; pairs++) {
        const char *colon = strchr(*pairs + 1, ':'); /* pseudo headers begin with one */
        size_t name = (size_t)(colon - *pairs);

        block[n++] = 0;
        n += put_string(block + n, *pairs, name);
        n += put_string(block + n, colon + 2, strlen(colon + 2));
    }
    return raw_frame(r, RAW_HEADERS, (uint8_t)(flags | RAW_END_HEADERS), stream, block, n);
}

bool raw_ok_headers(struct raw *r, uint32_t stream) {
    static const char *const pairs[] = {":status: 200", "content-type: application/grpc", NULL};

    return raw_headers(r, stream, 0, pairs);
}

bool raw_trailers(struct raw *r, uint32_t stream, const char *status, const char *message) {
    char a[64], b[512];
    const char *pairs[] = {a, message == NULL ? NULL : b, NULL};

    (void)snprintf(a, sizeof a, "grpc-status: %s", status);
    (void)snprintf(b, sizeof b, "grpc-message: %s", message == NULL ? "" : message);
    return raw_headers(r, stream, RAW_END_STREAM, pairs);
}

bool raw_message(struct raw *r, uint32_t stream, const void *p, size_t len, size_t step) {
    uint8_t *all = malloc(len + 5);
    bool ok = true;

    all[0] = 0;
    put32(all + 1, (uint32_t)len);
    if (len > 0) {
        memcpy(all + 5, p, len);
    }
    for (size_t at = 0; at < len + 5 && ok; at += step) {
        size_t n = len + 5 - at < step ? len + 5 - at : step;

        ok = raw_frame(r, RAW_DATA, 0, stream, all + at, n);
    }
    free(all);
    return ok;
}
