"""What travels between tiers: keys with their full identity, entries that nobody can change, and misses.

A payload is a tuple of `bytes` frames, so that a large value is never joined
just to be held, and a stream is served without a copy.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

import blake3
import xxhash

KEY_BYTES_MAX: Final = 1_024
BATCH_KEYS_MAX: Final = 1_024
FRAME_BYTES_MAX: Final = 1_048_576
UNARY_BYTES_MAX: Final = 3_932_160  # 3.75 MiB: leaves room for the columns in a 4 MiB message
VALUE_BYTES_MAX: Final = 1_073_741_824
BUCKETS: Final = 256
DEFAULT_TENANT: Final = "default"


class Kind(enum.IntEnum):
    """What a namespace holds; numbers as in terracekv.v1."""

    MUTABLE = 1
    IMMUTABLE = 2


class Codec(enum.IntEnum):
    """How payloads are stored below memory; numbers as in terracekv.v1."""

    NONE = 1
    ZSTD = 2
    PLANES_ZSTD = 3


class Durability(enum.IntEnum):
    """What a write has reached before its answer; numbers as in terracekv.v1."""

    MEMORY = 1
    SHARED = 2
    WAL = 3
    FSYNC = 4
    REPLICATED = 5
    DURABLE = 6


class TierName(enum.IntEnum):
    """The tiers; numbers as in terracekv.v1."""

    MEMORY = 1
    SHARED = 2
    DISK = 3


class Miss(enum.Enum):
    """The answer "no tier has it": a value of its own, and falsy."""

    MISS = enum.auto()

    def __bool__(self) -> Literal[False]:
        return False


MISS: Final = Miss.MISS


class Key(NamedTuple):
    """A key with its whole identity. Equal only if every field is: a digest that collides costs a miss."""

    digest: bytes  # 32 bytes
    user: bytes
    namespace: str
    epoch: int
    tenant: str

    @property
    def bucket(self) -> int:
        """One of 256: where its record, stream and leases live together."""
        return self.digest[31]


class Head(NamedTuple):
    """All of an entry but its bytes."""

    size_bytes: int
    version: int
    created_us: int
    expires_us: int  # 0: no expiry
    checksum: bytes  # xxh3-128 of the payload, 16 bytes
    kind: Kind
    codec: Codec = Codec.NONE  # how it is stored below memory

    def expired(self, now_us: int) -> bool:
        """Whether its life is over at `now_us`."""
        return 0 < self.expires_us <= now_us


class Entry(NamedTuple):
    """An entry whole: its head and its payload in frames of `bytes` (their lengths add up to `size_bytes`)."""

    head: Head
    frames: tuple[bytes, ...]

    def payload(self) -> bytes:
        """The payload as one `bytes`; a copy unless it is one frame."""
        return self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)


class FailureReason(enum.Enum):
    """Why a tier failed for a key."""

    UNAVAILABLE = enum.auto()
    TIMEOUT = enum.auto()
    FULL = enum.auto()


class TierFailure(NamedTuple):
    """The answer "this tier failed for this key": neither hit nor miss. `detail` holds no key and no secret."""

    tier: TierName
    reason: FailureReason
    detail: str

    def __bool__(self) -> Literal[False]:
        return False


class Stored(NamedTuple):
    """The answer to a write: the version now stored, whether an older one was kept, and whether its bytes differ."""

    version: int
    kept: bool = False
    differs: bool = False


Found = Entry | Head | Miss | TierFailure
HeadFound = Head | Miss | TierFailure
PutResult = Stored | TierFailure
DeleteResult = TierFailure | None


class Answer(NamedTuple):
    """What the stack answers for a key, and the tier that had it."""

    found: Found
    tier: TierName | None = None


DigestFunction = Callable[[bytes, bytes], bytes]


def _blake3_keyed(secret: bytes, message: bytes) -> bytes:
    return blake3.blake3(message, key=secret).digest()


def framed(parts: Iterable[bytes]) -> bytes:
    """Joins parts so that no two lists give the same bytes: each behind its length (4 bytes, big-endian)."""
    return b"".join(piece for part in parts for piece in (len(part).to_bytes(4, "big"), part))


class KeySpace:
    """Makes storage keys: keyed BLAKE3-256 over length-prefixed tenant, namespace, epoch and user key.

    `digest` is an argument so that tests can make digests collide.
    """

    def __init__(self, tenant: str = DEFAULT_TENANT, digest: DigestFunction = _blake3_keyed) -> None:
        self.tenant = tenant
        self._digest = digest
        # Until tenants have secrets of their own the key is derived from the name alone.
        self._secret = blake3.blake3(tenant.encode(), derive_key_context="terracekv 2026-12 storage keys").digest()

    def key(self, namespace: str, epoch: int, user: bytes) -> Key:
        """The storage key of a user's key (1 to 1,024 bytes, checked before)."""
        message = framed((self.tenant.encode(), namespace.encode(), epoch.to_bytes(8, "big"), user))
        return Key(self._digest(self._secret, message), user, namespace, epoch, self.tenant)


def checksum_of(frames: Iterable[bytes]) -> bytes:
    """xxh3-128 of a payload given in frames: 16 bytes, big-endian."""
    hasher = xxhash.xxh3_128()
    for frame in frames:
        hasher.update(frame)
    return hasher.digest()
