"""L1 beyond the contract: what it costs, what leaves first, what passes it by, and use by threads."""

from __future__ import annotations

import sys
import threading
import tracemalloc

from makers import entry, key, mutable, mutable_key, noise, soon

from terracekv.tiers.clock import FakeClock, SystemClock
from terracekv.tiers.entry import MISS, Entry, Head, Key, KeySpace, Stored
from terracekv.tiers.memory import FRAME_OVERHEAD_BYTES, OVERHEAD_BYTES, MemoryTier, cost_bytes

KIB = 1024


async def put(tier: MemoryTier, clock: FakeClock, name: Key | str, item: Entry) -> Stored:
    where = name if isinstance(name, Key) else key(name)
    (result,) = await tier.put_many([(where, item)], soon(clock))
    assert isinstance(result, Stored)
    return result


async def test_the_least_recently_used_entry_leaves_first(clock: FakeClock) -> None:
    cost = cost_bytes(key("a"), entry(noise(KIB), clock))
    tier = MemoryTier(3 * cost, value_bytes_max=KIB, clock=clock)
    for name in ("a", "b", "c"):
        await put(tier, clock, name, entry(noise(KIB), clock))
    assert tier.peek(key("a"))
    await put(tier, clock, "d", entry(noise(KIB), clock))
    assert [bool(tier.peek(key(name))) for name in "abcd"] == [True, False, True, True]
    assert tier.counters.evictions == 1
    assert tier.counters.entries == 3


async def test_it_never_holds_more_than_its_capacity(clock: FakeClock) -> None:
    tier = MemoryTier(256 * KIB, clock=clock)
    for number in range(400):
        await put(tier, clock, f"k{number}", entry(noise(number * 53 % (32 * KIB)), clock))
        assert tier.counters.used_bytes <= 256 * KIB
    assert tier.counters.evictions > 100


async def test_a_replaced_entry_makes_room_for_its_successor_first(clock: FakeClock) -> None:
    cost = cost_bytes(mutable_key("a"), mutable(noise(KIB), 1, clock))
    tier = MemoryTier(2 * cost, value_bytes_max=KIB, clock=clock)
    await put(tier, clock, mutable_key("a"), mutable(noise(KIB), 1, clock))
    await put(tier, clock, mutable_key("b"), mutable(noise(KIB), 1, clock))
    await put(tier, clock, mutable_key("b"), mutable(noise(KIB), 2, clock))
    assert tier.peek(mutable_key("a"))
    assert tier.counters.evictions == 0


async def test_a_value_over_an_eighth_passes_it_by_and_evicts_nothing(clock: FakeClock) -> None:
    tier = MemoryTier(80 * KIB, clock=clock)
    await put(tier, clock, "small", entry(noise(KIB), clock))
    item = entry(noise(10 * KIB + 1), clock)
    assert await put(tier, clock, "large", item) == Stored(item.head.version)
    assert tier.peek(key("large")) is MISS
    assert tier.peek(key("small"))
    assert (tier.counters.evictions, tier.counters.skipped_bytes, tier.counters.puts) == (0, 10 * KIB + 1, 1)
    await put(tier, clock, "just", entry(noise(10 * KIB), clock))
    assert tier.peek(key("just"))


async def test_an_older_copy_is_not_served_beside_a_value_that_was_skipped(clock: FakeClock) -> None:
    tier = MemoryTier(80 * KIB, clock=clock)
    await put(tier, clock, mutable_key("k"), mutable(b"old", 1, clock))
    await put(tier, clock, mutable_key("k"), mutable(noise(20 * KIB), 2, clock))
    assert tier.peek(mutable_key("k")) is MISS
    assert tier.counters.entries == 0


async def test_many_small_frames_are_paid_for(clock: FakeClock) -> None:
    frames = [b"x"] * 1_000
    item = entry(frames, clock)
    assert cost_bytes(key("k"), item) == 1_000 + 1 + OVERHEAD_BYTES + 999 * FRAME_OVERHEAD_BYTES
    tier = MemoryTier(32 * KIB, value_bytes_max=4 * KIB, clock=clock)
    await put(tier, clock, "k", item)
    assert tier.peek(key("k")) is MISS
    assert tier.counters.skipped_bytes == 1_000


async def test_a_look_needs_no_loop_and_counts(clock: FakeClock) -> None:
    tier = MemoryTier(80 * KIB, clock=clock)
    item = entry(b"value", clock, ttl_s=10)
    await put(tier, clock, "k", item)
    assert tier.peek(key("k")) == item
    assert tier.peek_head(key("k")) == item.head
    assert tier.peek(key("absent")) is MISS
    assert tier.peek_head(key("absent")) is MISS
    assert (tier.counters.hits, tier.counters.misses, tier.counters.read_bytes) == (2, 2, 5)
    clock.advance(10)
    assert tier.peek(key("k")) is MISS
    assert tier.counters.entries == 0


async def test_a_mutable_entry_proven_too_long_ago_is_not_used(clock: FakeClock) -> None:
    tier = MemoryTier(80 * KIB, clock=clock)
    await put(tier, clock, mutable_key("m"), mutable(b"value", 1, clock))
    await put(tier, clock, "i", entry(b"value", clock))
    clock.advance(3)
    assert tier.peek(mutable_key("m"), proven_after_s=clock.age_s() - 2) is MISS
    assert tier.peek(key("i"), proven_after_s=clock.age_s() - 2)
    await put(tier, clock, mutable_key("m"), mutable(b"value", 1, clock))
    assert isinstance(tier.peek_head(mutable_key("m"), proven_after_s=clock.age_s() - 2), Head)


async def test_keys_whose_digests_collide_are_held_side_by_side(clock: FakeClock) -> None:
    same = KeySpace(digest=lambda secret, message: b"\0" * 32)
    one, other = same.key("n", 1, b"one"), same.key("n", 1, b"other")
    tier = MemoryTier(80 * KIB, clock=clock)
    await put(tier, clock, one, entry(b"1", clock))
    await put(tier, clock, other, entry(b"2", clock))
    assert [tier.peek(one), tier.peek(other)] != [MISS, MISS]
    found = tier.peek(one)
    assert isinstance(found, Entry)
    assert found.payload() == b"1"


async def test_an_entry_costs_no_more_than_is_booked_and_the_overhead_is_small() -> None:
    clock = SystemClock()
    tier = MemoryTier(64 << 20, clock=clock)
    count = 8_000  # tables of 16,384 places: neither just grown nor full
    payloads = [noise(100, number) for number in range(count)]
    tracemalloc.start()
    try:
        await put_fresh(tier, clock, payloads)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tier.counters.entries == count
    taken_bytes = held_bytes + sum(sys.getsizeof(payload) for payload in payloads)  # these were made outside
    overhead_bytes = (taken_bytes - count * (100 + len(b"key 00000000"))) / count
    assert overhead_bytes <= OVERHEAD_BYTES < 500, overhead_bytes
    assert taken_bytes <= tier.counters.used_bytes


async def put_fresh(tier: MemoryTier, clock: SystemClock, payloads: list[bytes]) -> None:
    """Keys and entries with objects of their own, as requests bring them."""
    for number, payload in enumerate(payloads):
        await tier.put_many([(key(b"key %08d" % number), entry(payload, clock, ttl_s=60))], soon(clock))


def test_threads_that_look_put_and_delete_leave_it_whole(clock: FakeClock) -> None:
    tier = MemoryTier(64 * KIB, clock=clock)
    keys = [key(f"k{number}") for number in range(200)]
    items = [entry(noise(number * 5, number), clock) for number in range(200)]
    errors: list[BaseException] = []

    def use(seed: int) -> None:
        try:
            for turn in range(1_500):
                at = (turn * 7 + seed * 13) % 200
                if turn % 5 == 0:
                    run(tier.put_many([(keys[at], items[at])], soon(clock)))
                elif turn % 17 == 0:
                    run(tier.delete_many([keys[at]], soon(clock)))
                elif turn % 400 == 0:
                    run(tier.clear())
                else:
                    found = tier.peek(keys[at])
                    assert found is MISS or found == items[at]
                assert tier.counters.used_bytes <= 64 * KIB
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)
    assert tier.counters.hits + tier.counters.misses == 8 * sum(
        1 for turn in range(1_500) if turn % 5 and turn % 17 and turn % 400
    )


def run(call: object) -> None:
    """Drives a call that never waits, without a loop."""
    try:
        call.send(None)  # type: ignore[attr-defined]
    except StopIteration:
        return
    raise AssertionError("it waited")
