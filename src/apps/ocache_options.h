/* The options of `ocache`: one table gives the struct, the parser, the help, the environment
 * variables (OCACHE_ and the name in capitals) and the dump. docs/configuration.md explains them at
 * length. */
#ifndef OC_APPS_OCACHE_OPTIONS_H
#define OC_APPS_OCACHE_OPTIONS_H

#include "base/opt.h"

#define OCACHE_OPTIONS(X)                                                                          \
    X(STRING, disk, "disk", "/var/cache", "data directory; made if it is missing")                 \
    X(STRING, listen_addr, "listen-addr", ":9000", "host:port for gRPC; port 0 takes a free one")  \
    X(STRING, listen_http, "listen-http", ":9001",                                                 \
      "host:port for HTTP: health, readiness and metrics")                                         \
    X(INT64, ttl_s, "ttl", "0", "default time to live in seconds; 0: values never expire",         \
      .min = 0, .max = INT32_MAX)                                                                  \
    X(ENUM, sync, "sync", "none",                                                                  \
      "when writes are made durable: none (by the kernel, in its own time), interval, or always "  \
      "(before they are acknowledged); a killed process loses nothing in any mode",                \
      .words = "none|interval|always")                                                             \
    X(DURATION, sync_interval_ns, "sync-interval", "1s", "how often -sync interval syncs",         \
      .min = 1000000, .max = 3600000000000)                                                        \
    X(SIZE, max_disk_usage, "max-disk-usage", "0",                                                 \
      "bound on the bytes on disk, garbage included; 0: the volume's free space less a reserve")   \
    X(SIZE, segment_size, "segment-size", "0",                                                     \
      "bytes of a log segment; 0: 64 MiB, or a 64th of -max-disk-usage when that is less")         \
    X(SIZE, buffer_memory, "buffer-memory", "256MiB",                                              \
      "bound on buffers for values on their way in and out")                                       \
    X(UINT64, workers, "workers", "0",                                                             \
      "event loops; 0: as many as CPUs may be used (cgroup quota, affinity)", .max = 64)           \
    X(UINT64, max_connections, "max-connections", "16384",                                         \
      "open connections per port; more are closed at once", .min = 1, .max = 1000000)              \
    X(UINT64, max_streams, "max-streams", "1024", "concurrent calls per connection", .min = 1,     \
      .max = 1000000)                                                                              \
    X(SIZE, receive_memory, "receive-memory", "256MiB",                                            \
      "bound on request bytes that are not processed yet, of all connections", .min = 1048576)     \
    X(SIZE, max_header_bytes, "max-header-bytes", "32KiB", "header fields of one request",         \
      .min = 1024, .max = 1048576)                                                                 \
    X(DURATION, handshake_timeout_ns, "handshake-timeout", "10s",                                  \
      "how long a peer may take over the first bytes, and over the head of any request",           \
      .min = 1000000, .max = 3600000000000)                                                        \
    X(DURATION, stall_timeout_ns, "stall-timeout", "1m",                                           \
      "how long a request, or the reading of a response, may make no progress", .min = 1000000,    \
      .max = 3600000000000)                                                                        \
    X(DURATION, keepalive_interval_ns, "keepalive-interval", "1m",                                 \
      "a peer that has been silent for so long is pinged", .min = 1000000, .max = 3600000000000)   \
    X(DURATION, keepalive_timeout_ns, "keepalive-timeout", "20s",                                  \
      "how long it may take to answer", .min = 1000000, .max = 3600000000000)                      \
    X(DURATION, idle_timeout_ns, "idle-timeout", "0s",                                             \
      "close connections that have had no call for so long; 0: never", .max = 86400000000000)      \
    X(UINT64, reset_burst, "reset-burst", "1000",                                                  \
      "streams that a connection may reset at once before it is closed", .min = 1, .max = 1000000) \
    X(UINT64, reset_rate, "reset-rate", "33", "and streams per second that it may reset for good", \
      .min = 1, .max = 1000000)                                                                    \
    X(DURATION, drain_timeout_ns, "drain-timeout", "10s",                                          \
      "how long calls in progress may take to end at shutdown", .max = 3600000000000)              \
    X(ENUM, log_format, "log-format", "text", "how log lines are written, on stderr",              \
      .words = "text|json")                                                                        \
    X(BOOL, verbose, "v", "false", "log at debug level")                                           \
    X(BOOL, request_logging, "request-logging", "false", "log every call")                         \
    X(STRING, ports_file, "ports-file", "",                                                        \
      "write the ports and the process id to this file once they are bound")                       \
    X(BOOL, version, "version", "false", "print the version and exit")                             \
    OCACHE_IGNORED(X, threshold, "threshold", "65536")                                             \
    OCACHE_IGNORED(X, compact_threshold, "compact-threshold", "67108864")                          \
    OCACHE_IGNORED(X, compaction_threads, "compaction-threads", "1")                               \
    OCACHE_IGNORED(X, compaction_bytes, "compaction-bytes-per-second", "16777216")                 \
    OCACHE_IGNORED(X, fragmentation, "fragmentation-threshold", "0.5")                             \
    OCACHE_IGNORED(X, recompaction_age, "recompaction-min-segment-age", "2h")                      \
    OCACHE_IGNORED(X, recompaction_segments, "recompaction-min-segments", "2")                     \
    X(BOOL, recompaction, "disable-recompaction", "false", "accepted and ignored",                 \
      .ignored = true, .hidden = true)                                                             \
    OCACHE_IGNORED(X, cleanup_interval, "ttl-cleanup-interval", "1m")                              \
    OCACHE_IGNORED(X, fd_cache, "fd-cache-size", "10000")                                          \
    OCACHE_IGNORED(X, recovery_workers, "recovery-workers", "16")                                  \
    OCACHE_IGNORED(X, delete_batch, "delete-batch-size", "1000")                                   \
    OCACHE_IGNORED(X, metadata_cache, "metadata-cache-size", "1073741824")                         \
    OCACHE_IGNORED(X, metadata_jobs, "metadata-background-jobs", "8")

/* Flags that start scripts written for another storage engine may pass. */
#define OCACHE_IGNORED(X, field, name, initial)                                                    \
    X(STRING, field, name, initial, "accepted and ignored", .ignored = true, .hidden = true)

struct ocache_app_options {
    OCACHE_OPTIONS(OC_OPT_FIELD)
};

#endif
