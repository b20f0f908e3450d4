"""Codecs give the bytes back, pay off on what they are for, and a small frame never takes much memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import KEYS, MIB, noise

from terracekv.tiers.codec import decode_payload, encode_payload
from terracekv.tiers.entry import FRAME_BYTES_MAX, VALUE_BYTES_MAX, Codec, Head, Kind, checksum_of
from terracekv.tiers.envelope import decode_inline, encode_head
from terracekv.tiers.errors import RecordDamaged

PACKED = [Codec.ZSTD, Codec.PLANES_ZSTD]


@contextmanager
def allocating_at_most(bytes_max: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=500), max_size=5), st.sampled_from(Codec))
def test_any_payload_comes_back(frames: list[bytes], codec: Codec) -> None:
    stored = encode_payload(tuple(frames), codec)
    size_bytes = sum(map(len, frames))
    assert b"".join(decode_payload(stored, codec, size_bytes)) == b"".join(frames)


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 65_537, MIB, MIB + 1, 5 * MIB + 3])
def test_payloads_of_odd_sizes_come_back_in_frames(size: int, codec: Codec) -> None:
    payload = noise(size)
    frames = decode_payload(encode_payload((payload[: size // 3], payload[size // 3 :]), codec), codec, size)
    assert b"".join(frames) == payload
    assert max(map(len, frames)) <= FRAME_BYTES_MAX


def test_no_codec_copies_nothing() -> None:
    frames = (b"a" * 10, b"b")
    assert encode_payload(frames, Codec.NONE) is frames
    assert decode_payload(frames, Codec.NONE, 11) is frames


def test_byte_planes_pay_off_on_floats_of_two_bytes() -> None:
    generator = numpy.random.default_rng(1)
    floats = generator.standard_normal(200_000, dtype=numpy.float32)
    bfloat16 = (floats.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
    plain, planes = (len(encode_payload((bfloat16,), codec)[0]) for codec in PACKED)
    assert planes < 0.85 * len(bfloat16)
    assert planes < plain


def test_what_does_not_compress_grows_by_next_to_nothing() -> None:
    for codec in PACKED:
        assert len(encode_payload((noise(MIB),), codec)[0]) < MIB + 1_024


@pytest.mark.parametrize("codec", PACKED)
def test_a_frame_of_another_size_than_its_record_says_is_refused(codec: Codec) -> None:
    (stored,) = encode_payload((bytes(1_000),), codec)
    for size_bytes in (0, 1, 999, 1_001, VALUE_BYTES_MAX):
        with pytest.raises(RecordDamaged):
            decode_payload((stored,), codec, size_bytes)


def test_a_frame_that_does_not_tell_its_size_is_bounded_too() -> None:
    stored = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1_000))
    assert decode_payload((stored,), Codec.ZSTD, 1_000) == (bytes(1_000),)
    for size_bytes in (0, 1, 999, 1_001):
        with pytest.raises(RecordDamaged):
            decode_payload((stored,), Codec.ZSTD, size_bytes)


@pytest.mark.parametrize("codec", PACKED)
def test_every_cut_and_any_tail_is_refused(codec: Codec) -> None:
    (stored,) = encode_payload((b"some payload " * 20,), codec)
    changes = [*(stored[:length] for length in range(len(stored))), stored + b"\0", stored + stored]
    for changed in changes:
        with pytest.raises(RecordDamaged):
            decode_payload((changed,), codec, 260)


def claiming(size_bytes: int, content: bytes = b"\x01\x00\x00") -> bytes:
    """A frame whose header claims a size, with one raw block of nothing."""
    return struct.pack("<IBBQ", 0xFD2FB528, 0xC0, 0x58, size_bytes) + content


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("claimed", [1 << 40, VALUE_BYTES_MAX, 1 << 62])
def test_a_tiny_frame_that_claims_much_takes_no_memory(claimed: int, codec: Codec) -> None:
    stored = claiming(claimed)
    assert zstandard.get_frame_parameters(stored).content_size == claimed
    key = KEYS.key("default", 1, b"bomb")
    for size_bytes in {min(claimed, VALUE_BYTES_MAX), 100}:
        head = Head(size_bytes, 1, 1, 0, bytes(16), Kind.IMMUTABLE, codec)
        raw = encode_head(key, head, len(stored), b"", ()) + stored
        with allocating_at_most(4 * MIB), pytest.raises(RecordDamaged):
            decode_inline(raw, key)


def test_a_real_bomb_is_cut_off_at_the_size_its_record_says() -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(512 * MIB))
    assert len(bomb) < MIB // 8
    for size_bytes in (1_000, 8 * MIB):
        with allocating_at_most(size_bytes + 4 * MIB), pytest.raises(RecordDamaged):
            decode_payload((bomb,), Codec.ZSTD, size_bytes)


def test_a_window_larger_than_any_of_ours_is_refused() -> None:
    huge_window = struct.pack("<IBB", 0xFD2FB528, 0x00, 0xF8) + b"\x01\x00\x00"
    with pytest.raises(RecordDamaged):
        decode_payload((huge_window,), Codec.ZSTD, 100)


def test_the_checksum_is_over_the_raw_payload() -> None:
    payload = b"abc" * 100
    for codec in PACKED:
        (stored,) = encode_payload((payload,), codec)
        assert checksum_of(decode_payload((stored,), codec, 300)) == checksum_of([payload])
