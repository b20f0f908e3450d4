"""Block keys name every input of a block, and are the same in every process and language."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from terracekv.client.block_keys import BlockKeys, BlockLayout, block_cache_key

GOLDEN = Path(__file__).parents[1] / "golden" / "block_keys.json"
VECTORS = json.loads(GOLDEN.read_text(encoding="utf-8"))["vectors"]

LAYOUT = BlockLayout(
    model="acme/llm-7b",
    revision="rev-1",
    dtype="bfloat16",
    layout="kv-1",
    block_tokens=16,
    rank=0,
    world_size=2,
    adapter="french",
    adapter_revision="3",
    extra={"rope": "yarn", "window": "512"},
)
TOKENS = list(range(100, 164))


def expand(tokens: Any) -> list[int]:
    if isinstance(tokens, dict):
        return [(tokens["first"] + tokens["step"] * i) % 2**32 for i in range(tokens["count"])]
    return list(tokens)


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def digests_from_the_written_derivation(layout: dict[str, Any], tokens: list[int]) -> list[bytes]:
    """A second implementation, from the module's description alone."""
    names = ["model", "revision", "dtype", "layout", "block_tokens", "rank", "world_size", "adapter"]
    fields = [layout.get(name, "") for name in [*names, "adapter_revision"]]
    extra = sorted((k.encode(), v.encode()) for k, v in layout.get("extra", {}).items())
    flat = [f.encode() if isinstance(f, str) else f.to_bytes(8, "big") for f in [*fields, len(extra)]]
    flat += [part for pair in extra for part in pair]
    encoded = b"".join(frame(part) for part in flat)
    digest = blake3(encoded, derive_key_context="terracekv 2026-12-01 block layout v1").digest()
    size, chain = layout["block_tokens"], []
    for start in range(0, len(tokens) // size * size, size):
        run = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + size])
        link = frame(digest) + frame(run)
        digest = blake3(link, derive_key_context="terracekv 2026-12-01 block chain v1").digest()
        chain.append(digest)
    return chain


def test_golden_file_holds_dozens_of_vectors_with_distinct_names() -> None:
    assert len(VECTORS) >= 36
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS)


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_golden_vector_gives_the_same_digests_as_ever(vector: dict[str, Any]) -> None:
    layout, tokens = BlockLayout(**vector["layout"]), expand(vector["tokens"])
    assert layout.root().hex() == vector["root"]
    assert [digest.hex() for digest in BlockKeys(layout).chain(tokens)] == vector["digests"]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_written_derivation_is_enough_to_compute_the_digests(vector: dict[str, Any]) -> None:
    layout = {"rank": 0, "world_size": 1, **vector["layout"]}
    digests = digests_from_the_written_derivation(layout, expand(vector["tokens"]))
    assert [digest.hex() for digest in digests] == vector["digests"]


def test_fresh_processes_with_other_hash_seeds_compute_the_same_digests() -> None:
    code = (
        "import json, sys; from terracekv.client.block_keys import BlockKeys, BlockLayout\n"
        "for vector in json.load(open(sys.argv[1], encoding='utf-8'))['vectors']:\n"
        "    t = vector['tokens']\n"
        "    if isinstance(t, dict): t = [(t['first'] + t['step'] * i) % 2**32 for i in range(t['count'])]\n"
        "    assert [d.hex() for d in BlockKeys(BlockLayout(**vector['layout'])).chain(t)] == vector['digests']\n"
        "assert not {'numpy', 'torch'} & set(sys.modules)\n"
        "print('same')"
    )
    for seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(GOLDEN)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.strip() == "same"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "acme/llm-7B"},
        {"revision": "rev-2"},
        {"dtype": "float16"},
        {"layout": "kv-2"},
        {"rank": 1},
        {"world_size": 3},
        {"adapter": "", "adapter_revision": ""},
        {"adapter": "german"},
        {"adapter_revision": "4"},
        {"extra": {}},
        {"extra": {"rope": "yarn"}},
        {"extra": {"rope": "yarn", "window": "513"}},
        {"extra": {"rope": "yarn", "windows": "512"}},
        {"extra": {"rope": "window", "yarn": "512"}},
        {"extra": {"rope": "yarn", "window": "512", "more": ""}},
    ],
)
def test_every_field_of_identity_changes_every_digest(change: dict[str, Any]) -> None:
    before = BlockKeys(LAYOUT).chain(TOKENS)
    after = BlockKeys(dataclasses.replace(LAYOUT, **change)).chain(TOKENS)
    assert len(before) == len(after) == 4
    assert not set(before) & set(after)


def test_another_block_size_shares_no_digest() -> None:
    small, large = (BlockKeys(dataclasses.replace(LAYOUT, block_tokens=n)).chain(TOKENS) for n in (16, 32))
    assert len(small) == 4
    assert len(large) == 2
    assert not set(small) & set(large)


def test_text_moved_from_one_field_to_its_neighbour_is_another_identity() -> None:
    pairs = [("org_1", "2345"), ("org_12345", "x"), ("org_1\x00", "2345"), ("org_", "12345")]
    roots = {dataclasses.replace(LAYOUT, model=model, revision=revision).root() for model, revision in pairs}
    extras: list[dict[str, str]] = [{"a": "bc"}, {"ab": "c"}, {"a": "b", "c": ""}, {"abc": ""}]
    roots |= {dataclasses.replace(LAYOUT, extra=extra).root() for extra in extras}
    assert len(roots) == len(pairs) + len(extras)


def test_adapter_named_like_another_field_never_hits_that_field() -> None:
    plain = dataclasses.replace(LAYOUT, adapter="", adapter_revision="", extra={})
    salted = dataclasses.replace(plain, extra={"tenant": "french"})
    adapted = dataclasses.replace(plain, adapter="french", adapter_revision="1")
    named = dataclasses.replace(plain, adapter=plain.model, adapter_revision=plain.revision)
    assert len({layout.root() for layout in (plain, salted, adapted, named)}) == 4


def test_two_unicode_forms_of_one_name_are_two_models() -> None:
    composed, decomposed = (dataclasses.replace(LAYOUT, model=model) for model in ("\u00e9", "e\u0301"))
    assert composed.root() != decomposed.root()


def test_order_of_extras_does_not_matter() -> None:
    turned = dataclasses.replace(LAYOUT, extra=dict(reversed(LAYOUT.extra.items())))
    assert turned == LAYOUT
    assert turned.encode() == LAYOUT.encode()
    assert hash(turned) == hash(LAYOUT)


def test_prompts_share_digests_exactly_as_far_as_whole_blocks_agree() -> None:
    keys = BlockKeys(LAYOUT)
    base = keys.chain(TOKENS)
    for changed_at in (0, 15, 16, 40, 63):
        other = list(TOKENS)
        other[changed_at] += 1
        chain = keys.chain(other)
        shared = changed_at // 16
        assert chain[:shared] == base[:shared]
        assert not set(chain[shared:]) & set(base)


def test_chains_that_end_in_the_same_block_but_began_otherwise_share_nothing() -> None:
    keys = BlockKeys(LAYOUT)
    one, two = keys.chain([1] * 16 + [9] * 32), keys.chain([2] * 16 + [9] * 32)
    assert not set(one) & set(two)


def test_equal_blocks_at_different_places_have_different_digests() -> None:
    assert len(set(BlockKeys(LAYOUT).chain([7] * 16 * 50))) == 50


def test_tokens_behind_the_last_whole_block_have_no_digest() -> None:
    keys = BlockKeys(LAYOUT)
    assert keys.chain([]) == []
    assert keys.chain(TOKENS[:15]) == []
    assert keys.chain(TOKENS[:31]) == keys.chain(TOKENS[:16])
    assert all(len(digest) == 32 for digest in keys.chain(TOKENS))


@pytest.mark.parametrize(
    "tokens",
    [
        tuple(TOKENS),
        array("I", TOKENS),
        range(100, 164),
        np.array(TOKENS, dtype=np.int64),
        np.array(TOKENS, dtype=">u2"),
        np.repeat(np.array(TOKENS, dtype=np.uint32), 2)[::2],
        torch.tensor(TOKENS),
        torch.tensor(TOKENS, dtype=torch.int32),
    ],
    ids=lambda tokens: type(tokens).__name__,
)
def test_every_container_of_the_same_tokens_gives_the_same_digests(tokens: Any) -> None:
    assert BlockKeys(LAYOUT).chain(tokens) == BlockKeys(LAYOUT).chain(TOKENS)


@pytest.mark.parametrize("token", [-1, 2**32, 2**70])
def test_token_id_out_of_limits_is_refused_in_words(token: int) -> None:
    with pytest.raises(ValueError, match="tokens: ids from 0 to 4294967295"):
        BlockKeys(LAYOUT).chain([token] * 16)


@pytest.mark.parametrize(
    "tokens",
    [[1.0] * 16, ["1"] * 16, [None] * 16, "0123456789abcdef", b"0123456789abcdef", np.ones(16), np.ones(16, bool)],
)
def test_tokens_that_are_no_integers_are_refused(tokens: Any) -> None:
    with pytest.raises(TypeError, match="tokens: a sequence of integers"):
        BlockKeys(LAYOUT).chain(tokens)


@pytest.mark.parametrize("tokens", [torch.zeros(1, 16, dtype=torch.long), np.zeros((2, 8), int), torch.tensor(3)])
def test_tokens_of_another_shape_are_refused(tokens: Any) -> None:
    with pytest.raises(ValueError, match="tokens: one dimension"):
        BlockKeys(LAYOUT).chain(tokens)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": ""}, "model: 1 to 1024 bytes of UTF-8; given: 0"),
        ({"revision": ""}, "revision: 1 to 1024"),
        ({"dtype": ""}, "dtype: 1 to 1024"),
        ({"layout": "é" * 513}, "layout: 1 to 1024 bytes of UTF-8; given: 1026"),
        ({"model": "\ud800"}, "model: text that UTF-8 can hold"),
        ({"block_tokens": 15}, "block_tokens: 16 to 512; given: 15"),
        ({"block_tokens": 513}, "block_tokens: 16 to 512; given: 513"),
        ({"world_size": 0}, "world_size: 1 to 65536; given: 0"),
        ({"rank": 2}, "rank: 0 to 1; given: 2"),
        ({"rank": -1}, "rank: 0 to 1; given: -1"),
        ({"adapter": ""}, "adapter and adapter_revision: both or neither"),
        ({"adapter_revision": ""}, "adapter and adapter_revision: both or neither"),
        ({"extra": {"": "x"}}, "extra name: 1 to 1024"),
        ({"extra": {str(n): "" for n in range(65)}}, "extra: at most 64 entries; given: 65"),
    ],
)
def test_layout_out_of_limits_is_refused_with_field_limit_and_value(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(LAYOUT, **change)


@pytest.mark.parametrize(
    "change",
    [{"model": b"m"}, {"block_tokens": 16.0}, {"rank": True}, {"extra": [("a", "b")]}, {"extra": {"a": 1}}],
)
def test_layout_fields_of_a_wrong_type_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        dataclasses.replace(LAYOUT, **change)


def test_layout_cannot_be_changed_through_the_mapping_it_was_made_of() -> None:
    extra = {"rope": "linear"}
    layout = dataclasses.replace(LAYOUT, extra=extra)
    root = layout.root()
    extra["rope"] = "yarn"
    assert layout.root() == root
    with pytest.raises(TypeError):
        layout.extra["rope"] = "yarn"  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.model = "other"  # type: ignore[misc]


def test_layout_can_be_copied() -> None:
    assert copy.deepcopy(LAYOUT) == LAYOUT
    assert copy.copy(LAYOUT).root() == LAYOUT.root()


def test_cache_key_is_digest_and_group_big_endian() -> None:
    assert block_cache_key(b"d" * 32, 258) == b"d" * 32 + b"\x00\x00\x01\x02"
    for digest, group in ((b"d" * 31, 0), (b"d" * 32, -1), (b"d" * 32, 2**32)):
        with pytest.raises(ValueError):
            block_cache_key(digest, group)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=70),
    st.lists(st.integers(0, 2**32 - 1), max_size=70),
)
def test_chain_of_a_longer_prompt_begins_with_the_chain_of_its_beginning(head: list[int], tail: list[int]) -> None:
    keys = BlockKeys(LAYOUT)
    whole, part = keys.chain(head + tail), keys.chain(head)
    assert whole[: len(part)] == part
    assert len(whole) == (len(head) + len(tail)) // 16
