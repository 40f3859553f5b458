/* Budgets, arenas, pools, block pools and growable buffers. Everything here is bounded and answers
 * an error instead of aborting; what is large is mapped once and reused. */
#include "base/mem.h"

#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"

#define ARENA_BLOCK_BYTES 4096u

void oc_mem_init(void) {
    (void)mallopt(M_MMAP_THRESHOLD, 64 << 20); /* failure only costs speed */
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

void oc_budget_init(struct oc_budget *b, uint64_t limit_bytes) {
    atomic_init(&b->used, 0);
    atomic_init(&b->denied, 0);
    b->limit = limit_bytes;
}

bool oc_budget_take(struct oc_budget *b, uint64_t bytes) {
    uint64_t used = atomic_load_explicit(&b->used, memory_order_relaxed);

    do {
        if (bytes > b->limit || used > b->limit - bytes) {
            atomic_fetch_add_explicit(&b->denied, 1, memory_order_relaxed);
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&b->used, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

void oc_budget_give(struct oc_budget *b, uint64_t bytes) {
    uint64_t before = atomic_fetch_sub_explicit(&b->used, bytes, memory_order_relaxed);

    OC_CHECK(before >= bytes);
}

struct oc_arena_block {
    struct oc_arena_block *next;
    size_t cap;
    _Alignas(16) uint8_t data[];
};

void oc_arena_init(struct oc_arena *a, size_t max_bytes) {
    *a = (struct oc_arena){.max_bytes = max_bytes};
}

void oc_arena_done(struct oc_arena *a) {
    while (a->block != NULL) {
        struct oc_arena_block *next = a->block->next;

        free(a->block);
        a->block = next;
    }
    a->used = a->total = 0;
}

void oc_arena_reset(struct oc_arena *a) {
    while (a->block != NULL && a->block->next != NULL) {
        struct oc_arena_block *next = a->block->next;

        free(a->block);
        a->block = next;
    }
    a->used = a->total = 0;
}

void *oc_arena_alloc(struct oc_arena *a, size_t len_bytes) {
    size_t need;

    if (!oc_add_ok(len_bytes, (size_t)15, &need)) {
        return NULL;
    }
    need &= ~(size_t)15;
    if (need > a->max_bytes || a->total > a->max_bytes - need) {
        return NULL;
    }
    if (a->block == NULL || a->block->cap - a->used < need) {
        size_t cap = need > ARENA_BLOCK_BYTES ? need : ARENA_BLOCK_BYTES;
        struct oc_arena_block *block = malloc(sizeof *block + cap);

        if (block == NULL) {
            return NULL;
        }
        block->next = a->block;
        block->cap = cap;
        a->block = block;
        a->used = 0;
    }
    void *p = a->block->data + a->used;
    a->used += need;
    a->total += need;
    return p;
}

struct oc_span oc_arena_copy(struct oc_arena *a, struct oc_span s) {
    uint8_t *p = s.len == SIZE_MAX ? NULL : oc_arena_alloc(a, s.len + 1);

    if (p == NULL) {
        return OC_SPAN_EMPTY;
    }
    if (s.len > 0) {
        memcpy(p, s.p, s.len);
    }
    p[s.len] = 0;
    return oc_span(p, s.len);
}

void oc_pool_init(struct oc_pool *p, size_t object_bytes, size_t max_objects, size_t max_cached) {
    size_t bytes = object_bytes < sizeof(void *) ? sizeof(void *) : object_bytes;

    *p = (struct oc_pool){
        .object_bytes = bytes, .max_objects = max_objects, .max_cached = max_cached};
}

void oc_pool_done(struct oc_pool *p) {
    OC_CHECK(p->live == 0);
    while (p->free_list != NULL) {
        void *next = *(void **)p->free_list;

        free(p->free_list);
        p->free_list = next;
    }
    p->cached = 0;
}

void *oc_pool_get(struct oc_pool *p) {
    void *object = p->free_list;

    if (p->max_objects != 0 && p->live >= p->max_objects) {
        return NULL;
    }
    if (object != NULL) {
        p->free_list = *(void **)object;
        p->cached--;
        memset(object, 0, p->object_bytes);
    } else {
        object = calloc(1, p->object_bytes);
        if (object == NULL) {
            return NULL;
        }
    }
    p->live++;
    return object;
}

void oc_pool_put(struct oc_pool *p, void *object) {
    OC_CHECK(p->live > 0);
    p->live--;
    if (p->cached >= p->max_cached) {
        free(object);
        return;
    }
    *(void **)object = p->free_list;
    p->free_list = object;
    p->cached++;
}

struct oc_blockpool {
    pthread_mutex_t lock;
    struct oc_block *free_list;
    size_t block_bytes;
    uint64_t limit_bytes;
    uint64_t allocated_bytes;
    uint64_t free_bytes;
    uint64_t denied;
};

struct oc_blockpool *oc_blockpool_new(size_t block_bytes, uint64_t max_bytes) {
    struct oc_blockpool *p = calloc(1, sizeof *p);

    OC_CHECK(block_bytes > 0 && block_bytes % 4096 == 0);
    if (p == NULL) {
        return NULL;
    }
    OC_CHECK(pthread_mutex_init(&p->lock, NULL) == 0);
    p->block_bytes = block_bytes;
    p->limit_bytes = max_bytes;
    return p;
}

void oc_blockpool_free(struct oc_blockpool *p) {
    if (p == NULL) {
        return;
    }
    OC_CHECK(p->free_bytes == p->allocated_bytes);
    while (p->free_list != NULL) {
        struct oc_block *b = p->free_list;

        p->free_list = b->next_free;
        (void)munmap(b->data, b->cap); /* nothing could be done about a failure */
        free(b);
    }
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

static void block_release(struct oc_ref *ref) {
    struct oc_block *b = OC_CONTAINER(ref, struct oc_block, ref);
    struct oc_blockpool *p = b->pool;

    (void)pthread_mutex_lock(&p->lock);
    b->next_free = p->free_list;
    p->free_list = b;
    p->free_bytes += p->block_bytes;
    (void)pthread_mutex_unlock(&p->lock);
}

static struct oc_block *block_map(struct oc_blockpool *p) {
    struct oc_block *b = calloc(1, sizeof *b);

    if (b == NULL) {
        return NULL;
    }
    b->data = mmap(NULL, p->block_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (b->data == MAP_FAILED) {
        free(b);
        return NULL;
    }
    b->pool = p;
    b->cap = p->block_bytes;
    return b;
}

struct oc_block *oc_block_get(struct oc_blockpool *p) {
    struct oc_block *b;

    (void)pthread_mutex_lock(&p->lock);
    b = p->free_list;
    if (b != NULL) {
        p->free_list = b->next_free;
        p->free_bytes -= p->block_bytes;
    } else if (p->allocated_bytes + p->block_bytes > p->limit_bytes) {
        p->denied++;
    } else if ((b = block_map(p)) != NULL) {
        p->allocated_bytes += p->block_bytes;
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (b != NULL) {
        oc_ref_init(&b->ref, block_release);
        b->len = 0;
        b->next_free = NULL;
    }
    return b;
}

void oc_blockpool_stats(struct oc_blockpool *p, struct oc_blockpool_stats *ret) {
    (void)pthread_mutex_lock(&p->lock);
    *ret = (struct oc_blockpool_stats){
        .allocated_bytes = p->allocated_bytes,
        .in_use_bytes = p->allocated_bytes - p->free_bytes,
        .denied = p->denied,
        .limit_bytes = p->limit_bytes,
    };
    (void)pthread_mutex_unlock(&p->lock);
}

void oc_buf_init(struct oc_buf *b, size_t max_bytes) {
    *b = (struct oc_buf){.max_bytes = max_bytes};
}

void oc_buf_done(struct oc_buf *b) {
    free(b->data);
    *b = (struct oc_buf){.max_bytes = b->max_bytes};
}

int oc_buf_reserve(struct oc_buf *b, size_t extra) {
    size_t need;

    if (!oc_add_ok(b->len, extra, &need) || need > b->max_bytes) {
        return OC_E_EXHAUSTED;
    }
    if (need <= b->cap) {
        return OC_OK;
    }
    size_t cap = b->cap < 256 ? 256 : b->cap;
    while (cap < need) {
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    }
    if (cap > b->max_bytes) {
        cap = b->max_bytes;
    }
    uint8_t *data = realloc(b->data, cap);
    if (data == NULL) {
        return OC_E_EXHAUSTED;
    }
    b->data = data;
    b->cap = cap;
    return OC_OK;
}

int oc_buf_append(struct oc_buf *b, const void *p, size_t len) {
    int r = oc_buf_reserve(b, len);

    if (r < 0) {
        return r;
    }
    if (len > 0) {
        memcpy(b->data + b->len, p, len);
        b->len += len;
    }
    return OC_OK;
}

int oc_buf_printf(struct oc_buf *b, const char *fmt, ...) {
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        return OC_E_INTERNAL;
    }
    int r = oc_buf_reserve(b, (size_t)n + 1);
    if (r < 0) {
        return r;
    }
    va_start(ap, fmt);
    (void)vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return OC_OK;
}
