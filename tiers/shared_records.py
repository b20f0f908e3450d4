"""Small records that all nodes share, in one Redis hash without expiry: never evicted, set by compare-and-set."""

from __future__ import annotations

from terracekv.tiers.buckets import META_BUCKET
from terracekv.tiers.clock import Deadline
from terracekv.tiers.scripts import SWAP
from terracekv.tiers.shared import SharedTier


class SharedRecords:
    """The records of one name, such as "namespaces", in the meta bucket of a shared tier."""

    def __init__(self, tier: SharedTier, name: str = "namespaces") -> None:
        self._masters = tier.masters
        self._name = tier.names.meta(name)

    async def load(self, deadline: Deadline) -> dict[str, bytes]:
        """All records. Raises TierError."""
        reply = await self._masters.ask(META_BUCKET, ("HGETALL", self._name), deadline)
        fields = iter(reply)
        return {name.decode("utf-8", "replace"): value for name, value in zip(fields, fields, strict=True)}

    async def swap(self, name: str, expected: bytes | None, value: bytes, deadline: Deadline) -> bool:
        """Sets a record if it is still `expected` (None: absent); whether it did. Raises TierError."""
        values = (value,) if expected is None else (expected, value)
        swapped = await self._masters.ask(META_BUCKET, SWAP.call([self._name], name, *values), deadline)
        return bool(swapped == 1)
