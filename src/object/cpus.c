/* CPU quotas of both cgroup versions. In a container the own group usually is mounted at the root,
 * outside one it lies at the path that /proc/self/cgroup names; every level from there up may
 * limit. */
#include <inttypes.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "object/cpus.h"

#define PATH_BYTES 1024

static unsigned ceil_cpus(uint64_t quota_us, uint64_t period_us) {
    if (period_us == 0 || quota_us == 0) {
        return 0;
    }
    uint64_t n = quota_us / period_us + (quota_us % period_us != 0);

    return n > 4096 ? 4096 : (unsigned)n;
}

static unsigned least(unsigned a, unsigned b) {
    if (a == 0 || b == 0) {
        return a + b;
    }
    return a < b ? a : b;
}

/* The file's first line scanned; returns the number of conversions. */
static int scan_file(const char *path, const char *format, uint64_t *a, uint64_t *b) {
    FILE *f = fopen(path, "re");
    char line[256];
    int n = 0;

    if (f == NULL) {
        return 0;
    }
    if (fgets(line, sizeof line, f) != NULL) {
        n = strcmp(format, "one") == 0 ? sscanf(line, "%" SCNu64, a)
                                       : sscanf(line, "%" SCNu64 " %" SCNu64, a, b);
    }
    (void)fclose(f); /* only read */
    return n;
}

/* One directory. Version 2: "max 100000" or "150000 100000"; version 1: two files, -1 for none. */
static unsigned quota_at(const char *dir, bool v2) {
    char path[PATH_BYTES + 32];
    uint64_t quota = 0, period = 0;

    if (v2) {
        (void)snprintf(path, sizeof path, "%s/cpu.max", dir);
        return scan_file(path, "two", &quota, &period) == 2 ? ceil_cpus(quota, period) : 0;
    }
    (void)snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    if (scan_file(path, "one", &quota, NULL) != 1 || quota > INT64_MAX) {
        return 0;
    }
    (void)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    return scan_file(path, "one", &period, NULL) == 1 ? ceil_cpus(quota, period) : 0;
}

/* From mount + path up to the mount itself. */
static unsigned quota_upwards(const char *mount, const char *path, bool v2) {
    char dir[PATH_BYTES];
    size_t mount_len = strlen(mount);
    int n = snprintf(dir, sizeof dir, "%s%s", mount, path);
    unsigned result = 0;

    if (n < 0 || (size_t)n >= sizeof dir) {
        return quota_at(mount, v2);
    }
    for (;;) {
        result = least(result, quota_at(dir, v2));
        char *slash = strrchr(dir, '/');
        if (slash == NULL || (size_t)(slash - dir) < mount_len) {
            return result;
        }
        *slash = 0;
    }
}

/* A line of /proc/self/cgroup: "0::/path" or "4:cpu,cpuacct:/path". */
static unsigned quota_of_line(char *line, const char *root) {
    char *controllers = strchr(line, ':');
    char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    char mount[PATH_BYTES];

    if (path == NULL) {
        return 0;
    }
    *controllers++ = 0;
    *path++ = 0;
    path[strcspn(path, "\n")] = 0;
    if (*controllers == 0) {
        return quota_upwards(root, path, true);
    }
    for (char *save = NULL, *c = strtok_r(controllers, ",", &save); c != NULL;
         c = strtok_r(NULL, ",", &save)) {
        if (strcmp(c, "cpu") == 0) {
            int n = snprintf(mount, sizeof mount, "%s/cpu", root);

            return n < 0 || (size_t)n >= sizeof mount ? 0 : quota_upwards(mount, path, false);
        }
    }
    return 0;
}

unsigned oc_cpus_quota(const char *membership, const char *root) {
    FILE *f = fopen(membership, "re");
    char line[PATH_BYTES];
    unsigned result = 0;

    if (f == NULL) {
        return 0;
    }
    while (fgets(line, sizeof line, f) != NULL) {
        result = least(result, quota_of_line(line, root));
    }
    (void)fclose(f); /* only read */
    return result;
}

unsigned oc_cpus_usable(void) {
    cpu_set_t set;
    unsigned n = 1;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        n = (unsigned)CPU_COUNT(&set);
    }
    return least(n, oc_cpus_quota("/proc/self/cgroup", "/sys/fs/cgroup"));
}
