"""Real nodes as child processes: started by the command a user types, ready when they say so, always ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

READY = re.compile(r"terracekv ready on (\S+)")
START_TIMEOUT_S = 60.0
COMMAND = (sys.executable, "-m", "terracekv.client")


@dataclass
class NodeProcess:
    """A `terracekv serve` of its own process. `target` and `metrics_url` are known once it is ready."""

    data_dir: Path
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    target: str = ""
    metrics_url: str = ""
    lines: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None

    def start(self) -> NodeProcess:
        """Starts it and waits until it serves. Raises AssertionError with what it said instead."""
        self.lines = []
        with self._errors_file.open("a") as errors:
            self.process = subprocess.Popen(
                [
                    *COMMAND, "serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                    "--data-dir", str(self.data_dir), *self.arguments,
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **self.environment},
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        self._wait_until_ready()
        return self

    @property
    def _errors_file(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.stderr"

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until:
            found = READY.search("\n".join(self.lines))
            if found and any(line.startswith("  data") for line in self.lines):
                self.target = found[1]
                metrics = [line.split()[-1] for line in self.lines if line.startswith("  metrics")]
                self.metrics_url = metrics[0] if metrics else ""
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        code = self.process.poll()
        self.kill()
        raise AssertionError(f"the node did not get ready (exit {code}): {self.lines} {self.errors()[-2_000:]}")

    def errors(self) -> str:
        """What it wrote to standard error, over all its starts."""
        return self._errors_file.read_text()

    def send(self, number: int) -> None:
        """Sends a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.send(signal.SIGTERM)
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(10)


def run_command(*arguments: str, timeout_s: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `terracekv` with arguments, as a user would."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **environment},
    )
