"""What operators ask of a node: namespaces with their policies, emptying tiers, counters, settings, logs in files."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from nodes import NodeProcess

from terracekv.v1 import admin_pb2, admin_pb2_grpc, cache_pb2, cache_pb2_grpc

StartNode = Callable[..., NodeProcess]
TIMEOUT_S = 20
MEMORY, SHARED, DISK = cache_pb2.TIER_NAME_MEMORY, cache_pb2.TIER_NAME_SHARED, cache_pb2.TIER_NAME_DISK


@pytest.fixture
def cache(channel: grpc.Channel) -> Any:
    return cache_pb2_grpc.CacheServiceStub(channel)


@pytest.fixture
def admin(channel: grpc.Channel) -> Any:
    return admin_pb2_grpc.AdminServiceStub(channel)


def create(admin: Any, **settings: Any) -> Any:
    request = admin_pb2.CreateNamespaceRequest(namespace=admin_pb2.Namespace(**settings))
    return admin.CreateNamespace(request, timeout=TIMEOUT_S).namespace


def put(cache: Any, namespace: str, key: bytes, value: bytes) -> Any:
    return cache.Put(cache_pb2.PutRequest(namespace=namespace, key=key, value=value), timeout=TIMEOUT_S)


def get(cache: Any, namespace: str, key: bytes) -> Any:
    return cache.Get(cache_pb2.GetRequest(namespace=namespace, key=key), timeout=TIMEOUT_S)


def clear(admin: Any, *tiers: int) -> None:
    admin.Flush(admin_pb2.FlushRequest(), timeout=TIMEOUT_S)
    admin.Clear(admin_pb2.ClearRequest(tiers=tiers), timeout=TIMEOUT_S)  # type: ignore[arg-type]


def test_a_namespace_is_made_changed_and_listed(admin: Any) -> None:
    made = create(admin, name="team-a", kind=admin_pb2.KIND_IMMUTABLE, ttl_s=60, jitter=0.25, tiers=[MEMORY, DISK])
    assert (made.kind, made.epoch, made.ttl_s, made.jitter) == (admin_pb2.KIND_IMMUTABLE, 1, 60, 0.25)
    again = create(admin, name="team-a", kind=admin_pb2.KIND_IMMUTABLE)
    assert again == made
    with pytest.raises(grpc.RpcError) as caught:
        create(admin, name="team-a", kind=admin_pb2.KIND_MUTABLE)
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS  # type: ignore[attr-defined]
    changed = admin_pb2.Namespace(name="team-a", kind=admin_pb2.KIND_IMMUTABLE, ttl_s=5)
    updated = admin.UpdateNamespace(admin_pb2.UpdateNamespaceRequest(namespace=changed), timeout=TIMEOUT_S).namespace
    assert (updated.ttl_s, list(updated.tiers)) == (5, [MEMORY, SHARED, DISK])
    listed = admin.ListNamespaces(admin_pb2.ListNamespacesRequest(), timeout=TIMEOUT_S).namespaces
    assert updated in list(listed)
    assert {"default", "blocks"} <= {one.name for one in listed}


def test_an_unknown_namespace_is_not_changed(admin: Any) -> None:
    request = admin_pb2.UpdateNamespaceRequest(namespace=admin_pb2.Namespace(name="nobody"))
    with pytest.raises(grpc.RpcError) as caught:
        admin.UpdateNamespace(request, timeout=TIMEOUT_S)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]


def test_a_namespace_uses_the_tiers_it_names(admin: Any, cache: Any) -> None:
    create(admin, name="ram", tiers=[MEMORY])
    create(admin, name="ssd", tiers=[DISK])
    assert put(cache, "ram", b"k", b"v").durability == cache_pb2.DURABILITY_MEMORY
    assert put(cache, "ssd", b"k", b"v").durability == cache_pb2.DURABILITY_WAL
    assert get(cache, "ram", b"k").tier == MEMORY
    assert get(cache, "ssd", b"k").tier == DISK
    clear(admin, MEMORY)
    assert get(cache, "ram", b"k").status == cache_pb2.KEY_STATUS_MISS
    assert get(cache, "ssd", b"k").value == b"v"


@pytest.mark.parametrize("codec", [admin_pb2.CODEC_NONE, admin_pb2.CODEC_ZSTD, admin_pb2.CODEC_PLANES_ZSTD])
@pytest.mark.parametrize("size", [0, 1, 70_001, 3_000_000])
def test_a_codec_is_seen_by_nobody_and_saves_space_below_memory(admin: Any, cache: Any, codec: int, size: int) -> None:
    name = f"codec-{codec}-{size}"
    create(admin, name=name, kind=admin_pb2.KIND_IMMUTABLE, codec=codec)
    value = (random.Random(size).randbytes(1_000) * (size // 1_000 + 1))[:size]
    put(cache, name, b"k", value)
    assert get(cache, name, b"k").value == value
    clear(admin, MEMORY)
    found = get(cache, name, b"k")
    assert (found.value == value, found.tier) == (True, SHARED)
    clear(admin, MEMORY, SHARED)
    found = get(cache, name, b"k")
    assert (found.value == value, found.tier) == (True, DISK)
    admin.Flush(admin_pb2.FlushRequest(), timeout=TIMEOUT_S)
    clear(admin, MEMORY)
    assert get(cache, name, b"k").tier == SHARED


def test_stats_count_what_happened(admin: Any, cache: Any) -> None:
    def memory() -> Any:
        stats = admin.Stats(admin_pb2.StatsRequest(), timeout=TIMEOUT_S)
        return next(tier for tier in stats.tiers if tier.tier == MEMORY)

    before = memory()
    put(cache, "default", b"counted", b"x" * 100)
    for _ in range(3):
        get(cache, "default", b"counted")
    after = memory()
    assert (after.hits - before.hits, after.puts - before.puts) == (3, 1)
    assert after.read_bytes - before.read_bytes == 300


def test_the_settings_in_force_are_told_without_secrets(start_node: StartNode, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text('shared = "none"\nmemory_bytes = "32MiB"\n[[namespaces]]\nname = "kv"\nkind = "immutable"\n')
    node = start_node("--config", str(config), "--log-dir", str(tmp_path / "logs"), "--log-level", "debug")
    with grpc.insecure_channel(node.target) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        told = tomllib.loads(admin.Config(admin_pb2.ConfigRequest(), timeout=TIMEOUT_S).toml)
        assert (told["memory_bytes"], told["namespaces"][0]["name"]) == (32 << 20, "kv")
        listed = admin.ListNamespaces(admin_pb2.ListNamespacesRequest(), timeout=TIMEOUT_S).namespaces
        assert next(one for one in listed if one.name == "kv").kind == admin_pb2.KIND_IMMUTABLE
    assert node.stop() == 0
    lines = (tmp_path / "logs" / "terracekv.log").read_text().splitlines()
    assert any(json.loads(line).get("method") == "AdminService/Config" for line in lines)
    assert node.errors() == ""
