"""Writes of the shared tier: an entry becomes visible in one step, under its version, or not at all.

Immutable entries go in by SET NX: the first stays while it lives, but what has
expired, is damaged or belongs to another key does not block. Mutable ones go
in by script, which alone decides versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from terracekv.tiers.buckets import KeyNames
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import Codec, DeleteResult, Entry, Head, Key, Kind, PutResult, Stored, TierFailure
from terracekv.tiers.envelope import Record, decode_record, encode_inline
from terracekv.tiers.errors import RecordError
from terracekv.tiers.redis_masters import RedisMasters, Unit
from terracekv.tiers.redis_nodes import Replies, failure_of, unavailable
from terracekv.tiers.scripts import DELETE, STORE
from terracekv.tiers.shared_parts import Parts
from terracekv.tiers.shared_read import Raw, Reader
from terracekv.tiers.ttl import left_us

INLINE_BYTES_MAX: Final = 4 * 1_048_576  # payloads over this are kept in parts
STAGED_BYTES_MIN: Final = 32_768  # larger records are set aside first: a script's arguments are copied
STAGING_LIFE_MS: Final = 60_000
STAGING_TOKEN_BYTES: Final = 16
OFF_LOOP_BYTES_MIN: Final = 65_536  # payloads whose codec is worth a thread
IMMUTABLE_LIFE_MS: Final = 30 * 86_400_000  # of those without expiry: volatile-lru evicts only what has one
TRIES_MAX: Final = 3

Item = tuple[Key, Entry]


def life_ms(head: Head, now_us: int, stale_ms: int = 0) -> int:
    """How long Redis keeps a record: its life, rounded up, and a stale window on top; 0: without end.

    The header decides when an entry has expired; Redis may only be later.
    """
    life_us = left_us(head.expires_us, now_us)
    if life_us is None:
        return IMMUTABLE_LIFE_MS if head.kind is Kind.IMMUTABLE else 0
    return -(-life_us // 1_000) + stale_ms


class Writer:
    """The writing half of the shared tier."""

    def __init__(
        self,
        masters: RedisMasters,
        names: KeyNames,
        parts: Parts,
        reader: Reader,
        clock: Clock,
        token: Callable[[int], bytes],
    ) -> None:
        self._masters = masters
        self._names = names
        self._parts = parts
        self._reader = reader
        self._clock = clock
        self._token = token

    async def put(self, items: Sequence[Item], deadline: Deadline) -> list[PutResult]:
        """Stores entries by the rules of their kind."""
        results: list[PutResult] = [unavailable("not written")] * len(items)
        for chosen, write in (
            ([at for at, (_, entry) in enumerate(items) if _large(entry)], self._put_large),
            ([at for at, (_, entry) in enumerate(items) if _inline(entry, Kind.IMMUTABLE)], self._put_first),
            ([at for at, (_, entry) in enumerate(items) if _inline(entry, Kind.MUTABLE)], self._fill),
        ):
            if chosen:
                for at, result in zip(chosen, await write([items[at] for at in chosen], deadline), strict=True):
                    results[at] = result
        return results

    async def write(self, items: Sequence[Item], deadline: Deadline) -> list[PutResult]:
        """Stores mutable entries under new versions. Of equal keys in a batch the last wins."""
        results: list[PutResult] = [unavailable("not written")] * len(items)
        waiting = list(range(len(items)))
        while waiting:
            # Keys that come twice go out one after the other: pipelines keep no order among themselves.
            first = {items[at][0]: at for at in reversed(waiting)}
            batch = sorted(first.values())
            small = [at for at in batch if not _large(items[at][1])]
            for at, result in zip(small, await self._store([items[at] for at in small], "next", deadline), strict=True):
                results[at] = result
            for at in (at for at in batch if _large(items[at][1])):
                results[at] = await self._store_large(*items[at], "next", deadline)
            waiting = [at for at in waiting if at not in set(batch)]
        return results

    async def delete(self, keys: Sequence[Key], deadline: Deadline) -> list[DeleteResult]:
        """Removes records, then the parts of those that had some."""
        units = [Unit(key.bucket, (DELETE.call([self._names.record(key)]),)) for key in keys]
        results: list[DeleteResult] = []
        for key, replies in zip(keys, await self._masters.run(units, deadline), strict=True):
            failure = replies if isinstance(replies, TierFailure) else failure_of(replies[0])
            results.append(failure)
            if failure is None and isinstance(replies, list) and replies[0]:
                self._remove_parts(key, replies[0])
        return results

    # --- immutable ---

    async def _put_first(self, items: Sequence[Item], deadline: Deadline) -> list[PutResult]:
        results: list[PutResult] = [unavailable("others keep writing this key")] * len(items)
        waiting = list(range(len(items)))
        for _ in range(TRIES_MAX):
            units = [await self._set_if_absent(*items[at]) for at in waiting]
            blocked = []
            for at, replies in zip(waiting, await self._masters.run(units, deadline), strict=True):
                failure = replies if isinstance(replies, TierFailure) else failure_of(replies[0])
                if failure is None and isinstance(replies, list) and replies[0] is None:
                    blocked.append(at)
                else:
                    results[at] = Stored(items[at][1].head.version) if failure is None else failure
            waiting = []
            for at, result in zip(blocked, await self._kept([items[at] for at in blocked], deadline), strict=True):
                if result is None:
                    waiting.append(at)
                else:
                    results[at] = result
            if not waiting:
                break
        return results

    async def _set_if_absent(self, key: Key, entry: Entry) -> Unit:
        record = await self._encoded(key, entry)
        life = life_ms(entry.head, self._clock.now_us())
        command = ("SET", self._names.record(key), record, "NX", "PX", life)
        return Unit(key.bucket, (command,), sent_bytes=len(record))

    async def _kept(self, items: Sequence[Item], deadline: Deadline) -> list[PutResult | None]:
        """What is in the way of immutable entries; None where it is gone, or has been removed as worth nothing."""
        if not items:
            return []
        results: list[PutResult | None] = []
        for (key, entry), raw in zip(
            items, await self._reader.beginnings([key for key, _ in items], deadline), strict=True
        ):
            record = self._reader.record(key, raw, counted=False)
            if isinstance(record, Record):
                differs = record.head.checksum != entry.head.checksum
                results.append(Stored(record.head.version, kept=True, differs=differs))
            elif isinstance(record, TierFailure):
                results.append(record)
            else:
                results.append(await self._cleared(key, raw, deadline))
        return results

    async def _cleared(self, key: Key, raw: Raw, deadline: Deadline) -> TierFailure | None:
        if isinstance(raw, bytes) and raw:
            dropped = await self._parts.drop(key, raw, deadline)
            if isinstance(dropped, TierFailure):
                return dropped
            self._remove_parts(key, raw)
        return None

    # --- mutable ---

    async def _fill(self, items: Sequence[Item], deadline: Deadline) -> list[PutResult]:
        return await self._store(items, "fill", deadline)

    async def _store(self, items: Sequence[Item], mode: str, deadline: Deadline) -> list[PutResult]:
        units = [await self._store_unit(key, entry, mode) for key, entry in items]
        answers = await self._masters.run(units, deadline)
        return [self._stored(key, entry, replies) for (key, entry), replies in zip(items, answers, strict=True)]

    async def _store_unit(self, key: Key, entry: Entry, mode: str) -> Unit:
        record = await self._encoded(key, entry)
        name = self._names.record(key)
        version = entry.head.version.to_bytes(8, "little")
        life = life_ms(entry.head, self._clock.now_us())
        if len(record) < STAGED_BYTES_MIN:
            return Unit(key.bucket, (STORE.call([name], mode, version, life, record),), sent_bytes=len(record))
        staging = self._names.staging(key.bucket, self._token(STAGING_TOKEN_BYTES))
        aside = ("SET", staging, record, "PX", STAGING_LIFE_MS)
        script = STORE.call([name, staging], mode, version, life, b"")
        return Unit(key.bucket, (aside, script), sent_bytes=len(record))

    def _stored(self, key: Key, entry: Entry, replies: Replies) -> PutResult:
        if isinstance(replies, TierFailure):
            return replies
        failure = next((failure for reply in replies if (failure := failure_of(reply)) is not None), None)
        if failure is not None:
            return failure
        status, *told = replies[-1]
        if status < 0:
            return unavailable("what was set aside was evicted before it could be stored")
        version, header = int.from_bytes(told[0], "little"), told[1]
        if status == 0:
            differs = _checksum(header) != entry.head.checksum
            return Stored(version, kept=True, differs=differs)
        self._remove_parts(key, header)
        return Stored(version)

    # --- large ---

    async def _put_large(self, items: Sequence[Item], deadline: Deadline) -> list[PutResult]:
        return [
            await (
                self._first_large(key, entry, deadline)
                if entry.head.kind is Kind.IMMUTABLE
                else self._store_large(key, entry, "fill", deadline)
            )
            for key, entry in items
        ]

    async def _first_large(self, key: Key, entry: Entry, deadline: Deadline) -> PutResult:
        # Looked at before the upload too: most often what is stored twice is stored already.
        (kept,) = await self._kept([(key, entry)], deadline)
        if kept is not None:
            return kept
        upload = await self._parts.upload(key, entry, deadline)
        if isinstance(upload, TierFailure):
            return upload
        for _ in range(TRIES_MAX):
            life = life_ms(entry.head, self._clock.now_us())
            replies = await self._parts.publish(key, upload, "first", entry.head.version, life, deadline)
            result = self._stored(key, entry, replies)
            if isinstance(result, TierFailure) or not result.kept:
                return result
            (kept,) = await self._kept([(key, entry)], deadline)
            if kept is not None:
                self._parts.abandon(key, upload, self._clock)
                return kept
        return unavailable("others keep writing this key")

    async def _store_large(self, key: Key, entry: Entry, mode: str, deadline: Deadline) -> PutResult:
        upload = await self._parts.upload(key, entry, deadline)
        if isinstance(upload, TierFailure):
            return upload
        life = life_ms(entry.head, self._clock.now_us())
        replies = await self._parts.publish(key, upload, mode, entry.head.version, life, deadline)
        result = self._stored(key, entry, replies)
        if isinstance(result, Stored) and result.kept:
            self._parts.abandon(key, upload, self._clock)
        return result

    # --- records ---

    def _remove_parts(self, key: Key, header: bytes) -> None:
        record = _decoded(header)
        if record is not None and record.parts_id:
            self._parts.remove(key.bucket, record, self._clock)

    async def _encoded(self, key: Key, entry: Entry) -> bytes:
        if entry.head.codec is Codec.NONE or entry.head.size_bytes < OFF_LOOP_BYTES_MIN:
            return encode_inline(key, entry)
        return await asyncio.to_thread(encode_inline, key, entry)


def _large(entry: Entry) -> bool:
    return entry.head.size_bytes > INLINE_BYTES_MAX


def _inline(entry: Entry, kind: Kind) -> bool:
    return not _large(entry) and entry.head.kind is kind


def _decoded(header: bytes) -> Record | None:
    try:
        return decode_record(header)
    except RecordError:
        return None


def _checksum(header: bytes) -> bytes | None:
    record = _decoded(header)
    return None if record is None else record.head.checksum
