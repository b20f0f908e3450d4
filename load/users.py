"""Locust users that speak gRPC: calls reported in milliseconds, errors as failures, every value checked.

gRPC's synchronous stack under gevent: `init_gevent` comes before any channel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.experimental.gevent as grpc_gevent
import xxhash
from locust import User, events

grpc_gevent.init_gevent()


def payload_of(key: bytes, size_bytes: int) -> bytes:
    """The only right value of a key: derived from it, so that a wrong one shows."""
    seed = xxhash.xxh3_128(key).digest()
    return (seed * (size_bytes // len(seed) + 1))[:size_bytes]


class ReportingInterceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Fires Locust's request event for each unary call."""

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        started_s = time.perf_counter()
        call = continuation(client_call_details, request)
        error = call.exception()
        events.request.fire(
            request_type="grpc",
            name=str(client_call_details.method).rsplit("/", 1)[-1],
            response_time=(time.perf_counter() - started_s) * 1_000,
            response_length=0 if error else call.result().ByteSize(),
            exception=error,
            context={},
        )
        return call


class GrpcUser(User):  # type: ignore[misc]
    """A user with a channel of its own to `--host`, HOST:PORT. `channel` is for generated stubs."""

    abstract = True

    def on_start(self) -> None:
        """Opens the channel."""
        plain = grpc.insecure_channel(self.host, options=(("grpc.use_local_subchannel_pool", 1),))
        self.channel = grpc.intercept_channel(plain, ReportingInterceptor())

    def on_stop(self) -> None:
        """Closes it."""
        self.channel.close()


def failed(name: str, words: str) -> None:
    """Reports an answer that came and was wrong."""
    events.request.fire(
        request_type="check", name=name, response_time=0, response_length=0, exception=AssertionError(words), context={}
    )
