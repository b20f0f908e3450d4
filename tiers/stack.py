"""The ordered tiers and the one place of policy: what is asked, filled, owed and dropped, and in which order.

A get looks in memory and at what waits to be written, without await; then one
load for all who miss the same key asks the shared tier and the disk, and fills
upward. A put writes what its durability asks for, then memory, and owes the
rest to the background. Hit, miss and failed tier stay three outcomes.

Who is right about a mutable key is the shared tier where there is one, else
this node's disk. The disk's copy of a mutable entry is not asked while a shared
tier exists: another node may have replaced it.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from terracekv.tiers.background import TRIES_MAX, Background
from terracekv.tiers.base import Tier, TierState, VersioningTier, WriteLevel
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import (
    MISS,
    Answer,
    DeleteResult,
    Durability,
    Entry,
    FailureReason,
    Head,
    HeadFound,
    Key,
    KeySpace,
    Kind,
    PutResult,
    Stored,
    TierFailure,
    TierName,
    checksum_of,
)
from terracekv.tiers.errors import FieldInvalid
from terracekv.tiers.flight import Flight, Flights, landed
from terracekv.tiers.floors import remove_hidden
from terracekv.tiers.memory import MemoryTier
from terracekv.tiers.namespaces import Namespace, Namespaces
from terracekv.tiers.placement import Placement, head_of, hidden, merged, within, worth_another_load
from terracekv.tiers.ttl import expires_us
from terracekv.tiers.versions import LocalVersions

LANDING_S: Final = 0.015

T = TypeVar("T")


class Put(NamedTuple):
    """One value to store, checked: its user key, its payload in frames, and their xxh3-128 if it is known."""

    user_key: bytes
    frames: tuple[bytes, ...]
    checksum: bytes = b""


class Stack:
    """A node's tiers.

    `draw` gives uniform numbers in [0, 1) for jitter. A mutable entry is served
    from memory up to `mutable_age_s_max` after it was read or written here: as
    long as another node may write it unheard, that bounds how old it can be.
    """

    def __init__(
        self,
        memory: MemoryTier,
        shared: VersioningTier,
        disk: Tier,
        namespaces: Namespaces,
        background: Background,
        versions: LocalVersions,
        keyspace: KeySpace,
        clock: Clock,
        draw: Callable[[], float],
        mutable_age_s_max: float = math.inf,
    ) -> None:
        self.memory = memory
        self.shared = shared
        self.disk = disk
        self.namespaces = namespaces
        self.background = background
        self.flights = Flights()
        self.highest_version = 0
        self._writes: set[asyncio.Task[Any]] = set()
        self._versions = versions
        self._keyspace = keyspace
        self._clock = clock
        self._draw = draw
        self._mutable_age_s_max = mutable_age_s_max
        self._below: dict[TierName, Tier] = {TierName.SHARED: shared, TierName.DISK: disk}
        self._placement = Placement(*(tier.state()[0] is not TierState.ABSENT for tier in (shared, disk)))

    # --- get ---

    async def get_many(
        self, name: str, user_keys: Sequence[bytes], deadline: Deadline, bytes_max: int | None = None
    ) -> list[Answer]:
        """Answers for keys of a namespace, in order. With `bytes_max`, what does not fit comes as its Head.

        Raises NamespaceNotFound.
        """
        namespace = self.namespaces.get(name)
        keys = self._keys(namespace, user_keys)
        answers = self._look(namespace, keys)
        missing = [key for key in answers if not answers[key].found]
        if missing:
            answers.update(await self._load(namespace, missing, deadline, bytes_max))
        return within([answers[key] for key in keys], bytes_max)

    def _look(self, namespace: Namespace, keys: Iterable[Key], again: bool = False) -> dict[Key, Answer]:
        now_us = self._clock.now_us()
        proven_after_s = self._clock.age_s() - self._mutable_age_s_max
        answers: dict[Key, Answer] = {}
        for key in keys:
            found = self.memory.peek(key, proven_after_s, again=again) or self.background.look(key, now_us)
            answers[key] = Answer(MISS) if hidden(namespace, key.user, found) else Answer(found, TierName.MEMORY)
        return answers

    async def _load(
        self, namespace: Namespace, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None
    ) -> dict[Key, Answer]:
        flights, own = self.flights.board(keys, functools.partial(self._fill, namespace, deadline, bytes_max))
        try:
            # A moment longer than the tiers have: they tell by the deadline which of them was slow.
            await asyncio.wait([flight.result for flight in flights], timeout=deadline.left_s() + LANDING_S)
            answers = {flight.key: landed(flight) for flight in flights}
        finally:
            self.flights.leave(flights)
        # A load of somebody else may have had less time or room than this call has: such keys are loaded again.
        others = [flight.key for flight in flights if flight not in own]
        poor = [key for key in others if worth_another_load(answers[key], bytes_max)]
        if poor and not deadline.passed():
            answers.update(await self._load(namespace, poor, deadline, bytes_max))
        return answers

    async def _fill(
        self, namespace: Namespace, deadline: Deadline, bytes_max: int | None, crew: Sequence[Flight]
    ) -> None:
        # Second look: a put may have filled memory between the caller's look and the first step of this task.
        answers = self._look(namespace, [flight.key for flight in crew], again=True)
        for tier in self._asked(namespace):
            absent = [key for key in answers if not answers[key].found]
            if absent:
                found = await tier.get_many(absent, deadline, bytes_max)
                for key, one in zip(absent, found, strict=True):
                    # What an invalidation hides is a miss of this tier: another one may have the copy that came after.
                    seen = MISS if hidden(namespace, key.user, one) else one
                    answers[key] = merged(answers[key], Answer(seen, tier.name))
        for flight in crew:
            answer = answers[flight.key]
            if isinstance(answer.found, Entry) and not flight.spoiled:
                await self._promote(namespace, flight.key, answer.found, answer.tier)
            self.flights.land(flight, answer)

    async def _promote(self, namespace: Namespace, key: Key, entry: Entry, tier: TierName | None) -> None:
        """Fills upward with what is left of the entry's life."""
        if tier is not TierName.MEMORY:
            await self._fill_memory(namespace, {key: entry})
        immutable = entry.head.kind is Kind.IMMUTABLE and self._placement.uses_shared(namespace)
        if tier is TierName.DISK and immutable and self.background.has_room(entry.head.size_bytes):
            self.background.add(TierName.SHARED, key, entry)

    async def head_many(self, name: str, user_keys: Sequence[bytes], deadline: Deadline) -> list[HeadFound]:
        """Which keys would hit, by the rules of get, as heads. Raises NamespaceNotFound."""
        namespace = self.namespaces.get(name)
        keys = self._keys(namespace, user_keys)
        now_us, proven_after_s = self._clock.now_us(), self._clock.age_s() - self._mutable_age_s_max
        answers: dict[Key, Answer] = {}
        for key in keys:
            found = self.memory.peek_head(key, proven_after_s) or head_of(self.background.look(key, now_us))
            answers[key] = Answer(MISS if hidden(namespace, key.user, found) else found)
        for tier in self._asked(namespace):
            absent = [key for key in answers if not answers[key].found]
            if absent:
                for key, one in zip(absent, await tier.head_many(absent, deadline), strict=True):
                    seen = MISS if hidden(namespace, key.user, one) else one
                    answers[key] = merged(answers[key], Answer(seen, tier.name))
        return [head_of(answers[key].found) for key in keys]

    # --- put ---

    async def put_many(
        self,
        name: str,
        puts: Sequence[Put],
        deadline: Deadline,
        ttl_s: float | None = None,
        durability: Durability | None = None,
    ) -> tuple[list[PutResult], Durability]:
        """Stores values; per value what became of it, and the level that every stored one has reached.

        Of equal keys the last wins. A failure means "outcome unknown". Raises
        NamespaceNotFound, DurabilityNotOffered, FieldInvalid, TierError.
        """
        namespace = await self.namespaces.ensure(name, deadline)
        level = self._placement.level(namespace, durability)
        items = self._entries(namespace, puts, ttl_s)
        size_bytes = sum(entry.head.size_bytes for entry in items.values())
        if not await self.background.admit(size_bytes, deadline):
            full = TierFailure(TierName.DISK, FailureReason.FULL, "too many bytes wait to be written")
            return [full] * len(puts), level
        write = self._put_mutable if namespace.kind is Kind.MUTABLE else self._put_immutable
        results = await self._whole(write(namespace, items, level, deadline))
        return [results[key] for key in self._keys(namespace, [put.user_key for put in puts])], level

    async def _put_mutable(
        self, namespace: Namespace, items: dict[Key, Entry], level: Durability, deadline: Deadline
    ) -> dict[Key, PutResult]:
        results = await self._assign(namespace, items, deadline)
        stored = {key: _versioned(items[key], one.version) for key, one in results.items() if isinstance(one, Stored)}
        if level in (Durability.WAL, Durability.FSYNC):
            await self._write_disk(stored, level, results, deadline)
        self._owe(self._placement.owed(namespace, level), stored, right=not self._placement.uses_shared(namespace))
        # In one step, without a yield: loads that began before this write keep out of memory, the write goes in.
        self.flights.spoil(items)
        lost = [key for key in items if not isinstance(results[key], Stored)]
        await self.memory.delete_many(lost, self._at_once())  # outcome unknown: the next read asks who is right
        await self._fill_memory(namespace, {key: entry for key, entry in stored.items() if key not in lost})
        return results

    async def _assign(self, namespace: Namespace, items: dict[Key, Entry], deadline: Deadline) -> dict[Key, PutResult]:
        if self._placement.uses_shared(namespace):
            results = dict(zip(items, await self.shared.write_many(list(items.items()), deadline), strict=True))
        else:
            results = {}
            for key, entry in items.items():
                results[key] = Stored(await self._versions.next(entry.head.version))
        versions = [one.version for one in results.values() if isinstance(one, Stored)]
        self.highest_version = max([self.highest_version, *versions])
        return results

    async def _put_immutable(
        self, namespace: Namespace, items: dict[Key, Entry], level: Durability, deadline: Deadline
    ) -> dict[Key, PutResult]:
        results: dict[Key, PutResult] = {}
        if namespace.floors:
            below = (self.memory, *self._asked(namespace))
            await remove_hidden(namespace, items, below, self.background, self._clock.now_us(), deadline)
        if level is Durability.MEMORY:
            results = {key: self._kept_here(namespace, key, entry) for key, entry in items.items()}
        elif level is Durability.SHARED:
            results = dict(zip(items, await self.shared.put_many(list(items.items()), deadline), strict=True))
        else:
            results = {key: Stored(entry.head.version) for key, entry in items.items()}
            await self._write_disk(items, level, results, deadline)
        new = {key: items[key] for key, one in results.items() if isinstance(one, Stored) and not one.kept}
        self._owe(self._placement.owed(namespace, level), new)
        await self._fill_memory(namespace, new)
        return results

    def _kept_here(self, namespace: Namespace, key: Key, entry: Entry) -> PutResult:
        first = self._look(namespace, [key])[key].found
        if not isinstance(first, Entry):
            return Stored(entry.head.version)
        return Stored(first.head.version, kept=True, differs=first.head.checksum != entry.head.checksum)

    async def _write_disk(
        self, items: dict[Key, Entry], level: Durability, results: dict[Key, PutResult], deadline: Deadline
    ) -> None:
        sync = WriteLevel.SYNCED if level is Durability.FSYNC else WriteLevel.LOGGED
        for key, one in zip(items, await self.disk.put_many(list(items.items()), deadline, sync), strict=True):
            if isinstance(one, TierFailure) or items[key].head.kind is Kind.IMMUTABLE:
                results[key] = one

    async def _fill_memory(self, namespace: Namespace, items: dict[Key, Entry]) -> None:
        """Memory's put does not yield to the loop: no other write comes between a caller's decision and this."""
        if self._placement.uses_memory(namespace):
            await self.memory.put_many(list(items.items()), self._at_once())

    def _at_once(self) -> Deadline:
        """Memory is brought up to date even when the caller's time is over: what it held would be older."""
        return Deadline.after(1.0, self._clock)

    def _owe(self, tiers: Iterable[TierName], items: dict[Key, Entry], right: bool = False) -> None:
        """Owes copies to tiers; to one that is right about a key for as long as it takes: it has an older one."""
        for tier in tiers:
            for key, entry in items.items():
                self.background.add(tier, key, entry, None if right else TRIES_MAX)

    # --- delete and invalidate ---

    async def delete_many(
        self, name: str, user_keys: Sequence[bytes], deadline: Deadline, durability: Durability | None = None
    ) -> list[DeleteResult]:
        """Removes keys from every tier; per key a failure, or None. Raises NamespaceNotFound, DurabilityNotOffered.

        The disk forgets before the shared tier does, and what loads in
        between is spoiled each time: otherwise a load that read the disk just
        before could put the entry back into the shared tier just after.
        """
        namespace = self.namespaces.get(name)
        level = self._placement.level(namespace, durability)
        keys = self._keys(namespace, user_keys)
        failed = await self._whole(self._delete(namespace, keys, level, deadline))
        return [failed[key] for key in keys]

    async def _delete(
        self, namespace: Namespace, keys: list[Key], level: Durability, deadline: Deadline
    ) -> dict[Key, DeleteResult]:
        failed: dict[Key, DeleteResult] = dict.fromkeys(keys)
        unique = list(failed)
        # Logged at least: a delete that only the disk's memory knew would be undone by kill -9.
        sync = WriteLevel.SYNCED if level is Durability.FSYNC else WriteLevel.LOGGED
        for tier in self._placement.deleted_in(namespace):
            self.flights.spoil(unique)
            await self.background.forget(unique)
            for key, one in zip(unique, await self._below[tier].delete_many(unique, deadline, sync), strict=True):
                failed[key] = one if failed[key] is None else failed[key]
        self.flights.spoil(unique)
        await self.memory.delete_many(unique, self._at_once())
        return failed

    async def invalidate_prefix(self, name: str, prefix: bytes, deadline: Deadline) -> Namespace:
        """Hides every entry whose key starts with `prefix`. Raises NamespaceNotFound, TierError."""
        namespace = self.namespaces.get(name)
        highest = self.highest_version
        if not self._placement.uses_shared(namespace):
            # Above every version that this node gave, also before a restart: those may be ahead of the clock.
            highest = max(highest, await self._versions.next())
        return await self.namespaces.invalidate_prefix(name, prefix, highest, deadline)

    async def raise_epoch(self, name: str, deadline: Deadline) -> Namespace:
        """Hides every entry of the namespace. Raises NamespaceNotFound, TierError."""
        self.namespaces.get(name)
        return await self.namespaces.raise_epoch(name, deadline)

    # --- policy ---

    async def _whole(self, write: Coroutine[None, None, T]) -> T:
        """A write that its caller's cancellation does not cut in half. Its deadline ends it."""
        task = asyncio.get_running_loop().create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    def _keys(self, namespace: Namespace, user_keys: Iterable[bytes]) -> list[Key]:
        return [self._keyspace.key(namespace.name, namespace.epoch, user_key) for user_key in user_keys]

    def _asked(self, namespace: Namespace) -> list[Tier]:
        return [self._below[name] for name in self._placement.asked_below(namespace)]

    def _entries(self, namespace: Namespace, puts: Sequence[Put], ttl_s: float | None) -> dict[Key, Entry]:
        now_us = self._clock.now_us()
        life_s = namespace.ttl_s if ttl_s is None else ttl_s
        entries = {}
        for key, put in zip(self._keys(namespace, [put.user_key for put in puts]), puts, strict=True):
            size_bytes = sum(map(len, put.frames))
            if namespace.tiers == (TierName.MEMORY,) and size_bytes > self.memory.value_bytes_max:
                raise FieldInvalid("value", f"at most {self.memory.value_bytes_max} bytes in memory", str(size_bytes))
            # Above the floor, or this node's own invalidation would hide what is written after it.
            version = max(namespace.floor(put.user_key) + 1 if namespace.floors else 0, now_us)
            end_us = expires_us(now_us, life_s, namespace.jitter, self._draw())
            checksum = put.checksum or checksum_of(put.frames)
            head = Head(size_bytes, version, now_us, end_us, checksum, namespace.kind, namespace.codec)
            entries[key] = Entry(head, put.frames)
        return entries

    async def close(self, deadline: Deadline) -> None:
        """Writes what is owed within the deadline, then closes the tiers, lowest last."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=deadline.left_s())
        await self.background.close(deadline)
        for tier in (self.memory, self.shared, self.disk):
            await tier.close()


def _versioned(entry: Entry, version: int) -> Entry:
    return Entry(entry.head._replace(version=version), entry.frames)
