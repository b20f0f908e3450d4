"""Opening: one process a directory, formats refused in words, and it always opens and says what it set aside."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from makers import MIB, entry, key, noise, soon

from terracekv.tiers.base import WriteLevel
from terracekv.tiers.clock import FakeClock
from terracekv.tiers.data_directory import set_aside
from terracekv.tiers.disk import DiskTier, open_disk
from terracekv.tiers.entry import MISS, Entry
from terracekv.tiers.errors import StoreError, StoreLocked, StoreNewer

HOLDER = """
import sys, time
from pathlib import Path
from terracekv.tiers.data_directory import lock_directory
lock_directory(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


async def opened(data_dir: Path, clock: FakeClock) -> DiskTier:
    return await open_disk(data_dir, 64 * MIB, MIB, clock)


async def filled(data_dir: Path, clock: FakeClock) -> None:
    """A directory as kill -9 leaves it: "a" in a flushed table, "b" in the log only."""
    tier = await opened(data_dir, clock)
    await tier.put_many([(key("a"), entry(noise(200_000), clock))], soon(clock), WriteLevel.SYNCED)
    await tier.close()
    tier = await opened(data_dir, clock)
    await tier.put_many([(key("b"), entry(noise(200_000), clock))], soon(clock), WriteLevel.SYNCED)
    await tier.durable.commit({b"b": b"v"}, sync=True)
    image = data_dir.with_name("image")
    shutil.copytree(data_dir, image)
    await tier.close()
    shutil.rmtree(data_dir)
    image.rename(data_dir)


def holder(data_dir: Path, seconds: float) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data_dir), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


async def test_the_directory_is_its_owners_alone(data_dir: Path, clock: FakeClock) -> None:
    tier = await opened(data_dir, clock)
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert tier.set_aside == ()
    assert json.loads((data_dir / "FORMAT").read_text())["format"] == 1
    await tier.close()


async def test_a_second_process_is_told_which_directory_and_what_to_do(data_dir: Path, clock: FakeClock) -> None:
    child = holder(data_dir, 30)
    try:
        started = time.monotonic()
        with pytest.raises(StoreLocked) as caught:
            await opened(data_dir, clock)
        assert 1.5 < time.monotonic() - started < 10
    finally:
        child.kill()
        child.communicate()
    message = str(caught.value)
    assert str(data_dir) in message
    assert "--data-dir" in message
    assert "\n" not in message
    tier = await opened(data_dir, clock)
    await tier.close()


async def test_a_restart_waits_for_its_predecessor(data_dir: Path, clock: FakeClock) -> None:
    child = holder(data_dir, 0.5)
    try:
        tier = await opened(data_dir, clock)
        await tier.close()
    finally:
        child.communicate()


async def test_closing_lets_the_directory_go_at_once(data_dir: Path, clock: FakeClock) -> None:
    for _ in range(3):
        tier = await opened(data_dir, clock)
        await tier.close()


async def test_a_newer_format_is_refused_in_words_and_left_alone(data_dir: Path, clock: FakeClock) -> None:
    await filled(data_dir, clock)
    (data_dir / "FORMAT").write_text('{"format": 2, "created_us": 1}')
    with pytest.raises(StoreNewer, match=r"format 2, this version reads up to 1: upgrade terracekv"):
        await opened(data_dir, clock)
    assert list(data_dir.glob("quarantine-*")) == []
    (data_dir / "FORMAT").write_text("")
    with pytest.raises(StoreError, match="FORMAT cannot be read"):
        await opened(data_dir, clock)


async def test_a_path_that_is_no_directory_is_named(data_dir: Path, clock: FakeClock) -> None:
    data_dir.write_text("a file")
    with pytest.raises(StoreError, match=r"cannot use the data directory .*--data-dir"):
        await opened(data_dir, clock)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    file.write_bytes(raw)


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip, empty, Path.unlink])
@pytest.mark.parametrize("which", ["CURRENT", "MANIFEST-*", "*.sst", "*.log", "OPTIONS-*", "rocksdict-config.json"])
async def test_it_opens_whatever_file_is_damaged_and_no_value_is_wrong(
    data_dir: Path, clock: FakeClock, which: str, damage: Callable[[Path], None]
) -> None:
    await filled(data_dir, clock)
    files = [file for file in (data_dir / "rocksdb").glob(which) if file.stat().st_size]
    assert files
    for file in files:
        damage(file)
    tier = await opened(data_dir, clock)
    try:
        found = await tier.get_many([key("a"), key("b")], soon(clock))
        for one in found:
            assert one is MISS or (isinstance(one, Entry) and one.payload() == noise(200_000))
        aside = [path.name for path in data_dir.glob("quarantine-*")]
        assert [words.split(":")[0] for words in tier.set_aside] == aside
        assert not any("\n" in words for words in tier.set_aside)
        # A log that ends early looks like one that was never written further: nothing can be said of it.
        ends_early = which == "*.log" and damage is not flip
        assert all(found) or aside or tier.counters.corrupt or ends_early, "what is lost is said"
        assert all(await tier.put_many([(key("new"), entry(b"value", clock))], soon(clock)))
    finally:
        await tier.close()


async def test_an_undamaged_image_of_kill_9_has_everything(data_dir: Path, clock: FakeClock) -> None:
    await filled(data_dir, clock)
    tier = await opened(data_dir, clock)
    assert all(await tier.get_many([key("a"), key("b")], soon(clock)))
    assert await tier.durable.get(b"b") == b"v"
    await tier.close()


async def test_a_flipped_byte_in_the_log_is_never_read_over(data_dir: Path, clock: FakeClock) -> None:
    await filled(data_dir, clock)
    for file in (data_dir / "rocksdb").glob("*.log"):
        flip(file)
    tier = await opened(data_dir, clock)
    (words,) = tier.set_aside
    assert "orruption" in words
    await tier.close()


async def test_only_the_last_database_set_aside_is_kept(data_dir: Path) -> None:
    for number in range(3):
        database = data_dir / "rocksdb"
        database.mkdir(parents=True)
        (database / "mark").write_text(str(number))
        set_aside(database)
        time.sleep(0.002)
    (aside,) = data_dir.glob("quarantine-*")
    assert (aside / "mark").read_text() == "2"
