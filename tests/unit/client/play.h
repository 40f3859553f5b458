/* A server of raw bytes that plays a list of steps, one request each, and a libocache client of it.
 */
#ifndef OC_TESTS_CLIENT_PLAY_H
#define OC_TESTS_CLIENT_PLAY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ocache.h"
#include "raw.h"

enum act {
    END,    /* of the list */
    ANSWER, /* `data` as one message, status 0 */
    TWICE,  /* the same message two times */
    EMPTY,  /* no message, status 0 */
    STATUS, /* no message, `status` */
    PARTLY, /* `data` as one message, then `status` */
    RESET,  /* RST_STREAM with `code` */
    HANG_UP,
    NO_GREETING, /* the connection is closed before anything was said */
    DRAIN,       /* reads the body, giving windows back, until the client resets the stream */
    HOLD,        /* no answer until the client resets the stream or hangs up */
};

struct step {
    enum act act;
    const char *path;
    const void *data;
    size_t len;
    const char *status, *message;
    uint32_t code;
};

struct play {
    const struct step *steps;
    atomic_uint requests;
    atomic_bool holding;
    char bodies[16][256]; /* of the requests, with the 5-byte head */
    size_t body_lens[16];
};

#define STR(s)     (s), sizeof(s) - 1
#define PUT_OBJECT "/cache.CacheService/PutObject"
#define PUT        "/cache.CacheService/Put"
#define GET        "/cache.CacheService/Get"
#define LIST       "/cache.CacheService/List"
#define SUCCESS    "\x08\x01" /* success = true */

/* A script for raw_start; its argument is a struct play. */
bool run_play(struct raw *r, void *arg);

struct stage {
    struct play play;
    struct raw *raw;
    struct ocache_client *client;
};

/* cfg but for the address and the mode; one connection unless it says otherwise. */
void stage_open(struct stage *st, const struct step *steps, struct ocache_config cfg);
/* Every step was played, and nothing else was asked. */
void stage_close(struct stage *st, unsigned requests);

#endif
