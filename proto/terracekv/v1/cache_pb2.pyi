from terracekv.v1 import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    DURABILITY_MEMORY: _ClassVar[Durability]
    DURABILITY_SHARED: _ClassVar[Durability]
    DURABILITY_WAL: _ClassVar[Durability]
    DURABILITY_FSYNC: _ClassVar[Durability]
    DURABILITY_REPLICATED: _ClassVar[Durability]
    DURABILITY_DURABLE: _ClassVar[Durability]

class TierName(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_NAME_UNSPECIFIED: _ClassVar[TierName]
    TIER_NAME_MEMORY: _ClassVar[TierName]
    TIER_NAME_SHARED: _ClassVar[TierName]
    TIER_NAME_DISK: _ClassVar[TierName]

class KeyStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_STATUS_UNSPECIFIED: _ClassVar[KeyStatus]
    KEY_STATUS_HIT: _ClassVar[KeyStatus]
    KEY_STATUS_MISS: _ClassVar[KeyStatus]
    KEY_STATUS_UNAVAILABLE: _ClassVar[KeyStatus]
    KEY_STATUS_DEFERRED: _ClassVar[KeyStatus]

class PutStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_STATUS_UNSPECIFIED: _ClassVar[PutStatus]
    PUT_STATUS_STORED: _ClassVar[PutStatus]
    PUT_STATUS_KEPT: _ClassVar[PutStatus]
    PUT_STATUS_FAILED: _ClassVar[PutStatus]
DURABILITY_UNSPECIFIED: Durability
DURABILITY_MEMORY: Durability
DURABILITY_SHARED: Durability
DURABILITY_WAL: Durability
DURABILITY_FSYNC: Durability
DURABILITY_REPLICATED: Durability
DURABILITY_DURABLE: Durability
TIER_NAME_UNSPECIFIED: TierName
TIER_NAME_MEMORY: TierName
TIER_NAME_SHARED: TierName
TIER_NAME_DISK: TierName
KEY_STATUS_UNSPECIFIED: KeyStatus
KEY_STATUS_HIT: KeyStatus
KEY_STATUS_MISS: KeyStatus
KEY_STATUS_UNAVAILABLE: KeyStatus
KEY_STATUS_DEFERRED: KeyStatus
PUT_STATUS_UNSPECIFIED: PutStatus
PUT_STATUS_STORED: PutStatus
PUT_STATUS_KEPT: PutStatus
PUT_STATUS_FAILED: PutStatus

class GetRequest(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("status", "value", "size_bytes", "version", "expires_in_us", "checksum", "tier")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_US_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    status: KeyStatus
    value: bytes
    size_bytes: int
    version: int
    expires_in_us: int
    checksum: bytes
    tier: TierName
    def __init__(self, status: _Optional[_Union[KeyStatus, str]] = ..., value: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., version: _Optional[int] = ..., expires_in_us: _Optional[int] = ..., checksum: _Optional[bytes] = ..., tier: _Optional[_Union[TierName, str]] = ...) -> None: ...

class GetManyRequest(_message.Message):
    __slots__ = ("namespace", "keys")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, namespace: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetManyResponse(_message.Message):
    __slots__ = ("payload", "statuses", "sizes_bytes", "versions", "expires_in_us", "checksums", "tiers")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    SIZES_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_US_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    statuses: _containers.RepeatedScalarFieldContainer[KeyStatus]
    sizes_bytes: _containers.RepeatedScalarFieldContainer[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    expires_in_us: _containers.RepeatedScalarFieldContainer[int]
    checksums: bytes
    tiers: _containers.RepeatedScalarFieldContainer[TierName]
    def __init__(self, payload: _Optional[bytes] = ..., statuses: _Optional[_Iterable[_Union[KeyStatus, str]]] = ..., sizes_bytes: _Optional[_Iterable[int]] = ..., versions: _Optional[_Iterable[int]] = ..., expires_in_us: _Optional[_Iterable[int]] = ..., checksums: _Optional[bytes] = ..., tiers: _Optional[_Iterable[_Union[TierName, str]]] = ...) -> None: ...

class GetStreamRequest(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class GetStreamResponse(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: GetStreamHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[GetStreamHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class GetStreamHeader(_message.Message):
    __slots__ = ("status", "size_bytes", "version", "expires_in_us", "checksum", "tier")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_US_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    status: KeyStatus
    size_bytes: int
    version: int
    expires_in_us: int
    checksum: bytes
    tier: TierName
    def __init__(self, status: _Optional[_Union[KeyStatus, str]] = ..., size_bytes: _Optional[int] = ..., version: _Optional[int] = ..., expires_in_us: _Optional[int] = ..., checksum: _Optional[bytes] = ..., tier: _Optional[_Union[TierName, str]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("namespace", "key", "value", "ttl_s", "durability", "checksum")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    value: bytes
    ttl_s: float
    durability: Durability
    checksum: bytes
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., ttl_s: _Optional[float] = ..., durability: _Optional[_Union[Durability, str]] = ..., checksum: _Optional[bytes] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("status", "version", "durability")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    status: PutStatus
    version: int
    durability: Durability
    def __init__(self, status: _Optional[_Union[PutStatus, str]] = ..., version: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class PutManyRequest(_message.Message):
    __slots__ = ("namespace", "keys", "payload", "sizes_bytes", "ttl_s", "durability", "checksums")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SIZES_BYTES_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    payload: bytes
    sizes_bytes: _containers.RepeatedScalarFieldContainer[int]
    ttl_s: float
    durability: Durability
    checksums: bytes
    def __init__(self, namespace: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ..., payload: _Optional[bytes] = ..., sizes_bytes: _Optional[_Iterable[int]] = ..., ttl_s: _Optional[float] = ..., durability: _Optional[_Union[Durability, str]] = ..., checksums: _Optional[bytes] = ...) -> None: ...

class PutManyResponse(_message.Message):
    __slots__ = ("statuses", "versions", "reasons", "durability")
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[PutStatus]
    versions: _containers.RepeatedScalarFieldContainer[int]
    reasons: _containers.RepeatedScalarFieldContainer[_errors_pb2.ErrorReason]
    durability: Durability
    def __init__(self, statuses: _Optional[_Iterable[_Union[PutStatus, str]]] = ..., versions: _Optional[_Iterable[int]] = ..., reasons: _Optional[_Iterable[_Union[_errors_pb2.ErrorReason, str]]] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class PutStreamRequest(_message.Message):
    __slots__ = ("header", "data", "commit")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    header: PutStreamHeader
    data: bytes
    commit: PutStreamCommit
    def __init__(self, header: _Optional[_Union[PutStreamHeader, _Mapping]] = ..., data: _Optional[bytes] = ..., commit: _Optional[_Union[PutStreamCommit, _Mapping]] = ...) -> None: ...

class PutStreamHeader(_message.Message):
    __slots__ = ("namespace", "key", "size_bytes", "ttl_s", "durability")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    size_bytes: int
    ttl_s: float
    durability: Durability
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., ttl_s: _Optional[float] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class PutStreamCommit(_message.Message):
    __slots__ = ("checksum",)
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    checksum: bytes
    def __init__(self, checksum: _Optional[bytes] = ...) -> None: ...

class PutStreamResponse(_message.Message):
    __slots__ = ("status", "version", "durability")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    status: PutStatus
    version: int
    durability: Durability
    def __init__(self, status: _Optional[_Union[PutStatus, str]] = ..., version: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class ExistsRequest(_message.Message):
    __slots__ = ("namespace", "keys")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, namespace: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ExistsResponse(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[KeyStatus]
    def __init__(self, statuses: _Optional[_Iterable[_Union[KeyStatus, str]]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("namespace", "keys", "durability")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    durability: Durability
    def __init__(self, namespace: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("reasons",)
    REASONS_FIELD_NUMBER: _ClassVar[int]
    reasons: _containers.RepeatedScalarFieldContainer[_errors_pb2.ErrorReason]
    def __init__(self, reasons: _Optional[_Iterable[_Union[_errors_pb2.ErrorReason, str]]] = ...) -> None: ...

class InvalidateRequest(_message.Message):
    __slots__ = ("namespace", "prefix", "epoch")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    prefix: bytes
    epoch: bool
    def __init__(self, namespace: _Optional[str] = ..., prefix: _Optional[bytes] = ..., epoch: bool = ...) -> None: ...

class InvalidateResponse(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...
