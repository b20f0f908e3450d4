"""Pure translation between the tiers' values and messages of terracekv.v1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from terracekv.tiers.entry import (
    Answer,
    DeleteResult,
    Durability,
    Entry,
    FailureReason,
    Head,
    HeadFound,
    PutResult,
    Stored,
    TierFailure,
)
from terracekv.tiers.errors import TierError, TierFull, TierTimeout, TierUnavailable
from terracekv.tiers.namespaces import Namespace
from terracekv.tiers.placement import head_of
from terracekv.tiers.ttl import left_us
from terracekv.v1 import admin_pb2, cache_pb2, errors_pb2

NO_CHECKSUM: Final = bytes(16)

_ERRORS: Final = {
    FailureReason.UNAVAILABLE: TierUnavailable,
    FailureReason.TIMEOUT: TierTimeout,
    FailureReason.FULL: TierFull,
}
_REASONS: Final = {
    FailureReason.UNAVAILABLE: errors_pb2.ERROR_REASON_TIER_UNAVAILABLE,
    FailureReason.TIMEOUT: errors_pb2.ERROR_REASON_DEADLINE,
    FailureReason.FULL: errors_pb2.ERROR_REASON_TIER_FULL,
}


def failure_error(failure: TierFailure) -> TierError:
    """The exception for a call of one key whose tier failed."""
    return _ERRORS[failure.reason](f"{failure.tier.name.lower()}: {failure.detail}")


def reason_of(result: object) -> errors_pb2.ErrorReason:
    """The wire reason of a batch's row; UNSPECIFIED if nothing failed."""
    if isinstance(result, TierFailure):
        return _REASONS[result.reason]
    return errors_pb2.ERROR_REASON_UNSPECIFIED


def read_status(found: object) -> cache_pb2.KeyStatus:
    """What became of a key of a read."""
    if isinstance(found, Entry):
        return cache_pb2.KEY_STATUS_HIT
    if isinstance(found, Head):
        return cache_pb2.KEY_STATUS_DEFERRED
    if isinstance(found, TierFailure):
        return cache_pb2.KEY_STATUS_UNAVAILABLE
    return cache_pb2.KEY_STATUS_MISS


def tier_of(answer: Answer) -> cache_pb2.TierName:
    """The tier that had it; UNSPECIFIED for what nobody had."""
    return int(answer.tier) if answer.tier and answer.found else 0  # type: ignore[return-value]


def get_response(answer: Answer, now_us: int) -> cache_pb2.GetResponse:
    """One value. Raises TierError where a tier failed."""
    if isinstance(answer.found, TierFailure):
        raise failure_error(answer.found)
    response = cache_pb2.GetResponse(status=read_status(answer.found), tier=tier_of(answer))
    if isinstance(answer.found, Entry):
        response.value = answer.found.payload()
    head = head_of(answer.found)
    if isinstance(head, Head):
        response.size_bytes, response.version, response.checksum = head.size_bytes, head.version, head.checksum
        left = left_us(head.expires_us, now_us)
        if left is not None:
            response.expires_in_us = left
    return response


def get_many_response(answers: Sequence[Answer], now_us: int) -> cache_pb2.GetManyResponse:
    """Answers by column."""
    heads = [head_of(answer.found) for answer in answers]
    known = [head if isinstance(head, Head) else None for head in heads]
    entries = [answer.found for answer in answers if isinstance(answer.found, Entry)]
    return cache_pb2.GetManyResponse(
        payload=b"".join(frame for entry in entries for frame in entry.frames),
        statuses=[read_status(answer.found) for answer in answers],
        sizes_bytes=[head.size_bytes if head else 0 for head in known],
        versions=[head.version if head else 0 for head in known],
        expires_in_us=[(left_us(head.expires_us, now_us) or 0) if head else 0 for head in known],
        checksums=b"".join(head.checksum if head else NO_CHECKSUM for head in known),
        tiers=[tier_of(answer) for answer in answers],
    )


def stream_header(answer: Answer, now_us: int) -> cache_pb2.GetStreamHeader:
    """The first message of a stream. Raises TierError where a tier failed."""
    if isinstance(answer.found, TierFailure):
        raise failure_error(answer.found)
    header = cache_pb2.GetStreamHeader(status=read_status(answer.found), tier=tier_of(answer))
    if isinstance(answer.found, Entry):
        head = answer.found.head
        header.size_bytes, header.version, header.checksum = head.size_bytes, head.version, head.checksum
        left = left_us(head.expires_us, now_us)
        if left is not None:
            header.expires_in_us = left
    return header


def stored_or_raise(result: PutResult) -> Stored:
    """The success of a put of one value. Raises TierError."""
    if isinstance(result, TierFailure):
        raise failure_error(result)
    return result


def put_status(result: PutResult) -> cache_pb2.PutStatus:
    """What became of a value."""
    if isinstance(result, TierFailure):
        return cache_pb2.PUT_STATUS_FAILED
    return cache_pb2.PUT_STATUS_KEPT if result.kept else cache_pb2.PUT_STATUS_STORED


def put_response(result: PutResult, level: Durability) -> cache_pb2.PutResponse:
    """One stored value. Raises TierError."""
    stored = stored_or_raise(result)
    return cache_pb2.PutResponse(status=put_status(stored), version=stored.version, durability=int(level))  # type: ignore[arg-type]


def put_many_response(results: Sequence[PutResult], level: Durability) -> cache_pb2.PutManyResponse:
    """Answers by column."""
    return cache_pb2.PutManyResponse(
        statuses=[put_status(result) for result in results],
        versions=[result.version if isinstance(result, Stored) else 0 for result in results],
        reasons=[reason_of(result) for result in results],
        durability=int(level),  # type: ignore[arg-type]
    )


def exists_response(heads: Sequence[HeadFound]) -> cache_pb2.ExistsResponse:
    """HIT, MISS or UNAVAILABLE for each key."""
    statuses = [cache_pb2.KEY_STATUS_HIT if isinstance(head, Head) else read_status(head) for head in heads]
    return cache_pb2.ExistsResponse(statuses=statuses)


def delete_response(results: Sequence[DeleteResult]) -> cache_pb2.DeleteResponse:
    """Why keys may still be there."""
    return cache_pb2.DeleteResponse(reasons=[reason_of(result) for result in results])


def namespace_message(namespace: Namespace) -> admin_pb2.Namespace:
    """A namespace as a message."""
    message = admin_pb2.Namespace(
        name=namespace.name,
        kind=int(namespace.kind),  # type: ignore[arg-type]
        epoch=namespace.epoch,
        jitter=namespace.jitter,
        tiers=[int(tier) for tier in namespace.tiers],  # type: ignore[misc]
        codec=int(namespace.codec),  # type: ignore[arg-type]
        durability=int(namespace.durability or 0),  # type: ignore[arg-type]
    )
    if namespace.ttl_s is not None:
        message.ttl_s = namespace.ttl_s
    return message
