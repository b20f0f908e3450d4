"""Without the client library: a plain gRPC stub, as any language would use it (`terracekv proto --out DIR`)."""

import sys

import grpc

from terracekv.v1 import cache_pb2, cache_pb2_grpc

target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50151"

with grpc.insecure_channel(target) as channel:
    cache = cache_pb2_grpc.CacheServiceStub(channel)
    cache.Put(cache_pb2.PutRequest(key=b"greeting", value=b"hello from a plain stub", ttl_s=60), timeout=2)

    reply = cache.Get(cache_pb2.GetRequest(key=b"greeting"), timeout=2)
    if reply.status == cache_pb2.KEY_STATUS_HIT:
        print(reply.value.decode())

    # Over 3.75 MiB a value goes by stream: a header, frames of at most 1 MiB, a commit.
    large = bytes(5 << 20)

    def upload():
        """The messages of one upload."""
        yield cache_pb2.PutStreamRequest(header=cache_pb2.PutStreamHeader(key=b"large", size_bytes=len(large)))
        for start in range(0, len(large), 1 << 20):
            yield cache_pb2.PutStreamRequest(data=large[start : start + (1 << 20)])
        yield cache_pb2.PutStreamRequest(commit=cache_pb2.PutStreamCommit())

    cache.PutStream(upload(), timeout=30)
    frames = cache.GetStream(cache_pb2.GetStreamRequest(key=b"large"), timeout=30)
    print(sum(len(frame.data) for frame in frames), "bytes came back")
