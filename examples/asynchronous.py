"""The same calls with asyncio. Start a node with `make run`, then: python examples/asynchronous.py"""

import asyncio
import sys

from terracekv.client import AsyncClient


async def main(target: str) -> None:
    """Puts and gets a hundred values at once."""
    async with AsyncClient(target, namespace="default", timeout_s=2.0) as client:
        keys = [f"step:{number}" for number in range(100)]
        await asyncio.gather(*(client.put(key, key.encode(), ttl_s=60) for key in keys))
        answers = await asyncio.gather(*map(client.get, keys))
        print(sum(answer.value == key.encode() for key, answer in zip(keys, answers, strict=True) if answer), "of 100")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50151"))
