/* The promises as code; see model.h. */
#include "model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"

void model_fault(struct model *m, const char *fmt, ...) {
    va_list ap;

    if (m->fault[0] != 0) {
        return; /* the first one tells most */
    }
    va_start(ap, fmt);
    (void)vsnprintf(m->fault, sizeof m->fault, fmt, ap);
    va_end(ap);
}

struct oc_span model_name(const struct model_key *k) {
    return oc_span(k->name, k->name_len);
}

/* Names that trip orderings: prefixes of one another, zero and 0xff bytes, long common beginnings.
 */
static void name_make(struct model_key *k, unsigned i) {
    static const char stem[] = "bucket/tenant-000042/objects/with/a/long/common/prefix/";

    switch (i % 4) {
    case 0:
        k->name_len = 1 + i / 4;
        memset(k->name, 'a', k->name_len);
        break;
    case 1:
        k->name[0] = 0xff;
        k->name[1] = (uint8_t)(i / 4);
        k->name_len = 2;
        break;
    case 2:
        memcpy(k->name, stem, sizeof stem - 1);
        k->name[sizeof stem - 1] = (uint8_t)('0' + i / 4);
        k->name_len = sizeof stem;
        break;
    default:
        k->name[0] = 'z';
        k->name[1] = 0;
        k->name[2] = (uint8_t)(255 - i);
        k->name_len = 3;
        break;
    }
}

void model_init(struct model *m, uint64_t wall_ns) {
    memset(m, 0, sizeof *m);
    m->wall_ns = m->wall_max_ns = wall_ns;
    m->next_seq = m->next_value = 1;
    for (unsigned i = 0; i < MODEL_KEYS; i++) {
        struct model_key *k = &m->keys[i];

        name_make(k, i);
        k->cap = 16;
        k->writes = calloc(k->cap, sizeof *k->writes);
        OC_CHECK(k->writes != NULL);
        k->writes[0] = (struct model_write){.acked = true};
        k->count = 1;
    }
}

void model_done(struct model *m) {
    for (unsigned i = 0; i < MODEL_KEYS; i++) {
        free(m->keys[i].writes);
        free(m->keys[i].ever);
        free(m->keys[i].ever_len);
    }
}

void model_value(uint64_t value, uint8_t *dst, size_t len) {
    struct oc_rng rng;
    uint64_t word = 0;

    oc_rng_init(&rng, value);
    for (size_t i = 0; i < len; i += 8) {
        /* One random word a kilobyte, mixed with the position: cheap, and every byte depends on the
         * id. */
        if (i % 1024 == 0) {
            word = oc_rng_next(&rng);
        }
        uint64_t v = (word ^ i) * 0x9e3779b97f4a7c15ull;
        memcpy(dst + i, &v, len - i < 8 ? len - i : 8);
    }
}

static void ever_add(struct model_key *k, uint64_t value, uint32_t len) {
    if (k->ever_count == k->ever_cap) {
        k->ever_cap = k->ever_cap == 0 ? 16 : k->ever_cap * 2;
        k->ever = realloc(k->ever, k->ever_cap * sizeof *k->ever);
        k->ever_len = realloc(k->ever_len, k->ever_cap * sizeof *k->ever_len);
        OC_CHECK(k->ever != NULL && k->ever_len != NULL);
    }
    k->ever[k->ever_count] = value;
    k->ever_len[k->ever_count++] = len;
}

size_t model_begin(struct model *m, struct model_key *k, uint64_t value, uint32_t len,
                   uint32_t expires_at_s) {
    if (k->count == k->cap) {
        k->cap *= 2;
        k->writes = realloc(k->writes, k->cap * sizeof *k->writes);
        OC_CHECK(k->writes != NULL);
    }
    k->writes[k->count] = (struct model_write){
        .seq = m->next_seq++, .value = value, .len = len, .expires_at_s = expires_at_s};
    if (value != 0) {
        ever_add(k, value, len);
    }
    return k->count++;
}

void model_ack(struct model_key *k, size_t index) {
    OC_CHECK(index < k->count);
    k->writes[index].acked = true;
}

void model_ack_nothing(struct model *m, struct model_key *k, size_t index, bool was_possible) {
    OC_CHECK(index < k->count && k->writes[index].value == 0);
    k->writes[index].nothing = true;
    if (!was_possible) {
        model_fault(m, "key %zu: a deletion found nothing, but the key was there",
                    (size_t)(k - m->keys));
    }
}

static bool bytes_are(uint64_t value, uint32_t len, struct oc_span bytes) {
    if (bytes.len != len) {
        return false;
    }
    uint8_t *want = malloc(len + 8u);
    OC_CHECK(want != NULL);
    model_value(value, want, len);
    bool same = len == 0 || memcmp(want, bytes.p, len) == 0;
    free(want);
    return same;
}

enum expiry { LIVE, EXPIRED, UNSURE };

/* A clock that stepped back leaves a range in which the store may know or not know of the later
 * time. */
static enum expiry expiry_of(const struct model *m, const struct model_write *w) {
    if (w->expires_at_s == 0 || w->expires_at_s > m->wall_max_ns / OC_NS_PER_S) {
        return LIVE;
    }
    return w->expires_at_s <= m->wall_ns / OC_NS_PER_S ? EXPIRED : UNSURE;
}

static bool shows(const struct model *m, const struct model_write *w,
                  const struct model_seen *seen) {
    enum expiry e = expiry_of(m, w);

    if (w->nothing) {
        return false;
    }
    if (w->value == 0) {
        return !seen->found;
    }
    if (!seen->found) {
        return e != LIVE;
    }
    return e != EXPIRED && w->expires_at_s == seen->expires_at_s &&
           bytes_are(w->value, w->len, seen->bytes);
}

static size_t newest_acked(const struct model_key *k) {
    size_t i = k->count - 1;

    while (i > 0 && !k->writes[i].acked) {
        i--;
    }
    return i > k->floor ? i : k->floor;
}

bool model_may_miss(const struct model *m, const struct model_key *k) {
    struct model_seen miss = {.found = false};

    for (size_t i = newest_acked(k); i < k->count; i++) {
        if (shows(m, &k->writes[i], &miss)) {
            return true;
        }
    }
    return false;
}

bool model_check_read(struct model *m, struct model_key *k, const struct model_seen *seen) {
    size_t from = newest_acked(k);

    for (size_t i = from; i < k->count; i++) {
        if (shows(m, &k->writes[i], seen)) {
            if (seen->found) {
                k->floor = i;
            }
            return true;
        }
    }
    const struct model_write *w = &k->writes[from];
    model_fault(
        m,
        "key %zu: saw %s (%zu bytes), but the newest acknowledged write is value %llu of %u bytes "
        "(seq %llu, expires %u), %zu in flight behind it",
        (size_t)(k - m->keys), seen->found ? "a value" : "a miss", seen->bytes.len,
        (unsigned long long)w->value, w->len, (unsigned long long)w->seq, w->expires_at_s,
        k->count - 1 - from);
    return false;
}

bool model_listed(const struct model *m, const struct model_key *k, bool *either) {
    size_t from = newest_acked(k);
    bool some = false, none = false;

    for (size_t i = from; i < k->count; i++) {
        enum expiry e = expiry_of(m, &k->writes[i]);

        if (k->writes[i].nothing) {
            continue;
        }
        some = some || (k->writes[i].value != 0 && e != EXPIRED);
        none = none || k->writes[i].value == 0 || e != LIVE;
    }
    *either = some && none;
    return some;
}

void model_collapse(struct model *m, struct model_key *k, const struct model_seen *seen) {
    struct model_write now = {.acked = true};

    for (size_t i = k->count; i-- > 0;) {
        /* The newest write that shows what was seen is what is on the disk. */
        if (shows(m, &k->writes[i], seen) && (i > 0 || seen->found || k->writes[i].value == 0)) {
            now = k->writes[i];
            break;
        }
    }
    if (seen->found && now.value == 0) {
        for (size_t i = k->ever_count; i-- > 0;) {
            if (bytes_are(k->ever[i], k->ever_len[i], seen->bytes)) {
                now.value = k->ever[i];
                now.len = k->ever_len[i];
                now.expires_at_s = seen->expires_at_s;
                break;
            }
        }
    }
    now.acked = true;
    now.seq = 0;
    k->writes[0] = now;
    k->count = 1;
    k->floor = 0;
}

bool model_check_ever(struct model *m, struct model_key *k, const struct model_seen *seen) {
    if (!seen->found) {
        return true;
    }
    for (size_t i = k->ever_count; i-- > 0;) {
        if (bytes_are(k->ever[i], k->ever_len[i], seen->bytes)) {
            return true;
        }
    }
    model_fault(m, "key %zu: %zu bytes that were never written", (size_t)(k - m->keys),
                seen->bytes.len);
    return false;
}

/* Points are numbered by the last write they include. A key allows the points from a write that
 * shows what was seen up to just before the next acknowledged one. */
static void allow_points(const struct model *m, const struct model_key *k,
                         const struct model_seen *seen, uint16_t *allowed, uint16_t mark) {
    for (size_t i = 0; i < k->count; i++) {
        if (!shows(m, &k->writes[i], seen)) {
            continue;
        }
        uint64_t end = m->next_seq;

        for (size_t j = i + 1; j < k->count; j++) {
            if (k->writes[j].acked) {
                end = k->writes[j].seq;
                break;
            }
        }
        for (uint64_t p = k->writes[i].seq; p < end; p++) {
            if (allowed[p] == mark - 1) {
                allowed[p] = mark;
            }
        }
    }
}

bool model_check_prefix(struct model *m, const struct model_seen *seen, uint64_t floor_seq) {
    uint16_t *allowed = calloc(m->next_seq + 1, sizeof *allowed);
    unsigned last_key = 0;

    OC_CHECK(allowed != NULL);
    for (unsigned i = 0; i < MODEL_KEYS; i++) {
        bool any = false;

        allow_points(m, &m->keys[i], &seen[i], allowed, (uint16_t)(i + 1));
        for (uint64_t p = floor_seq; p < m->next_seq; p++) {
            any = any || allowed[p] == i + 1;
        }
        last_key = i;
        if (!any) {
            break;
        }
    }
    bool ok = false;
    for (uint64_t p = floor_seq; p < m->next_seq; p++) {
        ok = ok || allowed[p] == MODEL_KEYS;
    }
    free(allowed);
    if (!ok) {
        const struct model_key *k = &m->keys[last_key];
        const struct model_seen *saw = &seen[last_key];
        uint64_t id = 0;

        for (size_t i = 0; i < k->ever_count && saw->found; i++) {
            id = bytes_are(k->ever[i], k->ever_len[i], saw->bytes) ? k->ever[i] : id;
        }
        model_fault(
            m,
            "after the power loss no prefix of the log behind seq %llu explains what is there; "
            "key %u contradicts: saw %s of %zu bytes (value %llu); it began as value %llu and "
            "has %zu writes, the last with seq %llu",
            (unsigned long long)floor_seq, last_key, saw->found ? "a value" : "a miss",
            saw->bytes.len, (unsigned long long)id, (unsigned long long)k->writes[0].value,
            k->count - 1, (unsigned long long)k->writes[k->count - 1].seq);
    }
    return ok;
}
