/* The object service: the methods of cache.CacheService and the plain HTTP pages, between the rpc
 * server and the store. The embeddable node (include/ocache_node.h, node.c) puts it on threads and
 * sockets.
 *
 * Threading: one oc_svc per process, one oc_svc_worker per loop. A call and everything made for it
 * live on the loop of its connection; what may block runs on movers and comes back by the loop's
 * mailbox. */
#ifndef OC_OBJECT_SERVICE_H
#define OC_OBJECT_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/loop.h"
#include "io/tcp.h"
#include "rpc/server.h"
#include "store/objects.h"

struct oc_svc;
struct oc_svc_worker;

/* What is served: everything only while READY; health and metrics always. */
enum oc_svc_phase {
    OC_SVC_LOADING,
    OC_SVC_READY,
    OC_SVC_DRAINING,
};

struct oc_svc_config {
    const struct oc_disk *disk; /* for the free space on the metrics page */
    struct oc_objects *objects; /* opened; loaded before the phase becomes READY */
    enum oc_sync_mode sync;
    uint64_t default_ttl_s; /* for puts without one; 0 = never expires */
    uint64_t buffer_bytes;  /* bound on value buffers, whole process; at least 8 MiB */
    unsigned workers;
    unsigned read_movers;     /* threads for cold small reads and key listings */
    unsigned bulk_movers;     /* threads for large values */
    size_t max_waiters;       /* operations of one worker waiting for a buffer; more are refused */
    uint64_t wait_ms;         /* how long one waits before it is refused */
    void (*wrote)(void *arg); /* after every commit, on any thread; may be NULL */
    void *wrote_arg;
    /* After every call, on its worker's thread; may be NULL. */
    void (*on_call)(void *user, const char *method, const char *peer, int code,
                    uint64_t duration_ns);
    void *on_call_user;
};

int oc_svc_new(const struct oc_svc_config *cfg, struct oc_svc **ret, struct oc_error *err);
/* Workers are gone. Joins the movers. */
void oc_svc_free(struct oc_svc *s);

void oc_svc_set_phase(struct oc_svc *s, enum oc_svc_phase phase); /* any thread */
enum oc_svc_phase oc_svc_get_phase(const struct oc_svc *s);       /* any thread */

/* For oc_rpc_config: the service pointer of all of them is the oc_svc. */
/* Its own methods and those of the health service. */
const struct oc_method *oc_svc_methods(const struct oc_svc *s, size_t *ret_count);
const struct oc_http_route *oc_svc_routes(size_t *ret_count);
void oc_svc_not_found(struct oc_http *req, void *service);
bool oc_svc_open_for_calls(void *service);
bool oc_svc_pressed(void *service); /* somebody waits for a buffer */
void oc_svc_observe(void *service, const struct oc_method *method, int code, uint64_t duration_ns,
                    const char *peer);

/* Sources of figures that the metrics page shows and that exist later than the service. */
void oc_svc_attach(struct oc_svc *s, struct oc_rpc_server *rpc, const struct oc_listener *grpc,
                   const struct oc_listener *http);
/* The load has ended. */
void oc_svc_loaded(struct oc_svc *s, bool ok, uint64_t load_ms);

/* On the loop's thread; index < workers. Becomes the user pointer of the loop's oc_rpc_worker. */
int oc_svc_worker_new(struct oc_svc *s, unsigned index, struct oc_loop *loop,
                      struct oc_svc_worker **ret);
/* Operations that still hold memory or run on a mover; 0 once drained. On the loop's thread. */
size_t oc_svc_worker_live(const struct oc_svc_worker *w);
/* On the loop's thread; live is 0. */
void oc_svc_worker_free(struct oc_svc_worker *w);

#endif
