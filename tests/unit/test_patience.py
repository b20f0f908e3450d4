"""Waiting for replies: renewed as they come, ended when they do not, lenient when it was this process that slept."""

from __future__ import annotations

import asyncio
import time

import pytest

from terracekv.tiers.patience import Patience


async def test_it_ends_what_takes_longer_than_granted() -> None:
    async def wait() -> None:
        async with Patience(5.0) as patience:
            patience.grant(0.05)
            await asyncio.sleep(2.0)

    started_s = time.monotonic()
    with pytest.raises(TimeoutError):
        await wait()
    assert time.monotonic() - started_s < 0.5


async def test_each_grant_renews_it() -> None:
    async with Patience(5.0) as patience:
        for _ in range(8):
            patience.grant(0.1)
            await asyncio.sleep(0.03)


async def test_the_limit_holds_whatever_is_granted() -> None:
    async def wait() -> None:
        async with Patience(0.15) as patience:
            while True:
                patience.grant(10.0)
                await asyncio.sleep(0.02)

    started_s = time.monotonic()
    with pytest.raises(TimeoutError):
        await wait()
    assert time.monotonic() - started_s < 0.5


async def test_a_stall_of_this_process_is_not_held_against_the_other_side() -> None:
    reply = asyncio.get_running_loop().create_future()
    async with Patience(5.0) as patience:
        patience.grant(0.1)
        asyncio.get_running_loop().call_later(0.05, lambda: asyncio.get_running_loop().call_soon(reply.set_result, 1))
        time.sleep(0.4)  # the loop cannot see the reply that came meanwhile
        assert await reply == 1


async def test_cancellation_passes_through() -> None:
    async def wait() -> None:
        async with Patience(5.0) as patience:
            patience.grant(1.0)
            await asyncio.sleep(3.0)

    task = asyncio.get_running_loop().create_task(wait())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
