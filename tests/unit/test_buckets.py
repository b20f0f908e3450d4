"""Buckets lie where the table says, evenly over masters, and names keep them there."""

from __future__ import annotations

import fnmatch
import os

import pytest
from redis.crc import key_slot

from terracekv.tiers.buckets import META_BUCKET, SLOTS, TAGS, KeyNames, slot_of
from terracekv.tiers.entry import BUCKETS, Key, KeySpace
from terracekv.tiers.errors import FieldInvalid


def test_every_tag_lies_in_the_slot_of_its_bucket() -> None:
    assert len(set(TAGS)) == BUCKETS
    assert [key_slot(tag.encode()) for tag in TAGS] == [slot_of(bucket) for bucket in range(BUCKETS)]
    assert slot_of(0) == 32
    assert slot_of(255) == 255 * 64 + 32


@pytest.mark.parametrize(("masters", "largest", "smallest"), [(3, 86, 85), (12, 22, 21), (1, 256, 256), (256, 1, 1)])
def test_masters_get_even_shares(masters: int, largest: int, smallest: int) -> None:
    shares = [0] * masters
    for tag in TAGS:
        shares[key_slot(tag.encode()) * masters // SLOTS] += 1
    assert (max(shares), min(shares)) == (largest, smallest)


def test_every_name_of_a_bucket_is_in_its_slot_whatever_the_key_is() -> None:
    names = KeyNames("shop:")
    for bucket in range(BUCKETS):
        for digest in (b"{}" * 16, b"}{" * 16, os.urandom(32)):
            key = Key(digest[:31] + bytes([bucket]), b"{braces}", "n", 1, "default")
            every = [names.record(key), names.staging(bucket, b"}{"), *names.parts(bucket, b"{x}{x}{x", 3)]
            assert {key_slot(name) for name in every} == {slot_of(bucket)}
            assert len(set(every)) == len(every)
    assert key_slot(names.meta("namespaces")) == slot_of(META_BUCKET)


def test_a_prefix_with_braces_is_refused_in_words() -> None:
    for prefix in ("a{b}", "{", "}"):
        with pytest.raises(FieldInvalid, match="shared_prefix: no braces"):
            KeyNames(prefix)
    with pytest.raises(FieldInvalid, match="1 to 64 bytes"):
        KeyNames("")
    with pytest.raises(FieldInvalid, match="1 to 64 bytes"):
        KeyNames("x" * 65)


def test_keys_start_with_the_prefix_so_that_deployments_keep_apart() -> None:
    key = KeySpace().key("n", 1, b"k")
    assert KeyNames("one:").record(key).startswith(b"one:{")
    assert KeyNames("one:").record(key) != KeyNames("two:").record(key)


def test_the_pattern_takes_entries_and_spares_all_else() -> None:
    names = KeyNames("shop:")
    key = KeySpace().key("n", 1, b"k")
    pattern = names.pattern.decode("latin-1")
    for name in (names.record(key), *names.parts(3, b"12345678", 2), names.staging(3, b"t")):
        assert fnmatch.fnmatchcase(name.decode("latin-1"), pattern)
    for other in (names.meta("namespaces"), b"shop:cart", b"shopping:{a}:e:1", KeyNames("xshop:").record(key)):
        assert not fnmatch.fnmatchcase(other.decode("latin-1"), pattern)
    assert b"\\*" in KeyNames("a*b:").pattern
