"""ocachecli and libocache against a server that is none of ours: grpcio's (tests/interop/py_server.py)."""

import json

import pytest

from cli import Cli, PyServer
from harness import pattern


@pytest.fixture(scope="module")
def peer():
    with PyServer() as server:
        yield server


@pytest.fixture
def cli(peer):
    return peer.cli


@pytest.mark.parametrize("size", [0, 1, 100, 65536, 1 << 20, (4 << 20) + 1, 30 << 20])
def test_round_trip(cli, key, size):
    value = pattern(size, seed=size)
    cli.ok("put", key, stdin=value)
    assert cli.ok("get", key) == value


def test_short_values_and_ranges(cli, key):
    cli.ok("put", key, "0123456789")
    assert cli.ok("get", key, "--start", "2", "--end", "5") == b"2345"
    assert cli.ok("get", key, "--start", "8") == b"89"


def test_delete_and_missing(cli, key):
    cli.ok("put", key, "v")
    assert cli.ok("del", key) == b"OK\n"
    assert cli.fails("get", key) == "Get failed: rpc error: code = NotFound desc = key not found\n"


def test_list_over_pages(cli, key):
    cli.ok("bench", "--num-keys", "2300", "--num-ops", "1", "--workload", "C")
    keys = cli.ok("list", "--prefix", "user").decode().splitlines()
    assert len(keys) == len(set(keys)) == 2300 and keys == sorted(keys)


def test_bench_verifies(cli):
    r = json.loads(cli.ok("bench", "--json", "--num-keys", "30", "--num-ops", "600", "--value-size",
                          "20000"))
    assert r["operations"] == 600 and r["errors"] == 0 and r["wrong_bytes"] == 0


def test_odd_chunks():
    with PyServer("--chunk", "7") as server:
        value = pattern(20001)
        server.cli.ok("put", "k", stdin=value)
        assert server.cli.ok("get", "k") == value


def test_wrong_bytes_are_reported():
    with PyServer("--corrupt") as server:
        r = server.cli("bench", "--json", "--num-keys", "10", "--num-ops", "200", "--workload", "C")
        assert r.returncode == 1
        assert json.loads(r.stdout)["wrong_bytes"] == 200  # one in every value


@pytest.mark.parametrize("code, name", [("UNAVAILABLE", "Unavailable"),
                                        ("RESOURCE_EXHAUSTED", "ResourceExhausted"),
                                        ("DATA_LOSS", "DataLoss")])
def test_statuses_come_through(code, name):
    with PyServer("--fail", code) as server:
        want = f"rpc error: code = {name} desc = told to fail: 100% wäre zu viel\n"
        assert server.cli.fails("get", "k") == "Get failed: " + want
        assert server.cli.fails("put", "k", "v") == "Put failed: " + want
        assert server.cli.fails("put", "k", stdin=b"v") == "Put failed: " + want
        assert server.cli.fails("del", "k") == "Delete failed: " + want
        assert server.cli.fails("list") == "List failed: " + want


def fnv1a32(key):
    h = 2166136261
    for b in key.encode():
        h = (h ^ b) * 16777619 & 0xFFFFFFFF
    return h


def test_keys_are_spread_over_addresses():
    with PyServer() as a, PyServer() as b, PyServer() as c:
        servers = [a, b, c]
        cli = Cli(",".join(s.address for s in servers))
        keys = [f"spread/{i}" for i in range(12)]
        for key in keys:
            cli.ok("put", key, key)
            assert cli.ok("get", key) == key.encode()
        for i, server in enumerate(servers):
            mine = sorted(k for k in keys if fnv1a32(k) % 3 == i)
            assert server.cli.ok("list").decode().splitlines() == mine


def test_cluster_is_used_in_simple_mode():
    """Every node of a cluster answers for every key, so what is not routed yet works all the same."""
    with PyServer("--topology") as server:
        server.cli.ok("put", "k", "v")
        assert server.cli.ok("get", "k") == b"v"
        assert server.cli.fails("cluster", "topology") == \
            "Error: cluster commands require cluster mode. Connected in simple mode.\n"
