"""Time to live (rows T1 to T4). Expiry is in whole seconds: a value put with a ttl of n lives more than n - 1
and at most n seconds."""

import time

import pytest

from harness import CHUNK, pattern, wait_for

CLASSES = [10, 100 << 10, CHUNK + 1, 3 << 20]


def lifetime(client, key, put):
    """Seconds from just before the put until the key is gone: (at least, at most)."""
    before = time.monotonic()
    put()
    after = time.monotonic()
    assert client.find(key) is not None

    last_seen = [after]

    def gone():
        asked = time.monotonic()
        if client.find(key) is None:
            return True
        last_seen[0] = asked
        return False
    wait_for(gone, 60, "expiry")
    return last_seen[0] - after, time.monotonic() - before


@pytest.mark.parametrize("size", CLASSES)
@pytest.mark.parametrize("ttl", [2, 3])
def test_T1_expires_at_the_right_second(client, key, size, ttl):
    value = pattern(size)
    # When it was last seen it was not too old, and when it was gone it was not too young.
    seen, gone = lifetime(client, key, lambda: client.put(key, value, ttl=ttl))
    assert seen <= ttl
    assert gone > ttl - 1
    assert client.list_all(key) == []


def test_T1_stream_with_a_ttl(client, key):
    seen, gone = lifetime(client, key, lambda: client.put_stream(key, [pattern(CHUNK)] * 3, ttl=2))
    assert seen <= 2 and gone > 1
    assert client.list_all(key) == []


def test_T1_expiry_ends_no_read_in_progress(client, key):
    value = pattern(16 << 20)
    client.put(key, value, ttl=2)
    call = client.stub.Get(client.pb.GetRequest(key=key))
    got = next(call).data
    wait_for(lambda: client.find(key) is None, 60, "expiry")
    assert got + b"".join(m.data for m in call) == value


def test_T2_default_applies_when_unset(new_node):
    n = new_node("-ttl", "2")
    with n.client() as c:
        c.put("default", b"v")
        c.put("negative", b"v", ttl=-5)
        c.put("explicit", b"v", ttl=3600)
        c.put_stream("stream", [b"v"])
        assert c.list_all() == ["default", "explicit", "negative", "stream"]
        wait_for(lambda: c.list_all() == ["explicit"], 60, "the default ttl")
        assert c.find("default") is None and c.find("stream") is None


def test_T2_without_default_nothing_expires(client, key):
    client.put(key + "0", b"v", ttl=0)
    client.put(key + "-", b"v", ttl=-1)
    client.put(key + "short", b"v", ttl=1)
    wait_for(lambda: client.find(key + "short") is None, 60, "expiry")
    assert client.list_all(key) == [key + "-", key + "0"]


def test_T2_a_ttl_beyond_every_clock(client, key):
    for ttl in (1 << 31, 1 << 40, (1 << 63) - 1):
        client.put(key, b"v", ttl=ttl)
        assert client.find(key) == b"v"


def test_T3_overwrite_replaces_the_ttl(client, key):
    client.put(key + "extended", b"v", ttl=1)
    client.put(key + "extended", b"v", ttl=3600)
    client.put(key + "shortened", b"v", ttl=3600)
    client.put(key + "shortened", b"v", ttl=1)
    client.put(key + "freed", b"v", ttl=1)
    client.put(key + "freed", b"v")
    wait_for(lambda: client.find(key + "shortened") is None, 60, "expiry")
    assert client.find(key + "extended") == b"v"
    assert client.find(key + "freed") == b"v"


def test_T3_reading_does_not_extend(client, key):
    seen, _ = lifetime(client, key, lambda: client.put(key, b"v", ttl=2))
    assert seen <= 2


def test_T4_mixed_keys_and_delete_before_expiry(client, key):
    pb = client.pb
    calls = [client.stub.PutObject.future(pb.PutRequest(
        key=f"{key}{i:03d}", data=b"v", ttl_seconds=2 if i % 2 else 0)) for i in range(400)]
    assert all(c.result(timeout=20).success for c in calls)
    for i in range(0, 400, 10):
        client.delete(f"{key}{i:03d}")
        client.delete(f"{key}{i + 1:03d}")
    left = [f"{key}{i:03d}" for i in range(0, 400, 2) if i % 10]
    wait_for(lambda: client.list_all(key) == left, 8, "the short ones to be gone")


def test_T5_expired_keys_leave_the_index(new_node):
    n = new_node()
    with n.client() as c:
        c.put("stays", b"v")
        for i in range(50):
            c.put(f"goes{i}", b"v", ttl=2)
        assert n.metrics()["ocache_keys_total"] == 51
        wait_for(lambda: n.metrics()["ocache_keys_total"] == 1, 60, "the sweep")
        assert n.metrics()["ocache_bytes_total"] == 1


def test_T5_expired_value_files_are_removed(new_node):
    n = new_node()
    with n.client() as c:
        for i in range(5):
            c.put(f"k{i}", pattern(CHUNK + 1, i), ttl=1)
        assert len(n.disk_files()[1]) == 5
        wait_for(lambda: len(n.disk_files()[1]) == 0, 60, "the value files to go")


def test_T1_ttl_survives_a_restart(new_node):
    n = new_node()
    with n.client() as c:
        c.put("short", b"v", ttl=3)
        c.put("long", b"v", ttl=3600)
        c.put("file", pattern(CHUNK * 2), ttl=3)
    assert n.stop() == 0
    n.start()
    with n.client() as c:
        wait_for(lambda: c.list_all() == ["long"], 6, "expiry after the restart")
