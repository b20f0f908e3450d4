"""Versions of mutable entries on a node without a shared tier: they grow for ever, also when a clock goes back.

A reservation in the durable store lies ahead of every version given, so that
after a restart on an earlier clock the next version is still higher.
"""

from __future__ import annotations

from typing import Final, Protocol

from terracekv.tiers.clock import Clock

RESERVE_US: Final = 60_000_000  # written at most about once a minute of versions


class Reservation(Protocol):
    """Keeps one number safe from kill -9."""

    async def load(self) -> int:
        """The number kept last, or 0."""

    async def save(self, number: int) -> None:
        """Keeps a number; durable when it returns. Raises TierError."""


class LocalVersions:
    """Gives versions: max(last + 1, now in microseconds, the minimum asked for)."""

    def __init__(self, reservation: Reservation, clock: Clock) -> None:
        self._reservation = reservation
        self._clock = clock
        self._last = 0
        self._reserved = -1

    async def next(self, minimum: int = 0) -> int:
        """The next version. Raises TierError if a reservation was due and failed."""
        if self._reserved < 0:
            self._last = self._reserved = max(self._last, await self._reservation.load())
        version = self._last = max(self._last + 1, self._clock.now_us(), minimum)
        if version >= self._reserved:
            # Saved before use: a version beyond what is on disk could be given again after a kill.
            reserved = version + RESERVE_US
            await self._reservation.save(reserved)
            self._reserved = max(self._reserved, reserved)
        return version
