"""Keys, entries and payloads for tests of tiers: made in one line, the same bytes on every run."""

from __future__ import annotations

import random
from collections.abc import Sequence

from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import Codec, Entry, Head, Key, KeySpace, Kind, checksum_of

KEYS = KeySpace()
MIB = 1_048_576


def namespace_of(kind: Kind, codec: Codec = Codec.NONE) -> str:
    """The namespace for entries of a kind and codec."""
    return f"{kind.name}-{codec.name}".lower().replace("_", "-")


def key(name: str | bytes, namespace: str = namespace_of(Kind.IMMUTABLE), epoch: int = 1) -> Key:
    """The storage key of a user's key, by default of an immutable entry."""
    return KEYS.key(namespace, epoch, name if isinstance(name, bytes) else name.encode())


def mutable_key(name: str | bytes) -> Key:
    """The storage key of a mutable entry."""
    return key(name, namespace_of(Kind.MUTABLE))


def noise(size_bytes: int, seed: int = 0) -> bytes:
    """Bytes that do not compress, by seed."""
    return random.Random(seed).randbytes(size_bytes)


def entry(
    payload: bytes | Sequence[bytes],
    clock: Clock,
    kind: Kind = Kind.IMMUTABLE,
    version: int | None = None,
    ttl_s: float | None = None,
    codec: Codec = Codec.NONE,
) -> Entry:
    """An entry created now; without `ttl_s` it never expires."""
    frames = (payload,) if isinstance(payload, bytes) else tuple(payload)
    now_us = clock.now_us()
    expires_us = 0 if ttl_s is None else now_us + round(ttl_s * 1_000_000)
    checksum, size_bytes = checksum_of(frames), sum(map(len, frames))
    return Entry(
        Head(size_bytes, now_us if version is None else version, now_us, expires_us, checksum, kind, codec), frames
    )


def mutable(payload: bytes | Sequence[bytes], version: int, clock: Clock, ttl_s: float | None = None) -> Entry:
    """A mutable entry of a version."""
    return entry(payload, clock, Kind.MUTABLE, version, ttl_s)


def soon(clock: Clock, seconds: float = 30.0) -> Deadline:
    """A deadline that no test should meet."""
    return Deadline.after(seconds, clock)
