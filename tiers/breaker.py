"""Stops asking what does not answer, and asks again by itself: the breaker as a pure state machine, and as a tier.

Closed: calls pass. After five failures in a row, or when half of at least
twenty calls within ten seconds failed, it opens: calls are refused at once.
After one to two seconds (drawn, so that nodes do not return in step) one
probe passes; its success closes the breaker, its failure opens it again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from terracekv.tiers.base import Tier, TierState, WriteLevel
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import (
    DeleteResult,
    Entry,
    FailureReason,
    Found,
    HeadFound,
    Key,
    PutResult,
    TierFailure,
    TierName,
)
from terracekv.tiers.stats import TierCounters

FAILURES_IN_A_ROW_MAX: Final = 5
WINDOW_S: Final = 10.0
WINDOW_CALLS_MIN: Final = 20
FAILED_SHARE_MAX: Final = 0.5
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 2.0
_SLICES: Final = 10  # the window moves in steps of a tenth of its length

T = TypeVar("T")


class BreakerState(enum.Enum):
    """What a breaker does with calls."""

    CLOSED = enum.auto()
    OPEN = enum.auto()
    HALF_OPEN = enum.auto()


class Breaker:
    """The state machine. Time (seconds that never go back) and a uniform draw in [0, 1) come in by argument."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.state = BreakerState.CLOSED
        self.opened = 0  # how often it opened
        self._draw = draw
        self._in_a_row = 0
        self._retry_at_s = 0.0
        self._slices: dict[int, list[int]] = {}  # number of the slice: calls, failures

    def allow(self, now_s: float) -> bool:
        """Whether a call may go. In the half-open state the one that may is the probe: report how it went."""
        if self.state is BreakerState.CLOSED:
            return True
        if not self.due(now_s):
            return False
        self.state = BreakerState.HALF_OPEN
        return True

    def due(self, now_s: float) -> bool:
        """Whether a probe would be allowed now."""
        return self.state is BreakerState.OPEN and now_s >= self._retry_at_s

    def succeeded(self, now_s: float) -> None:
        """A call was answered. One that was under way when the breaker opened does not close it: the probe does."""
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.CLOSED
            self._slices.clear()
        self._in_a_row = 0
        if self.state is BreakerState.CLOSED:
            self._count(now_s, failed=0)

    def failed(self, now_s: float) -> None:
        """A call was not answered."""
        if self.state is BreakerState.HALF_OPEN:
            self._open(now_s)
        elif self.state is BreakerState.CLOSED:
            self._in_a_row += 1
            self._count(now_s, failed=1)
            if self._in_a_row >= FAILURES_IN_A_ROW_MAX or self._mostly_failed():
                self._open(now_s)

    def abandoned(self) -> None:
        """A call ended without telling anything, such as one cancelled. The next caller may probe."""
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.OPEN

    def _open(self, now_s: float) -> None:
        self.state = BreakerState.OPEN
        self.opened += 1
        self._in_a_row = 0
        self._slices.clear()
        self._retry_at_s = now_s + RETRY_S_MIN + (RETRY_S_MAX - RETRY_S_MIN) * self._draw()

    def _count(self, now_s: float, failed: int) -> None:
        number = int(now_s * _SLICES / WINDOW_S)
        if number not in self._slices:
            self._slices = {old: counts for old, counts in self._slices.items() if old > number - _SLICES}
            self._slices[number] = [0, 0]
        self._slices[number][0] += 1
        self._slices[number][1] += failed

    def _mostly_failed(self) -> bool:
        calls = sum(counts[0] for counts in self._slices.values())
        failures = sum(counts[1] for counts in self._slices.values())
        return calls >= WINDOW_CALLS_MIN and failures >= calls * FAILED_SHARE_MAX


class BreakerTier:
    """The tier it holds, left alone while it does not answer. A call failed if every key of it did."""

    def __init__(self, tier: Tier, clock: Clock, draw: Callable[[], float]) -> None:
        self.tier = tier
        self.breaker = Breaker(draw)
        self._clock = clock

    @property
    def name(self) -> TierName:
        return self.tier.name

    @property
    def counters(self) -> TierCounters:
        return self.tier.counters

    async def get_many(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None = None) -> list[Found]:
        return await self._guarded(len(keys), lambda: self.tier.get_many(keys, deadline, bytes_max))

    async def head_many(self, keys: Sequence[Key], deadline: Deadline) -> list[HeadFound]:
        return await self._guarded(len(keys), lambda: self.tier.head_many(keys, deadline))

    async def put_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        return await self._guarded(len(items), lambda: self.tier.put_many(items, deadline, level))

    async def delete_many(
        self, keys: Sequence[Key], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[DeleteResult]:
        return await self._guarded(len(keys), lambda: self.tier.delete_many(keys, deadline, level))

    async def clear(self) -> None:
        await self.tier.clear()

    def state(self) -> tuple[TierState, str]:
        """DOWN while open, DEGRADED while it tries; otherwise what the tier says."""
        if self.breaker.state is BreakerState.OPEN:
            return TierState.DOWN, "does not answer; tried again within 2 s of the next call"
        if self.breaker.state is BreakerState.HALF_OPEN:
            return TierState.DEGRADED, "tried again"
        return self.tier.state()

    async def close(self) -> None:
        await self.tier.close()

    async def _guarded(self, count: int, call: Callable[[], Coroutine[Any, Any, list[T]]]) -> list[T | TierFailure]:
        if not self.breaker.allow(self._clock.age_s()):
            self.counters.failures += count
            return [TierFailure(self.name, FailureReason.UNAVAILABLE, "cut off by its breaker")] * count
        try:
            results = await call()
        except BaseException:
            self.breaker.abandoned()
            raise
        if results and all(_unanswered(result) for result in results):
            self.breaker.failed(self._clock.age_s())
        else:
            self.breaker.succeeded(self._clock.age_s())
        return [*results]


def _unanswered(result: object) -> bool:
    return isinstance(result, TierFailure) and result.reason is not FailureReason.FULL
