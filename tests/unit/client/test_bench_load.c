/* What `ocachecli bench` asks for and how it checks what it gets: a wrong byte must be noticed, a
 * right one never be blamed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "apps/ocachecli_bench.h"
#include "base/check.h"

static void test_mixes(void **state) {
    static const struct {
        const char *text;
        uint64_t read, update, total; /* total 0: refused */
    } cases[] = {{"A", 50, 50, 100},
                 {"a", 50, 50, 100},
                 {"B", 95, 5, 100},
                 {"C", 100, 0, 100},
                 {"read=70,update=30", 70, 30, 100},
                 {"update=1", 0, 1, 1},
                 {"read=3,update=1", 3, 1, 4},
                 {"", 0, 0, 0},
                 {"D", 0, 0, 0},
                 {"read=70,", 0, 0, 0},
                 {"read=70;update=30", 0, 0, 0},
                 {"read=0,update=0", 0, 0, 0},
                 {"read=-1", 0, 0, 0},
                 {"read=99999999999", 0, 0, 0},
                 {"scan=10", 0, 0, 0}};

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        struct bench_mix mix = {.total = 12345};
        struct oc_error err = {0};
        int rv = bench_mix_parse(cases[i].text, &mix, &err);

        assert_int_equal(rv, cases[i].total == 0 ? OC_E_INVALID : 0);
        if (rv != 0) {
            assert_true(err.msg[0] != 0 && mix.total == 12345);
            continue;
        }
        assert_int_equal(mix.weights[BENCH_READ], cases[i].read);
        assert_int_equal(mix.weights[BENCH_UPDATE], cases[i].update);
        assert_int_equal(mix.total, cases[i].total);
    }
}

static void test_mix_shares(void **state) {
    struct bench_mix mix;
    struct oc_rng rng;
    unsigned reads = 0;

    (void)state;
    assert_int_equal(bench_mix_parse("B", &mix, NULL), 0);
    oc_rng_init(&rng, 7);
    for (unsigned i = 0; i < 100000; i++) {
        reads += bench_mix_pick(&mix, &rng) == BENCH_READ;
    }
    assert_in_range(reads, 94500, 95500); /* 95000, seven standard deviations either way */
}

static void test_key_names(void **state) {
    char name[BENCH_KEY_MAX];

    (void)state;
    /* FNV-1a 64 of eight bytes, computed by another program. */
    assert_int_equal(bench_key_name(0, name), strlen("usera8c7f832281a39c5"));
    assert_string_equal(name, "usera8c7f832281a39c5");
    (void)bench_key_name(1, name);
    assert_string_equal(name, "user89cd31291d2aefa4");
}

static void test_key_choice(void **state) {
    static unsigned seen[1000];
    struct bench_keys keys;
    struct oc_rng rng;
    unsigned most = 0, used = 0;

    (void)state;
    for (int zipfian = 0; zipfian < 2; zipfian++) {
        memset(seen, 0, sizeof seen);
        most = used = 0;
        bench_keys_init(&keys, 1000, zipfian);
        oc_rng_init(&rng, 11);
        for (unsigned i = 0; i < 200000; i++) {
            uint64_t k = bench_keys_pick(&keys, &rng);

            assert_true(k < 1000);
            seen[k]++;
        }
        for (unsigned k = 0; k < 1000; k++) {
            most = seen[k] > most ? seen[k] : most;
            used += seen[k] > 0;
        }
        if (zipfian) {
            /* The first rank has 1/zeta(1000) = 13.0 % (and what else falls on its key). */
            assert_in_range(most, 25000, 31000);
        } else {
            assert_int_equal(used, 1000);
            assert_in_range(most, 200, 300); /* mean 200, standard deviation 14 */
        }
    }
    bench_keys_init(&keys, 1, true);
    assert_int_equal(bench_keys_pick(&keys, &rng), 0);
}

/* ---- verification ---- */

static uint64_t check_in_pieces(const struct bench_values *v, uint64_t key,
                                const struct bench_key_state *state, const uint8_t *p, size_t len,
                                size_t step) {
    struct bench_check c;

    bench_check_begin(&c, v, key, state);
    for (size_t at = 0; at < len; at += step) {
        size_t n = len - at < step ? len - at : step;

        bench_check_piece(&c, oc_span(p + at, n));
    }
    return bench_check_end(&c);
}

static void test_wrong_bytes_are_noticed(void **state) {
    static const size_t sizes[] = {1, 7, 31, 32, 33, 100, 5000};
    static const size_t steps[] = {1, 5, 32, 33, 10000};

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(sizes); i++) {
        size_t n = sizes[i];
        struct bench_values v;
        struct bench_key_state k = {.issued = 3, .floor = 2};
        uint8_t *copy = malloc(n + 1);

        assert_int_equal(bench_values_init(&v, n, 42), 0);
        for (size_t s = 0; s < OC_ARRAY_LEN(steps); s++) {
            for (uint32_t g = 2; g <= 3; g++) { /* both may be there */
                memcpy(copy, bench_value(&v, 9, g), n);
                assert_int_equal(check_in_pieces(&v, 9, &k, copy, n, steps[s]), 0);
            }
            copy[n - 1] ^= 1;
            if (n > 32) { /* behind the head that tells the generation */
                assert_int_equal(check_in_pieces(&v, 9, &k, copy, n, steps[s]), 1);
            }
            copy[n - 1] ^= 1;
            assert_int_equal(check_in_pieces(&v, 9, &k, copy, n - 1, steps[s]), 1);
            copy[n] = 0;
            assert_int_equal(check_in_pieces(&v, 9, &k, copy, n + 1, steps[s]), 1);
            assert_int_equal(check_in_pieces(&v, 9, &k, NULL, 0, steps[s]), n);
            if (n >= 31) {                              /* shorter ones may agree by chance */
                memcpy(copy, bench_value(&v, 9, 1), n); /* overwritten before the read began */
                assert_true(check_in_pieces(&v, 9, &k, copy, n, steps[s]) > 0);
                memcpy(copy, bench_value(&v, 10, 3), n); /* another key's */
                assert_true(check_in_pieces(&v, 9, &k, copy, n, steps[s]) > 0);
            }
        }
        free(copy);
        bench_values_done(&v);
    }
}

static void test_generations(void **state) {
    struct bench_key_state k = {0};
    uint32_t a, b, c;

    (void)state;
    a = bench_write_begin(&k);
    assert_int_equal(k.floor, 0); /* not answered: the old one may still be read */
    bench_write_end(&k, a, true);
    assert_int_equal(k.floor, a);
    /* Two at once: their order is unknown, so both may be read, and what was there before. */
    a = bench_write_begin(&k);
    b = bench_write_begin(&k);
    bench_write_end(&k, b, true);
    bench_write_end(&k, a, true);
    assert_int_equal(k.floor, 1);
    /* Alone again. */
    c = bench_write_begin(&k);
    bench_write_end(&k, c, true);
    assert_int_equal(k.floor, c);
    /* A failed one may have happened, or happen any time later: the floor stays. */
    a = bench_write_begin(&k);
    bench_write_end(&k, a, false);
    b = bench_write_begin(&k);
    bench_write_end(&k, b, true);
    assert_int_equal(k.floor, c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixes),
        cmocka_unit_test(test_mix_shares),
        cmocka_unit_test(test_key_names),
        cmocka_unit_test(test_key_choice),
        cmocka_unit_test(test_wrong_bytes_are_noticed),
        cmocka_unit_test(test_generations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
