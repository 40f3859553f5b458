"""Peers that mean harm, on HTTP/2: whatever they do, memory stays within a stated bound, others are served, the
metrics say what happened, and the node stops in order. docs/limits.md lists the bounds."""

import random
import time

import pytest

from h2raw import (CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, GOAWAY, HEADER_TABLE_SIZE,
                   HEADERS, INITIAL_WINDOW_SIZE, PING, PREFACE, PRIORITY, PROTOCOL_ERROR, REFUSED_STREAM, Peer,
                   field, frame, grpc_message, literal, request, rst, settings, varint, window_update)
from harness import CHUNK, pattern, raw_connection, wait_for
from siege import KIB, MIB, Siege, sanitized

PUT, PUT_OBJECT = "/cache.CacheService/Put", "/cache.CacheService/PutObject"
GET, DELETE = "/cache.CacheService/Get", "/cache.CacheService/Delete"
LIST, LIST_VALUES = "/cache.CacheService/List", "/cache.CacheService/ListWithValues"
STALLED, ERRORS = "ocache_rpc_stalled_closed_total", "ocache_rpc_protocol_errors_total"
EXHAUSTED = 8
BIG_WINDOW = (INITIAL_WINDOW_SIZE, (1 << 31) - 1)


def calls(path, count, body=b"", end=True, extra=(), first=0, **kwargs):
    """Requests on `count` streams, as bytes."""
    block = request(path, *extra, **kwargs)
    out = bytearray()
    for n in range(first, first + count):
        stream = 2 * n + 1
        out += frame(HEADERS, END_HEADERS | (END_STREAM if end and not body else 0), stream, block)
        for at in range(0, len(body), 16384):
            last = end and at + 16384 >= len(body)
            out += frame(DATA, END_STREAM if last else 0, stream, body[at:at + 16384])
    return bytes(out)


def put_big(node, key="big", size=8 * MIB):
    with node.client() as c:
        c.put_stream(key, [pattern(size, 1)])


# ---- connections that do not get on ----

def test_half_open_connections(new_node):
    beginnings = [b"", b"P", PREFACE[:20], PREFACE, PREFACE + settings()[:5],
                  PREFACE + settings() + frame(HEADERS, 0, 1, request(PUT)[:10], length=100),
                  PREFACE + settings() + frame(HEADERS, 0, 1, request(PUT))]
    n = new_node("-handshake-timeout", "700ms", "-drain-timeout", "1s")
    with Siege(n, connections=0, budget=700 * 32 * KIB) as s:
        for _ in range(100):
            for b in beginnings:
                c = s.keep(raw_connection(n.grpc_port))
                c.sendall(b)
        s.wait_counted(STALLED, 700)
        s.wait_alone()


def test_dripped_beginning_gains_no_time(new_node):
    """A byte now and then does not move the deadline: the clock runs from the first one."""
    n = new_node("-handshake-timeout", "700ms")
    with Siege(n) as s:
        peers = [s.keep(Peer(n.grpc_port, greet=False)) for _ in range(2)]
        block = request(PUT, ("x-long", "a" * 200))
        texts = [PREFACE + settings(), PREFACE + settings() + frame(HEADERS, END_HEADERS, 1, block)]
        began = time.monotonic()
        for i in range(400):
            open_ = [p.send(t[i:i + 1]) for p, t in zip(peers, texts) if i < len(t)]
            if not any(open_):
                break
            time.sleep(0.03)  # the pace of the attack
        assert time.monotonic() - began < 8
        s.wait_counted(STALLED, 1)
        s.wait_alone()


def test_connections_stay_within_their_number(new_node):
    n = new_node("-max-connections", "30", "-drain-timeout", "1s")
    refused = "ocache_connections_refused_total"
    with Siege(n, connections=30) as s:
        for _ in range(100):
            s.keep(raw_connection(n.grpc_port))
        s.wait_counted(refused, 71)  # the bystander has one of the thirty
        assert s.counted(refused) == 71
        for c in s.held:
            c.close()
        s.wait_alone()
        with Peer(n.grpc_port) as p:
            p.call(1, GET, field(1, b"nothing"))
            assert p.answer(1).status == 5


def test_peer_that_answers_no_pings(new_node):
    n = new_node("-keepalive-interval", "200ms", "-keepalive-timeout", "300ms", "-drain-timeout", "1s")
    with Siege(n, connections=50) as s:
        for _ in range(50):
            s.keep(Peer(n.grpc_port)).call(1, PUT, end=False)
        s.wait_counted("ocache_rpc_keepalive_closed_total", 50)
        s.wait_alone()


def test_idle_limit(new_node):
    n = new_node("-idle-timeout", "300ms")
    with Peer(n.grpc_port) as p:
        p.call(1, GET, field(1, b"nothing"))
        assert p.answer(1).status == 5
        assert p.closed() == 0  # in order
    assert n.stop() == 0


# ---- slow bodies, slow readers ----

def test_bodies_that_stand_still_or_drip(new_node):
    """Nothing, half a message head, and a byte now and then of a message that has begun."""
    n = new_node("-stall-timeout", "700ms", "-drain-timeout", "1s")
    with n.client() as c:
        c.put("victim", b"old")
    message = field(1, b"victim") + b"\x1a" + varint(5 * MIB)
    head = grpc_message(message, length=len(message) + 5 * MIB)
    with Siege(n, streams=300, connections=3, budget=100 * 260 * KIB) as s:  # a buffer for each that drips
        still = s.keep(Peer(n.grpc_port))
        still.send(calls(PUT, 100, end=False))
        half = s.keep(Peer(n.grpc_port))
        half.send(calls(PUT_OBJECT, 100, body=head[:3], end=False))
        drip = s.keep(Peer(n.grpc_port))
        drip.send(calls(PUT, 100, body=head + bytes(300 * KIB), end=False))
        byte = b"".join(frame(DATA, 0, 2 * i + 1, b"x") for i in range(100))
        for _ in range(200):
            drip.send(byte)
            time.sleep(0.03)  # the pace of the attack
            if s.counted(STALLED) >= 300:
                break
        s.wait_counted(STALLED, 300)
        for p in (still, half, drip):
            assert p.answer(199).status == 4
        with n.client() as c:
            assert c.get("victim") == b"old"
        s.wait_settled()


@pytest.mark.parametrize("how", ["no window", "a byte of window", "socket not read"])
def test_readers_that_do_not_take_what_they_asked_for(new_node, how):
    n = new_node("-buffer-memory", "32MiB", "-stall-timeout", "1s", "-drain-timeout", "1s")
    put_big(n)
    window = BIG_WINDOW if how == "socket not read" else (INITIAL_WINDOW_SIZE, 0)
    streams = 40
    with Siege(n, connections=5, streams=5 * streams, budget=32 * MIB, sizes=(100, 30 * KIB)) as s:
        peers = [s.keep(Peer(n.grpc_port, window, receive_buffer=4096)) for _ in range(5)]
        for p in peers:
            if how == "socket not read":
                p.send(window_update(0, (1 << 31) - 1 - 65535))
            p.send(calls(GET, streams, body=grpc_message(field(1, b"big"))))
        if how == "a byte of window":
            for _ in range(300):
                for p in peers:
                    p.send(b"".join(window_update(2 * i + 1, 1) for i in range(streams)))
                time.sleep(0.03)  # the pace of the attack
                if s.counted(STALLED) >= 5:
                    break
            assert s.counted(STALLED) >= 5  # while the drip went on
        # Of what is asked for 80 buffers' worth is read at a time.
        s.wait_counted(STALLED, 5)
        wait_for(lambda: n.metrics()['ocache_buffer_used_bytes{size="bulk"}'] == 0, 30, "the buffers")
        wait_for(lambda: n.metrics()["ocache_rpc_send_used_bytes"] < MIB, 10, "the queues")


def test_one_client_cannot_keep_every_buffer(new_node):
    """Hundreds of reads that are not taken, of two connections; large values of others still get through,
    because whoever stands still is given up while somebody waits. All limits at their defaults but memory."""
    n = new_node("-buffer-memory", "16MiB", "-drain-timeout", "1s")
    put_big(n)
    with Siege(n, connections=2, streams=1600, budget=16 * MIB, sizes=(3 * MIB,)) as s:
        for _ in range(2):
            p = s.keep(Peer(n.grpc_port, (INITIAL_WINDOW_SIZE, 0)))
            p.flood(calls(GET, 800, body=grpc_message(field(1, b"big"))), read=True)
        done = s.bystander.rounds
        wait_for(lambda: s.bystander.rounds > done or s.bystander.error, 40, "large puts and gets")
        s.wait_counted(STALLED, 1)


def test_pages_that_are_not_read(new_node):
    """Plain replies: 4000 pages of 20 KiB and more are asked for, and some ten for each connection made."""
    n = new_node("-drain-timeout", "1s")
    with Siege(n, connections=4, streams=4000) as s:
        for _ in range(4):
            p = s.keep(Peer(n.grpc_port, (INITIAL_WINDOW_SIZE, 0)))
            p.flood(calls("/metrics", 1000, method="GET", content=None), read=True)
        wait_for(lambda: n.metrics()["ocache_streams_active"] >= 4000, 15, "the requests")
        queued = n.metrics()["ocache_rpc_send_used_bytes"]
        assert 4 * 200 * KIB < queued < 4 * 400 * KIB
        # Who reads after all gets them all.
        p.send(settings(BIG_WINDOW) + window_update(0, (1 << 31) - 1 - 65535))
        p.read(lambda: sum(a.ended for a in p.answers.values()) == 1000, 40, "all pages")
        assert all(a.header(":status") == "200" for a in p.answers.values())


def test_list_pages_that_are_not_read(new_node):
    """8 MiB each are asked for 400 times."""
    n = new_node("-buffer-memory", "32MiB", "-stall-timeout", "1s", "-drain-timeout", "1s")
    with n.client() as c:
        for i in range(40):
            c.put(f"page/{i}", pattern(200 * KIB, i))
    with Siege(n, connections=4, streams=400, budget=32 * MIB) as s:
        for _ in range(4):
            p = s.keep(Peer(n.grpc_port, (INITIAL_WINDOW_SIZE, 0)))
            p.flood(calls(LIST_VALUES, 100, body=grpc_message(field(1, b"page/"))), read=True)
        s.wait_counted("ocache_buffer_waits_total", 1)
        s.wait_counted(STALLED, 1)
        wait_for(lambda: n.metrics()["ocache_rpc_send_used_bytes"] < MIB, 30, "the queues")


@pytest.mark.parametrize("size,window", [(3000, 1), (300 * KIB, 1000)])
def test_small_windows_are_respected(new_node, size, window):
    n = new_node()
    value = pattern(size, 3)
    with n.client() as c:
        c.put("k", value)
    with Peer(n.grpc_port, (INITIAL_WINDOW_SIZE, window)) as p:
        p.call(1, GET, field(1, b"k"))
        largest, seen = 0, 0
        while not (1 in p.answers and p.answers[1].over):
            before = len(p.answers[1].data) if 1 in p.answers else 0
            p.read(lambda: 1 in p.answers and (p.answers[1].over or len(p.answers[1].data) > before), what="data")
            got = len(p.answers[1].data) - seen
            largest, seen = max(largest, got), seen + got
            if got:
                p.send(window_update(1, got) + window_update(0, got))
        answer = p.answers[1]
        assert answer.status == 0 and largest <= window
        body, out = answer.data, b""
        while body:
            length = int.from_bytes(body[1:5], "big")
            out += body[5:5 + length][-min(length, size):] if length == size else strip_head(body[5:5 + length])
            body = body[5 + length:]
        assert out == value
    assert n.stop() == 0


def strip_head(message):
    """The data of a GetResponse."""
    assert message[0] == 0x0A
    at = 1
    while message[at] >= 0x80:
        at += 1
    return message[at + 1:]


# ---- resets ----

def test_puts_cut_anywhere_change_nothing(new_node):
    """Cut by RST_STREAM, by the end of the connection and by a TCP reset, at random places of the request."""
    n = new_node()
    rng = random.Random(7)
    old = pattern(3 * CHUNK, 1)
    with Siege(n, connections=4, budget=16 * MIB) as s:
        with n.client() as c:
            c.put_stream("kept", [old])
            for i in range(40):
                value = pattern(rng.choice([10, 5000, CHUNK, CHUNK + 1, 6 * CHUNK]), i)
                body = grpc_message(field(1, b"kept") + field(3, value))
                p = Peer(n.grpc_port)
                p.call(1, PUT, end=False)
                p.upload(1, body, rng.randrange(len(body) + 1))
                if i % 3 == 0:
                    p.send(rst(1))
                    p.call(3, GET, field(1, b"nothing"))
                    assert p.answer(3).status == 5  # the connection lives on
                elif i % 2 == 0:
                    p.send(frame(DATA, 0, 1, b"half", length=1000))
                p.close(reset=i % 3 == 2)
                if i % 10 == 9:
                    assert c.get("kept") == old
        assert s.counted("ocache_rpc_resets_received_total") >= 14
        s.wait_settled()


def test_gets_cut_anywhere_leak_nothing(new_node):
    n = new_node("-buffer-memory", "32MiB")
    put_big(n)
    rng = random.Random(8)
    with Siege(n, connections=4, budget=32 * MIB) as s:
        for i in range(40):
            p = Peer(n.grpc_port, (INITIAL_WINDOW_SIZE, rng.choice([0, 1, 65535, 1 << 20])))
            p.send(b"".join(calls(GET, 8, body=grpc_message(field(1, b"big")))
                            for _ in range(1)) + window_update(0, 1 << 20))
            wanted = rng.randrange(200 * KIB)
            try:
                p.read(lambda: sum(len(a.data) for a in p.answers.values()) >= wanted, 0.1)
            except AssertionError:
                pass  # its windows do not allow so much
            if i % 2 == 0:
                p.send(b"".join(rst(2 * k + 1) for k in range(8)))
                p.call(17, GET, field(1, b"nothing"))
                p.read(lambda: 17 in p.answers and p.answers[17].status == 5)
            p.close(reset=i % 4 == 1)
        assert s.counted("ocache_rpc_resets_received_total") >= 160
        s.wait_settled()


def test_rapid_reset(new_node):
    """20000 requests that are taken back at once: the peer is sent away after a thousand."""
    n = new_node()
    out = b"".join(frame(HEADERS, END_HEADERS, 2 * i + 1, request(GET)) + rst(2 * i + 1) for i in range(20000))
    with Siege(n, connections=2) as s:
        with Peer(n.grpc_port) as p:
            p.flood(out, read=True)
        with Peer(n.grpc_port) as p:
            p.send(out[:300 * KIB])
            assert p.closed() == ENHANCE_YOUR_CALM
        s.wait_counted("ocache_rpc_rapid_reset_closed_total", 2)
        assert 2000 <= s.counted("ocache_rpc_resets_received_total") <= 2400
        s.wait_alone()


def test_options_of_the_reset_defence(new_node):
    n = new_node("-reset-burst", "5", "-reset-rate", "1")
    with Peer(n.grpc_port) as p:
        p.send(b"".join(frame(HEADERS, END_HEADERS, 2 * i + 1, request(GET)) + rst(2 * i + 1) for i in range(5)))
        p.call(101, GET, field(1, b"nothing"))
        assert p.answer(101).status == 5  # five are fine
        p.send(b"".join(frame(HEADERS, END_HEADERS, 2 * i + 1, request(GET)) + rst(2 * i + 1)
                        for i in range(100, 110)))
        assert p.closed() == ENHANCE_YOUR_CALM
    assert n.stop() == 0


# ---- floods ----

def refused_streams(p):
    """Fills the socket with a response first, so that the refusals pile up in the server."""
    p.send(calls(GET, 8, body=grpc_message(field(1, b"big"))))
    p.send(calls(PUT, 1100, end=False, first=8))
    return b"".join(frame(HEADERS, END_HEADERS, 2 * i + 1, request(PUT)) for i in range(1200, 60000))


FLOODS = {
    "PING": lambda p: frame(PING, 0, 0, bytes(8)) * 100000,
    "SETTINGS": lambda p: settings((INITIAL_WINDOW_SIZE, 1)) * 100000,
    "SETTINGS with many entries": lambda p: settings(*[(HEADER_TABLE_SIZE, i) for i in range(100)]),
    "CONTINUATION": lambda p: frame(HEADERS, 0, 1, request(PUT)) + frame(CONTINUATION, 0, 1, literal("a", "b")) * 50000,
    "empty CONTINUATION": lambda p: frame(HEADERS, 0, 1, request(PUT)) + frame(CONTINUATION, 0, 1) * 50000,
    "empty DATA": lambda p: frame(HEADERS, END_HEADERS, 1, request(PUT)) + frame(DATA, 0, 1) * 50000,
    "header bomb": lambda p: frame(HEADERS, END_HEADERS, 1, request(PUT) + literal("x", "y" * 4000, indexed=True) +
                                   b"\xbe" * 1000000),
    "GOAWAY with a long text": lambda p: frame(GOAWAY, 0, 0, bytes(MIB)),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_flood_is_cut(new_node, kind):
    """Each costs its sender the connection, and the server less than half a second of CPU for ten of them."""
    n = new_node()
    with Siege(n, connections=10) as s:
        before = n.cpu_seconds()
        idle = s.bystander.rounds
        for _ in range(10):
            with Peer(n.grpc_port) as p:
                p.flood(FLOODS[kind](p), 2)
                assert p.closed() in (ENHANCE_YOUR_CALM, PROTOCOL_ERROR)
        used = n.cpu_seconds() - before
        s.wait_counted(ERRORS, 10)
        s.wait_alone()
        rounds = s.bystander.rounds - idle
        assert sanitized(n) or used < 0.5 + rounds * 0.002, (used, rounds)


def test_steady_settings_are_cut(new_node):
    """Each change of the initial window walks over all streams: a peer may not do that all day, even when it
    reads the acknowledgements."""
    n = new_node()
    with Siege(n, connections=1, streams=1000) as s:
        p = s.keep(Peer(n.grpc_port))
        p.flood(calls(PUT, 1000, end=False), read=True)
        for i in range(200):
            p.send(settings((INITIAL_WINDOW_SIZE, 1000 + i % 2)) * 200)
            try:
                p.read(lambda: p.acks >= 200 * (i + 1) or p.goaway is not None)
            except AssertionError:
                assert p.gone  # the GOAWAY may be lost with the connection
            if p.goaway is not None or p.gone:
                break
        assert i < 150
        s.wait_counted(ERRORS, 1)


def test_frames_that_do_nothing_do_no_harm(new_node):
    n = new_node("-drain-timeout", "1s")
    with Siege(n, connections=1) as s:
        p = s.keep(Peer(n.grpc_port, (INITIAL_WINDOW_SIZE, 0)))
        p.call(1, PUT, end=False)
        for out in (frame(PRIORITY, 0, 1, b"\x00\x00\x00\x00\x10") * 20000, frame(0x42, 0xFF, 1, b"?") * 20000,
                    window_update(1, 1) * 20000, frame(0x10, 0, 0, b"\x00\x00\x00\x01u=1") * 20000):
            sent, closed = p.flood(out, read=False)
            assert sent == len(out) and not closed
        p.call(3, GET, field(1, b"nothing"))
        assert p.answer(3).status == 5


def test_answers_that_are_not_read_do_not_pile_up(new_node):
    """Refusals cost the peer ten bytes and the server an entry in a queue."""
    n = new_node("-drain-timeout", "1s")
    put_big(n)
    with Siege(n, connections=3, streams=3 * 1100, budget=3 * 8 * MIB) as s:
        for _ in range(3):
            p = s.keep(Peer(n.grpc_port, BIG_WINDOW, greet=False, receive_buffer=4096))
            p.send(PREFACE + settings(BIG_WINDOW) + window_update(0, (1 << 31) - 1 - 65535))
            p.flood(refused_streams(p), 3)
        s.wait_counted(ERRORS, 1)


# ---- what may be kept of a request ----

def test_heads_of_open_calls_are_counted(new_node):
    """38 MiB of header fields on streams that stay open; a quarter of -receive-memory may be kept."""
    n = new_node("-receive-memory", "16MiB", "-drain-timeout", "1s")
    with Siege(n, connections=8, streams=2400, budget=4 * MIB) as s:
        refused = 0
        for _ in range(8):
            p = s.keep(Peer(n.grpc_port))
            p.flood(calls(PUT, 300, end=False, extra=[("x-long", "a" * 15000)], first=0), read=False)
            p.call(1001, GET, field(1, b"nothing"))
            assert p.answer(1001).status in (5, EXHAUSTED)
            refused += sum(a.status == EXHAUSTED for a in p.answers.values())
        assert refused > 1500
        assert s.counted("ocache_rpc_receive_denied_total") > 0


@pytest.mark.parametrize("whole", [False, True], ids=["cut", "whole"])
def test_long_keys_of_open_calls_are_counted(new_node, whole):
    """12 MiB of keys; an eighth of -buffer-memory may be kept."""
    n = new_node("-buffer-memory", "16MiB", "-drain-timeout", "1s")
    body = grpc_message(field(1, b"k" * 65000)[:None if whole else 64000], length=70000)
    with Siege(n, connections=3, streams=180, budget=2 * MIB) as s:
        for _ in range(3):
            p = s.keep(Peer(n.grpc_port))
            for i in range(60):
                p.call(2 * i + 1, PUT, end=False)
                p.upload(2 * i + 1, body)
        s.wait_counted("ocache_buffer_waits_refused_total", 100)
        p.read(lambda: any(a.status == EXHAUSTED for a in p.answers.values()), what="a refusal")


def test_header_fields_have_a_limit(new_node):
    n = new_node("-max-header-bytes", "8KiB")
    with Peer(n.grpc_port) as p:
        for stream, extra in ((1, [("x", "a" * 9000)]), (3, [(f"x-{i}", "a" * 100) for i in range(80)]),
                              (5, [("x" * 9000, "a")])):
            p.call(stream, GET, field(1, b"k"), extra=extra)
            answer = p.answer(stream)
            assert answer.status == EXHAUSTED and "8192" in answer.message
        p.send(frame(HEADERS, END_HEADERS | END_STREAM, 7,
                     request("/health", ("x", "a" * 9000), method="GET", content=None)))
        assert p.answer(7).header(":status") == "431"
        p.call(9, GET, field(1, b"k"), extra=[("x", "a" * 7000)])
        assert p.answer(9).status == 5
    assert n.stop() == 0


def test_header_table_size_changes(new_node):
    n = new_node()
    with Peer(n.grpc_port) as p:
        stream = 1
        for size in (0, 1, 4096, 1 << 20, (1 << 32) - 1, 0, 4096):
            p.decoder.max_allowed_table_size = size
            p.send(settings((HEADER_TABLE_SIZE, size)))
            p.call(stream, GET, field(1, b"nothing"))
            assert p.answer(stream).status == 5
            stream += 2
        # A dynamic table larger than the server allows is an error of the connection.
        p.send(frame(HEADERS, END_HEADERS, stream, b"\x3f\xe1\xff\x03" + request(GET)))
        assert p.closed() == 9  # COMPRESSION_ERROR
    assert n.stop() == 0


def test_streams_stay_within_their_number(new_node):
    n = new_node("-max-streams", "10", "-drain-timeout", "1s")
    with Siege(n, connections=2, streams=20) as s:
        # A client that has not seen the limit yet is told; nothing happens to its other streams.
        p = s.keep(Peer(n.grpc_port, greet=False))
        p.send(PREFACE + settings() + calls(PUT, 25, end=False))
        p.read(lambda: sum(a.reset == REFUSED_STREAM for a in p.answers.values()) == 15)
        assert s.counted("ocache_rpc_streams_refused_total") == 15
        p.send(rst(1))
        p.call(101, GET, field(1, b"nothing"))
        assert p.answer(101).status == 5
        # One that has seen it breaks the protocol.
        q = Peer(n.grpc_port)
        q.read(lambda: q.frames)
        q.send(calls(PUT, 11, end=False))
        assert q.closed() == PROTOCOL_ERROR
        q.close()


def test_one_bad_head_costs_one_stream(new_node):
    """The handshake time covers heads that have begun, and one that was refused is over."""
    n = new_node("-handshake-timeout", "300ms")
    with Peer(n.grpc_port) as p:
        p.send(frame(HEADERS, END_HEADERS, 1, request(GET) + literal("Upper", "x")))
        assert p.answer(1).reset == PROTOCOL_ERROR
        time.sleep(1)  # the time that must pass; another head would begin it anew
        p.call(3, GET, field(1, b"nothing"))
        assert p.answer(3).status == 5
    assert n.stop() == 0


# ---- stopping ----

def test_stop_with_peers_of_every_kind(new_node):
    n = new_node("-drain-timeout", "1s")
    put_big(n)
    held = [raw_connection(n.grpc_port) for _ in range(20)]
    for text in (b"P", PREFACE, b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"):
        c = raw_connection(n.http_port)
        c.sendall(text)
        held.append(c)
    for window in (0, 1 << 30):
        p = Peer(n.grpc_port, (INITIAL_WINDOW_SIZE, window), receive_buffer=4096)
        p.send(window_update(0, 1 << 30) + calls(GET, 20, body=grpc_message(field(1, b"big"))) +
               calls(PUT, 20, body=grpc_message(field(1, b"k"), length=100), end=False, first=20))
        held.append(p)
    began = time.monotonic()
    n.signal()
    assert n.wait(20) == 0
    assert time.monotonic() - began < 15
    for c in held:
        c.close()
