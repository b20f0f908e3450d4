"""The client of terracekv: Client and AsyncClient, and what their calls take and give.

Names are loaded when they are used: blake3 only with BlockKeys, nothing of torch or of the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from terracekv.client import errors as errors
    from terracekv.client.aio import AsyncClient as AsyncClient
    from terracekv.client.block_keys import BlockKeys as BlockKeys
    from terracekv.client.block_keys import BlockLayout as BlockLayout
    from terracekv.client.sync import Client as Client
    from terracekv.client.values import MISS as MISS
    from terracekv.client.values import Durability as Durability
    from terracekv.client.values import Failed as Failed
    from terracekv.client.values import Hit as Hit
    from terracekv.client.values import Match as Match
    from terracekv.client.values import Miss as Miss
    from terracekv.client.values import Namespace as Namespace
    from terracekv.client.values import Put as Put
    from terracekv.client.values import Stats as Stats
    from terracekv.client.values import StoreReport as StoreReport
    from terracekv.client.values import TierInfo as TierInfo
    from terracekv.client.values import TierStats as TierStats

__all__ = [
    "MISS",
    "AsyncClient",
    "BlockKeys",
    "BlockLayout",
    "Client",
    "Durability",
    "Failed",
    "Hit",
    "Match",
    "Miss",
    "Namespace",
    "Put",
    "Stats",
    "StoreReport",
    "TierInfo",
    "TierStats",
    "errors",
]

_MODULES = {"AsyncClient": "aio", "BlockKeys": "block_keys", "BlockLayout": "block_keys", "Client": "sync"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return import_module("terracekv.client.errors")
    value = getattr(import_module("terracekv.client." + _MODULES.get(name, "values")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
