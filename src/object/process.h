/* What the kernel says about this process. */
#ifndef OC_OBJECT_PROCESS_H
#define OC_OBJECT_PROCESS_H

#include <stdint.h>

struct oc_process_stats {
    uint64_t cpu_ns; /* user and system, all threads */
    uint64_t resident_bytes;
    uint64_t virtual_bytes;
    uint64_t open_fds;
    uint64_t max_fds;       /* the soft limit; 0 = unlimited */
    uint64_t start_time_cs; /* unix time in hundredths of a second */
};

/* What cannot be read stays 0. */
void oc_process_stats(struct oc_process_stats *ret);

#endif
