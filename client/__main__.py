"""The command `terracekv`: collects the commands of the installed parts; what is missing is said in one line, exit 2.

Kept in syntax that old Pythons can read, so that they too get that line.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import typer

GROUP = "terracekv.commands"
# Of groups named for their extra: without it these commands are there to say what they need.
COMMANDS = {"server": ("serve", "check-config", "shared")}
EXIT_USAGE = 2


def main() -> None:
    """Runs the command line."""
    if sys.version_info < (3, 11):  # noqa: UP036
        _stop(f"needs Python 3.11 or newer, this is {sys.version_info[0]}.{sys.version_info[1]}")
    try:
        importlib.import_module("typer")
    except ModuleNotFoundError:
        _stop("the command line needs the extra cli: pip install 'terracekv[cli]'")
    _build(sys.argv[1:])(prog_name="terracekv")


def _stop(words: str) -> NoReturn:
    sys.stderr.write("terracekv: " + words + "\n")
    sys.exit(EXIT_USAGE)


def _build(arguments: list[str]) -> typer.Typer:
    import typer

    app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    shown = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version.")

    @app.callback()
    def terracekv(version: bool = shown) -> None:
        """A multi-tier cache and state service for GPU inference."""

    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        if _is_needed(entry.name, arguments):
            _add_commands(app, entry)
    return app


def _is_needed(group: str, arguments: list[str]) -> bool:
    """Whether a group may hold the command: the server's parts take a second to load, a ping should not."""
    command = arguments[0] if arguments else "--help"
    return group not in COMMANDS or command.startswith("-") or command in COMMANDS[group]


def _add_commands(app: typer.Typer, entry: importlib.metadata.EntryPoint) -> None:
    try:
        register = entry.load()
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("terracekv"):
            raise  # a defect of ours, not a missing extra
        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        for name in COMMANDS.get(entry.name, ()):
            app.command(name, hidden=True, add_help_option=False, context_settings=anything)(
                _stand_in(name, entry.name)
            )
    else:
        register(app)


def _stand_in(name: str, extra: str) -> Callable[[], None]:
    def command() -> None:
        _stop(f"{name} needs the extra {extra}: pip install 'terracekv[{extra}]'")

    return command


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write("terracekv " + importlib.metadata.version("terracekv") + "\n")
        sys.exit(0)


if __name__ == "__main__":
    main()
