"""AIO writes: which writes qualify, the fallback to the thread, and identical results."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ponor_runtime import kernel_writes
from ponor_runtime.disk import SECTOR_BYTES, Buffer
from ponor_runtime.file_calls import FileCalls
from ponor_runtime.kernel_writes import KernelWrites
from ponor_runtime.system_disk import SystemDisk, SystemFile

from libs.runtime.tests import disk_conformance as conformance


@pytest.fixture
async def disk() -> AsyncIterator[SystemDisk]:
    disk = SystemDisk()
    yield disk
    disk.close()


@pytest.fixture
async def file(disk: SystemDisk, tmp_path: Path) -> AsyncIterator[SystemFile]:
    """Return an uncached file of 64 synced sectors, so that the next synced write qualifies for AIO."""
    file = await disk.open(tmp_path / "f", create=True, uncached=True)
    await file.write_sync(0, [bytes(64 * SECTOR_BYTES)])
    if file._kernel_writes is None or file._calls._direct is None:
        pytest.skip("this machine does not support O_DIRECT with AIO")
    yield file
    await file.close()


def write(file: SystemFile, position: int, buffers: list[Buffer]) -> asyncio.Future[None]:
    """Run `write_sync_then` and return a future of its result."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    file.write_sync_then(position, buffers, done)
    return future


@pytest.mark.parametrize("scenario", conformance.SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_conformance_without_kernel_support(
    scenario: conformance.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_writes, "_CALLS", {})
    disk = SystemDisk()
    await scenario(disk, tmp_path)
    assert disk._kernel_writes is None
    disk.close()


async def test_group_commit_needs_no_thread(file: SystemFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_thread(*_: object) -> None:
        raise AssertionError("this write must not use the thread")

    with monkeypatch.context() as patched:
        patched.setattr(FileCalls, "write_sync", on_a_thread)
        for number in range(40):
            await write(file, number * SECTOR_BYTES, [bytes([number]) * 12, bytes([number]) * 500])
    expected = b"".join(bytes([number]) * SECTOR_BYTES for number in range(40))
    assert await file.read(0, 40 * SECTOR_BYTES) == expected


async def test_later_calls_run_after_the_write(file: SystemFile) -> None:
    order: list[int] = []

    def note(number: int, _: object) -> None:
        order.append(number)

    first = write(file, 0, [b"a" * SECTOR_BYTES])
    second = write(file, 0, [b"b" * SECTOR_BYTES])
    third = write(file, 3, [b"c"])
    for number, future in enumerate((first, second, third)):
        future.add_done_callback(partial(note, number))
    assert await file.read(0, 5) == b"bbbcb"
    await asyncio.gather(first, second, third)
    assert order == [0, 1, 2]


async def test_close_during_a_write_runs_after_it(disk: SystemDisk, tmp_path: Path) -> None:
    file = await disk.open(tmp_path / "f", create=True, uncached=True)
    await file.write_sync(0, [bytes(SECTOR_BYTES)])
    writing = write(file, 0, [b"x" * SECTOR_BYTES])
    await file.close()
    assert writing.done()
    assert (tmp_path / "f").read_bytes() == b"x" * SECTOR_BYTES


async def test_thread_syncs_everything_after_an_unsynced_write(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fdatasync

    def sync(descriptor: int) -> None:
        synced.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    await file.write(0, [b"y" * SECTOR_BYTES])
    await write(file, SECTOR_BYTES, [b"z" * SECTOR_BYTES])
    assert len(synced) == 1
    await write(file, SECTOR_BYTES, [b"z" * SECTOR_BYTES])
    assert len(synced) == 1


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EINVAL, errno.EOPNOTSUPP])
async def test_thread_writes_what_the_kernel_refuses(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch, number: int, *, at_once: bool
) -> None:
    begun: list[int] = []

    def begin(_: KernelWrites, descriptor: int, position: int, buffers: Any, ended: Any) -> int:
        begun.append(position)
        if at_once:
            return number
        asyncio.get_running_loop().call_soon(ended, -number)
        return 0

    monkeypatch.setattr(KernelWrites, "begin", begin)
    futures = [write(file, n * SECTOR_BYTES, [bytes([n]) * SECTOR_BYTES]) for n in range(3)]
    await asyncio.gather(*futures)
    assert await file.read(0, 3 * SECTOR_BYTES) == b"".join(bytes([n]) * SECTOR_BYTES for n in range(3))
    await write(file, 0, [b"q" * SECTOR_BYTES])
    assert begun == ([0, 0] if number == errno.EAGAIN else [0]), (
        "AIO is retried only after a temporary refusal"
    )


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_error_reaches_the_caller_without_a_retry(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def begin(_: KernelWrites, descriptor: int, position: int, buffers: Any, ended: Any) -> int:
        asyncio.get_running_loop().call_soon(ended, -number)
        return 0

    monkeypatch.setattr(KernelWrites, "begin", begin)
    with pytest.raises(OSError, match=os.strerror(number)) as raised:
        await write(file, 0, [b"x" * SECTOR_BYTES])
    assert raised.value.errno == number
    assert await file.read(0, 1) == b"\0"


async def test_kernel_error_keeps_its_errno(disk: SystemDisk, tmp_path: Path) -> None:
    writes = KernelWrites(asyncio.get_running_loop())
    (tmp_path / "r").write_bytes(bytes(SECTOR_BYTES))
    descriptor = os.open(tmp_path / "r", os.O_RDONLY)
    try:
        assert writes.begin(descriptor, 0, [bytes(SECTOR_BYTES)], print) == errno.EBADF
    finally:
        os.close(descriptor)
        writes.close()


async def test_writes_in_flight_are_bounded_and_reuse_their_memory(disk: SystemDisk, tmp_path: Path) -> None:
    bound = kernel_writes.WRITES_IN_FLIGHT_MAX
    files = [
        await disk.open(tmp_path / str(number), create=True, uncached=True) for number in range(bound + 4)
    ]
    for file in files:
        await file.write_sync(0, [bytes(4096)])
    for letter in (b"a", b"b"):
        await asyncio.gather(*[write(file, 0, [letter * 4096]) for file in files])
        for file in files:
            assert await file.read(0, 4096) == letter * 4096
    writes = disk._kernel_writes
    assert writes is None or len(writes._slots) <= bound
    await asyncio.gather(*map(SystemFile.close, files))


async def test_failing_callback_does_not_stop_the_other_callbacks(
    disk: SystemDisk, file: SystemFile, tmp_path: Path
) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def wrong(_: BaseException | None) -> None:
        raise LookupError("a mistake")

    file.write_sync_then(0, [bytes(SECTOR_BYTES)], wrong)
    await write(file, SECTOR_BYTES, [b"k" * SECTOR_BYTES])
    assert [type(error) for error in reported] == [LookupError]


async def test_aio_is_disabled_without_rwf_dsync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the flag a write would be reported as durable while only the page cache holds it."""
    monkeypatch.delattr(os, "RWF_DSYNC", raising=False)
    with pytest.raises(OSError, match="has no asynchronous writes"):
        KernelWrites(asyncio.get_running_loop())
