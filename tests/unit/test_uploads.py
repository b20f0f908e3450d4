"""Uploads: a value counts when its commit, size and checksum hold, and never otherwise, wherever the stream is cut."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terracekv.server.checks import StreamIncomplete
from terracekv.server.limits import Budget, Overloaded
from terracekv.server.uploads import BlockAssembler, receive_value
from terracekv.tiers.blocks import block_key
from terracekv.tiers.entry import checksum_of
from terracekv.tiers.errors import ChecksumMismatch, FieldInvalid
from terracekv.v1.blocks_pb2 import BlockKey, StoreBatch, StoredBlock
from terracekv.v1.cache_pb2 import PutStreamCommit, PutStreamHeader, PutStreamRequest

FRAMES = [b"a" * 700, b"b" * 700, b"c" * 600]
HEADER = PutStreamRequest(header=PutStreamHeader(key=b"k", size_bytes=2_000))
COMMIT = PutStreamRequest(commit=PutStreamCommit(checksum=checksum_of(FRAMES)))
WHOLE = [HEADER, *(PutStreamRequest(data=frame) for frame in FRAMES), COMMIT]


async def stream(messages: Sequence[PutStreamRequest]) -> AsyncIterator[PutStreamRequest]:
    for message in messages:
        yield message


def budget(bytes_max: int = 10_000) -> Budget:
    return Budget("BYTES_INFLIGHT", bytes_max)


async def received(messages: Sequence[PutStreamRequest], bytes_: Budget | None = None) -> bytes:
    async with receive_value(stream(messages), bytes_ or budget()) as (_, put):
        return b"".join(put.frames)


async def test_a_whole_upload_is_its_frames() -> None:
    assert await received(WHOLE) == b"".join(FRAMES)


async def test_an_upload_without_a_checksum_gets_the_servers() -> None:
    messages = [*WHOLE[:-1], PutStreamRequest(commit=PutStreamCommit())]
    async with receive_value(stream(messages), budget()) as (_, put):
        assert put.checksum == checksum_of(FRAMES)


async def test_an_empty_value_is_a_header_and_a_commit() -> None:
    empty = PutStreamRequest(header=PutStreamHeader(key=b"k"))
    assert await received([empty, PutStreamRequest(commit=PutStreamCommit())]) == b""


@pytest.mark.parametrize("cut", range(len(WHOLE)))
async def test_a_stream_cut_at_any_message_is_no_value(cut: int) -> None:
    with pytest.raises(StreamIncomplete):
        await received(WHOLE[:cut])


@pytest.mark.parametrize(
    "messages",
    [
        WHOLE[1:],
        [HEADER, *WHOLE],
        [HEADER, WHOLE[1], COMMIT],
        [*WHOLE[:-1], WHOLE[1], COMMIT],
        [HEADER, PutStreamRequest(), *WHOLE[1:]],
    ],
)
async def test_a_stream_out_of_order_is_no_value(messages: list[PutStreamRequest]) -> None:
    with pytest.raises(StreamIncomplete):
        await received(messages)


async def test_changed_bytes_are_no_value() -> None:
    messages = [HEADER, *(PutStreamRequest(data=frame) for frame in (b"a" * 700, b"x" * 700, b"c" * 600)), COMMIT]
    with pytest.raises(ChecksumMismatch):
        await received(messages)


async def test_a_frame_over_its_limit_is_refused() -> None:
    large = PutStreamRequest(header=PutStreamHeader(key=b"k", size_bytes=1 << 21))
    with pytest.raises(FieldInvalid):
        await received([large, PutStreamRequest(data=bytes((1 << 20) + 1))], budget(1 << 22))


async def test_memory_is_booked_by_the_header_and_given_back() -> None:
    bytes_ = budget(1_999)
    with pytest.raises(Overloaded):
        await received(WHOLE, bytes_)
    assert (bytes_.amount, bytes_.refused) == (0, 1)


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 3_000), min_size=1, max_size=20),
    message_bytes=st.integers(1, 4_000),
    seed=st.integers(0, 2**32),
)
def test_blocks_are_cut_out_of_any_packing(sizes: list[int], message_bytes: int, seed: int) -> None:
    draw = random.Random(seed)
    payloads = [draw.randbytes(size) for size in sizes]
    keys = [BlockKey(digest=bytes([at]) * 32, group=at) for at in range(len(sizes))]
    blocks = [
        StoredBlock(key=key, size_bytes=len(payload), checksum=checksum_of([payload]))
        for key, payload in zip(keys, payloads, strict=True)
    ]
    joined = b"".join(payloads)
    assembler = BlockAssembler()
    puts = assembler.feed(StoreBatch(blocks=blocks))
    for at in range(0, len(joined), message_bytes):
        puts += assembler.feed(StoreBatch(data=joined[at : at + message_bytes]))
    assert [(put.user_key, b"".join(put.frames)) for put in puts] == [
        (block_key(key.digest, key.group), payload) for key, payload in zip(keys, payloads, strict=True)
    ]
    assert assembler.missing_bytes == 0


def test_more_bytes_than_announced_are_refused() -> None:
    block = StoredBlock(key=BlockKey(digest=bytes(32)), size_bytes=1)
    with pytest.raises(StreamIncomplete):
        BlockAssembler().feed(StoreBatch(blocks=[block], data=b"ab"))


def test_a_block_with_other_bytes_than_its_checksum_is_refused() -> None:
    block = StoredBlock(key=BlockKey(digest=bytes(32)), size_bytes=1, checksum=bytes(16))
    with pytest.raises(ChecksumMismatch):
        BlockAssembler().feed(StoreBatch(blocks=[block], data=b"a"))
