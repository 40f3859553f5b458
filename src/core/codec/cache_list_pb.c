/* The List family of cache_pb.h. */
#include "core/codec/cache_pb.h"

int oc_cache_list_request_decode(struct oc_span message, struct oc_cache_list_request *ret) {
    struct oc_pb_reader r = oc_pb_reader(message);
    struct oc_cache_list_request m = {0};
    struct oc_pb_field f;
    int n;

    while ((n = oc_pb_next(&r, &f)) == 1) {
        int e = OC_OK;

        switch (f.number) {
        case 1:
            e = oc_pb_as_string(&f, &m.prefix);
            break;
        case 2:
            e = oc_pb_as_string(&f, &m.start_key);
            break;
        case 3:
            e = oc_pb_as_int32(&f, &m.limit);
            break;
        case 4:
            e = oc_pb_as_string(&f, &m.continuation_token);
            break;
        default:
            break;
        }
        if (e < 0) {
            return e;
        }
    }
    if (n == 0) {
        *ret = m;
    }
    return n;
}

size_t oc_cache_list_request_encode(void *dst, size_t cap, const struct oc_cache_list_request *m) {
    int64_t limit = m->limit; /* proto3 writes a negative int32 sign-extended to 64 bits */
    size_t size = oc_pb_bytes_opt_size(1, m->prefix) + oc_pb_bytes_opt_size(2, m->start_key) +
                  oc_pb_int64_opt_size(3, limit) + oc_pb_bytes_opt_size(4, m->continuation_token);

    if (size <= cap) {
        struct oc_pb_writer w = oc_pb_writer(dst, cap);

        oc_pb_put_bytes_opt(&w, 1, m->prefix);
        oc_pb_put_bytes_opt(&w, 2, m->start_key);
        oc_pb_put_int64_opt(&w, 3, limit);
        oc_pb_put_bytes_opt(&w, 4, m->continuation_token);
    }
    return size;
}

size_t oc_cache_list_key_encode(void *dst, size_t cap, struct oc_span key) {
    size_t size = oc_pb_len_size(1, key.len) + key.len; /* an empty element is written, too */

    if (size <= cap) {
        struct oc_pb_writer w = oc_pb_writer(dst, cap);

        oc_pb_put_bytes(&w, 1, key);
    }
    return size;
}

size_t oc_cache_list_entry_encode(void *dst, size_t cap, const struct oc_cache_key_value *kv) {
    size_t body = oc_pb_bytes_opt_size(1, kv->key) + oc_pb_bytes_opt_size(2, kv->value) +
                  oc_pb_int64_opt_size(3, kv->value_length) +
                  oc_pb_int64_opt_size(4, kv->value_omitted);
    size_t size = oc_pb_len_size(1, body) + body;

    if (size <= cap) {
        struct oc_pb_writer w = oc_pb_writer(dst, cap);

        oc_pb_put_len(&w, 1, body);
        oc_pb_put_bytes_opt(&w, 1, kv->key);
        oc_pb_put_bytes_opt(&w, 2, kv->value);
        oc_pb_put_int64_opt(&w, 3, kv->value_length);
        oc_pb_put_int64_opt(&w, 4, kv->value_omitted);
    }
    return size;
}

size_t oc_cache_list_tail_encode(void *dst, size_t cap, struct oc_span continuation_token,
                                 bool has_more) {
    size_t size = oc_pb_bytes_opt_size(2, continuation_token) + oc_pb_int64_opt_size(3, has_more);

    if (size <= cap) {
        struct oc_pb_writer w = oc_pb_writer(dst, cap);

        oc_pb_put_bytes_opt(&w, 2, continuation_token);
        oc_pb_put_int64_opt(&w, 3, has_more);
    }
    return size;
}

/* The next repeated field 1 of either response; notes the other fields in passing. */
static int list_next(struct oc_cache_list_reader *r, struct oc_pb_field *ret) {
    struct oc_pb_field f;
    int n;

    while ((n = oc_pb_next(&r->pb, &f)) == 1) {
        int e = OC_OK;

        if (f.number == 1) {
            *ret = f;
            return 1;
        }
        if (f.number == 2) {
            e = oc_pb_as_string(&f, &r->continuation_token);
        } else if (f.number == 3) {
            e = oc_pb_as_bool(&f, &r->has_more);
        }
        if (e < 0) {
            return e;
        }
    }
    return n;
}

int oc_cache_list_next_key(struct oc_cache_list_reader *r, struct oc_span *ret) {
    struct oc_pb_field f;
    int n = list_next(r, &f);

    if (n != 1) {
        return n;
    }
    return oc_pb_as_string(&f, ret) < 0 ? OC_E_INVALID : 1;
}

static int key_value_decode(struct oc_span message, struct oc_cache_key_value *ret) {
    struct oc_pb_reader r = oc_pb_reader(message);
    struct oc_cache_key_value m = {0};
    struct oc_pb_field f;
    int n;

    while ((n = oc_pb_next(&r, &f)) == 1) {
        int e = OC_OK;

        switch (f.number) {
        case 1:
            e = oc_pb_as_string(&f, &m.key);
            break;
        case 2:
            e = oc_pb_as_bytes(&f, &m.value);
            break;
        case 3:
            e = oc_pb_as_int64(&f, &m.value_length);
            break;
        case 4:
            e = oc_pb_as_bool(&f, &m.value_omitted);
            break;
        default:
            break;
        }
        if (e < 0) {
            return e;
        }
    }
    if (n == 0) {
        *ret = m;
    }
    return n;
}

int oc_cache_list_next_entry(struct oc_cache_list_reader *r, struct oc_cache_key_value *ret) {
    struct oc_pb_field f;
    struct oc_span body;
    int n = list_next(r, &f);

    if (n != 1) {
        return n;
    }
    if (oc_pb_as_bytes(&f, &body) < 0) {
        return OC_E_INVALID;
    }
    n = key_value_decode(body, ret);
    return n < 0 ? n : 1;
}
