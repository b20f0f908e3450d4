"""A client in a forked process works or says why not; it never hangs. Each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from unit.fake_server import FakeServer, Silence, fake_server, hit

# The parent runs `before`, forks, and the child runs `after`; the child's words are what is printed.
SCRIPT = """
import asyncio, os, sys, threading, time
from terracekv.client import AsyncClient, Client, errors
target = sys.argv[1]
async def one(client):
    return (await client.get("k")).value
async def fresh():
    async with AsyncClient(target) as client:
        return await one(client)
{before}
sys.stdout.flush()
child = os.fork()
if child == 0:
    try:
        {after}
    except errors.ForkedClient as error:
        print("ForkedClient:", error)
    sys.stdout.flush()
    {leave}
for _ in range(200):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        break
    time.sleep(0.05)
else:
    os.kill(child, 9)
    os.waitpid(child, 0)
    print("hung")
if ended and status:
    print("died", status)
{parent}
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    silence = Silence()

    def answer(request: object, context: object) -> object:
        return silence(request, context) if request.key == b"silent" else hit(b"v")  # type: ignore[attr-defined, arg-type]

    with fake_server(Get=answer) as running:
        yield running
        silence.over.set()


def fork(server: FakeServer, before: str, after: str, leave: str = "os._exit(0)", parent: str = "", **env: str) -> str:
    code = SCRIPT.format(before=before, after=after, leave=leave, parent=parent)
    done = subprocess.run(
        [sys.executable, "-c", code, server.target], capture_output=True, text=True, timeout=60, check=True, env=env
    )
    return done.stdout.strip()


USED = 'client = Client(target); assert client.get("k")'
USE = 'print(client.get("k").value)'


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_client_goes_on_in_a_child_and_in_its_parent(server: FakeServer, leave: str) -> None:
    assert fork(server, USED, USE, leave, 'assert client.get("k")') == "b'v'"


def test_a_client_made_in_the_child_works(server: FakeServer) -> None:
    assert fork(server, USED, 'print(Client(target).get("k").value)') == "b'v'"


def test_an_unused_client_works_in_the_child(server: FakeServer) -> None:
    assert fork(server, "client = Client(target)", USE) == "b'v'"


def test_a_child_forked_in_the_middle_of_a_call_is_told(server: FakeServer) -> None:
    before = (
        f"{USED}; threading.Thread(target=lambda: client.get('silent', timeout_s=20), daemon=True).start();"
        "time.sleep(0.3)"
    )
    told = fork(server, before, USE)
    assert told.startswith("ForkedClient: this process was forked while a call was under way")


def test_an_async_client_is_told_in_the_child(server: FakeServer) -> None:
    before = "client = AsyncClient(target); loop = asyncio.new_event_loop(); loop.run_until_complete(one(client))"
    assert fork(server, before, "print(asyncio.run(one(client)))").startswith("ForkedClient")
    # gRPC's asyncio side is dead in such a child, for new clients too.
    assert fork(server, before, "print(asyncio.run(fresh()))").startswith("ForkedClient")
    parent = "print(loop.run_until_complete(one(client)))"
    assert fork(server, before, "pass", parent=parent) == "b'v'"


def test_an_async_client_of_the_child_works_where_the_parents_was_closed(server: FakeServer) -> None:
    assert fork(server, "asyncio.run(fresh())", "print(asyncio.run(fresh()))") == "b'v'"


def test_without_grpcs_fork_support_the_child_is_told(server: FakeServer) -> None:
    for after in (USE, 'print(Client(target).get("k").value)'):
        assert fork(server, USED, after, GRPC_ENABLE_FORK_SUPPORT="0").startswith("ForkedClient: gRPC was used before")


def test_processes_of_multiprocessing_work(server: FakeServer) -> None:
    before = (
        f"{USED}; import multiprocessing as m;"
        "w = m.get_context('fork').Process(target=lambda: print(client.get('k').value));"
        "w.start(); w.join(20); print(w.exitcode)"
    )
    assert fork(server, before, "pass").split() == ["b'v'", "0"]
