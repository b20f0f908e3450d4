"""The embedded cluster: a real one in seconds, alone or shared by starts, alive after kill -9 of whoever started it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from redis_servers import client_of, entry, keys_of, mutable, soon

from terracekv.tiers import embedded
from terracekv.tiers.embedded import EmbeddedCluster
from terracekv.tiers.embedded_state import EmbeddedUnavailable, load
from terracekv.tiers.entry import Entry, Stored
from terracekv.tiers.processes import Process
from terracekv.tiers.shared import SharedTier

MIB = 1_048_576
BYTES = 96 * MIB


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path / "shared"
    await EmbeddedCluster.stop_at(tmp_path / "shared")


def alive(cluster: EmbeddedCluster) -> list[bool]:
    return [Process.of(pid).alive() and serves(pid) for pid in cluster.pids]


def serves(pid: int) -> bool:
    command = Path(f"/proc/{pid}/cmdline")
    return not Path("/proc/self").exists() or (command.exists() and b"valkey-server" in command.read_bytes())


async def test_a_cluster_is_up_in_seconds_and_gone_when_stopped(
    directory: Path, make_tier: Callable[..., SharedTier]
) -> None:
    started_s = time.monotonic()
    cluster = await EmbeddedCluster.start(directory, BYTES)
    assert time.monotonic() - started_s < 8.0
    assert not cluster.adopted
    assert all(port < 55_536 for port in cluster.ports)  # the bus listens 10,000 higher
    tier = make_tier(cluster.url)
    await tier.connect()
    assert tier.state()[1] == "3 masters"
    keys = keys_of(100)
    await tier.put_many([(one, entry(b"v")) for one in keys], soon())
    shares = [sum(tier.masters.owner(bucket).port == port for bucket in range(256)) for port in cluster.ports]  # type: ignore[union-attr]
    assert sorted(shares) == [85, 85, 86]
    await tier.refresh_usage(soon())
    assert tier.counters.capacity_bytes == BYTES
    assert await cluster.stop()
    assert alive(cluster) == [False] * 3
    assert not await cluster.stop()
    assert await EmbeddedCluster.find(directory) is None


async def test_it_is_private_to_its_user_and_to_this_machine(directory: Path) -> None:
    cluster = await EmbeddedCluster.start(directory, BYTES)
    state = load(directory)
    assert state is not None
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    private = [directory / "state.json", *directory.glob("master-*.conf")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * 4
    assert state.password in cluster.url
    assert state.password not in cluster.masked
    for pid in cluster.pids:
        assert state.password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    async with client_of(cluster.url) as client:
        assert (await client.config_get("bind"))["bind"] == "127.0.0.1"
        assert await client.config_get("maxmemory-policy") == {"maxmemory-policy": "volatile-lru"}
    with pytest.raises(Exception, match=r"invalid username-password"):
        async with client_of(cluster.url.replace(state.password, "guessed")) as client:
            await client.get("k")


async def test_starts_at_once_and_later_share_one_cluster(directory: Path) -> None:
    clusters = await asyncio.gather(*(EmbeddedCluster.start(directory, BYTES) for _ in range(3)))
    assert sorted(cluster.adopted for cluster in clusters) == [False, True, True]
    assert all(cluster.owned_by_node for cluster in clusters)
    later = await EmbeddedCluster.start(directory, 2 * BYTES)
    assert {(cluster.url, cluster.pids) for cluster in clusters} == {(later.url, later.pids)}
    async with client_of(later.url) as client:
        assert await client.config_get("maxmemory") == {"maxmemory": str(2 * BYTES // 3)}


START = """
import asyncio, sys, time
from pathlib import Path
from terracekv.tiers.embedded import EmbeddedCluster
cluster = asyncio.run(EmbeddedCluster.start(Path(sys.argv[1]), 100_000_000, owner=sys.argv[2]))
print("up", flush=True)
time.sleep(60)
"""


def start_elsewhere(directory: Path, owner: str) -> subprocess.Popen[str]:
    other = subprocess.Popen([sys.executable, "-c", START, str(directory), owner], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    said = other.stdout.readline()
    if said != "up\n":
        kill(other)
    assert said == "up\n"
    return other


def kill(other: subprocess.Popen[str]) -> None:
    assert other.stdout is not None
    os.kill(other.pid, signal.SIGKILL)
    other.wait(5)
    other.stdout.close()


async def test_it_outlives_kill_9_of_its_node_with_what_it_holds_and_is_adopted(
    directory: Path, make_tier: Callable[..., SharedTier]
) -> None:
    node = await asyncio.to_thread(start_elsewhere, directory, "node")
    found = await EmbeddedCluster.find(directory)
    assert found is not None
    tier = make_tier(found.url)
    await tier.connect()
    keys = keys_of(50)
    written = await tier.write_many([(one, mutable(one.user)) for one in keys], soon())
    identity = await tier.instance_id(soon())
    await asyncio.to_thread(kill, node)
    adopted = await EmbeddedCluster.start(directory, BYTES)
    assert adopted.adopted
    assert adopted.pids == found.pids
    again = make_tier(adopted.url)
    await again.connect()
    assert await again.instance_id(soon()) == identity
    for one, result, stored in zip(keys, await again.get_many(keys, soon()), written, strict=True):
        assert isinstance(result, Entry)
        assert isinstance(stored, Stored)
        assert (result.payload(), result.head.version) == (one.user, stored.version)
    assert await adopted.stop()  # whoever adopts it owns it
    assert alive(adopted) == [False] * 3


async def test_a_node_leaves_alone_what_a_living_node_or_a_command_started(directory: Path) -> None:
    node = await asyncio.to_thread(start_elsewhere, directory, "node")
    ours = await EmbeddedCluster.start(directory, BYTES)
    assert ours.adopted
    assert not ours.owned_by_node
    assert not await ours.stop()
    command = await asyncio.to_thread(start_elsewhere, directory, "command")
    for other in (node, command):
        await asyncio.to_thread(kill, other)
        assert not await (await EmbeddedCluster.start(directory, BYTES)).stop()
    assert alive(ours) == [True] * 3
    assert await EmbeddedCluster.stop_at(directory)
    assert not await EmbeddedCluster.stop_at(directory)


async def test_half_of_a_cluster_is_ended_and_a_new_one_made(directory: Path) -> None:
    first = await EmbeddedCluster.start(directory, BYTES)
    Process.of(first.pids[1]).send(signal.SIGKILL)
    assert await EmbeddedCluster.find(directory) is None
    second = await EmbeddedCluster.start(directory, BYTES)
    assert not second.adopted
    assert alive(first) == [False] * 3
    assert alive(second) == [True] * 3


async def test_a_state_file_that_names_strangers_harms_nobody(directory: Path, tmp_path: Path) -> None:
    bystander = subprocess.Popen(["/bin/sleep", "60"])
    await asyncio.sleep(0.05)  # start times are told in hundredths of a second
    try:
        first = await EmbeddedCluster.start(directory, BYTES)
        state = (directory / "state.json").read_text()
        await first.stop()
        (directory / "state.json").write_text(state.replace(str(first.pids[0]), str(bystander.pid)))
        assert await EmbeddedCluster.find(directory) is None
        assert not await EmbeddedCluster.stop_at(directory)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_taken_ports_are_passed_over(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    choose = embedded._free_ports

    def first_time_taken(count: int, chooser: Callable[[range], int]) -> list[int]:
        ports = choose(count, chooser)
        tries.append(ports[0])
        # Between the look and the start somebody else took the port: here, ourselves.
        return [ports[0], ports[0], ports[1]] if len(tries) == 1 else ports

    monkeypatch.setattr(embedded, "_free_ports", first_time_taken)
    cluster = await EmbeddedCluster.start(directory, BYTES)
    assert len(tries) == 2
    assert alive(cluster) == [True] * 3
    assert tries[0] not in cluster.ports or len(set(cluster.ports)) == 3


async def test_servers_that_do_not_start_are_one_line_with_the_cure(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "valkey-server"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o700)
    for path in (broken, tmp_path / "absent"):
        monkeypatch.setattr(embedded, "server_binary", lambda path=path: path)
        with pytest.raises(EmbeddedUnavailable, match=r"does not start.*\[embedded\].*--shared none") as raised:
            await EmbeddedCluster.start(directory, BYTES)
        assert "\n" not in str(raised.value)
    assert load(directory) is None


async def test_a_start_that_is_cancelled_leaves_nothing_running(directory: Path) -> None:
    task = asyncio.create_task(EmbeddedCluster.start(directory, BYTES))
    while (state := load(directory)) is None or len(state.processes) < 3:
        await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait([task])
    assert not any(process.alive() for process in state.processes)
