/* Blocks, chunks and size classes; see slab.h.
 *
 * Fine classes up to 2 KiB lose little to rounding (nothing where most keys are), which the bound
 * on bytes a key needs, and are few enough that a class in use by a handful of keys does not hurt.
 * Above, k objects share a block (a quarter lost at worst), then come runs of whole blocks. */
#include "core/index/slab.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "base/span.h"

/* Fine classes: steps of 4 bytes up to 256, of 8 up to 512, of 16 up to 1024, of 32 up to 2048. */
#define FINE_MAX_BYTES 2048u
#define FINE_CLASSES   161u /* 64 + 32 + 32 + 32, and 0, which nothing has */
#define SHARED_MAX     7u   /* objects in a block, above the exact classes */
#define RUN_CLASSES    4u   /* of 2..5 blocks */
#define SLOT_NONE      UINT16_MAX
#define BLOCK_MASK     (OC_SLAB_CHUNK_BLOCKS - 1)

/* Idle blocks kept resident before they are given back: a few, and a sixteenth of what is in use.
 */
#define IDLE_MIN 2u
/* Chunks looked at for idle blocks each time a block is freed beyond that. */
#define TRIM_CHUNKS 8u

static_assert(FINE_CLASSES + SHARED_MAX + RUN_CLASSES == OC_SLAB_SIZES, "slab.h counts them");

static size_t freed_mark_at(uint32_t class_id) {
    return class_id < OC_SLAB_SIZES ? 28 : 2; /* items: flags; others: the third byte */
}

static enum oc_slab_kind kind_of(uint32_t class_id) {
    if (class_id < OC_SLAB_SIZES) {
        return OC_SLAB_ITEM;
    }
    if (class_id < 2 * OC_SLAB_SIZES) {
        return OC_SLAB_SEPARATOR;
    }
    return class_id == 2 * OC_SLAB_SIZES ? OC_SLAB_LEAF : OC_SLAB_INNER;
}

static uint32_t size_class(size_t bytes) {
    bytes = (bytes + OC_SLAB_UNIT - 1) / OC_SLAB_UNIT * OC_SLAB_UNIT;
    if (bytes <= 256) {
        return (uint32_t)(bytes / 4);
    }
    if (bytes <= FINE_MAX_BYTES) {
        unsigned doubled = bytes <= 512 ? 0 : bytes <= 1024 ? 1 : 2; /* above 256 */
        size_t step = 8u << doubled;

        return 64 + 32 * doubled + (uint32_t)((bytes - (256u << doubled) + step - 1) / step);
    }
    if (bytes <= OC_SLAB_BLOCK_BYTES) {
        uint32_t k = (uint32_t)(OC_SLAB_BLOCK_BYTES / bytes); /* 1..7 */

        return FINE_CLASSES + SHARED_MAX - k;
    }
    return FINE_CLASSES + SHARED_MAX - 2 +
           (uint32_t)((bytes + OC_SLAB_BLOCK_BYTES - 1) / OC_SLAB_BLOCK_BYTES);
}

static uint32_t class_id_for(enum oc_slab_kind kind, size_t bytes) {
    switch (kind) {
    case OC_SLAB_ITEM:
        return size_class(bytes);
    case OC_SLAB_SEPARATOR:
        return OC_SLAB_SIZES + size_class(bytes);
    case OC_SLAB_LEAF:
        return 2 * OC_SLAB_SIZES;
    default:
        return 2 * OC_SLAB_SIZES + 1;
    }
}

/* The largest object of a size class of one block. */
static uint32_t class_bytes(uint32_t size) {
    if (size <= 64) {
        return size * 4;
    }
    if (size < FINE_CLASSES) {
        unsigned doubled = (size - 65) / 32;

        return (256u << doubled) + (8u << doubled) * (size - 64 - 32 * doubled);
    }
    return OC_SLAB_BLOCK_BYTES / (FINE_CLASSES + SHARED_MAX - size) / OC_SLAB_UNIT * OC_SLAB_UNIT;
}

static void class_init(struct oc_slab_class *c, uint32_t class_id, size_t bytes) {
    uint32_t size = class_id % OC_SLAB_SIZES;

    c->run = 1;
    if (class_id >= 2 * OC_SLAB_SIZES) {
        c->bytes = (uint32_t)bytes; /* nodes: one size each */
    } else if (size < FINE_CLASSES + SHARED_MAX) {
        c->bytes = class_bytes(size);
    } else {
        c->run = (uint16_t)(size - (FINE_CLASSES + SHARED_MAX) + 2);
        c->bytes = c->run * OC_SLAB_BLOCK_BYTES;
    }
    c->slots = (uint16_t)(c->run * OC_SLAB_BLOCK_BYTES / c->bytes);
    for (unsigned i = 0; i < OC_SLAB_LISTS; i++) {
        c->lists[i] = OC_SLAB_NONE;
    }
    c->victim = OC_SLAB_NONE;
}

static bool denied(struct oc_slabs *s) {
    return s->deny != NULL && s->deny(s->deny_arg);
}

static struct oc_slab_class *class_at(const struct oc_slabs *s, uint32_t class_id) {
    return &s->groups[class_id / OC_SLAB_GROUP][class_id % OC_SLAB_GROUP];
}

static struct oc_slab_class *class_get(struct oc_slabs *s, uint32_t class_id, size_t bytes) {
    struct oc_slab_class **group = &s->groups[class_id / OC_SLAB_GROUP];
    struct oc_slab_class *c;

    if (*group == NULL) {
        *group = denied(s) ? NULL : calloc(OC_SLAB_GROUP, sizeof **group);
        if (*group == NULL) {
            return NULL;
        }
        s->groups_used++;
    }
    c = &(*group)[class_id % OC_SLAB_GROUP];
    if (c->bytes == 0) {
        class_init(c, class_id, bytes);
    }
    return c;
}

static struct oc_slab_block *block_at(const struct oc_slabs *s, uint32_t id) {
    return &s->chunks[id / OC_SLAB_CHUNK_BLOCKS]->blocks[id & BLOCK_MASK];
}

static uint8_t *slot_at(const struct oc_slabs *s, const struct oc_slab_class *c, uint32_t id,
                        uint32_t slot) {
    return s->bases[id / OC_SLAB_CHUNK_BLOCKS] + (size_t)(id & BLOCK_MASK) * OC_SLAB_BLOCK_BYTES +
           (size_t)slot * c->bytes;
}

static uint32_t handle_of(const struct oc_slab_class *c, uint32_t id, uint32_t slot) {
    return (id << OC_SLAB_BLOCK_SHIFT) + slot * (c->bytes / OC_SLAB_UNIT);
}

/* ---- lists of blocks with free slots ---- */

/* The list that a block with `used` slots belongs to; OC_SLAB_LISTS: full, in none. */
static unsigned list_of(const struct oc_slab_class *c, unsigned used) {
    return used * OC_SLAB_LISTS / c->slots;
}

static void list_push(struct oc_slabs *s, struct oc_slab_class *c, uint32_t id) {
    struct oc_slab_block *b = block_at(s, id);
    unsigned list = list_of(c, b->used);

    if (list == OC_SLAB_LISTS) {
        return;
    }
    b->prev = OC_SLAB_NONE;
    b->next = c->lists[list];
    if (b->next != OC_SLAB_NONE) {
        block_at(s, b->next)->prev = id;
    }
    c->lists[list] = id;
}

static void list_drop(struct oc_slabs *s, struct oc_slab_class *c, uint32_t id, unsigned used) {
    struct oc_slab_block *b = block_at(s, id);
    unsigned list = list_of(c, used);

    if (list == OC_SLAB_LISTS) {
        return;
    }
    if (b->next != OC_SLAB_NONE) {
        block_at(s, b->next)->prev = b->prev;
    }
    if (b->prev != OC_SLAB_NONE) {
        block_at(s, b->prev)->next = b->next;
    } else {
        c->lists[list] = b->next;
    }
}

static void set_used(struct oc_slabs *s, struct oc_slab_class *c, uint32_t id, unsigned used) {
    struct oc_slab_block *b = block_at(s, id);

    if (id != c->victim && list_of(c, used) != list_of(c, b->used)) {
        list_drop(s, c, id, b->used);
        b->used = (uint16_t)used;
        list_push(s, c, id);
    }
    b->used = (uint16_t)used;
}

/* ---- chunks and runs of blocks ---- */

static bool tables_grow(struct oc_slabs *s) {
    uint32_t cap = s->chunks_cap == 0 ? 8 : s->chunks_cap * 2;
    uint8_t **bases;
    uint64_t *masks;
    struct oc_slab_chunk **chunks;

    if (denied(s)) {
        return false;
    }
    /* Each table that did grow stays valid if a later one does not: chunks_cap changes last. */
    bases = realloc(s->bases, cap * sizeof *bases);
    s->bases = bases != NULL ? bases : s->bases;
    masks = realloc(s->free, cap * sizeof *masks);
    s->free = masks != NULL ? masks : s->free;
    chunks = realloc(s->chunks, cap * sizeof *chunks);
    s->chunks = chunks != NULL ? chunks : s->chunks;
    if (bases == NULL || masks == NULL || chunks == NULL) {
        return false;
    }
    s->chunks_cap = cap;
    return true;
}

static uint32_t chunk_new(struct oc_slabs *s) {
    uint32_t i = 0;
    struct oc_slab_chunk *chunk;
    void *base;

    while (i < s->chunks_len && s->bases[i] != NULL) {
        i++;
    }
    if (i == OC_SLAB_CHUNKS_MAX || (i == s->chunks_cap && !tables_grow(s)) || denied(s)) {
        return OC_SLAB_NONE;
    }
    chunk = malloc(sizeof *chunk);
    if (chunk == NULL) {
        return OC_SLAB_NONE;
    }
    base =
        mmap(NULL, OC_SLAB_CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        free(chunk);
        return OC_SLAB_NONE;
    }
    chunk->idle = 0;
    s->bases[i] = base;
    s->chunks[i] = chunk;
    s->free[i] = UINT64_MAX;
    s->chunks_len = i == s->chunks_len ? i + 1 : s->chunks_len;
    s->chunk_hint = i < s->chunk_hint ? i : s->chunk_hint;
    s->chunks_mapped++;
    s->chunks_empty++;
    return i;
}

static void chunk_drop(struct oc_slabs *s, uint32_t i) {
    s->blocks_idle -= (uint32_t)__builtin_popcountll(s->chunks[i]->idle);
    (void)munmap(s->bases[i], OC_SLAB_CHUNK_BYTES); /* a whole mapping of ours: cannot fail */
    free(s->chunks[i]);
    s->chunks[i] = NULL;
    s->bases[i] = NULL;
    s->free[i] = 0;
    s->chunks_mapped--;
    s->chunks_empty--;
    while (s->chunks_len > 0 && s->bases[s->chunks_len - 1] == NULL) {
        s->chunks_len--;
    }
}

static uint64_t run_mask(unsigned run, unsigned at) {
    return (run == OC_SLAB_CHUNK_BLOCKS ? UINT64_MAX : (1ull << run) - 1) << at;
}

/* Bits at which a run of free blocks starts. */
static uint64_t run_starts(uint64_t mask, unsigned run) {
    for (unsigned i = 1; i < run; i++) {
        mask &= mask >> 1;
    }
    return mask;
}

static uint32_t run_take(struct oc_slabs *s, unsigned run) {
    uint32_t i = s->chunk_hint;
    bool passed = false; /* a chunk with free blocks, but no run long enough */
    unsigned at;
    uint64_t mask;

    for (; i < s->chunks_len && run_starts(s->free[i], run) == 0; i++) {
        passed |= s->free[i] != 0;
        s->chunk_hint = passed ? s->chunk_hint : i + 1;
    }
    if (i >= s->chunks_len) {
        i = chunk_new(s);
        if (i == OC_SLAB_NONE) {
            return OC_SLAB_NONE;
        }
    }
    at = (unsigned)__builtin_ctzll(run_starts(s->free[i], run));
    mask = run_mask(run, at);
    s->chunks_empty -= s->free[i] == UINT64_MAX;
    s->free[i] &= ~mask;
    s->blocks_idle -= (uint32_t)__builtin_popcountll(s->chunks[i]->idle & mask);
    s->chunks[i]->idle &= ~mask;
    s->blocks_used += run;
    return i * OC_SLAB_CHUNK_BLOCKS + at;
}

/* Gives idle blocks back to the system: those of the next chunk that has some. */
static void idle_trim(struct oc_slabs *s) {
    for (uint32_t tried = 0; tried < TRIM_CHUNKS; tried++) {
        uint32_t i = s->trim_next < s->chunks_len ? s->trim_next : 0;

        s->trim_next = i + 1;
        if (s->bases[i] == NULL || s->chunks[i]->idle == 0) {
            continue;
        }
        for (uint64_t idle = s->chunks[i]->idle; idle != 0;) {
            unsigned at = (unsigned)__builtin_ctzll(idle);
            uint64_t above = ~(idle >> at);
            unsigned run = above == 0 ? OC_SLAB_CHUNK_BLOCKS : (unsigned)__builtin_ctzll(above);

            /* Should the kernel refuse, the pages stay until the chunk goes: no harm done. */
            (void)madvise(s->bases[i] + (size_t)at * OC_SLAB_BLOCK_BYTES,
                          (size_t)run * OC_SLAB_BLOCK_BYTES, MADV_DONTNEED);
            idle &= ~run_mask(run, at);
        }
        s->blocks_idle -= (uint32_t)__builtin_popcountll(s->chunks[i]->idle);
        s->chunks[i]->idle = 0;
        return;
    }
}

static void run_give(struct oc_slabs *s, uint32_t id, unsigned run) {
    uint32_t i = id / OC_SLAB_CHUNK_BLOCKS;
    uint64_t mask = run_mask(run, id & BLOCK_MASK);

    OC_CHECK((s->free[i] & mask) == 0);
    s->free[i] |= mask;
    s->chunk_hint = i < s->chunk_hint ? i : s->chunk_hint;
    s->blocks_used -= run;
    s->chunks[i]->idle |= mask;
    s->blocks_idle += run;
    if (s->free[i] == UINT64_MAX) {
        s->chunks_empty++;
        if (s->chunks_empty > 1) {
            chunk_drop(s, i);
        }
    }
    if (s->blocks_idle > IDLE_MIN + s->blocks_used / 16) {
        idle_trim(s);
    }
}

/* ---- objects ---- */

void oc_slabs_init(struct oc_slabs *s) {
    *s = (struct oc_slabs){0};
    for (unsigned i = 0; i < OC_SLAB_KINDS; i++) {
        s->sparse[i] = OC_SLAB_NONE;
    }
}

void oc_slabs_done(struct oc_slabs *s) {
    for (uint32_t i = 0; i < s->chunks_len; i++) {
        if (s->bases[i] != NULL) {
            (void)munmap(s->bases[i], OC_SLAB_CHUNK_BYTES);
            free(s->chunks[i]);
        }
    }
    for (unsigned i = 0; i < OC_SLAB_GROUPS; i++) {
        free(s->groups[i]);
    }
    free(s->bases);
    free(s->free);
    free(s->chunks);
    oc_slabs_init(s);
}

static void victim_release(struct oc_slabs *s, struct oc_slab_class *c) {
    uint32_t id = c->victim;

    c->victim = OC_SLAB_NONE;
    list_push(s, c, id);
}

/* A block with a free slot, the fullest kind first so that others may empty. */
static uint32_t block_with_room(struct oc_slabs *s, struct oc_slab_class *c) {
    for (unsigned i = OC_SLAB_LISTS; i-- > 0;) {
        if (c->lists[i] != OC_SLAB_NONE) {
            return c->lists[i];
        }
    }
    if (c->victim != OC_SLAB_NONE && block_at(s, c->victim)->used < c->slots) {
        uint32_t id = c->victim;

        victim_release(s, c); /* the class grows again: stop emptying it */
        return id;
    }
    return OC_SLAB_NONE;
}

static uint32_t take_slot(struct oc_slabs *s, struct oc_slab_class *c, uint32_t id) {
    struct oc_slab_block *b = block_at(s, id);
    uint32_t slot = b->free_head;

    if (slot != SLOT_NONE) {
        b->free_head = oc_load16(slot_at(s, c, id, slot));
    } else {
        slot = b->carved++;
    }
    c->slots_used++;
    set_used(s, c, id, b->used + 1u);
    return handle_of(c, id, slot);
}

uint32_t oc_slabs_alloc(struct oc_slabs *s, enum oc_slab_kind kind, size_t bytes) {
    uint32_t class_id = class_id_for(kind, bytes);
    struct oc_slab_class *c;
    uint32_t id;

    OC_CHECK(bytes > 2 && bytes <= OC_SLAB_BYTES_MAX);
    c = denied(s) ? NULL : class_get(s, class_id, bytes);
    if (c == NULL) {
        return OC_SLAB_NONE;
    }
    id = block_with_room(s, c);
    if (id == OC_SLAB_NONE) {
        id = run_take(s, c->run);
        if (id == OC_SLAB_NONE) {
            return OC_SLAB_NONE;
        }
        *block_at(s, id) =
            (struct oc_slab_block){.class_id = (uint16_t)class_id, .free_head = SLOT_NONE};
        c->slots_total += c->slots;
        list_push(s, c, id);
    }
    return take_slot(s, c, id);
}

/* More than a quarter of the slots free, and enough that a block can be emptied into the others. */
static bool class_sparse(const struct oc_slab_class *c) {
    uint32_t free_slots = c->slots_total - c->slots_used;

    return free_slots > c->slots_total / 4 && free_slots >= 2u * c->slots && c->slots > 1;
}

void oc_slabs_free(struct oc_slabs *s, uint32_t handle) {
    uint32_t id = handle >> OC_SLAB_BLOCK_SHIFT;
    struct oc_slab_block *b = block_at(s, id);
    uint32_t class_id = b->class_id;
    struct oc_slab_class *c = class_at(s, class_id);
    uint32_t slot = (handle & ((1u << OC_SLAB_BLOCK_SHIFT) - 1)) / (c->bytes / OC_SLAB_UNIT);
    uint8_t *p = oc_slabs_at(s, handle);

    OC_CHECK(slot < b->carved && (p[freed_mark_at(class_id)] & OC_SLAB_FREED) == 0);
#ifndef NDEBUG
    memset(p, 0xa5, c->bytes); /* whoever still uses it shall notice */
#endif
    oc_store16(p, b->free_head);
    p[freed_mark_at(class_id)] = OC_SLAB_FREED;
    b->free_head = (uint16_t)slot;
    c->slots_used--;
    if (b->used > 1) {
        set_used(s, c, id, b->used - 1u);
    } else {
        if (c->victim == id) {
            c->victim = OC_SLAB_NONE;
        } else {
            list_drop(s, c, id, b->used);
        }
        b->used = 0;
        c->slots_total -= c->slots;
        run_give(s, id, c->run);
    }
    if (class_sparse(c)) {
        s->sparse[kind_of(class_id)] = class_id;
    }
}

/* ---- compaction ---- */

static bool victim_pick(struct oc_slabs *s, struct oc_slab_class *c) {
    if (!class_sparse(c)) {
        return false;
    }
    for (unsigned i = 0; i < OC_SLAB_LISTS; i++) {
        uint32_t id = c->lists[i];

        if (id != OC_SLAB_NONE) {
            list_drop(s, c, id, block_at(s, id)->used);
            c->victim = id;
            c->victim_next = 0;
            return true;
        }
    }
    return false;
}

uint32_t oc_slabs_victim(struct oc_slabs *s, enum oc_slab_kind kind) {
    uint32_t class_id = s->sparse[kind];
    struct oc_slab_class *c;
    struct oc_slab_block *b;

    if (class_id == OC_SLAB_NONE) {
        return OC_SLAB_NONE;
    }
    c = class_at(s, class_id);
    if (c->victim == OC_SLAB_NONE && !victim_pick(s, c)) {
        s->sparse[kind] = OC_SLAB_NONE;
        return OC_SLAB_NONE;
    }
    b = block_at(s, c->victim);
    /* Everything must fit into the other blocks, or the move would need memory. */
    if (c->slots_total - c->slots_used <= (uint32_t)(c->slots - b->used)) {
        victim_release(s, c);
        s->sparse[kind] = OC_SLAB_NONE;
        return OC_SLAB_NONE;
    }
    /* Some slot is live: the block is given back when its last one is freed. What is behind the
     * cursor was moved, and nothing is allocated here meanwhile. */
    for (;;) {
        uint32_t slot = c->victim_next++;
        const uint8_t *p = slot_at(s, c, c->victim, slot);

        OC_CHECK(slot < b->carved);
        if ((p[freed_mark_at(class_id)] & OC_SLAB_FREED) == 0) {
            return handle_of(c, c->victim, slot);
        }
    }
}

uint32_t oc_slabs_realloc(struct oc_slabs *s, uint32_t handle) {
    uint32_t id = handle >> OC_SLAB_BLOCK_SHIFT;
    struct oc_slab_class *c = class_at(s, block_at(s, id)->class_id);
    uint32_t to = block_with_room(s, c);

    OC_CHECK(to != OC_SLAB_NONE && to != id);
    return take_slot(s, c, to);
}

size_t oc_slabs_object_bytes(const struct oc_slabs *s, uint32_t handle) {
    return class_at(s, block_at(s, handle >> OC_SLAB_BLOCK_SHIFT)->class_id)->bytes;
}

/* ---- accounts ---- */

uint64_t oc_slabs_count(const struct oc_slabs *s, enum oc_slab_kind kind) {
    uint64_t n = 0;

    for (uint32_t i = 0; i < OC_SLAB_CLASSES; i++) {
        if (kind_of(i) == kind && s->groups[i / OC_SLAB_GROUP] != NULL) {
            n += class_at(s, i)->slots_used;
        }
    }
    return n;
}

uint64_t oc_slabs_bytes(const struct oc_slabs *s) {
    return (uint64_t)(s->blocks_used + s->blocks_idle) * OC_SLAB_BLOCK_BYTES +
           s->chunks_mapped * sizeof(struct oc_slab_chunk) +
           s->chunks_cap * (sizeof *s->bases + sizeof *s->free + sizeof *s->chunks) +
           s->groups_used * (OC_SLAB_GROUP * sizeof(struct oc_slab_class));
}

bool oc_slabs_live(const struct oc_slabs *s, uint32_t handle, enum oc_slab_kind kind) {
    uint32_t id = handle >> OC_SLAB_BLOCK_SHIFT;
    uint32_t chunk = id / OC_SLAB_CHUNK_BLOCKS;
    uint32_t units = handle & ((1u << OC_SLAB_BLOCK_SHIFT) - 1);
    const struct oc_slab_block *b;
    const struct oc_slab_class *c;
    const uint8_t *p;

    if (handle == OC_SLAB_NONE || chunk >= s->chunks_len || s->bases[chunk] == NULL ||
        (s->free[chunk] >> (id & BLOCK_MASK) & 1) != 0) {
        return false;
    }
    b = block_at(s, id);
    if (kind_of(b->class_id) != kind) {
        return false;
    }
    c = class_at(s, b->class_id);
    p = oc_slabs_at(s, handle);
    return units % (c->bytes / OC_SLAB_UNIT) == 0 &&
           units / (c->bytes / OC_SLAB_UNIT) < b->carved &&
           (p[freed_mark_at(b->class_id)] & OC_SLAB_FREED) == 0;
}

/* One block of the class: its free list and marks agree with its counts. */
static void validate_block(const struct oc_slabs *s, const struct oc_slab_class *c, uint32_t id) {
    const struct oc_slab_block *b = block_at(s, id);
    unsigned freed = 0;
    uint32_t slot = b->free_head;

    OC_CHECK(b->carved <= c->slots && b->used <= b->carved && b->used > 0);
    for (; slot != SLOT_NONE && freed <= b->carved; freed++) {
        const uint8_t *p = slot_at(s, c, id, slot);

        OC_CHECK(slot < b->carved && (p[freed_mark_at(b->class_id)] & OC_SLAB_FREED) != 0);
        slot = oc_load16(p);
    }
    OC_CHECK(freed == (unsigned)(b->carved - b->used));
}

static void validate_class(const struct oc_slabs *s, uint32_t class_id, uint32_t blocks_left) {
    const struct oc_slab_class *c = class_at(s, class_id);
    uint32_t room = 0;
    uint32_t want_room = c->slots_total - c->slots_used;

    OC_CHECK(c->slots_used <= c->slots_total);
    for (unsigned i = 0; i < OC_SLAB_LISTS; i++) {
        uint32_t prev = OC_SLAB_NONE;

        for (uint32_t id = c->lists[i]; id != OC_SLAB_NONE; id = block_at(s, id)->next) {
            const struct oc_slab_block *b = block_at(s, id);

            OC_CHECK(blocks_left-- > 0);
            OC_CHECK(b->class_id == class_id && b->prev == prev && list_of(c, b->used) == i);
            validate_block(s, c, id);
            room += (uint32_t)(c->slots - b->used);
            prev = id;
        }
    }
    if (c->victim != OC_SLAB_NONE) {
        OC_CHECK(block_at(s, c->victim)->class_id == class_id);
        validate_block(s, c, c->victim);
        room += (uint32_t)(c->slots - block_at(s, c->victim)->used);
    }
    OC_CHECK(room == want_room);
}

void oc_slabs_validate(const struct oc_slabs *s) {
    uint32_t used = 0;
    uint32_t idle = 0;
    uint32_t taken = 0;
    uint32_t empty = 0;

    for (uint32_t i = 0; i < s->chunks_len; i++) {
        if (s->bases[i] == NULL) {
            OC_CHECK(s->free[i] == 0);
            continue;
        }
        OC_CHECK(i >= s->chunk_hint || s->free[i] == 0);
        OC_CHECK((s->chunks[i]->idle & ~s->free[i]) == 0);
        used += OC_SLAB_CHUNK_BLOCKS - (uint32_t)__builtin_popcountll(s->free[i]);
        idle += (uint32_t)__builtin_popcountll(s->chunks[i]->idle);
        empty += s->free[i] == UINT64_MAX;
    }
    OC_CHECK(used == s->blocks_used && idle == s->blocks_idle && empty == s->chunks_empty);
    for (uint32_t i = 0; i < OC_SLAB_CLASSES; i++) {
        if (s->groups[i / OC_SLAB_GROUP] != NULL && class_at(s, i)->bytes != 0) {
            const struct oc_slab_class *c = class_at(s, i);

            validate_class(s, i, s->blocks_used);
            taken += c->slots_total / c->slots * c->run;
        }
    }
    OC_CHECK(taken == s->blocks_used);
}
