"""What happens around every call: bounds, deadline, errors as google.rpc.Status, counters and the access log.

One interceptor, so that the order is written once: count and refuse, give a
deadline, run, translate what was raised, book.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import grpc

from terracekv.server.limits import Budget, Draining, Overloaded
from terracekv.server.status import status_of
from terracekv.tiers.clock import Clock
from terracekv.tiers.metered import Latencies

ACCESS_LOG: Final = logging.getLogger("terracekv.access")
ERROR_LOG: Final = logging.getLogger("terracekv.server")
SLOW_CALL_S: Final = 1.0
REPLY_BYTES_BOOKED_MIN: Final = 65_536  # smaller ones are not worth the callback
_OURS: Final = "/terracekv.v1."
_ADMIN: Final = "/terracekv.v1.AdminService/"

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic to its stubs only
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class CallStats:
    """What the service answered, by method and code."""

    answered: Counter[tuple[str, str]] = field(default_factory=Counter)
    latencies: dict[str, Latencies] = field(default_factory=dict)

    def book(self, method: str, code: str, seconds: float) -> None:
        """Counts one call."""
        self.answered[method, code] += 1
        self.latencies.setdefault(method, Latencies()).observe(seconds)


class ServiceInterceptor(grpc.aio.ServerInterceptor):
    """Around every method of terracekv.v1; health and reflection pass untouched, so that they answer under overload."""

    def __init__(
        self,
        calls: Budget,
        bytes_: Budget,
        clock: Clock,
        deadline_default_s: float,
        stream_deadline_default_s: float,
    ) -> None:
        self.stats = CallStats()
        self.draining = False
        self._calls = calls
        self._bytes = bytes_
        self._clock = clock
        self._unary_s = deadline_default_s
        self._stream_s = stream_deadline_default_s

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler: Any = await continuation(handler_call_details)  # of grpc.aio: its stubs know the sync handlers only
        method = handler_call_details.method
        if handler is None or not method.startswith(_OURS):
            return cast("Handler | None", handler)
        streams = handler.request_streaming or handler.response_streaming
        call = _Call(self, method.removeprefix("/terracekv.v1."), self._stream_s if streams else self._unary_s)
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(call.answering(handler.unary_unary), **coders)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(call.answering(handler.stream_unary), **coders)
        return grpc.unary_stream_rpc_method_handler(call.streaming(handler.unary_stream), **coders)

    def refuse_if_draining(self, method: str) -> None:
        """New work is refused while draining, operators' calls excepted. Raises Draining."""
        if self.draining and not method.startswith("AdminService/"):
            raise Draining("the node is draining")


class _Call:
    """The wrapping of one method."""

    def __init__(self, owner: ServiceInterceptor, method: str, deadline_default_s: float) -> None:
        self.owner = owner
        self.method = method
        self.deadline_default_s = deadline_default_s

    def answering(self, handler: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        async def answer(request: Any, context: Context) -> Any:
            async with _Booked(self, context), asyncio.timeout(self._timeout_s(context)):
                self.owner.refuse_if_draining(self.method)
                with self.owner._calls.hold(1), self.owner._bytes.hold(_size_of(request)):
                    reply = await handler(request, context)
                self._book_reply(reply, context)
                return reply

        return answer

    def streaming(
        self, handler: Callable[[Any, Context], AsyncIterator[Any]]
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            async with _Booked(self, context), asyncio.timeout(self._timeout_s(context)):
                self.owner.refuse_if_draining(self.method)
                with self.owner._calls.hold(1):
                    async for message in handler(request, context):
                        yield message

        return stream

    def _book_reply(self, reply: Any, context: Context) -> None:
        """A large reply is booked until it is sent or its caller is gone. Raises Overloaded."""
        size_bytes = _size_of(reply)
        if size_bytes >= REPLY_BYTES_BOOKED_MIN:
            self.owner._bytes.take(size_bytes)
            context.add_done_callback(lambda _: self.owner._bytes.give(size_bytes))  # type: ignore[arg-type]

    def _timeout_s(self, context: Context) -> float | None:
        """A call that brings its own deadline is ended by gRPC itself."""
        return None if context.time_remaining() is not None else self.deadline_default_s


class _Booked:
    """Books a call when it ends, and turns what it raised into its status."""

    def __init__(self, call: _Call, context: Context) -> None:
        self._call = call
        self._context = context
        self._started_s = call.owner._clock.age_s()

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._book("OK")
        elif isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            self._book("CANCELLED")
        elif isinstance(error, grpc.aio.AbortError):
            self._book(str(self._context.code()))
        else:
            await self._abort(error)

    def _book(self, code: str) -> None:
        seconds = self._call.owner._clock.age_s() - self._started_s
        self._call.owner.stats.book(self._call.method, code, seconds)
        level = logging.INFO if seconds >= SLOW_CALL_S else logging.DEBUG
        ACCESS_LOG.log(level, "call", extra={"method": self._call.method, "code": code, "seconds": round(seconds, 6)})

    async def _abort(self, error: BaseException) -> None:
        status = status_of(error)
        code = _CODES[status.code]
        self._book(code.name)
        trailers: list[tuple[str, str | bytes]] = [("grpc-status-details-bin", status.SerializeToString())]
        if isinstance(error, Overloaded):
            trailers.append(("grpc-retry-pushback-ms", str(error.retry_after_ms)))
        if code is grpc.StatusCode.INTERNAL:
            request_id = secrets.token_hex(8)
            trailers.append(("terracekv-request-id", request_id))
            ERROR_LOG.error("defect in %s", self._call.method, extra={"request_id": request_id}, exc_info=error)
        await self._context.abort(code, status.message, tuple(trailers))


_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


def _size_of(request: Any) -> int:
    """Bytes of a unary request; a stream books its bytes as it declares them."""
    return int(request.ByteSize()) if hasattr(request, "ByteSize") else 0
