/* Built with OC_PLANTED_BUGS: the bugs planted in this folder do what the simulator expects of
 * them, and nothing while none is turned on. */
#include "seglog_test.h"

#include "base/plant.h"
#include "core/seglog/cut.h"

enum oc_plant oc_planted = OC_PLANT_NONE;

static void test_trust_footer_skips_the_checksums_only(void **state) {
    struct oc_footer_builder *b = oc_footer_new();
    struct oc_record r = put_record(OC_SPAN_LIT("key"), OC_SPAN_EMPTY, 256);
    static uint8_t file[64 + 8040];
    struct oc_footer_info info;
    struct oc_buf out;
    size_t need = 0;

    (void)state;
    assert_non_null(b);
    r.object_len = 8000;
    assert_int_equal(oc_footer_add(b, 64, &r), 0);
    oc_buf_init(&out, 1 << 20);
    assert_int_equal(oc_buf_append(&out, file, sizeof file), 0);
    assert_int_equal(oc_footer_encode(b, SALT, 7, sizeof file, &out), 0);
    for (size_t at = sizeof file; at + 3 <= out.len; at++) { /* another key in both copies */
        if (memcmp(out.data + at, "key", 3) == 0) {
            out.data[at] = 'K';
        }
    }
    oc_planted = OC_PLANT_NONE;
    assert_int_equal(oc_footer_decode(oc_buf_span(&out), out.len, SALT, 7, &info, &need),
                     OC_E_DATA_LOSS);
    oc_planted = OC_PLANT_TRUST_FOOTER;
    assert_int_equal(oc_footer_decode(oc_buf_span(&out), out.len, SALT, 7, &info, &need), 0);
    assert_int_equal(info.records, 1);
    /* Lengths are still looked at, or the walk would leave the file. */
    oc_store64(out.data + out.len - 64 + 32, 1 << 20);
    oc_store64(out.data + out.len - (out.len - sizeof file) / 2 - 64 + 32, 1 << 20);
    assert_int_equal(oc_footer_decode(oc_buf_span(&out), out.len, SALT, 7, &info, &need),
                     OC_E_DATA_LOSS);
    oc_planted = OC_PLANT_NONE;
    oc_buf_done(&out);
    oc_footer_free(b);
}

static bool cut_of_a_torn_log(void) {
    struct oc_seg_header h = {.boot_id = {1}};
    struct oc_log_pos at;
    struct oc_cut c;

    oc_cut_init(&c, (uint8_t[16]){2});
    oc_cut_segment(&c, 1, &h);
    oc_cut_fault(&c, 200, 300);
    oc_cut_segment_end(&c, 4096, true);
    return oc_cut_done(&c, &at);
}

static void test_skip_hole_never_cuts(void **state) {
    (void)state;
    oc_planted = OC_PLANT_SKIP_HOLE;
    assert_false(cut_of_a_torn_log());
    oc_planted = OC_PLANT_NONE;
    assert_true(cut_of_a_torn_log());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trust_footer_skips_the_checksums_only),
        cmocka_unit_test(test_skip_hole_never_cuts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
