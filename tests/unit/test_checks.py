"""Bad input: each error names the field, the limit and what was given, before any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from terracekv.server import checks
from terracekv.server.status import status_of
from terracekv.tiers.errors import ChecksumMismatch, FieldInvalid
from terracekv.v1 import admin_pb2, blocks_pb2, cache_pb2

UNARY = 3_932_160


def refused(check: Callable[..., object], *arguments: Any) -> FieldInvalid:
    with pytest.raises(FieldInvalid) as caught:
        check(*arguments)
    return caught.value


@pytest.mark.parametrize(
    "key",
    [b"\0", b"\xff" * 1_024, b"a\r\nb", b"{tag}{", "é".encode(), "e\u0301".encode(), b"x"],
)
def test_any_bytes_are_a_key(key: bytes) -> None:
    checks.check_key(key)


@pytest.mark.parametrize("size", [0, 1_025, 5_000])
def test_a_key_has_1_to_1024_bytes(size: int) -> None:
    error = refused(checks.check_key, b"k" * size)
    assert (error.field, error.limit, error.given) == ("key", "1 to 1024 bytes", f"{size} bytes")


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e30, 315_360_001.0])
def test_a_ttl_is_over_0_and_at_most_ten_years(ttl_s: float) -> None:
    error = refused(checks.check_put, cache_pb2.PutRequest(key=b"k", ttl_s=ttl_s))
    assert error.field == "ttl_s"
    assert error.given == repr(ttl_s)


@pytest.mark.parametrize("ttl_s", [1e-6, 0.5, 315_360_000.0])
def test_a_ttl_within_its_limits_passes(ttl_s: float) -> None:
    checks.check_put(cache_pb2.PutRequest(key=b"k", ttl_s=ttl_s))


def test_an_unset_ttl_is_not_zero() -> None:
    checks.check_put(cache_pb2.PutRequest(key=b"k"))


@pytest.mark.parametrize(("size", "fits"), [(0, True), (3 << 20, True), (UNARY - 1, True), (UNARY, False)])
def test_key_and_value_fit_a_message(size: int, fits: bool) -> None:
    request = cache_pb2.PutRequest(key=b"k", value=bytes(size))
    if fits:
        checks.check_put(request)
    else:
        error = refused(checks.check_put, request)
        assert error.field == "value"
        assert "PutStream" in error.limit


@pytest.mark.parametrize("number", [-1, 7, 1_000])
def test_an_unknown_durability_is_refused(number: int) -> None:
    error = refused(checks.check_put, cache_pb2.PutRequest(key=b"k", durability=number))  # type: ignore[arg-type]
    assert (error.field, error.given) == ("durability", str(number))


@pytest.mark.parametrize("name", ["A", "a b", "-a", "a" * 64, "a/b", "ä", "a\n", ".a"])
def test_a_namespace_has_a_plain_name(name: str) -> None:
    assert refused(checks.check_get, cache_pb2.GetRequest(namespace=name, key=b"k")).field == "namespace"


@pytest.mark.parametrize("name", ["", "a", "0", "a-b_c.d", "a" * 63])
def test_a_plain_name_passes(name: str) -> None:
    checks.check_get(cache_pb2.GetRequest(namespace=name, key=b"k"))


@pytest.mark.parametrize("count", [0, 1_025])
def test_a_batch_has_1_to_1024_keys(count: int) -> None:
    error = refused(checks.check_get_many, cache_pb2.GetManyRequest(keys=[b"k"] * count))
    assert (error.field, error.given) == ("keys", f"{count} keys")


def test_one_bad_key_refuses_its_batch() -> None:
    assert refused(checks.check_get_many, cache_pb2.GetManyRequest(keys=[b"k", b""])).field == "key"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (cache_pb2.PutManyRequest(keys=[b"a", b"b"], payload=b"xy", sizes_bytes=[1]), "sizes_bytes"),
        (cache_pb2.PutManyRequest(keys=[b"a"], payload=b"xy", sizes_bytes=[1]), "payload"),
        (cache_pb2.PutManyRequest(keys=[b"a"], payload=b"x", sizes_bytes=[1], checksums=b"short"), "checksums"),
        (cache_pb2.PutManyRequest(keys=[b"a"], payload=bytes(UNARY), sizes_bytes=[UNARY]), "payload"),
    ],
)
def test_columns_that_do_not_agree_are_refused(request_: cache_pb2.PutManyRequest, field: str) -> None:
    assert refused(checks.check_put_many, request_).field == field


def test_a_checksum_that_differs_is_data_loss() -> None:
    with pytest.raises(ChecksumMismatch):
        checks.checked_value(b"k", (b"value",), bytes(16))


def test_an_upload_is_at_most_1_gib() -> None:
    checks.check_put_header(cache_pb2.PutStreamHeader(key=b"k", size_bytes=1 << 30))
    assert (
        refused(checks.check_put_header, cache_pb2.PutStreamHeader(key=b"k", size_bytes=(1 << 30) + 1)).field == "value"
    )


@pytest.mark.parametrize("size", [0, (1 << 20) + 1])
def test_a_frame_has_1_byte_to_1_mib(size: int) -> None:
    assert refused(checks.check_frame, bytes(size)).field == "data"


@pytest.mark.parametrize(
    "request_",
    [
        cache_pb2.InvalidateRequest(),
        cache_pb2.InvalidateRequest(epoch=False),
    ],
)
def test_an_invalidation_needs_a_target(request_: cache_pb2.InvalidateRequest) -> None:
    assert refused(checks.check_invalidate, request_).field == "target"


@pytest.mark.parametrize("prefix", [b"", b"p" * 1_025])
def test_a_prefix_has_1_to_1024_bytes(prefix: bytes) -> None:
    assert refused(checks.check_invalidate, cache_pb2.InvalidateRequest(prefix=prefix)).field == "prefix"


@pytest.mark.parametrize("digests", [b"", b"x" * 31, b"x" * 33, b"x" * 32 * 16_385])
def test_a_chain_is_whole_digests(digests: bytes) -> None:
    assert refused(checks.check_match, blocks_pb2.MatchRequest(digests=digests)).field == "digests"


def test_blocks_have_limits() -> None:
    key = blocks_pb2.BlockKey(digest=b"x" * 32)
    assert refused(checks.check_fetch, blocks_pb2.FetchRequest(keys=[key] * 4_097)).field == "keys"
    assert (
        refused(checks.check_fetch, blocks_pb2.FetchRequest(keys=[blocks_pb2.BlockKey(digest=b"x")])).field == "digest"
    )
    large = blocks_pb2.StoredBlock(key=key, size_bytes=(64 << 20) + 1)
    assert refused(checks.check_stored_block, large).field == "block"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (admin_pb2.Namespace(name="a", kind=9), "kind"),  # type: ignore[arg-type]
        (admin_pb2.Namespace(name="a", codec=9), "codec"),  # type: ignore[arg-type]
        (admin_pb2.Namespace(name="a", ttl_s=0), "ttl_s"),
        (admin_pb2.Namespace(name="a", jitter=0.6), "jitter"),
        (admin_pb2.Namespace(name="a", jitter=float("nan")), "jitter"),
        (admin_pb2.Namespace(name="a", tiers=[7]), "tiers"),  # type: ignore[list-item]
        (admin_pb2.Namespace(name=""), "namespace"),
    ],
)
def test_a_namespace_is_checked(message: admin_pb2.Namespace, field: str) -> None:
    assert refused(checks.checked_namespace, message).field == field


def test_the_error_on_the_wire_names_field_limit_and_value_and_is_short() -> None:
    status = status_of(FieldInvalid("key", "1 to 1024 bytes", "x" * 10_000))
    assert len(status.message) <= 1_024
    from google.rpc import error_details_pb2

    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason, info.metadata["field"]) == ("terracekv", "KEY_INVALID", "key")
    assert len(info.metadata["given"]) <= 1_024


def test_a_defect_shows_no_detail() -> None:
    status = status_of(ValueError("secret internals"))
    assert "secret" not in str(status)
    assert status.code == 13
