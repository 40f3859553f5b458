/* Reads /proc/self and the resource limits. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "object/process.h"

static size_t read_file(const char *path, char *dst, size_t cap) {
    FILE *f = fopen(path, "re");
    size_t n = 0;

    if (f != NULL) {
        n = fread(dst, 1, cap - 1, f);
        (void)fclose(f); /* only read */
    }
    dst[n] = 0;
    return n;
}

static uint64_t boot_time_s(void) {
    char text[16384];
    uint64_t s = 0;

    (void)read_file("/proc/stat", text, sizeof text);
    const char *line = strstr(text, "\nbtime ");
    if (line != NULL) {
        (void)sscanf(line, "\nbtime %" SCNu64, &s); /* stays 0 */
    }
    return s;
}

/* Fields of /proc/self/stat behind the program's name, which may contain anything: 22 is the start
 * in clock ticks since boot, 23 the virtual size, 24 the resident pages. */
static void read_stat(struct oc_process_stats *ret) {
    char text[2048];
    uint64_t start = 0, virtual_bytes = 0, pages = 0;
    long hz = sysconf(_SC_CLK_TCK), page = sysconf(_SC_PAGESIZE);

    (void)read_file("/proc/self/stat", text, sizeof text);
    const char *p = strrchr(text, ')');
    for (int field = 2; p != NULL && field < 22; field++) {
        p = strchr(p + 1, ' ');
    }
    if (p == NULL || hz <= 0 || page <= 0 ||
        sscanf(p, " %" SCNu64 " %" SCNu64 " %" SCNu64, &start, &virtual_bytes, &pages) != 3) {
        return;
    }
    ret->virtual_bytes = virtual_bytes;
    ret->resident_bytes = pages * (uint64_t)page;
    ret->start_time_cs = boot_time_s() * 100 + start * 100 / (uint64_t)hz;
}

static uint64_t count_fds(void) {
    DIR *d = opendir("/proc/self/fd");
    uint64_t n = 0;

    if (d == NULL) {
        return 0;
    }
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        n += e->d_name[0] != '.';
    }
    (void)closedir(d);        /* only read */
    return n > 0 ? n - 1 : 0; /* without the one that was just used */
}

void oc_process_stats(struct oc_process_stats *ret) {
    struct rusage usage;
    struct rlimit limit;

    memset(ret, 0, sizeof *ret);
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        ret->cpu_ns =
            ((uint64_t)usage.ru_utime.tv_sec + (uint64_t)usage.ru_stime.tv_sec) * OC_NS_PER_S +
            ((uint64_t)usage.ru_utime.tv_usec + (uint64_t)usage.ru_stime.tv_usec) * OC_NS_PER_US;
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        ret->max_fds = limit.rlim_cur;
    }
    read_stat(ret);
    ret->open_fds = count_fds();
}
