"""The ledger: checks every committed batch once, in order, against all earlier ones.

`cluster_watch` reports the batches, and the bucket reports puts and deletions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_metadata.client.store_marker import PREFIX
from ponor_simulation.object_store import SimBucket

from ponor_cluster_simulation.invariants.compaction_ledger import CompactionLedger, SnapshotLedger
from ponor_cluster_simulation.invariants.object_ledger import ObjectLedger
from ponor_cluster_simulation.invariants.partition_ledger import PartitionLedger
from ponor_cluster_simulation.invariants.registry import Checks, InvariantBrokenError
from ponor_cluster_simulation.invariants.stream_ledger import Actor, StreamLedger
from ponor_cluster_simulation.invariants.wal_ledger import WalLedger
from ponor_cluster_simulation.protocols.committed_steps import CommittedSteps
from ponor_cluster_simulation.protocols.compaction_steps import Swap, find_swaps

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
PARTITION_KINDS: Final = frozenset(
    {
        "topic_created",
        "topic_deleted",
        "key_put",
        "partition_changed",
        "partition_move_begun",
        "partition_move_cancelled",
        "stream_created",
        "stream_opened",
    }
)
"""Records whose rule is the partition ledger's method of the same name; it runs after the stream
ledger's.
"""


class _Place(NamedTuple):
    """The context of a record: the process of its operation, the objects destroyed in its batch,
    and its swap.
    """

    actor: Actor | None
    destroyed: list[int]
    swap: Swap | None


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
        self.objects.index = batch.index
        destroyed: list[int] = []
        swaps = find_swaps(batch.records)
        for at, (record, actor) in enumerate(zip(batch.records, _actors(batch), strict=True)):
            self.records += 1
            self._record(record, _Place(actor, destroyed, swaps.get(at)))
        self.objects.destroyed_are_dead(destroyed)
        for step in self._steps.take(batch):
            raise InvariantBrokenError(f"the protocol rules do not allow this step: {step}")

    @property
    def steps_taken(self) -> Counter[str]:
        """Number of steps that the protocol rules allowed, by kind of record."""
        return self._steps.taken

    def _record(self, record: records.Record, place: _Place) -> None:
        kind = record.WhichOneof("kind")
        if kind in STREAM_KINDS:
            getattr(self.streams, kind)(getattr(record, kind))
        if kind in PARTITION_KINDS:
            getattr(self.partitions, kind)(getattr(record, kind))
        rule = _RULES.get(kind or "")
        if rule is not None:
            rule(self, record, place)

    # Records whose rule needs more than the record

    def _stream_object(self, record: records.Record, place: _Place) -> None:
        replaces = place.swap is not None
        self.objects.stream_object_committed(record.stream_object_committed, place.actor, replaces=replaces)

    def _stream_set_object(self, record: records.Record, place: _Place) -> None:
        committed, replaces = record.stream_set_object_committed, place.swap is not None
        self.objects.stream_set_object_committed(committed, place.actor, replaces=replaces)

    def _destroyed(self, record: records.Record, place: _Place) -> None:
        """Check destroyed objects; outputs replace the live data of the sources of a swap."""
        task = None if place.swap is None else self.compactions.tasks.get(place.swap.task_id)
        replaced = () if task is None else task.sources
        destroyed = self.objects.objects_destroyed(record.objects_destroyed)
        place.destroyed.extend(each for each in destroyed if each not in replaced)

    def _compaction_ended(self, record: records.Record, place: _Place) -> None:
        self.compactions.compaction_ended(record.compaction_ended, place.actor, place.swap, self.index)

    def _claimed(self, record: records.Record, *_: object) -> None:
        self.objects.objects_claimed(record.objects_claimed, self._cluster_time_ms)

    def _snapshot_renewed(self, record: records.Record, *_: object) -> None:
        self.snapshots.snapshot_renewed(record.snapshot_renewed, self._cluster_time_ms)

    def _snapshot_released(self, record: records.Record, *_: object) -> None:
        self.snapshots.snapshot_released(record.snapshot_released, self._cluster_time_ms)

    def _formatted(self, record: records.Record, *_: object) -> None:
        self.wals.namespace = record.cluster_formatted.namespace

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

    def _producer_ids(self, of: records.Record, *_: object) -> None:
        record = of.producer_ids_allocated
        first = record.first_producer_id
        self._checks.require(
            20, first >= self.producer_ids_end, f"producer ids from {first} on were given before"
        )
        self.producer_ids_end = first + record.count

    def _operation(self, of: records.Record, *_: object) -> None:
        record = of.operation_completed
        name = (record.node_id, record.node_epoch, record.request_id)
        actor = Actor(record.node_id, record.node_epoch)
        self._checks.require(
            14, self.streams.is_current(actor), f"an operation of {actor}, which is not current"
        )
        self._checks.require(27, name not in self._operations, f"operation {name} happened twice")
        self._operations[name] = record.digest


_RULES: Final[dict[str, Callable[[Ledger, records.Record, _Place], None]]] = {
    "cluster_formatted": Ledger._formatted,  # noqa: SLF001 - the class's own table
    "objects_prepared": lambda ledger, record, *_: ledger.objects.objects_prepared(record.objects_prepared),
    "stream_object_committed": Ledger._stream_object,  # noqa: SLF001
    "stream_set_object_committed": Ledger._stream_set_object,  # noqa: SLF001
    "objects_destroyed": Ledger._destroyed,  # noqa: SLF001
    "objects_claimed": Ledger._claimed,  # noqa: SLF001
    "compaction_leased": lambda ledger, record, _: ledger.compactions.compaction_leased(
        record.compaction_leased
    ),
    "compaction_ended": Ledger._compaction_ended,  # noqa: SLF001
    "snapshot_leased": lambda ledger, record, _: ledger.snapshots.snapshot_leased(record.snapshot_leased),
    "snapshot_renewed": Ledger._snapshot_renewed,  # noqa: SLF001
    "snapshot_released": Ledger._snapshot_released,  # noqa: SLF001
    "objects_removed": lambda ledger, record, *_: ledger.objects.objects_removed(record.objects_removed),
    "producer_ids_allocated": Ledger._producer_ids,  # noqa: SLF001
    "operation_completed": Ledger._operation,  # noqa: SLF001
    "wal_opened": lambda ledger, record, *_: ledger.wals.wal_opened(record.wal_opened),
    "wal_recovery_assigned": lambda ledger, record, *_: ledger.wals.wal_recovery_assigned(
        record.wal_recovery_assigned
    ),
    "wal_trimmed": lambda ledger, record, *_: ledger.wals.wal_trimmed(record.wal_trimmed),
    "wal_closed": lambda ledger, record, *_: ledger.wals.wal_closed(record.wal_closed),
}
"""By kind of record; kinds without an entry concern no invariant."""


def is_slot(key: str) -> bool:
    """Whether a key is a slot of a write-ahead log."""
    return "/wal/" in key


def _actors(batch: records.RecordBatch) -> list[Actor | None]:
    """The process of the operation of each record: that of the next OperationCompleted in the
    batch.
    """
    actors: list[Actor | None] = []
    actor: Actor | None = None
    for record in reversed(batch.records):
        if record.WhichOneof("kind") == "operation_completed":
            actor = Actor(record.operation_completed.node_id, record.operation_completed.node_epoch)
        actors.append(actor)
    return actors[::-1]
