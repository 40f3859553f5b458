/* The worker's batch: writes that became complete during a loop turn go out together at its end, in
 * one append; their calls are answered after it. When a write is to be durable first (-sync always)
 * the batch is committed by a mover, one at a time, and the next one collects meanwhile: group
 * commit. */
#include <stdlib.h>

#include "object/internal.h"

struct oc_svc_commit {
    struct oc_svc_worker *w;
    struct oc_batch batch;
    struct oc_list writes; /* struct oc_svc_write.link, those of the batch */
    struct oc_svc_task task;
};

/* The encoding of PutResponse and of DeleteResponse with success = true. */
static const uint8_t success[] = {0x08, 0x01};

int oc_svc_commit_init(struct oc_svc_worker *w) {
    w->commit = (struct oc_svc_commit *)calloc(1, sizeof *w->commit);
    if (w->commit == NULL) {
        return OC_E_EXHAUSTED;
    }
    w->commit->w = w;
    oc_list_init(&w->commit->writes);
    oc_list_init(&w->commit->task.link);
    return 0;
}

void oc_svc_commit_done(struct oc_svc_worker *w) {
    OC_CHECK(!w->commit_runs && oc_list_empty(&w->pending));
    free(OC_TAKE(w->commit));
}

static uint64_t write_bytes(const struct oc_svc_write *op) {
    return oc_rec_total(op->write.key.len, op->write.upload == NULL ? op->write.value.len : 0);
}

static void take_batch(struct oc_svc_commit *c) {
    struct oc_svc_worker *w = c->w;
    uint64_t bytes = 0;

    oc_batch_init(&c->batch);
    while (bytes < OC_BATCH_BYTES && !oc_list_empty(&w->pending)) {
        struct oc_svc_write *op =
            OC_CONTAINER(oc_list_pop_front(&w->pending), struct oc_svc_write, link);

        bytes += write_bytes(op);
        w->pending_bytes -= write_bytes(op);
        op->pending = false;
        op->committing = true;
        oc_batch_add(&c->batch, &op->write);
        oc_list_push_back(&c->writes, &op->link);
    }
}

static void answer(struct oc_svc_write *op) {
    struct oc_svc_worker *w = op->w;
    struct oc_call *call = op->call;
    uint64_t bytes = op->write.upload == NULL ? op->write.value.len : oc_upload_len(op->upload);
    bool file = op->write.upload != NULL;
    int r = op->write.result;

    oc_svc_count_write(w->svc, op->is_delete, file, r, bytes);
    if (call == NULL || r != 0) {
        oc_svc_write_fail(op, r, NULL);
        return;
    }
    if (!op->is_delete) {
        oc_svc_count_upload(w->svc, bytes);
    }
    oc_svc_write_release(op);
    (void)oc_call_send_copy(call, oc_span(success, sizeof success)); /* the only message */
    oc_call_finish(call, 0, OC_SPAN_EMPTY);
}

/* Answering a call may end others of the same connection; those in the batch are still marked as
 * being committed then and are only released here. */
static void answer_all(struct oc_svc_commit *c) {
    struct oc_svc *s = c->w->svc;
    struct oc_list *first;

    if (s->cfg.wrote != NULL) {
        s->cfg.wrote(s->cfg.wrote_arg);
    }
    while ((first = oc_list_pop_front(&c->writes)) != NULL) {
        struct oc_svc_write *op = OC_CONTAINER(first, struct oc_svc_write, link);

        op->committing = false;
        answer(op);
    }
}

static void run_commit(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);
    struct oc_svc_commit *c = OC_CONTAINER(task, struct oc_svc_commit, task);

    (void)oc_objects_commit(c->w->svc->cfg.objects, &c->batch); /* each write has its result */
}

static void commit_done(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);
    struct oc_svc_commit *c = OC_CONTAINER(task, struct oc_svc_commit, task);

    answer_all(c);
    c->w->commit_runs = false;
    oc_svc_commit_turn(c->w);
}

void oc_svc_commit_turn(struct oc_svc_worker *w) {
    struct oc_svc_commit *c = w->commit;

    if (w->commit_runs || oc_list_empty(&w->pending)) {
        return;
    }
    w->commit_runs = true;
    if (w->svc->commit_movers != NULL) {
        take_batch(c);
        c->task.job.run = run_commit;
        c->task.job.done = commit_done;
        oc_svc_submit(w, w->svc->commit_movers, &c->task);
        return;
    }
    while (!oc_list_empty(&w->pending)) {
        take_batch(c);
        (void)oc_objects_commit(w->svc->cfg.objects, &c->batch); /* each write has its result */
        answer_all(c);
    }
    w->commit_runs = false;
}

void oc_svc_commit_add(struct oc_svc_write *op) {
    struct oc_svc_worker *w = op->w;

    op->pending = true;
    oc_list_push_back(&w->pending, &op->link);
    w->pending_bytes += write_bytes(op);
    if (w->pending_bytes >= OC_BATCH_BYTES) {
        oc_svc_commit_turn(w);
    }
}

void oc_svc_commit_cancel(struct oc_svc_write *op) {
    op->pending = false;
    oc_list_remove(&op->link);
    op->w->pending_bytes -= write_bytes(op);
}
