"""The blocks half of Client: the longest stored prefix of a prompt, and many blocks in one stream.

Generated: change its source in the aio files, then run scripts/unasync.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING

from terracekv.client.block_calls import (
    FetchAssembler,
    StoreTally,
    Upload,
    as_block_keys,
    fetch_request,
    match_request,
    read_match,
)
from terracekv.client.calls import WriteOptions
from terracekv.client.errors import TerraceKVError
from terracekv.client.policy import BLOCK_BYTES_ASSUMED, CALL_BLOCKS_MAX, Timeouts
from terracekv.client.sync_rpc import SyncBase
from terracekv.client.values import MISS, Durability, Failed, Hit, Match, Miss, StoreReport

if TYPE_CHECKING:
    from terracekv.client.values import BlockKey, BytesLike


class SyncBlocks(SyncBase):
    """Calls of BlockService. Keys are (chain digest of 32 bytes, layer group from 0 to 4,294,967,295)."""

    def match_blocks(
        self,
        digests: Sequence[bytes],
        groups: Sequence[tuple[int, int]] = (),
        *,
        namespace: str = "blocks",
        timeout_s: float | None = None,
    ) -> Match:
        """How many blocks of a chain are stored from its first on; up to 16,384 digests, first block first.

        `groups` holds (layer group, window): a window of 0 needs the group's block at every place, n over 0 only at
        the last n. None given: group 0, whole. A failed tier shortens the answer and is named in it.
        """
        if not digests:
            return Match(0)
        request = match_request(digests, groups, namespace)
        deadline = self._timeouts(timeout_s).unary()
        return read_match(self._rpc.call(lambda node: node.blocks.Match, lambda: request, deadline, safe=True))

    def fetch_blocks(
        self, keys: Iterable[BlockKey], *, namespace: str = "blocks", timeout_s: float | None = None
    ) -> list[Hit | Miss | Failed]:
        """The payload, MISS or Failed of each block, in order; all held at once, see iter_blocks."""
        wanted = as_block_keys(keys)
        answers: list[Hit | Miss | Failed] = [MISS] * len(wanted)
        for place, answer in self.iter_blocks(wanted, namespace=namespace, timeout_s=timeout_s):
            answers[place] = answer
        return answers

    def iter_blocks(
        self, keys: Iterable[BlockKey], *, namespace: str = "blocks", timeout_s: float | None = None
    ) -> Iterator[tuple[int, Hit | Miss | Failed]]:
        """Yields (place in keys, payload, MISS or Failed) of each block as it completes, in order.

        Holds a message and a block at a time. One Fetch stream for each 4,096 keys. A payload whose checksum differs
        is Failed; a stream that breaks off raises, after what it completed.
        """
        timeouts, wanted = self._timeouts(timeout_s), as_block_keys(keys)
        for start in range(0, len(wanted), CALL_BLOCKS_MAX):
            part = wanted[start : start + CALL_BLOCKS_MAX]
            assembler = FetchAssembler(len(part))
            deadline = timeouts.transfer(len(part) * BLOCK_BYTES_ASSUMED)
            messages = self._rpc.stream(lambda node: node.blocks.Fetch, fetch_request(part, namespace), deadline)
            with closing(messages):
                for message in messages:
                    for place, answer in assembler.feed(message):
                        yield start + place, answer
            assembler.finish()

    def store_blocks(
        self,
        items: Iterable[tuple[BlockKey, BytesLike]],
        ttl_s: float | None = None,
        durability: Durability | str | None = None,
        *,
        namespace: str = "blocks",
        timeout_s: float | None = None,
    ) -> StoreReport:
        """Stores blocks of up to 64 MiB each; what is stored already is kept. Counts what became of them.

        One Store stream for each 4,096 blocks. `items` may be an iterator: it is drawn from on a thread of gRPC's, one
        block is held at a time, and its bytes are taken when it is drawn. A sequence is sent again where that is safe,
        an iterator is not. Raises InvalidArgument for a block over the limits, and what iterating raises; blocks
        before it may be stored.
        """
        timeouts, options = self._timeouts(timeout_s), WriteOptions(namespace, ttl_s, durability)
        tally = StoreTally()
        if isinstance(items, Sequence):
            for start in range(0, len(items), CALL_BLOCKS_MAX):
                self._store(items[start : start + CALL_BLOCKS_MAX], options, timeouts, tally)
            return tally.report
        drawn: Iterator[tuple[BlockKey, BytesLike]] = iter(items)
        for first in drawn:
            self._store(islice(chain((first,), drawn), CALL_BLOCKS_MAX), options, timeouts, tally)
        return tally.report

    def _store(
        self,
        items: Iterable[tuple[BlockKey, BytesLike]],
        options: WriteOptions,
        timeouts: Timeouts,
        tally: StoreTally,
    ) -> None:
        again = isinstance(items, Sequence)
        uploads: list[Upload] = []

        def upload() -> Upload:
            uploads.append(Upload(items, options))
            return uploads[-1]

        try:
            reply = self._rpc.call(
                lambda node: node.blocks.Store,
                lambda: iter(upload()),
                timeouts.transfer(CALL_BLOCKS_MAX * BLOCK_BYTES_ASSUMED),
                safe=again,
                upload=True,
                replayable=lambda: again or not uploads,
            )
        except TerraceKVError:
            if uploads and uploads[-1].error is not None:
                raise uploads[-1].error from None
            raise
        tally.add(reply, uploads[-1].taken)
