"""What Redis does in one step: the Lua scripts. Each touches one slot, names every key in KEYS, runs on Redis 7.0.

Versions are 64-bit numbers and Lua has doubles, so they are handled as two
halves of 32 bits. The highest one, which nothing could follow, is taken for
damage and counts as 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

Argument = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its digest, by which Redis knows it once it has run."""

    source: str = field(repr=False)
    sha: str = ""

    def call(self, keys: Sequence[bytes], *arguments: Argument) -> tuple[Script | Argument, ...]:
        """A command that runs it: by digest at first, by source when repeated."""
        return (self, len(keys), *keys, *arguments)


def _script(*parts: str) -> Script:
    source = "\n".join(parts)
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


_HEADER: Final = """
local function header_of(key)
    local seen = redis.call('GETRANGE', key, 0, 1535)
    if #seen < 24 or string.sub(seen, 1, 4) ~= 'TKV1' then return '' end
    local length = 24 + struct.unpack('<H', seen, 7)
    if length <= #seen then return string.sub(seen, 1, length) end
    return redis.call('GETRANGE', key, 0, length - 1)
end
"""

_VERSIONS: Final = """
local function version_at(bytes, at)
    if #bytes < at + 7 then return 0, 0 end
    local low, high = struct.unpack('<I4I4', bytes, at)
    if high == 4294967295 and low == 4294967295 then return 0, 0 end
    return high, low
end

local function higher(high, low, other_high, other_low)
    if other_high > high or (other_high == high and other_low > low) then return other_high, other_low end
    return high, low
end
"""

# KEYS: the record; then the staged record, or the parts of a value kept apart.
# ARGV: mode, version (8 bytes, little-endian), life in ms (0: none), record ('' if it is staged).
#   next   under the version max(stored + 1, TIME in us, the one given)
#   fill   under the version given, unless a higher one is stored
#   first  as it is, unless something is stored
# Answers {1, version, header replaced} or {0, version in place, header in place}; {-1} if what it needs is gone.
STORE: Final = _script(
    _HEADER,
    _VERSIONS,
    """
local header = header_of(KEYS[1])
local high, low = version_at(header, 9)
local given_high, given_low = version_at(ARGV[2], 1)

if ARGV[1] == 'next' then
    low = low + 1
    if low == 4294967296 then high, low = high + 1, 0 end
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local now_high = math.floor(now / 4294967296)
    high, low = higher(high, low, now_high, now - now_high * 4294967296)
    high, low = higher(high, low, given_high, given_low)
elseif ARGV[1] == 'fill' then
    if high > given_high or (high == given_high and low > given_low) then
        return {0, struct.pack('<I4I4', low, high), header}
    end
    high, low = given_high, given_low
elseif redis.call('EXISTS', KEYS[1]) == 1 then
    return {0, struct.pack('<I4I4', low, high), header}
else
    high, low = given_high, given_low
end

local needed = #KEYS - 1
if needed > 0 and redis.call('EXISTS', unpack(KEYS, 2)) < needed then return {-1} end

local version = struct.pack('<I4I4', low, high)
if ARGV[4] == '' then
    redis.call('RENAME', KEYS[2], KEYS[1])
    redis.call('SETRANGE', KEYS[1], 8, version)
    if ARGV[3] == '0' then redis.call('PERSIST', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
else
    local record = string.sub(ARGV[4], 1, 8) .. version .. string.sub(ARGV[4], 17)
    if ARGV[3] == '0' then
        redis.call('SET', KEYS[1], record)
        for at = 2, #KEYS do redis.call('PERSIST', KEYS[at]) end
    else
        redis.call('SET', KEYS[1], record, 'PX', ARGV[3])
        for at = 2, #KEYS do redis.call('PEXPIRE', KEYS[at], ARGV[3]) end
    end
end
return {1, version, header}
""",
)

# KEYS: the record. Removes it and answers its header if its payload is kept apart, so that the parts can follow.
DELETE: Final = _script(
    _HEADER,
    """
local header = header_of(KEYS[1])
local apart = #header > 0 and redis.call('STRLEN', KEYS[1]) == #header
redis.call('UNLINK', KEYS[1])
if apart then return header end
return ''
""",
)

# KEYS: a record. ARGV: how it began when it was read. Removes it if it still begins so; whether it did.
DROP: Final = _script(
    """
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then return 0 end
return redis.call('UNLINK', KEYS[1])
""",
)

# KEYS: a hash. ARGV: field, its value until now, its new value; two arguments: the field must be absent.
SWAP: Final = _script(
    """
local now = redis.call('HGET', KEYS[1], ARGV[1])
if #ARGV == 2 then
    if now then return 0 end
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    return 1
end
if now ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
""",
)
