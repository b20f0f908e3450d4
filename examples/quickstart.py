"""Values and KV blocks through the client. Start a node with `make run`, then: python examples/quickstart.py"""

import sys

from terracekv.client import MISS, BlockKeys, BlockLayout, Client, errors

target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50151"

with Client(target) as client:
    # A value, with a time to live. A miss is a value of its own; a failed tier raises.
    version = client.put("session:42", b"state after turn 7", ttl_s=3_600)
    try:
        found = client.get("session:42")
    except errors.TierUnavailable:
        sys.exit("the value may exist, but a tier that had to be asked does not answer")
    print("miss" if found is MISS else f"version {found.version} from {found.tier}: {found.value.decode()}")

    # Many at once: any number, any size; each key gets its own answer.
    client.put_many({f"chunk:{number}": bytes(1_000) for number in range(100)})
    print(sum(map(bool, client.get_many([f"chunk:{number}" for number in range(100)]))), "of 100 chunks")

    # KV blocks of a prompt, named by everything that decides their bytes.
    layout = BlockLayout(model="example/model", revision="1", dtype="bf16", layout="kv", block_tokens=16)
    chain = BlockKeys(layout).chain(list(range(64)))  # 64 tokens: four blocks
    client.store_blocks(((digest, 0), bytes(4_096)) for digest in chain[:3])
    match = client.match_blocks(chain)
    print(f"{match.blocks} of {len(chain)} blocks are stored")
    for place, block in client.iter_blocks([(digest, 0) for digest in chain[: match.blocks]]):
        print(f"block {place}: {len(block.value) if block else 'gone'} bytes")
