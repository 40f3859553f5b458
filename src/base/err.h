/* Errors: one enum, one-to-one with the gRPC status codes, and an optional text for a person.
 *
 * Every function that can fail returns 0 or one of these negative values. `-code` is the gRPC
 * status code of the same meaning (https://grpc.io/docs/guides/status-codes/), so mapping is
 * arithmetic. Positive returns are never errors; OC_AGAIN is the one shared positive value. */
#ifndef OC_BASE_ERR_H
#define OC_BASE_ERR_H

enum oc_err {
    OC_OK = 0,
    OC_E_CANCELLED = -1,
    OC_E_UNKNOWN = -2,
    OC_E_INVALID = -3,  /* INVALID_ARGUMENT */
    OC_E_DEADLINE = -4, /* DEADLINE_EXCEEDED */
    OC_E_NOT_FOUND = -5,
    OC_E_EXISTS = -6, /* ALREADY_EXISTS */
    OC_E_PERMISSION = -7,
    OC_E_EXHAUSTED = -8, /* RESOURCE_EXHAUSTED: a bound of ours or a full disk */
    OC_E_PRECONDITION = -9,
    OC_E_ABORTED = -10,
    OC_E_RANGE = -11, /* OUT_OF_RANGE */
    OC_E_UNIMPLEMENTED = -12,
    OC_E_INTERNAL = -13,
    OC_E_UNAVAILABLE = -14,
    OC_E_DATA_LOSS = -15,
    OC_E_UNAUTHENTICATED = -16,
};

/* Not an error: the call would have had to wait; nothing was done. */
#define OC_AGAIN 1

/* What went wrong, for a person. Embedded by callers; functions take `struct oc_error *` which may
 * be NULL. It is written only on failure. */
struct oc_error {
    int code;      /* enum oc_err */
    char msg[384]; /* what failed, on what, what to do; always terminated */
};

/* Fill `err` (may be NULL) and return `code`, so that `return oc_error_set(err, …)` reads well. */
int oc_error_set(struct oc_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* As above, with ": <strerror(errnum)>" appended; the code is taken from errnum (ENOSPC and EDQUOT
 * are OC_E_EXHAUSTED, ENOENT is OC_E_NOT_FOUND, EACCES, EPERM and EROFS are OC_E_PERMISSION, EIO is
 * OC_E_UNAVAILABLE, anything else OC_E_INTERNAL). */
int oc_error_errno(struct oc_error *err, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

int oc_err_from_errno(int errnum);

/* "NOT_FOUND" and so on; never NULL. */
const char *oc_err_name(int code);

#endif
