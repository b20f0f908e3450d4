"""Style as failing tests: sizes, names, unsafe calls, packages, imports of the source folders."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LINES_MAX = 400
FUNCTION_LINES_MAX = 70


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def sources() -> list[Path]:
    return [path for path in tracked("*.py") if "_pb2" not in path.name]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_long() -> None:
    generated = {"client/sync.py"}
    long = {
        relative(path): text.count("\n") for path in sources() if (text := path.read_text()).count("\n") > LINES_MAX
    }
    in_product = {
        name: lines for name, lines in long.items() if not name.startswith("tests/") and name not in generated
    }
    assert in_product == {}


def test_no_function_is_long() -> None:
    long = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in sources()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_every_module_says_what_it_is() -> None:
    silent = [relative(path) for path in sources() if path.read_text().strip() and not ast.get_docstring(tree_of(path))]
    assert silent == []


def test_public_names_are_documented() -> None:
    bare = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in sources()
        if path.parts[len(ROOT.parts)] in {"tiers", "server", "client"}
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert bare == []


def test_nothing_unsafe_is_called() -> None:
    unsafe = re.compile(r"\bimport (pickle|marshal|shelve|dill)\b|\bpickle\.loads?\(|\beval\(|\bexec\(|torch\.load\(")
    found = [
        f"{relative(path)}:{number}"
        for path in sources()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if unsafe.search(line) and not relative(path).startswith("tests/")
    ]
    assert found == []


def test_databases_are_opened_raw() -> None:
    opened = [path for path in tracked("tiers/*.py") if re.search(r"\bRdict\(", path.read_text())]
    assert opened, "no database is opened at all"
    for path in opened:
        assert "raw_mode=True" in path.read_text(), relative(path)


def test_nothing_is_left_undone() -> None:
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b|raise NotImplemented" r"Error")
    found = [
        f"{relative(path)}:{number}"
        for path in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_only_loopback_is_bound_by_default() -> None:
    product = tracked("tiers/*.py", "server/*.py", "client/*.py", "examples/*.py", "load/*.py")
    assert [relative(path) for path in product if "0.0.0.0" in path.read_text()] == []


def test_packages_are_the_folders() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    setuptools = project["tool"]["setuptools"]
    folders = {folder for folder in ("tiers", "server", "client", "proto/terracekv/v1") if (ROOT / folder).is_dir()}
    assert set(setuptools["package-dir"].values()) == folders
    assert set(setuptools["packages"]) == set(setuptools["package-dir"])
    nested = [relative(path) for folder in folders for path in (ROOT / folder).rglob("__init__.py")]
    assert sorted(nested) == sorted(f"{folder}/__init__.py" for folder in folders)


def test_source_folders_are_never_imported_by_their_bare_names() -> None:
    bare = re.compile(r"^\s*(?:from|import) (server|client|tiers|proto)\b", re.MULTILINE)
    assert [relative(path) for path in sources() if bare.search(path.read_text())] == []
    assert {"server", "client", "tiers", "proto"} & set(sys.modules) == set()


@pytest.mark.parametrize("package", ["tiers", "server", "client"])
def test_third_parties_stay_at_the_edge(package: str) -> None:
    allowed = {
        "redis": {"shared.py", "redis_nodes.py", "shared_records.py", "embedded.py"},
        "rocksdict": {"rocks.py", "segments.py", "disk.py", "durable.py"},
        "cachetools": {"memory.py", "near.py"},
        "torch": {
            "tensors.py",
            "tensor_format.py",
            "transformers.py",
            "kv_layers.py",
            "block_writer.py",
            "model_identity.py",
        },
    }
    for path in tracked(f"{package}/*.py"):
        for node in ast.walk(tree_of(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in {name.split(".")[0] for name in names}:
                assert path.name in allowed.get(name, {path.name}), f"{relative(path)} imports {name}"


def test_the_readme_links_to_files_that_exist() -> None:
    for page in tracked("README.md", "docs/*.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{relative(page)} links to {target}"
