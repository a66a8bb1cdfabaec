"""The real disk: conformance, threads, and what the simulator cannot show."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ponor_runtime import disk_worker
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


async def test_a_slow_sync_of_one_file_holds_up_no_other(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = (
        await disk.open(tmp_path / "slow", create=True),
        await disk.open(tmp_path / "quick", create=True),
    )
    read_end, write_end = os.pipe()
    real_sync = os.fdatasync

    def sync(descriptor: int) -> None:
        # The sync of the first file waits for a byte that is only written after the second file was synced.
        if descriptor == slow._descriptor:
            os.read(read_end, 1)
        real_sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    waiting = asyncio.ensure_future(slow.sync())
    await asyncio.sleep(0)
    await quick.write_sync(0, [b"x"])
    assert not waiting.done()
    os.write(write_end, b"x")
    await waiting
    for descriptor in (read_end, write_end):
        os.close(descriptor)
    await slow.close()
    await quick.close()


async def test_a_short_write_is_finished(
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


async def test_an_error_of_the_disk_reaches_the_caller(
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


async def test_a_cancelled_open_leaks_nothing(disk: SystemDisk, tmp_path: Path) -> None:
    before = open_descriptors()
    for number in range(10):
        opening = asyncio.ensure_future(disk.open(tmp_path / str(number), create=True))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    await disk.list(tmp_path)
    for _ in range(100):
        if open_descriptors() == before:
            break
        await disk.list(tmp_path)
    assert open_descriptors() == before


async def test_a_lock_holds_between_processes(disk: SystemDisk, tmp_path: Path) -> None:
    lock = disk.lock(tmp_path)
    child = await asyncio.create_subprocess_exec(
        "flock", "--nonblock", str(tmp_path), "true", stderr=asyncio.subprocess.DEVNULL
    )
    assert await child.wait() != 0
    lock.release()
    child = await asyncio.create_subprocess_exec("flock", "--nonblock", str(tmp_path), "true")
    assert await child.wait() == 0
