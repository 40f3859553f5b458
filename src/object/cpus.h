/* How many CPUs this process may use: the least of its affinity mask and its cgroup's CPU quota. */
#ifndef OC_OBJECT_CPUS_H
#define OC_OBJECT_CPUS_H

/* At least 1. A quota is rounded up. */
unsigned oc_cpus_usable(void);

/* The quota alone, with the files at other places (for tests): `membership` is /proc/self/cgroup,
 * `root` where cgroups are mounted. 0 when there is none. */
unsigned oc_cpus_quota(const char *membership, const char *root);

#endif
