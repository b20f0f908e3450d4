"""Writes the golden records: stored bytes of every kind in format 1, and what they mean, field by field.

Run once for each format, never again for one that was released: what these
files hold must be read for ever.

    python tests/golden/make_records.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from terracekv.tiers.entry import Codec, Entry, Head, Key, KeySpace, Kind, checksum_of
from terracekv.tiers.envelope import encode_inline, encode_parts

FOLDER: Final = Path(__file__).parent / "records"
CREATED_US: Final = 1_764_547_200_000_000  # 2025-12-01
PARTS_ID: Final = bytes.fromhex("0123456789abcdef")
FLOATS: Final = b"".join((at * 7 % 251).to_bytes(1, "big") + b"\x3f" for at in range(300)) + b"\x80"


def _entry(frames: tuple[bytes, ...], kind: Kind, version: int, expires_us: int, codec: Codec = Codec.NONE) -> Entry:
    size_bytes = sum(map(len, frames))
    return Entry(Head(size_bytes, version, CREATED_US, expires_us, checksum_of(frames), kind, codec), frames)


def golden_items() -> dict[str, tuple[Key, Entry]]:
    """The entries by name."""
    keys = KeySpace()
    end_us = CREATED_US + 86_400_000_000
    return {
        "inline_mutable": (
            keys.key("default", 1, b"session/42"),
            _entry((b"the state of a session",), Kind.MUTABLE, CREATED_US + 17, end_us),
        ),
        "inline_immutable": (
            keys.key("blocks", 3, bytes(range(36))),
            _entry((b"one frame, ", b"and another"), Kind.IMMUTABLE, CREATED_US, 0),
        ),
        "zstd": (
            keys.key("text", 1, b"\x00\xff\r\n{}"),
            _entry((b"again and " * 50,), Kind.IMMUTABLE, CREATED_US, end_us, Codec.ZSTD),
        ),
        "planes_zstd": (
            keys.key("floats", 2**40, "décomposé".encode()),
            _entry((FLOATS,), Kind.MUTABLE, 2**63 + 1, 0, Codec.PLANES_ZSTD),
        ),
        "parts": (
            keys.key("blocks", 3, b"k" * 1_024),
            _entry((b"p" * 100, b"q" * 50, b"r"), Kind.IMMUTABLE, CREATED_US, end_us),
        ),
        "empty": (keys.key("default", 1, b"nothing"), _entry((b"",), Kind.MUTABLE, CREATED_US, 0)),
    }


def fields_of(key: Key, entry: Entry) -> dict[str, object]:
    """What a reader must find, in plain types."""
    head = entry.head
    return {
        "digest": key.digest.hex(),
        "user_key": key.user.hex(),
        "namespace": key.namespace,
        "epoch": key.epoch,
        "tenant": key.tenant,
        "kind": int(head.kind),
        "codec": int(head.codec),
        "size_bytes": head.size_bytes,
        "version": head.version,
        "created_us": head.created_us,
        "expires_us": head.expires_us,
        "checksum": head.checksum.hex(),
        "payload": entry.payload().hex(),
    }


def main() -> None:
    """Writes every record and records.json."""
    FOLDER.mkdir(exist_ok=True)
    fields = {}
    for name, (key, entry) in golden_items().items():
        if name == "parts":
            head, parts = encode_parts(key, entry, PARTS_ID)
            (FOLDER / "parts.bin").write_bytes(head)
            for index, part in enumerate(parts):
                (FOLDER / f"parts.{index}.bin").write_bytes(part)
        else:
            (FOLDER / f"{name}.bin").write_bytes(encode_inline(key, entry))
        fields[name] = fields_of(key, entry)
    (FOLDER / "records.json").write_text(json.dumps(fields, indent=1) + "\n")


if __name__ == "__main__":
    main()
