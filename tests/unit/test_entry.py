"""Keys and entries: an identity that nothing else has, a miss that is falsy, a life that ends at its microsecond."""

from __future__ import annotations

import blake3
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from makers import KEYS, entry, key

from terracekv.tiers.clock import FakeClock
from terracekv.tiers.entry import (
    MISS,
    FailureReason,
    KeySpace,
    TierFailure,
    TierName,
    checksum_of,
    framed,
)


@given(st.lists(st.binary(max_size=8), max_size=5), st.lists(st.binary(max_size=8), max_size=5))
def test_no_two_lists_frame_to_the_same_bytes(first: list[bytes], second: list[bytes]) -> None:
    assert (framed(first) == framed(second)) == (first == second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", 1, b"bc"), ("ab", 1, b"c")),
        (("a", 1, b"k"), ("a", 2, b"k")),
        (("a", 1, b"k"), ("a", 256, b"k")),
        (("a", 1, b"k"), ("a", 1, b"k\0")),
        (("a", 1, "\u00e9".encode()), ("a", 1, "e\u0301".encode())),
    ],
)
def test_keys_that_differ_anywhere_have_other_digests(
    one: tuple[str, int, bytes], other: tuple[str, int, bytes]
) -> None:
    assert KEYS.key(*one).digest != KEYS.key(*other).digest
    assert KEYS.key(*one) == KeySpace().key(*one)


def test_tenants_do_not_share_digests() -> None:
    assert KeySpace("a").key("n", 1, b"k").digest != KeySpace("b").key("n", 1, b"k").digest


def test_the_digest_is_keyed_blake3_over_length_prefixed_fields() -> None:
    secret = blake3.blake3(b"default", derive_key_context="terracekv 2026-12 storage keys").digest()
    message = b"\0\0\0\7default\0\0\0\1n\0\0\0\x08\0\0\0\0\0\0\0\5\0\0\0\3a\0b"
    assert KEYS.key("n", 5, b"a\0b").digest == blake3.blake3(message, key=secret).digest()


def test_keys_spread_evenly_over_the_buckets() -> None:
    counts = [0] * 256
    for at in range(25_600):
        counts[key(f"k{at}").bucket] += 1
    assert min(counts) > 50
    assert max(counts) < 160


def test_keys_whose_digests_collide_are_still_different() -> None:
    weak = KeySpace(digest=lambda secret, message: bytes(32))
    assert weak.key("n", 1, b"a") != weak.key("n", 1, b"b")
    assert weak.key("n", 1, b"a").digest == weak.key("n", 1, b"b").digest


def test_a_miss_and_a_failure_are_falsy_and_not_the_same() -> None:
    failure = TierFailure(TierName.DISK, FailureReason.FULL, "no room")
    assert not MISS
    assert not failure
    assert failure != MISS


def test_an_entry_is_truthy_even_when_it_is_empty() -> None:
    assert entry(b"", FakeClock())
    assert entry(b"", FakeClock()).head


def test_a_life_is_over_at_its_microsecond() -> None:
    head = entry(b"v", FakeClock(1_000_000), ttl_s=1.0).head
    assert (head.expired(1_999_999), head.expired(2_000_000), head.expired(2_000_001)) == (False, True, True)
    assert not head._replace(expires_us=0).expired(2**62)


def test_a_payload_of_one_frame_is_not_copied() -> None:
    payload = b"x" * 1_000
    assert entry(payload, FakeClock()).payload() is payload
    assert entry((b"ab", b"", b"c"), FakeClock()).payload() == b"abc"


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_the_checksum_does_not_depend_on_the_frames(frames: list[bytes]) -> None:
    assert checksum_of(frames) == xxhash.xxh3_128_digest(b"".join(frames))
