/* The simulator's command line, and the search for planted bugs.
 *
 *   sim_store --seeds N [--first S]    N runs; stops at the first violation and prints its seed
 *   sim_store --seed S --verbose       one run, told step by step
 *   sim_store_planted --planted        for each planted bug: how many seeds until it was found
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/plant.h"
#include "sim_store.h"

#define PLANT_SEEDS 400u

#ifdef OC_PLANTED_BUGS
enum oc_plant oc_planted;
#endif

#ifdef OC_PLANTED_BUGS
static const char *const plant_names[] = {"none",
                                          "early acknowledge",
                                          "dropped tombstone",
                                          "footer trusted without its check",
                                          "checkpoint newer than the log",
                                          "lost rename",
                                          "unverified read",
                                          "early unlink of a value file",
                                          "went on behind a torn record"};

/* A planted bug may crash the process: each seed runs in a child. */
static bool found_by(uint64_t seed) {
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        char why[512];

        if (freopen("/dev/null", "w", stderr) == NULL) {
            _exit(2);
        }
        (void)alarm(60);
        _exit(sim_run_seed(seed, false, why, sizeof why) ? 0 : 1);
    }
    OC_CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status != 0;
}

static int find_planted(void) {
    int missed = 0;

    for (int p = 1; p < OC_PLANT_COUNT; p++) {
        uint64_t seed = 1;

        oc_planted = (enum oc_plant)p;
        while (seed <= PLANT_SEEDS && !found_by(seed)) {
            seed++;
        }
        if (seed > PLANT_SEEDS) {
            printf("planted: %s: NOT FOUND within %u seeds\n", plant_names[p], PLANT_SEEDS);
            missed++;
        } else {
            printf("planted: %s: found by seed %llu (bound: %u)\n", plant_names[p],
                   (unsigned long long)seed, PLANT_SEEDS);
        }
        (void)fflush(stdout);
    }
    oc_planted = OC_PLANT_NONE;
    return missed;
}
#endif

int main(int argc, char **argv) {
    uint64_t first = 1, count = 200;
    bool verbose = false, planted = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            count = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) {
            first = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            first = strtoull(argv[++i], NULL, 10);
            count = 1;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            verbose = true;
        } else if (strcmp(argv[i], "--planted") == 0) {
            planted = true;
        } else {
            fprintf(stderr,
                    "usage: %s [--seeds N] [--first S] [--seed S] [--verbose] [--planted]\n",
                    argv[0]);
            return 2;
        }
    }
    if (planted) {
#ifdef OC_PLANTED_BUGS
        return find_planted() == 0 ? 0 : 1;
#else
        fprintf(stderr, "%s was built without planted bugs\n", argv[0]);
        return 2;
#endif
    }
    for (uint64_t seed = first; seed < first + count; seed++) {
        char why[512];

        if (!sim_run_seed(seed, verbose, why, sizeof why)) {
            printf("seed %llu: %s\nreplay: %s --seed %llu --verbose\n", (unsigned long long)seed,
                   why, argv[0], (unsigned long long)seed);
            return 1;
        }
    }
    printf("simulator: %llu seeds from %llu, no violation\n", (unsigned long long)count,
           (unsigned long long)first);
    return 0;
}
