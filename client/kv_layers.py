"""The layers of a transformers cache as groups whose blocks are stored, and a prefix rebuilt from such blocks.

A cache rebuilt here holds, bit for bit, what the model's own cache held after the same tokens. Needs the extra
`transformers`.

Layers of one group share a kind of attention and a shape. A group's block is one payload of two tensors, `keys` and
`values`, each [layers of the group, heads, tokens of the block, head size]. A layer with a sliding window of w tokens
only ever looks back w - 1 tokens, so a prefix needs of its group the blocks that cover its last w - 1 tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from transformers import DynamicCache
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from terracekv.client.errors import TerraceKVError
from terracekv.client.tensors import EncodedTensor, TensorPayloadInvalid, encode_tensors, parse_tensors

PAYLOAD_LAYOUT: Final = "terracekv-tensors/keys,values/layer,head,token,dim/1"
GROUPS_MAX: Final = 64


class CacheUnsupported(TerraceKVError, TypeError):
    """A model whose cache cannot be kept by blocks; the message says which part and why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers whose blocks are stored together."""

    number: int
    layers: tuple[int, ...]  # their places in the model
    window: int  # tokens that a layer looks at, its own included; 0: all
    heads: int
    key_size: int  # elements of one head of one token
    value_size: int
    dtype: torch.dtype

    def tokens_needed(self, prefix_tokens: int) -> int:
        """How many of the last tokens of a prefix its layers still look at."""
        return min(prefix_tokens, self.window - 1) if self.window else prefix_tokens

    def window_blocks(self, block_tokens: int) -> int:
        """How many of the last blocks of a prefix are needed; 0: all."""
        return -(-(self.window - 1) // block_tokens) if self.window else 0

    def first_block(self, prefix_blocks: int, block_tokens: int) -> int:
        """The first block that a prefix needs."""
        prefix_tokens = prefix_blocks * block_tokens
        return (prefix_tokens - self.tokens_needed(prefix_tokens)) // block_tokens


def read_groups(cache: DynamicCache) -> tuple[LayerGroup, ...]:
    """The groups of a cache that has seen at least one token: full attention from 0 on, then windows, small to large.

    Raises CacheUnsupported for layers of another kind: linear attention, static, quantised.
    """
    members: dict[tuple[Any, ...], list[int]] = {}
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, DummyLayer):
            continue  # it reads another layer's keys and values and keeps none
        members.setdefault(_geometry(index, layer), []).append(index)
    if not members:
        raise CacheUnsupported("the model keeps no keys and values")
    if len(members) > GROUPS_MAX:
        raise CacheUnsupported(f"at most {GROUPS_MAX} groups of layers; given: {len(members)}")
    full = [key for key in members if not key[0]]
    sliding = sorted((key for key in members if key[0]), key=lambda key: key[0])
    # 0 is the number of full attention even where a model has none.
    numbered = [*enumerate(full), *enumerate(sliding, start=max(len(full), 1))]
    return tuple(_group(number, key, members[key]) for number, key in numbered)


def _geometry(index: int, layer: Any) -> tuple[Any, ...]:
    # Exact types: a subclass may keep more than keys and values, or keep them otherwise.
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
        raise CacheUnsupported(
            f"layer {index} keeps a {type(layer).__name__}: only plain keys and values of full or "
            "sliding attention can be kept by blocks"
        )
    window = layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else 0
    if window == 1:
        raise CacheUnsupported(f"layer {index} has a sliding window of one token")
    if not layer.is_initialized or layer.keys.ndim != 4 or layer.keys.dtype != layer.values.dtype:
        raise CacheUnsupported(f"layer {index} keeps no keys and values [batch, heads, tokens, size] of one dtype")
    keys, values = layer.keys, layer.values
    if keys.shape[:3] != values.shape[:3]:
        raise CacheUnsupported(f"layer {index} keeps keys and values for different heads or tokens")
    return window, keys.shape[1], keys.shape[3], values.shape[3], keys.dtype


def _group(number: int, geometry: tuple[Any, ...], layers: list[int]) -> LayerGroup:
    window, heads, key_size, value_size, dtype = geometry
    return LayerGroup(
        number=number,
        layers=tuple(layers),
        window=window,
        heads=heads,
        key_size=key_size,
        value_size=value_size,
        dtype=dtype,
    )


class RecordingCache(DynamicCache):
    """A cache that also keeps what each layer is given, before a sliding window drops any of it."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.given: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Notes the states of a layer, then caches them as usual."""
        self.given[layer_idx] = (key_states, value_states)
        updated: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return updated

    def take_given(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """What the layers were given since the last call."""
        given, self.given = self.given, {}
        return given

    def plain(self, config: Any) -> DynamicCache:
        """The same layers in an ordinary cache."""
        cache = DynamicCache(config=config)
        cache.layers = self.layers
        return cache


def encode_block(group: LayerGroup, given: dict[int, tuple[torch.Tensor, torch.Tensor]], begin: int, end: int) -> bytes:
    """The payload of a group's block: tokens `begin` to `end` of what its layers were given."""
    keys, values = (torch.stack([given[layer][which][0, :, begin:end] for layer in group.layers]) for which in (0, 1))
    return encode_tensors({"keys": keys, "values": values})


class PrefixAssembly:
    """The memory of one prefix, filled block by block in any order, then handed over as a cache without a copy."""

    def __init__(
        self, groups: Sequence[LayerGroup], prefix_blocks: int, block_tokens: int, devices: Mapping[int, torch.device]
    ) -> None:
        self.prefix_blocks = prefix_blocks
        self._block_tokens = block_tokens
        self._groups = {group.number: group for group in groups}
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for group in groups:
            for layer in group.layers:
                self._layers[layer] = self._allocated(group, devices[layer])

    def _allocated(self, group: LayerGroup, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = group.tokens_needed(self.prefix_blocks * self._block_tokens)
        keys, values = (
            torch.empty((1, group.heads, tokens, size), dtype=group.dtype, device=device)
            for size in (group.key_size, group.value_size)
        )
        return keys, values

    def blocks(self) -> Iterator[tuple[int, int]]:
        """The blocks it needs as (block of the chain, group), in the order of the chain."""
        for block in range(self.prefix_blocks):
            for group in self._groups.values():
                if block >= group.first_block(self.prefix_blocks, self._block_tokens):
                    yield block, group.number

    def fill(self, block: int, group_number: int, payload: bytes) -> None:
        """Copies one block into its place.

        Raises TensorPayloadInvalid, with nothing copied, for a payload of another number format, shape or layout.
        """
        group = self._groups[group_number]
        for which, encoded in enumerate(self._checked(group, payload)):
            self._copy(group, block, which, encoded)

    def _checked(self, group: LayerGroup, payload: bytes) -> tuple[EncodedTensor, EncodedTensor]:
        tensors = parse_tensors(payload)
        if tensors.keys() != {"keys", "values"}:
            raise TensorPayloadInvalid("block: keys and values; given: other tensors")
        for name, size in (("keys", group.key_size), ("values", group.value_size)):
            shape = (len(group.layers), group.heads, self._block_tokens, size)
            if (tensors[name].dtype, tensors[name].shape) != (group.dtype, shape):
                raise TensorPayloadInvalid(
                    f"block: {name} of {group.dtype} {shape}; given: {tensors[name].dtype} {tensors[name].shape}"
                )
        return tensors["keys"], tensors["values"]

    def _copy(self, group: LayerGroup, block: int, which: int, encoded: EncodedTensor) -> None:
        prefix_tokens = self.prefix_blocks * self._block_tokens
        begin = block * self._block_tokens - (prefix_tokens - group.tokens_needed(prefix_tokens))
        # A window may begin inside its first block.
        skipped = max(-begin, 0)
        rows, copied = encoded.rows(), None
        for place, layer in enumerate(group.layers):
            target = self._layers[layer][which][0, :, begin + skipped : begin + self._block_tokens]
            if target.device.type == "cpu":
                target.view(torch.uint8).numpy()[...] = rows[place, :, skipped:]
            else:
                copied = encoded.tensor().to(target.device) if copied is None else copied
                target.copy_(copied[place, :, skipped:])

    def into(self, cache: DynamicCache) -> None:
        """Makes the prefix the content of an empty cache of the same model."""
        for index, (keys, values) in self._layers.items():
            layer = cache.layers[index]
            assert isinstance(layer, DynamicLayer)  # noqa: S101 - read_groups has seen to it
            layer.lazy_initialization(keys, values)
            # What `update` would do with the same tensors, less a copy of each.
            layer.keys, layer.values = keys, values
            if isinstance(layer, DynamicSlidingWindowLayer):
                # Positions and masks follow from how many tokens were seen, not from how many are kept.
                layer.cumulative_length = self.prefix_blocks * self._block_tokens
