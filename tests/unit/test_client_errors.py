"""Errors of the client: each reason of the protos has its class, what is unknown stays unknown, texts are bounded."""

from __future__ import annotations

import copy

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from terracekv.client import errors
from terracekv.v1 import errors_pb2


class Failure(grpc.RpcError):
    """What a stub raises."""

    def __init__(
        self, code: grpc.StatusCode, details: str | None, trailers: tuple[tuple[str, str | bytes], ...]
    ) -> None:
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._trailers


def failure(code: grpc.StatusCode, reason: str, details: str = "words", domain: str = "terracekv") -> Failure:
    status = status_pb2.Status()
    metadata = {"field": "key", "limit": "1 to 1024 bytes", "given": "0 bytes"}
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata))
    return Failure(code, details, (("grpc-status-details-bin", status.SerializeToString()),))


REASONS = [name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.keys()[1:]]


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_a_class_on_the_wire_and_in_a_batch(reason: str) -> None:
    error = errors.from_rpc(failure(grpc.StatusCode.ABORTED, reason))
    assert type(error) not in (errors.RpcFailed, errors.TerraceKVError)
    assert error.reason == reason
    row = errors.from_reason(errors_pb2.ErrorReason.Value("ERROR_REASON_" + reason), "words")
    assert type(row) is type(error)


def test_an_invalid_argument_names_field_limit_and_value() -> None:
    error = errors.from_rpc(failure(grpc.StatusCode.INVALID_ARGUMENT, "KEY_INVALID"))
    assert isinstance(error, errors.KeyInvalid)
    assert (error.field, error.limit, error.given) == ("key", "1 to 1024 bytes", "0 bytes")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.RpcFailed),
        (grpc.StatusCode.UNKNOWN, errors.RpcFailed),
        (grpc.StatusCode.UNIMPLEMENTED, errors.RpcFailed),
    ],
)
def test_a_status_without_a_reason_is_taken_by_its_code_or_stays_unknown(
    code: grpc.StatusCode, kind: type[errors.TerraceKVError]
) -> None:
    error = errors.from_rpc(Failure(code, None, ()))
    assert type(error) is kind
    if isinstance(error, errors.RpcFailed):
        assert error.code == code.name


def test_a_reason_of_another_domain_or_time_is_not_guessed() -> None:
    foreign = errors.from_rpc(failure(grpc.StatusCode.INTERNAL, "KEY_INVALID", domain="elsewhere"))
    newer = errors.from_rpc(failure(grpc.StatusCode.UNAVAILABLE, "OF_A_LATER_VERSION"))
    assert (type(foreign), type(newer)) == (errors.RpcFailed, errors.RpcFailed)
    assert newer.reason == "OF_A_LATER_VERSION"
    assert type(errors.from_reason(9_999, "words")) is errors.RpcFailed


def test_details_that_are_no_status_are_ignored() -> None:
    error = errors.from_rpc(Failure(grpc.StatusCode.UNAVAILABLE, "x", (("grpc-status-details-bin", b"\xff\xff"),)))
    assert type(error) is errors.Unavailable


def test_a_long_text_keeps_its_code_and_is_cut() -> None:
    error = errors.from_rpc(failure(grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND", details="x" * 50_000))
    assert isinstance(error, errors.NamespaceNotFound)
    assert len(str(error)) == 1_024


def test_overload_says_when_to_come_back() -> None:
    refused = failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "CALLS_INFLIGHT")
    refused._trailers += (("grpc-retry-pushback-ms", "350"),)
    error = errors.from_rpc(refused)
    assert isinstance(error, errors.Overloaded)
    assert error.retry_after_s == 0.35


def test_a_defect_carries_its_request_id() -> None:
    broken = failure(grpc.StatusCode.INTERNAL, "INTERNAL")
    broken._trailers += (("terracekv-request-id", "abc123"),)
    error = errors.from_rpc(broken)
    assert isinstance(error, errors.ServerDefect)
    assert (error.code, error.request_id) == ("INTERNAL", "abc123")


def test_a_deadline_is_a_timeout_and_a_bad_argument_a_value_error() -> None:
    assert issubclass(errors.DeadlineExceeded, TimeoutError)
    assert issubclass(errors.InvalidArgument, ValueError)


def test_errors_survive_being_copied() -> None:
    error = errors.from_rpc(failure(grpc.StatusCode.INVALID_ARGUMENT, "KEY_INVALID"))
    again = copy.copy(error)  # as a process pool does
    assert (type(again), str(again), again.field) == (errors.KeyInvalid, "words", "key")  # type: ignore[attr-defined]
