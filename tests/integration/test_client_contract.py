"""Both clients against a real node: what is true of one is true of the other."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from contract.client_suite import KINDS, MIB, ClientSuite, open_client, running_node

from terracekv.client import MISS, Client, errors

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_node(tmp_path_factory.mktemp("node") / "data") as node:
        yield node.target


class TestClients(ClientSuite):
    @pytest.fixture(params=KINDS)
    async def client(self, request: pytest.FixtureRequest, target: str) -> AsyncIterator[Any]:
        async with open_client(request.param, target, namespace=f"suite-{next(_NUMBERS)}") as client:
            yield client


@pytest.mark.parametrize("kind", KINDS)
async def test_a_value_of_300_mib_goes_by_the_same_calls(kind: str, tmp_path: Path) -> None:
    value = bytes(range(256)) * (300 * MIB // 256)
    with running_node(tmp_path / "data", "--memory-bytes", "64MiB", "--disk-bytes", "2GiB") as node:
        async with open_client(kind, node.target) as client:
            await client.put("huge", value)
            found = await client.get("huge")
            assert found.value == value
            assert found.tier == "disk"


def test_a_node_that_comes_back_answers_the_same_client_with_what_it_kept(tmp_path: Path) -> None:
    with running_node(tmp_path / "data") as first, Client(first.target) as client:
        client.put("kept", b"v", durability="wal")
        first.kill()
        with pytest.raises((errors.Unavailable, errors.DeadlineExceeded)):
            client.get("kept", timeout_s=0.3)
        with running_node(tmp_path / "data", "--listen", first.target):
            back = time.monotonic()
            while time.monotonic() - back < 10:
                try:
                    found = client.get("kept")
                    break
                except errors.Unavailable:
                    time.sleep(0.05)
            assert time.monotonic() - back < 3.0
            assert found is not MISS
            assert (found.value, found.tier) == (b"v", "disk")


@pytest.mark.long
def test_an_idle_client_is_not_sent_away_for_its_pings(target: str) -> None:
    with Client(target) as client:
        client.ping()
        seen: list[grpc.ChannelConnectivity] = []
        client._rpc._connection().channel.subscribe(seen.append)
        time.sleep(100)  # three pings of the shipped settings
        assert set(seen) == {grpc.ChannelConnectivity.READY}


GEVENT = """
from gevent import monkey
monkey.patch_all()
import grpc.experimental.gevent
grpc.experimental.gevent.init_gevent()
import gevent, sys
from terracekv.client import Client
with Client(sys.argv[1], namespace="gevent") as client:
    client.put("k", b"v")
    jobs = [gevent.spawn(client.get, "k") for _ in range(200)]
    gevent.joinall(jobs, timeout=20)
    assert all(job.value.value == b"v" for job in jobs)
    client.put_many({f"k{number}": b"x" for number in range(3_000)})
    assert all(client.get_many([f"k{number}" for number in range(3_000)]))
    client.put("large", bytes(9 << 20))
    assert len(client.get("large").value) == 9 << 20
"""


def test_the_sync_client_works_under_gevent(target: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GEVENT, target], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
