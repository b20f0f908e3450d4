"""The longest stored prefix: as a naive search finds it, with few questions, and honest when a tier fails."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from fakes import FakeRecords, FakeReservation, FakeTier
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import soon

from terracekv.tiers import blocks
from terracekv.tiers.background import Background
from terracekv.tiers.blocks import DIGEST_BYTES, HEADS_AT_ONCE, Group, block_key, match
from terracekv.tiers.clock import FakeClock
from terracekv.tiers.entry import FailureReason, KeySpace, TierName
from terracekv.tiers.errors import NamespaceNotFound
from terracekv.tiers.memory import MemoryTier
from terracekv.tiers.namespaces import Namespaces
from terracekv.tiers.stack import Put, Stack
from terracekv.tiers.versions import LocalVersions


@dataclass
class Node:
    stack: Stack
    shared: FakeTier
    disk: FakeTier
    clock: FakeClock

    async def store(self, chain: list[bytes], stored: set[tuple[int, int]]) -> None:
        """Stores blocks given as (group, place in the chain)."""
        for start in range(0, len(chain), 200):
            run = range(start, min(start + 200, len(chain)))
            puts = [Put(block_key(chain[at], group), (b"kv",)) for group, at in sorted(stored) if at in run]
            if puts:
                await self.stack.put_many("blocks", puts, soon(self.clock))

    async def match(self, chain: list[bytes], groups: list[Group]) -> blocks.Match:
        return await match(self.stack, "blocks", chain, groups, soon(self.clock))


async def make() -> Node:
    clock = FakeClock()
    shared, disk = FakeTier(TierName.SHARED, clock), FakeTier(TierName.DISK, clock)
    namespaces = Namespaces(FakeRecords(), FakeRecords(), clock)
    await namespaces.start(soon(clock))
    stack = Stack(
        MemoryTier(4 << 20, clock=clock), shared, disk, namespaces, Background([shared, disk], 1 << 20, clock),
        LocalVersions(FakeReservation(), clock), KeySpace(), clock, lambda: 0.0,
    )  # fmt: skip
    return Node(stack, shared, disk, clock)


def chain_of(length: int) -> list[bytes]:
    return [at.to_bytes(DIGEST_BYTES, "big") for at in range(length)]


def naive(length: int, groups: list[Group], stored: set[tuple[int, int]]) -> int:
    """The longest n such that every group has the blocks that a prefix of n needs."""

    def has_all(blocks: int, group: Group) -> bool:
        first = max(0, blocks - group.window_blocks) if group.window_blocks else 0
        return all((group.number, at) in stored for at in range(first, blocks))

    return max(blocks for blocks in range(length + 1) if all(has_all(blocks, group) for group in groups))


@st.composite
def scenes(draw: st.DrawFn) -> tuple[int, list[Group], set[tuple[int, int]]]:
    length = draw(st.integers(0, 24))
    windows = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    groups = [Group(number, window) for number, window in enumerate(windows)]
    places = [(group.number, at) for group in groups for at in range(length)]
    absent = draw(st.sets(st.sampled_from(places), max_size=8)) if places else set()
    return length, groups, set(places) - absent


@pytest.mark.parametrize("heads_at_once", [3, HEADS_AT_ONCE])
@settings(max_examples=120, deadline=None)
@given(scene=scenes())
def test_the_match_is_what_a_naive_search_finds(
    heads_at_once: int, scene: tuple[int, list[Group], set[tuple[int, int]]]
) -> None:
    length, groups, stored = scene

    async def check() -> None:
        node, chain = await make(), chain_of(length)
        await node.store(chain, stored)
        assert (await node.match(chain, groups)).blocks == naive(length, groups, stored)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "HEADS_AT_ONCE", heads_at_once)
        asyncio.run(check())


async def test_a_chain_longer_than_one_question_is_matched_across_it() -> None:
    node, chain = await make(), chain_of(600)
    await node.store(chain, {(0, at) for at in range(600) if at != 520} | {(1, at) for at in range(500)})
    assert (await node.match(chain, [Group(0, 0)])).blocks == 520
    assert (await node.match(chain, [Group(0, 0), Group(1, 4)])).blocks == 500
    assert (await node.match(chain, [Group(1, 300)])).blocks == 500
    assert (await node.match(chain[521:], [Group(0, 0)])).blocks == 79


async def test_an_absent_first_block_ends_the_search_at_once() -> None:
    node, chain = await make(), chain_of(1_024)
    await node.store(chain, {(0, at) for at in range(1, 1_024)})
    node.shared.reads.clear()
    assert (await node.match(chain, [Group(0, 0)])).blocks == 0
    assert sum(map(len, node.shared.reads)) <= HEADS_AT_ONCE


async def test_only_heads_are_read() -> None:
    node, chain = await make(), chain_of(10)
    await node.store(chain, {(0, at) for at in range(10)})
    await node.stack.background.flush(soon(node.clock))
    await node.stack.memory.clear()
    before = node.shared.counters.read_bytes + node.disk.counters.read_bytes
    assert (await node.match(chain, [Group(0, 0)])).blocks == 10
    assert node.shared.counters.read_bytes + node.disk.counters.read_bytes == before


async def test_a_failed_tier_is_named_because_the_prefix_may_be_longer() -> None:
    node, chain = await make(), chain_of(5)
    await node.store(chain, {(0, at) for at in range(5)})
    await node.stack.background.flush(soon(node.clock))
    await node.stack.memory.clear()
    await node.disk.clear()
    node.shared.failing = FailureReason.UNAVAILABLE
    assert await node.match(chain, [Group(0, 0)]) == blocks.Match(0, frozenset({TierName.SHARED}))
    node.shared.failing = None
    assert await node.match(chain, [Group(0, 0)]) == blocks.Match(5, frozenset())


async def test_an_expired_block_ends_the_prefix() -> None:
    node, chain = await make(), chain_of(3)
    await node.stack.put_many("blocks", [Put(block_key(chain[1], 0), (b"kv",))], soon(node.clock), ttl_s=5.0)
    await node.store(chain, {(0, 0), (0, 2)})
    assert (await node.match(chain, [Group(0, 0)])).blocks == 3
    node.clock.advance(5)
    assert (await node.match(chain, [Group(0, 0)])).blocks == 1


async def test_an_unknown_namespace_is_told() -> None:
    node = await make()
    with pytest.raises(NamespaceNotFound):
        await match(node.stack, "nobody", chain_of(1), [Group(0, 0)], soon(node.clock))
