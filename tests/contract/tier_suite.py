"""The contract of tiers/base.py as tests: subclass `TierContract`, give it a `tier` fixture, state what differs.

A subclass may also give a `clock` fixture, if the tier cannot take the fake
one: then it sets `fake_clock = False`.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar
from unittest.mock import ANY

import pytest
from makers import KEYS, MIB, entry, key, mutable, mutable_key, namespace_of, noise, soon

from terracekv.tiers.base import Tier, TierState, WriteLevel
from terracekv.tiers.clock import Clock, Deadline, FakeClock
from terracekv.tiers.entry import (
    MISS,
    Codec,
    DeleteResult,
    Entry,
    FailureReason,
    Found,
    Head,
    HeadFound,
    Key,
    KeySpace,
    Kind,
    PutResult,
    Stored,
    TierFailure,
)

ODD_KEYS = (
    b"\x00", b"\xff", b"a\r\nb", b"{", b"}{", b"{tag}", b"*?[x]", b"%s", b"\x00" * 1024, b"\xff" * 1024,
    "\u00e9".encode(), "e\u0301".encode(), b"a", b"a\x00", b" a", b"a ",
)  # fmt: skip
SIZES = (0, 1, 65_535, 65_536, 65_537, MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1)


def payload_of(found: Found) -> bytes:
    """The payload of a hit."""
    assert isinstance(found, Entry), found
    return found.payload()


class TierContract:
    """What every tier does."""

    fake_clock: ClassVar[bool] = True
    keeps_versions: ClassVar[bool] = True  # False: it gives versions itself, whatever an entry comes with
    counts: ClassVar[bool] = True  # False: its counters are those of the tiers it is made of

    # --- shorthands ---

    async def put(
        self, tier: Tier, clock: Clock, name: Key | str, item: Entry, level: WriteLevel = WriteLevel.BUFFERED
    ) -> PutResult:
        (result,) = await tier.put_many([(_key(name), item)], soon(clock), level)
        return result

    async def get(self, tier: Tier, clock: Clock, name: Key | str, bytes_max: int | None = None) -> Found:
        (found,) = await tier.get_many([_key(name)], soon(clock), bytes_max)
        return found

    async def head(self, tier: Tier, clock: Clock, name: Key | str) -> HeadFound:
        (found,) = await tier.head_many([_key(name)], soon(clock))
        return found

    async def delete(self, tier: Tier, clock: Clock, name: Key | str) -> DeleteResult:
        (result,) = await tier.delete_many([_key(name)], soon(clock))
        return result

    @pytest.fixture
    def versions_kept(self) -> None:
        """For tests that need a version to stay as it was given."""
        if not self.keeps_versions:
            pytest.skip("gives versions itself")

    def stored(self, item: Entry) -> Stored | object:
        """The answer to a first put."""
        return Stored(item.head.version) if self.keeps_versions else ANY

    def same_head(self, found: HeadFound, item: Entry) -> bool:
        """Whether a head is that of an entry."""
        assert isinstance(found, Head), found
        return found == (item.head if self.keeps_versions else item.head._replace(version=found.version))

    # --- hits and misses ---

    async def test_what_was_put_comes_back_whole(self, tier: Tier, clock: Clock) -> None:
        item = entry(b"value", clock, ttl_s=60)
        assert await self.put(tier, clock, "k", item) == self.stored(item)
        found = await self.get(tier, clock, "k")
        assert isinstance(found, Entry)
        assert self.same_head(found.head, item)
        assert found.payload() == b"value"
        assert self.same_head(await self.head(tier, clock, "k"), item)

    async def test_an_absent_key_is_a_miss_and_falsy(self, tier: Tier, clock: Clock) -> None:
        assert await self.get(tier, clock, "absent") is MISS
        assert await self.head(tier, clock, "absent") is MISS
        assert not await self.get(tier, clock, "absent")

    async def test_answers_come_in_the_order_of_the_request(self, tier: Tier, clock: Clock) -> None:
        names = [f"k{number}" for number in range(200)]
        items = [(key(name), entry(name.encode(), clock)) for name in names]
        results = await tier.put_many(items, soon(clock))
        assert results == [self.stored(item) for _, item in items]
        asked = [name for number in range(200) for name in (names[-1 - number], f"absent{number}")]
        found = await tier.get_many([key(name) for name in asked], soon(clock))
        assert [payload_of(one) for one in found[::2]] == [name.encode() for name in reversed(names)]
        assert found[1::2] == [MISS] * 200
        heads = await tier.head_many([key(name) for name in asked], soon(clock))
        assert heads == [one.head if isinstance(one, Entry) else one for one in found]

    async def test_an_empty_batch_has_an_empty_answer(self, tier: Tier, clock: Clock) -> None:
        assert await tier.get_many([], soon(clock)) == []
        assert await tier.head_many([], soon(clock)) == []
        assert await tier.put_many([], soon(clock)) == []
        assert await tier.delete_many([], soon(clock)) == []

    async def test_a_key_twice_in_a_batch_is_answered_twice(self, tier: Tier, clock: Clock) -> None:
        large = noise(100_000)
        await self.put(tier, clock, "k", entry(large, clock))
        found = await tier.get_many([key("k"), key("absent"), key("k")], soon(clock))
        assert [payload_of(found[0]), found[1], payload_of(found[2])] == [large, MISS, large]
        assert len(await tier.head_many([key("k")] * 3, soon(clock))) == 3
        assert await tier.delete_many([key("k"), key("k")], soon(clock)) == [None, None]

    async def test_a_key_put_twice_in_a_batch_keeps_the_right_one(self, tier: Tier, clock: Clock) -> None:
        first, second = entry(b"first", clock), entry(b"second", clock)
        results = await tier.put_many([(key("i"), first), (key("i"), second)], soon(clock))
        assert all(isinstance(result, Stored) for result in results)
        assert payload_of(await self.get(tier, clock, "i")) == b"first"
        newer, older = mutable(b"newer", 9, clock), mutable(b"older", 8, clock)
        results = await tier.put_many([(mutable_key("m"), newer), (mutable_key("m"), older)], soon(clock))
        assert all(isinstance(result, Stored) for result in results)
        expected = b"newer" if self.keeps_versions else b"older"
        assert payload_of(await self.get(tier, clock, mutable_key("m"))) == expected

    # --- keys ---

    async def test_odd_keys_are_keys_of_their_own(self, tier: Tier, clock: Clock) -> None:
        await tier.put_many([(key(name), entry(b"of " + name, clock)) for name in ODD_KEYS], soon(clock))
        found = await tier.get_many([key(name) for name in ODD_KEYS], soon(clock))
        assert [payload_of(one) for one in found] == [b"of " + name for name in ODD_KEYS]

    async def test_the_same_key_in_another_namespace_or_epoch_is_another(self, tier: Tier, clock: Clock) -> None:
        await self.put(tier, clock, key("k"), entry(b"value", clock))
        assert await self.get(tier, clock, key("k", namespace="other")) is MISS
        assert await self.get(tier, clock, key("k", epoch=2)) is MISS

    async def test_digests_that_collide_cost_a_miss_and_never_give_a_wrong_value(
        self, tier: Tier, clock: Clock
    ) -> None:
        colliding = KeySpace(digest=lambda secret, message: KEYS.key("d", 1, message).digest[:1] * 32)
        keys = [colliding.key(namespace_of(Kind.IMMUTABLE), 1, b"%d" % number) for number in range(600)]
        await tier.put_many([(one, entry(b"of " + one.user, clock)) for one in keys], soon(clock))
        found = await tier.get_many(keys, soon(clock))
        hits = [(one, result) for one, result in zip(keys, found, strict=True) if result is not MISS]
        assert len(hits) >= 200
        assert [payload_of(result) for _, result in hits] == [b"of " + one.user for one, _ in hits]
        heads = await tier.head_many(keys, soon(clock))
        assert [bool(head) for head in heads] == [bool(one) for one in found]
        await tier.delete_many(keys, soon(clock))
        assert await tier.get_many(keys, soon(clock)) == [MISS] * 600

    # --- payloads ---

    @pytest.mark.parametrize("size_bytes", SIZES)
    async def test_payloads_of_every_size_come_back_bit_for_bit(
        self, tier: Tier, clock: Clock, size_bytes: int
    ) -> None:
        payload = noise(size_bytes)
        for name, item in ((key("i"), entry(payload, clock)), (mutable_key("m"), mutable(payload, 7, clock))):
            assert await self.put(tier, clock, name, item) == self.stored(item)
            assert payload_of(await self.get(tier, clock, name)) == payload
            assert self.same_head(await self.head(tier, clock, name), item)

    async def test_a_payload_in_several_frames_is_the_same_bytes(self, tier: Tier, clock: Clock) -> None:
        frames = [noise(size, seed) for seed, size in enumerate((MIB, 1, MIB, MIB - 1, MIB, MIB))]
        await self.put(tier, clock, "k", entry(frames, clock))
        assert payload_of(await self.get(tier, clock, "k")) == b"".join(frames)
        assert isinstance(await self.head(tier, clock, "k"), Head)

    @pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.PLANES_ZSTD])
    @pytest.mark.parametrize("size_bytes", [0, 1, 2, 65_537, 3 * MIB + 1])
    async def test_compressed_payloads_come_back_bit_for_bit(
        self, tier: Tier, clock: Clock, size_bytes: int, codec: Codec
    ) -> None:
        for name, payload in (("noise", noise(size_bytes)), ("zeros", bytes(size_bytes))):
            item, where = entry(payload, clock, codec=codec), key(name, namespace_of(Kind.IMMUTABLE, codec))
            assert await self.put(tier, clock, where, item) == self.stored(item)
            assert payload_of(await self.get(tier, clock, where)) == payload
            assert self.same_head(await self.head(tier, clock, where), item)

    async def test_a_reader_cannot_change_what_is_held(self, tier: Tier, clock: Clock) -> None:
        await self.put(tier, clock, "k", entry(b"value", clock))
        found = await self.get(tier, clock, "k")
        assert isinstance(found, Entry)
        assert isinstance(found.frames, tuple)
        assert all(type(frame) is bytes for frame in found.frames)

    # --- a bound on the bytes returned ---

    async def test_what_does_not_fit_the_bytes_asked_for_comes_as_its_head(self, tier: Tier, clock: Clock) -> None:
        sizes = {"a": 400, "b": 100_000, "c": 600, "d": 1, "e": 0}
        items = {name: entry(noise(size), clock) for name, size in sizes.items()}
        await tier.put_many([(key(name), item) for name, item in items.items()], soon(clock))
        keys = [key(name) for name in (*sizes, "absent")]
        found = await tier.get_many(keys, soon(clock), bytes_max=1_000)
        shapes = [type(one).__name__ for one in found]
        assert shapes == ["Entry", "Head", "Entry", "Head", "Entry", "Miss"]
        assert isinstance(found[1], Head)
        assert self.same_head(found[1], items["b"])
        nothing = await tier.get_many(keys, soon(clock), bytes_max=0)
        assert [type(one).__name__ for one in nothing] == ["Head", "Head", "Head", "Head", "Entry", "Miss"]
        everything = await tier.get_many(keys, soon(clock), bytes_max=sum(sizes.values()))
        assert [payload_of(one) for one in everything[:-1]] == [items[name].payload() for name in sizes]

    # --- expiry ---

    async def test_an_entry_is_gone_exactly_when_it_expires(self, tier: Tier, clock: FakeClock) -> None:
        if not self.fake_clock:
            pytest.skip("needs a clock that can be moved")
        for name, size_bytes in (("small", 10), ("large", 200_000)):
            await self.put(tier, clock, name, entry(noise(size_bytes), clock, ttl_s=10))
        clock.advance(9.999_999)
        assert isinstance(await self.get(tier, clock, "small"), Entry)
        assert isinstance(await self.head(tier, clock, "large"), Head)
        clock.advance(0.000_001)
        assert await tier.get_many([key("small"), key("large")], soon(clock)) == [MISS, MISS]
        assert await tier.head_many([key("small"), key("large")], soon(clock)) == [MISS, MISS]

    async def test_an_expired_entry_keeps_nobody_out(self, tier: Tier, clock: Clock) -> None:
        await self.put(tier, clock, "i", entry(b"old", clock, ttl_s=-1))
        await self.put(tier, clock, mutable_key("m"), mutable(b"old", 9, clock, ttl_s=-1))
        assert await tier.get_many([key("i"), mutable_key("m")], soon(clock)) == [MISS, MISS]
        assert await self.put(tier, clock, "i", item := entry(b"new", clock)) == self.stored(item)
        assert await self.put(tier, clock, mutable_key("m"), item := mutable(b"new", 5, clock)) == self.stored(item)
        assert payload_of(await self.get(tier, clock, "i")) == b"new"
        assert payload_of(await self.get(tier, clock, mutable_key("m"))) == b"new"

    async def test_an_expired_entry_can_be_deleted(self, tier: Tier, clock: Clock) -> None:
        await self.put(tier, clock, "k", entry(b"old", clock, ttl_s=-1))
        assert await self.delete(tier, clock, "k") is None
        assert await self.get(tier, clock, "k") is MISS

    async def test_an_entry_without_expiry_stays(self, tier: Tier, clock: FakeClock) -> None:
        await self.put(tier, clock, "k", entry(b"value", clock))
        if self.fake_clock:
            clock.advance(400 * 86_400)
        assert payload_of(await self.get(tier, clock, "k")) == b"value"

    # --- which of two writes counts ---

    @pytest.mark.parametrize("size_bytes", [10, 200_000])
    async def test_the_first_immutable_entry_stays(self, tier: Tier, clock: Clock, size_bytes: int) -> None:
        first = entry(noise(size_bytes), clock, version=100)
        stored = await self.put(tier, clock, "k", first)
        assert isinstance(stored, Stored)
        assert not stored.kept
        same, other = entry(noise(size_bytes), clock, version=200), entry(noise(size_bytes, 1), clock, version=300)
        assert await self.put(tier, clock, "k", same) == stored._replace(kept=True)
        assert await self.put(tier, clock, "k", other) == stored._replace(kept=True, differs=True)
        assert payload_of(await self.get(tier, clock, "k")) == first.payload()

    async def test_of_many_first_puts_at_once_exactly_one_is_stored(self, tier: Tier, clock: Clock) -> None:
        items = [entry(noise(70_000, seed), clock, version=seed + 1) for seed in range(8)]
        results = await asyncio.gather(*(self.put(tier, clock, "k", item) for item in items))
        stored = [result for result in results if isinstance(result, Stored) and not result.kept]
        assert len(stored) == 1
        assert {result.version for result in results if isinstance(result, Stored)} == {stored[0].version}
        assert payload_of(await self.get(tier, clock, "k")) == items[results.index(stored[0])].payload()

    @pytest.mark.usefixtures("versions_kept")
    async def test_a_lower_version_of_a_mutable_entry_is_ignored(self, tier: Tier, clock: Clock) -> None:
        assert await self.put(tier, clock, mutable_key("k"), mutable(b"5", 5, clock)) == Stored(5)
        result = await self.put(tier, clock, mutable_key("k"), mutable(b"4", 4, clock))
        assert isinstance(result, Stored)
        assert result[:2] == (5, True)
        assert payload_of(await self.get(tier, clock, mutable_key("k"))) == b"5"
        assert await self.put(tier, clock, mutable_key("k"), mutable(b"again", 5, clock)) == Stored(5)
        assert payload_of(await self.get(tier, clock, mutable_key("k"))) == b"again"
        assert await self.put(tier, clock, mutable_key("k"), mutable(noise(200_000), 6, clock)) == Stored(6)
        assert payload_of(await self.get(tier, clock, mutable_key("k"))) == noise(200_000)
        assert await self.put(tier, clock, mutable_key("k"), mutable(b"", 7, clock)) == Stored(7)
        assert payload_of(await self.get(tier, clock, mutable_key("k"))) == b""

    @pytest.mark.usefixtures("versions_kept")
    async def test_versions_use_all_64_bits(self, tier: Tier, clock: Clock) -> None:
        await self.put(tier, clock, mutable_key("k"), mutable(b"high", 2**63, clock))
        assert await self.put(tier, clock, mutable_key("k"), mutable(b"low", 2**62, clock)) == Stored(2**63, True, True)
        head = await self.head(tier, clock, mutable_key("k"))
        assert isinstance(head, Head)
        assert head.version == 2**63

    # --- deletes ---

    @pytest.mark.parametrize("level", list(WriteLevel))
    async def test_a_deleted_key_is_a_miss_and_can_be_put_again(
        self, tier: Tier, clock: Clock, level: WriteLevel
    ) -> None:
        await self.put(tier, clock, "i", entry(noise(200_000), clock), level)
        await self.put(tier, clock, mutable_key("m"), mutable(b"value", 9, clock), level)
        keys = [key("i"), mutable_key("m"), key("absent")]
        assert await tier.delete_many(keys, soon(clock), level) == [None] * 3
        assert await tier.get_many(keys, soon(clock)) == [MISS] * 3
        assert await tier.head_many(keys, soon(clock)) == [MISS] * 3
        await self.put(tier, clock, "i", entry(b"new", clock), level)
        await self.put(tier, clock, mutable_key("m"), mutable(b"new", 1, clock), level)
        assert [payload_of(one) for one in await tier.get_many(keys[:2], soon(clock))] == [b"new", b"new"]

    async def test_clear_removes_every_entry(self, tier: Tier, clock: Clock) -> None:
        keys = [key(f"k{number}") for number in range(20)]
        await tier.put_many([(one, entry(noise(20_000), clock)) for one in keys], soon(clock))
        await tier.clear()
        assert await tier.get_many(keys, soon(clock)) == [MISS] * 20
        await self.put(tier, clock, keys[0], entry(b"after", clock))
        assert payload_of(await self.get(tier, clock, keys[0])) == b"after"

    # --- failure, deadline, cancellation, end ---

    async def test_a_passed_deadline_fails_as_timeout_at_once(self, tier: Tier, clock: Clock) -> None:
        await self.put(tier, clock, "k", entry(b"value", clock))
        passed = Deadline.after(-1.0, clock)
        async with asyncio.timeout(5):
            found = await tier.get_many([key("k"), key("absent")], passed)
            heads = await tier.head_many([key("k")], passed)
            stored = await tier.put_many([(key("late"), entry(b"value", clock))], passed)
        for result in (*found, *heads, *stored):
            assert isinstance(result, TierFailure)
            assert (result.tier, result.reason) == (tier.name, FailureReason.TIMEOUT)
            assert not result
        assert (len(found), len(heads), len(stored)) == (2, 1, 1)
        assert payload_of(await self.get(tier, clock, "k")) == b"value"

    async def test_cancelled_calls_leave_it_usable_and_nothing_half_written(self, tier: Tier, clock: Clock) -> None:
        payload = noise(3 * MIB)
        for cancel_after_turns in range(4):
            name = f"k{cancel_after_turns}"
            calls = [
                asyncio.ensure_future(self.put(tier, clock, name, entry(payload, clock))),
                asyncio.ensure_future(self.get(tier, clock, name)),
                asyncio.ensure_future(self.delete(tier, clock, "other")),
            ]
            for _ in range(cancel_after_turns):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            found = await self.get(tier, clock, name)
            assert found is MISS or payload_of(found) == payload
            assert isinstance(await self.put(tier, clock, name, entry(payload, clock)), Stored)
            assert payload_of(await self.get(tier, clock, name)) == payload

    async def test_many_callers_at_once_get_their_own_answers(self, tier: Tier, clock: Clock) -> None:
        async def use(number: int) -> None:
            name, payload = f"k{number}", noise(10_000 + number, number)
            await self.put(tier, clock, name, entry(payload, clock))
            assert payload_of(await self.get(tier, clock, name)) == payload
            assert await self.delete(tier, clock, name) is None
            assert await self.get(tier, clock, name) is MISS

        await asyncio.gather(*(use(number) for number in range(64)))

    async def test_counters_add_up(self, tier: Tier, clock: Clock) -> None:
        if not self.counts:
            pytest.skip("the tiers it is made of count")
        await tier.put_many([(key("a"), entry(b"12345", clock)), (key("b"), entry(b"123", clock))], soon(clock))
        await self.put(tier, clock, "a", entry(b"other", clock))
        await tier.get_many([key("a"), key("b"), key("absent")], soon(clock))
        await tier.head_many([key("a"), key("absent")], soon(clock))
        await tier.get_many([key("a"), key("b")], soon(clock), bytes_max=3)
        await tier.delete_many([key("a"), key("absent")], soon(clock))
        counters = tier.counters
        assert (counters.puts, counters.kept, counters.written_bytes) == (2, 1, 8)
        assert (counters.hits, counters.misses, counters.failures) == (5, 2, 0)
        assert counters.read_bytes == 8 + 3
        assert counters.deletes == 2
        assert counters.corrupt == 0
        await tier.get_many([key("b"), key("b")], Deadline.after(-1.0, clock))
        assert tier.counters.failures == 2

    async def test_after_close_every_key_is_unavailable(self, tier: Tier, clock: Clock) -> None:
        await self.put(tier, clock, "k", entry(b"value", clock))
        assert tier.state()[0] is TierState.UP
        await tier.close()
        await tier.close()
        assert tier.state()[0] is TierState.DOWN
        results = [
            *await tier.get_many([key("k"), key("absent")], soon(clock)),
            *await tier.head_many([key("k")], soon(clock)),
            *await tier.put_many([(key("k"), entry(b"value", clock))], soon(clock)),
            *await tier.delete_many([key("k")], soon(clock)),
        ]
        assert len(results) == 5
        for result in results:
            assert isinstance(result, TierFailure)
            assert (result.tier, result.reason) == (tier.name, FailureReason.UNAVAILABLE)


def _key(name: Key | str) -> Key:
    return name if isinstance(name, Key) else key(name)
