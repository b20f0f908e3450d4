"""What can be said about a Redis without asking it: its address list, its INFO, whether its settings lose data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import unquote

from terracekv.tiers.errors import FieldInvalid, SharedConfig

PORT_DEFAULT: Final = 6_379
SEEDS_MAX: Final = 64
VERSION_MIN: Final = (7, 0)
_RULE: Final = "redis[s]://[user:password@]host:port,host:port,..."


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """Seeds and credentials of a Redis. Its text never shows the password."""

    seeds: tuple[Address, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False

    @property
    def masked(self) -> str:
        """The URL as it may be logged."""
        secret = "***@" if self.password else ""
        return f"redis{'s' if self.tls else ''}://{secret}{','.join(map(str, self.seeds))}"


def parse_redis_url(url: str) -> RedisUrl:
    """Seeds, credentials and TLS of a URL; parts of the credentials may be percent-encoded. Raises FieldInvalid."""
    scheme, separator, rest = url.partition("://")
    credentials, at, hosts = rest.rpartition("@")
    hosts = hosts.removesuffix("/")
    if scheme not in ("redis", "rediss") or not separator or re.search(r"[/?#]", hosts):
        raise FieldInvalid("shared", _RULE, _masked(url))
    username, colon, password = credentials.partition(":")
    if at and not (colon and password):
        raise FieldInvalid("shared", f"{_RULE}; a user needs a password", _masked(url))
    names = [name for name in hosts.split(",") if name]
    if not 1 <= len(names) <= SEEDS_MAX:
        raise FieldInvalid("shared", f"1 to {SEEDS_MAX} addresses", str(len(names)))
    seeds = tuple(dict.fromkeys(_address(name) for name in names))
    return RedisUrl(seeds, unquote(username) or None, unquote(password) or None, scheme == "rediss")


def _address(text: str) -> Address:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]@\s]+)(?::(\d{1,5}))?", text.strip())
    port = int(match[2] or PORT_DEFAULT) if match else 0
    if match is None or not 1 <= port <= 65_535:
        raise FieldInvalid("shared", _RULE, _masked(text))
    return Address(match[1].strip("[]"), port)


def _masked(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    hidden = f"***@{rest.rpartition('@')[2]}" if "@" in rest else rest
    return f"{scheme}{separator}{hidden}"[:200] if separator or "@" not in url else f"***@{url.rpartition('@')[2]}"


def parse_info(text: bytes) -> dict[str, str]:
    """The fields of an INFO reply."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in lines if colon}


def check_server(info: Mapping[str, str], config: Mapping[str, str], address: Address) -> list[str]:
    """Warnings about a server's settings, in words. Raises SharedConfig where terracekv would silently lose data.

    `config` is what CONFIG GET told, empty where an ACL forbids it: INFO has what matters most.
    """
    version = info.get("redis_version", "")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < VERSION_MIN:
        raise SharedConfig(f"Redis at {address} is version {version or 'unknown'}: terracekv needs 7.0 or newer")
    policy = info.get("maxmemory_policy") or config.get("maxmemory-policy", "")
    if policy.startswith("allkeys-"):
        raise SharedConfig(
            f"Redis at {address} has maxmemory-policy {policy}, which evicts namespaces and leases too:"
            " run CONFIG SET maxmemory-policy volatile-lru on every master, or use noeviction"
        )
    warnings = []
    if config.get("cluster-allow-reads-when-down") == "yes":
        warnings.append(
            f"Redis at {address} has cluster-allow-reads-when-down yes: a cut-off master may serve what is old"
        )
    return warnings
