"""The image: the rows of all committed batches, as of one index. The same on every process that applied the same batches.

Uncommitted batches never reach it; the leader's view of them is the overlay.
"""

from __future__ import annotations

from ponor.metadata.v1.records_pb2 import RecordBatch

from ponor_metadata import tables
from ponor_metadata.apply import apply_batch
from ponor_metadata.digest import EMPTY_DIGEST, running_digest
from ponor_metadata.tables import MemoryTable


class MetadataImage:
    """Fulfils `ponor_metadata.view.View`.

    Attributes:
        index: index of the newest batch, 0 before the first.
        cluster_time_ms: cluster clock of that batch.
        digest: running digest after that batch (16 bytes).
    """

    def __init__(self, *, index: int = 0, cluster_time_ms: int = 0, digest: bytes = EMPTY_DIGEST) -> None:
        self.index = index
        self.cluster_time_ms = cluster_time_ms
        self.digest = digest
        self.clusters = MemoryTable(tables.CLUSTERS)
        self.features = MemoryTable(tables.FEATURES)
        self.tenants = MemoryTable(tables.TENANTS)
        self.counters = MemoryTable(tables.COUNTERS)
        self.nodes = MemoryTable(tables.NODES)
        self.streams = MemoryTable(tables.STREAMS)
        self.objects = MemoryTable(tables.OBJECTS)
        self.stream_objects = MemoryTable(tables.STREAM_OBJECTS)
        self.stream_set_objects = MemoryTable(tables.STREAM_SET_OBJECTS)
        self.keys = MemoryTable(tables.KEYS)
        self.topics = MemoryTable(tables.TOPICS)
        self.partitions = MemoryTable(tables.PARTITIONS)
        self.operations = MemoryTable(tables.OPERATIONS)
        self.broker_configs = MemoryTable(tables.BROKER_CONFIGS)

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
        batch = RecordBatch.FromString(encoded) if batch is None else batch
        apply_batch(self, batch)
        self.digest = running_digest(self.digest, encoded)
        return batch
