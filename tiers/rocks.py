"""Opening RocksDB so that nothing surprises: raw bytes, checked reads, one process a directory, and it always opens.

A directory that RocksDB cannot open is set aside under another name and a new
one begun; what was set aside is said, never hidden. The log is read in the mode
that takes a torn end and refuses a damaged middle: the default mode would
silently drop synced writes behind one flipped byte (measured).

rocksdict keeps the interpreter's lock during `write`, `put`, single `get` and
iteration, and lets go of it in `flush`, `flush_wal` and the get of a list
(measured). So writes are small and never wait inside RocksDB, syncs go by
`flush_wal`, and reads are lists: the event loop runs on meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from terracekv.tiers.data_directory import check_format, lock_directory, set_aside
from terracekv.tiers.errors import StoreError

DATABASE: Final = "rocksdb"
OPEN_FILES_MAX: Final = 512
BLOCK_CACHE_BYTES: Final = 33_554_432
BLOOM_BITS: Final = 10
WRITE_BUFFER_BYTES_MAX: Final = 134_217_728  # of all column families together
LOG_FILES_MAX: Final = 4
STALL_S_MAX: Final = 10.0
STALL_WAIT_S: Final = 0.01
_NEVER: Final = 1 << 30
_NO_ROOM: Final = ("No space left", "Disk quota", "File too large")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a byte budget means for RocksDB. Pure arithmetic."""

    write_buffer_bytes: int  # of all column families together
    memtable_bytes: int  # of one
    wal_bytes_max: int

    @classmethod
    def of(cls, disk_bytes_max: int) -> Sizes:
        """Shares of the budget, within what is of use."""
        write_buffer = min(WRITE_BUFFER_BYTES_MAX, disk_bytes_max // 8)
        return cls(write_buffer, min(67_108_864, write_buffer // 2), min(WRITE_BUFFER_BYTES_MAX, disk_bytes_max // 8))


def _table_options(block_cache: Cache) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_bloom_filter(BLOOM_BITS, False)
    table.set_block_cache(block_cache)
    return table


def _common(sizes: Sizes, block_cache: Cache) -> Options:
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.none())
    options.set_write_buffer_size(sizes.memtable_bytes)
    options.set_max_write_buffer_number(4)
    options.set_block_based_table_factory(_table_options(block_cache))
    options.set_paranoid_checks(True)
    return options


def database_options(sizes: Sizes, block_cache: Cache) -> Options:
    """Of the database as a whole."""
    options = _common(sizes, block_cache)
    options.create_if_missing(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_total_wal_size(sizes.wal_bytes_max)
    options.set_db_write_buffer_size(sizes.write_buffer_bytes)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_keep_log_file_num(LOG_FILES_MAX)
    options.set_max_log_file_size(1 << 20)
    options.set_max_manifest_file_size(1 << 20)
    options.set_delete_obsolete_files_period_micros(10_000_000)
    options.set_max_background_jobs(2)
    options.set_avoid_unnecessary_blocking_io(True)  # files of a dropped segment are deleted in the background
    options.set_stats_dump_period_sec(0)
    return options


def segment_options(sizes: Sizes, block_cache: Cache) -> Options:
    """Of a column family that is written, read, and dropped whole: never compacted."""
    options = _common(sizes, block_cache)
    options.set_disable_auto_compactions(True)
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)
    return options


def durable_options(sizes: Sizes, block_cache: Cache) -> Options:
    """Of the column family that is never dropped: compacted as usual."""
    return _common(sizes, block_cache)


@dataclass(slots=True)
class Opened:
    """An open database and what had to be set aside to open it."""

    database: Rdict
    families: list[str]
    sizes: Sizes
    segment_options: Options
    path: Path
    set_aside: list[str] = field(default_factory=list)
    lock: int = -1

    def close(self, families: Iterable[Rdict] = ()) -> list[str]:
        """Closes the handles of column families, then the database, and lets the directory go; what went wrong.

        RocksDB keeps its lock until the last handle is closed, so each is
        closed whatever became of the others: a full disk errs at each.
        Idempotent.
        """
        if self.lock < 0:
            return []
        troubles = []
        for handle in (*families, self.database):
            try:
                handle.close()
            except Exception as error:  # rocksdict raises no narrower class; the handle is closed nevertheless
                troubles.append(one_line(error))
        os.close(self.lock)
        self.lock = -1
        return troubles


def open_database(directory: Path, disk_bytes_max: int, durable_family: str) -> Opened:
    """Opens or begins the database in `directory`. Blocks: call it off the event loop.

    Raises StoreLocked, StoreNewer, StoreError, each in one line.
    """
    lock = lock_directory(directory)
    try:
        check_format(directory)
        return _opened(directory, disk_bytes_max, durable_family, lock)
    except BaseException:
        os.close(lock)
        raise


def _opened(directory: Path, disk_bytes_max: int, durable_family: str, lock: int) -> Opened:
    sizes = Sizes.of(disk_bytes_max)
    cache = Cache(BLOCK_CACHE_BYTES)
    options = database_options(sizes, cache)
    of_segments, of_durable = segment_options(sizes, cache), durable_options(sizes, cache)
    path = directory / DATABASE
    said: list[str] = []
    for _ in range(2):
        try:
            known = _families(path, options)
            families = {name: of_durable if name == durable_family else of_segments for name in known}
            families.pop("default", None)
            database = Rdict(str(path), options=options, column_families=families)
            if durable_family not in families:
                database.create_column_family(durable_family, options=of_durable)
            return Opened(database, sorted(families), sizes, of_segments, path, said, lock)
        except Exception as error:  # rocksdict raises no narrower class
            if not _is_damage(str(error)):
                raise StoreError(f"cannot open {path}: {one_line(error)}") from None
            said.append(f"{set_aside(path)}: {one_line(error)}")
    raise StoreError(f"cannot begin a new database in {directory}: {said[-1]}")


def _families(path: Path, options: Options) -> list[str]:
    """The column families of a database; none if there is no database yet."""
    if (path / "CURRENT").exists():
        return Rdict.list_cf(str(path), options)
    if path.exists() and any(file.suffix in (".sst", ".log") for file in path.iterdir()):
        # RocksDB would take it for an empty directory and delete what is there.
        raise FileNotFoundError("CURRENT is missing")
    return []


def _is_damage(message: str) -> bool:
    """Whether an error of opening means damaged files, not a lack of rights, space or handles."""
    excused = (
        *_NO_ROOM, "Permission denied", "Too many open files", "lock hold", "No locks available",
        "Read-only file system", "Input/output error", "Cannot allocate memory", "Stale file handle",
    )  # fmt: skip
    return not any(words in message for words in excused)


def one_line(error: Exception) -> str:
    """The words of an error of RocksDB, bounded."""
    return " ".join(str(error).split())[:300]


def is_full(error: Exception) -> bool:
    """Whether an error of a write means that there is no room."""
    return any(words in str(error) for words in _NO_ROOM)


def write(database: Rdict, family: str, records: Iterable[tuple[bytes, bytes | None]], logged: bool) -> None:
    """Puts (or with None deletes) records, all or none. Raises Exception as rocksdict does.

    A stall is waited for here, where other threads can run: inside RocksDB
    it would stop the whole process.
    """
    options = WriteOptions()
    options.disable_wal = not logged  # type: ignore[method-assign, assignment]  # an attribute, whatever its stub says
    options.no_slowdown = True
    until = time.monotonic() + STALL_S_MAX
    while True:
        try:
            database.write(_batch(database, family, records), options)
            return
        except Exception as error:  # rocksdict raises no narrower class
            if "Result incomplete" not in str(error) or time.monotonic() >= until:
                raise
            time.sleep(STALL_WAIT_S)


def _batch(database: Rdict, family: str, records: Iterable[tuple[bytes, bytes | None]]) -> WriteBatch:
    """A batch of records; one that was refused cannot be written again."""
    batch = WriteBatch(raw_mode=True)
    batch.set_default_column_family(database.get_column_family_handle(family))
    for key, record in records:
        if record is None:
            batch.delete(key)
        else:
            batch.put(key, record)
    return batch


def sync(database: Rdict) -> None:
    """Syncs everything logged so far. Raises Exception as rocksdict does."""
    database.flush_wal(True)


def values_of(family: Rdict, keys: list[bytes]) -> list[bytes | None]:
    """The values of keys, in one call. Raises Exception as rocksdict does."""
    values: list[bytes | None] = family.get(keys)  # type: ignore[arg-type, assignment]  # raw mode: bytes throughout
    return values


def items_of(family: Rdict, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys that start with a prefix and their values, in order. Raises Exception as rocksdict does."""
    yield from items_after(family, prefix, prefix)


def items_after(family: Rdict, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The same from a key on. Raises Exception as rocksdict does."""
    for key, value in family.items(from_key=start):
        if not isinstance(key, bytes) or not key.startswith(prefix):
            return
        yield key, value
