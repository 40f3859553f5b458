/* Three grades of checks, object magics and the cleanup helpers.
 *
 * OC_CHECK   always on. The state is corrupt: print, dump the event ring, abort.
 * OC_COUNT   always on. Unexpected but safe: counted per site, logged rarely. Evaluates to the
 * condition. OC_DCHECK  debug builds only (NDEBUG unset): may be expensive. */
#ifndef OC_BASE_CHECK_H
#define OC_BASE_CHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Noreturn void oc_check_failed(const char *expr, const char *file, int line, const char *func);

#define OC_CHECK(cond)                                                                             \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0)) {                                                        \
            oc_check_failed(#cond, __FILE__, __LINE__, __func__);                                  \
        }                                                                                          \
    } while (0)

#ifdef NDEBUG
#define OC_DCHECK(cond) ((void)sizeof(!(cond)))
#else
#define OC_DCHECK(cond) OC_CHECK(cond)
#endif

/* One counted site. Sites register themselves the first time they fire. */
struct oc_count_site {
    const char *expr;
    const char *file;
    int line;
    _Atomic uint64_t hits;
    struct oc_count_site *next;
};

void oc_count_hit(struct oc_count_site *site);

/* All sites that fired so far, newest first; for the metrics page and the log. */
const struct oc_count_site *oc_count_sites(void);

/* `if (!OC_COUNT(len <= max)) return OC_E_DATA_LOSS;` */
#define OC_COUNT(cond)                                                                             \
    __extension__({                                                                                \
        bool oc_ok_ = (cond);                                                                      \
        if (__builtin_expect(!oc_ok_, 0)) {                                                        \
            static struct oc_count_site oc_site_ = {#cond, __FILE__, __LINE__, 0, NULL};           \
            oc_count_hit(&oc_site_);                                                               \
        }                                                                                          \
        oc_ok_;                                                                                    \
    })

/* Object magics: first member `uint32_t magic`. */
#define OC_MAGIC_CHECK(p, m) OC_CHECK((p) != NULL && (p)->magic == (m))

/* Hand ownership over: the variable is NULL afterwards. */
#define OC_TAKE(p)                                                                                 \
    __extension__({                                                                                \
        __typeof__(p) oc_taken_ = (p);                                                             \
        (p) = NULL;                                                                                \
        oc_taken_;                                                                                 \
    })

/* `OC_CLEANUP(oc_free_ptr) char *s = NULL;`: the function is called with the variable's address. */
#define OC_CLEANUP(fn) __attribute__((cleanup(fn)))

/* Frees what a `T *` variable points to; for OC_CLEANUP. */
void oc_free_ptr(void *variable_address);

#define OC_ARRAY_LEN(a)               (sizeof(a) / sizeof((a)[0]))
#define OC_CONTAINER(p, type, member) ((type *)(void *)((char *)(p)-offsetof(type, member)))

/* Checked size arithmetic for lengths from outside: true when the result fits. */
#define oc_add_ok(a, b, ret) (!__builtin_add_overflow((a), (b), (ret)))
#define oc_mul_ok(a, b, ret) (!__builtin_mul_overflow((a), (b), (ret)))

#endif
