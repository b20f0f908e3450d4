"""Makes the Python code of proto/terracekv/v1; with --check, fails if what is committed differs."""

from __future__ import annotations

import argparse
import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"


def generate(out: Path) -> None:
    """Runs protoc with the oldest tools that the engines' grpcio allows."""
    plugin = Path(sys.executable).parent / "protoc-gen-mypy_grpc"
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("terracekv/v1/*.proto"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{PROTO}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            f"--plugin=protoc-gen-mypy_grpc={plugin}",
            f"--mypy_grpc_out=quiet:{out}",
            *sources,
        ],
        check=True,
    )


def differing() -> list[str]:
    """The generated files that are not as their protos say."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        made = sorted(path.relative_to(folder) for path in Path(folder).rglob("*_pb2*"))
        here = sorted(path.relative_to(PROTO) for path in PROTO.rglob("*_pb2*") if path.suffix in (".py", ".pyi"))
        return [
            str(path)
            for path in sorted({*made, *here})
            if path not in made or path not in here or not filecmp.cmp(Path(folder) / path, PROTO / path, shallow=False)
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        generate(PROTO)
        return 0
    files = differing()
    if files:
        print("generated code differs from its protos, run `make proto`:", *files, sep="\n  ", file=sys.stderr)
    return 1 if files else 0


if __name__ == "__main__":
    sys.exit(main())
