"""The real disk: conformance, threads and system call behaviour that the simulator cannot show."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ponor_runtime import disk_worker
from ponor_runtime.disk import Buffer
from ponor_runtime.system_disk import SystemDisk

from libs.runtime.tests import disk_conformance as conformance


@pytest.fixture
async def disk() -> AsyncIterator[SystemDisk]:
    disk = SystemDisk()
    yield disk
    disk.close()


@pytest.mark.parametrize("scenario", conformance.SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_conformance(scenario: conformance.Scenario, disk: SystemDisk, tmp_path: Path) -> None:
    await scenario(disk, tmp_path)


async def test_slow_sync_of_one_file_does_not_block_another(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = (
        await disk.open(tmp_path / "slow", create=True),
        await disk.open(tmp_path / "quick", create=True),
    )
    read_end, write_end = os.pipe()
    real_sync = os.fdatasync
    calls: list[int] = []

    def sync(descriptor: int) -> None:
        # The first sync waits for a byte that is written only after the second file was synced.
        calls.append(descriptor)
        if len(calls) == 1:
            os.read(read_end, 1)
        real_sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    waiting = asyncio.ensure_future(slow.sync())
    while not calls:
        await asyncio.sleep(0)
    await quick.write_sync(0, [b"x"])
    assert not waiting.done()
    os.write(write_end, b"x")
    await waiting
    for descriptor in (read_end, write_end):
        os.close(descriptor)
    await slow.close()
    await quick.close()


async def test_short_write_is_completed(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    monkeypatch.setattr(
        os,
        "pwritev",
        lambda descriptor, buffers, at: real(descriptor, [b"".join(buffers)[:5]], at),
    )
    file = await disk.open(tmp_path / "f", create=True)
    await file.write_sync(0, [b"abcd", b"efgh", b"ijkl"])
    assert await file.read(0, 100) == b"abcdefghijkl"
    await file.close()


@pytest.mark.parametrize("refused", [errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize("uncached", [False, True])
async def test_fallback_without_direct_and_dsync_writes(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int, *, uncached: bool
) -> None:
    """The device may refuse O_DIRECT because of its sector size, the file system RWF_DSYNC."""
    file = await disk.open(tmp_path / "f", create=True, uncached=uncached)
    direct = file._calls._direct
    real, real_sync = os.pwritev, os.fdatasync
    synced: list[int] = []

    def write(descriptor: int, buffers: Sequence[Buffer], position: int, flags: int = 0) -> int:
        if (refused == errno.EINVAL and descriptor == direct) or (refused == errno.EOPNOTSUPP and flags):
            raise OSError(refused, "refused")
        return real(descriptor, buffers, position, flags)

    def sync(descriptor: int) -> None:
        synced.append(descriptor)
        real_sync(descriptor)

    monkeypatch.setattr(os, "pwritev", write)
    monkeypatch.setattr(os, "fdatasync", sync)
    for number in range(4):
        await file.write_sync(number * 512, [bytes([number]) * 512])
    assert await file.read(0, 4096) == b"".join(bytes([number]) * 512 for number in range(4))
    if refused == errno.EOPNOTSUPP:
        assert len(synced) == 4
    await file.close()


async def test_write_and_sync_are_one_call_without_other_unsynced_data(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fdatasync

    def sync(descriptor: int) -> None:
        synced.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    for uncached in (False, True):
        file = await disk.open(tmp_path / f"f{uncached}", create=True, uncached=uncached)
        await file.write_sync(0, [bytes(4096)])
        assert len(synced) == 1, "data from before the open may be unsynced"
        await file.write_sync(4096, [bytes(4096)])
        assert len(synced) == 1
        await file.write(8192, [bytes(512)])
        await file.write_sync(8704, [bytes(512)])
        assert len(synced) == 2, "the earlier write must become durable too"
        await file.close()
        synced.clear()


async def test_disk_error_reaches_the_caller(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    file = await disk.open(tmp_path / "f", create=True)
    with pytest.raises(OSError, match="input/output"):
        await file.write_sync(0, [b"x"])
    await file.close()


async def test_threads_are_reused_and_bounded(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    real = threading.Thread

    def count_and_start(**options: Any) -> threading.Thread:
        started.append(1)
        return real(**options)

    monkeypatch.setattr(threading, "Thread", count_and_start)
    for number in range(20):
        await (await disk.open(tmp_path / str(number), create=True)).close()
    assert len(started) == 1
    monkeypatch.setattr(disk_worker.DiskWorkerPool, "WORKERS_MAX", 2)
    one, two = await disk.open(tmp_path / "1"), await disk.open(tmp_path / "2")
    with pytest.raises(OSError, match="2 files are open") as raised:
        await disk.open(tmp_path / "3")
    assert raised.value.errno == errno.EMFILE
    await one.close()
    await (await disk.open(tmp_path / "3")).close()
    await two.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_cancelled_open_leaks_no_descriptor(disk: SystemDisk, tmp_path: Path) -> None:
    before = open_descriptors()
    for number in range(10):
        opening = asyncio.ensure_future(disk.open(tmp_path / str(number), create=True))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    while open_descriptors() != before:  # the thread may close its file later
        await disk.list(tmp_path)


async def test_lock_excludes_other_processes(disk: SystemDisk, tmp_path: Path) -> None:
    lock = disk.lock(tmp_path)
    child = await asyncio.create_subprocess_exec(
        "flock", "--nonblock", str(tmp_path), "true", stderr=asyncio.subprocess.DEVNULL
    )
    assert await child.wait() != 0
    lock.release()
    child = await asyncio.create_subprocess_exec("flock", "--nonblock", str(tmp_path), "true")
    assert await child.wait() == 0
