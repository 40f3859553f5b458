/* Movers: bound, order, where `done` is called, what freeing does. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    unsigned waiting;
};

struct test_job {
    struct oc_job job;
    struct gate *gate;
    struct rig *rig;
    unsigned number;
    pthread_t ran_on;
    pthread_t done_on;
    _Atomic unsigned *ran;
    _Atomic unsigned *done;
    unsigned stop_at; /* stop the rig's loop when so many are done */
};

static struct timespec deadline(void) {
    uint64_t ns = oc_clock_now(oc_clock_real()).wall_ns + RIG_DEADLINE_MS * OC_NS_PER_MS;

    return (struct timespec){.tv_sec = (time_t)(ns / OC_NS_PER_S),
                             .tv_nsec = (long)(ns % OC_NS_PER_S)};
}

static void gate_wait(struct gate *g) {
    struct timespec until = deadline();

    (void)pthread_mutex_lock(&g->lock);
    g->waiting++;
    (void)pthread_cond_broadcast(&g->changed);
    while (!g->open && pthread_cond_timedwait(&g->changed, &g->lock, &until) == 0) {
        continue;
    }
    (void)pthread_mutex_unlock(&g->lock);
}

static void gate_wait_for_waiters(struct gate *g, unsigned count) {
    struct timespec until = deadline();
    int rc = 0;

    (void)pthread_mutex_lock(&g->lock);
    while (g->waiting < count && rc == 0) {
        rc = pthread_cond_timedwait(&g->changed, &g->lock, &until);
    }
    (void)pthread_mutex_unlock(&g->lock);
    assert_int_equal(rc, 0);
}

static void gate_open(struct gate *g) {
    (void)pthread_mutex_lock(&g->lock);
    g->open = true;
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
}

static void run(struct oc_job *job) {
    struct test_job *t = OC_CONTAINER(job, struct test_job, job);

    if (t->gate != NULL) {
        gate_wait(t->gate);
    }
    t->ran_on = pthread_self();
    atomic_fetch_add(t->ran, 1);
}

static void done(struct oc_job *job) {
    struct test_job *t = OC_CONTAINER(job, struct test_job, job);

    t->done_on = pthread_self();
    if (atomic_fetch_add(t->done, 1) + 1 == t->stop_at) {
        oc_loop_stop(t->rig->loop);
    }
}

struct jobs {
    struct rig rig;
    struct oc_movers *movers;
    struct test_job *list;
    _Atomic unsigned ran;
    _Atomic unsigned done;
};

static void jobs_init(struct jobs *j, unsigned count, unsigned threads, size_t max_queued) {
    memset(j, 0, sizeof *j);
    rig_init(&j->rig);
    assert_int_equal(oc_movers_new(&j->movers, threads, max_queued, NULL), 0);
    j->list = calloc(count, sizeof *j->list);
    assert_non_null(j->list);
    for (unsigned i = 0; i < count; i++) {
        j->list[i] = (struct test_job){.job = {.run = run, .done = done},
                                       .rig = &j->rig,
                                       .number = i,
                                       .ran = &j->ran,
                                       .done = &j->done};
    }
}

static void jobs_done(struct jobs *j) {
    oc_movers_free(j->movers);
    rig_done(&j->rig);
    free(j->list);
}

static void test_done_is_called_on_the_home_loop(void **state) {
    enum { N = 5000 };
    struct jobs j;

    (void)state;
    jobs_init(&j, N, 4, N);
    for (unsigned i = 0; i < N; i++) {
        j.list[i].stop_at = N;
        assert_int_equal(oc_movers_submit(j.movers, j.rig.loop, &j.list[i].job), 0);
    }
    rig_run(&j.rig);
    assert_int_equal(j.ran, N);
    assert_int_equal(j.done, N);
    for (unsigned i = 0; i < N; i++) {
        assert_true(pthread_equal(j.list[i].done_on, pthread_self()));
        assert_false(pthread_equal(j.list[i].ran_on, pthread_self()));
    }
    jobs_done(&j);
}

static void test_queue_is_bounded(void **state) {
    struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0};
    struct jobs j;
    struct oc_movers_stats stats;

    (void)state;
    jobs_init(&j, 6, 2, 3);
    for (unsigned i = 0; i < 6; i++) {
        j.list[i].gate = &gate;
        j.list[i].stop_at = 5;
    }
    for (unsigned i = 0; i < 2; i++) { /* both threads are busy */
        assert_int_equal(oc_movers_submit(j.movers, j.rig.loop, &j.list[i].job), 0);
    }
    gate_wait_for_waiters(&gate, 2); /* two threads run side by side */
    for (unsigned i = 2; i < 5; i++) {
        assert_int_equal(oc_movers_submit(j.movers, j.rig.loop, &j.list[i].job), 0);
    }
    assert_int_equal(oc_movers_submit(j.movers, j.rig.loop, &j.list[5].job), OC_E_EXHAUSTED);
    oc_movers_stats(j.movers, &stats);
    assert_int_equal(stats.submitted, 5);
    assert_int_equal(stats.refused, 1);
    assert_int_equal(stats.queued, 3);
    assert_int_equal(stats.max_queued, 3);
    assert_int_equal(stats.threads, 2);
    gate_open(&gate);
    rig_run(&j.rig);
    assert_int_equal(j.ran, 5);
    oc_movers_stats(j.movers, &stats);
    assert_int_equal(stats.queued, 0);
    jobs_done(&j);
}

static uint64_t idle_threads(struct oc_movers *m) {
    struct oc_movers_stats stats;

    oc_movers_stats(m, &stats);
    return stats.idle;
}

/* The gate opens only when all threads stand in it: each must have been woken for a job of its own.
 */
static void test_a_burst_wakes_every_thread(void **state) {
    enum { N = 4 };

    (void)state;
    /* With the threads asleep, and with them still starting. */
    for (int round = 0; round < 20; round++) {
        struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0};
        struct jobs j;

        jobs_init(&j, N, N, N);
        if (round % 2 == 0) {
            wait_for(idle_threads(j.movers) == N);
        }
        for (unsigned i = 0; i < N; i++) {
            j.list[i].gate = &gate;
            j.list[i].stop_at = N;
            assert_int_equal(oc_movers_submit(j.movers, j.rig.loop, &j.list[i].job), 0);
        }
        gate_wait_for_waiters(&gate, N);
        gate_open(&gate);
        rig_run(&j.rig);
        assert_int_equal(j.done, N);
        jobs_done(&j);
    }
}

static void test_without_a_home_done_is_called_by_the_mover(void **state) {
    enum { N = 100 };
    struct jobs j;

    (void)state;
    jobs_init(&j, N, 3, N);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(oc_movers_submit(j.movers, NULL, &j.list[i].job), 0);
    }
    oc_movers_free(OC_TAKE(j.movers)); /* finishes what is queued */
    assert_int_equal(j.ran, N);
    assert_int_equal(j.done, N);
    for (unsigned i = 0; i < N; i++) {
        assert_true(pthread_equal(j.list[i].done_on, j.list[i].ran_on));
    }
    jobs_done(&j);
}

static void test_jobs_that_end_after_the_loop_are_given_back(void **state) {
    enum { N = 100 };
    struct jobs j;

    (void)state;
    jobs_init(&j, N, 2, N);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(oc_movers_submit(j.movers, j.rig.loop, &j.list[i].job), 0);
    }
    oc_loop_stop(j.rig.loop);
    rig_run(&j.rig);
    jobs_done(&j); /* movers first, then the loop, which delivers the rest */
    assert_int_equal(j.ran, N);
    assert_int_equal(j.done, N);
}

static void test_bad_sizes_are_refused(void **state) {
    struct oc_movers *m = NULL;
    struct oc_error err;

    (void)state;
    assert_int_equal(oc_movers_new(&m, 0, 10, &err), OC_E_INVALID);
    assert_int_equal(oc_movers_new(&m, 1, 0, &err), OC_E_INVALID);
    assert_int_equal(oc_movers_new(&m, 100000, 1, &err), OC_E_INVALID);
    assert_null(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_done_is_called_on_the_home_loop),
        cmocka_unit_test(test_queue_is_bounded),
        cmocka_unit_test(test_a_burst_wakes_every_thread),
        cmocka_unit_test(test_without_a_home_done_is_called_by_the_mover),
        cmocka_unit_test(test_jobs_that_end_after_the_loop_are_given_back),
        cmocka_unit_test(test_bad_sizes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
