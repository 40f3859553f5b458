/* Planted bugs: OC_PLANT(name) is constant false in everything that ships. The simulator's second
 * build defines OC_PLANTED_BUGS and turns one on at run time, to prove that it would be found. */
#ifndef OC_BASE_PLANT_H
#define OC_BASE_PLANT_H

enum oc_plant {
    OC_PLANT_NONE = 0,
    OC_PLANT_EARLY_ACK,        /* acknowledge before the record is written */
    OC_PLANT_DROP_TOMBSTONE,   /* delete from memory only */
    OC_PLANT_TRUST_FOOTER,     /* use a footer without verifying its checksum */
    OC_PLANT_CHECKPOINT_AHEAD, /* publish a checkpoint before the log it covers is durable */
    OC_PLANT_LOST_RENAME,      /* rename without making the directory durable */
    OC_PLANT_NO_VERIFY,        /* return a value without checking its checksum */
    OC_PLANT_EARLY_UNLINK,     /* unlink a superseded value file before its successor is durable */
    OC_PLANT_SKIP_HOLE,        /* after a power loss go on behind the first torn record */
    OC_PLANT_COUNT,
};

#ifdef OC_PLANTED_BUGS
extern enum oc_plant oc_planted;
#define OC_PLANT(name) (oc_planted == OC_PLANT_##name)
#else
#define OC_PLANT(name) 0
#endif

#endif
