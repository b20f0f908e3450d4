"""kill -9 of a process that writes: what was acked LOGGED or SYNCED is there bit for bit, and nothing is half there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import disk_writer_child as child
import pytest
from makers import MIB, key, mutable_key, noise, soon

from terracekv.tiers.clock import SystemClock
from terracekv.tiers.disk import DiskTier, open_disk
from terracekv.tiers.entry import MISS, Entry, Found


def start(data_dir: Path, scenario: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(child.__file__).parent)}
    command = [sys.executable, child.__file__, str(data_dir), scenario]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


async def reopened(data_dir: Path, clock: SystemClock) -> DiskTier:
    tier = await open_disk(data_dir, child.BUDGET, MIB, clock)
    assert tier.set_aside == ()
    return tier


def payload(found: Found) -> bytes:
    assert isinstance(found, Entry), found
    return found.payload()


@pytest.mark.parametrize("acks", [30, 150])
async def test_acked_writes_survive_kill_9_bit_for_bit(data_dir: Path, acks: int) -> None:
    process = start(data_dir, "stream")
    assert process.stdout is not None
    killer = threading.Timer(30, process.kill)
    killer.start()
    lines = [process.stdout.readline() for _ in range(acks)]
    process.kill()
    lines += process.communicate()[0].splitlines()
    killer.cancel()
    acked = [int(line) for line in lines if line.strip().isdigit()]
    assert len(acked) >= acks
    clock = SystemClock()
    tier = await reopened(data_dir, clock)
    try:
        for number in acked:
            (found,) = await tier.get_many([key(str(number))], soon(clock))
            assert payload(found) == child.payload_of(number), number
        for writer in (1, 2, 4, 5):
            last = max(number for number in acked if number % 6 == writer)
            (found,) = await tier.get_many([mutable_key(f"m{writer}")], soon(clock))
            assert isinstance(found, Entry)
            assert found.head.version > last
            assert found.payload() == child.payload_of(found.head.version - 1)
        others = await tier.get_many([key(str(number)) for number in range(max(acked) + 12)], soon(clock))
        for number, found in enumerate(others):
            assert found is MISS or payload(found) == child.payload_of(number)
        assert tier.counters.corrupt == 0
    finally:
        await tier.close()


async def test_a_level_holds_also_for_an_entry_left_in_place_and_for_a_delete_repeated(data_dir: Path) -> None:
    process = start(data_dir, "levels")
    assert process.stdout is not None
    killer = threading.Timer(30, process.kill)
    killer.start()
    assert process.stdout.readline() == "done\n"
    process.kill()
    process.communicate()
    killer.cancel()
    clock = SystemClock()
    tier = await reopened(data_dir, clock)
    try:
        for name, size in (("small", 10), ("large", 200_000)):
            kept, newer, gone = await tier.get_many([key(name), mutable_key(name), key(f"gone {name}")], soon(clock))
            assert payload(kept) == noise(size)
            assert payload(newer) == noise(size, 2)
            assert gone is MISS
        assert await tier.durable.scan(b"commit/") == {b"commit/1": b"v", b"commit/2": b"v"}
    finally:
        await tier.close()
