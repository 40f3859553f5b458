"""One end of an HTTP/2 connection that sends exactly what it is told to, right or wrong, for tests of what the
server makes of it. Header blocks are written as literals by hand, so that every byte is under control; only
what the server answers is decoded by a library."""

import select
import socket
import struct
import time

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 5, 6, 7, 8, 9
ENHANCE_YOUR_CALM = 11
HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 3, 4, 5


def frame(kind, flags, stream, payload=b"", length=None):
    """`length` may lie."""
    n = len(payload) if length is None else length
    return n.to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def integer(value, prefix_bits, first=0):
    """HPACK's integer of RFC 7541, 5.1."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes([first | value])
    out = bytearray([first | limit])
    value -= limit
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def literal(name, value, indexed=False):
    """A header field as a literal with a literal name, kept in the table or not."""
    name = name if isinstance(name, bytes) else name.encode()
    value = value if isinstance(value, bytes) else value.encode()
    return ((b"\x40" if indexed else b"\x00") + integer(len(name), 7) + name + integer(len(value), 7) + value)


def request(path, *extra, method="POST", content="application/grpc", table=False):
    """The header block of a request; `extra` are (name, value)."""
    fields = [(":method", method), (":scheme", "http"), (":authority", "t"), (":path", path)]
    if content:
        fields += [("content-type", content), ("te", "trailers")]
    return b"".join(literal(n, v, table) for n, v in fields + list(extra))


def settings(*pairs, ack=False):
    return frame(SETTINGS, ACK if ack else 0, 0, b"".join(struct.pack(">HI", k, v) for k, v in pairs))


def window_update(stream, n):
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", n))


def rst(stream, code=CANCEL):
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def grpc_message(payload, flag=0, length=None):
    return struct.pack(">BI", flag, len(payload) if length is None else length) + payload


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number, value):
    """A protobuf field: bytes, or an integer as a varint (negative ones as 64 bits)."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    return varint(number << 3 | 2) + varint(len(value)) + value


class Answer:
    """What one stream was answered."""

    def __init__(self):
        self.headers = []
        self.data = b""
        self.ended = False
        self.reset = None

    def header(self, name):
        return dict(self.headers).get(name)

    @property
    def status(self):
        """The gRPC status, or None."""
        s = self.header("grpc-status")
        return None if s is None else int(s)

    @property
    def message(self):
        return self.header("grpc-message") or ""

    @property
    def over(self):
        return self.ended or self.reset is not None


class Peer:
    """`greet`: preface, SETTINGS, and the acknowledgement of the server's."""

    def __init__(self, port, *pairs, greet=True, receive_buffer=None):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        self.decoder = hpack.Decoder()
        self.decoder.max_header_list_size = 1 << 20
        self.goaway = None  # the last error code
        self.gone = None  # "end" or "reset" once the server has closed
        self.answers = {}
        self.frames = []  # (type, flags, stream, payload) of everything else
        self.acks = self.pongs = 0
        # What the server lets us send: of the connection, and of each stream beyond its initial window.
        self.initial_window, self.window, self.windows = 65535, 65535, {}
        if greet:
            self.send(PREFACE + settings(*pairs) + settings(ack=True))

    def close(self, reset=False):
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ---- sending ----

    def send(self, data):
        """False when the server has closed the connection."""
        try:
            self.socket.sendall(data)
            return True
        except (BrokenPipeError, ConnectionResetError):
            return False

    def flood(self, data, seconds=10.0, read=False):
        """Send as much of `data` as the server takes within the time: (bytes sent, closed by the server).
        `read`: take and drop what it answers, as a peer would that wants to go on for long."""
        end = time.monotonic() + seconds
        view = memoryview(data)
        sent = 0
        self.socket.setblocking(False)
        try:
            while sent < len(view) and time.monotonic() < end:
                readable, writable, _ = select.select([self.socket] if read else [], [self.socket], [], 0.1)
                if readable and not self.socket.recv(1 << 20):
                    return sent, True
                if writable:
                    sent += self.socket.send(view[sent:sent + (1 << 20)])
        except (BrokenPipeError, ConnectionResetError):
            return sent, True
        finally:
            self.socket.settimeout(10)
        return sent, False

    def call(self, stream, path, *messages, extra=(), end=True, raw=None):
        """A gRPC request: HEADERS and one DATA frame per message (`raw`: the body's bytes instead)."""
        body = b"".join(grpc_message(m) for m in messages) if raw is None else raw
        out = frame(HEADERS, END_HEADERS, stream, request(path, *extra))
        for at in range(0, len(body), 16384):
            out += frame(DATA, 0, stream, body[at:at + 16384])
        if end:
            out += frame(DATA, END_STREAM, stream)
        return self.send(out)

    def upload(self, stream, data, limit=None):
        """DATA frames of the first `limit` bytes, as the server gives window for them, without END_STREAM.
        Returns early when the stream was answered."""
        self.read(lambda: self.frames, what="SETTINGS")
        at, end = 0, len(data) if limit is None else limit
        over = lambda: stream in self.answers and self.answers[stream].over  # noqa: E731

        def room():
            return min(self.initial_window + self.windows.get(stream, 0), self.window, 16384)
        while at < end and not over():
            self.read(lambda: room() > 0 or over(), what=f"window at {at}")
            part = data[at:min(end, at + room())]
            self.send(frame(DATA, 0, stream, part))
            self.window -= len(part)
            self.windows[stream] = self.windows.get(stream, 0) - len(part)
            at += len(part)

    # ---- receiving ----

    def _take(self, kind, flags, stream, payload):
        answer = self.answers.setdefault(stream, Answer()) if stream else None
        if kind == HEADERS:
            assert flags & END_HEADERS
            answer.headers += self.decoder.decode(payload)
        elif kind == DATA:
            answer.data += payload
        elif kind == RST_STREAM:
            answer.reset = struct.unpack(">I", payload)[0]
        elif kind == GOAWAY:
            self.goaway = struct.unpack(">I", payload[4:8])[0]
        elif kind == SETTINGS and flags & ACK:
            self.acks += 1
        elif kind == PING and flags & ACK:
            self.pongs += 1
        elif kind == WINDOW_UPDATE and stream:
            self.windows[stream] = self.windows.get(stream, 0) + int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self.window += int.from_bytes(payload, "big")
        else:
            self.frames.append((kind, flags, stream, payload))
        if kind == SETTINGS and not flags & ACK:
            self.initial_window = dict(struct.iter_unpack(">HI", payload)).get(INITIAL_WINDOW_SIZE, 65535)
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            answer.ended = True

    def _parse(self):
        while len(self.buffer) >= 9:
            n = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + n:
                return
            kind, flags, stream = struct.unpack(">BBI", self.buffer[3:9])
            payload = bytes(self.buffer[9:9 + n])
            del self.buffer[:9 + n]
            self._take(kind, flags, stream & 0x7FFFFFFF, payload)

    def read(self, until, timeout=10.0, what="an answer"):
        """Read frames until `until()` is true."""
        end = time.monotonic() + timeout
        while not until():
            left = end - time.monotonic()
            if self.gone or left <= 0:
                raise AssertionError(f"no {what}: goaway {self.goaway}, {self.gone}, {self.frames[-5:]}")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 18)
            except socket.timeout:
                continue
            except ConnectionResetError:
                self.gone = "reset"
                continue
            if not data:
                self.gone = "end"
            self.buffer += data
            self._parse()

    def answer(self, stream, timeout=10.0):
        """The whole answer of a stream."""
        self.read(lambda: stream in self.answers and self.answers[stream].over, timeout, f"answer on {stream}")
        return self.answers[stream]

    def closed(self, timeout=10.0):
        """Wait for the server to close; the code of its GOAWAY, or None when it sent none."""
        self.read(lambda: self.gone is not None, timeout, "end of the connection")
        return self.goaway
