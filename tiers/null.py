"""The tier of a node that has none there: it holds nothing, misses everything and never fails."""

from __future__ import annotations

from collections.abc import Sequence

from terracekv.tiers.base import TierState, WriteLevel
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import (
    MISS,
    DeleteResult,
    Entry,
    Found,
    HeadFound,
    Key,
    PutResult,
    Stored,
    TierName,
)
from terracekv.tiers.stats import TierCounters


class NullTier:
    """Stands where a node runs with `--shared none`, so that nobody has to ask whether there is a tier."""

    def __init__(self, clock: Clock, name: TierName = TierName.SHARED) -> None:
        self._name = name
        self._clock = clock
        self.counters = TierCounters(entries=0)

    @property
    def name(self) -> TierName:
        return self._name

    async def get_many(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None = None) -> list[Found]:
        """Misses."""
        return [MISS] * len(keys)

    async def head_many(self, keys: Sequence[Key], deadline: Deadline) -> list[HeadFound]:
        """Misses."""
        return [MISS] * len(keys)

    async def put_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        """Forgets, and answers as if stored: there is nothing a caller could do about it."""
        return [Stored(entry.head.version) for _, entry in items]

    async def write_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        """Forgets. Versions that grow for ever are `LocalVersions`' task: these only follow the clock."""
        return [Stored(max(entry.head.version, self._clock.now_us())) for _, entry in items]

    async def delete_many(
        self, keys: Sequence[Key], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[DeleteResult]:
        """Succeeds: what is not there need not be removed."""
        return [None] * len(keys)

    async def clear(self) -> None:
        """Nothing to do."""

    def state(self) -> tuple[TierState, str]:
        """Always ABSENT."""
        return TierState.ABSENT, "not configured"

    async def close(self) -> None:
        """Nothing to do."""
