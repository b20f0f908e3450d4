"""What is tried again and what is not, and how long anything may take."""

from __future__ import annotations

import json

import pytest

from terracekv.client import errors, policy
from terracekv.client.policy import Deadline, Timeouts, Tries, parse_targets, transfer_timeout_s


def tries(targets: int = 1, left_s: float = 2.0, jitter: float = 1.0) -> Tries:
    return Tries(targets, Deadline(left_s, lambda: 0.0), lambda: jitter)


def overloaded(retry_after_s: float) -> errors.Overloaded:
    error = errors.Overloaded("refused")
    error.retry_after_s = retry_after_s
    return error


def test_grpc_itself_never_sends_a_put_twice() -> None:
    config = json.loads(policy.SERVICE_CONFIG)
    methods = {name["method"] for entry in config["methodConfig"] for name in entry["name"]}
    assert not methods & {"Put", "PutMany", "PutStream", "Store", "Clear", "Drain", "CreateNamespace"}
    assert {"Get", "GetMany", "Exists", "Match", "Delete", "Invalidate"} <= methods
    assert config["methodConfig"][0]["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]


def test_a_write_that_may_have_happened_is_not_repeated() -> None:
    assert tries().pause_s(errors.Unavailable("lost"), untouched=False, safe=False) is None
    assert tries(targets=3).pause_s(errors.Unavailable("lost"), untouched=False, safe=False) is None


def test_a_write_that_was_not_sent_is() -> None:
    assert tries().pause_s(errors.Unavailable("lost"), untouched=True, safe=False) is not None


def test_another_target_is_tried_at_once_then_after_a_pause() -> None:
    attempt = tries(targets=2)
    assert attempt.pause_s(errors.Unavailable("lost"), untouched=False, safe=True) == 0.0
    assert attempt.pause_s(errors.Unavailable("lost"), untouched=False, safe=True) == policy.BACKOFF_FIRST_S


def test_the_only_target_is_left_to_grpcs_own_retries() -> None:
    assert tries().pause_s(errors.Unavailable("lost"), untouched=False, safe=True) is None


@pytest.mark.parametrize("safe", [True, False])
def test_a_refusal_is_tried_again_no_sooner_than_asked_and_slower_each_time(safe: bool) -> None:
    attempt = tries(left_s=60.0)
    pauses = [attempt.pause_s(overloaded(0.2), untouched=False, safe=safe) for _ in range(4)]
    assert pauses[3] is None
    asked = [pause for pause in pauses if pause is not None]
    assert asked == sorted(asked)
    assert asked[0] >= 0.2
    assert asked[2] >= 0.8


def test_nothing_is_tried_again_past_the_deadline() -> None:
    assert tries(left_s=0.1).pause_s(overloaded(0.2), untouched=False, safe=True) is None


@pytest.mark.parametrize(
    "error", [errors.KeyInvalid("x"), errors.TierUnavailable("x"), errors.DeadlineExceeded("x"), errors.DataLoss("x")]
)
def test_other_errors_are_final(error: errors.TerraceKVError) -> None:
    assert tries(targets=2).pause_s(error, untouched=False, safe=True) is None


@pytest.mark.parametrize(
    ("target", "targets"),
    [
        ("127.0.0.1:50151", ("127.0.0.1:50151",)),
        ("a:1, b:2,a:1", ("a:1", "b:2")),
        ("dns:///cache.example:50151", ("dns:///cache.example:50151",)),
        ("[::1]:50151", ("[::1]:50151",)),
        ("unix:/run/terracekv.sock", ("unix:/run/terracekv.sock",)),
    ],
)
def test_targets_are_read(target: str, targets: tuple[str, ...]) -> None:
    assert parse_targets(target) == targets


@pytest.mark.parametrize("target", ["", "localhost", "a:1,,b:2", "a:port", "http//x", "a:1 b:2"])
def test_what_is_no_target_is_refused(target: str) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        parse_targets(target)
    assert caught.value.field == "target"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_deadline_is_always_finite(seconds: float) -> None:
    with pytest.raises(errors.InvalidArgument):
        Deadline.after(seconds)


def test_transfers_get_time_by_their_size() -> None:
    assert transfer_timeout_s(0, 2.0) == 10.0
    assert transfer_timeout_s(200 * 1_048_576, 2.0) == 20.0
    assert transfer_timeout_s(0, 30.0) == 30.0


def test_a_timeout_of_the_call_bounds_all_of_its_rpcs() -> None:
    whole = Deadline.after(5.0)
    assert Timeouts(2.0, whole).unary() is whole
    assert Timeouts(2.0, whole).transfer(1 << 30) is whole
