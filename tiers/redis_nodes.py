"""One Redis node: its connections, its breaker, and what its replies mean. Topology is read here, too.

redis-py supplies connections, protocol, seeds and topology. A connection on
which anything but a whole exchange happened is closed, so a cancelled command
never leaves its reply to the next user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import ConnectionPool
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from terracekv.tiers.breaker import Breaker, BreakerState
from terracekv.tiers.buckets import slot_of
from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import BUCKETS, FailureReason, TierFailure, TierName
from terracekv.tiers.errors import TierUnavailable
from terracekv.tiers.patience import Patience
from terracekv.tiers.redis_url import Address, RedisUrl
from terracekv.tiers.scripts import Argument

CONNECTIONS_PER_NODE_MAX: Final = 16
CALL_TIMEOUT_S: Final = 0.25
CONNECT_TIMEOUT_S: Final = 0.5
BYTES_PER_S_MIN: Final = 50 * 1_048_576  # what a call's bytes may take on top
CONTACT_TIMEOUT_S: Final = 1.0  # for each seed: a dead one delays the first contact by this at most
TELLING_S_MIN: Final = 0.05  # a call cut shorter than this by its deadline says nothing about the node
_STREAM_BYTES: Final = 1_048_576

Reply = Any  # bytes, int, None, a list of these, or a ResponseError as a value
Replies = list[Reply] | TierFailure
Remap = Callable[[tuple[str, int]], tuple[str, int]]


def unavailable(detail: str) -> TierFailure:
    """The failure of a key whose master does not answer."""
    return TierFailure(TierName.SHARED, FailureReason.UNAVAILABLE, detail)


def failure_of(reply: Reply) -> TierFailure | None:
    """The failure that an error reply means. Redis repeats arguments in its messages: only the kind is told."""
    if isinstance(reply, OutOfMemoryError):
        return TierFailure(TierName.SHARED, FailureReason.FULL, "Redis is over its maxmemory")
    if isinstance(reply, ResponseError):
        return unavailable(f"Redis answered {type(reply).__name__}")
    return None


def single_of(replies: Replies) -> bytes | TierFailure | None:
    """The value that a unit of one command answered."""
    if isinstance(replies, TierFailure):
        return replies
    (reply,) = replies
    if reply is None or isinstance(reply, bytes):
        return reply
    failure = failure_of(reply)
    return unavailable("Redis answered something else than a value") if failure is None else failure


class Repeat(NamedTuple):
    """Why a unit must be sent again: where to, if the reply said; after ASKING; or only because a script is unknown."""

    address: tuple[str, int] | None = None
    asking: bool = False
    unknown_script: bool = False


def repeat_of(reply: Reply) -> Repeat | None:
    """What a reply says about sending again, if it does."""
    if isinstance(reply, NoScriptError):
        return Repeat(unknown_script=True)
    if isinstance(reply, AskError):  # MovedError is one of its kind
        return Repeat((str(reply.host), int(reply.port)), asking=not isinstance(reply, MovedError))
    if isinstance(reply, TryAgainError | ClusterDownError | MasterDownError | ReadOnlyError):
        return Repeat()
    return None


class _TcpConnection(Connection):
    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "limit": _STREAM_BYTES}


class _TlsConnection(SSLConnection):
    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "limit": _STREAM_BYTES}


class Node:
    """One master: its connections and its breaker."""

    def __init__(self, address: Address, url: RedisUrl, clock: Clock, draw: Callable[[], float]) -> None:
        self.address = address
        self.breaker = Breaker(draw)
        self._clock = clock
        self._closed = False
        self._free = asyncio.Semaphore(CONNECTIONS_PER_NODE_MAX)
        self._pool = ConnectionPool(
            connection_class=_TlsConnection if url.tls else _TcpConnection,
            max_connections=CONNECTIONS_PER_NODE_MAX,
            host=address.host,
            port=address.port,
            **_options(url),
            # The exchange is timed as a whole: a timeout for every read and write would cost a task each.
            socket_timeout=None,
            socket_connect_timeout=CONTACT_TIMEOUT_S,
            socket_read_size=_STREAM_BYTES,
            health_check_interval=0,
        )

    async def exchange(
        self, commands: Sequence[Sequence[Argument]], deadline: Deadline, sent_bytes: int = 0, reply_bytes: int = 0
    ) -> Replies:
        """Sends commands as one pipeline and answers a reply each. Refused while the breaker is not closed.

        `sent_bytes` are those of all values sent, `reply_bytes` those that one reply may have at most.
        """
        if not await self._acquire(deadline):
            return TierFailure(TierName.SHARED, FailureReason.TIMEOUT, "waited for a connection until the deadline")
        try:
            if self._closed:
                return unavailable(f"{self.address} is not used any more")
            if self.breaker.state is not BreakerState.CLOSED:
                return unavailable(f"{self.address} is cut off by its breaker")
            return await self._watched(commands, deadline, sent_bytes, reply_bytes)
        finally:
            self._free.release()

    async def _acquire(self, deadline: Deadline) -> bool:
        if not self._free.locked():
            return await self._free.acquire()  # at once, so no timer is needed
        try:
            async with asyncio.timeout(deadline.left_s()):
                return await self._free.acquire()
        except TimeoutError:
            return False

    async def probe(self) -> None:
        """Asks a node whose breaker is due whether it is back."""
        if self.breaker.due(self._clock.age_s()) and self.breaker.allow(self._clock.age_s()):
            await self._watched([("PING",)], Deadline.after(CALL_TIMEOUT_S, self._clock), 0, 0)

    async def _watched(
        self, commands: Sequence[Sequence[Argument]], deadline: Deadline, sent_bytes: int, reply_bytes: int
    ) -> Replies:
        left_s = deadline.left_s()
        told = False
        try:
            replies = await self._timed(commands, left_s, sent_bytes, reply_bytes)
            self.breaker.succeeded(self._clock.age_s())
            told = True
        except TimeoutError:
            if told := left_s >= TELLING_S_MIN:
                self.breaker.failed(self._clock.age_s())
            return TierFailure(TierName.SHARED, FailureReason.TIMEOUT, f"{self.address} did not answer in time")
        except (RedisError, OSError) as error:
            told = True
            self.breaker.failed(self._clock.age_s())
            return unavailable(f"{self.address} {_in_words(error)}")
        finally:
            if not told:
                self.breaker.abandoned()
        return replies

    async def _timed(
        self, commands: Sequence[Sequence[Argument]], left_s: float, sent_bytes: int, reply_bytes: int
    ) -> list[Reply]:
        async with Patience(left_s) as patience:
            patience.grant(CONNECT_TIMEOUT_S)
            connection: AbstractConnection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
            whole = False
            try:
                patience.grant(CALL_TIMEOUT_S + (sent_bytes + reply_bytes) / BYTES_PER_S_MIN)
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                replies = []
                for _ in commands:
                    replies.append(await _reply(connection))
                    patience.grant(CALL_TIMEOUT_S + reply_bytes / BYTES_PER_S_MIN)
                whole = True
                return replies
            finally:
                if not whole:
                    await connection.disconnect(nowait=True)
                await self._pool.release(connection)

    async def close(self) -> None:
        """Closes its connections, those in use too."""
        self._closed = True
        await self._pool.aclose()

    async def retire(self) -> None:
        """Closes its connections as their exchanges end."""
        try:
            for _ in range(CONNECTIONS_PER_NODE_MAX):
                await self._free.acquire()
        finally:
            await self.close()
        for _ in range(CONNECTIONS_PER_NODE_MAX):
            self._free.release()


def _in_words(error: Exception) -> str:
    if isinstance(error, AuthenticationError):
        return "refused the credentials"
    return f"cannot be talked to ({type(error).__name__})"


async def _reply(connection: AbstractConnection) -> Reply:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _options(url: RedisUrl) -> dict[str, Any]:
    return {
        "username": url.username,
        "password": url.password,
        "protocol": 2,
        "driver_info": None,  # nothing to say about ourselves: one round trip less for each connection
        "retry": Retry(NoBackoff(), 0),
    }


async def discover(url: RedisUrl, seeds: Iterable[Address], remap: Remap | None) -> list[Address | None]:
    """The master of each bucket, as the first seed that answers says; a dead one costs `CONTACT_TIMEOUT_S`.

    Raises TierUnavailable, in one line.
    """
    cluster = RedisCluster(
        startup_nodes=[ClusterNode(seed.host, seed.port) for seed in seeds],
        require_full_coverage=False,
        dynamic_startup_nodes=False,
        socket_timeout=CONTACT_TIMEOUT_S,
        socket_connect_timeout=CONTACT_TIMEOUT_S,
        ssl=url.tls,
        address_remap=remap,
        **_options(url),
    )
    try:
        await cluster.nodes_manager.initialize()
        owners = [cluster.nodes_manager.slots_cache.get(slot_of(bucket)) for bucket in range(BUCKETS)]
    except (RedisError, OSError, LookupError) as error:
        raise TierUnavailable(f"no topology from {url.masked}: {type(error).__name__}") from error
    finally:
        await cluster.nodes_manager.aclose("startup_nodes")
    return [Address(nodes[0].host, int(nodes[0].port)) if nodes else None for nodes in owners]
