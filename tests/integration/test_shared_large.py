"""Values over 4 MiB: kept in parts, seen whole or not at all, nothing left behind, the loop never held up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest
from redis_servers import client_of, entry, key, mutable, soon

from terracekv.tiers.entry import MISS, Codec, Entry, Head, Key, Stored
from terracekv.tiers.shared import SharedTier
from terracekv.tiers.shared_parts import Parts

MIB = 1_048_576
LARGE = key("large")


def large(seed: int = 0, size: int = 5 * MIB) -> list[bytes]:
    frame = os.urandom(MIB - 1) + bytes([seed])
    return [*[frame] * (size // MIB), frame[: size % MIB]] if size % MIB else [frame] * (size // MIB)


async def names_left(tier: SharedTier, url: str, kind: str = "[eps]") -> list[bytes]:
    while tier.masters._tasks:  # removals that nobody waits for
        await asyncio.sleep(0.001)
    async with client_of(url) as client:
        pattern = f"{tier.names.prefix.decode()}{{*}}:{kind}:*"
        return [name async for name in client.scan_iter(match=pattern, count=10_000)]


async def read(tier: SharedTier, one: Key = LARGE, bytes_max: int | None = None) -> object:
    (found,) = await tier.get_many([one], soon(10.0), bytes_max)
    return found.payload() if isinstance(found, Entry) else found


@pytest.mark.parametrize("size", [4 * MIB, 4 * MIB + 1, 7 * MIB + 12_345])
async def test_large_values_come_back_whole(tier: SharedTier, url: str, size: int) -> None:
    frames = large(size=size)
    assert isinstance((await tier.put_many([(LARGE, entry(frames))], soon()))[0], Stored)
    assert await read(tier) == b"".join(frames)
    assert await read(tier, bytes_max=size) == b"".join(frames)
    assert isinstance(await read(tier, bytes_max=size - 1), Head)
    (head,) = await tier.head_many([LARGE], soon())
    assert isinstance(head, Head)
    assert head.size_bytes == size
    assert len(await names_left(tier, url, "p")) == (0 if size == 4 * MIB else -(-size // MIB))


async def test_a_head_with_many_parts_is_read_whole(tier: SharedTier) -> None:
    frames = [b"%06d" % at + bytes(8_000) for at in range(1_000)]  # a client's choice of frames
    await tier.put_many([(LARGE, entry(frames))], soon())
    assert isinstance((await tier.head_many([LARGE], soon()))[0], Head)
    assert await read(tier) == b"".join(frames)
    assert await tier.put_many([(LARGE, entry(frames))], soon()) == [
        Stored((await tier.head_many([LARGE], soon()))[0].version, kept=True)  # type: ignore[union-attr]
    ]


async def test_frames_of_any_size_are_regrouped_when_there_are_too_many(tier: SharedTier, url: str) -> None:
    frames = [os.urandom(3_000)] * 2_000
    await tier.put_many([(LARGE, entry(frames))], soon())
    assert await read(tier) == b"".join(frames)
    assert len(await names_left(tier, url, "p")) == 6


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.PLANES_ZSTD])
async def test_large_values_may_be_compressed(tier: SharedTier, codec: Codec) -> None:
    frames = [os.urandom(MIB), bytes(MIB)] * 3
    await tier.put_many([(LARGE, entry(frames, codec=codec))], soon())
    assert await read(tier) == b"".join(frames)


async def test_overwriting_and_deleting_remove_the_parts_of_before(tier: SharedTier, url: str) -> None:
    for seed in (1, 2):
        await tier.write_many([(LARGE, mutable(large(seed)))], soon())
        assert len(await names_left(tier, url, "p")) == 5
    await tier.write_many([(LARGE, mutable(b"small"))], soon())
    assert await names_left(tier, url, "p") == []
    assert await read(tier) == b"small"
    await tier.write_many([(LARGE, mutable(large(3)))], soon())
    assert await tier.delete_many([LARGE], soon()) == [None]
    assert await names_left(tier, url) == []


async def test_versions_of_large_values_grow_like_those_of_small_ones(tier: SharedTier, url: str) -> None:
    versions = []
    for payload in (b"small", large(1), bytes(40_000), large(2)):
        (stored,) = await tier.write_many([(LARGE, mutable(payload))], soon())
        assert isinstance(stored, Stored)
        versions.append(stored.version)
    assert versions == sorted(set(versions))
    newest = await read(tier)
    older = await tier.put_many([(LARGE, mutable(large(3), versions[0]))], soon())
    assert older == [Stored(versions[-1], kept=True, differs=True)]
    assert len(await names_left(tier, url, "p")) == 5
    assert await read(tier) == newest


async def test_a_large_immutable_value_stays_and_the_second_leaves_nothing(tier: SharedTier, url: str) -> None:
    first = entry(large(1))
    await tier.put_many([(LARGE, first)], soon())
    assert await tier.put_many([(LARGE, entry(large(2)))], soon()) == [Stored(first.head.version, True, True)]
    results = await asyncio.gather(*(tier.put_many([(key("race"), entry(large(at)))], soon()) for at in range(4)))
    assert sorted(one.kept for (one,) in results if isinstance(one, Stored)) == [False, True, True, True]
    assert len(await names_left(tier, url, "p")) == 10


@pytest.mark.parametrize("kind", ["immutable", "mutable"])
async def test_a_torn_value_is_a_clean_miss_and_is_cleaned_up(tier: SharedTier, url: str, kind: str) -> None:
    make = entry if kind == "immutable" else mutable
    write = tier.put_many if kind == "immutable" else tier.write_many
    await write([(LARGE, make(large()))], soon())
    async with client_of(url) as client:
        await client.delete(sorted(await names_left(tier, url, "p"))[3])
    assert await read(tier) is MISS
    assert await names_left(tier, url) == []
    await write([(LARGE, make(large(1)))], soon())
    assert isinstance(await read(tier), bytes)
    assert tier.counters.failures == 0


async def test_a_damaged_part_is_missed_and_counted(tier: SharedTier, url: str) -> None:
    await tier.put_many([(LARGE, entry(large()))], soon())
    async with client_of(url) as client:
        await client.setrange(sorted(await names_left(tier, url, "p"))[2], 5_000, b"!!")
    assert await read(tier) is MISS
    assert tier.counters.corrupt == 1
    assert isinstance((await tier.put_many([(LARGE, entry(large(1)))], soon()))[0], Stored)
    assert isinstance(await read(tier), bytes)


async def test_parts_live_as_long_as_their_head(tier: SharedTier, url: str) -> None:
    await tier.put_many([(LARGE, entry(large(), ttl_s=900.0))], soon())
    await tier.write_many([(key("endless"), mutable(large(), ttl_s=None))], soon())
    async with client_of(url) as client:
        lives = sorted([await client.pttl(name) for name in await names_left(tier, url)])
    assert lives[:6] == [-1] * 6
    assert all(880_000 < life <= 900_001 for life in lives[6:])
    assert len(lives) == 12


async def test_an_upload_that_is_cut_shows_nothing_and_expires(
    tier: SharedTier, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tier.write_many([(LARGE, mutable(b"before"))], soon())
    uploaded, upload = asyncio.Event(), Parts.upload

    async def upload_and_stop(*arguments: object) -> object:
        await upload(*arguments)  # type: ignore[arg-type]
        uploaded.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(Parts, "upload", upload_and_stop)
    task = asyncio.create_task(tier.write_many([(LARGE, mutable(large()))], soon()))
    await asyncio.wait_for(uploaded.wait(), 5.0)
    assert await read(tier) == b"before"
    task.cancel()
    await asyncio.wait([task])
    assert await read(tier) == b"before"
    names = await names_left(tier, url, "p")
    async with client_of(url) as client:
        assert [0 < await client.pttl(name) <= 600_000 for name in names] == [True] * 5


async def test_readers_of_a_value_that_is_overwritten_see_one_whole_value(
    url: str, make_tier: Callable[..., SharedTier]
) -> None:
    writer, reader = make_tier(url), make_tier(url)
    await asyncio.gather(writer.connect(), reader.connect())
    values = [b"".join(large(seed)) for seed in range(3)]
    await writer.write_many([(LARGE, mutable(values[0]))], soon())
    done = asyncio.Event()

    async def write() -> None:
        for index in range(12):
            await writer.write_many([(LARGE, mutable(values[index % 3]))], soon())
        done.set()

    async def look() -> int:
        reads = 0
        while not done.is_set():
            assert await read(reader) in values
            reads += 1
        return reads

    _, reads, more = await asyncio.gather(write(), look(), look())
    assert reads + more > 2
    assert reader.counters.misses == reader.counters.failures == reader.counters.corrupt == 0
    await writer.clear()


async def test_300_mib_go_in_and_out_without_holding_up_the_loop(
    cluster: object, make_tier: Callable[..., SharedTier], record_property: Callable[[str, object], None]
) -> None:
    tier = make_tier(cluster.url)  # type: ignore[attr-defined]
    await tier.connect()
    item = entry([os.urandom(MIB)] * 300)
    longest_s, stop = 0.0, asyncio.Event()

    async def tick() -> None:
        nonlocal longest_s
        while not stop.is_set():
            started_s = time.perf_counter()
            await asyncio.sleep(0.005)
            longest_s = max(longest_s, time.perf_counter() - started_s - 0.005)

    ticker = asyncio.create_task(tick())
    started_s = time.perf_counter()
    assert await tier.put_many([(LARGE, item)], soon(30.0)) == [Stored(item.head.version)]
    put_s = time.perf_counter() - started_s
    (found,) = await tier.get_many([LARGE], soon(30.0))
    get_s = time.perf_counter() - started_s - put_s
    stop.set()
    await ticker
    await tier.clear()
    assert isinstance(found, Entry)
    assert found.head == item.head
    for name, seconds in (("put_s", put_s), ("get_s", get_s), ("longest_hold_s", longest_s)):
        record_property(name, round(seconds, 3))
    assert longest_s < 0.1, (put_s, get_s, longest_s)
