/* The server without sockets and without a running loop: bytes are fed to a connection and what it
 * sends is collected. Time moves only when `now` is changed. For tests and fuzzers; failures abort.
 */
#ifndef OC_TESTS_RPC_MEM_IO_H
#define OC_TESTS_RPC_MEM_IO_H

#include "rpc/server_internal.h"
#include "service.h"

struct mem_server {
    struct service svc;
    struct oc_rpc_config cfg; /* limits may be set between _init and _start */
    struct oc_rpc_server *server;
    struct oc_loop *loop;
    struct service_worker *sw;
    struct oc_rpc_worker *w;
    struct oc_now now;
};

struct mem_peer {
    struct server_conn *conn; /* NULL: closed */
    struct oc_buf out;        /* what the server sent */
    size_t write_max;         /* bytes taken by one writev; 0: all */
    bool want_write, reading, shut, closing, reset;
};

void mem_server_init(struct mem_server *s);
void mem_server_start(struct mem_server *s);
/* Nothing of any call or connection is left. */
void mem_server_check_empty(struct mem_server *s);
void mem_server_stop(struct mem_server *s); /* peers closed */

void mem_peer_open(struct mem_peer *p, struct mem_server *s);
/* Feeds bytes in parts of at most `part` (0: all at once) and lets the server answer after each.
 * Bytes behind the end of the connection are dropped. */
void mem_peer_feed(struct mem_peer *p, const void *bytes, size_t len, size_t part);
void mem_peer_settle(struct mem_peer *p);
void mem_peer_close(struct mem_peer *p); /* the peer goes away */

#endif
