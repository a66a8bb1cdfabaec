"""The ledger: checks every committed batch once, in order, against all earlier ones.

`cluster_watch` reports the batches, and the bucket reports puts and deletions.
"""

from __future__ import annotations

from collections import Counter

from ponor.metadata.v1 import records_pb2 as records
from ponor_metadata.client.store_marker import PREFIX
from ponor_simulation.object_store import SimBucket

from ponor_cluster_simulation.invariants.compaction_ledger import CompactionLedger, SnapshotLedger
from ponor_cluster_simulation.invariants.object_ledger import ObjectLedger
from ponor_cluster_simulation.invariants.partition_ledger import PartitionLedger
from ponor_cluster_simulation.invariants.registry import Checks, InvariantBrokenError
from ponor_cluster_simulation.invariants.stream_ledger import Actor, Place, StreamLedger
from ponor_cluster_simulation.invariants.wal_ledger import WalLedger
from ponor_cluster_simulation.protocols.committed_steps import CommittedSteps, callers_of
from ponor_cluster_simulation.protocols.compaction_steps import find_swaps


class Ledger:
    """All ledgers of a cluster.

    Attributes:
        index: of the newest batch.
        records: number of checked records.
    """

    def __init__(
        self, checks: Checks, bucket: SimBucket | None, destroy_delay_ms: int, pinned_bytes_max: int = 0
    ) -> None:
        self._checks = checks
        self.index = 0
        self._cluster_time_ms = 0
        self._term = 0
        self.streams = StreamLedger(checks)
        self.objects = ObjectLedger(checks, self.streams, bucket, destroy_delay_ms)
        self.partitions = PartitionLedger(checks, self.streams)
        self.wals = WalLedger(checks, self.streams, bucket)
        self.compactions = CompactionLedger(checks, self.streams, self.objects, bucket)
        self.snapshots = SnapshotLedger(checks, self.objects, pinned_bytes_max)
        self.objects.before_removal = self.snapshots.require_unpinned
        self._operations: dict[tuple[int, int, int], bytes] = {}
        self._steps = CommittedSteps(destroy_delay_ms)
        self.producer_ids_end = -1
        self.records = 0

    def batch(self, batch: records.RecordBatch) -> None:
        """Check the next committed batch.

        Raises:
            InvariantBrokenError: a record breaks an invariant.
        """
        self._checks.require(
            28, batch.index == self.index + 1, f"batch {batch.index} follows batch {self.index}"
        )
        self._checks.require(
            3, batch.term >= self._term, f"batch {batch.index}: term {batch.term} follows term {self._term}"
        )
        self._checks.require(
            3,
            batch.cluster_time_ms >= self._cluster_time_ms,
            f"batch {batch.index}: the cluster time is earlier than that of the batch before",
        )
        self.index, self._term, self._cluster_time_ms = batch.index, batch.term, batch.cluster_time_ms
        destroyed: list[int] = []
        swaps = find_swaps(batch.records)
        for at, (record, caller) in enumerate(zip(batch.records, callers_of(batch.records), strict=True)):
            self.records += 1
            actor, swap = Actor(*caller) if caller else None, swaps.get(at)
            replaced = () if swap is None else self.compactions.sources_of(swap.task_id)
            place = Place(batch.index, batch.cluster_time_ms, actor, destroyed, swap, replaced)
            self._record(record, place)
        self.objects.destroyed_are_dead(destroyed)
        for step in self._steps.take(batch):
            raise InvariantBrokenError(f"the protocol rules do not allow this step: {step}")

    @property
    def steps_taken(self) -> Counter[str]:
        """Number of steps that the protocol rules allowed, by kind of record."""
        return self._steps.taken

    def _record(self, record: records.Record, place: Place) -> None:
        """Call the rules for a record: the methods of all ledgers that have the name of the record's kind."""
        kind = record.WhichOneof("kind") or ""
        parts = (self.streams, self.partitions, self.objects, self.wals, self.compactions, self.snapshots)
        for part in (self, *parts):
            rule = getattr(part, kind, None)
            if rule is not None:
                rule(getattr(record, kind), place)

    # The bucket

    def put(self, key: str) -> None:
        """Check a put to the bucket."""
        if is_slot(key):
            self.wals.put(key)

    def deleted(self, key: str) -> None:
        """Check a deletion from the bucket."""
        if is_slot(key):
            self.wals.deleted(key)
        elif not key.startswith(PREFIX):  # markers of clusters and nodes are not objects
            self.objects.deleted(key)

    # Records

    def producer_ids_allocated(self, record: records.ProducerIdsAllocated, _: Place) -> None:
        """Check a block of producer ids."""
        first = record.first_producer_id
        self._checks.require(
            20, first >= self.producer_ids_end, f"producer ids from {first} on were assigned before"
        )
        self.producer_ids_end = first + record.count

    def operation_completed(self, record: records.OperationCompleted, _: Place) -> None:
        """Check that the controllers execute an operation once, for a current process."""
        name = (record.node_id, record.node_epoch, record.request_id)
        actor = Actor(record.node_id, record.node_epoch)
        self._checks.require(
            14,
            self.streams.is_current(actor),
            f"an operation of {actor} was executed, but this process is fenced or replaced",
        )
        self._checks.require(27, name not in self._operations, f"operation {name} was executed twice")
        self._operations[name] = record.digest


def is_slot(key: str) -> bool:
    """Whether a key is a slot of a write-ahead log."""
    return "/wal/" in key
