"""The client's half of the command line: ping, stats, tiers, get, put, delete, invalidate, namespaces, proto.

Exit codes: 0 done, 1 a miss or a failure (one line on stderr), 2 wrong usage.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib.resources
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from terracekv.client.admin_calls import CODECS, KINDS, TIERS
from terracekv.client.calls import Progress
from terracekv.client.errors import InvalidArgument, TerraceKVError
from terracekv.client.sync import Client
from terracekv.client.values import Durability, Failed, Miss, Namespace

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

Command = TypeVar("Command", bound=Callable[..., None])

Target = Annotated[
    str, typer.Option(envvar="TERRACEKV_TARGET", help="host:port of a node; several with commas between")
]
InNamespace = Annotated[str, typer.Option("--namespace", "-n", help="namespace of the keys")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Timeout = Annotated[float, typer.Option("--timeout", help="seconds for each call that is no transfer")]
KeyText = Annotated[str, typer.Argument(show_default=False)]
TTL = Annotated[float | None, typer.Option("--ttl", help="seconds to live")]
Level = Annotated[str | None, typer.Option(help=", ".join(level.name.lower() for level in Durability))]
TierNames = Annotated[str | None, typer.Option(help="of " + ",".join(TIERS))]
CodecText = Annotated[str | None, typer.Option(help=", ".join(CODECS))]
Jitter = Annotated[float | None, typer.Option(help="share of a TTL that may be taken off, 0 to 0.5")]

LOCAL: Final = "127.0.0.1:50151"


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (ping, stats, tiers, get, put, delete, invalidate, proto):
        app.command()(one_line_errors(command))
    namespaces = typer.Typer(help="List, create and change namespaces.", no_args_is_help=True, rich_markup_mode=None)
    namespaces.command("list")(one_line_errors(list_namespaces))
    namespaces.command("create")(one_line_errors(create_namespace))
    namespaces.command("update")(one_line_errors(update_namespace))
    app.add_typer(namespaces, name="namespaces")


def one_line_errors(command: Command) -> Command:
    """The command, with each failure as one line on stderr and its exit code."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except InvalidArgument as error:
            _fail(str(error), EXIT_USAGE)
        except (TerraceKVError, OSError) as error:
            _fail(str(error) or type(error).__name__, EXIT_FAILED)

    return wrapped  # type: ignore[return-value]


def ping(target: Target = LOCAL, as_json: AsJson = False, timeout: Timeout = 2.0) -> None:
    """Ask whether a node takes work."""
    with Client(target, timeout_s=timeout) as client:
        seconds = client.ping()
    _print({"serving": True, "seconds": round(seconds, 6)}, f"ok, {seconds * 1_000:.1f} ms", as_json)


def stats(target: Target = LOCAL, as_json: AsJson = False, timeout: Timeout = 2.0) -> None:
    """Show the counters of a node."""
    with Client(target, timeout_s=timeout) as client:
        answer = client.stats()
    rows = [dataclasses.asdict(tier) for tier in answer.tiers]
    facts = {name: value for name, value in dataclasses.asdict(answer).items() if name != "tiers"}
    lines = [*_table(rows), "", *(f"{name}  {_text(value)}" for name, value in facts.items())]
    _print(dataclasses.asdict(answer), "\n".join(lines), as_json)


def tiers(target: Target = LOCAL, as_json: AsJson = False, timeout: Timeout = 2.0) -> None:
    """Show how the tiers of a node are."""
    with Client(target, timeout_s=timeout) as client:
        rows = [dataclasses.asdict(tier) for tier in client.tiers()]
    _print(rows, "\n".join(_table(rows)), as_json)


def get(
    key: KeyText,
    out: Annotated[Path | None, typer.Option(help="write the value here instead of to stdout")] = None,
    target: Target = LOCAL,
    namespace: InNamespace = "default",
    as_json: AsJson = False,
    timeout: Timeout = 2.0,
) -> None:
    """Write the value of KEY to stdout or a file; exit code 1 if there is none."""
    with Client(target, namespace=namespace, timeout_s=timeout) as client, _bar("get") as progress:
        answer = client.get(os.fsencode(key), progress=progress)
    if isinstance(answer, Miss):
        if as_json:
            typer.echo(json.dumps({"found": False}))
        _fail("miss", EXIT_FAILED)
    if out is not None:
        out.write_bytes(answer.value)
    if as_json:
        facts: dict[str, object] = {"found": True, "size_bytes": len(answer.value), "version": answer.version}
        facts |= {"tier": answer.tier, "expires_in_s": answer.expires_in_s}
        value = {} if out is not None else {"value_base64": base64.b64encode(answer.value).decode()}
        typer.echo(json.dumps(facts | value))
    elif out is None:
        sys.stdout.buffer.write(answer.value)
        sys.stdout.buffer.flush()


def put(
    key: KeyText,
    value: Annotated[str | None, typer.Argument(help="the value, or - for stdin")] = None,
    file: Annotated[Path | None, typer.Option(help="take the value from this file")] = None,
    ttl: TTL = None,
    durability: Level = None,
    target: Target = LOCAL,
    namespace: InNamespace = "default",
    as_json: AsJson = False,
    timeout: Timeout = 2.0,
) -> None:
    """Store VALUE, a file or stdin under KEY and print its version."""
    if (value is None) == (file is None):
        _fail("put takes a value, or --file, or - for stdin: one of them", EXIT_USAGE)
    payload = _payload(value, file)
    with Client(target, namespace=namespace, timeout_s=timeout) as client, _bar("put") as progress:
        version = client.put(os.fsencode(key), payload, ttl, durability, progress=progress)
    _print({"version": version, "size_bytes": len(payload)}, str(version), as_json)


def delete(
    keys: Annotated[list[str], typer.Argument(show_default=False)],
    durability: Level = None,
    target: Target = LOCAL,
    namespace: InNamespace = "default",
    as_json: AsJson = False,
    timeout: Timeout = 2.0,
) -> None:
    """Remove keys; removing an absent one succeeds."""
    with Client(target, namespace=namespace, timeout_s=timeout) as client:
        answers = client.delete([os.fsencode(key) for key in keys], durability)
    failed = [answer for answer in answers if isinstance(answer, Failed)]
    gone = len(answers) - len(failed)
    _print({"deleted": gone, "failed": len(failed)}, f"deleted {gone}", as_json)
    if failed:
        _fail(f"{len(failed)} may still be there: {failed[0].error}", EXIT_FAILED)


def invalidate(
    prefix: Annotated[str | None, typer.Option(help="remove every key that starts with this")] = None,
    epoch: Annotated[bool, typer.Option("--epoch", help="remove everything in the namespace")] = False,
    target: Target = LOCAL,
    namespace: InNamespace = "default",
    as_json: AsJson = False,
    timeout: Timeout = 2.0,
) -> None:
    """Remove every key with a prefix, or a whole namespace, at once."""
    start = None if prefix is None else os.fsencode(prefix)
    with Client(target, namespace=namespace, timeout_s=timeout) as client:
        now = client.invalidate(prefix=start, epoch=epoch)
    _print({"epoch": now}, f"epoch {now}", as_json)


def list_namespaces(target: Target = LOCAL, as_json: AsJson = False, timeout: Timeout = 2.0) -> None:
    """Show all namespaces."""
    with Client(target, timeout_s=timeout) as client:
        _print_namespaces(client.list_namespaces(), as_json)


def create_namespace(
    name: str,
    kind: Annotated[str, typer.Option(help=" or ".join(KINDS) + "; never changes")] = "mutable",
    ttl: TTL = None,
    jitter: Jitter = None,
    tiers: TierNames = None,
    codec: CodecText = None,
    durability: Level = None,
    target: Target = LOCAL,
    as_json: AsJson = False,
    timeout: Timeout = 2.0,
) -> None:
    """Create a namespace; without --ttl its entries do not expire."""
    given: Any = {"tiers": tiers.split(",") if tiers is not None else None, "codec": codec, "jitter": jitter}
    with Client(target, timeout_s=timeout) as client:
        made = client.create_namespace(name, kind, ttl_s=ttl, durability=durability, **given)  # type: ignore[arg-type]
    _print_namespaces([made], as_json)


def update_namespace(
    name: str,
    ttl: TTL = None,
    no_ttl: Annotated[bool, typer.Option("--no-ttl", help="entries do not expire by themselves")] = False,
    jitter: Jitter = None,
    tiers: TierNames = None,
    codec: CodecText = None,
    durability: Level = None,
    target: Target = LOCAL,
    as_json: AsJson = False,
    timeout: Timeout = 2.0,
) -> None:
    """Change those settings of a namespace that are given."""
    given: dict[str, Any] = {"ttl_s": ttl, "jitter": jitter, "codec": codec, "durability": durability}
    given["tiers"] = tiers.split(",") if tiers is not None else None
    changes = {setting: value for setting, value in given.items() if value is not None}
    if no_ttl:
        changes["ttl_s"] = None
    with Client(target, timeout_s=timeout) as client:
        changed = client.update_namespace(name, **changes)
    _print_namespaces([changed], as_json)


def proto(
    out: Annotated[Path, typer.Option(help="folder to write terracekv/v1/*.proto into")],
    as_json: AsJson = False,
) -> None:
    """Export the .proto files, to make stubs from in any language."""
    folder = out / "terracekv" / "v1"
    folder.mkdir(parents=True, exist_ok=True)
    sources = importlib.resources.files("terracekv.v1").iterdir()
    written = []
    for source in sorted((item for item in sources if item.name.endswith(".proto")), key=lambda item: item.name):
        (folder / source.name).write_bytes(source.read_bytes())
        written.append(str(folder / source.name))
    _print(written, "\n".join(written), as_json)


def _payload(value: str | None, file: Path | None) -> bytes:
    if file is not None:
        return file.read_bytes()
    if value == "-":
        return sys.stdin.buffer.read()
    return os.fsencode(value or "")


def _print_namespaces(namespaces: Sequence[Namespace], as_json: bool) -> None:
    rows = [dataclasses.asdict(namespace) for namespace in namespaces]
    _print(rows, "\n".join(_table(rows)), as_json)


def _print(facts: object, text: str, as_json: bool) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"terracekv: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


def _table(rows: Iterable[dict[str, object]]) -> list[str]:
    """Rows as columns of one width each, under their names."""
    cells = [[_text(value) for value in row.values()] for row in rows]
    names = next(([*row] for row in rows), [])
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = (zip(line, widths, strict=True) for line in (names, *cells))
    return ["  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines]


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.10g}"
    return "-" if value is None else str(value)


@contextmanager
def _bar(words: str) -> Iterator[Progress | None]:
    """A progress bar on stderr, once bytes stream; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None, visible=False)

        def show(done_bytes: int, total_bytes: int) -> None:
            bar.update(task, completed=done_bytes, total=total_bytes, visible=True)

        yield show
