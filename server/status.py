"""One table from exceptions to google.rpc.Status; what is not in it is INTERNAL and shows no detail."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from terracekv.server.checks import StreamIncomplete
from terracekv.server.limits import Draining, Overloaded
from terracekv.tiers import errors

DOMAIN: Final = "terracekv"
MESSAGE_CHARACTERS_MAX: Final = 1_024

_Row = tuple[type[BaseException], grpc.StatusCode, str]

# The most specific class first.
_TABLE: Final[tuple[_Row, ...]] = (
    (StreamIncomplete, grpc.StatusCode.INVALID_ARGUMENT, "STREAM_INCOMPLETE"),
    (errors.ChecksumMismatch, grpc.StatusCode.DATA_LOSS, "CHECKSUM_MISMATCH"),
    (errors.DurabilityNotOffered, grpc.StatusCode.FAILED_PRECONDITION, "DURABILITY_NOT_OFFERED"),
    (errors.NamespaceNotFound, grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND"),
    (errors.NamespaceConflict, grpc.StatusCode.ALREADY_EXISTS, "NAMESPACE_CONFLICT"),
    (errors.TierFull, grpc.StatusCode.RESOURCE_EXHAUSTED, "TIER_FULL"),
    (errors.TierTimeout, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE"),
    (errors.TierError, grpc.StatusCode.UNAVAILABLE, "TIER_UNAVAILABLE"),
    (errors.RecordNewer, grpc.StatusCode.FAILED_PRECONDITION, "FORMAT_NEWER"),
    (Draining, grpc.StatusCode.UNAVAILABLE, "DRAINING"),
    (TimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE"),
)

_FIELD_REASONS: Final = {
    "key": "KEY_INVALID",
    "ttl_s": "TTL_INVALID",
    "value": "VALUE_TOO_LARGE",
    "block": "VALUE_TOO_LARGE",
    "keys": "BATCH_INVALID",
    "namespace": "NAMESPACE_INVALID",
    "durability": "ENUM_INVALID",
    "kind": "ENUM_INVALID",
    "codec": "ENUM_INVALID",
}


def status_of(error: BaseException) -> status_pb2.Status:
    """The status that tells a caller of an exception."""
    if isinstance(error, errors.FieldInvalid):
        reason = _FIELD_REASONS.get(error.field, "FIELD_INVALID")
        metadata = {"field": error.field, "limit": error.limit, "given": error.given}
        return _status(grpc.StatusCode.INVALID_ARGUMENT, str(error), reason, metadata)
    if isinstance(error, Overloaded):
        status = _status(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), error.reason, {"limit": str(error.limit)})
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(error.retry_after_ms)
        status.details.append(_packed(retry))
        return status
    for kind, code, reason in _TABLE:
        if isinstance(error, kind):
            return _status(code, str(error) or "the deadline passed", reason, {})
    return _status(grpc.StatusCode.INTERNAL, "a defect of the server; see its log", "INTERNAL", {})


def _status(code: grpc.StatusCode, message: str, reason: str, metadata: dict[str, str]) -> status_pb2.Status:
    bounded = {name: text[:MESSAGE_CHARACTERS_MAX] for name, text in metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=bounded)
    return status_pb2.Status(code=code.value[0], message=message[:MESSAGE_CHARACTERS_MAX], details=[_packed(info)])


def _packed(detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
