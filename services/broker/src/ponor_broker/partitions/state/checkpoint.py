"""The PARTITION value of the Meta stream: log start, recovery point, and whether the partition was
closed cleanly.

A small record as JSON (docs/formats/partition-meta.md), written with every upload of the
partition's data. After a crash, an open reads batch headers only from `recover_offset` on: about
the content of the write-ahead log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, Final

from ponor_partition import meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaKey

NO_TIMESTAMP: Final = -1
NO_TRANSACTIONS: Final = -1


@dataclass(slots=True)
class PartitionCheckpoint:
    """Offsets are Kafka offsets. `max_timestamp` is the largest timestamp of all records below
    `recover_offset`, in the batch at `max_timestamp_offset`. The `active_*` fields contain the bytes and the
    largest timestamp of the active segment's batches below `active_end_offset`, including batches in flight,
    which precede the checkpoint in the write-ahead log. Every transaction below `stable_offset` has ended,
    and the index entries of those that aborted are below offset `stable_txn_offset` of the Txn stream. Before
    the first transaction, `stable_offset` is `NO_TRANSACTIONS`.
    """

    key: ClassVar[MetaKey] = meta_entry.PARTITION

    start_offset: int = 0
    recover_offset: int = 0
    clean_shutdown: bool = False
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1
    active_bytes: int = 0
    active_max_timestamp: int = NO_TIMESTAMP
    active_max_timestamp_offset: int = -1
    active_end_offset: int = 0
    stable_offset: int = NO_TRANSACTIONS
    stable_txn_offset: int = 0

    def snapshot(self) -> bytes:
        """Return the whole state as bytes, for `restore`."""
        content = {
            "start": self.start_offset,
            "recover": self.recover_offset,
            "clean": self.clean_shutdown,
            "max_timestamp": self.max_timestamp,
            "max_timestamp_offset": self.max_timestamp_offset,
            "active_bytes": self.active_bytes,
            "active_max_timestamp": self.active_max_timestamp,
            "active_max_timestamp_offset": self.active_max_timestamp_offset,
            "active_end": self.active_end_offset,
        }
        if self.stable_offset != NO_TRANSACTIONS:
            content |= {"stable": self.stable_offset, "stable_txn": self.stable_txn_offset}
        return json.dumps(content, separators=(",", ":")).encode()

    def restore(self, value: bytes) -> None:
        """Replace the state by a snapshot.

        Raises:
            PartitionCorruptError: the bytes are not a valid snapshot.
        """
        try:
            content = json.loads(value)
            self.start_offset = int(content["start"])
            self.recover_offset = int(content["recover"])
            self.clean_shutdown = bool(content["clean"])
            self.max_timestamp = int(content.get("max_timestamp", NO_TIMESTAMP))
            self.max_timestamp_offset = int(content.get("max_timestamp_offset", -1))
            self.active_bytes = int(content.get("active_bytes", 0))
            self.active_max_timestamp = int(content.get("active_max_timestamp", NO_TIMESTAMP))
            self.active_max_timestamp_offset = int(content.get("active_max_timestamp_offset", -1))
            self.active_end_offset = int(content.get("active_end", self.recover_offset))
            self.stable_offset = int(content.get("stable", NO_TRANSACTIONS))
            self.stable_txn_offset = int(content.get("stable_txn", 0))
        except (ValueError, KeyError, TypeError) as error:
            raise PartitionCorruptError(
                f"PARTITION value {value[:80]!r} is not a checkpoint: {error}"
            ) from error
        if not 0 <= self.start_offset <= self.recover_offset:
            raise PartitionCorruptError(
                f"PARTITION: start offset {self.start_offset} is not within 0..{self.recover_offset}"
            )
