"""grpc.health.v1: each service, the node as a whole (""), and each tier as "tier.memory", "tier.shared", "tier.disk".

The node and its services serve while the process can answer at all: a lost
Redis degrades them and never takes the node out of rotation. Who wants to know
about a tier asks for it by name.
"""

from __future__ import annotations

from typing import Final

from grpc_health.v1 import health, health_pb2

from terracekv.tiers.base import Tier, TierState

SERVICES: Final = (
    "terracekv.v1.CacheService",
    "terracekv.v1.BlockService",
    "terracekv.v1.AdminService",
)
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """What the node says of itself."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        self._said: dict[str, int] = {}

    async def serving(self) -> None:
        """The node takes work."""
        for service in ("", *SERVICES):
            await self._say(service, _SERVING)

    async def draining(self) -> None:
        """The node takes no new work; operators may still ask."""
        for service in ("", *SERVICES[:-1]):
            await self._say(service, _NOT_SERVING)

    async def observe(self, tier: Tier) -> None:
        """Says how a tier is; one that is absent is not said to serve."""
        up = tier.state()[0] in (TierState.UP, TierState.DEGRADED)
        await self._say(f"tier.{tier.name.name.lower()}", _SERVING if up else _NOT_SERVING)

    async def _say(self, service: str, status: int) -> None:
        if self._said.get(service) != status:  # watchers hear of changes only
            self._said[service] = status
            await self.servicer.set(service, status)
