/* Intrusive doubly linked list. An initialised node that is in no list points to itself. */
#ifndef OC_BASE_LIST_H
#define OC_BASE_LIST_H

#include "base/check.h"

struct oc_list {
    struct oc_list *next;
    struct oc_list *prev;
};

static inline void oc_list_init(struct oc_list *l) {
    l->next = l;
    l->prev = l;
}

static inline bool oc_list_empty(const struct oc_list *l) {
    return l->next == l;
}

static inline void oc_list_insert_before(struct oc_list *at, struct oc_list *n) {
    n->prev = at->prev;
    n->next = at;
    at->prev->next = n;
    at->prev = n;
}

static inline void oc_list_push_back(struct oc_list *head, struct oc_list *n) {
    oc_list_insert_before(head, n);
}

static inline void oc_list_push_front(struct oc_list *head, struct oc_list *n) {
    oc_list_insert_before(head->next, n);
}

static inline void oc_list_remove(struct oc_list *n) {
    n->prev->next = n->next;
    n->next->prev = n->prev;
    oc_list_init(n);
}

static inline struct oc_list *oc_list_pop_front(struct oc_list *head) {
    struct oc_list *n = head->next;

    if (n == head) {
        return NULL;
    }
    oc_list_remove(n);
    return n;
}

#define oc_list_each(it, head) for (struct oc_list *it = (head)->next; it != (head); it = it->next)
#define oc_list_each_safe(it, tmp, head)                                                           \
    for (struct oc_list *it = (head)->next, *tmp = it->next; it != (head); it = tmp, tmp = it->next)

#endif
