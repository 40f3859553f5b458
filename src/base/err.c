/* Error texts and the errno mapping; see err.h for the contract. */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const err_names[] = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};

int oc_error_set(struct oc_error *err, int code, const char *fmt, ...) {
    if (err != NULL) {
        va_list ap;

        err->code = code;
        va_start(ap, fmt);
        (void)vsnprintf(err->msg, sizeof err->msg, fmt, ap); /* a cut message is still a message */
        va_end(ap);
    }
    return code;
}

int oc_error_errno(struct oc_error *err, int errnum, const char *fmt, ...) {
    int code = oc_err_from_errno(errnum);

    if (err != NULL) {
        char text[sizeof err->msg];
        char why[96];
        va_list ap;

        va_start(ap, fmt);
        (void)vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        err->code = code;
        /* GNU strerror_r returns the text, which need not be in the buffer. */
        (void)snprintf(err->msg, sizeof err->msg, "%.280s: %s", text,
                       strerror_r(errnum, why, sizeof why));
    }
    return code;
}

int oc_err_from_errno(int errnum) {
    switch (errnum) {
    case 0:
        return OC_OK;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        return OC_E_EXHAUSTED;
    case ENOENT:
        return OC_E_NOT_FOUND;
    case EEXIST:
        return OC_E_EXISTS;
    case EACCES:
    case EPERM:
    case EROFS:
        return OC_E_PERMISSION;
    case EIO:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENETUNREACH:
    case EHOSTUNREACH:
        return OC_E_UNAVAILABLE;
    case ETIMEDOUT:
        return OC_E_DEADLINE;
    case EINVAL:
    case ENAMETOOLONG:
        return OC_E_INVALID;
    default:
        return OC_E_INTERNAL;
    }
}

const char *oc_err_name(int code) {
    unsigned i = code > 0 ? (unsigned)code : 0u - (unsigned)code;

    return i < sizeof err_names / sizeof err_names[0] ? err_names[i] : "UNKNOWN";
}
