"""Namespaces: records that all nodes share, changed by compare-and-set, never going back."""

from __future__ import annotations

import pytest
from fakes import FakeRecords
from hypothesis import given
from hypothesis import strategies as st

from terracekv.tiers.clock import Deadline, FakeClock
from terracekv.tiers.entry import Codec, Durability, Kind, TierName
from terracekv.tiers.errors import FieldInvalid, NamespaceConflict, NamespaceNotFound, TierUnavailable
from terracekv.tiers.namespaces import FLOORS_MAX, Namespace, Namespaces, decode_namespace, encode_namespace

CLOCK = FakeClock()
SOON = Deadline.after(60, CLOCK)


async def node(shared: FakeRecords, local: FakeRecords | None = None, **options: object) -> Namespaces:
    namespaces = Namespaces(shared, local or FakeRecords(), CLOCK, **options)  # type: ignore[arg-type]
    await namespaces.start(SOON)
    return namespaces


async def test_default_and_blocks_are_built_in() -> None:
    namespaces = await node(FakeRecords())
    assert namespaces.get("").name == "default"
    assert namespaces.get("default").kind is Kind.MUTABLE
    assert namespaces.get("blocks").kind is Kind.IMMUTABLE


async def test_an_unknown_name_is_not_found_unless_puts_may_create() -> None:
    strict = await node(FakeRecords())
    with pytest.raises(NamespaceNotFound):
        await strict.ensure("new", SOON)
    open_ = await node(FakeRecords(), create_on_put=True)
    assert (await open_.ensure("new", SOON)).ttl_s == 86_400.0
    with pytest.raises(FieldInvalid):
        await open_.ensure("No Such Name", SOON)


async def test_a_namespace_made_on_one_node_is_seen_by_another() -> None:
    shared = FakeRecords()
    one, other = await node(shared), await node(shared)
    await one.create(Namespace("team", kind=Kind.IMMUTABLE, ttl_s=5.0), SOON)
    assert await other.refresh(SOON)
    assert other.get("team").ttl_s == 5.0


async def test_an_existing_record_wins_over_the_configuration() -> None:
    shared = FakeRecords()
    await (await node(shared)).create(Namespace("team", ttl_s=5.0), SOON)
    other = await node(shared, configured=(Namespace("team", ttl_s=99.0),))
    assert other.get("team").ttl_s == 5.0


async def test_the_kind_never_changes() -> None:
    namespaces = await node(FakeRecords())
    await namespaces.create(Namespace("team"), SOON)
    with pytest.raises(NamespaceConflict):
        await namespaces.create(Namespace("team", kind=Kind.IMMUTABLE), SOON)
    with pytest.raises(NamespaceConflict):
        await namespaces.update(Namespace("team", kind=Kind.IMMUTABLE), SOON)


async def test_an_update_keeps_epoch_and_floors() -> None:
    namespaces = await node(FakeRecords())
    await namespaces.raise_epoch("default", SOON)
    await namespaces.invalidate_prefix("default", b"a", 5, SOON)
    updated = await namespaces.update(Namespace("default", ttl_s=1.0), SOON)
    assert (updated.epoch, updated.ttl_s, [prefix for prefix, _ in updated.floors]) == (2, 1.0, [b"a"])


async def test_two_nodes_raising_the_epoch_at_once_raise_it_twice() -> None:
    shared = FakeRecords()
    one, other = await node(shared), await node(shared)
    await one.raise_epoch("default", SOON)
    assert (await other.raise_epoch("default", SOON)).epoch == 3


async def test_a_shared_tier_that_lost_its_records_gets_them_back_with_the_raised_epoch() -> None:
    shared, local = FakeRecords(), FakeRecords()
    namespaces = await node(shared, local)
    await namespaces.raise_epoch("blocks", SOON)
    shared.records.clear()
    restarted = await node(shared, local)
    assert restarted.get("blocks").epoch == 2
    assert decode_namespace(shared.records["blocks"]).epoch == 2


async def test_a_node_starts_on_its_copies_while_the_shared_tier_is_away() -> None:
    shared, local = FakeRecords(), FakeRecords()
    await (await node(shared, local)).create(Namespace("team"), SOON)
    shared.error = TierUnavailable("down")
    restarted = await node(shared, local)
    assert restarted.get("team").name == "team"
    assert not await restarted.refresh(SOON)
    with pytest.raises(TierUnavailable):
        await restarted.raise_epoch("team", SOON)


async def test_a_longer_prefix_is_covered_by_a_shorter_one() -> None:
    namespaces = await node(FakeRecords())
    await namespaces.invalidate_prefix("default", b"user/1/", 10, SOON)
    await namespaces.invalidate_prefix("default", b"user/", 20, SOON)
    assert [prefix for prefix, _ in namespaces.get("default").floors] == [b"user/"]


async def test_one_floor_too_many_raises_the_epoch_instead() -> None:
    namespaces = await node(FakeRecords())
    for number in range(FLOORS_MAX):
        await namespaces.invalidate_prefix("default", number.to_bytes(2, "big"), 1, SOON)
    assert namespaces.get("default").epoch == 1
    raised = await namespaces.invalidate_prefix("default", b"one more", 1, SOON)
    assert (raised.epoch, raised.floors) == (2, ())


async def test_a_record_of_a_newer_version_is_left_alone() -> None:
    shared = FakeRecords()
    shared.records["default"] = b"\x92\x02\xc0"
    namespaces = await node(shared)
    assert namespaces.get("default").epoch == 1
    assert shared.records["default"] == b"\x92\x02\xc0"
    with pytest.raises(TierUnavailable, match="newer"):
        await namespaces.raise_epoch("default", SOON)


@given(
    st.builds(
        Namespace,
        name=st.from_regex(r"\A[a-z0-9][a-z0-9._-]{0,62}\Z"),
        kind=st.sampled_from(Kind),
        ttl_s=st.none() | st.floats(0.001, 1e8),
        jitter=st.floats(0, 0.5),
        tiers=st.lists(st.sampled_from(TierName), min_size=1, unique=True).map(tuple),
        codec=st.sampled_from(Codec),
        durability=st.none() | st.sampled_from(Durability),
        epoch=st.integers(1, 2**63 - 1),
        floors=st.lists(st.tuples(st.binary(min_size=1, max_size=64), st.integers(0, 2**63))).map(tuple),
        revision=st.integers(1, 2**40),
    )
)
def test_records_come_back_as_they_were(namespace: Namespace) -> None:
    assert decode_namespace(encode_namespace(namespace)) == namespace
