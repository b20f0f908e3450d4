"""What every client must do, awaited: the sync one through threads, so that one suite holds for both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from nodes import NodeProcess

from terracekv.client import MISS, AsyncClient, Client, Durability, Failed, Hit, Match, Put, StoreReport, errors

KINDS = ("sync", "async")
MIB = 1 << 20


class Awaited:
    """A sync client whose calls are awaited; each runs in a thread."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)
        if inspect.isgeneratorfunction(method):
            return _stepped(method)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, *args, **kwargs)

        return call


def _stepped(method: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
    async def iterate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        items, end = method(*args, **kwargs), object()
        while (item := await asyncio.to_thread(next, items, end)) is not end:
            yield item

    return iterate


@contextmanager
def running_node(data_dir: Path, *arguments: str) -> Iterator[NodeProcess]:
    """A node of its own process, without a shared tier, ended with the block."""
    node = NodeProcess(data_dir, ("--shared", "none", *arguments))
    try:
        yield node.start()
    finally:
        if node.process is not None:
            node.stop()


@asynccontextmanager
async def open_client(kind: str, target: str, **options: Any) -> AsyncIterator[Any]:
    """A client of either kind; every call is awaited."""
    if kind == "async":
        async with AsyncClient(target, **options) as client:
            yield client
    else:
        with Client(target, **options) as sync_client:
            yield Awaited(sync_client)


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


class ClientSuite:
    """Subclasses give the fixture `client`: a client of a real node, in an empty mutable namespace of its own."""

    async def test_a_value_comes_back_as_it_was_put(self, client: Any) -> None:
        version = await client.put("user:42", b"hello")
        found = await client.get("user:42")
        assert isinstance(found, Hit)
        assert (found.value, found.version, found.tier) == (b"hello", version, "memory")

    async def test_a_miss_is_falsy_and_one_of_a_kind(self, client: Any) -> None:
        await client.put("other", b"x")
        assert await client.get("nothing here") is MISS
        assert not MISS

    async def test_an_empty_value_is_a_hit(self, client: Any) -> None:
        await client.put("empty", b"")
        found = await client.get("empty")
        assert found
        assert found.value == b""

    async def test_versions_grow_with_every_put(self, client: Any) -> None:
        first = await client.put("k", b"1")
        assert await client.put("k", b"2") > first

    async def test_a_ttl_shows_in_what_is_left(self, client: Any) -> None:
        await client.put("k", b"v", ttl_s=50)
        found = await client.get("k")
        assert 40 < found.expires_in_s <= 50

    @pytest.mark.parametrize("key", [b"\x00", b"\xff\xfe", b"a\r\nb", b"{x}", "caf\u00e9", "cafe\u0301", b"k" * 1_024])
    async def test_odd_keys_are_ordinary(self, client: Any, key: bytes | str) -> None:
        await client.put(key, b"odd")
        assert (await client.get(key)).value == b"odd"

    async def test_text_keys_are_not_normalised(self, client: Any) -> None:
        await client.put("caf\u00e9", b"one form")
        assert await client.get("cafe\u0301") is MISS
        assert (await client.get("caf\u00e9".encode())).value == b"one form"

    @pytest.mark.parametrize("size", [3 * MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 20 * MIB + 7])
    async def test_large_values_go_by_the_same_calls(self, client: Any, size: int) -> None:
        value = bytes(range(256)) * (size // 256) + b"t" * (size % 256)
        await client.put("large", value)
        assert (await client.get("large")).value == value
        (found,) = await client.get_many(["large"])
        assert found.value == value

    async def test_buffers_of_many_kinds_are_taken(self, client: Any) -> None:
        import array

        import numpy

        grid = numpy.arange(12, dtype="float32").reshape(3, 4)
        given = {
            "bytearray": bytearray(b"abc"),
            "memoryview": memoryview(b"xabcx")[1:4],
            "array": array.array("I", [1, 2, 3]),
            "grid": grid,
            "columns": grid[:, ::2],
        }
        for key, value in given.items():
            await client.put(key, value)
        assert (await client.get("bytearray")).value == b"abc"
        assert (await client.get("memoryview")).value == b"abc"
        assert (await client.get("array")).value == given["array"].tobytes()
        assert (await client.get("grid")).value == grid.tobytes()
        assert (await client.get("columns")).value == grid[:, ::2].tobytes()

    async def test_values_handed_out_cannot_be_changed(self, client: Any) -> None:
        await client.put("k", bytearray(b"stored"))
        found = await client.get("k")
        assert type(found.value) is bytes
        with pytest.raises(AttributeError):
            found.value = b"other"

    @pytest.mark.parametrize("value", [None, "text", 5, [1]])
    async def test_what_is_not_bytes_is_refused(self, client: Any, value: object) -> None:
        with pytest.raises(TypeError):
            await client.put("k", value)

    async def test_many_values_come_back_in_order(self, client: Any) -> None:
        items = {f"k{number}": bytes([number % 256]) * (number * 7) for number in range(1_500)}
        stored = await client.put_many(items)
        assert all(isinstance(put, Put) and not put.kept for put in stored)
        found = await client.get_many([*items, "absent"])
        assert [hit.value for hit in found[:-1]] == list(items.values())
        assert found[-1] is MISS

    async def test_values_that_do_not_fit_one_reply_all_come(self, client: Any) -> None:
        items = [(f"k{number}", bytes([number]) * (MIB + number)) for number in range(12)]
        items.append(("streamed", bytes(5 * MIB)))
        await client.put_many(items)
        found = await client.get_many([key for key, _ in items])
        assert [hit.value for hit in found] == [value for _, value in items]

    async def test_of_equal_keys_the_last_is_stored(self, client: Any) -> None:
        stored = await client.put_many([("k", b"1"), ("other", b"o"), ("k", b"2")])
        assert stored[0] == stored[2]
        assert (await client.get("k")).value == b"2"

    async def test_nothing_asked_is_nothing_answered(self, client: Any) -> None:
        assert await client.get_many([]) == []
        assert await client.put_many({}) == []
        assert await client.delete([]) == []
        assert await client.exists([]) == []
        assert await client.fetch_blocks([]) == []
        assert await client.match_blocks([]) == Match(0)
        assert await client.store_blocks([]) == StoreReport()

    async def test_one_bad_key_stores_nothing_of_a_batch(self, client: Any) -> None:
        items = [(f"k{number}", b"v") for number in range(1_100)] + [("", b"v")]
        with pytest.raises(errors.KeyInvalid):
            await client.put_many(items)
        await client.put("made", b"")
        assert await client.exists("k0") is False

    async def test_exists_tells_without_the_value(self, client: Any) -> None:
        await client.put("k", b"v")
        assert await client.exists("k") is True
        assert await client.exists(["k", "absent"] * 800) == [True, False] * 800

    async def test_deleted_keys_miss(self, client: Any) -> None:
        await client.put_many({"a": b"1", "b": b"2"})
        assert await client.delete("a") is True
        assert await client.delete(["b", "never there"]) == [True, True]
        assert await client.get_many(["a", "b"]) == [MISS, MISS]

    async def test_a_prefix_is_invalidated(self, client: Any) -> None:
        await client.put_many({"user:1": b"1", "user:2": b"2", "team:1": b"3"})
        epoch = await client.invalidate(prefix="user:")
        assert epoch >= 1
        assert await client.exists(["user:1", "user:2", "team:1"]) == [False, False, True]

    async def test_an_epoch_empties_the_namespace(self, client: Any) -> None:
        await client.put("k", b"v")
        before = await client.invalidate(prefix="x")
        assert await client.invalidate(epoch=True) == before + 1
        assert await client.get("k") is MISS

    async def test_invalidate_takes_one_target(self, client: Any) -> None:
        for targets in ({}, {"prefix": "x", "epoch": True}):
            with pytest.raises(errors.InvalidArgument):
                await client.invalidate(**targets)

    @pytest.mark.parametrize(
        ("call", "kind", "field"),
        [
            (lambda client: client.get(""), errors.KeyInvalid, "key"),
            (lambda client: client.get(b"k" * 1_025), errors.KeyInvalid, "key"),
            (lambda client: client.get("\ud800"), errors.KeyInvalid, "key"),
            (lambda client: client.put("k", b"v", ttl_s=0), errors.TTLInvalid, "ttl_s"),
            (lambda client: client.put("k", b"v", ttl_s=-1), errors.TTLInvalid, "ttl_s"),
            (lambda client: client.put("k", b"v", ttl_s=float("nan")), errors.TTLInvalid, "ttl_s"),
            (lambda client: client.put("k", bytes(5 * MIB), ttl_s=1e12), errors.TTLInvalid, "ttl_s"),
            (lambda client: client.put("k", b"v", namespace="Not A Name"), errors.NamespaceInvalid, "namespace"),
            (lambda client: client.put("k", b"v", durability=99), errors.EnumInvalid, "durability"),
            (lambda client: client.put("k", b"v", durability="forever"), errors.EnumInvalid, "durability"),
            (lambda client: client.get("k", timeout_s=0), errors.InvalidArgument, "timeout_s"),
            (lambda client: client.create_namespace("x", "both"), errors.EnumInvalid, "kind"),
            (lambda client: client.match_blocks([b"short"]), errors.InvalidArgument, "digest"),
            (lambda client: client.fetch_blocks([(bytes(32), -1)]), errors.InvalidArgument, "group"),
        ],
    )
    async def test_bad_input_is_told_by_field_limit_and_value(
        self, client: Any, call: Callable[[Any], Any], kind: type[errors.InvalidArgument], field: str
    ) -> None:
        with pytest.raises(kind) as caught:
            await call(client)
        assert caught.value.field == field
        assert caught.value.limit
        assert caught.value.given

    async def test_a_level_not_offered_is_named(self, client: Any) -> None:
        with pytest.raises(errors.DurabilityNotOffered):
            await client.put("k", b"v", durability=Durability.DURABLE)

    async def test_a_level_may_be_given_by_name(self, client: Any) -> None:
        await client.put("k", b"v", durability="fsync")
        assert (await client.get("k")).value == b"v"

    async def test_an_unknown_namespace_is_not_found(self, client: Any) -> None:
        with pytest.raises(errors.NamespaceNotFound):
            await client.get("k", namespace="never-made")

    async def test_namespaces_are_made_changed_and_listed(self, client: Any) -> None:
        name = f"made-{client_name(client)}"
        made = await client.create_namespace(name, "immutable", ttl_s=60, codec="zstd", tiers=["memory", "disk"])
        assert (made.name, made.kind, made.ttl_s, made.codec, made.tiers) == (
            name,
            "immutable",
            60,
            "zstd",
            ("memory", "disk"),
        )
        changed = await client.update_namespace(name, ttl_s=None, jitter=0.0)
        assert (changed.ttl_s, changed.jitter, changed.codec, changed.kind) == (None, 0.0, "zstd", "immutable")
        assert name in [namespace.name for namespace in await client.list_namespaces()]
        with pytest.raises(errors.NamespaceConflict):
            await client.create_namespace(name, "mutable")
        with pytest.raises(errors.NamespaceNotFound):
            await client.update_namespace("never-made", jitter=0.1)

    async def test_the_first_value_of_an_immutable_key_stays(self, client: Any) -> None:
        name = f"once-{client_name(client)}"
        await client.create_namespace(name, "immutable")
        (first,) = await client.put_many({"k": b"first"}, namespace=name)
        (second,) = await client.put_many({"k": b"second"}, namespace=name)
        assert second == Put(first.version, kept=True)
        assert (await client.get("k", namespace=name)).value == b"first"

    async def test_blocks_are_stored_matched_and_fetched(self, client: Any) -> None:
        base = abs(hash(client_name(client))) << 64
        chain = [digest(base + number) for number in range(40)]
        payloads = {(key, 0): key * (1 + 700 * (number % 90)) for number, key in enumerate(chain[:30])}
        payloads[chain[29], 1] = bytes(3 * MIB + 1)  # a window of one block of group 1
        payloads[chain[0], 2] = b""
        report = await client.store_blocks(list(payloads.items()))
        assert report == StoreReport(stored=len(payloads))
        assert await client.match_blocks(chain) == Match(30)
        assert await client.match_blocks(chain, [(0, 0), (1, 1)]) == Match(30)
        assert await client.match_blocks(chain, [(0, 0), (2, 0)]) == Match(1)
        answers = await client.fetch_blocks([(chain[35], 0), *payloads, (chain[0], 7)])
        assert answers[0] is MISS
        assert answers[-1] is MISS
        assert [hit.value for hit in answers[1:-1]] == list(payloads.values())
        seen = [(place, hit.value) async for place, hit in client.iter_blocks(list(payloads))]
        assert seen == list(enumerate(payloads.values()))

    async def test_blocks_stored_again_are_kept_and_differing_ones_counted(self, client: Any) -> None:
        base = abs(hash(client_name(client))) << 65
        keys = [(digest(base + number), 0) for number in range(5)]
        assert (await client.store_blocks((key, b"same") for key in keys)).stored == 5
        report = await client.store_blocks((key, b"same" if key != keys[3] else b"else") for key in keys)
        assert (report.stored, report.kept, report.failed, report.differing) == (0, 5, 0, 1)

    async def test_more_blocks_than_one_call_takes(self, client: Any) -> None:
        base = abs(hash(client_name(client))) << 66
        keys = [(digest(base + number), 0) for number in range(4_200)]
        assert (await client.store_blocks((key, key[0][-4:]) for key in keys)).stored == 4_200
        answers = await client.fetch_blocks(keys)
        assert [hit.value for hit in answers] == [key[0][-4:] for key in keys]

    async def test_an_error_of_the_blocks_given_comes_back(self, client: Any) -> None:
        class Gone(Exception):
            pass

        def items() -> Any:
            yield (digest(1), 9), b"first"
            raise Gone

        with pytest.raises(Gone):
            await client.store_blocks(items())
        with pytest.raises(errors.ValueTooLarge):
            await client.store_blocks([((digest(2), 9), bytes(64 * MIB + 1))])

    async def test_a_node_says_how_it_is(self, client: Any) -> None:
        await client.put("k", b"v")
        assert 0 < await client.ping() < 5
        stats = await client.stats()
        assert stats.tiers[0].tier == "memory"
        assert stats.tiers[0].puts > 0
        assert {tier.tier: tier.state for tier in await client.tiers()}["memory"] == "up"
        assert await client.flush() >= 0
        assert "listen" in await client.config()

    async def test_a_cleared_tier_is_empty(self, client: Any) -> None:
        await client.put("k", b"v", durability="wal")
        assert (await client.get("k")).tier == "memory"
        await client.flush()
        await client.clear(["memory"])
        assert (await client.get("k")).tier == "disk"

    async def test_failures_and_misses_are_told_apart_by_type(self, client: Any) -> None:
        assert not Failed(errors.TierUnavailable("down"))
        assert Failed(errors.TierUnavailable("down")) != MISS


def client_name(client: Any) -> str:
    """The name of the namespace that a test's client was given."""
    return str(getattr(client, "client", client).namespace)
