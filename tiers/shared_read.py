"""Reads of the shared tier: from what Redis answers to hits, misses and failures, proven record by record.

A record that is damaged, of another key or of a newer format is counted and
missed. One whose header is whole but whose payload is not is removed too: left
in place it would look alive to writers and keep the key empty for its life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from terracekv.tiers.buckets import KeyNames
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import MISS, Codec, Entry, Found, Head, HeadFound, Key, Miss, TierFailure
from terracekv.tiers.envelope import (
    HEADER_BYTES_MAX,
    PREFIX,
    Record,
    check_key,
    decode_parts,
    decode_record,
    head_bytes_max,
)
from terracekv.tiers.errors import RecordDamaged, RecordError
from terracekv.tiers.redis_masters import RedisMasters, Unit
from terracekv.tiers.redis_nodes import single_of, unavailable
from terracekv.tiers.shared_parts import Parts
from terracekv.tiers.stats import TierCounters

RECORD_BYTES_MAX: Final = 4 * 1_048_576 + 65_536
LIKELY_BYTES_MIN: Final = 65_536  # of a record of which nothing is known
FIRST_LOOK_BYTES: Final = 65_536  # read of each record before it is known which of them fit a budget
OFF_LOOP_BYTES_MIN: Final = 2 * 1_048_576  # payloads over it: to hand one to a thread costs as much as to check 2 MiB
OFF_LOOP_COMPRESSED_BYTES_MIN: Final = 65_536  # and those to be decompressed first
RECORDS_REMEMBERED: Final = 32  # about so many decide what the next record is likely to be
TRIES_MAX: Final = 3

Raw = bytes | TierFailure | None


class _Large(NamedTuple):
    """A live record that takes more work: its payload is large, compressed or kept apart."""

    record: Record
    raw: bytes


class _Damaged(NamedTuple):
    """A record whose header is whole and whose payload is not."""

    beginning: bytes


class Reader:
    """The reading half of the shared tier."""

    def __init__(
        self, masters: RedisMasters, names: KeyNames, parts: Parts, clock: Clock, counters: TierCounters
    ) -> None:
        self._masters = masters
        self._names = names
        self._parts = parts
        self._clock = clock
        self._counters = counters
        self._likely_bytes = float(LIKELY_BYTES_MIN)  # of a record, by those read lately

    async def get(
        self, keys: Sequence[Key], deadline: Deadline, likely_bytes: Sequence[int] | None = None
    ) -> list[Found]:
        """Whole entries; `likely_bytes` of each bounds how much is asked for at once."""
        units = [
            Unit(key.bucket, (("GET", self._names.record(key)),), reply_bytes=size, reply_bytes_max=RECORD_BYTES_MAX)
            for key, size in zip(keys, likely_bytes or [self._likely()] * len(keys), strict=True)
        ]
        answers = await self._masters.run(units, deadline)
        looked = [self._look(key, single_of(replies)) for key, replies in zip(keys, answers, strict=True)]
        large = [(key, one) for key, one in zip(keys, looked, strict=True) if isinstance(one, _Large)]
        rest = iter(await asyncio.gather(*(self._finish(key, one, deadline) for key, one in large)) if large else ())
        found = [next(rest) if isinstance(one, _Large) else one for one in looked]
        return [await self._without_damage(key, one, deadline) for key, one in zip(keys, found, strict=True)]

    async def get_within(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int) -> list[Found]:
        """Entries whose payloads fit `bytes_max` in all, in order; the others as heads."""
        found: list[Found] = []
        to_fetch: dict[int, Head] = {}
        for index, (key, raw) in enumerate(
            zip(keys, await self._ranges(keys, [FIRST_LOOK_BYTES] * len(keys), deadline), strict=True)
        ):
            record = self.record(key, raw)
            if not isinstance(record, Record):
                found.append(record)
                continue
            found.append(record.head)
            if record.head.size_bytes <= bytes_max:
                bytes_max -= record.head.size_bytes
                to_fetch[index] = record.head
                if isinstance(raw, bytes) and len(raw) < FIRST_LOOK_BYTES and not record.parts_id:
                    to_fetch.pop(index)
                    found[index] = await self._without_damage(key, await self._decoded(record, raw), deadline)
        sizes = [head.size_bytes for head in to_fetch.values()]
        entries = await self.get([keys[index] for index in to_fetch], deadline, sizes) if to_fetch else []
        for (index, head), entry in zip(to_fetch.items(), entries, strict=True):
            # What is stored may have changed in between; the share of the budget has not.
            grown = isinstance(entry, Entry) and entry.head.size_bytes > head.size_bytes
            found[index] = entry.head if isinstance(entry, Entry) and grown else entry
        return found

    async def heads(self, keys: Sequence[Key], deadline: Deadline) -> list[HeadFound]:
        """Heads, from the beginnings of records alone."""
        records = [self.record(key, raw) for key, raw in zip(keys, await self.beginnings(keys, deadline), strict=True)]
        return [record.head if isinstance(record, Record) else record for record in records]

    async def beginnings(self, keys: Sequence[Key], deadline: Deadline) -> list[Raw]:
        """The first bytes of records: prefix and header are among them."""
        asked = [head_bytes_max(key) for key in keys]
        raws = await self._ranges(keys, asked, deadline)
        # The header of a value in parts lists them and may be longer.
        cut = [at for at, raw in enumerate(raws) if isinstance(raw, bytes) and len(raw) == asked[at] and _cut(raw)]
        if cut:
            longest = [PREFIX.size + HEADER_BYTES_MAX] * len(cut)
            for at, raw in zip(cut, await self._ranges([keys[at] for at in cut], longest, deadline), strict=True):
                raws[at] = raw
        return raws

    def record(self, key: Key, raw: Raw, counted: bool = True) -> Record | Miss | TierFailure:
        """The header of a live record of this key."""
        if isinstance(raw, TierFailure):
            return raw
        if not raw:
            return MISS
        try:
            record = check_key(decode_record(raw), key)
        except RecordError:
            self._counters.corrupt += counted
            return MISS
        return MISS if record.head.expired(self._clock.now_us()) else record

    def _likely(self) -> int:
        return max(LIKELY_BYTES_MIN, round(self._likely_bytes))

    async def _ranges(self, keys: Sequence[Key], sizes: Sequence[int], deadline: Deadline) -> list[Raw]:
        units = [
            Unit(
                key.bucket,
                (("GETRANGE", self._names.record(key), 0, size - 1),),
                reply_bytes=size,
                reply_bytes_max=size,
            )
            for key, size in zip(keys, sizes, strict=True)
        ]
        return [single_of(replies) for replies in await self._masters.run(units, deadline)]

    def _look(self, key: Key, raw: Raw) -> Entry | Miss | TierFailure | _Large | _Damaged:
        record = self.record(key, raw)
        if not isinstance(record, Record) or not isinstance(raw, bytes):
            return record if not isinstance(record, Record) else MISS
        self._likely_bytes += (len(raw) - self._likely_bytes) / RECORDS_REMEMBERED
        if record.parts_id or _slow(record):
            return _Large(record, raw)
        return _entry(record, raw)

    async def _finish(self, key: Key, large: _Large, deadline: Deadline) -> Found | _Damaged:
        if large.record.parts_id:
            return await self._joined(key, large, deadline)
        return await self._decoded(large.record, large.raw)

    async def _decoded(self, record: Record, raw: bytes) -> Entry | _Damaged:
        return await asyncio.to_thread(_entry, record, raw) if _slow(record) else _entry(record, raw)

    async def _joined(self, key: Key, large: _Large, deadline: Deadline) -> Found | _Damaged:
        for _ in range(TRIES_MAX):
            record, header = large.record, large.raw[: large.record.payload_offset]
            parts = await self._parts.read(key.bucket, record, deadline)
            if isinstance(parts, TierFailure):
                return parts
            if parts is not None:
                return await asyncio.to_thread(_entry_of_parts, record, parts, header)
            # A part is gone: with its head, as a writer does it, or for good.
            torn = await self._parts.drop(key, header, deadline)
            if torn is not False:
                if isinstance(torn, TierFailure):
                    return torn
                self._parts.remove(key.bucket, record, self._clock)
                return MISS
            (raw,) = await self._ranges([key], [RECORD_BYTES_MAX], deadline)
            looked = self._look(key, raw)
            if not isinstance(looked, _Large):
                return looked
            if not looked.record.parts_id:
                return await self._decoded(looked.record, looked.raw)
            large = looked
        return unavailable("the value was replaced each time it was read")

    async def _without_damage(self, key: Key, found: Found | _Damaged, deadline: Deadline) -> Found:
        if not isinstance(found, _Damaged):
            return found
        self._counters.corrupt += 1
        await self._parts.drop(key, found.beginning, deadline)
        return MISS


def _slow(record: Record) -> bool:
    plain = record.head.codec is Codec.NONE
    return record.head.size_bytes > (OFF_LOOP_BYTES_MIN if plain else OFF_LOOP_COMPRESSED_BYTES_MIN)


def _entry(record: Record, raw: bytes) -> Entry | _Damaged:
    try:
        return decode_parts(record, [raw[record.payload_offset :]])
    except RecordDamaged:
        return _Damaged(raw[: record.payload_offset])


def _entry_of_parts(record: Record, parts: list[bytes], header: bytes) -> Entry | _Damaged:
    try:
        return decode_parts(record, parts)
    except RecordDamaged:
        return _Damaged(header)


def _cut(raw: bytes) -> bool:
    return len(raw) >= PREFIX.size and PREFIX.size + PREFIX.unpack_from(raw)[2] > len(raw)
