"""Versions on a node without a shared tier: they only grow, whatever the clock does and whenever the node dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakes import FakeReservation
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import MIB

from terracekv.tiers.clock import FakeClock
from terracekv.tiers.disk import open_disk
from terracekv.tiers.durable import DurableNumber
from terracekv.tiers.errors import TierUnavailable
from terracekv.tiers.versions import RESERVE_US, LocalVersions


class Mortal(FakeReservation):
    """Dies at its save number `dies_at`, before or after the number is kept."""

    def __init__(self, number: int = 0, dies_at: int = -1, kept: bool = False) -> None:
        super().__init__()
        self.number = number
        self.saves = 0
        self._dies_at = dies_at
        self._kept = kept

    async def save(self, number: int) -> None:
        self.saves += 1
        if self.saves == self._dies_at:
            if self._kept:
                self.number = number
            raise TierUnavailable("died")
        await asyncio.sleep(0)
        self.number = number


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(-(2 * RESERVE_US), 2 * RESERVE_US), st.integers(0, 3)), max_size=8),
            st.integers(1, 3),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_a_version_never_comes_twice_through_any_number_of_deaths(
    lives: list[tuple[list[tuple[int, int]], int, bool]],
) -> None:
    """Each life moves the clock, also back, asks for versions, and dies at a save or between two."""

    async def live() -> None:
        clock, number, given_out = FakeClock(), 0, [0]
        for steps, dies_at, kept in lives:
            reservation = Mortal(number, dies_at, kept)
            versions = LocalVersions(reservation, clock)
            try:
                for moved_us, minimum in steps:
                    clock.advance(moved_us / 1_000_000)
                    given_out.append(await versions.next(given_out[-1] + 1 if minimum == 3 else minimum))
            except TierUnavailable:
                pass
            number = reservation.number
        assert given_out == sorted(set(given_out))

    asyncio.run(live())


async def test_a_version_is_at_least_the_time_and_the_minimum() -> None:
    clock = FakeClock()
    versions = LocalVersions(FakeReservation(), clock)
    assert await versions.next() == clock.now_us()
    assert await versions.next() == clock.now_us() + 1
    assert await versions.next(minimum=2**60) == 2**60
    assert await versions.next() == 2**60 + 1


async def test_callers_at_once_get_versions_of_their_own() -> None:
    versions = LocalVersions(Mortal(), FakeClock())
    given_out = await asyncio.gather(*(versions.next() for _ in range(200)))
    assert len(set(given_out)) == 200


async def test_the_reservation_is_written_about_once_a_minute_of_versions() -> None:
    clock, reservation = FakeClock(), Mortal()
    versions = LocalVersions(reservation, clock)
    for _ in range(600):
        await versions.next()
        clock.advance(1.0)
    assert 9 <= reservation.saves <= 11


async def test_a_reservation_that_fails_gives_no_version_and_the_next_try_goes_on() -> None:
    versions = LocalVersions(Mortal(dies_at=1), FakeClock())
    with pytest.raises(TierUnavailable):
        await versions.next()
    assert await versions.next() < await versions.next()


async def test_a_node_killed_and_started_on_an_earlier_clock_goes_on_upwards(tmp_path: Path) -> None:
    clock = FakeClock()
    highest = 0
    for _ in range(3):
        tier = await open_disk(tmp_path, 64 * MIB, MIB, clock)
        versions = LocalVersions(DurableNumber(tier.durable, b"versions/reserved"), clock)
        first = await versions.next()
        assert first > highest
        highest = await versions.next()
        await tier.close()
        clock.advance(-3_600)
