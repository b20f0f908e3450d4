"""The stores of a node, opened lowest first and closed in reverse: disk, shared tier, namespaces, stack."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from terracekv.server.settings import Settings
from terracekv.tiers.background import Background
from terracekv.tiers.base import RecordStore, Tier
from terracekv.tiers.breaker import BreakerTier
from terracekv.tiers.clock import Deadline, SystemClock
from terracekv.tiers.disk import DiskTier, open_disk
from terracekv.tiers.durable import DurableNumber, DurableRecords
from terracekv.tiers.embedded import EmbeddedCluster, EmbeddedUnavailable
from terracekv.tiers.entry import KeySpace
from terracekv.tiers.errors import TierError
from terracekv.tiers.memory import MemoryTier
from terracekv.tiers.metered import MeteredSharedTier, MeteredTier
from terracekv.tiers.namespaces import Namespaces
from terracekv.tiers.null import NullTier
from terracekv.tiers.reoffer import SharedIdentity
from terracekv.tiers.shared import SharedTier
from terracekv.tiers.shared_records import SharedRecords
from terracekv.tiers.stack import Stack
from terracekv.tiers.versions import LocalVersions

LOG: Final = logging.getLogger("terracekv.server")
START_TIMEOUT_S: Final = 10.0
CLOCK_EVERY_S: Final = 10.0


@dataclass(slots=True)
class Storage:
    """The open stores of a node."""

    stack: Stack
    disk: DiskTier
    shared: SharedTier | None
    cluster: EmbeddedCluster | None
    identity: SharedIdentity | None
    clock: SystemClock
    tiers: tuple[Tier, ...] = field(default=())
    _clock_read_s: float = -math.inf

    async def refresh(self, deadline: Deadline) -> None:
        """Follows what others change: namespaces, Redis time, and whether the shared tier is still the same one."""
        if self.shared is not None and self.identity is not None:
            try:
                if self.clock.age_s() - self._clock_read_s >= CLOCK_EVERY_S:
                    self.clock.offset_us += await self.shared.time_offset(deadline)
                    self._clock_read_s = self.clock.age_s()
                await self.identity.check(deadline)
                await self.shared.refresh_usage(deadline)
            except TierError as error:
                LOG.debug("shared tier not followed: %s", error)
        await self.stack.namespaces.refresh(deadline)

    async def close(self, deadline: Deadline) -> None:
        """Writes what is owed within the deadline and closes everything."""
        await self.stack.close(deadline)
        if self.cluster is not None:
            await self.cluster.stop()


async def open_storage(settings: Settings, clock: SystemClock, draw: Callable[[], float]) -> Storage:
    """Opens the stores. Raises StoreError, in one line; what was opened before is closed again."""
    async with AsyncExitStack() as opened:
        disk = await open_disk(settings.data_dir / "disk", settings.disk_bytes, settings.durable_bytes_max, clock)
        opened.push_async_callback(disk.close)
        for words in disk.set_aside:
            LOG.error("the disk tier could not be opened and was set aside, an empty one begins: %s", words)
        cluster = await _embedded(settings)
        if cluster is not None:
            opened.push_async_callback(cluster.stop)
        shared = await _shared(settings, cluster, clock, draw)
        if shared is not None:
            opened.push_async_callback(shared.close)
        storage = _assembled(settings, disk, shared, cluster, clock, draw)
        await _started(storage)
        opened.pop_all()
    return storage


async def _embedded(settings: Settings) -> EmbeddedCluster | None:
    if settings.shared != "embedded":
        return None
    try:
        cluster = await EmbeddedCluster.start(settings.data_dir / "shared", settings.shared_memory_bytes_max)
    except EmbeddedUnavailable as error:
        LOG.warning("running without a shared tier, as with --shared none: %s", error)
        return None
    LOG.info("embedded cluster %s", "adopted" if cluster.adopted else "started", extra={"shared": cluster.masked})
    return cluster


async def _shared(
    settings: Settings, cluster: EmbeddedCluster | None, clock: SystemClock, draw: Callable[[], float]
) -> SharedTier | None:
    if cluster is None and not settings.shared.startswith("redis"):
        return None
    shared = SharedTier(cluster.url if cluster else settings.shared, clock, draw, settings.shared_prefix)
    try:
        await shared.connect()
    except TierError as error:
        LOG.warning("starting without the shared tier, trying on: %s", error)
    except BaseException:
        await shared.close()
        raise
    return shared


def _assembled(
    settings: Settings,
    disk: DiskTier,
    shared: SharedTier | None,
    cluster: EmbeddedCluster | None,
    clock: SystemClock,
    draw: Callable[[], float],
) -> Storage:
    local = DurableRecords(disk.durable)
    records: RecordStore = SharedRecords(shared) if shared else local
    create = settings.on_loopback if settings.create_namespaces is None else settings.create_namespaces
    configured = [one.namespace() for one in settings.namespaces]
    namespaces = Namespaces(records, local, clock, configured, create_on_put=create)
    memory = MemoryTier(settings.memory_bytes, settings.memory_value_bytes_max, clock=clock)
    lower = MeteredSharedTier(shared or NullTier(clock), clock)
    lowest = MeteredTier(BreakerTier(disk, clock, draw), clock)  # the shared tier has a breaker for each of its nodes
    background = Background((lower, lowest), settings.pending_bytes_max, clock)
    versions = LocalVersions(DurableNumber(disk.durable, b"version/reserved"), clock)
    # Nobody else writes to a cluster that is this node's own, nor to no cluster at all.
    alone = shared is None or (cluster is not None and cluster.owned_by_node)
    age_s_max = math.inf if alone else settings.mutable_age_s_max
    stack = Stack(
        memory, lower, lowest, namespaces, background, versions, KeySpace(), clock, draw, mutable_age_s_max=age_s_max
    )  # fmt: skip
    identity = SharedIdentity(shared, disk, disk.durable, namespaces) if shared else None
    return Storage(stack, disk, shared, cluster, identity, clock, (memory, lower, lowest))


async def _started(storage: Storage) -> None:
    deadline = Deadline.after(START_TIMEOUT_S, storage.clock)
    await storage.stack.namespaces.start(deadline)
    await storage.refresh(deadline)
