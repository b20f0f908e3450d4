"""Tensors of every dtype through a real node: out of memory, and off the disk after a restart, bit for bit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from nodes import NodeProcess

from terracekv.client import MISS, AsyncClient, Client
from terracekv.client.tensor_format import DTYPE_OF
from terracekv.client.tensors import (
    encode_tensors,
    get_tensors,
    get_tensors_async,
    put_tensors,
    put_tensors_async,
)

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def every_dtype() -> dict[str, torch.Tensor]:
    """Every bit pattern of a byte in each dtype: NaN payloads, negative zeros and infinities among them."""
    patterns = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    tensors = {str(dtype): patterns.clone().view(dtype) for dtype in DTYPE_OF.values() if dtype != torch.bool}
    return {**tensors, "bool": torch.tensor([True, False]), "empty": torch.empty(3, 0, 5), "scalar": torch.tensor(-0.0)}


def test_tensors_come_back_from_memory_and_after_a_restart_from_disk(tmp_path: Path) -> None:
    tensors = every_dtype()
    node = NodeProcess(tmp_path / "data", ("--shared", "none")).start()
    try:
        with Client(node.target) as client:
            put_tensors(client, "weights", tensors, durability="fsync")
            assert encode_tensors(get_tensors(client, "weights") or {}) == encode_tensors(tensors)
            assert get_tensors(client, "absent") is MISS
        assert node.stop() == 0
        node.start()
        with Client(node.target) as client:
            found = client.get("weights")
            assert found
            assert found.tier == "disk"
            assert encode_tensors(get_tensors(client, "weights") or {}) == encode_tensors(tensors)
        asyncio.run(change_while_putting(node.target))
    finally:
        node.kill()


async def change_while_putting(target: str) -> None:
    tensor = torch.arange(1_000_000)
    async with AsyncClient(target) as client:
        pending = put_tensors_async(client, "step", {"t": tensor})
        tensor.zero_()
        await pending
        back = await get_tensors_async(client, "step")
    assert back
    assert torch.equal(back["t"], torch.arange(1_000_000))
