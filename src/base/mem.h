/* Memory: arenas for one request, typed pools for long-lived objects, budgets for everything
 * bounded, and counted slices for payload bytes that pass between layers without being copied. */
#ifndef OC_BASE_MEM_H
#define OC_BASE_MEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/span.h"

/* Set the allocator up once at process start: mmap threshold 64 MiB and trim threshold 1 GiB. A
 * page fault costs 2 us on virtual machines (docs/design/dependencies.md), so large buffers stay
 * mapped. */
void oc_mem_init(void);

/* ---- budget: a number of bytes that many threads share ---- */
struct oc_budget {
    _Atomic uint64_t used;
    uint64_t limit;          /* bytes; fixed after init */
    _Atomic uint64_t denied; /* how often a taker was refused; exported as a metric */
};

void oc_budget_init(struct oc_budget *b, uint64_t limit_bytes);
/* True when the bytes were taken. Never waits. */
bool oc_budget_take(struct oc_budget *b, uint64_t bytes);
void oc_budget_give(struct oc_budget *b, uint64_t bytes);

/* ---- arena: freed as a whole. Not thread-safe. ---- */
struct oc_arena {
    struct oc_arena_block *block;
    size_t used;      /* in the current block */
    size_t total;     /* bytes handed out since the last reset */
    size_t max_bytes; /* bound on total */
};

void oc_arena_init(struct oc_arena *a, size_t max_bytes);
void oc_arena_done(struct oc_arena *a);
/* Forget everything; keeps the first block for the next request. */
void oc_arena_reset(struct oc_arena *a);
/* 16-byte aligned; NULL when the bound or the memory is exhausted. */
void *oc_arena_alloc(struct oc_arena *a, size_t len_bytes);
/* A copy with a terminating zero behind it; p is NULL on failure. */
struct oc_span oc_arena_copy(struct oc_arena *a, struct oc_span s);

/* ---- pool: objects of one size with a free list. Not thread-safe: one per thread. ---- */
struct oc_pool {
    void *free_list;
    size_t object_bytes;
    size_t max_objects; /* bound on live + free objects; 0 = none */
    size_t live;
    size_t cached;
    size_t max_cached; /* objects kept on the free list; the rest goes back to malloc */
};

void oc_pool_init(struct oc_pool *p, size_t object_bytes, size_t max_objects, size_t max_cached);
void oc_pool_done(struct oc_pool *p); /* live must be 0 */
void *oc_pool_get(struct oc_pool *p); /* zeroed; NULL when full or out of memory */
void oc_pool_put(struct oc_pool *p, void *object);

/* ---- counted owners and slices ---- */
struct oc_ref {
    _Atomic uint32_t refs;
    void (*release)(struct oc_ref *ref); /* called once, by whoever drops the last reference */
};

static inline void oc_ref_init(struct oc_ref *r, void (*release)(struct oc_ref *ref)) {
    atomic_init(&r->refs, 1);
    r->release = release;
}
static inline void oc_ref_get(struct oc_ref *r) {
    if (r != NULL) {
        atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    }
}
static inline void oc_ref_put(struct oc_ref *r) {
    if (r != NULL && atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) {
        r->release(r);
    }
}

/* Bytes with a counted owner. owner NULL: the bytes are static or outlive every user. */
struct oc_slice {
    const uint8_t *p;
    size_t len;
    struct oc_ref *owner;
};

/* ---- blocks: large pooled buffers for payload; thread-safe; never mapped per request ---- */
struct oc_block {
    struct oc_ref ref;
    struct oc_blockpool *pool;
    struct oc_block *next_free;
    uint8_t *data;
    size_t cap; /* usable bytes: the pool's block_bytes */
    size_t len; /* bytes in use; the user's own */
};

struct oc_blockpool;

/* A pool of blocks of `block_bytes` (multiple of 4096), at most `max_bytes` of them in all. Grown
 * on demand; memory once taken is kept and reused. */
struct oc_blockpool *oc_blockpool_new(size_t block_bytes, uint64_t max_bytes);
void oc_blockpool_free(struct oc_blockpool *p); /* every block must be back */
/* One reference held by the caller; NULL when the bound is reached. */
struct oc_block *oc_block_get(struct oc_blockpool *p);
static inline void oc_block_put(struct oc_block *b) {
    oc_ref_put(&b->ref);
}
struct oc_blockpool_stats {
    uint64_t allocated_bytes; /* mapped so far */
    uint64_t in_use_bytes;
    uint64_t denied; /* requests refused at the bound */
    uint64_t limit_bytes;
};
void oc_blockpool_stats(struct oc_blockpool *p, struct oc_blockpool_stats *ret);

/* ---- growable byte buffer with a bound; not thread-safe ---- */
struct oc_buf {
    uint8_t *data;
    size_t len;
    size_t cap;
    size_t max_bytes; /* appending beyond it fails */
};

void oc_buf_init(struct oc_buf *b, size_t max_bytes);
void oc_buf_done(struct oc_buf *b);
/* Room for `extra` more bytes behind len; OC_E_EXHAUSTED at the bound or out of memory. */
int oc_buf_reserve(struct oc_buf *b, size_t extra);
int oc_buf_append(struct oc_buf *b, const void *p, size_t len);
int oc_buf_printf(struct oc_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline struct oc_span oc_buf_span(const struct oc_buf *b) {
    return oc_span(b->data, b->len);
}

#endif
