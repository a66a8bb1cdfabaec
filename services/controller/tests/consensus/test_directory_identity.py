"""The identity file of a controller's directory."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from ponor_controller.consensus.directory_identity import DirectoryIdentity, mark_formatted, open_identity
from ponor_controller.consensus.errors import RecordLogCorruptError, WrongDirectoryError
from ponor_controller.consensus.members import Member
from ponor_runtime.identity import ClusterOrdinal, NodeId
from ponor_runtime.system_disk import SystemDisk

ORDINAL = ClusterOrdinal(1)
VOTERS = tuple(
    Member(NodeId(65_536 + 3_000 + n), uuid.UUID(int=n + 1).bytes, f"h{n}:1", f"h{n}:2") for n in range(3)
)


def _new() -> DirectoryIdentity:
    return DirectoryIdentity("c1", uuid.uuid4(), NodeId(65_536 + 3_000), VOTERS, cluster_ordinal=ORDINAL)


async def test_a_directory_keeps_its_identity(tmp_path: Path) -> None:
    disk = SystemDisk()
    first = await open_identity(disk, tmp_path, "", _new)
    again = await open_identity(disk, tmp_path, "", _new)
    assert again == first
    assert not first.formatted
    await mark_formatted(disk, tmp_path, first)
    assert (await open_identity(disk, tmp_path, first.cluster_id, _new)).formatted
    with pytest.raises(WrongDirectoryError, match="another"):
        await open_identity(disk, tmp_path, "another", _new)


async def test_a_damaged_or_missing_identity_is_refused(tmp_path: Path) -> None:
    disk = SystemDisk()
    await open_identity(disk, tmp_path, "", _new)
    path = tmp_path / "identity"
    good = path.read_bytes()
    for position in range(len(good)):
        data = bytearray(good)
        data[position] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(RecordLogCorruptError, match="checksum"):
            await open_identity(disk, tmp_path, "", _new)
    path.unlink()
    (tmp_path / "log").mkdir()
    with pytest.raises(WrongDirectoryError, match="restore that file"):
        await open_identity(disk, tmp_path, "", _new)
