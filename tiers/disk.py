"""L3: a log-structured store on this node's disk; reads in threads, one writer, within a byte budget.

What was acked LOGGED survives kill -9 and what was acked SYNCED a power cut,
until it expires or its segment is dropped to keep the budget.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar, cast

from terracekv.tiers.base import TierState, WriteLevel
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.disk_reader import DiskReader
from terracekv.tiers.disk_writer import DiskWriter
from terracekv.tiers.durable import DURABLE_FAMILY, DurableStore
from terracekv.tiers.entry import (
    DeleteResult,
    Entry,
    FailureReason,
    Found,
    HeadFound,
    Key,
    PutResult,
    Stored,
    TierFailure,
    TierName,
)
from terracekv.tiers.rocks import Opened, one_line, open_database
from terracekv.tiers.segments import Segments
from terracekv.tiers.stats import TierCounters

LOG: Final = logging.getLogger("terracekv.disk")
LOOK_THREADS: Final = 2
BULK_THREADS: Final = 2  # for large payloads, apart, so that a look-up never queues behind them
READS_INFLIGHT_MAX: Final = 1_024

T = TypeVar("T")


class DiskTier:
    """The disk tier over one open database; see `open_disk`. `durable` is the other class in the same database."""

    name = TierName.DISK

    def __init__(self, opened: Opened, disk_bytes_max: int, durable_bytes_max: int, clock: Clock) -> None:
        self.set_aside = tuple(opened.set_aside)  # what could not be opened and lies beside, for log and health
        self._opened = opened
        self._clock = clock
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        # The last errors, each until its like succeeds: after a full disk reads go on and writes may never again.
        self._read_error = ""
        self._write_error = ""
        self._reads = 0
        self._lookers = ThreadPoolExecutor(LOOK_THREADS, "terracekv-disk-look")
        self._bulk = ThreadPoolExecutor(BULK_THREADS, "terracekv-disk-bulk")
        self._writers = ThreadPoolExecutor(1, "terracekv-disk-write")
        self._segments = Segments(opened, disk_bytes_max, clock)
        self._reader = DiskReader(self._segments)
        self._writer = DiskWriter(self._segments, self._reader, self._writers, clock)
        self._counters = TierCounters(capacity_bytes=disk_bytes_max)
        self.durable = DurableStore(opened, self._segments, self._writers, durable_bytes_max)

    @property
    def counters(self) -> TierCounters:
        """Its counters, live."""
        self._counters.used_bytes = self._segments.used_bytes_now()
        self._counters.evictions = self._segments.evictions
        return self._counters

    async def get_many(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None = None) -> list[Found]:
        """As in the contract."""
        now_us = self._clock.now_us()
        reading = await self._in_thread(lambda: self._reader.begin(keys, bytes_max, now_us), deadline)
        if isinstance(reading, TierFailure):
            self._counters.failures += len(keys)
            return [reading] * len(keys)
        while reading.waiting:
            stepped = await self._in_thread(lambda: self._reader.step(reading), deadline, self._bulk)
            if isinstance(stepped, TierFailure):
                for place in reading.unread():
                    reading.found[place] = stepped
                break
        self._counters.corrupt += reading.corrupt
        self._book(reading.found)
        self._counters.read_bytes += sum(one.head.size_bytes for one in reading.found if isinstance(one, Entry))
        return reading.found

    async def head_many(self, keys: Sequence[Key], deadline: Deadline) -> list[HeadFound]:
        """As in the contract."""
        now_us = self._clock.now_us()
        heads = await self._in_thread(lambda: self._reader.heads(keys, now_us), deadline)
        if isinstance(heads, TierFailure):
            self._counters.failures += len(keys)
            return [heads] * len(keys)
        found, corrupt = heads
        self._counters.corrupt += corrupt
        self._book(found)
        return found

    def _book(self, found: Sequence[object]) -> None:
        hits = sum(bool(one) for one in found)
        failures = sum(isinstance(one, TierFailure) for one in found)
        self._counters.hits += hits
        self._counters.failures += failures
        self._counters.misses += len(found) - hits - failures

    async def put_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        """As in the contract. A failure after the deadline means that the write may still happen.

        An entry over a quarter of the budget fails as FULL: it would push out everything else.
        """
        refused = await self._not_admitted(sum(entry.head.size_bytes for _, entry in items), deadline)
        if refused is not None:
            self._counters.failures += len(items)
            return [refused] * len(items)
        answers = {
            place: self._writer.submit(key, entry, level)
            for place, (key, entry) in enumerate(items)
            if entry.head.size_bytes <= self._segments.value_bytes_max
        }
        await self._settled(list(answers.values()), deadline)
        results: list[PutResult] = [
            cast(PutResult, self._landed(answers[place])) if place in answers else self._too_large(entry)
            for place, (_, entry) in enumerate(items)
        ]
        for (_, entry), result in zip(items, results, strict=True):
            self._book_put(entry, result)
        return results

    def _too_large(self, entry: Entry) -> TierFailure:
        self._counters.skipped_bytes += entry.head.size_bytes
        limit = f"over the {self._segments.value_bytes_max} bytes that one value may take of the disk"
        return TierFailure(self.name, FailureReason.FULL, limit)

    def _book_put(self, entry: Entry, result: PutResult) -> None:
        if isinstance(result, TierFailure):
            self._counters.failures += 1
        elif result.kept:
            self._counters.kept += 1
        else:
            self._counters.puts += 1
            self._counters.written_bytes += entry.head.size_bytes

    async def delete_many(
        self, keys: Sequence[Key], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[DeleteResult]:
        """As in the contract."""
        refused = self._refused(deadline)
        if refused is not None:
            self._counters.failures += len(keys)
            return [refused] * len(keys)
        answers = [self._writer.submit(key, None, level) for key in keys]
        await self._settled(answers, deadline)
        results = [landed if isinstance(landed := self._landed(answer), TierFailure) else None for answer in answers]
        self._counters.deletes += results.count(None)
        self._counters.failures += len(results) - results.count(None)
        return results

    def _refused(self, deadline: Deadline) -> TierFailure | None:
        if self._closed:
            return TierFailure(self.name, FailureReason.UNAVAILABLE, "closed")
        if deadline.passed():
            return TierFailure(self.name, FailureReason.TIMEOUT, "the deadline passed")
        return None

    async def _not_admitted(self, size_bytes: int, deadline: Deadline) -> TierFailure | None:
        refused = self._refused(deadline)
        if refused is None and not await self._writer.admit(size_bytes, deadline):
            return TierFailure(self.name, FailureReason.TIMEOUT, "the deadline passed before there was room to write")
        return self._refused(deadline) if refused is None else refused

    @staticmethod
    async def _settled(answers: Sequence[asyncio.Future[T]], deadline: Deadline) -> None:
        if answers:
            await asyncio.wait(answers, timeout=deadline.left_s())

    def _landed(self, answer: asyncio.Future[Stored | TierFailure | None]) -> Stored | TierFailure | None:
        if not answer.done():
            return TierFailure(self.name, FailureReason.TIMEOUT, "the deadline passed while writing")
        result = answer.result()
        if isinstance(result, TierFailure):
            self._write_error = result.detail
        elif isinstance(result, Stored) and not result.kept:  # what was kept or absent need not have been written
            self._write_error = ""
        return result

    async def _in_thread(
        self, read: Callable[[], T], deadline: Deadline, executor: ThreadPoolExecutor | None = None
    ) -> T | TierFailure:
        """Runs a read in a thread and waits for it no longer than the deadline; it ends by itself."""
        refused = self._refused(deadline)
        if refused is not None:
            return refused
        if self._reads >= READS_INFLIGHT_MAX:
            return TierFailure(self.name, FailureReason.UNAVAILABLE, "too many reads wait for the disk")
        running = asyncio.get_running_loop().run_in_executor(executor or self._lookers, read)
        self._reads += 1
        running.add_done_callback(self._read_over)
        await asyncio.wait([running], timeout=deadline.left_s())
        if not running.done():
            return TierFailure(self.name, FailureReason.TIMEOUT, "the deadline passed while reading")
        error = running.exception()
        if error is not None:
            self._read_error = one_line(Exception(str(error)))
            return TierFailure(self.name, FailureReason.UNAVAILABLE, self._read_error)
        self._read_error = ""
        return running.result()

    def _read_over(self, running: asyncio.Future[T]) -> None:
        self._reads -= 1
        if not running.cancelled():
            running.exception()  # seen, also when nobody waits any more

    async def scan_mutable(self, deadline: Deadline) -> AsyncIterator[list[tuple[Key, Entry]]]:
        """Live mutable entries, each once, at most 256 at a time. Raises nothing: what cannot be read is left out.

        One that is written meanwhile may come in either version or not at all: whoever wrote it knows of it.
        """
        runs: Iterator[list[Key]] = self._reader.scan_mutable(self._clock.now_us())
        while True:
            keys = await self._in_thread(lambda: next(runs, None), deadline)
            if keys is None or isinstance(keys, TierFailure):
                return
            found = await self.get_many(keys, deadline)
            yield [(key, one) for key, one in zip(keys, found, strict=True) if isinstance(one, Entry)]

    async def clear(self) -> None:
        """Drops every segment; durable data stays. Nothing to do after `close`."""
        if not self._closed:
            await self._writer.drained()
            await asyncio.get_running_loop().run_in_executor(self._writers, self._segments.clear)

    def state(self) -> tuple[TierState, str]:
        """Down while closed; degraded after an error, until an operation of its kind succeeds."""
        if self._closed:
            return TierState.DOWN, "closed"
        error = self._write_error or self._read_error
        if error:
            return TierState.DEGRADED, error
        return TierState.UP, f"{len(self._segments.newest_first)} segments"

    async def close(self) -> None:
        """Writes what is queued, flushes, and lets the directory go. Idempotent; goes on if its caller is cancelled."""
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._writer.drained()
        await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        for executor in (self._lookers, self._bulk, self._writers):
            executor.shutdown(wait=True)
        troubles = []
        try:
            self._segments.flush()
        except Exception as error:  # rocksdict raises no narrower class
            troubles.append(one_line(error))
        troubles += self._opened.close([*self._segments.release(), self.durable.family])
        if troubles:
            LOG.warning("closed without all unlogged entries", extra={"reason": troubles[0]})


async def open_disk(directory: Path, disk_bytes_max: int, durable_bytes_max: int, clock: Clock) -> DiskTier:
    """Opens the disk tier in a directory. Raises StoreLocked, StoreNewer, StoreError, each in one line."""
    return await asyncio.to_thread(_open, directory, disk_bytes_max, durable_bytes_max, clock)


def _open(directory: Path, disk_bytes_max: int, durable_bytes_max: int, clock: Clock) -> DiskTier:
    opened = open_database(directory, disk_bytes_max, DURABLE_FAMILY)
    try:
        return DiskTier(opened, disk_bytes_max, durable_bytes_max, clock)
    except BaseException:
        opened.close()
        raise
