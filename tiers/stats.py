"""Plain counters, each with what it counts; changed on the event loop's thread only, read at any time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TierCounters:
    """What one tier did since its start."""

    hits: int = 0  # reads that found a live entry, payload or head
    misses: int = 0  # reads that found none; an expired or refused record is one too
    failures: int = 0  # keys of reads and writes for which the tier failed
    puts: int = 0  # entries stored
    kept: int = 0  # writes that left an older entry in place
    deletes: int = 0  # keys removed on request, present or not
    evictions: int = 0  # entries dropped to make room; on disk, where only whole segments go, an estimate
    corrupt: int = 0  # records refused on read: damaged, foreign or of a newer format
    read_bytes: int = 0  # payload bytes returned
    written_bytes: int = 0  # payload bytes stored
    used_bytes: int = 0  # bytes held now, with overhead, as the tier counts them
    capacity_bytes: int = 0  # bytes it may hold; 0: not bounded here
    entries: int | None = None  # entries held now, where the tier knows
    skipped_bytes: int = 0  # payload bytes not admitted: too large for the tier
