"""Counters as Prometheus metrics, read when they are scraped: the data path takes no lock for them."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from terracekv.server.interceptors import CallStats
from terracekv.server.limits import Budget
from terracekv.tiers.base import Tier
from terracekv.tiers.metered import LATENCY_BOUNDS_S, Latencies, MeteredTier
from terracekv.tiers.stack import Stack

# Counters of a tier: name, what it counts, field of TierCounters.
TIER_COUNTERS: Final = (
    ("hits", "Reads that found a live entry.", "hits"),
    ("misses", "Reads that found none.", "misses"),
    ("failures", "Keys of reads and writes for which the tier failed.", "failures"),
    ("puts", "Entries stored.", "puts"),
    ("kept", "Writes that left an older entry in place.", "kept"),
    ("deletes", "Keys removed on request.", "deletes"),
    ("evictions", "Entries dropped to make room.", "evictions"),
    ("corrupt", "Records refused on read.", "corrupt"),
    ("read_bytes", "Payload bytes read.", "read_bytes"),
    ("written_bytes", "Payload bytes stored.", "written_bytes"),
    ("skipped_bytes", "Payload bytes not admitted: too large for the tier.", "skipped_bytes"),
)
TIER_GAUGES: Final = (
    ("used_bytes", "Bytes held.", "used_bytes"),
    ("capacity_bytes", "Bytes it may hold; 0: not bounded here.", "capacity_bytes"),
)


class Collector:
    """All metrics of a node."""

    def __init__(self, stack: Stack, calls: CallStats, budgets: Sequence[Budget]) -> None:
        self._stack = stack
        self._calls = calls
        self._budgets = budgets

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        tiers = (self._stack.memory, self._stack.shared, self._stack.disk)
        yield from _tier_metrics(tiers)
        yield from _call_metrics(self._calls)
        yield from self._node_metrics()

    def _node_metrics(self) -> Iterator[Metric]:
        background = self._stack.background
        yield GaugeMetricFamily(
            "terracekv_pending_bytes", "Bytes acked and still owed to a lower tier.", background.pending_bytes
        )
        yield CounterMetricFamily(
            "terracekv_pending_given_up", "Copies that their tier refused three times.", background.given_up
        )
        yield CounterMetricFamily(
            "terracekv_flights_joined", "Loads that several callers shared.", self._stack.flights.joined
        )
        inflight = GaugeMetricFamily("terracekv_inflight", "Calls and bytes under way.", labels=("what",))
        refused = CounterMetricFamily("terracekv_refused", "Calls refused over a bound.", labels=("reason",))
        for budget in self._budgets:
            inflight.add_metric((budget.reason.removesuffix("_INFLIGHT").lower(),), budget.amount)
            refused.add_metric((budget.reason.lower(),), budget.refused)
        yield from (inflight, refused)
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        yield GaugeMetricFamily("terracekv_resident_bytes_max", "The most memory the process has held.", resident)


def _tier_metrics(tiers: Sequence[Tier]) -> Iterator[Metric]:
    for name, words, field in TIER_COUNTERS:
        counter = CounterMetricFamily(f"terracekv_tier_{name}", words, labels=("tier",))
        for tier in tiers:
            counter.add_metric((tier.name.name.lower(),), getattr(tier.counters, field))
        yield counter
    for name, words, field in TIER_GAUGES:
        gauge = GaugeMetricFamily(f"terracekv_tier_{name}", words, labels=("tier",))
        for tier in tiers:
            gauge.add_metric((tier.name.name.lower(),), getattr(tier.counters, field))
        yield gauge
    state = GaugeMetricFamily(
        "terracekv_tier_state", "1 up, 2 degraded (a breaker is open or trying), 3 down, 4 absent.", labels=("tier",)
    )
    seconds = HistogramMetricFamily(
        "terracekv_tier_seconds", "Seconds of operations on a tier, a batch being one.", labels=("tier", "operation")
    )
    for tier in tiers:
        state.add_metric((tier.name.name.lower(),), int(tier.state()[0]))
        for operation, latencies in tier.latencies.items() if isinstance(tier, MeteredTier) else ():
            seconds.add_metric((tier.name.name.lower(), operation), *_histogram(latencies))
    yield from (state, seconds)


def _call_metrics(calls: CallStats) -> Iterator[Metric]:
    answered = CounterMetricFamily("terracekv_calls", "Calls answered.", labels=("method", "code"))
    for (method, code), count in list(calls.answered.items()):
        answered.add_metric((method, code), count)
    seconds = HistogramMetricFamily("terracekv_call_seconds", "Seconds of calls.", labels=("method",))
    for method, latencies in list(calls.latencies.items()):
        seconds.add_metric((method,), *_histogram(latencies))
    yield from (answered, seconds)


def _histogram(latencies: Latencies) -> tuple[list[tuple[str, float]], float]:
    buckets, total = [], 0
    for bound, count in zip((*LATENCY_BOUNDS_S, float("inf")), list(latencies.counts), strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    return buckets, latencies.sum_s


class MetricsServer:
    """Serves /metrics on a thread of its own. Raises OSError if the address is taken."""

    def __init__(self, collector: Collector, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        self._server: WSGIServer
        self._thread: threading.Thread
        self._server, self._thread = start_http_server(port, host, registry)
        self.port = self._server.server_port

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
