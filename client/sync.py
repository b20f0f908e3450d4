"""Client: entries, blocks and the node's administration over gRPC's sync stack. A miss is a value; a failed tier never one.

Generated: change its source in the aio files, then run scripts/unasync.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, overload

from terracekv.client import calls, errors
from terracekv.client.batches import ManyRead, ManyWrite, Part, read_delete, read_exists, read_get_many, read_put_many
from terracekv.client.calls import Deferred, Progress, WriteOptions
from terracekv.client.errors import TerraceKVError
from terracekv.client.policy import BATCH_KEYS_MAX, CALLS_AT_ONCE_MAX, Timeouts
from terracekv.client.sync_admin import SyncAdmin
from terracekv.client.sync_blocks import SyncBlocks
from terracekv.client.transport import sync_map
from terracekv.client.values import Durability, Failed, Hit, Miss, Put
from terracekv.v1 import cache_pb2

if TYPE_CHECKING:
    from terracekv.client.values import BytesLike, Key

Ask = Callable[[Sequence[bytes]], list[bool | Failed]]


class Client(SyncBlocks, SyncAdmin):
    """A client of one node, or of the first of several targets that answers.

    `target` is "host:port", several with commas between, or a gRPC name such as
    dns:///host:port. `timeout_s` bounds each unary RPC, retries included;
    values over 3.75 MiB and blocks go by streams, which get at least 10 s and a
    second for each 20 MiB. A call's own `timeout_s` bounds that call as a whole.

    Keys are 1 to 1,024 bytes, text is taken as UTF-8; values are bytes-like, up
    to 1 GiB, and are stored as they were at the time of the call. Every value
    is checked against its checksum on both sides.

    Every call raises errors.TerraceKVError: InvalidArgument and
    NamespaceNotFound, Unavailable, DeadlineExceeded, Overloaded, DataLoss and
    others drawn in terracekv.client.errors. Reads are retried; a write is sent
    again only when the server did no work for it. Works in any
    thread.
    """

    def get(
        self,
        key: Key,
        *,
        namespace: str | None = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
    ) -> Hit | Miss:
        """The value of a key, or MISS. `progress(bytes done, bytes in all)` is called as a streamed value arrives.

        Raises TierUnavailable where a tier that had to be asked failed, ChecksumMismatch, NamespaceNotFound.
        """
        timeouts, name = self._timeouts(timeout_s), self._name(namespace)
        request = cache_pb2.GetRequest(namespace=name, key=calls.as_key(key))
        reply = self._rpc.call(lambda node: node.cache.Get, lambda: request, timeouts.unary(), safe=True)
        answer = calls.read_get(reply)
        if isinstance(answer, Deferred):
            return self._get_stream(request.key, name, answer.size_bytes, timeouts, progress)
        return answer

    def _get_stream(
        self, key: bytes, namespace: str, size_bytes: int, timeouts: Timeouts, progress: Progress | None = None
    ) -> Hit | Miss:
        request = cache_pb2.GetStreamRequest(namespace=namespace, key=key)
        messages = self._rpc.stream(lambda node: node.cache.GetStream, request, timeouts.transfer(size_bytes))
        with closing(messages):
            assembler: calls.ValueAssembler | None = None
            for message in messages:
                if assembler is None:
                    assembler = calls.ValueAssembler(message.header, progress)
                else:
                    assembler.feed(message.data)
        if assembler is None:
            raise errors.DataLoss("the stream ended before its header")
        return assembler.finish()

    def get_many(
        self, keys: Iterable[Key], *, namespace: str | None = None, timeout_s: float | None = None
    ) -> list[Hit | Miss | Failed]:
        """The value, MISS or Failed of each key, in order; any number of keys, values of any size.

        Raises only what kept every key from being answered.
        """
        timeouts, name = self._timeouts(timeout_s), self._name(namespace)
        reading = ManyRead(calls.as_keys(keys))

        def read(part: Part) -> list[Hit | Miss | Failed | Deferred] | TerraceKVError:
            try:
                return self._read_part(reading, part, name, timeouts)
            except TerraceKVError as error:
                return error

        while parts := reading.parts():
            for part, outcome in zip(parts, sync_map(read, parts, CALLS_AT_ONCE_MAX), strict=True):
                reading.take(part, outcome)
            reading.end_round()
        return reading.results()

    def _read_part(
        self, reading: ManyRead, part: Part, namespace: str, timeouts: Timeouts
    ) -> list[Hit | Miss | Failed | Deferred]:
        if part.streamed:
            (row,) = part.rows
            return [self._get_stream(reading.keys[row], namespace, reading.size_bytes(row), timeouts)]
        request = cache_pb2.GetManyRequest(namespace=namespace, keys=[reading.keys[row] for row in part.rows])
        reply = self._rpc.call(lambda node: node.cache.GetMany, lambda: request, timeouts.unary(), safe=True)
        return read_get_many(reply, len(part.rows))

    def put(
        self,
        key: Key,
        value: BytesLike,
        ttl_s: float | None = None,
        durability: Durability | str | None = None,
        *,
        namespace: str | None = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Stores a value and gives its version: in an immutable namespace that of the value that was there first.

        The bytes are taken when this is called. `ttl_s`: seconds over 0, up to ten years; None:
        the namespace's, as for `durability`. `progress(bytes done, bytes in all)` is called as a streamed value leaves,
        on a thread of gRPC's. Raises KeyInvalid, TTLInvalid, ValueTooLarge, DurabilityNotOffered, TierFull,
        TierUnavailable; Unavailable and DeadlineExceeded mean "outcome unknown".
        """
        options = WriteOptions(self._name(namespace), ttl_s, durability)
        return self._put(calls.as_key(key), calls.snapshot(value), options, self._timeouts(timeout_s), progress)

    def _put(
        self, key: bytes, payload: bytes, options: WriteOptions, timeouts: Timeouts, progress: Progress | None
    ) -> int:
        return (self._put_one(key, payload, options, timeouts, progress)).version

    def _put_one(
        self, key: bytes, payload: bytes, options: WriteOptions, timeouts: Timeouts, progress: Progress | None = None
    ) -> Put:
        if calls.fits_unary(key, payload):
            request = calls.put_request(key, payload, options)
            reply = self._rpc.call(lambda node: node.cache.Put, lambda: request, timeouts.unary(), safe=False)
            return calls.read_put(reply)
        reply = self._rpc.call(
            lambda node: node.cache.PutStream,
            lambda: calls.put_stream_requests(key, payload, options, progress),
            timeouts.transfer(len(payload)),
            safe=False,
            upload=True,
        )
        return calls.read_put(reply)

    def put_many(
        self,
        items: Mapping[Key, BytesLike] | Iterable[tuple[Key, BytesLike]],
        ttl_s: float | None = None,
        durability: Durability | str | None = None,
        *,
        namespace: str | None = None,
        timeout_s: float | None = None,
    ) -> list[Put | Failed]:
        """Stores values, each by itself: Put or Failed of each, in order. Of equal keys the last is stored.

        The bytes are taken when this is called. Raises only what kept every value from being answered.
        """
        options = WriteOptions(self._name(namespace), ttl_s, durability)
        return self._put_many(ManyWrite(items), options, self._timeouts(timeout_s))

    def _put_many(self, writing: ManyWrite, options: WriteOptions, timeouts: Timeouts) -> list[Put | Failed]:
        def write(part: Part) -> list[Put | Failed] | TerraceKVError:
            try:
                return self._write_part(writing, part, options, timeouts)
            except TerraceKVError as error:
                return error

        parts = writing.parts()
        for part, outcome in zip(parts, sync_map(write, parts, CALLS_AT_ONCE_MAX), strict=True):
            writing.take(part, outcome)
        return writing.results()

    def _write_part(
        self, writing: ManyWrite, part: Part, options: WriteOptions, timeouts: Timeouts
    ) -> list[Put | Failed]:
        if part.streamed:
            key, payload = writing.items[part.rows[0]]
            return [self._put_one(key, payload, options, timeouts)]
        request = writing.request(part, options)
        reply = self._rpc.call(lambda node: node.cache.PutMany, lambda: request, timeouts.unary(), safe=False)
        return read_put_many(reply, len(part.rows))

    @overload  # a str is an Iterable too: the first of the two signatures is taken
    def exists(self, keys: Key, *, namespace: str | None = None, timeout_s: float | None = None) -> bool: ...  # type: ignore[overload-overlap]
    @overload
    def exists(
        self, keys: Iterable[Key], *, namespace: str | None = None, timeout_s: float | None = None
    ) -> list[bool | Failed]: ...
    def exists(
        self, keys: Key | Iterable[Key], *, namespace: str | None = None, timeout_s: float | None = None
    ) -> bool | list[bool | Failed]:
        """Whether a key would hit; of several keys True, False or Failed of each, in order.

        For one key raises TierUnavailable where a tier that had to be asked failed.
        """
        timeouts, name = self._timeouts(timeout_s), self._name(namespace)

        def ask(batch: Sequence[bytes]) -> list[bool | Failed]:
            request = cache_pb2.ExistsRequest(namespace=name, keys=batch)
            reply = self._rpc.call(lambda node: node.cache.Exists, lambda: request, timeouts.unary(), safe=True)
            return read_exists(reply, len(batch))

        return self._in_batches(ask, keys)

    @overload
    def delete(  # type: ignore[overload-overlap]
        self,
        keys: Key,
        durability: Durability | str | None = None,
        *,
        namespace: str | None = None,
        timeout_s: float | None = None,
    ) -> bool: ...
    @overload
    def delete(
        self,
        keys: Iterable[Key],
        durability: Durability | str | None = None,
        *,
        namespace: str | None = None,
        timeout_s: float | None = None,
    ) -> list[bool | Failed]: ...
    def delete(
        self,
        keys: Key | Iterable[Key],
        durability: Durability | str | None = None,
        *,
        namespace: str | None = None,
        timeout_s: float | None = None,
    ) -> bool | list[bool | Failed]:
        """Removes a key: True, also if it was absent; of several keys True or Failed of each, in order.

        For one key raises what kept it from being removed.
        """
        timeouts, name = self._timeouts(timeout_s), self._name(namespace)
        level = calls.as_durability(durability) if durability is not None else 0

        def remove(batch: Sequence[bytes]) -> list[bool | Failed]:
            request = cache_pb2.DeleteRequest(namespace=name, keys=batch, durability=level)  # type: ignore[arg-type]
            reply = self._rpc.call(lambda node: node.cache.Delete, lambda: request, timeouts.unary(), safe=True)
            return read_delete(reply, len(batch))

        return self._in_batches(remove, keys)

    def _in_batches(self, ask: Ask, keys: Key | Iterable[Key]) -> bool | list[bool | Failed]:
        if isinstance(keys, calls.ONE_KEY):
            (answer,) = ask([calls.as_key(keys)])
            if isinstance(answer, Failed):
                raise answer.error
            return answer
        encoded = calls.as_keys(keys)
        batches = [encoded[start : start + BATCH_KEYS_MAX] for start in range(0, len(encoded), BATCH_KEYS_MAX)]
        return [answer for batch in sync_map(ask, batches, CALLS_AT_ONCE_MAX) for answer in batch]

    def invalidate(
        self,
        *,
        prefix: Key | None = None,
        epoch: bool = False,
        namespace: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Removes every key that starts with `prefix`, or with `epoch=True` all of the namespace; gives the epoch now.

        Takes the same short time whatever is removed. Raises InvalidArgument unless exactly one of the two is given.
        """
        if (prefix is None) == (not epoch):
            raise errors.invalid(errors.InvalidArgument, "target", "a prefix or epoch=True, one of them", "not one")
        request = cache_pb2.InvalidateRequest(namespace=self._name(namespace))
        if prefix is None:
            request.epoch = True
        else:
            request.prefix = calls.as_key(prefix)
        deadline = self._timeouts(timeout_s).unary()
        reply = self._rpc.call(lambda node: node.cache.Invalidate, lambda: request, deadline, safe=True)
        return int(reply.epoch)
