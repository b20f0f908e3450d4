"""The demo: another process goes on from stored blocks, out of each tier, with the same tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def run_demo(*arguments: str, timeout_s: float) -> str:
    done = subprocess.run(
        [sys.executable, DEMO, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows_of(output: str) -> dict[str, list[str]]:
    return {line.split("  ")[0]: line.split() for line in output.splitlines() if line.startswith(("none", "L"))}


@pytest.mark.timeout(150)
def test_tiny_model_goes_on_from_every_tier_with_the_same_tokens() -> None:
    rows = rows_of(run_demo("--tiny", "--runs", "1", timeout_s=120))
    assert rows.keys() == {"none (cold)", "L1 memory", "L2 shared", "L3 disk"}
    for label, columns in rows.items():
        loaded, computed = (int(columns[place]) for place in (2, 3))
        assert loaded + computed == 630
        assert loaded == (0 if label == "none (cold)" else 608)


@pytest.mark.demo
@pytest.mark.timeout(900)
def test_real_model_gets_its_first_token_ten_times_sooner_from_every_tier() -> None:
    rows = rows_of(run_demo(timeout_s=840))
    assert rows.keys() == {"none (cold)", "L1 memory", "L2 shared", "L3 disk"}
    for label, columns in rows.items():
        if label != "none (cold)":
            assert int(columns[2]) > 1_000
            assert float(columns[6].removesuffix("x")) >= 10, rows
