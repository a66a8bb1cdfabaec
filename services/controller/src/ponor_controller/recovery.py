"""Restart: the image and the retained tail from what the log holds.

What lives here: newest snapshot, then every batch after it, with the running digest checked on the way: the batches between the two kept snapshots must lead
from the older one's digest to the newer one's. No file formats.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor_metadata import snapshot
from ponor_metadata.digest import EMPTY_DIGEST, running_digest
from ponor_metadata.image import MetadataImage
from ponor_metadata.snapshot import SnapshotCorruptError

from ponor_controller.consensus.errors import RESTORE_REMEDY, RecordLogCorruptError
from ponor_controller.consensus.ports import LogEntry
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.consensus.snapshot_files import Snapshot
from ponor_controller.settings import ControllerSettings
from ponor_controller.subscriptions.retained_tail import RetainedBatch, RetainedTail


@dataclass(frozen=True, slots=True)
class Recovered:
    """The committed state as it was before the restart. `applied_batches` came from the log, the rest from the snapshot."""

    image: MetadataImage
    tail: RetainedTail
    applied_batches: int


async def recover(log: RecordLog, settings: ControllerSettings) -> Recovered:
    """Replay a record log.

    Raises:
        RecordLogCorruptError: the log or a snapshot is damaged, or they do not belong together.
        UnknownRecordError: a newer version wrote the log.
    """
    image = _decode_image(log.snapshot) if log.snapshot is not None else MetadataImage()
    snapshot_index = image.index
    begin = log.tail_begin
    digest = begin.digest if begin is not None else EMPTY_DIGEST
    tail = RetainedTail(
        begin.index if begin is not None else 0,
        digest,
        bytes_max=settings.retained_bytes_max,
        batches_max=settings.retained_batches_max,
    )
    async for entry in log.replay():
        digest = running_digest(digest, entry.data)
        tail.append(RetainedBatch(entry.index, entry.data, digest))
        if entry.index > snapshot_index:
            image.apply_committed(entry.data, entry.batch)
        if entry.index == max(snapshot_index, image.index) and digest != image.digest:
            raise _digest_error(entry)
    return Recovered(image, tail, image.index - snapshot_index)


def _decode_image(stored: Snapshot) -> MetadataImage:
    header = stored.header
    try:
        image = snapshot.decode(stored.body)
    except SnapshotCorruptError as error:
        raise RecordLogCorruptError(f"snapshot {header.index}", 0, str(error), RESTORE_REMEDY) from error
    if (image.index, image.digest) != (header.index, header.digest):
        raise RecordLogCorruptError(
            f"snapshot {header.index}",
            0,
            f"its body is as of index {image.index}, or has another digest",
            RESTORE_REMEDY,
        )
    return image


def _digest_error(entry: LogEntry) -> RecordLogCorruptError:
    return RecordLogCorruptError(
        "log",
        entry.index,
        f"the digest after batch {entry.index} differs from the image's: files of two logs are mixed",
        RESTORE_REMEDY,
    )
