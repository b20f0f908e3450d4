"""Writes that go on after their answer: bounded in bytes, readable while they wait, in order for each key.

A put that was acked at one tier still owes a copy to others. Those copies wait
here. What waits can be read (`look`), so that an entry which memory has already
dropped is not missed. Over `pending_bytes_max` a put waits within its deadline
until there is room: nothing is dropped to make room. A copy that its tier
refuses is tried three times, then given up and counted: what was acked is at
the level it was acked with. Only a copy whose tier would otherwise answer with
an older value is tried on, for as long as it lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from terracekv.tiers.base import Tier
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import MISS, Entry, Key, Miss, TierFailure, TierName

BATCH_KEYS_MAX: Final = 64
BATCH_BYTES_MAX: Final = 16 * 1_048_576
WRITE_TIMEOUT_S: Final = 10.0
TRIES_MAX: Final = 3
RETRY_AFTER_S: Final = 0.5


@dataclass(slots=True, eq=False)
class _Pending:
    key: Key
    entry: Entry
    done: asyncio.Future[None] = field(repr=False)
    tries_max: int | None = TRIES_MAX
    tries: int = 0

    def is_over(self, now_us: int) -> bool:
        """Whether it is not tried again."""
        spent = self.tries_max is not None and self.tries >= self.tries_max
        return spent or self.entry.head.expired(now_us)


class _Lane:
    """The writes owed to one tier: one batch under way at a time, so that writes of a key keep their order."""

    def __init__(self, tier: Tier, owner: Background) -> None:
        self.tier = tier
        self.owner = owner
        self.waiting: dict[Key, _Pending] = {}  # the newest write of each key: an older one need not happen
        self.writing: dict[Key, _Pending] = {}
        self.task: asyncio.Task[None] | None = None

    def add(self, key: Key, entry: Entry, tries_max: int | None) -> None:
        older = self.waiting.pop(key, None)
        if older is not None:
            self.owner.settled(older)
        self.waiting[key] = _Pending(key, entry, asyncio.get_running_loop().create_future(), tries_max)
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._run())

    def find(self, key: Key) -> _Pending | None:
        return self.waiting.get(key) or self.writing.get(key)

    async def _run(self) -> None:
        while self.waiting:
            self._take_batch()
            try:
                failed = await self._write()
            finally:
                batch, self.writing = self.writing, {}
                for pending in batch.values():
                    if not pending.tries:
                        self.owner.settled(pending)
            if failed:
                await asyncio.sleep(RETRY_AFTER_S)

    def _take_batch(self) -> None:
        size_bytes = 0
        for key in list(self.waiting)[:BATCH_KEYS_MAX]:
            size_bytes += self.waiting[key].entry.head.size_bytes
            if self.writing and size_bytes > BATCH_BYTES_MAX:
                break
            self.writing[key] = self.waiting.pop(key)

    async def _write(self) -> bool:
        batch = list(self.writing.values())
        deadline = Deadline.after(WRITE_TIMEOUT_S, self.owner.clock)
        results = await self.tier.put_many([(item.key, item.entry) for item in batch], deadline)
        failed = [item for item, result in zip(batch, results, strict=True) if isinstance(result, TierFailure)]
        for item in batch:
            item.tries = item.tries + 1 if item in failed else 0
        for item in failed:
            self._again(item)
        return bool(failed)

    def _again(self, pending: _Pending) -> None:
        over = pending.is_over(self.owner.clock.now_us())
        if over or pending.key in self.waiting:
            self.owner.given_up += over
            pending.tries = 0  # settled by the caller
        else:
            self.waiting[pending.key] = pending


class Background:
    """The writes owed to lower tiers. Used on the event loop's thread only."""

    def __init__(self, tiers: Iterable[Tier], pending_bytes_max: int, clock: Clock) -> None:
        self.clock = clock
        self.pending_bytes_max = pending_bytes_max
        self.pending_bytes = 0
        self.flushed_bytes = 0  # payload bytes written by now, given up ones included
        self.given_up = 0  # copies that their tier refused three times
        self._lanes = {tier.name: _Lane(tier, self) for tier in tiers}
        self._room = asyncio.Event()

    async def admit(self, size_bytes: int, deadline: Deadline) -> bool:
        """Waits for room for `size_bytes`; False if the deadline came first. An empty table admits any size."""
        while not self.has_room(size_bytes):
            self._room.clear()
            try:
                async with asyncio.timeout(deadline.left_s()):
                    await self._room.wait()
            except TimeoutError:
                return False
        return True

    def has_room(self, size_bytes: int) -> bool:
        """Whether `admit` would not wait."""
        return not self.pending_bytes or self.pending_bytes + size_bytes <= self.pending_bytes_max

    def add(self, tier: TierName, key: Key, entry: Entry, tries_max: int | None = TRIES_MAX) -> None:
        """Owes a copy to a tier; with `tries_max` None until it is written or expires. Call `admit` before."""
        self.pending_bytes += entry.head.size_bytes
        self._lanes[tier].add(key, entry, tries_max)

    def look(self, key: Key, now_us: int) -> Entry | Miss:
        """An entry that waits, if it lives."""
        for lane in self._lanes.values():
            pending = lane.find(key)
            if pending is not None and not pending.entry.head.expired(now_us):
                return pending.entry
        return MISS

    async def forget(self, keys: Sequence[Key]) -> None:
        """Drops what waits for these keys, and waits for what is being written: the way is clear for a delete."""
        writing = []
        for lane in self._lanes.values():
            for key in keys:
                waiting = lane.waiting.pop(key, None)
                if waiting is not None:
                    self.settled(waiting)
                if key in lane.writing:
                    writing.append(lane.writing[key].done)
        if writing:
            await asyncio.wait(writing, timeout=WRITE_TIMEOUT_S)

    async def flush(self, deadline: Deadline) -> int:
        """Waits until everything owed so far is written; the payload bytes written meanwhile."""
        before = self.flushed_bytes
        owed = [item.done for lane in self._lanes.values() for item in (*lane.waiting.values(), *lane.writing.values())]
        if owed:
            await asyncio.wait(owed, timeout=deadline.left_s())
        return self.flushed_bytes - before

    def settled(self, pending: _Pending) -> None:
        """Books a write as over."""
        self.pending_bytes -= pending.entry.head.size_bytes
        self.flushed_bytes += pending.entry.head.size_bytes
        if not pending.done.done():
            pending.done.set_result(None)
        self._room.set()

    async def close(self, deadline: Deadline) -> None:
        """Writes what is owed within the deadline, then stops."""
        await self.flush(deadline)
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()
                await asyncio.wait([lane.task])
