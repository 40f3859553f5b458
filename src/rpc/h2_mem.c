/* Small memory for nghttp2: it takes and gives back about a dozen small objects per request, in
 * bursts that glibc's thread cache is too small for. Each worker keeps free objects by size; all
 * its sessions share them. Sanitizer builds use malloc, which sees more. */
#include <stdlib.h>

#include "rpc/server_internal.h"

#define CLASS_BYTES      32u          /* sizes are rounded up to this */
#define CLASS_KEPT_BYTES (512u << 10) /* free memory kept per class */

/* In front of every object; 16 bytes keep the alignment that malloc promises. */
struct head {
    _Alignas(16) union {
        struct head *next; /* while free */
        size_t size_class; /* SERVER_MEM_CLASSES: straight from malloc */
    };
};

static size_t class_of(size_t size) {
    return size == 0 ? 0 : (size - 1) / CLASS_BYTES;
}

static void *mem_malloc(size_t size, void *user) {
    struct server_mem *mem = user;
    size_t c = class_of(size);
    struct head *h;

    if (c >= SERVER_MEM_CLASSES) {
        h = size > SIZE_MAX - sizeof *h ? NULL : malloc(sizeof *h + size);
        c = SERVER_MEM_CLASSES;
    } else if ((h = mem->free[c]) != NULL) {
        mem->free[c] = h->next;
        mem->kept[c]--;
    } else {
        h = malloc(sizeof *h + (c + 1) * CLASS_BYTES);
    }
    if (h == NULL) {
        return NULL;
    }
    h->size_class = c;
    return h + 1;
}

static void mem_free(void *p, void *user) {
    struct server_mem *mem = user;

    if (p == NULL) {
        return;
    }
    struct head *h = (struct head *)p - 1;
    size_t c = h->size_class;
    if (c == SERVER_MEM_CLASSES || mem->kept[c] >= CLASS_KEPT_BYTES / ((c + 1) * CLASS_BYTES)) {
        free(h);
        return;
    }
    h->next = mem->free[c];
    mem->free[c] = h;
    mem->kept[c]++;
}

static void *mem_calloc(size_t n, size_t size, void *user) {
    size_t total;
    void *p = oc_mul_ok(n, size, &total) ? mem_malloc(total, user) : NULL;

    if (p != NULL) {
        memset(p, 0, total);
    }
    return p;
}

static void *mem_realloc(void *p, size_t size, void *user) {
    if (p == NULL) {
        return mem_malloc(size, user);
    }
    struct head *h = (struct head *)p - 1;
    if (h->size_class == SERVER_MEM_CLASSES && class_of(size) >= SERVER_MEM_CLASSES) {
        h = size > SIZE_MAX - sizeof *h ? NULL : realloc(h, sizeof *h + size);
        return h != NULL ? h + 1 : NULL;
    }
    size_t have = h->size_class == SERVER_MEM_CLASSES ? size : (h->size_class + 1) * CLASS_BYTES;
    if (size <= have && h->size_class != SERVER_MEM_CLASSES) {
        return p;
    }
    void *q = mem_malloc(size, user);
    if (q != NULL) {
        /* From malloc to a class means that it shrinks: size bytes are there. */
        memcpy(q, p, have < size ? have : size);
        mem_free(p, user);
    }
    return q;
}

void server_mem_init(struct server_mem *mem, nghttp2_mem *ret) {
    *mem = (struct server_mem){0};
    *ret = (nghttp2_mem){mem, mem_malloc, mem_free, mem_calloc, mem_realloc};
}

void server_mem_done(struct server_mem *mem) {
    for (size_t c = 0; c < SERVER_MEM_CLASSES; c++) {
        while (mem->free[c] != NULL) {
            struct head *h = mem->free[c];

            mem->free[c] = h->next;
            free(h);
        }
    }
}
