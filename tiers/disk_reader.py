"""Reads of the cache class, in the caller's thread: newest segment first, heads without payloads, every byte proven.

A record that is damaged, of another key or of a newer format is a miss and is
counted; so is a payload of which a part is missing. A read goes in steps of a
few MiB, so that a large value does not keep a thread from the small ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from terracekv.tiers.entry import MISS, Entry, Found, HeadFound, Key, Kind, Miss
from terracekv.tiers.envelope import Record, check_key, decode_parts, decode_record
from terracekv.tiers.errors import RecordError
from terracekv.tiers.rocks import items_after, values_of
from terracekv.tiers.segments import DELETED, Segment, Segments

HEAD: Final = b"h"
MUTABLE: Final = b"m"
PART: Final = b"p"
HEADS_AT_ONCE: Final = 64  # 4 MiB with payloads: rocksdict holds the interpreter while it makes bytes of them
STEP_BYTES: Final = 4_194_304
SCAN_KEYS_AT_ONCE: Final = 256
_DAMAGED: Final = b"damaged"


def part_key(parts_id: bytes, index: int) -> bytes:
    """Where a part of a payload lies."""
    return PART + parts_id + index.to_bytes(4, "big")


class Located(NamedTuple):
    """A checked head record and where it lies."""

    segment: Segment
    raw: bytes
    record: Record


@dataclass(slots=True, eq=False)
class _Waiting:
    """A payload kept apart that is being read, and the places of the answer that want it."""

    located: Located
    places: list[int]
    parts: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Reading:
    """Answers of one batch as far as they are known; `waiting` is what `DiskReader.step` has yet to read."""

    found: list[Found]
    corrupt: int = 0
    waiting: deque[_Waiting] = field(default_factory=deque)

    def unread(self) -> list[int]:
        """Places whose payload has not been read."""
        return [place for one in self.waiting for place in one.places]


class DiskReader:
    """Looks keys up in the segments. Safe to use from several threads. Raises Exception as rocksdict does."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    def locate(self, keys: Sequence[Key], now_us: int) -> tuple[dict[Key, Located | Miss], int]:
        """The live head record of each key, and how many records were refused."""
        located: dict[Key, Located | Miss] = {}
        corrupt = 0
        missing = list(dict.fromkeys(keys))
        for segment in self._segments.newest_first:
            raws = _values(segment, [HEAD + key.digest for key in missing])
            for key, raw in zip(missing, raws, strict=True):
                if raw is not None:
                    located[key], refused = _checked(segment, key, raw, now_us)
                    corrupt += refused
            missing = [key for key in missing if key not in located]
            if not missing:
                break
        located.update(dict.fromkeys(missing, MISS))
        return located, corrupt

    def heads(self, keys: Sequence[Key], now_us: int) -> tuple[list[HeadFound], int]:
        """The heads of keys, and how many records were refused."""
        found: list[HeadFound] = []
        corrupt = 0
        for start in range(0, len(keys), HEADS_AT_ONCE):
            run = keys[start : start + HEADS_AT_ONCE]
            located, refused = self.locate(run, now_us)
            corrupt += refused
            found.extend(one.record.head if isinstance(one := located[key], Located) else MISS for key in run)
        return found, corrupt

    def begin(self, keys: Sequence[Key], bytes_max: int | None, now_us: int) -> Reading:
        """Looks the keys up; with `bytes_max`, payloads of at most that many bytes are read, the rest come as heads."""
        reading = Reading([])
        waiting: dict[Key, _Waiting] = {}
        left = bytes_max
        for start in range(0, len(keys), HEADS_AT_ONCE):
            located, refused = self.locate(keys[start : start + HEADS_AT_ONCE], now_us)
            reading.corrupt += refused
            for key in keys[start : start + HEADS_AT_ONCE]:
                one = located[key]
                if isinstance(one, Miss):
                    reading.found.append(MISS)
                elif left is not None and one.record.head.size_bytes > left:
                    reading.found.append(one.record.head)
                else:
                    left = None if left is None else left - one.record.head.size_bytes
                    _take(reading, waiting, key, one)
        reading.waiting.extend(waiting.values())
        return reading

    def step(self, reading: Reading) -> None:
        """Reads some of what waits: about 4 MiB."""
        read_bytes = 0
        while reading.waiting and read_bytes < STEP_BYTES:
            one = reading.waiting[0]
            read_bytes += _read_parts(one, STEP_BYTES - read_bytes)
            if len(one.parts) == len(one.located.record.part_sizes):
                found = _proven(one.located.record, one.parts)
                reading.corrupt += found is MISS
                for place in one.places:
                    reading.found[place] = found
                reading.waiting.popleft()

    def entry(self, located: Located) -> Entry | Miss:
        """The whole entry of a head record."""
        record = located.record
        if not record.parts_id:
            return _proven(record, [located.raw[record.payload_offset :]])
        one = _Waiting(located, [])
        _read_parts(one, record.stored_bytes + 1)
        return _proven(record, one.parts)

    def scan_mutable(self, now_us: int) -> Iterator[list[Key]]:
        """Keys of live mutable entries, each once, in runs of at most 256: pull one run at a time."""
        for segment in self._segments.newest_first:
            start = MUTABLE
            while start:
                run = islice(items_after(segment.family, MUTABLE, start), SCAN_KEYS_AT_ONCE)
                digests = [marker[len(MUTABLE) :] for marker, _ in run]
                yield self._newest_in(segment, digests, now_us)
                start = MUTABLE + digests[-1] + b"\0" if len(digests) == SCAN_KEYS_AT_ONCE else b""

    def _newest_in(self, segment: Segment, digests: Sequence[bytes], now_us: int) -> list[Key]:
        """The keys whose newest record is a live mutable one in this segment: elsewhere it is found there."""
        raws = _values(segment, [HEAD + digest for digest in digests])
        keys = [key for digest, raw in zip(digests, raws, strict=True) if (key := _key_of(digest, raw)) is not None]
        located, _ = self.locate(keys, now_us)
        return [
            key
            for key in keys
            if isinstance(one := located[key], Located)
            and one.segment is segment
            and one.record.head.kind is Kind.MUTABLE
        ]


def _take(reading: Reading, waiting: dict[Key, _Waiting], key: Key, one: Located) -> None:
    """Answers with a payload that is there already, or notes where one that is not belongs."""
    if not one.record.parts_id:
        found = _proven(one.record, [one.raw[one.record.payload_offset :]])
        reading.corrupt += found is MISS
        reading.found.append(found)
        return
    waiting.setdefault(key, _Waiting(one, [])).places.append(len(reading.found))
    reading.found.append(one.record.head)


def _read_parts(one: _Waiting, bytes_max: int) -> int:
    """Reads parts up to about `bytes_max`; the bytes read. A part that is missing is read as empty."""
    record = one.located.record
    read_bytes = 0
    while read_bytes < bytes_max and len(one.parts) < len(record.part_sizes):
        (part,) = _values(one.located.segment, [part_key(record.parts_id, len(one.parts))])
        one.parts.append(part or b"")
        read_bytes += len(part or b"") + 1
    return read_bytes


def _proven(record: Record, stored: Sequence[bytes]) -> Entry | Miss:
    try:
        return decode_parts(record, stored)
    except RecordError:
        return MISS


def _values(segment: Segment, storage_keys: list[bytes]) -> list[bytes | None]:
    """The values of keys; a value that RocksDB itself finds damaged is one that does not prove to be anything."""
    if not storage_keys:
        return []
    try:
        return values_of(segment.family, storage_keys)
    except Exception as error:
        if len(storage_keys) == 1:
            if "Corruption" in str(error):
                return [_DAMAGED]
            raise
        return [value for key in storage_keys for value in _values(segment, [key])]


def _checked(segment: Segment, key: Key, raw: bytes, now_us: int) -> tuple[Located | Miss, bool]:
    """A head record that may be used, and whether it was refused (rather than deleted or expired)."""
    if raw == DELETED:
        return MISS, False
    try:
        record = check_key(decode_record(raw), key)
    except RecordError:
        return MISS, True
    return MISS if record.head.expired(now_us) else Located(segment, raw, record), False


def _key_of(digest: bytes, raw: bytes | None) -> Key | None:
    try:
        tenant, namespace, epoch, user = decode_record(raw or DELETED).key_fields
    except RecordError:
        return None
    return Key(digest, user, namespace, epoch, tenant)


def markers(kind: Kind, digest: bytes) -> list[tuple[bytes, bytes]]:
    """What goes beside a head so that mutable entries can be found again without reading everything."""
    return [(MUTABLE + digest, b"")] if kind is Kind.MUTABLE else []
