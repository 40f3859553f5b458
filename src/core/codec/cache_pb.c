/* Field by field, as cache.proto numbers them. Outputs are written only when the whole message was
 * good. */
#include "core/codec/cache_pb.h"

enum {
    PUT_KEY = 1,
    PUT_TTL = 2,
    PUT_DATA = 3,
};

int oc_cache_put_request_decode(struct oc_span message, struct oc_cache_put_request *ret) {
    struct oc_pb_reader r = oc_pb_reader(message);
    struct oc_cache_put_request m = {0};
    struct oc_pb_field f;
    int n;

    while ((n = oc_pb_next(&r, &f)) == 1) {
        int e = OC_OK;

        if (f.number == PUT_KEY) {
            e = oc_pb_as_string(&f, &m.key);
        } else if (f.number == PUT_TTL) {
            e = oc_pb_as_int64(&f, &m.ttl_seconds);
        } else if (f.number == PUT_DATA) {
            e = oc_pb_as_bytes(&f, &m.data);
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

size_t oc_cache_put_request_head(void *dst, size_t cap, struct oc_span key, int64_t ttl_seconds,
                                 uint64_t data_len) {
    size_t size = oc_pb_bytes_opt_size(PUT_KEY, key) + oc_pb_int64_opt_size(PUT_TTL, ttl_seconds) +
                  (data_len == 0 ? 0 : oc_pb_len_size(PUT_DATA, data_len));

    if (size <= cap) {
        struct oc_pb_writer w = oc_pb_writer(dst, cap);

        oc_pb_put_bytes_opt(&w, PUT_KEY, key);
        oc_pb_put_int64_opt(&w, PUT_TTL, ttl_seconds);
        if (data_len > 0) {
            oc_pb_put_len(&w, PUT_DATA, data_len);
        }
    }
    return size;
}

static int put_stream_varint(void *user, uint32_t number, uint64_t value) {
    struct oc_cache_put_stream *s = user;

    (void)number; /* the only one that is asked for */
    if (s->messages == 1) {
        s->ttl_seconds = (int64_t)value;
    }
    return OC_OK;
}

static int put_stream_key(void *user, uint32_t number, struct oc_span bytes, uint64_t total) {
    struct oc_cache_put_stream *s = user;

    (void)number;
    if (s->messages != 1) {
        return OC_OK;
    }
    /* A valid string, even of a key that a later field replaces; a cut one cannot be judged. */
    if (total == bytes.len && !oc_utf8_valid(bytes)) {
        return OC_E_INVALID;
    }
    s->key.len = 0;
    s->key_len = total;
    return oc_buf_append(&s->key, bytes.p, bytes.len);
}

static int put_stream_data_begin(void *user, uint64_t total) {
    struct oc_cache_put_stream *s = user;

    return s->events->data_begin == NULL ? OC_OK : s->events->data_begin(s->user, total);
}

static int put_stream_data(void *user, struct oc_span piece) {
    struct oc_cache_put_stream *s = user;

    return s->events->data(s->user, piece);
}

/* collect_max is the caller's, so the configuration lives in the stream. */
void oc_cache_put_stream_init(struct oc_cache_put_stream *s, size_t key_max,
                              const struct oc_cache_put_events *events, void *user) {
    *s = (struct oc_cache_put_stream){
        .cfg = {.bulk_field = PUT_DATA,
                .collect_fields = 1u << PUT_KEY,
                .varint_fields = 1u << PUT_TTL,
                .collect_max = key_max,
                .varint = put_stream_varint,
                .bytes = put_stream_key,
                .bulk_begin = put_stream_data_begin,
                .bulk = put_stream_data},
        .events = events,
        .user = user,
    };
    oc_buf_init(&s->key, key_max);
    oc_pb_stream_init(&s->pb, &s->cfg, s);
}

void oc_cache_put_stream_done(struct oc_cache_put_stream *s) {
    oc_pb_stream_done(&s->pb);
    oc_buf_done(&s->key);
}

void oc_cache_put_stream_begin(struct oc_cache_put_stream *s, uint64_t message_len) {
    s->messages++;
    oc_pb_stream_begin(&s->pb, message_len);
}

int oc_cache_put_stream_feed(struct oc_cache_put_stream *s, struct oc_span piece) {
    return oc_pb_stream_feed(&s->pb, piece);
}

int oc_cache_put_stream_finish(struct oc_cache_put_stream *s) {
    int r = oc_pb_stream_finish(&s->pb);

    if (r == OC_OK && s->messages == 1) {
        oc_buf_done(&s->pb.collected); /* the key was copied, and later ones do not count */
    }
    return r;
}

int oc_cache_result_decode(struct oc_span message, struct oc_cache_result *ret) {
    struct oc_pb_reader r = oc_pb_reader(message);
    struct oc_cache_result m = {0};
    struct oc_pb_field f;
    int n;

    while ((n = oc_pb_next(&r, &f)) == 1) {
        int e = OC_OK;

        if (f.number == 1) {
            e = oc_pb_as_bool(&f, &m.success);
        } else if (f.number == 2) {
            e = oc_pb_as_string(&f, &m.error);
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

size_t oc_cache_result_encode(void *dst, size_t cap, bool success, struct oc_span error) {
    size_t size = oc_pb_int64_opt_size(1, success) + oc_pb_bytes_opt_size(2, error);

    if (size <= cap) {
        struct oc_pb_writer w = oc_pb_writer(dst, cap);

        oc_pb_put_int64_opt(&w, 1, success);
        oc_pb_put_bytes_opt(&w, 2, error);
    }
    return size;
}

int oc_cache_get_request_decode(struct oc_span message, struct oc_cache_get_request *ret) {
    struct oc_pb_reader r = oc_pb_reader(message);
    struct oc_cache_get_request m = {0};
    struct oc_pb_field f;
    int n;

    while ((n = oc_pb_next(&r, &f)) == 1) {
        int e = OC_OK;

        if (f.number == 1) {
            e = oc_pb_as_string(&f, &m.key);
        } else if (f.number == 2) {
            e = oc_pb_as_int64(&f, &m.start);
        } else if (f.number == 3) {
            e = oc_pb_as_int64(&f, &m.end);
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

size_t oc_cache_get_request_encode(void *dst, size_t cap, const struct oc_cache_get_request *m) {
    size_t size = oc_pb_bytes_opt_size(1, m->key) + oc_pb_int64_opt_size(2, m->start) +
                  oc_pb_int64_opt_size(3, m->end);

    if (size <= cap) {
        struct oc_pb_writer w = oc_pb_writer(dst, cap);

        oc_pb_put_bytes_opt(&w, 1, m->key);
        oc_pb_put_int64_opt(&w, 2, m->start);
        oc_pb_put_int64_opt(&w, 3, m->end);
    }
    return size;
}

int oc_cache_get_response_decode(struct oc_span message, struct oc_span *ret_data) {
    struct oc_pb_reader r = oc_pb_reader(message);
    struct oc_span data = OC_SPAN_EMPTY;
    struct oc_pb_field f;
    int n;

    while ((n = oc_pb_next(&r, &f)) == 1) {
        if (f.number == OC_CACHE_GET_RESPONSE_DATA && oc_pb_as_bytes(&f, &data) < 0) {
            return OC_E_INVALID;
        }
    }
    if (n == 0) {
        *ret_data = data;
    }
    return n;
}

size_t oc_cache_get_response_head(uint8_t dst[OC_CACHE_GET_RESPONSE_HEAD_MAX], uint64_t data_len) {
    struct oc_pb_writer w = oc_pb_writer(dst, OC_CACHE_GET_RESPONSE_HEAD_MAX);

    if (data_len == 0) {
        return 0;
    }
    oc_pb_put_len(&w, OC_CACHE_GET_RESPONSE_DATA, data_len);
    return (size_t)(w.p - dst);
}

int oc_cache_delete_request_decode(struct oc_span message, struct oc_span *ret_key) {
    struct oc_pb_reader r = oc_pb_reader(message);
    struct oc_span key = OC_SPAN_EMPTY;
    struct oc_pb_field f;
    int n;

    while ((n = oc_pb_next(&r, &f)) == 1) {
        if (f.number == 1 && oc_pb_as_string(&f, &key) < 0) {
            return OC_E_INVALID;
        }
    }
    if (n == 0) {
        *ret_key = key;
    }
    return n;
}

size_t oc_cache_delete_request_encode(void *dst, size_t cap, struct oc_span key) {
    size_t size = oc_pb_bytes_opt_size(1, key);

    if (size <= cap) {
        struct oc_pb_writer w = oc_pb_writer(dst, cap);

        oc_pb_put_bytes_opt(&w, 1, key);
    }
    return size;
}
