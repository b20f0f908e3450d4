"""What calls of the client raise: one tree, and one table from the server's reasons to it.

    TerraceKVError
    ├── InvalidArgument         a field is outside its limits: field, limit, given
    │   ├── KeyInvalid
    │   ├── TTLInvalid
    │   ├── ValueTooLarge
    │   ├── BatchInvalid
    │   ├── NamespaceInvalid
    │   ├── EnumInvalid
    │   └── StreamIncomplete    an upload broke off; nothing was stored
    ├── NamespaceNotFound
    ├── NamespaceConflict       it exists with another kind
    ├── DurabilityNotOffered
    ├── FormatNewer             a record of a newer version of terracekv
    ├── Unavailable             no answer; of a write: outcome unknown
    │   ├── TierUnavailable     a tier that had to be asked failed: the value may exist
    │   └── Draining            the node takes no new work
    ├── DeadlineExceeded        also a TimeoutError; of a write: outcome unknown
    ├── Overloaded              refused before any work: retry_after_s
    ├── TierFull
    ├── DataLoss
    │   └── ChecksumMismatch    bytes differ from their checksum; they are never handed out
    ├── RpcFailed               any other status: code
    │   └── ServerDefect        request_id finds it in the server's log
    └── ClientMisused
        ├── ClientClosed
        ├── ForkedClient        gRPC cannot go on in this forked process
        └── WrongEventLoop

Texts are at most 1,024 characters and never hold keys, values or tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from terracekv.v1 import errors_pb2

DOMAIN: Final = "terracekv"
MESSAGE_CHARACTERS_MAX: Final = 1_024
_STATUS_TRAILER: Final = "grpc-status-details-bin"
_PUSHBACK_TRAILER: Final = "grpc-retry-pushback-ms"
_REQUEST_ID_TRAILER: Final = "terracekv-request-id"


class TerraceKVError(Exception):
    """Any failure of this library. `reason` names a value of terracekv.v1.ErrorReason, or is empty."""

    reason: str = ""


class InvalidArgument(TerraceKVError, ValueError):
    """A field is outside its limits. Nothing was done."""

    field: str = ""
    limit: str = ""
    given: str = ""


class KeyInvalid(InvalidArgument):
    """A key is empty, longer than 1,024 bytes, or not text that UTF-8 can hold."""


class TTLInvalid(InvalidArgument):
    """A time to live is zero, negative, not finite or over ten years."""


class ValueTooLarge(InvalidArgument):
    """A value is over 1 GiB, or a block over 64 MiB."""


class BatchInvalid(InvalidArgument):
    """A batch has no key, or more than the server takes."""


class NamespaceInvalid(InvalidArgument):
    """A namespace name or setting is malformed."""


class EnumInvalid(InvalidArgument):
    """The server does not know this value of an enum."""


class StreamIncomplete(InvalidArgument):
    """An upload ended, or broke its order, before its commit. Nothing was stored."""


class NamespaceNotFound(TerraceKVError):
    """No such namespace, and a first put may not create it."""


class NamespaceConflict(TerraceKVError):
    """The namespace exists with another kind."""


class DurabilityNotOffered(TerraceKVError):
    """The node cannot give the durability asked for."""


class FormatNewer(TerraceKVError):
    """A record was written by a newer version of terracekv than the server's."""


class Unavailable(TerraceKVError):
    """No server answered, or the connection was lost. Of a write: outcome unknown."""


class TierUnavailable(Unavailable):
    """A tier that had to be asked failed: never a miss. Of a write: outcome unknown."""


class Draining(Unavailable):
    """The node takes no new work; another node may."""


class DeadlineExceeded(TerraceKVError, TimeoutError):
    """The deadline passed. Of a write: outcome unknown."""


class Overloaded(TerraceKVError):
    """The server refused before any work; come back after `retry_after_s` seconds."""

    retry_after_s: float = 0.0


class TierFull(TerraceKVError):
    """A tier has no room for this write."""


class DataLoss(TerraceKVError):
    """Bytes are not what they were declared to be. They were not stored, or are not handed out."""


class ChecksumMismatch(DataLoss):
    """The checksum of the bytes that arrived is another."""


class RpcFailed(TerraceKVError):
    """A status that has no class of its own. `code` is the name of its grpc.StatusCode."""

    code: str = "UNKNOWN"


class ServerDefect(RpcFailed):
    """A defect of the server; `request_id` finds it in the server's log."""

    request_id: str = ""


class ClientMisused(TerraceKVError):
    """The client was used in a way that cannot work."""


class ClientClosed(ClientMisused):
    """The client was closed before."""


class ForkedClient(ClientMisused):
    """gRPC cannot go on in this process since it was forked: make an AsyncClient after the fork, or spawn."""


class WrongEventLoop(ClientMisused):
    """An AsyncClient belongs to the event loop of its first call."""


_KINDS: Final[Mapping[str, type[TerraceKVError]]] = {
    "KEY_INVALID": KeyInvalid,
    "TTL_INVALID": TTLInvalid,
    "VALUE_TOO_LARGE": ValueTooLarge,
    "BATCH_INVALID": BatchInvalid,
    "NAMESPACE_INVALID": NamespaceInvalid,
    "NAMESPACE_NOT_FOUND": NamespaceNotFound,
    "NAMESPACE_CONFLICT": NamespaceConflict,
    "ENUM_INVALID": EnumInvalid,
    "STREAM_INCOMPLETE": StreamIncomplete,
    "CHECKSUM_MISMATCH": ChecksumMismatch,
    "DURABILITY_NOT_OFFERED": DurabilityNotOffered,
    "TIER_UNAVAILABLE": TierUnavailable,
    "TIER_FULL": TierFull,
    "CALLS_INFLIGHT": Overloaded,
    "BYTES_INFLIGHT": Overloaded,
    "DRAINING": Draining,
    "DEADLINE": DeadlineExceeded,
    "FIELD_INVALID": InvalidArgument,
    "FORMAT_NEWER": FormatNewer,
    "INTERNAL": ServerDefect,
}

_REASONS: Final[Mapping[type[TerraceKVError], str]] = {kind: reason for reason, kind in _KINDS.items()}

# What gRPC itself says, without a reason of ours.
_TRANSPORT_KINDS: Final[Mapping[str, type[TerraceKVError]]] = {
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
}


def invalid(kind: type[InvalidArgument], field: str, limit: str, given: str) -> InvalidArgument:
    """What the client itself finds wrong, in the words that the server would use."""
    error = kind(bounded(f"{field}: {limit}; given: {given}"))
    error.field, error.limit, error.given = field, limit, given
    error.reason = _REASONS[kind]
    return error


def bounded(text: str) -> str:
    """At most 1,024 characters of a text."""
    return text if len(text) <= MESSAGE_CHARACTERS_MAX else text[: MESSAGE_CHARACTERS_MAX - 3] + "..."


def from_reason(reason: int, message: str) -> TerraceKVError:
    """The error of one row of a batch, from its ErrorReason."""
    known = reason in errors_pb2.ErrorReason.values()
    name = errors_pb2.ErrorReason.Name(reason) if known else str(reason)
    name = name.removeprefix("ERROR_REASON_")
    error = _KINDS.get(name, RpcFailed)(bounded(message))
    error.reason = name
    return error


def from_rpc(failure: grpc.RpcError) -> TerraceKVError:
    """The error of a call, from its code and the google.rpc.Status in its trailers; what is unknown stays RpcFailed."""
    code = getattr(failure.code(), "name", "UNKNOWN")
    metadata: Any = failure.trailing_metadata() or ()  # of either kind of stub: pairs
    trailers: dict[str, str | bytes] = dict(metadata)
    info, retry_after_s = _details(trailers)
    kind = _KINDS.get(info.reason) if info.reason else _TRANSPORT_KINDS.get(code)
    error = (kind or RpcFailed)(bounded(failure.details() or code))
    error.reason = info.reason
    if isinstance(error, InvalidArgument):
        error.field, error.limit, error.given = (info.metadata[name] for name in ("field", "limit", "given"))
    if isinstance(error, Overloaded):
        error.retry_after_s = _pushback_s(trailers, retry_after_s)
    if isinstance(error, RpcFailed):
        error.code = code
    if isinstance(error, ServerDefect):
        error.request_id = str(trailers.get(_REQUEST_ID_TRAILER, ""))
    return error


def _details(trailers: Mapping[str, str | bytes]) -> tuple[error_details_pb2.ErrorInfo, float]:
    status, info, retry = status_pb2.Status(), error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    packed = trailers.get(_STATUS_TRAILER, b"")
    try:
        status.ParseFromString(packed if isinstance(packed, bytes) else b"")
        _unpack(status.details, (info, retry))
    except DecodeError:
        return error_details_pb2.ErrorInfo(), 0.0  # not ours: what it says is unknown
    if info.domain != DOMAIN:
        info.Clear()
    return info, float(retry.retry_delay.ToTimedelta().total_seconds())


def _unpack(details: Iterable[object], into: Iterable[object]) -> None:
    for detail in details:
        for message in into:
            detail.Unpack(message)  # type: ignore[attr-defined]


def _pushback_s(trailers: Mapping[str, str | bytes], otherwise_s: float) -> float:
    pushback = trailers.get(_PUSHBACK_TRAILER, "")
    whole_number = isinstance(pushback, str) and pushback.isascii() and pushback.isdigit()
    return int(pushback) / 1_000 if whole_number else otherwise_s
