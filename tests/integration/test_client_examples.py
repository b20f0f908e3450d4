"""The examples do what they say, against a real node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.client_suite import running_node

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_node(tmp_path_factory.mktemp("node") / "data") as node:
        yield node.target


@pytest.mark.parametrize(
    ("name", "words"),
    [("quickstart.py", "3 of 4 blocks"), ("asynchronous.py", "100 of 100"), ("stub.py", "hello from a plain stub")],
)
def test_an_example_runs(target: str, name: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), target], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
