"""The shared tier keeps the contract of a tier: over a cluster, over one server, and behind a breaker."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import pytest
from contract.tier_suite import TierContract

from terracekv.tiers.breaker import BreakerTier
from terracekv.tiers.clock import FakeClock
from terracekv.tiers.embedded import EmbeddedCluster
from terracekv.tiers.shared import SharedTier

MakeTier = Callable[..., SharedTier]


class TestSharedTierOverACluster(TierContract):
    @pytest.fixture
    async def tier(self, cluster: EmbeddedCluster, make_tier: MakeTier, clock: FakeClock) -> AsyncIterator[SharedTier]:
        tier = make_tier(cluster.url, clock=clock)
        await tier.connect()
        yield tier
        if not tier.masters.closed:
            await tier.clear()


class TestSharedTierOverOneServer(TierContract):
    @pytest.fixture
    async def tier(self, single_url: str, make_tier: MakeTier, clock: FakeClock) -> AsyncIterator[SharedTier]:
        tier = make_tier(single_url, clock=clock)
        await tier.connect()
        yield tier
        if not tier.masters.closed:
            await tier.clear()


class TestSharedTierBehindABreaker(TierContract):
    @pytest.fixture
    async def tier(self, cluster: EmbeddedCluster, make_tier: MakeTier, clock: FakeClock) -> AsyncIterator[BreakerTier]:
        inner = make_tier(cluster.url, clock=clock)
        await inner.connect()
        yield BreakerTier(inner, clock, random.Random(2).random)
        if not inner.masters.closed:
            await inner.clear()
