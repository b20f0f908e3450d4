"""AdminService: what operators ask of one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from terracekv.server import checks, replies
from terracekv.server.context import Calls
from terracekv.tiers.base import Tier
from terracekv.tiers.entry import TierName
from terracekv.tiers.stack import Stack
from terracekv.v1 import admin_pb2 as pb
from terracekv.v1 import admin_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Inspection and control. `node_stats` fills what the node alone knows; `drain` stops new work."""

    def __init__(
        self,
        stack: Stack,
        calls: Calls,
        node_stats: Callable[[], dict[str, Any]],
        drain: Callable[[], None],
        config_toml: str,
    ) -> None:
        self._stack = stack
        self._calls = calls
        self._node_stats = node_stats
        self._drain = drain
        self._config_toml = config_toml

    def _tiers(self) -> dict[TierName, Tier]:
        return {tier.name: tier for tier in (self._stack.memory, self._stack.shared, self._stack.disk)}

    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsResponse:  # noqa: N802
        tiers = [_tier_stats(tier) for tier in self._tiers().values()]
        return pb.StatsResponse(
            tiers=tiers,
            pending_bytes=self._stack.background.pending_bytes,
            flights_joined=self._stack.flights.joined,
            **self._node_stats(),
        )

    async def Tiers(self, request: pb.TiersRequest, context: Context) -> pb.TiersResponse:  # noqa: N802
        response = pb.TiersResponse()
        for name, tier in self._tiers().items():
            state, words = tier.state()
            response.tiers.append(pb.TierInfo(tier=int(name), state=int(state), detail=words))  # type: ignore[arg-type]
        return response

    async def ListNamespaces(  # noqa: N802
        self, request: pb.ListNamespacesRequest, context: Context
    ) -> pb.ListNamespacesResponse:
        namespaces = self._stack.namespaces.all()
        return pb.ListNamespacesResponse(namespaces=[replies.namespace_message(one) for one in namespaces])

    async def CreateNamespace(  # noqa: N802
        self, request: pb.CreateNamespaceRequest, context: Context
    ) -> pb.CreateNamespaceResponse:
        wanted = checks.checked_namespace(request.namespace)
        created = await self._stack.namespaces.create(wanted, self._calls.deadline(context))
        return pb.CreateNamespaceResponse(namespace=replies.namespace_message(created))

    async def UpdateNamespace(  # noqa: N802
        self, request: pb.UpdateNamespaceRequest, context: Context
    ) -> pb.UpdateNamespaceResponse:
        wanted = checks.checked_namespace(request.namespace)
        updated = await self._stack.namespaces.update(wanted, self._calls.deadline(context))
        return pb.UpdateNamespaceResponse(namespace=replies.namespace_message(updated))

    async def Flush(self, request: pb.FlushRequest, context: Context) -> pb.FlushResponse:  # noqa: N802
        flushed = await self._stack.background.flush(self._calls.deadline(context))
        return pb.FlushResponse(flushed_bytes=flushed)

    async def Clear(self, request: pb.ClearRequest, context: Context) -> pb.ClearResponse:  # noqa: N802
        for name in checks.check_tiers(request.tiers):
            await self._tiers()[name].clear()
        return pb.ClearResponse()

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:  # noqa: N802
        self._drain()
        return pb.DrainResponse()

    async def Config(self, request: pb.ConfigRequest, context: Context) -> pb.ConfigResponse:  # noqa: N802
        return pb.ConfigResponse(toml=self._config_toml)


def _tier_stats(tier: Tier) -> pb.TierStats:
    counters = tier.counters
    stats = pb.TierStats(
        tier=int(tier.name),  # type: ignore[arg-type]
        hits=counters.hits,
        misses=counters.misses,
        failures=counters.failures,
        puts=counters.puts,
        deletes=counters.deletes,
        evictions=counters.evictions,
        read_bytes=counters.read_bytes,
        written_bytes=counters.written_bytes,
        used_bytes=counters.used_bytes,
        capacity_bytes=counters.capacity_bytes,
        corrupt=counters.corrupt,
    )
    if counters.entries is not None:
        stats.entries = counters.entries
    return stats
