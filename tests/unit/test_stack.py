"""The stack: what is asked, filled, owed and dropped, and that the three outcomes stay three."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from fakes import FakeRecords, FakeReservation, FakeTier

from terracekv.tiers.background import Background
from terracekv.tiers.base import WriteLevel
from terracekv.tiers.clock import Deadline, FakeClock
from terracekv.tiers.entry import (
    MISS,
    Answer,
    Durability,
    Entry,
    FailureReason,
    Head,
    KeySpace,
    Stored,
    TierFailure,
    TierName,
)
from terracekv.tiers.errors import DurabilityNotOffered, FieldInvalid, NamespaceNotFound
from terracekv.tiers.memory import MemoryTier
from terracekv.tiers.namespaces import Namespace, Namespaces
from terracekv.tiers.stack import Put, Stack
from terracekv.tiers.versions import LocalVersions


@dataclass
class Node:
    """A stack over a real memory tier and two dicts."""

    stack: Stack
    shared: FakeTier
    disk: FakeTier
    clock: FakeClock
    namespaces: Namespaces

    def soon(self, seconds: float = 30) -> Deadline:
        return Deadline.after(seconds, self.clock)

    async def put(self, key: bytes, value: bytes, namespace: str = "default", **options: object) -> Stored:
        results, _ = await self.stack.put_many(namespace, [Put(key, (value,))], self.soon(), **options)  # type: ignore[arg-type]
        assert isinstance(results[0], Stored), results
        return results[0]

    async def get(self, key: bytes, namespace: str = "default", bytes_max: int | None = None) -> Answer:
        return (await self.stack.get_many(namespace, [key], self.soon(), bytes_max))[0]

    async def value(self, key: bytes, namespace: str = "default") -> object:
        found = (await self.get(key, namespace)).found
        return found.payload() if isinstance(found, Entry) else found

    async def settled(self) -> None:
        await self.stack.background.flush(self.soon())


async def make(has_shared: bool = True, draw: float = 0.0, memory_bytes: int = 1 << 20, **options: object) -> Node:
    clock = FakeClock()
    shared = FakeTier(TierName.SHARED, clock, absent=not has_shared)
    disk = FakeTier(TierName.DISK, clock)
    namespaces = Namespaces(FakeRecords(), FakeRecords(), clock)
    await namespaces.start(Deadline.after(30, clock))
    memory = MemoryTier(memory_bytes, clock=clock)
    background = Background([shared, disk], 1 << 20, clock)
    versions = LocalVersions(FakeReservation(), clock)
    stack = Stack(
        memory, shared, disk, namespaces, background, versions, KeySpace(), clock, lambda: draw, **options  # type: ignore[arg-type]
    )  # fmt: skip
    return Node(stack, shared, disk, clock, namespaces)


# --- reads ---


async def test_a_put_is_read_from_memory_and_is_in_every_tier() -> None:
    node = await make()
    stored = await node.put(b"k", b"value")
    answer = await node.get(b"k")
    assert answer.tier is TierName.MEMORY
    assert isinstance(answer.found, Entry)
    assert answer.found.head.version == stored.version
    await node.settled()
    assert [len(node.shared.held), len(node.disk.held)] == [1, 1]


async def test_a_key_that_nobody_has_is_a_miss() -> None:
    node = await make()
    assert (await node.get(b"nothing")).found is MISS


async def test_a_read_is_one_hit_or_one_miss_of_memory() -> None:
    node = await make()
    await node.put(b"k", b"value")
    for key in (b"k", b"k", b"nothing"):
        await node.get(key)
    counters = node.stack.memory.counters
    assert (counters.hits, counters.misses, counters.read_bytes) == (2, 1, 10)


async def test_a_hit_in_the_shared_tier_fills_memory() -> None:
    node = await make()
    await node.put(b"k", b"value")
    await node.stack.memory.clear()
    assert (await node.get(b"k")).tier is TierName.SHARED
    assert (await node.get(b"k")).tier is TierName.MEMORY


async def test_a_block_on_disk_fills_memory_and_the_shared_tier() -> None:
    node = await make()
    await node.put(b"k", b"value", "blocks")
    await node.settled()
    await node.stack.memory.clear()
    await node.shared.clear()
    assert (await node.get(b"k", "blocks")).tier is TierName.DISK
    await node.settled()
    assert len(node.shared.held) == 1


async def test_the_disk_is_not_asked_for_what_another_node_may_have_replaced() -> None:
    node = await make()
    await node.put(b"k", b"value")
    await node.settled()
    await node.stack.memory.clear()
    await node.shared.clear()
    assert (await node.get(b"k")).found is MISS
    assert node.disk.reads == []


async def test_without_a_shared_tier_the_disk_is_right() -> None:
    node = await make(has_shared=False)
    await node.put(b"k", b"value")
    await node.stack.memory.clear()
    assert (await node.get(b"k")).tier is TierName.DISK


@pytest.mark.parametrize("reason", [FailureReason.UNAVAILABLE, FailureReason.TIMEOUT])
async def test_a_failed_tier_is_never_a_miss(reason: FailureReason) -> None:
    node = await make()
    node.shared.failing = reason
    for namespace in ("default", "blocks"):
        found = (await node.get(b"k", namespace)).found
        assert isinstance(found, TierFailure)
        assert found.reason is reason
    (head,) = await node.stack.head_many("blocks", [b"k"], node.soon())
    assert isinstance(head, TierFailure)


async def test_a_block_on_disk_is_served_while_the_shared_tier_fails() -> None:
    node = await make()
    await node.put(b"k", b"value", "blocks", durability=Durability.WAL)
    await node.settled()
    await node.stack.memory.clear()
    node.shared.failing = FailureReason.UNAVAILABLE
    assert await node.value(b"k", "blocks") == b"value"


async def test_a_failing_disk_hides_a_block_that_only_it_may_have() -> None:
    node = await make()
    node.disk.failing = FailureReason.UNAVAILABLE
    assert isinstance((await node.get(b"k", "blocks")).found, TierFailure)


async def test_a_batch_answers_each_key_in_order_repeated_ones_too() -> None:
    node = await make()
    await node.put(b"a", b"1")
    await node.put(b"b", b"2")
    await node.stack.memory.clear()
    answers = await node.stack.get_many("default", [b"b", b"x", b"a", b"b"], node.soon())
    payloads = [answer.found.payload() if isinstance(answer.found, Entry) else answer.found for answer in answers]
    assert payloads == [b"2", MISS, b"1", b"2"]
    assert len(node.shared.reads[-1]) == 3


async def test_what_does_not_fit_the_reply_comes_as_its_head() -> None:
    node = await make()
    for name in (b"a", b"b", b"c"):
        await node.put(name, b"x" * 40)
    answers = await node.stack.get_many("default", [b"a", b"b", b"c"], node.soon(), bytes_max=80)
    assert [type(answer.found) for answer in answers] == [Entry, Entry, Head]
    await node.stack.memory.clear()
    answers = await node.stack.get_many("default", [b"a", b"b", b"c"], node.soon(), bytes_max=80)
    assert [type(answer.found) for answer in answers] == [Entry, Entry, Head]


async def test_an_unknown_namespace_is_not_found() -> None:
    node = await make()
    with pytest.raises(NamespaceNotFound):
        await node.get(b"k", "nobody")


# --- time to live ---


async def test_memory_never_outlives_the_shared_entry_it_came_from() -> None:
    node = await make()
    await node.put(b"k", b"value", ttl_s=10.0)
    await node.stack.memory.clear()
    node.clock.advance(8)
    assert await node.value(b"k") == b"value"
    node.clock.advance(3)
    assert await node.value(b"k") is MISS


async def test_a_block_promoted_from_disk_keeps_its_end() -> None:
    node = await make()
    await node.put(b"k", b"value", "blocks", ttl_s=10.0)
    await node.settled()
    await node.stack.memory.clear()
    await node.shared.clear()
    node.clock.advance(8)
    assert await node.value(b"k", "blocks") == b"value"
    await node.settled()
    node.clock.advance(3)
    assert await node.value(b"k", "blocks") is MISS


@pytest.mark.parametrize(("draw", "end_s"), [(0.0, 10.0), (0.5, 9.5), (0.999, 9.001)])
async def test_jitter_only_shortens_a_life(draw: float, end_s: float) -> None:
    node = await make(draw=draw)
    await node.put(b"k", b"value", ttl_s=10.0)
    node.clock.advance(end_s - 0.001)
    assert await node.value(b"k") == b"value"
    node.clock.advance(0.002)
    assert await node.value(b"k") is MISS


async def test_a_put_without_a_ttl_gets_its_namespaces() -> None:
    node = await make()
    await node.namespaces.create(Namespace("short", ttl_s=5.0), node.soon())
    await node.put(b"k", b"value", "short")
    node.clock.advance(4.9)
    assert await node.value(b"k", "short") == b"value"
    node.clock.advance(0.2)
    assert await node.value(b"k", "short") is MISS


async def test_the_expiry_of_the_old_value_does_not_hit_the_new_one() -> None:
    node = await make()
    await node.put(b"k", b"old", ttl_s=2.0)
    node.clock.advance(1)
    await node.put(b"k", b"new", ttl_s=2.0)
    node.clock.advance(1.5)
    assert await node.value(b"k") == b"new"


# --- writes ---


async def test_versions_grow_with_every_write() -> None:
    for has_shared in (True, False):
        node = await make(has_shared)
        versions = [(await node.put(b"k", b"%d" % at)).version for at in range(5)]
        assert versions == sorted(set(versions))


async def test_the_first_copy_of_a_block_stays() -> None:
    node = await make()
    first = await node.put(b"k", b"one", "blocks")
    second = await node.put(b"k", b"two", "blocks")
    assert (second.kept, second.differs, second.version) == (True, True, first.version)
    assert await node.value(b"k", "blocks") == b"one"


async def test_a_block_put_to_memory_keeps_the_first_copy_too() -> None:
    node = await make()
    await node.put(b"k", b"one", "blocks", durability=Durability.MEMORY)
    assert (await node.put(b"k", b"one", "blocks", durability=Durability.MEMORY)).kept
    await node.settled()
    assert [len(node.shared.held), len(node.disk.held)] == [1, 1]


@pytest.mark.parametrize(
    ("durability", "level"), [(Durability.WAL, WriteLevel.LOGGED), (Durability.FSYNC, WriteLevel.SYNCED)]
)
async def test_the_disk_has_the_write_before_the_ack(durability: Durability, level: WriteLevel) -> None:
    for namespace in ("default", "blocks"):
        node = await make()
        await node.put(b"k", b"value", namespace, durability=durability)
        assert list(node.disk.levels.values()) == [level]


async def test_a_level_that_cannot_be_given_is_refused_by_name() -> None:
    node = await make()
    for durability in (Durability.MEMORY, Durability.REPLICATED, Durability.DURABLE):
        with pytest.raises(DurabilityNotOffered, match=durability.name):
            await node.put(b"k", b"v", durability=durability)
    lonely = await make(has_shared=False)
    with pytest.raises(DurabilityNotOffered, match="SHARED"):
        await lonely.put(b"k", b"v", durability=Durability.SHARED)
    assert (await lonely.put(b"k", b"v", durability=Durability.MEMORY)).version


async def test_the_default_level_is_shared_with_a_shared_tier_and_wal_without() -> None:
    for has_shared, level in ((True, Durability.SHARED), (False, Durability.WAL)):
        node = await make(has_shared)
        _, reached = await node.stack.put_many("default", [Put(b"k", (b"v",))], node.soon())
        assert reached is level


async def test_a_put_whose_tier_fails_says_so_and_leaves_no_old_value_in_memory() -> None:
    node = await make()
    await node.put(b"k", b"old")
    node.shared.failing = FailureReason.UNAVAILABLE
    results, _ = await node.stack.put_many("default", [Put(b"k", (b"new",))], node.soon())
    assert isinstance(results[0], TierFailure)
    assert isinstance(await node.value(b"k"), TierFailure)


async def test_the_last_of_equal_keys_in_a_batch_wins() -> None:
    node = await make()
    results, _ = await node.stack.put_many("default", [Put(b"k", (b"1",)), Put(b"k", (b"2",))], node.soon())
    assert results[0] == results[1]
    assert await node.value(b"k") == b"2"


async def test_a_value_too_large_for_a_namespace_of_memory_alone_is_refused() -> None:
    node = await make()
    await node.namespaces.create(Namespace("ram", tiers=(TierName.MEMORY,)), node.soon())
    with pytest.raises(FieldInvalid, match="value"):
        await node.put(b"k", bytes(1 << 20), "ram")
    assert (await node.put(b"k", b"small", "ram")).version


async def test_a_value_larger_than_memory_is_served_from_below() -> None:
    node = await make()
    await node.put(b"k", bytes(1 << 19))
    assert (await node.get(b"k")).tier is not TierName.MEMORY or node.stack.background.pending_bytes
    await node.settled()
    assert (await node.get(b"k")).tier is TierName.SHARED


async def test_a_cancelled_put_is_whole_or_not_there() -> None:
    node = await make()
    await node.put(b"k", b"old")
    put = asyncio.create_task(node.put(b"k", b"new"))
    await asyncio.sleep(0)
    put.cancel()
    await asyncio.gather(put, return_exceptions=True)
    await asyncio.sleep(0.01)
    in_memory = await node.value(b"k")
    await node.stack.memory.clear()
    assert await node.value(b"k") == in_memory


# --- loads and writes at once ---


async def test_a_hundred_misses_ask_the_shared_tier_once() -> None:
    node = await make()
    await node.put(b"k", b"value")
    await node.stack.memory.clear()
    node.shared.gate.clear()
    reads = [asyncio.create_task(node.value(b"k")) for _ in range(100)]
    await asyncio.sleep(0.01)
    node.shared.gate.set()
    assert await asyncio.gather(*reads) == [b"value"] * 100
    assert len(node.shared.reads) == 1


@pytest.mark.parametrize("change", ["put", "delete"])
async def test_a_slow_reader_does_not_put_the_old_value_back(change: str) -> None:
    node = await make()
    await node.put(b"k", b"old")
    await node.stack.memory.clear()
    node.shared.gate.clear()
    slow = asyncio.create_task(node.value(b"k"))
    await node.shared.looked.wait()
    if change == "put":
        await node.put(b"k", b"new")
        await node.stack.memory.clear()
    else:
        await node.stack.delete_many("default", [b"k"], node.soon())
    node.shared.gate.set()
    assert await slow == b"old"
    for _ in range(10):
        assert await node.value(b"k") == (b"new" if change == "put" else MISS)


async def test_a_block_deleted_while_it_is_loaded_from_disk_is_not_revived() -> None:
    node = await make()
    await node.put(b"k", b"value", "blocks")
    await node.settled()
    await node.stack.memory.clear()
    await node.shared.clear()
    node.disk.gate.clear()
    slow = asyncio.create_task(node.value(b"k", "blocks"))
    await node.disk.looked.wait()
    await node.stack.delete_many("blocks", [b"k"], node.soon())
    node.disk.gate.set()
    assert await slow == b"value"
    await node.settled()
    assert await node.value(b"k", "blocks") is MISS
    assert node.shared.held == {}


@pytest.mark.parametrize("failing", ["disk", "shared"])
async def test_a_delete_that_one_tier_refuses_is_told(failing: str) -> None:
    node = await make()
    await node.put(b"k", b"value", "blocks")
    await node.settled()
    getattr(node, failing).failing = FailureReason.UNAVAILABLE
    (result,) = await node.stack.delete_many("blocks", [b"k"], node.soon())
    assert isinstance(result, TierFailure)


async def test_a_delete_reaches_what_still_waits_to_be_written() -> None:
    node = await make()
    await node.put(b"k", b"value", "blocks", durability=Durability.MEMORY)
    await node.stack.delete_many("blocks", [b"k"], node.soon())
    await node.settled()
    assert (node.shared.held, node.disk.held) == ({}, {})


async def test_a_reader_with_more_time_does_not_fail_with_one_that_had_less() -> None:
    node = await make()
    await node.put(b"k", b"value")
    await node.stack.memory.clear()
    node.shared.gate.clear()
    hurried = asyncio.create_task(node.stack.get_many("default", [b"k"], node.soon(0.05)))
    await asyncio.sleep(0.01)
    patient = asyncio.create_task(node.value(b"k"))
    ((found, _),) = await hurried
    assert isinstance(found, TierFailure)
    assert found.reason is FailureReason.TIMEOUT
    node.shared.gate.set()
    assert await patient == b"value"


async def test_a_cancelled_reader_does_not_fail_the_others() -> None:
    node = await make()
    await node.put(b"k", b"value")
    await node.stack.memory.clear()
    node.shared.gate.clear()
    first = asyncio.create_task(node.value(b"k"))
    second = asyncio.create_task(node.value(b"k"))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    node.shared.gate.set()
    assert await second == b"value"


# --- invalidation ---


async def test_an_epoch_hides_everything_at_once() -> None:
    node = await make()
    for at in range(20):
        await node.put(b"%d" % at, b"value", "blocks")
    await node.stack.raise_epoch("blocks", node.soon())
    answers = await node.stack.get_many("blocks", [b"%d" % at for at in range(20)], node.soon())
    assert {answer.found for answer in answers} == {MISS}
    await node.put(b"1", b"new", "blocks")
    assert await node.value(b"1", "blocks") == b"new"


async def test_a_prefix_hides_what_begins_with_it_and_nothing_else() -> None:
    node = await make()
    for key in (b"user/1", b"user/2", b"use", b"other"):
        await node.put(key, key)
    await node.stack.invalidate_prefix("default", b"user/", node.soon())
    assert [await node.value(key) for key in (b"user/1", b"user/2", b"use", b"other")] == [MISS, MISS, b"use", b"other"]
    (head,) = await node.stack.head_many("default", [b"user/1"], node.soon())
    assert head is MISS


@pytest.mark.parametrize("namespace", ["default", "blocks"])
async def test_what_is_written_after_a_prefix_invalidation_is_read(namespace: str) -> None:
    for has_shared in (True, False):
        node = await make(has_shared)
        await node.put(b"user/1", b"old", namespace)
        await node.stack.invalidate_prefix(namespace, b"user/", node.soon())
        await node.stack.delete_many(namespace, [b"user/1"], node.soon())
        await node.put(b"user/1", b"new", namespace)
        assert await node.value(b"user/1", namespace) == b"new"


@pytest.mark.parametrize("level", [Durability.MEMORY, Durability.SHARED, Durability.WAL])
async def test_a_hidden_first_copy_does_not_stand_in_the_way_of_the_next(level: Durability) -> None:
    node = await make()
    await node.put(b"user/1", b"old", "blocks")
    await node.settled()
    await node.stack.invalidate_prefix("blocks", b"user/", node.soon())
    assert not (await node.put(b"user/1", b"new", "blocks", durability=level)).kept
    assert (await node.put(b"user/1", b"third", "blocks", durability=level)).kept
    await node.settled()
    for clear in (node.stack.memory.clear, node.shared.clear):
        assert await node.value(b"user/1", "blocks") == b"new"
        await clear()
    assert await node.value(b"user/1", "blocks") == b"new"


async def test_a_hidden_copy_in_one_tier_does_not_hide_the_new_one_in_another() -> None:
    node = await make()
    await node.put(b"user/1", b"old", "blocks")
    await node.stack.invalidate_prefix("blocks", b"user/", node.soon())
    node.shared.failing = FailureReason.UNAVAILABLE
    await node.put(b"user/1", b"new", "blocks", durability=Durability.WAL)
    await node.settled()
    node.shared.failing = None
    await node.stack.memory.clear()
    assert len(node.shared.held) == 1
    (head,) = await node.stack.head_many("blocks", [b"user/1"], node.soon())
    assert isinstance(head, Head)
    assert await node.value(b"user/1", "blocks") == b"new"


async def test_a_clock_that_goes_back_hides_nothing() -> None:
    node = await make(has_shared=False)
    before = await node.put(b"k", b"1")
    node.clock.advance(-3_600)
    after = await node.put(b"k", b"2")
    assert after.version > before.version
    assert await node.value(b"k") == b"2"


async def test_mutable_entries_in_memory_are_bypassed_when_they_are_too_old() -> None:
    node = await make(mutable_age_s_max=2.0)
    await node.put(b"k", b"old")
    await node.put(b"b", b"block", "blocks")
    assert (await node.get(b"k")).tier is TierName.MEMORY
    node.clock.advance(2.1)
    assert (await node.get(b"k")).tier is TierName.SHARED
    assert (await node.get(b"k")).tier is TierName.MEMORY
    assert (await node.get(b"b", "blocks")).tier is TierName.MEMORY
    node.clock.advance(2.1)
    assert isinstance((await node.stack.head_many("default", [b"k"], node.soon()))[0], Head)
    node.shared.failing = FailureReason.UNAVAILABLE
    assert isinstance(await node.value(b"k"), TierFailure)
    assert await node.value(b"b", "blocks") == b"block"
