"""h2load as an independent client that sends many calls at once."""

import os
import re
import struct
import subprocess

import pytest

from harness import pattern


def h2load(node, method, message, requests, clients, streams, tmp_path):
    body = tmp_path / "body"
    body.write_bytes(b"\x00" + struct.pack(">I", len(message)) + message)
    done = subprocess.run(
        ["h2load", "-n", str(requests), "-c", str(clients), "-m", str(streams), "-d", str(body),
         "-H", "content-type: application/grpc", "-H", "te: trailers",
         f"http://127.0.0.1:{node.grpc_port}/cache.CacheService/{method}"],
        capture_output=True, timeout=120, text=True)
    assert done.returncode == 0, done.stderr
    done_line = re.search(r"requests: (\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, (\d+) failed",
                          done.stdout)
    assert done_line, done.stdout
    total, started, finished, succeeded, failed = map(int, done_line.groups())
    assert (total, started, finished, succeeded, failed) == (requests, requests, requests, requests, 0)
    rate = re.search(r"([\d.]+) req/s", done.stdout)
    print(f"{method} {clients}x{streams}: {rate.group(1)} req/s")


@pytest.mark.parametrize("clients,streams", [(1, 1), (4, 8), (20, 100)])
@pytest.mark.parametrize("size", [100, 100 << 10])
def test_put_and_get(node, client, key, tmp_path, clients, streams, size):
    value = pattern(size)
    requests = 10000 if size == 100 else 1000
    if clients == 1:
        requests //= 10
    pb = client.pb
    before = node.metrics()
    h2load(node, "PutObject", pb.PutRequest(key=key, data=value).SerializeToString(), requests, clients,
           streams, tmp_path)
    assert client.get(key) == value
    h2load(node, "Get", pb.GetRequest(key=key).SerializeToString(), requests, clients, streams, tmp_path)
    after = node.metrics()
    for method in ("PutObject", "Get"):
        name = f'ocache_rpc_requests_total{{method="{method}",status="success"}}'
        # h2load looks at HTTP's status only; ours is counted by what the call really ended with.
        assert after[name] - before[name] == requests + (method == "Get")
    assert os.path.exists(f"/proc/{node.process.pid}")
