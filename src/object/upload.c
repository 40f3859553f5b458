/* Uploads: values of more than one chunk, written by movers to a value file while they arrive. One
 * task of an upload runs at a time and takes up to two chunks; while it runs the next ones collect.
 * The window is held back while two chunks are on their way (oc_svc_write_credit), so an upload
 * holds three buffers and what the peer's window allowed. */
#include "object/internal.h"

#define CHUNKS_AT_WORK 2u

static void start(struct oc_svc_write *op);

static int write_chunks(struct oc_svc_write *op) {
    struct oc_objects *objects = op->w->svc->cfg.objects;

    if (op->upload == NULL) {
        int r = oc_upload_begin(objects, &op->upload, NULL);

        if (r != 0) {
            return r;
        }
    }
    for (unsigned i = 0; i < op->chunks_taken; i++) {
        const struct oc_block *b = op->chunks[(op->chunk_first + i) % OC_SVC_CHUNKS];
        int r = oc_upload_write(op->upload, b->data, b->len, NULL);

        if (r != 0) {
            return r;
        }
    }
    return op->finishing ? oc_upload_finish(op->upload, NULL) : 0;
}

/* On a mover. The worker leaves the fields read here alone until `done`. */
static void run_chunks(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);
    struct oc_svc_write *op = OC_CONTAINER(task, struct oc_svc_write, task);

    op->task_result = write_chunks(op);
}

static void chunks_done(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);
    struct oc_svc_write *op = OC_CONTAINER(task, struct oc_svc_write, task);

    struct oc_block *done[CHUNKS_AT_WORK];
    unsigned count = op->chunks_taken;
    for (unsigned i = 0; i < count; i++) {
        done[i] = op->chunks[op->chunk_first++ % OC_SVC_CHUNKS];
    }
    op->chunk_count -= count;
    op->chunks_taken = 0;
    /* The task still counts as running: whatever happens in here, the write is not freed. */
    for (unsigned i = 0; i < count; i++) {
        if (op->task_result == 0) {
            oc_svc_write_recycle(op, done[i]);
        } else {
            oc_block_put(done[i]);
        }
    }
    op->task_runs = false;
    if (op->call == NULL) {
        oc_svc_write_release(op);
    } else if (op->task_result != 0) {
        oc_svc_write_fail(op, op->task_result, NULL);
    } else if (op->finishing) {
        op->write.upload = op->upload;
        oc_svc_commit_add(op);
    } else {
        oc_svc_write_credit(op, 0);
        start(op);
    }
}

static void start(struct oc_svc_write *op) {
    if (op->task_runs || (op->chunk_count == 0 && !op->all_queued)) {
        return;
    }
    op->chunks_taken = op->chunk_count < CHUNKS_AT_WORK ? op->chunk_count : CHUNKS_AT_WORK;
    op->finishing = op->all_queued && op->chunks_taken == op->chunk_count;
    op->task_runs = true;
    op->task.job.run = run_chunks;
    op->task.job.done = chunks_done;
    oc_svc_submit(op->w, op->w->svc->bulk_movers, &op->task);
}

static int queue_fill(struct oc_svc_write *op) {
    if (!OC_COUNT(op->chunk_count < OC_SVC_CHUNKS)) {
        return OC_E_EXHAUSTED;
    }
    struct oc_block *block = OC_TAKE(op->block);

    block->len = op->fill_len;
    op->chunks[(op->chunk_first + op->chunk_count) % OC_SVC_CHUNKS] = block;
    op->chunk_count++;
    op->flushed += op->fill_len;
    op->fill = NULL;
    op->fill_len = op->fill_cap = 0;
    return 0;
}

int oc_svc_upload_chunk(struct oc_svc_write *op) {
    int r = queue_fill(op);

    if (r == 0) {
        start(op);
    }
    return r;
}

void oc_svc_upload_end(struct oc_svc_write *op) {
    int r = op->fill_len > 0 ? queue_fill(op) : 0;

    if (r != 0) {
        oc_svc_write_fail(op, r, NULL);
        return;
    }
    op->all_queued = true;
    start(op);
}

static void run_free(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);
    struct oc_svc_write *op = OC_CONTAINER(task, struct oc_svc_write, task);

    oc_upload_free(OC_TAKE(op->upload));
}

static void free_done(struct oc_job *job) {
    struct oc_svc_task *task = OC_CONTAINER(job, struct oc_svc_task, job);
    struct oc_svc_write *op = OC_CONTAINER(task, struct oc_svc_write, task);

    op->task_runs = false;
    oc_svc_write_free(op);
}

void oc_svc_upload_release(struct oc_svc_write *op) {
    op->task_runs = true;
    op->task.job.run = run_free;
    op->task.job.done = free_done;
    oc_svc_submit(op->w, op->w->svc->bulk_movers, &op->task);
}
