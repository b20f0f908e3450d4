"""The server's half of the command line: serve, check-config, shared start|stop|status."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from terracekv.server.app import Node
from terracekv.server.logs import set_up_logs
from terracekv.server.memory_tuning import keep_pages
from terracekv.server.settings import Settings, as_toml, default_data_dir, load_settings, split_address
from terracekv.tiers.embedded import EmbeddedCluster
from terracekv.tiers.errors import TerraceError

EXIT_FAILED = 1
EXIT_USAGE = 2
AGAIN_S_MIN = 1.0

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with any of the settings")]
Text = str | None


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(serve)
    app.command("check-config")(check_config)
    shared = typer.Typer(help="The embedded three-master cluster by itself, so that it outlives a node.")
    shared.command("start")(shared_start)
    shared.command("stop")(shared_stop)
    shared.command("status")(shared_status)
    app.add_typer(shared, name="shared")


def serve(
    listen: Annotated[
        Text, typer.Option(help="address of the gRPC service; port 0 picks one [127.0.0.1:50151]")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where the disk tier lives [~/.local/share/terracekv]")] = None,
    shared: Annotated[Text, typer.Option(help="embedded, none or redis[s]://[user:password@]host:port,...")] = None,
    shared_prefix: Annotated[Text, typer.Option(help="before every Redis key [terracekv:]")] = None,
    memory_bytes: Annotated[Text, typer.Option(help="memory tier, such as 512MiB")] = None,
    disk_bytes: Annotated[Text, typer.Option(help="disk tier, such as 8GiB")] = None,
    metrics_listen: Annotated[Text, typer.Option(help="Prometheus metrics, or none [127.0.0.1:50152]")] = None,
    log_dir: Annotated[Path | None, typer.Option(help="rotating log files here instead of stderr")] = None,
    log_level: Annotated[Text, typer.Option(help="debug, info, warning or error [info]")] = None,
    config: Config = None,
) -> None:
    """Start a node. Without arguments: 127.0.0.1:50151, embedded cluster, data in the user's data directory."""
    arguments = {
        "listen": listen,
        "data_dir": data_dir,
        "shared": shared,
        "shared_prefix": shared_prefix,
        "memory_bytes": memory_bytes,
        "disk_bytes": disk_bytes,
        "metrics_listen": metrics_listen,
        "log_dir": log_dir,
        "log_level": log_level,
    }
    settings = _settings(config, arguments)
    keep_pages()
    try:
        set_up_logs(settings.log_level, settings.log_dir)
        _run(_serve(settings))
    except (TerraceError, OSError) as error:
        _fail(str(error), EXIT_FAILED)


def check_config(config: Config = None) -> None:
    """Check the settings and print them as TOML, secrets masked."""
    typer.echo(as_toml(_settings(config, {})), nl=False)


DataDir = Annotated[Path | None, typer.Option(help="data directory whose cluster it is")]


def shared_start(
    data_dir: DataDir = None,
    memory_bytes: Annotated[str, typer.Option(help="memory of the cluster in all")] = "1GiB",
) -> None:
    """Start the embedded cluster, or find it running, and print the --shared to give to nodes."""
    settings = _settings(None, {"data_dir": data_dir, "shared_memory_bytes_max": memory_bytes})
    directory = settings.data_dir / "shared"
    try:
        cluster = asyncio.run(EmbeddedCluster.start(directory, settings.shared_memory_bytes_max, owner="command"))
    except (TerraceError, OSError) as error:
        _fail(str(error), EXIT_FAILED)
    typer.echo(f"terracekv shared ready, use: --shared {cluster.url}")


def shared_stop(data_dir: DataDir = None) -> None:
    """Stop the embedded cluster. What only it held is gone."""
    directory = (data_dir or default_data_dir()) / "shared"
    stopped = asyncio.run(EmbeddedCluster.stop_at(directory))
    typer.echo("terracekv shared stopped" if stopped else "terracekv shared was not running")


def shared_status(data_dir: DataDir = None) -> None:
    """Say whether the embedded cluster runs."""
    cluster = asyncio.run(EmbeddedCluster.find((data_dir or default_data_dir()) / "shared"))
    typer.echo(f"running, use: --shared {cluster.url}" if cluster else "not running")
    raise typer.Exit(0 if cluster else EXIT_FAILED)


def _settings(config: Path | None, arguments: dict[str, Any]) -> Settings:
    try:
        return load_settings(config, **arguments)
    except TerraceError as error:
        _fail(str(error), EXIT_USAGE)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"terracekv: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


def _run(main: Any) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


async def _serve(settings: Settings) -> None:
    node = Node(settings)
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    told_s = 0.0

    def stop() -> None:
        nonlocal told_s
        # Told again: at once; what was acked is safe by its level. The same signal by two ways is not "again".
        if told_to_stop.is_set() and loop.time() - told_s >= AGAIN_S_MIN:
            os._exit(EXIT_FAILED)
        if not told_to_stop.is_set():
            told_s = loop.time()
            told_to_stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    starting = loop.create_task(node.start())
    waiting = loop.create_task(told_to_stop.wait())
    await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
    try:
        await starting
        _say_ready(settings, node)
        await waiting
    except asyncio.CancelledError:
        pass
    finally:
        waiting.cancel()
        await node.stop()


def _say_ready(settings: Settings, node: Node) -> None:
    host = split_address(settings.listen)[0]
    address = f"[{host}]:{node.port}" if ":" in host else f"{host}:{node.port}"
    target = "" if address == "127.0.0.1:50151" else f" --target {address}"
    lines = [
        f"terracekv ready on {address}",
        f"  terracekv put greeting hello{target}",
        f"  terracekv get greeting{target}",
        f"  terracekv stats{target}",
    ]
    if node.metrics_port:
        metrics_host = split_address(settings.metrics_listen)[0]
        lines.append(f"  metrics  http://{metrics_host}:{node.metrics_port}/metrics")
    lines.append(f"  data     {settings.data_dir}")
    print(*lines, sep="\n", flush=True, file=sys.stdout)
