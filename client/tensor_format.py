"""The header of a payload of tensors: written canonically, read with every size, offset and name checked.

The layout is that of safetensors (https://huggingface.co/docs/safetensors, section "Format"): 8 bytes little-endian
length of the header, a JSON header, the data. A reader takes no memory but the header's own before all of it is
proven.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch

from terracekv.client.errors import TerraceKVError

HEADER_BYTES_MAX: Final = 100_000_000  # the limit of the safetensors library
DIMENSIONS_MAX: Final = 1_024
ALIGNMENT_BYTES: Final = 64
_ELEMENTS_MAX: Final = 2**63 - 1
METADATA: Final = "__metadata__"  # a name the format keeps for itself

_SAFETENSORS_NAMES: Final = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F4": "float4_e2m1fn_x2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
_TORCH_NAMES: Final = (
    *("complex32", "complex128", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
    *(f"{sign}{bits}" for sign in ("int", "uint") for bits in range(1, 8)),
)


def _known_dtypes() -> dict[str, torch.dtype]:
    # Older builds of torch lack some of them.
    names = {**_SAFETENSORS_NAMES, **{name: name for name in _TORCH_NAMES}}
    found = {name: getattr(torch, torch_name, None) for name, torch_name in names.items()}
    return {name: dtype for name, dtype in found.items() if isinstance(dtype, torch.dtype)}


DTYPE_OF: Final = _known_dtypes()
NAME_OF: Final = {dtype: name for name, dtype in DTYPE_OF.items()}
# Two elements of safetensors' F4 are one of torch's: their shapes differ in the last dimension.
PAIRED: Final = DTYPE_OF.get("F4")


class TensorPayloadInvalid(TerraceKVError, ValueError):
    """Bytes that are no payload of tensors, or a damaged one; the message says what is wrong, never what they hold."""


class Placed(NamedTuple):
    """Where one tensor lies in the data of a payload."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]  # as torch counts
    begin: int  # bytes from the start of the data
    end: int


def write_header(tensors: Iterable[Placed]) -> bytes:
    """The header of these tensors with its length in front, padded so that the data behind it is aligned.

    Raises ValueError for a name that UTF-8 cannot hold and a header over 100,000,000 bytes.
    """
    entries = {
        placed.name: {
            "dtype": NAME_OF[placed.dtype],
            "shape": _format_shape(placed.dtype, placed.shape),
            "data_offsets": [placed.begin, placed.end],
        }
        for placed in tensors
    }
    try:
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("name of a tensor: text that UTF-8 can hold; given: a lone surrogate") from None
    padded = text + b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
    if len(padded) > HEADER_BYTES_MAX:
        raise ValueError(f"header of the payload: at most {HEADER_BYTES_MAX} bytes; given: {len(padded)}")
    return len(padded).to_bytes(8, "little") + padded


def read_header(payload: memoryview) -> tuple[list[Placed], memoryview]:
    """The tensors of a payload in the order of their places, and its data, which they cover without gap or overlap.

    Raises TensorPayloadInvalid for anything else.
    """
    entries, data = _split(payload)
    placed = sorted((_checked(name, entry) for name, entry in entries.items()), key=lambda one: (one.begin, one.end))
    position = 0
    for one in placed:
        if one.begin != position or one.end > len(data):
            raise TensorPayloadInvalid(
                f"data_offsets: each tensor right behind another, up to {len(data)}; given: {one.begin} to {one.end}"
            )
        position = one.end
    if position != len(data):
        raise TensorPayloadInvalid(f"data: {position} bytes belong to tensors; given: {len(data)}")
    return placed, data


def _split(view: memoryview) -> tuple[dict[str, Any], memoryview]:
    if len(view) < 8:
        raise TensorPayloadInvalid(f"payload: at least 8 bytes; given: {len(view)}")
    size_bytes = int.from_bytes(view[:8], "little")
    if size_bytes > min(HEADER_BYTES_MAX, len(view) - 8):
        raise TensorPayloadInvalid(
            f"header: at most {min(HEADER_BYTES_MAX, len(view) - 8)} bytes can be here; given: {size_bytes}"
        )
    text = bytes(view[8 : 8 + size_bytes])
    if not text.startswith(b"{"):
        raise TensorPayloadInvalid("header: starts with {; given: something else")
    return _parsed_header(text), view[8 + size_bytes :]


def _parsed_header(text: bytes) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except TensorPayloadInvalid:
        raise
    except (ValueError, RecursionError):
        # The parser's own message may quote the header.
        raise TensorPayloadInvalid("header: JSON in UTF-8; given: something else") from None
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise TensorPayloadInvalid(f"{METADATA}: a map of text to text; given: something else")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise TensorPayloadInvalid("header: each name once; given: one repeated")
    return unique


def _checked(name: str, entry: Any) -> Placed:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise TensorPayloadInvalid("header: dtype, shape and data_offsets of each tensor; given: other fields")
    dtype_name, offsets = entry["dtype"], entry["data_offsets"]
    if not isinstance(dtype_name, str) or dtype_name not in DTYPE_OF:
        raise TensorPayloadInvalid("dtype: one that this build of torch has; given: another")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise TensorPayloadInvalid("data_offsets: begin and end; given: something else")
    dtype = DTYPE_OF[dtype_name]
    shape = _checked_shape(dtype, entry["shape"])
    begin, end = offsets
    size_bytes = math.prod(shape) * dtype.itemsize
    if end - begin != size_bytes:
        raise TensorPayloadInvalid(f"data_offsets: {size_bytes} bytes by shape and dtype; given: {end - begin}")
    return Placed(name, dtype, shape, begin, end)


def _format_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> list[int]:
    return [*shape[:-1], shape[-1] * 2] if dtype == PAIRED else list(shape)


def _checked_shape(dtype: torch.dtype, shape: Any) -> tuple[int, ...]:
    if not _are_sizes(shape) or len(shape) > DIMENSIONS_MAX:
        raise TensorPayloadInvalid(f"shape: up to {DIMENSIONS_MAX} sizes; given: something else")
    # Torch multiplies the sizes of an empty tensor too, for its strides.
    if math.prod(max(size, 1) for size in shape) > _ELEMENTS_MAX:
        raise TensorPayloadInvalid(f"shape: at most {_ELEMENTS_MAX} elements; given: more")
    if dtype != PAIRED:
        return tuple(shape)
    if not shape or shape[-1] % 2:
        raise TensorPayloadInvalid("shape: an even last size where two elements share a byte; given: another")
    return (*shape[:-1], shape[-1] // 2)


def _are_sizes(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)
