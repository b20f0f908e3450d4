"""L1: an LRU in the process, bounded in bytes; what it holds nobody can change, and a look costs no await.

Keys are compared whole, so that two keys whose digests collide are two entries.
Small entries are many, so keys and heads are held packed: an entry of ten
Python objects would cost twice its booked overhead. The event loop is the user;
one short lock keeps the map whole when threads look at it too.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any, Final, Literal

from cachetools import LRUCache

from terracekv.tiers.base import TierState, WriteLevel
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import (
    MISS,
    Answer,
    Codec,
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

# Objects of an entry and its places in the map. A test measures it at half load of the hash tables; while few
# entries are in tables that have just grown it can be a hundred bytes more.
OVERHEAD_BYTES: Final = 460
FRAME_OVERHEAD_BYTES: Final = 48  # of each further frame: its object and its place in the tuple
VALUE_SHARE: Final = 8  # one value may take 1/8 of the tier

# The fields of Head in their order, then the moment it was proven to be the newest.
_PACKED: Final = struct.Struct("<QQQQ16sBBd")
_EXPIRES, _KIND, _PROVEN = 3, 5, 7
_KINDS: Final = {int(kind): kind for kind in Kind}
_IMMUTABLE: Final = int(Kind.IMMUTABLE)
_CODECS: Final = {int(codec): codec for codec in Codec}

_Held = tuple[bytes, ...]  # a packed head, then the frames


def cost_bytes(key: Key, entry: Entry) -> int:
    """What an entry takes of the tier: payload, user key and overhead."""
    return _cost(entry.head.size_bytes, len(key.user), len(entry.frames))


def _cost(size_bytes: int, key_bytes: int, frames: int) -> int:
    return size_bytes + key_bytes + OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES * (frames - 1)


class _Map:
    """cachetools' LRU with the cost of what is in it. Keys are the identity of a Key in one `bytes`."""

    SCOPE_BYTES: Final = 4

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.evictions = 0
        # Bounded by the cost kept here; a size function of cachetools would need a table of sizes.
        self.lru: LRUCache[bytes, _Held] = LRUCache(capacity_bytes)
        self._scopes: dict[tuple[str, int, str], bytes] = {}

    def name(self, key: Key) -> bytes:
        """The identity of a key: namespace, epoch and tenant by number, and the user's key."""
        scope = (key.namespace, key.epoch, key.tenant)
        number = self._scopes.get(scope)
        if number is None:
            number = self._scopes[scope] = len(self._scopes).to_bytes(self.SCOPE_BYTES, "big")
        return number + key.user

    def store(self, name: bytes, held: _Held, cost: int) -> None:
        """Adds what is not there, dropping the least recently used to make room."""
        while self.used_bytes + cost > self.capacity_bytes:
            self._left(*self.lru.popitem())
            self.evictions += 1
        self.lru[name] = held
        self.used_bytes += cost

    def drop(self, name: bytes) -> None:
        """Removes what may be there."""
        held = self.lru.pop(name, None)
        if held is not None:
            self._left(name, held)

    def _left(self, name: bytes, held: _Held) -> None:
        self.used_bytes -= _cost(sum(map(len, held[1:])), len(name) - self.SCOPE_BYTES, len(held) - 1)

    def clear(self) -> None:
        """Removes everything."""
        self.lru.clear()
        self._scopes.clear()
        self.used_bytes = 0


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
        self._map = _Map(capacity_bytes)
        self._closed = False

    @property
    def counters(self) -> TierCounters:
        """Its counters, live."""
        with self._lock:
            self._counters.used_bytes = self._map.used_bytes
            self._counters.entries = len(self._map.lru)
            self._counters.evictions = self._map.evictions
        return self._counters

    def peek(self, key: Key, proven_after_s: float = 0.0, *, again: bool = False) -> Entry | Miss:
        """The entry, if it lives and was proven after that moment of `Clock.age_s`; without await.

        `again`: a second look of the same reader, whose miss is counted already.
        """
        with self._lock:
            found = self._live(key, proven_after_s)
            if found is not MISS:
                self._counters.read_bytes += found.head.size_bytes
            elif again:
                self._counters.misses -= 1
            return found

    def peek_head(self, key: Key, proven_after_s: float = 0.0) -> Head | Miss:
        """The same without payload."""
        with self._lock:
            found = self._live(key, proven_after_s)
        return MISS if found is MISS else found.head

    def _live(self, key: Key, proven_after_s: float = 0.0) -> Entry | Literal[Miss.MISS]:
        """What is held of a key, counted. Called with the lock held."""
        name = self._map.name(key)
        held = self._map.lru.get(name)
        if held is not None:
            fields = _PACKED.unpack(held[0])
            if 0 < fields[_EXPIRES] <= self._clock.now_us():
                self._map.drop(name)
            elif fields[_KIND] == _IMMUTABLE or fields[_PROVEN] >= proven_after_s:
                self._counters.hits += 1
                return Entry(_head(fields), held[1:])
        self._counters.misses += 1
        return MISS

    async def get_many(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None = None) -> list[Found]:
        """As in the contract."""
        failed: list[Found] = self._failed(keys, deadline)
        if failed:
            return failed
        with self._lock:
            found = [answer.found for answer in within([Answer(self._live(key)) for key in keys], bytes_max)]
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
        head = entry.head
        with self._lock:
            name = self._map.name(key)
            held = self._map.lru.get(name)
            if held is not None:
                there = _head(_PACKED.unpack(held[0]))
                keeps = there.kind is Kind.IMMUTABLE or head.version < there.version
                if keeps and not there.expired(self._clock.now_us()):
                    self._counters.kept += 1
                    return Stored(there.version, kept=True, differs=there.checksum != head.checksum)
            # The older copy goes first: it must not be served if the new one is skipped, nor take the new one's room.
            self._map.drop(name)
            cost = cost_bytes(key, entry)
            if head.size_bytes > self.value_bytes_max or cost > self._map.capacity_bytes:
                self._counters.skipped_bytes += head.size_bytes
            else:
                self._map.store(name, (_packed(head, self._clock.age_s()), *entry.frames), cost)
                self._counters.puts += 1
                self._counters.written_bytes += head.size_bytes
        return Stored(head.version)

    async def delete_many(
        self, keys: Sequence[Key], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[DeleteResult]:
        """As in the contract. Does not yield to the loop, and does not mind the deadline: what must go goes."""
        if self._closed:
            failed: list[DeleteResult] = self._failed(keys, deadline)
            return failed
        with self._lock:
            for key in keys:
                self._map.drop(self._map.name(key))
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
            self._map.clear()

    def state(self) -> tuple[TierState, str]:
        """Up until closed."""
        return (TierState.DOWN, "closed") if self._closed else (TierState.UP, "in this process")

    async def close(self) -> None:
        """Drops everything. Idempotent."""
        self._closed = True
        await self.clear()


def _packed(head: Head, proven_s: float) -> bytes:
    return _PACKED.pack(*head, proven_s)


def _head(fields: tuple[Any, ...]) -> Head:
    # Not by Head(...), which takes half of the time of a look.
    return tuple.__new__(Head, (*fields[:_KIND], _KINDS[fields[_KIND]], _CODECS[fields[_KIND + 1]]))
