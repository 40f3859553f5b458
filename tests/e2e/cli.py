"""Runs ocachecli and the Python peer for tests."""

import os
import subprocess
import sys

from harness import ROOT, binary


def tool(name):
    """A program of the build under test."""
    build = os.path.dirname(os.path.dirname(os.path.dirname(binary())))
    path = {"ocachecli": "src/apps/ocachecli"}.get(name, f"tests/unit/client/{name}")
    path = os.path.join(build, path)
    assert os.access(path, os.X_OK), f"no {name} at {path}"
    return path


def clean_env(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("OCACHECLI_")}
    env.update(more)
    return env


class Cli:
    """cli("put", "k", "v") -> subprocess.CompletedProcess with bytes in stdout, text in stderr."""

    def __init__(self, address):
        self.address = address

    def command(self, *args):
        return [tool("ocachecli"), "--addr", self.address] + list(args)

    def __call__(self, *args, stdin=b"", timeout=60, stdout=subprocess.PIPE, env=None):
        r = subprocess.run(self.command(*args), input=stdin, stdout=stdout, stderr=subprocess.PIPE,
                           timeout=timeout, env=env or clean_env())
        r.stderr = r.stderr.decode()
        return r

    def ok(self, *args, **kwargs):
        """Must succeed; returns standard output."""
        r = self(*args, **kwargs)
        assert r.returncode == 0 and r.stderr == "", (args, r.returncode, r.stderr)
        return r.stdout

    def fails(self, *args, **kwargs):
        """Must exit with 1; returns standard error."""
        r = self(*args, **kwargs)
        assert r.returncode == 1, (args, r.returncode, r.stderr)
        return r.stderr

    def start(self, *args, **kwargs):
        return subprocess.Popen(self.command(*args), stderr=subprocess.PIPE, env=clean_env(), **kwargs)


class PyServer:
    """tests/interop/py_server.py in a process of its own."""

    def __init__(self, *args):
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(ROOT, "tests", "interop", "py_server.py"), *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        line = self.process.stdout.readline().split()
        assert line and line[0] == b"PORT", "the Python server did not start"
        self.address = f"127.0.0.1:{int(line[1])}"
        self.cli = Cli(self.address)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(30) == 0
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
