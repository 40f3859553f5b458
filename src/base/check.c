/* What happens when a check fails; see check.h. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/event.h"

static _Atomic(struct oc_count_site *) count_sites;

_Noreturn void oc_check_failed(const char *expr, const char *file, int line, const char *func) {
    char text[512];
    int n =
        snprintf(text, sizeof text, "check failed: %s at %s:%d in %s\n", expr, file, line, func);

    if (n > 0) {
        size_t len = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;

        (void)!write(STDERR_FILENO, text, len); /* about to abort */
    }
    oc_event_dump(STDERR_FILENO);
    abort();
}

void oc_count_hit(struct oc_count_site *site) {
    if (atomic_fetch_add_explicit(&site->hits, 1, memory_order_relaxed) != 0) {
        return;
    }
    /* First hit: link the site in. Exactly one thread sees 0 before the addition. */
    struct oc_count_site *head = atomic_load(&count_sites);
    do {
        site->next = head;
    } while (!atomic_compare_exchange_weak(&count_sites, &head, site));
    oc_event(OC_EV_COUNT_SITE, (uint64_t)site->line, 0);
}

const struct oc_count_site *oc_count_sites(void) {
    return atomic_load(&count_sites);
}

void oc_free_ptr(void *variable_address) {
    free(*(void **)variable_address);
}
