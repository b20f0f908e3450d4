"""Stores blocks behind the caller's back in bounded memory; a tier that fails or lags costs blocks, never the caller.

One thread stores what was submitted, in order. What waits is bounded in bytes: over the bound a submission waits a
bounded time, then its blocks are dropped and counted.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class WriterCounters:
    """What became of the blocks submitted since the writer was made."""

    stored: int = 0  # new to the cache
    kept: int = 0  # the cache had them already
    differing: int = 0  # of those kept: with other bytes than ours
    failed: int = 0  # refused by the cache, or lost to an error of the call
    dropped: int = 0  # not sent, for lack of room


@dataclasses.dataclass(frozen=True, slots=True)
class PendingBlock:
    """A block that is made into bytes only when its turn comes."""

    key: tuple[bytes, int]  # chain digest and layer group
    encode: Callable[[], bytes]


class BlockWriter:
    """Stores submitted blocks through a client, one submission after the other, on a thread of its own."""

    def __init__(self, store: Callable[[list[tuple[tuple[bytes, int], bytes]]], Any], pending_bytes_max: int) -> None:
        """`store` takes (key, payload) pairs and returns a report with stored, kept, failed and differing."""
        self.counters = WriterCounters()
        self._store = store
        self._pending_bytes_max = pending_bytes_max
        self._pending_bytes = 0  # guarded by _changed
        self._changed = threading.Condition()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="terracekv-block-writer")

    def submit(self, blocks: Sequence[PendingBlock], size_bytes: int, wait_s_max: float) -> bool:
        """Queues blocks that hold `size_bytes` of memory until stored; False: dropped, there was no room in time.

        A submission larger than the whole bound is taken when nothing else waits.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_room(size_bytes), timeout=wait_s_max):
                self.counters.dropped += len(blocks)
                return False
            self._pending_bytes += size_bytes
        self._thread.submit(self._run, blocks, size_bytes)
        return True

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything submitted so far is stored or counted as failed; False: not in that time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending_bytes == 0, timeout=timeout_s)

    def close(self) -> None:
        """Stores what waits, then ends the thread."""
        self._thread.shutdown(wait=True)

    def _has_room(self, size_bytes: int) -> bool:
        return self._pending_bytes == 0 or self._pending_bytes + size_bytes <= self._pending_bytes_max

    def _run(self, blocks: Sequence[PendingBlock], size_bytes: int) -> None:
        try:
            report = self._store([(block.key, block.encode()) for block in blocks])
        except Exception as error:  # whatever a cache does, generation goes on
            self.counters.failed += len(blocks)
            _log.warning("blocks not stored: %s", type(error).__name__, extra={"blocks": len(blocks)})
        else:
            self._count(report)
        finally:
            with self._changed:
                self._pending_bytes -= size_bytes
                self._changed.notify_all()

    def _count(self, report: Any) -> None:
        self.counters.stored += report.stored
        self.counters.kept += report.kept
        self.counters.failed += report.failed
        self.counters.differing += report.differing
