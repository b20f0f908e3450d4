"""What every test may ask for: a clock that stands still, and a data directory of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from terracekv.tiers.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    """A clock that moves only when told."""
    return FakeClock()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Where a disk tier of this test may live; not there yet."""
    return tmp_path / "disk"
