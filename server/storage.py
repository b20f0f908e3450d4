"""The stores of a node, opened lowest first and closed in reverse: disk, shared tier, namespaces, stack."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from terracekv.server.settings import Settings
from terracekv.tiers.background import Background
from terracekv.tiers.base import RecordStore, Tier
from terracekv.tiers.clock import Deadline, SystemClock
from terracekv.tiers.entry import KeySpace
from terracekv.tiers.memory import MemoryTier
from terracekv.tiers.metered import MeteredTier
from terracekv.tiers.namespaces import Namespaces
from terracekv.tiers.stack import Stack
from terracekv.tiers.versions import LocalVersions

LOG: Final = logging.getLogger("terracekv.server")
START_TIMEOUT_S: Final = 15.0
