"""Lives as arithmetic: jitter only shortens, spreads evenly, and nothing lives for ever by rounding."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terracekv.tiers.ttl import JITTER_MAX, TTL_S_MAX, expires_us, left_us

NOW_US = 1_700_000_000_000_000


@given(st.floats(1e-6, TTL_S_MAX), st.floats(0, JITTER_MAX), st.floats(0, 1, exclude_max=True))
def test_a_life_ends_between_what_jitter_leaves_and_what_was_asked(ttl_s: float, jitter: float, draw: float) -> None:
    end_us = expires_us(NOW_US, ttl_s, jitter, draw)
    whole_us = round(ttl_s * 1_000_000)
    assert NOW_US < end_us <= NOW_US + max(1, whole_us)
    assert end_us >= NOW_US + whole_us * (1 - jitter) - 2


@pytest.mark.parametrize("ttl_s", [1e-9, 1e-7, 5e-7])
def test_the_shortest_life_is_one_microsecond_and_not_endless(ttl_s: float) -> None:
    assert expires_us(NOW_US, ttl_s, 0.5, 0.999) == NOW_US + 1


def test_without_a_ttl_there_is_no_end() -> None:
    assert expires_us(NOW_US, None, 0.1, 0.5) == 0
    assert left_us(0, NOW_US) is None


def test_a_thousand_keys_written_at_once_do_not_end_at_once() -> None:
    draw = random.Random(1).random
    ends_s = sorted((expires_us(NOW_US, 100.0, 0.1, draw()) - NOW_US) / 1e6 for _ in range(1_000))
    assert ends_s[0] >= 90
    assert ends_s[-1] <= 100
    in_each_second = [sum(second <= end < second + 1 for end in ends_s) for second in range(90, 100)]
    assert min(in_each_second) > 60
    assert max(in_each_second) < 140


def test_what_is_left_of_a_life_that_is_over_is_not_without_end() -> None:
    assert left_us(NOW_US + 5, NOW_US) == 5
    assert left_us(NOW_US, NOW_US) == 1
    assert left_us(NOW_US - 100, NOW_US) == 1
