/* Large writes: a value file that grows chunk by chunk and belongs to nobody until a record commits
 * it. */
#include <stdlib.h>

#include "base/check.h"
#include "base/event.h"
#include "store/store.h"

int oc_upload_begin(struct oc_objects *s, struct oc_upload **ret, struct oc_error *err) {
    struct oc_upload *u = calloc(1, sizeof *u);

    OC_MAGIC_CHECK(s, OC_OBJECTS_MAGIC);
    if (u == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "out of memory for an upload");
    }
    int rc = oc_valfile_create(&s->log, &u->file, err);
    if (rc != 0) {
        free(u);
        return rc;
    }
    u->magic = OC_UPLOAD_MAGIC;
    u->store = s;
    oc_event(OC_EV_UPLOAD, u->file.id, 0);
    *ret = u;
    return 0;
}

int oc_upload_write(struct oc_upload *u, const void *bytes, size_t len, struct oc_error *err) {
    OC_MAGIC_CHECK(u, OC_UPLOAD_MAGIC);
    OC_CHECK(!u->finished);
    return oc_valfile_append(&u->file, bytes, len, err);
}

int oc_upload_finish(struct oc_upload *u, struct oc_error *err) {
    OC_MAGIC_CHECK(u, OC_UPLOAD_MAGIC);
    if (u->file.failed) {
        return oc_error_set(err, OC_E_PRECONDITION, "a chunk of the upload was not written");
    }
    int rc = oc_valfile_finish(&u->file, u->store->cfg.sync == OC_SYNC_ALWAYS, err);
    if (rc == 0) {
        oc_valfile_ref(&u->file, &u->ref);
        u->finished = true;
    }
    return rc;
}

uint64_t oc_upload_len(const struct oc_upload *u) {
    OC_MAGIC_CHECK(u, OC_UPLOAD_MAGIC);
    return u->file.len;
}

void oc_upload_free(struct oc_upload *u) {
    OC_MAGIC_CHECK(u, OC_UPLOAD_MAGIC);
    if (u->committed || u->in_doubt) {
        oc_valfile_release(&u->file); /* in doubt: the next load knows whether anything names it */
    } else {
        oc_valfile_discard(&u->file);
    }
    u->magic = 0;
    free(u);
}
