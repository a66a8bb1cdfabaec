"""Snapshot files: the image at one index, on disk.

What lives here: the file format (docs/formats/controller-log.md), reading with every check, writing, and the choice of which files to keep. What
the body means is known to `ponor_metadata.snapshot` alone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import PurePath

from crc32c import crc32c
from ponor_runtime.disk import Disk

from ponor_controller.consensus.durable_file import read_whole, remove_leftovers, write_durably
from ponor_controller.consensus.errors import RESTORE_REMEDY, RecordLogCorruptError

MAGIC = b"PONORSNP"
VERSION = 1
HEADER = struct.Struct(">8sIQQq16sQI")
"""magic, version, index, term, cluster time in ms, running digest, body length, CRC32C of the body."""
CHECKSUM = struct.Struct(">I")
"""CRC32C of the header."""
HEADER_BYTES = HEADER.size + CHECKSUM.size
NAME_PREFIX = "snapshot-"
KEPT_SNAPSHOTS = 2
"""The newest is what a restart begins with; the one before it says where the kept tail of the log begins, and its digest."""


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """Where in the log a snapshot stands. `digest` is the running digest after the batch `index`."""

    index: int
    term: int
    cluster_time_ms: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot with its body, an encoded image."""

    header: SnapshotHeader
    body: bytes


class SnapshotFiles:
    """The snapshots in one directory."""

    def __init__(self, disk: Disk, directory: PurePath) -> None:
        self._disk = disk
        self._directory = directory
        self._indices: list[int] = []

    @property
    def indices(self) -> list[int]:
        """Indices of the files there are, oldest first."""
        return list(self._indices)

    async def open(self) -> None:
        """Look what is there.

        Raises:
            RecordLogCorruptError: a file's name makes no sense.
        """
        await self._disk.make_directories(self._directory)
        await remove_leftovers(self._disk, self._directory)
        self._indices = []
        for name in await self._disk.list(self._directory):
            digits = name.removeprefix(NAME_PREFIX)
            if digits == name or not digits.isdecimal():
                raise RecordLogCorruptError(
                    self._directory / name, 0, "the name is not a snapshot's", "move the file away"
                )
            self._indices.append(int(digits))
        self._indices.sort()

    async def read(self, index: int) -> Snapshot:
        """Read and verify one file.

        Raises:
            RecordLogCorruptError: any byte of it is wrong.
        """
        path = self._path(index)
        data = await read_whole(self._disk, path)
        header, body_bytes, body_crc = _decode_header(data, path)
        if header.index != index:
            raise RecordLogCorruptError(
                path, 12, f"holds index {header.index}, not what its name says", RESTORE_REMEDY
            )
        body = data[HEADER_BYTES:]
        if len(body) != body_bytes:
            raise RecordLogCorruptError(
                path,
                HEADER_BYTES,
                f"{len(body)} bytes follow the header instead of {body_bytes}",
                RESTORE_REMEDY,
            )
        if crc32c(body) != body_crc:
            raise RecordLogCorruptError(
                path, HEADER_BYTES, "the checksum of the body does not match", RESTORE_REMEDY
            )
        return Snapshot(header, body)

    async def write(self, snapshot: Snapshot) -> None:
        """Add a file, durable when this returns."""
        header = snapshot.header
        assert not self._indices or header.index > self._indices[-1], "snapshots go forward"
        packed = HEADER.pack(
            MAGIC,
            VERSION,
            header.index,
            header.term,
            header.cluster_time_ms,
            header.digest,
            len(snapshot.body),
            crc32c(snapshot.body),
        )
        buffers = [packed, CHECKSUM.pack(crc32c(packed)), snapshot.body]
        await write_durably(self._disk, self._path(header.index), buffers)
        self._indices.append(header.index)

    async def drop_old(self) -> None:
        """Remove all but the newest `KEPT_SNAPSHOTS`."""
        while len(self._indices) > KEPT_SNAPSHOTS:
            await self._disk.remove(self._path(self._indices[0]))
            del self._indices[0]

    def _path(self, index: int) -> PurePath:
        return self._directory / f"{NAME_PREFIX}{index:020d}"


def _decode_header(data: bytes, path: PurePath) -> tuple[SnapshotHeader, int, int]:
    if len(data) < HEADER_BYTES:
        raise RecordLogCorruptError(path, len(data), f"a header has {HEADER_BYTES} bytes", RESTORE_REMEDY)
    packed = data[: HEADER.size]
    if data[:8] != MAGIC:
        raise RecordLogCorruptError(path, 0, "the file does not begin as a snapshot", RESTORE_REMEDY)
    if CHECKSUM.unpack_from(data, HEADER.size)[0] != crc32c(packed):
        raise RecordLogCorruptError(path, 0, "the checksum of the header does not match", RESTORE_REMEDY)
    _, version, index, term, cluster_time_ms, digest, body_bytes, body_crc = HEADER.unpack(packed)
    if version != VERSION:
        raise RecordLogCorruptError(path, 8, f"version {version} is not known", "start a newer version")
    return SnapshotHeader(index, term, cluster_time_ms, digest), body_bytes, body_crc
