"""L1: an LRU in the process, bounded in bytes; what it holds nobody can change, and a look costs no await.

Keys are compared whole, so that two keys whose digests collide are two entries.
The event loop is the user; one short lock keeps the map whole when threads look
at it too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from cachetools import LRUCache

from terracekv.tiers.base import TierState, WriteLevel
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import (
    MISS,
    Answer,
    DeleteResult,
    Entry,
    FailureReason,
    Found,
    Head,
    HeadFound,
    Key,
    Kind,
    Miss,
    PutResult,
    Stored,
    TierFailure,
    TierName,
)
from terracekv.tiers.placement import within
from terracekv.tiers.stats import TierCounters

# Objects of a key, its entry and the map's places for them; a test measures that it is not less than the truth.
OVERHEAD_BYTES: Final = 480
FRAME_OVERHEAD_BYTES: Final = 48  # of each further frame: its object and its place in the tuple
VALUE_SHARE: Final = 8  # one value may take 1/8 of the tier


class _Held(NamedTuple):
    """An entry, what it costs, and when it was proven to be the newest (on the clock's `age_s`)."""

    entry: Entry
    cost_bytes: int
    proven_s: float


def cost_bytes(key: Key, entry: Entry) -> int:
    """What an entry takes of the tier: payload, user key and overhead."""
    frames_bytes = FRAME_OVERHEAD_BYTES * (len(entry.frames) - 1)
    return entry.head.size_bytes + len(key.user) + OVERHEAD_BYTES + frames_bytes


class _Lru(LRUCache[Key, _Held]):
    """cachetools' LRU by cost, counting what it drops to make room."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes, getsizeof=lambda held: held.cost_bytes)
        self.evictions = 0

    def popitem(self) -> tuple[Key, _Held]:
        """Drops the least recently used."""
        self.evictions += 1
        return super().popitem()


class MemoryTier:
    """The memory tier: at most `capacity_bytes` with overhead; values over `value_bytes_max` pass it by."""

    name = TierName.MEMORY

    def __init__(self, capacity_bytes: int, value_bytes_max: int | None = None, *, clock: Clock) -> None:
        self.value_bytes_max = min(
            capacity_bytes // VALUE_SHARE if value_bytes_max is None else value_bytes_max, capacity_bytes // 2
        )
        self._clock = clock
        self._counters = TierCounters(capacity_bytes=capacity_bytes, entries=0)
        self._lock = threading.Lock()
        self._held = _Lru(capacity_bytes)
        self._closed = False

    @property
    def counters(self) -> TierCounters:
        """Its counters, live."""
        with self._lock:
            self._counters.used_bytes = int(self._held.currsize)
            self._counters.entries = len(self._held)
            self._counters.evictions = self._held.evictions
        return self._counters

    def peek(self, key: Key, proven_after_s: float = 0.0) -> Entry | Miss:
        """The entry, if it lives and was proven after that moment of `Clock.age_s`; without await."""
        with self._lock:
            found = self._live(key, proven_after_s)
            if isinstance(found, Entry):
                self._counters.read_bytes += found.head.size_bytes
            return found

    def peek_head(self, key: Key, proven_after_s: float = 0.0) -> Head | Miss:
        """The same without payload."""
        with self._lock:
            found = self._live(key, proven_after_s)
        return found.head if isinstance(found, Entry) else MISS

    def _live(self, key: Key, proven_after_s: float) -> Entry | Miss:
        """Called with the lock held."""
        held = self._held.get(key)
        if held is not None:
            head = held.entry.head
            if head.expired(self._clock.now_us()):
                del self._held[key]
            elif head.kind is Kind.IMMUTABLE or held.proven_s >= proven_after_s:
                self._counters.hits += 1
                return held.entry
        self._counters.misses += 1
        return MISS

    async def get_many(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None = None) -> list[Found]:
        """As in the contract."""
        failed: list[Found] = self._failed(keys, deadline)
        if failed:
            return failed
        with self._lock:
            there = [Answer(self._live(key, 0.0)) for key in keys]
            found = [answer.found for answer in within(there, bytes_max)]
            self._counters.read_bytes += sum(one.head.size_bytes for one in found if isinstance(one, Entry))
        return found

    async def head_many(self, keys: Sequence[Key], deadline: Deadline) -> list[HeadFound]:
        """As in the contract."""
        failed: list[HeadFound] = self._failed(keys, deadline)
        return failed or [self.peek_head(key) for key in keys]

    async def put_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        """As in the contract. Does not yield to the loop: callers rely on it to change several things in one step."""
        failed: list[PutResult] = self._failed(items, deadline)
        return failed or [self._put(key, entry) for key, entry in items]

    def _put(self, key: Key, entry: Entry) -> Stored:
        with self._lock:
            held = self._held.get(key)
            if held is not None and not held.entry.head.expired(self._clock.now_us()):
                there = held.entry.head
                if there.kind is Kind.IMMUTABLE or entry.head.version < there.version:
                    self._counters.kept += 1
                    return Stored(there.version, kept=True, differs=there.checksum != entry.head.checksum)
            # The older copy goes first: it must not be served if the new one is skipped, nor take the new one's room.
            self._held.pop(key, None)
            cost = cost_bytes(key, entry)
            if entry.head.size_bytes > self.value_bytes_max or cost > self._held.maxsize:
                self._counters.skipped_bytes += entry.head.size_bytes
            else:
                self._held[key] = _Held(entry, cost, self._clock.age_s())
                self._counters.puts += 1
                self._counters.written_bytes += entry.head.size_bytes
        return Stored(entry.head.version)

    async def delete_many(
        self, keys: Sequence[Key], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[DeleteResult]:
        """As in the contract. Does not yield to the loop, and does not mind the deadline: what must go goes."""
        if self._closed:
            failed: list[DeleteResult] = self._failed(keys, deadline)
            return failed
        with self._lock:
            for key in keys:
                self._held.pop(key, None)
            self._counters.deletes += len(keys)
        return [None] * len(keys)

    def _failed(self, batch: Sequence[object], deadline: Deadline) -> list:  # type: ignore[type-arg]
        if not self._closed and not deadline.passed():
            return []
        reason, words = FailureReason.TIMEOUT, "the deadline passed"
        if self._closed:
            reason, words = FailureReason.UNAVAILABLE, "closed"
        with self._lock:
            self._counters.failures += len(batch)
        return [self._failure(reason, words)] * len(batch)

    def _failure(self, reason: FailureReason, words: str) -> TierFailure:
        return TierFailure(self.name, reason, words)

    async def clear(self) -> None:
        """Empties it."""
        with self._lock:
            self._held.clear()

    def state(self) -> tuple[TierState, str]:
        """Up until closed."""
        return (TierState.DOWN, "closed") if self._closed else (TierState.UP, "in this process")

    async def close(self) -> None:
        """Drops everything. Idempotent."""
        self._closed = True
        await self.clear()
