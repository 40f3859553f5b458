"""Clients that misbehave, and corners of HTTP/2 that ordinary clients do not use: raw sockets, and the frames
of the h2 library as an independent implementation (row F15)."""

import os
import socket
import struct
import threading
import time

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest

from harness import CHUNK, pattern, raw_connection, wait_for

KIB, MIB = 1 << 10, 1 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class H2:
    """One connection; calls are written frame by frame."""

    def __init__(self, port, settings=None, ack_windows=True):
        self.sock = raw_connection(port)
        self.conn = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        if settings:
            self.conn.local_settings = h2.settings.Settings(client=True, initial_values=settings)
        self.conn.initiate_connection()
        self.ack_windows = ack_windows
        self.flush()
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def flush(self):
        data = self.conn.data_to_send()
        if data:
            self.sock.sendall(data)

    def poll(self, timeout_s=10.0):
        """Reads once; the new events. Empty: the peer closed."""
        self.sock.settimeout(timeout_s)
        data = self.sock.recv(65536)
        if not data:
            return None
        events = self.conn.receive_data(data)
        for e in events:
            if self.ack_windows and isinstance(e, h2.events.DataReceived) and e.flow_controlled_length:
                self.conn.acknowledge_received_data(e.flow_controlled_length, e.stream_id)
        self.flush()
        self.events += events
        return events

    def start(self, method, extra=(), end=False):
        stream = self.conn.get_next_available_stream_id()
        self.conn.send_headers(stream, [
            (":method", "POST"), (":scheme", "http"), (":path", f"/cache.CacheService/{method}"),
            (":authority", "test"), ("content-type", "application/grpc"), ("te", "trailers"), *extra],
            end_stream=end)
        self.flush()
        return stream

    def send(self, stream, data, end=False):
        """Within the windows that the server gives; reads while it waits for them."""
        view = memoryview(data)
        while True:
            room = min(self.conn.local_flow_control_window(stream), self.conn.max_outbound_frame_size)
            piece = view[:room]
            if len(piece) or not len(view):
                last = len(piece) == len(view)
                self.conn.send_data(stream, bytes(piece), end_stream=end and last)
                self.flush()
                view = view[len(piece):]
                if last:
                    return
            else:
                assert self.poll() is not None, "closed"

    def finish(self, stream, timeout_s=20.0):
        """Reads to the end of the stream: (body, headers and trailers)."""
        deadline = time.monotonic() + timeout_s
        while not any(isinstance(e, (h2.events.StreamEnded, h2.events.StreamReset)) and
                      e.stream_id == stream for e in self.events):
            assert time.monotonic() < deadline
            assert self.poll() is not None, "closed"
        body, fields = b"", {}
        for e in self.events:
            if getattr(e, "stream_id", None) != stream:
                continue
            if isinstance(e, h2.events.DataReceived):
                body += e.data
            elif isinstance(e, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                fields.update(e.headers)
        return body, fields


def message(payload):
    return b"\x00" + struct.pack(">I", len(payload)) + payload


def field(number, payload):
    length, out = len(payload), b""
    while length >= 0x80:
        out += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + out + bytes([length]) + payload


def put_request(key, value):
    return message(field(1, key.encode()) + field(3, value))


def messages_of(body):
    out = []
    while body:
        n = struct.unpack(">I", body[1:5])[0]
        out.append(body[5:5 + n])
        body = body[5 + n:]
    return out


def test_F15_a_plain_call(node, key):
    with H2(node.grpc_port) as c:
        s = c.start("PutObject")
        c.send(s, put_request(key, b"value"), end=True)
        body, fields = c.finish(s)
        assert fields[":status"] == "200" and fields["content-type"].startswith("application/grpc")
        assert fields["grpc-status"] == "0" and messages_of(body) == [b"\x08\x01"]
        s = c.start("Get")
        c.send(s, message(field(1, key.encode())), end=True)
        body, fields = c.finish(s)
        assert fields["grpc-status"] == "0" and messages_of(body) == [field(1, b"value")]


@pytest.mark.parametrize("step", [1, 2, 5, 7])
def test_F15_a_message_in_tiny_frames(node, client, key, step):
    request = put_request(key, pattern(200))
    with H2(node.grpc_port) as c:
        s = c.start("PutObject")
        for i in range(0, len(request), step):
            c.send(s, request[i:i + step], end=i + step >= len(request))
        assert c.finish(s)[1]["grpc-status"] == "0"
    assert client.get(key) == pattern(200)


def test_F15_window_of_one_byte(node, client, key):
    """The server may send one byte at a time, and does."""
    value = pattern(300)
    client.put(key, value)
    with H2(node.grpc_port, {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1}) as c:
        s = c.start("Get")
        c.send(s, message(field(1, key.encode())), end=True)
        body, fields = c.finish(s)
        assert fields["grpc-status"] == "0" and messages_of(body) == [field(1, value)]
        sizes = [len(e.data) for e in c.events if isinstance(e, h2.events.DataReceived)]
        assert max(sizes) == 1


def test_F15_headers_split_over_continuations(node, client, key):
    extra = [(f"x-padding-{i}", "v" * 200) for i in range(100)]  # 20 KiB: more than one frame
    with H2(node.grpc_port) as c:
        s = c.start("PutObject", extra)
        c.send(s, put_request(key, b"v"), end=True)
        assert c.finish(s)[1]["grpc-status"] == "0"
    assert client.get(key) == b"v"


def test_F15_too_many_headers(node):
    with H2(node.grpc_port) as c:
        s = c.start("PutObject", [(f"x-padding-{i}", "v" * 1000) for i in range(50)])
        fields = c.finish(s)[1]
        assert fields["grpc-status"] == "8"


def test_F15_header_table_size_changes(node, key):
    with H2(node.grpc_port) as c:
        for size in (0, 4096, 100, 65536):
            c.conn.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: size})
            c.flush()
            for _ in range(3):
                s = c.start("PutObject", [("x-same", "value")])
                c.send(s, put_request(key, b"v"), end=True)
                assert c.finish(s)[1]["grpc-status"] == "0"


def test_F15_many_pings(node, key):
    """Clients with keepalive ping even without streams; nobody is sent away for it."""
    with H2(node.grpc_port) as c:
        for i in range(300):
            c.conn.ping(struct.pack(">Q", i))
            c.flush()
        wait_for(lambda: c.poll() is not None and
                 sum(isinstance(e, h2.events.PingAckReceived) for e in c.events) == 300, 20, "answers")
        s = c.start("Get")
        c.send(s, message(field(1, b"nothing")), end=True)
        assert c.finish(s)[1]["grpc-status"] == "5"
        assert not any(isinstance(e, h2.events.ConnectionTerminated) for e in c.events)


def test_F15_unknown_frames_and_settings(node, key):
    with H2(node.grpc_port) as c:
        c.sock.sendall(b"\x00\x00\x04\xfa\x00\x00\x00\x00\x00abcd")  # a frame type nobody knows
        c.sock.sendall(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\xff\xff\x00\x00\x00\x01")
        s = c.start("PutObject")
        c.send(s, put_request(key, b"v"), end=True)
        assert c.finish(s)[1]["grpc-status"] == "0"


@pytest.mark.parametrize("flag", [1, 2, 255])
def test_F15_message_flags(node, flag):
    with H2(node.grpc_port) as c:
        s = c.start("PutObject")
        c.send(s, bytes([flag]) + put_request("k", b"v")[1:], end=True)
        assert c.finish(s)[1]["grpc-status"] == ("12" if flag == 1 else "13")


@pytest.mark.parametrize("method", ["PutObject", "Put", "Get", "Delete", "List"])
@pytest.mark.parametrize("cut", [3, 5, 9])
def test_F15_end_inside_a_message(node, client, key, method, cut):
    request = put_request(key, b"value")
    with H2(node.grpc_port) as c:
        s = c.start(method)
        c.send(s, request[:cut], end=True)
        assert c.finish(s)[1]["grpc-status"] == "13"
    assert client.find(key) is None


@pytest.mark.parametrize("method", ["PutObject", "Get", "Delete", "List"])
def test_F15_wrong_number_of_messages(node, client, key, method):
    request = message(field(1, key.encode()))
    with H2(node.grpc_port) as c:
        s = c.start(method, end=True)
        assert c.finish(s)[1]["grpc-status"] in ("3", "13")
        s = c.start(method)
        c.send(s, request + request, end=True)
        # The first may be answered before the second is seen, but a put is not done twice over.
        assert c.finish(s)[1]["grpc-status"] in (("13",) if method == "PutObject" else ("0", "5", "13"))
    assert client.find(key) is None


def test_F7_half_a_message_then_reset(node, client, key):
    client.put(key, b"old")
    with H2(node.grpc_port) as c:
        s = c.start("PutObject")
        c.send(s, put_request(key, pattern(3 * MIB))[:2 * MIB])
        c.conn.reset_stream(s, h2.errors.ErrorCodes.CANCEL)
        c.flush()
        # The connection lives on.
        s = c.start("Get")
        c.send(s, message(field(1, key.encode())), end=True)
        assert messages_of(c.finish(s)[0]) == [field(1, b"old")]
    assert client.get(key) == b"old"
    wait_for(lambda: node.metrics()['ocache_buffer_used_bytes{size="bulk"}'] == 0, 60, "buffers")


def test_F7_half_a_message_then_lost_connection(node, client, key):
    client.put(key, b"old")
    files = len(node.disk_files()[1])
    with H2(node.grpc_port) as c:
        s = c.start("Put")
        c.send(s, put_request(key, pattern(3 * MIB))[:2 * MIB])
        # RST instead of FIN.
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: node.metrics()['ocache_buffer_used_bytes{size="bulk"}'] == 0, 60, "buffers")
    assert client.get(key) == b"old"
    wait_for(lambda: len(node.disk_files()[1]) == files, 60, "the upload's file to go")


def test_reader_that_vanishes(node, client, key):
    client.put_stream(key, [pattern(MIB, i) for i in range(32)])
    for _ in range(20):
        with H2(node.grpc_port) as c:
            s = c.start("Get")
            c.send(s, message(field(1, key.encode())), end=True)
            while not any(isinstance(e, h2.events.DataReceived) for e in c.events):
                assert c.poll() is not None
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: node.metrics()['ocache_buffer_used_bytes{size="bulk"}'] == 0, 60, "buffers")
    wait_for(lambda: node.metrics()["ocache_streams_active"] == 0, 60, "streams")


def test_reader_that_resets_in_the_middle(node, client, key):
    client.put_stream(key, [pattern(MIB, i) for i in range(32)])
    with H2(node.grpc_port) as c:
        for _ in range(50):
            s = c.start("Get")
            c.send(s, message(field(1, key.encode())), end=True)
            while not any(isinstance(e, h2.events.DataReceived) and e.stream_id == s for e in c.events):
                assert c.poll() is not None
            c.conn.reset_stream(s, h2.errors.ErrorCodes.CANCEL)
            c.flush()
            c.events.clear()
    wait_for(lambda: node.metrics()['ocache_buffer_used_bytes{size="bulk"}'] == 0, 60, "buffers")


def test_stalled_reader_blocks_nobody(node, client, key):
    client.put_stream(key, [pattern(MIB, i) for i in range(16)])
    with H2(node.grpc_port, ack_windows=False) as c:
        s = c.start("Get")
        c.send(s, message(field(1, key.encode())), end=True)
        got = 0
        while got < 60 * KIB:
            for e in c.poll():
                got += len(e.data) if isinstance(e, h2.events.DataReceived) else 0
        # The window is used up: nothing more comes, and others are served.
        for i in range(50):
            client.put(f"{key}{i}", b"v")
            assert client.get(f"{key}{i}") == b"v"
        assert client.get(key)[:MIB] == pattern(MIB, 0)


def test_half_open_and_silent_connections(node, client, key):
    """Connections that say nothing, half a preface, or half a request line keep nobody waiting."""
    silent = [raw_connection(node.grpc_port) for _ in range(50)]
    for i, s in enumerate(silent):
        s.sendall([b"", b"PRI * HT", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: x\r\n"][i % 4])
    for i in range(20):
        client.put(key, b"%d" % i)
        assert client.get(key) == b"%d" % i
    for s in silent:
        s.close()


@pytest.mark.parametrize("junk", [b"\x00" * 64, os.urandom(64), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                                  b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", PREFACE + b"\xff" * 64,
                                  PREFACE + b"\x00\x00\x00\x01\x05\x00\x00\x00\x01",
                                  b"GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"],
                         ids=range(8))
def test_junk_ends_only_its_own_connection(node, client, key, junk):
    with raw_connection(node.grpc_port) as s:
        s.sendall(junk)
        s.settimeout(15)
        try:
            while s.recv(65536):
                pass
        except ConnectionResetError:
            pass
    client.put(key, b"v")
    assert client.get(key) == b"v"


def test_slow_drip(node, client, key):
    """A request that comes byte by byte is served in the end, and others meanwhile."""
    request = put_request(key, b"slowly")
    with H2(node.grpc_port) as c:
        s = c.start("PutObject")
        for i, byte in enumerate(request):
            c.send(s, bytes([byte]), end=i == len(request) - 1)
            client.put(key + "other", b"%d" % i)
        assert c.finish(s)[1]["grpc-status"] == "0"
    assert client.get(key) == b"slowly"
    assert client.get(key + "other") == b"%d" % (len(request) - 1)


def test_many_connections_come_and_go(node, client, key):
    client.put(key, b"v")

    def work():
        for _ in range(30):
            with H2(node.grpc_port) as c:
                s = c.start("Get")
                c.send(s, message(field(1, key.encode())), end=True)
                assert messages_of(c.finish(s)[0]) == [field(1, b"v")]
    threads = [threading.Thread(target=work) for _ in range(8)]
    before = node.metrics()["process_open_fds"]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    wait_for(lambda: node.metrics()["process_open_fds"] <= before + 2, 60, "descriptors to be closed")


def test_connections_over_the_limit_are_closed(new_node):
    n = new_node("-max-connections", "5")
    with n.client() as c:
        c.put("k", b"v")
        others = [raw_connection(n.grpc_port) for _ in range(10)]
        closed = 0
        for s in others:
            s.settimeout(0.5)
            try:
                closed += s.recv(1) == b""
            except ConnectionResetError:
                closed += 1
            except TimeoutError:
                pass
        assert closed >= 6
        assert c.get("k") == b"v"
        for s in others:
            s.close()
    assert n.metrics()["ocache_connections_refused_total"] >= 6


def test_streams_over_the_limit_are_refused(new_node):
    n = new_node("-max-streams", "10")
    with H2(n.grpc_port) as c:
        wait_for(lambda: c.conn.remote_settings.max_concurrent_streams == 10 or c.poll() is None, 10,
                 "the setting")
        streams = [c.start("Put") for _ in range(10)]
        for s in streams:
            c.send(s, put_request(f"k{s}", pattern(CHUNK)), end=True)
        for s in streams:
            assert c.finish(s)[1]["grpc-status"] == "0"
