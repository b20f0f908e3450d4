"""Both clients against a real node: what is true of one is true of the other."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from contract.client_suite import KINDS, ClientSuite, open_client
from nodes import NodeProcess

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data", ("--shared", "none"))
    try:
        yield node.start().target
    finally:
        if node.process is not None:
            node.stop()


class TestClients(ClientSuite):
    @pytest.fixture(params=KINDS)
    async def client(self, request: pytest.FixtureRequest, target: str) -> AsyncIterator[Any]:
        async with open_client(request.param, target, namespace=f"suite-{next(_NUMBERS)}") as client:
            yield client
