"""Stored bytes and a data directory of format 1 are read for ever; a newer format is refused in words."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from golden.make_data_directory import (
    CREATED_US,
    DELETED_KEY,
    DISK_BYTES_MAX,
    DURABLE_BYTES_MAX,
    NAMESPACE_RECORD,
    RESERVED,
    first_items,
    later_items,
)
from golden.make_records import PARTS_ID, fields_of, golden_items
from makers import KEYS, soon

from terracekv.tiers.clock import FakeClock
from terracekv.tiers.disk import open_disk
from terracekv.tiers.durable import DurableNumber, DurableRecords
from terracekv.tiers.entry import MISS, Codec, Entry, Key
from terracekv.tiers.envelope import check_key, decode_inline, decode_parts, decode_record, encode_inline, encode_parts
from terracekv.tiers.errors import RecordNewer

GOLDEN = Path(__file__).parent.parent / "golden"
RECORDS = GOLDEN / "records"
FIELDS = json.loads((RECORDS / "records.json").read_text())
INLINE = sorted(set(FIELDS) - {"parts"})


def golden_key(name: str) -> Key:
    fields = FIELDS[name]
    key = KEYS.key(fields["namespace"], fields["epoch"], bytes.fromhex(fields["user_key"]))
    assert (key.digest.hex(), key.tenant) == (fields["digest"], fields["tenant"]), "storage keys are for ever too"
    return key


@pytest.mark.parametrize("name", INLINE)
def test_a_record_of_format_1_is_read_field_by_field(name: str) -> None:
    key = golden_key(name)
    assert fields_of(key, decode_inline((RECORDS / f"{name}.bin").read_bytes(), key)) == FIELDS[name]


def test_a_head_of_format_1_and_its_parts_are_read_field_by_field() -> None:
    key = golden_key("parts")
    record = check_key(decode_record((RECORDS / "parts.bin").read_bytes()), key)
    assert (record.parts_id, record.part_sizes, record.stored_bytes) == (PARTS_ID, (100, 50, 1), 151)
    parts = [(RECORDS / f"parts.{index}.bin").read_bytes() for index in range(3)]
    assert fields_of(key, decode_parts(record, parts)) == FIELDS["parts"]


@pytest.mark.parametrize("name", ["inline_mutable", "inline_immutable", "empty"])
def test_what_is_written_today_are_the_same_bytes(name: str) -> None:
    assert encode_inline(*golden_items()[name]) == (RECORDS / f"{name}.bin").read_bytes()


def test_a_head_with_parts_written_today_is_the_same_bytes() -> None:
    head, parts = encode_parts(*golden_items()["parts"], PARTS_ID)
    assert head == (RECORDS / "parts.bin").read_bytes()
    assert b"".join(parts) == b"".join((RECORDS / f"parts.{index}.bin").read_bytes() for index in range(3))


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_record_of_a_newer_format_is_refused_in_words(name: str) -> None:
    raw = bytearray((RECORDS / f"{name}.bin").read_bytes())
    raw[4] = 2
    with pytest.raises(RecordNewer, match="format 2; this version reads up to 1"):
        decode_record(bytes(raw))


def test_every_codec_and_both_kinds_are_among_the_records() -> None:
    assert {fields["codec"] for fields in FIELDS.values()} == {int(codec) for codec in Codec}
    assert {fields["kind"] for fields in FIELDS.values()} == {1, 2}


@pytest.fixture
def old_directory(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / "data-format-1.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


async def test_a_data_directory_of_format_1_opens_and_is_read(old_directory: Path) -> None:
    clock = FakeClock(CREATED_US + 1_000_000)
    tier = await open_disk(old_directory, DISK_BYTES_MAX, DURABLE_BYTES_MAX, clock)
    try:
        assert tier.set_aside == ()
        newest = {**dict(first_items()), **dict(later_items())}
        deleted = next(key for key in newest if key.user == DELETED_KEY)
        del newest[deleted]
        found = await tier.get_many([*newest, deleted], soon(clock))
        assert [one.head if isinstance(one, Entry) else one for one in found[:-1]] == [e.head for e in newest.values()]
        assert [one.payload() for one in found if isinstance(one, Entry)] == [e.payload() for e in newest.values()]
        assert found[-1] is MISS
        assert await DurableNumber(tier.durable, b"versions/reserved").load() == RESERVED
        assert await DurableRecords(tier.durable).load(soon(clock)) == {"default": NAMESPACE_RECORD}
        mutable = [key.user async for run in tier.scan_mutable(soon(clock)) for key, _ in run]
        assert sorted(mutable) == [b"empty", b"state"]
        assert tier.counters.corrupt == 0
    finally:
        await tier.close()


async def test_what_expired_since_is_gone(old_directory: Path) -> None:
    clock = FakeClock(CREATED_US + 86_400_000_000)
    tier = await open_disk(old_directory, DISK_BYTES_MAX, DURABLE_BYTES_MAX, clock)
    try:
        ends = next(key for key, _ in first_items() if key.user == b"ends")
        assert await tier.get_many([ends], soon(clock)) == [MISS]
    finally:
        await tier.close()
