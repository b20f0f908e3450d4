"""A process that writes to a disk tier and says on stdout what was acked, until it is killed.

Run as: disk_writer_child.py DIRECTORY SCENARIO, with tests/ in PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from makers import MIB, entry, key, mutable, mutable_key, noise, soon

from terracekv.tiers.base import WriteLevel
from terracekv.tiers.clock import SystemClock
from terracekv.tiers.disk import DiskTier, open_disk
from terracekv.tiers.entry import Entry, Key, Stored

BUDGET = 512 * MIB
SIZES = (0, 10, 5_000, 65_536, 65_537, 200_000, 1_500_000)


def payload_of(number: int) -> bytes:
    """The payload of a numbered entry: its size and bytes follow from the number."""
    return number.to_bytes(8, "big") + noise(SIZES[number % len(SIZES)], number % 97)


async def put(tier: DiskTier, clock: SystemClock, where: Key, item: Entry, level: WriteLevel) -> None:
    (result,) = await tier.put_many([(where, item)], soon(clock), level)
    assert isinstance(result, Stored), result


async def stream(tier: DiskTier, clock: SystemClock) -> None:
    """Six writers of all levels; each line acks a number whose level is LOGGED or SYNCED."""

    async def write(start: int) -> None:
        for number in range(start, 1_000_000, 6):
            level = WriteLevel(start % 3)
            await put(tier, clock, key(str(number)), entry(payload_of(number), clock), level)
            await put(tier, clock, mutable_key(f"m{start}"), mutable(payload_of(number), number + 1, clock), level)
            if level is not WriteLevel.BUFFERED:
                print(number, flush=True)

    await asyncio.gather(*(write(start) for start in range(6)))


async def levels(tier: DiskTier, clock: SystemClock) -> None:
    """Writes that leave in place, or hide, what was only buffered; then waits."""
    for name, size in (("small", 10), ("large", 200_000)):
        await put(tier, clock, key(name), entry(noise(size), clock), WriteLevel.BUFFERED)
        await put(tier, clock, key(name), entry(noise(size), clock), WriteLevel.LOGGED)
        await put(tier, clock, mutable_key(name), mutable(noise(size, 2), 2, clock), WriteLevel.BUFFERED)
        await put(tier, clock, mutable_key(name), mutable(noise(size, 1), 1, clock), WriteLevel.SYNCED)
        gone = key(f"gone {name}")
        await put(tier, clock, gone, entry(noise(size), clock), WriteLevel.LOGGED)
        await tier.delete_many([gone], soon(clock))
        await tier.delete_many([gone], soon(clock), WriteLevel.LOGGED)
    await tier.durable.commit({b"commit/1": b"v", b"commit/2": b"v"}, sync=False)
    print("done", flush=True)
    await asyncio.sleep(60)


async def main() -> None:
    """Opens the tier and runs the scenario."""
    clock = SystemClock()
    tier = await open_disk(Path(sys.argv[1]), BUDGET, MIB, clock)
    await {"stream": stream, "levels": levels}[sys.argv[2]](tier, clock)


if __name__ == "__main__":
    asyncio.run(main())
