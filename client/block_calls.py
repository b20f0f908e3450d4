"""BlockService without I/O: chains matched, streams of blocks put together and taken apart, checksums proven.

A block whose bytes are not those declared for it is never handed out.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from terracekv.client import errors
from terracekv.client.batches import proven_hit
from terracekv.client.calls import (
    WriteOptions,
    as_durability,
    checksum_of,
    snapshot,
    tier_failed,
    tier_name,
    unknown_status,
)
from terracekv.client.errors import TerraceKVError, invalid
from terracekv.client.policy import BLOCK_BYTES_MAX, FRAME_BYTES_MAX
from terracekv.client.values import MISS, Failed, Hit, Match, Miss, StoreReport
from terracekv.v1 import blocks_pb2 as pb
from terracekv.v1 import cache_pb2

if TYPE_CHECKING:
    from terracekv.client.values import BlockKey, BytesLike

DIGEST_BYTES: Final = 32
GROUP_MAX: Final = 4_294_967_295


def check_digest(digest: bytes) -> bytes:
    """32 bytes. Raises InvalidArgument."""
    if len(digest) != DIGEST_BYTES:
        raise invalid(errors.InvalidArgument, "digest", f"{DIGEST_BYTES} bytes", f"{len(digest)} bytes")
    return digest


def check_group(group: int) -> int:
    """0 to 4,294,967,295. Raises InvalidArgument."""
    if not 0 <= group <= GROUP_MAX:
        raise invalid(errors.InvalidArgument, "group", f"0 to {GROUP_MAX}", str(group))
    return group


def match_request(digests: Sequence[bytes], groups: Sequence[tuple[int, int]], namespace: str) -> pb.MatchRequest:
    """A chain, and (group, window in blocks) of each layer group that a prefix needs. Raises InvalidArgument."""
    return pb.MatchRequest(
        namespace=namespace,
        digests=b"".join(map(check_digest, digests)),
        groups=[
            pb.LayerGroup(group=check_group(group), window_blocks=check_group(window_blocks))
            for group, window_blocks in groups
        ],
    )


def read_match(response: pb.MatchResponse) -> Match:
    """How far the chain is stored."""
    return Match(response.matched_blocks, tuple(tier_name(tier) for tier in response.failed_tiers))


def as_block_keys(keys: Iterable[BlockKey]) -> list[BlockKey]:
    """Keys of blocks, checked. Raises InvalidArgument."""
    return [(check_digest(digest), check_group(group)) for digest, group in keys]


def fetch_request(keys: Sequence[BlockKey], namespace: str) -> pb.FetchRequest:
    """Blocks to read."""
    return pb.FetchRequest(
        namespace=namespace, keys=[pb.BlockKey(digest=digest, group=group) for digest, group in keys]
    )


@dataclasses.dataclass(slots=True)
class _Arriving:
    block: pb.FetchedBlock
    missing_bytes: int
    frames: list[bytes] = dataclasses.field(default_factory=list)


class FetchAssembler:
    """Cuts the joined bytes of a Fetch into blocks again: messages in, (place, answer) out, in request order."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._announced = 0
        self._arriving: deque[_Arriving] = deque()  # bytes go to the first

    def feed(self, message: pb.FetchResponse) -> list[tuple[int, Hit | Miss | Failed]]:
        """Takes one message; the answers that are complete by it. Raises DataLoss where the stream breaks its order."""
        for block in message.blocks:
            if block.index != self._announced or block.index >= self._blocks:
                raise errors.DataLoss("the stream announced its blocks in another order than asked")
            self._announced += 1
            hit = block.status == cache_pb2.KEY_STATUS_HIT
            self._arriving.append(_Arriving(block, block.size_bytes if hit else 0))
        self._distribute(message.data)
        complete = []
        while self._arriving and not self._arriving[0].missing_bytes:
            arrived = self._arriving.popleft()
            complete.append((arrived.block.index, _answer(arrived)))
        return complete

    def _distribute(self, data: bytes) -> None:
        at = 0
        for arriving in self._arriving:
            if at == len(data):
                return
            taken = data[at : at + arriving.missing_bytes]
            if taken:
                arriving.frames.append(taken)
            arriving.missing_bytes -= len(taken)
            at += len(taken)
        if at < len(data):
            raise errors.DataLoss("more bytes than the blocks announced arrived")

    def finish(self) -> None:
        """After the last message. Raises DataLoss if answers are missing."""
        if self._arriving or self._announced != self._blocks:
            raise errors.DataLoss(f"the stream ended after {self._announced} of {self._blocks} blocks")


def _answer(arrived: _Arriving) -> Hit | Miss | Failed:
    block = arrived.block
    if block.status == cache_pb2.KEY_STATUS_HIT:
        payload = arrived.frames[0] if len(arrived.frames) == 1 else b"".join(arrived.frames)
        return proven_hit(Hit(payload, block.version, tier_name(block.tier)), block.size_bytes, block.checksum)
    if block.status == cache_pb2.KEY_STATUS_MISS:
        return MISS
    if block.status == cache_pb2.KEY_STATUS_UNAVAILABLE:
        return Failed(tier_failed(block.tier))
    return Failed(unknown_status(block.status))


def store_requests(items: Iterable[tuple[BlockKey, BytesLike]], options: WriteOptions) -> Iterator[pb.StoreRequest]:
    """A header, messages of at most 1 MiB of block bytes, a commit. Small blocks share a message.

    Holds one block and one message at a time. Raises what iterating raises, InvalidArgument, TypeError.
    """
    header = pb.StoreHeader(namespace=options.namespace)
    if options.ttl_s is not None:
        header.ttl_s = options.ttl_s
    if options.durability is not None:
        header.durability = as_durability(options.durability)  # type: ignore[assignment]
    yield pb.StoreRequest(header=header)
    blocks, batch = 0, _Batch()
    for (digest, group), value in items:
        payload = _block_payload(value)
        if not batch.fits(min(len(payload), FRAME_BYTES_MAX)):
            yield batch.take()
        batch.announce(check_digest(digest), check_group(group), payload)
        blocks += 1
        for start in range(0, len(payload), FRAME_BYTES_MAX):
            frame = payload[start : start + FRAME_BYTES_MAX]
            if not batch.fits(len(frame)):
                yield batch.take()
            batch.add(frame)
    if batch.blocks or batch.frames:
        yield batch.take()
    yield pb.StoreRequest(commit=pb.StoreCommit(blocks=blocks))


def _block_payload(value: BytesLike) -> bytes:
    payload = snapshot(value)
    if len(payload) > BLOCK_BYTES_MAX:
        raise invalid(errors.ValueTooLarge, "block", f"at most {BLOCK_BYTES_MAX} bytes", f"{len(payload)} bytes")
    return payload


class _Batch:
    """A message being filled."""

    def __init__(self) -> None:
        self.blocks: list[pb.StoredBlock] = []
        self.frames: list[bytes] = []
        self._size_bytes = 0

    def fits(self, size_bytes: int) -> bool:
        return not self._size_bytes or self._size_bytes + size_bytes <= FRAME_BYTES_MAX

    def announce(self, digest: bytes, group: int, payload: bytes) -> None:
        key = pb.BlockKey(digest=digest, group=group)
        self.blocks.append(pb.StoredBlock(key=key, size_bytes=len(payload), checksum=checksum_of(payload)))

    def add(self, frame: bytes) -> None:
        self.frames.append(frame)
        self._size_bytes += len(frame)

    def take(self) -> pb.StoreRequest:
        """The message, and an empty one to go on with."""
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        request = pb.StoreRequest(batch=pb.StoreBatch(blocks=self.blocks, data=data))
        self.__init__()  # type: ignore[misc]
        return request


class Upload(Iterable[pb.StoreRequest]):
    """Requests made from what the caller gives, possibly on another thread, whose errors come back to the caller.

    gRPC would hide an error of the caller's iterable. Here it ends the stream
    before its commit, so that the server stores no cut block, and is kept in
    `error`. `taken` counts the blocks that were drawn from the caller.
    """

    def __init__(self, items: Iterable[tuple[BlockKey, BytesLike]], options: WriteOptions) -> None:
        self.error: BaseException | None = None
        self.taken = 0
        self._items = items
        self._options = options

    def __iter__(self) -> Iterator[pb.StoreRequest]:
        try:
            yield from store_requests(self._counted(), self._options)
        except Exception as error:  # whatever the caller's iterable raises
            self.error = error

    def _counted(self) -> Iterator[tuple[BlockKey, BytesLike]]:
        for item in self._items:
            self.taken += 1
            yield item


@dataclasses.dataclass(slots=True)
class StoreTally:
    """Adds the answers of several Store calls up to one report."""

    report: StoreReport = dataclasses.field(default_factory=StoreReport)
    blocks: int = 0

    def add(self, response: pb.StoreResponse, blocks: int) -> None:
        """Counts one answer. Raises DataLoss where its columns do not fit."""
        if len(response.statuses) != blocks or len(response.reasons) != blocks:
            raise errors.DataLoss(f"the reply to {blocks} blocks has columns of other lengths")
        failures = tuple(
            (self.blocks + row, _failure(status, reason))
            for row, (status, reason) in enumerate(zip(response.statuses, response.reasons, strict=True))
            if status not in (cache_pb2.PUT_STATUS_STORED, cache_pb2.PUT_STATUS_KEPT)
        )
        stored = sum(status == cache_pb2.PUT_STATUS_STORED for status in response.statuses)
        kept = sum(status == cache_pb2.PUT_STATUS_KEPT for status in response.statuses)
        before = self.report
        self.blocks += blocks
        self.report = StoreReport(
            before.stored + stored,
            before.kept + kept,
            before.failed + len(failures),
            before.differing + response.differing_blocks,
            before.failures + failures,
        )


def _failure(status: int, reason: int) -> TerraceKVError:
    if status == cache_pb2.PUT_STATUS_FAILED:
        return errors.from_reason(reason, "not stored, or outcome unknown")
    return unknown_status(status)
