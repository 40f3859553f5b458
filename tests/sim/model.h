/* What the store must answer, kept beside it: every write with its order in the log, whether it was
 * acknowledged, and what may be seen after which kind of end. The model knows nothing of how the
 * store works; it only knows the promises. */
#ifndef OC_SIM_MODEL_H
#define OC_SIM_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/span.h"

#define MODEL_KEYS 48u

/* One write of one key. value 0 is a deletion. */
struct model_write {
    uint64_t seq; /* order of appending, over all keys */
    uint64_t value;
    uint32_t len;
    uint32_t expires_at_s;
    bool acked;
    bool nothing; /* a deletion that found nothing to delete: it changed nothing and has no place in
                     the log */
};

struct model_key {
    uint8_t name[80];
    size_t name_len;
    struct model_write
        *writes; /* since the last start, oldest first; [0] is the state at the start */
    size_t count, cap;
    size_t floor;   /* reads have seen writes[floor]: nothing older may be seen */
    uint64_t *ever; /* value ids this key ever had, with lengths beside them */
    uint32_t *ever_len;
    size_t ever_count, ever_cap;
};

struct model {
    struct model_key keys[MODEL_KEYS];
    uint64_t next_seq, next_value;
    uint64_t wall_ns;     /* the virtual wall clock */
    uint64_t wall_max_ns; /* the greatest the store has seen */
    char fault[512];      /* what was violated; empty = nothing */
};

void model_init(struct model *m, uint64_t wall_ns);
void model_done(struct model *m);
struct oc_span model_name(const struct model_key *k);

/* Fill len bytes of the value with this id. */
void model_value(uint64_t value, uint8_t *dst, size_t len);

/* A write was given to the store (its place in the log is now). Returns its index among the key's
 * writes. */
size_t model_begin(struct model *m, struct model_key *k, uint64_t value, uint32_t len,
                   uint32_t expires_at_s);
void model_ack(struct model_key *k, size_t index);
/* A deletion was acknowledged that wrote nothing: right only if a miss was possible when it was
 * given to the store, which `was_possible` says (model_may_miss at that time). */
void model_ack_nothing(struct model *m, struct model_key *k, size_t index, bool was_possible);
bool model_may_miss(const struct model *m, const struct model_key *k);

/* What a read returned: found with bytes, or a miss. */
struct model_seen {
    bool found;
    struct oc_span bytes;
    uint32_t expires_at_s; /* tells empty values of different writes apart */
};

/* In normal running and after the death of the process: the newest acknowledged write or one in
 * flight behind it. Records a violation and returns false otherwise. */
bool model_check_read(struct model *m, struct model_key *k, const struct model_seen *seen);
/* True when the key must be listed, false when it must not; `either` when both are right. */
bool model_listed(const struct model *m, const struct model_key *k, bool *either);

/* After a start: what is there now is the new beginning. */
void model_collapse(struct model *m, struct model_key *k, const struct model_seen *seen);
/* Any value this key ever had, or a miss: the weakest promise, never wrong bytes. */
bool model_check_ever(struct model *m, struct model_key *k, const struct model_seen *seen);

/* After a power loss: is there one point in the log such that every key shows its state at that
 * point, and is it behind every write with seq <= floor_seq? */
bool model_check_prefix(struct model *m, const struct model_seen *seen, uint64_t floor_seq);

void model_fault(struct model *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
