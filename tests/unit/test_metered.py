"""Timing a tier: every operation once, in the bucket of its time, also one that fails or is cancelled."""

from __future__ import annotations

import asyncio

import pytest
from fakes import FakeTier
from makers import entry, key, mutable, mutable_key, soon

from terracekv.tiers.clock import FakeClock
from terracekv.tiers.entry import Entry, FailureReason, Stored, TierName
from terracekv.tiers.metered import LATENCY_BOUNDS_S, Latencies, MeteredSharedTier, MeteredTier


class SlowTier(FakeTier):
    """Each read takes a time that the clock tells."""

    takes_s = 0.0

    async def get_many(self, *arguments: object) -> list[object]:  # type: ignore[override]
        self._clock.advance(self.takes_s)  # type: ignore[attr-defined]
        return await super().get_many(*arguments)  # type: ignore[arg-type, return-value]


def counts(latencies: Latencies) -> dict[int, int]:
    return {at: count for at, count in enumerate(latencies.counts) if count}


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (0.000_05, 0), (0.000_051, 1), (0.01, 7), (0.010_1, 8), (10.0, 15), (11.0, 16), (1e9, 16)],
)
def test_a_time_falls_into_the_first_bucket_whose_bound_it_does_not_pass(seconds: float, bucket: int) -> None:
    latencies = Latencies()
    latencies.observe(seconds)
    assert counts(latencies) == {bucket: 1}
    assert latencies.sum_s == seconds


def test_bounds_rise() -> None:
    assert list(LATENCY_BOUNDS_S) == sorted(set(LATENCY_BOUNDS_S))
    assert len(Latencies().counts) == len(LATENCY_BOUNDS_S) + 1


async def test_each_operation_is_counted_under_its_name_with_its_time() -> None:
    clock = FakeClock()
    inner = SlowTier(TierName.DISK, clock)
    tier = MeteredTier(inner, clock)
    await tier.put_many([(key("k"), entry(b"v", clock))], soon(clock))
    inner.takes_s = 0.2
    (found,) = await tier.get_many([key("k")], soon(clock))
    assert isinstance(found, Entry)
    await tier.head_many([key("k")], soon(clock))
    await tier.delete_many([key("k")], soon(clock))
    assert {name: sum(one.counts) for name, one in tier.latencies.items()} == {
        "get": 1, "head": 1, "put": 1, "delete": 1
    }  # fmt: skip
    assert tier.latencies["get"].sum_s == pytest.approx(0.2)
    assert counts(tier.latencies["get"]) == {LATENCY_BOUNDS_S.index(0.25): 1}


async def test_a_failed_and_a_cancelled_call_are_counted_too() -> None:
    clock = FakeClock()
    inner = FakeTier(TierName.DISK, clock)
    tier = MeteredTier(inner, clock)
    inner.failing = FailureReason.UNAVAILABLE
    await tier.get_many([key("k")], soon(clock))
    inner.gate.clear()
    waiting = asyncio.create_task(tier.get_many([key("k")], soon(clock)))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert sum(tier.latencies["get"].counts) == 2


async def test_writes_that_get_versions_are_timed() -> None:
    clock = FakeClock()
    tier = MeteredSharedTier(FakeTier(TierName.SHARED, clock), clock)
    (stored,) = await tier.write_many([(mutable_key("k"), mutable(b"v", 0, clock))], soon(clock))
    assert isinstance(stored, Stored)
    assert sum(tier.latencies["write"].counts) == 1


async def test_what_it_tells_is_the_tiers() -> None:
    clock = FakeClock()
    inner = FakeTier(TierName.DISK, clock)
    tier = MeteredTier(inner, clock)
    assert (tier.name, tier.counters, tier.state()) == (inner.name, inner.counters, inner.state())
    await tier.put_many([(key("k"), entry(b"v", clock))], soon(clock))
    await tier.clear()
    assert inner.held == {}
    await tier.close()
    assert inner.closed
