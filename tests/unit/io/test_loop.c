/* The loop: letters, hooks, timers, signals, stopping. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rig.h"

/* ---- letters ---- */

#define POSTERS 4
#define LETTERS 10000

struct counted_letter {
    struct oc_letter letter;
    struct mailbox_test *test;
    unsigned poster;
    unsigned number;
};

struct mailbox_test {
    struct rig rig;
    pthread_t threads[POSTERS];
    unsigned next[POSTERS];
    unsigned arrived;
    bool out_of_order;
    bool wrong_thread;
    pthread_t home;
    struct counted_letter *letters[POSTERS];
};

static void letter_arrived(struct oc_letter *letter) {
    struct counted_letter *l = OC_CONTAINER(letter, struct counted_letter, letter);
    struct mailbox_test *t = l->test;

    t->out_of_order |= l->number != t->next[l->poster];
    t->wrong_thread |= pthread_equal(pthread_self(), t->home) == 0;
    t->next[l->poster]++;
    memset(l, 0xee, sizeof *l); /* it is ours now: nobody may look at it any more */
    if (++t->arrived == POSTERS * LETTERS) {
        oc_loop_stop(t->rig.loop);
    }
}

static void *post_letters(void *arg) {
    struct counted_letter *letters = arg;
    struct oc_loop *loop = letters[0].test->rig.loop;

    for (unsigned i = 0; i < LETTERS; i++) {
        letters[i].number = i;
        oc_loop_post(loop, &letters[i].letter);
        if (i % 64 == 0) {
            (void)sched_yield(); /* let the loop fall asleep now and then */
        }
    }
    return NULL;
}

static void test_letters_arrive_in_order_from_four_threads(void **state) {
    struct mailbox_test *t = calloc(1, sizeof *t);

    (void)state;
    assert_non_null(t);
    rig_init(&t->rig);
    t->home = pthread_self();
    for (unsigned i = 0; i < POSTERS; i++) {
        t->letters[i] = calloc(LETTERS, sizeof *t->letters[i]);
        assert_non_null(t->letters[i]);
        for (unsigned k = 0; k < LETTERS; k++) {
            t->letters[i][k].letter.fn = letter_arrived;
            t->letters[i][k].test = t;
            t->letters[i][k].poster = i;
        }
        assert_int_equal(pthread_create(&t->threads[i], NULL, post_letters, t->letters[i]), 0);
    }
    rig_run(&t->rig);
    for (unsigned i = 0; i < POSTERS; i++) {
        assert_int_equal(pthread_join(t->threads[i], NULL), 0);
        assert_int_equal(t->next[i], LETTERS);
        free(t->letters[i]);
    }
    assert_false(t->out_of_order);
    assert_false(t->wrong_thread);
    rig_done(&t->rig);
    free(t);
}

/* One letter goes to and fro between two loops that both sleep in between: a lost wake-up would
 * stop it. */
struct ping {
    struct oc_letter letter;
    struct oc_loop *here;
    struct oc_loop *there;
    unsigned left;
};

static void ping_arrived(struct oc_letter *letter) {
    struct ping *p = OC_CONTAINER(letter, struct ping, letter);
    struct oc_loop *other = oc_loop_current() == p->here ? p->there : p->here;

    if (--p->left == 0) {
        oc_loop_stop(p->here);
    } else {
        oc_loop_post(other, letter);
    }
}

static void test_no_wakeup_is_lost_between_two_loops(void **state) {
    struct rig rig;
    struct loop_thread *other = loop_thread_start();

    (void)state;
    rig_init(&rig);
    struct ping p = {{NULL, ping_arrived}, rig.loop, loop_thread_loop(other), 20001};
    oc_loop_post(rig.loop, &p.letter);
    rig_run(&rig);
    assert_int_equal(p.left, 0);
    loop_thread_stop(other);
    rig_done(&rig);
}

/* Letters come at every point of the loop's falling asleep: each next one a little later after the
 * last. A hook delays the loop by a few hundred nanoseconds, so that the poster is quick enough. */
struct nudge {
    struct oc_letter letter;
    struct oc_turn_hook hook;
    struct oc_loop *loop;
    _Atomic unsigned arrived;
};

static void nudge_arrived(struct oc_letter *letter) {
    atomic_fetch_add(&OC_CONTAINER(letter, struct nudge, letter)->arrived, 1);
}

static void spend(struct nudge *n, unsigned loads) {
    for (unsigned i = 0; i < loads; i++) {
        (void)atomic_load(&n->arrived);
    }
}

static void nudge_hook(struct oc_turn_hook *hook) {
    spend(OC_CONTAINER(hook, struct nudge, hook), 500);
}

static void *nudge_loop(void *arg) {
    struct nudge *n = arg;
    uint64_t start_ns = oc_clock_now(oc_clock_real()).mono_ns;

    for (unsigned i = 0; i < 20000; i++) {
        spend(n, i % 1000);
        oc_loop_post(n->loop, &n->letter);
        for (unsigned spins = 0; atomic_load(&n->arrived) == i; spins++) {
            if (spins > 20000) { /* the machine may have one processor only */
                (void)sched_yield();
            }
            if (spins % 65536 == 65535 && oc_clock_now(oc_clock_real()).mono_ns - start_ns >
                                              RIG_DEADLINE_MS / 2 * OC_NS_PER_MS) {
                return NULL; /* lost; the test sees the count */
            }
        }
    }
    oc_loop_stop(n->loop);
    return NULL;
}

static void test_no_wakeup_is_lost_while_falling_asleep(void **state) {
    struct nudge n = {.letter.fn = nudge_arrived, .hook.fn = nudge_hook};
    struct rig rig;
    pthread_t thread;

    (void)state;
    rig_init(&rig);
    n.loop = rig.loop;
    oc_loop_hook_add(rig.loop, &n.hook);
    assert_int_equal(pthread_create(&thread, NULL, nudge_loop, &n), 0);
    rig_run(&rig);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(n.arrived, 20000);
    rig_done(&rig);
}

struct late {
    struct oc_letter letter;
    struct late *then;
    struct oc_loop *loop;
    bool arrived;
};

static void late_arrived(struct oc_letter *letter) {
    struct late *l = OC_CONTAINER(letter, struct late, letter);

    l->arrived = true;
    if (l->then != NULL) {
        oc_loop_post(l->loop, &l->then->letter);
    }
}

static void test_letters_after_the_run_are_delivered_at_the_end(void **state) {
    struct rig rig;

    (void)state;
    rig_init(&rig);
    oc_loop_stop(rig.loop); /* before the run: it returns at once */
    rig_run(&rig);
    struct late second = {{NULL, late_arrived}, NULL, rig.loop, false};
    struct late first = {{NULL, late_arrived}, &second, rig.loop, false};
    oc_loop_post(rig.loop, &first.letter);
    assert_false(first.arrived);
    rig_done(&rig);
    assert_true(first.arrived);
    assert_true(second.arrived);
}

/* ---- stopping ---- */

static void *stop_loop(void *arg) {
    oc_loop_stop(arg);
    return NULL;
}

static void test_stop_from_another_thread(void **state) {
    (void)state;
    for (int i = 0; i < 50; i++) { /* at different points of falling asleep */
        struct rig rig;
        pthread_t thread;

        rig_init(&rig);
        assert_int_equal(pthread_create(&thread, NULL, stop_loop, rig.loop), 0);
        rig_run(&rig);
        assert_int_equal(pthread_join(thread, NULL), 0);
        rig_done(&rig);
    }
}

static void test_a_loop_that_never_ran_is_freed(void **state) {
    struct rig rig;
    struct oc_signal *s;

    (void)state;
    rig_init(&rig);
    assert_int_equal(oc_timer_start(&rig.guard, 1000000, 0), 0);
    assert_int_equal(oc_signal_watch(rig.loop, SIGUSR2, NULL, NULL, &s, NULL), 0);
    rig_done(&rig);
    assert_false(oc_timer_running(&rig.guard));
}

/* ---- hooks ---- */

struct hook_test;
struct test_hook {
    struct oc_turn_hook hook;
    struct hook_test *test;
    unsigned runs;
    char name;
};

struct hook_test {
    struct rig rig;
    struct test_hook a, b, c;
    struct oc_letter letter;
    char log[64];
    size_t log_len;
};

static void hook_log(struct test_hook *h) {
    h->runs++;
    if (h->test->log_len < sizeof h->test->log - 1) {
        h->test->log[h->test->log_len++] = h->name;
    }
}

static void hook_a(struct oc_turn_hook *hook) {
    struct test_hook *h = OC_CONTAINER(hook, struct test_hook, hook);

    hook_log(h);
    if (h->runs < 3) {
        oc_loop_again(h->test->rig.loop);
    }
}

static void hook_b(struct oc_turn_hook *hook) {
    struct test_hook *h = OC_CONTAINER(hook, struct test_hook, hook);

    hook_log(h);
    if (h->runs == 2) {
        oc_loop_hook_remove(&h->hook);         /* itself */
        oc_loop_hook_remove(&h->test->c.hook); /* and one that was still to run */
    }
}

static void hook_stop(struct oc_letter *letter) {
    oc_loop_stop(OC_CONTAINER(letter, struct hook_test, letter)->rig.loop);
}

static void hook_c(struct oc_turn_hook *hook) {
    hook_log(OC_CONTAINER(hook, struct test_hook, hook));
}

/* In the third turn nothing but the hook's own letter can keep the loop from sleeping. */
static void hook_d(struct oc_turn_hook *hook) {
    struct hook_test *t = OC_CONTAINER(hook, struct test_hook, hook)->test;

    if (t->a.runs == 3) {
        oc_loop_hook_remove(hook);
        oc_loop_post(t->rig.loop, &t->letter);
    }
}

static void test_hooks_run_every_turn_in_order(void **state) {
    struct hook_test t = {0};
    struct test_hook d = {.hook.fn = hook_d, .test = &t, .name = 'd'};

    (void)state;
    rig_init(&t.rig);
    t.letter.fn = hook_stop;
    t.a = (struct test_hook){.hook.fn = hook_a, .test = &t, .name = 'a'};
    t.b = (struct test_hook){.hook.fn = hook_b, .test = &t, .name = 'b'};
    t.c = (struct test_hook){.hook.fn = hook_c, .test = &t, .name = 'c'};
    oc_loop_hook_add(t.rig.loop, &t.a.hook);
    oc_loop_hook_add(t.rig.loop, &t.b.hook);
    oc_loop_hook_add(t.rig.loop, &t.c.hook);
    oc_loop_hook_add(t.rig.loop, &d.hook);
    oc_loop_again(t.rig.loop); /* a first turn */
    rig_run(&t.rig);
    t.log[t.log_len] = '\0';
    assert_string_equal(t.log, "abcabaa"); /* three turns, and the one that brought the letter */
    rig_done(&t.rig);
}

/* ---- timers ---- */

#define TIMERS 1000

struct order_test {
    struct rig rig;
    struct oc_timer *timers[TIMERS];
    uint64_t started_ns[TIMERS];
    uint64_t wait_ms[TIMERS];
    unsigned fired;
    unsigned expected;
    uint64_t last_due_ns;
    bool out_of_order;
    bool early;
};

static struct order_test *order_test;

static void order_fired(struct oc_timer *timer) {
    struct order_test *t = order_test;
    uint64_t now_ns = oc_clock_now(oc_clock_real()).mono_ns;

    for (unsigned i = 0; i < TIMERS; i++) {
        if (t->timers[i] == timer) {
            t->early |= now_ns < t->started_ns[i] + t->wait_ms[i] * OC_NS_PER_MS;
            t->timers[i] = NULL;
        }
    }
    t->out_of_order |= timer->due_ns < t->last_due_ns;
    t->last_due_ns = timer->due_ns;
    oc_timer_done(timer);
    free(timer); /* in its own call */
    if (++t->fired == t->expected) {
        oc_loop_stop(t->rig.loop);
    }
}

static void test_many_timers_fire_in_order_and_never_early(void **state) {
    struct order_test t = {0};
    uint32_t rng = 7;

    (void)state;
    order_test = &t;
    rig_init(&t.rig);
    for (unsigned i = 0; i < TIMERS; i++) {
        rng = rng * 1664525u + 1013904223u;
        t.timers[i] = malloc(sizeof *t.timers[i]);
        assert_non_null(t.timers[i]);
        oc_timer_init(t.timers[i], t.rig.loop, order_fired);
        t.wait_ms[i] = rng >> 24;
        t.started_ns[i] = oc_clock_now(oc_clock_real()).mono_ns;
        assert_int_equal(oc_timer_start(t.timers[i], t.wait_ms[i], 0), 0);
    }
    t.expected = TIMERS;
    for (unsigned i = 0; i < TIMERS;
         i += 3) { /* out of the middle of the heap, and freed at once */
        oc_timer_done(t.timers[i]);
        free(OC_TAKE(t.timers[i]));
        t.expected--;
    }
    for (unsigned i = 1; i < TIMERS; i += 3) { /* again, with another time */
        t.wait_ms[i] = (t.wait_ms[i] * 7 + 3) % 200;
        t.started_ns[i] = oc_clock_now(oc_clock_real()).mono_ns;
        assert_int_equal(oc_timer_start(t.timers[i], t.wait_ms[i], 0), 0);
    }
    rig_run(&t.rig);
    assert_int_equal(t.fired, t.expected);
    assert_false(t.early);
    assert_false(t.out_of_order);
    rig_done(&t.rig);
}

struct repeat_test {
    struct rig rig;
    struct oc_timer repeat;
    struct oc_timer never;
    unsigned fired;
};

static void repeat_fired(struct oc_timer *timer) {
    struct repeat_test *t = OC_CONTAINER(timer, struct repeat_test, repeat);

    assert_int_equal(oc_timer_running(timer), t->fired < 5); /* the sixth is a single shot */
    if (++t->fired == 5) {
        oc_timer_stop(timer);
        assert_false(oc_timer_running(timer));
        assert_int_equal(oc_timer_start(timer, 0, 0), 0); /* once more, at once */
    } else if (t->fired == 6) {
        oc_loop_stop(t->rig.loop);
    }
}

static void never_fired(struct oc_timer *timer) {
    (void)timer;
    fail();
}

static void test_repeating_timer(void **state) {
    struct repeat_test t = {0};

    (void)state;
    rig_init(&t.rig);
    oc_timer_init(&t.repeat, t.rig.loop, repeat_fired);
    oc_timer_init(&t.never, t.rig.loop, never_fired);
    oc_timer_stop(&t.never); /* not running: fine */
    assert_int_equal(oc_timer_start(&t.repeat, 2, 1), 0);
    assert_int_equal(oc_timer_start(&t.never, UINT64_MAX, 0), 0);
    rig_run(&t.rig);
    assert_int_equal(t.fired, 6);
    assert_false(oc_timer_running(&t.never)); /* forgotten with the loop */
    rig_done(&t.rig);
}

/* ---- time and signals ---- */

struct now_test {
    struct rig rig;
    struct oc_timer timer;
    struct oc_now first;
    unsigned turns;
};

static void now_fired(struct oc_timer *timer) {
    struct now_test *t = OC_CONTAINER(timer, struct now_test, timer);
    struct oc_now now = oc_loop_now(t->rig.loop);
    uint64_t real_ns = oc_clock_now(oc_clock_real()).mono_ns;

    while (oc_clock_now(oc_clock_real()).mono_ns == real_ns) {
        continue; /* until the real clock has moved */
    }
    struct oc_now again = oc_loop_now(t->rig.loop);
    assert_int_equal(now.mono_ns, again.mono_ns); /* one time per turn */
    assert_int_equal(now.wall_ns, again.wall_ns);
    assert_true(now.mono_ns > t->first.mono_ns); /* and another in the next */
    assert_ptr_equal(oc_loop_current(), t->rig.loop);
    t->first = now;
    if (++t->turns == 3) {
        oc_loop_stop(t->rig.loop);
    }
}

static void test_time_stands_still_within_a_turn(void **state) {
    struct now_test t = {0};

    (void)state;
    rig_init(&t.rig);
    oc_timer_init(&t.timer, t.rig.loop, now_fired);
    assert_int_equal(oc_timer_start(&t.timer, 1, 1), 0);
    rig_run(&t.rig);
    assert_null(oc_loop_current());
    rig_done(&t.rig);
}

struct signal_test {
    struct rig rig;
    struct oc_signal *signal;
    struct oc_timer timer;
    unsigned came;
};

static void raise_it(struct oc_timer *timer) {
    (void)timer;
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
}

static void signal_came(void *arg, int signum) {
    struct signal_test *t = arg;

    assert_int_equal(signum, SIGUSR1);
    assert_ptr_equal(oc_loop_current(), t->rig.loop);
    if (++t->came == 3) {
        oc_signal_unwatch(t->signal);
        oc_loop_stop(t->rig.loop);
    }
}

static void test_signals_arrive_on_the_loop(void **state) {
    struct signal_test t = {0};
    struct oc_error err;
    struct oc_signal *none = NULL;

    (void)state;
    rig_init(&t.rig);
    assert_int_equal(oc_signal_watch(t.rig.loop, SIGUSR1, signal_came, &t, &t.signal, &err), 0);
    assert_int_not_equal(oc_signal_watch(t.rig.loop, SIGKILL, signal_came, &t, &none, &err), 0);
    assert_non_null(strstr(err.msg, "cannot watch signal 9"));
    oc_timer_init(&t.timer, t.rig.loop, raise_it);
    assert_int_equal(oc_timer_start(&t.timer, 1, 1), 0);
    rig_run(&t.rig);
    assert_int_equal(t.came, 3);
    rig_done(&t.rig);
}

static void test_seeds_differ(void **state) {
    (void)state;
    assert_true(oc_random_seed() != oc_random_seed());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_letters_arrive_in_order_from_four_threads),
        cmocka_unit_test(test_no_wakeup_is_lost_between_two_loops),
        cmocka_unit_test(test_no_wakeup_is_lost_while_falling_asleep),
        cmocka_unit_test(test_letters_after_the_run_are_delivered_at_the_end),
        cmocka_unit_test(test_stop_from_another_thread),
        cmocka_unit_test(test_a_loop_that_never_ran_is_freed),
        cmocka_unit_test(test_hooks_run_every_turn_in_order),
        cmocka_unit_test(test_many_timers_fire_in_order_and_never_early),
        cmocka_unit_test(test_repeating_timer),
        cmocka_unit_test(test_time_stands_still_within_a_turn),
        cmocka_unit_test(test_signals_arrive_on_the_loop),
        cmocka_unit_test(test_seeds_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
