/* Physical bytes. Segments count with what is reserved for them, value files with whole blocks. */
#include "store/seglog.h"

#define RESERVE_MAX (UINT64_C(2) << 30)

void oc_space_init(struct oc_space *s, const struct oc_disk *disk, uint64_t max_disk_bytes) {
    s->disk = disk;
    s->configured = max_disk_bytes;
    atomic_init(&s->used, 0);
    atomic_init(&s->cap, max_disk_bytes);
    oc_space_refresh(s);
}

void oc_space_refresh(struct oc_space *s) {
    struct oc_disk_space v;

    /* A volume that cannot be asked keeps the cap it had; a full one still says so at each write.
     */
    if (s->configured != 0 || s->disk->space(s->disk->ctx, &v, NULL) != 0) {
        return;
    }
    uint64_t reserve = v.total_bytes / 10 < RESERVE_MAX ? v.total_bytes / 10 : RESERVE_MAX;
    uint64_t have = atomic_load(&s->used) + v.free_bytes;

    atomic_store(&s->cap, have > reserve ? have - reserve : 0);
}

bool oc_space_take(struct oc_space *s, uint64_t bytes) {
    uint64_t used = atomic_load_explicit(&s->used, memory_order_relaxed);
    uint64_t cap = atomic_load_explicit(&s->cap, memory_order_relaxed);

    do {
        if (used > cap || bytes > cap - used) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&s->used, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

void oc_space_force(struct oc_space *s, uint64_t bytes) {
    atomic_fetch_add_explicit(&s->used, bytes, memory_order_relaxed);
}

void oc_space_give(struct oc_space *s, uint64_t bytes) {
    atomic_fetch_sub_explicit(&s->used, bytes, memory_order_relaxed);
}
