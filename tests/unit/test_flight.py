"""Single flight: one load for many callers, and nobody's leaving ends it for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from terracekv.tiers.entry import MISS, Answer, Key, KeySpace
from terracekv.tiers.flight import Flight, Flights

SPACE = KeySpace()


def key(name: bytes) -> Key:
    return SPACE.key("default", 1, name)


class Loads:
    """Counts loads and lands every flight with a miss when let go."""

    def __init__(self, flights: Flights) -> None:
        self.flights = flights
        self.crews: list[list[Key]] = []
        self.go = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, crew: Sequence[Flight]) -> None:
        self.crews.append([flight.key for flight in crew])
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        for flight in crew:
            self.flights.land(flight, Answer(MISS))


async def caller(flights: Flights, keys: Sequence[Key], load: Loads) -> list[Answer]:
    boarded, _ = flights.board(keys, load)
    try:
        return [await asyncio.shield(flight.result) for flight in boarded]
    finally:
        flights.leave(boarded)


async def test_a_hundred_callers_of_one_key_load_it_once() -> None:
    flights = Flights()
    load = Loads(flights)
    callers = [asyncio.create_task(caller(flights, [key(b"k")], load)) for _ in range(100)]
    await asyncio.sleep(0)
    load.go.set()
    assert await asyncio.gather(*callers) == [[Answer(MISS)]] * 100
    assert (load.crews, flights.joined, len(flights)) == ([[key(b"k")]], 99, 0)


async def test_a_cancelled_caller_never_ends_the_load_of_the_others() -> None:
    flights = Flights()
    load = Loads(flights)
    first = asyncio.create_task(caller(flights, [key(b"k")], load))
    second = asyncio.create_task(caller(flights, [key(b"k")], load))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    load.go.set()
    assert await second == [Answer(MISS)]
    assert load.cancelled == 0


async def test_a_load_whose_last_caller_left_is_cancelled() -> None:
    flights = Flights()
    load = Loads(flights)
    callers = [asyncio.create_task(caller(flights, [key(b"k"), key(b"l")], load)) for _ in range(3)]
    await asyncio.sleep(0.01)
    for task in callers:
        task.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    await asyncio.sleep(0)
    assert (load.cancelled, len(flights)) == (1, 0)


async def test_overlapping_batches_load_each_key_once() -> None:
    flights = Flights()
    load = Loads(flights)
    one = asyncio.create_task(caller(flights, [key(b"a"), key(b"b")], load))
    other = asyncio.create_task(caller(flights, [key(b"b"), key(b"c")], load))
    await asyncio.sleep(0.01)
    load.go.set()
    await asyncio.gather(one, other)
    assert load.crews == [[key(b"a"), key(b"b")], [key(b"c")]]


async def test_a_load_that_raises_releases_every_waiter_with_the_error() -> None:
    flights = Flights()

    async def broken(crew: Sequence[Flight]) -> None:
        raise RuntimeError("a defect")

    async def waits() -> None:
        boarded, _ = flights.board([key(b"k")], broken)
        try:
            await boarded[0].result
        finally:
            flights.leave(boarded)

    outcomes = await asyncio.gather(waits(), waits(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [RuntimeError, RuntimeError]
    assert len(flights) == 0


async def test_a_spoiled_flight_is_joined_by_nobody_and_knows_it() -> None:
    flights = Flights()
    load = Loads(flights)
    before, _ = flights.board([key(b"k")], load)
    flights.spoil([key(b"k")])
    after, started = flights.board([key(b"k")], load)
    assert before[0].spoiled
    assert not after[0].spoiled
    assert started == after
    load.go.set()
    await asyncio.gather(before[0].result, after[0].result)
    flights.leave(before + after)


async def test_landing_twice_keeps_the_first_answer() -> None:
    flights = Flights()
    boarded, _ = flights.board([key(b"k")], Loads(flights))
    flights.land(boarded[0], Answer(MISS))
    flights.land(boarded[0], Answer(MISS, None))
    assert await boarded[0].result == Answer(MISS)
    flights.leave(boarded)
    with pytest.raises(KeyError):
        flights._by_key[key(b"k")]
