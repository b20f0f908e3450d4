"""Child processes that outlive their parent: in a session of their own, known by start time, ended for sure."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Process:
    """A process as it was when started: its number alone may be somebody else's by now."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this number now."""
        return cls(pid, _started(pid))

    def alive(self) -> bool:
        """Whether it still runs."""
        return bool(self.started) and _started(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Signals it, if it still is the one that was started."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def spawn(command: Sequence[str], log_file: Path, environment: dict[str, str]) -> Process:
    """Starts a command in a session of its own, without input, its output in a new file. Raises OSError.

    Not a `subprocess.Popen`: that would want to be waited for by the process that made it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log_file), flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    everything = range(signal.SIGHUP, signal.SIGSYS + 1)
    pid = os.posix_spawn(
        command[0],
        list(command),
        environment,
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=[number for number in everything if number not in (signal.SIGKILL, signal.SIGSTOP)],
    )
    return Process.of(pid)


async def end(processes: Iterable[Process], timeout_s: float) -> None:
    """Ends processes: SIGTERM, and SIGKILL for those that are left after `timeout_s`; waits until they are gone."""
    left = [process for process in processes if process.alive()]
    for process in left:
        process.send(signal.SIGCONT)  # a stopped one would not hear the other
        process.send(signal.SIGTERM)
    left = await _gone(left, timeout_s)
    for process in left:
        process.send(signal.SIGKILL)
    await _gone(left, timeout_s)


async def _gone(processes: list[Process], timeout_s: float) -> list[Process]:
    end_s = time.monotonic() + timeout_s
    while processes and time.monotonic() < end_s:
        await asyncio.sleep(POLL_S)
        processes = [process for process in processes if process.alive()]
    return processes


def _started(pid: int) -> str:
    """When a process was started, in the kernel's words; empty if it is gone or only waits to be buried."""
    with contextlib.suppress(ChildProcessError):  # not ours to bury
        os.waitpid(pid, os.WNOHANG)
    if not Path("/proc/self/stat").exists():
        return _started_by_ps(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _started_by_ps(pid: int) -> str:
    command = ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.strip()  # noqa: S603
    state, _, started = shown.partition(" ")
    return "" if state.startswith("Z") else started.strip()
