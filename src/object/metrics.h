/* What the service shows on its metrics page: one table (base/metrics.h). Names and labels that
 * existing dashboards use keep their meaning; there is none that never moves. */
#ifndef OC_OBJECT_METRICS_H
#define OC_OBJECT_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/metrics.h"

/* Order of the method table. */
enum oc_svc_method {
    OC_SVC_M_PUT,
    OC_SVC_M_PUT_OBJECT,
    OC_SVC_M_GET,
    OC_SVC_M_DELETE,
    OC_SVC_M_LIST,
    OC_SVC_M_LIST_LOCAL,
    OC_SVC_M_LIST_VALUES,
    OC_SVC_M_LIST_LOCAL_VALUES,
    OC_SVC_M_TOPOLOGY,
    OC_SVC_METHODS,
};

/* Operations on the storage, and where the value lies: one record of the log, or a file of its own.
 */
enum oc_svc_storage_op { OC_SVC_O_PUT, OC_SVC_O_GET, OC_SVC_O_DELETE, OC_SVC_STORAGE_OPS };

extern const struct oc_metric_label oc_svc_by_method, oc_svc_by_status, oc_svc_by_op,
    oc_svc_by_place, oc_svc_by_direction, oc_svc_by_movers, oc_svc_by_size, oc_svc_by_network,
    oc_svc_by_error, oc_svc_by_client, oc_svc_by_usage;
extern const struct oc_metric_buckets oc_svc_duration_buckets, oc_svc_size_buckets;

/* Counted as it happens. */
#define OC_SVC_COUNTED(X)                                                                          \
    X(COUNTER, rpc_requests, "ocache_rpc_requests_total", "Finished calls.",                       \
      .labels = {&oc_svc_by_method, &oc_svc_by_status})                                            \
    X(HISTOGRAM, rpc_duration, "ocache_rpc_duration_ms",                                           \
      "Milliseconds from a call's start to its end.", .labels = {&oc_svc_by_method},               \
      .buckets = &oc_svc_duration_buckets, .decimals = 6)                                          \
    X(COUNTER, errors, "ocache_errors_total", "Calls that failed in the storage.",                 \
      .labels = {&oc_svc_by_error, &oc_svc_by_method})                                             \
    X(COUNTER, storage_operations, "ocache_storage_operations_total",                              \
      "Operations on the storage.",                                                                \
      .labels = {&oc_svc_by_op, &oc_svc_by_place, &oc_svc_by_status})                              \
    X(COUNTER, storage_bytes, "ocache_storage_bytes_total", "Bytes of the values put and read.",   \
      .labels = {&oc_svc_by_op, &oc_svc_by_place})                                                 \
    X(HISTOGRAM, object_size, "ocache_object_size_bytes", "Sizes of the objects put and read.",    \
      .labels = {&oc_svc_by_op}, .buckets = &oc_svc_size_buckets)                                  \
    X(COUNTER, stream_bytes, "ocache_stream_bytes_transferred_total", "Value bytes moved.",        \
      .labels = {&oc_svc_by_direction})                                                            \
    X(COUNTER, hits, "ocache_cache_hits_total", "Gets that found their key.")                      \
    X(COUNTER, misses, "ocache_cache_misses_total", "Gets that did not.")                          \
    X(COUNTER, values_omitted, "ocache_list_values_omitted_total",                                 \
      "Values left out of list pages for their size.")                                             \
    X(GAUGE, buffer_waiting, "ocache_buffer_waiting", "Operations waiting for a buffer.")          \
    X(COUNTER, buffer_waits, "ocache_buffer_waits_total",                                          \
      "Operations that had to wait for a buffer.")                                                 \
    X(COUNTER, buffer_refused, "ocache_buffer_waits_refused_total",                                \
      "Operations refused for want of a buffer.")

/* Asked for when the page is written. */
#define OC_SVC_NODE_METRICS(X)                                                                     \
    X(GAUGE, ready, "ocache_ready", "1 while this node serves.")                                   \
    X(GAUGE, streams_active, "ocache_streams_active", "Calls in progress.")                        \
    X(GAUGE, connections_active, "ocache_connections_active", "Open connections.",                 \
      .labels = {&oc_svc_by_client})                                                               \
    X(COUNTER, connections_accepted, "ocache_connections_accepted_total", "Connections taken.")    \
    X(COUNTER, connections_refused, "ocache_connections_refused_total",                            \
      "Connections closed at once: too many are open.")                                            \
    X(COUNTER, network_bytes, "ocache_network_bytes_total", "Bytes on the sockets.",               \
      .labels = {&oc_svc_by_network})                                                              \
    X(COUNTER, calls_started, "ocache_rpc_calls_started_total", "Calls begun, of every service.")  \
    X(COUNTER, streams_refused, "ocache_rpc_streams_refused_total", "Streams refused by a limit.") \
    X(COUNTER, resets, "ocache_rpc_resets_received_total", "Streams that peers reset.")            \
    X(COUNTER, rapid_resets, "ocache_rpc_rapid_reset_closed_total",                                \
      "Connections closed for resetting too fast.")                                                \
    X(COUNTER, protocol_errors, "ocache_rpc_protocol_errors_total",                                \
      "Connections closed for breaking the protocol.")                                             \
    X(COUNTER, stalled, "ocache_rpc_stalled_closed_total",                                         \
      "Calls and connections ended for making no progress.")                                       \
    X(COUNTER, keepalive, "ocache_rpc_keepalive_closed_total",                                     \
      "Connections closed for not answering pings.")                                               \
    X(GAUGE, receive_used, "ocache_rpc_receive_used_bytes", "Request bytes not consumed yet.")     \
    X(COUNTER, receive_denied, "ocache_rpc_receive_denied_total",                                  \
      "Times that the receive budget held bytes back.")                                            \
    X(GAUGE, send_used, "ocache_rpc_send_used_bytes", "Response bytes queued.")                    \
    X(COUNTER, http1_requests, "ocache_http1_requests_total", "Requests over HTTP/1.1.")           \
    X(GAUGE, mover_queue, "ocache_mover_queue", "Jobs waiting for a thread.",                      \
      .labels = {&oc_svc_by_movers})                                                               \
    X(COUNTER, mover_jobs, "ocache_mover_jobs_total", "Jobs given to threads.",                    \
      .labels = {&oc_svc_by_movers})                                                               \
    X(COUNTER, mover_refused, "ocache_mover_refused_total", "Jobs that found the queue full.",     \
      .labels = {&oc_svc_by_movers})                                                               \
    X(GAUGE, buffer_used, "ocache_buffer_used_bytes", "Value buffers in use.",                     \
      .labels = {&oc_svc_by_size})                                                                 \
    X(GAUGE, buffer_mapped, "ocache_buffer_mapped_bytes", "Value buffers made.",                   \
      .labels = {&oc_svc_by_size})                                                                 \
    X(GAUGE, buffer_limit, "ocache_buffer_limit_bytes", "Bound on value buffers.",                 \
      .labels = {&oc_svc_by_size})                                                                 \
    X(GAUGE, fs_free, "ocache_filesystem_free_bytes",                                              \
      "Free bytes of the data directory's volume.")                                                \
    X(COUNTER, cpu, "process_cpu_seconds_total", "User and system CPU time of the process.",       \
      .decimals = 9)                                                                               \
    X(GAUGE, rss, "process_resident_memory_bytes", "Resident memory of the process.")              \
    X(GAUGE, vsz, "process_virtual_memory_bytes", "Virtual memory of the process.")                \
    X(GAUGE, fds, "process_open_fds", "Open file descriptors.")                                    \
    X(GAUGE, max_fds, "process_max_fds", "Limit on open file descriptors.")                        \
    X(GAUGE, start_time, "process_start_time_seconds", "Start of the process, unix time.",         \
      .decimals = 2)

/* What the store knows; 0 until it has loaded. */
#define OC_SVC_STORE_METRICS(X)                                                                    \
    X(GAUGE, keys, "ocache_keys_total", "Keys; expired ones count until they are swept.")          \
    X(GAUGE, bytes, "ocache_bytes_total", "Bytes of their values.")                                \
    X(GAUGE, key_bytes, "ocache_key_bytes", "Bytes of the keys.")                                  \
    X(GAUGE, index_bytes, "ocache_index_bytes", "Memory of the index.")                            \
    X(GAUGE, tombstones, "ocache_tombstones", "Deletions that are still remembered.")              \
    X(GAUGE, segments, "ocache_segments_total", "Segments of the log.")                            \
    X(GAUGE, value_files, "ocache_value_files", "Values in files of their own.")                   \
    X(GAUGE, disk_usage, "ocache_disk_usage_bytes", "Bytes on disk, garbage included.",            \
      .labels = {&oc_svc_by_usage})                                                                \
    X(GAUGE, disk_cap, "ocache_disk_cap_bytes", "Bytes on disk that are allowed.")                 \
    X(GAUGE, disk_ratio, "ocache_disk_usage_ratio", "Bytes on disk as a part of those allowed.",   \
      .decimals = 6)                                                                               \
    X(GAUGE, open_files, "ocache_open_files", "Segments and value files held open.")               \
    X(COUNTER, appended_bytes, "ocache_log_appended_bytes_total", "Bytes appended to the log.")    \
    X(COUNTER, appended_records, "ocache_log_appended_records_total",                              \
      "Records appended to the log.")                                                              \
    X(COUNTER, synced_bytes, "ocache_log_synced_bytes_total", "Bytes made durable.")               \
    X(COUNTER, syncs, "ocache_log_syncs_total", "Syncs of the log.")                               \
    X(COUNTER, sync_failures, "ocache_log_sync_failures_total", "Syncs that failed.")              \
    X(COUNTER, write_failures, "ocache_log_write_failures_total", "Appends that failed.")          \
    X(COUNTER, corrupt, "ocache_corrupt_records_total", "Records that failed their checksum.")     \
    X(GAUGE, lost, "ocache_lost_entries", "Keys whose record proved unreadable.")                  \
    X(GAUGE, quarantined, "ocache_quarantined_segments", "Segments with unreadable parts.")        \
    X(COUNTER, checkpoints, "ocache_checkpoints_total", "Checkpoints written.")                    \
    X(GAUGE, checkpoint_bytes, "ocache_checkpoint_bytes", "Size of the last checkpoint.")          \
    X(COUNTER, expired, "ocache_expired_keys_total", "Keys removed because their time was over.")  \
    X(GAUGE, unlink_queue, "ocache_unlink_queue", "Value files that wait to be removed.")          \
    X(COUNTER, recovery_runs, "ocache_recovery_runs_total", "Loads of the store that ended.")      \
    X(COUNTER, recovered, "ocache_recovery_keys_recovered_total", "Records read at start.")        \
    X(GAUGE, recovery_bytes, "ocache_recovery_bytes", "Bytes read at start.")                      \
    X(GAUGE, recovery_cut, "ocache_recovery_cut_bytes",                                            \
      "Bytes dropped at start after a power loss.")                                                \
    X(GAUGE, recovery_ms, "ocache_recovery_duration_ms", "Milliseconds that the load took.")

#define OC_SVC_METRIC_ID(kind, id, ...) OC_SVC_X_##id,
enum oc_svc_metric {
    OC_SVC_COUNTED(OC_SVC_METRIC_ID) OC_SVC_NODE_METRICS(OC_SVC_METRIC_ID)
        OC_SVC_STORE_METRICS(OC_SVC_METRIC_ID) OC_SVC_METRIC_COUNT
};
#undef OC_SVC_METRIC_ID

struct oc_svc;

int oc_svc_metrics_new(struct oc_svc *s);

/* One without labels. */
void oc_svc_count(struct oc_svc *s, enum oc_svc_metric which, int64_t n);
void oc_svc_count_upload(struct oc_svc *s, uint64_t bytes);
void oc_svc_count_download(struct oc_svc *s, uint64_t bytes);
void oc_svc_count_call(struct oc_svc *s, enum oc_svc_method method, int code, uint64_t duration_ns);
/* A write that was committed, or not: code is its result. */
void oc_svc_count_write(struct oc_svc *s, bool is_delete, bool file, int code, uint64_t bytes);
/* A read that ended: 0 with the object's size, OC_E_NOT_FOUND (a miss) or a failure. */
void oc_svc_count_read(struct oc_svc *s, bool file, int code, uint64_t bytes);
/* A failure of the storage; method is enum oc_svc_method or -1. */
void oc_svc_count_error(struct oc_svc *s, int method);

#endif
