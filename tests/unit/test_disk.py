"""L3 beyond the contract: reopening, segments and their budget, damage, levels, scans, and large values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from makers import MIB, entry, key, mutable, mutable_key, noise, soon

from terracekv.tiers.base import TierState, WriteLevel
from terracekv.tiers.clock import Deadline, FakeClock
from terracekv.tiers.data_directory import directory_bytes
from terracekv.tiers.disk import DiskTier, open_disk
from terracekv.tiers.disk_reader import HEAD
from terracekv.tiers.entry import MISS, Entry, FailureReason, Found, Head, Key, Stored, TierFailure
from terracekv.tiers.envelope import encode_inline
from terracekv.tiers.segments import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, segment_bytes_of

Opener = Callable[..., Coroutine[Any, Any, DiskTier]]


@pytest.fixture
async def opener(clock: FakeClock, data_dir: Path) -> AsyncIterator[Opener]:
    """Opens the disk of this test, again and again; closes what is still open."""
    opened: list[DiskTier] = []

    async def open_again(disk_bytes_max: int = 256 * MIB) -> DiskTier:
        for tier in opened:
            await tier.close()
        opened.append(await open_disk(data_dir, disk_bytes_max, 4 * MIB, clock))
        return opened[-1]

    yield open_again
    for tier in opened:
        await tier.close()


@pytest.fixture
async def disk(opener: Opener) -> DiskTier:
    return await opener()


async def put(tier: DiskTier, where: Key, item: Entry, level: WriteLevel = WriteLevel.BUFFERED) -> Stored:
    (result,) = await tier.put_many([(where, item)], soon(tier._clock), level)
    assert isinstance(result, Stored), result
    return result


async def get(tier: DiskTier, where: Key) -> Found:
    return (await tier.get_many([where], soon(tier._clock)))[0]


def payload(found: Found) -> bytes:
    assert isinstance(found, Entry), found
    return found.payload()


def segments(tier: DiskTier) -> list[int]:
    return [segment.number for segment in tier._segments.newest_first]


# --- reopening ---


@pytest.mark.parametrize("level", list(WriteLevel))
async def test_entries_are_there_after_a_clean_stop_whatever_their_level(
    opener: Opener, clock: FakeClock, level: WriteLevel
) -> None:
    tier = await opener()
    items = {f"k{number}": entry(noise(size), clock) for number, size in enumerate((0, 100, 70_000, 3 * MIB))}
    for name, item in items.items():
        await put(tier, key(name), item, level)
    await put(tier, mutable_key("m"), mutable(b"newest", 3, clock), level)
    await tier.delete_many([key("k1")], soon(clock), level)
    tier = await opener()
    assert [payload(await get(tier, key(name))) for name in ("k0", "k2", "k3")] == [
        items[name].payload() for name in ("k0", "k2", "k3")
    ]
    assert await get(tier, key("k1")) is MISS
    assert payload(await get(tier, mutable_key("m"))) == b"newest"


async def test_every_segment_is_found_again(opener: Opener, clock: FakeClock) -> None:
    tier = await opener(64 * MIB)
    for number in range(24):
        await put(tier, key(f"k{number}"), entry(noise(MIB, number), clock))
    assert len(segments(tier)) > 4
    before = segments(tier)
    tier = await opener(64 * MIB)
    assert segments(tier) == before
    for number in range(24):
        assert payload(await get(tier, key(f"k{number}"))) == noise(MIB, number)


async def test_a_restart_goes_on_filling_the_newest_segment(opener: Opener, clock: FakeClock) -> None:
    for number in range(12):
        tier = await opener(64 * MIB)
        await put(tier, key(f"k{number}"), entry(noise(MIB, number), clock))
    assert len(segments(tier)) == 4


async def test_a_smaller_budget_holds_from_the_start(opener: Opener, clock: FakeClock, data_dir: Path) -> None:
    tier = await opener(512 * MIB)
    for number in range(120):
        await put(tier, key(f"k{number}"), entry(noise(MIB, number % 5), clock))
    tier = await opener(64 * MIB)
    assert tier.counters.used_bytes <= 64 * MIB
    until = time.monotonic() + 10
    while directory_bytes(data_dir / "rocksdb") > 64 * MIB and time.monotonic() < until:
        await asyncio.sleep(0.05)
    assert directory_bytes(data_dir / "rocksdb") <= 64 * MIB
    assert await get(tier, key("k119"))


# --- segments and budget ---


def test_a_segment_is_a_sixteenth_of_the_budget_within_bounds() -> None:
    assert segment_bytes_of(1 << 20) == SEGMENT_BYTES_MIN
    assert segment_bytes_of(1 << 30) == 1 << 26
    assert segment_bytes_of(1 << 50) == SEGMENT_BYTES_MAX


async def test_churn_of_many_times_the_budget_never_takes_more_disk_than_the_budget(
    opener: Opener, clock: FakeClock, data_dir: Path
) -> None:
    budget = 64 * MIB
    tier = await opener(budget)
    most_bytes = 0
    payloads = [noise(MIB, seed) for seed in range(7)]
    for number in range(640):
        level = WriteLevel.LOGGED if number % 3 == 0 else WriteLevel.BUFFERED
        await put(tier, key(f"k{number}"), entry(payloads[number % 7], clock), level)
        if number % 4 == 0:
            most_bytes = max(most_bytes, directory_bytes(data_dir / "rocksdb"))
    assert budget // 2 < most_bytes <= budget
    assert tier.counters.used_bytes <= budget
    assert tier.counters.evictions > 400
    assert len(segments(tier)) <= 32
    kept = [number for number in range(640) if await get(tier, key(f"k{number}"))]
    assert kept == list(range(640 - len(kept), 640)), "what was written last stays"
    assert len(kept) >= 20


async def test_small_entries_stay_in_the_budget_too(opener: Opener, clock: FakeClock, data_dir: Path) -> None:
    budget = 64 * MIB
    tier = await opener(budget)
    most_bytes = 0
    value = noise(4_000)
    for batch in range(64):
        items = [(key(f"k{batch}-{number}"), entry(value, clock)) for number in range(500)]
        await tier.put_many(items, soon(clock))
        most_bytes = max(most_bytes, directory_bytes(data_dir / "rocksdb"))
    assert most_bytes <= budget
    assert tier.counters.evictions > 0
    assert await get(tier, key("k63-499"))


async def test_a_value_over_a_quarter_of_the_budget_is_refused_and_drops_nothing(
    opener: Opener, clock: FakeClock
) -> None:
    tier = await opener(64 * MIB)
    await put(tier, key("small"), entry(b"value", clock))
    frames = [noise(MIB)] * 16
    results = await tier.put_many(
        [(key("large"), entry([*frames, b"x"], clock)), (key("beside"), entry(b"v", clock))], soon(clock)
    )
    assert isinstance(results[0], TierFailure)
    assert results[0].reason is FailureReason.FULL
    assert "16777216 bytes" in results[0].detail
    assert isinstance(results[1], Stored)
    assert tier.counters.skipped_bytes == 16 * MIB + 1
    assert await get(tier, key("small"))
    await put(tier, key("just"), entry(frames, clock))
    assert payload(await get(tier, key("just"))) == b"".join(frames)


async def test_an_old_segment_is_closed_by_age_but_not_without_end(disk: DiskTier, clock: FakeClock) -> None:
    for number in range(60):
        await put(disk, key(f"k{number}"), entry(b"value", clock))
        clock.advance(6 * 3_600 + 1)
    assert 30 <= len(segments(disk)) <= 32
    assert all([await get(disk, key(f"k{number}")) for number in range(60)])


async def test_the_newest_segment_that_knows_a_key_is_right(disk: DiskTier, clock: FakeClock) -> None:
    await put(disk, mutable_key("k"), mutable(noise(200_000), 1, clock))
    await put(disk, key("gone"), entry(noise(200_000), clock))
    clock.advance(7 * 3_600)
    await put(disk, key("other"), entry(b"", clock))
    assert len(segments(disk)) == 2
    await put(disk, mutable_key("k"), mutable(b"newer", 2, clock))
    assert await put(disk, mutable_key("k"), mutable(b"older", 1, clock)) == Stored(2, True, True)
    await disk.delete_many([key("gone")], soon(clock))
    assert payload(await get(disk, mutable_key("k"))) == b"newer"
    assert await disk.head_many([key("gone")], soon(clock)) == [MISS]
    await put(disk, key("gone"), entry(b"back", clock))
    assert payload(await get(disk, key("gone"))) == b"back"


async def test_readers_go_on_while_segments_are_dropped_under_them(opener: Opener, clock: FakeClock) -> None:
    tier = await opener(64 * MIB)
    done = asyncio.Event()
    value = noise(3 * MIB)
    hits = 0

    async def read() -> None:
        nonlocal hits
        while not done.is_set():
            for one in await tier.get_many([key(f"k{number}") for number in range(0, 80, 9)], soon(clock)):
                assert one is MISS or payload(one) == value
                hits += bool(one)

    readers = [asyncio.ensure_future(read()) for _ in range(3)]
    for number in range(80):
        await put(tier, key(f"k{number}"), entry([value[:MIB], value[MIB:]], clock))
    done.set()
    await asyncio.gather(*readers)
    assert hits > 0
    assert tier.counters.failures == 0
    assert tier.counters.corrupt == 0


# --- damage ---


async def test_stored_bytes_that_prove_nothing_are_counted_misses(disk: DiskTier, clock: FakeClock) -> None:
    names = ["garbage", "foreign", "newer", "flipped", "short"]
    item = entry(b"value", clock)
    records = [b"not a record of ours at all, but longer than a prefix", encode_inline(key("another"), item)]
    newer, flipped = bytearray(encode_inline(key("newer"), item)), bytearray(encode_inline(key("flipped"), item))
    newer[4], flipped[-1] = 2, flipped[-1] ^ 1
    records += [bytes(newer), bytes(flipped), b"TKV1"]
    disk._segments.write(
        [[(HEAD + key(name).digest, record)] for name, record in zip(names, records, strict=True)], logged=False
    )
    assert await disk.get_many([key(name) for name in names], soon(clock)) == [MISS] * 5
    assert disk.counters.corrupt == 5
    assert await disk.head_many([key("garbage")], soon(clock)) == [MISS]
    assert disk.counters.corrupt == 6
    assert disk.counters.misses == 6
    await put(disk, key("garbage"), item)
    assert payload(await get(disk, key("garbage"))) == b"value"


async def test_a_payload_with_a_missing_part_is_a_counted_miss(disk: DiskTier, clock: FakeClock) -> None:
    await put(disk, key("k"), entry(noise(3 * MIB), clock))
    family = disk._segments.active.family
    parts = [name for name in family.keys() if name.startswith(b"p")]  # noqa: SIM118
    assert len(parts) == 3
    family.delete(parts[1])
    assert isinstance((await disk.head_many([key("k")], soon(clock)))[0], Head)
    assert await get(disk, key("k")) is MISS
    assert (disk.counters.corrupt, disk.counters.misses) == (1, 1)


async def test_a_table_damaged_on_disk_costs_its_keys_and_no_others(
    opener: Opener, clock: FakeClock, data_dir: Path
) -> None:
    tier = await opener()
    for number in range(8):
        await put(tier, key(f"k{number}"), entry(noise(60_000, number), clock))
    await tier.close()
    (table,) = (data_dir / "rocksdb").glob("*.sst")
    raw = bytearray(table.read_bytes())
    at = raw.index(noise(60_000, 3)[30_000:30_100])
    raw[at] ^= 0xFF
    table.write_bytes(raw)
    tier = await opener()
    found = await tier.get_many([key(f"k{number}") for number in range(8)], soon(clock))
    assert [bool(one) for one in found] == [number != 3 for number in range(8)]
    assert found[3] is MISS
    assert tier.counters.corrupt == 1
    await put(tier, key("k3"), entry(b"again", clock))
    assert payload(await get(tier, key("k3"))) == b"again"


async def test_a_disk_that_errs_is_a_failure_and_not_a_miss(
    disk: DiskTier, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("IO error: While pread: Input/output error")

    await put(disk, key("k"), entry(b"value", clock))
    monkeypatch.setattr("terracekv.tiers.disk_reader.values_of", broken)
    found = await get(disk, key("k"))
    assert isinstance(found, TierFailure)
    assert found.reason is FailureReason.UNAVAILABLE
    assert disk.state() == (TierState.DEGRADED, "IO error: While pread: Input/output error")
    monkeypatch.undo()
    assert payload(await get(disk, key("k"))) == b"value"
    assert disk.state()[0] is TierState.UP


async def test_a_full_disk_is_told_as_full(disk: DiskTier, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("IO error: No space left on device: While appending to file")

    monkeypatch.setattr("terracekv.tiers.segments.write", full)
    (result,) = await disk.put_many([(key("k"), entry(b"value", clock))], soon(clock))
    assert isinstance(result, TierFailure)
    assert result.reason is FailureReason.FULL
    monkeypatch.undo()
    await put(disk, key("k"), entry(b"value", clock))
    assert disk.counters.failures == 1


async def test_a_write_stall_is_waited_for_outside_rocksdb(
    disk: DiskTier, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalls = 3

    class Stalling:
        """The database, refusing the first writes as RocksDB does when its buffers are full."""

        def __getattr__(self, name: str) -> Any:
            return getattr(database, name)

        def write(self, batch: Any, options: Any) -> None:
            nonlocal stalls
            assert options.no_slowdown
            stalls -= 1
            if stalls >= 0:
                assert len(batch) == 1
                raise RuntimeError("Result incomplete: Write stall")
            database.write(batch, options)

    database = disk._segments._database
    monkeypatch.setattr(disk._segments, "_database", Stalling())
    await put(disk, key("k"), entry(b"value", clock))
    assert stalls == -1
    assert payload(await get(disk, key("k"))) == b"value"


async def test_writes_faster_than_the_disk_wait_and_succeed(opener: Opener, clock: FakeClock) -> None:
    tier = await opener(64 * MIB)
    for number in range(4):
        item = entry([noise(MIB, seed) for seed in range(16)], clock)
        await put(tier, key(f"k{number}"), item)
        assert payload(await get(tier, key(f"k{number}"))) == item.payload()


# --- levels ---


async def test_synced_writes_of_many_callers_share_their_syncs(
    disk: DiskTier, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from terracekv.tiers import rocks

    syncs = 0

    def counted(database: Any) -> None:
        nonlocal syncs
        syncs += 1
        rocks.sync(database)

    monkeypatch.setattr("terracekv.tiers.segments.sync", counted)
    await asyncio.gather(
        *(put(disk, key(f"k{number}"), entry(b"value", clock), WriteLevel.SYNCED) for number in range(200))
    )
    assert 1 <= syncs <= 20
    await put(disk, key("buffered"), entry(b"value", clock))
    await put(disk, key("logged"), entry(b"value", clock), WriteLevel.LOGGED)
    before = syncs
    await put(disk, key("k0"), entry(b"value", clock), WriteLevel.SYNCED)  # kept: its copy may be logged only
    assert syncs == before + 1


# --- scans ---


async def test_a_scan_gives_every_live_mutable_entry_once_in_its_newest_version(
    disk: DiskTier, clock: FakeClock
) -> None:
    for number in range(600):
        await put(disk, mutable_key(f"k{number}"), mutable(b"old", 1, clock))
    await put(disk, key("immutable"), entry(b"value", clock))
    await put(disk, mutable_key("short"), mutable(b"value", 1, clock, ttl_s=3_600))
    clock.advance(7 * 3_600)
    await put(disk, key("next segment"), entry(b"value", clock))
    assert len(segments(disk)) == 2
    for number in range(300):
        await put(disk, mutable_key(f"k{number}"), mutable(noise(70_000), 2, clock))
    await disk.delete_many([mutable_key(f"k{number}") for number in range(0, 600, 100)], soon(clock))
    runs = [run async for run in disk.scan_mutable(soon(clock))]
    assert all(len(run) <= 256 for run in runs)
    scanned = [(where, item.head.version) for run in runs for where, item in run]
    expected = [(mutable_key(f"k{number}"), 2 if number < 300 else 1) for number in range(600) if number % 100]
    assert sorted(scanned) == sorted(expected)


async def test_a_scan_of_a_closed_tier_is_empty(disk: DiskTier, clock: FakeClock) -> None:
    await put(disk, mutable_key("k"), mutable(b"value", 1, clock))
    await disk.close()
    assert [run async for run in disk.scan_mutable(soon(clock))] == []
    await disk.clear()


# --- large values and the event loop ---


async def test_heads_are_found_without_reading_payloads(
    disk: DiskTier, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from terracekv.tiers import rocks

    await disk.put_many([(key(f"k{number}"), entry(noise(2 * MIB), clock)) for number in range(8)], soon(clock))
    read_bytes = 0

    def counted(family: Any, keys: list[bytes]) -> list[bytes | None]:
        nonlocal read_bytes
        values = rocks.values_of(family, keys)
        read_bytes += sum(len(value or b"") for value in values)
        return values

    monkeypatch.setattr("terracekv.tiers.disk_reader.values_of", counted)
    heads = await disk.head_many([key(f"k{number}") for number in range(8)], soon(clock))
    assert all(isinstance(head, Head) for head in heads)
    found = await disk.get_many([key(f"k{number}") for number in range(8)], soon(clock), bytes_max=MIB)
    assert all(isinstance(one, Head) for one in found)
    assert read_bytes < 16_384


async def test_a_large_value_comes_back_while_small_ones_and_the_loop_go_on(disk: DiskTier, clock: FakeClock) -> None:
    frames = [noise(MIB, seed) for seed in range(4)] * 12
    large = entry(frames, clock)
    await put(disk, key("small"), entry(b"value", clock))
    worst_s = 0.0

    async def small_reads(until: asyncio.Future[Any]) -> None:
        nonlocal worst_s
        while not until.done():
            started = time.perf_counter()
            assert payload(await get(disk, key("small"))) == b"value"
            worst_s = max(worst_s, time.perf_counter() - started)
            await asyncio.sleep(0.002)

    writing = asyncio.ensure_future(put(disk, key("large"), large, WriteLevel.SYNCED))
    await small_reads(writing)
    reading = asyncio.gather(*(get(disk, key("large")) for _ in range(6)))
    await small_reads(reading)
    assert [payload(found) for found in await reading] == [b"".join(frames)] * 6
    assert worst_s < 0.5, worst_s


async def test_more_than_the_queue_holds_waits_for_room_within_the_deadline(
    opener: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terracekv.tiers.disk_writer.QUEUE_BYTES_MAX", 8 * MIB)
    tier = await opener()
    items = [(key(f"k{number}"), entry([noise(MIB, number)] * 6, clock)) for number in range(6)]
    results = await asyncio.gather(*(tier.put_many([item], soon(clock)) for item in items))
    assert all(isinstance(result, Stored) for (result,) in results)
    slow = asyncio.gather(*(tier.put_many([(key(f"n{at}"), items[at][1])], soon(clock)) for at in range(2)))
    await asyncio.sleep(0)
    (late,) = await tier.put_many([(key("late"), items[0][1])], Deadline.after(0.001, clock))
    assert isinstance(late, TierFailure)
    assert late.reason is FailureReason.TIMEOUT
    await slow


async def test_a_deadline_that_passes_while_waiting_is_a_timeout(
    disk: DiskTier, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from terracekv.tiers import rocks

    def slow(family: Any, keys: list[bytes]) -> list[bytes | None]:
        time.sleep(0.3)
        return rocks.values_of(family, keys)

    await put(disk, key("k"), entry(b"value", clock))
    monkeypatch.setattr("terracekv.tiers.disk_reader.values_of", slow)
    started = time.monotonic()
    (found,) = await disk.get_many([key("k")], Deadline.after(0.05, clock))
    (stored,) = await disk.put_many([(key("n"), entry(b"value", clock))], Deadline.after(0.05, clock))
    assert time.monotonic() - started < 0.3
    for result in (found, stored):
        assert isinstance(result, TierFailure)
        assert result.reason is FailureReason.TIMEOUT
    monkeypatch.undo()
    assert payload(await get(disk, key("k"))) == b"value"


async def test_closing_writes_what_is_queued_and_survives_its_callers_cancellation(
    opener: Opener, clock: FakeClock
) -> None:
    tier = await opener()
    puts = [asyncio.ensure_future(put(tier, key(f"k{number}"), entry(noise(MIB), clock))) for number in range(20)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(tier.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await asyncio.gather(*puts)
    tier = await opener()
    assert all([await get(tier, key(f"k{number}")) for number in range(20)])
