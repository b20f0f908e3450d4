"""The memory tier keeps the contract of a tier."""

from __future__ import annotations

import pytest
from contract.tier_suite import TierContract

from terracekv.tiers.clock import FakeClock
from terracekv.tiers.memory import MemoryTier


class TestMemoryTier(TierContract):
    @pytest.fixture
    def tier(self, clock: FakeClock) -> MemoryTier:
        return MemoryTier(64 << 20, clock=clock)
