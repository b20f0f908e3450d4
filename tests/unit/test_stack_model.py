"""The stack against a model, over random histories: puts, deletes, invalidations, ends, drops, failures, kills, races.

Whatever happens: never a value that nobody put, never an older value of a
mutable key after a newer one, never one that was deleted, invalidated or has
expired, and no miss where a tier that must be asked holds the value, be it
failing or not. Each put has a payload of its own, so that every value read
tells which write it came from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from fakes import FakeRecords, FakeReservation, FakeTier
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from makers import soon

from terracekv.tiers import background
from terracekv.tiers.background import Background
from terracekv.tiers.base import WriteLevel
from terracekv.tiers.clock import Deadline, FakeClock
from terracekv.tiers.entry import (
    MISS,
    DeleteResult,
    Durability,
    Entry,
    FailureReason,
    Found,
    Head,
    Key,
    KeySpace,
    Kind,
    PutResult,
    Stored,
    TierFailure,
    TierName,
)
from terracekv.tiers.memory import MemoryTier
from terracekv.tiers.namespaces import Namespaces
from terracekv.tiers.stack import Put, Stack
from terracekv.tiers.versions import LocalVersions

T = TypeVar("T")
NAMESPACES = ("default", "blocks")
USERS = (b"a/1", b"b")
MEMORY_BYTES = 3_000  # room for about five entries: the rest is dropped


class UnsureTier(FakeTier):
    """Fails writes after it has done them, if told to: whoever asked does not know."""

    unsure = False

    async def put_many(self, items: Any, deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED) -> Any:
        return await self._told(super().put_many, items, deadline, level)

    async def write_many(self, items: Any, deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED) -> Any:
        return await self._told(super().write_many, items, deadline, level)

    async def delete_many(self, keys: Any, deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED) -> Any:
        return await self._told(super().delete_many, keys, deadline, level)

    async def _told(self, write: Any, batch: Any, deadline: Deadline, level: WriteLevel) -> Any:
        await asyncio.sleep(0)  # a write takes its time: others come in between
        if self.failing is None or not self.unsure:
            return await write(batch, deadline, level)
        reason, self.failing = self.failing, None
        await write(batch, deadline, level)
        self.failing = reason
        return [TierFailure(self.name, reason, "done, but not told")] * len(batch)


@dataclass
class History:
    """What may be read of one key. Writes are numbered in the order they were asked for."""

    expires_us: dict[int, int] = field(default_factory=dict)  # by number of write
    newest: int = 0  # known to have been written, or read: a mutable value before it must not be read again
    kept: int = 0  # the same, for what survives a kill
    gone: int = 0  # writes up to this one were deleted or invalidated


@dataclass
class Before:
    """What held when a read began."""

    newest: int
    gone: int
    holders: list[UnsureTier]
    owed: bool


class StackMachine(RuleBasedStateMachine):
    """One node over two tiers that outlive it."""

    has_shared = True
    down_s = 1.0  # how long a killed node is away

    @initialize(namespace=st.sampled_from(NAMESPACES))
    def start(self, namespace: str) -> None:
        self.namespace = namespace  # of all calls: the more happens to the same few keys
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.shared = UnsureTier(TierName.SHARED, self.clock, absent=not self.has_shared)
        self.disk = UnsureTier(TierName.DISK, self.clock)
        self.records, self.reservation = FakeRecords(), FakeReservation()
        self.histories = {user: History() for user in USERS}
        self.writes = self.calls_failing = 0
        self.boot()

    def boot(self) -> None:
        self.stack = self.run(self._booted())

    async def _booted(self) -> Stack:
        namespaces = Namespaces(self.records, self.records, self.clock)
        await namespaces.start(soon(self.clock))
        memory = MemoryTier(MEMORY_BYTES, clock=self.clock)
        owed = Background([self.shared, self.disk], 1 << 20, self.clock)
        versions = LocalVersions(self.reservation, self.clock)
        return Stack(
            memory, self.shared, self.disk, namespaces, owed, versions, KeySpace(), self.clock, lambda: 0.0
        )  # fmt: skip

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(10):
                return await work

        return self.loop.run_until_complete(bounded())

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            try:
                self.stop()
            finally:
                self.loop.close()

    def stop(self) -> None:
        self.run(self._stopped())

    @staticmethod
    async def _stopped() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what is true ---

    @property
    def failing(self) -> bool:
        return self.disk.failing is not None or (self.has_shared and self.shared.failing is not None)

    def asked(self) -> list[UnsureTier]:
        """The tiers below memory that a read of the namespace must ask."""
        if not self.has_shared:
            return [self.disk]
        return [self.shared, self.disk] if self.namespace == "blocks" else [self.shared]

    def holders(self, user: bytes) -> list[UnsureTier]:
        """The tiers that must be asked and hold a value that may be read."""
        return [tier for tier in self.asked() if self.visible(tier, user)]

    def visible(self, tier: UnsureTier, user: bytes) -> bool:
        """Whether a tier holds a value that may be read."""
        return self.may_be_read(tier.held.get(self.key(user)), user)

    def owed(self, user: bytes) -> bool:
        """Whether a value waits to be written, and may be read."""
        waiting = [lane.find(self.key(user)) for lane in self.stack.background._lanes.values()]
        return any(one is not None and self.may_be_read(one.entry, user) for one in waiting)

    def key(self, user: bytes) -> Key:
        return KeySpace().key(self.namespace, self.stack.namespaces.get(self.namespace).epoch, user)

    def may_be_read(self, entry: Entry | None, user: bytes) -> bool:
        floor = self.stack.namespaces.get(self.namespace).floor(user)
        return entry is not None and not entry.head.expired(self.clock.now_us()) and entry.head.version > floor

    def before(self, user: bytes) -> Before:
        history = self.histories[user]
        return Before(history.newest, history.gone, self.holders(user), self.owed(user))

    def check_read(self, user: bytes, found: Found, before: Before) -> None:
        history = self.histories[user]
        if isinstance(found, TierFailure):
            assert self.failing
            assert all(tier.failing for tier in before.holders), "a tier that works has it"
        elif isinstance(found, Entry):
            number = int(found.payload().split(b" ")[-1])
            assert found.payload() == self.payload(user, number), "a value of another key"
            assert number in history.expires_us, "a value that nobody put"
            assert number > before.gone, "a value that is gone"
            assert not 0 < history.expires_us[number] <= self.clock.now_us(), "a value that has expired"
            assert found.head.expires_us == history.expires_us[number]
            if found.head.kind is Kind.MUTABLE:
                assert number >= before.newest, "an older value after a newer one"
                history.newest = max(history.newest, number)
        else:
            assert found is MISS
            assert before.holders == [], "a miss where there is a value"
            assert not before.owed, "a miss while the value waits to be written"

    @staticmethod
    def payload(user: bytes, number: int) -> bytes:
        return b"%s %d" % (user, number)

    # --- calls ---

    @rule(users=st.lists(st.sampled_from(USERS), min_size=1, max_size=4))
    def get(self, users: list[bytes]) -> None:
        before = [self.before(user) for user in users]
        answers = self.run(self.stack.get_many(self.namespace, users, soon(self.clock)))
        for user, answer, one in zip(users, answers, before, strict=True):
            self.check_read(user, answer.found, one)

    @rule()
    def heads(self) -> None:
        heads = self.run(self.stack.head_many(self.namespace, list(USERS), soon(self.clock)))
        for user, head in zip(USERS, heads, strict=True):
            holders = self.holders(user)
            if isinstance(head, TierFailure):
                assert self.failing
                assert all(tier.failing for tier in holders)
            elif isinstance(head, Head):
                assert not head.expired(self.clock.now_us())
            else:
                assert holders == []

    @rule(
        users=st.lists(st.sampled_from(USERS), min_size=1, max_size=3, unique=True),
        ttl_s=st.sampled_from([None, 5.0, 60.0]),
        level=st.sampled_from([None, Durability.MEMORY, Durability.SHARED, Durability.WAL, Durability.FSYNC]),
    )
    def put(self, users: list[bytes], ttl_s: float | None, level: Durability | None) -> None:
        level = self.offered(level)
        numbers, puts = self.begin_puts(users, ttl_s)
        results, reached = self.run(self.stack.put_many(self.namespace, puts, soon(self.clock), ttl_s, level))
        for user, number, result in zip(users, numbers, results, strict=True):
            self.check_put(user, number, result, reached)

    def offered(self, level: Durability | None) -> Durability | None:
        if level is Durability.SHARED and not self.has_shared:
            return None
        if level is Durability.MEMORY and self.has_shared and self.namespace == "default":
            return None
        return level

    def begin_puts(self, users: list[bytes], ttl_s: float | None) -> tuple[list[int], list[Put]]:
        numbers, puts = [], []
        for user in users:
            self.writes += 1
            policy = self.stack.namespaces.get(self.namespace)
            life_s = policy.ttl_s if ttl_s is None else ttl_s
            assert life_s is not None
            end_us = self.clock.now_us() + round(life_s * 1_000_000)
            self.histories[user].expires_us[self.writes] = end_us
            numbers.append(self.writes)
            puts.append(Put(user, (self.payload(user, self.writes),)))
        return numbers, puts

    def check_put(self, user: bytes, number: int, result: PutResult, level: Durability) -> None:
        history = self.histories[user]
        if isinstance(result, TierFailure):
            assert self.failing
            return
        assert isinstance(result, Stored)
        if self.namespace == "default":
            assert not result.kept
            history.newest = max(history.newest, number)
            if level is not Durability.MEMORY:
                history.kept = max(history.kept, number)
        tier = {Durability.SHARED: self.shared, Durability.WAL: self.disk, Durability.FSYNC: self.disk}.get(level)
        assert tier is None or self.visible(tier, user), "acked, but it cannot be read"

    @rule(users=st.lists(st.sampled_from(USERS), min_size=1, max_size=3))
    def delete(self, users: list[bytes]) -> None:
        results = self.run(self.stack.delete_many(self.namespace, users, soon(self.clock)))
        for user, result in zip(users, results, strict=True):
            self.check_delete(user, result, self.writes)

    def check_delete(self, user: bytes, result: DeleteResult, up_to: int) -> None:
        if result is None:
            history = self.histories[user]
            history.gone = max(history.gone, up_to)
            history.newest = max(history.newest, up_to)
            history.kept = max(history.kept, up_to)
        else:
            assert self.failing

    @rule(prefix=st.sampled_from([b"a/", b"a/1", b"b", b"x", None]))
    def invalidate(self, prefix: bytes | None) -> None:
        self.run(self._invalidate(prefix))

    async def _invalidate(self, prefix: bytes | None) -> None:
        """A prefix, or with None the whole namespace by its epoch."""
        if prefix is None:
            await self.stack.raise_epoch(self.namespace, soon(self.clock))
        else:
            await self.stack.invalidate_prefix(self.namespace, prefix, soon(self.clock))
        for user in USERS:
            if user.startswith(prefix or b""):
                self.check_delete(user, None, self.writes)

    # --- races ---

    @rule(
        user=st.sampled_from(USERS),
        held=st.sampled_from(["shared", "disk"]),
        change=st.sampled_from(["put", "delete", "invalidate", "epoch"]),
    )
    def change_under_a_slow_reader(self, user: bytes, held: str, change: str) -> None:
        """A reader has looked in a tier and waits for its answer while something else happens to the key."""
        self.run(self._change_under_a_slow_reader(user, getattr(self, held), change))

    async def _change_under_a_slow_reader(self, user: bytes, tier: UnsureTier, change: str) -> None:
        before = self.before(user)
        tier.gate.clear()
        tier.looked.clear()
        reader = asyncio.ensure_future(self.stack.get_many(self.namespace, [user], soon(self.clock)))
        looked = asyncio.ensure_future(tier.looked.wait())
        await asyncio.wait([reader, looked], return_when=asyncio.FIRST_COMPLETED)
        looked.cancel()
        if change == "put":
            numbers, puts = self.begin_puts([user], None)
            results, level = await self.stack.put_many(self.namespace, puts, soon(self.clock))
            self.check_put(user, numbers[0], results[0], level)
        elif change == "delete":
            (result,) = await self.stack.delete_many(self.namespace, [user], soon(self.clock))
            self.check_delete(user, result, self.writes)
        else:
            await self._invalidate(user if change == "invalidate" else None)
        tier.gate.set()
        ((found, _),) = await reader
        if isinstance(found, Entry):
            self.check_read(user, found, before)

    @rule(
        user=st.sampled_from(USERS),
        deletes=st.booleans(),
        turns=st.integers(0, 6),
    )
    def a_cancelled_write(self, user: bytes, deletes: bool, turns: int) -> None:
        """Its outcome is unknown, and it must not be half of one."""
        if deletes:
            self.run(self._cancelled(self.stack.delete_many(self.namespace, [user], soon(self.clock)), turns))
        else:
            _, puts = self.begin_puts([user], None)
            self.run(self._cancelled(self.stack.put_many(self.namespace, puts, soon(self.clock)), turns))

    async def _cancelled(self, call: Coroutine[Any, Any, Any], turns: int) -> None:
        task = asyncio.ensure_future(call)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(20):  # what went on in spite of it comes to its end
            await asyncio.sleep(0)

    # --- the world ---

    @rule(seconds=st.sampled_from([0.000_001, 1.0, 4.999_999, 30.0, 90_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(
        tier=st.sampled_from(["memory", "shared", "disk"]),
        user=st.sampled_from(USERS),
    )
    def a_tier_makes_room(self, tier: str, user: bytes) -> None:
        """Memory drops all, the others a key."""
        if tier == "memory":
            self.run(self.stack.memory.clear())
            return
        held = getattr(self, tier).held
        for key in [key for key in held if key.user == user]:
            del held[key]

    @rule(
        tier=st.sampled_from(["shared", "disk"]),
        reason=st.sampled_from([FailureReason.UNAVAILABLE, FailureReason.TIMEOUT, FailureReason.FULL]),
        unsure=st.booleans(),
        calls=st.integers(1, 4),
    )
    def a_tier_fails_for_some_calls(self, tier: str, reason: FailureReason, unsure: bool, calls: int) -> None:
        failing = getattr(self, tier)
        failing.failing, failing.unsure, self.calls_failing = reason, unsure, calls

    @invariant()
    def a_moment_passes(self) -> None:
        self.clock.advance(0.001)
        self.calls_failing -= 1
        if self.calls_failing < 0:
            self.shared.failing = self.disk.failing = None

    @rule()
    def what_is_owed_is_written(self) -> None:
        # While its tier fails, what is owed to the one that is right is tried on: nobody waits for that here.
        self.run(self.stack.background.flush(Deadline.after(0.02, self.clock)))

    @rule()
    def the_node_is_killed_and_started(self) -> None:
        self.stop()
        self.clock.advance(self.down_s)
        for history in self.histories.values():
            history.newest = history.kept
        self.boot()


class LonelyStackMachine(StackMachine):
    """The same without a shared tier."""

    has_shared = False


HISTORIES = settings(
    max_examples=250,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # a failing history is said as it was found: making it shorter can take many minutes
)


@pytest.mark.parametrize("machine", [StackMachine, LonelyStackMachine])
@pytest.mark.parametrize(
    "histories",
    [
        pytest.param(HISTORIES, id="the same ones"),
        pytest.param(settings(HISTORIES, max_examples=3_000, derandomize=False), id="others", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(600)
def test_no_history_gives_a_wrong_an_old_or_a_deleted_value(
    machine: type[StackMachine], histories: settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RETRY_AFTER_S", 0.0)
    run_state_machine_as_test(machine, settings=histories)  # type: ignore[no-untyped-call]
