"""The Makefile on a machine that lacks something: one line that names the cure."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OLD_PYTHON = """#!/bin/sh
exec {python} -c 'import sys; sys.version_info = (3, 9, 18, "final", 0); exec(sys.argv[1])' "$2"
"""
NO_VENV = """#!/bin/sh
if [ "$1" = "-m" ]; then echo "The virtual environment was not created" >&2; exit 1; fi
exec {python} "$@"
"""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (OLD_PYTHON, "terracekv needs Python 3.11 or newer, this is 3.9"),
        (NO_VENV, "terracekv needs Python's venv module"),
    ],
    ids=["old-python", "no-venv"],
)
@pytest.mark.parametrize("target", ["run", "test"])
def test_what_is_missing_is_named(script: str, words: str, target: str, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "python"
    python.write_text(script.format(python=sys.executable))
    python.chmod(0o755)
    ran = subprocess.run(
        ["make", target, f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode != 0
    assert len([line for line in ran.stderr.splitlines() if words in line]) == 1
    assert not (tmp_path / ".venv" / ".made").exists()


def test_the_two_commands_of_the_readme_are_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"run", "test", "demo", "check", "proto", "test-long"} <= targets
