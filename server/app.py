"""The composition root: a node's parts built top to bottom, started in order, closed in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import random
import socket
import time
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from terracekv.server.admin_service import AdminService
from terracekv.server.block_service import BlockService
from terracekv.server.cache_service import CacheService
from terracekv.server.context import Calls
from terracekv.server.health import SERVICES, Health
from terracekv.server.interceptors import ServiceInterceptor
from terracekv.server.limits import Budget
from terracekv.server.metrics import Collector, MetricsServer
from terracekv.server.settings import Settings, as_toml, split_address
from terracekv.server.storage import Storage, open_storage
from terracekv.tiers.clock import Deadline, SystemClock
from terracekv.tiers.errors import StoreError
from terracekv.v1 import admin_pb2_grpc, blocks_pb2_grpc, cache_pb2_grpc

LOG: Final = logging.getLogger("terracekv.server")

# Unary requests over our own limit but under this one get an error that names the limit, not gRPC's.
RECEIVE_BYTES_MAX: Final = 8_388_608
METADATA_BYTES_MAX: Final = 16_384
STREAMS_PER_CONNECTION_MAX: Final = 1_024
CLOSE_GRACE_S: Final = 10.0

_CHANNEL_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a second server on a taken port must fail, not share it
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # What the shipped client sends (a ping each 30 s, also while idle) must never be called too many.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class PortTaken(StoreError):
    """The address to listen on is in use."""


class Node:
    """A running node. `await start()`, then `await stop()`; `port` and `metrics_port` are known in between."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.port = 0
        self.metrics_port = 0
        self._clock = SystemClock()
        self._health = Health()
        self._storage: Storage | None = None
        self._server: grpc.aio.Server | None = None
        self._metrics: MetricsServer | None = None
        self._blocks: BlockService | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._started_s = 0.0

    async def start(self) -> None:
        """Opens the stores, then serves. Raises StoreError, in one line; what was opened is closed again."""
        try:
            self._storage = await open_storage(self.settings, self._clock, random.SystemRandom().random)
            self._interceptor = self._build_interceptor()
            self._server = self._build_server(self._storage)
            self._open_ports(self._server)
            await self._server.start()
            await self._health.serving()
            self._started_s = time.monotonic()
            self._tasks = [asyncio.create_task(self._watch(self._storage))]
        except BaseException:
            await self.stop(grace_s=0)
            raise

    def _build_interceptor(self) -> ServiceInterceptor:
        settings = self.settings
        self._calls_budget = Budget("CALLS_INFLIGHT", settings.calls_inflight_max)
        self._bytes_budget = Budget("BYTES_INFLIGHT", settings.bytes_inflight_max)
        return ServiceInterceptor(
            self._calls_budget,
            self._bytes_budget,
            self._clock,
            settings.deadline_default_s,
            settings.stream_deadline_default_s,
        )

    def _build_server(self, storage: Storage) -> grpc.aio.Server:
        settings, stack = self.settings, storage.stack
        calls = Calls(self._clock, settings.deadline_default_s, settings.stream_deadline_default_s)
        self._blocks = BlockService(stack, calls, self._bytes_budget)
        server = grpc.aio.server(interceptors=(self._interceptor,), options=_CHANNEL_OPTIONS)
        cache_pb2_grpc.add_CacheServiceServicer_to_server(CacheService(stack, calls, self._bytes_budget), server)
        blocks_pb2_grpc.add_BlockServiceServicer_to_server(self._blocks, server)
        admin = AdminService(stack, calls, self._node_stats, self.drain, as_toml(settings))
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, server)
        reflection.enable_server_reflection((*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME), server)
        return server

    def _open_ports(self, server: grpc.aio.Server) -> None:
        taken = PortTaken(f"{self.settings.listen} is taken: stop what listens there, or choose --listen")
        if not _is_free(*split_address(self.settings.listen)):
            raise taken
        try:
            self.port = server.add_insecure_port(self.settings.listen)
        except RuntimeError:
            raise taken from None
        if self.settings.metrics_listen == "none" or self._storage is None:
            return
        host, port = split_address(self.settings.metrics_listen)
        collector = Collector(self._storage.stack, self._interceptor.stats, (self._calls_budget, self._bytes_budget))
        try:
            self._metrics = MetricsServer(collector, host, port)
        except OSError:
            cure = "stop what listens there, or choose --metrics-listen"
            raise PortTaken(f"{self.settings.metrics_listen} (metrics) is taken: {cure}") from None
        self.metrics_port = self._metrics.port

    def _node_stats(self) -> dict[str, Any]:
        return {
            "uptime_s": time.monotonic() - self._started_s,
            "version": importlib.metadata.version("terracekv"),
            "blocks_differing": self._blocks.differing_blocks if self._blocks else 0,
        }

    async def _watch(self, storage: Storage) -> None:
        """Follows namespace records and tier states until cancelled."""
        while True:
            try:
                await storage.refresh(Deadline.after(self.settings.namespaces_refresh_s, self._clock))
            except Exception:
                LOG.exception("a defect in following the shared tier; it is followed on")
            for tier in storage.tiers:
                await self._health.observe(tier)
            await asyncio.sleep(self.settings.namespaces_refresh_s)

    def drain(self) -> None:
        """Takes no new work; what is under way goes on."""
        self._interceptor.draining = True
        self._tasks.append(asyncio.get_running_loop().create_task(self._health.draining()))

    async def stop(self, grace_s: float | None = None) -> None:
        """Refuses new calls, lets those under way end within the grace, writes what is owed, closes. Idempotent."""
        grace_s = self.settings.shutdown_grace_s if grace_s is None else grace_s
        if self._server is not None:
            await self._health.draining()
            await self._server.stop(grace_s)
            self._server = None
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
            self._metrics = None
        if self._storage is not None:
            await self._storage.close(Deadline.after(CLOSE_GRACE_S, self._clock))
            self._storage = None


def _is_free(host: str, port: int) -> bool:
    """Whether an address can be bound. Asked first because gRPC would write lines of its own about a taken one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        return False
    return True
