/* The service of the RPC tests: one method for each way a method can behave, and counters that tell
 * what the server called. */
#ifndef OC_TESTS_RPC_SERVICE_H
#define OC_TESTS_RPC_SERVICE_H

#include <stdatomic.h>

#include "rpc/server.h"

/*  /t.Test/Unary   answers with its message; header x-echo comes back as x-echo
 *  /t.Test/Small   as Unary, messages up to 1000 bytes
 *  /t.Test/Stream  answers every message of a stream with itself
 *  /t.Test/Count   PIECES, any number: consumes at once, answers with the number of bytes (8 bytes
 * LE) /t.Test/Lazy    as Count, but consumes only while `open_gate` /t.Test/Early   PIECES:
 * PERMISSION_DENIED at the first piece /t.Test/Down    message {u64 total, u32 chunk}: answers with
 * so many bytes in messages of chunk /t.Test/Hold    never answers /t.Test/Fail    message {u8
 * code, text}: ends with that status grpc.health.v1 */
struct service {
    _Atomic bool closed_for_calls;
    _Atomic bool open_gate;
    _Atomic uint64_t total_max; /* of Down; 0: any */
    _Atomic uint64_t started, closed, half_closed, messages, pieces, piece_bytes, writable;
    _Atomic uint64_t observed;
    _Atomic int last_closed_code, last_observed_code;
    _Atomic uint64_t unconsumed, max_unconsumed; /* of Lazy, all calls */
    _Atomic uint64_t blocked;                    /* oc_call_send said false */
};

#define SERVICE_METHODS 11u
#define SERVICE_ROUTES  4u

/* Fills in methods, routes, service and hooks; limits are left as they are. */
void service_config(struct service *svc, struct oc_rpc_config *cfg);

/* What goes into oc_rpc_worker_new as user. The gate is looked at in every turn. */
struct service_worker;
struct service_worker *service_worker_new(struct service *svc, struct oc_loop *loop);
void service_worker_free(struct service_worker *w);

#endif
