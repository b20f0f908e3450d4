"""Many keys in one call of the client: batches cut, deferred values asked for again, answers by column read.

Every key gets its own answer, in order, whatever becomes of the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from terracekv.client import errors
from terracekv.client.calls import (
    CHECKSUM_BYTES,
    Deferred,
    WriteOptions,
    as_key,
    checksum_of,
    snapshot,
    tier_failed,
    tier_name,
    unknown_status,
)
from terracekv.client.errors import TerraceKVError
from terracekv.client.policy import BATCH_KEYS_MAX, DEFERRED_ROUNDS_MAX, UNARY_BYTES_MAX
from terracekv.client.values import MISS, Failed, Hit, Miss, Put
from terracekv.v1 import cache_pb2 as pb

if TYPE_CHECKING:
    from terracekv.client.values import BytesLike, Key


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Rows of a large call that go in one RPC; one row by a stream if `streamed`."""

    rows: tuple[int, ...]
    streamed: bool = False


def pack(sizes_bytes: Mapping[int, int], bytes_max: int = UNARY_BYTES_MAX) -> list[Part]:
    """Cuts rows, in order, into batches of at most 1,024 rows and `bytes_max`; a larger row is streamed."""
    parts: list[Part] = []
    rows: list[int] = []
    total_bytes = 0
    for row, size_bytes in sizes_bytes.items():
        if size_bytes > bytes_max:
            parts.append(Part((row,), streamed=True))
            continue
        if rows and (len(rows) == BATCH_KEYS_MAX or total_bytes + size_bytes > bytes_max):
            parts.append(Part(tuple(rows)))
            rows, total_bytes = [], 0
        rows.append(row)
        total_bytes += size_bytes
    return [*parts, Part(tuple(rows))] if rows else parts


class ManyRead:
    """The rounds of a get_many: ask `parts` until there are none, `take` what came of each, then `results`."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = keys
        self._answers: list[Hit | Miss | Failed | None] = [None] * len(keys)
        self._pending = {row: len(key) for row, key in enumerate(keys)}
        self._rounds = 0
        self._answered = not keys
        self._error: TerraceKVError | None = None

    def size_bytes(self, row: int) -> int:
        """The size of a value that was deferred."""
        return self._pending[row]

    def parts(self) -> list[Part]:
        """What to ask next."""
        if self._rounds > DEFERRED_ROUNDS_MAX:  # values keep growing between asking: streams have no limit to miss
            return [Part((row,), streamed=True) for row in self._pending]
        return pack(self._pending)

    def take(self, part: Part, outcome: Sequence[Hit | Miss | Failed | Deferred] | TerraceKVError) -> None:
        """What one part answered, or the error of its call."""
        if isinstance(outcome, TerraceKVError):
            self._error = self._error or outcome
            outcome = [Failed(outcome)] * len(part.rows)
        else:
            self._answered = True
        for row, answer in zip(part.rows, outcome, strict=True):
            if isinstance(answer, Deferred):
                self._pending[row] = answer.size_bytes
            else:
                self._answers[row] = answer
                del self._pending[row]

    def end_round(self) -> None:
        """After all parts of a round were taken."""
        self._rounds += 1

    def results(self) -> list[Hit | Miss | Failed]:
        """An answer for each key, in order. Raises the first error if no call was answered at all."""
        if self._error is not None and not self._answered:
            raise self._error
        return [answer for answer in self._answers if answer is not None]


def read_get_many(response: pb.GetManyResponse, rows: int) -> list[Hit | Miss | Failed | Deferred]:
    """The answers to a batch. Raises DataLoss where the columns do not fit each other."""
    columns = (response.statuses, response.sizes_bytes, response.versions, response.expires_in_us, response.tiers)
    if any(len(column) != rows for column in columns) or len(response.checksums) != rows * CHECKSUM_BYTES:
        raise errors.DataLoss(f"the reply to {rows} keys has columns of other lengths")
    payload, checksums = response.payload, response.checksums
    answers: list[Hit | Miss | Failed | Deferred] = []
    at = 0
    for row, (status, size_bytes, version, expires_in_us, tier) in enumerate(zip(*columns, strict=True)):
        if status == pb.KEY_STATUS_HIT:
            value = payload[at : at + size_bytes]
            at += size_bytes
            checksum = checksums[row * CHECKSUM_BYTES : (row + 1) * CHECKSUM_BYTES]
            expires_in_s = expires_in_us / 1e6 if expires_in_us else None
            answers.append(proven_hit(Hit(value, version, tier_name(tier), expires_in_s), size_bytes, checksum))
        else:
            answers.append(_read_status(status, size_bytes, tier))
    if at != len(payload):
        raise errors.DataLoss(f"the sizes of the values add up to {at}, not to {len(payload)} bytes")
    return answers


def proven_hit(hit: Hit, size_bytes: int, checksum: bytes) -> Hit | Failed:
    """The hit, if its bytes are those declared."""
    if len(hit.value) == size_bytes and checksum_of(hit.value) == checksum:
        return hit
    return Failed(errors.ChecksumMismatch("the bytes that arrived have another checksum"))


def _read_status(status: int, size_bytes: int, tier: int) -> Miss | Failed | Deferred:
    if status == pb.KEY_STATUS_MISS:
        return MISS
    if status == pb.KEY_STATUS_DEFERRED:
        return Deferred(size_bytes)
    return _failed(status, tier)


def _failed(status: int, tier: int = 0) -> Failed:
    return Failed(tier_failed(tier) if status == pb.KEY_STATUS_UNAVAILABLE else unknown_status(status))


class ManyWrite:
    """A put_many: its values as they were at the time of the call, its `parts`, and what became of them.

    Of equal keys only the last is sent, so that batches sent at once cannot
    race; each of them gets its answer.
    """

    def __init__(self, items: Mapping[Key, BytesLike] | Iterable[tuple[Key, BytesLike]]) -> None:
        pairs = items.items() if isinstance(items, Mapping) else items
        self.items = [(as_key(key), snapshot(value)) for key, value in pairs]
        self._last = {key: row for row, (key, _) in enumerate(self.items)}
        self._results: dict[int, Put | Failed] = {}
        self._answered = not self.items
        self._error: TerraceKVError | None = None

    def parts(self) -> list[Part]:
        """What to send."""
        rows = sorted(self._last.values())
        return pack({row: len(self.items[row][0]) + len(self.items[row][1]) for row in rows})

    def request(self, part: Part, options: WriteOptions) -> pb.PutManyRequest:
        """The message of a part that is not streamed."""
        values = [self.items[row][1] for row in part.rows]
        request = pb.PutManyRequest(
            keys=[self.items[row][0] for row in part.rows],
            payload=b"".join(values),
            sizes_bytes=[len(value) for value in values],
            checksums=b"".join(map(checksum_of, values)),
        )
        options.fill(request)
        return request

    def take(self, part: Part, outcome: Sequence[Put | Failed] | TerraceKVError) -> None:
        """What one part answered, or the error of its call."""
        if isinstance(outcome, TerraceKVError):
            self._error = self._error or outcome
            outcome = [Failed(outcome)] * len(part.rows)
        else:
            self._answered = True
        self._results.update(zip(part.rows, outcome, strict=True))

    def results(self) -> list[Put | Failed]:
        """An answer for each value, in order. Raises the first error if no call was answered at all."""
        if self._error is not None and not self._answered:
            raise self._error
        return [self._results[self._last[key]] for key, _ in self.items]


def read_put_many(response: pb.PutManyResponse, rows: int) -> list[Put | Failed]:
    """What became of each value. Raises DataLoss where the columns do not fit each other."""
    columns = (response.statuses, response.versions, response.reasons)
    if any(len(column) != rows for column in columns):
        raise errors.DataLoss(f"the reply to {rows} values has columns of other lengths")
    return [_read_put_row(*row) for row in zip(*columns, strict=True)]


def _read_put_row(status: int, version: int, reason: int) -> Put | Failed:
    if status in (pb.PUT_STATUS_STORED, pb.PUT_STATUS_KEPT):
        return Put(version, status == pb.PUT_STATUS_KEPT)
    if status == pb.PUT_STATUS_FAILED:
        return Failed(errors.from_reason(reason, "not stored, or outcome unknown"))
    return Failed(unknown_status(status))


def read_exists(response: pb.ExistsResponse, rows: int) -> list[bool | Failed]:
    """Whether each key would hit. Raises DataLoss."""
    if len(response.statuses) != rows:
        raise errors.DataLoss(f"the reply to {rows} keys has {len(response.statuses)} rows")
    known: dict[int, bool] = {pb.KEY_STATUS_HIT: True, pb.KEY_STATUS_MISS: False}
    return [known[status] if status in known else _failed(status) for status in response.statuses]


def read_delete(response: pb.DeleteResponse, rows: int) -> list[bool | Failed]:
    """True for each key that is gone. Raises DataLoss."""
    if len(response.reasons) != rows:
        raise errors.DataLoss(f"the reply to {rows} keys has {len(response.reasons)} rows")
    return [
        Failed(errors.from_reason(reason, "it may still be there")) if reason else True for reason in response.reasons
    ]
