"""HTTP/2 frames and gRPC messages that are wrong, one at a time: which error each is answered with, that it costs
no more than its stream or its connection, and the edges of every number that a request carries."""

import pytest

from h2raw import (CONTINUATION, DATA, END_HEADERS, END_STREAM, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, GOAWAY,
                   HEADERS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, PADDED, PING, PREFACE, PRIORITY,
                   PROTOCOL_ERROR, PUSH_PROMISE, RST_STREAM, SETTINGS, STREAM_CLOSED, WINDOW_UPDATE, Peer, field,
                   frame, grpc_message, literal, request, rst, settings, window_update)
from harness import CHUNK, pattern, raw_connection

KIB, MIB = 1 << 10, 1 << 20
PUT, PUT_OBJECT = "/cache.CacheService/Put", "/cache.CacheService/PutObject"
GET, DELETE = "/cache.CacheService/Get", "/cache.CacheService/Delete"
LIST, LIST_VALUES = "/cache.CacheService/List", "/cache.CacheService/ListWithValues"
OK, INVALID, DEADLINE, NOT_FOUND, EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 3, 4, 5, 8, 12, 13
ERRORS = "ocache_rpc_protocol_errors_total"
GET_MISS = grpc_message(field(1, b"nothing"))


@pytest.fixture
def peer(node):
    with Peer(node.grpc_port) as p:
        yield p
        # Whatever was done on its connection: the node serves the next one.
        with Peer(node.grpc_port) as q:
            q.call(1, GET, field(1, b"nothing"))
            assert q.answer(1).status == NOT_FOUND


def head(stream=1, path=PUT, end=False):
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, request(path))


# ---- frames ----

OPEN = head(1)
COSTS_THE_CONNECTION = {
    "DATA on stream 0": (frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    "DATA on an idle stream": (frame(DATA, 0, 5, b"x"), PROTOCOL_ERROR),
    "DATA with more padding than payload": (OPEN + frame(DATA, PADDED, 1, b"\x05abc"), PROTOCOL_ERROR),
    "padded DATA without a length": (OPEN + frame(DATA, PADDED, 1), PROTOCOL_ERROR),
    "a frame longer than allowed": (OPEN + frame(DATA, 0, 1, b"", length=(1 << 20) + 1), FRAME_SIZE_ERROR),
    "the longest length there is": (OPEN + frame(DATA, 0, 1, b"", length=(1 << 24) - 1), FRAME_SIZE_ERROR),
    "HEADERS on stream 0": (frame(HEADERS, END_HEADERS, 0, request(PUT)), PROTOCOL_ERROR),
    "HEADERS on an even stream": (frame(HEADERS, END_HEADERS, 2, request(PUT)), PROTOCOL_ERROR),
    "HEADERS padded beyond their end": (frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + request(PUT)[:20]),
                                        PROTOCOL_ERROR),
    "HEADERS whose block cannot be decoded": (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), 9),
    "HEADERS that name a field 0": (frame(HEADERS, END_HEADERS, 1, b"\x80"), 9),
    "HEADERS that name a field that is not there": (frame(HEADERS, END_HEADERS, 1, b"\xfe"), 9),
    "a block cut in a string": (frame(HEADERS, END_HEADERS, 1, b"\x00\x7f\x10abc"), 9),
    "PING inside a header block": (frame(HEADERS, 0, 1, request(PUT)) + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR),
    "CONTINUATION of another stream": (frame(HEADERS, 0, 1, request(PUT)) +
                                       frame(CONTINUATION, END_HEADERS, 3, b""), PROTOCOL_ERROR),
    "CONTINUATION of nothing": (OPEN + frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL_ERROR),
    "RST_STREAM on stream 0": (rst(0), PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (rst(7), PROTOCOL_ERROR),
    "RST_STREAM of 3 bytes": (OPEN + frame(RST_STREAM, 0, 1, b"abc"), FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), PROTOCOL_ERROR),
    "an acknowledgement of nothing": (settings(ack=True), PROTOCOL_ERROR),
    "PRIORITY of 9 bytes": (frame(PRIORITY, 0, 1, bytes(9)), FRAME_SIZE_ERROR),
    "SETTINGS of 5 bytes": (frame(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    "an acknowledgement with contents": (frame(SETTINGS, 1, 0, bytes(6)), FRAME_SIZE_ERROR),
    "an initial window of 2^31": (settings((INITIAL_WINDOW_SIZE, 1 << 31)), FLOW_CONTROL_ERROR),
    "frames of at most 100 bytes": (settings((MAX_FRAME_SIZE, 100)), PROTOCOL_ERROR),
    "frames of at most 2^24 bytes": (settings((MAX_FRAME_SIZE, 1 << 24)), PROTOCOL_ERROR),
    "PUSH_PROMISE from a client": (OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), PROTOCOL_ERROR),
    "PING of 7 bytes": (frame(PING, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    "PING on a stream": (frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "GOAWAY on a stream": (frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "GOAWAY of 7 bytes": (frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 3 bytes": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    "a window of 0 more": (window_update(0, 0), PROTOCOL_ERROR),
    "a window for an idle stream": (window_update(9, 1), PROTOCOL_ERROR),
    "a connection window of 2^31": (window_update(0, (1 << 31) - 1), FLOW_CONTROL_ERROR),
    "a stream window of 0 more": (OPEN + window_update(1, 0), PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", COSTS_THE_CONNECTION)
def test_costs_the_connection(node, peer, name):
    out, code = COSTS_THE_CONNECTION[name]
    before = node.metrics()[ERRORS]
    peer.flood(out, 3, read=False)
    assert peer.closed() == code
    assert node.metrics()[ERRORS] > before


BAD_HEADS = {
    "no :path": literal(":method", "POST") + literal(":scheme", "http"),
    "two :path": request(PUT).replace(literal("te", "trailers"), b"") and
                 literal(":path", PUT) + request(PUT),
    "an empty :path": literal(":method", "POST") + literal(":scheme", "http") + literal(":path", ""),
    ":status in a request": literal(":status", "200") + request(PUT),
    "a pseudo field of no kind": literal(":what", "x") + request(PUT),
    "a pseudo field behind others": request(PUT) + literal(":authority", "x"),
    "an upper-case name": request(PUT) + literal("X-Upper", "x"),
    "a line feed in a value": request(PUT) + literal("x", b"a\nb"),
    "a zero byte in a value": request(PUT) + literal("x", b"a\x00b"),
    "a name with a blank": request(PUT) + literal("a b", "x"),
    "connection-specific fields": request(PUT) + literal("connection", "close"),
    "transfer-encoding": request(PUT) + literal("transfer-encoding", "chunked"),
    "te that is not trailers": request(PUT).replace(literal("te", "trailers"), literal("te", "gzip")),
    "two lengths": request(PUT) + literal("content-length", "5") + literal("content-length", "6"),
    "a length that is no number": request(PUT) + literal("content-length", "5x"),
}


@pytest.mark.parametrize("name", BAD_HEADS)
def test_bad_head_costs_its_stream(node, peer, name):
    before = node.metrics()[ERRORS]
    peer.send(frame(HEADERS, END_HEADERS, 1, BAD_HEADS[name]))
    assert peer.answer(1).reset == PROTOCOL_ERROR
    peer.call(3, GET, field(1, b"nothing"))
    assert peer.answer(3).status == NOT_FOUND and peer.goaway is None
    assert node.metrics()[ERRORS] > before


COSTS_THE_STREAM = {
    "a stream window of 2^31": (OPEN + window_update(1, (1 << 31) - 1), FLOW_CONTROL_ERROR),
    "a stream window moved over 2^31 by SETTINGS": (OPEN + window_update(1, (1 << 31) - 1 - 65535) +
                                                    settings((INITIAL_WINDOW_SIZE, 65536)), FLOW_CONTROL_ERROR),
    "trailers that end nothing": (OPEN + frame(HEADERS, END_HEADERS, 1, literal("x", "y")), PROTOCOL_ERROR),
    "less DATA than announced": (frame(HEADERS, END_HEADERS, 1, request(PUT, ("content-length", "50"))) +
                                 frame(DATA, END_STREAM, 1, GET_MISS), PROTOCOL_ERROR),
    "more DATA than announced": (frame(HEADERS, END_HEADERS, 1, request(PUT, ("content-length", "5"))) +
                                 frame(DATA, 0, 1, bytes(20)), PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", COSTS_THE_STREAM)
def test_costs_the_stream(peer, name):
    out, code = COSTS_THE_STREAM[name]
    peer.send(out)
    assert peer.answer(1).reset == code
    peer.call(3, GET, field(1, b"nothing"))
    assert peer.answer(3).status == NOT_FOUND and peer.goaway is None


@pytest.mark.parametrize("out", [
    head(5) + head(3), frame(PRIORITY, 0, 0, bytes(5)), frame(0xFA, 0xFF, 77, b"?" * 99),
    settings((0xFFFF, 1), (0, 0)), frame(PING, 1, 0, b"unasked!")],
    ids=range(5))
def test_ignored(peer, out):
    peer.send(out)
    peer.call(101, GET, field(1, b"nothing"))
    assert peer.answer(101).status == NOT_FOUND and peer.goaway is None


def test_data_behind_the_end_of_a_stream(peer):
    """On a stream that the client had ended it is an error; on one that the server has given up it may have
    been on its way, and is dropped without a loss of connection window."""
    peer.send(frame(HEADERS, END_HEADERS, 1, request(PUT)) + frame(DATA, 0, 1, grpc_message(b"", length=1 << 31)))
    assert peer.answer(1).status == EXHAUSTED
    for _ in range(40):
        peer.send(b"".join(frame(DATA, 0, 1, bytes(16384)) for _ in range(2)))  # 1.3 MiB in all
        peer.read(lambda: True)
    peer.call(3, GET, field(1, b"nothing"))
    assert peer.answer(3).status == NOT_FOUND
    peer.send(frame(DATA, 0, 3, b"x"))
    try:
        peer.call(5, GET, field(1, b"nothing"))
        assert peer.answer(5).status == NOT_FOUND
    except AssertionError:
        assert peer.goaway == STREAM_CLOSED


def test_padding_costs_no_window(node, peer):
    """A byte of payload and 255 of padding per frame: 5 MiB on the wire for a value of 20000 bytes."""
    value = pattern(20000, 9)
    body = grpc_message(field(1, b"padded") + field(3, value))
    peer.send(head(1))
    for at in range(0, len(body), 200):
        part = body[at:at + 200]
        out = b"".join(frame(DATA, PADDED, 1, b"\xff" + part[i:i + 1] + bytes(255)) for i in range(len(part)))
        peer.read(lambda: peer.frames, what="SETTINGS")
        peer.read(lambda: min(peer.window, peer.initial_window + peer.windows.get(1, 0)) >= 200 * 257, what="window")
        peer.send(out)
        peer.window -= 257 * len(part)
        peer.windows[1] = peer.windows.get(1, 0) - 257 * len(part)
    peer.send(frame(DATA, END_STREAM, 1))
    assert peer.answer(1).status == OK
    with node.client() as c:
        assert c.get("padded") == value


@pytest.mark.parametrize("text", [
    b"SSH-2.0-OpenSSH_9.2\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), bytes(64), b"\xff" * 64,
    b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n\x00\x00\x00\x04",
    b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n", b"{\"get\": \"x\"}\n", b"\r\n\r\nquit\r\n"])
@pytest.mark.parametrize("port", ["grpc", "http"])
def test_other_languages(node, text, port):
    before = node.metrics()[ERRORS]
    c = raw_connection(node.grpc_port if port == "grpc" else node.http_port)
    c.sendall(text)
    got = b""
    while True:
        try:
            part = c.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        got += part
    c.close()
    assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 505 ")) and b"Connection: close\r\n" in got
    assert got.count(b"HTTP/1.1 ") == 1
    assert b"505" in got[:13] or node.metrics()[ERRORS] > before


def test_frames_behind_a_preface_that_are_no_settings(node):
    with Peer(node.grpc_port, greet=False) as p:
        p.send(PREFACE + head(1))
        assert p.closed() == PROTOCOL_ERROR


# ---- gRPC ----

def ask(peer, path, payload=None, raw=None, stream=1, extra=(), end=True):
    if raw is None:
        peer.call(stream, path, payload, extra=extra, end=end)
    else:
        peer.call(stream, path, raw=raw, extra=extra, end=end)
    return peer.answer(stream)


UNARY = [GET, DELETE, LIST, LIST_VALUES, PUT_OBJECT, "/cache.CacheService/GetTopology"]


@pytest.mark.parametrize("path", UNARY + [PUT])
def test_lengths_that_lie(peer, path):
    """Refused by their length, without waiting for the bytes."""
    for i, length in enumerate(((128 << 20) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)):
        answer = ask(peer, path, raw=grpc_message(b"", length=length), stream=2 * i + 1, end=False)
        assert answer.status == EXHAUSTED and "larger than" in answer.message
        assert answer.reset in (None, 0)
    limit = (128 << 20 if path in (PUT, PUT_OBJECT) else MIB)
    assert ask(peer, path, raw=grpc_message(b"", length=limit + 1), stream=31, end=False).status == EXHAUSTED
    peer.call(33, path, raw=grpc_message(b"", length=limit), end=False)
    peer.call(35, GET, field(1, b"nothing"))
    assert peer.answer(35).status == NOT_FOUND
    assert 33 not in peer.answers or not peer.answers[33].over  # allowed: it waits for the bytes


@pytest.mark.parametrize("path", UNARY + [PUT])
def test_message_framing(peer, path):
    good = field(1, b"nothing")
    cases = [
        (grpc_message(good, flag=1), UNIMPLEMENTED), (grpc_message(good, flag=2), INTERNAL),
        (grpc_message(good, flag=255), INTERNAL), (grpc_message(good, length=len(good) + 1), INTERNAL),
        (grpc_message(good)[:3], INTERNAL), (grpc_message(good)[:-1], INTERNAL),
    ]
    if path != PUT:
        # What is answered by the first message ends with it.
        second = {GET: NOT_FOUND, UNARY[-1]: OK}.get(path, INTERNAL)
        cases += [(b"", INTERNAL), (grpc_message(good) * 2, second)]
    for i, (raw, status) in enumerate(cases):
        assert ask(peer, path, raw=raw, stream=2 * i + 1).status == status, raw
    assert peer.goaway is None


def wrong_messages(fields):
    """Messages that no encoder writes. `fields`: number -> 2 (bytes) or 0 (a number)."""
    yield from (b"\xff", b"\x00", b"\x07", b"\x00\x00", b"\x0b", b"\x0c", b"\x0e", b"\x0f", b"\x80", b"\x80" * 11)
    yield b"\xf8\xff\xff\xff\x7f\x01"  # a field number above 2^29 - 1
    for number, kind in fields.items():
        for other in (0, 1, 2, 3, 4, 5, 6, 7):
            if other != kind:
                yield bytes([number << 3 | other]) + b"\x00" * 9
        tag = bytes([number << 3 | kind])
        yield tag
        if kind == 2:
            yield from (tag + b"\x05abc", tag + b"\x80", tag + b"\xff" * 9 + b"\x01", tag + b"\xff" * 10 + b"\x01",
                        tag + b"\xff\xff\xff\xff\x0f")
        else:
            yield from (tag + b"\x80" * 3, tag + b"\xff" * 10 + b"\x01", tag + b"\xff" * 9 + b"\x02")


@pytest.mark.parametrize("path,fields", [
    (GET, {1: 2, 2: 0, 3: 0}), (DELETE, {1: 2}), (PUT, {1: 2, 2: 0, 3: 2}), (PUT_OBJECT, {1: 2, 2: 0, 3: 2}),
    (LIST, {1: 2, 2: 2, 3: 0, 4: 2}), (LIST_VALUES, {1: 2, 2: 2, 3: 0, 4: 2})])
def test_messages_that_do_not_parse(peer, path, fields):
    for i, wrong in enumerate(wrong_messages(fields)):
        for k, message in enumerate((wrong, field(1, b"key") + wrong)):
            answer = ask(peer, path, message, stream=4 * i + 2 * k + 1)
            assert answer.status == INTERNAL, message
            assert "cannot parse" in answer.message
    assert peer.goaway is None


def test_overlong_varints_are_numbers(node, peer):
    """Ten bytes are the most; leading zeros within them are allowed."""
    message = b"\x0a\x83\x80\x80\x80\x00abc" + b"\x10\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00"
    assert ask(peer, PUT_OBJECT, message + field(3, b"value")).status == OK
    with node.client() as c:
        assert c.get("abc") == b"value"


@pytest.mark.parametrize("method", ["PutObject", "Put"])
def test_keys_of_every_byte(node, peer, method):
    """Keys are protobuf strings: what is not UTF-8 does not parse, everything else is a key."""
    path = f"/cache.CacheService/{method}"
    with node.client() as c:
        for byte in range(1, 256):
            key = b"byte/" + bytes([byte]) + b"/"
            status = OK if byte < 0x80 else INTERNAL
            stream = 8 * byte + 1
            assert ask(peer, path, field(1, key) + field(3, key), stream=stream).status == status, byte
            got = ask(peer, GET, field(1, key), stream=stream + 2)
            assert got.status == status and (status != OK or got.data[5:] == field(1, key))
            assert ask(peer, DELETE, field(1, key), stream=stream + 4).status == status
        assert c.list_all("byte/") == []


def test_lengths_of_keys(node, peer):
    stream = 1
    for path in (PUT_OBJECT, PUT, DELETE):
        for length, status in ((0, INVALID), (1, OK), (65534, OK), (65535, OK), (65536, INVALID), (200000, INVALID)):
            peer.send(head(stream, path))
            peer.upload(stream, grpc_message(field(1, b"k" * length) if length else b""))
            if not peer.answers.get(stream) or not peer.answers[stream].over:
                peer.send(frame(DATA, END_STREAM, stream))
            answer = peer.answer(stream)
            assert answer.status == status, (path, length)
            assert status == OK or "key" in answer.message
            stream += 2
    with node.client() as c:
        assert c.list_all("k") == []


EDGES = [-(1 << 63), -(1 << 63) + 1, -1, 0, 1, 2, 9, 10, 11, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 2,
         (1 << 63) - 1]


@pytest.mark.parametrize("size", [0, 1, 10, CHUNK + 1])
def test_edges_of_ranges(node, size):
    value = pattern(size, 5)
    peer = Peer(node.grpc_port, (INITIAL_WINDOW_SIZE, (1 << 31) - 1))
    peer.send(window_update(0, 1 << 30))
    with node.client() as c:
        c.put("edges", value)
    stream = 1
    for start in EDGES + [size - 1, size, size + 1]:
        for end in EDGES + [size - 1, size, size + 1]:
            answer = ask(peer, GET, field(1, b"edges") + field(2, start) + field(3, end), stream=stream)
            peer.send(window_update(0, len(answer.data)) if answer.data else b"")
            stream += 2
            low = max(start, 0)
            expected = value[low:] if end <= 0 else value[low:end + 1]
            body, got = answer.data, b""
            while body:
                n = int.from_bytes(body[1:5], "big")
                at = 6
                while body[at] >= 0x80:
                    at += 1
                got += body[at + 1:5 + n]
                body = body[5 + n:]
            assert answer.status == OK and got == expected, (start, end)
    peer.close()


@pytest.mark.parametrize("ttl", [-(1 << 63), -1, 0, 1 << 31, 1 << 62, (1 << 63) - 1])
def test_edges_of_ttl(node, peer, ttl):
    assert ask(peer, PUT_OBJECT, field(1, b"ttl") + field(2, ttl) + field(3, b"v")).status == OK
    with node.client() as c:
        assert c.get("ttl") == b"v"  # negative is none, as 0 is


@pytest.mark.parametrize("limit", [-(1 << 63), -(1 << 31), -1, 0, 1 << 31, (1 << 32) + 2, (1 << 63) - 1])
def test_edges_of_limits(peer, limit):
    assert ask(peer, LIST, field(1, b"no such prefix") + field(3, limit)).status == OK


@pytest.mark.parametrize("timeout,status", [
    ("0n", DEADLINE), ("0H", DEADLINE), ("1n", DEADLINE), ("99999999H", NOT_FOUND), ("99999999n", NOT_FOUND),
    ("", INTERNAL), ("1", INTERNAL), ("S", INTERNAL), ("-1S", INTERNAL), ("+1S", INTERNAL), ("1s", INTERNAL),
    ("1.5S", INTERNAL), ("100000000S", INTERNAL), ("0x1S", INTERNAL), ("1SS", INTERNAL)])
def test_deadlines(peer, timeout, status):
    peer.send(frame(HEADERS, END_HEADERS, 1, request(GET, ("grpc-timeout", timeout))))
    if status != DEADLINE:
        peer.send(frame(DATA, END_STREAM, 1, GET_MISS))
    assert peer.answer(1).status == status


def test_methods_that_are_not_there(peer):
    for i, path in enumerate(("/", "//", "/cache.CacheService/", "/cache.CacheService/get", "/cache.CacheService/Get/",
                              "/cache.CacheService/Get?x", "/" + "a" * 9000, "/cache.CacheService/%47et")):
        assert ask(peer, path, b"", stream=2 * i + 1).status == UNIMPLEMENTED, path
    for i, (content, method, status) in enumerate((
            ("application/grpc", "GET", "405"), ("application/grpc-web", "POST", "415"),
            ("application/json", "POST", "415"), ("application/grpc+json", "POST", "415"))):
        stream = 101 + 2 * i
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, request(GET, method=method, content=content)))
        assert peer.answer(stream).header(":status") == status
    assert peer.goaway is None
