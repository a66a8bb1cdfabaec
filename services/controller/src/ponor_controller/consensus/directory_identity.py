"""The identity file of a data directory: cluster, directory id, initial voters.

The directory id is also the identity of the journal's segments, so the journal refuses a segment of
another directory (docs/formats/controller-log.md).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from crc32c import crc32c
from ponor_raft.membership import ReplicaId
from ponor_runtime.disk import Disk
from ponor_runtime.durable_file import read_whole, remove_leftovers, write_durably
from ponor_runtime.identity import UNKNOWN_ORDINAL, ClusterOrdinal, NodeId

from ponor_controller.consensus.errors import RESTORE_REMEDY, RecordLogCorruptError, WrongDirectoryError
from ponor_controller.consensus.members import Member

FILE_NAME = "identity"
FORMAT = 3


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """Content of the identity file.

    Attributes:
        cluster_id: empty for a blank directory, which belongs to no cluster yet.
        directory_id: random and permanent; a wiped disk gets another one.
        node_id: node id of the controller that created the directory.
        initial_voters: the members at index 0; empty if the controller gets the members from the log.
        formatted: whether the first batch of the log was committed. From then on an empty log is a lost log.
        cluster_ordinal: 0 for a blank directory.
    """

    cluster_id: str
    directory_id: uuid.UUID
    node_id: NodeId
    initial_voters: tuple[Member, ...]
    formatted: bool = False
    cluster_ordinal: ClusterOrdinal = UNKNOWN_ORDINAL

    @property
    def replica(self) -> ReplicaId:
        """Id of this controller in the quorum."""
        return ReplicaId(self.node_id, self.directory_id.bytes)

    def encode(self) -> bytes:
        """A line of JSON and a line with its CRC32C in hexadecimal."""
        content = {
            "format": FORMAT,
            "cluster_id": self.cluster_id,
            "directory_id": str(self.directory_id),
            "node_id": self.node_id,
            "initial_voters": [_describe(member) for member in self.initial_voters],
            "formatted": self.formatted,
            "cluster_ordinal": self.cluster_ordinal,
        }
        line = json.dumps(content, sort_keys=True).encode() + b"\n"
        return line + f"{crc32c(line):08x}\n".encode()


def _describe(member: Member) -> dict[str, Any]:
    return {
        "node_id": member.node_id,
        "directory_id": str(uuid.UUID(bytes=member.directory_id)),
        "peer_address": member.peer_address,
        "service_address": member.service_address,
    }


def decode_identity(data: bytes, path: PurePath) -> DirectoryIdentity:
    """Read the file's bytes.

    Raises:
        RecordLogCorruptError: the bytes are damaged, or have another format.
    """
    line, newline, checksum = data.partition(b"\n")
    if not newline or checksum != f"{crc32c(line + newline):08x}\n".encode():
        raise RecordLogCorruptError(path, 0, "the checksum does not match", RESTORE_REMEDY)
    content = json.loads(line)
    if content["format"] != FORMAT:
        raise RecordLogCorruptError(
            path, 0, f"format {content['format']} is not known", "use the release that wrote it"
        )
    voters = tuple(
        Member(
            NodeId(each["node_id"]),
            uuid.UUID(each["directory_id"]).bytes,
            each["peer_address"],
            each["service_address"],
        )
        for each in content["initial_voters"]
    )
    return DirectoryIdentity(
        content["cluster_id"],
        uuid.UUID(content["directory_id"]),
        NodeId(content["node_id"]),
        voters,
        content["formatted"],
        ClusterOrdinal(content["cluster_ordinal"]),
    )


async def open_identity(
    disk: Disk, directory: PurePath, expected_cluster_id: str, new: Callable[[], DirectoryIdentity]
) -> DirectoryIdentity:
    """Read the identity of a directory, or create one for an empty directory.

    Args:
        disk: where the directory is.
        directory: the controller's data directory; exists.
        expected_cluster_id: from the configuration; empty if it has none.
        new: creates the identity of an empty directory.

    Raises:
        WrongDirectoryError: the directory belongs to another cluster, or contains data but no identity.
        RecordLogCorruptError: the file is damaged.
    """
    await remove_leftovers(disk, directory)
    path = directory / FILE_NAME
    if await disk.exists(path):
        identity = decode_identity(await read_whole(disk, path), path)
        if expected_cluster_id and identity.cluster_id not in ("", expected_cluster_id):
            raise WrongDirectoryError(
                f"{directory} belongs to cluster {identity.cluster_id}, not {expected_cluster_id}; give"
                " another directory"
            )
        return identity
    foreign = [name for name in await disk.list(directory) if name in ("log", "snapshots")]
    if foreign:
        raise WrongDirectoryError(
            f"{directory} holds {' and '.join(foreign)} but no file {FILE_NAME}; restore that file, or give"
            " an empty directory"
        )
    identity = new()
    await write_identity(disk, directory, identity)
    return identity


async def write_identity(disk: Disk, directory: PurePath, identity: DirectoryIdentity) -> None:
    """Write the file; durable when this returns."""
    await write_durably(disk, directory / FILE_NAME, [identity.encode()])


async def mark_formatted(disk: Disk, directory: PurePath, identity: DirectoryIdentity) -> DirectoryIdentity:
    """Write that the first batch of the log was committed; durable when this returns."""
    formatted = replace(identity, formatted=True)
    await write_identity(disk, directory, formatted)
    return formatted
