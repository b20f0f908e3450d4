"""Nodes for the tests of this folder: one with everything, one without a shared tier, each as a user starts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from nodes import NodeProcess, run_command

StartNode = Callable[..., NodeProcess]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Starts nodes with arguments; all of them and their clusters are ended after the test."""
    nodes: list[NodeProcess] = []

    def start(*arguments: str, name: str = "data", **environment: str) -> NodeProcess:
        node = NodeProcess(tmp_path / name, arguments, environment)
        nodes.append(node)
        return node.start()

    yield start
    for node in nodes:
        if node.process is not None:
            node.kill()
    for data_dir in {node.data_dir for node in nodes}:
        run_command("shared", "stop", "--data-dir", str(data_dir))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with an embedded cluster and small tiers."""
    data_dir = tmp_path_factory.mktemp("node") / "data"
    running = NodeProcess(data_dir, ("--memory-bytes", "64MiB", "--disk-bytes", "2GiB"))
    try:
        yield running.start()
    finally:
        if running.process is not None:
            running.stop()
        run_command("shared", "stop", "--data-dir", str(data_dir))


@pytest.fixture(scope="module")
def lone_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node without a shared tier."""
    running = NodeProcess(tmp_path_factory.mktemp("lone") / "data", ("--shared", "none", "--memory-bytes", "64MiB"))
    try:
        yield running.start()
    finally:
        if running.process is not None:
            running.stop()


@pytest.fixture
def channel(node: NodeProcess) -> Iterator[grpc.Channel]:
    """A stranger's channel to `node`: default options."""
    with grpc.insecure_channel(node.target) as opened:
        yield opened
