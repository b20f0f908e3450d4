"""A disk without room, for real: puts say so, reads go on, closing lets go, and nothing acked is missing afterwards."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from makers import MIB, entry, key, mutable, mutable_key, noise, soon

from terracekv.tiers.base import TierState, WriteLevel
from terracekv.tiers.clock import FakeClock
from terracekv.tiers.disk import open_disk
from terracekv.tiers.entry import Entry, FailureReason, Stored, TierFailure
from terracekv.tiers.errors import TierError

Bounds = tuple[Path, Callable[[], None], Callable[[], None]]


@pytest.fixture(params=["small file system", "small files"])
def bounded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bounds]:
    """A directory, what bounds it, and what makes room again."""
    mount = tmp_path / "mount"
    mount.mkdir()
    if request.param == "small files":
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield (
            mount / "disk",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5 * MIB, hard)),
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)),
        )
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", mount], check=False).returncode
    ):
        pytest.skip("may not mount a file system")
    yield (
        mount / "disk",
        lambda: None,
        lambda: subprocess.run(["mount", "-o", "remount,size=256m", mount], check=True) and None,
    )
    subprocess.run(["umount", "--lazy", mount], check=True)


async def test_a_full_disk_fails_puts_keeps_reads_and_loses_nothing_that_was_acked(bounded: Bounds) -> None:
    directory, bound, make_room = bounded
    clock = FakeClock()
    tier = await open_disk(directory, 256 * MIB, MIB, clock)
    bound()
    acked: list[int] = []
    failed: list[TierFailure] = []
    for at in range(40):
        level = WriteLevel.SYNCED if at % 2 else WriteLevel.LOGGED
        (result,) = await tier.put_many([(key(f"k{at}"), entry(noise(MIB, at), clock))], soon(clock), level)
        if isinstance(result, Stored):
            acked.append(at)
        else:
            failed.append(result)
    assert acked
    assert failed
    assert {failure.reason for failure in failed} <= {FailureReason.FULL, FailureReason.UNAVAILABLE}
    assert failed[0].reason is FailureReason.FULL
    assert "\n" not in failed[0].detail
    found = await tier.get_many([key(f"k{at}") for at in acked], soon(clock))
    assert [one.payload() for one in found if isinstance(one, Entry)] == [noise(MIB, at) for at in acked]
    assert tier.state()[0] is TierState.DEGRADED, "that reads go on does not make it whole"
    with pytest.raises(TierError):
        await tier.durable.commit({b"k": bytes(100)}, sync=True)
    await tier.close()
    make_room()
    again = await open_disk(directory, 256 * MIB, MIB, clock)
    try:
        assert again.set_aside == ()
        found = await again.get_many([key(f"k{at}") for at in acked], soon(clock))
        assert [one.payload() for one in found if isinstance(one, Entry)] == [noise(MIB, at) for at in acked]
        whole = await again.get_many([key(f"k{at}") for at in range(40)], soon(clock))
        assert all(one.payload() == noise(MIB, at) for at, one in enumerate(whole) if isinstance(one, Entry))
        results = await again.put_many([(mutable_key("m"), mutable(b"v", 1, clock))], soon(clock), WriteLevel.SYNCED)
        assert results == [Stored(1)]
        assert again.state()[0] is TierState.UP
    finally:
        await again.close()
