"""The disk tier keeps the contract of a tier."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract.tier_suite import TierContract

from terracekv.tiers.clock import FakeClock
from terracekv.tiers.disk import DiskTier, open_disk


class TestDiskTier(TierContract):
    @pytest.fixture
    async def tier(self, clock: FakeClock, data_dir: Path) -> AsyncIterator[DiskTier]:
        opened = await open_disk(data_dir, 256 << 20, 1 << 20, clock)
        yield opened
        await opened.close()
