"""The header of a snapshot file, byte by byte (docs/formats/controller-log.md).

`ponor_metadata.snapshot` defines the body; this module handles it as bytes with a digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from struct import Struct
from typing import Final

from crc32c import crc32c
from ponor_raft.entry import SnapshotMeta
from ponor_raft.membership import DIRECTORY_ID_BYTES, LEARNERS_MAX, VOTERS_MAX, Membership, ReplicaId

from ponor_controller.consensus.errors import RESTORE_REMEDY, RecordLogCorruptError

MAGIC: Final = b"PONORSNP"
VERSION: Final = 2
DIGEST_BYTES: Final = 16
FLAG_RECEIVED: Final = 1
FIXED: Final = Struct(f">8sIIQQQq{DIGEST_BYTES}s{DIGEST_BYTES}sQHH")
"""magic, version, flags, index, term, incarnation, cluster time in ms, running digest, state digest, body
length, voters, learners.
"""
REPLICA: Final = Struct(f">i{DIRECTORY_ID_BYTES}s")
CHECKSUM: Final = Struct(">I")
"""CRC32C of everything before it."""
HEADER_BYTES_MAX: Final = FIXED.size + REPLICA.size * (VOTERS_MAX + LEARNERS_MAX) + CHECKSUM.size


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The position of a snapshot in the log, and the digest of its body.

    Attributes:
        index: index of the newest batch in the image.
        term: term of that batch.
        incarnation: incarnation of the quorum; 0 before the first forced recovery.
        cluster_time_ms: cluster time of that batch.
        digest: the running digest after that batch.
        state_digest: BLAKE2b-128 of the body; equal on every replica.
        size_bytes: size of the body.
        membership: the membership in force at the index.
        received: whether another controller sent the snapshot, so that the log before the index may be
            missing.
    """

    index: int
    term: int
    incarnation: int
    cluster_time_ms: int
    digest: bytes
    state_digest: bytes
    size_bytes: int
    membership: Membership
    received: bool = False

    @property
    def meta(self) -> SnapshotMeta:
        """The description of the snapshot for the Raft core."""
        return SnapshotMeta(self.index, self.term, self.membership, self.state_digest, self.size_bytes)


def header_bytes(membership: Membership) -> int:
    """Size of the header, and offset of the body in the file."""
    return FIXED.size + REPLICA.size * len(membership.members) + CHECKSUM.size


def encode_header(header: SnapshotHeader) -> bytes:
    """Encode a header."""
    membership = header.membership
    fixed = FIXED.pack(
        MAGIC,
        VERSION,
        FLAG_RECEIVED if header.received else 0,
        header.index,
        header.term,
        header.incarnation,
        header.cluster_time_ms,
        header.digest,
        header.state_digest,
        header.size_bytes,
        len(membership.voters),
        len(membership.learners),
    )
    head = fixed + b"".join(REPLICA.pack(*member) for member in membership.members)
    return head + CHECKSUM.pack(crc32c(head))


def decode_header(data: bytes, path: PurePath) -> SnapshotHeader:
    """Decode a header; `data` may continue after it.

    Raises:
        RecordLogCorruptError: the header is damaged.
    """
    if len(data) < FIXED.size:
        raise RecordLogCorruptError(path, len(data), "the file ends within the header", RESTORE_REMEDY)
    if data[: len(MAGIC)] != MAGIC:
        raise RecordLogCorruptError(
            path, 0, "the file does not begin with the magic bytes of a snapshot", RESTORE_REMEDY
        )
    fields = FIXED.unpack_from(data)
    (
        _,
        version,
        flags,
        index,
        term,
        incarnation,
        time_ms,
        digest,
        state_digest,
        size_bytes,
        voters,
        learners,
    ) = fields
    if version != VERSION:
        raise RecordLogCorruptError(
            path, len(MAGIC), f"version {version} is not known", "use the release that wrote it"
        )
    end = FIXED.size + REPLICA.size * (voters + learners)
    if data[end : end + CHECKSUM.size] != CHECKSUM.pack(crc32c(data[:end])):
        raise RecordLogCorruptError(path, 0, "the checksum of the header does not match", RESTORE_REMEDY)
    members = [ReplicaId(*REPLICA.unpack_from(data, at)) for at in range(FIXED.size, end, REPLICA.size)]
    return SnapshotHeader(
        index,
        term,
        incarnation,
        time_ms,
        digest,
        state_digest,
        size_bytes,
        Membership(tuple(members[:voters]), tuple(members[voters:])),
        received=bool(flags & FLAG_RECEIVED),
    )
