"""Stored bytes: whatever was damaged, cut, lengthened, swapped or forged is refused, never read as something else."""

from __future__ import annotations

import struct

import msgpack
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from makers import KEYS, MIB, noise

from terracekv.tiers import envelope
from terracekv.tiers.entry import (
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Codec,
    Entry,
    Head,
    Key,
    Kind,
    checksum_of,
)
from terracekv.tiers.errors import RecordDamaged, RecordError, RecordForeign, RecordNewer

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
U64 = st.integers(0, 2**64 - 1)
NAMESPACES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True)


@st.composite
def items(draw: st.DrawFn) -> tuple[Key, Entry]:
    """Any key with any entry."""
    tenant, namespace = draw(st.text(min_size=1, max_size=20)), draw(NAMESPACES)
    user, epoch = draw(st.binary(min_size=1, max_size=KEY_BYTES_MAX)), draw(U64)
    frames = tuple(draw(st.lists(st.binary(max_size=300), max_size=4))) or (b"",)
    key = Key(draw(st.binary(min_size=32, max_size=32)), user, namespace, epoch, tenant)
    head = Head(
        sum(map(len, frames)), draw(U64), draw(U64), draw(U64), checksum_of(frames),
        draw(st.sampled_from(Kind)), draw(st.sampled_from(Codec)),
    )  # fmt: skip
    return key, Entry(head, frames)


def sample(payload: bytes = b"a payload of some bytes", codec: Codec = Codec.NONE) -> tuple[Key, Entry]:
    head = Head(len(payload), 1_000, 900, 2_000, checksum_of([payload]), Kind.MUTABLE, codec)
    return KEYS.key("default", 7, b"user key"), Entry(head, (payload,))


def resealed(raw: bytes, change: dict[int, object]) -> bytes:
    """A record whose header fields were changed by somebody who can compute checksums."""
    _, _, length, version, _ = envelope.PREFIX.unpack_from(raw)
    fields = msgpack.unpackb(raw[24 : 24 + length], max_str_len=1 << 20)
    for at, value in change.items():
        fields[at] = value
    header = msgpack.packb(fields)
    prefix = envelope.PREFIX.pack(b"TKV1", 1, len(header), version, xxhash.xxh3_64_intdigest(header))
    return prefix + header + raw[24 + length :]


# --- what goes in comes out ---


@QUICK
@given(items())
def test_any_entry_comes_back_from_its_record(item: tuple[Key, Entry]) -> None:
    key, entry = item
    found = envelope.decode_inline(envelope.encode_inline(key, entry), key)
    assert found.head == entry.head
    assert found.payload() == entry.payload()


@QUICK
@given(items(), st.binary(min_size=8, max_size=8))
def test_any_entry_comes_back_from_its_head_and_parts(item: tuple[Key, Entry], parts_id: bytes) -> None:
    key, entry = item
    head, parts = envelope.encode_parts(key, entry, parts_id)
    record = envelope.check_key(envelope.decode_record(head), key)
    assert record.parts_id == parts_id
    assert record.part_sizes == tuple(map(len, parts))
    found = envelope.decode_parts(record, parts)
    assert (found.head, found.payload()) == (entry.head, entry.payload())


@QUICK
@given(items())
def test_the_promised_head_bytes_hold_every_header(item: tuple[Key, Entry]) -> None:
    key, entry = item
    record = envelope.decode_record(envelope.encode_inline(key, entry)[: envelope.head_bytes_max(key)])
    assert record.head == entry.head


def test_the_largest_head_fits_its_limits() -> None:
    key, entry = sample()
    key = key._replace(user=b"k" * KEY_BYTES_MAX, namespace="n" * 63, tenant="t" * 63)
    head = entry.head._replace(size_bytes=VALUE_BYTES_MAX)
    raw = envelope.encode_head(key, head, VALUE_BYTES_MAX, bytes(8), [MIB] * 1_024)
    assert len(raw) <= envelope.HEADER_BYTES_MAX
    assert envelope.decode_record(raw).part_sizes == (MIB,) * 1_024


def test_the_version_can_be_set_in_place() -> None:
    key, entry = sample()
    raw = bytearray(envelope.encode_inline(key, entry))
    raw[envelope.VERSION_OFFSET : envelope.VERSION_OFFSET + 8] = struct.pack("<Q", 2**63 + 5)
    found = envelope.decode_inline(bytes(raw), key)
    assert found == entry._replace(head=entry.head._replace(version=2**63 + 5))


@pytest.mark.parametrize("sizes", [(0,), (1,), (MIB,), (MIB + 1,), (3 * MIB, 5, 0, 2 * MIB - 1)])
def test_splitting_keeps_the_bytes_and_the_bound(sizes: tuple[int, ...]) -> None:
    frames = [noise(size, at) for at, size in enumerate(sizes)]
    parts = envelope.split(frames, MIB)
    assert b"".join(parts) == b"".join(frames)
    assert max(map(len, parts)) <= MIB
    assert all(any(part is frame for part in parts) for frame in frames if len(frame) <= MIB)


# --- damage ---


@QUICK
@given(items(), st.data())
def test_a_changed_byte_never_gives_another_entry(item: tuple[Key, Entry], data: st.DataObject) -> None:
    key, entry = item
    raw = bytearray(envelope.encode_inline(key, entry))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    assert_never_another(bytes(raw), key, entry, may_differ_in_version=8 <= at < 16)


@QUICK
@given(items(), st.data())
def test_a_cut_or_lengthened_record_never_gives_another_entry(item: tuple[Key, Entry], data: st.DataObject) -> None:
    key, entry = item
    raw = envelope.encode_inline(key, entry)
    if data.draw(st.booleans()):
        changed = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        changed = raw + data.draw(st.binary(min_size=1, max_size=64))
    assert_never_another(changed, key, entry)


def assert_never_another(raw: bytes, key: Key, entry: Entry, may_differ_in_version: bool = False) -> None:
    try:
        found = envelope.decode_inline(raw, key)
    except RecordError:
        return
    # A frame of Zstandard has bits that mean nothing: the entry is then the very same.
    head = entry.head._replace(version=found.head.version) if may_differ_in_version else entry.head
    assert (found.head, found.payload()) == (head, entry.payload())


def test_every_single_changed_bit_of_a_record_is_noticed() -> None:
    key, entry = sample()
    raw = envelope.encode_inline(key, entry)
    for at in (at for at in range(len(raw)) if not 8 <= at < 16):
        for bit in range(8):
            changed = bytearray(raw)
            changed[at] ^= 1 << bit
            with pytest.raises(RecordError):
                envelope.decode_inline(bytes(changed), key)


def test_every_cut_and_every_longer_record_is_noticed() -> None:
    key, entry = sample()
    raw = envelope.encode_inline(key, entry)
    for changed in (*(raw[:length] for length in range(len(raw))), raw + b"\0", raw + raw):
        with pytest.raises(RecordDamaged):
            envelope.decode_inline(changed, key)


@QUICK
@given(st.binary(max_size=200))
def test_noise_is_never_a_record(raw: bytes) -> None:
    key, _ = sample()
    for start in (b"", b"TKV1", b"TKV1\x01\x00"):
        with pytest.raises(RecordError):
            envelope.decode_inline(start + raw, key)


def test_parts_in_another_order_short_or_of_another_try_are_noticed() -> None:
    key, entry = sample()
    entry = entry._replace(frames=(b"a" * 10, b"b" * 10))
    entry = entry._replace(head=entry.head._replace(size_bytes=20, checksum=checksum_of(entry.frames)))
    head, parts = envelope.encode_parts(key, entry, b"8 bytes!")
    record = envelope.decode_record(head)
    for changed in (parts[::-1], parts[:1], [*parts, b"x"], [parts[0], b"c" * 10], [parts[0], b""]):
        with pytest.raises(RecordDamaged):
            envelope.decode_parts(record, changed)
    with pytest.raises(RecordDamaged, match="apart"):
        envelope.decode_inline(head + b"".join(parts), key)


# --- whose it is ---


@pytest.mark.parametrize("change", [{"user": b"other"}, {"namespace": "other"}, {"epoch": 8}, {"tenant": "other"}])
def test_a_whole_record_of_another_key_is_foreign(change: dict[str, object]) -> None:
    key, entry = sample()
    with pytest.raises(RecordForeign):
        envelope.decode_inline(envelope.encode_inline(key, entry), key._replace(**change))


@pytest.mark.parametrize("number", [2, 3, 65_535])
def test_a_newer_format_is_refused_in_words(number: int) -> None:
    raw = bytearray(envelope.encode_inline(*sample()))
    raw[4:6] = number.to_bytes(2, "little")
    with pytest.raises(RecordNewer, match=f"format {number}; this version reads up to 1"):
        envelope.decode_record(bytes(raw))


def test_format_zero_is_no_format() -> None:
    raw = bytearray(envelope.encode_inline(*sample()))
    raw[4:6] = bytes(2)
    with pytest.raises(RecordDamaged):
        envelope.decode_record(bytes(raw))


# --- forgery: headers with right checksums and wrong contents ---

KIND, TENANT, NAMESPACE, EPOCH, USER, CREATED, EXPIRES, CODEC, SIZE, CHECKSUM, STORED, PARTS_ID, PARTS = range(13)


@pytest.mark.parametrize(
    "change",
    [
        {KIND: 0}, {KIND: 3}, {KIND: "1"}, {KIND: None}, {KIND: 1.5}, {KIND: [1]},
        {TENANT: b"default"}, {NAMESPACE: 5}, {EPOCH: -1}, {EPOCH: "1"}, {USER: "user key"},
        {CREATED: -1}, {EXPIRES: -1}, {EXPIRES: None}, {CODEC: 0}, {CODEC: 4}, {CODEC: b""},
        {SIZE: -1}, {SIZE: VALUE_BYTES_MAX + 1}, {SIZE: 2**63}, {SIZE: 22}, {SIZE: 24}, {SIZE: "23"},
        {CHECKSUM: b""}, {CHECKSUM: bytes(16)}, {CHECKSUM: bytes(17)}, {CHECKSUM: None},
        {STORED: -1}, {STORED: 22}, {STORED: 2**60}, {PARTS_ID: None}, {PARTS_ID: "x"},
        {PARTS: None}, {PARTS: [-1]}, {PARTS: ["1"]}, {PARTS: [1, 2]}, {PARTS: {}}, {PARTS: [[1]]},
    ],
)  # fmt: skip
def test_a_forged_header_is_refused(change: dict[int, object]) -> None:
    key, entry = sample()
    with pytest.raises(RecordError):
        envelope.decode_inline(resealed(envelope.encode_inline(key, entry), change), key)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"\xc1", b"\x90", b"\x80", msgpack.packb([1] * 12), msgpack.packb([1] * 14), msgpack.packb({"a": 1}),
        msgpack.packb("text"), msgpack.packb([1] * 13), b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff", b"\x91" * 5_000, b"\xc7\x01\x05x", msgpack.packb(msgpack.Timestamp(1, 1)),
        msgpack.packb([1] * 13) + b"\x00", b"\x9d" + b"\xd9\x02\xff\xff" * 13,
    ],
)  # fmt: skip
def test_a_header_that_is_no_list_of_fields_is_refused(header: bytes) -> None:
    prefix = envelope.PREFIX.pack(b"TKV1", 1, len(header), 1, xxhash.xxh3_64_intdigest(header))
    with pytest.raises(RecordDamaged):
        envelope.decode_record(prefix + header)


def test_an_unhashable_or_huge_part_list_is_refused() -> None:
    key, entry = sample()
    raw = envelope.encode_inline(key, entry)
    for parts in ([1] * 2_049, [23, 0, 0, 0, 2**70 % 2**63]):
        with pytest.raises(RecordError):
            envelope.decode_inline(resealed(raw, {PARTS: parts, PARTS_ID: b"12345678"}), key)
