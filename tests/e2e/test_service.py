"""What is not about one key: topology, health, reads beside writes, bounded memory, stopping (rows F12 to
F16), metrics, and the log."""

import json
import os
import random
import re
import signal
import threading
import time

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness import CHUNK, ROOT, Client, error_of, http_get, pattern, run, stubs, wait_for

KIB, MIB = 1 << 10, 1 << 20
Code = grpc.StatusCode


def test_F12_topology_of_a_single_node(client):
    reply = client.stub.GetTopology(client.pb.GetTopologyRequest())
    assert not reply.HasField("topology")
    assert reply.error == "cluster mode not enabled"


def test_F12_cluster_service_is_not_there(node, client):
    call = client.channel.unary_unary("/cache.ClusterService/GetClusterState", lambda b: b, lambda b: b)
    assert error_of(lambda: call(b"", timeout=5))[0] == Code.UNIMPLEMENTED


def test_health_service(node):
    s = stubs()
    with node.client() as c:
        health = s.health_pb2_grpc.HealthStub(c.channel)
        serving = s.health_pb2.HealthCheckResponse.SERVING
        for name in ("", "cache.CacheService"):
            assert health.Check(s.health_pb2.HealthCheckRequest(service=name)).status == serving
        code, _ = error_of(lambda: health.Check(s.health_pb2.HealthCheckRequest(service="other")))
        assert code == Code.NOT_FOUND
        watch = health.Watch(s.health_pb2.HealthCheckRequest())
        assert next(watch).status == serving
        watch.cancel()


@pytest.mark.parametrize("change", ["overwrite", "delete"])
def test_F13_a_change_ends_no_read_in_progress(client, key, change):
    value = pattern(32 * MIB, 13)
    client.put_stream(key, (value[i:i + MIB] for i in range(0, len(value), MIB)))
    call = client.stub.Get(client.pb.GetRequest(key=key))
    got = [next(call).data]
    if change == "delete":
        client.delete(key)
        assert client.find(key) is None
    else:
        client.put(key, b"new")
        assert client.get(key) == b"new"
    # Long enough for the background work that removes superseded files.
    deadline = time.monotonic() + 2
    for m in call:
        got.append(m.data)
        if time.monotonic() < deadline:
            time.sleep(0.02)
    assert b"".join(got) == value


def test_F14_slow_readers_hold_little_memory(new_node):
    n = new_node("-buffer-memory", "32MiB")
    value = pattern(64 * MIB, 14)
    with n.client() as c:
        c.put_stream("big", (value[i:i + MIB] for i in range(0, len(value), MIB)))
    base = n.rss_bytes()
    clients = [n.client() for _ in range(10)]
    calls = [c.stub.Get(c.pb.GetRequest(key="big")) for c in clients for _ in range(5)]
    firsts = [next(call).data for call in calls]
    # Fifty readers that stop after their first message: 3.2 GiB are asked for.
    assert n.rss_bytes() - base < 300 * MIB
    with n.client() as c:
        c.put("small", b"still served")
        assert c.get("small") == b"still served"
    # Those that go on get what they asked for.
    assert firsts[0] + b"".join(m.data for m in calls[0]) == value
    for call in calls[1:]:
        call.cancel()
    for c in clients:
        c.close()
    wait_for(lambda: n.metrics()['ocache_buffer_used_bytes{size="bulk"}'] == 0, 60, "buffers")
    assert n.stop() == 0


def test_F14_slow_writers_hold_little_memory(new_node):
    n = new_node("-buffer-memory", "32MiB")
    base = n.rss_bytes()
    stop = threading.Event()
    clients = [n.client() for _ in range(8)]
    calls = []
    for i, c in enumerate(clients):
        for k in range(25):
            def messages(c=c, i=i, k=k):
                yield c.pb.PutRequest(key=f"k{i}-{k}", data=bytes(200 * KIB))
                stop.wait(60)
                yield c.pb.PutRequest(data=b"end")
            calls.append((c, f"k{i}-{k}", c.stub.Put.future(messages())))
    # 200 uploads that hold half a chunk each need more than the 28 MiB of large buffers.
    wait_for(lambda: n.metrics()["ocache_buffer_waiting"] > 0, 60, "uploads to wait for a buffer")
    assert n.rss_bytes() - base < 200 * MIB
    with n.client() as c:
        c.put("small", b"still served")
        assert c.get("small") == b"still served"
    stop.set()
    done = refused = 0
    for c, k, call in calls:
        try:
            assert call.result(timeout=60).success
            done += 1
            assert c.get(k) == bytes(200 * KIB) + b"end"
        except grpc.RpcError as e:
            assert e.code() == Code.RESOURCE_EXHAUSTED
            refused += 1
            assert c.find(k) is None
    assert done >= 80 and done + refused == 200
    for c in clients:
        c.close()
    wait_for(lambda: n.metrics()['ocache_buffer_used_bytes{size="bulk"}'] == 0, 60, "buffers")
    assert n.metrics()["ocache_buffer_waiting"] == 0
    assert n.stop() == 0


def test_F14_many_large_streams_at_once(new_node):
    n = new_node("-buffer-memory", "32MiB")
    base = n.rss_bytes()
    values = [pattern(6 * MIB + i, i) for i in range(40)]
    errors = []

    def work(i):
        try:
            with n.client() as c:
                v = values[i]
                c.put_stream(f"k{i}", (v[j:j + 300 * KIB] for j in range(0, len(v), 300 * KIB)))
                assert c.get(f"k{i}") == v
        except Exception as e:  # noqa: BLE001: reported below, with the thread it came from
            errors.append((i, e))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(values))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not errors
    assert n.rss_bytes() - base < 250 * MIB


def test_F15_largest_message(new_node):
    n = new_node()
    with n.client() as c:
        pb = c.pb
        # Two fields: tag, length of one byte, "big"; tag, length of four bytes, the value.
        value = pattern((128 << 20) - (1 + 1 + 3) - (1 + 4), 15)
        request = pb.PutRequest(key="big", data=value)
        assert request.ByteSize() == 128 << 20
        assert c.stub.PutObject(request, timeout=60).success
        assert c.get("big") == value
        request = pb.PutRequest(key="big", data=value + b"x")
        code, _ = error_of(lambda: c.stub.PutObject(request, timeout=60))
        assert code == Code.RESOURCE_EXHAUSTED
        assert c.get("big", end=9) == value[:10]


def test_F15_unknown_method_and_malformed_message(client):
    def raw(path, payload):
        call = client.channel.unary_unary(path, lambda b: b, lambda b: b)
        return error_of(lambda: call(payload, timeout=5))
    assert raw("/cache.CacheService/Nothing", b"")[0] == Code.UNIMPLEMENTED
    assert raw("/nothing.at.All/Get", b"")[0] == Code.UNIMPLEMENTED
    for payload in (b"\xff", b"\x0a\x05ab", b"\x0a", b"\x08\x01", b"\x00\x00", b"\x0b", b"\x1a\x80\x80\x80"):
        for method in ("PutObject", "Get", "Delete", "List"):
            if method != "PutObject" and payload.startswith(b"\x1a"):
                continue  # field 3 is a number there
            code, text = raw(f"/cache.CacheService/{method}", payload)
            assert code == Code.INTERNAL, (method, payload)
            assert "cannot parse" in text


def test_F15_compressed_messages_are_refused(node):
    with Client(f"127.0.0.1:{node.grpc_port}",
                options=[("grpc.default_compression_algorithm", 2)]) as c:
        code, text = error_of(lambda: c.put("compressed", b"a" * 10000))
        assert code == Code.UNIMPLEMENTED and "compression" in text


def test_F16_stop_lets_calls_in_progress_end(new_node):
    n = new_node("-drain-timeout", "20s")
    value = pattern(8 * MIB, 16)
    with n.client() as c:
        c.put("big", value)
        read = c.stub.Get(c.pb.GetRequest(key="big"))
        got = [next(read).data]
        begun = threading.Event()
        rest = threading.Event()

        def messages():
            yield c.pb.PutRequest(key="up", data=value[:MIB])
            begun.set()
            rest.wait(30)
            for i in range(MIB, len(value), MIB):
                yield c.pb.PutRequest(data=value[i:i + MIB])
        write = c.stub.Put.future(messages())
        begun.wait(10)
        n.signal()

        def refused():
            with n.client() as other:
                try:
                    other.put("late", b"v", timeout=0.5)
                except grpc.RpcError:
                    return True
            return False
        wait_for(refused, 60, "new calls to be refused")
        rest.set()
        assert write.result(timeout=20).success
        got += [m.data for m in read]
        assert b"".join(got) == value
    assert n.wait() == 0
    n.start()
    with n.client() as c:
        assert c.get("big") == value and c.get("up") == value
        assert c.find("late") is None


def test_F16_stop_is_bounded(new_node):
    n = new_node("-drain-timeout", "500ms")
    stop = threading.Event()
    with n.client() as c:
        c.put("k", b"v")

        def messages():
            yield c.pb.PutRequest(key="never", data=bytes(MIB))
            stop.wait(60)
        call = c.stub.Put.future(messages())
        wait_for(lambda: n.disk_files()[1], 60, "the upload's file")
        began = time.monotonic()
        n.signal()
        assert n.wait(10) == 0
        assert time.monotonic() - began < 5
        stop.set()
        with pytest.raises(grpc.RpcError) as e:
            call.result(timeout=10)
        assert e.value.code() in (Code.UNAVAILABLE, Code.CANCELLED)
    n.start()
    with n.client() as c:
        assert c.list_all() == ["k"]
    assert n.disk_files()[1] == []


def test_F16_second_signal_ends_at_once(new_node):
    n = new_node("-drain-timeout", "60s")
    stop = threading.Event()
    with n.client() as c:
        c.put("k", b"v")

        def messages():
            yield c.pb.PutRequest(key="never", data=bytes(MIB))
            stop.wait(60)
        call = c.stub.Put.future(messages())
        wait_for(lambda: n.disk_files()[1], 60, "the upload's file")
        n.signal()
        wait_for(lambda: "stopping" in n.log(), 60, "the stop to begin")
        n.signal(signal.SIGINT)
        assert n.wait(5) == 1
        stop.set()
        with pytest.raises(grpc.RpcError):
            call.result(timeout=10)
    n.start()
    with n.client() as c:
        assert c.get("k") == b"v"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_F16_signals_while_idle(new_node, number):
    n = new_node()
    n.signal(number)
    assert n.wait(10) == 0
    assert "stopped" in n.log()


def test_stop_under_load_loses_nothing(new_node):
    n = new_node()
    acknowledged = {}
    lock = threading.Lock()

    def work(t):
        with n.client() as c:
            for i in range(100000):
                k, v = f"{t}-{i}", b"%d %d" % (t, i)
                try:
                    c.put(k, v, timeout=5)
                except grpc.RpcError:
                    return
                with lock:
                    acknowledged[k] = v
    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for t in threads:
        t.start()
    wait_for(lambda: len(acknowledged) > 500, 30, "some puts")
    assert n.stop() == 0
    for t in threads:
        t.join(30)
    n.start()
    with n.client() as c:
        assert set(acknowledged) <= set(c.list_all())
        for k in random.Random(1).sample(sorted(acknowledged), 300):
            assert c.get(k) == acknowledged[k]


def test_metrics_are_well_formed_and_count(new_node):
    n = new_node()
    with n.client() as c:
        c.put("a", b"x" * 100)
        c.put("b", pattern(CHUNK * 2))
        c.get("a")
        c.get("b")
        assert c.find("nothing") is None
        c.delete("a")
        c.list_all()
        error_of(lambda: c.put("", b""))
    _, headers, body = http_get(n.url("/metrics"))
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in text_string_to_metric_families(body.decode())}
    m = n.metrics()
    requests = "ocache_rpc_requests_total"
    assert m[requests + '{method="PutObject",status="success"}'] == 2
    assert m[requests + '{method="PutObject",status="invalid"}'] == 1
    assert m[requests + '{method="Get",status="success"}'] == 2
    assert m[requests + '{method="Get",status="not_found"}'] == 1
    assert m[requests + '{method="Delete",status="success"}'] == 1
    assert m["ocache_cache_hits_total"] == 2 and m["ocache_cache_misses_total"] == 1
    assert m["ocache_keys_total"] == 1 and m["ocache_bytes_total"] == CHUNK * 2
    storage = 'ocache_storage_operations_total{operation="%s",storage_type="%s",status="%s"}'
    assert m[storage % ("put", "segment", "success")] == 1
    assert m[storage % ("put", "file", "success")] == 1
    assert m[storage % ("get", "file", "success")] == 1
    assert m['ocache_stream_bytes_transferred_total{direction="upload"}'] == CHUNK * 2 + 100
    assert m['ocache_stream_bytes_transferred_total{direction="download"}'] == CHUNK * 2 + 100
    assert m['ocache_rpc_duration_ms_count{method="PutObject"}'] == 3
    assert 0 < m['ocache_rpc_duration_ms_sum{method="PutObject"}'] < 60000
    assert m['ocache_object_size_bytes_count{operation="put"}'] == 2
    assert m["ocache_filesystem_free_bytes"] > 0 and m["ocache_segments_total"] >= 1
    assert m['ocache_disk_usage_bytes{type="total"}'] >= CHUNK * 2
    assert abs(m["process_start_time_seconds"] - time.time()) < 300
    assert m["process_resident_memory_bytes"] > 1 << 20 and m["process_open_fds"] > 5
    assert families["ocache_rpc_duration_ms"].type == "histogram"
    assert all(name.startswith(("ocache_", "process_")) for name in families)
    # Small gets take far less than a millisecond, and the buckets can say so.
    assert m['ocache_rpc_duration_ms_bucket{method="Get",le="+Inf"}'] == 3


def test_idle_costs_little(new_node):
    n = new_node()
    with n.client() as c:
        c.put("k", b"v")
        c.get("k")
    assert n.rss_bytes() < 16 * MIB
    def used_in(seconds):
        before = n.cpu_seconds()
        time.sleep(seconds)  # what is measured is a stretch of doing nothing
        return n.cpu_seconds() - before
    # The best of three: what a busy machine adds is not ours.
    assert min(used_in(2) for _ in range(3)) / 2 < 0.003


def test_log_says_what_matters(new_node):
    n = new_node("-log-format", "json", "-request-logging")
    with n.client() as c:
        c.put("k", b"v")
        error_of(lambda: c.put("", b"v"))
    assert n.stop() == 0
    lines = [json.loads(line) for line in n.log().splitlines()]
    by_message = {}
    for line in lines:
        by_message.setdefault(line["msg"], []).append(line)
    listening = by_message["listening"][0]
    assert listening["grpc_port"] == n.grpc_port and listening["disk"] == n.directory
    assert by_message["ready"][0]["keys"] == 0
    calls = [line for line in by_message["call"] if line["method"] == "PutObject"]
    assert [line["error"] for line in calls] == [False, True]
    assert all(line["remote"].startswith("127.0.0.1:") for line in calls)
    assert "stopping" in by_message and "stopped" in by_message


def test_version_and_flags(tmp_path):
    code, out, _ = run("-version")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 3
    assert lines[0].startswith("ocache version ") and lines[1].startswith("  commit: ")
    assert lines[2].startswith("  built:  ")
    code, out, _ = run("-h")
    assert code == 0 and "-listen-addr" in out
    for args in (["-nonsense"], ["-ttl", "x"], ["-sync", "sometimes"], ["--drain-timeout=5"],
                 ["-max-connections=0"], ["stray"], ["-disk"]):
        code, _, err = run(*args)
        assert code == 2 and err, args
    # Flags that only mean something to another storage engine do not stop a start script; they are named.
    env = dict(os.environ, OCACHE_LISTEN_ADDR="127.0.0.1:0")
    code, _, err = run("-disk", "/proc/nothing", "-threshold", "65536", "-disable-recompaction",
                       "-listen-http=127.0.0.1:0", env=env)
    assert code == 1 and "threshold" in err and "disable-recompaction" in err and "/proc/nothing" in err


def test_options_from_the_environment(new_node):
    env = dict(os.environ, OCACHE_TTL="3600", OCACHE_LOG_FORMAT="json", OCACHE_SYNC="always")
    n = new_node(env=env)
    with n.client() as c:
        c.put("k", b"v")
        assert c.get("k") == b"v"
    assert json.loads(n.log().splitlines()[0])["sync"] == "always"


@pytest.mark.parametrize("mode", ["none", "interval", "always"])
def test_every_sync_mode_serves(new_node, mode):
    n = new_node("-sync", mode, "-sync-interval", "100ms")
    with n.client() as c:
        futures = [c.stub.PutObject.future(c.pb.PutRequest(key=f"k{i:03d}", data=b"v%d" % i))
                   for i in range(200)]
        assert all(f.result(timeout=20).success for f in futures)
        c.put("big", pattern(2 * MIB))
        c.delete("k000")
        assert c.list_all("k") == [f"k{i:03d}" for i in range(1, 200)]
        syncs = n.metrics()["ocache_log_syncs_total"]
        if mode == "always":
            assert syncs >= 2
        elif mode == "interval":
            wait_for(lambda: n.metrics()["ocache_log_syncs_total"] >= 1, 60, "a sync")
    n.kill()
    n.start()
    with n.client() as c:
        assert c.get("big") == pattern(2 * MIB) and c.find("k000") is None
        assert len(c.list_all()) == 200


def test_documents_name_every_flag():
    _, text, _ = run("-h")
    flags = re.findall(r"^  -([a-z-]+)", text, re.M)
    assert len(flags) > 15
    with open(os.path.join(ROOT, "docs", "configuration.md")) as f:
        guide = f.read()
    with open(os.path.join(ROOT, "deploy", "man", "ocache.1")) as f:
        manual = f.read().replace("\\-", "-")
    for flag in flags:
        assert f"`-{flag}" in guide or flag == "version", f"docs/configuration.md lacks -{flag}"
        assert re.search(rf"-{flag}\b", manual), f"the manual page lacks -{flag}"
