"""What a handler needs to know of its call: when nobody waits any more, and what time it is."""

from __future__ import annotations

from typing import Any

import grpc

from terracekv.tiers.clock import Clock, Deadline


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
        return Deadline.after(default_s if remaining_s is None else remaining_s, self._clock)
