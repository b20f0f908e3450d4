"""What the README shows is what happens: its Python examples run as they stand, only with this node's address."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from nodes import NodeProcess

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
RUNNABLE = [block for block in BLOCKS if "transformers" not in block]


@pytest.mark.parametrize("block", RUNNABLE, ids=["client", "stub"])
def test_an_example_of_the_readme_runs(block: str, node: NodeProcess) -> None:
    assert "127.0.0.1:50151" in block
    source = block.replace("127.0.0.1:50151", node.target)
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "hello" in ran.stdout


def test_the_readme_shows_three_examples() -> None:
    assert len(BLOCKS) == 3
