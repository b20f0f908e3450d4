"""Single flight per key: many callers, one load; a caller that leaves never ends the load of the others.

A flight is a load in progress. A write or delete of its key spoils it: its
result still goes to those who waited, and is stored nowhere. A load whose last
waiter has left is cancelled. Used on the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field

from terracekv.tiers.entry import Answer, FailureReason, Key, TierFailure, TierName


@dataclass(slots=True, eq=False)
class Flight:
    """One key being loaded."""

    key: Key
    result: asyncio.Future[Answer]
    spoiled: bool = False
    waiters: int = 0
    crew: list[Flight] = field(default_factory=list)  # the flights that one load serves, this one too
    task: asyncio.Task[None] | None = None


Load = Callable[[Sequence[Flight]], Coroutine[None, None, None]]


class Flights:
    """The loads in progress, by key."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Flight] = {}
        self.joined = 0  # callers that found a load in progress

    def board(self, keys: Iterable[Key], load: Load) -> tuple[list[Flight], list[Flight]]:
        """A flight for each key: one in progress, or one of a new load; and the flights of that load.

        The caller must `leave` the first list, always.
        """
        loop = asyncio.get_running_loop()
        boarded, crew = [], []
        for key in keys:
            flight = self._by_key.get(key)
            if flight is None:
                flight = self._by_key[key] = Flight(key, loop.create_future())
                crew.append(flight)
            else:
                self.joined += 1
            flight.waiters += 1
            boarded.append(flight)
        if crew:
            task = loop.create_task(self._fly(crew, load))
            for flight in crew:
                flight.crew, flight.task = crew, task
        return boarded, crew

    async def _fly(self, crew: list[Flight], load: Load) -> None:
        try:
            await load(crew)
        except Exception as error:
            self._fail(crew, error)
        finally:
            # Waiters are released whatever happened, cancellation included.
            self._fail(crew, asyncio.CancelledError("the load was cancelled"))
            for flight in crew:
                self._forget(flight)

    @staticmethod
    def _fail(crew: list[Flight], error: BaseException) -> None:
        for flight in crew:
            if not flight.result.done():
                if isinstance(error, asyncio.CancelledError):
                    flight.result.cancel()
                else:
                    flight.result.set_exception(error)
                    flight.result.exception()  # seen: nobody may be left to see it

    def land(self, flight: Flight, answer: Answer) -> None:
        """Gives the result to the waiters; later callers load anew."""
        if not flight.result.done():
            flight.result.set_result(answer)
        self._forget(flight)

    def _forget(self, flight: Flight) -> None:
        if self._by_key.get(flight.key) is flight:
            del self._by_key[flight.key]

    def spoil(self, keys: Iterable[Key]) -> None:
        """Marks loads in progress as older than a write: stored nowhere, and joined by nobody from now on."""
        for key in keys:
            flight = self._by_key.pop(key, None)
            if flight is not None:
                flight.spoiled = True

    def leave(self, flights: Iterable[Flight]) -> None:
        """Ends the interest of one caller; a load without any interest left is cancelled."""
        for flight in flights:
            flight.waiters -= 1
            if flight.task is not None and not any(other.waiters for other in flight.crew):
                flight.task.cancel()

    def __len__(self) -> int:
        return len(self._by_key)


def landed(flight: Flight) -> Answer:
    """What a flight brought; a failure if it has not landed yet. Raises what its load raised."""
    if not flight.result.done():
        return Answer(TierFailure(TierName.SHARED, FailureReason.TIMEOUT, "the deadline passed"))
    if flight.result.cancelled():
        return Answer(TierFailure(TierName.SHARED, FailureReason.UNAVAILABLE, "the load was cancelled"))
    return flight.result.result()
