"""The administration half of AsyncClient: namespaces, counters and control of one node.

The source of sync_admin.py: change this file, then run scripts/unasync.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from terracekv.client import errors
from terracekv.client.admin_calls import (
    UNSET,
    Unset,
    changed_message,
    namespace_message,
    namespace_of,
    stats_of,
    tier_numbers,
    tiers_of,
)
from terracekv.client.aio_rpc import AsyncBase
from terracekv.client.values import CodecName, Durability, KindName, Namespace, Stats, TierInfo, TierName
from terracekv.v1 import admin_pb2 as pb


class AsyncAdmin(AsyncBase):
    """Calls of AdminService and of the standard health service."""

    async def ping(self, *, timeout_s: float | None = None) -> float:
        """Seconds until the node said that it takes work. Raises Draining where it says that it does not."""
        started_s = time.monotonic()
        if not await self._rpc.health("", self._timeouts(timeout_s).unary()):
            raise errors.Draining("the node says that it takes no new work")
        return time.monotonic() - started_s

    async def stats(self, *, timeout_s: float | None = None) -> Stats:
        """Counters of every tier and of the node since its start."""
        deadline = self._timeouts(timeout_s).unary()
        return stats_of(await self._rpc.call(lambda node: node.admin.Stats, pb.StatsRequest, deadline, safe=True))

    async def tiers(self, *, timeout_s: float | None = None) -> list[TierInfo]:
        """The tiers and their state, upper first."""
        deadline = self._timeouts(timeout_s).unary()
        return tiers_of(await self._rpc.call(lambda node: node.admin.Tiers, pb.TiersRequest, deadline, safe=True))

    async def list_namespaces(self, *, timeout_s: float | None = None) -> list[Namespace]:
        """All namespaces, by name."""
        deadline = self._timeouts(timeout_s).unary()
        reply = await self._rpc.call(
            lambda node: node.admin.ListNamespaces, pb.ListNamespacesRequest, deadline, safe=True
        )
        return [namespace_of(message) for message in reply.namespaces]

    async def create_namespace(
        self,
        name: str,
        kind: KindName = "mutable",
        *,
        ttl_s: float | None = None,
        jitter: float | None = None,
        tiers: Iterable[TierName] | None = None,
        codec: CodecName | None = None,
        durability: Durability | str | None = None,
        timeout_s: float | None = None,
    ) -> Namespace:
        """Creates a namespace, or finds it with the same settings. `ttl_s` None: no expiry; others None: the default.

        `jitter` is the share of each TTL that may be taken off at write, 0 to 0.5. Raises NamespaceInvalid,
        NamespaceConflict where it exists with another kind, EnumInvalid.
        """
        message = namespace_message(name, kind, ttl_s, jitter, tiers, codec, durability)
        request = pb.CreateNamespaceRequest(namespace=message)
        deadline = self._timeouts(timeout_s).unary()
        reply = await self._rpc.call(lambda node: node.admin.CreateNamespace, lambda: request, deadline, safe=False)
        return namespace_of(reply.namespace)

    async def update_namespace(
        self,
        name: str,
        *,
        ttl_s: float | Unset | None = UNSET,
        jitter: float | Unset = UNSET,
        tiers: Iterable[TierName] | Unset = UNSET,
        codec: CodecName | Unset = UNSET,
        durability: Durability | str | Unset | None = UNSET,
        timeout_s: float | None = None,
    ) -> Namespace:
        """Changes those settings that are given; its kind and epoch stay. Raises NamespaceNotFound, EnumInvalid.

        The settings are read, changed and written back: of two updates at once the later one wins as a whole.
        """
        known = {namespace.name: namespace for namespace in await self.list_namespaces(timeout_s=timeout_s)}
        if name not in known:
            raise errors.NamespaceNotFound("no namespace of that name")
        message = changed_message(
            known[name], ttl_s=ttl_s, jitter=jitter, tiers=tiers, codec=codec, durability=durability
        )
        request = pb.UpdateNamespaceRequest(namespace=message)
        deadline = self._timeouts(timeout_s).unary()
        reply = await self._rpc.call(lambda node: node.admin.UpdateNamespace, lambda: request, deadline, safe=False)
        return namespace_of(reply.namespace)

    async def flush(self, *, timeout_s: float | None = None) -> int:
        """Waits until all background writes accepted so far are in their tiers; gives the bytes written meanwhile."""
        deadline = self._timeouts(timeout_s).transfer(0)
        reply = await self._rpc.call(lambda node: node.admin.Flush, pb.FlushRequest, deadline, safe=True)
        return int(reply.flushed_bytes)

    async def clear(self, tiers: Iterable[TierName], *, timeout_s: float | None = None) -> None:
        """Empties tiers, durable data excepted: for tests, demos and emergencies. Raises EnumInvalid."""
        request = pb.ClearRequest(tiers=tier_numbers(tiers))
        deadline = self._timeouts(timeout_s).transfer(0)
        await self._rpc.call(lambda node: node.admin.Clear, lambda: request, deadline, safe=False)

    async def drain(self, *, timeout_s: float | None = None) -> None:
        """Tells the node to take no new work. It does not stop by itself."""
        deadline = self._timeouts(timeout_s).unary()
        await self._rpc.call(lambda node: node.admin.Drain, pb.DrainRequest, deadline, safe=False)

    async def config(self, *, timeout_s: float | None = None) -> str:
        """The settings in force, as TOML, secrets masked."""
        deadline = self._timeouts(timeout_s).unary()
        reply = await self._rpc.call(lambda node: node.admin.Config, pb.ConfigRequest, deadline, safe=True)
        return str(reply.toml)
