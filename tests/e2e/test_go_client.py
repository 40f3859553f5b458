"""grpc-go, the client library of Go users, against a running node: tests/interop/goclient."""

import os
import shutil
import subprocess

import pytest

from harness import ROOT

SOURCE = os.path.join(ROOT, "tests", "interop", "goclient")


def go():
    """A Go that is new enough: the system's, else the one in .venv."""
    for path in (shutil.which("go"), os.path.join(ROOT, ".venv", "bin", "go")):
        if path and os.access(path, os.X_OK):
            out = subprocess.run([path, "env", "GOVERSION"], capture_output=True, text=True)
            version = out.stdout.strip().removeprefix("go").split(".")
            if out.returncode == 0 and len(version) > 1 and (int(version[0]), int(version[1])) >= (1, 23):
                return path
    return None


@pytest.mark.timeout(400)
def test_F1_F6_F8_go_client_uses_every_method(node, tmp_path):
    if go() is None:
        pytest.skip("go 1.23 or newer is not installed")
    # The build cache makes the second run quick; the binary itself is thrown away.
    program = tmp_path / "goclient"
    subprocess.run([go(), "build", "-o", program, "."], cwd=SOURCE, check=True, timeout=300)
    descriptors = tmp_path / "cache.desc"
    subprocess.run(["protoc", f"-I{ROOT}/src/proto", "--include_imports",
                    f"--descriptor_set_out={descriptors}", "cache.proto"], check=True, timeout=60)
    out = subprocess.run([program, "-addr", f"127.0.0.1:{node.grpc_port}", "-descriptors", descriptors],
                         capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith("ok ")
