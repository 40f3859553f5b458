/* A disk in memory that behaves as badly as disks may: what was not synced can vanish, survive in
 * part or out of order when power is lost; calls fail; space runs out; bits flip; the process dies
 * in the middle of a call. Everything is decided by the random numbers of one seed.
 *
 * Each file has two contents: what reads return now (the page cache) and what is durable, plus the
 * list of writes since the last sync. Each directory likewise has its entries now, its durable
 * entries, and the changes since it was last synced. */
#ifndef OC_SIM_DISK_H
#define OC_SIM_DISK_H

#include "base/rng.h"
#include "io/disk.h"

struct sim_disk;

struct sim_faults {
    /* Probabilities in 1/65536 per call. */
    unsigned read_eio;
    unsigned write_eio;
    unsigned sync_eio;
    uint64_t space_bytes; /* size of the volume */
};

struct sim_disk *sim_disk_new(uint64_t seed, uint64_t space_bytes);
void sim_disk_free(struct sim_disk *d);
/* The table to give to the store; lives as long as the disk. */
const struct oc_disk *sim_disk_table(struct sim_disk *d);
void sim_disk_faults(struct sim_disk *d, const struct sim_faults *faults);

/* Die at the nth call that changes something from now on (0: at none). That call may be half done;
 * every call behind it fails and changes nothing. */
void sim_disk_die_at(struct sim_disk *d, uint64_t nth);
bool sim_disk_dead(const struct sim_disk *d);
/* Changing calls so far. */
uint64_t sim_disk_calls(const struct sim_disk *d);

/* The process is gone, its open files with it; the kernel lives on: contents stay as they are. */
void sim_disk_restart(struct sim_disk *d);
/* Power is lost: durable contents, plus whatever of the unsynced changes chance lets survive; a new
 * boot id. */
void sim_disk_power_loss(struct sim_disk *d);

/* Flip one bit somewhere in a file whose path begins with `prefix`; fills what was hit. False: no
 * file. */
struct sim_flip {
    char path[128];
    uint64_t offset;
    uint64_t size;
};
bool sim_disk_flip(struct sim_disk *d, const char *prefix, struct sim_flip *ret);

/* Bytes in all files, and how many files there are under a prefix. */
uint64_t sim_disk_used(const struct sim_disk *d);
size_t sim_disk_count(const struct sim_disk *d, const char *prefix);

#endif
