"""Life times as pure arithmetic: jitter is drawn once, at write, and only ever shortens a life."""

from __future__ import annotations

from typing import Final

TTL_S_MAX: Final = 315_360_000.0  # ten years
JITTER_MAX: Final = 0.5


def expires_us(now_us: int, ttl_s: float | None, jitter: float, draw: float) -> int:
    """The moment a life of `ttl_s` seconds ends, up to the share `jitter` earlier; 0: never.

    `draw` is uniform in [0, 1): with many keys written at once, ends spread over the jitter window.
    """
    if ttl_s is None:
        return 0
    return now_us + max(1, round(ttl_s * 1_000_000 * (1.0 - jitter * draw)))


def left_us(expires_at_us: int, now_us: int) -> int | None:
    """What is left of a life in microseconds, at least 1 while it lasts; None: no end."""
    if expires_at_us == 0:
        return None
    return max(1, expires_at_us - now_us)
