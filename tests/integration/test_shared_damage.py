"""Bytes in Redis that were changed behind the tier's back: counted, missed, never returned."""

from __future__ import annotations

import os
import random

from redis_servers import client_of, entry, key, keys_of, soon

from terracekv.tiers.entry import MISS, Entry, Stored
from terracekv.tiers.shared import SharedTier


async def test_swapped_values_of_two_keys_are_missed(tier: SharedTier, url: str) -> None:
    first, second = key("first"), key("second")
    await tier.put_many([(first, entry(b"of the first")), (second, entry(b"of the second"))], soon())
    names = [tier.names.record(first), tier.names.record(second)]
    async with client_of(url) as client:
        values = [await client.get(name) for name in names]
        for name, value in zip(names, reversed(values), strict=True):
            await client.set(name, value)
    assert await tier.get_many([first, second], soon()) == [MISS, MISS]
    assert await tier.head_many([first, second], soon()) == [MISS, MISS]
    assert tier.counters.corrupt == 4


async def test_no_flipped_byte_ever_comes_back_as_a_value(tier: SharedTier, url: str) -> None:
    chance = random.Random(3)
    keys = keys_of(120)
    payloads = {one: os.urandom(chance.choice([10, 200, 5_000])) for one in keys}
    await tier.put_many([(one, entry(payload)) for one, payload in payloads.items()], soon())
    async with client_of(url) as client:
        for one in keys:
            raw = bytearray(await client.get(tier.names.record(one)))
            # Not the version: it is set by scripts, outside the checksum.
            at = chance.choice([at for at in range(len(raw)) if not 8 <= at < 16])
            raw[at] ^= 1 << chance.randrange(8)
            await client.set(tier.names.record(one), bytes(raw), px=60_000)
    assert await tier.get_many(keys, soon()) == [MISS] * 120
    assert await tier.get_many(keys, soon(), 1_000_000) == [MISS] * 120
    assert tier.counters.corrupt >= 120


async def test_a_damaged_payload_gives_its_place_to_the_next_put(tier: SharedTier, url: str) -> None:
    one = key("k")
    await tier.put_many([(one, entry(b"x" * 1_000))], soon())
    async with client_of(url) as client:
        await client.setrange(tier.names.record(one), 900, b"!")
    assert await tier.get_many([one], soon()) == [MISS]
    again = entry(b"again")
    assert await tier.put_many([(one, again)], soon()) == [Stored(again.head.version)]
    (found,) = await tier.get_many([one], soon())
    assert isinstance(found, Entry)
    assert found.payload() == b"again"


async def test_a_record_cut_short_is_missed(tier: SharedTier, url: str) -> None:
    keys = keys_of(5)
    await tier.put_many([(one, entry(b"x" * 1_000)) for one in keys], soon())
    async with client_of(url) as client:
        for one, size in zip(keys, (0, 10, 24, 100, 1_000), strict=True):
            name = tier.names.record(one)
            await client.set(name, (await client.get(name))[:size])
    assert await tier.get_many(keys, soon()) == [MISS] * 5
