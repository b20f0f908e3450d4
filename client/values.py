"""What calls take and give: small immutable values. Hit, miss and failure are three outcomes and stay three."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from terracekv.client.errors import TerraceKVError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    BytesLike: TypeAlias = Buffer
    Key: TypeAlias = bytes | bytearray | memoryview | str
    BlockKey: TypeAlias = tuple[bytes, int]  # chain digest of 32 bytes, layer group

KindName: TypeAlias = Literal["mutable", "immutable"]
TierName: TypeAlias = Literal["memory", "shared", "disk"]
CodecName: TypeAlias = Literal["none", "zstd", "planes_zstd"]


class Durability(enum.IntEnum):
    """How safe a put is when its answer comes; the levels are described in cache.proto."""

    MEMORY = 1
    SHARED = 2
    WAL = 3
    FSYNC = 4
    REPLICATED = 5
    DURABLE = 6


class Miss(enum.Enum):
    """The one value of this type says that no tier has the key, and that all that had to be asked have answered."""

    MISS = 0

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "MISS"

    __str__ = __repr__


MISS: Final = Miss.MISS


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A value, checked against its checksum. `tier` is "memory", "shared" or "disk"; no expiry: None."""

    value: bytes = dataclasses.field(repr=False)
    version: int
    tier: str
    expires_in_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Put:
    """A stored value. `kept`: the namespace is immutable, another value was there first and stays; version is its."""

    version: int
    kept: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """One key of a batch that failed, for the reason in `error`. Falsy, and never a miss."""

    error: TerraceKVError

    def __bool__(self) -> Literal[False]:
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """The longest stored prefix, in blocks. With failed tiers the true prefix may be longer."""

    blocks: int
    failed_tiers: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class StoreReport:
    """What became of the blocks of a store, counted. `differing` of the kept ones have other bytes than those sent.

    `failures` holds the place and the error of each failed block.
    """

    stored: int = 0
    kept: int = 0
    failed: int = 0
    differing: int = 0
    failures: tuple[tuple[int, TerraceKVError], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class TierStats:
    """Counters of one tier since the node started, as admin.proto defines them; entries None: not known."""

    tier: str
    hits: int
    misses: int
    failures: int
    puts: int
    deletes: int
    evictions: int
    read_bytes: int
    written_bytes: int
    used_bytes: int
    capacity_bytes: int
    entries: int | None
    corrupt: int


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """Counters of one node."""

    tiers: tuple[TierStats, ...]
    uptime_s: float
    version: str
    pending_bytes: int
    flights_joined: int
    blocks_differing: int


@dataclasses.dataclass(frozen=True, slots=True)
class TierInfo:
    """How a tier is: state "up", "degraded", "down" or "absent", and a detail in words."""

    tier: str
    state: str
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class Namespace:
    """The policy of a namespace. `ttl_s` None: no expiry; `durability` None: the node's default."""

    name: str
    kind: str
    epoch: int
    ttl_s: float | None
    jitter: float
    tiers: tuple[str, ...]
    codec: str
    durability: str | None
