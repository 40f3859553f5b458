/* A server of raw HTTP/2 bytes on a thread of its own: each test scripts what it does, well-behaved
 * or not. Nothing of the code under test is used to make its bytes (header blocks are literals;
 * requests are decoded by nghttp2's inflater).
 *
 * Helpers return false after a timeout, an end of stream or an error; a script then returns, and
 * the test fails when the script had not finished (raw_stop checks). */
#ifndef OC_TESTS_CLIENT_RAW_H
#define OC_TESTS_CLIENT_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RAW_DEADLINE_S 20

enum { RAW_DATA, RAW_HEADERS, RAW_RST = 3, RAW_SETTINGS, RAW_PING = 6, RAW_GOAWAY, RAW_WINDOW };
enum { RAW_END_STREAM = 1, RAW_ACK = 1, RAW_END_HEADERS = 4 };

struct raw;
typedef bool (*raw_script)(struct raw *r, void *arg); /* true: went as planned */

/* Listens on a free port of 127.0.0.1 (or `port`) and runs the script on a thread. */
struct raw *raw_start(raw_script script, void *arg, uint16_t port);
const char *raw_addr(const struct raw *r);
uint16_t raw_port(const struct raw *r);
/* Joins and frees. False: the script did not go as planned; says at which line. */
bool raw_stop(struct raw *r);
void raw_wait(struct raw *r); /* until the script is over */
/* A port that nobody listens on (it was bound a moment ago). */
uint16_t raw_dead_port(void);

/* ---- for scripts ---- */
bool raw_note(struct raw *r, bool ok, int line); /* remembers the first line that failed */
#define RAW(cond)                                                                                  \
    do {                                                                                           \
        if (!raw_note(r, (cond), __LINE__)) {                                                      \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

bool raw_accept(
    struct raw *r); /* a next connection takes the place of the earlier, which stays open */
void raw_hang_up(struct raw *r);
bool raw_send(struct raw *r, const void *p, size_t len);
/* The client's connection preface and SETTINGS are read; ours sent. */
struct raw_settings {
    uint32_t max_streams, initial_window, max_frame; /* 0: not sent */
};
bool raw_greet(struct raw *r, const struct raw_settings *settings);

bool raw_frame(struct raw *r, uint8_t type, uint8_t flags, uint32_t stream, const void *payload,
               size_t len);
struct raw_in {
    uint8_t type, flags;
    uint32_t stream;
    uint32_t len;
    const uint8_t *payload; /* until the next one */
};
bool raw_next(struct raw *r, struct raw_in *in);
/* Skips others (PING and SETTINGS are answered) until a frame of this type comes. */
bool raw_expect(struct raw *r, uint8_t type, struct raw_in *in);
/* The next request's HEADERS; its stream id. Header fields can be asked for until the next request.
 */
bool raw_request(struct raw *r, uint32_t *stream);
const char *raw_header(struct raw *r, const char *name); /* NULL: absent */
/* Reads DATA until END_STREAM, gives windows back; *len bytes were there. NULL data: counted only.
 */
bool raw_body(struct raw *r, uint32_t stream, uint8_t *data, size_t cap, size_t *len);
/* PINGs make round trips; until their answers nothing but PINGs and WINDOW_UPDATEs may come. */
bool raw_quiet(struct raw *r);
/* The last raw_next failed because the client had ended in order. */
bool raw_ended(const struct raw *r);
/* Reads to the end of the client's bytes. */
bool raw_eof(struct raw *r);

bool raw_window(struct raw *r, uint32_t stream, uint32_t increment);
bool raw_rst(struct raw *r, uint32_t stream, uint32_t code);
bool raw_goaway(struct raw *r, uint32_t last_stream, uint32_t code);
/* "name: value" pairs, NULL-terminated. */
bool raw_headers(struct raw *r, uint32_t stream, uint8_t flags, const char *const *pairs);
/* :status 200 and the content type of gRPC. */
bool raw_ok_headers(struct raw *r, uint32_t stream);
bool raw_trailers(struct raw *r, uint32_t stream, const char *status, const char *message);
/* A message with its 5-byte head in DATA frames of `step` bytes. */
bool raw_message(struct raw *r, uint32_t stream, const void *p, size_t len, size_t step);

#endif
