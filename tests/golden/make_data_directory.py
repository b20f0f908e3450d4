"""Writes data-format-1.tar, a small data directory as kill -9 leaves it: some of it in tables, some in the log.

Run once for each format, never again for one that was released.

    python tests/golden/make_data_directory.py
"""

from __future__ import annotations

import asyncio
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from terracekv.tiers.base import WriteLevel
from terracekv.tiers.clock import Deadline, FakeClock
from terracekv.tiers.disk import open_disk
from terracekv.tiers.durable import DurableNumber, DurableRecords
from terracekv.tiers.entry import Codec, Entry, Head, Key, KeySpace, Kind, checksum_of

FOLDER: Final = Path(__file__).parent
CREATED_US: Final = 1_764_547_200_000_000
DISK_BYTES_MAX: Final = 67_108_864
DURABLE_BYTES_MAX: Final = 1_048_576
NAMESPACE_RECORD: Final = b"a namespace's record"
RESERVED: Final = CREATED_US + 60_000_000
DELETED_KEY: Final = b"deleted"


def item(
    user: bytes, payload: bytes, kind: Kind, version: int, expires_us: int = 0, codec: Codec = Codec.NONE
) -> tuple[Key, Entry]:
    """A key and its entry, created then."""
    head = Head(len(payload), version, CREATED_US, expires_us, checksum_of([payload]), kind, codec)
    return KeySpace().key("blocks" if kind is Kind.IMMUTABLE else "default", 1, user), Entry(head, (payload,))


def first_items() -> list[tuple[Key, Entry]]:
    """What lies in tables."""
    return [
        item(b"small", b"a small value", Kind.IMMUTABLE, CREATED_US),
        item(b"parts", bytes(range(256)) * 275, Kind.IMMUTABLE, CREATED_US),
        item(b"packed", b"packed " * 20_000, Kind.IMMUTABLE, CREATED_US, codec=Codec.ZSTD),
        item(b"ends", b"ends after a day", Kind.IMMUTABLE, CREATED_US, CREATED_US + 86_400_000_000),
        item(b"state", b"version one", Kind.MUTABLE, CREATED_US + 1),
        item(DELETED_KEY, b"is deleted later", Kind.MUTABLE, CREATED_US + 1),
        item(b"empty", b"", Kind.MUTABLE, CREATED_US + 1),
    ]


def later_items() -> list[tuple[Key, Entry]]:
    """What lies in the log."""
    return [
        item(b"state", b"version two", Kind.MUTABLE, CREATED_US + 2),
        item(b"logged", b"only in the log", Kind.IMMUTABLE, CREATED_US),
    ]


async def fill(directory: Path, copy: Path) -> None:
    """Fills a directory, and copies it while it is still open."""
    clock = FakeClock(CREATED_US)
    soon = Deadline.after(30, clock)
    tier = await open_disk(directory, DISK_BYTES_MAX, DURABLE_BYTES_MAX, clock)
    await tier.put_many(first_items(), soon)
    await DurableNumber(tier.durable, b"versions/reserved").save(RESERVED)
    await tier.close()
    tier = await open_disk(directory, DISK_BYTES_MAX, DURABLE_BYTES_MAX, clock)
    await tier.put_many(later_items(), soon, WriteLevel.SYNCED)
    deleted = next(key for key, _ in first_items() if key.user == DELETED_KEY)
    await tier.delete_many([deleted], soon, WriteLevel.LOGGED)
    await DurableRecords(tier.durable).swap("default", None, NAMESPACE_RECORD, soon)
    shutil.copytree(directory, copy)
    await tier.close()


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Nothing of the machine that made it, and no logs of RocksDB for people."""
    if Path(member.name).name.startswith(("LOG", "IDENTITY", "OPTIONS", "LOCK", "terracekv.lock")):
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    """Writes the archive."""
    with tempfile.TemporaryDirectory() as folder:
        directory, copy = Path(folder, "live"), Path(folder, "data")
        asyncio.run(fill(directory, copy))
        with tarfile.open(FOLDER / "data-format-1.tar", "w") as archive:
            archive.add(copy, "data", filter=plain)


if __name__ == "__main__":
    main()
