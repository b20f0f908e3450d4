"""CacheService: check, call the stack, translate, answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from terracekv.server import checks, replies
from terracekv.server.context import Calls
from terracekv.server.limits import Budget
from terracekv.server.uploads import frames_of, receive_value
from terracekv.tiers.entry import UNARY_BYTES_MAX, Durability, Entry, Head
from terracekv.tiers.stack import Stack
from terracekv.v1 import cache_pb2 as pb
from terracekv.v1 import cache_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class CacheService(cache_pb2_grpc.CacheServiceServicer):
    """Entries of a namespace, by key."""

    def __init__(self, stack: Stack, calls: Calls, bytes_inflight: Budget) -> None:
        self._stack = stack
        self._calls = calls
        self._bytes = bytes_inflight

    async def Get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:  # noqa: N802
        checks.check_get(request)
        deadline = self._calls.deadline(context)
        answers = await self._stack.get_many(request.namespace, [request.key], deadline, UNARY_BYTES_MAX)
        return replies.get_response(answers[0], self._calls.now_us())

    async def GetMany(self, request: pb.GetManyRequest, context: Context) -> pb.GetManyResponse:  # noqa: N802
        checks.check_get_many(request)
        deadline = self._calls.deadline(context)
        answers = await self._stack.get_many(request.namespace, request.keys, deadline, UNARY_BYTES_MAX)
        return replies.get_many_response(answers, self._calls.now_us())

    async def GetStream(  # noqa: N802
        self, request: pb.GetStreamRequest, context: Context
    ) -> AsyncIterator[pb.GetStreamResponse]:
        checks.check_get(request)
        deadline = self._calls.stream_deadline(context)
        # The size first: memory for a large value is booked before it is taken.
        (head,) = await self._stack.head_many(request.namespace, [request.key], deadline)
        with self._bytes.hold(head.size_bytes if isinstance(head, Head) else 0):
            (answer,) = await self._stack.get_many(request.namespace, [request.key], deadline)
            yield pb.GetStreamResponse(header=replies.stream_header(answer, self._calls.now_us()))
            if isinstance(answer.found, Entry):
                for frame in frames_of(answer.found):
                    yield pb.GetStreamResponse(data=frame)

    async def Put(self, request: pb.PutRequest, context: Context) -> pb.PutResponse:  # noqa: N802
        checks.check_put(request)
        deadline = self._calls.deadline(context)
        put = checks.checked_value(request.key, (request.value,), request.checksum)
        results, level = await self._stack.put_many(
            request.namespace, [put], deadline, _ttl_s(request), _durability(request)
        )
        return replies.put_response(results[0], level)

    async def PutMany(self, request: pb.PutManyRequest, context: Context) -> pb.PutManyResponse:  # noqa: N802
        checks.check_put_many(request)
        deadline = self._calls.deadline(context)
        results, level = await self._stack.put_many(
            request.namespace, checks.checked_values(request), deadline, _ttl_s(request), _durability(request)
        )
        return replies.put_many_response(results, level)

    async def PutStream(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PutStreamRequest], context: Context
    ) -> pb.PutStreamResponse:
        deadline = self._calls.stream_deadline(context)
        async with receive_value(request_iterator, self._bytes) as (header, put):
            results, level = await self._stack.put_many(
                header.namespace, [put], deadline, _ttl_s(header), _durability(header)
            )
        stored = replies.put_response(results[0], level)
        return pb.PutStreamResponse(status=stored.status, version=stored.version, durability=stored.durability)

    async def Exists(self, request: pb.ExistsRequest, context: Context) -> pb.ExistsResponse:  # noqa: N802
        checks.check_get_many(request)
        heads = await self._stack.head_many(request.namespace, request.keys, self._calls.deadline(context))
        return replies.exists_response(heads)

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:  # noqa: N802
        checks.check_delete(request)
        deadline = self._calls.deadline(context)
        results = await self._stack.delete_many(request.namespace, request.keys, deadline, _durability(request))
        return replies.delete_response(results)

    async def Invalidate(self, request: pb.InvalidateRequest, context: Context) -> pb.InvalidateResponse:  # noqa: N802
        checks.check_invalidate(request)
        deadline = self._calls.deadline(context)
        if request.WhichOneof("target") == "epoch":
            namespace = await self._stack.raise_epoch(request.namespace, deadline)
        else:
            namespace = await self._stack.invalidate_prefix(request.namespace, request.prefix, deadline)
        return pb.InvalidateResponse(epoch=namespace.epoch)


def _ttl_s(request: pb.PutRequest | pb.PutManyRequest | pb.PutStreamHeader) -> float | None:
    return request.ttl_s if request.HasField("ttl_s") else None


def _durability(
    request: pb.PutRequest | pb.PutManyRequest | pb.PutStreamHeader | pb.DeleteRequest,
) -> Durability | None:
    return Durability(request.durability) if request.durability else None
