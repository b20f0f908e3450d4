"""A stack of tiers, seen through the interface of a tier, keeps the contract of a tier; so does the tests' own tier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from contract.tier_suite import TierContract
from fakes import FakeRecords, FakeReservation, FakeTier
from makers import MIB, entry, key, namespace_of, soon

from terracekv.tiers.background import Background
from terracekv.tiers.base import Tier, TierState, WriteLevel
from terracekv.tiers.clock import Deadline, FakeClock
from terracekv.tiers.disk import open_disk
from terracekv.tiers.entry import (
    Codec,
    DeleteResult,
    Entry,
    FailureReason,
    Found,
    HeadFound,
    Key,
    KeySpace,
    Kind,
    PutResult,
    TierFailure,
    TierName,
)
from terracekv.tiers.memory import MemoryTier
from terracekv.tiers.namespaces import Namespace, Namespaces
from terracekv.tiers.null import NullTier
from terracekv.tiers.stack import Put, Stack
from terracekv.tiers.stats import TierCounters
from terracekv.tiers.versions import LocalVersions

T = TypeVar("T")


class GivenKeys(KeySpace):
    """Answers with the keys that a test made, whatever digests it gave them."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[tuple[str, bytes], Key] = {}

    def key(self, namespace: str, epoch: int, user: bytes) -> Key:
        return self.given[namespace, user]


def _own(answer: T) -> T:
    return answer._replace(tier=StackAsTier.name) if isinstance(answer, TierFailure) else answer  # type: ignore[return-value]


class StackAsTier:
    """A stack as a tier: calls are split by namespace, and the failure of any of its tiers is told as its own."""

    name = TierName.DISK

    def __init__(self, stack: Stack, keys: GivenKeys, clock: FakeClock) -> None:
        self.counters = TierCounters()
        self._stack = stack
        self._keys = keys
        self._clock = clock
        self._closed = False

    def _by_namespace(self, keys: Sequence[Key]) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for at, one in enumerate(keys):
            self._keys.given[one.namespace, one.user] = one
            places.setdefault(one.namespace, []).append(at)
        return places

    async def get_many(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None = None) -> list[Found]:
        found: dict[int, Found] = {}
        for namespace, places in self._by_namespace(keys).items():
            answers = await self._stack.get_many(namespace, [keys[at].user for at in places], deadline, bytes_max)
            found.update(zip(places, (answer.found for answer in answers), strict=True))
        return [_own(found[at]) for at in range(len(keys))]

    async def head_many(self, keys: Sequence[Key], deadline: Deadline) -> list[HeadFound]:
        found: dict[int, HeadFound] = {}
        for namespace, places in self._by_namespace(keys).items():
            heads = await self._stack.head_many(namespace, [keys[at].user for at in places], deadline)
            found.update(zip(places, heads, strict=True))
        return [_own(found[at]) for at in range(len(keys))]

    async def put_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        results: dict[int, PutResult] = {}
        for namespace, places in self._by_namespace([one for one, _ in items]).items():
            (expires_us,) = {items[at][1].head.expires_us for at in places}
            ttl_s = (expires_us - self._clock.now_us()) / 1_000_000 if expires_us else None
            puts = [Put(items[at][0].user, items[at][1].frames) for at in places]
            answers, _ = await self._stack.put_many(namespace, puts, deadline, ttl_s)
            results.update(zip(places, answers, strict=True))
        return [_own(results[at]) for at in range(len(items))]

    async def delete_many(
        self, keys: Sequence[Key], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[DeleteResult]:
        results: dict[int, DeleteResult] = {}
        for namespace, places in self._by_namespace(keys).items():
            answers = await self._stack.delete_many(namespace, [keys[at].user for at in places], deadline)
            results.update(zip(places, answers, strict=True))
        return [_own(results[at]) for at in range(len(keys))]

    async def clear(self) -> None:
        await self._stack.background.flush(soon(self._clock))
        for tier in (self._stack.memory, self._stack.shared, self._stack.disk):
            await tier.clear()

    def state(self) -> tuple[TierState, str]:
        return self._stack.disk.state()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._stack.close(soon(self._clock))


async def stack_of(shared: FakeTier | NullTier, disk: Tier, clock: FakeClock) -> StackAsTier:
    """A stack with the namespaces that the contract uses."""
    configured = [
        Namespace(namespace_of(kind, codec), kind=kind, codec=codec, ttl_s=None, jitter=0.0)
        for kind in Kind
        for codec in Codec
    ]
    namespaces = Namespaces(FakeRecords(), FakeRecords(), clock, [*configured, Namespace("other")])
    await namespaces.start(soon(clock))
    keys = GivenKeys()
    background, versions = Background([shared, disk], 64 * MIB, clock), LocalVersions(FakeReservation(), clock)
    memory = MemoryTier(16 * MIB, clock=clock)
    stack = Stack(memory, shared, disk, namespaces, background, versions, keys, clock, lambda: 0.0)
    return StackAsTier(stack, keys, clock)


class StackContract(TierContract):
    """The contract, but for what nobody can ask a stack for."""

    keeps_versions = False
    counts = False
    test_a_key_put_twice_in_a_batch_keeps_the_right_one = None  # the last wins, as test_stack.py says
    test_an_expired_entry_keeps_nobody_out = None  # no life is over before it begins: a stack gives at least 1 us
    test_an_expired_entry_can_be_deleted = None
    test_a_passed_deadline_fails_as_timeout_at_once = None  # memory answers without looking at it: see below

    async def test_what_is_not_in_memory_is_a_timeout_when_the_deadline_passed(
        self, tier: Tier, clock: FakeClock
    ) -> None:
        late = Deadline.after(-1.0, clock)
        async with asyncio.timeout(5):
            answers = [
                *await tier.get_many([key("a"), key("b")], late),
                *await tier.put_many([(key("a"), entry(b"value", clock))], late),
                *await tier.delete_many([key("b")], late),
            ]
        assert len(answers) == 4
        assert all(isinstance(one, TierFailure) and one.reason is FailureReason.TIMEOUT for one in answers)


class TestStackOverDisk(StackContract):
    """Memory over a real database, no shared tier."""

    @pytest.fixture
    async def tier(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[StackAsTier]:
        tier = await stack_of(NullTier(clock), await open_disk(tmp_path / "disk", 256 * MIB, MIB, clock), clock)
        yield tier
        await tier.close()


class TestStackOfThree(StackContract):
    """Memory over a shared tier and a disk."""

    @pytest.fixture
    async def tier(self, clock: FakeClock) -> AsyncIterator[StackAsTier]:
        tier = await stack_of(FakeTier(TierName.SHARED, clock), FakeTier(TierName.DISK, clock), clock)
        yield tier
        await tier.close()


class TestFakeTier(TierContract):
    """What tests put in the place of a tier behaves as one."""

    @pytest.fixture
    def tier(self, clock: FakeClock) -> FakeTier:
        return FakeTier(TierName.DISK, clock)
