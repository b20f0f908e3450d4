"""KV-cache blocks over a stack: the longest stored prefix, decided from heads alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from terracekv.tiers.clock import Deadline
from terracekv.tiers.entry import Head, TierFailure, TierName
from terracekv.tiers.stack import Stack

DIGEST_BYTES: Final = 32
HEADS_AT_ONCE: Final = 256


class Group(NamedTuple):
    """A layer group that a prefix needs: all its blocks (window 0), or only the last `window_blocks`."""

    number: int
    window_blocks: int


class Match(NamedTuple):
    """The longest stored prefix in blocks, and the tiers that failed while asked: it may be longer."""

    blocks: int
    failed_tiers: frozenset[TierName]


def block_key(digest: bytes, group: int) -> bytes:
    """The user key of a block: its chain digest, then its layer group, 4 bytes big-endian."""
    return digest + group.to_bytes(4, "big")


class _Presence:
    """Which blocks of a chain are stored, asked in runs of at most 256 heads, each once."""

    def __init__(self, stack: Stack, namespace: str, chain: Sequence[bytes], deadline: Deadline) -> None:
        self._stack = stack
        self._namespace = namespace
        self._chain = chain
        self._deadline = deadline
        self._known: dict[tuple[int, int], bool] = {}
        self.failed_tiers: set[TierName] = set()

    async def ask(self, group: int, blocks: range) -> list[bool]:
        """Whether each of these blocks of a group is stored; a failed tier counts as not."""
        unknown = [at for at in blocks if (group, at) not in self._known]
        if unknown:
            keys = [block_key(self._chain[at], group) for at in unknown]
            heads = await self._stack.head_many(self._namespace, keys, self._deadline)
            for at, head in zip(unknown, heads, strict=True):
                self._known[group, at] = isinstance(head, Head)
                if isinstance(head, TierFailure):
                    self.failed_tiers.add(head.tier)
        return [self._known[group, at] for at in blocks]


async def match(
    stack: Stack, namespace: str, chain: Sequence[bytes], groups: Sequence[Group], deadline: Deadline
) -> Match:
    """The longest prefix of `chain` (32-byte digests) of which every group has the blocks it needs.

    Raises NamespaceNotFound.
    """
    presence = _Presence(stack, namespace, chain, deadline)
    blocks = len(chain)
    for group in groups:
        if not group.window_blocks:
            blocks = await _whole_prefix(presence, group.number, blocks)
    windowed = [group for group in groups if group.window_blocks]
    while windowed and blocks:
        # Each group may only shorten the prefix; it stands when one round shortens it no more.
        before = blocks
        for group in windowed:
            blocks = await _windowed_prefix(presence, group, blocks)
        if blocks == before:
            break
    return Match(blocks, frozenset(presence.failed_tiers))


async def _whole_prefix(presence: _Presence, group: int, blocks_max: int) -> int:
    for start in range(0, blocks_max, HEADS_AT_ONCE):
        run = range(start, min(start + HEADS_AT_ONCE, blocks_max))
        stored = await presence.ask(group, run)
        if not all(stored):
            return start + stored.index(False)
    return blocks_max


async def _windowed_prefix(presence: _Presence, group: Group, blocks_max: int) -> int:
    """The longest prefix of at most `blocks_max` blocks whose last `window_blocks` are stored."""
    run = 0  # stored blocks in a row, counted down from the end of the candidate
    end = blocks_max
    for stop in range(blocks_max, 0, -HEADS_AT_ONCE):
        start = max(0, stop - HEADS_AT_ONCE)
        stored = await presence.ask(group.number, range(start, stop))
        for at in range(stop - 1, start - 1, -1):
            if stored[at - start]:
                run += 1
            else:
                run, end = 0, at
            if run == group.window_blocks:
                return end
    return end
