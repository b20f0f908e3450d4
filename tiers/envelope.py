"""Entry <-> stored bytes, the same in Redis and on disk; whatever does not prove to be the entry asked for is refused.

A record is

    0   4   magic "TKV1"
    4   2   format number, little-endian (1)
    6   2   length of the header, little-endian
    8   8   version of the entry, little-endian: a script may set it in place
    16  8   xxh3-64 of the header, little-endian
    24      header: a msgpack array
            payload, stored as the header's codec says, or nothing if it has parts

The header is [kind, tenant, namespace, epoch, user key, created_us,
expires_us, codec, size_bytes, checksum, stored_bytes, parts_id, part_sizes].
`checksum` is xxh3-128 of the raw payload, `stored_bytes` the length of the
payload as stored. A payload kept apart, in records of its own, has `parts_id`
(8 random bytes) and the sizes of its parts; the head is written last, so a
part that is missing or of another try makes the whole a miss. Header version
bytes are outside the header's checksum because the writing script sets them.
Readers of format n read every format up to n.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgpack
import xxhash

from terracekv.tiers.codec import decode_payload, encode_payload
from terracekv.tiers.entry import (
    FRAME_BYTES_MAX,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Codec,
    Entry,
    Head,
    Key,
    Kind,
    checksum_of,
)
from terracekv.tiers.errors import RecordDamaged, RecordForeign, RecordNewer

MAGIC: Final = b"TKV1"
FORMAT: Final = 1
PREFIX: Final = struct.Struct("<4sHHQQ")
VERSION_OFFSET: Final = 8
HEADER_BYTES_MAX: Final = 16_384  # 1,024 parts of 5 bytes, a key of 1 KiB and the rest fit
_FIELDS: Final = 13


class Record(NamedTuple):
    """A checked header: whose it is, what it describes, and where its payload lies."""

    key_fields: tuple[str, str, int, bytes]  # tenant, namespace, epoch, user key
    head: Head
    stored_bytes: int
    parts_id: bytes  # empty: the payload follows the header
    part_sizes: tuple[int, ...]
    payload_offset: int


def head_bytes_max(key: Key) -> int:
    """Bytes from the start of a record that surely hold prefix and header, if its payload has no parts."""
    return PREFIX.size + 192 + len(key.user) + len(key.namespace) + len(key.tenant)


def encode_head(key: Key, head: Head, stored_bytes: int, parts_id: bytes, part_sizes: Sequence[int]) -> bytes:
    """Prefix and header of a record."""
    header: bytes = msgpack.packb(
        [
            int(head.kind),
            key.tenant,
            key.namespace,
            key.epoch,
            key.user,
            head.created_us,
            head.expires_us,
            int(head.codec),
            head.size_bytes,
            head.checksum,
            stored_bytes,
            parts_id,
            list(part_sizes),
        ]
    )
    return PREFIX.pack(MAGIC, FORMAT, len(header), head.version, xxhash.xxh3_64_intdigest(header)) + header


def encode_inline(key: Key, entry: Entry) -> bytes:
    """A whole record with its payload behind the header."""
    stored = encode_payload(entry.frames, entry.head.codec)
    stored_bytes = sum(map(len, stored))
    return b"".join((encode_head(key, entry.head, stored_bytes, b"", ()), *stored))


def encode_parts(key: Key, entry: Entry, parts_id: bytes) -> tuple[bytes, list[bytes]]:
    """The head record of a payload kept apart, and its parts of at most 1 MiB each."""
    stored = encode_payload(entry.frames, entry.head.codec)
    parts = split(stored, FRAME_BYTES_MAX)
    head = encode_head(key, entry.head, sum(map(len, parts)), parts_id, [len(part) for part in parts])
    return head, parts


def split(frames: Sequence[bytes], bytes_max: int) -> list[bytes]:
    """The same bytes in frames of at most `bytes_max`; frames that fit already are not copied."""
    out: list[bytes] = []
    for frame in frames:
        if len(frame) <= bytes_max:
            out.append(frame)
        else:
            out.extend(frame[at : at + bytes_max] for at in range(0, len(frame), bytes_max))
    return out


def decode_record(raw: bytes) -> Record:
    """The header of a record, checked for shape and damage. Raises RecordDamaged or RecordNewer."""
    if len(raw) < PREFIX.size:
        raise RecordDamaged("shorter than its prefix")
    magic, number, header_bytes, version, header_checksum = PREFIX.unpack_from(raw)
    if magic != MAGIC:
        raise RecordDamaged("not a terracekv record")
    if number > FORMAT:
        raise RecordNewer(f"format {number}; this version reads up to {FORMAT}")
    end = PREFIX.size + header_bytes
    header = raw[PREFIX.size : end]
    if number < 1 or len(header) != header_bytes or xxhash.xxh3_64_intdigest(header) != header_checksum:
        raise RecordDamaged("header")
    return _checked_record(_unpacked(header), version, end)


def _unpacked(header: bytes) -> list[object]:
    try:
        fields = msgpack.unpackb(
            header,
            use_list=True,
            strict_map_key=True,
            max_str_len=1_024,
            max_bin_len=KEY_BYTES_MAX,
            max_array_len=2_048,
            max_map_len=0,
            max_ext_len=0,
        )
    except ValueError as error:  # msgpack's own errors derive from it
        raise RecordDamaged("header is not msgpack") from error
    if not isinstance(fields, list) or len(fields) != _FIELDS:
        raise RecordDamaged("header fields")
    return fields


def _checked_record(fields: list[object], version: int, payload_offset: int) -> Record:
    kind, tenant, namespace, epoch, user, created_us, expires_us, codec, size, checksum, stored, parts_id, parts = (
        fields
    )
    numbers = (kind, epoch, created_us, expires_us, codec, size, stored)
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise RecordDamaged("header numbers")
    if not (isinstance(tenant, str) and isinstance(namespace, str) and isinstance(user, bytes)):
        raise RecordDamaged("header key")
    if not (isinstance(checksum, bytes) and len(checksum) == 16 and isinstance(parts_id, bytes)):
        raise RecordDamaged("header checksum")
    if not (isinstance(parts, list) and all(isinstance(part, int) and part >= 0 for part in parts)):
        raise RecordDamaged("header parts")
    if not isinstance(size, int) or size > VALUE_BYTES_MAX or (parts and sum(parts) != stored):
        raise RecordDamaged("header sizes")
    try:
        head = Head(size, version, created_us, expires_us, checksum, Kind(kind), Codec(codec))  # type: ignore[arg-type]
    except ValueError as error:
        raise RecordDamaged("header kind or codec") from error
    return Record((tenant, namespace, epoch, user), head, stored, parts_id, tuple(parts), payload_offset)  # type: ignore[arg-type]


def check_key(record: Record, key: Key) -> Record:
    """The record, if it is of `key`. Raises RecordForeign: full identities are compared, not digests."""
    if record.key_fields != (key.tenant, key.namespace, key.epoch, key.user):
        raise RecordForeign("record of another key")
    return record


def decode_inline(raw: bytes, key: Key) -> Entry:
    """The entry of a record with its payload behind the header. Raises RecordError."""
    record = check_key(decode_record(raw), key)
    if record.parts_id:
        raise RecordDamaged("payload is kept apart")
    return decode_parts(record, [raw[record.payload_offset :]])


def decode_parts(record: Record, parts: Sequence[bytes]) -> Entry:
    """The entry of a header and its stored payload; lengths and checksum are proven. Raises RecordDamaged."""
    if sum(map(len, parts)) != record.stored_bytes:
        raise RecordDamaged("payload length")
    frames = decode_payload(tuple(parts), record.head.codec, record.head.size_bytes)
    if sum(map(len, frames)) != record.head.size_bytes or checksum_of(frames) != record.head.checksum:
        raise RecordDamaged("payload checksum")
    return Entry(record.head, frames)
