"""The settings of a node: one frozen tree from defaults, a TOML file, TERRACEKV_* variables and arguments, in order.

Every limit carries its unit in its name. `docs/operations.md` lists them all;
a test keeps the two in step.
"""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from terracekv.tiers.entry import Codec, Durability, Kind, TierName
from terracekv.tiers.errors import FieldInvalid
from terracekv.tiers.namespaces import Namespace, check_namespace

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def parse_bytes(given: object) -> object:
    """A number of bytes from 1048576, "1048576", "1 MiB", "8GiB". Raises ValueError."""
    if not isinstance(given, str):
        return given
    match = re.fullmatch(r"(\d+)\s*([KMGT]iB)?", given.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError("a number of bytes, such as 1048576 or 1 MiB")
    return int(match[1]) * _UNITS[(match[2] or "").upper()]


Bytes = Annotated[int, BeforeValidator(parse_bytes)]


def default_data_dir() -> Path:
    """Where a node keeps its data unless told otherwise."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "terracekv"


class NamespaceSettings(BaseModel):
    """A namespace to create at start if nobody has it; an existing record wins."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: Literal["mutable", "immutable"] = "mutable"
    ttl_s: float | None = Field(default=86_400.0, description="seconds; inf: no expiry")
    jitter: float = 0.1
    tiers: tuple[Literal["memory", "shared", "disk"], ...] = ("memory", "shared", "disk")
    codec: Literal["none", "zstd", "planes_zstd"] = "none"
    durability: Literal["memory", "shared", "wal", "fsync"] | None = None

    def namespace(self) -> Namespace:
        """The same, as the tiers know it. Raises FieldInvalid."""
        endless = self.ttl_s is None or self.ttl_s == float("inf")
        return check_namespace(
            Namespace(
                name=self.name,
                kind=Kind[self.kind.upper()],
                ttl_s=None if endless else self.ttl_s,
                jitter=self.jitter,
                tiers=tuple(TierName[tier.upper()] for tier in self.tiers),
                codec=Codec[self.codec.upper()],
                durability=Durability[self.durability.upper()] if self.durability else None,
            )
        )


class Settings(BaseSettings):
    """All settings of a node."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix="TERRACEKV_", env_nested_delimiter="__")

    listen: str = Field("127.0.0.1:50151", description="address and port of the gRPC service; port 0 picks one")
    metrics_listen: str = Field("127.0.0.1:50152", description='address and port of Prometheus metrics, or "none"')
    data_dir: Path = Field(default_factory=default_data_dir, description="where the disk tier and local state live")
    shared: str = Field(
        "embedded", description="shared tier: embedded, none, or redis[s]://[user:password@]host:port,..."
    )
    shared_prefix: str = Field("terracekv:", description="before every Redis key, so that a cluster can be shared")
    shared_memory_bytes_max: Bytes = Field(1 << 30, ge=48 << 20, description="memory of the embedded cluster in all")
    memory_bytes: Bytes = Field(512 << 20, ge=1 << 20, description="L1: bytes of entries held in memory")
    memory_value_bytes_max: Bytes | None = Field(None, ge=1, description="larger values skip L1; unset: 1/8 of it")
    disk_bytes: Bytes = Field(8 << 30, ge=64 << 20, description="L3: bytes on disk that the data directory may take")
    durable_bytes_max: Bytes = Field(1 << 30, ge=1 << 20, description="part of disk_bytes for what is never dropped")
    pending_bytes_max: Bytes = Field(256 << 20, ge=1 << 20, description="bytes acked and still owed to a lower tier")
    calls_inflight_max: int = Field(512, ge=1, description="calls at once; more are RESOURCE_EXHAUSTED")
    bytes_inflight_max: Bytes = Field(1 << 30, ge=8 << 20, description="payload bytes of calls at once")
    deadline_default_s: float = Field(2.0, gt=0, le=3_600, description="for unary calls that bring no deadline")
    stream_deadline_default_s: float = Field(60.0, gt=0, le=86_400, description="for streams that bring no deadline")
    shutdown_grace_s: float = Field(10.0, ge=0, le=3_600, description="for calls under way when told to stop")
    namespaces_refresh_s: float = Field(1.0, gt=0, le=60, description="how often namespace records are read again")
    mutable_age_s_max: float = Field(
        2.0,
        ge=0,
        le=3_600,
        description="L1 serves mutable entries up to this age if others use the shared tier",
    )
    create_namespaces: bool | None = Field(None, description="create on first put; unset: only on loopback")
    log_dir: Path | None = Field(None, description="write logs to rotating files here instead of stderr")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    namespaces: tuple[NamespaceSettings, ...] = Field((), description="namespaces to create at start")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments win over variables, variables over the file."""
        toml = (TomlConfigSettingsSource(settings_cls),) if settings_cls.model_config.get("toml_file") else ()
        return (init_settings, env_settings, *toml)

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        host = split_address(self.listen)[0]
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port". Raises FieldInvalid."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise FieldInvalid("listen", "host:port", address)
    return host, int(port)


def load_settings(file: Path | None = None, **arguments: Any) -> Settings:
    """The settings in force. `None` arguments are not given. Raises FieldInvalid, in one line."""
    if file is not None and not file.is_file():
        raise FieldInvalid("config", "an existing TOML file", str(file))

    class FromFile(Settings):
        model_config = SettingsConfigDict(toml_file=file)

    try:
        settings = FromFile(**{name: given for name, given in arguments.items() if given is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FieldInvalid(where or "config", first["msg"], mask(str(first.get("input", "")))[:200]) from None
    except ValueError as error:  # TOML that does not parse
        raise FieldInvalid("config", "valid TOML", str(error)[:200]) from None
    return check_settings(settings)


def check_settings(settings: Settings) -> Settings:
    """What single fields cannot say. Raises FieldInvalid."""
    split_address(settings.listen)
    if settings.metrics_listen != "none":
        split_address(settings.metrics_listen)
    if settings.shared not in ("embedded", "none") and not settings.shared.startswith(("redis://", "rediss://")):
        raise FieldInvalid("shared", "embedded, none or redis[s]://host:port,...", mask(settings.shared))
    if settings.durable_bytes_max > settings.disk_bytes // 2:
        raise FieldInvalid("durable_bytes_max", "at most half of disk_bytes", str(settings.durable_bytes_max))
    for namespace in settings.namespaces:
        namespace.namespace()
    return settings


def mask(text: str) -> str:
    """The same without the password of a URL."""
    return re.sub(r"(\w+://)[^@/\s]*@", r"\1***@", text)


def as_toml(settings: Settings) -> str:
    """The settings as the file that would give them, secrets masked."""
    dumped = settings.model_dump(mode="json", exclude_none=True)
    dumped["shared"] = mask(dumped["shared"])
    for namespace in dumped["namespaces"]:
        namespace.setdefault("ttl_s", float("inf"))
    return tomli_w.dumps(dumped)
