"""Masters that are paused, killed, full or on the move: their keys fail in time, all others go on, all come back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_servers import (
    CLOCK,
    Server,
    client_of,
    entry,
    key,
    keys_of,
    mutable,
    paused,
    redis_binary,
    soon,
    start_server,
    stop_server,
    until,
)

from terracekv.tiers.base import TierState
from terracekv.tiers.breaker import BreakerTier
from terracekv.tiers.clock import Deadline
from terracekv.tiers.embedded import EmbeddedCluster
from terracekv.tiers.entry import MISS, Entry, FailureReason, Key, Stored, TierFailure
from terracekv.tiers.processes import Process
from terracekv.tiers.shared import SharedTier

MIB = 1_048_576
MakeTier = Callable[..., SharedTier]


@pytest.fixture
async def tier(own_cluster: EmbeddedCluster, make_tier: MakeTier) -> SharedTier:
    connected = make_tier(own_cluster.url)
    await connected.connect()
    return connected


def split(tier: SharedTier, port: int, keys: list[Key]) -> tuple[list[Key], list[Key]]:
    """Keys of the master at a port, and the others."""
    theirs = [one for one in keys if tier.masters.owner(one.bucket).port == port]  # type: ignore[union-attr]
    return theirs, [one for one in keys if one not in set(theirs)]


async def test_a_paused_master_fails_only_its_keys_in_time_and_comes_back(
    own_cluster: EmbeddedCluster, tier: SharedTier
) -> None:
    keys = keys_of(90)
    await tier.put_many([(one, entry(b"v")) for one in keys], soon())
    victim = Process.of(own_cluster.pids[1])
    theirs, others = split(tier, own_cluster.ports[1], keys)
    assert theirs
    assert others
    async with paused(victim):
        for deadline_s in (0.1, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0):
            started_s = time.monotonic()
            found = dict(zip(keys, await tier.get_many(keys, Deadline.after(deadline_s, CLOCK)), strict=True))
            assert time.monotonic() - started_s < min(deadline_s, 0.6) + 0.1
            assert all(isinstance(found[one], Entry) for one in others)
            assert {type(found[one]) for one in theirs} == {TierFailure}
        assert tier.state()[0] is TierState.DEGRADED
        assert tier.state()[1].startswith("1 of 3 masters do not answer: 127.0.0.1:")
        started_s = time.monotonic()
        (refused,) = await tier.write_many([(theirs[0], mutable(b"v"))], soon())
        assert isinstance(refused, TierFailure)
        assert refused.reason is FailureReason.UNAVAILABLE
        assert time.monotonic() - started_s < 0.1
    started_s = time.monotonic()
    await until(lambda: all_found(tier, keys), 6.0)
    assert time.monotonic() - started_s < 5.0
    assert tier.state()[0] is TierState.UP


async def all_found(tier: SharedTier, keys: list[Key]) -> bool:
    return all(isinstance(one, Entry) for one in await tier.get_many(keys, soon()))


async def test_it_comes_back_without_being_asked(own_cluster: EmbeddedCluster, tier: SharedTier) -> None:
    theirs, _ = split(tier, own_cluster.ports[2], keys_of(90))
    async with paused(Process.of(own_cluster.pids[2])):
        await asyncio.gather(*(tier.get_many([one], Deadline.after(0.6, CLOCK)) for one in theirs[:8]))
        assert tier.state()[0] is TierState.DEGRADED

    async def up() -> bool:
        return tier.state()[0] is TierState.UP

    await until(up, 6.0)


async def test_calls_with_little_time_left_do_not_cut_a_master_off(tier: SharedTier) -> None:
    async def hurried(one: Key) -> None:
        await tier.get_many([one], Deadline.after(0.0005, CLOCK))

    await asyncio.gather(*(hurried(one) for one in keys_of(60)))
    assert tier.state()[0] is TierState.UP
    assert await tier.get_many(keys_of(60), soon()) == [MISS] * 60


async def test_a_stall_of_this_process_cuts_nobody_off(tier: SharedTier) -> None:
    keys = keys_of(60)
    reads = [asyncio.create_task(tier.get_many([one], soon())) for one in keys]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(0.8)
    assert await asyncio.gather(*reads) == [[MISS]] * 60
    assert tier.state()[0] is TierState.UP


async def test_cancelled_commands_of_a_slow_master_leave_no_answers_behind(
    own_cluster: EmbeddedCluster, tier: SharedTier
) -> None:
    keys = keys_of(60)
    await tier.put_many([(one, entry(one.user)) for one in keys], soon())
    async with paused(Process.of(own_cluster.pids[0])):
        tasks = [asyncio.create_task(tier.get_many([one], soon())) for one in keys]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    found = await tier.get_many(keys, soon())
    assert [one.payload() for one in found if isinstance(one, Entry)] == [one.user for one in keys]


async def test_a_breaker_around_the_whole_tier_lets_a_part_of_it_fail(
    own_cluster: EmbeddedCluster, tier: SharedTier
) -> None:
    guarded = BreakerTier(tier, CLOCK, lambda: 0.0)
    theirs, others = split(tier, own_cluster.ports[0], keys_of(40))
    async with paused(Process.of(own_cluster.pids[0])):
        for _ in range(6):
            found = await guarded.get_many([theirs[0], others[0]], Deadline.after(0.3, CLOCK))
            assert [type(found[0]), found[1]] == [TierFailure, MISS]
    assert guarded.breaker.opened == 0


async def test_a_killed_master_fails_only_its_keys(tmp_path: Path, make_tier: MakeTier) -> None:
    cluster = await EmbeddedCluster.start(tmp_path / "killed", 100_000_000)
    try:
        tier = make_tier(cluster.url)
        await tier.connect()
        keys = keys_of(90)
        await tier.put_many([(one, entry(b"v")) for one in keys], soon())
        theirs, others = split(tier, cluster.ports[0], keys)
        Process.of(cluster.pids[0]).send(signal.SIGKILL)
        for _ in range(8):
            found = dict(zip(keys, await tier.get_many(keys, soon(1.0)), strict=True))
            assert all(isinstance(found[one], Entry) for one in others)
            failures = [found[one] for one in theirs]
            assert {one.reason for one in failures if isinstance(one, TierFailure)} == {FailureReason.UNAVAILABLE}
            assert len(failures) == sum(isinstance(one, TierFailure) for one in failures)
        # The first seed is the dead one: a newcomer starts from the others.
        newcomer = make_tier(cluster.url)
        started_s = time.monotonic()
        await newcomer.connect()
        assert time.monotonic() - started_s < 2.0
        assert all(isinstance(one, Entry) for one in await newcomer.get_many(others, soon()))
    finally:
        await EmbeddedCluster.stop_at(tmp_path / "killed")


async def test_a_slot_that_moves_takes_its_keys_along(own_cluster: EmbeddedCluster, tier: SharedTier) -> None:
    one = key("k")
    await tier.write_many([(one, mutable(b"before"))], soon())
    slot = one.bucket * 64 + 32
    async with client_of(own_cluster.url) as client:
        source = client.get_node_from_key(tier.names.record(one))  # type: ignore[attr-defined]
        target = next(node for node in client.get_primaries() if node.port != source.port)  # type: ignore[attr-defined]
        for back in (False, True):
            home, away = (target, source) if back else (source, target)
            ids = [(await node.execute_command("CLUSTER MYID")).decode() for node in (home, away)]
            await away.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
            await home.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
            # On its way: a key that the source no longer has is asked for at the target.
            raw = await home.execute_command("DUMP", tier.names.record(one))
            life = await home.execute_command("PTTL", tier.names.record(one))
            await move(home, away, tier.names.record(one), raw, life)
            (found,) = await tier.get_many([one], soon())
            assert isinstance(found, Entry), found
            (stored,) = await tier.write_many([(one, mutable(b"on the way"))], soon())
            assert isinstance(stored, Stored)
            assert stored.version > found.head.version
            for node in (away, home):
                await node.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
            (found,) = await tier.get_many([one], soon())
            assert isinstance(found, Entry)
            assert found.payload() == b"on the way"
            assert tier.masters.owner(one.bucket).port == away.port  # type: ignore[union-attr]


async def move(home: object, away: object, name: bytes, raw: bytes, life_ms: int) -> None:
    connection = away.acquire_connection()  # type: ignore[attr-defined]
    try:
        for command in (("ASKING",), ("RESTORE", name, life_ms, raw, "REPLACE")):
            await connection.send_command(*command)
            assert await connection.read_response() == b"OK"
    finally:
        away.release(connection)  # type: ignore[attr-defined]
    await home.execute_command("DEL", name)  # type: ignore[attr-defined]


# --- single servers ---


@pytest.fixture
def full_server(tmp_path: Path) -> Iterator[Server]:
    server = start_server(tmp_path / "full", redis_binary(), maxmemory="24mb", maxmemory_policy="noeviction")
    yield server
    stop_server(server)


async def test_a_full_redis_says_so_reads_on_and_deletes(full_server: Server, make_tier: MakeTier) -> None:
    tier = make_tier(full_server.url)
    await tier.connect()
    for size in (MIB, 20_000, 500):
        for index in range(1_000):
            (result,) = await tier.put_many([(key(f"{size} {index}"), entry(os.urandom(size)))], soon())
            if isinstance(result, TierFailure):
                break
        assert isinstance(result, TierFailure)
        assert result.reason is FailureReason.FULL
        assert index > 3
    for payload in (b"small", bytes(100_000), [bytes(MIB)] * 5):
        for (failure,) in (
            await tier.write_many([(key("w"), mutable(payload))], soon()),
            await tier.put_many([(key("p"), mutable(payload, 1))], soon()),
            await tier.put_many([(key("i"), entry(payload))], soon()),
        ):
            assert isinstance(failure, TierFailure)
            assert failure.reason is FailureReason.FULL
    assert await tier.get_many([key("w"), key("p"), key("i")], soon()) == [MISS] * 3
    first = [key(f"{MIB} {index}") for index in range(10)]
    assert [type(one) for one in await tier.get_many(first, soon())] == [Entry] * 10
    assert tier.state()[0] is TierState.UP
    assert await tier.delete_many(first, soon()) == [None] * 10
    assert isinstance((await tier.write_many([(key("w"), mutable(b"small"))], soon()))[0], Stored)


async def test_a_server_that_was_away_at_the_start_is_found_later(tmp_path: Path, make_tier: MakeTier) -> None:
    server = await asyncio.to_thread(start_server, tmp_path / "late", None)
    try:
        victim = server.process
        tier = make_tier(server.url)
        async with paused(victim):
            with pytest.raises(Exception, match="no Redis answers"):
                await tier.connect()
            assert tier.state()[0] is TierState.DOWN

        async def up() -> bool:
            return tier.state()[0] is TierState.UP

        await until(up, 6.0)
        assert await tier.get_many([key("k")], soon()) == [MISS]
    finally:
        await asyncio.to_thread(stop_server, server)


async def test_a_server_that_closed_its_connections_is_simply_asked_again(single_url: str, make_tier: MakeTier) -> None:
    tier = make_tier(single_url)
    await tier.connect()
    await tier.put_many([(key("k"), entry(b"v"))], soon())
    async with client_of(single_url) as client:
        await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await asyncio.sleep(0.05)
    assert isinstance((await tier.get_many([key("k")], soon()))[0], Entry)
    assert tier.counters.failures == 0
    await tier.clear()
