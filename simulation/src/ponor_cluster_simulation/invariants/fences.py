"""Which fences of brokers are legal: the broker itself was paused, ended or cut off from the controllers shortly before, or it was hindered and did not give up in time what was moved away from it.

A broker that no such fault touched lived and spoke. If it is fenced, somebody took the absence of another process for its silence. A slow disk, a slow store and a wrong clock silence nobody; they only
explain why the source of a move did not close its streams in time.
"""

from __future__ import annotations

from collections.abc import Callable

from ponor.metadata.v1.records_pb2 import Record
from ponor_simulation.process import SimProcess

from ponor_cluster_simulation.invariants.registry import Checks

Until = Callable[[str], float]


class Fences:
    """Looks at each fence of a broker when it is committed.

    Args:
        checks: counts looks.
        now_s: virtual time.
        horizon_s: for how long a fault of a broker may lead to its fence after it is over.
        cut_off_until_s: by the name of a process, until when a fault keeps it from the controllers.
        hindered_until_s: by the name of a process, until when a fault touches its disk, its clock or the store.
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
        self._sources: dict[tuple[bytes, int], int] = {}
        """By partition that is on its way: the node that is to give it up."""

    def committed(self, record: Record) -> None:
        """A record was committed: moves begin and end."""
        match record.WhichOneof("kind"):
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
        """A broker lost its rights.

        Raises:
            InvariantBrokenError: no fault is a reason for it.
        """
        since_s = self._now_s() - self._horizon_s
        was_silent = (
            broker.paused
            or not broker.running
            or broker.changed_at_s >= since_s
            or self._cut_off_until_s(broker.name) >= since_s
        )
        is_stuck = node_id in self._sources.values() and self._hindered_until_s(broker.name) >= since_s
        self._checks.require(
            45,
            was_silent or is_stuck,
            f"{broker.name} is fenced, and nothing kept it from the controllers in {self._horizon_s:g} s",
        )
