"""The contract of a tier: batch first, three outcomes a key, no exception for what can fail for one key alone.

tests/contract/tier_suite.py is this contract as tests; every tier, every
wrapper and the stack itself pass it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from terracekv.tiers.clock import Deadline
from terracekv.tiers.entry import DeleteResult, Entry, Found, HeadFound, Key, PutResult, TierName
from terracekv.tiers.stats import TierCounters


class WriteLevel(enum.IntEnum):
    """How far a write must be before a tier on disk answers. Tiers without a log ignore it."""

    BUFFERED = 0  # in the store's memory: lost by kill -9
    LOGGED = 1  # in its log, not synced: survives kill -9
    SYNCED = 2  # in its log, synced: survives a power cut


class TierState(enum.IntEnum):
    """How a tier is; numbers as in terracekv.v1."""

    UP = 1
    DEGRADED = 2
    DOWN = 3
    ABSENT = 4


class Tier(Protocol):
    """A place that holds entries.

    Every answer is a list as long as its request, in its order. A failure of
    the tier is a `TierFailure` for the keys concerned, never an exception;
    only cancellation and defects are raised. Nothing waits past `deadline`.
    Expired entries are misses, by the expiry in the entry. Stored bytes that
    do not prove to be the entry asked for are counted and missed.
    """

    @property
    def name(self) -> TierName:
        """Which tier it is."""

    @property
    def counters(self) -> TierCounters:
        """Its counters, live."""

    async def get_many(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None = None) -> list[Found]:
        """The entries of `keys`.

        With `bytes_max`, payloads of at most that many bytes are returned in
        all; an entry that does not fit what is left of it comes as its `Head`.
        """

    async def head_many(self, keys: Sequence[Key], deadline: Deadline) -> list[HeadFound]:
        """The heads of `keys`, by the same rules, without reading payloads."""

    async def put_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        """Stores entries, each whole or not at all.

        Immutable: the first entry of a key stays while it lives; a later one
        answers `kept` and whether its bytes differ. Mutable: a lower version
        than the stored one is ignored and answers `kept`; an equal or higher
        one replaces it. The version answered is the one now stored.
        """

    async def delete_many(
        self, keys: Sequence[Key], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[DeleteResult]:
        """Removes keys; an absent key is a success."""

    async def clear(self) -> None:
        """Removes every entry it holds for terracekv; durable data stays."""

    def state(self) -> tuple[TierState, str]:
        """How it is, and a few words."""

    async def close(self) -> None:
        """Releases everything. Idempotent; after it every key fails as UNAVAILABLE."""


class VersionAuthority(Protocol):
    """The place that gives mutable entries their versions: the shared tier, or this node where there is none."""

    async def write_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        """Stores mutable entries under new versions and answers these.

        Each version is max(stored version + 1, now in microseconds, the
        version the entry came with); both happen in one step. The version it
        came with is a minimum: 0, or one over an invalidation's floor.
        """


class VersioningTier(Tier, VersionAuthority, Protocol):
    """A tier that also gives versions, as the shared tier does."""


class RecordStore(Protocol):
    """A few small named records with compare-and-set: where namespaces live. Never evicted."""

    async def load(self, deadline: Deadline) -> dict[str, bytes]:
        """All records. Raises TierError."""

    async def swap(self, name: str, expected: bytes | None, value: bytes, deadline: Deadline) -> bool:
        """Sets a record if it is still `expected` (None: absent); whether it did. Raises TierError."""
