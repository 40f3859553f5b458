#include "play.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static bool drain(struct raw *r, uint32_t stream) {
    struct raw_in in;

    do {
        RAW(raw_next(r, &in));
        if (in.type == RAW_DATA && in.len > 0) {
            RAW(raw_window(r, 0, in.len));
            RAW(raw_window(r, stream, in.len));
        }
    } while (in.type != RAW_RST);
    return true;
}

static bool play_step(struct raw *r, struct play *p, const struct step *s, unsigned n) {
    struct raw_in in;
    uint32_t stream;

    RAW(raw_request(r, &stream));
    RAW(strcmp(raw_header(r, ":path"), s->path) == 0);
    atomic_fetch_add(&p->requests, 1);
    if (s->act == DRAIN) {
        return drain(r, stream);
    }
    if (s->act == HOLD) {
        atomic_store(&p->holding, true);
        do {
            if (!raw_next(r, &in)) {
                return true; /* hung up */
            }
        } while (in.type != RAW_RST);
        return true;
    }
    RAW(raw_body(r, stream, (uint8_t *)p->bodies[n], sizeof p->bodies[n], &p->body_lens[n]));
    if (s->act == RESET) {
        RAW(raw_rst(r, stream, s->code));
        return true;
    }
    RAW(raw_ok_headers(r, stream));
    if (s->act == ANSWER || s->act == TWICE || s->act == PARTLY) {
        RAW(raw_message(r, stream, s->data, s->len, s->len + 5));
    }
    if (s->act == TWICE) {
        RAW(raw_message(r, stream, s->data, s->len, s->len + 5));
    }
    if (s->act == HANG_UP) {
        raw_hang_up(r);
        return true;
    }
    RAW(raw_trailers(r, stream, s->status == NULL ? "0" : s->status, s->message));
    return true;
}

bool run_play(struct raw *r, void *arg) {
    struct play *p = arg;
    bool open = false;

    for (unsigned i = 0; p->steps[i].act != END; i++) {
        const struct step *s = &p->steps[i];

        if (!open) {
            RAW(raw_accept(r));
            if (s->act == NO_GREETING) {
                raw_hang_up(r);
                continue;
            }
            RAW(raw_greet(r, NULL));
            open = true;
        }
        RAW(play_step(r, p, s, i));
        open = s->act != HANG_UP;
    }
    return true;
}

void stage_open(struct stage *st, const struct step *steps, struct ocache_config cfg) {
    const char *addr;
    struct ocache_error err;

    memset(st, 0, sizeof *st);
    st->play.steps = steps;
    st->raw = raw_start(run_play, &st->play, 0);
    addr = raw_addr(st->raw);
    cfg.addrs = &addr;
    cfg.addr_count = 1;
    cfg.mode = OCACHE_MODE_SIMPLE;
    cfg.connections = cfg.connections == 0 ? 1 : cfg.connections;
    assert_int_equal(ocache_client_new(&cfg, &st->client, &err), 0);
}

void stage_close(struct stage *st, unsigned requests) {
    raw_wait(st->raw);
    ocache_client_free(st->client);
    assert_int_equal(atomic_load(&st->play.requests), requests);
    assert_true(raw_stop(st->raw));
}
