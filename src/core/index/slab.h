/* Memory of one index: objects of fine size classes in 16 KiB blocks, addressed by 32-bit handles.
 * Internal to core/index.
 *
 * A handle counts units of 4 bytes: 14 bits of chunk (1 MiB mappings), 18 bits inside it. So an
 * index addresses 16 GiB, and turning a handle into an address reads one small table that stays in
 * cache. Blocks of a class are reused slot by slot; a class that has become sparse is compacted by
 * its owner (oc_slabs_victim), because only the owner knows who holds a handle. Emptied blocks go
 * back to any class, and to the system when many are idle. */
#ifndef OC_CORE_INDEX_SLAB_H
#define OC_CORE_INDEX_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OC_SLAB_NONE         UINT32_MAX /* no handle, no block */
#define OC_SLAB_UNIT         4u         /* bytes */
#define OC_SLAB_BLOCK_BYTES  16384u
#define OC_SLAB_CHUNK_BLOCKS 64u
#define OC_SLAB_CHUNK_BYTES  (OC_SLAB_BLOCK_BYTES * OC_SLAB_CHUNK_BLOCKS)
#define OC_SLAB_CHUNK_SHIFT  18 /* handle bits inside a chunk */
#define OC_SLAB_BLOCK_SHIFT  12 /* handle bits inside a block */
#define OC_SLAB_CHUNKS_MAX   (1u << (32 - OC_SLAB_CHUNK_SHIFT))
#define OC_SLAB_BYTES_MAX                                                                          \
    (5u * OC_SLAB_BLOCK_BYTES) /* largest object: header and a 65535-byte key */

enum oc_slab_kind {
    OC_SLAB_ITEM,
    OC_SLAB_SEPARATOR,
    OC_SLAB_LEAF,
    OC_SLAB_INNER,
    OC_SLAB_KINDS,
};

/* A freed object carries this bit in the byte that its kind reserves for it; live objects never do.
 */
#define OC_SLAB_FREED 0x80u

struct oc_slab_block {
    uint16_t class_id;
    uint16_t used;      /* slots taken */
    uint16_t free_head; /* slot; UINT16_MAX: none */
    uint16_t carved;    /* slots handed out at least once */
    uint32_t next;      /* block ids, in the list of blocks with about as many slots used */
    uint32_t prev;
};

struct oc_slab_chunk {
    uint64_t idle; /* bit per block: free but still resident */
    struct oc_slab_block blocks[OC_SLAB_CHUNK_BLOCKS];
};

#define OC_SLAB_LISTS 4 /* blocks with free slots, by quarter of slots used */

struct oc_slab_class {
    uint32_t bytes; /* of an object */
    uint16_t slots; /* objects in a block, or in a run of blocks */
    uint16_t run;   /* blocks */
    uint32_t slots_total;
    uint32_t slots_used;
    uint32_t lists[OC_SLAB_LISTS];
    uint32_t victim;      /* block being emptied; in no list */
    uint16_t victim_next; /* slot to look at next */
};

#define OC_SLAB_SIZES   172u /* size classes of items, and of separators */
#define OC_SLAB_CLASSES (2u * OC_SLAB_SIZES + 2u)
#define OC_SLAB_GROUP   16u /* classes allocated together, when the first of them is used */
#define OC_SLAB_GROUPS  ((OC_SLAB_CLASSES + OC_SLAB_GROUP - 1) / OC_SLAB_GROUP)

struct oc_slabs {
    uint8_t **bases; /* by chunk; NULL: unused */
    uint64_t *free;  /* by chunk: bit per free block */
    struct oc_slab_chunk **chunks;
    uint32_t chunks_len;
    uint32_t chunks_cap;
    uint32_t chunk_hint;   /* no chunk before it has a free block */
    uint32_t chunks_empty; /* mapped, all blocks free */
    uint32_t chunks_mapped;
    uint32_t blocks_used;
    uint32_t blocks_idle;
    uint32_t trim_next; /* chunk to look at next for idle blocks */
    uint32_t groups_used;
    struct oc_slab_class *groups[OC_SLAB_GROUPS];
    uint32_t sparse[OC_SLAB_KINDS]; /* class that wants compaction; OC_SLAB_NONE: none */
    /* Tests: asked before everything that can fail for want of memory; true makes it fail. */
    bool (*deny)(void *arg);
    void *deny_arg;
};

void oc_slabs_init(struct oc_slabs *s);
void oc_slabs_done(struct oc_slabs *s);

static inline void *oc_slabs_at(const struct oc_slabs *s, uint32_t handle) {
    return s->bases[handle >> OC_SLAB_CHUNK_SHIFT] +
           (size_t)(handle & ((1u << OC_SLAB_CHUNK_SHIFT) - 1)) * OC_SLAB_UNIT;
}

/* OC_SLAB_NONE when out of memory. The bytes are not cleared. */
uint32_t oc_slabs_alloc(struct oc_slabs *s, enum oc_slab_kind kind, size_t bytes);
void oc_slabs_free(struct oc_slabs *s, uint32_t handle);

/* The next object that should move so that its class needs fewer blocks; OC_SLAB_NONE: nothing to
 * do now. The caller allocates another (oc_slabs_realloc), copies, repoints its owner, frees this
 * one. */
uint32_t oc_slabs_victim(struct oc_slabs *s, enum oc_slab_kind kind);
/* A slot for a victim's copy: from the blocks that the class has, so it cannot fail. */
uint32_t oc_slabs_realloc(struct oc_slabs *s, uint32_t handle);
/* Bytes of the object's size class. */
size_t oc_slabs_object_bytes(const struct oc_slabs *s, uint32_t handle);

/* Whether a live object of this kind starts at the handle; for validation. */
bool oc_slabs_live(const struct oc_slabs *s, uint32_t handle, enum oc_slab_kind kind);
/* Slots in use of a kind. */
uint64_t oc_slabs_count(const struct oc_slabs *s, enum oc_slab_kind kind);
/* Resident bytes: blocks in use or idle, and the tables. */
uint64_t oc_slabs_bytes(const struct oc_slabs *s);
/* OC_CHECKs lists, counts and masks against each other. */
void oc_slabs_validate(const struct oc_slabs *s);

#endif
