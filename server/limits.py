"""Bounds on what is under way: calls and bytes; over them a call is refused at once, never queued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from terracekv.tiers.errors import TerraceError

PUSHBACK_MS: Final = 200


class Overloaded(TerraceError):
    """A bound is reached. `reason` is the name of an ErrorReason; the caller may come back after `retry_after_ms`."""

    def __init__(self, reason: str, limit: int) -> None:
        super().__init__(f"over the limit of {limit} {'calls' if reason == 'CALLS_INFLIGHT' else 'bytes'} at once")
        self.reason = reason
        self.limit = limit
        self.retry_after_ms = PUSHBACK_MS


class Draining(TerraceError):
    """The node takes no new work."""


class Budget:
    """A bound on an amount under way. Used on the event loop's thread only."""

    def __init__(self, reason: str, amount_max: int) -> None:
        self.reason = reason
        self.amount_max = amount_max
        self.amount = 0
        self.refused = 0

    def take(self, amount: int) -> None:
        """Counts `amount` in, until `give`. Raises Overloaded."""
        if self.amount + amount > self.amount_max:
            self.refused += 1
            raise Overloaded(self.reason, self.amount_max)
        self.amount += amount

    def give(self, amount: int) -> None:
        """Counts `amount` out."""
        self.amount -= amount

    @contextmanager
    def hold(self, amount: int) -> Iterator[None]:
        """Counts `amount` in for the length of the block. Raises Overloaded."""
        self.take(amount)
        try:
            yield
        finally:
            self.give(amount)
