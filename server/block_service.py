"""BlockService: the longest stored prefix, and many blocks in one stream with bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from terracekv.server import checks, replies
from terracekv.server.checks import StreamIncomplete
from terracekv.server.context import Calls
from terracekv.server.limits import Budget
from terracekv.server.uploads import BlockAssembler, frames_of
from terracekv.tiers.blocks import DIGEST_BYTES, Group, block_key, match
from terracekv.tiers.clock import Deadline
from terracekv.tiers.entry import FRAME_BYTES_MAX, Answer, Durability, Entry, Head, PutResult, Stored
from terracekv.tiers.stack import Put, Stack
from terracekv.v1 import blocks_pb2 as pb
from terracekv.v1 import blocks_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]

DEFAULT_NAMESPACE: Final = "blocks"
WINDOW_BYTES_MAX: Final = 33_554_432  # payload of one load; one is sent while the next is loaded
WINDOW_BYTES_TARGET: Final = 8_388_608  # enough to keep tiers and wire busy at once
WINDOW_BLOCKS_MAX: Final = 256
FIRST_WINDOW_BLOCKS: Final = 8
STORE_BATCH_BYTES_MAX: Final = 16_777_216


class BlockService(blocks_pb2_grpc.BlockServiceServicer):
    """Blocks by chain digest and layer group."""

    def __init__(self, stack: Stack, calls: Calls, bytes_inflight: Budget) -> None:
        self.differing_blocks = 0
        self._stack = stack
        self._calls = calls
        self._bytes = bytes_inflight

    async def Match(self, request: pb.MatchRequest, context: Context) -> pb.MatchResponse:  # noqa: N802
        checks.check_match(request)
        at = range(0, len(request.digests), DIGEST_BYTES)
        chain = [request.digests[start : start + DIGEST_BYTES] for start in at]
        groups = [Group(group.group, group.window_blocks) for group in request.groups] or [Group(0, 0)]
        found = await match(self._stack, _name(request.namespace), chain, groups, self._calls.deadline(context))
        failed = sorted(int(tier) for tier in found.failed_tiers)
        return pb.MatchResponse(matched_blocks=found.blocks, failed_tiers=failed)  # type: ignore[arg-type]

    async def Fetch(self, request: pb.FetchRequest, context: Context) -> AsyncIterator[pb.FetchResponse]:  # noqa: N802
        checks.check_fetch(request)
        deadline = self._calls.stream_deadline(context)
        keys = [block_key(key.digest, key.group) for key in request.keys]
        with self._bytes.hold(2 * WINDOW_BYTES_MAX):
            async for start, answers in self._windows(_name(request.namespace), keys, deadline):
                for message in _fetch_messages(start, answers):
                    yield message

    async def _windows(
        self, namespace: str, keys: Sequence[bytes], deadline: Deadline
    ) -> AsyncIterator[tuple[int, list[Answer]]]:
        """Answers in order, in runs of about a window; the next run loads while one is being sent."""
        start, blocks = 0, FIRST_WINDOW_BLOCKS
        ahead = asyncio.ensure_future(self._window(namespace, keys[:blocks], deadline))
        try:
            while start < len(keys):
                answers = await ahead
                after, blocks = start + len(answers), _blocks_of_a_window(answers)
                ahead = asyncio.ensure_future(self._window(namespace, keys[after : after + blocks], deadline))
                yield start, answers
                start = after
        finally:
            ahead.cancel()
            await asyncio.wait([ahead])

    async def _window(self, namespace: str, run: Sequence[bytes], deadline: Deadline) -> list[Answer]:
        if not run:
            return []
        answers = await self._stack.get_many(namespace, run, deadline, WINDOW_BYTES_MAX)
        deferred = next((at for at, answer in enumerate(answers) if isinstance(answer.found, Head)), len(answers))
        # A first block that is over the window by itself comes alone.
        return answers[:deferred] if deferred else await self._stack.get_many(namespace, run[:1], deadline)

    async def Store(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.StoreRequest], context: Context
    ) -> pb.StoreResponse:
        deadline = self._calls.stream_deadline(context)
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("part") != "header":
            raise StreamIncomplete("an upload begins with its header")
        checks.check_store_header(first.header)
        with self._bytes.hold(STORE_BATCH_BYTES_MAX):
            results = await self._store(first.header, request_iterator, deadline)
        differing = sum(isinstance(result, Stored) and result.differs for result in results)
        self.differing_blocks += differing
        return pb.StoreResponse(
            statuses=[replies.put_status(result) for result in results],
            reasons=[replies.reason_of(result) for result in results],
            differing_blocks=differing,
        )

    async def _store(
        self, header: pb.StoreHeader, messages: AsyncIterator[pb.StoreRequest], deadline: Deadline
    ) -> list[PutResult]:
        assembler = BlockAssembler()
        results: list[PutResult] = []
        waiting: list[Put] = []
        async for message in messages:
            part = message.WhichOneof("part")
            if part == "commit":
                if assembler.missing_bytes or message.commit.blocks != assembler.blocks:
                    raise StreamIncomplete(f"{message.commit.blocks} blocks committed, {assembler.blocks} announced")
                return results + await self._put(header, waiting, deadline)
            if part != "batch":
                raise StreamIncomplete("after the header come batches and one commit")
            waiting += assembler.feed(message.batch)
            if sum(len(frame) for put in waiting for frame in put.frames) >= STORE_BATCH_BYTES_MAX:
                results += await self._put(header, waiting, deadline)
                waiting = []
        raise StreamIncomplete(f"the stream ended after {assembler.blocks} blocks, without a commit")

    async def _put(self, header: pb.StoreHeader, puts: list[Put], deadline: Deadline) -> list[PutResult]:
        if not puts:
            return []
        ttl_s = header.ttl_s if header.HasField("ttl_s") else None
        durability = Durability(header.durability) if header.durability else None
        results, _ = await self._stack.put_many(_name(header.namespace), puts, deadline, ttl_s, durability)
        return results


def _name(namespace: str) -> str:
    return namespace or DEFAULT_NAMESPACE


def _blocks_of_a_window(answers: Sequence[Answer]) -> int:
    """How many blocks to load next, by the sizes of those just loaded: a load should be sent as it is."""
    sizes = [answer.found.head.size_bytes for answer in answers if isinstance(answer.found, Entry)]
    if not sizes:
        return WINDOW_BLOCKS_MAX
    return max(1, min(WINDOW_BLOCKS_MAX, WINDOW_BYTES_TARGET * len(sizes) // max(1, sum(sizes))))


def _fetch_messages(start: int, answers: Sequence[Answer]) -> Iterator[pb.FetchResponse]:
    """Messages of at most 1 MiB of data; small blocks share one."""
    draft = _Draft()
    for index, answer in enumerate(answers, start):
        block = pb.FetchedBlock(index=index, status=replies.read_status(answer.found), tier=replies.tier_of(answer))
        frames: list[bytes] = []
        if isinstance(answer.found, Entry):
            head = answer.found.head
            block.size_bytes, block.checksum, block.version = head.size_bytes, head.checksum, head.version
            frames = frames_of(answer.found)
        if frames and not draft.fits(frames[0]):
            yield draft.message()
            draft = _Draft()
        draft.blocks.append(block)
        for frame in frames:
            if not draft.fits(frame):
                yield draft.message()
                draft = _Draft()
            draft.frames.append(frame)
            draft.size_bytes += len(frame)
    yield draft.message()


@dataclass(slots=True)
class _Draft:
    """A message being filled."""

    blocks: list[pb.FetchedBlock] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    size_bytes: int = 0

    def fits(self, frame: bytes) -> bool:
        """Whether a frame still goes in."""
        return not self.size_bytes or self.size_bytes + len(frame) <= FRAME_BYTES_MAX

    def message(self) -> pb.FetchResponse:
        """The message it has become."""
        return pb.FetchResponse(blocks=self.blocks, data=b"".join(self.frames))
