/* Run an OCache node inside a program.
 *
 * Plain C11, usable from C++. The node has threads of its own; it installs no signal handlers,
 * writes no log and changes nothing of the process but what its functions say. Several nodes may
 * run in one process on different data directories.
 *
 * Errors: functions that can fail return 0 or a positive enum ocache_code (ocache.h); `err` may be
 * NULL and is written only on failure. Functions may be called from any thread unless they say
 * otherwise. */
#ifndef OCACHE_NODE_H
#define OCACHE_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "ocache.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ocache_local_node;

/* What a power loss may take; a killed process loses nothing acknowledged in any mode. */
enum ocache_sync {
    OCACHE_SYNC_NONE = 0,     /* what the kernel had not written yet: a suffix of the log */
    OCACHE_SYNC_INTERVAL = 1, /* a suffix of about sync_interval_ms */
    OCACHE_SYNC_ALWAYS = 2    /* nothing acknowledged */
};

/* One finished call. `peer` is valid during the callback, which runs on the node's threads and must
 * not block. */
struct ocache_call_record {
    const char *method; /* "/cache.CacheService/Get" */
    const char *peer;   /* "10.0.0.1:4711" */
    int code;           /* enum ocache_code */
    uint64_t duration_ns;
};

struct ocache_node_config {
    const char *disk;        /* data directory; made if missing */
    const char *listen_addr; /* "host:port" for gRPC; ":0" is any free port on every address */
    const char *listen_http; /* "host:port" for HTTP; both ports speak both */
    uint64_t ttl_s;          /* of puts that give none; 0: they never expire */
    enum ocache_sync sync;
    uint64_t sync_interval_ms; /* 0: 1000 */
    uint64_t
        max_disk_bytes; /* cap on the bytes on disk; 0: the volume's free space less a reserve */
    uint64_t segment_bytes;   /* 0: chosen by the cap */
    uint64_t buffer_bytes;    /* bound on value buffers; 0: 256 MiB */
    unsigned workers;         /* event loops; 0: as many as CPUs may be used (cgroup, affinity) */
    unsigned max_connections; /* 0: 16384 per port */
    unsigned max_streams;     /* per connection; 0: 1024 */
    /* Against peers that are slow or mean harm; 0: what the brackets say. docs/configuration.md */
    uint64_t receive_bytes;    /* [256 MiB] request bytes not processed yet, of all connections */
    uint64_t max_header_bytes; /* [32 KiB] of one request */
    uint64_t handshake_timeout_ms;  /* [10000] over the head of a request, the first included */
    uint64_t stall_timeout_ms;      /* [60000] a request, or the reading of a response, stands */
    uint64_t keepalive_interval_ms; /* [60000] silence after which a peer is pinged */
    uint64_t keepalive_timeout_ms;  /* [20000] for its answer */
    uint64_t idle_timeout_ms;       /* [never] connections without calls are closed */
    unsigned reset_burst;           /* [1000] streams that a connection may reset at once ... */
    unsigned reset_rate;            /* [33] ... and per second for good */
    bool hold_ready;                /* not ready before ocache_node_mark_ready */
    void (*on_call)(void *user, const struct ocache_call_record *record); /* may be NULL */
    void *user;
};

/* Everything zero but the addresses (:9000, :9001). The caller sets `disk`. */
void ocache_node_config_init(struct ocache_node_config *cfg);

/* Open the data directory and both ports; the strings are copied. Returns once the ports are bound:
 * health and metrics are answered from then on, everything else UNAVAILABLE until the store has
 * loaded, which goes on in the background. Fails, with nothing left behind, when the directory is
 * not usable (its text says why and what to do) or a port is taken. */
int ocache_node_start(const struct ocache_node_config *cfg, struct ocache_local_node **ret,
                      struct ocache_error *err);

/* Bound ports, in host byte order. */
uint16_t ocache_node_grpc_port(const struct ocache_local_node *node);
uint16_t ocache_node_http_port(const struct ocache_local_node *node);
unsigned ocache_node_workers(const struct ocache_local_node *node);

/* Wait until the store has loaded: 0, OCACHE_DEADLINE_EXCEEDED, or why it could not be loaded; the
 * node then only waits to be stopped. */
int ocache_node_wait_loaded(struct ocache_local_node *node, uint64_t timeout_ms,
                            struct ocache_error *err);

struct ocache_load {
    uint64_t bytes_done, bytes_total; /* of the log read */
    uint64_t records;                 /* read so far, or in all once loaded */
    uint64_t keys;                    /* live; once loaded */
    uint64_t duration_ms;             /* once loaded */
};
void ocache_node_load(struct ocache_local_node *node, struct ocache_load *ret);

/* With hold_ready: what the program waits for has happened. */
void ocache_node_mark_ready(struct ocache_local_node *node);
/* Loaded, marked ready if that was asked for, and not being stopped. */
bool ocache_node_is_ready(const struct ocache_local_node *node);

/* Refuse new connections and calls, give those in progress timeout_ms to end, then cut them off;
 * flush, write a checkpoint, close, free. OCACHE_DEADLINE_EXCEEDED: something (the load, a disk
 * that does not answer) would not end; the node is then not freed, and the process had better exit,
 * which loses nothing acknowledged. Once, and with no other call on the node in progress. */
int ocache_node_stop(struct ocache_local_node *node, uint64_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
