"""CacheService without I/O: requests built, replies read, checksums proven. Pure functions.

Bytes whose size or checksum is not what the server declared never leave this module.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import xxhash

from terracekv.client import errors
from terracekv.client.errors import invalid
from terracekv.client.policy import (
    FRAME_BYTES_MAX,
    KEY_BYTES_MAX,
    UNARY_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from terracekv.client.values import MISS, Durability, Hit, Miss, Put
from terracekv.v1 import cache_pb2 as pb

if TYPE_CHECKING:
    from terracekv.client.values import BytesLike, Key

CHECKSUM_BYTES: Final = 16
ONE_KEY: Final = (bytes, str, bytearray, memoryview)  # all else is several keys

Number = TypeVar("Number", bound=int)
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclasses.dataclass(frozen=True, slots=True)
class Deferred:
    """A value that did not fit the reply."""

    size_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class WriteOptions:
    """What every put may say; None: what the namespace says."""

    namespace: str
    ttl_s: float | None = None
    durability: Durability | str | None = None

    def fill(self, request: pb.PutRequest | pb.PutManyRequest | pb.PutStreamHeader) -> None:
        """Writes itself into a request."""
        request.namespace = self.namespace
        if self.ttl_s is not None:
            request.ttl_s = self.ttl_s
        if self.durability is not None:
            request.durability = as_durability(self.durability)  # type: ignore[assignment]


def named(field: str, name: str, numbers: Mapping[str, Number]) -> Number:
    """The number that a name stands for. Raises EnumInvalid."""
    if name not in numbers:
        raise invalid(errors.EnumInvalid, field, "one of " + ", ".join(numbers), errors.bounded(repr(name)))
    return numbers[name]


def as_durability(durability: Durability | str) -> Durability:
    """A level, or its name in lower case. Raises EnumInvalid."""
    if isinstance(durability, str):
        return named("durability", durability, {level.name.lower(): level for level in Durability})
    return durability


def as_key(key: Key) -> bytes:
    """A key as bytes; text as UTF-8, as given. Raises KeyInvalid, TypeError."""
    if not isinstance(key, ONE_KEY):
        raise TypeError(f"key: bytes or str; given: {type(key).__name__}")
    try:
        encoded = key.encode() if isinstance(key, str) else bytes(key)
    except UnicodeEncodeError:
        raise invalid(errors.KeyInvalid, "key", "text that UTF-8 can hold", "a lone surrogate") from None
    if not 1 <= len(encoded) <= KEY_BYTES_MAX:
        raise invalid(errors.KeyInvalid, "key", f"1 to {KEY_BYTES_MAX} bytes", f"{len(encoded)} bytes")
    return encoded


def as_keys(keys: Iterable[Key]) -> list[bytes]:
    """Keys as bytes. Raises KeyInvalid, TypeError."""
    if isinstance(keys, ONE_KEY):
        raise TypeError("keys: several keys; given: one")
    return [as_key(key) for key in keys]


def snapshot(value: BytesLike) -> bytes:
    """The bytes of a buffer as they are now; bytes are taken as they are. Raises ValueTooLarge, TypeError."""
    if type(value) is bytes:
        payload = value
    else:
        view = memoryview(value)
        check_value_size(view.nbytes)  # before the copy
        payload = view.tobytes()
    check_value_size(len(payload))
    return payload


def check_value_size(size_bytes: int) -> None:
    """At most 1 GiB. Raises ValueTooLarge."""
    if size_bytes > VALUE_BYTES_MAX:
        raise invalid(errors.ValueTooLarge, "value", f"at most {VALUE_BYTES_MAX} bytes", f"{size_bytes} bytes")


def checksum_of(payload: bytes) -> bytes:
    """xxh3-128, 16 bytes, big-endian."""
    return xxhash.xxh3_128_digest(payload)


def prove(payload: bytes, checksum: bytes) -> None:
    """Raises ChecksumMismatch unless the payload has this checksum."""
    if checksum_of(payload) != checksum:
        raise errors.ChecksumMismatch("the bytes that arrived have another checksum than the one stored with them")


def tier_name(tier: int) -> str:
    """ "memory", "shared", "disk", or "" if it was not said."""
    name = pb.TierName.Name(tier) if tier in pb.TierName.values() else ""
    return "" if tier == 0 else name.removeprefix("TIER_NAME_").lower()


def tier_failed(tier: int) -> errors.TierUnavailable:
    """The error of a key for which a tier failed."""
    error = errors.TierUnavailable(f"a tier that had to be asked failed: {tier_name(tier) or 'not said which'}")
    error.reason = "TIER_UNAVAILABLE"
    return error


def unknown_status(status: int) -> errors.RpcFailed:
    """The error of a key whose status this client does not know."""
    return errors.RpcFailed(f"the server answered with status {status}, which this client does not know")


def fits_unary(key: bytes, payload: bytes) -> bool:
    """Whether a value goes in one message."""
    return len(key) + len(payload) <= UNARY_BYTES_MAX


def put_request(key: bytes, payload: bytes, options: WriteOptions) -> pb.PutRequest:
    """One value in one message."""
    request = pb.PutRequest(key=key, value=payload, checksum=checksum_of(payload))
    options.fill(request)
    return request


def put_stream_requests(
    key: bytes, payload: bytes, options: WriteOptions, progress: Progress | None = None
) -> Iterator[pb.PutStreamRequest]:
    """One value as a header, frames of at most 1 MiB and the commit with its checksum."""
    header = pb.PutStreamHeader(key=key, size_bytes=len(payload))
    options.fill(header)
    yield pb.PutStreamRequest(header=header)
    hasher = xxhash.xxh3_128()
    for start in range(0, len(payload), FRAME_BYTES_MAX):
        frame = payload[start : start + FRAME_BYTES_MAX]
        hasher.update(frame)
        yield pb.PutStreamRequest(data=frame)
        if progress is not None:
            progress(start + len(frame), len(payload))
    yield pb.PutStreamRequest(commit=pb.PutStreamCommit(checksum=hasher.digest()))


def read_get(response: pb.GetResponse) -> Hit | Miss | Deferred:
    """The answer to one key. Raises DataLoss, RpcFailed."""
    if response.status == pb.KEY_STATUS_MISS:
        return MISS
    if response.status == pb.KEY_STATUS_DEFERRED:
        return Deferred(response.size_bytes)
    if response.status != pb.KEY_STATUS_HIT:
        raise unknown_status(response.status)
    value = response.value
    prove(value, response.checksum)
    expires_in_s = response.expires_in_us / 1e6 if response.HasField("expires_in_us") else None
    return Hit(value, response.version, tier_name(response.tier), expires_in_s)


def read_put(response: pb.PutResponse | pb.PutStreamResponse) -> Put:
    """What was stored. Raises RpcFailed."""
    if response.status not in (pb.PUT_STATUS_STORED, pb.PUT_STATUS_KEPT):
        raise unknown_status(response.status)
    return Put(response.version, response.status == pb.PUT_STATUS_KEPT)


class ValueAssembler:
    """Puts the value of a GetStream together; frames first, then `finish`."""

    def __init__(self, header: pb.GetStreamHeader, progress: Progress | None = None) -> None:
        if header.status not in (pb.KEY_STATUS_HIT, pb.KEY_STATUS_MISS):
            raise unknown_status(header.status)
        check_value_size(header.size_bytes)
        self._header = header
        self._progress = progress
        self._hasher = xxhash.xxh3_128()
        self._bytes = io.BytesIO()  # hands its bytes out without another copy

    def feed(self, frame: bytes) -> None:
        """Takes one frame. Raises DataLoss when there are more bytes than declared."""
        self._hasher.update(frame)
        done = self._bytes.tell() + self._bytes.write(frame)
        if done > self._header.size_bytes:
            raise errors.DataLoss(f"more than the {self._header.size_bytes} bytes declared arrived")
        if self._progress is not None:
            self._progress(done, self._header.size_bytes)

    def finish(self) -> Hit | Miss:
        """The value. Raises DataLoss, ChecksumMismatch."""
        header, size_bytes = self._header, self._bytes.tell()
        if header.status == pb.KEY_STATUS_MISS:
            return MISS
        if size_bytes != header.size_bytes:
            raise errors.DataLoss(f"{size_bytes} of {header.size_bytes} bytes arrived")
        if self._hasher.digest() != header.checksum:
            raise errors.ChecksumMismatch("the bytes that arrived have another checksum")
        expires_in_s = header.expires_in_us / 1e6 if header.HasField("expires_in_us") else None
        return Hit(self._bytes.getvalue(), header.version, tier_name(header.tier), expires_in_s)
