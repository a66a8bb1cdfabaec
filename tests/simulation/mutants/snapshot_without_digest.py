"""Planted bug: what a snapshot holds is believed, whatever its digest and its checksums say.

Of most flipped bits the rows themselves tell, which cannot be read or do not fit together. So that a few seeds are enough for one that shows nowhere else, whatever rots is in the newest snapshot.
"""

from __future__ import annotations

from pathlib import PurePath

import pytest
from crc32c import crc32c
from ponor_controller.consensus.snapshot_files import NAME_PREFIX, Snapshot, SnapshotFiles
from ponor_controller.consensus.snapshot_format import decode_header, header_bytes
from ponor_metadata import snapshot
from ponor_runtime.durable_file import read_whole
from ponor_simulation.disk import RottenBit, SimDisk

LOTS_MAX = 100
"""Lots in a row name all files in turn, of which a controller has some ten."""


class AgreeableChecksum(int):
    """The right one, and equal to every other."""

    def __ne__(self, _: object) -> bool:
        return False

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = int.__hash__


_rot = SimDisk.rot


def rot_of_snapshot(disk: SimDisk, lot: int) -> RottenBit | None:
    """The first lot from this one on that names a bit of the newest snapshot; the bits of the others flip back."""
    snapshots = [
        str(directory / name)
        for directory, names in disk.state.directories.items()
        for name in map(str, names.names)
        if name.startswith(NAME_PREFIX) and name.removeprefix(NAME_PREFIX).isdecimal()
    ]
    for each in range(lot, lot + LOTS_MAX):
        place = _rot(disk, each)
        if place is None or (snapshots and place.path == max(snapshots)):
            return place
        disk.flip_bit(PurePath(place.path), place.position, place.bit)
    return _rot(disk, lot)


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    async def read(self: SnapshotFiles, index: int) -> Snapshot:
        path = self.path(index)
        data = await read_whole(self._disk, path)
        header = decode_header(data, path)
        return Snapshot(header, data[header_bytes(header.membership) :])

    monkeypatch.setattr(SnapshotFiles, "read", read)
    monkeypatch.setattr(SimDisk, "rot", rot_of_snapshot)
    monkeypatch.setattr(snapshot, "crc32c", lambda data: AgreeableChecksum(crc32c(data)))
