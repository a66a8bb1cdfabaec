"""Snapshot files on a real disk: written in steps, read back whole, damage named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ponor_controller.consensus.errors import RecordLogCorruptError
from ponor_controller.consensus.snapshot_files import (
    HASH_SLICE_BYTES,
    SnapshotFiles,
    body_digest,
)
from ponor_controller.consensus.snapshot_format import (
    DIGEST_BYTES,
    HEADER_BYTES_MAX,
    SnapshotHeader,
    header_bytes,
)
from ponor_raft.membership import LEARNERS_MAX, VOTERS_MAX, Membership, ReplicaId
from ponor_runtime.system import SystemClock
from ponor_runtime.system_disk import SystemDisk

from services.controller.tests.log_writer import MEMBERSHIP

PIECE = bytes(range(256)) * 512


def header_at(index: int, membership: Membership = MEMBERSHIP) -> SnapshotHeader:
    return SnapshotHeader(index, 1, 0, index, bytes(DIGEST_BYTES), bytes(DIGEST_BYTES), 0, membership)


@pytest.mark.parametrize("pieces", [0, 1, 100])
async def test_a_snapshot_written_in_pieces_is_read_back_whole(tmp_path: Path, pieces: int) -> None:
    disk = SystemDisk()
    files = SnapshotFiles(disk, tmp_path)
    await files.open()
    written = await files.write(header_at(7), [PIECE] * pieces, SystemClock())
    read = await files.read(7)
    assert read.header == written
    assert read.body == PIECE * pieces
    assert await body_digest(read.body, SystemClock()) == written.state_digest
    disk.close()


@pytest.mark.parametrize("at", [0, HASH_SLICE_BYTES, 2 * HASH_SLICE_BYTES - 1])
async def test_a_flipped_byte_or_a_missing_end_is_named(tmp_path: Path, at: int) -> None:
    disk = SystemDisk()
    files = SnapshotFiles(disk, tmp_path)
    await files.open()
    await files.write(header_at(7), [PIECE] * (2 * HASH_SLICE_BYTES // len(PIECE)), SystemClock())
    path = tmp_path / files.path(7).name
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[header_bytes(MEMBERSHIP) + at] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(RecordLogCorruptError, match="digest of the body"):
        await files.read(7)
    path.write_bytes(whole[:-1])
    with pytest.raises(RecordLogCorruptError, match="bytes in the header"):
        await files.read(7)
    disk.close()


async def test_the_longest_head_is_read(tmp_path: Path) -> None:
    members = [ReplicaId(number, bytes([number]) * 16) for number in range(VOTERS_MAX + LEARNERS_MAX)]
    membership = Membership(tuple(members[:VOTERS_MAX]), tuple(members[VOTERS_MAX:]))
    assert header_bytes(membership) == HEADER_BYTES_MAX
    disk = SystemDisk()
    files = SnapshotFiles(disk, tmp_path)
    await files.open()
    written = await files.write(header_at(3, membership), [b"body"], SystemClock())
    assert (await files.read(3)).header == written
    disk.close()


async def test_two_tasks_may_add_and_drop_files_concurrently(tmp_path: Path) -> None:
    disk = SystemDisk()
    files = SnapshotFiles(disk, tmp_path)
    await files.open()
    for index in range(1, 7):
        await files.write(header_at(index), [b"body"], SystemClock())
    await asyncio.gather(
        files.drop_old(),
        files.write(header_at(7), [b"own"], SystemClock()),
        files.drop_old(),
        files.write(header_at(8), [b"received"], SystemClock()),
        files.drop_old(),
    )
    await files.drop_old()
    assert files.indices == [7, 8]
    assert sorted(path.name for path in tmp_path.iterdir()) == [files.path(7).name, files.path(8).name]
    disk.close()
