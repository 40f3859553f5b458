"""docs/cli.md shows what really happens: every `console` block is run, in order, against a fresh node."""

import os
import re
import shutil
import subprocess

from cli import clean_env, tool
from harness import ROOT


def blocks():
    """[(command, expected output)] of all blocks."""
    with open(os.path.join(ROOT, "docs", "cli.md"), encoding="utf-8") as f:
        text = f.read()
    steps = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
    return [(command, lines) for command, lines in steps]


def test_every_command_is_shown():
    with open(os.path.join(ROOT, "docs", "cli.md"), encoding="utf-8") as f:
        text = f.read()
    out = subprocess.run([tool("ocachecli"), "--help"], capture_output=True, text=True, timeout=30).stdout
    commands = re.search(r"Commands: (.*?)\.", out, re.S).group(1)
    for command in re.findall(r"[a-z]+", commands):
        assert f"ocachecli {command}" in text, command
        flags = subprocess.run([tool("ocachecli"), command, "--help"], capture_output=True, text=True,
                               timeout=30).stdout
        for flag in re.findall(r"--[a-z-]+", flags):
            assert flag in text, f"{command} {flag}"


def test_blocks(new_node, tmp_path):
    node = new_node()
    env = clean_env(OCACHECLI_ADDR=f"127.0.0.1:{node.grpc_port}")
    env["PATH"] = os.path.dirname(tool("ocachecli")) + os.pathsep + env["PATH"]
    work = tmp_path / "work"
    work.mkdir()
    assert len(blocks()) > 20
    previous = 0
    for command, expected in blocks():
        if "| jq " in command and shutil.which("jq") is None:
            # What jq prints here is taken from the report in another way.
            command = command.split("| jq")[0] + (
                "| python3 -c 'import json,sys; r=json.load(sys.stdin); "
                "print(r[\"operations\"], r[\"errors\"], r[\"wrong_bytes\"], sep=\"\\n\")'")
        shell = f"(exit {previous}); {command}"
        r = subprocess.run(["bash", "-c", shell], cwd=work, env=env, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=60, stdin=subprocess.DEVNULL)
        previous = r.returncode
        assert r.stdout.splitlines() == expected, command
