/* What the files of ocachecli share. */
#ifndef OC_APPS_OCACHECLI_H
#define OC_APPS_OCACHECLI_H

#include <stdatomic.h>
#include <stdio.h>

#include "apps/ocachecli_options.h"
#include "ocache.h"

/* The exit code of every failure; 0 is success. */
#define CLI_FAILED 1

struct cli {
    const struct cli_options *opt;
    const char *const *args; /* behind the command */
    size_t arg_count;
    struct ocache_client *client; /* while a command runs */
};

/* ---- ocachecli.c ---- */
/* Prints "Failed to create client: …" on failure. `connections` 0: the default. */
int cli_connect(struct cli *cli, unsigned connections);
void cli_disconnect(struct cli *cli);
/* The options of one operation, from --timeout. */
struct ocache_options cli_operation(const struct cli *cli);
/* "<What> cancelled" after Ctrl-C, else "<What> failed: <err>"; returns CLI_FAILED. */
int cli_failed(const char *what, const struct ocache_error *err);
/* "rpc error: code = NotFound desc = key not found" */
void cli_print_error(FILE *to, const struct ocache_error *err);
bool cli_interrupted(void);
/* Readable after Ctrl-C, for poll. */
int cli_interrupt_fd(void);
/* Nothing was lost on the way to standard output; else says so and returns CLI_FAILED. */
int cli_flush(void);

/* ---- the commands ---- */
int cli_put(struct cli *cli);
int cli_get(struct cli *cli);
int cli_delete(struct cli *cli);
int cli_list(struct cli *cli);
int cli_version(struct cli *cli);
int cli_cluster(struct cli *cli);
int cli_bench(struct cli *cli);

#endif
