/* Movers: threads that do what may block. One bounded queue; a submitter wakes a thread only when
 * one is idle that nobody else has woken already. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "io/loop_impl.h"

#define MOVERS_MAGIC   0x52564f4du /* "MOVR" */
#define MOVERS_THREADS 1024

struct oc_movers {
    uint32_t magic;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct oc_job *first;
    struct oc_job *last;
    size_t queued;
    size_t max_queued;
    unsigned idle;  /* threads that wait for work */
    unsigned woken; /* of these, signalled and not yet running */
    bool stopping;
    uint64_t submitted;
    uint64_t refused;
    unsigned thread_count;
    pthread_t threads[];
};

static void job_is_done(struct oc_letter *letter) {
    struct oc_job *job = OC_CONTAINER(letter, struct oc_job, letter);

    job->done(job);
}

/* The next job, or NULL when the movers are being freed and nothing is queued. */
static struct oc_job *take_job(struct oc_movers *m) {
    (void)pthread_mutex_lock(&m->lock); /* cannot fail: a plain mutex of ours, used correctly */
    while (m->first == NULL && !m->stopping) {
        m->idle++;
        (void)pthread_cond_wait(&m->work, &m->lock); /* as above */
        m->idle--;
        if (m->woken > 0) {
            m->woken--;
        }
    }
    struct oc_job *job = m->first;
    if (job != NULL) {
        m->first = job->next;
        m->queued--;
    }
    (void)pthread_mutex_unlock(&m->lock); /* as above */
    return job;
}

static void *mover_thread(void *arg) {
    struct oc_movers *m = arg;
    struct oc_job *job;

    while ((job = take_job(m)) != NULL) {
        job->run(job);
        if (job->home != NULL) {
            job->letter.fn = job_is_done;
            oc_loop_post(job->home, &job->letter);
        } else {
            job->done(job);
        }
    }
    return NULL;
}

/* Signals are for the loops' threads: here they would only interrupt reads and writes. */
static int start_threads(struct oc_movers *m, unsigned threads) {
    sigset_t all;
    sigset_t before;
    int errnum = 0;

    (void)sigfillset(&all);                            /* cannot fail */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* cannot fail with valid arguments */
    while (errnum == 0 && m->thread_count < threads) {
        errnum = pthread_create(&m->threads[m->thread_count], NULL, mover_thread, m);
        if (errnum == 0) {
            char name[16];

            (void)snprintf(name, sizeof name, "oc-mover-%u", m->thread_count % 1000); /* fits */
            (void)pthread_setname_np(m->threads[m->thread_count], name); /* only for a debugger */
            m->thread_count++;
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL); /* as above */
    return errnum;
}

int oc_movers_new(struct oc_movers **ret, unsigned threads, size_t max_queued,
                  struct oc_error *err) {
    if (threads == 0 || threads > MOVERS_THREADS || max_queued == 0) {
        return oc_error_set(
            err, OC_E_INVALID,
            "cannot start %u mover threads with %zu jobs queued (1 to %d threads, at "
            "least one job)",
            threads, max_queued, MOVERS_THREADS);
    }
    struct oc_movers *m = calloc(1, sizeof *m + threads * sizeof m->threads[0]);
    if (m == NULL) {
        return oc_error_set(err, OC_E_EXHAUSTED, "cannot start mover threads: out of memory");
    }
    m->magic = MOVERS_MAGIC;
    m->max_queued = max_queued;
    (void)pthread_mutex_init(&m->lock, NULL); /* cannot fail with default attributes */
    (void)pthread_cond_init(&m->work, NULL);  /* as above */
    int errnum = start_threads(m, threads);
    if (errnum != 0) {
        oc_movers_free(m);
        return oc_error_errno(err, errnum, "cannot start %u mover threads (ulimit -u)", threads);
    }
    *ret = m;
    return 0;
}

void oc_movers_free(struct oc_movers *m) {
    if (m == NULL) {
        return;
    }
    OC_MAGIC_CHECK(m, MOVERS_MAGIC);
    (void)pthread_mutex_lock(&m->lock); /* cannot fail, see take_job */
    m->stopping = true;
    (void)pthread_cond_broadcast(&m->work); /* as above */
    (void)pthread_mutex_unlock(&m->lock);   /* as above */
    for (unsigned i = 0; i < m->thread_count; i++) {
        OC_CHECK(pthread_join(m->threads[i], NULL) == 0);
    }
    (void)pthread_cond_destroy(&m->work);  /* nobody waits */
    (void)pthread_mutex_destroy(&m->lock); /* nobody holds it */
    m->magic = 0;
    free(m);
}

int oc_movers_submit(struct oc_movers *m, struct oc_loop *home, struct oc_job *job) {
    bool signal_one = false;
    int rc = 0;

    OC_MAGIC_CHECK(m, MOVERS_MAGIC);
    job->home = home;
    job->next = NULL;
    (void)pthread_mutex_lock(&m->lock); /* cannot fail, see take_job */
    if (m->stopping) {
        rc = OC_E_UNAVAILABLE;
    } else if (m->queued >= m->max_queued) {
        rc = OC_E_EXHAUSTED;
    }
    if (rc != 0) {
        m->refused++;
    } else {
        if (m->first == NULL) {
            m->first = job;
        } else {
            m->last->next = job;
        }
        m->last = job;
        m->queued++;
        m->submitted++;
        signal_one = m->woken < m->idle;
        m->woken += signal_one;
    }
    (void)pthread_mutex_unlock(&m->lock); /* as above */
    if (signal_one) {
        (void)pthread_cond_signal(&m->work); /* as above */
    }
    return rc;
}

void oc_movers_stats(struct oc_movers *m, struct oc_movers_stats *ret) {
    OC_MAGIC_CHECK(m, MOVERS_MAGIC);
    (void)pthread_mutex_lock(&m->lock); /* cannot fail, see take_job */
    ret->submitted = m->submitted;
    ret->refused = m->refused;
    ret->queued = m->queued;
    ret->max_queued = m->max_queued;
    ret->threads = m->thread_count;
    ret->idle = m->idle;
    (void)pthread_mutex_unlock(&m->lock); /* as above */
}
