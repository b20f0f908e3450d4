"""The cache class on disk: column families written one after the other and dropped whole, oldest first.

Nothing is compacted and nothing rewritten: a payload is written once (twice
with the log) and leaves with its segment. The newest segment that knows a key
is right about it; an empty record says that it was deleted. The tombstone lies
in the newest segment and the copies it hides in older ones, which go first.

Used by the writer's thread, which alone rotates and drops; readers take the
tuple `newest_first`, whose handles stay good while they hold them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocksdict import Options, Rdict

from terracekv.tiers.clock import Clock
from terracekv.tiers.data_directory import directory_bytes
from terracekv.tiers.rocks import Opened, sync, write

PREFIX: Final = "segment-"
SEGMENT_BYTES_MIN: Final = 4_194_304
SEGMENT_BYTES_MAX: Final = 1_073_741_824
SEGMENTS_TARGET: Final = 16
SEGMENTS_MAX: Final = 32  # beyond, age alone begins no new one: every look-up asks each segment
AGE_S_MAX: Final = 6 * 3_600.0
VALUE_SHARE: Final = 4  # one value may take a quarter of the budget
BATCH_BYTES_MAX: Final = 1_048_576  # rocksdict holds the interpreter while it writes: about 2 ms of it
YIELD_S: Final = 0.000_05
DELETED: Final = b""

Record = tuple[bytes, bytes]


def segment_bytes_of(disk_bytes_max: int) -> int:
    """The size at which a segment is full: 1/16 of the budget, 4 MiB to 1 GiB."""
    return max(SEGMENT_BYTES_MIN, min(SEGMENT_BYTES_MAX, disk_bytes_max // SEGMENTS_TARGET))


@dataclass(slots=True)
class Segment:
    """One column family. `written_bytes` counts keys and values put into it.

    `unlogged`: it may hold records that kill -9 would lose.
    """

    number: int
    name: str
    family: Rdict
    born_s: float
    written_bytes: int = 0
    unlogged: bool = False

    def may_lose(self) -> bool:
        """Whether kill -9 may lose a record of it: one neither logged nor flushed."""
        if self.unlogged:
            waiting = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")
            self.unlogged = any(self.family.property_int_value(name) for name in waiting)
        return self.unlogged

    def entries(self) -> int:
        """About how many records it holds."""
        return self.family.property_int_value("rocksdb.estimate-num-keys") or 0

    def memtable_bytes(self) -> int:
        """Bytes that a flush has yet to write."""
        return self.family.property_int_value("rocksdb.cur-size-all-mem-tables") or 0

    def file_bytes(self) -> int:
        """Bytes of its files."""
        return self.family.property_int_value("rocksdb.total-sst-files-size") or 0


def _batches(units: Iterable[Sequence[Record]]) -> Iterator[tuple[list[Record], int]]:
    """Records in batches of about 1 MiB with their bytes; a unit is never torn."""
    batch: list[Record] = []
    batch_bytes = 0
    for unit in units:
        unit_bytes = sum(len(key) + len(record) for key, record in unit)
        if batch and batch_bytes + unit_bytes > BATCH_BYTES_MAX:
            yield batch, batch_bytes
            batch, batch_bytes = [], 0
        batch.extend(unit)
        batch_bytes += unit_bytes
    if batch:
        yield batch, batch_bytes


class Segments:
    """The segments of one database; with all else in its folder they stay within `disk_bytes_max`.

    A value over `value_bytes_max` must not be written.
    """

    def __init__(self, opened: Opened, disk_bytes_max: int, clock: Clock) -> None:
        self.evictions = 0
        self.used_bytes = 0
        self.dropped_segments = 0
        self._database = opened.database
        self._path: Path = opened.path
        self._options: Options = opened.segment_options
        self._clock = clock
        self._disk_bytes_max = disk_bytes_max
        self.segment_bytes = segment_bytes_of(disk_bytes_max)
        self.value_bytes_max = disk_bytes_max // VALUE_SHARE
        # Tables are a little larger than what goes into them, and files of a dropped segment linger for a moment.
        self._headroom_bytes = min(self.segment_bytes, disk_bytes_max // 16)
        self._unmeasured_bytes = 0
        numbers = sorted(int(name.removeprefix(PREFIX)) for name in opened.families if name.startswith(PREFIX))
        self.newest_first: tuple[Segment, ...] = tuple(
            self._segment(number, opened.database.get_column_family(f"{PREFIX}{number:08d}"))
            for number in reversed(numbers)
        )
        if not self.newest_first:
            self._begin(1)
        self.active.written_bytes = self.active.file_bytes()
        self.measure()
        self.make_room(0)  # the budget may be smaller than it was

    @property
    def active(self) -> Segment:
        """The one that is written."""
        return self.newest_first[0]

    def _segment(self, number: int, family: Rdict) -> Segment:
        return Segment(number, f"{PREFIX}{number:08d}", family, self._clock.age_s())

    def _begin(self, number: int) -> None:
        family = self._database.create_column_family(f"{PREFIX}{number:08d}", options=self._options)
        self.newest_first = (self._segment(number, family), *self.newest_first)

    def write(self, units: Iterable[Sequence[Record]], logged: bool) -> None:
        """Puts records into the active segment, those of a unit all or none. Raises Exception as rocksdict does."""
        for records, size_bytes in _batches(units):
            active = self.active
            self.make_room(size_bytes * (2 if logged else 1))
            write(self._database, active.name, records, logged)
            active.written_bytes += size_bytes
            active.unlogged = active.unlogged or not logged
            if size_bytes >= BATCH_BYTES_MAX // 4:
                time.sleep(YIELD_S)  # the event loop's turn, or it would wait for the whole of a large value

    def sync(self) -> None:
        """Syncs everything logged so far. Raises Exception as rocksdict does."""
        sync(self._database)

    def may_lose(self) -> bool:
        """Whether kill -9 may lose a record of any segment."""
        return any(segment.may_lose() for segment in self.newest_first)

    def rotate_if_full(self) -> None:
        """Begins the next segment if the active one is full or old; its writes go to disk in the background."""
        active = self.active
        few = len(self.newest_first) < SEGMENTS_MAX
        old = few and active.written_bytes > 0 and self._clock.age_s() - active.born_s > AGE_S_MAX
        if active.written_bytes >= self.segment_bytes or old:
            active.family.flush(False)
            self._begin(active.number + 1)

    def make_room(self, size_bytes: int) -> None:
        """Drops the oldest segments until what is to be written surely fits the budget."""
        self._unmeasured_bytes += size_bytes
        if self._fits():
            return
        self.measure()
        self._unmeasured_bytes = size_bytes
        while not self._fits() and len(self.newest_first) > 1:
            self._drop_oldest()

    def _fits(self) -> bool:
        return self.used_bytes + self._unmeasured_bytes + self._headroom_bytes <= self._disk_bytes_max

    def _drop_oldest(self) -> None:
        *kept, oldest = self.newest_first
        self.newest_first = tuple(kept)
        self.evictions += oldest.entries()
        self.dropped_segments += 1
        # Booked, not measured: its files go when the last handle does, and a reader may hold one a moment longer.
        self.used_bytes -= oldest.file_bytes() + oldest.memtable_bytes()
        self._database.drop_column_family(oldest.name)

    def measure(self) -> None:
        """Reads what the files take on disk, as `du` counts, and adds what flushes have yet to write."""
        memtable_bytes = sum(segment.memtable_bytes() for segment in self.newest_first)
        self.used_bytes = directory_bytes(self._path) + memtable_bytes
        self._unmeasured_bytes = 0

    def flush(self) -> None:
        """Writes what is in memory to disk, so that after a clean stop unlogged entries are there too."""
        for segment in self.newest_first:
            if segment.may_lose():
                segment.family.flush()

    def release(self) -> list[Rdict]:
        """Forgets the segments; the handles that must be closed before the database."""
        families = [segment.family for segment in self.newest_first]
        self.newest_first = ()
        return families

    def used_bytes_now(self) -> int:
        """What is on disk or will be after a flush, as far as it was measured and booked."""
        return self.used_bytes + self._unmeasured_bytes

    def clear(self) -> None:
        """Begins anew and drops every other segment."""
        self._begin(self.active.number + 1)
        while len(self.newest_first) > 1:
            self._drop_oldest()
