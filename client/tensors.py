"""Named tensors as one payload of bytes and back, every dtype bit for bit, in the byte layout of safetensors.

Nothing is ever unpickled, and no byte of a payload is trusted: sizes, offsets and names are checked before memory is
taken. Needs the extra `torch`.

The layout (https://huggingface.co/docs/safetensors, section "Format"): 8 bytes little-endian length of the header, a
JSON header, the data. The header is padded with spaces so that the data starts at a multiple of 64 bytes; tensors
stand in it by item size, larger first, then by name, so that each lies aligned, and equal mappings give equal bytes.
A dtype that safetensors has a name for goes by that name, and its library can read the payload; the others
(complex128, and the bare ones such as int4 and bits8) go by torch's own.

What is kept: names, dtypes, shapes, and every bit of every element, NaN payloads and negative zeros included. What is
not: devices, strides, gradients and sharing. Tensors that share memory (tied weights, overlapping or expanded views)
are written out each in full, and come back each with memory of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from terracekv.client.tensor_format import (
    DIMENSIONS_MAX,
    METADATA,
    NAME_OF,
    PAIRED,
    Placed,
    TensorPayloadInvalid,
    read_header,
    write_header,
)
from terracekv.client.values import Hit, Miss

__all__ = [
    "EncodedTensor",
    "TensorPayloadInvalid",
    "decode_tensors",
    "encode_tensors",
    "get_tensors",
    "get_tensors_async",
    "parse_tensors",
    "put_tensors",
    "put_tensors_async",
    "raw_bytes",
]

if TYPE_CHECKING:
    from terracekv.client.aio import AsyncClient
    from terracekv.client.sync import Client
    from terracekv.client.values import Key

BytesLike: TypeAlias = bytes | bytearray | memoryview


class EncodedTensor(NamedTuple):
    """One tensor inside a payload, checked and not yet copied."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: memoryview  # its bytes in row-major order, little-endian, inside the payload

    def tensor(self) -> torch.Tensor:
        """A new tensor on the CPU that owns its memory."""
        own = torch.empty(len(self.data), dtype=torch.uint8)
        own.numpy()[:] = np.frombuffer(self.data, np.uint8)
        return own.view(self.dtype).reshape(self.shape)

    def rows(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """Its bytes, uncopied and read-only, in its own shape but for the last dimension, which counts bytes.

        For tensors of 1 to 64 dimensions, numpy's limit.
        """
        shape = (*self.shape[:-1], self.shape[-1] * self.dtype.itemsize)
        return np.frombuffer(self.data, np.uint8).reshape(shape)


def encode_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """One payload that holds copies of all tensors; changing them afterwards does not change it.

    Tensors may be on any device, strided in any way, of no dimension, empty, or of up to 1,024 dimensions. Raises
    TypeError for what is no plain dense tensor (sparse, quantised, nested, meta, wrapper subclasses), for an unknown
    dtype, and for names that are no str; ValueError for the reserved name "__metadata__", names that UTF-8 cannot
    hold, and a header over 100,000,000 bytes.
    """
    _check_byte_order()
    for name, tensor in tensors.items():
        _check_encodable(name, tensor)
    placed: list[Placed] = []
    parts: list[memoryview] = []
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        parts.append(raw_bytes(tensor))
        begin, end = end, end + len(parts[-1])
        placed.append(Placed(name, tensor.dtype, tuple(tensor.shape), begin, end))
    return b"".join([write_header(placed), *parts])


def decode_tensors(payload: BytesLike, *, device: torch.device | str | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a payload, by name, each with writable memory of its own.

    On `device`, or on the CPU. Raises TensorPayloadInvalid, a ValueError, for anything but a whole payload.
    """
    tensors = {name: encoded.tensor() for name, encoded in parse_tensors(payload).items()}
    return tensors if device is None else {name: tensor.to(device) for name, tensor in tensors.items()}


def parse_tensors(payload: BytesLike) -> dict[str, EncodedTensor]:
    """What a payload holds, all of it checked and none of it copied: the views stay valid as long as the payload.

    Takes memory for the header only, whatever it claims. Raises TensorPayloadInvalid.
    """
    _check_byte_order()
    placed, data = read_header(memoryview(payload).cast("B"))
    return {one.name: EncodedTensor(one.dtype, one.shape, data[one.begin : one.end]) for one in placed}


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense tensor in row-major order: its own memory where that is so laid out, else a copy."""
    plain = tensor.detach().resolve_conj().resolve_neg().to("cpu")
    # Some 1-byte dtypes have no copy kernel of their own; as bytes they do.
    if plain.dtype.itemsize == 1:
        plain = plain.view(torch.uint8)
    flat = plain.contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data


def put_tensors(client: Client, key: Key, tensors: Mapping[str, torch.Tensor], **options: Any) -> int:
    """Puts tensors under a key as one value; returns its version. `options` go to `Client.put`, with its errors."""
    return client.put(key, encode_tensors(tensors), **options)


def get_tensors(
    client: Client, key: Key, *, device: torch.device | str | None = None
) -> dict[str, torch.Tensor] | Miss:
    """The tensors under a key, or MISS.

    Raises the errors of `Client.get`, and TensorPayloadInvalid where the value holds no tensors.
    """
    found = client.get(key)
    return decode_tensors(found.value, device=device) if isinstance(found, Hit) else found


def put_tensors_async(
    client: AsyncClient, key: Key, tensors: Mapping[str, torch.Tensor], **options: Any
) -> Awaitable[int]:
    """`put_tensors` for an AsyncClient.

    What is stored is what the tensors hold at this call, before anything is awaited: they may change as soon as it
    returns. Copying them keeps the event loop for about a millisecond a MiB.
    """
    return client.put(key, encode_tensors(tensors), **options)


async def get_tensors_async(
    client: AsyncClient, key: Key, *, device: torch.device | str | None = None
) -> dict[str, torch.Tensor] | Miss:
    """`get_tensors` for an AsyncClient; the copying is done in a thread, off the event loop."""
    found = await client.get(key)
    return await asyncio.to_thread(decode_tensors, found.value, device=device) if isinstance(found, Hit) else found


def _check_byte_order() -> None:
    if sys.byteorder != "little":
        raise RuntimeError("tensors are little-endian in a payload, and this machine is not")


def _check_encodable(name: object, tensor: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name of a tensor: a str; given: {type(name).__name__}")
    if name == METADATA:
        raise ValueError(f"name of a tensor: {METADATA} is reserved by the format")
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor {name!r}: a torch.Tensor; given: {type(tensor).__name__}")
    kind = _unplain_kind(tensor)
    if kind:
        raise TypeError(f"tensor {name!r}: a dense tensor with data; given: {kind}")
    if tensor.dtype not in NAME_OF:
        raise TypeError(f"tensor {name!r}: dtype {tensor.dtype} is not one that can be stored")
    if tensor.dtype == PAIRED and not tensor.ndim:
        raise TypeError(f"tensor {name!r}: dtype {tensor.dtype} needs at least one dimension")
    if tensor.ndim > DIMENSIONS_MAX:
        raise ValueError(f"tensor {name!r}: at most {DIMENSIONS_MAX} dimensions; given: {tensor.ndim}")


def _unplain_kind(tensor: torch.Tensor) -> str:
    if tensor.is_quantized:
        return f"a quantised tensor ({tensor.dtype})"
    if is_traceable_wrapper_subclass(tensor):
        return f"the wrapper subclass {type(tensor).__name__}"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"layout {tensor.layout}"
    return "a meta tensor, which has no data" if tensor.is_meta else ""
