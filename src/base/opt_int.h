/* Shared by the files of the options table; nobody else includes it. */
#ifndef OC_BASE_OPT_INT_H
#define OC_BASE_OPT_INT_H

#include "base/opt.h"
#include "base/span.h"

/* Parse `text` into the option's field. `origin` is for the message only. */
int oc_opt_set(struct oc_opts *o, const struct oc_opt *opt, struct oc_span text, const char *origin,
               struct oc_error *err);

/* "-disk" or "--disk", as the table's programs write it. Returns dst. */
#define OC_OPT_FLAG_MAX 80
char *oc_opt_flag_text(const struct oc_opts *o, const struct oc_opt *opt,
                       char dst[OC_OPT_FLAG_MAX]);

/* "OCACHE_NODE_ID"; empty without a prefix. Returns dst. */
#define OC_OPT_ENV_MAX 96
char *oc_opt_env_name(const struct oc_opts *o, const struct oc_opt *opt, char dst[OC_OPT_ENV_MAX]);

/* What a value must look like: "a duration such as 30s or 1h30m, from 0s to 1h0m0s". */
#define OC_OPT_EXPECT_MAX 200
void oc_opt_expected(const struct oc_opt *opt, char dst[OC_OPT_EXPECT_MAX]);

/* The n-th of "a|b|c" (empty behind the last). */
struct oc_span oc_opt_word(const char *words, int n);

/* Whether the option is one of this command's (NULL: of any). */
bool oc_opt_belongs(const struct oc_opt *opt, const char *command);

static inline void *oc_opt_field(const struct oc_opts *o, const struct oc_opt *opt) {
    return (char *)o->values + opt->offset;
}

#endif
