"""The keys of KV-cache blocks: a digest that names every input of a block, the same in every process and language.

Nothing that can change a block's bytes is left out of its key, and no two different inputs give one encoding, so a
reader never gets the KV of another model, adapter, number format, rank or prompt.

Derivation, so that other languages can follow it (vectors: tests/golden/block_keys.json). `frame(x)` is the length of
x as 4 bytes, big-endian, then x. Text is UTF-8 as given, never normalised. Numbers are 8 bytes, big-endian.

    root     = BLAKE3 derive_key("terracekv 2026-12-01 block layout v1",
                 frame(model) frame(revision) frame(dtype) frame(layout) frame(block_tokens) frame(rank)
                 frame(world_size) frame(adapter) frame(adapter_revision)
                 frame(number of extras) then frame(name) frame(value) of each, by the bytes of the names)
    digest_i = BLAKE3 derive_key("terracekv 2026-12-01 block chain v1",
                 frame(digest_{i-1}, or root) frame(the block's token ids, each 4 bytes, little-endian))

BLAKE3's key derivation mode keeps the two uses apart from each other and from every other use of the hash.
"""

from __future__ import annotations

import dataclasses
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from blake3 import blake3

BLOCK_TOKENS_MIN: Final = 16
BLOCK_TOKENS_MAX: Final = 512
TEXT_BYTES_MAX: Final = 1_024
EXTRAS_MAX: Final = 64
WORLD_SIZE_MAX: Final = 65_536
TOKEN_ID_MAX: Final = 4_294_967_295
DIGEST_BYTES: Final = 32
GROUP_MAX: Final = 4_294_967_295

LAYOUT_CONTEXT: Final = "terracekv 2026-12-01 block layout v1"
CHAIN_CONTEXT: Final = "terracekv 2026-12-01 block chain v1"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """Everything but the tokens that decides the bytes of a block.

    `revision` must change whenever the weights do. `layout` names the order of the bytes inside a block and changes
    whenever that order does. `adapter` "" means none; with an adapter its `adapter_revision` is needed too, because a
    reloaded adapter keeps its name. `extra` holds what else a model family needs, such as its position scheme.

    Limits: texts up to 1,024 bytes of UTF-8; `block_tokens` 16 to 512; `rank` from 0 to below `world_size`, which is 1
    to 65,536; up to 64 extras with non-empty names. Anything else raises ValueError, or TypeError for a wrong type.
    """

    model: str
    revision: str
    dtype: str
    layout: str
    block_tokens: int
    rank: int = 0
    world_size: int = 1
    adapter: str = ""
    adapter_revision: str = ""
    extra: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks every field and takes a copy of the extras that nobody can change."""
        for name in ("model", "revision", "dtype", "layout"):
            _check_text(name, getattr(self, name), empty=False)
        for name in ("adapter", "adapter_revision"):
            _check_text(name, getattr(self, name), empty=True)
        if bool(self.adapter) != bool(self.adapter_revision):
            raise ValueError("adapter and adapter_revision: both or neither; a reloaded adapter keeps its name")
        _check_int("block_tokens", self.block_tokens, BLOCK_TOKENS_MIN, BLOCK_TOKENS_MAX)
        _check_int("world_size", self.world_size, 1, WORLD_SIZE_MAX)
        _check_int("rank", self.rank, 0, self.world_size - 1)
        object.__setattr__(self, "extra", _checked_extra(self.extra))

    def __hash__(self) -> int:
        return hash(self.encode())

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be copied as it is: rebuild from a plain dict.
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _rebuild_layout, ({**fields, "extra": dict(self.extra)},)

    def encode(self) -> bytes:
        """The canonical encoding that the root digest is taken of; two layouts are equal iff these bytes are."""
        texts_before = (self.model, self.revision, self.dtype, self.layout)
        numbers = (self.block_tokens, self.rank, self.world_size)
        parts = [_text(text) for text in texts_before]
        parts += [number.to_bytes(8, "big") for number in numbers]
        parts += [_text(self.adapter), _text(self.adapter_revision), len(self.extra).to_bytes(8, "big")]
        for name, value in sorted((_text(name), _text(value)) for name, value in self.extra.items()):
            parts += [name, value]
        return b"".join(_frame(part) for part in parts)

    def root(self) -> bytes:
        """The digest that every chain of this layout starts from, 32 bytes. It is the key of no block."""
        return blake3(self.encode(), derive_key_context=LAYOUT_CONTEXT).digest()


class BlockKeys:
    """Chains of block digests under one layout.

    Holds no state but the layout: safe to share between threads and to send to another process.
    """

    def __init__(self, layout: BlockLayout) -> None:
        self.layout = layout
        self._root = layout.root()

    def __repr__(self) -> str:
        return f"BlockKeys(root={self._root.hex()[:16]}, block_tokens={self.layout.block_tokens})"

    def chain(self, tokens: Sequence[int]) -> list[bytes]:
        """The digests of the whole blocks of `tokens`, first block first, 32 bytes each.

        Tokens behind the last whole block belong to no block. `tokens` is a sequence of integers from 0 to
        4,294,967,295, or a one-dimensional integer array of numpy or tensor of torch.

        Raises ValueError for a token id outside its limits or an array of another shape, TypeError for tokens that
        are no integers.
        """
        return list(self.iter_chain(tokens))

    def iter_chain(self, tokens: Sequence[int]) -> Iterator[bytes]:
        """Like `chain`, one digest at a time."""
        data = _token_bytes(tokens)
        block_bytes = self.layout.block_tokens * 4
        return self._chain(memoryview(data), block_bytes)

    def _chain(self, data: memoryview, block_bytes: int) -> Iterator[bytes]:
        # Deriving the key of the context costs as much as hashing a small block: do it once, copy from there.
        hasher = blake3(derive_key_context=CHAIN_CONTEXT)
        digest_frame = DIGEST_BYTES.to_bytes(4, "big")
        tokens_frame = block_bytes.to_bytes(4, "big")
        digest = self._root
        for start in range(0, len(data) - block_bytes + 1, block_bytes):
            link = hasher.copy()
            link.update(digest_frame + digest + tokens_frame)
            link.update(data[start : start + block_bytes])
            digest = link.digest()
            yield digest


def block_cache_key(digest: bytes, group: int) -> bytes:
    """The key under which CacheService knows a block: its digest, then its layer group as 4 bytes, big-endian."""
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"digest: {DIGEST_BYTES} bytes; given: {len(digest)}")
    _check_int("group", group, 0, GROUP_MAX)
    return digest + group.to_bytes(4, "big")


def _rebuild_layout(fields: dict[str, Any]) -> BlockLayout:
    return BlockLayout(**fields)


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _text(text: str) -> bytes:
    return text.encode("utf-8")


def _check_text(name: str, text: object, *, empty: bool) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name}: a str; given: {type(text).__name__}")
    try:
        size_bytes = len(_text(text))
    except UnicodeEncodeError:
        raise ValueError(f"{name}: text that UTF-8 can hold; given: a lone surrogate") from None
    if size_bytes > TEXT_BYTES_MAX or not (size_bytes or empty):
        raise ValueError(f"{name}: {0 if empty else 1} to {TEXT_BYTES_MAX} bytes of UTF-8; given: {size_bytes}")


def _check_int(name: str, number: object, low: int, high: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name}: an int; given: {type(number).__name__}")
    if not low <= number <= high:
        raise ValueError(f"{name}: {low} to {high}; given: {number}")


def _checked_extra(extra: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(extra, Mapping):
        raise TypeError(f"extra: a mapping of str to str; given: {type(extra).__name__}")
    if len(extra) > EXTRAS_MAX:
        raise ValueError(f"extra: at most {EXTRAS_MAX} entries; given: {len(extra)}")
    for name, value in extra.items():
        _check_text("extra name", name, empty=False)
        _check_text("extra value", value, empty=True)
    return MappingProxyType(dict(extra))


def _token_bytes(tokens: Sequence[int]) -> bytes:
    numbers = _token_array(_plain_tokens(tokens))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _plain_tokens(tokens: Any) -> Any:
    if isinstance(tokens, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"tokens: a sequence of integers; given: {type(tokens).__name__}")
    if not hasattr(tokens, "tolist"):
        return tokens
    # Arrays of numpy, tensors of torch and array.array; only the first two have a shape.
    shape = getattr(tokens, "shape", (0,))
    if len(shape) != 1:
        raise ValueError(f"tokens: one dimension; given: {len(shape)}")
    # An attention mask passed by mistake would count as tokens 0 and 1.
    if "bool" in str(getattr(tokens, "dtype", "")):
        raise TypeError("tokens: a sequence of integers; given: booleans")
    return tokens.tolist()


def _token_array(tokens: Any) -> array[int]:
    # The "I" of the array module has 4 bytes wherever CPython runs, and refuses what does not fit.
    try:
        return array("I", tokens)
    except OverflowError:
        raise ValueError(f"tokens: ids from 0 to {TOKEN_ID_MAX}; given: one outside") from None
    except TypeError:
        raise TypeError("tokens: a sequence of integers; given: something else among them") from None
