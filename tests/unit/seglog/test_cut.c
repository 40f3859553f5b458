/* Drives the cut rule with a table of logs.
 *
 * A log is words: "D5:100" everything before (5, 100) is durable; "S5a" segment 5 of kernel a
 * ("S5a!" with the settled flag, "S5a<4:800" with a header that says it goes on from (4, 800),
 * "S5?" with an unreadable header); "f200-300" a fault; "e4096" the segment's records end there,
 * "e4096c" and are complete. Kernel r is the running one. */
#include "seglog_test.h"

#include <stdio.h>

#include "core/seglog/cut.h"

struct cut_case {
    const char *name;
    const char *log;
    const char *want; /* "segment:offset", or "-" for no cut */
};

static const struct cut_case cases[] = {
    /* the running kernel never lost power */
    {"empty log", "", "-"},
    {"one open segment", "S1r e4096", "-"},
    {"bad range, same kernel", "S1r f200-300 e4096", "-"},
    {"torn tail, same kernel", "S1r f4096-5000 e4096", "-"},
    {"no footer in the middle, same kernel", "S1r e4096 S2r e100", "-"},
    {"unreadable header, same kernel", "S1r e4096c S2? e64 S3r e100", "-"},
    {"last header unreadable, same kernel", "S1r e4096c S2? e64", "-"},
    {"missing segment, same kernel", "S1r e4096c S3r e100", "-"},
    {"missing segments at the start, same kernel", "D1:64 S5r e100", "-"},

    /* power lost, nothing known to be durable */
    {"whole tail survived", "S1a e4096", "-"},
    {"torn tail", "S1a f4096-5000 e4096", "1:4096"},
    {"hole with good records behind", "S1a f200-300 e4096", "1:200"},
    {"the first of two holes", "S1a f200-300 f400-500 e4096", "1:200"},
    {"hole, then later segments", "S1a f200-300 e4096c S2a e100", "1:200"},
    {"hole in a later segment", "S1a e4096c S2a f64-100 e400", "2:64"},
    {"sealed segments without a hole", "S1a e4096c S2a e4096c S3a e100", "-"},
    {"records missing at the end of a segment", "S1a e4096 S2a e100", "1:4096"},
    {"no record at all in a segment", "S1a e64 S2a e100", "1:64"},
    {"missing segment", "S1a e4096c S3a e100", "1:4096"},
    {"last header unreadable", "S1a e4096c S2? e64", "2:0"},
    {"header unreadable, more behind", "S1a e4096c S2? e64 S3a e100", "2:0"},
    {"only header unreadable", "S1? e64", "1:0"},
    {"first header unreadable, more behind", "S1? e64 S2a e64", "1:0"},

    /* what is in front of the durable position is skipped */
    {"flipped bit before the mark", "D1:400 S1a f200-300 e4096", "-"},
    {"fault ends at the mark", "D1:400 S1a f200-400 e4096", "-"},
    {"fault begins at the mark", "D1:400 S1a f400-500 e4096", "1:400"},
    {"fault reaches over the mark", "D1:400 S1a f200-500 e4096", "1:400"},
    {"flip before, hole behind", "D1:400 S1a f200-300 f600-700 e4096", "1:600"},
    {"mark in a later segment", "D2:100 S1a f200-300 e4096 S2a e200", "-"},
    {"mark in a later segment, hole behind", "D2:100 S1a f200-300 e4096 S2a f100-120 e200",
     "2:100"},
    {"the greatest of three marks", "D1:64 D2:100 D1:400 S1a f500-600 e4096c S2a e200", "-"},
    {"mark over a missing segment", "D3:64 S1a e4096c S3a e100", "-"},
    {"mark inside a missing segment", "D2:500 S1a e4096c S3a e100", "2:500"},
    {"mark at the end of a segment without footer", "D1:4096 S1a e4096 S2a e100", "1:4096"},
    {"mark at the start of the next", "D2:64 S1a e4096 S2a e100", "-"},
    {"header unreadable before the mark", "D3:64 S1a e400c S2? e64 S3a e100", "-"},
    {"segments in front of the mark left out", "D4:64 S4a e100", "-"},
    {"its last segment only left out", "D3:4096 S4a e100", "-"},
    {"a whole segment behind the mark is missing", "D3:4096 S5a e100", "3:4096"},
    {"mark behind everything", "D9:64 S1a f200-300 e4096", "-"},

    /* another kernel's segment settles everything before it */
    {"recovered once since", "S1a f200-300 e4096 S2b e100", "-"},
    {"recovered since, lost power again", "S1a f200-300 e4096 S2b f100-120 e400", "2:100"},
    {"recovered since, without a loss", "S1a f200-300 e4096 S2r f100-120 e400", "-"},
    {"three kernels", "S1a f70-80 e4096 S2b f70-80 e400 S3c e100 S4c e100", "3:100"},
    {"cut candidate of the kernel before is taken back", "S1a e400 S2a e100 S3b e100", "-"},
    {"gap between kernels", "S1a e400 S7b e100", "-"},
    {"header unreadable between kernels", "S1a e400 S2? e64 S3b e100", "-"},
    {"another kernel's first segment is lost, its second not", "S1a e400c S2? e64 S3b<2:800 e100",
     "2:0"},
    {"another kernel's first segment is missing, its second not", "S1a e400 S3b<2:800 e100",
     "1:400"},
    {"another kernel goes on where the last one was cut", "S1a e400 S3b<1:400 e100", "-"},
    {"header unreadable between kernels, then a hole", "S1a e4c S2? e64 S3b f70-80 e100", "3:70"},

    /* the settled flag: first segment after a restart, or after a poisoned one */
    {"behind a poisoned segment", "S1a f200-300 e4096 S2a! e100", "-"},
    {"behind a poisoned segment, torn", "S1a f200-300 e4096 S2a! f100-110 e100", "2:100"},
    {"flag behind a gap of ids", "S1a e4096 S9a! e100", "-"},
    {"flag on the first segment", "S1a! f200-300 e4096", "1:200"},
    {"flag, then a segment without footer", "S1a e400 S2a! e100 S3a e100", "2:100"},

    /* a header that says where the log was */
    {"goes on where the one before ended", "S1a e4096 S2a<1:4096 e100", "-"},
    {"the end of the one before is missing", "S1a e4000 S2a<1:4096 e100", "1:4000"},
    {"records missing in spite of a footer", "S1a e4000c S2a<1:4096 e100", "1:4000"},
    {"ids left out", "S1a e4096 S7a<1:4096 e100", "-"},
    {"a segment between is missing", "S1a e4096c S3a<2:4096 e100", "1:4096"},
    {"the one before is not looked at", "D1:4096 S3a<1:4096 e100", "-"},
    {"the one before is not there", "D1:4000 S3a<1:4096 e100", "1:4000"},
    {"the very first is not there", "S2a<1:4096 e100", "0:0"},
    {"a segment between is not there", "D1:4096 S5a<3:800 e100", "1:4096"},
    {"flip in the last record, durable", "D1:4096 S1a f4000-4096 e4000 S2a<1:4096 e100", "-"},
    {"flip in the last record, not durable", "D1:400 S1a f4000-4096 e4000 S2a<1:4096 e9", "1:4000"},
    {"unreadable header before the mark", "D2:800 S1a e400 S2? e64 S3a<2:800 e100", "-"},
    {"unreadable header over the mark", "D2:800 S1a e400 S2? e64 S3a<2:880 e100", "2:800"},
    {"given up by a later one", "S1a e4096 S3a<1:400 e100", "-"},
    {"says less, but a fault is in front", "S1a f200-300 e4096 S2a<1:4096 e100", "1:200"},
    {"same kernel, the end is missing", "S1r e4000 S2r<1:4096 e100", "-"},
    {"another kernel took over", "S1a e4000 S2b<1:4096 e100", "-"},
};

static void feed(struct oc_cut *c, const char *word) {
    unsigned segment = 0, from = 0, to = 0;
    char kernel = 0, flag = 0;

    if (sscanf(word, "D%u:%u", &segment, &from) == 2) {
        oc_cut_durable(c, (struct oc_log_pos){segment, from});
    } else if (sscanf(word, "S%u%c%c", &segment, &kernel, &flag) >= 2) {
        struct oc_seg_header h = {.flags = flag == '!' ? OC_SEG_SETTLED : 0};
        const char *prev = strchr(word, '<');

        if (prev != NULL) {
            assert_int_equal(sscanf(prev, "<%u:%u", &h.prev_segment, &h.prev_end), 2);
            h.prev_end /= 8;
        }
        memset(h.boot_id, kernel, sizeof h.boot_id);
        oc_cut_segment(c, segment, kernel == '?' ? NULL : &h);
    } else if (sscanf(word, "f%u-%u", &from, &to) == 2) {
        oc_cut_fault(c, from, to);
    } else if (sscanf(word, "e%u%c", &from, &flag) >= 1) {
        oc_cut_segment_end(c, from, flag == 'c');
    } else {
        fail_msg("what is '%s'?", word);
    }
}

static void test_table(void **state) {
    uint8_t running[16];

    (void)state;
    memset(running, 'r', sizeof running);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct oc_log_pos at = {0, 0};
        char got[64] = "-", words[256];
        struct oc_cut c;
        char *save = NULL;

        assert_true(strlen(cases[i].log) < sizeof words);
        memcpy(words, cases[i].log, strlen(cases[i].log) + 1);
        oc_cut_init(&c, running);
        for (char *w = strtok_r(words, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save)) {
            feed(&c, w);
        }
        if (oc_cut_done(&c, &at)) {
            (void)snprintf(got, sizeof got, "%u:%llu", at.segment, (unsigned long long)at.offset);
            /* Never in front of what is durable. */
            assert_true(oc_log_pos_compare(at, oc_cut_settled(&c)) >= 0);
        }
        if (strcmp(got, cases[i].want) != 0) {
            fail_msg("%s (%s): %s, not %s", cases[i].name, cases[i].log, got, cases[i].want);
        }
    }
}

/* Whatever the log: what is cut is behind everything durable, and nothing in front of the cut and
 * behind the durable position is bad. */
static void test_random_logs_keep_a_prefix(void **state) {
    uint8_t running[16];
    struct oc_rng rng;
    unsigned cuts = 0;

    (void)state;
    memset(running, 'r', sizeof running);
    oc_rng_init(&rng, 3);
    for (int round = 0; round < 20000; round++) {
        struct oc_log_pos at = {0, 0}, first_bad = {UINT32_MAX, 0};
        struct oc_log_pos durable = {1 + (uint32_t)oc_rng_below(&rng, 4), oc_rng_below(&rng, 500)};
        struct oc_seg_header h = {.flags = 0};
        struct oc_cut c;

        oc_cut_init(&c, running);
        oc_cut_durable(&c, durable);
        memset(h.boot_id, 'a', sizeof h.boot_id);
        for (uint32_t segment = 1; segment <= 4; segment++) {
            uint64_t offset = 64;

            oc_cut_segment(&c, segment, &h);
            for (int i = 0; i < 3; i++) {
                uint64_t from = offset + oc_rng_below(&rng, 100);
                uint64_t to = from + 1 + oc_rng_below(&rng, 100);
                struct oc_log_pos bad = oc_log_pos_max((struct oc_log_pos){segment, from}, durable);

                if (oc_rng_below(&rng, 4) == 0) {
                    oc_cut_fault(&c, from, to);
                    if (oc_log_pos_compare((struct oc_log_pos){segment, to}, durable) > 0 &&
                        oc_log_pos_compare(bad, first_bad) < 0) {
                        first_bad = bad;
                    }
                }
                offset = to;
            }
            oc_cut_segment_end(&c, offset, true);
        }
        bool cut = oc_cut_done(&c, &at);
        cuts += cut;
        assert_int_equal(cut, first_bad.segment != UINT32_MAX);
        if (cut) {
            assert_int_equal(oc_log_pos_compare(at, first_bad), 0);
        }
    }
    assert_true(cuts > 1000 && cuts < 19000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_random_logs_keep_a_prefix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
