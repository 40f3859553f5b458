/* ocachecli's commands but bench. Texts and exit codes are what scripts rely on: results on
 * standard output,
 * "<What> failed: <status>" on standard error, exit 1. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/ocachecli.h"
#include "base/check.h"
#include "base/span.h"

/* ---- put ---- */

struct input {
    int fd;
    int errnum; /* why reading failed; 0: it did not, or Ctrl-C came */
};

static ptrdiff_t read_input(void *user, void *buf, size_t cap) {
    struct input *in = user;

    for (;;) {
        struct pollfd fds[2] = {{.fd = in->fd, .events = POLLIN},
                                {.fd = cli_interrupt_fd(), .events = POLLIN}};

        if (poll(fds, 2, -1) < 0 && errno != EINTR) {
            in->errnum = errno;
            return -1;
        }
        if (cli_interrupted()) {
            return -1;
        }
        if (fds[0].revents == 0) {
            continue;
        }
        ssize_t n = read(in->fd, buf, cap);
        if (n >= 0) {
            return n;
        }
        if (errno != EINTR && errno != EAGAIN) {
            in->errnum = errno;
            return -1;
        }
    }
}

int cli_put(struct cli *cli) {
    struct ocache_options opt = cli_operation(cli);
    struct input in = {.fd = STDIN_FILENO};
    struct ocache_error err = {0};
    const char *key = cli->args[0];
    int rv;

    if (cli_connect(cli, 0) != 0) {
        return CLI_FAILED;
    }
    opt.ttl_s = cli->opt->ttl_s;
    if (cli->arg_count == 2) {
        rv = ocache_put(cli->client, key, strlen(key), cli->args[1], strlen(cli->args[1]), &opt,
                        &err);
    } else {
        rv = ocache_put_stream(cli->client, key, strlen(key), read_input, &in, &opt, &err);
    }
    cli_disconnect(cli);
    if (rv != 0 && in.errnum != 0) {
        fprintf(stderr, "Put failed: cannot read standard input: %s\n", strerror(in.errnum));
        return CLI_FAILED;
    }
    if (rv != 0) {
        return cli_failed("Put", &err);
    }
    puts("OK");
    return cli_flush();
}

/* ---- get ---- */

/* Where the bytes go: standard output, or a file beside the wanted one that takes its place at the
 * end. */
struct output {
    int fd;
    int errnum;
    const char *path; /* NULL: standard output */
    char *temporary;
};

static int write_output(void *user, const void *data, size_t len) {
    struct output *out = user;
    const char *p = data;

    while (len > 0) {
        ssize_t n = cli_interrupted() ? -1 : write(out->fd, p, len);

        if (n < 0 && cli_interrupted()) {
            return -1;
        }
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            out->errnum = errno;
            return -1;
        }
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

static int output_open(struct output *out, const char *path) {
    struct stat st;

    *out = (struct output){.fd = STDOUT_FILENO};
    if (path[0] == 0) {
        return 0;
    }
    out->path = path;
    if (stat(path, &st) == 0 &&
        !S_ISREG(st.st_mode)) { /* a pipe or device is written to as it is */
        out->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        if (asprintf(&out->temporary, "%s.%ld.part", path, (long)getpid()) < 0) {
            out->temporary = NULL;
            errno = ENOMEM;
            out->fd = -1;
        } else {
            out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        }
    }
    if (out->fd < 0) {
        fprintf(stderr, "Get failed: cannot write to '%s': %s\n", path, strerror(errno));
        free(out->temporary);
        return CLI_FAILED;
    }
    return 0;
}

static int output_close(struct output *out, bool keep) {
    int rv = 0;

    if (out->path == NULL) {
        return 0;
    }
    if (close(out->fd) != 0 && out->errnum == 0) {
        out->errnum = errno;
        keep = false;
    }
    if (out->temporary != NULL && keep && rename(out->temporary, out->path) != 0) {
        out->errnum = errno;
        keep = false;
    }
    if (!keep && out->temporary != NULL) {
        (void)unlink(out->temporary); /* what it held is incomplete; nothing else can be done */
    }
    if (!keep && out->errnum != 0) {
        rv = CLI_FAILED;
    }
    free(out->temporary);
    return rv;
}

int cli_get(struct cli *cli) {
    struct ocache_options opt = cli_operation(cli);
    struct ocache_error err = {0};
    struct output out;
    const char *key = cli->args[0];

    if (output_open(&out, cli->opt->output) != 0) {
        return CLI_FAILED;
    }
    if (cli_connect(cli, 0) != 0) {
        (void)output_close(&out, false);
        return CLI_FAILED;
    }
    opt.start = cli->opt->start;
    opt.end = cli->opt->end;
    int rv = ocache_get_stream(cli->client, key, strlen(key), write_output, &out, &opt, &err);
    cli_disconnect(cli);
    bool lost = output_close(&out, rv == 0) != 0 || out.errnum != 0;
    if (lost && !cli_interrupted()) {
        fprintf(stderr, "Get failed: cannot write to '%s': %s\n",
                out.path == NULL ? "standard output" : out.path, strerror(out.errnum));
        return CLI_FAILED;
    }
    return rv == 0 ? 0 : cli_failed("Get", &err);
}

/* ---- del ---- */

int cli_delete(struct cli *cli) {
    struct ocache_options opt = cli_operation(cli);
    struct ocache_error err = {0};
    const char *key = cli->args[0];

    if (cli_connect(cli, 0) != 0) {
        return CLI_FAILED;
    }
    int rv = ocache_delete(cli->client, key, strlen(key), &opt, &err);
    cli_disconnect(cli);
    if (rv != 0) {
        return cli_failed("Delete", &err);
    }
    puts("OK");
    return cli_flush();
}

/* ---- list ---- */

struct listing {
    uint64_t count;
    uint64_t limit; /* 0: none */
    bool json;
};

static int print_json_key(const struct ocache_entry *entry, bool first) {
    json_t *s = json_stringn(entry->key, entry->key_len);
    char *text = s == NULL ? NULL : json_dumps(s, JSON_ENCODE_ANY);
    int rv = text == NULL || printf("%s%s", first ? "" : ",\n ", text) < 0;

    free(text);
    json_decref(s);
    return rv;
}

static int print_key(void *user, const struct ocache_entry *entry) {
    struct listing *l = user;

    if (l->json) {
        if (print_json_key(entry, l->count == 0) != 0) {
            return -1;
        }
    } else if (fwrite(entry->key, 1, entry->key_len, stdout) != entry->key_len ||
               putchar('\n') == EOF) {
        return -1;
    }
    l->count++;
    return l->limit > 0 && l->count >= l->limit;
}

int cli_list(struct cli *cli) {
    struct ocache_options opt = cli_operation(cli);
    struct listing l = {.limit = cli->opt->limit, .json = cli->opt->json};
    struct ocache_list_query query = {.prefix = cli->opt->prefix,
                                      .prefix_len = strlen(cli->opt->prefix)};
    struct ocache_error err = {0};

    if (l.limit > 0 && l.limit < 1000) {
        query.limit = (int32_t)l.limit;
    }
    if (cli_connect(cli, 0) != 0) {
        return CLI_FAILED;
    }
    if (l.json) {
        putchar('[');
    }
    int rv = ocache_list_all(cli->client, &query, print_key, &l, &opt, &err);
    cli_disconnect(cli);
    bool reached = l.limit > 0 && l.count >= l.limit;
    if (rv != 0 && !reached) {
        (void)fflush(stdout); /* what was found stays useful; the failure below is what counts */
        return cli_failed("List", &err);
    }
    if (l.json) {
        puts("]");
    }
    return cli_flush();
}

/* ---- version ---- */

int cli_version(struct cli *cli) {
    (void)cli;
    printf("ocachecli version %s\n  commit: %s\n  built:  %s\n", OC_VERSION, OC_COMMIT, OC_BUILT);
    return cli_flush();
}

/* ---- cluster ---- */

int cli_cluster(struct cli *cli) {
    const char *what = cli->args[0];
    size_t want = strcmp(what, "node") == 0 ? 2 : 1;

    if (strcmp(what, "topology") != 0 && strcmp(what, "node") != 0 && strcmp(what, "epoch") != 0) {
        fprintf(stderr, "Error: unknown command \"%.100s\" for \"ocachecli cluster\"\n", what);
        return CLI_FAILED;
    }
    if (cli->arg_count != want) {
        fprintf(stderr, "Error: accepts %zu arg(s), received %zu\n", want - 1, cli->arg_count - 1);
        return CLI_FAILED;
    }
    if (cli_connect(cli, 0) != 0) {
        return CLI_FAILED;
    }
    /* Routing by the ring is not built yet, so the client is in simple mode whatever the nodes say.
     */
    fprintf(stderr, "Error: cluster commands require cluster mode. Connected in simple mode.\n");
    cli_disconnect(cli);
    return CLI_FAILED;
}
