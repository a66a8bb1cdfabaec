"""Restore the image and the retained tail when a controller starts.

The image comes from the newest snapshot. The tail gets the batches between the older and the newest snapshot;
their running digest is verified. Entries after the newest snapshot may be uncommitted: the Raft driver
delivers them once they are committed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor_metadata.image import snapshot
from ponor_metadata.image.batches import EMPTY_DIGEST, running_digest
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import SnapshotCorruptError
from ponor_raft.stored import StoredState

from ponor_controller.consensus.errors import RESTORE_REMEDY, RecordLogCorruptError
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.consensus.snapshot_files import Snapshot
from ponor_controller.server.subscriptions.retained_tail import RetainedBatch, RetainedTail
from ponor_controller.settings import ControllerSettings


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state that the newest snapshot contains."""

    image: MetadataImage
    tail: RetainedTail


def recover(log: RecordLog, stored: StoredState, settings: ControllerSettings) -> Recovered:
    """Decode the newest snapshot and verify the batches before it. Frees the log's copy of the snapshot.

    Raises:
        RecordLogCorruptError: log and snapshots do not match.
    """
    image = decode_image(log.snapshot) if log.snapshot is not None else MetadataImage()
    log.snapshot = None
    begin_index, digest = image.index, image.digest
    older = log.tail_begin
    first = stored.entries[0].index if stored.entries else image.index + 1
    if older is not None and first <= older.index + 1:
        begin_index, digest = older.index, older.digest
    elif first == 1:
        begin_index, digest = 0, EMPTY_DIGEST
    tail = RetainedTail(
        begin_index, digest, bytes_max=settings.retained_bytes_max, batches_max=settings.retained_batches_max
    )
    for entry in stored.entries[begin_index + 1 - first : image.index + 1 - first]:
        digest = running_digest(digest, entry.data)
        tail.append(RetainedBatch(entry.index, entry.data, digest))
    if digest != image.digest:
        raise RecordLogCorruptError(
            "log",
            image.index,
            f"the digest after batch {image.index} differs from that of the snapshot: the directory contains"
            " files of different logs",
            RESTORE_REMEDY,
        )
    return Recovered(image, tail)


def decode_image(stored: Snapshot) -> MetadataImage:
    """Decode the image in a snapshot.

    Raises:
        RecordLogCorruptError: the body is not an image, or its index is not that of the header.
    """
    header = stored.header
    try:
        image = snapshot.decode(stored.body)
    except SnapshotCorruptError as error:
        raise RecordLogCorruptError(f"snapshot {header.index}", 0, str(error), RESTORE_REMEDY) from error
    if (image.index, image.digest) != (header.index, header.digest):
        raise RecordLogCorruptError(
            f"snapshot {header.index}",
            0,
            f"the body has index {image.index} or a digest that differs from the header",
            RESTORE_REMEDY,
        )
    return image
