from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_KEY_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_TTL_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_VALUE_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_BATCH_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_NAMESPACE_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_NAMESPACE_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_NAMESPACE_CONFLICT: _ClassVar[ErrorReason]
    ERROR_REASON_ENUM_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_STREAM_INCOMPLETE: _ClassVar[ErrorReason]
    ERROR_REASON_CHECKSUM_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_DURABILITY_NOT_OFFERED: _ClassVar[ErrorReason]
    ERROR_REASON_TIER_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_TIER_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_CALLS_INFLIGHT: _ClassVar[ErrorReason]
    ERROR_REASON_BYTES_INFLIGHT: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE: _ClassVar[ErrorReason]
    ERROR_REASON_FIELD_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_FORMAT_NEWER: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_KEY_INVALID: ErrorReason
ERROR_REASON_TTL_INVALID: ErrorReason
ERROR_REASON_VALUE_TOO_LARGE: ErrorReason
ERROR_REASON_BATCH_INVALID: ErrorReason
ERROR_REASON_NAMESPACE_INVALID: ErrorReason
ERROR_REASON_NAMESPACE_NOT_FOUND: ErrorReason
ERROR_REASON_NAMESPACE_CONFLICT: ErrorReason
ERROR_REASON_ENUM_INVALID: ErrorReason
ERROR_REASON_STREAM_INCOMPLETE: ErrorReason
ERROR_REASON_CHECKSUM_MISMATCH: ErrorReason
ERROR_REASON_DURABILITY_NOT_OFFERED: ErrorReason
ERROR_REASON_TIER_UNAVAILABLE: ErrorReason
ERROR_REASON_TIER_FULL: ErrorReason
ERROR_REASON_CALLS_INFLIGHT: ErrorReason
ERROR_REASON_BYTES_INFLIGHT: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_DEADLINE: ErrorReason
ERROR_REASON_FIELD_INVALID: ErrorReason
ERROR_REASON_FORMAT_NEWER: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
