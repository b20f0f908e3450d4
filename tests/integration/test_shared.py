"""The shared tier over a real cluster and over a real single server: what goes in comes out, or is told apart."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable
from itertools import chain

import pytest
from redis_servers import CLOCK, client_of, entry, key, keys_of, mutable, soon

from terracekv.tiers import envelope
from terracekv.tiers.base import TierState
from terracekv.tiers.buckets import KeyNames
from terracekv.tiers.clock import Deadline, FakeClock
from terracekv.tiers.entry import (
    MISS,
    Codec,
    Entry,
    FailureReason,
    Head,
    Key,
    Stored,
    TierFailure,
)
from terracekv.tiers.errors import SharedConfig, TierUnavailable
from terracekv.tiers.shared import SharedTier
from terracekv.tiers.shared_records import SharedRecords

MIB = 1_048_576


def payload_of(found: object) -> bytes:
    assert isinstance(found, Entry), found
    return found.payload()


async def test_batches_over_all_slots_come_back_in_order(tier: SharedTier) -> None:
    keys = keys_of(600)
    items = [(one, entry(b"%d" % index)) for index, one in enumerate(keys)]
    results = await tier.put_many(items, soon())
    assert [result.version for result in results if isinstance(result, Stored)] == [e.head.version for _, e in items]
    absent = keys_of(300, "absent")
    mixed = [one for pair in zip(keys[:300], absent, strict=True) for one in pair]
    found = await tier.get_many(mixed, soon())
    assert [payload_of(one) for one in found[::2]] == [b"%d" % index for index in range(300)]
    assert found[1::2] == [MISS] * 300
    assert [one.head for one in found[::2] if isinstance(one, Entry)] == [item.head for _, item in items[:300]]
    heads = await tier.head_many(mixed, soon())
    assert heads[::2] == [item.head for _, item in items[:300]]
    assert tier.counters.puts == 600
    assert (tier.counters.hits, tier.counters.misses) == (600, 600)


@pytest.mark.parametrize("name", [b"{", b"}{", b"{a}{b}", b"\x00\xff\r\n", b"*?[]", "é".encode(), b"x" * 1024])
async def test_odd_keys_are_keys(tier: SharedTier, name: bytes) -> None:
    await tier.put_many([(key(name), entry(name))], soon())
    assert payload_of((await tier.get_many([key(name)], soon()))[0]) == name
    assert isinstance((await tier.head_many([key(name)], soon()))[0], Head)
    assert await tier.delete_many([key(name)], soon()) == [None]
    assert await tier.get_many([key(name)], soon()) == [MISS]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.PLANES_ZSTD])
@pytest.mark.parametrize("size", [0, 1, 32_000, 33_000, 65_300, 65_536, 70_000, MIB + 1])
async def test_values_of_every_size_come_back_whole(tier: SharedTier, size: int, codec: Codec) -> None:
    half = os.urandom(size // 2)
    first, second = entry(half + bytes(size - len(half)), codec=codec), mutable(os.urandom(size))
    await tier.put_many([(key("a"), first)], soon())
    (stored,) = await tier.write_many([(key("b"), second)], soon())
    for bytes_max in (None, 4 * MIB):
        found = await tier.get_many([key("a"), key("b")], soon(), bytes_max)
        assert payload_of(found[0]) == first.payload()
        assert payload_of(found[1]) == second.payload()
        assert isinstance(found[1], Entry)
        assert isinstance(stored, Stored)
        assert found[1].head.version == stored.version


async def test_an_immutable_entry_stays_and_says_whether_others_differ(tier: SharedTier) -> None:
    first = entry(b"first")
    assert await tier.put_many([(key("k"), first)], soon()) == [Stored(first.head.version)]
    same, other = entry(b"first"), entry(b"other")
    kept = Stored(first.head.version, kept=True, differs=False)
    assert await tier.put_many([(key("k"), same)], soon()) == [kept]
    assert await tier.put_many([(key("k"), other)], soon()) == [kept._replace(differs=True)]
    assert payload_of((await tier.get_many([key("k")], soon()))[0]) == b"first"
    assert (tier.counters.puts, tier.counters.kept) == (1, 2)


async def test_what_expired_or_is_worthless_does_not_block_an_immutable_put(tier: SharedTier, url: str) -> None:
    good = [(key(name), entry(b"good")) for name in ("expired", "damaged", "foreign", "newer", "garbage", "short")]
    records = [tier.names.record(one) for one, _ in good]
    whole = [bytearray(envelope.encode_inline(one, item)) for one, item in good]
    whole[0] = bytearray(envelope.encode_inline(good[0][0], entry(b"old", ttl_s=-1.0)))
    whole[1][30] ^= 1
    whole[2] = bytearray(envelope.encode_inline(key("someone else"), entry(b"theirs")))
    whole[3][4] = 99
    whole[4] = bytearray(b"garbage of more than twenty-four bytes")
    whole[5] = bytearray(b"TKV1")
    async with client_of(url) as client:
        for name, record in zip(records, whole, strict=True):
            await client.set(name, bytes(record), px=60_000)
    assert await tier.get_many([one for one, _ in good], soon()) == [MISS] * 6
    assert tier.counters.corrupt == 5
    results = await tier.put_many(good, soon())
    assert results == [Stored(item.head.version) for _, item in good]
    assert [payload_of(one) for one in await tier.get_many([one for one, _ in good], soon())] == [b"good"] * 6


async def test_a_fill_never_replaces_a_higher_version(tier: SharedTier) -> None:
    one = key("k")
    assert await tier.put_many([(one, mutable(b"ten", 10))], soon()) == [Stored(10)]
    assert await tier.put_many([(one, mutable(b"nine", 9))], soon()) == [Stored(10, kept=True, differs=True)]
    assert payload_of((await tier.get_many([one], soon()))[0]) == b"ten"
    assert await tier.put_many([(one, mutable(b"again", 10))], soon()) == [Stored(10)]
    assert await tier.put_many([(one, mutable(bytes(50_000), 2**62 + 1))], soon()) == [Stored(2**62 + 1)]
    assert await tier.put_many([(one, mutable(b"less by one", 2**62))], soon()) == [
        Stored(2**62 + 1, kept=True, differs=True)
    ]


async def test_versions_are_exact_where_doubles_are_not(tier: SharedTier) -> None:
    for minimum in (2**53 + 1, 2**62 + 1, 2**32 - 1 + 2**60, 2**63 - 2):
        one = key(f"from {minimum}")
        assert await tier.write_many([(one, mutable(b"a", minimum))], soon()) == [Stored(minimum)]
        assert await tier.write_many([(one, mutable(b"b"))], soon()) == [Stored(minimum + 1)]
        (found,) = await tier.get_many([one], soon())
        assert isinstance(found, Entry)
        assert (found.head.version, found.payload()) == (minimum + 1, b"b")


async def test_versions_follow_the_clock_and_only_grow(tier: SharedTier) -> None:
    before_us = CLOCK.now_us()
    (stored,) = await tier.write_many([(key("k"), mutable(b"a"))], soon())
    assert isinstance(stored, Stored)
    assert abs(stored.version - before_us) < 2_000_000
    ahead = stored.version + 10**12  # a clock that went back leaves a version in the future
    await tier.put_many([(key("k"), mutable(b"b", ahead))], soon())
    assert await tier.write_many([(key("k"), mutable(b"c"))], soon()) == [Stored(ahead + 1)]


@pytest.mark.parametrize("size", [100, 40_000])
async def test_concurrent_writes_of_one_key_get_strictly_growing_versions(
    url: str, make_tier: Callable[..., SharedTier], size: int
) -> None:
    tiers = [make_tier(url) for _ in range(3)]
    await asyncio.gather(*(tier.connect() for tier in tiers))

    async def write(tier: SharedTier, writer: int) -> list[tuple[int, bytes]]:
        written = []
        for index in range(20):
            payload = b"%d %d " % (writer, index) + bytes(size)
            (stored,) = await tier.write_many([(key("k"), mutable(payload))], soon())
            assert isinstance(stored, Stored)
            written.append((stored.version, payload))
        assert written == sorted(written)
        return written

    written = list(chain(*await asyncio.gather(*(write(tiers[at % 3], at) for at in range(9)))))
    assert len({version for version, _ in written}) == len(written) == 180
    (found,) = await tiers[0].get_many([key("k")], soon())
    assert isinstance(found, Entry)
    assert (found.head.version, found.payload()) == max(written)


async def test_the_last_of_equal_keys_in_a_batch_of_writes_wins(tier: SharedTier) -> None:
    items = [(key("k"), mutable(b"%d" % index)) for index in range(5)]
    versions = [one.version for one in await tier.write_many(items, soon()) if isinstance(one, Stored)]
    assert versions == sorted(set(versions))
    assert payload_of((await tier.get_many([key("k")], soon()))[0]) == b"4"


async def test_scripts_survive_a_flush_of_the_script_cache(tier: SharedTier, url: str) -> None:
    await tier.write_many([(key("k"), mutable(b"a"))], soon())
    async with client_of(url) as client:
        await client.script_flush()
    keys = keys_of(50)
    results = await tier.write_many([(one, mutable(bytes(40_000))) for one in keys], soon())
    assert all(isinstance(one, Stored) for one in results)
    async with client_of(url) as client:
        await client.script_flush()
    assert await tier.delete_many(keys, soon()) == [None] * 50
    assert await tier.get_many(keys, soon()) == [MISS] * 50


async def test_deletes_of_absent_keys_succeed(tier: SharedTier) -> None:
    assert await tier.delete_many([key("absent"), key("absent too")], soon()) == [None, None]
    assert tier.counters.deletes == 2


# --- budgets ---


async def test_a_budget_is_spent_in_order_and_the_rest_comes_as_heads(tier: SharedTier) -> None:
    sizes = [100, 200_000, 50, 3 * MIB, 400_000, 10]
    keys = keys_of(len(sizes))
    await tier.put_many([(one, entry(os.urandom(size))) for one, size in zip(keys, sizes, strict=True)], soon())
    found = await tier.get_many(keys, soon(), 500_000)
    assert [type(one) for one in found] == [Entry, Entry, Entry, Head, Head, Entry]
    assert [one.head.size_bytes if isinstance(one, Entry) else one.size_bytes for one in found] == sizes  # type: ignore[union-attr]
    assert [type(one) for one in await tier.get_many(keys, soon(), 0)] == [Head] * 6


async def test_a_batch_of_large_values_does_not_pull_more_than_its_budget(tier: SharedTier, url: str) -> None:
    keys = keys_of(60)
    await tier.put_many([(one, entry(bytes(MIB))) for one in keys], soon())
    sent_before = await sent_bytes(url)
    found = await tier.get_many(keys, soon(), 2 * MIB)
    assert [type(one) for one in found] == [Entry] * 2 + [Head] * 58
    assert await sent_bytes(url) - sent_before < 8 * MIB


async def sent_bytes(url: str) -> int:
    async with client_of(url) as client:
        info = await client.info("stats", **({"target_nodes": "all"} if "," in url else {}))
        infos = list(info.values()) if "," in url else [info]
        return sum(int(one["total_net_output_bytes"]) for one in infos)


# --- expiry ---


async def test_the_header_decides_when_an_entry_has_expired(url: str, make_tier: Callable[..., SharedTier]) -> None:
    clock = FakeClock(CLOCK.now_us())
    tier = make_tier(url, clock=clock)
    await tier.connect()
    deadline = Deadline.after(5.0, clock)
    await tier.put_many([(key("k"), entry(b"v", ttl_s=60.0)), (key("m"), mutable(b"v", 1, ttl_s=60.0))], deadline)
    assert len([one for one in await tier.get_many([key("k"), key("m")], deadline) if one]) == 2
    clock.advance(60.1)
    deadline = Deadline.after(5.0, clock)
    assert await tier.get_many([key("k"), key("m")], deadline) == [MISS, MISS]
    assert await tier.head_many([key("k"), key("m")], deadline) == [MISS, MISS]
    assert tier.counters.corrupt == 0


async def test_redis_forgets_what_has_expired_and_may_evict_what_never_does(tier: SharedTier, url: str) -> None:
    await tier.put_many([(key("a"), entry(b"v", ttl_s=30.0)), (key("b"), entry(b"v", ttl_s=None))], soon())
    await tier.write_many([(key("c"), mutable(b"v", ttl_s=30.0)), (key("d"), mutable(b"v", ttl_s=None))], soon())
    await tier.write_many([(key("e"), mutable(bytes(40_000), ttl_s=30.0))], soon())
    await tier.write_many([(key("f"), mutable(bytes(40_000), ttl_s=None))], soon())
    async with client_of(url) as client:
        lives = [await client.pttl(tier.names.record(key(name))) for name in "abcdef"]
    assert [29_000 < lives[at] <= 30_001 for at in (0, 2, 4)] == [True] * 3
    assert 29 * 86_400_000 < lives[1] <= 30 * 86_400_000
    assert (lives[3], lives[5]) == (-1, -1)


# --- start ---


async def test_a_server_that_would_evict_namespaces_is_refused_with_the_cure(
    url: str, make_tier: Callable[..., SharedTier]
) -> None:
    async with client_of(url) as client:
        arguments = {"target_nodes": "all"} if "," in url else {}
        await client.config_set("maxmemory-policy", "allkeys-lru", **arguments)
        try:
            with pytest.raises(SharedConfig, match=r"CONFIG SET maxmemory-policy volatile-lru") as raised:
                await make_tier(url).connect()
            assert "\n" not in str(raised.value)
        finally:
            await client.config_set("maxmemory-policy", "volatile-lru", **arguments)


async def test_config_may_be_forbidden(url: str, make_tier: Callable[..., SharedTier]) -> None:
    arguments = {"target_nodes": "all"} if "," in url else {}
    rules = ["ACL SETUSER", "guest", "reset", "on", ">word", "~*", "&*", "+@all", "-config", "-command"]
    async with client_of(url) as client:
        await client.execute_command(*rules, **arguments)
    tier = make_tier(f"redis://guest:word@{url.rpartition('@')[2]}")
    await tier.connect()
    assert tier.state()[0] is TierState.UP
    async with client_of(url) as client:
        await client.execute_command("ACL DELUSER", "guest", **arguments)


async def test_a_wrong_password_is_one_line_without_it(url: str, make_tier: Callable[..., SharedTier]) -> None:
    with pytest.raises(TierUnavailable, match="refused the credentials") as raised:
        await make_tier(f"redis://:letmein@{url.rpartition('@')[2]}").connect()
    assert "letmein" not in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_nobody_at_the_address_is_one_line_and_every_key_fails(make_tier: Callable[..., SharedTier]) -> None:
    tier = make_tier("redis://127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(TierUnavailable, match=r"no Redis answers at redis://127\.0\.0\.1:1,") as raised:
        await tier.connect()
    assert "\n" not in str(raised.value)
    (found,) = await tier.get_many([key("k")], soon())
    assert isinstance(found, TierFailure)
    assert found.reason is FailureReason.UNAVAILABLE
    assert tier.state()[0] is TierState.DOWN
    assert tier.counters.failures == 1


async def test_dead_and_silent_seeds_cost_a_second_at_most(url: str, make_tier: Callable[..., SharedTier]) -> None:
    credentials, _, hosts = url.rpartition("@")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        tier = make_tier(f"{credentials}@127.0.0.1:{silent.getsockname()[1]},127.0.0.1:1,{hosts.split(',')[0]}")
        started_s = time.monotonic()
        await tier.connect()
        assert time.monotonic() - started_s < 2.0
        assert tier.state()[0] is TierState.UP
        assert await tier.get_many(keys_of(30), soon()) == [MISS] * 30


async def test_after_close_every_key_is_unavailable(url: str, make_tier: Callable[..., SharedTier]) -> None:
    tier = make_tier(url)
    await tier.connect()
    await tier.close()
    await tier.close()
    results = [
        *await tier.get_many([key("k")], soon()),
        *await tier.put_many([(key("k"), entry(b"v"))], soon()),
        *await tier.write_many([(key("k"), mutable(b"v"))], soon()),
        *await tier.delete_many([key("k")], soon()),
    ]
    assert [getattr(one, "reason", None) for one in results] == [FailureReason.UNAVAILABLE] * 4


# --- operators ---


async def test_clear_takes_entries_of_its_prefix_and_nothing_else(
    tier: SharedTier, url: str, make_tier: Callable[..., SharedTier]
) -> None:
    other = make_tier(url, prefix="other*:")
    await other.connect()
    keys = keys_of(1_500)
    large = (key("large"), entry([os.urandom(MIB)] * 5))
    for one in (tier, other):
        await one.put_many([(each, entry(b"v")) for each in keys], soon())
        await one.put_many([large], soon())
        await SharedRecords(one).swap("n", None, b"policy", soon())
    identity = await tier.instance_id(soon())
    async with client_of(url) as client:
        await client.set("foreign", b"theirs")
        await tier.clear()
        assert await tier.get_many([*keys, large[0]], soon()) == [MISS] * 1_501
        left = [name async for name in client.scan_iter(match=f"{tier.names.prefix.decode()}*")]
        assert sorted(left) == sorted([tier.names.meta("namespaces"), tier.names.meta("instance")])
        assert len([one for one in await other.get_many(keys, soon()) if one]) == 1_500
        assert await client.get("foreign") == b"theirs"
        await client.delete("foreign")
        await other.clear()
        await client.delete(other.names.meta("namespaces"))
        await client.delete(tier.names.meta("namespaces"))
    assert await tier.instance_id(soon()) == identity


async def test_the_shared_tier_is_told_from_one_that_lost_its_data(
    tier: SharedTier, url: str, make_tier: Callable[..., SharedTier]
) -> None:
    other = make_tier(url)
    await other.connect()
    first = await tier.instance_id(soon())
    assert first == await tier.instance_id(soon()) == await other.instance_id(soon())
    async with client_of(url) as client:
        await client.delete(tier.names.meta("instance"))
    assert await tier.instance_id(soon()) != first


async def test_the_clock_of_redis_is_measured(url: str, make_tier: Callable[..., SharedTier]) -> None:
    clock = FakeClock(CLOCK.now_us() - 90_000_000)
    tier = make_tier(url, clock=clock)
    await tier.connect()
    offset_us = await tier.time_offset(Deadline.after(5.0, clock))
    assert abs(offset_us - 90_000_000) < 5_000_000


async def test_usage_is_asked_for_and_kept_for_a_second(url: str, make_tier: Callable[..., SharedTier]) -> None:
    clock = FakeClock(CLOCK.now_us())
    tier = make_tier(url, clock=clock)
    await tier.connect()
    await tier.refresh_usage(Deadline.after(5.0, clock))
    used = tier.counters.used_bytes
    assert used > 100_000
    await tier.put_many([(key("k"), entry(os.urandom(2 * MIB)))], Deadline.after(5.0, clock))
    await tier.refresh_usage(Deadline.after(5.0, clock))
    assert tier.counters.used_bytes == used
    clock.advance(1.1)
    await tier.refresh_usage(Deadline.after(5.0, clock))
    assert tier.counters.used_bytes >= used + MIB


async def test_records_change_only_from_what_they_were(
    tier: SharedTier, url: str, make_tier: Callable[..., SharedTier]
) -> None:
    records = SharedRecords(tier)
    assert await records.load(soon()) == {}
    assert await records.swap("blocks", None, b"one", soon())
    assert not await records.swap("blocks", None, b"two", soon())
    assert not await records.swap("blocks", b"other", b"two", soon())
    assert not await records.swap("absent", b"", b"two", soon())
    assert await records.swap("blocks", b"one", b"two\x00\xff", soon())
    assert await records.swap("empty", None, b"", soon())
    assert await records.swap("empty", b"", b"full", soon())
    assert await records.load(soon()) == {"blocks": b"two\x00\xff", "empty": b"full"}
    other = make_tier(url)
    await other.connect()
    won = await asyncio.gather(
        *(SharedRecords(each).swap("race", None, b"%d" % at, soon()) for at in range(10) for each in (tier, other))
    )
    assert won.count(True) == 1
    async with client_of(url) as client:
        assert await client.pttl(tier.names.meta("namespaces")) == -1
        await client.delete(tier.names.meta("namespaces"))


async def test_records_of_a_dead_tier_raise(make_tier: Callable[..., SharedTier]) -> None:
    tier = make_tier("redis://127.0.0.1:1")
    with pytest.raises(TierUnavailable):
        await SharedRecords(tier).load(soon())
    with pytest.raises(TierUnavailable):
        await tier.instance_id(soon())


# --- cancellation ---


async def test_a_storm_of_cancelled_reads_mixes_no_answers(tier: SharedTier) -> None:
    keys = keys_of(200)
    await tier.put_many([(one, entry(one.user * 200)) for one in keys], soon())
    chance = random.Random(7)

    async def read(one: Key) -> None:
        (found,) = await tier.get_many([one], soon())
        assert isinstance(found, Entry)
        assert found.payload() == one.user * 200

    tasks = [asyncio.create_task(read(chance.choice(keys))) for _ in range(1_000)]
    for task in chance.sample(tasks, 300):
        asyncio.get_running_loop().call_later(chance.random() * 0.1, task.cancel)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = sum(isinstance(result, asyncio.CancelledError) for result in results)
    assert [result for result in results if result is not None and not isinstance(result, asyncio.CancelledError)] == []
    assert 0 < cancelled <= 300
    assert tier.counters.corrupt == 0
    assert tier.state()[0] is TierState.UP
    assert len([one for one in await tier.get_many(keys, soon()) if one]) == 200


async def test_a_deadline_that_has_passed_fails_at_once(tier: SharedTier) -> None:
    results = await tier.get_many(keys_of(10), Deadline.after(0.0, CLOCK))
    assert {one.reason for one in results if isinstance(one, TierFailure)} == {FailureReason.TIMEOUT}
    assert tier.state()[0] is TierState.UP
    assert await tier.get_many(keys_of(10), soon()) == [MISS] * 10


def test_names_and_tier_agree_on_the_prefix(prefix: str) -> None:
    tier = SharedTier("redis://127.0.0.1:1", CLOCK, random.random, prefix)
    assert tier.names.record(key("k")) == KeyNames(prefix).record(key("k"))
