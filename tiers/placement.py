"""Pure decisions of the stack: the tiers a namespace has, the durability it can give, what an answer is worth."""

from __future__ import annotations

from dataclasses import dataclass

from terracekv.tiers.entry import (
    Answer,
    Durability,
    Entry,
    FailureReason,
    Found,
    Head,
    HeadFound,
    Kind,
    TierFailure,
    TierName,
)
from terracekv.tiers.errors import DurabilityNotOffered
from terracekv.tiers.namespaces import Namespace


@dataclass(frozen=True, slots=True)
class Placement:
    """What this node has below memory."""

    has_shared: bool
    has_disk: bool

    def uses_memory(self, namespace: Namespace) -> bool:
        """Whether entries go to memory."""
        return TierName.MEMORY in namespace.tiers

    def uses_shared(self, namespace: Namespace) -> bool:
        """Whether entries go to the shared tier."""
        return self.has_shared and TierName.SHARED in namespace.tiers

    def uses_disk(self, namespace: Namespace) -> bool:
        """Whether entries go to the disk."""
        return self.has_disk and TierName.DISK in namespace.tiers

    def asked_below(self, namespace: Namespace) -> tuple[TierName, ...]:
        """The tiers a read asks below memory, in order: not the disk for what another node may have replaced."""
        shared = (TierName.SHARED,) if self.uses_shared(namespace) else ()
        asks_disk = self.uses_disk(namespace) and (namespace.kind is Kind.IMMUTABLE or not shared)
        return (*shared, TierName.DISK) if asks_disk else shared

    def deleted_in(self, namespace: Namespace) -> tuple[TierName, ...]:
        """The tiers below memory that a delete goes to, in its order: lowest first."""
        disk = (TierName.DISK,) if self.uses_disk(namespace) else ()
        return (*disk, TierName.SHARED) if self.uses_shared(namespace) else disk

    def owed(self, namespace: Namespace, level: Durability) -> tuple[TierName, ...]:
        """The tiers that get their copy of a new entry after the answer."""
        first = {Durability.SHARED: TierName.SHARED, Durability.WAL: TierName.DISK, Durability.FSYNC: TierName.DISK}
        immutable = namespace.kind is Kind.IMMUTABLE  # the shared tier has a mutable write before anybody else
        lower = {TierName.SHARED: self.uses_shared(namespace) and immutable, TierName.DISK: self.uses_disk(namespace)}
        return tuple(tier for tier, uses in lower.items() if uses and tier is not first.get(level))

    def level(self, namespace: Namespace, asked: Durability | None) -> Durability:
        """The durability a write gets. Raises DurabilityNotOffered."""
        shared, disk = self.uses_shared(namespace), self.uses_disk(namespace)
        default = Durability.SHARED if shared else Durability.WAL if disk else Durability.MEMORY
        level = asked or namespace.durability or default
        offered = {
            Durability.MEMORY: not shared or namespace.kind is Kind.IMMUTABLE,
            Durability.SHARED: shared,
            Durability.WAL: disk,
            Durability.FSYNC: disk,
        }
        if not offered.get(level, False):
            names = ", ".join(one.name for one, offers in offered.items() if offers)
            raise DurabilityNotOffered(f"{level.name} is not offered here; this namespace has {names}")
        return level


def hidden(namespace: Namespace, user_key: bytes, found: Found) -> bool:
    """Whether a prefix invalidation hides what was found."""
    if not namespace.floors:
        return False
    head = head_of(found)
    return isinstance(head, Head) and head.version <= namespace.floor(user_key)


def merged(above: Answer, below: Answer) -> Answer:
    """A hit below wins; a failure above outlasts a miss below: the value may be where nobody could look."""
    if below.found or not isinstance(above.found, TierFailure):
        return below
    return above


def worth_another_load(answer: Answer, bytes_max: int | None) -> bool:
    """Whether a caller with time left should load a key itself after a load of somebody else answered this."""
    if isinstance(answer.found, Head):
        return bytes_max is None or answer.found.size_bytes <= bytes_max
    return isinstance(answer.found, TierFailure) and answer.found.reason is not FailureReason.FULL


def within(answers: list[Answer], bytes_max: int | None) -> list[Answer]:
    """The answers with at most `bytes_max` of payload, in order; what does not fit comes as its head."""
    if bytes_max is None:
        return answers
    left = bytes_max
    fitting = []
    for answer in answers:
        found = answer.found
        if isinstance(found, Entry) and found.head.size_bytes > left:
            fitting.append(Answer(found.head, answer.tier))
        else:
            left -= found.head.size_bytes if isinstance(found, Entry) else 0
            fitting.append(answer)
    return fitting


def head_of(found: Found) -> HeadFound:
    """The same without payload."""
    if isinstance(found, Entry):
        return found.head
    return found
