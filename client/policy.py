"""How calls behave on the wire: limits, channel options, retries and deadlines; data and pure decisions only."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from collections.abc import Callable
from typing import Final

from terracekv.client import errors
from terracekv.client.errors import TerraceKVError

KEY_BYTES_MAX: Final = 1_024
BATCH_KEYS_MAX: Final = 1_024
UNARY_BYTES_MAX: Final = 3_932_160
FRAME_BYTES_MAX: Final = 1_048_576
VALUE_BYTES_MAX: Final = 1_073_741_824
BLOCK_BYTES_MAX: Final = 67_108_864
CALL_BLOCKS_MAX: Final = 4_096  # of one Fetch or Store
CALLS_AT_ONCE_MAX: Final = 4  # of one get_many or put_many
DEFERRED_ROUNDS_MAX: Final = 4  # of unary calls; then each value by a stream of its own

TIMEOUT_S: Final = 2.0
TRANSFER_TIMEOUT_S: Final = 10.0
TRANSFER_BYTES_PER_S: Final = 20 * 1_048_576
BLOCK_BYTES_ASSUMED: Final = 2_097_152  # where only the number of blocks is known
TIMEOUT_S_MAX: Final = 86_400.0

TRIES_MAX: Final = 4  # of one call, against one target
BACKOFF_FIRST_S: Final = 0.02
BACKOFF_MAX_S: Final = 0.5

# Safe to repeat, whatever became of the first try. Puts are not here: gRPC must not send them twice.
REPEATABLE: Final = {
    "terracekv.v1.CacheService": ("Get", "GetMany", "GetStream", "Exists", "Delete", "Invalidate"),
    "terracekv.v1.BlockService": ("Match", "Fetch"),
    "terracekv.v1.AdminService": ("Stats", "Tiers", "ListNamespaces", "Config"),
    "grpc.health.v1.Health": ("Check",),
}

SERVICE_CONFIG: Final = json.dumps(
    {
        "methodConfig": [
            {
                "name": [
                    {"service": service, "method": method} for service in REPEATABLE for method in REPEATABLE[service]
                ],
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.02s",
                    "maxBackoff": "0.5s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
        "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
    }
)

CHANNEL_OPTIONS: Final = (
    ("grpc.service_config", SERVICE_CONFIG),
    ("grpc.enable_retries", 1),
    # A peer that vanished without a word is noticed within 40 s; the server allows a ping each 10 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A server that is back is found again within a second or so; gRPC's own default is two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Connections of its own: a channel made after a fork must not find its parent's in a pool.
    ("grpc.use_local_subchannel_pool", 1),
)

_TARGET: Final = re.compile(r"(\[[^\]]+\]|[^:/\s]+):\d{1,5}|(dns|unix|unix-abstract|ipv4|ipv6|xds):\S+")


def parse_targets(target: str) -> tuple[str, ...]:
    """The targets of "host:port", "a:1,b:1", "dns:///name:port" or "unix:/path". Raises InvalidArgument."""
    targets = tuple(part.strip() for part in target.split(","))
    if not all(_TARGET.fullmatch(part) for part in targets):
        limit = "host:port, several of them with commas between, or a gRPC name such as dns:///host:port"
        raise errors.invalid(errors.InvalidArgument, "target", limit, errors.bounded(repr(target)))
    return tuple(dict.fromkeys(targets))


@dataclasses.dataclass(frozen=True, slots=True)
class Deadline:
    """A moment after which nobody waits for an answer any more."""

    at_s: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """`seconds` from now. Raises InvalidArgument unless over 0 and at most a day."""
        if not 0 < seconds <= TIMEOUT_S_MAX:  # NaN is neither
            limit = f"over 0 and at most {TIMEOUT_S_MAX:.0f} seconds"
            raise errors.invalid(errors.InvalidArgument, "timeout_s", limit, repr(seconds))
        return cls(clock() + seconds, clock)

    def left_s(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.at_s - self.clock())


def transfer_timeout_s(size_bytes: int, unary_s: float) -> float:
    """What a stream of this many bytes may take: 10 s and a second for each 20 MiB, never less than a unary call."""
    return min(TIMEOUT_S_MAX, max(unary_s, TRANSFER_TIMEOUT_S + size_bytes / TRANSFER_BYTES_PER_S))


@dataclasses.dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the RPCs of one call may take: all together by `whole`, or else each by its kind."""

    unary_s: float
    whole: Deadline | None

    def unary(self) -> Deadline:
        """For a unary RPC that starts now."""
        return self.whole or Deadline.after(self.unary_s)

    def transfer(self, size_bytes: int) -> Deadline:
        """For a stream that starts now."""
        return self.whole or Deadline.after(transfer_timeout_s(size_bytes, self.unary_s))


@dataclasses.dataclass(slots=True)
class Tries:
    """The tries of one call: decides after each failure whether, when and where to try again.

    What may have been done is repeated only where repeating is safe. What was
    refused before any work, or never sent, is tried again within the deadline.
    `jitter` gives numbers from 0 to 1.
    """

    targets: int
    deadline: Deadline
    jitter: Callable[[], float]
    failures: int = 0

    def pause_s(self, error: TerraceKVError, *, untouched: bool, safe: bool) -> float | None:
        """Seconds to wait before the next try, or None: give up. `untouched`: the call was not sent at all."""
        self.failures += 1
        refused = isinstance(error, (errors.Overloaded, errors.Draining))
        elsewhere = self.moves(error)
        if self.failures >= TRIES_MAX * self.targets or not (refused or elsewhere):
            return None
        if not (refused or untouched or (safe and self.targets > 1)):
            return None
        pause_s = self._backoff_s(error)
        return pause_s if pause_s < self.deadline.left_s() else None

    @staticmethod
    def moves(error: TerraceKVError) -> bool:
        """Whether another target may do better: this one does not answer, or is about to stop."""
        return isinstance(error, errors.Draining) or type(error) is errors.Unavailable

    def _backoff_s(self, error: TerraceKVError) -> float:
        """Full jitter above what the server asked for; at once where a target is left that was not yet tried."""
        if self.moves(error) and self.failures < self.targets:
            return 0.0
        rounds = (self.failures - 1) // self.targets
        spread_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * math.pow(2, rounds))
        asked_s = error.retry_after_s if isinstance(error, errors.Overloaded) else 0.0
        return asked_s * math.pow(2, rounds) + spread_s * self.jitter()
