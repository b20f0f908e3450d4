"""A tier that holds a tier and times it: latency by operation, in fixed buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from terracekv.tiers.base import Tier, TierState, VersioningTier, WriteLevel
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import DeleteResult, Entry, Found, HeadFound, Key, PutResult, TierName
from terracekv.tiers.stats import TierCounters

# Upper bounds in seconds: from a memory look-up to a large value off a slow disk.
LATENCY_BOUNDS_S: Final = (
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip


@dataclass(slots=True)
class Latencies:
    """A histogram: counts by bucket, the last one for what is over every bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one operation."""
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class MeteredTier:
    """The tier it holds, timed. Batches count as one operation."""

    def __init__(self, tier: Tier, clock: Clock) -> None:
        self.tier = tier
        self.latencies = {operation: Latencies() for operation in ("get", "head", "put", "delete")}
        self._clock = clock

    @property
    def name(self) -> TierName:
        return self.tier.name

    @property
    def counters(self) -> TierCounters:
        return self.tier.counters

    async def get_many(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None = None) -> list[Found]:
        started_s = self._clock.age_s()
        try:
            return await self.tier.get_many(keys, deadline, bytes_max)
        finally:
            self.latencies["get"].observe(self._clock.age_s() - started_s)

    async def head_many(self, keys: Sequence[Key], deadline: Deadline) -> list[HeadFound]:
        started_s = self._clock.age_s()
        try:
            return await self.tier.head_many(keys, deadline)
        finally:
            self.latencies["head"].observe(self._clock.age_s() - started_s)

    async def put_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        started_s = self._clock.age_s()
        try:
            return await self.tier.put_many(items, deadline, level)
        finally:
            self.latencies["put"].observe(self._clock.age_s() - started_s)

    async def delete_many(
        self, keys: Sequence[Key], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[DeleteResult]:
        started_s = self._clock.age_s()
        try:
            return await self.tier.delete_many(keys, deadline, level)
        finally:
            self.latencies["delete"].observe(self._clock.age_s() - started_s)

    async def clear(self) -> None:
        await self.tier.clear()

    def state(self) -> tuple[TierState, str]:
        return self.tier.state()

    async def close(self) -> None:
        await self.tier.close()


class MeteredSharedTier(MeteredTier):
    """The same around a tier that gives versions."""

    def __init__(self, tier: VersioningTier, clock: Clock) -> None:
        super().__init__(tier, clock)
        self._versioning = tier
        self.latencies["write"] = Latencies()

    async def write_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        """As VersionAuthority says."""
        started_s = self._clock.age_s()
        try:
            return await self._versioning.write_many(items, deadline, level)
        finally:
            self.latencies["write"].observe(self._clock.age_s() - started_s)
