"""The directory of an embedded cluster: who runs there and who ends it, private to its user, changed under a lock."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from terracekv.tiers.errors import StoreError
from terracekv.tiers.processes import Process

STATE_FORMAT: Final = 1
LOCK_TIMEOUT_S: Final = 45.0
POLL_S: Final = 0.02

Owner = Literal["node", "command"]


class EmbeddedUnavailable(StoreError):
    """No embedded cluster here: the wheel is missing, does not fit the platform, or its servers do not start."""


@dataclass(frozen=True, slots=True)
class State:
    """What the state file says: which processes are the cluster, and who ends it."""

    password: str = field(repr=False)
    owner: Owner
    owner_process: Process
    ports: tuple[int, ...]
    processes: tuple[Process, ...]

    def encode(self) -> str:
        """As JSON."""
        return json.dumps(
            {
                "format": STATE_FORMAT,
                "password": self.password,
                "owner": self.owner,
                "owner_pid": self.owner_process.pid,
                "owner_started": self.owner_process.started,
                "members": [
                    {"port": port, "pid": process.pid, "started": process.started}
                    for port, process in zip(self.ports, self.processes, strict=True)
                ],
            },
            indent=1,
        )

    @classmethod
    def decode(cls, text: str) -> State:
        """From JSON. Raises ValueError if it is not one of this format."""
        try:
            fields = json.loads(text)
            if fields["format"] != STATE_FORMAT or fields["owner"] not in ("node", "command"):
                raise ValueError("a state file of another format")
            members = fields["members"]
            if any(int(member["pid"]) <= 0 for member in members):
                raise ValueError("no process has such a number")
            return cls(
                str(fields["password"]),
                fields["owner"],
                Process(int(fields["owner_pid"]), str(fields["owner_started"])),
                tuple(int(member["port"]) for member in members),
                tuple(Process(int(member["pid"]), str(member["started"])) for member in members),
            )
        except (KeyError, TypeError) as error:
            raise ValueError("not a state file") from error


def next_owner(state: State, asker: Owner, me: Process) -> State:
    """Who ends a cluster that is found running: a command's is ended by command only, a dead node's by the next."""
    if asker == "command":
        return replace(state, owner="command", owner_process=me)
    if state.owner == "node" and not state.owner_process.alive():
        return replace(state, owner_process=me)
    return state


@contextlib.asynccontextmanager
async def locked(directory: Path) -> AsyncIterator[None]:
    """Keeps other processes out of the directory, which is made if absent. Raises EmbeddedUnavailable."""
    descriptor = _open_lock(directory)
    try:
        for _ in range(int(LOCK_TIMEOUT_S / POLL_S)):
            if _lock(descriptor):
                break
            await asyncio.sleep(POLL_S)
        else:
            raise EmbeddedUnavailable(f"another process keeps {directory} locked: wait for it, or stop it")
        yield
    finally:
        os.close(descriptor)


def _open_lock(directory: Path) -> int:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    return os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def exists(directory: Path) -> bool:
    """Whether a cluster was ever started there."""
    return (directory / "lock").exists()


def load(directory: Path) -> State | None:
    """The state, if the directory has one that can be read."""
    try:
        return State.decode((directory / "state.json").read_text())
    except (OSError, ValueError):
        return None


def save(directory: Path, state: State) -> None:
    """Replaces the state in one step."""
    write_private(directory / "state.json", state.encode())


def forget(directory: Path) -> None:
    """Removes the state and what the servers keep beside it; logs stay."""
    for path in (directory / "state.json", *directory.glob("*.conf"), *directory.glob("*.draft")):
        path.unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its user can read, in one step."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
