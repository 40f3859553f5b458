/* One options table per program gives the struct, the defaults, the parser, the help and the dump.
 *
 *     #define APP_OPTIONS(X) \
 *         X(STRING, disk, "disk", "/var/cache", "data directory") \
 *         X(INT64, ttl_s, "ttl", "0", "default time to live in seconds", .min = 0, .max = 1 << 30)
 * \ X(ENUM, sync, "sync", "none", "when to sync", .words = "none|interval|always") struct
 * app_options { APP_OPTIONS(OC_OPT_FIELD) }; #define ROW(...) OC_OPT_ROW(struct app_options,
 * __VA_ARGS__) static const struct oc_opt app_opts[] = { APP_OPTIONS(ROW) };
 *
 * Columns: kind, field, name,
 * default as text, help, then any of the other members of struct oc_opt by name.
 *
 * kind      C type of the field    text
 * BOOL      bool                   -f, -f=false; true false 1 0 t f T F
 * INT64     int64_t                decimal or 0x…; .min/.max (both 0: any)
 * UINT64    uint64_t               as above, not negative
 * DOUBLE    double                 .dmin/.dmax (both 0: any)
 * DURATION  int64_t, nanoseconds   Go syntax: 1h30m, 500ms; negative only when .min < 0
 * SIZE      uint64_t, bytes        30gb, 64KiB, 1000 (powers of 1024; base/parse.h)
 * ENUM      int, index in .words   one of the words
 * STRING    const char *           anything; never NULL
 * LIST      struct oc_opt_list     comma separated; blanks around items trimmed, empty items
 * dropped
 *
 * Syntax of flags: -n v, -n=v, --n v, --n=v; a BOOL takes a value only behind `=`; `--` ends the
 * flags. In a table with `interspersed` flags may stand among positional arguments, otherwise the
 * first positional argument ends them. A one-letter alias (.letter) may be used in the same ways,
 * and with `interspersed` also as -xVALUE and bundled (-abc).
 *
 * Precedence: flag, environment, default. The variable of `node-id` with prefix OCACHE_ is
 * OCACHE_NODE_ID. Variables with the prefix that name no option are ignored: orchestrators inject
 * such. */
#ifndef OC_BASE_OPT_H
#define OC_BASE_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

enum oc_opt_kind {
    OC_OPT_BOOL,
    OC_OPT_INT64,
    OC_OPT_UINT64,
    OC_OPT_DOUBLE,
    OC_OPT_DURATION,
    OC_OPT_SIZE,
    OC_OPT_ENUM,
    OC_OPT_STRING,
    OC_OPT_LIST,
};

struct oc_opt_list {
    const char **items;
    size_t count;
};

#define OC_OPT_TYPE_BOOL     bool
#define OC_OPT_TYPE_INT64    int64_t
#define OC_OPT_TYPE_UINT64   uint64_t
#define OC_OPT_TYPE_DOUBLE   double
#define OC_OPT_TYPE_DURATION int64_t
#define OC_OPT_TYPE_SIZE     uint64_t
#define OC_OPT_TYPE_ENUM     int
#define OC_OPT_TYPE_STRING   const char *
#define OC_OPT_TYPE_LIST     struct oc_opt_list

/* X for the struct. */
#define OC_OPT_FIELD(kind, field, ...) OC_OPT_TYPE_##kind field;

/* X for the table, bound to the struct by a one-line macro as above. */
#define OC_OPT_ROW(type, kind_, field_, name_, default_, help_, ...)                               \
    {.kind = OC_OPT_##kind_,                                                                       \
     .name = (name_),                                                                              \
     .initial = (default_),                                                                        \
     .help = (help_),                                                                              \
     .offset = offsetof(type, field_),                                                             \
     ##__VA_ARGS__},

struct oc_opt {
    const char *name;    /* lower case, words joined by - */
    const char *initial; /* the default as text; must parse */
    const char *help;
    const char *words;    /* ENUM: "none|interval|always" */
    const char *commands; /* CLI: the commands it belongs to, separated by blanks; NULL: all */
    size_t offset;
    int64_t min,
        max; /* inclusive; both 0: the kind's own range. max 0 with min > 0: no upper bound */
    double dmin, dmax;
    enum oc_opt_kind kind;
    char letter;  /* one-letter alias, 0: none */
    bool ignored; /* accepted for compatibility, has no effect; see oc_opts_next_ignored */
    bool hidden;  /* not in the help */
};

struct oc_opt_table {
    const char *program;    /* "ocache" */
    const char *usage;      /* "[flags]" or "<command> [flags]" */
    const char *about;      /* one paragraph for the top of the help; may be NULL */
    const char *env_prefix; /* "OCACHE_"; NULL: no environment */
    const struct oc_opt *opts;
    size_t count;
    bool interspersed;
};

enum oc_opt_source {
    OC_OPT_FROM_DEFAULT,
    OC_OPT_FROM_ENV,
    OC_OPT_FROM_FLAG,
};

/* The state of one load. `values` is the caller's struct; its strings and lists live in the arena.
 */
struct oc_opts {
    const struct oc_opt_table *table;
    void *values;
    uint8_t *sources;  /* enum oc_opt_source, one per option */
    const char **args; /* positional arguments, in order; args[arg_count] is NULL */
    size_t arg_count;
    struct oc_arena arena;
};

#define OC_OPT_HELP 1 /* help was asked for: print oc_opts_help to stdout and exit with 0 */

/* Defaults, then environment (envp as main's third argument or `environ`; NULL: none), then flags.
 * argv[0] is skipped. 0, OC_OPT_HELP, or OC_E_INVALID with a message that names the flag, the
 * bad value, where it came from and what is expected: print it to stderr and exit with 2. A bad
 * variable is an error only when no flag overrides it. oc_opts_done is due in every case. A default
 * that does not parse is a fault of the table and stops the program. */
int oc_opts_load(struct oc_opts *o, const struct oc_opt_table *table, void *values, int argc,
                 char *const *argv, char *const *envp, struct oc_error *err);
void oc_opts_done(struct oc_opts *o);

/* OC_E_INVALID when a flag was given that does not belong to this command. */
int oc_opts_check_command(const struct oc_opts *o, const char *command, struct oc_error *err);

/* Where the value came from: "flag -disk", "environment OCACHE_DISK", "default". The name must
 * exist. The text lives until oc_opts_done. */
const char *oc_opts_origin(struct oc_opts *o, const char *name);
bool oc_opts_is_set(const struct oc_opts *o, const char *name); /* not by default */

/* Walk over the options marked `ignored` that were set, for a warning each: start with *at = 0;
 * NULL at the end. */
const struct oc_opt *oc_opts_next_ignored(const struct oc_opts *o, size_t *at);

/* The help, wrapped at 80 columns; with a command only its options. */
int oc_opts_help(const struct oc_opts *o, const char *command, struct oc_buf *out);
/* `name = value (origin)` per option, in the table's order. */
int oc_opts_dump(struct oc_opts *o, struct oc_buf *out);

/* The text of one option's value, as it could be given again. */
int oc_opts_format(const struct oc_opts *o, const struct oc_opt *opt, struct oc_buf *out);

/* The closest of `count` names (by edit distance) when it is close enough to be a slip, else NULL.
 */
const char *oc_opts_nearest(const char *word, const char *(*name_at)(void *arg, size_t i),
                            void *arg, size_t count);

#endif
