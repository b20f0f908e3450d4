"""What decides the keys and values of a transformers model, as a block layout: two models never share a block.

Everything that can change a block's bytes is in it, or refused in words. Needs the extra `transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
import transformers
from blake3 import blake3

from terracekv.client.block_keys import BlockLayout
from terracekv.client.kv_layers import PAYLOAD_LAYOUT, CacheUnsupported, LayerGroup
from terracekv.client.tensors import raw_bytes

# Settings that name a model or its making, and not what it computes.
_VOLATILE_SETTINGS: Final = frozenset(
    {"_name_or_path", "_model_name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype"}
)
# These turn a token by an angle that depends on how long the prompt has become, so its key is not its prefix's alone.
_LENGTH_BOUND_ROPES: Final = frozenset({"dynamic", "longrope"})


def check_model(model: Any, *, adapter: str, world_size: int) -> None:
    """Raises CacheUnsupported for a model whose keys and values depend on more than tokens, weights and settings."""
    if model.training:
        raise CacheUnsupported("the model is in training mode, where dropout changes what it computes")
    if model.get_output_embeddings() is None:
        raise CacheUnsupported("the model has no head that gives logits: pass the model for causal language modelling")
    if model.config.is_encoder_decoder:
        raise CacheUnsupported("an encoder-decoder model: its decoder depends on the encoder's input too")
    kind = getattr(getattr(model, "generation_config", None), "cache_implementation", None)
    if kind not in (None, "dynamic", "dynamic_full", "hybrid"):
        raise CacheUnsupported(f"cache_implementation {kind!r}: only the dynamic cache can be kept by blocks")
    adapted = getattr(model, "_hf_peft_config_loaded", False) or getattr(model, "peft_config", None)
    if adapted and not adapter:
        raise CacheUnsupported("the model carries an adapter: name it by adapter= and adapter_revision=")
    if (getattr(model, "tp_size", None) or 1) > world_size:
        raise CacheUnsupported(f"the model is split over {model.tp_size} ranks: say so by rank= and world_size=")
    for rope in _rope_types(model.config.get_text_config(decoder=True).to_dict()):
        if rope in _LENGTH_BOUND_ROPES:
            raise CacheUnsupported(f"rope type {rope!r}: it turns a token by the length of the whole prompt")


def describe_model(
    model: Any,
    groups: Sequence[LayerGroup],
    *,
    model_id: str,
    revision: str | None,
    block_tokens: int,
    rank: int,
    world_size: int,
    adapter: str,
    adapter_revision: str,
) -> BlockLayout:
    """The layout of a model's blocks. Without a revision, the digest of all its weights stands for it."""
    config = model.config.get_text_config(decoder=True)
    return BlockLayout(
        model=model_id,
        revision=revision if revision is not None else f"weights:{digest_weights(model)}",
        dtype=",".join(sorted({_dtype_name(group.dtype) for group in groups})),
        layout=PAYLOAD_LAYOUT,
        block_tokens=block_tokens,
        rank=rank,
        world_size=world_size,
        adapter=adapter,
        adapter_revision=adapter_revision,
        extra={
            "attention": str(config._attn_implementation),
            "config": _digest_config(config),
            "engine": f"transformers/{transformers.__version__}",
            "geometry": blake3(repr(groups).encode()).hexdigest(),
            "parameters": _dtype_name(model.dtype),
        },
    )


def digest_weights(model: torch.nn.Module) -> str:
    """BLAKE3 of all weights and buffers with their names, dtypes and shapes, in hexadecimal.

    Reads them once: 2 to 4 GB a second from memory.
    """
    hasher = blake3(max_threads=blake3.AUTO)
    for name, tensor in sorted(model.state_dict().items()):
        head = json.dumps([name, _dtype_name(tensor.dtype), list(tensor.shape)]).encode()
        hasher.update(len(head).to_bytes(4, "big") + head)
        hasher.update(raw_bytes(tensor))
    return hasher.hexdigest()


def _digest_config(config: Any) -> str:
    settings = {name: value for name, value in config.to_dict().items() if name not in _VOLATILE_SETTINGS}
    return blake3(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def _rope_types(settings: Any) -> Iterator[Any]:
    """Every rope type named anywhere in a config: models may have one for each type of layer."""
    if not isinstance(settings, dict):
        return
    for name, value in settings.items():
        if name == "rope_type":
            yield value
        yield from _rope_types(value)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
