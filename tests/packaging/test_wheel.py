"""The wheel in an empty environment: the light client alone, its stubs at both ends of the versions it allows."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OLDEST = ("grpcio==1.78.0", "protobuf==6.33.0")
NEWEST = ("grpcio", "protobuf")

CLIENT_ALONE = """
import importlib.util, sys
import terracekv.client
from terracekv.client import AsyncClient, Client, MISS
from terracekv.v1 import admin_pb2, admin_pb2_grpc, blocks_pb2, blocks_pb2_grpc, cache_pb2, cache_pb2_grpc, errors_pb2
assert not any(name.startswith(("terracekv.server", "terracekv.tiers")) for name in sys.modules)
assert not any(importlib.util.find_spec(name) for name in ("redis", "rocksdict", "torch", "typer", "pydantic", "numpy"))
request = cache_pb2.PutRequest(key=b"k", value=b"v", ttl_s=1.5, durability=cache_pb2.DURABILITY_WAL)
assert cache_pb2.PutRequest.FromString(request.SerializeToString()) == request
import grpc
with grpc.insecure_channel("127.0.0.1:9") as channel:
    stub = cache_pb2_grpc.CacheServiceStub(channel)
    try:
        stub.Get(cache_pb2.GetRequest(key=b"k"), timeout=2)
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), error
import google.protobuf
print(grpc.__version__, google.protobuf.__version__)
"""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300,
        check=False
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # From a copy of what is tracked, so that no build folder of ours gets in.
    source = tmp_path_factory.mktemp("source")
    archive = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, archive):
        path = ROOT / os.fsdecode(name)
        if path.exists():
            target = source / os.fsdecode(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    built = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", out, source, cwd=source)
    assert built.returncode == 0, built.stderr[-2_000:]
    (made,) = out.glob("terracekv-*.whl")
    return made


def environment(folder: Path, wheel: Path, *pins: str) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    installed = run(python, "-m", "pip", "install", "--quiet", wheel, *pins, cwd=folder)
    assert installed.returncode == 0, installed.stderr[-2_000:]
    return python


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"terracekv", wheel.name.split("-py3")[0] + ".dist-info"}
    assert {name.split("/")[1] for name in names if name.startswith("terracekv/")} == {
        "v1",
        "tiers",
        "server",
        "client",
    }
    for wanted in ("terracekv/v1/cache.proto", "terracekv/v1/cache_pb2.pyi", "terracekv/client/py.typed"):
        assert wanted in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("pins", [OLDEST, NEWEST], ids=["oldest", "newest"])
def test_the_client_alone_works_in_an_empty_environment(wheel: Path, pins: tuple[str, ...], tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", wheel, *pins)
    ran = run(python, "-c", CLIENT_ALONE, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-2_000:]
    if pins is OLDEST:
        assert ran.stdout.split() == ["1.78.0", "6.33.0"]
    command = tmp_path / "venv" / "bin" / "terracekv"
    refused = run(command, "ping", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.strip().splitlines() == [
        "terracekv: the command line needs the extra cli: pip install 'terracekv[cli]'"
    ]
    checked = run(python, "-m", "pip", "check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.timeout(300)
def test_a_command_of_a_missing_extra_says_how_to_get_it(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", wheel, "typer", "rich")
    refused = run(python.parent / "terracekv", "serve", cwd=tmp_path)
    assert refused.returncode == 2
    (line,) = refused.stderr.strip().splitlines()
    assert "pip install 'terracekv[server]'" in line
