"""Makes the sync client from the async one: `unasync.py` writes it, `unasync.py --check` fails where it has drifted.

Also fails where a substitution below is used by no line: the table stays as short as it can be.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "client"
MODULES = {
    "aio_rpc.py": "sync_rpc.py",
    "aio_blocks.py": "sync_blocks.py",
    "aio_admin.py": "sync_admin.py",
    "aio.py": "sync.py",
}

# Applied in order to each line.
SUBSTITUTIONS: list[tuple[str, str]] = [
    (r"^The source of \w+\.py: change this file,", "Generated: change its source in the aio files,"),
    (r"over grpc\.aio", "over gRPC's sync stack"),
    (r"Belongs to the event loop of$", "Works in any"),
    (r"^    its first call\.$", "    thread."),
    (r", before it is awaited\.", "."),
    (r"\bCoroutine\[Any, Any, (.*)\](?=\]$|:$)", r"\1"),
    (r"\bCoroutine, ", ""),
    (r"\basync (def|for|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\baclosing\b", "closing"),
    (r"\bAsyncClient\b", "Client"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsync([A-Z]\w+)", r"Sync\1"),
    (r"\basync_(\w+)", r"sync_\1"),
    (r"\bclient\.aio_", "client.sync_"),
]


def made_sync(source: str, used: set[str]) -> str:
    """The sync half of a source; the patterns that changed it are added to `used`."""
    lines = source.splitlines(keepends=True)
    for pattern, replacement in SUBSTITUTIONS:
        changed = [re.sub(pattern, replacement, line) for line in lines]
        if changed != lines:
            used.add(pattern)
        lines = changed
    return tidied("".join(lines))


def tidied(source: str) -> str:
    """Imports sorted and lines laid out as everywhere else."""
    for arguments in (["check", "--fix-only", "--quiet", "--select", "I"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, "-"]
        source = subprocess.run(command, cwd=ROOT, input=source, capture_output=True, text=True, check=True).stdout
    return source


def main() -> int:
    """The exit code: 1 for a drift or for a substitution without use."""
    used: set[str] = set()
    drifted = []
    for source, target in MODULES.items():
        made = made_sync((CLIENT / source).read_text(), used)
        path = CLIENT / target
        if not path.exists() or path.read_text() != made:
            drifted.append(target)
            if "--check" not in sys.argv[1:]:
                path.write_text(made)
    unused = [pattern for pattern, _ in SUBSTITUTIONS if pattern not in used]
    if unused:
        print("unasync: used by no line: " + ", ".join(unused))
    if drifted and "--check" in sys.argv[1:]:
        print("unasync: drifted, run scripts/unasync.py: " + ", ".join(drifted))
        return 1
    return 1 if unused else 0


if __name__ == "__main__":
    sys.exit(main())
