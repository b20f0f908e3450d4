"""What the client shows, and what importing it costs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import terracekv.client
from terracekv.client import AsyncClient, Client

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_is_sorted_and_exactly_what_is_visible() -> None:
    names = terracekv.client.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert dir(terracekv.client) == sorted(names)
    shown = run(
        "import types, terracekv.client as c; [getattr(c, n) for n in c.__all__];"
        "print(*(n for n, v in vars(c).items() if n[0] != '_' and not isinstance(v, types.ModuleType)"
        " and n not in ('annotations', 'import_module', 'TYPE_CHECKING')), 'errors')"
    )
    assert sorted(shown.split()) == sorted(names)


def test_importing_the_client_brings_in_nothing_heavy() -> None:
    code = (
        "import sys; from terracekv.client import *; import terracekv.client.sync, terracekv.client.aio;"
        "print(*[m for m in sys.modules if m.startswith(('terracekv.server', 'terracekv.tiers'))"
        " or m in ('torch', 'typer', 'rich', 'numpy', 'redis', 'rocksdict', 'cachetools', 'pydantic')])"
    )
    assert run(code).split() == []


def test_a_name_is_loaded_when_it_is_used() -> None:
    assert run("import sys, terracekv.client; print('grpc' in sys.modules, 'blake3' in sys.modules)") == "False False\n"
    assert run("import sys; from terracekv.client import Client; print('blake3' in sys.modules)") == "False\n"


def test_both_clients_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        public = (name for name in dir(kind) if not name.startswith("_"))
        return {name: list(inspect.signature(getattr(kind, name)).parameters) for name in public}

    assert calls(AsyncClient) == calls(Client)
    waiting = [name for name in calls(Client) if inspect.iscoroutinefunction(getattr(Client, name))]
    assert waiting == []


def test_the_sync_client_is_the_one_made_from_the_async_one() -> None:
    script = ROOT / "scripts" / "unasync.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_old_python_can_read_as_far_as_the_line_that_refuses_it() -> None:
    for name in ("__init__.py", "__main__.py"):
        ast.parse((ROOT / "client" / name).read_text(), feature_version=(3, 8))
