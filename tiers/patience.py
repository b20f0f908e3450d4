"""How long to wait for replies: each renews the time for the next, and a stall of our own is not held against them.

A timer that fires late was held up together with the replies, which may lie in
the socket already. Without this, one long pause of the event loop would end
all calls under way and open every breaker although nothing else was slow.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

STALL_S: Final = 0.05  # a timer this late was held up


class Patience:
    """A timeout that is granted anew as work goes on. Ends its block with TimeoutError; `limit_s` is never passed."""

    def __init__(self, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_at = self._loop.time() + limit_s
        self._until = self._limit_at
        self._granted_s = limit_s
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    def grant(self, seconds: float) -> None:
        """Gives this much time from now on."""
        self._granted_s = seconds
        self._until = min(self._loop.time() + seconds, self._limit_at)
        if self._timer is None or self._timer.when() > self._until:
            self._arm()

    async def __aenter__(self) -> Patience:
        await self._scope.__aenter__()
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._scope.__aexit__(kind, error, traceback)

    def _arm(self) -> None:
        # Not renewed for each grant: a timer that comes too early only looks and goes on.
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until, self._ring)

    def _ring(self) -> None:
        now = self._loop.time()
        late_s = now - self._until
        if late_s > STALL_S and now < self._limit_at:
            self._until = min(now + self._granted_s, self._limit_at)
        if now < self._until:
            self._arm()
        else:
            self._scope.reschedule(now)
