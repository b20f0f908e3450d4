"""The durable class: atomic commits, its own quota inside the budget, compare-and-set, and what outlives the cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from makers import MIB, entry, key, noise, soon

from terracekv.tiers.base import WriteLevel
from terracekv.tiers.clock import FakeClock
from terracekv.tiers.data_directory import directory_bytes
from terracekv.tiers.disk import DiskTier, open_disk
from terracekv.tiers.durable import DurableNumber, DurableRecords
from terracekv.tiers.entry import MISS
from terracekv.tiers.errors import TierFull, TierUnavailable

BUDGET = 64 * MIB
QUOTA = 16 * MIB


@pytest.fixture
async def disk(clock: FakeClock, data_dir: Path) -> AsyncIterator[DiskTier]:
    tier = await open_disk(data_dir, BUDGET, QUOTA, clock)
    yield tier
    await tier.close()


async def test_records_are_committed_read_and_scanned_by_prefix(disk: DiskTier) -> None:
    await disk.durable.commit({b"a/1": b"one", b"a/2": b"", b"b/1": b"other", b"a\xff": b"edge"}, sync=True)
    assert await disk.durable.get(b"a/1") == b"one"
    assert await disk.durable.get(b"a/2") == b""
    assert await disk.durable.get(b"a/3") is None
    assert await disk.durable.scan(b"a/") == {b"a/1": b"one", b"a/2": b""}
    await disk.durable.commit({b"a/1": None, b"a/3": b"three"}, sync=False)
    assert await disk.durable.scan(b"a/") == {b"a/2": b"", b"a/3": b"three"}
    await disk.durable.commit({}, sync=True)


async def test_durable_records_outlive_clear_churn_and_a_restart(
    disk: DiskTier, clock: FakeClock, data_dir: Path
) -> None:
    await disk.durable.commit({b"kept": b"value"}, sync=True)
    payloads = [noise(MIB, seed) for seed in range(4)]
    for number in range(128):
        await disk.put_many([(key(f"k{number}"), entry(payloads[number % 4], clock))], soon(clock))
    assert disk.counters.evictions > 0
    await disk.clear()
    assert await disk.get_many([key("k127")], soon(clock)) == [MISS]
    assert await disk.durable.get(b"kept") == b"value"
    await disk.close()
    again = await open_disk(data_dir, BUDGET, QUOTA, clock)
    assert await again.durable.get(b"kept") == b"value"
    await again.close()


async def test_over_its_quota_it_refuses_and_deletes_still_go(disk: DiskTier) -> None:
    for number in range(13):
        await disk.durable.commit({b"r%d" % number: noise(MIB, number)}, sync=False)
    with pytest.raises(TierFull, match="16777216 bytes"):
        await disk.durable.commit({b"large": noise(4 * MIB), b"small": b"v"}, sync=False)
    assert await disk.durable.get(b"large") is None
    assert await disk.durable.get(b"small") is None
    assert await disk.durable.get(b"r0") == noise(MIB)
    await disk.durable.commit({b"r0": None}, sync=True)
    assert await disk.durable.get(b"r0") is None


async def test_a_small_quota_has_room_for_small_records(clock: FakeClock, data_dir: Path) -> None:
    tier = await open_disk(data_dir, BUDGET, MIB, clock)
    try:
        for number in range(100):
            await tier.durable.commit({b"r%d" % number: noise(1_000)}, sync=False)
    finally:
        await tier.close()


async def test_its_bytes_shrink_the_share_of_the_cache_and_the_whole_stays_in_the_budget(
    disk: DiskTier, clock: FakeClock, data_dir: Path
) -> None:
    payloads = [noise(MIB, seed) for seed in range(4)]
    for number in range(160):
        await disk.put_many([(key(f"k{number}"), entry(payloads[number % 4], clock))], soon(clock))
    dropped = disk.counters.evictions
    for number in range(13):
        await disk.durable.commit({b"r%d" % number: noise(MIB, number)}, sync=True)
        assert directory_bytes(data_dir / "rocksdb") <= BUDGET
    assert disk.counters.used_bytes <= BUDGET
    assert disk.counters.evictions > dropped, "segments made room"
    for number in range(13):
        assert await disk.durable.get(b"r%d" % number) == noise(MIB, number)


async def test_of_two_swaps_at_once_one_wins(disk: DiskTier, clock: FakeClock) -> None:
    records = DurableRecords(disk.durable)
    assert await records.load(soon(clock)) == {}
    won = await asyncio.gather(*(records.swap("name", None, b"%d" % n, soon(clock)) for n in range(8)))
    assert won.count(True) == 1
    value = b"%d" % won.index(True)
    assert await records.load(soon(clock)) == {"name": value}
    assert not await records.swap("name", b"something else", b"new", soon(clock))
    assert await records.swap("name", value, b"new", soon(clock))
    assert await records.load(soon(clock)) == {"name": b"new"}


async def test_a_number_is_kept(disk: DiskTier) -> None:
    number = DurableNumber(disk.durable, b"n")
    assert await number.load() == 0
    await number.save(2**63)
    assert await number.load() == 2**63


async def test_a_disk_without_room_is_told_as_full_and_a_closed_one_as_unavailable(
    disk: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("IO error: No space left on device")

    monkeypatch.setattr("terracekv.tiers.durable.write", full)
    with pytest.raises(TierFull, match="No space left"):
        await disk.durable.commit({b"k": b"v"}, sync=True)
    monkeypatch.undo()
    await disk.close()
    with pytest.raises(TierUnavailable):
        await disk.durable.get(b"k")
    with pytest.raises(TierUnavailable):
        await disk.durable.commit({b"k": b"v"}, sync=True)


async def test_synced_puts_and_commits_may_run_side_by_side(disk: DiskTier, clock: FakeClock) -> None:
    puts = [
        disk.put_many([(key(f"k{number}"), entry(noise(5_000), clock))], soon(clock), WriteLevel.SYNCED)
        for number in range(50)
    ]
    commits = [disk.durable.commit({b"r%d" % number: b"v"}, sync=True) for number in range(50)]
    await asyncio.gather(*puts, *commits)
    assert len(await disk.durable.scan(b"r")) == 50
    assert all(await disk.get_many([key(f"k{number}") for number in range(50)], soon(clock)))
