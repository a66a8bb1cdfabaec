"""The ledger: follows every committed batch once, in order, and holds each record against all that was before.

What lives here: from a batch to the pages, and which operations happened. It is told of batches by `cluster_watch`, and of deletions by the bucket.
"""

from __future__ import annotations

from typing import Final

from ponor.metadata.v1 import records_pb2 as records

from ponor_simulation.invariants.object_ledger import ObjectLedger
from ponor_simulation.invariants.registry import Checks, InvariantBrokenError
from ponor_simulation.invariants.stream_ledger import Actor, StreamLedger
from ponor_simulation.object_store import SimBucket
from ponor_simulation.protocols.committed_steps import CommittedSteps

STREAM_KINDS: Final = frozenset(
    {
        "node_registered",
        "node_fenced",
        "stream_created",
        "stream_opened",
        "stream_closed",
        "stream_trimmed",
        "stream_deleted",
    }
)
"""Records whose rule is the stream ledger's method of the same name."""


class Ledger:
    """See the module's docstring.

    Attributes:
        index: of the newest batch that it saw.
        records: how many it saw.
    """

    def __init__(self, checks: Checks, bucket: SimBucket | None, destroy_delay_ms: int) -> None:
        self._checks = checks
        self.index = 0
        self._cluster_time_ms = 0
        self._term = 0
        self.streams = StreamLedger(checks)
        self.objects = ObjectLedger(checks, self.streams, bucket, destroy_delay_ms)
        self._operations: dict[tuple[int, int, int], bytes] = {}
        self._steps = CommittedSteps(destroy_delay_ms)
        self.producer_ids_end = -1
        self.records = 0

    def batch(self, batch: records.RecordBatch) -> None:
        """The next committed batch.

        Raises:
            InvariantBrokenError: it breaks one.
        """
        self._checks.require(28, batch.index == self.index + 1, f"index {batch.index} after {self.index}")
        self._checks.require(
            3, batch.term >= self._term, f"index {batch.index}: term {batch.term} after {self._term}"
        )
        self._checks.require(
            3,
            batch.cluster_time_ms >= self._cluster_time_ms,
            f"index {batch.index}: the cluster clock went back",
        )
        self.index, self._term, self._cluster_time_ms = batch.index, batch.term, batch.cluster_time_ms
        destroyed: list[int] = []
        for record, actor in zip(batch.records, _actors(batch), strict=True):
            self.records += 1
            self._record(record, actor, destroyed)
        self.objects.destroyed_are_dead(destroyed)
        for step in self._steps.take(batch):
            raise InvariantBrokenError(f"the models of the protocols do not allow this step: {step}")

    def _record(self, record: records.Record, actor: Actor | None, destroyed: list[int]) -> None:
        kind = record.WhichOneof("kind")
        if kind in STREAM_KINDS:
            getattr(self.streams, kind)(getattr(record, kind))
            return
        match kind:
            case "objects_prepared":
                self.objects.objects_prepared(record.objects_prepared)
            case "stream_object_committed":
                self.objects.stream_object_committed(record.stream_object_committed, actor)
            case "stream_set_object_committed":
                self.objects.stream_set_object_committed(record.stream_set_object_committed, actor)
            case "objects_destroyed":
                destroyed += self.objects.objects_destroyed(record.objects_destroyed)
            case "objects_claimed":
                self.objects.objects_claimed(record.objects_claimed, self._cluster_time_ms)
            case "objects_removed":
                self.objects.objects_removed(record.objects_removed)
            case "producer_ids_allocated":
                self._producer_ids(record.producer_ids_allocated)
            case "operation_completed":
                self._operation(record.operation_completed)
            case _:
                pass  # holds nothing that these invariants speak of

    def _producer_ids(self, record: records.ProducerIdsAllocated) -> None:
        first = record.first_producer_id
        self._checks.require(
            20, first >= self.producer_ids_end, f"producer ids from {first} on were given before"
        )
        self.producer_ids_end = first + record.count

    def _operation(self, record: records.OperationCompleted) -> None:
        name = (record.node_id, record.node_epoch, record.request_id)
        actor = Actor(record.node_id, record.node_epoch)
        self._checks.require(
            14, self.streams.is_current(actor), f"an operation of {actor}, which is not current"
        )
        self._checks.require(27, name not in self._operations, f"operation {name} happened twice")
        self._operations[name] = record.digest


def _actors(batch: records.RecordBatch) -> list[Actor | None]:
    """Whose operation each record belongs to: the one that is completed next. Several operations may share a batch."""
    actors: list[Actor | None] = []
    actor: Actor | None = None
    for record in reversed(batch.records):
        if record.WhichOneof("kind") == "operation_completed":
            actor = Actor(record.operation_completed.node_id, record.operation_completed.node_epoch)
        actors.append(actor)
    return actors[::-1]
