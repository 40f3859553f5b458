"""List and ListWithValues (rows F10 and F11)."""

import grpc
import pytest

from harness import CHUNK, pattern, wait_for

MIB = 1 << 20


@pytest.fixture
def tree(client, key):
    names = [f"{key}{p}/{i:03d}" for p in ("a", "b", "c") for i in range(40)] + [key + "a", key + "ab"]
    calls = [client.stub.PutObject.future(client.pb.PutRequest(key=n, data=n.encode())) for n in names]
    assert all(c.result(timeout=20).success for c in calls)
    return sorted(names, key=lambda n: n.encode())


def test_F10_sorted_and_filtered_by_prefix(client, key, tree):
    assert client.list_all(key) == tree
    assert client.list_all(key + "a") == [n for n in tree if n.startswith(key + "a")]
    assert client.list_all(key + "b/") == [n for n in tree if n.startswith(key + "b/")]
    assert client.list_all(key + "b/013") == [key + "b/013"]
    assert client.list_all(key + "nothing") == []
    everything = client.list_all("")
    assert set(tree) <= set(everything)
    assert everything == sorted(everything, key=lambda n: n.encode())


@pytest.mark.parametrize("limit", [1, 2, 7, 40, 121, 122, 123, 1000])
def test_F10_pages_make_up_the_whole(client, key, tree, limit):
    keys, token, pages = [], "", 0
    while True:
        page = client.list_page(key, limit, token=token)
        assert 0 < len(page.keys) <= limit
        keys += page.keys
        pages += 1
        # Exact: there is more if and only if something follows.
        assert page.has_more == (len(keys) < len(tree))
        if not page.has_more:
            assert page.continuation_token == ""
            break
        token = page.continuation_token
    assert keys == tree
    assert pages == -(-len(tree) // limit)


def test_F10_limit_out_of_range_means_1000(client, key):
    names = [f"{key}{i:04d}" for i in range(1001)]
    calls = [client.stub.PutObject.future(client.pb.PutRequest(key=n, data=b"v")) for n in names]
    assert all(c.result(timeout=20).success for c in calls)
    for limit in (0, -1, -2147483648, 1000, 1001, 2147483647):
        page = client.list_page(key, limit)
        assert list(page.keys) == names[:1000] and page.has_more
        assert page.continuation_token
    assert client.list_all(key) == names


def test_F10_start_key_is_exclusive(client, key, tree):
    assert list(client.list_page(key, start_key=tree[10]).keys) == tree[11:]
    # It need not exist.
    assert list(client.list_page(key, start_key=tree[10] + "\x00").keys) == tree[11:]
    assert list(client.list_page(key, start_key=tree[-1]).keys) == []
    # Below the prefix the listing begins at the prefix, above it there is nothing.
    assert list(client.list_page(key + "b/", start_key="\x00").keys) == [
        n for n in tree if n.startswith(key + "b/")]
    assert list(client.list_page(key + "b/", start_key=key + "c/").keys) == []
    page = client.list_page(key, start_key="\U0010ffff")
    assert list(page.keys) == [] and not page.has_more


def test_F10_token_wins_over_start_key(client, key, tree):
    page = client.list_page(key, 5)
    after = client.list_page(key, 5, start_key=tree[50], token=page.continuation_token)
    assert list(after.keys) == tree[5:10]
    # Any key is a token; a longer one than a key can be is no error.
    assert list(client.list_page(key, 5, token=tree[20]).keys) == tree[21:26]
    assert list(client.list_page(key, 5, token=tree[20] + "\x00" * 70000).keys) == tree[21:26]


def test_F10_expired_and_deleted_are_skipped(client, key, tree):
    client.put(key + "a/000", b"short", ttl=1)
    client.delete(key + "a/001")
    wait_for(lambda: client.find(key + "a/000") is None, 60, "expiry")
    left = [n for n in tree if n not in (key + "a/000", key + "a/001")]
    assert client.list_all(key) == left
    # The page ends exactly before what is no more: nothing follows.
    last = client.list_page(key + "a/", 1000)
    assert not last.has_more


def test_F10_has_more_does_not_count_the_expired(client, key):
    client.put(key + "1", b"v")
    client.put(key + "2", b"v", ttl=1)
    assert client.list_page(key, 1).has_more
    wait_for(lambda: client.find(key + "2") is None, 60, "expiry")
    page = client.list_page(key, 1)
    assert list(page.keys) == [key + "1"] and not page.has_more


def test_F10_local_lists_are_the_same_here(client, key, tree):
    pb = client.pb
    request = pb.ListRequest(prefix=key, limit=7)
    assert client.stub.ListLocal(request) == client.stub.List(request)
    assert client.stub.ListLocalWithValues(request) == client.stub.ListWithValues(request)


def test_F10_many_long_keys_end_a_page_early(client, key):
    names = [f"{key}{i:03d}" + "x" * 60000 for i in range(300)]
    for n in names:
        client.put(n, b"v")
    pages = []
    token = ""
    while True:
        page = client.list_page(key, token=token)
        pages.append(list(page.keys))
        if not page.has_more:
            break
        token = page.continuation_token
    assert [n for p in pages for n in p] == names
    assert len(pages) > 1 and all(sum(map(len, p)) <= 8 * MIB + 70000 for p in pages)
    for n in names:
        client.delete(n)


def entries_of(client, prefix, limit=0):
    entries, token, sizes = [], "", []
    while True:
        page = client.stub.ListWithValues(client.pb.ListRequest(
            prefix=prefix, limit=limit, continuation_token=token))
        entries += page.entries
        sizes.append(page.ByteSize())
        if not page.has_more:
            return entries, sizes
        token = page.continuation_token


def test_F11_values(node, client, key):
    sizes = [0, 1, 1000, 5000, 70 << 10, CHUNK, CHUNK + 1, 3 * CHUNK, MIB - 1, MIB, MIB + 1, 3 * MIB]
    for i, size in enumerate(sizes):
        client.put(f"{key}{i:02d}", pattern(size, i))
    before = node.metrics()["ocache_list_values_omitted_total"]
    entries, _ = entries_of(client, key)
    assert [e.key for e in entries] == [f"{key}{i:02d}" for i in range(len(sizes))]
    for i, (e, size) in enumerate(zip(entries, sizes)):
        assert e.value_length == size
        assert e.value_omitted == (size > MIB)
        assert e.value == (b"" if size > MIB else pattern(size, i))
    assert node.metrics()["ocache_list_values_omitted_total"] == before + 2
    assert entries_of(client, key, 1)[0] == entries
    assert entries_of(client, key, 5)[0] == entries


def test_F11_a_page_stays_far_under_the_message_limit(client, key):
    for i in range(40):
        client.put(f"{key}{i:02d}", pattern(900 << 10, i))
    entries, sizes = entries_of(client, key)
    assert len(entries) == 40
    assert all(e.value == pattern(900 << 10, i) for i, e in enumerate(entries))
    assert len(sizes) >= 4 and max(sizes) <= 10 * MIB


def test_F11_empty_result(client, key):
    page = client.stub.ListWithValues(client.pb.ListRequest(prefix=key))
    assert len(page.entries) == 0 and not page.has_more and page.continuation_token == ""


def test_F11_lists_while_values_change(client, key):
    """Every page is a scan of its own, but an entry is always a value that the key had."""
    for i in range(100):
        client.put(f"{key}{i:02d}", b"%d:0" % i * 1000)
    for turn in range(1, 6):
        calls = [client.stub.PutObject.future(client.pb.PutRequest(
            key=f"{key}{i:02d}", data=b"%d:%d" % (i, turn) * 1000)) for i in range(100)]
        entries, _ = entries_of(client, key, 30)
        assert [e.key for e in entries] == [f"{key}{i:02d}" for i in range(100)]
        for i, e in enumerate(entries):
            assert e.value in [b"%d:%d" % (i, t) * 1000 for t in (turn - 1, turn)]
        assert all(c.result(timeout=20).success for c in calls)


def test_F11_malformed_request_is_refused(node):
    with node.client() as c:
        call = c.channel.unary_unary("/cache.CacheService/ListWithValues", lambda b: b, lambda b: b)
        with pytest.raises(grpc.RpcError) as e:
            call(b"\x0a\x7f", timeout=10)
        assert e.value.code() == grpc.StatusCode.INTERNAL
