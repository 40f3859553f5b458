/* Listing: the shards' trees merged in key order. Each shard has a cursor and a small buffer of
 * keys fetched under its lock; the smallest head of all goes out. Memory depends on the number of
 * shards and on key lengths, never on the limit. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "store/store.h"

#define FETCH_BYTES 4096u /* a shard's buffer; one key that needs more gets it */
#define FETCH_MAX   128u  /* entries per visit */
#define VISIT_MAX   1024u /* entries looked at under one lock */

struct item { /* in a buffer, at 8 bytes; the key follows */
    struct oc_entry entry;
    uint32_t key_len;
    uint32_t total;
};

struct cursor {
    uint8_t *buffer;
    size_t cap, len, at;
    bool done;      /* nothing behind what the buffer has */
    bool exclusive; /* of `last` */
    uint8_t *last;  /* go on behind (or at) this key */
    size_t last_len, last_cap;
};

struct listing {
    struct oc_objects *s;
    struct oc_span prefix;
    uint32_t now_s;
    size_t fetch; /* entries to fetch per visit */
    struct cursor *cursors;
    unsigned *heap; /* cursors with a head, smallest first */
    unsigned heap_count;
};

struct visit {
    struct listing *l;
    struct cursor *c;
    size_t visited, fetched;
    bool stopped; /* before the end of the tree */
    int rc;
};

static struct item *head_of(const struct cursor *c) {
    return (struct item *)(void *)(c->buffer + c->at);
}

static struct oc_span key_of(const struct item *i) {
    return oc_span((const uint8_t *)(i + 1), i->key_len);
}

static int remember(struct cursor *c, struct oc_span key, bool exclusive) {
    if (key.len > c->last_cap) {
        size_t cap = key.len < 256 ? 256 : key.len;
        uint8_t *grown = realloc(c->last, cap);

        if (grown == NULL) {
            return OC_E_EXHAUSTED;
        }
        c->last = grown;
        c->last_cap = cap;
    }
    if (key.len > 0) {
        memcpy(c->last, key.p, key.len);
    }
    c->last_len = key.len;
    c->exclusive = exclusive;
    return 0;
}

static bool is_live(const struct listing *l, const struct oc_entry *e) {
    return (e->flags & (OC_ENTRY_TOMBSTONE | OC_ENTRY_LOST)) == 0 &&
           (e->expires_at_s == 0 || l->now_s < e->expires_at_s);
}

static int grow(struct cursor *c, size_t need) {
    size_t cap = need > FETCH_BYTES ? need : FETCH_BYTES;
    uint8_t *grown = realloc(c->buffer, cap);

    if (grown == NULL) {
        return OC_E_EXHAUSTED;
    }
    c->buffer = grown;
    c->cap = cap;
    return 0;
}

static int fetch_one(void *arg, struct oc_span key, const struct oc_entry *e) {
    struct visit *v = arg;
    struct cursor *c = v->c;
    size_t total = (sizeof(struct item) + key.len + 7) & ~(size_t)7;

    if (!oc_span_starts_with(key, v->l->prefix)) {
        c->done = true;
        return 1;
    }
    bool live = is_live(v->l, e);
    if (live && c->len + total > c->cap) {
        if (c->len > 0) {
            v->stopped = true; /* full; this key is the next visit's first */
            return 1;
        }
        v->rc = grow(c, total);
    }
    if (v->rc == 0) {
        v->rc = remember(c, key, true);
    }
    if (v->rc != 0) {
        return 1;
    }
    if (live) {
        struct item *i = (struct item *)(void *)(c->buffer + c->len);

        *i = (struct item){.entry = *e, .key_len = (uint32_t)key.len, .total = (uint32_t)total};
        memcpy(i + 1, key.p, key.len);
        c->len += total;
        v->fetched++;
    }
    v->visited++;
    v->stopped = v->fetched >= v->l->fetch || v->visited >= VISIT_MAX;
    return v->stopped;
}

/* The next keys of a shard; more than one visit when what it finds is dead. */
static int refill(struct listing *l, unsigned shard) {
    struct cursor *c = &l->cursors[shard];

    c->len = 0;
    c->at = 0;
    while (c->len == 0 && !c->done) {
        struct visit v = {.l = l, .c = c};
        struct oc_shard *sh = &l->s->shards[shard];
        /* The walk's start must not be the memory that the walk writes to. */
        uint8_t small[256], *copy = small;

        if (c->last_len > sizeof small) {
            copy = malloc(c->last_len);
            if (copy == NULL) {
                return OC_E_EXHAUSTED;
            }
        }
        if (c->last_len > 0) {
            memcpy(copy, c->last, c->last_len);
        }
        pthread_mutex_lock(&sh->mu);
        oc_index_walk(sh->index, oc_span(copy, c->last_len), c->exclusive, fetch_one, &v);
        pthread_mutex_unlock(&sh->mu);
        if (copy != small) {
            free(copy);
        }
        if (v.rc != 0) {
            return v.rc;
        }
        c->done = c->done || !v.stopped;
    }
    return 0;
}

/* ---- a binary heap of shards by their head's key ---- */

static bool less(const struct listing *l, unsigned a, unsigned b) {
    return oc_span_compare(key_of(head_of(&l->cursors[a])), key_of(head_of(&l->cursors[b]))) < 0;
}

static void sift_down(struct listing *l, unsigned at) {
    for (;;) {
        unsigned child = 2 * at + 1;

        if (child >= l->heap_count) {
            return;
        }
        if (child + 1 < l->heap_count && less(l, l->heap[child + 1], l->heap[child])) {
            child++;
        }
        if (!less(l, l->heap[child], l->heap[at])) {
            return;
        }
        unsigned t = l->heap[at];
        l->heap[at] = l->heap[child];
        l->heap[child] = t;
        at = child;
    }
}

/* Past the smallest head. */
static int advance(struct listing *l) {
    unsigned shard = l->heap[0];
    struct cursor *c = &l->cursors[shard];

    c->at += head_of(c)->total;
    if (c->at >= c->len) {
        int rc = refill(l, shard);

        if (rc != 0) {
            return rc;
        }
        if (c->len == 0) {
            l->heap[0] = l->heap[--l->heap_count];
        }
    }
    sift_down(l, 0);
    return 0;
}

static int start(struct listing *l, struct oc_span after) {
    bool behind = oc_span_compare(after, l->prefix) >= 0 && after.len > 0;

    for (unsigned i = 0; i < l->s->shard_count; i++) {
        struct cursor *c = &l->cursors[i];
        int rc = remember(c, behind ? after : l->prefix, behind);

        if (rc == 0) {
            rc = grow(c, 0);
        }
        if (rc == 0) {
            rc = refill(l, i);
        }
        if (rc != 0) {
            return rc;
        }
        if (c->len > 0) {
            l->heap[l->heap_count++] = i;
        }
    }
    for (unsigned i = l->heap_count / 2; i > 0; i--) {
        sift_down(l, i - 1);
    }
    return 0;
}

static int merge(struct listing *l, size_t limit,
                 int (*each)(void *arg, struct oc_span key, const struct oc_object *obj), void *arg,
                 bool *more) {
    size_t count = 0;

    while (l->heap_count > 0) {
        struct item *i = head_of(&l->cursors[l->heap[0]]);
        struct oc_object obj = {.version = i->entry.version,
                                .len = i->entry.value_len,
                                .expires_at_s = i->entry.expires_at_s,
                                .segment = i->entry.segment,
                                .offset = i->entry.offset,
                                .flags = i->entry.flags};

        if (count >= limit) {
            *more = true;
            return 0;
        }
        count++;
        bool stop = each(arg, key_of(i), &obj) != 0;
        int rc = advance(l);
        if (rc != 0 || stop) {
            *more = l->heap_count > 0;
            return rc;
        }
    }
    *more = false;
    return 0;
}

int oc_objects_list(struct oc_objects *s, struct oc_span prefix, struct oc_span after, size_t limit,
                    int (*each)(void *arg, struct oc_span key, const struct oc_object *obj),
                    void *arg, bool *more) {
    struct listing l = {.s = s, .prefix = prefix, .now_s = oc_objects_time_s(s)};
    int rc = OC_E_EXHAUSTED;

    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    *more = false;
    /* Keys are spread evenly: a shard's share of the answer, and a little. */
    l.fetch = limit / s->shard_count + 2;
    l.fetch = l.fetch > FETCH_MAX ? FETCH_MAX : l.fetch;
    l.cursors = calloc(s->shard_count, sizeof *l.cursors);
    l.heap = calloc(s->shard_count, sizeof *l.heap);
    if (l.cursors != NULL && l.heap != NULL) {
        rc = start(&l, after);
    }
    if (rc == 0) {
        rc = merge(&l, limit, each, arg, more);
    }
    for (unsigned i = 0; l.cursors != NULL && i < s->shard_count; i++) {
        free(l.cursors[i].buffer);
        free(l.cursors[i].last);
    }
    free(l.cursors);
    free(l.heap);
    return rc;
}
