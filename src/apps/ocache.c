/* ocache: options, signals and the log around one node (include/ocache_node.h). The main thread
 * only waits: for the load to end and for signals. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "apps/ocache_options.h"
#include "base/log.h"
#include "io/loop.h"
#include "ocache_node.h"

extern char **environ;

#define ROW(...) OC_OPT_ROW(struct ocache_app_options, __VA_ARGS__)
static const struct oc_opt opts[] = {OCACHE_OPTIONS(ROW)};
#undef ROW

static const struct oc_opt_table table = {
    .program = "ocache",
    .usage = "[flags]",
    .about =
        "A node of an object cache: values of any size under string keys, kept on disk, served "
        "over gRPC and HTTP.",
    .env_prefix = "OCACHE_",
    .opts = opts,
    .count = OC_ARRAY_LEN(opts),
};

static void print_version(void) {
    printf("ocache version %s\n  commit: %s\n  built:  %s\n", OC_VERSION, OC_COMMIT, OC_BUILT);
}

static int print_help(const struct oc_opts *o) {
    struct oc_buf text;

    oc_buf_init(&text, 1 << 20);
    int r = oc_opts_help(o, NULL, &text);
    if (r == 0) {
        (void)fwrite(text.data, 1, text.len, stdout); /* nobody to tell */
    }
    oc_buf_done(&text);
    return r == 0 ? 0 : 1;
}

/* Returns the exit code, or -1 to go on. */
static int load_options(struct oc_opts *o, struct ocache_app_options *app, int argc, char **argv) {
    struct oc_error err;
    int r = oc_opts_load(o, &table, app, argc, argv, environ, &err);

    if (r == OC_OPT_HELP) {
        return print_help(o);
    }
    if (r != 0) {
        fprintf(stderr, "ocache: %s\nRun 'ocache -h' for the flags.\n", err.msg);
        return 2;
    }
    if (app->version) {
        print_version();
        return 0;
    }
    if (o->arg_count > 0) {
        fprintf(stderr, "ocache: unexpected argument '%s'\nRun 'ocache -h' for the flags.\n",
                o->args[0]);
        return 2;
    }
    return -1;
}

static void log_call(void *user, const struct ocache_call_record *r) {
    const char *name = strrchr(r->method, '/');

    (void)user;
    oc_log(OC_LOG_INFO, "call", OC_F_STR("method", name == NULL ? r->method : name + 1),
           OC_F_STR("remote", r->peer), OC_F_DURATION("duration", r->duration_ns),
           OC_F_STR("code", oc_err_name(-r->code)), OC_F_BOOL("error", r->code != 0));
}

/* Whole or not at all: a reader that finds the file finds everything in it. */
static int write_ports(const char *path, const struct ocache_local_node *node) {
    char tmp[4096];
    int n = snprintf(tmp, sizeof tmp, "%s.new", path);

    if (n < 0 || (size_t)n >= sizeof tmp) {
        errno = ENAMETOOLONG;
        return -1;
    }
    FILE *f = fopen(tmp, "we");
    if (f == NULL) {
        return -1;
    }
    fprintf(f, "grpc=%u\nhttp=%u\npid=%ld\n", ocache_node_grpc_port(node),
            ocache_node_http_port(node), (long)getpid());
    if (fclose(f) != 0 || rename(tmp, path) != 0) {
        int e = errno;

        (void)unlink(tmp); /* the first error is what counts */
        errno = e;
        return -1;
    }
    return 0;
}

static void warn_ignored(const struct oc_opts *o) {
    const struct oc_opt *opt;
    size_t at = 0;

    while ((opt = oc_opts_next_ignored(o, &at)) != NULL) {
        oc_log(OC_LOG_WARN, "flag has no effect here", OC_F_STR("flag", opt->name));
    }
}

static struct ocache_node_config node_config(const struct ocache_app_options *app) {
    struct ocache_node_config cfg;

    ocache_node_config_init(&cfg);
    cfg.disk = app->disk;
    cfg.listen_addr = app->listen_addr;
    cfg.listen_http = app->listen_http;
    cfg.ttl_s = (uint64_t)app->ttl_s;
    cfg.sync = (enum ocache_sync)app->sync;
    cfg.sync_interval_ms = (uint64_t)app->sync_interval_ns / OC_NS_PER_MS;
    cfg.max_disk_bytes = app->max_disk_usage;
    cfg.segment_bytes = app->segment_size;
    cfg.buffer_bytes = app->buffer_memory;
    cfg.workers = (unsigned)app->workers;
    cfg.max_connections = (unsigned)app->max_connections;
    cfg.max_streams = (unsigned)app->max_streams;
    cfg.receive_bytes = app->receive_memory;
    cfg.max_header_bytes = app->max_header_bytes;
    cfg.handshake_timeout_ms = (uint64_t)app->handshake_timeout_ns / OC_NS_PER_MS;
    cfg.stall_timeout_ms = (uint64_t)app->stall_timeout_ns / OC_NS_PER_MS;
    cfg.keepalive_interval_ms = (uint64_t)app->keepalive_interval_ns / OC_NS_PER_MS;
    cfg.keepalive_timeout_ms = (uint64_t)app->keepalive_timeout_ns / OC_NS_PER_MS;
    cfg.idle_timeout_ms = (uint64_t)app->idle_timeout_ns / OC_NS_PER_MS;
    cfg.reset_burst = (unsigned)app->reset_burst;
    cfg.reset_rate = (unsigned)app->reset_rate;
    cfg.on_call = app->request_logging ? log_call : NULL;
    return cfg;
}

static void log_started(const struct ocache_local_node *node,
                        const struct ocache_app_options *app) {
    static const char *const sync_names[] = {"none", "interval", "always"};

    oc_log(OC_LOG_INFO, "listening", OC_F_STR("version", OC_VERSION),
           OC_F_U64("grpc_port", ocache_node_grpc_port(node)),
           OC_F_U64("http_port", ocache_node_http_port(node)),
           OC_F_STR("listen_addr", app->listen_addr), OC_F_STR("listen_http", app->listen_http),
           OC_F_STR("disk", app->disk), OC_F_STR("sync", sync_names[app->sync]),
           OC_F_U64("workers", ocache_node_workers(node)));
}

static void log_loaded(struct ocache_local_node *node) {
    struct ocache_load load;

    ocache_node_load(node, &load);
    oc_log(OC_LOG_INFO, "ready", OC_F_U64("keys", load.keys), OC_F_U64("records", load.records),
           OC_F_DURATION("load_time", load.duration_ms * OC_NS_PER_MS));
}

/* Connections and open segments need more descriptors than the soft limit usually allows. */
static void raise_file_limit(void) {
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
            oc_log(OC_LOG_WARN, "cannot raise the limit on open files");
        }
    }
}

/* ---- signals ---- */

/* Taken by waiting for them, so no handler interrupts anything. Blocked before any thread starts.
 */
static void block_signals(sigset_t *set) {
    (void)sigemptyset(set); /* these cannot fail with valid arguments */
    (void)sigaddset(set, SIGTERM);
    (void)sigaddset(set, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

/* The signal, or 0 when none came within the time. */
static int wait_signal(const sigset_t *set, long timeout_ms) {
    const struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000};
    int s = sigtimedwait(set, NULL, &timeout);

    return s > 0 ? s : 0;
}

/* The second signal: no more waiting. What was acknowledged is with the operating system. */
static void leave_at_once(int signum) {
    (void)signum;
    _exit(1);
}

static void accept_second_signal(const sigset_t *set) {
    struct sigaction act = {.sa_handler = leave_at_once};

    (void)sigaction(SIGTERM, &act, NULL); /* valid arguments */
    (void)sigaction(SIGINT, &act, NULL);
    (void)pthread_sigmask(SIG_UNBLOCK, set, NULL);
}

/* Until a signal asks to stop: 0, or the exit code when the store could not be loaded. */
static int serve(struct ocache_local_node *node, const sigset_t *set) {
    struct ocache_error err;
    bool loaded = false;
    int signum = 0;

    while (signum == 0) {
        if (!loaded) {
            int r = ocache_node_wait_loaded(node, 50, &err);

            loaded = r == 0;
            if (loaded) {
                log_loaded(node);
            } else if (r != OCACHE_DEADLINE_EXCEEDED) {
                oc_log(OC_LOG_ERROR, "cannot load the data", OC_F_STR("reason", err.message));
                return 1;
            }
            signum = wait_signal(set, 0);
        } else {
            signum = wait_signal(set, 60000);
            oc_log_flush_suppressed();
        }
    }
    oc_log(OC_LOG_INFO, "stopping", OC_F_STR("signal", strsignal(signum)));
    return 0;
}

int main(int argc, char **argv) {
    struct ocache_app_options app;
    struct oc_opts o;
    struct ocache_local_node *node = NULL;
    struct ocache_error err;
    sigset_t set;
    int code = load_options(&o, &app, argc, argv);

    if (code >= 0) {
        oc_opts_done(&o);
        return code;
    }
    oc_mem_init();
    oc_log_set_clock(oc_clock_real());
    oc_log_set_level(app.verbose ? OC_LOG_DEBUG : OC_LOG_INFO);
    oc_log_set_format(app.log_format == 1 ? OC_LOG_JSON : OC_LOG_TEXT);
    block_signals(&set);
    raise_file_limit();
    warn_ignored(&o);
    struct ocache_node_config cfg = node_config(&app);
    if (ocache_node_start(&cfg, &node, &err) != 0) {
        oc_log(OC_LOG_ERROR, "cannot start", OC_F_STR("reason", err.message));
        oc_opts_done(&o);
        return 1;
    }
    log_started(node, &app);
    if (app.ports_file[0] != 0 && write_ports(app.ports_file, node) != 0) {
        oc_log(OC_LOG_ERROR, "cannot write the ports file", OC_F_STR("path", app.ports_file),
               OC_F_STR("reason", strerror(errno)));
        code = 1;
    } else {
        code = serve(node, &set);
    }
    accept_second_signal(&set);
    if (ocache_node_stop(node, (uint64_t)app.drain_timeout_ns / OC_NS_PER_MS) != 0) {
        oc_log(OC_LOG_WARN, "something would not end in time; leaving without it");
        _exit(code);
    }
    oc_log(OC_LOG_INFO, "stopped");
    oc_opts_done(&o);
    return code;
}
