"""Calls over the connections of a client: each has a deadline, each failure is typed, only what is safe is repeated.

Generated: change its source in the aio files, then run scripts/unasync.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self

import grpc

from terracekv.client import errors
from terracekv.client.errors import TerraceKVError
from terracekv.client.policy import TIMEOUT_S, Deadline, Timeouts, Tries, parse_targets
from terracekv.client.transport import (
    HEALTH_SERVING,
    Connection,
    call_under_way,
    sync_answer,
    sync_close,
    sync_connect,
    sync_Home,
    sync_read,
    sync_sleep,
    sync_upload,
)

Pick = Callable[[Connection], Any]


class SyncRpc:
    """The connections to one or more targets, the first that answers used until it does not."""

    def __init__(self, target: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.targets = parse_targets(target)
        self._credentials = credentials
        self._home = sync_Home()
        self._connections: dict[tuple[int, int], Connection] = {}
        self._current = 0
        self._closed = False

    def close(self) -> None:
        """Ends the connections of this process. Idempotent."""
        self._closed = True
        generation = self._home.check()
        for owner, number in list(self._connections):
            if owner == generation:  # those of a parent process are the parent's
                sync_close(self._connections.pop((owner, number)))

    def _connection(self) -> Connection:
        """The connection in use. Raises ClientClosed, ForkedClient, WrongEventLoop."""
        generation = self._home.check()
        if self._closed:
            raise errors.ClientClosed("this client is closed")
        number = self._current
        if (generation, number) not in self._connections:
            made = sync_connect(number, self.targets[number], self._credentials)
            self._connections.setdefault((generation, number), made)
        return self._connections[generation, number]

    def call(
        self,
        pick: Pick,
        make_request: Callable[[], Any],
        deadline: Deadline,
        *,
        safe: bool,
        upload: bool = False,
        replayable: Callable[[], bool] = lambda: True,
    ) -> Any:
        """The reply to a request or, with `upload`, to a stream of them, by one try or several. Raises TerraceKVError.

        `safe`: repeating it does no harm, whatever became of it. `replayable`:
        whether the request can be made again, asked after a failed try.
        """
        tries = Tries(len(self.targets), deadline, random.random)
        while True:
            connection, untouched = self._connection(), True
            try:
                if not safe:
                    self._prove(connection, deadline)
                untouched = False
                if upload:
                    reply = sync_upload(pick(connection.uploads), make_request(), deadline.left_s())
                else:
                    reply = sync_answer(pick(connection), make_request(), deadline.left_s())
                connection.proven = True
                return reply
            except grpc.RpcError as failure:
                error = errors.from_rpc(failure)
            if not replayable():
                raise error
            self._pause(tries, connection, error, untouched=untouched, safe=safe)

    def _prove(self, connection: Connection, deadline: Deadline) -> None:
        """A write is sent only to a server that has answered: what fails before that can go elsewhere."""
        if connection.proven:
            return
        try:
            sync_answer(connection.health, "", deadline.left_s())
        except grpc.RpcError as failure:
            if failure.code() is not grpc.StatusCode.UNIMPLEMENTED:  # an answer too
                raise
        connection.proven = True

    def _pause(
        self, tries: Tries, connection: Connection, error: TerraceKVError, *, untouched: bool, safe: bool
    ) -> None:
        """Waits for the next try. Raises the error if there is none."""
        pause_s = tries.pause_s(error, untouched=untouched, safe=safe)
        if tries.moves(error):
            connection.proven = False
            if self._current == connection.number:  # else another call has moved on already
                self._current = (connection.number + 1) % len(self.targets)
        if pause_s is None:
            raise error
        sync_sleep(pause_s)

    def stream(self, pick: Pick, request: Any, deadline: Deadline) -> Generator[Any, None, None]:
        """The messages of a stream that is safe to repeat; tried again only until its first message.

        Raises TerraceKVError.
        """
        tries = Tries(len(self.targets), deadline, random.random)
        begun = False
        while True:
            connection = self._connection()
            call = pick(connection)(request, timeout=deadline.left_s())
            try:
                with call_under_way():
                    while (message := sync_read(call, deadline.left_s())) is not None:
                        begun = True
                        yield message
                return
            except grpc.RpcError as failure:
                error = errors.from_rpc(failure)
            finally:
                call.cancel()  # of a finished call: nothing; otherwise its consumer has gone
            if begun:  # what was yielded cannot be taken back
                raise error
            self._pause(tries, connection, error, untouched=False, safe=True)

    def health(self, service: str, deadline: Deadline) -> bool:
        """Whether the server, or one service of it, takes work. Raises TerraceKVError."""
        reply = self.call(lambda connection: connection.health, lambda: service, deadline, safe=True)
        return bool(reply == HEALTH_SERVING)


class SyncBase:
    """What every part of a client has: its connections, its namespace and its deadlines."""

    def __init__(
        self,
        target: str = "127.0.0.1:50151",
        *,
        namespace: str = "default",
        timeout_s: float = TIMEOUT_S,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        Deadline.after(timeout_s)  # refuses what is no timeout
        self.namespace = namespace
        self._timeout_s = timeout_s
        self._rpc = SyncRpc(target, credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections and the calls on them. Idempotent."""
        self._rpc.close()

    def _timeouts(self, timeout_s: float | None) -> Timeouts:
        return Timeouts(self._timeout_s, None if timeout_s is None else Deadline.after(timeout_s))

    def _name(self, namespace: str | None) -> str:
        return self.namespace if namespace is None else namespace
