"""Who a data directory belongs to: the file `identity` in it.

What lives here: the cluster's and the directory's ids, whether formatting was finished, and the checks at start. The directory id is also the
identity of the journal's segments, so that files of two directories never mix unseen (docs/formats/controller-log.md).
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from pathlib import PurePath

from crc32c import crc32c
from ponor_runtime.disk import Disk
from ponor_runtime.randomness import Randomness

from ponor_controller.consensus.durable_file import read_whole, remove_leftovers, write_durably
from ponor_controller.consensus.errors import RESTORE_REMEDY, RecordLogCorruptError, WrongDirectoryError

FILE_NAME = "identity"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """Content of the identity file. `formatted` is set once the first batch of the log is durable: a log that is empty after that was lost."""

    cluster_id: str
    directory_id: uuid.UUID
    formatted: bool

    def encode(self) -> bytes:
        """One line of JSON, one line with the CRC32C of the first in hexadecimal."""
        content = {
            "format": FORMAT,
            "cluster_id": self.cluster_id,
            "directory_id": str(self.directory_id),
            "formatted": self.formatted,
        }
        line = json.dumps(content, sort_keys=True).encode() + b"\n"
        return line + f"{crc32c(line):08x}\n".encode()


def decode_identity(data: bytes, path: PurePath) -> DirectoryIdentity:
    """Read the file's bytes.

    Raises:
        RecordLogCorruptError: they are damaged, or of a newer format.
    """
    line, newline, checksum = data.partition(b"\n")
    if not newline or checksum != f"{crc32c(line + newline):08x}\n".encode():
        raise RecordLogCorruptError(path, 0, "the checksum does not match", RESTORE_REMEDY)
    content = json.loads(line)
    if content["format"] != FORMAT:
        raise RecordLogCorruptError(
            path, 0, f"format {content['format']} is not known", "start a newer version"
        )
    return DirectoryIdentity(content["cluster_id"], uuid.UUID(content["directory_id"]), content["formatted"])


async def open_identity(
    disk: Disk, directory: PurePath, randomness: Randomness, expected_cluster_id: str
) -> DirectoryIdentity:
    """Read the identity of a directory, or give one to an empty directory.

    Args:
        disk: where the directory is.
        directory: the controller's data directory; exists.
        randomness: makes new ids.
        expected_cluster_id: from the configuration; empty when it names none.

    Raises:
        WrongDirectoryError: it belongs to another cluster, or has data but no identity.
        RecordLogCorruptError: the file is damaged.
    """
    await remove_leftovers(disk, directory)
    path = directory / FILE_NAME
    if await disk.exists(path):
        identity = decode_identity(await read_whole(disk, path), path)
        if expected_cluster_id and identity.cluster_id != expected_cluster_id:
            raise WrongDirectoryError(
                f"{directory} belongs to cluster {identity.cluster_id}, not {expected_cluster_id}; give another directory"
            )
        return identity
    foreign = [name for name in await disk.list(directory) if name in ("log", "snapshots")]
    if foreign:
        raise WrongDirectoryError(
            f"{directory} holds {' and '.join(foreign)} but no file {FILE_NAME}; restore that file, or give an empty directory"
        )
    identity = DirectoryIdentity(
        expected_cluster_id or str(randomness.uuid()), randomness.uuid(), formatted=False
    )
    await write_durably(disk, path, [identity.encode()])
    return identity


async def mark_formatted(disk: Disk, directory: PurePath, identity: DirectoryIdentity) -> DirectoryIdentity:
    """Remember that the log has its first batch."""
    formatted = replace(identity, formatted=True)
    await write_durably(disk, directory / FILE_NAME, [formatted.encode()])
    return formatted
