"""ocachecli against the real node: results, texts and exit codes that scripts rely on."""

import json
import os
import re
import select
import signal
import subprocess

import pytest

from cli import Cli, clean_env, tool
from harness import pattern, wait_for

UNAVAILABLE = "rpc error: code = Unavailable desc = "


@pytest.fixture
def cli(node):
    return Cli(f"127.0.0.1:{node.grpc_port}")


def test_put_get_del(cli, key):
    assert cli.ok("put", key + "k", "value") == b"OK\n"
    assert cli.ok("get", key + "k") == b"value"  # no newline added
    assert cli.ok("del", key + "k") == b"OK\n"
    assert cli.ok("delete", key + "k") == b"OK\n"  # also when there was none
    error = cli.fails("get", key + "k")
    assert error == "Get failed: rpc error: code = NotFound desc = key not found\n"


def test_flags_may_stand_anywhere(cli, key):
    address = cli.address
    run = Cli("127.0.0.1:1")  # overridden below
    assert run.ok("put", "--addr", address, key + "k", "--ttl=60", "v") == b"OK\n"
    assert run.ok("get", key + "k", f"--addr={address}", "--mode", "simple") == b"v"
    assert run.ok("put", f"--addr={address}", "--", "--dashes", "-v") == b"OK\n"
    assert run.ok("get", f"--addr={address}", "--", "--dashes") == b"-v"


@pytest.mark.parametrize("size", [1, 65536, 262144, 262145, 20 << 20])
def test_put_from_standard_input(cli, key, size):
    value = pattern(size, seed=size)
    assert cli.ok("put", key + "k", stdin=value) == b"OK\n"
    assert cli.ok("get", key + "k") == value


def test_empty_standard_input_is_an_empty_value(cli, key):
    assert cli.ok("put", key + "k", "old") == b"OK\n"
    assert cli.ok("put", key + "k", stdin=b"") == b"OK\n"
    assert cli.ok("get", key + "k") == b""
    assert cli.ok("put", key + "k2", "") == b"OK\n"
    assert cli.ok("get", key + "k2") == b""


def test_ttl(cli, client, key):
    cli.ok("put", key + "k", "v", "--ttl", "1")
    wait_for(lambda: client.find(key + "k") is None, 60, "the expiry")
    assert "NotFound" in cli.fails("get", key + "k")


def test_get_ranges(cli, key):
    value = pattern(600000)
    cli.ok("put", key + "k", stdin=value)
    assert cli.ok("get", key + "k", "--start", "100", "--end", "199") == value[100:200]
    assert cli.ok("get", key + "k", "--start", "599990") == value[599990:]
    assert cli.ok("get", key + "k", "--end", "9") == value[:10]
    assert cli.ok("get", key + "k", "--start", "599990", "--end", "10000000") == value[599990:]
    assert cli.ok("get", key + "k", "--start", "600000") == b""
    assert "--start" in cli.fails("get", key + "k", "--start=-1")


def test_get_to_a_file(cli, key, tmp_path):
    value = pattern(1 << 20)
    out = tmp_path / "out"
    cli.ok("put", key + "k", stdin=value)
    assert cli.ok("get", key + "k", "--output", str(out)) == b""
    assert out.read_bytes() == value
    # A failed get leaves the file as it was and nothing beside it.
    assert "NotFound" in cli.fails("get", key + "missing", "-o", str(out))
    assert out.read_bytes() == value
    assert "NotFound" in cli.fails("get", key + "missing", "-o", str(tmp_path / "none"))
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    error = cli.fails("get", key + "k", "-o", str(tmp_path / "no" / "such"))
    assert error.startswith("Get failed: cannot write to '") and "No such file" in error
    error = cli.fails("get", key + "k", "-o", "/dev/full")
    assert "cannot write to '/dev/full': No space left on device" in error


def test_full_standard_output(cli, key):
    cli.ok("put", key + "k", stdin=pattern(100000))
    with open("/dev/full", "wb") as full:
        assert "No space left" in cli.fails("get", key + "k", stdout=full)
        assert "No space left" in cli.fails("put", key + "k", "v", stdout=full)
        assert "No space left" in cli.fails("list", stdout=full)
        assert "No space left" in cli.fails("version", stdout=full)


def test_list(cli, client, key):
    names = sorted(f"{key}{i:05d}" for i in range(2500))
    for name in names:
        client.put(name, b"")
    odd = key + 'zz "quoted" | \\ \u20ac'
    cli.ok("put", odd, "v")
    assert cli.ok("list", "--prefix", key).decode().splitlines() == names + [odd]
    assert json.loads(cli.ok("list", "--prefix", key, "--json")) == names + [odd]
    assert cli.ok("list", "--prefix", key, "--limit", "3").decode().splitlines() == names[:3]
    assert cli.ok("list", "--prefix", key, "--limit", "2000").decode().splitlines() == names[:2000]
    assert json.loads(cli.ok("list", "--prefix", key, "--limit", "1", "--json")) == names[:1]
    assert cli.ok("list", "--prefix", key + "nothing") == b""
    assert json.loads(cli.ok("list", "--prefix", key + "nothing", "--json")) == []


def test_version(cli):
    lines = cli.ok("version").decode().splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"ocachecli version \d+\.\d+\.\d+", lines[0])
    assert re.fullmatch(r"  commit: ([0-9a-f]{12}|unknown)", lines[1])
    assert re.fullmatch(r"  built:  (\d{4}-\d\d-\d\dT\S+|unknown)", lines[2])


@pytest.mark.parametrize("args", [["topology"], ["node", "k"], ["epoch"], ["epoch", "--json"]])
def test_cluster_commands_in_simple_mode(cli, args):
    assert cli.fails("cluster", *args) == \
        "Error: cluster commands require cluster mode. Connected in simple mode.\n"


@pytest.mark.parametrize("args, text", [
    (["get"], "accepts 1 arg(s), received 0"),
    (["get", "a", "b"], "accepts 1 arg(s), received 2"),
    (["put"], "accepts between 1 and 2 arg(s), received 0"),
    (["put", "a", "b", "c"], "accepts between 1 and 2 arg(s), received 3"),
    (["del"], "accepts 1 arg(s), received 0"),
    (["list", "a"], "accepts 0 arg(s), received 1"),
    (["grab", "a"], 'unknown command "grab" for "ocachecli"'),
    (["get", "a", "--frobnicate"], "frobnicate"),
    (["get", "a", "--ttl", "5"], "--ttl does not belong to 'get'"),
    (["put", "a", "b", "--ttl", "soon"], "soon"),
    (["get", "a", "--mode", "quantum"], "quantum"),
    (["get", "a", "--addr", ""], "--addr names no address"),
])
def test_usage_errors(cli, args, text):
    error = cli.fails(*args)
    lines = error.splitlines()
    assert lines[0].startswith("Error: ") and text in lines[0]
    assert any(line.startswith("Usage: ocachecli ") for line in lines)
    assert lines[-1] == lines[0][len("Error: "):]  # once more at the end


def test_help(cli):
    out = cli.ok("--help").decode()
    for command in ("put", "get", "del", "list", "cluster", "bench", "version"):
        assert command in out
        one = cli.ok(command, "--help").decode()
        assert one.startswith(f"Usage: ocachecli {command}")
        assert cli.ok("help", command).decode() == one
    assert cli.ok() == out.encode()  # no command: the help
    assert "--num-ops" in cli.ok("bench", "--help").decode()
    assert "--num-ops" not in cli.ok("get", "--help").decode()


def test_environment(cli, key):
    cli.ok("put", key + "k", "v")
    r = subprocess.run([tool("ocachecli"), "get", key + "k"], capture_output=True, timeout=30,
                       env=clean_env(OCACHECLI_ADDR=cli.address))
    assert (r.returncode, r.stdout) == (0, b"v")


def test_failures_of_the_server(cli):
    assert cli.fails("put", "", "v") == \
        "Put failed: rpc error: code = InvalidArgument desc = missing key\n"
    assert cli.fails("put", "", stdin=b"v") == \
        "Put failed: rpc error: code = InvalidArgument desc = missing key\n"
    assert cli.fails("del", "") == \
        "Delete failed: rpc error: code = InvalidArgument desc = missing key\n"
    assert cli.fails("get", "") == "Get failed: rpc error: code = NotFound desc = key not found\n"


def test_unreachable_server():
    cli = Cli("127.0.0.1:1")
    assert cli.fails("put", "k", "v").startswith("Put failed: " + UNAVAILABLE)
    assert cli.fails("put", "k", stdin=b"v").startswith("Put failed: " + UNAVAILABLE)
    assert cli.fails("get", "k").startswith("Get failed: " + UNAVAILABLE)
    assert cli.fails("del", "k").startswith("Delete failed: " + UNAVAILABLE)
    assert cli.fails("list").startswith("List failed: " + UNAVAILABLE)


def test_client_that_cannot_be_made():
    error = Cli("127.0.0.1").fails("get", "k")
    assert error.startswith("Failed to create client: ") and "127.0.0.1" in error
    error = Cli("127.0.0.1:1").fails("get", "k", "--mode", "cluster")
    assert error.startswith("Failed to create client: cluster mode is not built")


def test_put_is_cancelled(cli, client, key):
    process = cli.start("put", key + "k", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(pattern(1 << 20))
    process.stdin.flush()  # all but a pipe's worth was read: the upload is under way
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 1
    assert process.stderr.read() == b"Put cancelled\n"
    assert process.stdout.read() == b""
    process.stdin.close()
    assert client.find(key + "k") is None


def test_get_is_cancelled(cli, key):
    cli.ok("put", key + "k", stdin=pattern(32 << 20))
    process = cli.start("get", key + "k", stdout=subprocess.PIPE)
    assert select.select([process.stdout], [], [], 20)[0]  # it writes, and nobody reads on
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1
    assert process.stderr.read() == b"Get cancelled\n"
    process.stdout.close()
    process.stderr.close()


def bench(cli, *args):
    return json.loads(cli.ok("bench", "--json", "--num-keys", "50", *args))


@pytest.mark.parametrize("args, reads, updates", [
    (["--workload", "A"], (200, 300), (200, 300)),
    (["--workload", "b"], (450, 500), (0, 50)),
    (["--workload", "C"], (500, 500), (0, 0)),
    (["--workload", "update=1", "--force-streaming"], (0, 0), (500, 500)),
    (["--workload", "read=1,update=1", "--value-size", "300KiB"], (180, 320), (180, 320)),
    (["--value-size", "0", "--distribution", "zipfian"], (180, 320), (180, 320)),
])
def test_bench(cli, args, reads, updates):
    r = bench(cli, "--num-ops", "500", "--seed", "7", *args)
    assert r["operations"] == 500 and r["errors"] == 0
    assert r["wrong_bytes"] == 0 and r["wrong_values"] == 0 and r["stopped_workers"] == 0
    assert reads[0] <= r["read"]["count"] <= reads[1]
    assert updates[0] <= r["update"]["count"] <= updates[1]
    assert r["read"]["count"] + r["update"]["count"] == 500
    for op in ("read", "update"):
        if r[op]["count"]:
            times = [r[op][k] for k in ("min_us", "p50_us", "p95_us", "p99_us", "p999_us", "max_us")]
            assert times == sorted(times) and times[0] > 0
    assert r["throughput_ops_s"] == pytest.approx(500 / r["duration_s"])
    assert r["read_bytes_s"] * r["duration_s"] == pytest.approx(r["read"]["count"] * r["value_size"])
    assert sum(r["per_second"]) == 500


def test_bench_by_duration(cli):
    r = bench(cli, "--duration", "300ms")
    assert 0.3 <= r["duration_s"] < 3
    assert r["operations"] > 0 and r["wrong_bytes"] == 0


def test_bench_same_seed_same_load(cli):
    counts = {bench(cli, "--num-ops", "300", "--seed", "5", "--concurrency", "1")["read"]["count"]
              for _ in range(2)}
    assert len(counts) == 1


def test_bench_report_for_people(cli):
    out = cli.ok("bench", "--num-ops", "400", "--num-keys", "10").decode()
    assert out.startswith("BENCHMARK RESULTS\n")
    for text in ("Total Operations    400", "Total Errors        0", "Wrong bytes: 0",
                 "Per-Operation Latency Statistics", "P99.9", "Latency Distribution Histogram"):
        assert text in out
    assert "\x1b" not in out and "Error Analysis" not in out


def test_bench_keys_are_those_of_other_clients(cli, client):
    cli.ok("bench", "--num-ops", "1", "--num-keys", "2", "--workload", "C", "--value-size", "33")
    # FNV-1a 64 of the eight bytes of 0 and 1.
    for name in ("usera8c7f832281a39c5", "user89cd31291d2aefa4"):
        assert len(client.get(name)) == 33


def test_bench_failures(cli):
    assert cli.fails("bench", "--workload", "Z").startswith("Benchmark failed: workload 'Z'")
    error = Cli("127.0.0.1:1").fails("bench", "--num-keys", "20")
    assert error.startswith("Benchmark failed: 20 of 20 keys could not be preloaded: " + UNAVAILABLE)


def test_bench_is_cancelled(cli):
    process = cli.start("bench", "--duration", "60s", "--num-keys", "10", stdout=subprocess.PIPE)
    stat = f"/proc/{process.pid}/stat"

    def busy():  # it has used the CPU, so its signals are being watched
        with open(stat) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12]) > 10
    wait_for(busy, 30, "the benchmark to run")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 1
    assert process.stderr.read() == b"Benchmark cancelled\n"
    assert process.stdout.read() == b""


@pytest.mark.parametrize("program", ["ocache_example", "ocache_example_cpp"])
def test_example_program(node, program):
    if program.endswith("_cpp") and "san" in os.path.basename(os.environ.get("OCACHE_BUILD", "")):
        pytest.skip("the C++ example is not built with sanitizers")
    path = tool(program)
    r = subprocess.run([path, f"127.0.0.1:{node.grpc_port}"], capture_output=True, text=True, timeout=30)
    assert r.returncode == 0, r.stderr
    assert r.stdout == ("get: Hello, cache (12 bytes)\nbytes 7 to 11: cache\nkeys:\n"
                        "  example/greeting\ngone: key not found\n")
