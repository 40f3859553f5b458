"""Disks that are full, not writable, foreign or in use; files that vanish or rot; restarts after all of it."""

import os
import shutil
import subprocess

import grpc
import pytest

from harness import CHUNK, error_of, http_get, pattern, run, wait_for

KIB, MIB = 1 << 10, 1 << 20
Code = grpc.StatusCode


@pytest.fixture
def small_volume(tmp_path):
    """A tmpfs of 24 MiB."""
    path = tmp_path / "volume"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "oc-test", str(path)],
                          capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not permitted: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(c, size, limit=2000):
    """Puts until the first is refused: (keys stored, the refusal)."""
    stored = []
    for i in range(limit):
        key = f"fill/{size}/{i:05d}"
        try:
            c.put(key, pattern(size, i))
        except grpc.RpcError as e:
            return stored, (e.code(), e.details())
        stored.append((key, i))
    raise AssertionError("the volume does not get full")


@pytest.mark.parametrize("size", [3000, 100 * KIB, 2 * MIB])
def test_E9_full_volume(new_node, small_volume, size):
    """Puts fail with a clear status, reads go on, and space that comes back is used."""
    ballast = small_volume / "ballast"
    n = new_node(directory=small_volume / "data", start=False)
    n.start()
    with open(ballast, "wb") as f:
        f.write(bytes(10 * MIB))
    with n.client() as c:
        stored, refusal = fill(c, size, 10000)
        assert refusal == (Code.RESOURCE_EXHAUSTED, "storage capacity exceeded")
        assert len(stored) >= 1
        for key, i in stored[:20] + stored[-20:]:
            assert c.get(key) == pattern(size, i)
        assert c.list_all() == [key for key, _ in stored]
        code, _ = error_of(lambda: c.put_stream("stream", [bytes(CHUNK)] * 100))
        assert code == Code.RESOURCE_EXHAUSTED
        assert c.find("stream") is None
        assert http_get(n.url("/ready"))[0] == 200
        ballast.unlink()

        def put_again():
            try:
                c.put("again", pattern(size, 7))
                return True
            except grpc.RpcError as e:
                assert e.code() == Code.RESOURCE_EXHAUSTED
                return False
        wait_for(put_again, 60, "a put to succeed again")
        assert c.get("again") == pattern(size, 7)
    n.kill()
    n.start()
    with n.client() as c:
        for key, i in stored:
            assert c.get(key) == pattern(size, i)
        assert c.get("again") == pattern(size, 7)


def test_E9_restart_on_a_full_volume(new_node, small_volume):
    n = new_node(directory=small_volume / "data", start=False)
    n.start()
    with open(small_volume / "ballast", "wb") as f:
        f.write(bytes(10 * MIB))
    with n.client() as c:
        stored, _ = fill(c, 5000, 10000)
    n.kill()
    with open(small_volume / "ballast", "ab") as f:
        try:
            while True:
                f.write(bytes(64 * KIB))
        except OSError:
            pass
    n.start()
    with n.client() as c:
        for key, i in stored[::50]:
            assert c.get(key) == pattern(5000, i)
        # A deletion is a record in the log: without room for one it fails, and nothing is deleted.
        code, _ = error_of(lambda: c.delete(stored[0][0]))
        assert code == Code.RESOURCE_EXHAUSTED
        assert c.get(stored[0][0]) == pattern(5000, 0)
        (small_volume / "ballast").unlink()

        def deleted():
            try:
                c.delete(stored[0][0])
                return True
            except grpc.RpcError:
                return False
        wait_for(deleted, 60, "a delete to succeed")
        assert c.find(stored[0][0]) is None
    assert n.stop() == 0


def test_max_disk_usage_is_kept(new_node):
    n = new_node("-max-disk-usage", "16MiB")
    with n.client() as c:
        stored, refusal = fill(c, 50 * KIB)
        assert refusal == (Code.RESOURCE_EXHAUSTED, "storage capacity exceeded")
        used = sum(os.path.getsize(os.path.join(base, name))
                   for base, _, names in os.walk(n.directory) for name in names)
        assert used <= 17 * MIB
        assert len(stored) * 50 * KIB >= 10 * MIB
        for key, i in stored[::10]:
            assert c.get(key) == pattern(50 * KIB, i)


def start_fails(directory, *args):
    code, _, err = run("-disk", str(directory), "-listen-addr", "127.0.0.1:0", "-listen-http",
                       "127.0.0.1:0", *args)
    assert code == 1, err
    lines = [line for line in err.splitlines() if "ERROR" in line]
    assert len(lines) == 1, err
    return lines[0]


def test_foreign_directory_is_refused_and_untouched(tmp_path):
    (tmp_path / "precious").write_bytes(b"data")
    (tmp_path / "sub").mkdir()
    line = start_fails(tmp_path)
    assert str(tmp_path) in line or "precious" in line
    assert (tmp_path / "precious").read_bytes() == b"data"
    (tmp_path / "precious").unlink()
    assert "'sub'" in start_fails(tmp_path)
    assert not (tmp_path / "FORMAT").exists() and not (tmp_path / "seg").exists()


def test_newer_format_is_refused(tmp_path):
    (tmp_path / "FORMAT").write_text("ocache objects 99\n")
    line = start_fails(tmp_path)
    assert "FORMAT" in line or "format" in line


def test_file_in_place_of_the_directory(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    assert str(path) in start_fails(path)


def test_read_only_directory(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    if os.geteuid() == 0:
        # Root writes anywhere, but not on a volume that is mounted read-only.
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "oc-test", str(path)],
                              capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"mounting a tmpfs is not permitted: {done.stderr.strip()}")
        try:
            line = start_fails(path)
        finally:
            subprocess.run(["umount", str(path)], check=True)
    else:
        path.chmod(0o555)
        line = start_fails(path)
    assert str(path) in line


def test_second_process_on_the_same_directory(node):
    line = start_fails(node.directory)
    assert node.directory in line and str(node.process.pid) in line
    with node.client() as c:
        c.put("still", b"here")
        assert c.get("still") == b"here"


def test_port_in_use(tmp_path, node):
    code, _, err = run("-disk", str(tmp_path / "d"), "-listen-addr", f"127.0.0.1:{node.grpc_port}",
                       "-listen-http", "127.0.0.1:0")
    assert code == 1 and str(node.grpc_port) in err
    code, _, err = run("-disk", str(tmp_path / "d"), "-listen-addr", "127.0.0.1:0",
                       "-listen-http", f"127.0.0.1:{node.http_port}")
    assert code == 1 and str(node.http_port) in err
    for addr in ("nonsense", "127.0.0.1:99999", "127.0.0.1:-1"):
        code, _, err = run("-disk", str(tmp_path / "d"), "-listen-addr", addr)
        assert code == 1 and addr in err


def test_directory_can_be_copied(new_node, tmp_path):
    n = new_node()
    with n.client() as c:
        c.put("small", b"v")
        c.put("large", pattern(3 * CHUNK))
    assert n.stop() == 0
    shutil.copytree(n.directory, tmp_path / "copy")
    other = new_node(directory=tmp_path / "copy")
    with other.client() as c:
        assert c.get("small") == b"v" and c.get("large") == pattern(3 * CHUNK)


def test_restart_keeps_everything(new_node):
    n = new_node()
    sizes = [0, 1, 100, 5000, 100 * KIB, CHUNK, CHUNK + 1, 3 * MIB]
    with n.client() as c:
        for i, size in enumerate(sizes):
            c.put(f"k{i}", pattern(size, i))
        c.put("gone", b"v")
        c.delete("gone")
    for end in ("stop", "kill", "stop", "stop"):
        if end == "stop":
            assert n.stop() == 0
        else:
            n.kill()
        n.start()
        with n.client() as c:
            assert c.list_all() == sorted(f"k{i}" for i in range(len(sizes)))
            for i, size in enumerate(sizes):
                assert c.get(f"k{i}") == pattern(size, i)
            assert c.find("gone") is None


def damage(path, offset, xor=0xFF):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)
        f.seek(offset)
        f.write(bytes([byte[0] ^ xor]))


def test_rotten_small_value_is_a_miss(new_node):
    n = new_node()
    with n.client() as c:
        c.put("before", b"1" * 1000)
        c.put("rotten", b"2" * 1000)
        c.put("behind", b"3" * 1000)
        segment = os.path.join(n.directory, n.disk_files()[0][-1])
        with open(segment, "rb") as f:
            at = f.read().index(b"2" * 1000)
        damage(segment, at + 500)
        assert c.find("rotten") is None
        assert c.get("before") == b"1" * 1000 and c.get("behind") == b"3" * 1000
        assert n.metrics()["ocache_corrupt_records_total"] >= 1
        c.put("rotten", b"new")
        assert c.get("rotten") == b"new"
    n.kill()
    n.start()
    with n.client() as c:
        assert c.get("rotten") == b"new"
        assert c.get("before") == b"1" * 1000 and c.get("behind") == b"3" * 1000


def value_file(n):
    files = n.disk_files()[1]
    assert len(files) == 1
    return os.path.join(n.directory, files[0])


def test_rotten_first_chunk_is_a_miss(new_node):
    n = new_node()
    with n.client() as c:
        c.put("k", pattern(4 * CHUNK))
        damage(value_file(n), 1000)
        assert c.find("k") is None
        c.put("k", pattern(4 * CHUNK, 1))
        assert c.get("k") == pattern(4 * CHUNK, 1)


def test_rotten_later_chunk_is_data_loss(new_node):
    """What was sent cannot be taken back; the call ends with an error instead of wrong bytes."""
    n = new_node()
    value = pattern(4 * CHUNK)
    with n.client() as c:
        c.put("k", value)
        damage(value_file(n), 3 * CHUNK)
        got = []
        code, text = error_of(lambda: [got.append(m.data) for m in
                                       c.stub.Get(c.pb.GetRequest(key="k"))])
        assert (code, text) == (Code.DATA_LOSS, "data corruption detected")
        received = b"".join(got)
        assert value.startswith(received) and CHUNK <= len(received) < 3 * CHUNK
        # From then on it is known to be unreadable.
        assert c.find("k") is None


def test_vanished_value_file_is_a_miss(new_node):
    n = new_node()
    with n.client() as c:
        c.put("k", pattern(4 * CHUNK))
        c.put("other", b"v")
    assert n.stop() == 0
    os.unlink(value_file(n))
    n.start()
    with n.client() as c:
        assert c.find("k") is None
        assert c.get("other") == b"v"
        c.put("k", b"new")
        assert c.get("k") == b"new"


def test_E9_torn_tail_of_the_log(new_node):
    n = new_node()
    with n.client() as c:
        for i in range(100):
            c.put(f"k{i:02d}", pattern(1000, i))
    n.kill()
    segment = os.path.join(n.directory, sorted(n.disk_files()[0])[-1])
    with open(segment, "r+b") as f:
        data = f.read()
        end = len(data.rstrip(b"\0"))
        f.truncate(end - 500)
    n.start()
    with n.client() as c:
        assert c.list_all() == [f"k{i:02d}" for i in range(99)]
        for i in range(99):
            assert c.get(f"k{i:02d}") == pattern(1000, i)
        c.put("k99", b"again")
    n.kill()
    n.start()
    with n.client() as c:
        assert c.get("k99") == b"again" and len(c.list_all()) == 100
