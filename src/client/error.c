/* Codes and texts of libocache; one table for names, words and the parser. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/client_internal.h"

static const struct {
    const char *name;
    const char *words;
} codes[] = {
    {"OK", "success"},
    {"Canceled", "cancelled"},
    {"Unknown", "unknown error"},
    {"InvalidArgument", "invalid argument"},
    {"DeadlineExceeded", "deadline exceeded"},
    {"NotFound", "not found"},
    {"AlreadyExists", "already exists"},
    {"PermissionDenied", "permission denied"},
    {"ResourceExhausted", "resource exhausted"},
    {"FailedPrecondition", "failed precondition"},
    {"Aborted", "aborted"},
    {"OutOfRange", "out of range"},
    {"Unimplemented", "not implemented"},
    {"Internal", "internal error"},
    {"Unavailable", "unavailable"},
    {"DataLoss", "data loss"},
    {"Unauthenticated", "not authenticated"},
};

static int known(int code) {
    return code >= 0 && code < (int)OC_ARRAY_LEN(codes) ? code : OCACHE_UNKNOWN;
}

const char *ocache_strerror(int code) {
    return codes[known(code)].words;
}

const char *ocache_code_name(int code) {
    return codes[known(code)].name;
}

const char *ocache_version(void) {
    return OC_VERSION;
}

int cl_error_set(struct ocache_error *err, int code, const char *fmt, ...) {
    if (err != NULL) {
        va_list ap;

        err->code = code;
        va_start(ap, fmt);
        (void)vsnprintf(err->message, sizeof err->message, fmt, ap); /* a cut text still tells */
        va_end(ap);
    }
    return code;
}

int cl_error_parse(struct oc_span text, struct oc_span *ret_text) {
    static const struct oc_span head = {(const uint8_t *)"rpc error: code = ", 18};
    static const struct oc_span mid = {(const uint8_t *)" desc = ", 8};

    *ret_text = text;
    if (!oc_span_starts_with(text, head)) {
        return OCACHE_UNKNOWN;
    }
    struct oc_span rest = oc_span(text.p + head.len, text.len - head.len);
    for (int i = 1; i < (int)OC_ARRAY_LEN(codes); i++) {
        struct oc_span name = oc_span_str(codes[i].name);

        if (!oc_span_starts_with(rest, name)) {
            continue;
        }
        struct oc_span desc = oc_span(rest.p + name.len, rest.len - name.len);
        if (oc_span_starts_with(desc, mid)) {
            *ret_text = oc_span(desc.p + mid.len, desc.len - mid.len);
            return i;
        }
    }
    return OCACHE_UNKNOWN;
}
