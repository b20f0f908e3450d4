"""Values too large for one Redis record: parts of at most 1 MiB in the record's slot, a head record written last.

A reader sees the whole value of a head or none. Parts are written with a
short life and get that of the head in the step that makes it visible, so that
an upload that was cut leaves nothing behind for long. A head of which a part
is gone (evicted, removed by hand) is torn: it is removed and the value missed.
What a crash can leave for good are the parts of a value without expiry whose
head was just replaced or deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from terracekv.tiers.buckets import KeyNames
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import FRAME_BYTES_MAX, Entry, Key, TierFailure
from terracekv.tiers.envelope import Record, encode_parts
from terracekv.tiers.redis_masters import Command, RedisMasters, Unit
from terracekv.tiers.redis_nodes import failure_of, single_of
from terracekv.tiers.scripts import DROP, STORE

PARTS_MAX: Final = 1_024
PARTS_AT_ONCE: Final = 32
UPLOAD_LIFE_MS: Final = 600_000  # of parts whose head is not written yet
PARTS_ID_BYTES: Final = 8
REMOVAL_TIMEOUT_S: Final = 5.0


class Upload:
    """The parts of one value, written; its head, still to be stored."""

    def __init__(self, head: bytes, names: list[bytes]) -> None:
        self.head = head
        self.names = names


class Parts:
    """Reads, writes and removes the parts of large values."""

    def __init__(self, masters: RedisMasters, names: KeyNames, token: Callable[[int], bytes]) -> None:
        self._masters = masters
        self._names = names
        self._token = token

    async def read(self, bucket: int, record: Record, deadline: Deadline) -> list[bytes] | TierFailure | None:
        """The payload as stored, in parts; None if one is gone."""
        names = self._names.parts(bucket, record.parts_id, len(record.part_sizes))
        parts: list[bytes] = []
        for at in range(0, len(names), PARTS_AT_ONCE):
            units = [
                Unit(bucket, (("GET", name),), reply_bytes=size, reply_bytes_max=FRAME_BYTES_MAX)
                for name, size in zip(names[at : at + PARTS_AT_ONCE], record.part_sizes[at:], strict=False)
            ]
            for replies in await self._masters.run(units, deadline):
                part = single_of(replies)
                if not isinstance(part, bytes):
                    return part
                parts.append(part)
        return parts

    async def upload(self, key: Key, entry: Entry, deadline: Deadline) -> Upload | TierFailure:
        """Writes the parts of an entry."""
        parts_id = self._token(PARTS_ID_BYTES)
        # Off the loop: codecs are slow, and frames that need regrouping are copied.
        head, parts = await asyncio.to_thread(_encoded, key, entry, parts_id)
        names = self._names.parts(key.bucket, parts_id, len(parts))
        for at in range(0, len(parts), PARTS_AT_ONCE):
            units = [
                Unit(key.bucket, (("SET", name, part, "PX", UPLOAD_LIFE_MS),), sent_bytes=len(part))
                for name, part in zip(names[at : at + PARTS_AT_ONCE], parts[at:], strict=False)
            ]
            for replies in await self._masters.run(units, deadline):
                written = single_of(replies)
                if isinstance(written, TierFailure):
                    self._unlink(key.bucket, names, deadline.clock)
                    return written
        return Upload(head, names)

    def publishing(self, key: Key, upload: Upload, mode: str, version: int, life_ms: int) -> Command:
        """The command that makes an upload visible: the STORE script."""
        record = self._names.record(key)
        return STORE.call([record, *upload.names], mode, version.to_bytes(8, "little"), life_ms, upload.head)

    def abandon(self, key: Key, upload: Upload, clock: Clock) -> None:
        """Removes an upload that is not to be published. Nobody waits for it."""
        self._unlink(key.bucket, upload.names, clock)

    def remove(self, bucket: int, record: Record, clock: Clock) -> None:
        """Removes the parts of a head that is gone. Nobody waits for it, and no caller's deadline ends it."""
        self._unlink(bucket, self._names.parts(bucket, record.parts_id, len(record.part_sizes)), clock)

    async def drop(self, key: Key, beginning: bytes, deadline: Deadline) -> bool | TierFailure:
        """Removes a record that begins as it did when it was read; whether it still did."""
        command = DROP.call([self._names.record(key)], beginning)
        (replies,) = await self._masters.run([Unit(key.bucket, (command,))], deadline)
        failure = replies if isinstance(replies, TierFailure) else failure_of(replies[0])
        return failure if failure is not None else replies == [1]

    def _unlink(self, bucket: int, names: Sequence[bytes], clock: Clock) -> None:
        async def unlink() -> None:
            # If it fails, their expiry removes them.
            await self._masters.run([Unit(bucket, (("UNLINK", *names),))], Deadline.after(REMOVAL_TIMEOUT_S, clock))

        self._masters.in_background(unlink())


def _encoded(key: Key, entry: Entry, parts_id: bytes) -> tuple[bytes, list[bytes]]:
    count = sum(max(1, -(-len(frame) // FRAME_BYTES_MAX)) for frame in entry.frames)
    if count > PARTS_MAX:
        entry = Entry(entry.head, _regrouped(entry.frames))
    return encode_parts(key, entry, parts_id)


def _regrouped(frames: Sequence[bytes]) -> tuple[bytes, ...]:
    """The same bytes in frames of exactly 1 MiB, but for the last: clients choose how they cut an upload."""
    out: list[bytes] = []
    pending = bytearray()
    for frame in frames:
        view = memoryview(frame)
        while view:
            taken = FRAME_BYTES_MAX - len(pending)
            pending += view[:taken]
            view = view[taken:]
            if len(pending) == FRAME_BYTES_MAX:
                out.append(bytes(pending))
                pending.clear()
    return (*out, bytes(pending)) if pending else tuple(out)
