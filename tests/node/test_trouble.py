"""A node in trouble: too many calls, callers that leave, a shared tier paused or gone, large values beside small."""

from __future__ import annotations

import json
import os
import signal
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from nodes import NodeProcess

from terracekv.v1 import admin_pb2, admin_pb2_grpc, cache_pb2, cache_pb2_grpc

StartNode = Callable[..., NodeProcess]
TIMEOUT_S = 30
MIB = 1 << 20
SLACK_S = 1.0  # two shared cores: what a deadline may be overrun by


class Stubs:
    """The services of a node over one channel."""

    def __init__(self, node: NodeProcess) -> None:
        self.channel = grpc.insecure_channel(node.target)
        self.cache: Any = cache_pb2_grpc.CacheServiceStub(self.channel)
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)

    def put(self, key: bytes, value: bytes, namespace: str = "", timeout_s: float | None = TIMEOUT_S) -> Any:
        return self.cache.Put(cache_pb2.PutRequest(namespace=namespace, key=key, value=value), timeout=timeout_s)

    def get(self, key: bytes, namespace: str = "", timeout_s: float | None = TIMEOUT_S) -> Any:
        return self.cache.Get(cache_pb2.GetRequest(namespace=namespace, key=key), timeout=timeout_s)

    def serving(self, service: str) -> bool:
        reply = self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


@contextmanager
def stubs_of(node: NodeProcess) -> Iterator[Stubs]:
    stubs = Stubs(node)
    with stubs.channel:
        yield stubs


def reason_of(error: Any) -> str:
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    return info.reason if status is not None and status.details[0].Unpack(info) else ""


def metric(node: NodeProcess, series: str) -> float:
    with urllib.request.urlopen(node.metrics_url, timeout=TIMEOUT_S) as reply:  # noqa: S310
        text = str(reply.read(), "utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith(series + " ")]
    return float(line.rsplit(" ", 1)[1])


def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold in time"
        time.sleep(0.05)


def masters(node: NodeProcess) -> list[int]:
    state = json.loads((node.data_dir / "shared" / "state.json").read_text())
    return [member["pid"] for member in state["members"]]


# --- bounds ---


def held_upload(size_bytes: int, over: threading.Event) -> Iterator[cache_pb2.PutStreamRequest]:
    yield cache_pb2.PutStreamRequest(header=cache_pb2.PutStreamHeader(key=b"held", size_bytes=size_bytes))
    over.wait(TIMEOUT_S)


def test_one_call_too_many_is_refused_at_once_and_health_answers(start_node: StartNode) -> None:
    node = start_node("--shared", "none", TERRACEKV_CALLS_INFLIGHT_MAX="4")
    over = threading.Event()
    with stubs_of(node) as stubs:
        uploads = [stubs.cache.PutStream.future(held_upload(10, over), timeout=TIMEOUT_S) for _ in range(4)]
        until(lambda: metric(node, 'terracekv_inflight{what="calls"}') == 4)
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            stubs.get(b"k")
        assert time.monotonic() - began < SLACK_S
        error: Any = caught.value
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason_of(error) == "CALLS_INFLIGHT"
        assert "4 calls" in error.details()
        assert int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
        assert stubs.serving("")
        assert metric(node, 'terracekv_refused_total{reason="calls_inflight"}') == 1
        over.set()
        for upload in uploads:
            with pytest.raises(grpc.RpcError):
                upload.result(timeout=TIMEOUT_S)
        until(lambda: metric(node, 'terracekv_inflight{what="calls"}') == 0)
        assert stubs.put(b"k", b"v").version


def test_bytes_are_booked_before_they_come_and_given_back(start_node: StartNode) -> None:
    node = start_node("--shared", "none", TERRACEKV_BYTES_INFLIGHT_MAX=str(16 * MIB))
    over = threading.Event()
    with stubs_of(node) as stubs:
        upload = stubs.cache.PutStream.future(held_upload(15 * MIB, over), timeout=TIMEOUT_S)
        until(lambda: metric(node, 'terracekv_inflight{what="bytes"}') >= 15 * MIB)
        with pytest.raises(grpc.RpcError) as caught:
            stubs.put(b"k", bytes(2 * MIB))
        assert reason_of(caught.value) == "BYTES_INFLIGHT"
        assert stubs.put(b"k", b"small").version
        over.set()
        with pytest.raises(grpc.RpcError):
            upload.result(timeout=TIMEOUT_S)
        until(lambda: metric(node, 'terracekv_inflight{what="bytes"}') == 0)
        assert stubs.put(b"k", bytes(2 * MIB)).version


def test_large_replies_are_booked_until_they_are_sent(start_node: StartNode) -> None:
    node = start_node("--shared", "none", TERRACEKV_BYTES_INFLIGHT_MAX=str(8 * MIB))
    with stubs_of(node) as stubs:
        stubs.put(b"k", bytes(3 * MIB))

        def one(_: int) -> str:
            try:
                return str(len(stubs.get(b"k").value))
            except grpc.RpcError as error:
                return reason_of(error)

        with ThreadPoolExecutor(16) as pool:
            outcomes = set(pool.map(one, range(64)))
        assert str(3 * MIB) in outcomes
        assert outcomes <= {str(3 * MIB), "BYTES_INFLIGHT"}
        until(lambda: metric(node, 'terracekv_inflight{what="bytes"}') == 0)
        assert len(stubs.get(b"k").value) == 3 * MIB


def test_a_draining_node_refuses_work_and_says_so(start_node: StartNode) -> None:
    node = start_node("--shared", "none")
    with stubs_of(node) as stubs:
        assert stubs.serving("terracekv.v1.CacheService")
        stubs.admin.Drain(admin_pb2.DrainRequest(), timeout=TIMEOUT_S)
        with pytest.raises(grpc.RpcError) as caught:
            stubs.get(b"k")
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        assert reason_of(caught.value) == "DRAINING"
        until(lambda: not stubs.serving("terracekv.v1.CacheService"))
        assert stubs.admin.Stats(admin_pb2.StatsRequest(), timeout=TIMEOUT_S).version
        assert node.process is not None
        assert node.process.poll() is None


# --- callers that leave ---


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_streams_left_after_their_first_frame_leave_nothing_behind(lone_node: NodeProcess, count: int) -> None:
    with stubs_of(lone_node) as stubs:
        header = cache_pb2.PutStreamHeader(key=b"large", size_bytes=8 * MIB)
        frames = [cache_pb2.PutStreamRequest(data=bytes(MIB))] * 8
        whole = [cache_pb2.PutStreamRequest(header=header), *frames, cache_pb2.PutStreamRequest(commit={})]
        stubs.cache.PutStream(iter(whole), timeout=TIMEOUT_S)
        assert lone_node.process is not None
        pid = lone_node.process.pid

        def leave(count: int) -> None:
            for _ in range(count):
                call = stubs.cache.GetStream(cache_pb2.GetStreamRequest(key=b"large"), timeout=TIMEOUT_S)
                next(call)
                call.cancel()

        leave(100)
        until(lambda: metric(lone_node, 'terracekv_inflight{what="calls"}') == 0)
        before = resident_bytes(pid)
        leave(count)
        until(lambda: metric(lone_node, 'terracekv_inflight{what="calls"}') == 0)
        until(lambda: metric(lone_node, 'terracekv_inflight{what="bytes"}') == 0)
        assert resident_bytes(pid) - before < 64 * MIB
        assert stubs.get(b"nothing").status == cache_pb2.KEY_STATUS_MISS


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- the shared tier in trouble ---


def test_a_paused_shared_tier_holds_nobody_past_the_deadline(start_node: StartNode) -> None:
    node = start_node()
    pids = masters(node)
    with stubs_of(node) as stubs:
        for number in range(32):
            stubs.put(b"b%d" % number, b"block", "blocks")
        for number in range(32):
            assert stubs.get(b"b%d" % number, "blocks").value == b"block"
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            durations, codes = timed_gets(stubs, 64, timeout_s=0.5)
            assert max(durations) < 0.5 + SLACK_S
            assert codes <= {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
            for number in range(32):
                assert stubs.get(b"b%d" % number, "blocks", 2.0).value == b"block"
            began = time.monotonic()
            with pytest.raises(grpc.RpcError):
                stubs.get(b"no deadline", timeout_s=None)
            assert time.monotonic() - began < 2.0 + SLACK_S
            with pytest.raises(grpc.RpcError) as caught:
                stubs.put(b"m", b"v", timeout_s=1.0)
            assert caught.value.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED")  # type: ignore[attr-defined]
            until(lambda: not stubs.serving("tier.shared"))
            assert stubs.serving("")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        until(lambda: works(stubs), 15)
        until(lambda: stubs.serving("tier.shared"))
        assert metric(node, 'terracekv_tier_failures_total{tier="shared"}') > 0


def timed_gets(stubs: Stubs, count: int, timeout_s: float) -> tuple[list[float], set[str]]:
    def one(number: int) -> tuple[float, str]:
        began = time.monotonic()
        try:
            stubs.get(b"paused-%d" % number, timeout_s=timeout_s)
        except grpc.RpcError as error:
            return time.monotonic() - began, error.code().name  # type: ignore[attr-defined]
        return time.monotonic() - began, "OK"

    with ThreadPoolExecutor(16) as pool:
        ended = list(pool.map(one, range(count)))
    return [seconds for seconds, _ in ended], {code for _, code in ended}


def works(stubs: Stubs) -> bool:
    try:
        return all(stubs.put(b"w%d" % number, b"v", timeout_s=2.0).version for number in range(12))
    except grpc.RpcError:
        return False


def test_a_lost_shared_tier_leaves_blocks_readable_and_mutable_keys_unavailable(start_node: StartNode) -> None:
    node = start_node("--memory-bytes", "1MiB")
    with stubs_of(node) as stubs:
        payload = os.urandom(300_000)
        for number in range(10):
            stubs.put(b"b%d" % number, payload, "blocks")
            stubs.put(b"m%d" % number, payload)
        stubs.admin.Flush(admin_pb2.FlushRequest(), timeout=TIMEOUT_S)
        for pid in masters(node):
            os.kill(pid, signal.SIGKILL)
        tiers = set()
        for number in range(10):
            found = stubs.get(b"b%d" % number, "blocks", 2.0)
            assert found.value == payload
            tiers.add(found.tier)
        assert tiers <= {cache_pb2.TIER_NAME_MEMORY, cache_pb2.TIER_NAME_DISK}
        assert cache_pb2.TIER_NAME_DISK in tiers
        failed = 0
        for number in range(10):
            try:
                assert stubs.get(b"m%d" % number, timeout_s=2.0).value == payload
            except grpc.RpcError as error:
                failed += error.code() == grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        assert failed >= 6
        keys = [b"b%d" % number for number in range(10)] + [b"absent"]
        batch = stubs.cache.GetMany(cache_pb2.GetManyRequest(namespace="blocks", keys=keys), timeout=TIMEOUT_S)
        assert list(batch.statuses) == [cache_pb2.KEY_STATUS_HIT] * 10 + [cache_pb2.KEY_STATUS_UNAVAILABLE]
        with pytest.raises(grpc.RpcError) as caught:
            stubs.put(b"m", b"v", timeout_s=2.0)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        request = cache_pb2.PutRequest(namespace="blocks", key=b"new", value=b"v", durability=cache_pb2.DURABILITY_WAL)
        assert stubs.cache.Put(request, timeout=2.0).version
        until(lambda: not stubs.serving("tier.shared"))
        assert stubs.serving("terracekv.v1.CacheService")
    assert node.stop() == 0


# --- large beside small ---


@pytest.mark.parametrize(("clients", "size_mib"), [(2, 64), pytest.param(8, 256, marks=pytest.mark.long)])
def test_large_values_do_not_freeze_small_calls(start_node: StartNode, clients: int, size_mib: int) -> None:
    bounds = {"TERRACEKV_BYTES_INFLIGHT_MAX": "6GiB", "TERRACEKV_SHARED_MEMORY_BYTES_MAX": "6GiB"}
    node = start_node("--memory-bytes", "64MiB", **bounds)
    with stubs_of(node) as stubs, stubs_of(node) as others:
        stubs.put(b"small", b"x" * 1_024)
        over = threading.Event()
        errors: list[Exception] = []

        def large(number: int) -> None:
            header = cache_pb2.PutStreamHeader(key=b"large-%d" % number, size_bytes=size_mib * MIB)
            frames = [cache_pb2.PutStreamRequest(data=bytes(MIB))] * size_mib
            whole = [cache_pb2.PutStreamRequest(header=header), *frames, cache_pb2.PutStreamRequest(commit={})]
            try:
                while not over.is_set():
                    others.cache.PutStream(iter(whole), timeout=60)
                    request = cache_pb2.GetStreamRequest(key=b"large-%d" % number)
                    assert sum(len(one.data) for one in others.cache.GetStream(request, timeout=60)) == size_mib * MIB
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=large, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        seconds = []
        end = time.monotonic() + 4
        while time.monotonic() < end:
            began = time.monotonic()
            assert stubs.get(b"small").value == b"x" * 1_024
            assert stubs.serving("")
            seconds.append(time.monotonic() - began)
            time.sleep(0.01)
        over.set()
        for thread in threads:
            thread.join()
        assert errors == []
        # The client's own process sends and receives the large values too, on the same two cores: a wide bound here,
        # the figure is measured by the benchmark.
        assert statistics.median(seconds) < 0.25
        assert max(seconds) < 2.0
