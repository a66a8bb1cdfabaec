"""Valid reasons for fencing a broker: invariant 45.

The broker was recently paused, ended or disconnected from the controllers. Or it was the source of a move
while a fault affected its disk, its clock or the store. If a broker is fenced for no such reason, the
controller took the absence of another process for the silence of this broker.
"""

from __future__ import annotations

from collections.abc import Callable

from ponor.metadata.v1.records_pb2 import Record
from ponor_simulation.process import SimProcess

from ponor_cluster_simulation.invariants.registry import Checks

Until = Callable[[str], float]


class Fences:
    """Checks each fence of a broker when it is committed.

    Args:
        checks: counts the checks.
        now_s: virtual time.
        horizon_s: time after a fault during which a broker may still be fenced because of it.
        cut_off_until_s: returns until when a fault disconnects a process from the controllers.
        hindered_until_s: returns until when a fault affects a process's disk, its clock or the store.
    """

    def __init__(
        self,
        checks: Checks,
        now_s: Callable[[], float],
        horizon_s: float,
        cut_off_until_s: Until,
        hindered_until_s: Until,
    ) -> None:
        self._checks = checks
        self._now_s = now_s
        self._horizon_s = horizon_s
        self._cut_off_until_s = cut_off_until_s
        self._hindered_until_s = hindered_until_s
        self._registered_at_s: dict[int, float] = {}
        """By node: when its newest registration was committed."""
        self._sources: dict[tuple[bytes, int], int] = {}
        """By moving partition: its source node."""

    def committed(self, record: Record) -> None:
        """Record registrations, and the beginnings and ends of moves."""
        match record.WhichOneof("kind"):
            case "node_registered":
                self._registered_at_s[record.node_registered.node_id] = self._now_s()
            case "partition_move_begun":
                begun = record.partition_move_begun
                self._sources[begun.topic_id, begun.partition] = begun.source_id
            case "partition_move_cancelled":
                over = record.partition_move_cancelled
                self._sources.pop((over.topic_id, over.partition), None)
            case "partition_changed":
                changed = record.partition_changed
                self._sources.pop((changed.topic_id, changed.partition), None)

    def fenced(self, broker: SimProcess, node_id: int) -> None:
        """Check a fence.

        Raises:
            InvariantBrokenError: no fault is a valid reason.
        """
        since_s = self._now_s() - self._horizon_s
        was_silent = (
            broker.paused
            or not broker.running
            or broker.changed_at_s >= since_s
            # While no controller leads, a restarted broker cannot register. A fence then concerns the epoch
            # of the crashed process, however long the new process has been running.
            or broker.started_at_s > self._registered_at_s.get(node_id, 0.0)
            or self._cut_off_until_s(broker.name) >= since_s
        )
        is_stuck = node_id in self._sources.values() and self._hindered_until_s(broker.name) >= since_s
        self._checks.require(
            45,
            was_silent or is_stuck,
            f"{broker.name} was fenced, but no fault disconnected it from the controllers in the last"
            f" {self._horizon_s:g} s",
        )
