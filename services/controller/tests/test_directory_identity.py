"""Who a directory belongs to, and who an empty one becomes."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from ponor_controller.bootstrap import new_identity
from ponor_controller.consensus.directory_identity import DirectoryIdentity, mark_formatted, open_identity
from ponor_controller.consensus.errors import RecordLogCorruptError, WrongDirectoryError
from ponor_controller.consensus.members import Member
from ponor_controller.options import ControllerOptions
from ponor_runtime.identity import ClusterOrdinal, NodeId
from ponor_runtime.system import SystemRandomness
from ponor_runtime.system_disk import SystemDisk

ORDINAL = ClusterOrdinal(1)
VOTERS = tuple(
    Member(NodeId(65_536 + 3_000 + n), uuid.UUID(int=n + 1).bytes, f"h{n}:1", f"h{n}:2") for n in range(3)
)


def _new(
    path: Path, node_id: NodeId | None = None, voters: tuple[Member, ...] = (), *, formats: bool | None = None
) -> DirectoryIdentity:
    options = ControllerOptions(path, "h:1", ORDINAL, node_id=node_id, voters=voters, format=formats)
    return new_identity(options, SystemRandomness())


async def test_a_directory_keeps_its_identity(tmp_path: Path) -> None:
    disk = SystemDisk()
    first = await open_identity(disk, tmp_path, "", lambda: _new(tmp_path))
    again = await open_identity(disk, tmp_path, "", lambda: _new(tmp_path))
    assert again == first
    assert not first.formatted
    await mark_formatted(disk, tmp_path, first)
    assert (await open_identity(disk, tmp_path, first.cluster_id, lambda: _new(tmp_path))).formatted
    with pytest.raises(WrongDirectoryError, match="another"):
        await open_identity(disk, tmp_path, "another", lambda: _new(tmp_path))


async def test_a_damaged_or_missing_identity_is_refused(tmp_path: Path) -> None:
    disk = SystemDisk()
    await open_identity(disk, tmp_path, "", lambda: _new(tmp_path))
    path = tmp_path / "identity"
    good = path.read_bytes()
    for position in range(len(good)):
        data = bytearray(good)
        data[position] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(RecordLogCorruptError, match="checksum"):
            await open_identity(disk, tmp_path, "", lambda: _new(tmp_path))
    path.unlink()
    (tmp_path / "log").mkdir()
    with pytest.raises(WrongDirectoryError, match="restore that file"):
        await open_identity(disk, tmp_path, "", lambda: _new(tmp_path))


def test_a_controller_that_was_told_of_no_others_is_a_quorum_of_one(tmp_path: Path) -> None:
    identity = _new(tmp_path)
    assert [member.replica for member in identity.initial_voters] == [identity.replica]
    assert identity.cluster_id


def test_a_controller_that_must_not_format_is_blank_though_it_was_told_of_no_others(tmp_path: Path) -> None:
    identity = _new(tmp_path, formats=False)
    assert (identity.initial_voters, identity.cluster_id) == ((), "")
    assert len(_new(tmp_path, formats=True).initial_voters) == 1


def test_voters_that_format_agree_on_everything(tmp_path: Path) -> None:
    identities = [_new(tmp_path, voter.node_id, VOTERS[::-1], formats=True) for voter in VOTERS]
    assert {identity.cluster_id for identity in identities} == {identities[0].cluster_id}
    assert all(identity.initial_voters == VOTERS for identity in identities)
    assert [identity.replica for identity in identities] == [voter.replica for voter in VOTERS]


def test_a_wiped_disk_does_not_come_back_under_its_old_identity(tmp_path: Path) -> None:
    identity = _new(tmp_path, VOTERS[0].node_id, VOTERS)
    assert identity.replica != VOTERS[0].replica
    assert (identity.initial_voters, identity.cluster_id) == ((), "")
