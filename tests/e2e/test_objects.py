"""Put, get and delete over the wire (rows F1 to F9 of the contract)."""

import random
import threading

import grpc
import pytest

from harness import CHUNK, Client, error_of, pattern, wait_for

KIB, MIB = 1 << 10, 1 << 20
Code = grpc.StatusCode

# The borders of every way a value can be stored: in the call's memory, small buffer, large buffer, one
# record, a file of one and a half, two, and many chunks.
SIZES = [1, 100, KIB, 2047, 2048, 2049, 4096, 4097, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 68 * KIB,
         68 * KIB + 1, 100 * KIB, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1,
         MIB, 10 * MIB]
BIG = [64 * MIB - 1, 64 * MIB, 64 * MIB + 1, 100 * MIB, 127 * MIB]


@pytest.mark.parametrize("size", SIZES + BIG)
def test_F1_round_trip_unary(client, key, size):
    value = pattern(size, size)
    client.put(key, value)
    messages = client.get_messages(key)
    assert b"".join(messages) == value
    assert all(0 < len(m) <= MIB for m in messages)
    client.delete(key)
    assert client.find(key) is None


@pytest.mark.parametrize("size", SIZES + [64 * MIB, 200 * MIB])
def test_F1_round_trip_stream(client, key, size):
    value = pattern(size, size)
    client.put_stream(key, (value[i:i + 64 * KIB] for i in range(0, size, 64 * KIB)))
    assert client.get(key) == value
    client.delete(key)
    assert client.find(key) is None


def test_F1_large_value_leaves_no_file_after_delete(node, client, key):
    client.put(key, pattern(3 * CHUNK, 1))
    assert len(node.disk_files()[1]) >= 1
    client.delete(key)
    # The file goes once the deletion is durable; that is background work.
    wait_for(lambda: not node.disk_files()[1], 60, "the value file to be removed")


def test_F2_empty_value_is_not_a_miss(client, key):
    client.put(key, b"")
    assert client.get_messages(key) == []
    assert client.find(key) == b""
    assert client.find(key + "other") is None
    client.put_stream(key, [])
    assert client.get_messages(key) == []
    assert client.list_all(key) == [key]


ODD_KEYS = ["ключ/日本語/🙂", "a/b/c", "a//b", "/", "a|b|c", "meta|bucket|key", "a:b", " ", "a b  c", "!meta/x",
            "!", "\x00", "a\x00b", "a\x00", "\x7f\n\t\r", ".", "..", "../../etc/passwd", "%2F", "+", "?q=1&x",
            "\U0010ffff", "é", "é", "k" * 1000, "k" * 65535, "é" * 32767]


@pytest.mark.parametrize("odd", ODD_KEYS, ids=range(len(ODD_KEYS)))
def test_F3_odd_keys(client, odd):
    value = odd.encode()[:100] + b"|value"
    client.put(odd, value)
    assert client.get(odd) == value
    assert odd in client.list_all(odd)
    client.put_stream(odd, [value, pattern(CHUNK, 3)])
    assert client.get(odd) == value + pattern(CHUNK, 3)
    client.delete(odd)
    assert client.find(odd) is None
    assert odd not in client.list_all(odd)


def test_F3_a_key_that_begins_another(client, key):
    client.put(key, b"short")
    client.put(key + "longer", b"long")
    assert client.get(key) == b"short" and client.get(key + "longer") == b"long"
    client.delete(key)
    assert client.find(key) is None and client.get(key + "longer") == b"long"


def test_F3_key_over_the_limit(client):
    for k in ("k" * 65536, "k" * 200000):
        for call in (lambda: client.put(k, b"v"), lambda: client.put_stream(k, [b"v"]),
                     lambda: client.delete(k)):
            code, text = error_of(call)
            assert code == Code.INVALID_ARGUMENT and "65535" in text
        assert client.find(k) is None
        assert client.list_all(k) == []


def test_F3_key_that_is_not_utf8(node):
    # grpcio's stubs refuse such a key themselves, so the message is written by hand.
    with node.client() as c:
        def raw(method, payload):
            call = c.channel.unary_unary(f"/cache.CacheService/{method}", lambda b: b, lambda b: b)
            return call(payload, timeout=10)
        for bad in (b"\xff", b"a\xc0\xafb", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"):
            field = b"\x0a" + bytes([len(bad)]) + bad
            for method in ("PutObject", "Delete", "List", "ListWithValues"):
                code, text = error_of(lambda: raw(method, field))
                assert code == Code.INTERNAL and "UTF-8" in text


def test_F4_empty_key(client):
    pb = client.pb
    for call in (lambda: client.put("", b"v"), lambda: client.delete(""),
                 lambda: client.put_stream("", [b"v"]), lambda: client.put_stream("", [])):
        code, text = error_of(call)
        assert (code, text) == (Code.INVALID_ARGUMENT, "missing key")
    assert error_of(lambda: list(client.stub.Get(pb.GetRequest(key="")))) == (
        Code.NOT_FOUND, "key not found")


def test_F4_put_stream_without_a_message(client):
    code, text = error_of(lambda: client.stub.Put(iter([]), timeout=10))
    assert code == Code.INVALID_ARGUMENT and "no message" in text


def test_F4_bad_key_is_refused_before_the_value_is_sent(client):
    pb = client.pb
    more = threading.Event()

    def messages():
        yield pb.PutRequest(key="")
        more.wait(30)
        yield pb.PutRequest(data=b"x" * MIB)
    try:
        code, _ = error_of(lambda: client.stub.Put(messages(), timeout=10))
        assert code == Code.INVALID_ARGUMENT
        assert not more.is_set()
    finally:
        more.set()


CLASSES = [0, 10, 3000, 70 * KIB, CHUNK, CHUNK + 1, 3 * MIB]


@pytest.mark.parametrize("first", CLASSES)
@pytest.mark.parametrize("second", CLASSES)
def test_F5_overwrite_across_sizes(client, key, first, second):
    a, b = pattern(first, 1), pattern(second, 2)
    client.put(key, a)
    assert client.get(key) == a
    client.put_stream(key, [b[:1000], b[1000:]])
    assert client.get(key) == b
    client.put(key, a)
    assert client.get(key) == a


def test_F5_total_size_stays_exact(new_node, tmp_path):
    n = new_node()
    with n.client() as c:
        sizes = {}
        rng = random.Random(5)
        for _ in range(200):
            k = f"k{rng.randrange(20)}"
            if rng.random() < 0.2:
                c.delete(k)
                sizes.pop(k, None)
            else:
                sizes[k] = rng.choice(CLASSES)
                c.put(k, pattern(sizes[k]))
        m = n.metrics()
        assert m["ocache_keys_total"] == len(sizes)
        assert m["ocache_bytes_total"] == sum(sizes.values())


def test_F6_stream_of_many_chunk_sizes(client, key):
    pb = client.pb
    value = pattern(3 * MIB + 17, 6)
    for step in (997, 16 * KIB, 64 * KIB, CHUNK, CHUNK + 1, MIB, 4 * MIB):
        client.put_stream(key, (value[i:i + step] for i in range(0, len(value), step)))
        assert client.get(key) == value

    def first_with_data():
        yield pb.PutRequest(key=key, data=value[:1000])
        yield pb.PutRequest()  # an empty message adds nothing
        yield pb.PutRequest(data=b"")
        yield pb.PutRequest(key="ignored", ttl_seconds=1, data=value[1000:])
        yield pb.PutRequest()
    assert client.stub.Put(first_with_data()).success
    assert client.get(key) == value
    assert client.find("ignored") is None


def test_F6_stream_of_tiny_messages(client, key):
    value = pattern(5000, 7)
    client.put_stream(key, (value[i:i + 1] for i in range(len(value))))
    assert client.get(key) == value


def test_F6_fields_in_any_order(node, key):
    def varint(n):
        out = b""
        while n >= 0x80:
            out += bytes([n & 0x7F | 0x80])
            n >>= 7
        return out + bytes([n])
    name = key.encode()
    value = pattern(2 * CHUNK + 5, 8)
    key_field = b"\x0a" + varint(len(name)) + name
    data_field = b"\x1a" + varint(len(value)) + value
    unknown = b"\x7a\x03abc" + b"\x20\x07" + b"\x2d\x01\x02\x03\x04"
    with node.client() as c:
        call = c.channel.unary_unary("/cache.CacheService/PutObject", lambda b: b, lambda b: b)
        for message in (data_field + key_field, unknown + data_field + unknown + key_field + unknown,
                        # Of a field given twice the last one counts.
                        b"\x0a\x05wrong" + data_field + key_field,
                        b"\x1a\x03xyz" + data_field + key_field):
            assert call(message, timeout=20) == b"\x08\x01"
            assert c.get(key) == value
            c.delete(key)


def new_files(node, before):
    """Value files that were not there before; those of earlier tests may still be on their way out."""
    return set(node.disk_files()[1]) - before


def uploads_left(node):
    m = node.metrics()
    return m['ocache_buffer_used_bytes{size="bulk"}'] + m['ocache_buffer_used_bytes{size="small"}']


def test_F7_cancelled_upload_keeps_the_old_value(node, client, key):
    pb = client.pb
    client.put(key, b"old")
    before = set(node.disk_files()[1])
    for sent in (1, 100 * KIB, CHUNK, 3 * MIB, 20 * MIB):
        stop = threading.Event()

        def messages():
            yield pb.PutRequest(key=key)
            data = pattern(sent)
            for i in range(0, sent, 128 * KIB):
                yield pb.PutRequest(data=data[i:i + 128 * KIB])
            stop.wait(30)
        call = client.stub.Put.future(messages())
        if sent > CHUNK:
            wait_for(lambda: new_files(node, before), 60, "the upload's file")
        call.cancel()
        stop.set()
        assert client.get(key) == b"old"
        wait_for(lambda: not new_files(node, before), 60, "the upload's file to be gone")
    wait_for(lambda: uploads_left(node) == 0, 60, "the buffers to come back")


def test_F7_lost_connection_keeps_the_old_value(node, client, key):
    client.put(key, b"old")
    before = set(node.disk_files()[1])
    pb = client.pb
    other = Client(f"127.0.0.1:{node.grpc_port}")
    stop = threading.Event()

    def messages():
        yield other.pb.PutRequest(key=key)
        for _ in range(40):
            yield pb.PutRequest(data=bytes(CHUNK))
        stop.wait(30)
    call = other.stub.Put.future(messages())
    wait_for(lambda: new_files(node, before), 60, "the upload's file")
    other.close()
    stop.set()
    with pytest.raises((grpc.RpcError, grpc.FutureCancelledError)):
        call.result(timeout=10)
    assert client.get(key) == b"old"
    wait_for(lambda: not new_files(node, before), 60, "the upload's file to be gone")
    wait_for(lambda: uploads_left(node) == 0, 60, "the buffers to come back")


def test_F7_deadline_during_an_upload(node, client, key):
    client.put(key, b"old")
    stop = threading.Event()

    def messages():
        yield client.pb.PutRequest(key=key)
        yield client.pb.PutRequest(data=bytes(2 * MIB))
        stop.wait(30)
    code, _ = error_of(lambda: client.stub.Put(messages(), timeout=0.5))
    stop.set()
    assert code == Code.DEADLINE_EXCEEDED
    assert client.get(key) == b"old"
    wait_for(lambda: uploads_left(node) == 0, 60, "the buffers to come back")


def expected_range(value, start, end):
    start = max(start, 0)
    return value[start:] if end <= 0 else value[start:end + 1]


@pytest.mark.parametrize("size", [0, 1, 10, 3000, 5000, 100 * KIB, CHUNK, CHUNK + 1, 3 * CHUNK + 100])
def test_F8_ranges(client, key, size):
    value = pattern(size, 9)
    client.put(key, value)
    big = (1 << 63) - 1
    edges = sorted({0, 1, 2, size // 2, size - 2, size - 1, size, size + 1, CHUNK - 1, CHUNK, CHUNK + 1,
                    2 * CHUNK} | {-1, -big - 1, big, big - 1})
    for start in edges:
        for end in edges:
            messages = client.get_messages(key, start, end)
            assert all(messages), "an empty message"
            assert b"".join(messages) == expected_range(value, start, end), (start, end)


def test_F8_many_concurrent_ranges(client, key):
    value = pattern(8 * MIB, 10)
    client.put(key, value)
    rng = random.Random(8)
    calls = []
    for _ in range(200):
        start = rng.randrange(len(value))
        end = start + rng.randrange(600 * KIB)
        calls.append((start, end, client.stub.Get(client.pb.GetRequest(key=key, start=start, end=end))))
    for start, end, call in calls:
        assert b"".join(m.data for m in call) == expected_range(value, start, end)


def test_F8_a_deep_range_reads_only_itself(new_node):
    n = new_node()
    with n.client() as c:
        c.put_stream("deep", (bytes(MIB) for _ in range(64)))

        def read_bytes():
            with open(f"/proc/{n.process.pid}/io") as f:
                return int(dict(line.split(": ") for line in f.read().splitlines())["rchar"])
        costs = []
        for start in (0, 32 * MIB, 63 * MIB):
            before = read_bytes()
            assert len(c.get("deep", start, start + 999)) == 1000
            costs.append(read_bytes() - before)
        # One chunk each, wherever the range lies.
        assert max(costs) <= 2 * CHUNK, costs


def test_F9_delete(client, key):
    client.delete(key)  # a key that is not there
    client.put(key, b"1")
    client.delete(key)
    client.delete(key)
    assert client.find(key) is None and client.list_all(key) == []
    client.put(key, b"2")
    assert client.get(key) == b"2" and client.list_all(key) == [key]


def test_F9_concurrent_deletes(client, key):
    pb = client.pb
    for i in range(50):
        client.put(f"{key}{i}", b"v")
    calls = [client.stub.Delete.future(pb.DeleteRequest(key=f"{key}{i % 50}")) for i in range(200)]
    assert all(call.result(timeout=20).success for call in calls)
    assert client.list_all(key) == []
