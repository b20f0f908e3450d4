"""Writes of the shared tier: an entry becomes visible in one step, under its version, or not at all.

Immutable entries go in by SET NX: the first stays while it lives, but what has
expired, is damaged or belongs to another key does not block. Mutable ones go
in by script, which alone decides versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from terracekv.tiers.buckets import KeyNames
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import (
    Codec,
    DeleteResult,
    Entry,
    FailureReason,
    Head,
    Key,
    Kind,
    PutResult,
    Stored,
    TierFailure,
    TierName,
)
from terracekv.tiers.envelope import Record, decode_record, encode_inline
from terracekv.tiers.errors import RecordError
from terracekv.tiers.redis_masters import Command, RedisMasters, Unit
from terracekv.tiers.redis_nodes import Replies, failure_of, unavailable
from terracekv.tiers.scripts import DELETE, DROP, STORE
from terracekv.tiers.shared_parts import Parts
from terracekv.tiers.shared_read import Reader
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
        for kind, write in ((Kind.IMMUTABLE, self._set_if_absent), (Kind.MUTABLE, self._fill)):
            chosen = [at for at, (_, entry) in enumerate(items) if entry.head.kind is kind and not _large(entry)]
            stored = await self._until_free([items[at] for at in chosen], write, deadline) if chosen else []
            for at, result in zip(chosen, stored, strict=True):
                results[at] = result
        for at, (key, entry) in enumerate(items):
            if _large(entry):
                results[at] = await self._put_large(key, entry, deadline)
        return results

    async def write(self, items: Sequence[Item], deadline: Deadline) -> list[PutResult]:
        """Stores mutable entries under new versions. Of equal keys in a batch the last wins."""
        results: list[PutResult] = [unavailable("not written")] * len(items)
        waiting = list(range(len(items)))
        while waiting:
            # Keys that come twice go out one after the other: pipelines keep no order among themselves.
            batch = sorted({items[at][0]: at for at in reversed(waiting)}.values())
            small = [at for at in batch if not _large(items[at][1])]
            for at, result in zip(small, await self._write([items[at] for at in small], deadline), strict=True):
                results[at] = result
            for at in (at for at in batch if _large(items[at][1])):
                results[at] = await self._upload(*items[at], "next", deadline)
            done = set(batch)
            waiting = [at for at in waiting if at not in done]
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

    # --- what is in the way ---

    async def _in_the_way(self, items: Sequence[Item], deadline: Deadline) -> list[PutResult | bytes]:
        """What holds the places of entries: one that stays, or how a record begins that is worth nothing."""
        if not items:
            return []
        found: list[PutResult | bytes] = []
        beginnings = await self._reader.beginnings([key for key, _ in items], deadline)
        for (key, entry), raw in zip(items, beginnings, strict=True):
            record = self._reader.record(key, raw, counted=False)
            if isinstance(record, Record):
                differs = record.head.checksum != entry.head.checksum
                found.append(Stored(record.head.version, kept=True, differs=differs))
            else:
                found.append(record if isinstance(record, TierFailure) else raw if isinstance(raw, bytes) else b"")
        return found

    def _clearing(self, key: Key, obstacle: bytes) -> tuple[Command, ...]:
        # In the unit of the write: nothing is dropped that is not replaced at once.
        return (DROP.call([self._names.record(key)], obstacle),) if obstacle else ()

    def _cleared(self, key: Key, obstacle: bytes, replies: Replies) -> None:
        if obstacle and isinstance(replies, list) and replies[0] == 1:
            self._remove_parts(key, obstacle)

    async def _until_free(
        self, items: Sequence[Item], write: Callable[[Item, bytes], Awaitable[Unit]], deadline: Deadline
    ) -> list[PutResult]:
        """Writes, and again where something is in the way that is worth nothing."""
        results: list[PutResult] = [unavailable("others keep writing this key")] * len(items)
        waiting = dict.fromkeys(range(len(items)), b"")
        for _ in range(TRIES_MAX):
            units = [await write(items[at], obstacle) for at, obstacle in waiting.items()]
            blocked = []
            for (at, obstacle), replies in zip(waiting.items(), await self._masters.run(units, deadline), strict=True):
                self._cleared(items[at][0], obstacle, replies)
                result = self._outcome(*items[at], replies)
                if isinstance(result, Stored) and result.kept:
                    blocked.append(at)
                else:
                    results[at] = result
            found = await self._in_the_way([items[at] for at in blocked], deadline)
            waiting = {at: one for at, one in zip(blocked, found, strict=True) if isinstance(one, bytes)}
            for at, one in zip(blocked, found, strict=True):
                if not isinstance(one, bytes):
                    results[at] = one
            if not waiting:
                break
        return results

    def _outcome(self, key: Key, entry: Entry, replies: Replies) -> PutResult:
        if isinstance(replies, TierFailure):
            return replies
        failure = next((failure for reply in replies if (failure := failure_of(reply)) is not None), None)
        if failure is not None:
            return failure
        if replies[-1] is None or replies[-1] == b"OK":  # of SET NX
            return Stored(entry.head.version, kept=replies[-1] is None)
        status, *told = replies[-1]
        if status < 0:
            words = "no room: what was set aside for it was evicted before it could be stored"
            return TierFailure(TierName.SHARED, FailureReason.FULL, words)
        if status == 1:
            self._remove_parts(key, told[1])
        return Stored(int.from_bytes(told[0], "little"), kept=status == 0)

    # --- records ---

    async def _set_if_absent(self, item: Item, obstacle: bytes) -> Unit:
        key, entry = item
        record = await self._encoded(key, entry)
        life = life_ms(entry.head, self._clock.now_us())
        command = ("SET", self._names.record(key), record, "NX", "PX", life)
        return Unit(key.bucket, (*self._clearing(key, obstacle), command), sent_bytes=len(record))

    async def _fill(self, item: Item, obstacle: bytes) -> Unit:
        return await self._store(*item, "fill", self._clearing(item[0], obstacle))

    async def _store(self, key: Key, entry: Entry, mode: str, before: tuple[Command, ...] = ()) -> Unit:
        record = await self._encoded(key, entry)
        name = self._names.record(key)
        version = entry.head.version.to_bytes(8, "little")
        life = life_ms(entry.head, self._clock.now_us())
        if len(record) < STAGED_BYTES_MIN:
            script = STORE.call([name], mode, version, life, record)
            return Unit(key.bucket, (*before, script), sent_bytes=len(record))
        staging = self._names.staging(key.bucket, self._token(STAGING_TOKEN_BYTES))
        aside = ("SET", staging, record, "PX", STAGING_LIFE_MS)
        script = STORE.call([name, staging], mode, version, life, b"")
        return Unit(key.bucket, (*before, aside, script), sent_bytes=len(record))

    async def _write(self, items: Sequence[Item], deadline: Deadline) -> list[PutResult]:
        units = [await self._store(key, entry, "next") for key, entry in items]
        answers = await self._masters.run(units, deadline)
        return [self._outcome(*item, replies) for item, replies in zip(items, answers, strict=True)]

    # --- large values ---

    async def _put_large(self, key: Key, entry: Entry, deadline: Deadline) -> PutResult:
        if entry.head.kind is Kind.IMMUTABLE:
            # Looked at before the upload: what is stored twice is most often stored already.
            (found,) = await self._in_the_way([(key, entry)], deadline)
            if not isinstance(found, bytes):
                return found
        mode = "first" if entry.head.kind is Kind.IMMUTABLE else "fill"
        return await self._upload(key, entry, mode, deadline)

    async def _upload(self, key: Key, entry: Entry, mode: str, deadline: Deadline) -> PutResult:
        upload = await self._parts.upload(key, entry, deadline)
        if isinstance(upload, TierFailure):
            return upload

        async def publish(item: Item, obstacle: bytes) -> Unit:
            life = life_ms(entry.head, self._clock.now_us())
            script = self._parts.publishing(key, upload, mode, entry.head.version, life)
            return Unit(key.bucket, (*self._clearing(key, obstacle), script), sent_bytes=len(upload.head))

        (result,) = await self._until_free([(key, entry)], publish, deadline)
        if isinstance(result, Stored) and result.kept:
            self._parts.abandon(key, upload, self._clock)
        return result

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


def _decoded(header: bytes) -> Record | None:
    try:
        return decode_record(header)
    except RecordError:
        return None
