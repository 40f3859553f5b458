/* ocachecli: the command line of the object cache. This file parses, dispatches and catches Ctrl-C;
 * the commands are in ocachecli_commands.c and ocachecli_bench*.c.
 *
 * Ctrl-C is taken by a thread that waits for the signal and cancels what the client has in flight,
 * again and again until the program ends, because an operation may begin just after the first time.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "apps/ocachecli.h"
#include "base/check.h"
#include "io/loop.h"

#define CANCEL_AGAIN_NS 50000000
#define HELP_BYTES      65536u

extern char **environ;

static const struct oc_opt options[] = {
#define ROW(...) OC_OPT_ROW(struct cli_options, __VA_ARGS__)
    CLI_OPTIONS(ROW)
#undef ROW
};

struct command {
    const char *name;
    const char *alias;
    const char *usage; /* behind "ocachecli " */
    const char *about;
    size_t min_args, max_args;
    int (*run)(struct cli *cli);
};

static const struct command commands[] = {
    {"put", NULL, "put <key> [value] [flags]",
     "Store a value. Without one it is read from standard input and streamed; nothing there means "
     "an empty value. Prints OK.",
     1, 2, cli_put},
    {"get", NULL, "get <key> [flags]",
     "Write the value's bytes to standard output, no newline added.", 1, 1, cli_get},
    {"del", "delete", "del <key> [flags]", "Delete a key. Prints OK, also when there was none.", 1,
     1, cli_delete},
    {"list", NULL, "list [flags]", "Print every key, one per line, in bytewise order.", 0, 0,
     cli_list},
    {"cluster", NULL, "cluster topology|node <key>|epoch [flags]", "Inspect the cluster.", 1, 2,
     cli_cluster},
    {"bench", NULL, "bench [flags]",
     "Preload keys, run a mix of reads and updates, verify every value read, and report throughput "
     "and "
     "latencies.",
     0, 0, cli_bench},
    {"version", NULL, "version", "Print version, commit and build date.", 0, 0, cli_version},
};

static const char about[] = "Commands: put, get, del (delete), list, cluster, bench, version. "
                            "'ocachecli <command> --help' tells more "
                            "about one.";

static const struct oc_opt_table table = {
    .program = "ocachecli",
    .usage = "<command> [flags]",
    .about = about,
    .env_prefix = "OCACHECLI_",
    .opts = options,
    .count = OC_ARRAY_LEN(options),
    .interspersed = true,
};

/* ---- Ctrl-C ---- */

static struct {
    atomic_bool interrupted;
    int event_fd;
    pthread_t main_thread;
    pthread_mutex_t lock;
    struct ocache_client *client; /* under the lock */
} interrupt = {.event_fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

static void cancel_in_flight(void) {
    pthread_mutex_lock(&interrupt.lock);
    if (interrupt.client != NULL) {
        (void)ocache_cancel_all(interrupt.client); /* without memory: tried again soon */
    }
    pthread_mutex_unlock(&interrupt.lock);
}

static void *signal_thread(void *arg) {
    sigset_t *set = arg;
    struct timespec again = {.tv_nsec = CANCEL_AGAIN_NS};
    uint64_t one = 1;
    int sig = sigwaitinfo(set, NULL);

    while (sig <= 0 && errno == EINTR) {
        sig = sigwaitinfo(set, NULL);
    }
    atomic_store(&interrupt.interrupted, true);
    (void)!write(interrupt.event_fd, &one, sizeof one); /* cannot fail for 1 */
    do {
        cancel_in_flight();
        (void)pthread_kill(interrupt.main_thread, SIGUSR1); /* a write to a full pipe ends */
        sig = sigtimedwait(set, NULL, &again);
    } while (sig <= 0);
    _exit(CLI_FAILED); /* asked a second time */
}

static void on_wake(int sig) {
    (void)sig; /* that a system call ended with EINTR is all */
}

static int catch_signals(void) {
    static sigset_t set;
    struct sigaction wake = {.sa_handler = on_wake}; /* without SA_RESTART */
    pthread_t thread;

    interrupt.main_thread = pthread_self();
    interrupt.event_fd = eventfd(0, EFD_CLOEXEC);
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (interrupt.event_fd < 0 || sigaction(SIGUSR1, &wake, NULL) != 0 ||
        pthread_sigmask(SIG_BLOCK, &set, NULL) != 0 ||
        pthread_create(&thread, NULL, signal_thread, &set) != 0) {
        fprintf(stderr, "Error: cannot watch for signals\n");
        return CLI_FAILED;
    }
    (void)pthread_detach(thread); /* lives until the program ends */
    return 0;
}

bool cli_interrupted(void) {
    return atomic_load(&interrupt.interrupted);
}

int cli_interrupt_fd(void) {
    return interrupt.event_fd;
}

/* ---- for the commands ---- */

int cli_connect(struct cli *cli, unsigned connections) {
    struct ocache_config cfg;
    struct ocache_error err;

    ocache_config_init(&cfg);
    cfg.addrs = cli->opt->addr.items;
    cfg.addr_count = cli->opt->addr.count;
    cfg.mode = (enum ocache_mode)cli->opt->mode;
    cfg.connections = connections;
    if (ocache_client_new(&cfg, &cli->client, &err) != 0) {
        fprintf(stderr, "Failed to create client: %s\n", err.message);
        return CLI_FAILED;
    }
    pthread_mutex_lock(&interrupt.lock);
    interrupt.client = cli->client;
    pthread_mutex_unlock(&interrupt.lock);
    return 0;
}

void cli_disconnect(struct cli *cli) {
    pthread_mutex_lock(&interrupt.lock);
    interrupt.client = NULL;
    pthread_mutex_unlock(&interrupt.lock);
    ocache_client_free(OC_TAKE(cli->client));
}

struct ocache_options cli_operation(const struct cli *cli) {
    int64_t ns = cli->opt->timeout_ns;
    struct ocache_options opt = {0};

    if (ns > 0) {
        opt.deadline_ms = ((uint64_t)ns + OC_NS_PER_MS - 1) / OC_NS_PER_MS;
    }
    return opt;
}

void cli_print_error(FILE *to, const struct ocache_error *err) {
    fprintf(to, "rpc error: code = %s desc = %s", ocache_code_name(err->code), err->message);
}

int cli_failed(const char *what, const struct ocache_error *err) {
    if (cli_interrupted()) {
        fprintf(stderr, "%s cancelled\n", what);
    } else {
        fprintf(stderr, "%s failed: ", what);
        cli_print_error(stderr, err);
        fputc('\n', stderr);
    }
    return CLI_FAILED;
}

int cli_flush(void) {
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "Error: cannot write to standard output: %s\n", strerror(errno));
        return CLI_FAILED;
    }
    return 0;
}

/* ---- parsing ---- */

static void print_help(struct oc_opts *opts, const struct command *command, FILE *to) {
    struct oc_opt_table mine = table;
    struct oc_buf buf;

    if (command != NULL) {
        mine.usage = command->usage;
        mine.about = command->about;
    }
    opts->table = &mine;
    oc_buf_init(&buf, HELP_BYTES);
    if (oc_opts_help(opts, command == NULL ? "" : command->name, &buf) == 0) {
        (void)fwrite(buf.data, 1, buf.len, to); /* a lost help text is seen by whoever asked */
    }
    oc_buf_done(&buf);
    opts->table = &table;
}

/* As scripts know it: the error, the usage, the error once more. */
static int usage_error(struct oc_opts *opts, const struct command *command, const char *text) {
    fprintf(stderr, "Error: %s\n", text);
    print_help(opts, command, stderr);
    fprintf(stderr, "\n%s\n", text);
    return CLI_FAILED;
}

static const struct command *find_command(const char *name) {
    for (size_t i = 0; i < OC_ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i].name, name) == 0 ||
            (commands[i].alias != NULL && strcmp(commands[i].alias, name) == 0)) {
            return &commands[i];
        }
    }
    return NULL;
}

static const char *command_name_at(void *arg, size_t i) {
    (void)arg;
    return commands[i].name;
}

static int unknown_command(struct oc_opts *opts, const char *name) {
    const char *near = oc_opts_nearest(name, command_name_at, NULL, OC_ARRAY_LEN(commands));
    char text[256];

    (void)snprintf(text, sizeof text, "unknown command \"%.100s\" for \"ocachecli\"%s%s%s", name,
                   near == NULL ? "" : " (did you mean \"", near == NULL ? "" : near,
                   near == NULL ? "" : "\"?)");
    return usage_error(opts, NULL, text);
}

static int check_args(struct oc_opts *opts, const struct command *command, size_t count) {
    char text[128];

    if (count >= command->min_args && count <= command->max_args) {
        return 0;
    }
    if (command->min_args == command->max_args) {
        (void)snprintf(text, sizeof text, "accepts %zu arg(s), received %zu", command->min_args,
                       count);
    } else {
        (void)snprintf(text, sizeof text, "accepts between %zu and %zu arg(s), received %zu",
                       command->min_args, command->max_args, count);
    }
    return usage_error(opts, command, text);
}

static int run(struct oc_opts *opts, struct cli_options *values) {
    const struct command *command = find_command(opts->args[0]);
    struct oc_error err = {0};

    if (command == NULL) {
        return unknown_command(opts, opts->args[0]);
    }
    if (oc_opts_check_command(opts, command->name, &err) != 0) {
        return usage_error(opts, command, err.msg);
    }
    int rv = check_args(opts, command, opts->arg_count - 1);
    if (rv != 0) {
        return rv;
    }
    if (values->addr.count == 0) {
        return usage_error(opts, command, "--addr names no address");
    }
    struct cli cli = {.opt = values, .args = opts->args + 1, .arg_count = opts->arg_count - 1};
    rv = catch_signals();
    return rv == 0 ? command->run(&cli) : rv;
}

int main(int argc, char **argv) {
    struct cli_options values;
    struct oc_opts opts;
    struct oc_error err = {0};
    int rv;

    oc_mem_init();
    rv = oc_opts_load(&opts, &table, &values, argc, argv, environ, &err);
    if (rv == OC_OPT_HELP || (rv == 0 && opts.arg_count == 0)) {
        print_help(&opts, opts.arg_count > 0 ? find_command(opts.args[0]) : NULL, stdout);
        rv = cli_flush();
    } else if (rv == 0 && strcmp(opts.args[0], "help") == 0) {
        print_help(&opts, opts.arg_count > 1 ? find_command(opts.args[1]) : NULL, stdout);
        rv = cli_flush();
    } else if (rv != 0) {
        rv = usage_error(&opts, opts.arg_count > 0 ? find_command(opts.args[0]) : NULL, err.msg);
    } else {
        rv = run(&opts, &values);
    }
    oc_opts_done(&opts);
    return rv;
}
