"""Peers that mean harm, on HTTP/1.1: whatever could be read in two ways is refused and ends the connection, what
has no end is cut, and memory stays within a stated bound."""

import re
import socket
import time

import pytest

from harness import raw_connection, wait_for
from siege import KIB, MIB, Siege

STALLED, ERRORS = "ocache_rpc_stalled_closed_total", "ocache_rpc_protocol_errors_total"
HOST = b"Host: a\r\n"
HEALTH = b'{"status":"ok"}'


def receive(c, timeout=10.0):
    """Everything up to the end of the connection, and how it ended."""
    c.settimeout(timeout)
    got = b""
    while True:
        try:
            part = c.recv(1 << 18)
        except ConnectionResetError:
            return got, "reset"
        if not part:
            return got, "end"
        got += part


def exchange(port, text, half_close=True):
    """The statuses answered to `text`, and all that came. The connection must be closed by the server, or have
    nothing left to answer when we end our side."""
    c = raw_connection(port)
    try:
        c.sendall(text)
        if half_close:
            c.shutdown(socket.SHUT_WR)
    except (BrokenPipeError, ConnectionResetError):
        pass
    got, _ = receive(c)
    c.close()
    return statuses_of(got), got


def statuses_of(got):
    """A status line may stand right behind a body that has no line end."""
    return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d{3}) ", got)]


@pytest.fixture(params=["grpc", "http"])
def port(request, node):
    return node.grpc_port if request.param == "grpc" else node.http_port


# A second request hides in what follows the first one's head: it must never be answered.
HIDDEN = b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(HIDDEN)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLING = {
    "length and chunked": (LENGTH + CHUNKED, b"0\r\n\r\n" + HIDDEN),
    "chunked and length": (CHUNKED + LENGTH, b"0\r\n\r\n" + HIDDEN),
    "two lengths": (b"Content-Length: 0\r\n" + LENGTH, HIDDEN),
    "the same length twice": (LENGTH + LENGTH, HIDDEN),
    "a list of lengths": (b"Content-Length: 5, 5\r\n", HIDDEN),
    "a signed length": (b"Content-Length: +5\r\n", HIDDEN),
    "a negative length": (b"Content-Length: -1\r\n", HIDDEN),
    "a length in hex": (b"Content-Length: 0x0\r\n", HIDDEN),
    "a length with a blank in it": (b"Content-Length: 0 0\r\n", HIDDEN),
    "an empty length": (b"Content-Length: \r\n", HIDDEN),
    "a length beyond 64 bits": (b"Content-Length: 99999999999999999999\r\n", HIDDEN),
    "a blank before the colon": (b"Content-Length : 5\r\n", HIDDEN),
    "chunked, then something else": (b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n" + HIDDEN),
    "not quite chunked": (b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "chunked in quotes": (b'Transfer-Encoding: "chunked"\r\n', b"0\r\n\r\n" + HIDDEN),
    "identity": (b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n" + HIDDEN),
    "an encoding of two lines": (b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "a folded length": (b"Content-Length:\r\n 5\r\n", HIDDEN),
    "a folded field": (b"X: a\r\n b\r\n", HIDDEN),
    "a carriage return alone": (b"X: a\rContent-Length: 5\r\n", HIDDEN),
    "a zero byte in a value": (b"X: a\x00b\r\n", HIDDEN),
    "a zero byte in a name": (b"X\x00: a\r\n", HIDDEN),
    "a name with a bracket": (b"X(: a\r\n", HIDDEN),
    "a line without a colon": (b"just words\r\n", HIDDEN),
    "an empty name": (b": a\r\n", HIDDEN),
    "a control character": (b"X: a\x01b\r\n", HIDDEN),
    "two hosts": (b"Host: b\r\n", HIDDEN),
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_requests_that_can_be_read_in_two_ways(node, port, name):
    fields, rest = SMUGGLING[name]
    before = node.metrics()[ERRORS]
    statuses, got = exchange(port, b"POST /health HTTP/1.1\r\n" + HOST + fields + b"\r\n" + rest, half_close=False)
    assert statuses == [400], got[:300]
    assert b"Connection: close\r\n" in got
    assert node.metrics()[ERRORS] == before + 1


BAD_CHUNKS = {
    "no number": b"xyz\r\n", "a negative size": b"-1\r\n", "a size beyond 64 bits": b"fffffffffffffffff\r\n",
    "no line end behind the data": b"3\r\nabcX", "a line feed alone": b"3\nabc\n0\n\n",
    "a signed size": b"+3\r\nabc\r\n",
    "0x": b"0x3\r\nabc\r\n", "an empty size": b"\r\nabc\r\n", "a bad trailer": b"0\r\nbad trailer\r\n\r\n",
    "a zero byte": b"3\x00\r\nabc\r\n",
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
def test_chunks_that_are_wrong(node, port, name):
    text = b"POST /health HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n" + BAD_CHUNKS[name]
    statuses, got = exchange(port, text + HIDDEN, half_close=False)
    assert statuses == [400], got[:300]


BAD_STARTS = {
    b"GET /health\r\n": (505,), b"GET /health HTTP/1.1 x\r\n": (505,),
    b"GET /health HTTP/2.0\r\n": (400, 505), b"GET /health HTTP/1.2\r\n": (400, 505),
    b"GET /health HTTP/0.9\r\n": (400, 505),
    b"GET /health HTTP/9.9\r\n": (400, 505), b"GET /health HTTP/1.10\r\n": (400, 505),
    b"GET /health http/1.1\r\n": (400, 505),
    b"GET /health HTTPS/1.1\r\n": (400, 505), b"get /health HTTP/1.1\r\n": (400,), b"WHAT /health HTTP/1.1\r\n": (400,),
    b" GET /health HTTP/1.1\r\n": (400,), b"GET health HTTP/1.1\r\n": (400,), b"GET /he\x00alth HTTP/1.1\r\n": (400,),
    b"GET /he\nalth HTTP/1.1\r\n": (400,), b"CONNECT a:443 HTTP/1.1\r\n": (405,), b"G\x00T / HTTP/1.1\r\n": (400,),
    b"GET / HTTP/1.1\r\x00\n": (400, 505),
}


@pytest.mark.parametrize("start", BAD_STARTS, ids=range(len(BAD_STARTS)))
def test_request_lines_that_are_wrong(port, start):
    statuses, got = exchange(port, start + HOST + b"\r\n" + HIDDEN, half_close=False)
    assert len(statuses) == 1 and statuses[0] in BAD_STARTS[start], got[:300]


@pytest.mark.parametrize("text,expected", [
    (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", [404]), (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", [404]),
    (b"HEAD /health HTTP/1.1\r\n" + HOST + b"\r\n", [200]), (b"DELETE /health HTTP/1.1\r\n" + HOST + b"\r\n", [200]),
    (b"PATCH /nothing HTTP/1.1\r\n" + HOST + b"\r\n", [404]), (b"GET /health HTTP/1.0\r\n\r\n", [200]),
    (b"GET /health HTTP/1.1\r\n\r\n", [400]), (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", [400]),
    (b"POST /health HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n", [400]),
    (b"POST /health HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n3;a=b\r\nabc\r\n0\r\nTrailer: x\r\n\r\n", [200]),
    (b"POST /health HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc", [100, 200]),
    (b"POST /health HTTP/1.1\r\n" + HOST + b"Expect: miracles\r\nContent-Length: 3\r\n\r\nabc", [417]),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\n\r\n", [200]),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", [200]),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n", [200]),
    (b"GET  /health HTTP/1.1\r\n" + HOST + b"\r\n", [200]),  # RFC 9112, 3: words, however far apart
    (b"\r\n\r\nGET /health HTTP/1.1\r\n" + HOST + b"\r\n", [200]),
    (b"GET /%00%0d%0a/../health?a=%zz HTTP/1.1\r\n" + HOST + b"\r\n", [404]),
    (b"POST /cache.CacheService/Get HTTP/1.1\r\n" + HOST +
     b"Content-Type: application/grpc\r\nContent-Length: 0\r\n\r\n", [404]),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\nGET /ready HTTP/1.1\r\n" + HOST +
     b"\r\nGARBAGE\r\n\r\n", [200, 200, 400]),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n" + HIDDEN, [200]),
], ids=range(21))
def test_odd_requests(port, text, expected):
    statuses, got = exchange(port, text)
    assert statuses == expected, got[:300]
    if text.startswith(b"HEAD"):
        assert got.endswith(b"\r\n\r\n")


def test_limits_of_a_request(node, port):
    for text, expected in (
            (b"GET /" + b"a" * 8000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 404),
            (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
            (b"GET /" + b"a" * MIB, 414),
            (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 30000 + b"\r\n\r\n", 200),
            (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 33000 + b"\r\n\r\n", 431),
            (b"GET /health HTTP/1.1\r\n" + HOST + b"X" * 33000 + b": a\r\n\r\n", 431),
            (b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 8000 + b"\r\n", 431),
            (b"POST /health HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % (MIB + 1), 413),
            (b"POST /health HTTP/1.1\r\n" + HOST + b"Content-Length: 18446744073709551615\r\n\r\n", 413),
            (b"POST /health HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n" + b"1000\r\n" + bytes(4096) + b"\r\n" * 1 +
             b"10000000\r\n" + bytes(MIB), 413),
            (b"POST /health HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n" + (b"1;" + b"x" * 4000 + b"\r\na\r\n") * 300, 413),
            (b"POST /health HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n0\r\n" + b"X: a\r\n" * 8000 + b"\r\n", 431)):
        statuses, got = exchange(port, text, half_close=expected in (200, 404))
        assert statuses == [expected], (text[:60], got[:200])


# ---- what has no end ----

SLOW = {
    "a request line": b"GET /" + b"a" * 2000, "a field": b"GET /health HTTP/1.1\r\nHost: " + b"a" * 2000,
    "fields": b"GET /health HTTP/1.1\r\n" + b"X: a\r\n" * 300,
}


@pytest.mark.parametrize("name", SLOW)
def test_slow_heads(new_node, name):
    """A head that comes byte by byte: 408 when the handshake time has passed, however busy the drip."""
    n = new_node("-handshake-timeout", "600ms", "-stall-timeout", "600ms")
    with Siege(n, connections=50) as s:
        peers = [s.keep(raw_connection(n.http_port)) for _ in range(50)]
        text, open_ = SLOW[name], list(peers)
        for i in range(len(text)):
            for c in list(open_):
                try:
                    c.sendall(text[i:i + 1])
                except (BrokenPipeError, ConnectionResetError):
                    open_.remove(c)
            if s.counted(STALLED) >= 50:
                break
            time.sleep(0.02)  # the pace of the attack
        s.wait_counted(STALLED, 50)
        assert i < 500
        s.wait_alone()


@pytest.mark.parametrize("drip", [False, True], ids=["silent", "dripping"])
def test_slow_bodies(new_node, drip):
    n = new_node("-handshake-timeout", "10s", "-stall-timeout", "500ms")
    with Siege(n, connections=20) as s:
        peers = [s.keep(raw_connection(n.http_port)) for _ in range(20)]
        for i, c in enumerate(peers):
            length = CHUNKED if i % 2 else b"Content-Length: 900000\r\n"
            c.sendall(b"POST /health HTTP/1.1\r\n" + HOST + length + b"\r\n")
        for _ in range(300 if drip else 0):
            for i, c in enumerate(peers):
                try:
                    c.sendall(b"1\r\na\r\n" if i % 2 else b"a")
                except (BrokenPipeError, ConnectionResetError):
                    pass
            if s.counted(STALLED) >= 20:
                break
            time.sleep(0.03)  # the pace of the attack
        s.wait_counted(STALLED, 20)
        assert receive(peers[0])[0].startswith(b"HTTP/1.1 408 ")
        s.wait_alone()


def test_idle_connections_go(new_node):
    """Between requests, before the first and with nothing but empty lines: the stall time."""
    n = new_node("-stall-timeout", "500ms", "-handshake-timeout", "500ms")
    with Siege(n, connections=60) as s:
        for text in (b"", b"\r\n" * 10, b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n", b"PRI * HTTP/1.1\r\n\r\n"):
            for _ in range(15):
                s.keep(raw_connection(n.http_port)).sendall(text)
        s.wait_alone()


def test_pipelining_without_reading(new_node):
    """20 connections send 15 MiB of requests each for pages of 20 KiB: what is not read is not made."""
    n = new_node("-stall-timeout", "2s", "-drain-timeout", "1s")
    with Siege(n, connections=20, budget=20 * 512 * KIB) as s:
        requests = (b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n") * 20000
        peers = []
        for _ in range(20):
            c = socket.socket()
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", n.http_port))
            c.setblocking(False)
            peers.append(s.keep(c))
        for _ in range(20):
            for c in peers:
                try:
                    c.send(requests)
                except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                    pass
        served = s.counted("ocache_http1_requests_total")
        assert served < 20 * 400
        s.wait_counted(STALLED, 20)
        s.wait_alone()


def test_pipelining_is_answered_in_order(node, port):
    c = raw_connection(port)
    count = 1000
    c.sendall(b"".join(b"GET /%s HTTP/1.1\r\n%s\r\n" % (b"health" if i % 2 else b"nothing", HOST)
                       for i in range(count)))
    c.shutdown(socket.SHUT_WR)
    got, how = receive(c, 30)
    c.close()
    assert statuses_of(got) == [200 if i % 2 else 404 for i in range(count)] and how == "end"


def test_connections_that_come_and_go(new_node):
    """2000 connections that are reset, ended or left in the middle of a request."""
    n = new_node()
    with Siege(n, connections=5) as s:
        texts = (b"", b"GET", b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n",
                 b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n1")
        for i in range(2000):
            c = raw_connection(n.http_port if i % 2 else n.grpc_port)
            c.sendall(texts[i % 4])
            if i % 3 == 0:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            c.close()
        s.wait_alone()
        wait_for(lambda: n.metrics()["process_open_fds"] <= s.before["process_open_fds"] + 6, 10, "descriptors")
