"""Reads of the cache class, in the caller's thread: newest segment first, heads without payloads, every byte proven.

A record that is damaged, of another key or of a newer format is a miss and is
counted; so is a payload of which a part is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from terracekv.tiers.entry import MISS, Entry, Found, HeadFound, Key, Kind, Miss
from terracekv.tiers.envelope import Record, check_key, decode_parts, decode_record
from terracekv.tiers.errors import RecordDamaged, RecordError
from terracekv.tiers.rocks import items_of, values_of
from terracekv.tiers.segments import DELETED, Segment, Segments

HEAD: Final = b"h"
MUTABLE: Final = b"m"
PART: Final = b"p"


def part_key(parts_id: bytes, index: int) -> bytes:
    """Where a part of a payload lies."""
    return PART + parts_id + index.to_bytes(4, "big")


class Located(NamedTuple):
    """A checked head record and where it lies."""

    segment: Segment
    raw: bytes
    record: Record


@dataclass(slots=True)
class Reads:
    """Answers of one batch, and how many records were refused on the way."""

    found: list[Found]
    corrupt: int = 0


class DiskReader:
    """Looks keys up in the segments. Safe to use from several threads."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    def locate(self, keys: Sequence[Key], now_us: int) -> tuple[dict[Key, Located | Miss], int]:
        """The live head record of each key, and how many records were refused. Raises Exception as rocksdict does."""
        located: dict[Key, Located | Miss] = {}
        corrupt = 0
        missing = list(dict.fromkeys(keys))
        for segment in self._segments.newest_first:
            raws = _values(segment, [HEAD + key.digest for key in missing])
            for key, raw in zip(missing, raws, strict=True):
                if raw is not None:
                    located[key] = _checked(segment, key, raw, now_us)
                    corrupt += located[key] is MISS and _refused(raw, key)
            missing = [key for key in missing if key not in located]
            if not missing:
                break
        located.update(dict.fromkeys(missing, MISS))
        return located, corrupt

    def heads(self, keys: Sequence[Key], now_us: int) -> tuple[list[HeadFound], int]:
        """The heads of keys, and how many records were refused."""
        located, corrupt = self.locate(keys, now_us)
        return [one.record.head if isinstance(one := located[key], Located) else MISS for key in keys], corrupt

    def read(self, keys: Sequence[Key], bytes_max: int | None, now_us: int) -> Reads:
        """The entries of keys; with `bytes_max`, payloads of at most that many bytes, the rest as heads."""
        located, corrupt = self.locate(keys, now_us)
        reads = Reads([], corrupt)
        left = bytes_max
        for key in keys:
            one = located[key]
            if isinstance(one, Miss):
                reads.found.append(MISS)
            elif left is not None and one.record.head.size_bytes > left:
                reads.found.append(one.record.head)
            else:
                found = self._entry(one)
                reads.found.append(found)
                reads.corrupt += found is MISS
                left = None if left is None else left - (one.record.head.size_bytes if found else 0)
        return reads

    @staticmethod
    def _entry(located: Located) -> Entry | Miss:
        try:
            return decode_parts(located.record, _payload(located))
        except RecordError:
            return MISS

    def mutable_keys(self) -> Iterator[list[Key]]:
        """Keys of mutable entries, segment by segment, each key once. Deleted and expired ones may be among them."""
        seen: set[bytes] = set()
        for segment in self._segments.newest_first:
            digests = [marker[len(MUTABLE) :] for marker, _ in items_of(segment.family, MUTABLE)]
            new = [digest for digest in digests if digest not in seen]
            seen.update(new)
            yield [key for key in (self._key_of(segment, digest) for digest in new) if key is not None]

    @staticmethod
    def _key_of(segment: Segment, digest: bytes) -> Key | None:
        raw = segment.family.get(HEAD + digest)
        try:
            tenant, namespace, epoch, user = decode_record(raw or b"").key_fields
        except RecordError:
            return None
        return Key(digest, user, namespace, epoch, tenant)


def _values(segment: Segment, storage_keys: list[bytes]) -> list[bytes | None]:
    """The values of keys; a value that RocksDB itself finds damaged is one that does not prove to be anything."""
    if not storage_keys:
        return []
    try:
        return values_of(segment.family, storage_keys)
    except Exception as error:
        if len(storage_keys) == 1:
            if "Corruption" in str(error):
                return [b"damaged"]
            raise
        return [value for key in storage_keys for value in _values(segment, [key])]


def _checked(segment: Segment, key: Key, raw: bytes, now_us: int) -> Located | Miss:
    if raw == DELETED:
        return MISS
    try:
        record = check_key(decode_record(raw), key)
    except RecordError:
        return MISS
    return MISS if record.head.expired(now_us) else Located(segment, raw, record)


def _refused(raw: bytes, key: Key) -> bool:
    """Whether a record that gave a miss was refused, rather than deleted or expired."""
    if raw == DELETED:
        return False
    try:
        check_key(decode_record(raw), key)
    except RecordError:
        return True
    return False


def _payload(located: Located) -> list[bytes]:
    """The stored payload of a head. Raises RecordDamaged if a part is missing."""
    record = located.record
    if not record.parts_id:
        return [located.raw[record.payload_offset :]]
    parts: list[bytes] = []
    for index in range(len(record.part_sizes)):
        (part,) = _values(located.segment, [part_key(record.parts_id, index)])
        if part is None:
            raise RecordDamaged("a part is missing")
        parts.append(part)
    return parts


def markers(kind: Kind, digest: bytes) -> list[tuple[bytes, bytes]]:
    """What goes beside a head so that mutable entries can be found again without reading everything."""
    return [(MUTABLE + digest, b"")] if kind is Kind.MUTABLE else []
