"""Time as an argument: wall time in microseconds, ages in seconds that count suspended time too."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What the tiers know of time."""

    def now_us(self) -> int:
        """Wall time in microseconds since 1970, as close to Redis TIME as is known."""

    def age_s(self) -> float:
        """Seconds that never go back and go on while the machine is suspended."""


class SystemClock:
    """The machine's clocks. `offset_us` is added to wall time: what Redis TIME is ahead of this machine."""

    def __init__(self) -> None:
        self.offset_us = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.offset_us

    def age_s(self) -> float:
        return time.clock_gettime(_BOOTTIME)


class FakeClock:
    """A clock that moves only when told, for tests and simulations."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._age_s = 1_000.0

    def now_us(self) -> int:
        return self._now_us

    def age_s(self) -> float:
        return self._age_s

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward."""
        self._now_us += round(seconds * 1_000_000)
        self._age_s += seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment, on a clock's `age_s`, after which nobody waits for the answer any more."""

    at_s: float
    clock: Clock

    @classmethod
    def after(cls, seconds: float, clock: Clock) -> Deadline:
        """The deadline `seconds` from now."""
        return cls(clock.age_s() + seconds, clock)

    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at_s - self.clock.age_s())

    def passed(self) -> bool:
        """Whether nobody waits any more."""
        return self.clock.age_s() >= self.at_s
