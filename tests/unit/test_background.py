"""Background writes: bounded, readable while they wait, in order for each key, never dropped for room."""

from __future__ import annotations

import asyncio

import pytest
from fakes import FakeTier

from terracekv.tiers.background import TRIES_MAX, Background
from terracekv.tiers.clock import Deadline, SystemClock
from terracekv.tiers.entry import MISS, Entry, FailureReason, Head, Key, KeySpace, Kind, TierName, checksum_of

SPACE = KeySpace()
CLOCK = SystemClock()


def soon(seconds: float = 5) -> Deadline:
    return Deadline.after(seconds, CLOCK)


def key(name: bytes) -> Key:
    return SPACE.key("default", 1, name)


def entry(payload: bytes, version: int = 1, expires_us: int = 0) -> Entry:
    head = Head(len(payload), version, 1, expires_us, checksum_of([payload]), Kind.MUTABLE)
    return Entry(head, (payload,))


def parts(pending_bytes_max: int = 1_000) -> tuple[Background, FakeTier]:
    disk = FakeTier(TierName.DISK, CLOCK)
    return Background([disk], pending_bytes_max, CLOCK), disk


async def test_what_is_owed_is_written_and_read_meanwhile() -> None:
    background, disk = parts()
    background.add(TierName.DISK, key(b"k"), entry(b"value"))
    assert background.look(key(b"k"), CLOCK.now_us()) == entry(b"value")
    assert background.pending_bytes == 5
    assert await background.flush(soon()) == 5
    assert disk.held == {key(b"k"): entry(b"value")}
    assert background.look(key(b"k"), CLOCK.now_us()) is MISS
    assert background.pending_bytes == 0


async def test_an_expired_entry_that_waits_is_a_miss() -> None:
    background, _ = parts()
    background.add(TierName.DISK, key(b"k"), entry(b"value", expires_us=CLOCK.now_us() - 1))
    assert background.look(key(b"k"), CLOCK.now_us()) is MISS
    await background.flush(soon())


async def test_the_newest_write_of_a_key_is_the_one_that_stays() -> None:
    background, disk = parts()
    for version in range(1, 6):
        background.add(TierName.DISK, key(b"k"), entry(b"%d" % version, version))
    await background.flush(soon())
    assert disk.held[key(b"k")].frames == (b"5",)
    assert background.pending_bytes == 0


async def test_a_full_table_makes_puts_wait_and_drops_nothing() -> None:
    background, disk = parts(pending_bytes_max=10)
    assert await background.admit(8, soon())
    background.add(TierName.DISK, key(b"a"), entry(b"8 bytes!"))
    assert not background.has_room(8)
    assert not await background.admit(8, soon(0.0))
    waiting = asyncio.create_task(background.admit(8, soon()))
    assert await waiting
    assert key(b"a") in disk.held


async def test_a_value_larger_than_the_table_is_admitted_alone() -> None:
    background, _ = parts(pending_bytes_max=10)
    assert await background.admit(1_000, soon())


async def test_a_forgotten_key_is_not_written_any_more() -> None:
    background, disk = parts()
    background.add(TierName.DISK, key(b"k"), entry(b"value"))
    await background.forget([key(b"k")])
    await background.flush(soon())
    assert disk.held == {}
    assert background.pending_bytes == 0


async def test_a_tier_that_fails_is_tried_again_then_given_up_and_counted() -> None:
    background, disk = parts()
    disk.failing = FailureReason.UNAVAILABLE
    background.add(TierName.DISK, key(b"k"), entry(b"value"))
    await background.flush(soon())
    assert disk.counters.failures == TRIES_MAX
    assert (background.given_up, background.pending_bytes) == (1, 0)


async def test_a_copy_whose_tier_has_an_older_value_is_tried_for_as_long_as_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("terracekv.tiers.background.RETRY_AFTER_S", 0.01)
    background, disk = parts()
    disk.failing = FailureReason.UNAVAILABLE
    background.add(TierName.DISK, key(b"k"), entry(b"value", expires_us=CLOCK.now_us() + 400_000), tries_max=None)
    await asyncio.sleep(0.2)
    assert disk.counters.failures > TRIES_MAX
    assert background.look(key(b"k"), CLOCK.now_us()) is not MISS
    await background.flush(soon(2))
    assert (background.given_up, background.pending_bytes) == (1, 0)


async def test_a_tier_that_comes_back_gets_its_copy() -> None:
    background, disk = parts()
    disk.failing = FailureReason.UNAVAILABLE
    background.add(TierName.DISK, key(b"k"), entry(b"value"))
    await asyncio.sleep(0.05)
    disk.failing = None
    await background.flush(soon())
    assert disk.held == {key(b"k"): entry(b"value")}
    assert background.given_up == 0
