"""A server made of the real generated stubs whose answers a test writes: for faults that a real node does not make."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
import xxhash
from google.rpc import error_details_pb2, status_pb2

from terracekv.v1 import cache_pb2

Handler = Callable[[Any, grpc.ServicerContext], Any]
SERVICES = ("CacheService", "BlockService", "AdminService")


def refuse(
    context: grpc.ServicerContext,
    code: grpc.StatusCode,
    reason: str,
    message: str = "refused",
    pushback_ms: int | None = None,
    metadata: dict[str, str] | None = None,
) -> NoReturn:
    """Ends a call as the server of this project does."""
    status = status_pb2.Status(code=code.value[0], message=message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="terracekv", metadata=metadata or {}))
    trailers: list[tuple[str, str | bytes]] = [("grpc-status-details-bin", status.SerializeToString())]
    if pushback_ms is not None:
        trailers.append(("grpc-retry-pushback-ms", str(pushback_ms)))
    context.set_trailing_metadata(tuple(trailers))
    context.abort(code, message)


def hit(value: bytes, checksum: bytes | None = None) -> cache_pb2.GetResponse:
    """A reply to Get, with a true checksum unless another is given."""
    return cache_pb2.GetResponse(
        status=cache_pb2.KEY_STATUS_HIT,
        value=value,
        size_bytes=len(value),
        version=1,
        checksum=xxhash.xxh3_128_digest(value) if checksum is None else checksum,
        tier=cache_pb2.TIER_NAME_MEMORY,
    )


class FakeServer:
    """Answers `/terracekv.v1.*` by the handlers a test sets; `calls` names every call that arrived, in order."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.calls: list[str] = []
        self.health = b"\x08\x01"
        self.port = 0
        self._server: grpc.Server | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, method: str) -> int:
        return self.calls.count(method)

    def start(self) -> FakeServer:
        """Listens, on the port of before if there was one."""
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((_Routes(self),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(grace=0).wait(5)
            self._server = None


class _Routes(grpc.GenericRpcHandler):
    def __init__(self, owner: FakeServer) -> None:
        self._owner = owner

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        service, method = handler_call_details.method.strip("/").split("/")
        if service == "grpc.health.v1.Health":
            return grpc.unary_unary_rpc_method_handler(self._health)
        return _method_handler(service.rpartition(".")[2], method, self._owner)

    def _health(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._owner.calls.append("Check")
        return self._owner.health


def _method_handler(service: str, method: str, owner: FakeServer) -> Any:
    """The generated handler of a method, so that messages are coded as the stubs do."""
    recorded: dict[str, Any] = {}

    class _Recorder:
        def add_generic_rpc_handlers(self, handlers: Any) -> None:
            recorded["generic"] = handlers[0]

        def add_registered_method_handlers(self, service_name: str, handlers: dict[str, Any]) -> None:
            recorded.update(handlers)

    from terracekv.v1 import admin_pb2_grpc, blocks_pb2_grpc, cache_pb2_grpc

    module = {"CacheService": cache_pb2_grpc, "BlockService": blocks_pb2_grpc, "AdminService": admin_pb2_grpc}[service]

    class _Answers:
        def __getattr__(self, name: str) -> Handler:
            def answer(request: Any, context: grpc.ServicerContext) -> Any:
                owner.calls.append(name)
                return owner.handlers[name](request, context)

            return answer

    getattr(module, f"add_{service}Servicer_to_server")(_Answers(), _Recorder())
    return recorded[method]


@contextmanager
def fake_server(**handlers: Handler) -> Iterator[FakeServer]:
    """A running fake with these handlers."""
    server = FakeServer()
    server.handlers.update(handlers)
    try:
        yield server.start()
    finally:
        server.stop()


class Silence:
    """Handlers that wait until the test is over, for calls that get no answer."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.over.wait(20)
        context.abort(grpc.StatusCode.CANCELLED, "the test is over")
