"""Where things lie in Redis: 256 buckets, each with a hash tag in a slot of its own, spread evenly over the slots.

Bucket i lies in slot 64 i + 32, so that 3, 12 or any other number of masters
with equal slot ranges get equal shares, which hashed names would not. All keys
of a bucket share its tag: a script may touch its record, its parts and, later,
its stream in one step.
"""

from __future__ import annotations

from typing import Final

from terracekv.tiers.entry import BUCKETS, Key
from terracekv.tiers.errors import FieldInvalid

PREFIX_DEFAULT: Final = "terracekv:"
PREFIX_BYTES_MAX: Final = 64
META_BUCKET: Final = 0  # namespaces and the store's identity live here
SLOTS: Final = 16_384

# Found by search: the shortest, then first in order, of [0-9a-z]+ whose CRC16 falls into the bucket's slot.
_TABLE: Final = """
    021 4zp aio 0ov 21g csv cj9 z1 1d8 5hq 556 90g 3gn baw 7rh f0y
    06q a0h id7 0k6 o6o 69n cny gb0 lc0 5l1 51v 1y7 wkn 7og b8p 3za
    4z4 02u 0o2 00bb 6yb o2k zu kce 5h5 9md d3k 55r 7kc fmz ft5 j5l
    i94 f 0kr amk c3z gz gbt 6dm 5lu djl 1ys 512 bes 3cj fpu 72d
    emk 4kr 465 83d 6t cbt 65c k3 112 5ys hct 1lu 32d bpu 7cj fes
    8jc 4o2 42u 0z4 24 6ld k2k os 15r qus hg4 1h5 n5l bt5 bmz 3kc
    4k6 8ng e0h 46q cb0 60 kw k6o 5y7 11v 1l1 hc0 7za f8p 3og skn
    4ov eio 0zp 421 cfp 2p o7 61g qu7 156 1hq 5d8 b0y 3rh faw 7gn
    bn 6x6 6ay 2m0 e9q a58 iag 0nf ne6 7j7 77p f1i 9l0 5ia h7n 18o
    247 rt6 6e9 2ip 07a a1x 4fo min fhn 7nw 730 nx9 1ah hni 50f 957
    6xr 203 2mt ckm aqt 03e edr 4bk 7js flj n85 774 hjm 1el 913 54b
    c2j fj 2i4 kf5 au4 8z5 0jb iec 7n3 3bz f5m 73t 5me 9h4 1xc h3j
    7d 6i4 64s g2j 8o3 4jb i4m 82t 33t b5m 7bz 3n3 l3j 5xc hbd 1me
    gkm 6mt 603 nc 0bk adr 43e 864 374 j85 blj 3js 14b q0k 5el dcu
    6ip 2e9 jg 647 iin 0fo 820 47a jx9 330 3nw bhn q4o 10f 9d9 5ah
    6m0 wh 2x6 60w 4nf 8k7 86p a9q b1i 37p 3j7 je6 58o 9y6 1ia qmh
"""
TAGS: Final = tuple(_TABLE.split())


def slot_of(bucket: int) -> int:
    """The Redis Cluster slot of a bucket."""
    return SLOTS // BUCKETS * bucket + SLOTS // BUCKETS // 2


class KeyNames:
    """Redis key names under one prefix. Raises FieldInvalid for a prefix that would move keys to other slots."""

    def __init__(self, prefix: str = PREFIX_DEFAULT) -> None:
        raw = prefix.encode()
        if not 1 <= len(raw) <= PREFIX_BYTES_MAX:
            raise FieldInvalid("shared_prefix", f"1 to {PREFIX_BYTES_MAX} bytes", f"{len(raw)} bytes")
        if b"{" in raw or b"}" in raw:
            raise FieldInvalid("shared_prefix", "no braces: they would choose the slot", prefix)
        self.prefix = raw
        self._records = tuple(b"%s{%s}:e:" % (raw, tag.encode()) for tag in TAGS)
        self._parts = tuple(b"%s{%s}:p:" % (raw, tag.encode()) for tag in TAGS)
        self._staging = tuple(b"%s{%s}:s:" % (raw, tag.encode()) for tag in TAGS)

    def record(self, key: Key) -> bytes:
        """The record of an entry."""
        return self._records[key.bucket] + key.digest

    def parts(self, bucket: int, parts_id: bytes, count: int) -> list[bytes]:
        """The parts of a large value, in order."""
        stem = self._parts[bucket] + parts_id
        return [stem + index.to_bytes(4, "big") for index in range(count)]

    def staging(self, bucket: int, token: bytes) -> bytes:
        """Where a value waits, for a moment, to be moved into its record."""
        return self._staging[bucket] + token

    def meta(self, name: str) -> bytes:
        """A key of the meta bucket."""
        return b"%s{%s}:m:%s" % (self.prefix, TAGS[META_BUCKET].encode(), name.encode())

    @property
    def pattern(self) -> bytes:
        """A glob that matches the keys of all entries under the prefix, and nothing else of anybody's."""
        special = b"\\*?[]^-"
        plain = b"".join(b"\\" + bytes([byte]) if byte in special else bytes([byte]) for byte in self.prefix)
        return plain + b"{*}:[eps]:*"
