"""A node without a shared tier: nothing is found there, nothing fails there."""

from __future__ import annotations

from terracekv.tiers.base import TierState
from terracekv.tiers.clock import Deadline, FakeClock
from terracekv.tiers.entry import MISS, Entry, Head, KeySpace, Kind, Stored, TierName, checksum_of
from terracekv.tiers.null import NullTier


async def test_nothing_is_found_and_nothing_fails() -> None:
    clock = FakeClock()
    tier = NullTier(clock)
    key, deadline = KeySpace().key("n", 1, b"k"), Deadline.after(1.0, clock)
    entry = Entry(Head(1, 7, 1, 0, checksum_of([b"x"]), Kind.MUTABLE), (b"x",))
    assert tier.name is TierName.SHARED
    assert await tier.put_many([(key, entry)], deadline) == [Stored(7)]
    assert await tier.write_many([(key, entry)], deadline) == [Stored(clock.now_us())]
    assert await tier.get_many([key, key], deadline) == [MISS, MISS]
    assert await tier.head_many([key], deadline) == [MISS]
    assert await tier.delete_many([key], deadline) == [None]
    assert tier.state() == (TierState.ABSENT, "not configured")
    await tier.clear()
    await tier.close()
