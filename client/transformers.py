"""Prompt prefixes of a transformers model kept in terracekv: a prefill computes only what no earlier one has.

Going on from a loaded prefix gives the same logits, bit for bit, as going on from the cache that was saved. Whatever
happens to the cache service, a prefill succeeds: what cannot be loaded is computed, what cannot be stored is counted.
Needs the extra `transformers`.

    prefixes = PrefixCache(Client("127.0.0.1:50151"), model, model_id="google/gemma-3-270m", revision="2025-08-14")
    output = prefixes.generate(input_ids, max_new_tokens=64)
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

import torch
from transformers import DynamicCache

from terracekv.client.block_keys import BlockKeys
from terracekv.client.block_writer import BlockWriter, PendingBlock, WriterCounters
from terracekv.client.kv_layers import (
    CacheUnsupported,
    LayerGroup,
    PrefixAssembly,
    RecordingCache,
    encode_block,
    read_groups,
)
from terracekv.client.model_identity import check_model, describe_model
from terracekv.client.tensors import TensorPayloadInvalid
from terracekv.client.values import Failed, Hit, Miss

__all__ = ["CacheUnsupported", "Prefilled", "PrefixCache", "PrefixCounters"]

MATCH_DIGESTS_MAX: Final = 16_384
FETCH_BLOCKS_MAX: Final = 4_096
LOAD_TRIES_MAX: Final = 3
PENDING_BYTES_MAX: Final = 268_435_456
STORE_WAIT_S_MAX: Final = 2.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class PrefixCounters:
    """What prefills did since the cache was made."""

    prefills: int = 0
    tokens_loaded: int = 0  # tokens whose keys and values came from the cache service
    tokens_computed: int = 0  # tokens that went through the model
    blocks_missing: int = 0  # matched, then not there when fetched
    blocks_failed: int = 0  # not delivered because a tier failed
    blocks_invalid: int = 0  # delivered, and no block of this model's
    load_errors: int = 0  # calls to the cache service that raised


@dataclasses.dataclass(frozen=True, slots=True)
class Prefilled:
    """The state of a model after a prompt."""

    cache: DynamicCache  # holds the whole prompt; yours to go on with
    logits: torch.Tensor  # of the prompt's last token, [1, size of the vocabulary]
    tokens_loaded: int
    tokens_computed: int
    bytes_loaded: int
    tiers: Counter[str]  # blocks loaded from each tier


@dataclasses.dataclass(slots=True)
class _Prefix:
    cache: RecordingCache
    blocks: int = 0
    bytes_loaded: int = 0
    tiers: Counter[str] = dataclasses.field(default_factory=Counter)


class PrefixCache:
    """Prefills prompts of one model, loading what is stored and storing what is computed.

    For prompts of one sequence (batch size 1) without padding. `client` is a `terracekv.client.Client`. Calls of one
    PrefixCache come one after the other, as calls of a model do.

    `model_id` and `revision` say which weights these are; without a revision the weights themselves are read and
    digested, once. `block_tokens` (16 to 512) is the grain of sharing: a prefix is found in whole blocks. The model
    computes up to `chunk_blocks` blocks in one forward pass; with 1 a prompt gives the same bits whatever part of its
    prefix was loaded, with more it computes faster, and the bits depend on where the loaded part ended.

    With `store` False it only reads. Blocks are stored in the background, in at most `pending_bytes_max` of memory; a
    prefill waits for room up to `store_wait_s_max` seconds in all, then drops the rest. `namespace` must be an
    immutable one.

    Raises CacheUnsupported for models whose cache is not plain keys and values of full or sliding attention, or whose
    keys depend on more than their prefix; ValueError and TypeError for arguments out of the limits of BlockLayout.
    """

    def __init__(
        self,
        client: Any,
        model: Any,
        *,
        model_id: str,
        revision: str | None = None,
        block_tokens: int = 256,
        chunk_blocks: int = 1,
        namespace: str = "blocks",
        adapter: str = "",
        adapter_revision: str = "",
        rank: int = 0,
        world_size: int = 1,
        ttl_s: float | None = None,
        durability: Any = None,
        store: bool = True,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        store_wait_s_max: float = STORE_WAIT_S_MAX,
    ) -> None:
        if chunk_blocks < 1:
            raise ValueError(f"chunk_blocks: at least 1; given: {chunk_blocks}")
        check_model(model, adapter=adapter, world_size=world_size)
        self.counters = PrefixCounters()
        self._client, self._model, self._namespace = client, model, namespace
        self._config = model.config.get_text_config(decoder=True)
        # Without it a model would give logits, and take memory, for every token of its last pass.
        accepts = inspect.signature(model.forward).parameters
        self._head_options = {"logits_to_keep": 1} if "logits_to_keep" in accepts else {}
        self._groups, self._devices = self._probe()
        self.layout = describe_model(
            model,
            self._groups,
            model_id=model_id,
            revision=revision,
            block_tokens=block_tokens,
            rank=rank,
            world_size=world_size,
            adapter=adapter,
            adapter_revision=adapter_revision,
        )
        self._keys = BlockKeys(self.layout)
        self._block_tokens, self._chunk_blocks = block_tokens, chunk_blocks
        self._stores, self._store_wait_s_max = store, store_wait_s_max
        self._writer = BlockWriter(
            lambda items: client.store_blocks(items, ttl_s=ttl_s, durability=durability, namespace=namespace),
            pending_bytes_max,
        )

    def __enter__(self) -> PrefixCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def store_counters(self) -> WriterCounters:
        """What became of the blocks computed."""
        return self._writer.counters

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Waits until the blocks computed so far are stored; False: some still are not after that time."""
        return self._writer.flush(timeout_s)

    def close(self) -> None:
        """Stores what still waits, then ends the background thread. The client stays open."""
        self._writer.close()

    def prefill(self, input_ids: torch.Tensor | Sequence[int]) -> Prefilled:
        """Brings the model's cache to the end of a prompt, and gives the logits of its last token.

        `input_ids` is a sequence of token ids, or a tensor of shape [tokens] or [1, tokens], of at least one token.
        The last token is always computed. Errors of the model are raised, those of the cache service never are.
        """
        tokens = _plain_tokens(input_ids)
        digests = self._keys.chain(tokens)
        prefix = self._load(digests[: (len(tokens) - 1) // self._block_tokens])
        logits = self._compute(tokens, digests, prefix)
        loaded = prefix.blocks * self._block_tokens
        self.counters.prefills += 1
        self.counters.tokens_loaded += loaded
        self.counters.tokens_computed += len(tokens) - loaded
        cache = prefix.cache.plain(self._config)
        return Prefilled(cache, logits, loaded, len(tokens) - loaded, prefix.bytes_loaded, prefix.tiers)

    def generate(self, input_ids: torch.Tensor, **options: Any) -> Any:
        """`model.generate` on a prompt of shape [1, tokens], with its prefix from the cache service.

        Options are those of `generate`, but for `cache`.
        """
        options.setdefault("attention_mask", torch.ones_like(input_ids))
        if input_ids.shape[-1] > 1:
            # generate wants to compute a token itself: it samples from that token's logits.
            options["cache"] = self.prefill(input_ids[:, :-1]).cache
        return self._model.generate(input_ids, **options)

    def _probe(self) -> tuple[tuple[LayerGroup, ...], dict[int, torch.device]]:
        # One token through the model shows what its layers really keep, which no config tells for all models.
        cache = RecordingCache(self._config)
        self._forward(cache, [0], last=False)
        devices = {index: keys.device for index, (keys, _) in cache.take_given().items()}
        return read_groups(cache), devices

    def _load(self, digests: list[bytes]) -> _Prefix:
        try:
            return self._longest_prefix(digests)
        except Exception as error:  # a cache that fails is a cache that misses
            self.counters.load_errors += 1
            _log.warning("prefix not loaded: %s", type(error).__name__)
            return _Prefix(RecordingCache(self._config))

    def _longest_prefix(self, digests: list[bytes]) -> _Prefix:
        prefix = _Prefix(RecordingCache(self._config))
        blocks = self._match(digests)
        for _ in range(LOAD_TRIES_MAX):
            if not blocks:
                break
            assembly = PrefixAssembly(self._groups, blocks, self._block_tokens, self._devices)
            prefix.tiers.clear()
            prefix.bytes_loaded = 0
            missing = self._fetch(assembly, digests, prefix)
            if missing is None:
                assembly.into(prefix.cache)
                prefix.blocks = blocks
                return prefix
            # Evicted between match and fetch: what comes before it may still be whole.
            blocks = missing
        return _Prefix(RecordingCache(self._config))

    def _match(self, digests: list[bytes]) -> int:
        if not digests:
            return 0
        groups = [(group.number, group.window_blocks(self._block_tokens)) for group in self._groups]
        match = self._client.match_blocks(digests[:MATCH_DIGESTS_MAX], groups=groups, namespace=self._namespace)
        return min(int(match.blocks), len(digests))

    def _fetch(self, assembly: PrefixAssembly, digests: list[bytes], prefix: _Prefix) -> int | None:
        """Fills an assembly; returns the first block of the chain that could not be had, or None."""
        missing: int | None = None
        wanted = list(assembly.blocks())
        for start in range(0, len(wanted), FETCH_BLOCKS_MAX):
            part = wanted[start : start + FETCH_BLOCKS_MAX]
            keys = [(digests[block], group) for block, group in part]
            for index, result in self._client.iter_blocks(keys, namespace=self._namespace):
                block, group = part[index]
                if not self._take(assembly, block, group, result, prefix):
                    missing = block if missing is None else min(missing, block)
        return missing

    def _take(
        self, assembly: PrefixAssembly, block: int, group: int, result: Hit | Miss | Failed, prefix: _Prefix
    ) -> bool:
        if not isinstance(result, Hit):
            failed = isinstance(result, Failed)
            self.counters.blocks_failed += failed
            self.counters.blocks_missing += not failed
            return False
        try:
            assembly.fill(block, group, result.value)
        except TensorPayloadInvalid as error:
            self.counters.blocks_invalid += 1
            _log.warning("block refused: %s", error)
            return False
        prefix.bytes_loaded += len(result.value)
        prefix.tiers[result.tier] += 1
        return True

    def _compute(self, tokens: list[int], digests: list[bytes], prefix: _Prefix) -> torch.Tensor:
        wait_s = self._store_wait_s_max
        for begin, end in self._chunks(prefix.blocks, len(digests), len(tokens)):
            logits = self._forward(prefix.cache, tokens[begin:end], last=end == len(tokens))
            given = prefix.cache.take_given()
            first, behind = begin // self._block_tokens, end // self._block_tokens
            if self._stores and behind > first and not self._store(digests[first:behind], given, wait_s):
                wait_s = 0.0
        return logits

    def _chunks(self, loaded_blocks: int, whole_blocks: int, tokens: int) -> list[tuple[int, int]]:
        """Runs of tokens to compute, one forward pass each: blocks up to multiples of a chunk, then the rest."""
        borders = {loaded_blocks, whole_blocks, *range(0, whole_blocks, self._chunk_blocks)}
        positions = [border * self._block_tokens for border in sorted(borders) if border >= loaded_blocks]
        return [(begin, end) for begin, end in itertools.pairwise([*positions, tokens]) if begin < end]

    def _store(self, digests: list[bytes], given: dict[int, Any], wait_s: float) -> bool:
        size = self._block_tokens
        blocks = [
            PendingBlock(
                (digest, group.number),
                lambda group=group, begin=place * size: encode_block(group, given, begin, begin + size),  # type: ignore[misc]
            )
            for place, digest in enumerate(digests)
            for group in self._groups
        ]
        size_bytes = sum(tensor.nbytes for pair in given.values() for tensor in pair)
        return self._writer.submit(blocks, size_bytes, wait_s)

    def _forward(self, cache: DynamicCache, tokens: list[int], *, last: bool) -> torch.Tensor:
        """One pass of the model over tokens; the logits of the last one where they are wanted."""
        device = self._model.get_input_embeddings().weight.device
        input_ids = torch.tensor([tokens], dtype=torch.long, device=device)
        with torch.no_grad():
            if not last:
                # Keys and values do not need the head, whose one row costs more than a small model's layers.
                self._model.base_model(input_ids=input_ids, cache=cache, use_cache=True)
                return torch.empty(0)
            output = self._model(input_ids=input_ids, cache=cache, use_cache=True, **self._head_options)
        logits: torch.Tensor = output.logits[:, -1]
        return logits


def _plain_tokens(input_ids: torch.Tensor | Sequence[int]) -> list[int]:
    if isinstance(input_ids, torch.Tensor):
        if input_ids.ndim == 2 and input_ids.shape[0] == 1:
            input_ids = input_ids[0]
        if input_ids.ndim != 1:
            raise ValueError(f"input_ids: one sequence, [tokens] or [1, tokens]; given: {list(input_ids.shape)}")
        input_ids = input_ids.tolist()
    tokens = list(input_ids)
    if not tokens:
        raise ValueError("input_ids: at least one token; given: none")
    return tokens
