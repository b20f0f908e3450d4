"""Wrappers change nothing of the contract: a tier that is timed, and one behind a breaker."""

from __future__ import annotations

import pytest
from contract.tier_suite import TierContract

from terracekv.tiers.breaker import BreakerTier
from terracekv.tiers.clock import FakeClock
from terracekv.tiers.memory import MemoryTier
from terracekv.tiers.metered import MeteredTier


class TestMeteredTier(TierContract):
    @pytest.fixture
    def tier(self, clock: FakeClock) -> MeteredTier:
        return MeteredTier(MemoryTier(64 << 20, clock=clock), clock)


class TestBreakerTier(TierContract):
    @pytest.fixture
    def tier(self, clock: FakeClock) -> BreakerTier:
        return BreakerTier(MemoryTier(64 << 20, clock=clock), clock, lambda: 0.5)
