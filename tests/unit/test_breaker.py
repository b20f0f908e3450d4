"""The breaker: what opens it, what closes it, and a tier that is left alone while it is open."""

from __future__ import annotations

import asyncio

import pytest
from fakes import FakeTier

from terracekv.tiers.base import TierState
from terracekv.tiers.breaker import Breaker, BreakerState, BreakerTier
from terracekv.tiers.clock import Deadline, FakeClock
from terracekv.tiers.entry import MISS, FailureReason, KeySpace, TierFailure, TierName


def opened(draw: float = 0.0) -> Breaker:
    breaker = Breaker(lambda: draw)
    for _ in range(5):
        breaker.failed(100.0)
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_five_failures_in_a_row_open_it() -> None:
    breaker = Breaker(lambda: 0.0)
    for _ in range(4):
        breaker.failed(1.0)
    breaker.succeeded(1.0)
    for _ in range(4):
        breaker.failed(1.0)
        assert breaker.allow(1.0)
    breaker.failed(1.0)
    assert not breaker.allow(1.0)
    assert breaker.opened == 1


def test_half_of_twenty_calls_in_ten_seconds_open_it() -> None:
    breaker = Breaker(lambda: 0.0)
    for index in range(19):
        (breaker.failed if index % 2 else breaker.succeeded)(index * 0.4)
    assert breaker.state is BreakerState.CLOSED
    breaker.failed(7.7)
    assert breaker.state is BreakerState.OPEN


def test_failures_older_than_the_window_do_not_count() -> None:
    breaker = Breaker(lambda: 0.0)
    for index in range(12):
        (breaker.failed if index % 2 else breaker.succeeded)(0.0)
    for index in range(12):
        (breaker.failed if index % 4 == 3 else breaker.succeeded)(20.0)
    assert breaker.state is BreakerState.CLOSED


def test_less_than_half_never_opens_it() -> None:
    breaker = Breaker(lambda: 0.0)
    for index in range(300):
        (breaker.failed if index % 3 == 0 else breaker.succeeded)(index * 0.01)
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize(("draw", "wait_s"), [(0.0, 1.0), (0.5, 1.5), (0.99, 1.99)])
def test_one_probe_passes_after_one_to_two_seconds(draw: float, wait_s: float) -> None:
    breaker = opened(draw)
    assert not breaker.allow(100.0 + wait_s - 0.01)
    assert breaker.allow(100.0 + wait_s)
    assert not breaker.allow(100.0 + wait_s)  # the probe is under way


def test_a_probe_that_is_answered_closes_it_and_one_that_is_not_opens_it_again() -> None:
    breaker = opened()
    assert breaker.allow(101.0)
    breaker.failed(101.1)
    assert not breaker.allow(102.0)
    assert breaker.allow(102.2)
    breaker.succeeded(102.3)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.opened == 2


def test_a_probe_that_was_cancelled_lets_the_next_caller_probe() -> None:
    breaker = opened()
    assert breaker.allow(101.0)
    breaker.abandoned()
    assert breaker.allow(101.0)


def test_a_late_answer_of_before_does_not_close_it() -> None:
    breaker = opened()
    breaker.succeeded(100.1)
    assert not breaker.allow(100.2)


async def test_a_tier_that_does_not_answer_is_left_alone_and_tried_again() -> None:
    clock = FakeClock()
    inner = FakeTier(TierName.DISK, clock)
    tier = BreakerTier(inner, clock, lambda: 0.0)  # type: ignore[arg-type]
    key, deadline = KeySpace().key("n", 1, b"k"), Deadline.after(60.0, clock)
    inner.failing = FailureReason.TIMEOUT
    for _ in range(5):
        assert isinstance((await tier.get_many([key], deadline))[0], TierFailure)
    asked = len(inner.reads)
    (refused,) = await tier.get_many([key], deadline)
    assert isinstance(refused, TierFailure)
    assert refused.reason is FailureReason.UNAVAILABLE
    assert len(inner.reads) == asked
    assert tier.state()[0] is TierState.DOWN
    inner.failing = None
    clock.advance(1.0)
    assert await tier.get_many([key], deadline) == [MISS]
    assert tier.state()[0] is TierState.UP


async def test_a_full_tier_answers_and_stays_open_for_calls() -> None:
    clock = FakeClock()
    inner = FakeTier(TierName.DISK, clock)
    tier = BreakerTier(inner, clock, lambda: 0.0)  # type: ignore[arg-type]
    key, deadline = KeySpace().key("n", 1, b"k"), Deadline.after(60.0, clock)
    inner.failing = FailureReason.FULL
    for _ in range(30):
        (failure,) = await tier.delete_many([key], deadline)
        assert failure is not None
        assert failure.reason is FailureReason.FULL


async def test_a_cancelled_call_tells_nothing() -> None:
    clock = FakeClock()
    inner = FakeTier(TierName.DISK, clock)
    tier = BreakerTier(inner, clock, lambda: 0.0)  # type: ignore[arg-type]
    key, deadline = KeySpace().key("n", 1, b"k"), Deadline.after(60.0, clock)
    inner.failing = FailureReason.UNAVAILABLE
    for _ in range(5):
        await tier.get_many([key], deadline)
    inner.failing = None
    clock.advance(1.0)
    inner.gate.clear()
    probe = asyncio.get_running_loop().create_task(tier.get_many([key], deadline))
    await asyncio.sleep(0)
    probe.cancel()
    await asyncio.wait([probe])
    inner.gate.set()
    assert await tier.get_many([key], deadline) == [MISS]
