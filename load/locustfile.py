"""A first load: small hot keys by a Zipf law, some of them absent, through the generated stubs.

locust -f load/locustfile.py --host 127.0.0.1:50151 --headless -u 16 -t 30s
"""

from __future__ import annotations

import os
import random
from itertools import accumulate, count
from typing import Final

from locust import constant, task
from users import GrpcUser, failed, payload_of

from terracekv.v1 import cache_pb2, cache_pb2_grpc

SEED: Final = int(os.environ.get("TERRACEKV_LOAD_SEED", "1"))
KEYS: Final = 10_000
VALUE_BYTES: Final = 1_024
ABSENT_SHARE: Final = 0.1
TIMEOUT_S: Final = 2.0
_NUMBERS: Final = count()
_WEIGHTS: Final = list(accumulate(1 / (rank + 1) for rank in range(KEYS)))


class HotKeys(GrpcUser):
    """Reads hot keys, and puts those that are missing."""

    wait_time = constant(0)

    def on_start(self) -> None:
        """Opens the channel and seeds the stream of keys."""
        super().on_start()
        self.cache = cache_pb2_grpc.CacheServiceStub(self.channel)
        self.random = random.Random(f"{SEED} {next(_NUMBERS)}")

    @task
    def read(self) -> None:
        """One key: right, missing and then put, or absent for ever."""
        if self.random.random() < ABSENT_SHARE:
            key = b"absent-%d" % self.random.randrange(1 << 40)
        else:
            (rank,) = self.random.choices(range(KEYS), cum_weights=_WEIGHTS)
            key = b"hot-%d" % rank
        found = self.cache.Get(cache_pb2.GetRequest(key=key), timeout=TIMEOUT_S)
        if found.status == cache_pb2.KEY_STATUS_HIT:
            if found.value != payload_of(key, VALUE_BYTES):
                failed("Get", "a wrong value")
        elif key.startswith(b"hot"):
            value = payload_of(key, VALUE_BYTES)
            self.cache.Put(cache_pb2.PutRequest(key=key, value=value, ttl_s=60), timeout=TIMEOUT_S)
