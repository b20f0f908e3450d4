"""One writer for the cache class: what waits is written together, so that one sync serves many callers.

Requests are applied in the order they came, in one thread; a key is compared
with what is stored and written in one step, so that of two first puts one is
kept. A group ends before a key that it already has. Parts go before their head,
into the same segment: a head that is there has its parts.

Entries of every level share the memory of a segment, and the newest counts. So
a write that leaves an entry in place answers for that entry: if kill -9 could
still lose it, it is written again at the level asked for.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from terracekv.tiers.base import WriteLevel
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.disk_reader import HEAD, HEADS_AT_ONCE, DiskReader, Located, markers, part_key
from terracekv.tiers.entry import Entry, FailureReason, Key, Kind, Miss, Stored, TierFailure, TierName
from terracekv.tiers.envelope import encode_inline, encode_parts
from terracekv.tiers.rocks import is_full, one_line
from terracekv.tiers.segments import DELETED, Segments

INLINE_BYTES_MAX: Final = 65_536
GROUP_BYTES_MAX: Final = 33_554_432
GROUP_REQUESTS_MAX: Final = 1_024
QUEUE_BYTES_MAX: Final = 268_435_456
PARTS_ID_BYTES: Final = 8

Result = Stored | TierFailure | None
Records = list[tuple[bytes, bytes]]


@dataclass(slots=True, eq=False)
class Request:
    """One put (with an entry) or delete (without) of one key."""

    key: Key
    entry: Entry | None
    level: WriteLevel
    done: asyncio.Future[Result]

    @property
    def size_bytes(self) -> int:
        """What it adds to a group."""
        return self.entry.head.size_bytes if self.entry else 0


@dataclass(slots=True)
class _Group:
    """Records of one group, a list for each key, by the log they need; and the answers if the writes succeed."""

    buffered: list[Records] = field(default_factory=list)
    logged: list[Records] = field(default_factory=list)
    answers: list[Result] = field(default_factory=list)

    def add(self, records: Records, level: WriteLevel) -> None:
        (self.buffered if level is WriteLevel.BUFFERED else self.logged).append(records)


class DiskWriter:
    """The queue in front of the writer's thread. `executor` must have one thread. Used on the event loop's thread."""

    def __init__(self, segments: Segments, reader: DiskReader, executor: Executor, clock: Clock) -> None:
        self.waiting_bytes = 0
        self._group_bytes_max = min(GROUP_BYTES_MAX, segments.segment_bytes)
        self._segments = segments
        self._reader = reader
        self._executor = executor
        self._clock = clock
        self._waiting: deque[Request] = deque()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def submit(self, key: Key, entry: Entry | None, level: WriteLevel) -> asyncio.Future[Result]:
        """Queues a write; the future is its answer. It happens even if nobody waits any more."""
        loop = asyncio.get_running_loop()
        request = Request(key, entry, level, loop.create_future())
        self._waiting.append(request)
        self.waiting_bytes += request.size_bytes
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return request.done

    async def admit(self, size_bytes: int, deadline: Deadline) -> bool:
        """Waits until so many bytes more may be queued; False if the deadline came first.

        Their callers hold them anyway; waiting out here keeps the queue short
        for whoever closes the tier. An empty queue admits any size.
        """
        while self.waiting_bytes and self.waiting_bytes + size_bytes > QUEUE_BYTES_MAX:
            self._room.clear()
            try:
                async with asyncio.timeout(deadline.left_s()):
                    await self._room.wait()
            except TimeoutError:
                return False
        return True

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group = self._take_group()
            answers = await loop.run_in_executor(self._executor, self._apply, group)
            for request, answer in zip(group, answers, strict=True):
                self.waiting_bytes -= request.size_bytes
                if not request.done.done():
                    request.done.set_result(answer)
            self._room.set()

    def _take_group(self) -> list[Request]:
        group: list[Request] = []
        keys: set[Key] = set()
        size_bytes = 0
        while self._waiting and len(group) < GROUP_REQUESTS_MAX:
            request = self._waiting[0]
            size_bytes += request.size_bytes
            if request.key in keys or (group and size_bytes > self._group_bytes_max):
                break
            keys.add(request.key)
            group.append(self._waiting.popleft())
        return group

    async def drained(self) -> None:
        """Waits until everything queued is written."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    # --- in the writer's thread ---

    def _apply(self, requests: Sequence[Request]) -> list[Result]:
        try:
            group = _Group()
            for start in range(0, len(requests), HEADS_AT_ONCE):
                run = requests[start : start + HEADS_AT_ONCE]
                located, _ = self._reader.locate([request.key for request in run], self._clock.now_us())
                group.answers.extend(self._plan(group, request, located[request.key]) for request in run)
            self._segments.write(group.buffered, logged=False)
            self._segments.write(group.logged, logged=True)
            if any(request.level is WriteLevel.SYNCED for request in requests):
                self._segments.sync()
            self._segments.rotate_if_full()
            return group.answers
        except Exception as error:  # rocksdict raises no narrower class
            failure = write_failure(error)
            return [failure] * len(requests)

    def _plan(self, group: _Group, request: Request, there: Located | Miss) -> Result:
        if request.entry is None:
            self._plan_delete(group, request, there)
            return None
        head = request.entry.head
        if isinstance(there, Located):
            stored = there.record.head
            keeps = stored.kind is Kind.IMMUTABLE or head.version < stored.version
            if keeps and self._holds(group, request, there):
                return Stored(stored.version, kept=True, differs=stored.checksum != head.checksum)
        group.add(self._records(request.key, request.entry, request.level), request.level)
        return Stored(head.version)

    def _plan_delete(self, group: _Group, request: Request, there: Located | Miss) -> None:
        # An absent key may be one whose tombstone kill -9 would lose: then it is written again, logged.
        logged = request.level is not WriteLevel.BUFFERED
        if isinstance(there, Located) or (logged and self._segments.may_lose()):
            group.add([(HEAD + request.key.digest, DELETED)], request.level)

    def _holds(self, group: _Group, request: Request, there: Located) -> bool:
        """Whether the stored entry can be kept at the level asked for; sees to it if it can."""
        if request.level is WriteLevel.BUFFERED or not there.segment.may_lose():
            return True
        entry = self._reader.entry(there)
        if isinstance(entry, Entry):
            group.add(self._records(request.key, entry, request.level), request.level)
        return isinstance(entry, Entry)

    def _records(self, key: Key, entry: Entry, level: WriteLevel) -> Records:
        if entry.head.size_bytes <= INLINE_BYTES_MAX:
            record = encode_inline(key, entry)
        else:
            parts_id = os.urandom(PARTS_ID_BYTES)
            record, parts = encode_parts(key, entry, parts_id)
            keyed = ([(part_key(parts_id, index), part)] for index, part in enumerate(parts))
            self._segments.write(keyed, logged=level is not WriteLevel.BUFFERED)
        return [(HEAD + key.digest, record), *markers(entry.head.kind, key.digest)]


def write_failure(error: Exception) -> TierFailure:
    """The answer to a write that RocksDB refused."""
    reason = FailureReason.FULL if is_full(error) else FailureReason.UNAVAILABLE
    return TierFailure(TierName.DISK, reason, one_line(error))
