"""Faults that a client meets: refusals, lost connections, damaged replies, silence. Both clients, one fake server."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from contract.client_suite import KINDS, open_client
from unit.fake_server import FakeServer, Silence, fake_server, hit, refuse

from terracekv.client import MISS, AsyncClient, Client, Failed, Hit, errors
from terracekv.v1 import blocks_pb2, cache_pb2

MIB = 1 << 20


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


@pytest.fixture(params=KINDS)
async def client(request: pytest.FixtureRequest, server: FakeServer) -> AsyncIterator[Any]:
    async with open_client(request.param, server.target) as opened:
        yield opened


def stored(request: Any, context: Any) -> cache_pb2.PutResponse:
    return cache_pb2.PutResponse(status=cache_pb2.PUT_STATUS_STORED, version=5)


def refusing(times: int, then: Any, code: grpc.StatusCode, reason: str, pushback_ms: int | None = None) -> Any:
    """Refuses so many calls, then answers."""
    left = [times]

    def answer(request: Any, context: Any) -> Any:
        if left[0]:
            left[0] -= 1
            refuse(context, code, reason, pushback_ms=pushback_ms)
        return then(request, context)

    return answer


async def test_a_refused_put_comes_back_after_the_time_it_was_told(server: FakeServer, client: Any) -> None:
    server.handlers["Put"] = refusing(2, stored, grpc.StatusCode.RESOURCE_EXHAUSTED, "CALLS_INFLIGHT", pushback_ms=150)
    started = time.monotonic()
    assert await client.put("k", b"v") == 5
    assert server.count("Put") == 3
    assert time.monotonic() - started >= 0.45  # 150 ms, then twice that


async def test_overload_that_lasts_is_told_with_its_push_back(server: FakeServer, client: Any) -> None:
    server.handlers["Get"] = refusing(99, stored, grpc.StatusCode.RESOURCE_EXHAUSTED, "BYTES_INFLIGHT", pushback_ms=20)
    with pytest.raises(errors.Overloaded) as caught:
        await client.get("k")
    assert caught.value.retry_after_s == 0.02
    assert server.count("Get") == 4


async def test_a_put_whose_fate_is_unknown_is_sent_once(server: FakeServer, client: Any) -> None:
    def lost(request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")

    for method in ("Put", "PutMany", "PutStream", "Store"):
        server.handlers[method] = lost
    for call in (
        client.put("k", b"v"),
        client.put_many({"k": b"v"}),
        client.put("k", bytes(5 * MIB)),
        client.store_blocks(iter([((bytes(32), 0), b"x")])),
    ):
        with pytest.raises(errors.Unavailable):
            await call
    assert [server.count(method) for method in ("Put", "PutMany", "PutStream", "Store")] == [1, 1, 1, 1]


async def test_a_read_is_tried_again_by_itself(server: FakeServer, client: Any) -> None:
    left = [2]

    def flaky(request: Any, context: Any) -> Any:
        if left[0]:
            left[0] -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")
        return hit(b"v")

    server.handlers["Get"] = flaky
    assert (await client.get("k")).value == b"v"
    assert server.count("Get") == 3


async def test_damaged_bytes_are_never_handed_out(server: FakeServer, client: Any) -> None:
    def streamed(request: Any, context: Any) -> Iterator[cache_pb2.GetStreamResponse]:
        header = cache_pb2.GetStreamHeader(status=cache_pb2.KEY_STATUS_HIT, size_bytes=4, checksum=bytes(16))
        yield cache_pb2.GetStreamResponse(header=header)
        yield cache_pb2.GetStreamResponse(data=b"evil")

    server.handlers["Get"] = lambda request, context: hit(b"evil", checksum=bytes(16))
    server.handlers["GetStream"] = streamed
    with pytest.raises(errors.ChecksumMismatch):
        await client.get("k")
    server.handlers["Get"] = lambda request, context: cache_pb2.GetResponse(
        status=cache_pb2.KEY_STATUS_DEFERRED, size_bytes=4
    )
    with pytest.raises(errors.ChecksumMismatch):
        await client.get("k")


async def test_a_stream_that_breaks_off_is_an_error_not_a_short_value(server: FakeServer, client: Any) -> None:
    def cut(request: Any, context: Any) -> Iterator[cache_pb2.GetStreamResponse]:
        header = cache_pb2.GetStreamHeader(status=cache_pb2.KEY_STATUS_HIT, size_bytes=8, checksum=bytes(16))
        yield cache_pb2.GetStreamResponse(header=header)
        yield cache_pb2.GetStreamResponse(data=b"half")

    server.handlers["Get"] = lambda request, context: cache_pb2.GetResponse(
        status=cache_pb2.KEY_STATUS_DEFERRED, size_bytes=8
    )
    server.handlers["GetStream"] = cut
    with pytest.raises(errors.DataLoss):
        await client.get("k")


async def test_blocks_before_a_break_are_yielded_then_it_raises(server: FakeServer, client: Any) -> None:
    def broken(request: Any, context: Any) -> Iterator[blocks_pb2.FetchResponse]:
        yield blocks_pb2.FetchResponse(blocks=[blocks_pb2.FetchedBlock(index=0, status=cache_pb2.KEY_STATUS_MISS)])
        context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")

    server.handlers["Fetch"] = broken
    blocks = client.iter_blocks([(bytes(32), 0), (bytes(32), 1)])
    assert await anext(blocks) == (0, MISS)
    with pytest.raises(errors.Unavailable):
        await anext(blocks)
    assert server.count("Fetch") == 1


async def test_a_stream_refused_at_its_start_is_tried_again_and_one_that_began_is_not(
    server: FakeServer, client: Any
) -> None:
    left = [1]

    def fetch(request: Any, context: Any) -> Iterator[blocks_pb2.FetchResponse]:
        if left[0]:
            left[0] -= 1
            refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "BYTES_INFLIGHT", pushback_ms=10)
        yield blocks_pb2.FetchResponse(blocks=[blocks_pb2.FetchedBlock(index=0, status=cache_pb2.KEY_STATUS_MISS)])
        if len(request.keys) > 1:
            refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "BYTES_INFLIGHT", pushback_ms=10)

    server.handlers["Fetch"] = fetch
    assert await client.fetch_blocks([(bytes(32), 0)]) == [MISS]
    assert server.count("Fetch") == 2
    with pytest.raises(errors.Overloaded):
        await client.fetch_blocks([(bytes(32), 0), (bytes(32), 1)])
    assert server.count("Fetch") == 3


async def test_a_failed_tier_is_an_error_of_one_key_and_a_failed_row_of_many(server: FakeServer, client: Any) -> None:
    server.handlers["Get"] = lambda request, context: refuse(
        context, grpc.StatusCode.UNAVAILABLE, "TIER_UNAVAILABLE", "shared: down"
    )
    server.handlers["GetMany"] = lambda request, context: cache_pb2.GetManyResponse(
        statuses=[cache_pb2.KEY_STATUS_UNAVAILABLE, cache_pb2.KEY_STATUS_MISS],
        sizes_bytes=[0, 0],
        versions=[0, 0],
        expires_in_us=[0, 0],
        checksums=bytes(32),
        tiers=[cache_pb2.TIER_NAME_SHARED, cache_pb2.TIER_NAME_UNSPECIFIED],
    )
    server.handlers["Exists"] = lambda request, context: cache_pb2.ExistsResponse(
        statuses=[cache_pb2.KEY_STATUS_UNAVAILABLE] * len(request.keys)
    )
    server.handlers["Delete"] = lambda request, context: cache_pb2.DeleteResponse(reasons=[12] * len(request.keys))
    for call in (client.get("k"), client.exists("k"), client.delete("k")):
        with pytest.raises(errors.TierUnavailable):
            await call
    failed, missed = await client.get_many(["k", "l"])
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, errors.TierUnavailable)
    assert missed is MISS
    for answers in (await client.exists(["k"]), await client.delete(["k"])):
        assert isinstance(answers[0].error, errors.TierUnavailable)


async def test_silence_ends_at_the_deadline(server: FakeServer, client: Any) -> None:
    silence = Silence()
    server.handlers.update(Get=silence, Put=silence, GetMany=silence)
    started = time.monotonic()
    for call in (
        client.get("k", timeout_s=0.2),
        client.put("k", b"v", timeout_s=0.2),
        client.get_many(["k"] * 1_500, timeout_s=0.2),
    ):
        with pytest.raises(errors.DeadlineExceeded):
            await call
    silence.over.set()
    assert time.monotonic() - started < 2.0


async def test_a_long_error_text_does_not_hide_the_code(server: FakeServer, client: Any) -> None:
    server.handlers["Get"] = lambda request, context: refuse(
        context, grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND", "x" * 5_000
    )
    with pytest.raises(errors.NamespaceNotFound) as caught:
        await client.get("k")
    assert len(str(caught.value)) <= 1_024


async def test_a_call_that_the_server_cancels_does_not_cancel_the_caller(server: FakeServer, client: Any) -> None:
    server.handlers["Get"] = lambda request, context: context.abort(grpc.StatusCode.CANCELLED, "by the server")
    with pytest.raises(errors.RpcFailed) as caught:
        await client.get("k")
    assert caught.value.code == "CANCELLED"


async def test_a_node_that_drains_does_not_answer_a_ping(server: FakeServer, client: Any) -> None:
    server.health = b"\x08\x02"
    with pytest.raises(errors.Draining):
        await client.ping()


async def test_a_closed_client_says_so(server: FakeServer, client: Any) -> None:
    await client.close()
    await client.close()
    with pytest.raises(errors.ClientClosed):
        await client.get("k")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_dead_target_costs_neither_a_read_nor_a_write(kind: str, server: FakeServer) -> None:
    server.handlers.update(Put=stored, Get=lambda request, context: hit(b"v"))
    with fake_server() as gone:
        dead = gone.target
    async with open_client(kind, f"{dead},{server.target}") as client:
        assert await client.put("k", b"v") == 5
        assert (await client.get("k")).value == b"v"
    async with open_client(kind, f"{dead},{server.target}") as client:
        assert (await client.get("k")).value == b"v"
    assert server.count("Put") == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_draining_node_hands_its_work_to_the_other(kind: str, server: FakeServer) -> None:
    server.handlers.update(Put=stored, Get=lambda request, context: hit(b"other"))

    def draining(request: Any, context: Any) -> Any:
        refuse(context, grpc.StatusCode.UNAVAILABLE, "DRAINING")

    with fake_server(Put=draining, Get=draining) as leaving:
        async with open_client(kind, f"{leaving.target},{server.target}") as client:
            assert await client.put("k", b"v") == 5
            assert (await client.get("k")).value == b"other"
        assert leaving.count("Put") == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_work_again_soon_after_a_restart(kind: str, server: FakeServer) -> None:
    server.handlers.update(Put=stored, Get=lambda request, context: hit(b"v"))
    async with open_client(kind, server.target) as client:
        assert await client.get("k")
        server.stop()
        for _ in range(10):
            with pytest.raises(errors.Unavailable):
                await client.get("k")
            await asyncio.sleep(0.1)
        server.start()
        back = time.monotonic()
        while time.monotonic() - back < 10:
            try:
                assert await client.put("k", b"v") == 5
                break
            except errors.Unavailable:
                await asyncio.sleep(0.05)
        assert time.monotonic() - back < 3.0


async def test_each_of_a_thousand_calls_gets_its_own_answer_though_many_are_cancelled(server: FakeServer) -> None:
    server.handlers["Get"] = lambda request, context: hit(b"of " + request.key)
    draw = random.Random(7)
    async with AsyncClient(server.target, timeout_s=20) as client:
        tasks = {f"k{number}": asyncio.create_task(client.get(f"k{number}")) for number in range(1_000)}
        await asyncio.sleep(0.05)
        cancelled = {key for key in tasks if draw.random() < 0.3}
        for key in cancelled:
            tasks[key].cancel()
        answers = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
    for key, answer in answers.items():
        if isinstance(answer, Hit):
            assert answer.value == b"of " + key.encode()
        else:
            assert key in cancelled
            assert isinstance(answer, asyncio.CancelledError)


async def test_the_bytes_at_the_time_of_the_call_are_stored(server: FakeServer) -> None:
    received: list[bytes] = []

    def keep(request: Any, context: Any) -> Any:
        received.append(request.value)
        return stored(request, context)

    server.handlers["Put"] = keep
    buffer = bytearray(b"step 1")
    async with AsyncClient(server.target) as client:
        later = asyncio.create_task(client.put("k", buffer))
        buffer[:] = b"step 2"
        view = client.put("k", memoryview(buffer))
        buffer[:] = b"step 3"
        await later
        await view
    assert received == [b"step 1", b"step 2"]


def test_one_async_client_in_two_event_loops_is_told(server: FakeServer) -> None:
    server.handlers["Get"] = lambda request, context: hit(b"v")

    async def use(client: AsyncClient) -> Any:
        return await client.get("k")

    async def main() -> AsyncClient:
        client = AsyncClient(server.target)
        assert await client.get("k")
        await client._rpc._connections[0, 0].channel.close()
        return client

    client = asyncio.run(main())
    with pytest.raises(errors.WrongEventLoop):
        asyncio.run(use(client))


def test_iterating_blocks_holds_one_at_a_time_and_may_stop_early(server: FakeServer) -> None:
    sent = []

    def many(request: Any, context: Any) -> Iterator[blocks_pb2.FetchResponse]:
        for index in range(4_000):
            sent.append(index)
            block = blocks_pb2.FetchedBlock(index=index, status=cache_pb2.KEY_STATUS_MISS)
            yield blocks_pb2.FetchResponse(blocks=[block])

    server.handlers["Fetch"] = many
    with Client(server.target) as client:
        blocks = client.iter_blocks([(bytes(32), number) for number in range(4_000)])
        assert next(blocks) == (0, MISS)
        blocks.close()
        settled, before = time.monotonic(), -1
        while len(sent) != before and time.monotonic() - settled < 5:
            before = len(sent)
            time.sleep(0.1)
        assert len(sent) < 4_000
        assert client._rpc._connections  # still usable
        server.handlers["Get"] = lambda request, context: hit(b"v")
        assert client.get("k")


async def test_an_upload_refused_midway_tells_its_true_reason_every_time(server: FakeServer, client: Any) -> None:
    def refused(requests: Any, context: Any) -> Any:
        next(requests)
        refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "TTL_INVALID", metadata={"field": "ttl_s"})

    server.handlers.update(PutStream=refused, Store=refused)
    blocks = [((bytes(32), number), bytes(MIB)) for number in range(8)]
    for _ in range(40):
        with pytest.raises(errors.TTLInvalid):
            await client.put("k", bytes(8 * MIB))
        with pytest.raises(errors.TTLInvalid):
            await client.store_blocks(blocks)


async def test_a_cancelled_upload_ends_at_the_server_too(server: FakeServer) -> None:
    ended = threading.Event()

    def receive(requests: Any, context: Any) -> Any:
        context.add_callback(ended.set)
        for _ in requests:
            pass
        return cache_pb2.PutStreamResponse(status=cache_pb2.PUT_STATUS_STORED, version=1)

    def slow() -> Iterator[Any]:
        for number in range(1_000):
            time.sleep(0.01)
            yield (bytes(32), number), bytes(1_000_000)

    server.handlers["Store"] = receive
    async with AsyncClient(server.target) as client:
        task = asyncio.create_task(client.store_blocks(slow()))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended.wait, 5)
