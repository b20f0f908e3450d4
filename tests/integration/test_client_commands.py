"""The client's commands as a user types them, against a real node."""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from contract.client_suite import running_node
from nodes import COMMAND, run_command

from terracekv.client import Client

MIB = 1 << 20


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_node(tmp_path_factory.mktemp("node") / "data") as node:
        yield node.target


def run(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, TERRACEKV_TARGET=target)


def test_a_value_is_put_got_and_deleted(target: str) -> None:
    put = run(target, "put", "greeting", "hello")
    assert put.returncode == 0
    assert int(put.stdout) > 0
    got = run(target, "get", "greeting")
    assert (got.returncode, got.stdout, got.stderr) == (0, "hello", "")
    assert run(target, "delete", "greeting", "absent").stdout == "deleted 2\n"
    gone = run(target, "get", "greeting")
    assert (gone.returncode, gone.stdout, gone.stderr) == (1, "", "terracekv: miss\n")


def test_json_says_all_there_is(target: str) -> None:
    run(target, "put", "k", "v", "--ttl", "60", "--durability", "wal", "--namespace", "json")
    found = json.loads(run(target, "get", "k", "--namespace", "json", "--json").stdout)
    assert base64.b64decode(found["value_base64"]) == b"v"
    assert (found["found"], found["size_bytes"], found["tier"]) == (True, 1, "memory")
    assert 0 < found["expires_in_s"] <= 60
    missed = run(target, "get", "absent", "--namespace", "json", "--json")
    assert (missed.returncode, json.loads(missed.stdout)) == (1, {"found": False})
    assert json.loads(run(target, "ping", "--json").stdout)["serving"] is True
    assert json.loads(run(target, "stats", "--json").stdout)["tiers"][0]["tier"] == "memory"
    assert json.loads(run(target, "tiers", "--json").stdout)[0]["state"] == "up"


def test_tables_are_plain_text(target: str) -> None:
    assert run(target, "ping").stdout.startswith("ok, ")
    stats = run(target, "stats").stdout.splitlines()
    assert stats[0].split()[:3] == ["tier", "hits", "misses"]
    assert [line.split()[0] for line in stats[1:4]] == ["memory", "shared", "disk"]
    assert "\x1b" not in run(target, "tiers").stdout


def test_files_and_pipes_are_values_too(target: str, tmp_path: Path) -> None:
    value = os.urandom(5 * MIB)
    (tmp_path / "in").write_bytes(value)
    assert run(target, "put", "file", "--file", str(tmp_path / "in")).returncode == 0
    assert run(target, "get", "file", "--out", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out").read_bytes() == value
    environment = {**os.environ, "TERRACEKV_TARGET": target}
    piped = subprocess.run([*COMMAND, "put", "pipe", "-"], input=b"\x00\xff", env=environment, timeout=60, check=True)
    assert piped.returncode == 0
    got = subprocess.run([*COMMAND, "get", "pipe"], capture_output=True, env=environment, timeout=60, check=True)
    assert got.stdout == b"\x00\xff"


def test_a_long_transfer_shows_a_bar_on_a_terminal_only(target: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(40 * MIB))
    screen, stderr = pty.openpty()
    command = [*COMMAND, "put", "bar", "--file", str(tmp_path / "in"), "--target", target]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, "TERM": "xterm"})
    os.close(stderr)
    shown = b""
    while True:
        try:
            piece = os.read(screen, 4_096)
        except OSError:  # Linux's way to say that the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(screen)
    assert process.communicate(timeout=60)[0].strip().isdigit()
    assert b"MiB" in shown
    assert run(target, "put", "bar", "--file", str(tmp_path / "in")).stderr == ""


def test_namespaces_are_made_changed_and_listed(target: str) -> None:
    made = run(target, "namespaces", "create", "cli", "--kind", "immutable", "--ttl", "60", "--codec", "zstd", "--json")
    assert json.loads(made.stdout)[0]["kind"] == "immutable"
    changed = json.loads(run(target, "namespaces", "update", "cli", "--no-ttl", "--tiers", "memory", "--json").stdout)
    assert (changed[0]["ttl_s"], changed[0]["tiers"], changed[0]["codec"]) == (None, ["memory"], "zstd")
    assert any(line.split()[0] == "cli" for line in run(target, "namespaces", "list").stdout.splitlines())
    conflict = run(target, "namespaces", "create", "cli", "--kind", "mutable")
    assert conflict.returncode == 1
    assert len(conflict.stderr.splitlines()) == 1


def test_a_prefix_or_a_namespace_is_invalidated(target: str) -> None:
    with Client(target, namespace="many") as client:
        client.put_many({"a:1": b"", "a:2": b"", "b:1": b""})
        assert run(target, "invalidate", "--prefix", "a:", "--namespace", "many").stdout.startswith("epoch ")
        assert client.exists(["a:1", "a:2", "b:1"]) == [False, False, True]
        run(target, "invalidate", "--epoch", "--namespace", "many")
        assert client.exists("b:1") is False


def test_protos_are_exported_as_they_are(tmp_path: Path) -> None:
    done = run_command("proto", "--out", str(tmp_path))
    written = sorted(path.name for path in (tmp_path / "terracekv" / "v1").iterdir())
    assert written == ["admin.proto", "blocks.proto", "cache.proto", "errors.proto"]
    assert done.stdout.split() == [str(tmp_path / "terracekv" / "v1" / name) for name in written]
    source = Path(__file__).resolve().parents[2] / "proto" / "terracekv" / "v1" / "cache.proto"
    assert (tmp_path / "terracekv" / "v1" / "cache.proto").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("ping", "--target", "127.0.0.1:1"), 1, "connect"),
        (("put", "k"), 2, "one of them"),
        (("put", "k", "v", "--ttl", "0"), 2, "ttl_s"),
        (("put", "k", "v", "--durability", "forever"), 2, "durability"),
        (("put", "k", "--file", "no-such-file"), 1, "no-such-file"),
        (("get", ""), 2, "key"),
        (("get", "k", "--namespace", "never-made"), 1, "namespace"),
        (("ping", "--target", "nowhere"), 2, "host:port"),
        (("invalidate",), 2, "prefix"),
    ],
)
def test_a_failure_is_one_line_and_a_code(target: str, arguments: tuple[str, ...], code: int, words: str) -> None:
    done = run(target, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("terracekv: ")
    assert words in line


def test_version_and_help_are_plain() -> None:
    assert run_command("--version").stdout == f"terracekv {version('terracekv')}\n"
    shown = run_command("--help").stdout
    for name in ("ping", "stats", "tiers", "get", "put", "delete", "invalidate", "namespaces", "proto", "serve"):
        assert name in shown
    assert "completion" not in shown


@pytest.mark.parametrize(
    ("missing", "arguments", "line"),
    [
        ("typer", "ping", "terracekv: the command line needs the extra cli: pip install 'terracekv[cli]'"),
        (
            "pydantic_settings",
            "serve --listen x",
            "terracekv: serve needs the extra server: pip install 'terracekv[server]'",
        ),
        (
            "pydantic_settings",
            "shared start",
            "terracekv: shared needs the extra server: pip install 'terracekv[server]'",
        ),
    ],
)
def test_what_is_not_installed_is_named_with_its_cure(missing: str, arguments: str, line: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = {arguments.split()!r};"
        "from terracekv.client.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line + "\n")


def test_an_old_python_is_refused_in_one_line() -> None:
    code = "import sys; sys.version_info = (3, 8, 1); from terracekv.client.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "terracekv: needs Python 3.11 or newer, this is 3.8\n")
