"""The image: the rows of all committed batches, as of one index. The same on every process that applied the same batches.

Uncommitted batches never reach it; the leader's view of them is the overlay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ponor.metadata.v1.records_pb2 import Record, RecordBatch

from ponor_metadata import tables
from ponor_metadata.apply import RULES, apply_batch
from ponor_metadata.digest import EMPTY_DIGEST, running_digest
from ponor_metadata.memory_table import MemoryTable
from ponor_metadata.object_table import ObjectTable
from ponor_metadata.set_object_table import StreamSetObjectTable
from ponor_metadata.stream_object_table import StreamObjectTable

try:
    from ponor_metadata.plain_records_native import PlainRecords
except ImportError:  # pragma: no cover - no C compiler was there when the member was installed
    PlainRecords = None  # type: ignore[assignment, misc]

_RULES_BY_NUMBER: Final = {
    Record.DESCRIPTOR.fields_by_name[kind].number: (kind, rule) for kind, rule in RULES.items()
}


class MetadataImage:
    """Fulfils `ponor_metadata.view.View`.

    Attributes:
        index: index of the newest batch, 0 before the first.
        cluster_time_ms: cluster clock of that batch.
        digest: running digest after that batch (16 bytes).
    """

    def __init__(
        self,
        *,
        index: int = 0,
        cluster_time_ms: int = 0,
        digest: bytes = EMPTY_DIGEST,
        compiled: bool = True,
    ) -> None:
        """An image without rows. `compiled`: plain records are applied by compiled code, where it is there."""
        self.index = index
        self.cluster_time_ms = cluster_time_ms
        self.digest = digest
        self.clusters = MemoryTable(tables.CLUSTERS)
        self.features = MemoryTable(tables.FEATURES)
        self.tenants = MemoryTable(tables.TENANTS)
        self.counters = MemoryTable(tables.COUNTERS)
        self.nodes = MemoryTable(tables.NODES)
        self.streams = MemoryTable(tables.STREAMS)
        self.objects = ObjectTable()
        self.stream_objects = StreamObjectTable()
        self.stream_set_objects = StreamSetObjectTable()
        self.keys = MemoryTable(tables.KEYS)
        self.topics = MemoryTable(tables.TOPICS)
        self.partitions = MemoryTable(tables.PARTITIONS)
        self.operations = MemoryTable(tables.OPERATIONS)
        self.broker_configs = MemoryTable(tables.BROKER_CONFIGS)
        self.quorum = MemoryTable(tables.QUORUM)
        self.moves = MemoryTable(tables.MOVES)
        self.wals = MemoryTable(tables.WALS)
        self.compactions = MemoryTable(tables.COMPACTIONS)
        self.snapshots = MemoryTable(tables.SNAPSHOTS)
        self.reclaims = MemoryTable(tables.RECLAIMS)
        self.deletions = MemoryTable(tables.DELETIONS)
        self._plain = plain_records(self) if compiled else None

    @property
    def is_compiled(self) -> bool:
        """Whether plain records are applied by compiled code."""
        return self._plain is not None

    def adopt(self, other: MetadataImage) -> None:
        """Become the other image; this one and its tables stay the objects that others hold.

        The other one is left with the rows that were here, and is good for nothing but its `release`.
        """
        self.index, self.cluster_time_ms, self.digest = other.index, other.cluster_time_ms, other.digest
        for name, table in self._tables():
            table.exchange(getattr(other, name))
        self._plain = plain_records(self) if self.is_compiled else None
        other._plain = None

    def release(self) -> Iterator[None]:
        """Forget all rows, in steps of some microseconds each: dropped at once, a million of them hold up the event loop. The image is of no use afterwards."""
        self._plain = None
        for _, table in self._tables():
            yield from table.release()

    def _tables(self) -> list[tuple[str, Any]]:
        return [(name, table) for name, table in vars(self).items() if hasattr(table, "exchange")]

    def begin(self, batch: RecordBatch) -> None:
        """See `View.begin`."""
        self.index = batch.index
        self.cluster_time_ms = batch.cluster_time_ms

    def apply_committed(self, encoded: bytes, batch: RecordBatch | None = None) -> RecordBatch:
        """Apply the next committed batch, given as it stands in the log, and move the digest.

        Args:
            encoded: the batch's bytes.
            batch: the same, decoded, if the caller has it.

        Raises:
            UnknownRecordError: a record kind is unknown.
            AssertionError: the batch breaks an invariant.
        """
        if self._plain is None or not self._plain.apply(self, encoded):
            batch = RecordBatch.FromString(encoded) if batch is None else batch
            apply_batch(self, batch)
        self.digest = running_digest(self.digest, encoded)
        return RecordBatch.FromString(encoded) if batch is None else batch

    def replay(self, encoded: bytes) -> None:
        """The same for a batch that nobody wants to look at."""
        if self._plain is None or not self._plain.apply(self, encoded):
            apply_batch(self, RecordBatch.FromString(encoded))
        self.digest = running_digest(self.digest, encoded)


def plain_records(image: MetadataImage) -> PlainRecords | None:
    """What applies plain records to this image, if it was compiled."""
    return None if PlainRecords is None else PlainRecords(image, _RULES_BY_NUMBER, Record)
