"""A tier in a dict whose answers a test can hold back or make fail: for what must be controlled, and only for that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from terracekv.tiers.base import TierState, WriteLevel
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import (
    MISS,
    Answer,
    DeleteResult,
    Entry,
    FailureReason,
    Found,
    HeadFound,
    Key,
    Kind,
    PutResult,
    Stored,
    TierFailure,
    TierName,
)
from terracekv.tiers.placement import head_of, within
from terracekv.tiers.stats import TierCounters


class FakeTier:
    """Holds entries in a dict. `failing` makes every key fail; a closed `gate` holds gets after they have looked."""

    def __init__(self, name: TierName, clock: Clock, absent: bool = False) -> None:
        self.name = name
        self.counters = TierCounters()
        self.held: dict[Key, Entry] = {}
        self.levels: dict[Key, WriteLevel] = {}
        self.failing: FailureReason | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.looked = asyncio.Event()
        self.reads: list[list[Key]] = []
        self.closed = False
        self._absent = absent
        self._clock = clock

    def _fail(self, count: int, deadline: Deadline) -> list[TierFailure] | None:
        reason, words = self.failing, "told to fail"
        if self.closed:
            reason, words = FailureReason.UNAVAILABLE, "closed"
        elif deadline.passed():
            reason, words = FailureReason.TIMEOUT, "the deadline passed"
        if reason is None:
            return None
        self.counters.failures += count
        return [TierFailure(self.name, reason, words)] * count

    async def get_many(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None = None) -> list[Found]:
        self.reads.append(list(keys))
        found = self._found(keys)
        self.looked.set()
        try:
            async with asyncio.timeout(deadline.left_s()):
                await self.gate.wait()
        except TimeoutError:
            return [TierFailure(self.name, FailureReason.TIMEOUT, "held back")] * len(keys)
        failed: list[Found] | None = self._fail(len(keys), deadline)  # type: ignore[assignment]
        if failed is not None:
            return failed
        answers = [answer.found for answer in within([Answer(one) for one in found], bytes_max)]
        self._count_reads(answers)
        self.counters.read_bytes += sum(one.head.size_bytes for one in answers if isinstance(one, Entry))
        return answers

    async def head_many(self, keys: Sequence[Key], deadline: Deadline) -> list[HeadFound]:
        self.reads.append(list(keys))
        failed: list[HeadFound] | None = self._fail(len(keys), deadline)  # type: ignore[assignment]
        if failed is not None:
            return failed
        found = self._found(keys)
        self._count_reads(found)
        return [head_of(one) for one in found]

    def _found(self, keys: Sequence[Key]) -> list[Found]:
        now_us = self._clock.now_us()
        entries = [self.held.get(key) for key in keys]
        return [MISS if one is None or one.head.expired(now_us) else one for one in entries]

    def _count_reads(self, answers: Sequence[Found]) -> None:
        self.counters.hits += sum(bool(one) for one in answers)
        self.counters.misses += sum(one is MISS for one in answers)

    async def put_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        failed: list[PutResult] | None = self._fail(len(items), deadline)  # type: ignore[assignment]
        if failed is not None:
            return failed
        return [self._put(key, entry, level) for key, entry in items]

    def _put(self, key: Key, entry: Entry, level: WriteLevel) -> PutResult:
        held = self.held.get(key)
        if held is not None and not held.head.expired(self._clock.now_us()):
            older = entry.head.version < held.head.version
            if entry.head.kind is Kind.IMMUTABLE or older:
                self.counters.kept += 1
                return Stored(held.head.version, kept=True, differs=held.head.checksum != entry.head.checksum)
        self.held[key] = entry
        self.levels[key] = level
        self.counters.puts += 1
        self.counters.written_bytes += entry.head.size_bytes
        return Stored(entry.head.version)

    async def write_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        failed: list[PutResult] | None = self._fail(len(items), deadline)  # type: ignore[assignment]
        if failed is not None:
            return failed
        results: list[PutResult] = []
        for key, entry in items:
            held = self.held.get(key)
            version = max((held.head.version + 1) if held else 0, self._clock.now_us(), entry.head.version)
            results.append(self._put(key, Entry(entry.head._replace(version=version), entry.frames), level))
        return results

    async def delete_many(
        self, keys: Sequence[Key], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[DeleteResult]:
        failed: list[DeleteResult] | None = self._fail(len(keys), deadline)  # type: ignore[assignment]
        if failed is not None:
            return failed
        for key in keys:
            self.held.pop(key, None)
        self.counters.deletes += len(keys)
        return [None] * len(keys)

    async def clear(self) -> None:
        self.held.clear()

    def state(self) -> tuple[TierState, str]:
        if self._absent:
            return TierState.ABSENT, "not configured"
        if self.closed:
            return TierState.DOWN, "closed"
        return (TierState.DOWN, "told to fail") if self.failing else (TierState.UP, "a dict")

    async def close(self) -> None:
        self.closed = True


class FakeRecords:
    """A record store in a dict."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.error: Exception | None = None

    async def load(self, deadline: Deadline) -> dict[str, bytes]:
        if self.error is not None:
            raise self.error
        return dict(self.records)

    async def swap(self, name: str, expected: bytes | None, value: bytes, deadline: Deadline) -> bool:
        if self.error is not None:
            raise self.error
        if self.records.get(name) != expected:
            return False
        self.records[name] = value
        return True


class FakeReservation:
    """A number that survives whoever used it."""

    def __init__(self) -> None:
        self.number = 0

    async def load(self) -> int:
        return self.number

    async def save(self, number: int) -> None:
        self.number = number
