"""Settings: where they come from, in which order, and one line for what is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from terracekv.server.settings import Settings, as_toml, load_settings, mask
from terracekv.tiers.entry import Codec, Durability, Kind, TierName
from terracekv.tiers.errors import FieldInvalid


def test_nothing_given_is_a_whole_configuration() -> None:
    settings = load_settings()
    assert (settings.listen, settings.shared, settings.on_loopback) == ("127.0.0.1:50151", "embedded", True)


def test_arguments_win_over_variables_and_variables_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "terracekv.toml"
    file.write_text('listen = "127.0.0.1:1"\nshared = "none"\nmemory_bytes = "64 MiB"\n')
    monkeypatch.setenv("TERRACEKV_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("TERRACEKV_DISK_BYTES", "4GiB")
    settings = load_settings(file, listen="127.0.0.1:3")
    assert (settings.listen, settings.shared) == ("127.0.0.1:3", "none")
    assert (settings.memory_bytes, settings.disk_bytes) == (64 << 20, 4 << 30)
    assert load_settings(file).listen == "127.0.0.1:2"


def test_namespaces_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "terracekv.toml"
    file.write_text(
        '[[namespaces]]\nname = "kv"\nkind = "immutable"\nttl_s = inf\ncodec = "planes_zstd"\n'
        'tiers = ["memory", "disk"]\ndurability = "wal"\n'
    )
    (namespace,) = (one.namespace() for one in load_settings(file).namespaces)
    assert (namespace.kind, namespace.ttl_s, namespace.codec) == (Kind.IMMUTABLE, None, Codec.PLANES_ZSTD)
    assert (namespace.tiers, namespace.durability) == ((TierName.MEMORY, TierName.DISK), Durability.WAL)


@pytest.mark.parametrize(
    ("toml", "field", "limit"),
    [
        ("unknown_setting = 1", "unknown_setting", "not permitted"),
        ('memory_bytes = "lots"', "memory_bytes", "number of bytes"),
        ("memory_bytes = -5", "memory_bytes", "greater than"),
        ('shared = "mysql://x"', "shared", "embedded, none or redis"),
        ('listen = "nonsense"', "listen", "host:port"),
        ('listen = "127.0.0.1:99999"', "listen", "host:port"),
        ("listen = ", "config", "valid TOML"),
        ('disk_bytes = "1GiB"\ndurable_bytes_max = "1GiB"', "durable_bytes_max", "half of disk_bytes"),
        ('[[namespaces]]\nname = "Bad Name"', "namespace", "matches"),
        ('[[namespaces]]\nname = "a"\nttl_s = -1', "ttl_s", "over 0"),
        ('[[namespaces]]\nname = "a"\njitter = 0.9', "jitter", "0 to 0.5"),
        ('[[namespaces]]\nname = "a"\nkind = "other"', "namespaces.0.kind", "mutable"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, toml: str, field: str, limit: str) -> None:
    file = tmp_path / "terracekv.toml"
    file.write_text(toml + "\n")
    with pytest.raises(FieldInvalid) as caught:
        load_settings(file)
    assert caught.value.field == field
    assert limit in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FieldInvalid, match="existing TOML file"):
        load_settings(tmp_path / "missing.toml")


def test_passwords_never_show(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(shared="redis://user:s3cret@127.0.0.1:7000,127.0.0.1:7001")
    assert "s3cret" not in as_toml(settings)
    assert mask("rediss://:s3cret@h:1") == "rediss://***@h:1"
    with pytest.raises(FieldInvalid) as caught:
        load_settings(shared="http://user:s3cret@h:1")
    assert "s3cret" not in str(caught.value)


def test_the_printed_configuration_is_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "terracekv.toml"
    file.write_text('[[namespaces]]\nname = "kv"\nttl_s = inf\n')
    settings = load_settings(file, memory_bytes="64MiB")
    printed = tmp_path / "printed.toml"
    printed.write_text(as_toml(settings))
    assert as_toml(load_settings(printed)) == as_toml(settings)


def test_every_setting_is_in_the_manual() -> None:
    manual = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    missing = [name for name in Settings.model_fields if f"`{name}`" not in manual]
    assert missing == []


def test_the_sample_configuration_of_the_manual_is_valid(tmp_path: Path) -> None:
    manual = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    sample = manual.split("```toml\n", 1)[1].split("```", 1)[0]
    assert tomllib.loads(sample)
    file = tmp_path / "terracekv.toml"
    file.write_text(sample)
    load_settings(file)
