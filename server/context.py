"""What a handler needs to know of its call: when nobody waits any more, and what time it is."""

from __future__ import annotations

from typing import Any, Final

import grpc

from terracekv.tiers.clock import Clock, Deadline

ANSWER_S: Final = 0.025


class Calls:
    """Deadlines of calls, with the server's defaults for those that bring none."""

    def __init__(self, clock: Clock, deadline_default_s: float, stream_deadline_default_s: float) -> None:
        self._clock = clock
        self._unary_s = deadline_default_s
        self._stream_s = stream_deadline_default_s

    def now_us(self) -> int:
        """Wall time in microseconds."""
        return self._clock.now_us()

    def deadline(self, context: grpc.aio.ServicerContext[Any, Any]) -> Deadline:
        """The moment after which the caller of a unary call is gone."""
        return self._after(context, self._unary_s)

    def stream_deadline(self, context: grpc.aio.ServicerContext[Any, Any]) -> Deadline:
        """The same for a stream."""
        return self._after(context, self._stream_s)

    def _after(self, context: grpc.aio.ServicerContext[Any, Any], default_s: float) -> Deadline:
        remaining_s = context.time_remaining()
        return Deadline.after(for_tiers(default_s if remaining_s is None else remaining_s), self._clock)


def for_tiers(remaining_s: float) -> float:
    """What the tiers get of a call's time: a little less, so that their answer, also "it took too long", arrives.

    Otherwise the call would end at the same moment: a batch would lose the keys
    that had been answered, and nobody would learn which tier was slow.
    """
    return max(remaining_s - ANSWER_S, remaining_s * 0.5)
