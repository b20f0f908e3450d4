"""Where the two clients truly differ: channels, waiting, many calls at once, and where a client may be used.

Each function here has an async_ and a sync_ side; the sync client is generated
from the async one by that prefix. Forks, as measured with grpcio 1.78 and 1.85:
a new sync channel works in a child whose parent had no call under way; a fork
in the middle of a call of another thread, or with a grpc.aio channel open,
leaves a child in which calls hang past their deadline or crash. Such a child
gets ForkedClient instead.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import grpc

from terracekv.client import errors
from terracekv.client.policy import CHANNEL_OPTIONS
from terracekv.v1 import admin_pb2_grpc, blocks_pb2_grpc, cache_pb2_grpc

Item = TypeVar("Item")
Result = TypeVar("Result")

GUARD_S: Final = 1.0  # past gRPC's own deadline: an answer that has not come then never will


class Connection:
    """One channel to a target and its stubs; of either kind of channel.

    `uploads` is the connection that carries streams to the server. `proven`: it
    answered since it last failed.
    """

    def __init__(self, number: int, channel: Any, uploads: Connection | None = None) -> None:
        self.number = number
        self.channel = channel
        self.uploads = uploads or self
        self.cache: Any = cache_pb2_grpc.CacheServiceStub(channel)
        self.blocks: Any = blocks_pb2_grpc.BlockServiceStub(channel)
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(channel)
        # The messages of grpc.health.v1 as bytes: two fields are not worth a dependency.
        self.health: Any = channel.unary_unary("/grpc.health.v1.Health/Check", _health_request, bytes)
        self.proven = False


HEALTH_SERVING: Final = b"\x08\x01"


def _health_request(service: str) -> bytes:
    name = service.encode()
    return b"\x0a" + bytes([len(name)]) + name if name else b""


# What a fork of this process would break. Sets change in one step, so that no lock can be held across a fork.
_under_way: Final[set[object]] = set()
_async_channels: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_channels_made = False
_generation = 0  # forks between the first process and this one
_broken = ""


def _after_fork_in_child() -> None:
    global _broken, _generation
    _generation += 1
    if _under_way:
        _broken = "this process was forked while a call was under way; fork between calls, or spawn"
    elif len(_async_channels):
        _broken = "this process was forked while an AsyncClient was open; close it before forking, or spawn"
    elif _channels_made and os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "1").lower() in {"0", "false", "no", "f", "n"}:
        _broken = "gRPC was used before this fork and GRPC_ENABLE_FORK_SUPPORT is off; switch it on, or spawn"
    _under_way.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def call_under_way() -> Iterator[None]:
    """Marks a call, so that a child forked in the middle of it knows."""
    token = object()
    _under_way.add(token)
    try:
        yield
    finally:
        _under_way.discard(token)


def _check_process() -> None:
    if _broken:
        raise errors.ForkedClient(_broken)


class async_Home:  # noqa: N801
    """The process and the event loop that an AsyncClient belongs to, from its first call on."""

    def __init__(self) -> None:
        self._generation = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> int:
        """Tells this process from its ancestors. Raises ForkedClient, WrongEventLoop."""
        _check_process()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._generation, self._loop = _generation, loop
        if self._generation != _generation:
            raise errors.ForkedClient("this AsyncClient was used before the fork; make another one in this process")
        if self._loop is not loop:
            raise errors.WrongEventLoop("this AsyncClient belongs to the event loop of its first call")
        return _generation


class sync_Home:  # noqa: N801
    """A Client works in any thread, and in a child forked between calls: each process has channels of its own."""

    def check(self) -> int:
        """Tells this process from its ancestors. Raises ForkedClient."""
        _check_process()
        return _generation


def async_connect(number: int, target: str, credentials: grpc.ChannelCredentials | None) -> Connection:
    """A connection for this event loop; it connects with the first call.

    Uploads go over gRPC's sync stack. When a server refuses an upload midway,
    grpc.aio may lose its answer and say "Internal error from Core" instead (one
    refusal in ten with grpcio 1.78 and 1.85); and there no large upload holds
    the event loop up.
    """
    options = list(CHANNEL_OPTIONS)
    uploads = sync_connect(number, target, credentials)
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, options)
    else:
        channel = grpc.aio.secure_channel(target, credentials, options)
    _async_channels.add(channel)
    return Connection(number, channel, uploads)


def sync_connect(number: int, target: str, credentials: grpc.ChannelCredentials | None) -> Connection:
    """A connection for this process; it connects with the first call."""
    global _channels_made
    _channels_made = True
    options = list(CHANNEL_OPTIONS)
    if credentials is None:
        return Connection(number, grpc.insecure_channel(target, options))
    return Connection(number, grpc.secure_channel(target, credentials, options))


async def async_close(connection: Connection) -> None:
    """Ends a connection and the calls on it."""
    _async_channels.discard(connection.channel)
    connection.uploads.channel.close()
    await connection.channel.close()


def sync_close(connection: Connection) -> None:
    """Ends a connection and the calls on it."""
    connection.channel.close()


@contextmanager
def _own_errors() -> Iterator[None]:
    """grpc.aio raises CancelledError for a call that another ended; only a task's own cancellation may be one."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        error = errors.RpcFailed("the call was cancelled by the server, or by closing the client")
        error.code = "CANCELLED"
        raise error from None
    except TimeoutError:
        raise errors.DeadlineExceeded("no answer within the deadline") from None


async def async_answer(method: Any, request: Any, timeout_s: float) -> Any:
    """The reply of a unary call. Raises grpc.RpcError, TerraceKVError."""
    with _own_errors(), call_under_way():
        async with asyncio.timeout(timeout_s + GUARD_S):
            return await method(request, timeout=timeout_s)


def sync_answer(method: Any, request: Any, timeout_s: float) -> Any:
    """The reply of a unary call. Raises grpc.RpcError, TerraceKVError."""
    with call_under_way():
        return method(request, timeout=timeout_s)


async def async_upload(method: Any, requests: Any, timeout_s: float) -> Any:
    """The reply to a stream of requests, drawn on a thread of gRPC's. Raises grpc.RpcError, TerraceKVError."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the loop may be closed before a cancelled call has ended
            loop.call_soon_threadsafe(ended.set)

    with _own_errors(), call_under_way():
        call = method.future(requests, timeout=timeout_s)
        call.add_done_callback(tell)
        try:
            async with asyncio.timeout(timeout_s + GUARD_S):
                await ended.wait()
            return call.result()
        except grpc.FutureCancelledError:  # by closing the client
            raise asyncio.CancelledError from None
        finally:
            call.cancel()


def sync_upload(method: Any, requests: Any, timeout_s: float) -> Any:
    """The reply to a stream of requests, drawn on a thread of gRPC's. Raises grpc.RpcError, TerraceKVError."""
    return sync_answer(method, requests, timeout_s)


async def async_read(call: Any, timeout_s: float) -> Any:
    """The next message of a stream, or None at its end. Raises grpc.RpcError, TerraceKVError."""
    with _own_errors():
        async with asyncio.timeout(timeout_s + GUARD_S):
            message = await call.read()
    return None if message is grpc.aio.EOF else message


def sync_read(call: Any, timeout_s: float) -> Any:
    """The next message of a stream, or None at its end; gRPC keeps its deadline. Raises grpc.RpcError."""
    return next(call, None)


async def async_sleep(seconds: float) -> None:
    """Waits."""
    await asyncio.sleep(seconds)


def sync_sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


async def async_map(function: Callable[[Item], Any], items: Sequence[Item], at_once_max: int) -> list[Any]:
    """The results of a function for each item, in order, a bounded number at once. The first error ends the others."""
    slots = asyncio.Semaphore(at_once_max)

    async def in_slot(item: Item) -> Any:
        async with slots:
            return await function(item)

    if len(items) == 1:
        return [await function(items[0])]
    tasks = [asyncio.ensure_future(in_slot(item)) for item in items]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def sync_map(function: Callable[[Item], Result], items: Sequence[Item], at_once_max: int) -> list[Result]:
    """The results of a function for each item, in order, a bounded number at once. The first error ends the others."""
    if len(items) <= 1:
        return [function(item) for item in items]
    pool = ThreadPoolExecutor(min(at_once_max, len(items)), thread_name_prefix="terracekv-client")
    try:
        return [future.result() for future in [pool.submit(function, item) for item in items]]
    finally:
        pool.shutdown(cancel_futures=True)
