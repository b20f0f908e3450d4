from terracekv.v1 import cache_pb2 as _cache_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_MUTABLE: _ClassVar[Kind]
    KIND_IMMUTABLE: _ClassVar[Kind]

class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODEC_UNSPECIFIED: _ClassVar[Codec]
    CODEC_NONE: _ClassVar[Codec]
    CODEC_ZSTD: _ClassVar[Codec]
    CODEC_PLANES_ZSTD: _ClassVar[Codec]

class TierState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_STATE_UNSPECIFIED: _ClassVar[TierState]
    TIER_STATE_UP: _ClassVar[TierState]
    TIER_STATE_DEGRADED: _ClassVar[TierState]
    TIER_STATE_DOWN: _ClassVar[TierState]
    TIER_STATE_ABSENT: _ClassVar[TierState]
KIND_UNSPECIFIED: Kind
KIND_MUTABLE: Kind
KIND_IMMUTABLE: Kind
CODEC_UNSPECIFIED: Codec
CODEC_NONE: Codec
CODEC_ZSTD: Codec
CODEC_PLANES_ZSTD: Codec
TIER_STATE_UNSPECIFIED: TierState
TIER_STATE_UP: TierState
TIER_STATE_DEGRADED: TierState
TIER_STATE_DOWN: TierState
TIER_STATE_ABSENT: TierState

class Namespace(_message.Message):
    __slots__ = ("name", "kind", "epoch", "ttl_s", "jitter", "tiers", "codec", "durability")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    JITTER_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: Kind
    epoch: int
    ttl_s: float
    jitter: float
    tiers: _containers.RepeatedScalarFieldContainer[_cache_pb2.TierName]
    codec: Codec
    durability: _cache_pb2.Durability
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[Kind, str]] = ..., epoch: _Optional[int] = ..., ttl_s: _Optional[float] = ..., jitter: _Optional[float] = ..., tiers: _Optional[_Iterable[_Union[_cache_pb2.TierName, str]]] = ..., codec: _Optional[_Union[Codec, str]] = ..., durability: _Optional[_Union[_cache_pb2.Durability, str]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("tier", "hits", "misses", "failures", "puts", "deletes", "evictions", "read_bytes", "written_bytes", "used_bytes", "capacity_bytes", "entries", "corrupt")
    TIER_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PUTS_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    tier: _cache_pb2.TierName
    hits: int
    misses: int
    failures: int
    puts: int
    deletes: int
    evictions: int
    read_bytes: int
    written_bytes: int
    used_bytes: int
    capacity_bytes: int
    entries: int
    corrupt: int
    def __init__(self, tier: _Optional[_Union[_cache_pb2.TierName, str]] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., failures: _Optional[int] = ..., puts: _Optional[int] = ..., deletes: _Optional[int] = ..., evictions: _Optional[int] = ..., read_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., entries: _Optional[int] = ..., corrupt: _Optional[int] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("tiers", "uptime_s", "version", "pending_bytes", "flights_joined", "blocks_differing")
    TIERS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    FLIGHTS_JOINED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_DIFFERING_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    uptime_s: float
    version: str
    pending_bytes: int
    flights_joined: int
    blocks_differing: int
    def __init__(self, tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., uptime_s: _Optional[float] = ..., version: _Optional[str] = ..., pending_bytes: _Optional[int] = ..., flights_joined: _Optional[int] = ..., blocks_differing: _Optional[int] = ...) -> None: ...

class TiersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TierInfo(_message.Message):
    __slots__ = ("tier", "state", "detail")
    TIER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    tier: _cache_pb2.TierName
    state: TierState
    detail: str
    def __init__(self, tier: _Optional[_Union[_cache_pb2.TierName, str]] = ..., state: _Optional[_Union[TierState, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class TiersResponse(_message.Message):
    __slots__ = ("tiers",)
    TIERS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[TierInfo]
    def __init__(self, tiers: _Optional[_Iterable[_Union[TierInfo, _Mapping]]] = ...) -> None: ...

class ListNamespacesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNamespacesResponse(_message.Message):
    __slots__ = ("namespaces",)
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[Namespace]
    def __init__(self, namespaces: _Optional[_Iterable[_Union[Namespace, _Mapping]]] = ...) -> None: ...

class CreateNamespaceRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ...) -> None: ...

class CreateNamespaceResponse(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ...) -> None: ...

class UpdateNamespaceRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ...) -> None: ...

class UpdateNamespaceResponse(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushResponse(_message.Message):
    __slots__ = ("flushed_bytes",)
    FLUSHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    flushed_bytes: int
    def __init__(self, flushed_bytes: _Optional[int] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("tiers",)
    TIERS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedScalarFieldContainer[_cache_pb2.TierName]
    def __init__(self, tiers: _Optional[_Iterable[_Union[_cache_pb2.TierName, str]]] = ...) -> None: ...

class ClearResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfigResponse(_message.Message):
    __slots__ = ("toml",)
    TOML_FIELD_NUMBER: _ClassVar[int]
    toml: str
    def __init__(self, toml: _Optional[str] = ...) -> None: ...
