"""Notices a shared tier that lost its data, and offers it this node's mutable entries again before they are missed.

The id of the shared tier is kept on disk. Another id than last time means an
empty tier: nobody has deleted or replaced in it what this node still holds, and
entries are offered by version, so a newer one of another node stands.
"""

from __future__ import annotations

import logging
from typing import Final

from terracekv.tiers.clock import Deadline
from terracekv.tiers.disk import DiskTier
from terracekv.tiers.durable import DurableStore
from terracekv.tiers.entry import Entry, Key, Stored
from terracekv.tiers.errors import NamespaceNotFound
from terracekv.tiers.namespaces import Namespaces
from terracekv.tiers.shared import SharedTier

LOG: Final = logging.getLogger("terracekv.shared")
RECORD: Final = b"shared/instance"


class SharedIdentity:
    """Follows which shared tier this is."""

    def __init__(self, shared: SharedTier, disk: DiskTier, durable: DurableStore, namespaces: Namespaces) -> None:
        self.offered = 0  # entries that a fresh shared tier took
        self._shared = shared
        self._disk = disk
        self._durable = durable
        self._namespaces = namespaces
        self._known: str | None = None

    async def check(self, deadline: Deadline) -> bool:
        """Asks for the id; if it is another, offers entries and remembers it; whether it was another.

        Raises TierError: then it is asked again next time. Offering has no
        deadline: it ends with the entries.
        """
        instance = await self._shared.instance_id(deadline)
        if self._known is None:
            self._known = (await self._durable.get(RECORD) or b"").decode()
        if instance == self._known:
            return False
        before = self.offered
        await self._offer(deadline)
        await self._durable.commit({RECORD: instance.encode()}, sync=True)
        self._known = instance
        LOG.info("met another shared tier", extra={"offered_entries": self.offered - before})
        return True

    async def _offer(self, deadline: Deadline) -> None:
        async for items in self._disk.scan_mutable(deadline):
            current = [item for item in items if self._is_current(*item)]
            for result in await self._shared.put_many(current, deadline) if current else ():
                self.offered += isinstance(result, Stored) and not result.kept

    def _is_current(self, key: Key, entry: Entry) -> bool:
        """Not of a raised epoch, nor under a floor."""
        try:
            namespace = self._namespaces.get(key.namespace)
        except NamespaceNotFound:
            return True
        return key.epoch == namespace.epoch and entry.head.version > namespace.floor(key.user)
