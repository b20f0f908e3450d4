"""A prompt whose prefix is stored gives the same logits as one computed, whatever the cache service does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from terracekv.client.errors import TierUnavailable
from terracekv.client.kv_layers import LayerGroup
from terracekv.client.model_identity import digest_weights
from terracekv.client.tensors import decode_tensors, encode_tensors
from terracekv.client.transformers import CacheUnsupported, Prefilled, PrefixCache
from terracekv.client.values import MISS, Failed, Hit, Match, Miss, StoreReport

BLOCK = 16
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "vocab_size": 200,
    "max_position_embeddings": 512,
}


class BlockStore:
    """The blocks of a server, in this process, behind the calls of a client."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[bytes, int], bytes] = {}
        self.fetched: list[tuple[bytes, int]] = []

    def match_blocks(
        self, digests: Sequence[bytes], groups: Sequence[tuple[int, int]] = ((0, 0),), namespace: str = "blocks"
    ) -> Match:
        for length in range(len(digests), 0, -1):
            needed = [
                (digest, group)
                for group, window in groups
                for digest in digests[max(length - window, 0) if window else 0 : length]
            ]
            if all(key in self.blocks for key in needed):
                return Match(length)
        return Match(0)

    def iter_blocks(
        self, keys: Sequence[tuple[bytes, int]], namespace: str = "blocks"
    ) -> Iterator[tuple[int, Hit | Miss]]:
        for index, key in enumerate(keys):
            self.fetched.append(key)
            yield index, Hit(self.blocks[key], 1, "memory") if key in self.blocks else MISS

    def store_blocks(
        self,
        items: Iterable[tuple[tuple[bytes, int], bytes]],
        ttl_s: float | None = None,
        durability: Any = None,
        namespace: str = "blocks",
    ) -> StoreReport:
        stored = kept = 0
        for key, payload in items:
            kept += key in self.blocks
            stored += key not in self.blocks
            self.blocks.setdefault(key, bytes(payload))
        return StoreReport(stored, kept)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    # Bits may depend on how a product is split over threads.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def llama(dtype: torch.dtype = torch.float32, attention: str = "sdpa", seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    settings = {"num_hidden_layers": 3, "num_key_value_heads": 2, "attn_implementation": attention, **SIZES, **changes}
    return LlamaForCausalLM(LlamaConfig(**settings)).to(dtype).eval()


def gemma(window: int, dtype: torch.dtype = torch.float32, attention: str = "sdpa", seed: int = 0) -> Any:
    torch.manual_seed(seed)
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3TextConfig(
        num_hidden_layers=4,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=window,
        layer_types=kinds,
        attn_implementation=attention,
        **SIZES,
    )
    return Gemma3ForCausalLM(config).to(dtype).eval()


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 200, (length,), generator=generator).tolist()


def prefixes(store: Any, model: Any, /, **options: Any) -> PrefixCache:
    return PrefixCache(store, model, **{"model_id": "tiny", "revision": "1", "block_tokens": BLOCK, **options})


def assert_same_state(one: Prefilled, other: Prefilled) -> None:
    assert torch.equal(one.logits, other.logits)
    assert len(one.cache.layers) == len(other.cache.layers)
    for left, right in zip(one.cache.layers, other.cache.layers, strict=True):
        assert type(left) is type(right)
        assert left.get_seq_length() == right.get_seq_length()
        assert left.get_mask_sizes(1) == right.get_mask_sizes(1)
        assert torch.equal(left.keys, right.keys)
        assert torch.equal(left.values, right.values)


def next_logits(model: Any, prefilled: Prefilled, tokens: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([list(tokens)]), cache=prefilled.cache).logits


MODELS: dict[str, Any] = {
    "llama": llama,
    "gemma, window under a block": lambda *kind: gemma(10, *kind),
    "gemma, window of a block": lambda *kind: gemma(BLOCK, *kind),
    "gemma, window of a block and one": lambda *kind: gemma(BLOCK + 1, *kind),
    "gemma, window over a block": lambda *kind: gemma(40, *kind),
    "gemma, window over the prompt": lambda *kind: gemma(300, *kind),
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_going_on_from_a_loaded_prefix_gives_the_same_bits_as_going_on_from_the_saved_cache(
    make: Any, dtype: torch.dtype, attention: str
) -> None:
    model = make(dtype, attention)
    for length in (15, 16, 17, 33, 48, 57, 80):
        tokens = prompt(length)
        with prefixes(BlockStore(), model) as cache:
            cold = cache.prefill(tokens)
            assert cache.flush()
            warm = cache.prefill(tokens)
        assert (cold.tokens_loaded, cold.tokens_computed) == (0, length)
        assert warm.tokens_loaded == (length - 1) // BLOCK * BLOCK
        assert warm.tokens_computed == length - warm.tokens_loaded
        assert_same_state(cold, warm)
        for step in ([7], prompt(20, seed=1)):
            assert torch.equal(next_logits(model, cold, step), next_logits(model, warm, step))


@pytest.mark.parametrize("make", [llama, lambda: gemma(40)], ids=["llama", "gemma"])
def test_logits_are_those_of_the_model_without_any_cache(make: Any) -> None:
    model, tokens = make(), prompt(75)
    with prefixes(BlockStore(), model) as cache:
        cache.prefill(tokens)
        assert cache.flush()
        warm = cache.prefill(tokens)
    with torch.no_grad():
        plain = model(torch.tensor([tokens])).logits[:, -1]
    torch.testing.assert_close(warm.logits, plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [llama, lambda: gemma(24)], ids=["llama", "gemma"])
@pytest.mark.parametrize(("shared", "loaded"), [(15, 0), (16, 16), (40, 32), (48, 48), (63, 48), (64, 64)])
def test_prompt_that_shares_a_prefix_loads_its_whole_blocks_and_computes_the_rest(
    make: Any, shared: int, loaded: int
) -> None:
    model = make()
    first = prompt(64) + prompt(20, seed=1)
    second = first[:shared] + [(token + 1) % 200 for token in first[shared:]] + [5]
    store = BlockStore()
    with prefixes(store, model) as cache:
        cache.prefill(first)
        assert cache.flush()
        warm = cache.prefill(second)
    assert warm.tokens_loaded == loaded
    with prefixes(BlockStore(), model) as fresh:
        assert_same_state(fresh.prefill(second), warm)


def test_another_process_with_the_same_model_finds_the_prefix() -> None:
    store, tokens = BlockStore(), prompt(70)
    with prefixes(store, gemma(24)) as one:
        cold = one.prefill(tokens)
    with prefixes(store, gemma(24)) as other:
        warm = other.prefill(tokens)
    assert warm.tokens_loaded == 64
    assert warm.tiers == {"memory": 4 + 2}
    assert warm.bytes_loaded == sum(len(store.blocks[key]) for key in store.fetched)
    assert_same_state(cold, warm)


@pytest.mark.parametrize("make", [llama, lambda: gemma(24)], ids=["llama", "gemma"])
def test_generation_goes_on_to_the_same_tokens(make: Any) -> None:
    model, store = make(), BlockStore()
    ids = torch.tensor([prompt(70)])
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    plain = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    with prefixes(store, model) as cache:
        cold = cache.generate(ids, **options)
        assert cache.flush()
        warm = cache.generate(ids, **options)
        assert cache.counters.tokens_loaded == 64
    assert plain.shape == (1, 82)
    assert torch.equal(plain, cold)
    assert torch.equal(plain, warm)


def test_prompt_of_one_token_is_generated_from() -> None:
    with prefixes(BlockStore(), llama()) as cache:
        assert cache.generate(torch.tensor([[5]]), max_new_tokens=3, do_sample=False).shape == (1, 4)
        assert cache.prefill([5]).tokens_computed == 1


def test_chunks_of_several_blocks_store_every_block_and_load_at_any_border() -> None:
    model, tokens = gemma(24), prompt(101)
    store = BlockStore()
    with prefixes(store, model, chunk_blocks=4) as cache:
        saved = cache.prefill(tokens)
        assert cache.flush()
        assert len(store.blocks) == 6 * 2
        assert_same_state(saved, cache.prefill(tokens))
        for length in (17, 40, 64, 65, 99):
            loaded = cache.prefill(tokens[:length])
            assert loaded.tokens_loaded == (length - 1) // BLOCK * BLOCK
            with torch.no_grad():
                plain = model(torch.tensor([tokens[:length]])).logits[:, -1]
            torch.testing.assert_close(loaded.logits, plain, atol=1e-5, rtol=0)


def test_reader_stores_nothing() -> None:
    store = BlockStore()
    with prefixes(store, llama(), store=False) as cache:
        cache.prefill(prompt(40))
    assert not store.blocks


def test_sliding_layers_load_only_the_blocks_of_their_last_window() -> None:
    store, model, tokens = BlockStore(), gemma(40), prompt(16 * 10 + 1)
    with prefixes(store, model) as cache:
        cache.prefill(tokens)
        assert cache.flush()
        cache.prefill(tokens)
    assert [group for _, group in store.fetched].count(0) == 10
    assert [group for _, group in store.fetched].count(1) == 3  # 39 tokens: two whole blocks and a part of one


def test_prefix_is_found_though_old_blocks_of_sliding_layers_are_gone() -> None:
    store, model, tokens = BlockStore(), gemma(24), prompt(16 * 6 + 1)
    with prefixes(store, model) as cache:
        cold = cache.prefill(tokens)
        assert cache.flush()
        chain = [digest for digest, group in store.blocks if group == 0]
        for digest in chain[:4]:
            del store.blocks[digest, 1]
        warm = cache.prefill(tokens)
    assert warm.tokens_loaded == 96
    assert_same_state(cold, warm)


def test_loaded_caches_share_nothing_with_each_other_or_the_store() -> None:
    store, model, tokens = BlockStore(), llama(), prompt(50)
    with prefixes(store, model) as cache:
        cache.prefill(tokens)
        assert cache.flush()
        spoiled = cache.prefill(tokens)
        for layer in spoiled.cache.layers:
            layer.keys.zero_()
        assert not torch.equal(cache.prefill(tokens).cache.layers[0].keys, spoiled.cache.layers[0].keys)


@pytest.mark.parametrize(
    "options",
    [
        {"model_id": "other"},
        {"revision": "2"},
        {"block_tokens": 32},
        {"world_size": 2},
        {"rank": 1, "world_size": 2},
        {"adapter": "french", "adapter_revision": "1"},
    ],
)
def test_another_identity_of_the_same_model_never_hits(options: dict[str, Any]) -> None:
    store, model, tokens = BlockStore(), llama(), prompt(70)
    with prefixes(store, model) as cache:
        cache.prefill(tokens)
    with prefixes(store, model, **options) as other:
        assert other.prefill(tokens).tokens_loaded == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: llama(torch.bfloat16),
        lambda: llama(torch.float16),
        lambda: llama(attention="eager"),
        lambda: llama(rms_norm_eps=1e-5),
        lambda: llama(rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
        lambda: llama(num_hidden_layers=2),
        lambda: gemma(24),
    ],
)
def test_another_model_under_the_same_name_never_hits(make: Any) -> None:
    store, tokens = BlockStore(), prompt(70)
    with prefixes(store, llama()) as cache:
        cache.prefill(tokens)
    with prefixes(store, make()) as other:
        assert other.prefill(tokens).tokens_loaded == 0


def test_without_a_revision_the_weights_decide() -> None:
    store, tokens = BlockStore(), prompt(70)
    with prefixes(store, llama(seed=1), revision=None) as cache:
        cache.prefill(tokens)
    with prefixes(store, llama(seed=1), revision=None) as same:
        assert same.prefill(tokens).tokens_loaded == 64
    with prefixes(store, llama(seed=2), revision=None) as other:
        assert other.prefill(tokens).tokens_loaded == 0


def test_digest_of_weights_sees_every_one_of_them() -> None:
    model = llama()
    before = digest_weights(model)
    assert digest_weights(llama()) == before
    with torch.no_grad():
        model.model.norm.weight[0] += 1
    assert digest_weights(model) != before


class Refusing(BlockStore):
    """A service of which one call fails."""

    def __init__(self, call: str, blocks: dict[tuple[bytes, int], bytes]) -> None:
        super().__init__()
        self.call = call
        self.blocks = dict(blocks)

    def match_blocks(self, *args: Any, **kwargs: Any) -> Match:
        if self.call == "match":
            raise ConnectionError
        return super().match_blocks(*args, **kwargs)

    def iter_blocks(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Hit | Miss]]:
        for count, item in enumerate(super().iter_blocks(*args, **kwargs)):
            if self.call == "fetch" and count == 3:
                raise TimeoutError
            yield item

    def store_blocks(self, *args: Any, **kwargs: Any) -> StoreReport:
        if self.call == "store":
            raise ConnectionError
        return super().store_blocks(*args, **kwargs)


@pytest.mark.parametrize("call", ["match", "fetch", "store"])
def test_no_failure_of_the_service_fails_a_prefill(call: str, caplog: pytest.LogCaptureFixture) -> None:
    model, store, tokens = gemma(24), BlockStore(), prompt(70)
    with prefixes(store, model) as cache:
        cold = cache.prefill(tokens)
    refusing = Refusing(call, store.blocks if call == "fetch" else {})
    with prefixes(refusing, model) as cache:
        prefilled = cache.prefill(tokens)
        assert cache.flush()
        assert_same_state(cold, prefilled)
        assert prefilled.tokens_loaded == 0
        assert cache.counters.load_errors == (call != "store")
        assert cache.store_counters.failed == (8 if call == "store" else 0)
    assert "not loaded" in caplog.text or "not stored" in caplog.text


@pytest.mark.parametrize(("lost", "group", "loaded"), [(0, 0, 0), (2, 0, 32), (4, 0, 64), (4, 1, 64), (3, 1, 48)])
def test_block_gone_between_match_and_fetch_shortens_the_prefix(lost: int, group: int, loaded: int) -> None:
    model, store, tokens = gemma(24), BlockStore(), prompt(16 * 5 + 1)
    with prefixes(store, model) as cache:
        cold = cache.prefill(tokens)
        assert cache.flush()
        chain = [digest for digest, number in store.blocks if number == 0]

        class Evicting(BlockStore):
            def match_blocks(self, *args: Any, **kwargs: Any) -> Match:
                match = super().match_blocks(*args, **kwargs)
                self.blocks.pop((chain[lost], group), None)
                return match

        evicting = Evicting()
        evicting.blocks = dict(store.blocks)
    with prefixes(evicting, model) as cache:
        warm = cache.prefill(tokens)
        assert cache.counters.blocks_missing == 1
        assert cache.flush()
        assert evicting.blocks.keys() == store.blocks.keys()  # the lost block is back
    assert warm.tokens_loaded == loaded
    assert_same_state(cold, warm)


def test_block_whose_tier_failed_is_computed() -> None:
    class HalfBroken(BlockStore):
        def iter_blocks(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Any]]:
            for index, result in super().iter_blocks(*args, **kwargs):
                yield index, Failed(TierUnavailable("a tier failed")) if index == 3 else result

    model, store, tokens = llama(), HalfBroken(), prompt(100)
    with prefixes(store, model) as cache:
        cold = cache.prefill(tokens)
        assert cache.flush()
        warm = cache.prefill(tokens)
        assert (cache.counters.blocks_failed, cache.counters.blocks_missing) == (1, 0)
    assert warm.tokens_loaded == 48
    assert warm.tiers == {"memory": 3}
    assert_same_state(cold, warm)


def in_another_format(payload: bytes) -> bytes:
    return encode_tensors({name: tensor.view(torch.int32) for name, tensor in decode_tensors(payload).items()})


@pytest.mark.parametrize(
    "damage",
    [
        lambda payload: b"",
        lambda payload: payload[:-1],
        lambda payload: b"\xff" * len(payload),
        in_another_format,
        lambda payload: encode_tensors({name: t[:1] for name, t in decode_tensors(payload).items()}),
        lambda payload: encode_tensors({"keys": decode_tensors(payload)["keys"]}),
        lambda payload: encode_tensors({**decode_tensors(payload), "more": torch.ones(1)}),
    ],
)
def test_block_of_another_format_is_refused_and_computed(damage: Any) -> None:
    model, store, tokens = llama(), BlockStore(), prompt(70)
    with prefixes(store, model) as cache:
        cold = cache.prefill(tokens)
        assert cache.flush()
        key = list(store.blocks)[2]
        store.blocks[key] = damage(store.blocks[key])
        warm = cache.prefill(tokens)
        assert cache.counters.blocks_invalid == 1
    assert warm.tokens_loaded == 32
    assert_same_state(cold, warm)


def test_service_that_hangs_costs_a_bounded_wait_and_the_blocks_that_do_not_fit() -> None:
    released = threading.Event()

    class Hanging(BlockStore):
        def store_blocks(self, *args: Any, **kwargs: Any) -> StoreReport:
            assert released.wait(30)
            return super().store_blocks(*args, **kwargs)

    store = Hanging()
    with prefixes(store, llama(), pending_bytes_max=40_000, store_wait_s_max=0.2) as cache:
        begun = time.monotonic()
        cache.prefill(prompt(16 * 10))
        assert time.monotonic() - begun < 5
        assert cache.store_counters.dropped >= 6
        assert not cache.flush(timeout_s=0.01)
        released.set()
        assert cache.flush()
        assert cache.store_counters.stored + cache.store_counters.dropped == 10
        assert len(store.blocks) == cache.store_counters.stored >= 1


def tiny(kind: str, **settings: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **settings})
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: llama().train(), "training mode"),
        (lambda: llama().model, "no head that gives logits"),
        (lambda: llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "'dynamic'"),
        (
            lambda: tiny("Lfm2", num_hidden_layers=2, num_key_value_heads=2, layer_types=["conv", "full_attention"]),
            "LinearAttentionLayer",
        ),
        (lambda: tiny("Mistral", num_hidden_layers=1, num_key_value_heads=2, sliding_window=1), "one token"),
        (
            lambda: transformers.T5ForConditionalGeneration(
                transformers.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=50)
            ).eval(),
            "encoder-decoder",
        ),
    ],
)
def test_model_whose_cache_cannot_be_kept_by_blocks_is_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(CacheUnsupported, match=words):
        prefixes(BlockStore(), make())


@pytest.mark.parametrize("kind", ["static", "quantized", "offloaded_static"])
def test_model_set_to_another_kind_of_cache_is_refused(kind: str) -> None:
    model = llama()
    model.generation_config.cache_implementation = kind
    with pytest.raises(CacheUnsupported, match="only the dynamic cache"):
        prefixes(BlockStore(), model)


@pytest.mark.parametrize("mark", [{"peft_config": {"default": object()}}, {"_hf_peft_config_loaded": True}])
def test_model_with_an_adapter_must_name_it(mark: dict[str, Any]) -> None:
    model = llama()
    for name, value in mark.items():
        setattr(model, name, value)
    with pytest.raises(CacheUnsupported, match="name it by adapter="):
        prefixes(BlockStore(), model)
    prefixes(BlockStore(), model, adapter="french", adapter_revision="1").close()


@pytest.mark.parametrize(
    ("input_ids", "words"),
    [([], "at least one token"), (torch.zeros(2, 5, dtype=torch.long), r"given: \[2, 5\]"), (torch.tensor(3), "given")],
)
def test_input_that_is_not_one_prompt_is_refused(input_ids: Any, words: str) -> None:
    with prefixes(BlockStore(), llama()) as cache, pytest.raises(ValueError, match=words):
        cache.prefill(input_ids)


def test_group_needs_the_blocks_that_cover_its_window() -> None:
    def group(window: int) -> LayerGroup:
        return LayerGroup(number=1, layers=(0,), window=window, heads=1, key_size=8, value_size=8, dtype=torch.float32)

    for window in range(2, 80):
        for blocks in range(1, 9):
            needed = min(blocks * BLOCK, window - 1)
            first = group(window).first_block(blocks, BLOCK)
            assert (blocks - first) * BLOCK >= needed > (blocks - first - 1) * BLOCK
            assert min(group(window).window_blocks(BLOCK), blocks) == blocks - first
    assert group(0).window_blocks(BLOCK) == group(0).first_block(7, BLOCK) == 0
