"""The exceptions of the tiers, in one drawn tree; none of them speaks of transport.

TerraceError
├── FieldInvalid            a setting or argument is outside its limits
├── ChecksumMismatch        bytes differ from what was declared for them
├── DurabilityNotOffered    this node cannot give the level asked for
├── NamespaceNotFound       unknown, and not to be created here
├── NamespaceConflict       exists with another kind
├── TierError               a tier could not do it
│   ├── TierUnavailable     no answer, or cut off by its breaker
│   ├── TierTimeout         no answer within the deadline
│   └── TierFull            no room
├── RecordError             stored bytes that must not be used
│   ├── RecordDamaged       lengths or checksum do not add up
│   ├── RecordForeign       a whole record of another key
│   └── RecordNewer         written by a newer format
└── StoreError              the data directory cannot be opened
    ├── StoreLocked         another process has it
    ├── StoreNewer          written by a newer format
    └── SharedConfig        the shared tier is set up in a way that would lose data
"""

from __future__ import annotations


class TerraceError(Exception):
    """Base of all errors raised by terracekv.tiers."""


class FieldInvalid(TerraceError):
    """A value outside its limits.

    `field` names it, `limit` states the rule and `given` what came instead (never a key or a value of a user).
    """

    def __init__(self, field: str, limit: str, given: str) -> None:
        super().__init__(f"{field}: {limit}; given: {given}")
        self.field = field
        self.limit = limit
        self.given = given


class ChecksumMismatch(TerraceError):
    """Bytes that differ from the size or checksum declared for them."""


class DurabilityNotOffered(TerraceError):
    """The level asked for cannot be given by this node; the message names it and why."""


class NamespaceNotFound(TerraceError):
    """No namespace of that name, and it may not be created by a put."""


class NamespaceConflict(TerraceError):
    """A namespace of that name exists with another kind."""


class TierError(TerraceError):
    """A tier could not do what was asked. Of a write: the outcome is unknown."""


class TierUnavailable(TierError):
    """The tier did not answer, or its breaker is open."""


class TierTimeout(TierError):
    """The tier did not answer within the deadline."""


class TierFull(TierError):
    """The tier has no room for the write."""


class RecordError(TerraceError):
    """Stored bytes that must not be used: a reader counts them and misses."""


class RecordDamaged(RecordError):
    """Lengths, header or checksum do not add up."""


class RecordForeign(RecordError):
    """A whole record, of another key, namespace or epoch."""


class RecordNewer(RecordError):
    """A record whose format number is higher than this code knows."""


class StoreError(TerraceError):
    """The node's stores cannot be opened; the message is one line and names the cure."""


class StoreLocked(StoreError):
    """Another process has the data directory open."""


class StoreNewer(StoreError):
    """The data directory was written by a newer version."""


class SharedConfig(StoreError):
    """Redis is configured in a way that would silently lose data."""
