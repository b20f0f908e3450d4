"""A stranger's stub with default channel options can use everything, at any size; bad input is told clearly."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from nodes import NodeProcess

from terracekv.v1 import admin_pb2, admin_pb2_grpc, blocks_pb2, blocks_pb2_grpc, cache_pb2, cache_pb2_grpc

MIB = 1 << 20
UNARY = 3_932_160
TIMEOUT_S = 30


@pytest.fixture
def cache(channel: grpc.Channel) -> Any:
    return cache_pb2_grpc.CacheServiceStub(channel)


@pytest.fixture
def blocks(channel: grpc.Channel) -> Any:
    return blocks_pb2_grpc.BlockServiceStub(channel)


def upload(key: bytes, value: bytes, frame_bytes: int = MIB, **header: Any) -> Iterator[cache_pb2.PutStreamRequest]:
    yield cache_pb2.PutStreamRequest(header=cache_pb2.PutStreamHeader(key=key, size_bytes=len(value), **header))
    for at in range(0, len(value), frame_bytes):
        yield cache_pb2.PutStreamRequest(data=value[at : at + frame_bytes])
    yield cache_pb2.PutStreamRequest(commit=cache_pb2.PutStreamCommit())


def download(cache: Any, key: bytes) -> tuple[cache_pb2.GetStreamHeader, bytes]:
    messages = list(cache.GetStream(cache_pb2.GetStreamRequest(key=key), timeout=TIMEOUT_S))
    assert max(len(message.data) for message in messages) <= MIB
    return messages[0].header, b"".join(message.data for message in messages)


def refused(call: Any, request: Any, **options: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=TIMEOUT_S, **options)
    status = rpc_status.from_call(caught.value)  # type: ignore[arg-type]
    info = error_details_pb2.ErrorInfo()
    assert status is not None, caught.value
    assert status.details[0].Unpack(info)
    assert info.domain == "terracekv"
    return caught.value.code(), info.reason, dict(info.metadata)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "key",
    [b"\0", b"\xff\xfe", b"a\r\nb", b"{x}{y}", "é".encode(), "e\u0301".encode(), b"k" * 1_024, b" ", b"\0" * 1_024],
)
def test_odd_keys_are_keys(cache: Any, key: bytes) -> None:
    cache.Put(cache_pb2.PutRequest(key=key, value=b"of " + key), timeout=TIMEOUT_S)
    assert cache.Get(cache_pb2.GetRequest(key=key), timeout=TIMEOUT_S).value == b"of " + key


def test_two_unicode_forms_are_two_keys(cache: Any) -> None:
    cache.Put(cache_pb2.PutRequest(key="ü".encode(), value=b"one"), timeout=TIMEOUT_S)
    found = cache.Get(cache_pb2.GetRequest(key="u\u0308".encode()), timeout=TIMEOUT_S)
    assert found.status == cache_pb2.KEY_STATUS_MISS


@pytest.mark.parametrize("size", [0, 1, 3 * MIB, UNARY - 3])
def test_a_value_of_one_message_comes_back(cache: Any, size: int) -> None:
    value = random.Random(size).randbytes(size)
    cache.Put(cache_pb2.PutRequest(key=b"one", value=value), timeout=TIMEOUT_S)
    found = cache.Get(cache_pb2.GetRequest(key=b"one"), timeout=TIMEOUT_S)
    assert (found.status, found.value, found.size_bytes) == (cache_pb2.KEY_STATUS_HIT, value, size)


@pytest.mark.parametrize("size", [4 * MIB - 1, 4 * MIB, 4 * MIB + 1])
def test_a_value_over_a_message_is_refused_by_name_and_goes_by_stream(cache: Any, size: int) -> None:
    value = random.Random(size).randbytes(size)
    code, reason, metadata = refused(cache.Put, cache_pb2.PutRequest(key=b"big", value=value))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "VALUE_TOO_LARGE")
    assert metadata["field"] == "value"
    assert str(UNARY) in metadata["limit"]
    assert metadata["given"] == f"{size + 3} bytes"
    cache.PutStream(upload(b"big", value), timeout=TIMEOUT_S)
    found = cache.Get(cache_pb2.GetRequest(key=b"big"), timeout=TIMEOUT_S)
    assert (found.status, found.size_bytes, found.value) == (cache_pb2.KEY_STATUS_DEFERRED, size, b"")
    header, came = download(cache, b"big")
    assert (header.status, header.size_bytes, came == value) == (cache_pb2.KEY_STATUS_HIT, size, True)


def test_a_value_of_300_mib_goes_by_stream_though_memory_holds_64(cache: Any) -> None:
    value = random.Random(300).randbytes(MIB) * 300
    cache.PutStream(upload(b"huge", value), timeout=120)
    header, came = download(cache, b"huge")
    assert (header.size_bytes, came == value) == (300 * MIB, True)
    assert header.tier in (cache_pb2.TIER_NAME_SHARED, cache_pb2.TIER_NAME_MEMORY)
    cache.Delete(cache_pb2.DeleteRequest(keys=[b"huge"]), timeout=TIMEOUT_S)
    header, came = download(cache, b"huge")
    assert (header.status, came) == (cache_pb2.KEY_STATUS_MISS, b"")


def test_what_does_not_fit_a_reply_is_deferred_and_comes_when_asked_again(cache: Any) -> None:
    keys = [b"defer-%d" % at for at in range(1_000)]
    value = b"v" * 8_000
    for start in range(0, 1_000, 400):
        run = keys[start : start + 400]
        cache.PutMany(
            cache_pb2.PutManyRequest(keys=run, payload=value * len(run), sizes_bytes=[len(value)] * len(run)),
            timeout=TIMEOUT_S,
        )
    asked, rounds = keys, 0
    while asked:
        reply = cache.GetMany(cache_pb2.GetManyRequest(keys=asked), timeout=TIMEOUT_S)
        assert set(reply.statuses) <= {cache_pb2.KEY_STATUS_HIT, cache_pb2.KEY_STATUS_DEFERRED}
        assert set(reply.sizes_bytes) == {len(value)}
        assert reply.payload == value * list(reply.statuses).count(cache_pb2.KEY_STATUS_HIT)
        asked = [
            key for key, status in zip(asked, reply.statuses, strict=True) if status == cache_pb2.KEY_STATUS_DEFERRED
        ]
        rounds += 1
        assert rounds < 5
    assert rounds == 3


def test_a_batch_answers_key_by_key(cache: Any) -> None:
    cache.Put(cache_pb2.PutRequest(key=b"there", value=b"x"), timeout=TIMEOUT_S)
    cache.Delete(cache_pb2.DeleteRequest(keys=[b"not there"]), timeout=TIMEOUT_S)
    reply = cache.GetMany(cache_pb2.GetManyRequest(keys=[b"not there", b"there", b"there"]), timeout=TIMEOUT_S)
    hit, miss = cache_pb2.KEY_STATUS_HIT, cache_pb2.KEY_STATUS_MISS
    assert list(reply.statuses) == [miss, hit, hit]
    assert (reply.payload, list(reply.sizes_bytes)) == (b"xx", [0, 1, 1])
    assert reply.tiers[0] == cache_pb2.TIER_NAME_UNSPECIFIED
    exists = cache.Exists(cache_pb2.ExistsRequest(keys=[b"not there", b"there"]), timeout=TIMEOUT_S)
    assert list(exists.statuses) == [miss, hit]


@pytest.mark.parametrize(
    ("call", "request_", "reason", "field"),
    [
        ("Put", cache_pb2.PutRequest(value=b"x"), "KEY_INVALID", "key"),
        ("Put", cache_pb2.PutRequest(key=b"k" * 1_025), "KEY_INVALID", "key"),
        ("Put", cache_pb2.PutRequest(key=b"k", ttl_s=0), "TTL_INVALID", "ttl_s"),
        ("Put", cache_pb2.PutRequest(key=b"k", ttl_s=-1), "TTL_INVALID", "ttl_s"),
        ("Put", cache_pb2.PutRequest(key=b"k", ttl_s=float("nan")), "TTL_INVALID", "ttl_s"),
        ("Put", cache_pb2.PutRequest(key=b"k", ttl_s=1e300), "TTL_INVALID", "ttl_s"),
        ("Put", cache_pb2.PutRequest(key=b"k", durability=99), "ENUM_INVALID", "durability"),  # type: ignore[arg-type]
        ("Put", cache_pb2.PutRequest(key=b"k", namespace="No Good"), "NAMESPACE_INVALID", "namespace"),
        ("Put", cache_pb2.PutRequest(key=b"k", checksum=b"short"), "FIELD_INVALID", "checksum"),
        ("Get", cache_pb2.GetRequest(), "KEY_INVALID", "key"),
        ("GetMany", cache_pb2.GetManyRequest(), "BATCH_INVALID", "keys"),
        ("GetMany", cache_pb2.GetManyRequest(keys=[b"k"] * 1_025), "BATCH_INVALID", "keys"),
        ("Exists", cache_pb2.ExistsRequest(keys=[b""]), "KEY_INVALID", "key"),
        ("Delete", cache_pb2.DeleteRequest(keys=[b"k"] * 1_025), "BATCH_INVALID", "keys"),
        ("Invalidate", cache_pb2.InvalidateRequest(), "FIELD_INVALID", "target"),
    ],
)
def test_bad_input_names_field_limit_and_value(cache: Any, call: str, request_: Any, reason: str, field: str) -> None:
    code, came, metadata = refused(getattr(cache, call), request_)
    assert (code, came, metadata["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, reason, field)
    assert metadata["limit"]
    assert metadata["given"]


def test_a_wrong_checksum_stores_nothing(cache: Any) -> None:
    cache.Put(cache_pb2.PutRequest(key=b"sum", value=b"old"), timeout=TIMEOUT_S)
    code, reason, _ = refused(cache.Put, cache_pb2.PutRequest(key=b"sum", value=b"new", checksum=bytes(16)))
    assert (code, reason) == (grpc.StatusCode.DATA_LOSS, "CHECKSUM_MISMATCH")
    assert cache.Get(cache_pb2.GetRequest(key=b"sum"), timeout=TIMEOUT_S).value == b"old"


@pytest.mark.parametrize("durability", [cache_pb2.DURABILITY_MEMORY, cache_pb2.DURABILITY_REPLICATED])
def test_a_level_that_is_not_offered_is_named(cache: Any, durability: cache_pb2.Durability) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        cache.Put(cache_pb2.PutRequest(key=b"k", durability=durability), timeout=TIMEOUT_S)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[attr-defined]
    assert "is not offered here" in caught.value.details()  # type: ignore[attr-defined]


def test_an_unknown_namespace_is_not_found_and_made_by_a_first_put(cache: Any) -> None:
    code, reason, _ = refused(cache.Get, cache_pb2.GetRequest(namespace="fresh", key=b"k"))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")
    cache.Put(cache_pb2.PutRequest(namespace="fresh", key=b"k", value=b"v"), timeout=TIMEOUT_S)
    assert cache.Get(cache_pb2.GetRequest(namespace="fresh", key=b"k"), timeout=TIMEOUT_S).value == b"v"


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 5, 8])
def test_a_stream_cut_at_any_frame_leaves_the_older_value(cache: Any, cut: int) -> None:
    cache.Put(cache_pb2.PutRequest(key=b"cut", value=b"older"), timeout=TIMEOUT_S)
    messages = list(upload(b"cut", bytes(7 * 100_000), frame_bytes=100_000))
    assert cut < len(messages)
    with pytest.raises(grpc.RpcError) as caught:
        cache.PutStream(iter(messages[:cut]), timeout=TIMEOUT_S)
    status = rpc_status.from_call(caught.value)  # type: ignore[arg-type]
    info = error_details_pb2.ErrorInfo()
    assert status is not None
    assert status.details[0].Unpack(info)
    assert info.reason == "STREAM_INCOMPLETE"
    assert cache.Get(cache_pb2.GetRequest(key=b"cut"), timeout=TIMEOUT_S).value == b"older"


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.long)])
def test_uploads_cut_at_random_points_are_never_seen(cache: Any, channel: grpc.Channel, rounds: int) -> None:
    draw = random.Random(rounds)
    admin = admin_pb2_grpc.AdminServiceStub(channel)
    value = draw.randbytes(3 * MIB)
    for number in range(rounds):
        key = b"random-cut-%d" % number
        older = draw.random() < 0.5
        if older:
            cache.Put(cache_pb2.PutRequest(key=key, value=b"older"), timeout=TIMEOUT_S)
        messages = list(upload(key, value, frame_bytes=draw.randrange(20_000, MIB)))
        with pytest.raises(grpc.RpcError):
            cache.PutStream(iter(messages[: draw.randrange(len(messages))]), timeout=TIMEOUT_S)
        assert cache.Get(cache_pb2.GetRequest(key=key), timeout=TIMEOUT_S).value == (b"older" if older else b"")
    stats = admin.Stats(admin_pb2.StatsRequest(), timeout=TIMEOUT_S)
    assert stats.pending_bytes < 3 * MIB


def unfinished(key: bytes, frames: int, over: threading.Event) -> Iterator[cache_pb2.PutStreamRequest]:
    """Sends some frames of an upload and then nothing more."""
    yield from list(upload(key, bytes(1_000_000), frame_bytes=100_000))[: frames + 1]
    over.wait(TIMEOUT_S)


def test_an_upload_cancelled_midway_leaves_the_older_value(cache: Any) -> None:
    cache.Put(cache_pb2.PutRequest(key=b"gone", value=b"older"), timeout=TIMEOUT_S)
    for kept in range(1, 6):
        over = threading.Event()
        call = cache.PutStream.future(unfinished(b"gone", kept, over), timeout=TIMEOUT_S)
        time.sleep(0.1)
        call.cancel()
        over.set()
        with pytest.raises((grpc.FutureCancelledError, grpc.RpcError)):
            call.result(timeout=TIMEOUT_S)
    assert cache.Get(cache_pb2.GetRequest(key=b"gone"), timeout=TIMEOUT_S).value == b"older"


def block(number: int, payload: bytes, group: int = 0) -> blocks_pb2.StoredBlock:
    return blocks_pb2.StoredBlock(
        key=blocks_pb2.BlockKey(digest=number.to_bytes(32, "big"), group=group), size_bytes=len(payload)
    )


def store(
    payloads: dict[int, bytes], frame_bytes: int = MIB, commit: int | None = None
) -> Iterator[blocks_pb2.StoreRequest]:
    yield blocks_pb2.StoreRequest(header=blocks_pb2.StoreHeader())
    announced = [block(number, payload) for number, payload in payloads.items()]
    joined = b"".join(payloads.values())
    yield blocks_pb2.StoreRequest(batch=blocks_pb2.StoreBatch(blocks=announced, data=joined[:frame_bytes]))
    for at in range(frame_bytes, len(joined), frame_bytes):
        yield blocks_pb2.StoreRequest(batch=blocks_pb2.StoreBatch(data=joined[at : at + frame_bytes]))
    yield blocks_pb2.StoreRequest(commit=blocks_pb2.StoreCommit(blocks=len(payloads)))


def fetch(blocks: Any, numbers: list[int]) -> dict[int, bytes | None]:
    keys = [blocks_pb2.BlockKey(digest=number.to_bytes(32, "big")) for number in numbers]
    messages = list(blocks.Fetch(blocks_pb2.FetchRequest(keys=keys), timeout=TIMEOUT_S))
    assert max(len(message.data) for message in messages) <= MIB
    joined = b"".join(message.data for message in messages)
    found: dict[int, bytes | None] = {}
    at = 0
    for fetched in (one for message in messages for one in message.blocks):
        hit = fetched.status == cache_pb2.KEY_STATUS_HIT
        found[numbers[fetched.index]] = joined[at : at + fetched.size_bytes] if hit else None
        at += fetched.size_bytes
    assert at == len(joined)
    assert list(found) == numbers
    return found


def test_many_blocks_are_stored_matched_and_fetched_in_one_call_each(blocks: Any) -> None:
    draw = random.Random(5)
    payloads = {100 + at: draw.randbytes(draw.choice([0, 10, 70_000, MIB, 2 * MIB + 5])) for at in range(40)}
    reply = blocks.Store(store(payloads), timeout=TIMEOUT_S)
    assert list(reply.statuses) == [cache_pb2.PUT_STATUS_STORED] * 40
    digests = b"".join(number.to_bytes(32, "big") for number in [*payloads, 9_999])
    match = blocks.Match(blocks_pb2.MatchRequest(digests=digests), timeout=TIMEOUT_S)
    assert (match.matched_blocks, list(match.failed_tiers)) == (40, [])
    assert fetch(blocks, [*payloads, 9_999]) == {**payloads, 9_999: None}


def test_the_first_copy_of_a_block_stays_and_differing_ones_are_counted(blocks: Any, channel: grpc.Channel) -> None:
    blocks.Store(store({200: b"first"}), timeout=TIMEOUT_S)
    reply = blocks.Store(store({200: b"other", 201: b"new"}), timeout=TIMEOUT_S)
    assert list(reply.statuses) == [cache_pb2.PUT_STATUS_KEPT, cache_pb2.PUT_STATUS_STORED]
    assert reply.differing_blocks == 1
    assert fetch(blocks, [200, 201]) == {200: b"first", 201: b"new"}
    stats = admin_pb2_grpc.AdminServiceStub(channel).Stats(admin_pb2.StatsRequest(), timeout=TIMEOUT_S)
    assert stats.blocks_differing >= 1


def test_a_block_cut_off_is_never_visible(blocks: Any) -> None:
    messages = list(store({300: b"a" * 2_000_000, 301: b"b" * 2_000_000}))
    with pytest.raises(grpc.RpcError):
        blocks.Store(iter(messages[:3]), timeout=TIMEOUT_S)
    found = fetch(blocks, [300, 301])
    assert found[301] is None
    assert found[300] in (None, b"a" * 2_000_000)


def test_a_window_of_a_group_is_enough(blocks: Any) -> None:
    numbers = list(range(400, 410))
    yielded = [
        blocks_pb2.StoreRequest(header=blocks_pb2.StoreHeader()),
        blocks_pb2.StoreRequest(
            batch=blocks_pb2.StoreBatch(
                blocks=[block(number, b"x") for number in numbers]
                + [block(number, b"y", 1) for number in numbers[5:8]],
                data=b"x" * 10 + b"y" * 3,
            )
        ),
        blocks_pb2.StoreRequest(commit=blocks_pb2.StoreCommit(blocks=13)),
    ]
    blocks.Store(iter(yielded), timeout=TIMEOUT_S)
    digests = b"".join(number.to_bytes(32, "big") for number in numbers)

    def matched(*groups: tuple[int, int]) -> int:
        wanted = [blocks_pb2.LayerGroup(group=group, window_blocks=window) for group, window in groups]
        request = blocks_pb2.MatchRequest(digests=digests, groups=wanted)
        return int(blocks.Match(request, timeout=TIMEOUT_S).matched_blocks)

    assert matched() == 10
    assert matched((0, 0), (1, 0)) == 0
    assert matched((0, 0), (1, 2)) == 8
    assert matched((0, 0), (1, 3)) == 8
    assert matched((0, 0), (1, 4)) == 0


def test_standard_services_answer(node: NodeProcess, channel: grpc.Channel) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    health = health_pb2_grpc.HealthStub(channel)
    services = ["", "terracekv.v1.CacheService", "terracekv.v1.BlockService", "terracekv.v1.AdminService"]
    for name in [*services, "tier.memory", "tier.shared", "tier.disk"]:
        reply = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT_S)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING, name
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    (reply,) = reflection.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=TIMEOUT_S
    )
    listed = {service.name for service in reply.list_services_response.service}
    assert {*services[1:], "grpc.health.v1.Health"} <= listed
