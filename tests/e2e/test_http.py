"""Plain HTTP with curl, on both ports, over both versions of the protocol."""

import json
import os
import subprocess

import pytest

from harness import binary, http_get

PROTOCOLS = {"1.1": "--http1.1", "2": "--http2-prior-knowledge"}


def curl(url, *args):
    """(status, protocol version, headers, body)"""
    done = subprocess.run(["curl", "-sS", "-i", "-m", "10", "-w", "\n%{http_code} %{http_version}", *args, url],
                          capture_output=True, timeout=20)
    assert done.returncode == 0, done.stderr
    text, _, trailer = done.stdout.rpartition(b"\n")
    head, _, body = text.partition(b"\r\n\r\n")
    headers = {}
    for line in head.decode().split("\r\n")[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    status, version = trailer.decode().split()
    return int(status), version, headers, body


@pytest.fixture(params=["grpc", "http"])
def port(request, node):
    return node.grpc_port if request.param == "grpc" else node.http_port


@pytest.mark.parametrize("version", PROTOCOLS)
@pytest.mark.parametrize("path,body", [("/health", {"status": "ok"}), ("/healthz", {"status": "ok"}),
                                       ("/ready", {"status": "ready"}), ("/readyz", {"status": "ready"})])
def test_health_and_readiness(node, port, version, path, body):
    status, spoken, headers, text = curl(node.url(path, port), PROTOCOLS[version])
    assert (status, spoken) == (200, version)
    assert headers["content-type"] == "application/json"
    assert json.loads(text) == body and text == json.dumps(body, separators=(",", ":")).encode()


@pytest.mark.parametrize("version", PROTOCOLS)
def test_metrics_page(node, port, version):
    status, spoken, headers, text = curl(node.url("/metrics", port), PROTOCOLS[version])
    assert (status, spoken) == (200, version)
    assert b"\nocache_ready 1\n" in text


@pytest.mark.parametrize("version", PROTOCOLS)
@pytest.mark.parametrize("path", ["/", "/nothing", "/health/", "/v1/cache", "/v1/cache/key", "/metrics2"])
def test_unknown_path(node, port, version, path):
    status, _, headers, text = curl(node.url(path, port), PROTOCOLS[version])
    assert status == 404
    assert headers["content-type"] == "application/json"
    assert json.loads(text) == {"code": 5, "message": "Not Found", "details": []}


@pytest.mark.parametrize("version", PROTOCOLS)
def test_head_and_query(node, port, version):
    status, _, headers, text = curl(node.url("/health?probe=1", port), PROTOCOLS[version])
    assert status == 200 and text == b'{"status":"ok"}'
    status, _, headers, text = curl(node.url("/health", port), PROTOCOLS[version], "-I")
    assert status == 200 and headers["content-length"] == "15" and text == b""


def test_wget_style_probe(node):
    assert http_get(node.url("/health"), method="HEAD")[0] == 200


def test_one_connection_for_many_requests(node, port):
    done = subprocess.run(["curl", "-sS", "-m", "10", "-w", "%{num_connects}\n",
                           *[node.url(p, port) for p in ("/health", "/ready", "/nothing", "/health")]],
                          capture_output=True, timeout=20, text=True)
    assert done.returncode == 0
    assert [line[-1] for line in done.stdout.splitlines()] == ["1", "0", "0", "0"]


RECORDS = 400_000


def test_pages_while_loading(new_node):
    """Both ports answer health and metrics before the store has loaded; everything else says unavailable."""
    import grpc
    from harness import error_of, stubs, wait_for
    n = new_node("-workers", "1", start=False)
    n.start()
    # The benchmark's load generator writes 400,000 records in a second or two; a Python client in a minute.
    load = os.path.join(os.path.dirname(binary()), "..", "..", "bench", "load")
    subprocess.run([load, f"127.0.0.1:{n.grpc_port}", "preload", "-k", str(RECORDS), "-s", "200", "-n", "1",
                    "-c", "4", "-m", "32"], check=True, timeout=120, capture_output=True)
    n.kill()  # no checkpoint, no footer: the log must be read
    seen = []
    n.start(wait_ready=False)
    while True:
        status, _, body = http_get(n.url("/readyz"))
        if status == 200:
            break
        seen.append(json.loads(body))
        assert status == 503 and seen[-1]["status"] == "not_ready"
        assert http_get(n.url("/health"))[0] == 200
        page = http_get(n.url("/metrics"))[2]
        if b"\nocache_ready 0\n" in page:
            with n.client() as c:
                s = stubs()
                try:
                    c.get(f"user{0:016x}", timeout=2)
                except grpc.RpcError as e:
                    assert e.code() == grpc.StatusCode.UNAVAILABLE
                health = s.health_pb2_grpc.HealthStub(c.channel)
                health.Check(s.health_pb2.HealthCheckRequest(), timeout=2)
    assert all(page["reason"] == "loading" for page in seen)
    with n.client() as c:
        assert len(c.get(f"user{RECORDS - 1:016x}")) == 200
    if not seen:
        pytest.skip("this machine loads every record before the first request gets through")
