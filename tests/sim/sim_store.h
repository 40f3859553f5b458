/* One run of the simulator. */
#ifndef OC_SIM_STORE_H
#define OC_SIM_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True when the seed ran without a violation; else what was violated is in `why`. */
bool sim_run_seed(uint64_t seed, bool verbose, char *why, size_t why_len);

#endif
