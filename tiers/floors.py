"""Copies that a prefix invalidation hides, removed where they would stand in the way of what is written after it."""

from __future__ import annotations

from collections.abc import Iterable

from terracekv.tiers.background import Background
from terracekv.tiers.base import Tier, WriteLevel
from terracekv.tiers.clock import Deadline
from terracekv.tiers.entry import Head, HeadFound, Key
from terracekv.tiers.namespaces import Namespace
from terracekv.tiers.placement import head_of


async def remove_hidden(
    namespace: Namespace,
    keys: Iterable[Key],
    tiers: Iterable[Tier],
    background: Background,
    now_us: int,
    deadline: Deadline,
) -> None:
    """Removes hidden copies of immutable keys: the first copy of a key stays, and these would be first.

    In each tier by itself: one may hold a copy from before the invalidation
    and another one from after it. A tier that fails keeps its copy; reads miss
    it there and go on to the next tier.
    """
    floors = {key: floor for key in keys if (floor := namespace.floor(key.user))}
    if not floors:
        return
    waiting = {key: head_of(background.look(key, now_us)) for key in floors}
    await background.forget([key for key, head in waiting.items() if _is_under(floors[key], head)])
    for tier in tiers:
        heads = zip(floors, await tier.head_many(list(floors), deadline), strict=True)
        old = [key for key, head in heads if _is_under(floors[key], head)]
        if old:
            await tier.delete_many(old, deadline, WriteLevel.LOGGED)


def _is_under(floor: int, head: HeadFound) -> bool:
    return isinstance(head, Head) and head.version <= floor
