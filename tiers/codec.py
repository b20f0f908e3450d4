"""Payload codecs below memory: none, Zstandard, and byte planes + Zstandard for 2-byte floats.

Output sizes are bounded by the size that the record declares, so a frame that
claims more than its record is refused before memory is taken.
"""

from __future__ import annotations

from typing import Final

import numpy
import zstandard

from terracekv.tiers.entry import FRAME_BYTES_MAX, Codec
from terracekv.tiers.errors import RecordDamaged

ZSTD_LEVEL: Final = 1


def encode_payload(frames: tuple[bytes, ...], codec: Codec) -> tuple[bytes, ...]:
    """The payload as stored. CPU-bound for the codecs that compress: callers run it off the event loop."""
    if codec is Codec.NONE:
        return frames
    raw = b"".join(frames)
    if codec is Codec.PLANES_ZSTD:
        raw = _to_planes(raw)
    return (zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(raw),)


def decode_payload(stored: tuple[bytes, ...], codec: Codec, size_bytes: int) -> tuple[bytes, ...]:
    """The raw payload in frames. Raises RecordDamaged if it is not exactly `size_bytes`."""
    if codec is Codec.NONE:
        return stored
    frames = _decompressed(b"".join(stored), size_bytes)
    if codec is Codec.PLANES_ZSTD:
        raw = _from_planes(b"".join(frames))
        frames = [raw[at : at + FRAME_BYTES_MAX] for at in range(0, len(raw), FRAME_BYTES_MAX)]
    return tuple(frames) or (b"",)


def _decompressed(stored: bytes, size_bytes: int) -> list[bytes]:
    try:
        claimed = zstandard.get_frame_parameters(stored).content_size
        if claimed not in (size_bytes, zstandard.CONTENTSIZE_UNKNOWN):
            raise RecordDamaged("compressed frame of another size")
        reader = zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(stored)
        frames: list[bytes] = []
        for at in range(0, size_bytes, FRAME_BYTES_MAX):
            # In steps: a read takes memory for all it is asked for, whatever there is to read.
            frames.append(reader.read(min(FRAME_BYTES_MAX, size_bytes - at)))
            if len(frames[-1]) < min(FRAME_BYTES_MAX, size_bytes - at):
                raise RecordDamaged("compressed frame of another size")
        if reader.read(1):
            raise RecordDamaged("compressed frame of another size")
        return frames
    except zstandard.ZstdError as error:
        raise RecordDamaged("compressed frame") from error


def _to_planes(raw: bytes) -> bytes:
    even = len(raw) & ~1
    planes = numpy.frombuffer(raw, numpy.uint8, even).reshape(-1, 2).T.tobytes()
    return planes + raw[even:]


def _from_planes(planes: bytes) -> bytes:
    even = len(planes) & ~1
    raw = numpy.frombuffer(planes, numpy.uint8, even).reshape(2, -1).T.tobytes()
    return raw + planes[even:]
