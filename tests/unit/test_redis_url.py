"""Addresses of a Redis, what is shown of them, and settings that would lose data."""

from __future__ import annotations

import pytest

from terracekv.tiers.errors import FieldInvalid, SharedConfig
from terracekv.tiers.redis_url import Address, check_server, parse_info, parse_redis_url

HERE = Address("h", 6379)


def test_a_url_names_seeds_credentials_and_tls() -> None:
    url = parse_redis_url("rediss://us%40er:p%3Aw%40@one:7000,two,[::1]:7001/")
    assert url.seeds == (Address("one", 7000), Address("two", 6379), Address("::1", 7001))
    assert (url.username, url.password, url.tls) == ("us@er", "p:w@", True)
    assert parse_redis_url("redis://:secret@h").username is None
    assert parse_redis_url("redis://h:1").password is None


def test_the_password_is_never_shown() -> None:
    url = parse_redis_url("redis://user:secret@one:7000,[::1]:7001")
    assert url.masked == "redis://***@one:7000,[::1]:7001"
    assert "secret" not in repr(url)
    for wrong in ("redis://user:secret@one:99999", "http://user:secret@one", "redis://user:secret@", "user:secret@one"):
        with pytest.raises(FieldInvalid) as raised:
            parse_redis_url(wrong)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong", ["", "redis://", "redis:one", "redis://h:0", "redis://h:x", "redis://h/1", "redis://h?db=1", "redis://u@h"]
)
def test_what_is_no_url_is_refused_with_the_form_it_should_have(wrong: str) -> None:
    with pytest.raises(FieldInvalid, match="shared: "):
        parse_redis_url(wrong)


def test_info_is_parsed() -> None:
    info = parse_info(b"# Server\r\nredis_version:7.2.4\r\n\r\n# Memory\r\nmaxmemory_policy:volatile-lru\r\nx:a:b\r\n")
    assert info == {"redis_version": "7.2.4", "maxmemory_policy": "volatile-lru", "x": "a:b"}


def test_a_policy_that_evicts_everything_is_refused_with_the_cure() -> None:
    with pytest.raises(SharedConfig, match=r"allkeys-lru.*CONFIG SET maxmemory-policy volatile-lru"):
        check_server({"redis_version": "7.0.15", "maxmemory_policy": "allkeys-lru"}, {}, HERE)
    for policy in ("noeviction", "volatile-lru", "volatile-ttl"):
        assert check_server({"redis_version": "7.0.15", "maxmemory_policy": policy}, {}, HERE) == []


@pytest.mark.parametrize("version", ["6.2.14", "3.0", ""])
def test_an_old_server_is_refused_in_words(version: str) -> None:
    with pytest.raises(SharedConfig, match=r"needs 7\.0 or newer"):
        check_server({"redis_version": version}, {}, HERE)


def test_stale_reads_of_a_cut_off_master_are_warned_of() -> None:
    (warning,) = check_server({"redis_version": "7.2.4"}, {"cluster-allow-reads-when-down": "yes"}, HERE)
    assert "cluster-allow-reads-when-down" in warning
