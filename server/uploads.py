"""Streams of bytes: an upload counts only when commit, size and checksum hold; its memory is booked beforehand."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import xxhash

from terracekv.server import checks
from terracekv.server.checks import StreamIncomplete
from terracekv.server.limits import Budget
from terracekv.tiers.blocks import block_key
from terracekv.tiers.entry import FRAME_BYTES_MAX, Entry
from terracekv.tiers.envelope import split
from terracekv.tiers.errors import ChecksumMismatch, FieldInvalid
from terracekv.tiers.stack import Put
from terracekv.v1 import blocks_pb2, cache_pb2


def frames_of(entry: Entry) -> list[bytes]:
    """A payload in frames of 1 byte to 1 MiB."""
    return [frame for frame in split(entry.frames, FRAME_BYTES_MAX) if frame]


@asynccontextmanager
async def receive_value(
    messages: AsyncIterator[cache_pb2.PutStreamRequest], bytes_inflight: Budget
) -> AsyncIterator[tuple[cache_pb2.PutStreamHeader, Put]]:
    """The header and the whole, proven value of an upload; its bytes stay booked while the block runs.

    Raises StreamIncomplete, ChecksumMismatch, FieldInvalid, Overloaded.
    """
    first = await anext(messages, None)
    if first is None or first.WhichOneof("part") != "header":
        raise StreamIncomplete("an upload begins with its header")
    checks.check_put_header(first.header)
    with bytes_inflight.hold(first.header.size_bytes):
        yield first.header, await _received(first.header, messages)


async def _received(header: cache_pb2.PutStreamHeader, messages: AsyncIterator[cache_pb2.PutStreamRequest]) -> Put:
    frames: list[bytes] = []
    size_bytes = 0
    hasher = xxhash.xxh3_128()
    async for message in messages:
        part = message.WhichOneof("part")
        if part == "commit":
            checks.check_checksum(message.commit.checksum)
            checksum = hasher.digest()
            if size_bytes != header.size_bytes:
                raise StreamIncomplete(f"{size_bytes} of {header.size_bytes} bytes came before the commit")
            if message.commit.checksum not in (b"", checksum):
                raise ChecksumMismatch("the bytes that arrived have another checksum")
            return Put(header.key, tuple(frames) or (b"",), checksum)
        if part != "data":
            raise StreamIncomplete("after the header come data and one commit")
        checks.check_frame(message.data)
        size_bytes += len(message.data)
        if size_bytes > header.size_bytes:
            raise StreamIncomplete(f"more than the {header.size_bytes} bytes declared")
        hasher.update(message.data)
        frames.append(message.data)
    raise StreamIncomplete(f"the stream ended after {size_bytes} of {header.size_bytes} bytes, without a commit")


@dataclass(slots=True)
class _Open:
    """A block whose bytes are still arriving."""

    block: blocks_pb2.StoredBlock
    missing_bytes: int
    frames: list[bytes] = field(default_factory=list)


class BlockAssembler:
    """Cuts the joined bytes of an upload into blocks again. Pure: messages in, whole and proven blocks out."""

    def __init__(self) -> None:
        self.blocks = 0  # announced so far
        self._open: deque[_Open] = deque()  # bytes go to the first

    @property
    def missing_bytes(self) -> int:
        """Bytes announced and not yet arrived."""
        return sum(item.missing_bytes for item in self._open)

    def feed(self, batch: blocks_pb2.StoreBatch) -> list[Put]:
        """Takes one message; the blocks it completes. Raises StreamIncomplete, ChecksumMismatch, FieldInvalid."""
        for block in batch.blocks:
            checks.check_stored_block(block)
            self._open.append(_Open(block, block.size_bytes))
        self.blocks += len(batch.blocks)
        if self.blocks > checks.FETCH_BLOCKS_MAX:
            raise FieldInvalid("blocks", f"at most {checks.FETCH_BLOCKS_MAX} in a call", str(self.blocks))
        if len(batch.data) > FRAME_BYTES_MAX:
            checks.check_frame(batch.data)
        self._distribute(batch.data)
        return self._completed()

    def _distribute(self, data: bytes) -> None:
        at = 0
        for item in self._open:
            taken = data[at : at + item.missing_bytes]
            if taken:
                item.frames.append(taken)
            item.missing_bytes -= len(taken)
            at += len(taken)
        if at < len(data):
            raise StreamIncomplete("more bytes than the blocks announced")

    def _completed(self) -> list[Put]:
        puts = []
        while self._open and not self._open[0].missing_bytes:
            item = self._open.popleft()
            key = block_key(item.block.key.digest, item.block.key.group)
            puts.append(checks.checked_value(key, tuple(item.frames) or (b"",), item.block.checksum))
        return puts
