/* What the tests of the store share: a store on the real disk in a directory of its own, a clock
 * that the test moves, and values that can be told apart. */
#ifndef OC_TESTS_STORE_RIG_H
#define OC_TESTS_STORE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/seglog/format.h"
#include "store/objects.h"

struct rig {
    char dir[256];
    struct oc_disk *disk;
    struct oc_clock clock;
    _Atomic uint64_t wall_ns, mono_ns;
    struct oc_objects_config cfg; /* the test may change it before rig_open */
    struct oc_objects *s;
};

void rig_init(struct rig *r);
/* The directory and all in it. */
void rig_done(struct rig *r);
/* Open and load; fails the test when that fails. */
void rig_open(struct rig *r);
/* Open and load; returns what failed. */
int rig_try_open(struct rig *r, struct oc_error *err);
void rig_close(struct rig *r, bool clean);
void rig_reopen(struct rig *r, bool clean);
/* Let time pass. */
void rig_pass_ms(struct rig *r, uint64_t ms);

/* The bytes of value number `id`, of which any part differs from the same part of another. */
void rig_fill(uint64_t id, void *dst, size_t len);

/* As one batch of one; > OC_INLINE_MAX goes through an upload. Return the result. */
int rig_put(struct rig *r, const char *key, uint64_t id, size_t len);
int rig_put_ttl(struct rig *r, const char *key, uint64_t id, size_t len, uint32_t expires_at_s);
int rig_delete(struct rig *r, const char *key);
/* 0 and *ret_len with malloc'ed bytes, or OC_E_NOT_FOUND, OC_E_DATA_LOSS, OC_E_UNAVAILABLE. */
int rig_get(struct rig *r, const char *key, uint8_t **ret, size_t *ret_len);

/* The key has exactly this value. */
void rig_expect(struct rig *r, const char *key, uint64_t id, size_t len);
void rig_expect_missing(struct rig *r, const char *key);
/* 1 when it has exactly this value, 0 when it is a miss; fails the test on any other bytes. */
int rig_has(struct rig *r, const char *key, uint64_t id, size_t len);

/* Files of the directory, as the outside sees them. */
void rig_path(const struct rig *r, const char *name, char ret[512]);
/* The nth (from 0, by name) regular file of a subdirectory; false when there are fewer. */
bool rig_nth_file(const struct rig *r, const char *sub, size_t n, char ret[512]);
size_t rig_count_files(const struct rig *r, const char *sub);
size_t rig_count_values(const struct rig *r);
uint64_t rig_file_size(const char *path);
void rig_truncate(const char *path, uint64_t len);
void rig_flip(const char *path, uint64_t offset, uint8_t mask);
void rig_write_file(const char *path, const void *bytes, size_t len);

#endif
