"""Runs the real `ocache` binary for tests: starts it on free ports, waits for what it says, stops it, and
speaks to it through stubs generated from the repository's own .proto files."""

import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import grpc
from grpc_tools import protoc

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MAX_MESSAGE = 128 << 20
CHUNK = 256 << 10  # the server's chunk: larger values go to a file of their own


def binary():
    """$OCACHE_BIN, else the one in $OCACHE_BUILD, else build/."""
    path = os.environ.get("OCACHE_BIN")
    if not path:
        build = os.environ.get("OCACHE_BUILD", os.path.join(ROOT, "build"))
        path = os.path.join(build, "src", "apps", "ocache")
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"no ocache binary at {path}: build it, or set OCACHE_BIN or OCACHE_BUILD")
    return path


_stubs = None


def stubs():
    """The modules cache_pb2, cache_pb2_grpc, health_pb2, health_pb2_grpc as one namespace."""
    global _stubs
    if _stubs is not None:
        return _stubs
    out = tempfile.mkdtemp(prefix="oc-stubs-")
    src = os.path.join(ROOT, "src", "proto")
    names = ["cluster.proto", "cache.proto", "health.proto"]
    code = protoc.main(["protoc", f"-I{src}", f"--python_out={out}", f"--grpc_python_out={out}"] + names)
    if code != 0:
        raise RuntimeError("protoc failed")
    sys.path.insert(0, out)

    class Namespace:
        pass

    ns = Namespace()
    for name in ("cluster_pb2", "cache_pb2", "cache_pb2_grpc", "health_pb2", "health_pb2_grpc"):
        setattr(ns, name, importlib.import_module(name))
    ns.directory = out
    _stubs = ns
    return ns


def wait_for(condition, timeout_s=60.0, what="condition"):
    """Polls until `condition` returns something true, and returns that."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {timeout_s} s waiting for {what}")
        time.sleep(0.01)


def http_get(url, timeout_s=30.0, method="GET"):
    """(status, headers, body) whatever the status."""
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, dict(e.headers), e.read()


class Client:
    """A channel and the calls of the service in their plainest form."""

    def __init__(self, address, options=()):
        s = stubs()
        self.pb = s.cache_pb2
        self.channel = grpc.insecure_channel(address, options=[
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", MAX_MESSAGE),
            ("grpc.use_local_subchannel_pool", 1),
            # A node that is killed and started again is to be found at once.
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 3000),  # in fact the time that one attempt may take
            ("grpc.max_reconnect_backoff_ms", 200),
        ] + list(options))
        self.stub = s.cache_pb2_grpc.CacheServiceStub(self.channel)

    def close(self):
        self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def put(self, key, value, ttl=0, timeout=30):
        r = self.stub.PutObject(self.pb.PutRequest(key=key, data=value, ttl_seconds=ttl), timeout=timeout)
        assert r.success and r.error == ""

    def put_stream(self, key, pieces, ttl=0, timeout=120):
        """The first message carries the key and no data, the others one piece each."""
        def messages():
            yield self.pb.PutRequest(key=key, ttl_seconds=ttl)
            for piece in pieces:
                yield self.pb.PutRequest(data=piece)
        r = self.stub.Put(messages(), timeout=timeout)
        assert r.success and r.error == ""

    def get_messages(self, key, start=0, end=0, timeout=120):
        return [m.data for m in self.stub.Get(self.pb.GetRequest(key=key, start=start, end=end),
                                              timeout=timeout)]

    def get(self, key, start=0, end=0, timeout=120):
        return b"".join(self.get_messages(key, start, end, timeout))

    def find(self, key, timeout=120):
        """The value, or None when the key is not there."""
        try:
            return self.get(key, timeout=timeout)
        except grpc.RpcError as e:
            if e.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise

    def delete(self, key, timeout=30):
        r = self.stub.Delete(self.pb.DeleteRequest(key=key), timeout=timeout)
        assert r.success and r.error == ""

    def list_page(self, prefix="", limit=0, start_key="", token="", timeout=30):
        return self.stub.List(self.pb.ListRequest(prefix=prefix, limit=limit, start_key=start_key,
                                                  continuation_token=token), timeout=timeout)

    def list_all(self, prefix="", limit=0):
        keys, token = [], ""
        while True:
            page = self.list_page(prefix, limit, token=token)
            keys += page.keys
            if not page.has_more:
                assert page.continuation_token == ""
                return keys
            assert page.continuation_token != ""
            token = page.continuation_token


def error_of(call):
    """Runs `call`, which must fail, and returns (status code, message)."""
    try:
        call()
    except grpc.RpcError as e:
        return e.code(), e.details()
    raise AssertionError("the call succeeded")


class Node:
    """One ocache process on `directory`. `args` are further command line options."""

    def __init__(self, directory, *args, env=None):
        self.directory = str(directory)
        self.args = list(args)
        self.env = env
        self.work = tempfile.mkdtemp(prefix="oc-node-")
        self.log_path = os.path.join(self.work, "log")
        self.process = None
        self.grpc_port = self.http_port = None

    def command(self):
        self.ports_path = os.path.join(self.work, "ports")
        return [binary(), "-disk", self.directory, "-listen-addr", "127.0.0.1:0",
                "-listen-http", "127.0.0.1:0", "-ports-file", self.ports_path] + self.args

    def start(self, wait_ready=True, timeout_s=90.0):
        assert self.process is None
        command = self.command()
        if os.path.exists(self.ports_path):
            os.unlink(self.ports_path)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=self.env)

        def bound():
            if self.process.poll() is not None:
                raise AssertionError(f"ocache ended with {self.process.returncode}:\n{self.log()}")
            return os.path.exists(self.ports_path)
        wait_for(bound, timeout_s, "the ports file")
        with open(self.ports_path) as f:
            ports = dict(line.split("=", 1) for line in f.read().split())
        self.grpc_port, self.http_port = int(ports["grpc"]), int(ports["http"])
        assert int(ports["pid"]) == self.process.pid
        if wait_ready:
            wait_for(self.ready, timeout_s, "readiness")
        return self

    def ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"ocache ended with {self.process.returncode}:\n{self.log()}")
        return http_get(self.url("/readyz"))[0] == 200

    def url(self, path, port=None):
        return f"http://127.0.0.1:{port or self.http_port}{path}"

    def client(self, **kwargs):
        return Client(f"127.0.0.1:{self.grpc_port}", **kwargs)

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout_s=90.0):
        code = self.process.wait(timeout_s)
        self.process = None
        return code

    def stop(self, timeout_s=90.0):
        """SIGTERM; returns the exit code."""
        self.signal()
        code = self.wait(timeout_s)
        if code != 0:
            print(self.log())  # a sanitizer's report, for example
        return code

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process = None

    def close(self):
        """End the process whatever state it is in, and forget its files (the data directory stays)."""
        if self.process is not None:
            self.kill()
        for name in os.listdir(self.work):
            os.unlink(os.path.join(self.work, name))
        os.rmdir(self.work)

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self):
        """Time on a CPU of all threads, to the nanosecond."""
        total = 0
        tasks = f"/proc/{self.process.pid}/task"
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/schedstat") as f:
                total += int(f.read().split()[0])
        return total / 1e9

    def metrics(self):
        """{'name{label="x"}': value} as read from /metrics."""
        status, _, body = http_get(self.url("/metrics"))
        assert status == 200
        values = {}
        for line in body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def disk_files(self):
        """(segments, value files, anything else) under the data directory, as relative paths."""
        segments, values, others = [], [], []
        for base, _, names in os.walk(self.directory):
            for name in names:
                path = os.path.relpath(os.path.join(base, name), self.directory)
                if re.fullmatch(r"seg/[0-9a-f]{16}\.seg", path):
                    segments.append(path)
                elif re.fullmatch(r"val/[0-9a-f]{2}/[0-9a-f]{16}\.val", path):
                    values.append(path)
                else:
                    others.append(path)
        return segments, values, others


def run(*args, timeout_s=60.0, env=None):
    """Run the binary to its end: (exit code, stdout, stderr)."""
    done = subprocess.run([binary(), *args], capture_output=True, text=True, timeout=timeout_s, env=env,
                          stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def pattern(length, seed=0):
    """`length` bytes that differ at every position and for every seed, quick to make."""
    block = bytearray()
    x = (seed * 2654435761 + 12345) & 0xFFFFFFFF
    base = bytearray(4096)
    for i in range(4096):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        base[i] = x >> 16 & 0xFF
    count = (length + 4095) // 4096
    for i in range(count):
        base[0:8] = i.to_bytes(8, "little")
        block += base
    del block[length:]
    return bytes(block)


def raw_connection(port):
    s = socket.create_connection(("127.0.0.1", port), timeout=10)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s
