"""Pure checks of requests, before any work: each raises FieldInvalid naming the field, the limit and what was given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from terracekv.tiers.blocks import DIGEST_BYTES
from terracekv.tiers.entry import (
    BATCH_KEYS_MAX,
    FRAME_BYTES_MAX,
    KEY_BYTES_MAX,
    UNARY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Codec,
    Durability,
    Kind,
    TierName,
    checksum_of,
)
from terracekv.tiers.errors import ChecksumMismatch, FieldInvalid, TerraceError
from terracekv.tiers.namespaces import Namespace, check_name, check_namespace
from terracekv.tiers.stack import Put
from terracekv.tiers.ttl import TTL_S_MAX
from terracekv.v1 import admin_pb2, blocks_pb2, cache_pb2

CHECKSUM_BYTES: Final = 16
MATCH_DIGESTS_MAX: Final = 16_384
MATCH_GROUPS_MAX: Final = 64
FETCH_BLOCKS_MAX: Final = 4_096
BLOCK_BYTES_MAX: Final = 67_108_864


class StreamIncomplete(TerraceError):
    """An upload ended, or broke its order, before its commit."""


def check_key(key: bytes) -> None:
    """1 to 1,024 bytes of any content."""
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise FieldInvalid("key", f"1 to {KEY_BYTES_MAX} bytes", f"{len(key)} bytes")


def check_keys(keys: Sequence[bytes]) -> None:
    """1 to 1,024 keys."""
    if not 1 <= len(keys) <= BATCH_KEYS_MAX:
        raise FieldInvalid("keys", f"1 to {BATCH_KEYS_MAX} keys", f"{len(keys)} keys")
    for key in keys:
        check_key(key)


def check_namespace_name(name: str) -> None:
    """Empty, or a name."""
    if name:
        check_name(name)


def check_ttl(ttl_s: float) -> None:
    """Over 0, finite, at most ten years."""
    if not math.isfinite(ttl_s) or not 0 < ttl_s <= TTL_S_MAX:
        raise FieldInvalid("ttl_s", f"over 0 and at most {TTL_S_MAX:.0f} seconds", repr(ttl_s))


def check_durability(number: int) -> None:
    """0, or a level."""
    if number and number not in Durability.__members__.values():
        raise FieldInvalid("durability", "a value of terracekv.v1.Durability", str(number))


def check_checksum(checksum: bytes) -> None:
    """Empty, or 16 bytes."""
    if len(checksum) not in (0, CHECKSUM_BYTES):
        raise FieldInvalid("checksum", f"empty or {CHECKSUM_BYTES} bytes", f"{len(checksum)} bytes")


def check_get(request: cache_pb2.GetRequest | cache_pb2.GetStreamRequest) -> None:
    """One key."""
    check_namespace_name(request.namespace)
    check_key(request.key)


def check_get_many(request: cache_pb2.GetManyRequest | cache_pb2.ExistsRequest) -> None:
    """A batch of keys."""
    check_namespace_name(request.namespace)
    check_keys(request.keys)


def check_write_options(request: cache_pb2.PutRequest | cache_pb2.PutManyRequest | cache_pb2.PutStreamHeader) -> None:
    """What every put may say."""
    check_namespace_name(request.namespace)
    check_durability(request.durability)
    if request.HasField("ttl_s"):
        check_ttl(request.ttl_s)


def check_put(request: cache_pb2.PutRequest) -> None:
    """One value of up to 3.75 MiB, its key counted in."""
    check_write_options(request)
    check_key(request.key)
    check_checksum(request.checksum)
    size_bytes = len(request.key) + len(request.value)
    if size_bytes > UNARY_BYTES_MAX:
        limit = f"key and value at most {UNARY_BYTES_MAX} bytes; larger values go by PutStream"
        raise FieldInvalid("value", limit, f"{size_bytes} bytes")


def check_put_many(request: cache_pb2.PutManyRequest) -> None:
    """Columns of one length whose sizes add up."""
    check_write_options(request)
    check_keys(request.keys)
    if len(request.sizes_bytes) != len(request.keys):
        raise FieldInvalid("sizes_bytes", f"{len(request.keys)}, one for each key", str(len(request.sizes_bytes)))
    if sum(request.sizes_bytes) != len(request.payload):
        raise FieldInvalid("payload", f"{sum(request.sizes_bytes)} bytes by its sizes", f"{len(request.payload)} bytes")
    if len(request.checksums) not in (0, CHECKSUM_BYTES * len(request.keys)):
        raise FieldInvalid("checksums", "empty or 16 bytes a key", f"{len(request.checksums)} bytes")
    size_bytes = sum(map(len, request.keys)) + len(request.payload)
    if size_bytes > UNARY_BYTES_MAX:
        raise FieldInvalid("payload", f"with the keys at most {UNARY_BYTES_MAX} bytes", f"{size_bytes} bytes")


def checked_value(key: bytes, frames: tuple[bytes, ...], checksum: bytes) -> Put:
    """A value whose bytes have the checksum they came with, if they came with one. Raises ChecksumMismatch."""
    computed = checksum_of(frames)
    if checksum not in (b"", computed):
        raise ChecksumMismatch("the bytes that arrived have another checksum")
    return Put(key, frames, computed)


def checked_values(request: cache_pb2.PutManyRequest) -> list[Put]:
    """The values of a batch, each proven as above."""
    puts, at = [], 0
    for row, (key, size_bytes) in enumerate(zip(request.keys, request.sizes_bytes, strict=True)):
        checksum = request.checksums[row * CHECKSUM_BYTES : (row + 1) * CHECKSUM_BYTES]
        puts.append(checked_value(key, (request.payload[at : at + size_bytes],), checksum))
        at += size_bytes
    return puts


def check_put_header(header: cache_pb2.PutStreamHeader) -> None:
    """The start of an upload of up to 1 GiB."""
    check_write_options(header)
    check_key(header.key)
    if header.size_bytes > VALUE_BYTES_MAX:
        raise FieldInvalid("value", f"at most {VALUE_BYTES_MAX} bytes", f"{header.size_bytes} bytes")


def check_frame(data: bytes) -> None:
    """1 byte to 1 MiB."""
    if not 1 <= len(data) <= FRAME_BYTES_MAX:
        raise FieldInvalid("data", f"1 to {FRAME_BYTES_MAX} bytes a frame", f"{len(data)} bytes")


def check_delete(request: cache_pb2.DeleteRequest) -> None:
    """A batch of keys and a level."""
    check_namespace_name(request.namespace)
    check_durability(request.durability)
    check_keys(request.keys)


def check_invalidate(request: cache_pb2.InvalidateRequest) -> None:
    """A prefix, or the epoch."""
    check_namespace_name(request.namespace)
    target = request.WhichOneof("target")
    if target is None or (target == "epoch" and not request.epoch):
        raise FieldInvalid("target", "a prefix, or epoch = true", "neither")
    if target == "prefix" and not 1 <= len(request.prefix) <= KEY_BYTES_MAX:
        raise FieldInvalid("prefix", f"1 to {KEY_BYTES_MAX} bytes", f"{len(request.prefix)} bytes")


def check_match(request: blocks_pb2.MatchRequest) -> None:
    """A chain of whole digests and its groups."""
    check_namespace_name(request.namespace)
    digests, rest = divmod(len(request.digests), DIGEST_BYTES)
    if rest or not 1 <= digests <= MATCH_DIGESTS_MAX:
        limit = f"1 to {MATCH_DIGESTS_MAX} digests of {DIGEST_BYTES} bytes"
        raise FieldInvalid("digests", limit, f"{len(request.digests)} bytes")
    if len(request.groups) > MATCH_GROUPS_MAX:
        raise FieldInvalid("groups", f"at most {MATCH_GROUPS_MAX}", str(len(request.groups)))


def check_block_key(key: blocks_pb2.BlockKey) -> None:
    """A digest of 32 bytes."""
    if len(key.digest) != DIGEST_BYTES:
        raise FieldInvalid("digest", f"{DIGEST_BYTES} bytes", f"{len(key.digest)} bytes")


def check_fetch(request: blocks_pb2.FetchRequest) -> None:
    """1 to 4,096 block keys."""
    check_namespace_name(request.namespace)
    if not 1 <= len(request.keys) <= FETCH_BLOCKS_MAX:
        raise FieldInvalid("keys", f"1 to {FETCH_BLOCKS_MAX} blocks", f"{len(request.keys)} blocks")
    for key in request.keys:
        check_block_key(key)


def check_store_header(header: blocks_pb2.StoreHeader) -> None:
    """What holds for all blocks."""
    check_namespace_name(header.namespace)
    check_durability(header.durability)
    if header.HasField("ttl_s"):
        check_ttl(header.ttl_s)


def check_stored_block(block: blocks_pb2.StoredBlock) -> None:
    """A block of at most 64 MiB."""
    check_block_key(block.key)
    check_checksum(block.checksum)
    if block.size_bytes > BLOCK_BYTES_MAX:
        raise FieldInvalid("block", f"at most {BLOCK_BYTES_MAX} bytes", f"{block.size_bytes} bytes")


def check_tiers(numbers: Sequence[int]) -> tuple[TierName, ...]:
    """At least one known tier."""
    if not numbers:
        raise FieldInvalid("tiers", "at least one", "none")
    for number in numbers:
        if number not in TierName.__members__.values():
            raise FieldInvalid("tiers", "values of terracekv.v1.TierName", str(number))
    return tuple(TierName(number) for number in dict.fromkeys(numbers))


def checked_namespace(message: admin_pb2.Namespace) -> Namespace:
    """The namespace a message describes."""
    for field, number, known in (("kind", message.kind, Kind), ("codec", message.codec, Codec)):
        if number and number not in {int(member) for member in known}:
            raise FieldInvalid(field, f"a value of terracekv.v1.{known.__name__}", str(number))
    check_durability(message.durability)
    if message.HasField("ttl_s"):
        check_ttl(message.ttl_s)
    return check_namespace(
        Namespace(
            name=message.name,
            kind=Kind(message.kind or Kind.MUTABLE),
            ttl_s=message.ttl_s if message.HasField("ttl_s") else None,
            jitter=message.jitter if message.HasField("jitter") else 0.1,
            tiers=check_tiers(message.tiers) if message.tiers else tuple(TierName),
            codec=Codec(message.codec or Codec.NONE),
            durability=Durability(message.durability) if message.durability else None,
        )
    )
