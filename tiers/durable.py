"""The durable class on disk: small records in atomic commits, never dropped for room, refused when over the quota."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Final, TypeVar

from rocksdict import Rdict

from terracekv.tiers.clock import Deadline
from terracekv.tiers.errors import TierFull, TierUnavailable
from terracekv.tiers.rocks import Opened, is_full, items_of, one_line, sync, values_of, write
from terracekv.tiers.segments import Segments

DURABLE_FAMILY: Final = "durable"

T = TypeVar("T")


class DurableStore:
    """Records by key in the column family that is never dropped, at most `bytes_max` of them.

    Its bytes are part of the directory's budget: segments of the cache class
    make room for them. Every call runs in the writer's thread, in order.
    """

    def __init__(self, opened: Opened, segments: Segments, executor: Executor, bytes_max: int) -> None:
        self._database = opened.database
        self._segments = segments
        self._family = opened.database.get_column_family(DURABLE_FAMILY)
        self._executor = executor
        self._bytes_max = bytes_max

    @property
    def family(self) -> Rdict:
        """Its handle, which must be closed before the database."""
        return self._family

    def used_bytes(self) -> int:
        """About what its records take: tables and what a flush has yet to write."""
        family = self._family
        tables = family.property_int_value("rocksdb.total-sst-files-size") or 0
        return tables + (family.property_int_value("rocksdb.cur-size-all-mem-tables") or 0)

    async def get(self, key: bytes) -> bytes | None:
        """One record. Raises TierUnavailable."""
        return await self._run(lambda: values_of(self._family, [key])[0])

    async def scan(self, prefix: bytes) -> dict[bytes, bytes]:
        """All records whose key starts with `prefix`. Raises TierUnavailable."""
        return await self._run(lambda: dict(items_of(self._family, prefix)))

    async def commit(self, batch: Mapping[bytes, bytes | None], sync: bool) -> None:
        """Puts (or with None deletes) records, all or none. Raises TierFull, TierUnavailable: then unknown."""
        await self._run(lambda: self._commit(batch, sync))

    def _commit(self, batch: Mapping[bytes, bytes | None], synced: bool) -> None:
        size_bytes = sum(len(key) + len(record or b"") for key, record in batch.items())
        if any(record is not None for record in batch.values()) and self.used_bytes() + size_bytes > self._bytes_max:
            raise TierFull(f"durable data is over its {self._bytes_max} bytes")
        self._segments.make_room(2 * size_bytes)  # in the log and in the table
        write(self._database, DURABLE_FAMILY, list(batch.items()), logged=True)
        if synced:
            sync(self._database)

    async def swap(self, key: bytes, expected: bytes | None, record: bytes) -> bool:
        """Sets a record, synced, if it is still `expected`. Raises TierFull, TierUnavailable."""
        return await self._run(lambda: self._swap(key, expected, record))

    def _swap(self, key: bytes, expected: bytes | None, record: bytes) -> bool:
        # One thread runs all of these: nothing comes between the look and the write.
        if values_of(self._family, [key]) != [expected]:
            return False
        self._commit({key: record}, synced=True)
        return True

    async def _run(self, operation: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, operation)
        except TierFull:
            raise
        except Exception as error:  # rocksdict raises no narrower class; a closed executor is RuntimeError
            narrower = TierFull if is_full(error) else TierUnavailable
            raise narrower(f"disk: {one_line(error)}") from None


class DurableRecords:
    """base.RecordStore over a durable store: where namespaces live without a shared tier, and their copies with one."""

    def __init__(self, store: DurableStore, prefix: bytes = b"namespace/") -> None:
        self._store = store
        self._prefix = prefix

    async def load(self, deadline: Deadline) -> dict[str, bytes]:
        """All records. Raises TierError."""
        records = await self._store.scan(self._prefix)
        return {key.removeprefix(self._prefix).decode(): record for key, record in records.items()}

    async def swap(self, name: str, expected: bytes | None, value: bytes, deadline: Deadline) -> bool:
        """Compare and set, synced. Raises TierError."""
        return await self._store.swap(self._prefix + name.encode(), expected, value)


class DurableNumber:
    """One number under a key, kept before it is used: versions.Reservation."""

    def __init__(self, store: DurableStore, key: bytes) -> None:
        self._store = store
        self._key = key

    async def load(self) -> int:
        """The number kept last, or 0. Raises TierError."""
        return int.from_bytes(await self._store.get(self._key) or b"", "big")

    async def save(self, number: int) -> None:
        """Keeps a number, synced. Raises TierError."""
        await self._store.commit({self._key: number.to_bytes(8, "big")}, sync=True)
