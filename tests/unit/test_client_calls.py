"""Requests and replies without a wire: batches cut within their limits, bytes proven before they are handed out."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terracekv.client import MISS, Failed, Hit, Put, block_calls, calls, errors
from terracekv.client.batches import ManyRead, ManyWrite, Part, pack, read_get_many, read_put_many
from terracekv.client.block_calls import FetchAssembler, StoreTally, store_requests
from terracekv.client.calls import Deferred, ValueAssembler, WriteOptions, checksum_of
from terracekv.v1 import blocks_pb2, cache_pb2

MIB = 1 << 20
HIT, MISSED = cache_pb2.KEY_STATUS_HIT, cache_pb2.KEY_STATUS_MISS


@given(st.lists(st.integers(0, 2_000), max_size=60), st.integers(1, 1_500))
def test_batches_keep_order_and_limits_and_lose_nothing(sizes: list[int], bytes_max: int) -> None:
    parts = pack(dict(enumerate(sizes)), bytes_max)
    assert sorted(row for part in parts for row in part.rows) == list(range(len(sizes)))
    for part in parts:
        total = sum(sizes[row] for row in part.rows)
        assert part.streamed == (total > bytes_max)
        assert list(part.rows) == sorted(part.rows)


def test_a_batch_has_at_most_1024_keys() -> None:
    assert [len(part.rows) for part in pack(dict.fromkeys(range(2_500), 1))] == [1_024, 1_024, 452]


def test_a_mutable_buffer_is_copied_and_bytes_are_not() -> None:
    buffer = bytearray(b"before")
    taken = calls.snapshot(buffer)
    buffer[:] = b"after!"
    assert taken == b"before"
    whole = b"as it is"
    assert calls.snapshot(whole) is whole


def test_a_value_over_the_limit_is_refused_before_it_is_copied() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return (1 << 30) + 1

    with pytest.raises(errors.ValueTooLarge) as caught:
        calls.check_value_size(len(Huge()))
    assert "1073741824" in caught.value.limit
    assert "1073741825" in caught.value.given


@pytest.mark.parametrize("key", ["", b"", b"k" * 1_025, "\u00e9" * 513])
def test_keys_outside_their_limits_are_refused_without_showing_them(key: str | bytes) -> None:
    with pytest.raises(errors.KeyInvalid) as caught:
        calls.as_key(key)
    assert "kk" not in str(caught.value)
    assert "\u00e9" not in str(caught.value)


def test_no_error_of_a_key_holds_the_key() -> None:
    with pytest.raises(errors.KeyInvalid) as caught:
        calls.as_key("secret\ud800")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_one_key_is_not_taken_for_several() -> None:
    with pytest.raises(TypeError):
        calls.as_keys("abc")


def reply(*values: bytes | None, **columns: Any) -> cache_pb2.GetManyResponse:
    held = [value or b"" for value in values]
    message = cache_pb2.GetManyResponse(
        payload=b"".join(held),
        statuses=[MISSED if value is None else HIT for value in values],
        sizes_bytes=[len(value) for value in held],
        versions=[7] * len(values),
        expires_in_us=[0] * len(values),
        checksums=b"".join(checksum_of(value) for value in held),
        tiers=[0 if value is None else cache_pb2.TIER_NAME_SHARED for value in values],  # type: ignore[misc]
    )
    for name, column in columns.items():
        if isinstance(column, bytes):
            setattr(message, name, column)
        else:
            message.ClearField(name)  # type: ignore[arg-type]
            getattr(message, name).extend(column)
    return message


def test_answers_are_read_by_column() -> None:
    assert read_get_many(reply(b"ab", None, b"", expires_in_us=[1_500_000, 0, 0]), 3) == [
        Hit(b"ab", 7, "shared", 1.5),
        MISS,
        Hit(b"", 7, "shared"),
    ]


def test_only_the_damaged_row_fails() -> None:
    first, second = read_get_many(reply(b"good", b"evil", checksums=checksum_of(b"good") + bytes(16)), 2)
    assert first
    assert isinstance(second, Failed)
    assert isinstance(second.error, errors.ChecksumMismatch)


def test_a_failed_tier_is_neither_hit_nor_miss() -> None:
    unavailable = cache_pb2.KEY_STATUS_UNAVAILABLE
    (answer,) = read_get_many(reply(None, statuses=[unavailable], tiers=[cache_pb2.TIER_NAME_DISK]), 1)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, errors.TierUnavailable)
    assert "disk" in str(answer.error)


def test_a_status_of_a_later_version_is_a_failure() -> None:
    (answer,) = read_get_many(reply(None, statuses=[99]), 1)
    assert isinstance(answer, Failed)


@pytest.mark.parametrize(
    "damage", [{"versions": [1]}, {"sizes_bytes": [1, 1]}, {"checksums": b"x" * 31}, {"payload": b"abcde"}]
)
def test_columns_that_do_not_fit_are_data_loss(damage: dict[str, Any]) -> None:
    damaged = reply(b"ab", b"cd", **damage)
    answers: list[Any] = []
    try:
        answers = read_get_many(damaged, 2)
    except errors.DataLoss:
        return
    assert all(isinstance(answer, Failed) for answer in answers)


def test_deferred_keys_are_asked_again_in_replies_they_fit() -> None:
    reading = ManyRead([b"a", b"b", b"c", b"d"])
    (part,) = reading.parts()
    reading.take(part, [Deferred(2 * MIB), MISS, Deferred(3 * MIB), Deferred(5 * MIB)])
    reading.end_round()
    assert set(reading.parts()) == {Part((0,)), Part((2,)), Part((3,), streamed=True)}


def test_keys_that_stay_deferred_are_streamed_in_the_end() -> None:
    reading = ManyRead([b"a"])
    for _ in range(10):
        (part,) = reading.parts()
        if part.streamed:
            break
        reading.take(part, [Deferred(10)])
        reading.end_round()
    assert part.streamed


def test_a_batch_raises_only_when_nothing_was_answered() -> None:
    reading = ManyRead([b"a", b"b"])
    down = errors.Unavailable("down")
    reading.take(Part((0, 1)), down)
    with pytest.raises(errors.Unavailable):
        reading.results()
    writing = ManyWrite({"a": b"1", "b": bytes(5 * MIB)})
    small, large = sorted(writing.parts(), key=lambda part: part.streamed)
    writing.take(small, [Put(1)])
    writing.take(large, down)
    assert writing.results() == [Put(1), Failed(down)]


def test_failed_puts_carry_their_reason() -> None:
    response = cache_pb2.PutManyResponse(statuses=[1, 2, 3], versions=[5, 6, 0], reasons=[0, 0, 13])  # type: ignore[list-item]
    stored, kept, failed = read_put_many(response, 3)
    assert (stored, kept) == (Put(5), Put(6, kept=True))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, errors.TierFull)


def header(value: bytes, **fields: Any) -> cache_pb2.GetStreamHeader:
    declared = {"status": HIT, "size_bytes": len(value), "version": 1, "checksum": checksum_of(value)}
    return cache_pb2.GetStreamHeader(**{**declared, **fields})


def test_a_streamed_value_is_whole_or_not_at_all() -> None:
    value = random.Random(1).randbytes(3_000)
    assembler = ValueAssembler(header(value))
    for start in range(0, 3_000, 1_000):
        assembler.feed(value[start : start + 1_000])
    assert assembler.finish() == Hit(value, 1, "")

    cut = ValueAssembler(header(value))
    cut.feed(value[:2_000])
    with pytest.raises(errors.DataLoss):
        cut.finish()

    with pytest.raises(errors.DataLoss):
        ValueAssembler(header(value)).feed(value + b"more")

    damaged = ValueAssembler(header(value, checksum=bytes(16)))
    damaged.feed(value)
    with pytest.raises(errors.ChecksumMismatch):
        damaged.finish()


def test_a_size_that_no_value_has_is_refused_at_once() -> None:
    with pytest.raises(errors.ValueTooLarge):
        ValueAssembler(header(b"", size_bytes=(1 << 30) + 1))


block_lists = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3_000)), max_size=20)


@given(block_lists, st.integers(1, 2_500))
def test_fetched_blocks_are_cut_out_of_any_framing(blocks: list[tuple[int, int]], frame: int) -> None:
    payloads = [None if kind == 0 else random.Random(size).randbytes(size) for kind, size in blocks]
    announced = [
        blocks_pb2.FetchedBlock(index=place, status=MISSED)
        if payload is None
        else blocks_pb2.FetchedBlock(
            index=place, status=HIT, size_bytes=len(payload), checksum=checksum_of(payload), version=3
        )
        for place, payload in enumerate(payloads)
    ]
    joined = b"".join(payload for payload in payloads if payload)
    assembler = FetchAssembler(len(payloads))
    answers = assembler.feed(blocks_pb2.FetchResponse(blocks=announced, data=joined[:frame]))
    for start in range(frame, len(joined), frame):
        answers += assembler.feed(blocks_pb2.FetchResponse(data=joined[start : start + frame]))
    assembler.finish()
    assert answers == [
        (place, MISS if payload is None else Hit(payload, 3, "")) for place, payload in enumerate(payloads)
    ]


def test_a_damaged_block_fails_and_the_next_is_whole() -> None:
    announced = [
        blocks_pb2.FetchedBlock(index=0, status=HIT, size_bytes=3, checksum=bytes(16)),
        blocks_pb2.FetchedBlock(index=1, status=HIT, size_bytes=3, checksum=checksum_of(b"two")),
        blocks_pb2.FetchedBlock(index=2, status=cache_pb2.KEY_STATUS_UNAVAILABLE, tier=cache_pb2.TIER_NAME_SHARED),
    ]
    answers = FetchAssembler(3).feed(blocks_pb2.FetchResponse(blocks=announced, data=b"onetwo"))
    (_, first), (_, second), (_, third) = answers
    assert isinstance(first, Failed)
    assert isinstance(first.error, errors.ChecksumMismatch)
    assert second == Hit(b"two", 0, "")
    assert isinstance(third, Failed)
    assert isinstance(third.error, errors.TierUnavailable)


def test_a_fetch_that_breaks_its_order_is_data_loss() -> None:
    with pytest.raises(errors.DataLoss):
        FetchAssembler(2).feed(blocks_pb2.FetchResponse(blocks=[blocks_pb2.FetchedBlock(index=1, status=MISSED)]))
    with pytest.raises(errors.DataLoss):
        FetchAssembler(2).feed(blocks_pb2.FetchResponse(data=b"nobody's"))
    with pytest.raises(errors.DataLoss):
        FetchAssembler(1).finish()


@given(st.lists(st.integers(0, 2_600_000), max_size=6))
def test_stored_blocks_travel_in_frames_of_a_mebibyte_whole_and_in_order(sizes: list[int]) -> None:
    items = [((place.to_bytes(32, "big"), place), bytes([place + 1]) * size) for place, size in enumerate(sizes)]
    first, *middle, last = store_requests(items, WriteOptions("blocks", 5.0, "wal"))
    assert (first.header.namespace, first.header.ttl_s, first.header.durability) == ("blocks", 5.0, 3)
    assert last.commit.blocks == len(items)
    assert all(len(message.batch.data) <= MIB for message in middle)
    announced = [block for message in middle for block in message.batch.blocks]
    joined = b"".join(message.batch.data for message in middle)
    assert [block.size_bytes for block in announced] == sizes
    assert joined == b"".join(value for _, value in items)
    assert [block.checksum for block in announced] == [checksum_of(value) for _, value in items]


def test_small_blocks_share_a_message() -> None:
    items = [((place.to_bytes(32, "big"), 0), bytes(1_000)) for place in range(1_000)]
    assert len(list(store_requests(items, WriteOptions("blocks")))) == 3


def test_blocks_are_drawn_one_at_a_time() -> None:
    drawn: list[int] = []

    def items() -> Any:
        for place in range(10):
            drawn.append(place)
            yield (place.to_bytes(32, "big"), 0), bytes(MIB)

    requests = store_requests(items(), WriteOptions("blocks"))
    next(requests)
    next(requests)
    assert len(drawn) <= 2


def test_answers_of_several_stores_add_up() -> None:
    tally = StoreTally()
    tally.add(blocks_pb2.StoreResponse(statuses=[1, 2], reasons=[0, 0], differing_blocks=1), 2)  # type: ignore[list-item]
    tally.add(blocks_pb2.StoreResponse(statuses=[3, 1], reasons=[13, 0]), 2)  # type: ignore[list-item]
    report = tally.report
    assert (report.stored, report.kept, report.failed, report.differing) == (2, 1, 1, 1)
    ((place, error),) = report.failures
    assert place == 2
    assert isinstance(error, errors.TierFull)


def test_an_upload_ends_before_its_commit_where_its_blocks_fail() -> None:
    def items() -> Any:
        yield (bytes(32), 0), b"x"
        raise RuntimeError("of the caller")

    upload = block_calls.Upload(items(), WriteOptions("blocks"))
    assert all(message.WhichOneof("part") != "commit" for message in upload)
    assert isinstance(upload.error, RuntimeError)
