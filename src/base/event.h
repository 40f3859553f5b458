/* The event ring: the last things each thread did, kept in memory and dumped when a check fails.
 * Recording costs a few nanoseconds and never allocates after a thread's first event. */
#ifndef OC_BASE_EVENT_H
#define OC_BASE_EVENT_H

#include <stdint.h>

/* One line per event kind: name and what its two arguments are. */
#define OC_EVENT_TABLE(X)                                                                          \
    X(COUNT_SITE, "line", "-")                                                                     \
    X(CONN_OPEN, "conn", "fd")                                                                     \
    X(CONN_CLOSE, "conn", "reason")                                                                \
    X(CALL_START, "conn", "stream")                                                                \
    X(CALL_END, "stream", "status")                                                                \
    X(LOG_APPEND, "segment", "offset")                                                             \
    X(LOG_SYNC, "segment", "offset")                                                               \
    X(LOG_SEAL, "segment", "bytes")                                                                \
    X(LOG_POISON, "segment", "offset")                                                             \
    X(CHECKPOINT, "segment", "offset")                                                             \
    X(QUARANTINE, "segment", "offset")                                                             \
    X(RECOVER, "segment", "records")                                                               \
    X(UPLOAD, "file", "bytes")                                                                     \
    X(UNLINK, "file", "-")                                                                         \
    X(DRAIN, "connections", "streams")

enum oc_event_kind {
#define X(name, a, b) OC_EV_##name,
    OC_EVENT_TABLE(X)
#undef X
        OC_EV_KINDS
};

void oc_event(enum oc_event_kind kind, uint64_t a, uint64_t b);

/* Write every thread's ring to `fd`, oldest first. Async-signal-safe. */
void oc_event_dump(int fd);

#endif
