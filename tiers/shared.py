"""L2, the tier that all nodes share: the contract of a tier over a Redis or Valkey cluster, or one server.

A batch is one pipeline for each master it touches. A master that fails fails
its keys, nobody else's. Mutable entries get their versions here: a write is
one script, so that version and value are kept or lost together. Whatever a
record says is proven on every read: key, epoch, lengths, checksum, expiry.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from terracekv.tiers.base import TierState, WriteLevel
from terracekv.tiers.breaker import BreakerState
from terracekv.tiers.buckets import META_BUCKET, PREFIX_DEFAULT, KeyNames
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import (
    MISS,
    DeleteResult,
    Entry,
    Found,
    HeadFound,
    Key,
    PutResult,
    Stored,
    TierFailure,
    TierName,
)
from terracekv.tiers.errors import TierUnavailable
from terracekv.tiers.redis_masters import RedisMasters
from terracekv.tiers.redis_nodes import Node, Remap, Reply, failure_of
from terracekv.tiers.redis_url import RedisUrl, parse_info, parse_redis_url
from terracekv.tiers.scripts import Argument
from terracekv.tiers.shared_parts import Parts
from terracekv.tiers.shared_read import Reader
from terracekv.tiers.shared_write import Writer
from terracekv.tiers.stats import TierCounters

USAGE_AGE_S_MAX: Final = 1.0
CLEAR_BATCH_KEYS: Final = 500
OPERATOR_TIMEOUT_S: Final = 5.0
CLOCK_SAMPLES: Final = 5


class SharedTier:
    """Redis as a tier and as the authority over versions. Used on the event loop's thread only."""

    def __init__(
        self,
        url: str | RedisUrl,
        clock: Clock,
        draw: Callable[[], float],
        prefix: str = PREFIX_DEFAULT,
        address_remap: Remap | None = None,
        token: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Opens nothing before `connect`. `url` is as parse_redis_url takes it; `draw` is uniform in [0, 1).

        `address_remap` replaces the addresses that the cluster announces. Raises FieldInvalid.
        """
        self.counters = TierCounters()
        self.names = KeyNames(prefix)
        self.url = url if isinstance(url, RedisUrl) else parse_redis_url(url)
        self.masters = RedisMasters(self.url, clock, draw, address_remap)
        parts = Parts(self.masters, self.names, token)
        self._reader = Reader(self.masters, self.names, parts, clock, self.counters)
        self._writer = Writer(self.masters, self.names, parts, self._reader, clock, token)
        self._clock = clock
        self._token = token
        self._usage_s = float("-inf")
        self._evicted_before: int | None = None

    @property
    def name(self) -> TierName:
        return TierName.SHARED

    async def connect(self) -> None:
        """First contact: about a second, whichever seeds are dead. Raises SharedConfig, a line that names the cure.

        Raises TierUnavailable, in one line, if no seed answers; the tier then goes on trying by itself.
        """
        await self.masters.connect()

    # --- the contract ---

    async def get_many(self, keys: Sequence[Key], deadline: Deadline, bytes_max: int | None = None) -> list[Found]:
        """As the contract says. With `bytes_max`, 64 KiB of each record are read to see which fit."""
        if bytes_max is None:
            found = await self._reader.get(keys, deadline)
        else:
            found = await self._reader.get_within(keys, deadline, bytes_max)
        self._count_reads(found)
        self.counters.read_bytes += sum(one.head.size_bytes for one in found if isinstance(one, Entry))
        return found

    async def head_many(self, keys: Sequence[Key], deadline: Deadline) -> list[HeadFound]:
        """As the contract says; only the beginnings of records are read."""
        found = await self._reader.heads(keys, deadline)
        self._count_reads(found)
        return found

    async def put_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        """As the contract says."""
        results = await self._writer.put(items, deadline)
        self._count_writes(items, results)
        return results

    async def write_many(
        self, items: Sequence[tuple[Key, Entry]], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[PutResult]:
        """As VersionAuthority says; versions follow the clock of the key's master."""
        results = await self._writer.write(items, deadline)
        self._count_writes(items, results)
        return results

    async def delete_many(
        self, keys: Sequence[Key], deadline: Deadline, level: WriteLevel = WriteLevel.BUFFERED
    ) -> list[DeleteResult]:
        """As the contract says; works also where Redis is over its maxmemory."""
        results = await self._writer.delete(keys, deadline)
        failures = sum(result is not None for result in results)
        self.counters.failures += failures
        self.counters.deletes += len(results) - failures
        return results

    def state(self) -> tuple[TierState, str]:
        """UP while every master answers, DEGRADED while some do."""
        trouble = self.masters.trouble()
        if trouble:
            return TierState.DOWN, trouble
        masters = self.masters.masters
        silent = [str(node.address) for node in masters if node.breaker.state is not BreakerState.CLOSED]
        if silent:
            state = TierState.DOWN if len(silent) == len(masters) else TierState.DEGRADED
            return state, f"{len(silent)} of {len(masters)} masters do not answer: {', '.join(silent)}"
        if self.masters.unowned:
            return TierState.DEGRADED, f"{self.masters.unowned} of 256 buckets have no master"
        return TierState.UP, f"{len(masters)} masters" if self.masters.clustered else "one server"

    async def close(self) -> None:
        """As the contract says."""
        await self.masters.close()

    # --- for operators ---

    async def clear(self) -> None:
        """Removes every entry under the prefix; namespaces stay. Raises TierUnavailable if a master does not answer."""
        await asyncio.gather(*(self._clear(node) for node in self.masters.masters))

    async def _clear(self, node: Node) -> None:
        cursor: bytes | int = 0
        while True:
            scan = ("SCAN", cursor, "MATCH", self.names.pattern, "COUNT", CLEAR_BATCH_KEYS)
            cursor, names = (await self._answers(node, [scan]))[0]
            if names:
                await self._answers(node, [("UNLINK", name) for name in names])
            if cursor == b"0":
                return

    async def _answers(self, node: Node, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        replies = await node.exchange(commands, Deadline.after(OPERATOR_TIMEOUT_S, self._clock))
        failures = [replies] if isinstance(replies, TierFailure) else map(failure_of, replies)
        for failure in failures:
            if failure is not None:
                raise TierUnavailable(failure.detail)
        return list(replies)

    async def refresh_usage(self, deadline: Deadline) -> None:
        """Brings used, capacity and evictions in the counters up to date; what is under a second old stays."""
        if self._clock.age_s() - self._usage_s < USAGE_AGE_S_MAX:
            return
        self._usage_s = self._clock.age_s()
        answers = await self.masters.ask_all([("INFO", "memory"), ("INFO", "stats")], deadline)
        infos = [
            parse_info(replies[0]) | parse_info(replies[1])
            for _, replies in answers
            if isinstance(replies, list) and all(failure_of(reply) is None for reply in replies)
        ]
        if not infos or len(infos) < len(answers):
            return
        used, capacity, evicted = (
            sum(int(info.get(name, "0")) for info in infos) for name in ("used_memory", "maxmemory", "evicted_keys")
        )
        self.counters.used_bytes, self.counters.capacity_bytes = used, capacity
        if self._evicted_before is None or evicted < self._evicted_before + self.counters.evictions:
            self._evicted_before = evicted - self.counters.evictions  # first look, or a master began anew
        self.counters.evictions = evicted - self._evicted_before

    async def time_offset(self, deadline: Deadline) -> int:
        """Microseconds that Redis TIME is ahead of the clock: add them to SystemClock.offset_us. Raises TierError."""
        samples = []
        for _ in range(CLOCK_SAMPLES):
            before_us = self._clock.now_us()
            seconds, microseconds = await self.masters.ask(META_BUCKET, ("TIME",), deadline)
            after_us = self._clock.now_us()
            redis_us = int(seconds) * 1_000_000 + int(microseconds)
            samples.append((after_us - before_us, redis_us - (before_us + after_us) // 2))
        return min(samples)[1]  # the quickest answer is off by the least

    async def instance_id(self, deadline: Deadline) -> str:
        """Tells one shared tier from another: an id kept with the data, gone when the data is. Raises TierError."""
        name = self.names.meta("instance")
        await self.masters.ask(META_BUCKET, ("SET", name, self._token(16).hex(), "NX"), deadline)
        found = await self.masters.ask(META_BUCKET, ("GET", name), deadline)
        if not isinstance(found, bytes):
            raise TierUnavailable("the shared tier lost its id while it was asked for it")
        return found.decode("ascii", "replace")

    # --- counting ---

    def _count_reads(self, found: Sequence[Found]) -> None:
        misses = sum(one is MISS for one in found)
        failures = sum(isinstance(one, TierFailure) for one in found)
        self.counters.misses += misses
        self.counters.failures += failures
        self.counters.hits += len(found) - misses - failures

    def _count_writes(self, items: Sequence[tuple[Key, Entry]], results: Sequence[PutResult]) -> None:
        for (_, entry), result in zip(items, results, strict=True):
            if not isinstance(result, Stored):
                self.counters.failures += 1
            elif result.kept:
                self.counters.kept += 1
            else:
                self.counters.puts += 1
                self.counters.written_bytes += entry.head.size_bytes
