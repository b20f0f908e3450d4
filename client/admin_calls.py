"""AdminService without I/O: namespaces and counters between messages and the client's values. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from terracekv.client.calls import as_durability, named, tier_name
from terracekv.client.values import Durability, Namespace, Stats, TierInfo, TierStats
from terracekv.v1 import admin_pb2 as pb
from terracekv.v1 import cache_pb2

KINDS: Final = {"mutable": pb.KIND_MUTABLE, "immutable": pb.KIND_IMMUTABLE}
CODECS: Final = {"none": pb.CODEC_NONE, "zstd": pb.CODEC_ZSTD, "planes_zstd": pb.CODEC_PLANES_ZSTD}
TIERS: Final = {
    "memory": cache_pb2.TIER_NAME_MEMORY,
    "shared": cache_pb2.TIER_NAME_SHARED,
    "disk": cache_pb2.TIER_NAME_DISK,
}
STATES: Final = {
    "up": pb.TIER_STATE_UP,
    "degraded": pb.TIER_STATE_DEGRADED,
    "down": pb.TIER_STATE_DOWN,
    "absent": pb.TIER_STATE_ABSENT,
}


class Unset:
    """The type of UNSET."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()  # leaves a setting as it is, where None already means "none"


def namespace_message(
    name: str,
    kind: str,
    ttl_s: float | None,
    jitter: float | None,
    tiers: Iterable[str] | None,
    codec: str | None,
    durability: Durability | str | None,
) -> pb.Namespace:
    """The settings of a namespace, None for the server's default. Raises EnumInvalid."""
    message = pb.Namespace(name=name, kind=named("kind", kind, KINDS))
    if ttl_s is not None:
        message.ttl_s = ttl_s
    if jitter is not None:
        message.jitter = jitter
    if tiers is not None:
        message.tiers.extend(tier_numbers(tiers))
    if codec is not None:
        message.codec = named("codec", codec, CODECS)
    if durability is not None:
        message.durability = as_durability(durability)  # type: ignore[assignment]
    return message


def changed_message(current: Namespace, **changes: object) -> pb.Namespace:
    """The settings of a namespace with those changed that are not UNSET. Raises EnumInvalid."""
    settings: dict[str, object] = {
        "ttl_s": current.ttl_s,
        "jitter": current.jitter,
        "tiers": current.tiers,
        "codec": current.codec,
        "durability": current.durability,
    }
    settings.update({name: value for name, value in changes.items() if value is not UNSET})
    return namespace_message(current.name, current.kind, **settings)  # type: ignore[arg-type]


def tier_numbers(tiers: Iterable[str]) -> list[cache_pb2.TierName]:
    """Tiers by name. Raises EnumInvalid."""
    return [named("tiers", tier, TIERS) for tier in tiers]


def namespace_of(message: pb.Namespace) -> Namespace:
    """A namespace from its message."""
    return Namespace(
        name=message.name,
        kind=_name_in(KINDS, message.kind),
        epoch=message.epoch,
        ttl_s=message.ttl_s if message.HasField("ttl_s") else None,
        jitter=message.jitter,
        tiers=tuple(tier_name(tier) for tier in message.tiers),
        codec=_name_in(CODECS, message.codec),
        durability=Durability(message.durability).name.lower() if message.durability else None,
    )


def stats_of(message: pb.StatsResponse) -> Stats:
    """Counters from their message."""
    return Stats(
        tiers=tuple(_tier_stats(tier) for tier in message.tiers),
        uptime_s=message.uptime_s,
        version=message.version,
        pending_bytes=message.pending_bytes,
        flights_joined=message.flights_joined,
        blocks_differing=message.blocks_differing,
    )


def _tier_stats(message: pb.TierStats) -> TierStats:
    counted = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    counted["tier"] = tier_name(message.tier)
    counted["entries"] = message.entries if message.HasField("entries") else None
    return TierStats(**{field.name: counted[field.name] for field in dataclasses.fields(TierStats)})


def tiers_of(message: pb.TiersResponse) -> list[TierInfo]:
    """How the tiers are, upper first."""
    return [TierInfo(tier_name(info.tier), _name_in(STATES, info.state), info.detail) for info in message.tiers]


def _name_in(numbers: Mapping[str, int], number: int) -> str:
    """The name of a number; one that this client does not know stays a number."""
    return next((name for name, known in numbers.items() if known == number), str(number))
