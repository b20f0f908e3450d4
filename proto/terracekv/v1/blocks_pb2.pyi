from terracekv.v1 import cache_pb2 as _cache_pb2
from terracekv.v1 import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BlockKey(_message.Message):
    __slots__ = ("digest", "group")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    group: int
    def __init__(self, digest: _Optional[bytes] = ..., group: _Optional[int] = ...) -> None: ...

class LayerGroup(_message.Message):
    __slots__ = ("group", "window_blocks")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    group: int
    window_blocks: int
    def __init__(self, group: _Optional[int] = ..., window_blocks: _Optional[int] = ...) -> None: ...

class MatchRequest(_message.Message):
    __slots__ = ("namespace", "digests", "groups")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    digests: bytes
    groups: _containers.RepeatedCompositeFieldContainer[LayerGroup]
    def __init__(self, namespace: _Optional[str] = ..., digests: _Optional[bytes] = ..., groups: _Optional[_Iterable[_Union[LayerGroup, _Mapping]]] = ...) -> None: ...

class MatchResponse(_message.Message):
    __slots__ = ("matched_blocks", "failed_tiers")
    MATCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FAILED_TIERS_FIELD_NUMBER: _ClassVar[int]
    matched_blocks: int
    failed_tiers: _containers.RepeatedScalarFieldContainer[_cache_pb2.TierName]
    def __init__(self, matched_blocks: _Optional[int] = ..., failed_tiers: _Optional[_Iterable[_Union[_cache_pb2.TierName, str]]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("namespace", "keys")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    keys: _containers.RepeatedCompositeFieldContainer[BlockKey]
    def __init__(self, namespace: _Optional[str] = ..., keys: _Optional[_Iterable[_Union[BlockKey, _Mapping]]] = ...) -> None: ...

class FetchedBlock(_message.Message):
    __slots__ = ("index", "status", "size_bytes", "checksum", "tier", "version")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    index: int
    status: _cache_pb2.KeyStatus
    size_bytes: int
    checksum: bytes
    tier: _cache_pb2.TierName
    version: int
    def __init__(self, index: _Optional[int] = ..., status: _Optional[_Union[_cache_pb2.KeyStatus, str]] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[bytes] = ..., tier: _Optional[_Union[_cache_pb2.TierName, str]] = ..., version: _Optional[int] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("blocks", "data")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[FetchedBlock]
    data: bytes
    def __init__(self, blocks: _Optional[_Iterable[_Union[FetchedBlock, _Mapping]]] = ..., data: _Optional[bytes] = ...) -> None: ...

class StoreRequest(_message.Message):
    __slots__ = ("header", "batch", "commit")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    header: StoreHeader
    batch: StoreBatch
    commit: StoreCommit
    def __init__(self, header: _Optional[_Union[StoreHeader, _Mapping]] = ..., batch: _Optional[_Union[StoreBatch, _Mapping]] = ..., commit: _Optional[_Union[StoreCommit, _Mapping]] = ...) -> None: ...

class StoreHeader(_message.Message):
    __slots__ = ("namespace", "ttl_s", "durability")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    ttl_s: float
    durability: _cache_pb2.Durability
    def __init__(self, namespace: _Optional[str] = ..., ttl_s: _Optional[float] = ..., durability: _Optional[_Union[_cache_pb2.Durability, str]] = ...) -> None: ...

class StoredBlock(_message.Message):
    __slots__ = ("key", "size_bytes", "checksum")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    key: BlockKey
    size_bytes: int
    checksum: bytes
    def __init__(self, key: _Optional[_Union[BlockKey, _Mapping]] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[bytes] = ...) -> None: ...

class StoreBatch(_message.Message):
    __slots__ = ("blocks", "data")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[StoredBlock]
    data: bytes
    def __init__(self, blocks: _Optional[_Iterable[_Union[StoredBlock, _Mapping]]] = ..., data: _Optional[bytes] = ...) -> None: ...

class StoreCommit(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    def __init__(self, blocks: _Optional[int] = ...) -> None: ...

class StoreResponse(_message.Message):
    __slots__ = ("statuses", "reasons", "differing_blocks")
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[_cache_pb2.PutStatus]
    reasons: _containers.RepeatedScalarFieldContainer[_errors_pb2.ErrorReason]
    differing_blocks: int
    def __init__(self, statuses: _Optional[_Iterable[_Union[_cache_pb2.PutStatus, str]]] = ..., reasons: _Optional[_Iterable[_Union[_errors_pb2.ErrorReason, str]]] = ..., differing_blocks: _Optional[int] = ...) -> None: ...
