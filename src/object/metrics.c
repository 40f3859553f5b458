/* Labels, the table itself, and the collector that asks store, server, movers and process when a
 * page is written. */
#include <pthread.h>
#include <string.h>

#include "object/internal.h"
#include "object/process.h"

#define LABEL(variable, name_, ...)                                                                \
    static const char *const variable##_values[] = {__VA_ARGS__};                                  \
    const struct oc_metric_label oc_svc_##variable = {                                             \
        .name = (name_), .values = variable##_values, .count = OC_ARRAY_LEN(variable##_values)}

/* Order of enum oc_svc_method. */
LABEL(by_method, "method", "Put", "PutObject", "Get", "Delete", "List", "ListLocal",
      "ListWithValues", "ListLocalWithValues", "GetTopology");
enum status { SUCCESS, NOT_FOUND, INVALID, FAILED };
LABEL(by_status, "status", "success", "not_found", "invalid", "error");
LABEL(by_op, "operation", "put", "get", "delete");
LABEL(by_place, "storage_type", "segment", "file");
enum direction { UPLOAD, DOWNLOAD };
LABEL(by_direction, "direction", "upload", "download");
LABEL(by_movers, "movers", "read", "bulk", "commit");
LABEL(by_size, "size", "small", "large", "bulk");
LABEL(by_network, "direction", "in", "out");
LABEL(by_error, "type", "storage");
LABEL(by_client, "type", "client");
LABEL(by_usage, "type", "total");

/* Nanoseconds. From half a millisecond up as dashboards know them; below, what a cache really
 * takes. */
static const uint64_t duration_bounds[] = {
    50000,     100000,     250000,     500000,     1000000,     2500000,
    5000000,   10000000,   25000000,   50000000,   100000000,   250000000,
    500000000, 1000000000, 2500000000, 5000000000, 10000000000,
};
const struct oc_metric_buckets oc_svc_duration_buckets = {duration_bounds,
                                                          OC_ARRAY_LEN(duration_bounds)};
static const uint64_t size_bounds[] = {
    1u << 10, 1u << 12, 1u << 14, 1u << 16, 1u << 18, 1u << 20,
    1u << 22, 1u << 24, 1u << 26, 1u << 28, 1u << 30,
};
const struct oc_metric_buckets oc_svc_size_buckets = {size_bounds, OC_ARRAY_LEN(size_bounds)};

static const struct oc_metric table[] = {OC_SVC_COUNTED(OC_METRIC_ROW) OC_SVC_NODE_METRICS(
    OC_METRIC_ROW) OC_SVC_STORE_METRICS(OC_METRIC_ROW)};

static void set(struct oc_metrics *m, enum oc_svc_metric which, uint64_t value) {
    oc_metrics_set(m, which, 0, (int64_t)value);
}

static void set_at(struct oc_metrics *m, enum oc_svc_metric which, unsigned label, uint64_t value) {
    oc_metrics_set(m, which, oc_metrics_series(m, which, label, 0, 0), (int64_t)value);
}

/* ---- asking ---- */

static void collect_server(struct oc_metrics *m, struct oc_svc *s) {
    struct oc_rpc_stats rpc;
    uint64_t accepted = 0, refused = 0;

    pthread_mutex_lock(&s->attached);
    bool known = s->rpc != NULL;
    if (known) {
        oc_rpc_server_stats(s->rpc, &rpc);
    }
    for (size_t i = 0; i < OC_ARRAY_LEN(s->listeners); i++) {
        struct oc_listener_stats one;

        if (s->listeners[i] != NULL) {
            oc_listener_stats(s->listeners[i], &one);
            accepted += one.accepted;
            refused += one.refused;
        }
    }
    bool listening = s->listeners[0] != NULL;
    pthread_mutex_unlock(&s->attached);
    if (listening) {
        set(m, OC_SVC_X_connections_accepted, accepted);
        set(m, OC_SVC_X_connections_refused, refused);
    }
    if (!known) {
        return;
    }
    set(m, OC_SVC_X_streams_active, rpc.streams);
    set(m, OC_SVC_X_connections_active, rpc.connections);
    set_at(m, OC_SVC_X_network_bytes, 0, rpc.bytes_in);
    set_at(m, OC_SVC_X_network_bytes, 1, rpc.bytes_out);
    set(m, OC_SVC_X_calls_started, rpc.calls_total);
    set(m, OC_SVC_X_streams_refused, rpc.refused_streams);
    set(m, OC_SVC_X_resets, rpc.resets_received);
    set(m, OC_SVC_X_rapid_resets, rpc.rapid_reset_closed);
    set(m, OC_SVC_X_protocol_errors, rpc.protocol_errors);
    set(m, OC_SVC_X_stalled, rpc.stalled_closed);
    set(m, OC_SVC_X_keepalive, rpc.keepalive_closed);
    set(m, OC_SVC_X_receive_used, rpc.receive_used);
    set(m, OC_SVC_X_receive_denied, rpc.receive_denied);
    set(m, OC_SVC_X_send_used, rpc.send_used);
    set(m, OC_SVC_X_http1_requests, rpc.http1_requests);
}

static void collect_bounds(struct oc_metrics *m, struct oc_svc *s) {
    struct oc_movers *movers[] = {s->read_movers, s->bulk_movers, s->commit_movers};

    for (unsigned i = 0; i < OC_ARRAY_LEN(movers); i++) {
        struct oc_movers_stats stats;

        if (movers[i] != NULL) {
            oc_movers_stats(movers[i], &stats);
            set_at(m, OC_SVC_X_mover_queue, i, stats.queued);
            set_at(m, OC_SVC_X_mover_jobs, i, stats.submitted);
            set_at(m, OC_SVC_X_mover_refused, i, stats.refused);
        }
    }
    for (unsigned size = 0; size < OC_SVC_BLOCKS; size++) {
        struct oc_blockpool_stats stats;

        oc_blockpool_stats(s->pools[size], &stats);
        set_at(m, OC_SVC_X_buffer_used, size, stats.in_use_bytes);
        set_at(m, OC_SVC_X_buffer_mapped, size, stats.allocated_bytes);
        set_at(m, OC_SVC_X_buffer_limit, size, stats.limit_bytes);
    }
}

static void collect_store(struct oc_metrics *m, struct oc_svc *s) {
    struct oc_objects_stats st;

    oc_objects_stats(s->cfg.objects, &st);
    set(m, OC_SVC_X_keys, st.keys);
    set(m, OC_SVC_X_bytes, st.value_bytes);
    set(m, OC_SVC_X_key_bytes, st.key_bytes);
    set(m, OC_SVC_X_index_bytes, st.index_bytes);
    set(m, OC_SVC_X_tombstones, st.tombstones);
    set(m, OC_SVC_X_segments, st.segments);
    set(m, OC_SVC_X_value_files, st.value_files);
    set(m, OC_SVC_X_disk_usage, st.physical_bytes);
    set(m, OC_SVC_X_disk_cap, st.cap_bytes);
    if (st.cap_bytes > 0) {
        set(m, OC_SVC_X_disk_ratio,
            (uint64_t)((double)st.physical_bytes * 1e6 / (double)st.cap_bytes));
    }
    set(m, OC_SVC_X_open_files, st.open_files);
    set(m, OC_SVC_X_appended_bytes, st.appended_bytes);
    set(m, OC_SVC_X_appended_records, st.appended_records);
    set(m, OC_SVC_X_synced_bytes, st.synced_bytes);
    set(m, OC_SVC_X_syncs, st.syncs);
    set(m, OC_SVC_X_sync_failures, st.sync_failures);
    set(m, OC_SVC_X_write_failures, st.write_failures);
    set(m, OC_SVC_X_corrupt, st.corrupt_records);
    set(m, OC_SVC_X_lost, st.lost_entries);
    set(m, OC_SVC_X_quarantined, st.quarantined_segments);
    set(m, OC_SVC_X_checkpoints, st.checkpoints);
    set(m, OC_SVC_X_checkpoint_bytes, st.checkpoint_bytes);
    set(m, OC_SVC_X_expired, st.expired);
    set(m, OC_SVC_X_unlink_queue, st.unlink_queue);
    set(m, OC_SVC_X_recovered, st.recovered_records);
    set(m, OC_SVC_X_recovery_bytes, st.recovered_bytes);
    set(m, OC_SVC_X_recovery_cut, st.cut_bytes);
}

static void collect_process(struct oc_metrics *m, const struct oc_svc *s) {
    struct oc_process_stats p;
    struct oc_disk_space space;

    oc_process_stats(&p);
    set(m, OC_SVC_X_cpu, p.cpu_ns);
    set(m, OC_SVC_X_rss, p.resident_bytes);
    set(m, OC_SVC_X_vsz, p.virtual_bytes);
    set(m, OC_SVC_X_fds, p.open_fds);
    set(m, OC_SVC_X_max_fds, p.max_fds);
    set(m, OC_SVC_X_start_time, p.start_time_cs);
    if (s->cfg.disk->space(s->cfg.disk->ctx, &space, NULL) == 0) {
        set(m, OC_SVC_X_fs_free, space.free_bytes);
    }
}

static void collect(struct oc_metrics *m, void *arg) {
    struct oc_svc *s = (struct oc_svc *)arg;
    int load = atomic_load(&s->load);

    set(m, OC_SVC_X_ready, oc_svc_get_phase(s) == OC_SVC_READY);
    set(m, OC_SVC_X_recovery_runs, load != OC_SVC_LOAD_RUNS);
    set(m, OC_SVC_X_recovery_ms, atomic_load(&s->load_ms));
    collect_server(m, s);
    collect_bounds(m, s);
    collect_process(m, s);
    if (load == OC_SVC_LOADED) {
        collect_store(m, s);
    }
}

int oc_svc_metrics_new(struct oc_svc *s) {
    int r = oc_metrics_new(table, OC_ARRAY_LEN(table), &s->metrics);

    if (r == 0) {
        oc_metrics_on_collect(s->metrics, collect, s);
    }
    return r;
}

/* ---- counting ---- */

static unsigned status_of(int code) {
    switch (code) {
    case 0:
        return SUCCESS;
    case OC_E_NOT_FOUND:
        return NOT_FOUND;
    case OC_E_INVALID:
        return INVALID;
    default:
        return FAILED;
    }
}

void oc_svc_count(struct oc_svc *s, enum oc_svc_metric which, int64_t n) {
    oc_metrics_add(s->metrics, which, 0, n);
}

static void count_stream(struct oc_svc *s, enum direction direction, uint64_t bytes) {
    oc_metrics_add(s->metrics, OC_SVC_X_stream_bytes,
                   oc_metrics_series(s->metrics, OC_SVC_X_stream_bytes, direction, 0, 0),
                   (int64_t)bytes);
}

void oc_svc_count_upload(struct oc_svc *s, uint64_t bytes) {
    count_stream(s, UPLOAD, bytes);
}

void oc_svc_count_download(struct oc_svc *s, uint64_t bytes) {
    count_stream(s, DOWNLOAD, bytes);
}

void oc_svc_count_call(struct oc_svc *s, enum oc_svc_method method, int code,
                       uint64_t duration_ns) {
    struct oc_metrics *m = s->metrics;

    oc_metrics_inc(m, OC_SVC_X_rpc_requests,
                   oc_metrics_series(m, OC_SVC_X_rpc_requests, method, status_of(code), 0));
    oc_metrics_observe(m, OC_SVC_X_rpc_duration,
                       oc_metrics_series(m, OC_SVC_X_rpc_duration, method, 0, 0), duration_ns);
}

static void count_storage(struct oc_svc *s, enum oc_svc_storage_op op, bool file, int code,
                          uint64_t bytes) {
    struct oc_metrics *m = s->metrics;

    oc_metrics_inc(m, OC_SVC_X_storage_operations,
                   oc_metrics_series(m, OC_SVC_X_storage_operations, op, file, status_of(code)));
    if (code == 0 && op != OC_SVC_O_DELETE) {
        oc_metrics_add(m, OC_SVC_X_storage_bytes,
                       oc_metrics_series(m, OC_SVC_X_storage_bytes, op, file, 0), (int64_t)bytes);
        oc_metrics_observe(m, OC_SVC_X_object_size,
                           oc_metrics_series(m, OC_SVC_X_object_size, op, 0, 0), bytes);
    }
}

void oc_svc_count_write(struct oc_svc *s, bool is_delete, bool file, int code, uint64_t bytes) {
    count_storage(s, is_delete ? OC_SVC_O_DELETE : OC_SVC_O_PUT, file, code, bytes);
}

void oc_svc_count_read(struct oc_svc *s, bool file, int code, uint64_t bytes) {
    count_storage(s, OC_SVC_O_GET, file, code, bytes);
    if (code == 0) {
        oc_svc_count(s, OC_SVC_X_hits, 1);
    } else if (code == OC_E_NOT_FOUND) {
        oc_svc_count(s, OC_SVC_X_misses, 1);
    }
}

void oc_svc_count_error(struct oc_svc *s, int method) {
    if (method >= 0) {
        oc_metrics_inc(s->metrics, OC_SVC_X_errors,
                       oc_metrics_series(s->metrics, OC_SVC_X_errors, 0, (unsigned)method, 0));
    }
}
