/* A loop on a thread of its own with one channel on it, and calls whose events are recorded. Test
 * code is sequential: it asks for things to be done on the loop's thread and waits for what it
 * expects. */
#ifndef OC_TESTS_CLIENT_FIXTURE_H
#define OC_TESTS_CLIENT_FIXTURE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "io/loop.h"
#include "raw.h"
#include "rpc/client.h"

#define FX_BYTES (1u << 16) /* recorded bytes per call */

struct fx_call {
    struct fx *fx;
    struct oc_client_call *call; /* loop thread; NULL after closed */
    bool started, headers;
    unsigned messages, ends; /* `ends`: pieces with end set */
    uint8_t bytes[FX_BYTES]; /* messages one behind the other */
    size_t len;
    uint64_t total;
    unsigned writable;
    unsigned closed;
    int code;
    char message[512];
    bool unprocessed;
    char header[64]; /* the value of x-answer */
    bool consume;    /* pieces: at once */
    void (*on_message)(struct fx_call *c);
};

struct fx {
    struct oc_loop *loop;
    struct oc_channel *ch;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool freed;
};

/* cfg.addr is set from addr. */
void fx_open(struct fx *fx, const char *addr, struct oc_channel_config cfg);
/* Frees the channel unless that was done, stops the loop, joins. */
void fx_close(struct fx *fx);
void fx_free_channel(struct fx *fx); /* returns when it is gone */

/* Run fn(arg) on the loop's thread and wait for it. */
void fx_do(struct fx *fx, void (*fn)(void *arg), void *arg);

/* A call with `message` (NULL: none) and half-close. */
void fx_call_start(struct fx *fx, struct fx_call *c, uint64_t deadline_ms, const char *message);
/* The same with pieces instead of whole messages. */
void fx_call_start_pieces(struct fx *fx, struct fx_call *c);
/* Open, nothing sent; returns oc_client_call_new's code. */
int fx_call_open(struct fx *fx, struct fx_call *c, uint64_t deadline_ms,
                 const struct oc_metadata *md, size_t md_count);
void fx_cancel(struct fx_call *c);
enum oc_channel_state fx_state(struct fx *fx);

/* Wait, with a deadline, until the expression over state that callbacks change is true. */
bool fx_wait_until(struct fx *fx, bool (*cond)(void *arg), void *arg);
void fx_wait_closed(struct fx_call *c);
/* Closed with this code, once; the message contains `part`. */
void fx_expect(struct fx_call *c, int code, const char *part);

#endif
