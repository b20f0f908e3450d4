"""Tells glibc to keep memory that it was given: fresh pages cost ten times a copy.

By default glibc maps every block over 128 KiB anew and gives it back at once,
so each large value pays for its page faults. With a high threshold the pages
are reused. Nothing happens on other libraries.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
MMAP_THRESHOLD_BYTES: Final = 1 << 30
TRIM_THRESHOLD_BYTES: Final = 1 << 30


def keep_pages() -> bool:
    """Sets the thresholds for this process; whether it could."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wanted = (
        (_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
        (_M_ARENA_MAX, 1),  # threads other than the main one would each keep 64 MiB arenas
    )
    return all(mallopt(option, value) == 1 for option, value in wanted)
