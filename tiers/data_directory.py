"""The data directory of a disk tier: one process at a time, a format number, and what does not open set aside.

terracekv.lock    locked while a process uses the directory
FORMAT            {"format": 1, "created_us": ...}
rocksdb/          the database
quarantine-*/     the last database that could not be opened
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import Final

from terracekv.tiers.errors import StoreError, StoreLocked, StoreNewer

FORMAT: Final = 1
FORMAT_FILE: Final = "FORMAT"
LOCK_FILE: Final = "terracekv.lock"
LOCK_WAIT_S: Final = 2.0  # a restart waits for its predecessor to let go
ASIDE: Final = "quarantine-"
ASIDE_MAX: Final = 1  # an older one is deleted when another database is set aside


def lock_directory(directory: Path) -> int:
    """Makes the directory (for its owner alone) and locks it; the descriptor that holds the lock.

    Raises StoreLocked, StoreError.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot use the data directory {directory}: {error.strerror}; choose --data-dir") from None
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            if time.monotonic() >= until:
                os.close(lock)
                cure = "stop that one, or choose another --data-dir"
                raise StoreLocked(f"another process uses the data directory {directory}: {cure}") from None
            time.sleep(0.05)


def check_format(directory: Path) -> None:
    """Reads or begins the format number. Raises StoreNewer, StoreError."""
    file = directory / FORMAT_FILE
    if not file.exists():
        _write_synced(file, json.dumps({"format": FORMAT, "created_us": time.time_ns() // 1000}))
        return
    try:
        number = int(json.loads(file.read_text())["format"])
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"{file} cannot be read: restore it, or choose another --data-dir") from None
    if number > FORMAT:
        cure = "upgrade terracekv, or choose another --data-dir"
        raise StoreNewer(f"{directory} has format {number}, this version reads up to {FORMAT}: {cure}")


def _write_synced(file: Path, text: str) -> None:
    """A power cut leaves the file whole or absent."""
    temporary = file.with_suffix(".new")
    with temporary.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def set_aside(path: Path) -> str:
    """Renames a database that cannot be opened, drops older ones set aside before; the new name.

    Raises StoreError.
    """
    older = sorted(path.parent.glob(f"{ASIDE}*"))
    for one in older[: len(older) + 1 - ASIDE_MAX]:
        shutil.rmtree(one, ignore_errors=True)
    aside = path.parent / f"{ASIDE}{time.time_ns() // 1_000_000:014d}"
    try:
        path.rename(aside)
    except OSError as error:
        raise StoreError(f"cannot open {path}, nor set it aside: {error.strerror}") from None
    return aside.name


def directory_bytes(path: Path) -> int:
    """What the files of a folder take on disk, as `du` counts."""
    total = 0
    with os.scandir(path) as listing:
        for file in listing:
            try:
                total += file.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue  # deleted while we look
    return total
