"""Large reads of a disk: every byte of the range, in pieces, never two pieces at the same time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from ponor_runtime.large_reads import PIECE_BYTES
from ponor_runtime.system_disk import SystemDisk


@pytest.fixture
async def disk() -> AsyncIterator[SystemDisk]:
    disk = SystemDisk()
    yield disk
    disk.close()


class Device:
    """Watches `os.preadv`: how large its calls are, and how many run at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.at_once = self.at_once_max = 0
        self._counting = threading.Lock()
        self._preadv = os.preadv
        monkeypatch.setattr(os, "preadv", self._read)

    def _read(self, descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        with self._counting:
            self.sizes.append(len(buffers[0]))
            self.at_once += 1
            self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            return self._preadv(descriptor, buffers, position)
        finally:
            with self._counting:
                self.at_once -= 1


async def test_readers_of_megabytes_get_their_bytes_piece_by_piece_one_after_the_other(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(5 * PIECE_BYTES + 1000)
    (tmp_path / "f").write_bytes(content)
    device = Device(monkeypatch)

    async def read(position: int, length: int) -> bytes:
        file = await disk.open(tmp_path / "f")
        try:
            return await file.read(position, length)
        finally:
            await file.close()

    ranges = [(number * 7_001, 2 * PIECE_BYTES + number) for number in range(8)]
    found = await asyncio.gather(*(read(*some) for some in ranges))
    assert found == [content[position : position + length] for position, length in ranges]
    assert max(device.sizes) == PIECE_BYTES
    assert sum(device.sizes) == sum(length for _, length in ranges)
    assert device.at_once_max == 1


async def test_a_large_read_ends_with_the_file(disk: SystemDisk, tmp_path: Path) -> None:
    content = os.urandom(PIECE_BYTES + 5)
    (tmp_path / "f").write_bytes(content)
    file = await disk.open(tmp_path / "f")
    assert await file.read(3, 10 * PIECE_BYTES) == content[3:]
    assert await file.read(len(content), 10 * PIECE_BYTES) == b""
    await file.close()


async def test_a_small_read_is_one_call_and_waits_for_nobody(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(PIECE_BYTES)
    (tmp_path / "f").write_bytes(content)
    device = Device(monkeypatch)
    file = await disk.open(tmp_path / "f")
    assert await file.read(0, PIECE_BYTES) == content
    assert not device.sizes
    await file.close()
