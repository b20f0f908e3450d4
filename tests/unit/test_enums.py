"""The numbers of the tiers' enums are those of the protos, and every wire reason of the tables exists."""

from __future__ import annotations

import enum

import pytest

from terracekv.server import status
from terracekv.tiers import base, entry
from terracekv.v1 import admin_pb2, cache_pb2, errors_pb2


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (entry.Durability, cache_pb2.Durability, "DURABILITY_"),
        (entry.TierName, cache_pb2.TierName, "TIER_NAME_"),
        (entry.Kind, admin_pb2.Kind, "KIND_"),
        (entry.Codec, admin_pb2.Codec, "CODEC_"),
        (base.TierState, admin_pb2.TierState, "TIER_STATE_"),
    ],
)
def test_numbers_agree(ours: type[enum.IntEnum], theirs: object, prefix: str) -> None:
    wire = {name.removeprefix(prefix): number for name, number in theirs.items()}  # type: ignore[attr-defined]
    assert wire.pop("UNSPECIFIED") == 0
    assert wire == {member.name: member.value for member in ours}


def test_every_reason_is_in_the_protos() -> None:
    reasons = {row[2] for row in status._TABLE} | set(status._FIELD_REASONS.values())
    reasons |= {"FIELD_INVALID", "CALLS_INFLIGHT", "BYTES_INFLIGHT", "INTERNAL"}
    known = {name.removeprefix("ERROR_REASON_") for name in dict(errors_pb2.ErrorReason.items())}
    assert reasons <= known
    assert known - reasons == {"UNSPECIFIED"}
