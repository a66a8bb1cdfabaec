"""Planted bug: what a snapshot holds is believed, whatever its digest and its checksums say."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from ponor_controller.consensus.durable_file import read_whole
from ponor_controller.consensus.snapshot_files import Snapshot, SnapshotFiles
from ponor_controller.consensus.snapshot_format import decode_header, header_bytes
from ponor_metadata import snapshot


class AgreeableChecksum(int):
    """The right one, and equal to every other."""

    def __ne__(self, _: object) -> bool:
        return False

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = int.__hash__


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    async def read(self: SnapshotFiles, index: int) -> Snapshot:
        path = self.path(index)
        data = await read_whole(self._disk, path)
        header = decode_header(data, path)
        return Snapshot(header, data[header_bytes(header.membership) :])

    monkeypatch.setattr(SnapshotFiles, "read", read)
    monkeypatch.setattr(snapshot, "crc32c", lambda data: AgreeableChecksum(crc32c(data)))
