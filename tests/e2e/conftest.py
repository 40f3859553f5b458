"""Fixtures: `node` is a running ocache shared by a module's tests (each test uses keys of its own), and
`new_node` starts one for a test that changes or ends it."""

import os
import shutil
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness import Node, stubs  # noqa: E402


def pytest_sessionfinish(session, exitstatus):
    shutil.rmtree(stubs().directory, ignore_errors=True)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    n = Node(tmp_path_factory.mktemp("data"))
    n.start()
    yield n
    # A module's tests have left the node able to stop in order.
    try:
        assert n.stop() == 0, n.log()
    finally:
        n.close()


@pytest.fixture
def client(node):
    with node.client() as c:
        yield c


@pytest.fixture
def new_node(tmp_path):
    """new_node(*options, directory=…) -> a started node; everything is ended with the test."""
    nodes = []

    def make(*args, directory=None, start=True, env=None, **kwargs):
        n = Node(directory or tmp_path / "data", *args, env=env)
        nodes.append(n)
        if start:
            n.start(**kwargs)
        return n
    yield make
    for n in nodes:
        n.close()


@pytest.fixture
def key(request):
    """A key prefix that no other test uses."""
    return request.node.name + "/"
