"""Checks the committed records of compactions and snapshot leases; a part of `committed_steps`.

Records do not contain the token of a commit; only the exhaustive search checks the rules that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ponor.metadata.v1 import records_pb2 as records

from ponor_cluster_simulation.protocols import compactions
from ponor_cluster_simulation.protocols.compactions import Held, StartOf, Task
from ponor_cluster_simulation.protocols.streams import NotAllowedError

COMMITS: Final = ("stream_object_committed", "stream_set_object_committed")


@dataclass(frozen=True, slots=True)
class Swap:
    """The swap of one task.

    Attributes:
        destroyed: the remaining sources, and unneeded outputs.
        outputs: the committed objects.
    """

    task_id: int
    destroyed: tuple[int, ...]
    outputs: tuple[int, ...]


def find_swaps(batch: Sequence[records.Record]) -> dict[int, Swap]:
    """Map the position of each record of a swap to the swap."""
    found: dict[int, Swap] = {}
    for at, record in enumerate(batch):
        if record.WhichOneof("kind") != "compaction_ended":
            continue
        destroyed: list[int] = []
        outputs: list[int] = []
        first = at
        while first > 0 and batch[first - 1].WhichOneof("kind") in COMMITS:
            first -= 1
            kind = batch[first].WhichOneof("kind")
            outputs.append(getattr(batch[first], str(kind)).object_id)
        while first > 0 and batch[first - 1].WhichOneof("kind") == "objects_destroyed":
            first -= 1
            destroyed.extend(batch[first].objects_destroyed.object_ids)
        if first < at:
            swap = Swap(record.compaction_ended.task_id, tuple(destroyed), tuple(outputs))
            found.update(dict.fromkeys(range(first, at + 1), swap))
    return found


Caller = tuple[int, int]


@dataclass(slots=True)
class CompactionSteps:
    """The protocol's state of compactions after the batches so far."""

    _tasks: dict[int, Task] = field(default_factory=dict)
    _node_of_task: dict[int, int] = field(default_factory=dict)
    _held: dict[int, tuple[Held, ...]] = field(default_factory=dict)
    _leases: dict[int, int] = field(default_factory=dict)
    """Snapshot lease to its start."""

    def holds(self, object_id: int, held: Sequence[Held]) -> None:
        """Record the contents of an object that is being committed."""
        self._held[object_id] = tuple(held)

    def require_node(self, swap: Swap, node: int) -> None:
        """Check that a stream set object belongs to the node of its sources."""
        if self._node_of_task.get(swap.task_id) != node:
            raise NotAllowedError(f"an object of node {node} replaces objects of another node")

    def leased(
        self,
        record: records.CompactionLeased,
        caller: Caller | None,
        now: int,
        is_current: Callable[[Caller], bool],
    ) -> None:
        """Check a lease of a task."""
        worker = (record.worker_id, record.worker_epoch)
        if caller not in {None, worker}:
            raise NotAllowedError(f"{caller} requests the lease of compaction {record.task_id} for {worker}")
        task = Task(tuple(record.source_ids), worker, record.token, record.leased_until_ms)
        known = self._tasks.get(record.task_id)
        others = (each for name, each in self._tasks.items() if name != record.task_id)
        self._tasks[record.task_id] = compactions.leased(
            known,
            task,
            now,
            taken=[source for each in others for source in each.sources],
            worker_is_over=known is not None and not is_current(known.worker),
        )
        self._node_of_task[record.task_id] = record.node_id

    def renewed(self, record: records.CompactionRenewed, caller: Caller | None) -> None:
        """Check a renewal."""
        task = self._tasks.get(record.task_id)
        compactions.swapped(task, caller, None)
        assert task is not None
        if record.leased_until_ms <= task.leased_until:
            raise NotAllowedError(
                f"a renewal changes the end of a lease from {task.leased_until} to {record.leased_until_ms}"
            )
        self._tasks[record.task_id] = task._replace(leased_until=record.leased_until_ms)

    def ended(
        self,
        record: records.CompactionEnded,
        caller: Caller | None,
        swap: Swap | None,
        start_of: StartOf,
        is_committed: Callable[[int], bool],
    ) -> None:
        """Check the end of a task; with a swap its outputs replace its sources."""
        task = self._tasks.pop(record.task_id, None)
        self._node_of_task.pop(record.task_id, None)
        if task is None:
            raise NotAllowedError(f"compaction {record.task_id} ends twice")
        if swap is None:
            return
        compactions.swapped(task, caller, None)
        left = [source for source in task.sources if is_committed(source)]
        if left:
            raise NotAllowedError(
                f"compaction {record.task_id} replaced the objects {left}, but they are still committed"
            )
        replaced = [source for source in task.sources if source in swap.destroyed]
        compactions.covered(
            [held for source in replaced for held in self._held.get(source, ())],
            [held for output in swap.outputs for held in self._held.get(output, ())],
            start_of,
            all_known=len(replaced) == len(task.sources),
        )

    def snapshot_leased(self, record: records.SnapshotLeased) -> None:
        """Record a snapshot lease."""
        self._leases[record.lease_id] = record.begun_at_ms

    def snapshot_released(self, record: records.SnapshotReleased) -> None:
        """Check the end of a snapshot lease."""
        if self._leases.pop(record.lease_id, None) is None:
            raise NotAllowedError(f"lease {record.lease_id} ends twice")

    def require_unpinned(self, object_id: int, destroyed_at: int) -> None:
        """Check that no lease keeps an object that is claimed."""
        if object_id in self._held:
            compactions.require_unpinned(destroyed_at, self._leases.values())
