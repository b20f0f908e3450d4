"""Namespaces: the policy of each, kept as a record that all nodes share, changed by compare-and-set.

The record with the higher revision wins, so a node that knew a namespace
offers it again to a shared tier that lost it, and an epoch never goes back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import msgpack

from terracekv.tiers.base import RecordStore
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import Codec, Durability, Kind, TierName
from terracekv.tiers.errors import FieldInvalid, NamespaceConflict, NamespaceNotFound, TierError, TierUnavailable
from terracekv.tiers.ttl import JITTER_MAX, TTL_S_MAX

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
FLOORS_MAX: Final = 256
NAMESPACES_MAX: Final = 4_096
FLOOR_MARGIN_US: Final = 10_000  # what the clocks of the shared tier's masters may differ by
SWAP_TRIES_MAX: Final = 16
_FORMAT: Final = 1
_ALL_TIERS: Final = (TierName.MEMORY, TierName.SHARED, TierName.DISK)


@dataclass(frozen=True, slots=True)
class Namespace:
    """The policy of one namespace. `ttl_s` None: no expiry unless a put asks for it."""

    name: str
    kind: Kind = Kind.MUTABLE
    ttl_s: float | None = 86_400.0
    jitter: float = 0.1
    tiers: tuple[TierName, ...] = _ALL_TIERS
    codec: Codec = Codec.NONE
    durability: Durability | None = None  # None: SHARED with a shared tier, WAL without
    epoch: int = 1
    floors: tuple[tuple[bytes, int], ...] = ()  # (prefix, version): entries up to that version are gone
    revision: int = 1

    def floor(self, user_key: bytes) -> int:
        """The version up to which an entry of this key is invalidated; 0: none."""
        return max((version for prefix, version in self.floors if user_key.startswith(prefix)), default=0)


BUILT_IN: Final = (
    Namespace("default"),
    Namespace("blocks", kind=Kind.IMMUTABLE, ttl_s=7 * 86_400.0),
)


def check_namespace(namespace: Namespace) -> Namespace:
    """The namespace, if its settings are within their limits. Raises FieldInvalid."""
    check_name(namespace.name)
    if namespace.ttl_s is not None and not 0 < namespace.ttl_s <= TTL_S_MAX:
        raise FieldInvalid("ttl_s", f"over 0 and at most {TTL_S_MAX:.0f}", str(namespace.ttl_s))
    if not 0 <= namespace.jitter <= JITTER_MAX:
        raise FieldInvalid("jitter", f"0 to {JITTER_MAX}", str(namespace.jitter))
    if not namespace.tiers:
        raise FieldInvalid("tiers", "at least one", "none")
    return namespace


def check_name(name: str) -> str:
    """The name, if it is one. Raises FieldInvalid."""
    if not NAME.fullmatch(name):
        raise FieldInvalid("namespace", f"matches {NAME.pattern}", f"{len(name)} characters that do not")
    return name


def encode_namespace(namespace: Namespace) -> bytes:
    """The record of a namespace."""
    record: bytes = msgpack.packb(
        [
            _FORMAT,
            namespace.revision,
            namespace.name,
            int(namespace.kind),
            namespace.ttl_s,
            namespace.jitter,
            [int(tier) for tier in namespace.tiers],
            int(namespace.codec),
            int(namespace.durability or 0),
            namespace.epoch,
            [[prefix, version] for prefix, version in namespace.floors],
        ]
    )
    return record


def decode_namespace(record: bytes) -> Namespace:
    """The namespace of a record. Raises ValueError if it is not one of this format."""
    fields = msgpack.unpackb(record, strict_map_key=True, max_map_len=0)
    if not isinstance(fields, list) or len(fields) != 11 or fields[0] != _FORMAT:
        raise ValueError("not a namespace record of this format")
    _, revision, name, kind, ttl_s, jitter, tiers, codec, durability, epoch, floors = fields
    return check_namespace(
        Namespace(
            name=str(name),
            kind=Kind(kind),
            ttl_s=None if ttl_s is None else float(ttl_s),
            jitter=float(jitter),
            tiers=tuple(TierName(tier) for tier in tiers),
            codec=Codec(codec),
            durability=Durability(durability) if durability else None,
            epoch=int(epoch),
            floors=tuple((bytes(prefix), int(version)) for prefix, version in floors),
            revision=int(revision),
        )
    )


class Namespaces:
    """All namespaces as this node knows them. Reads are synchronous; changes go to the record store first.

    `shared` is where the records live for all nodes; `local` keeps a copy so
    that a node can start, and read what is immutable, while the shared tier is
    away. Without a shared tier both are the same store.
    """

    def __init__(
        self,
        shared: RecordStore,
        local: RecordStore,
        clock: Clock,
        configured: Iterable[Namespace] = (),
        create_on_put: bool = False,
    ) -> None:
        self._shared = shared
        self._local = local
        self._clock = clock
        self._configured = {item.name: check_namespace(item) for item in (*BUILT_IN, *configured)}
        self._create_on_put = create_on_put
        self._known: dict[str, Namespace] = {}
        self._local_records: dict[str, bytes] = {}

    # --- reading ---

    def get(self, name: str) -> Namespace:
        """The namespace of that name, "" being "default". Raises NamespaceNotFound."""
        try:
            return self._known[name or "default"]
        except KeyError:
            raise NamespaceNotFound("no namespace of that name") from None

    def all(self) -> list[Namespace]:
        """All of them, by name."""
        return [self._known[name] for name in sorted(self._known)]

    # --- following the records ---

    async def start(self, deadline: Deadline) -> None:
        """Loads what is known, then creates what the configuration names and nobody has.

        A shared tier that is away leaves the local copies and the
        configuration; `refresh` makes up for it later.
        """
        self._local_records = await self._local.load(deadline)
        self._adopt_records(self._local_records)
        for namespace in self._configured.values():
            self._known.setdefault(namespace.name, namespace)
        await self.refresh(deadline)

    async def refresh(self, deadline: Deadline) -> bool:
        """Reads the records again and offers those that the store lacks; whether the store answered."""
        try:
            records = await self._shared.load(deadline)
            self._adopt_records(records)
            for namespace in list(self._known.values()):
                await self._offer(namespace, records.get(namespace.name), deadline)
        except TierError:
            return False
        await self._save_copies(deadline)
        return True

    def _adopt_records(self, records: dict[str, bytes]) -> None:
        for name, record in records.items():
            try:
                namespace = decode_namespace(record)
            except (ValueError, TypeError, FieldInvalid):
                continue  # of a newer version, or damaged: what this node knows stays in force
            if namespace.name == name:
                self._adopt(namespace)

    def _adopt(self, namespace: Namespace) -> Namespace:
        known = self._known.get(namespace.name)
        if known is None or namespace.revision >= known.revision:
            self._known[namespace.name] = namespace
        return self._known[namespace.name]

    async def _offer(self, namespace: Namespace, record: bytes | None, deadline: Deadline) -> None:
        theirs = None if record is None else _revision(record)
        if theirs is None or theirs < namespace.revision:
            await self._shared.swap(namespace.name, record, encode_namespace(namespace), deadline)

    async def _save_copies(self, deadline: Deadline) -> None:
        if self._local is self._shared:
            return
        for namespace in list(self._known.values()):
            record, copy = encode_namespace(namespace), self._local_records.get(namespace.name)
            if record != copy and await self._local.swap(namespace.name, copy, record, deadline):
                self._local_records[namespace.name] = record

    # --- changing ---

    async def ensure(self, name: str, deadline: Deadline) -> Namespace:
        """The namespace; created with the defaults if puts may create. Raises NamespaceNotFound, TierError."""
        name = name or "default"
        if name in self._known or not self._create_on_put:
            return self.get(name)
        return await self.create(Namespace(check_name(name)), deadline)

    async def create(self, namespace: Namespace, deadline: Deadline) -> Namespace:
        """Creates it, or answers the one that exists. Raises NamespaceConflict, FieldInvalid, TierError."""
        check_namespace(namespace)
        if namespace.name not in self._known and len(self._known) >= NAMESPACES_MAX:
            raise FieldInvalid("namespaces", f"at most {NAMESPACES_MAX}", str(len(self._known) + 1))

        def created(current: Namespace | None) -> Namespace:
            if current is not None and current.kind is not namespace.kind:
                raise NamespaceConflict(f"exists as {current.kind.name}: a kind never changes")
            return current or replace(namespace, epoch=1, floors=(), revision=1)

        return await self._change(namespace.name, created, deadline)

    async def update(self, namespace: Namespace, deadline: Deadline) -> Namespace:
        """Changes its settings; epoch and floors stay. Raises NamespaceNotFound, NamespaceConflict, TierError."""
        check_namespace(namespace)

        def updated(current: Namespace | None) -> Namespace:
            if current is None:
                raise NamespaceNotFound("no namespace of that name")
            if current.kind is not namespace.kind:
                raise NamespaceConflict(f"exists as {current.kind.name}: a kind never changes")
            return replace(namespace, epoch=current.epoch, floors=current.floors, revision=current.revision + 1)

        return await self._change(namespace.name, updated, deadline)

    async def raise_epoch(self, name: str, deadline: Deadline) -> Namespace:
        """Invalidates everything in it at once. Raises NamespaceNotFound, TierError."""

        def raised(current: Namespace | None) -> Namespace:
            known = current or self.get(name)
            return replace(known, epoch=known.epoch + 1, floors=(), revision=known.revision + 1)

        return await self._change(name or "default", raised, deadline)

    async def invalidate_prefix(self, name: str, prefix: bytes, version: int, deadline: Deadline) -> Namespace:
        """Invalidates entries up to `version` whose keys start with `prefix`.

        The floor lies a little above, for the clocks of several masters;
        later writes are given versions above it. At most 256 floors are kept:
        the next one raises the epoch instead. Raises as `raise_epoch`.
        """
        floor = max(version, self._clock.now_us()) + FLOOR_MARGIN_US

        def lowered(current: Namespace | None) -> Namespace:
            known = current or self.get(name)
            # A floor of a shorter prefix covers an older one of a longer prefix.
            others = tuple(item for item in known.floors if not item[0].startswith(prefix))
            if len(others) >= FLOORS_MAX:
                return replace(known, epoch=known.epoch + 1, floors=(), revision=known.revision + 1)
            return replace(known, floors=(*others, (prefix, floor)), revision=known.revision + 1)

        return await self._change(name or "default", lowered, deadline)

    async def _change(
        self, name: str, change: Callable[[Namespace | None], Namespace], deadline: Deadline
    ) -> Namespace:
        for _ in range(SWAP_TRIES_MAX):
            record = (await self._shared.load(deadline)).get(name)
            stored = None if record is None else _readable(record)
            known = self._known.get(name)
            current = known if stored is None or (known and known.revision > stored.revision) else stored
            wanted = change(current)
            if wanted is stored or await self._shared.swap(name, record, encode_namespace(wanted), deadline):
                adopted = self._adopt(wanted)
                await self._save_copies(deadline)
                return adopted
        raise TierUnavailable("the namespace record is changed too often by others")


def _readable(record: bytes) -> Namespace:
    try:
        return decode_namespace(record)
    except (ValueError, TypeError, FieldInvalid) as error:
        raise TierUnavailable("the namespace record was written by a newer version, or is damaged") from error


def _revision(record: bytes) -> int:
    try:
        return decode_namespace(record).revision
    except (ValueError, TypeError, FieldInvalid):
        return 1 << 62  # not ours to replace
