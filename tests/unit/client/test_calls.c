/* Calls of the gRPC client against scripted servers: framing at any split, statuses of every
 * origin, deadlines, cancelling. */
#include <stdio.h>

#include "fixture.h"

/* ---- scripts that answer one call ---- */

struct answer {
    const char *const *headers; /* NULL: the usual ones */
    const char *status, *message;
    const char *messages[8];
    size_t step; /* bytes per DATA frame */
    bool trailers_only;
};

static bool answer_one(struct raw *r, void *arg) {
    const struct answer *a = arg;
    uint32_t stream;
    size_t len;

    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_body(r, stream, NULL, 0, &len));
    if (a->trailers_only) {
        RAW(raw_headers(r, stream, RAW_END_STREAM, a->headers));
        RAW(raw_quiet(r)); /* a call that ended in order is not reset */
        return true;
    }
    if (a->headers != NULL) {
        RAW(raw_headers(r, stream, 0, a->headers));
    } else {
        RAW(raw_ok_headers(r, stream));
    }
    for (unsigned i = 0; i < 8 && a->messages[i] != NULL; i++) {
        RAW(raw_message(r, stream, a->messages[i], strlen(a->messages[i]), a->step));
    }
    RAW(raw_trailers(r, stream, a->status, a->message));
    RAW(a->headers != NULL || raw_quiet(r));
    return true;
}

static void run_answer(const struct answer *a, struct fx_call *c) {
    struct raw *r = raw_start(answer_one, (void *)(uintptr_t)a, 0);
    struct fx fx;

    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, c, 0, "request");
    fx_wait_closed(c);
    raw_wait(r); /* for what it still wants to see */
    fx_close(&fx);
    assert_true(raw_stop(r));
    assert_int_equal(c->closed, 1);
}

static void test_messages_at_any_split(void **state) {
    static const size_t steps[] = {1, 2, 3, 4, 5, 6, 7, 1000};

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(steps); i++) {
        struct answer a = {.status = "0",
                           .messages = {"first", "", "third, longer than the others", "", "5"},
                           .step = steps[i]};
        struct fx_call c;

        run_answer(&a, &c);
        assert_int_equal(c.code, 0);
        assert_int_equal(c.messages, 5);
        assert_true(c.headers);
        assert_int_equal(c.len, 5 + 29 + 1);
        assert_memory_equal(c.bytes, "firstthird, longer than the others5", c.len);
    }
}

static bool many_in_one_frame(struct raw *r, void *arg) {
    static const uint8_t frame[] = {0, 0, 0, 0, 1, 'a', 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 'b', 'c'};
    uint32_t stream;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_ok_headers(r, stream));
    RAW(raw_frame(r, RAW_DATA, 0, stream, frame, sizeof frame));
    RAW(raw_trailers(r, stream, "0", NULL));
    return true;
}

static void test_many_messages_in_one_frame(void **state) {
    struct raw *r = raw_start(many_in_one_frame, NULL, 0);
    struct fx fx;
    struct fx_call whole, pieces;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &whole, 0, "q");
    fx_expect(&whole, 0, "");
    assert_int_equal(whole.messages, 3);
    assert_memory_equal(whole.bytes, "abc", 3);
    fx_close(&fx);
    assert_true(raw_stop(r));

    r = raw_start(many_in_one_frame, NULL, 0);
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start_pieces(&fx, &pieces);
    fx_expect(&pieces, 0, "");
    assert_int_equal(pieces.messages, 3);
    assert_int_equal(pieces.ends, 3);
    assert_memory_equal(pieces.bytes, "abc", 3);
    fx_close(&fx);
    assert_true(raw_stop(r));
}

/* ---- statuses ---- */

static void test_trailers_only(void **state) {
    static const char *const headers[] = {":status: 200", "content-type: application/grpc",
                                          "grpc-status: 5",
                                          "grpc-message: key %E2%82%AC 100%25 not%zz found%", NULL};
    struct answer a = {.headers = headers, .trailers_only = true};
    struct fx_call c;

    (void)state;
    run_answer(&a, &c);
    assert_int_equal(c.code, OC_E_NOT_FOUND);
    assert_string_equal(c.message, "key \xe2\x82\xac 100% not%zz found%");
    assert_false(c.headers);
    assert_false(c.unprocessed);
}

static void test_status_in_trailers(void **state) {
    static const struct {
        const char *status;
        int code;
    } cases[] = {{"0", 0},
                 {"1", OC_E_CANCELLED},
                 {"8", OC_E_EXHAUSTED},
                 {"16", OC_E_UNAUTHENTICATED},
                 {"17", OC_E_UNKNOWN},
                 {"-1", OC_E_UNKNOWN},
                 {"5x", OC_E_UNKNOWN},
                 {"99999999999999999999", OC_E_UNKNOWN}};

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        struct answer a = {
            .status = cases[i].status, .message = "why", .messages = {"m"}, .step = 100};
        struct fx_call c;

        run_answer(&a, &c);
        assert_int_equal(c.code, cases[i].code);
        assert_string_equal(c.message, "why");
        assert_int_equal(c.messages, 1);
    }
}

static void test_http_errors(void **state) {
    static const struct {
        const char *status;
        int code;
    } cases[] = {{":status: 400", OC_E_INTERNAL},    {":status: 401", OC_E_UNAUTHENTICATED},
                 {":status: 403", OC_E_PERMISSION},  {":status: 404", OC_E_UNIMPLEMENTED},
                 {":status: 429", OC_E_UNAVAILABLE}, {":status: 502", OC_E_UNAVAILABLE},
                 {":status: 503", OC_E_UNAVAILABLE}, {":status: 504", OC_E_UNAVAILABLE},
                 {":status: 500", OC_E_UNKNOWN},     {":status: 418", OC_E_UNKNOWN}};

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(cases); i++) {
        const char *headers[] = {cases[i].status, "content-type: text/html", NULL};
        struct answer a = {.headers = headers, .trailers_only = true};
        struct answer body = {
            .headers = headers, .status = "0", .messages = {"<html>"}, .step = 100};
        struct fx_call c;

        run_answer(&a, &c);
        assert_int_equal(c.code, cases[i].code);
        assert_non_null(strstr(c.message, cases[i].status + 9));
        run_answer(&body, &c);
        assert_int_equal(c.code, cases[i].code);
        assert_int_equal(c.messages, 0);
    }
}

static void test_foreign_content_type(void **state) {
    static const char *const headers[] = {":status: 200", "content-type: text/html", NULL};
    struct answer a = {.headers = headers, .status = "0", .messages = {"<html>"}, .step = 100};
    struct fx_call c;

    (void)state;
    run_answer(&a, &c);
    assert_int_equal(c.code, OC_E_UNKNOWN);
    assert_int_equal(c.messages, 0);
}

static bool provisional_first(struct raw *r, void *arg) {
    static const char *const early[] = {":status: 103", "link: x", NULL};
    static const char *const headers[] = {":status: 200", "content-type: application/grpc+proto",
                                          "x-answer: 42", NULL};
    uint32_t stream;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_headers(r, stream, 0, early));
    RAW(raw_headers(r, stream, 0, headers));
    RAW(raw_message(r, stream, "m", 1, 10));
    RAW(raw_trailers(r, stream, "0", NULL));
    return true;
}

static void test_provisional_response(void **state) {
    struct raw *r = raw_start(provisional_first, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, 0, "");
    assert_int_equal(c.messages, 1);
    assert_string_equal(c.header, "42");
    fx_close(&fx);
    assert_true(raw_stop(r));
}

/* ---- broken responses ---- */

struct broken {
    const uint8_t *data;
    size_t len;
    const char *status; /* NULL: END_STREAM on the data, no trailers */
    bool expect_rst;
};

static bool serve_broken(struct raw *r, void *arg) {
    const struct broken *b = arg;
    struct raw_in in;
    uint32_t stream;

    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_ok_headers(r, stream));
    RAW(raw_frame(r, RAW_DATA, b->status == NULL && !b->expect_rst ? RAW_END_STREAM : 0, stream,
                  b->data, b->len));
    if (b->status != NULL) {
        RAW(raw_trailers(r, stream, b->status, NULL));
    }
    if (b->expect_rst) {
        RAW(raw_expect(r, RAW_RST, &in));
        RAW(in.stream == stream && in.payload[3] == 8 /* CANCEL */);
    }
    return true;
}

static void run_broken(const struct broken *b, int code, const char *part) {
    struct raw *r = raw_start(serve_broken, (void *)(uintptr_t)b, 0);
    struct fx fx;
    struct fx_call c;

    fx_open(&fx, raw_addr(r), (struct oc_channel_config){.max_message_bytes = 1000});
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, code, part);
    fx_close(&fx);
    assert_true(raw_stop(r));
}

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

static void test_broken_responses(void **state) {
    (void)state;
    run_broken(&(struct broken){BYTES(0, 0, 0, 0, 1, 'x'), NULL, false}, OC_E_INTERNAL,
               "without a status");
    run_broken(&(struct broken){BYTES(0, 0, 0, 0, 5, 'x'), "0", false}, OC_E_INTERNAL,
               "middle of a message");
    run_broken(&(struct broken){BYTES(0, 0, 0), "0", false}, OC_E_INTERNAL, "middle of a message");
    /* The server's own reason goes before the cut message. */
    run_broken(&(struct broken){BYTES(0, 0, 0, 0, 5, 'x'), "14", false}, OC_E_UNAVAILABLE, "");
    run_broken(&(struct broken){BYTES(1, 0, 0, 0, 1, 'x'), NULL, true}, OC_E_UNIMPLEMENTED,
               "compressed");
    run_broken(&(struct broken){BYTES(2, 0, 0, 0, 1, 'x'), NULL, true}, OC_E_INTERNAL, "framing");
    run_broken(&(struct broken){BYTES(0, 0, 0, 3, 0xe9), NULL, true}, OC_E_EXHAUSTED,
               "larger than max (1001 vs. 1000)");
    run_broken(&(struct broken){BYTES(0, 0xff, 0xff, 0xff, 0xff), NULL, true}, OC_E_EXHAUSTED,
               "larger than max");
}

static bool headers_too_large(struct raw *r, void *arg) {
    static char big[40 << 10];
    const char *pairs[] = {":status: 200", "content-type: application/grpc", big, NULL};
    uint32_t stream;

    (void)arg;
    memcpy(big, "x-big: ", 7);
    memset(big + 7, 'b', sizeof big - 8);
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_headers(r, stream, 0, pairs)); /* one frame: the client allows 256 KiB */
    return true;
}

static void test_response_headers_are_bounded(void **state) {
    struct raw *r = raw_start(headers_too_large, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &c, 0, "q");
    fx_expect(&c, OC_E_EXHAUSTED, "headers larger");
    fx_close(&fx);
    assert_true(raw_stop(r));
}

struct reset {
    uint32_t h2;
    int code;
    bool unprocessed;
    bool after_message;
};

static bool serve_reset(struct raw *r, void *arg) {
    const struct reset *reset = arg;
    uint32_t stream;
    size_t len;

    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_body(r, stream, NULL, 0, &len));
    if (reset->after_message) {
        RAW(raw_ok_headers(r, stream));
        RAW(raw_message(r, stream, "m", 1, 10));
    }
    RAW(raw_rst(r, stream, reset->h2));
    RAW(raw_quiet(r)); /* a reset is not answered by another */
    return true;
}

static void test_resets(void **state) {
    static struct reset resets[] = {
        {7, OC_E_UNAVAILABLE, true, false}, /* REFUSED_STREAM */
        {8, OC_E_CANCELLED, false, true},   /* CANCEL */
        {11, OC_E_EXHAUSTED, false, false}, /* ENHANCE_YOUR_CALM */
        {12, OC_E_PERMISSION, false, true}, /* INADEQUATE_SECURITY */
        {2, OC_E_INTERNAL, false, false},   {0, OC_E_INTERNAL, false, true},
        {99, OC_E_INTERNAL, false, false},
    };

    (void)state;
    for (size_t i = 0; i < OC_ARRAY_LEN(resets); i++) {
        struct raw *r = raw_start(serve_reset, &resets[i], 0);
        struct fx fx;
        struct fx_call c;

        fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
        fx_call_start(&fx, &c, 0, "q");
        fx_expect(&c, resets[i].code, "reset by the server");
        assert_int_equal(c.unprocessed, resets[i].unprocessed);
        assert_int_equal(c.messages, resets[i].after_message);
        raw_wait(r);
        fx_close(&fx);
        assert_true(raw_stop(r));
    }
}

/* ---- requests ---- */

static bool check_request(struct raw *r, void *arg) {
    uint32_t stream;
    uint8_t body[64];
    size_t len;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(strcmp(raw_header(r, ":method"), "POST") == 0);
    RAW(strcmp(raw_header(r, ":scheme"), "http") == 0);
    RAW(strcmp(raw_header(r, ":path"), "/test.Service/Method") == 0);
    RAW(strcmp(raw_header(r, ":authority"), raw_addr(r)) == 0);
    RAW(strcmp(raw_header(r, "te"), "trailers") == 0);
    RAW(strcmp(raw_header(r, "content-type"), "application/grpc") == 0);
    RAW(strcmp(raw_header(r, "grpc-timeout"), "15000m") == 0 ||
        strcmp(raw_header(r, "grpc-timeout"), "15S") == 0 ||
        strcmp(raw_header(r, "grpc-timeout"), "15000000u") == 0);
    RAW(strcmp(raw_header(r, "x-ring-epoch"), "18446744073709551615") == 0);
    RAW(raw_header(r, "grpc-encoding") == NULL && raw_header(r, "grpc-accept-encoding") == NULL);
    RAW(raw_body(r, stream, body, sizeof body, &len));
    RAW(len == 10 && memcmp(body, "\0\0\0\0\5hello", 10) == 0);
    RAW(raw_ok_headers(r, stream));
    RAW(raw_trailers(r, stream, "0", NULL));
    return true;
}

static void do_send_hello(void *arg) {
    struct fx_call *c = arg;

    (void)oc_client_call_send_copy(c->call, OC_SPAN_LIT("hello"));
    oc_client_call_half_close(c->call);
}

static void test_request_on_the_wire(void **state) {
    struct raw *r = raw_start(check_request, NULL, 0);
    struct oc_metadata md = {"x-ring-epoch", OC_SPAN_LIT("18446744073709551615")};
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    assert_int_equal(fx_call_open(&fx, &c, 15000, &md, 1), 0);
    fx_do(&fx, do_send_hello, &c);
    fx_expect(&c, 0, "");
    fx_close(&fx);
    assert_true(raw_stop(r));
}

static void test_metadata_is_bounded(void **state) {
    struct answer a = {.status = "0"};
    struct raw *r = raw_start(answer_one, &a, 0);
    static uint8_t big[64 << 10];
    struct oc_metadata md = {"x-big", oc_span(big, sizeof big)};
    struct fx fx;
    struct fx_call c, ok;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    assert_int_equal(fx_call_open(&fx, &c, 0, &md, 1), OC_E_EXHAUSTED);
    assert_int_equal(c.closed, 0);
    fx_call_start(&fx, &ok, 0, "q"); /* the channel is none the worse for it */
    fx_expect(&ok, 0, "");
    raw_wait(r);
    fx_close(&fx);
    assert_true(raw_stop(r));
}

/* ---- deadlines and cancelling ---- */

static bool never_answer(struct raw *r, void *arg) {
    struct raw_in in;
    uint32_t stream;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_expect(r, RAW_RST, &in));
    RAW(in.stream == stream && in.payload[3] == 8 /* CANCEL */);
    return true;
}

static void test_deadline(void **state) {
    struct raw *r = raw_start(never_answer, NULL, 0);
    uint64_t before = oc_clock_now(oc_clock_real()).mono_ns;
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &c, 60, "q");
    fx_expect(&c, OC_E_DEADLINE, "deadline exceeded");
    assert_true(oc_clock_now(oc_clock_real()).mono_ns - before >= 60 * OC_NS_PER_MS);
    fx_close(&fx);
    assert_true(raw_stop(r));
}

static bool has_started(void *arg) {
    return ((struct fx_call *)arg)->started;
}

static void test_cancel(void **state) {
    struct raw *r = raw_start(never_answer, NULL, 0);
    struct fx fx;
    struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    fx_call_start(&fx, &c, 0, "q");
    assert_true(fx_wait_until(&fx, has_started, &c));
    fx_cancel(&c);
    fx_expect(&c, OC_E_CANCELLED, "cancelled");
    assert_true(raw_stop(r));
    fx_close(&fx);
}

static void do_cancel_again(struct fx_call *c) {
    oc_client_call_cancel(c->call);
    oc_client_call_cancel(c->call); /* the second changes nothing */
    OC_CHECK(oc_client_call_ended(c->call));
    OC_CHECK(!oc_client_call_send_copy(c->call, OC_SPAN_LIT("late")));
}

static bool two_messages(struct raw *r, void *arg) {
    uint32_t stream;
    size_t len;

    (void)arg;
    RAW(raw_accept(r));
    RAW(raw_greet(r, NULL));
    RAW(raw_request(r, &stream));
    RAW(raw_body(r, stream, NULL, 0, &len));
    RAW(raw_ok_headers(r, stream));
    RAW(raw_frame(r, RAW_DATA, 0, stream, "\0\0\0\0\1a\0\0\0\0\1b", 12));
    return true;
}

static void test_cancel_inside_a_callback(void **state) {
    struct raw *r = raw_start(two_messages, NULL, 0);
    struct fx fx;
    static struct fx_call c;

    (void)state;
    fx_open(&fx, raw_addr(r), (struct oc_channel_config){0});
    assert_int_equal(fx_call_open(&fx, &c, 0, NULL, 0), 0);
    c.on_message = do_cancel_again; /* before the request is complete: no answer can have come */
    fx_do(&fx, do_send_hello, &c);
    fx_expect(&c, OC_E_CANCELLED, "cancelled");
    assert_int_equal(c.messages, 1); /* nothing after the cancelling */
    fx_close(&fx);
    assert_true(raw_stop(r));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_at_any_split),
        cmocka_unit_test(test_many_messages_in_one_frame),
        cmocka_unit_test(test_trailers_only),
        cmocka_unit_test(test_status_in_trailers),
        cmocka_unit_test(test_http_errors),
        cmocka_unit_test(test_foreign_content_type),
        cmocka_unit_test(test_provisional_response),
        cmocka_unit_test(test_broken_responses),
        cmocka_unit_test(test_response_headers_are_bounded),
        cmocka_unit_test(test_resets),
        cmocka_unit_test(test_request_on_the_wire),
        cmocka_unit_test(test_metadata_is_bounded),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_inside_a_callback),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
