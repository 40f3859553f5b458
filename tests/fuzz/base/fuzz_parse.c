/* What people write: a text that is understood is written back and understood as the same value. */
#include "base/check.h"
#include "base/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct oc_span s = oc_span(data, size);
    char text[OC_PARSE_TEXT_MAX];
    int64_t ns = 0;
    int64_t ns_again = 0;
    uint64_t bytes = 0;
    uint64_t bytes_again = 0;
    int64_t i = 0;
    uint64_t u = 0;
    double d = 0;
    bool b = false;

    if (oc_parse_duration(s, &ns) == OC_OK) {
        size_t n = oc_format_duration(text, ns);

        OC_CHECK(oc_parse_duration(oc_span(text, n), &ns_again) == OC_OK && ns_again == ns);
    }
    if (oc_parse_size(s, &bytes) == OC_OK) {
        size_t n = oc_format_size(text, bytes);

        OC_CHECK(oc_parse_size(oc_span(text, n), &bytes_again) == OC_OK && bytes_again == bytes);
    }
    /* Both integers agree where both understand. */
    if (oc_parse_int64(s, &i) == OC_OK && oc_parse_uint64(s, &u) == OC_OK) {
        OC_CHECK(i >= 0 && (uint64_t)i == u);
    }
    if (oc_parse_double(s, &d) == OC_OK) {
        OC_CHECK(d - d == 0); /* finite */
    }
    (void)oc_parse_bool(s, &b); /* only has to come back */
    return 0;
}
