"""Decide how to end a move that its source did not end in time, from rows and cluster time only.

| streams | condition | action |
|---|---|---|
| closed | the re-election timeout is over, or the source is lost | elect the target, or another broker if the target is lost |
| closed | the target is lost | elect another broker: the source if it is live |
| open | the target is lost | cancel the move; the source continues |
| open at the source | twice the timeout is over | fence the source node. Then the recovery of its log closes the streams. The controller does not close them at their committed ends, because acknowledged records after these would be lost |
| open at another node, or under an earlier epoch of the source | the re-election timeout is over | cancel the move: another log must be recovered first |
| open | the source is fenced | nothing: the recovery of its log (failover, or its restart) ends the move |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NODES
from ponor_metadata.nouns.topics import MOVES, MoveRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId

from ponor_controller.domains.moves import rules
from ponor_controller.shared_rules import move_records
from ponor_controller.shared_rules.placement import is_live

RETRY_MS: Final = 1_000
"""Time until the next check while no broker can lead a partition."""


class Action(Enum):
    """How the controller intervenes in a move."""

    ELECTED = "elected"
    CANCELLED = "cancelled"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Intervention:
    """An intervention that is due: its record, and the reason for logs. For FENCED the record fences the
    source.
    """

    action: Action
    move: MoveRow
    record: records_pb2.Record
    why: str


@dataclass(slots=True)
class Due:
    """Interventions that are due now, in order. `again_at_ms` is the cluster time of the next check; None: no
    check is due until the duty is woken.
    """

    interventions: list[Intervention] = field(default_factory=list)
    again_at_ms: int | None = None

    def again(self, at_ms: int) -> None:
        """Check again at `at_ms` at the latest."""
        self.again_at_ms = at_ms if self.again_at_ms is None else min(self.again_at_ms, at_ms)


def fence_at_ms(move: MoveRow) -> int:
    """The cluster time at which a source that still holds streams counts as stuck: twice the re-election
    timeout after the move began.
    """
    return 2 * move.elect_at_ms - move.begun_at_ms


def find_due(
    view: View, now_ms: int, is_suspected: Callable[[NodeId], bool], *, grace_left_ms: int = 0
) -> Due:
    """Find the interventions that are due.

    Args:
        view: the leader's view of the metadata.
        now_ms: cluster time.
        is_suspected: whether a node is silent.
        grace_left_ms: time for which no source is fenced yet, because after an election of the controllers
            every source needs time to find the leader.
    """
    cluster = cluster_of(view)
    if cluster is not None and cluster.stop_until_ms > now_ms:
        return Due(again_at_ms=cluster.stop_until_ms if len(view[MOVES]) else None)
    due = Due()
    fenced = _fence_stuck(view, now_ms, grace_left_ms, due)
    nodes = _Nodes(view, is_suspected, fenced)
    for move in view[MOVES]:
        source_lost, target_lost = nodes.is_lost(move.source_id), nodes.is_lost(move.target_id)
        if now_ms < move.elect_at_ms and not source_lost and not target_lost:
            due.again(move.elect_at_ms)
        elif rules.open_stream(view, move.topic_id, move.partition) is None:
            _elect(view, move, now_ms, nodes, due)
        elif nodes.has_no_rights(move.source_id):
            continue
        elif target_lost:
            why = f"broker {move.target_id} is fenced or suspected"
            due.interventions.append(
                Intervention(Action.CANCELLED, move, move_records.cancelled(move, why), why)
            )
        elif now_ms < move.elect_at_ms:
            due.again(move.elect_at_ms)
        elif not _holds(view, move):
            why = (
                f"broker {move.source_id} cannot open the streams before the write-ahead log of the former"
                " leader is recovered"
            )
            due.interventions.append(
                Intervention(Action.CANCELLED, move, move_records.cancelled(move, why), why)
            )
    return due


class _Nodes:
    """States of brokers during one step, each computed once."""

    def __init__(
        self, view: View, is_suspected: Callable[[NodeId], bool], fenced: dict[NodeId, None]
    ) -> None:
        self._view = view
        self._suspected = is_suspected
        self.fenced = fenced
        self._lost: dict[NodeId, bool] = {}

    def is_suspected(self, node_id: NodeId) -> bool:
        """Whether the broker is suspected, or this step fences it."""
        return node_id in self.fenced or self._suspected(node_id)

    def has_no_rights(self, node_id: NodeId) -> bool:
        """Whether the broker is fenced, or this step fences it."""
        node = self._view[NODES].get(node_id)
        return node is None or node.fenced or node_id in self.fenced

    def is_lost(self, node_id: NodeId) -> bool:
        """Whether the broker is fenced or suspected, and thus not expected to open or close partitions."""
        lost = self._lost.get(node_id)
        if lost is None:
            lost = self._lost[node_id] = not is_live(self._view[NODES].get(node_id), self.is_suspected)
        return lost


def _fence_stuck(view: View, now_ms: int, grace_left_ms: int, due: Due) -> dict[NodeId, None]:
    """Fence sources that still hold streams after `fence_at_ms`."""
    fenced: dict[NodeId, None] = {}
    for move in view[MOVES]:
        if now_ms < move.elect_at_ms or move.source_id in fenced:
            continue
        node = view[NODES].get(move.source_id)
        if node is None or node.fenced or not _holds(view, move):
            continue
        at_ms = max(fence_at_ms(move), now_ms + grace_left_ms)
        if now_ms < at_ms:
            due.again(at_ms)
            continue
        fenced[move.source_id] = None
        record = records_pb2.NodeFenced(node_id=node.node_id, node_epoch=node.node_epoch)
        why = (
            f"it still has open streams of partition {move.partition} of topic {move.topic_id.hex()}"
            f" {now_ms - move.begun_at_ms} ms after the move of the partition began"
        )
        due.interventions.append(
            Intervention(Action.FENCED, move, records_pb2.Record(node_fenced=record), why)
        )
    return fenced


def _holds(view: View, move: MoveRow) -> bool:
    node = view[NODES].get(move.source_id)
    return node is not None and rules.holds_stream(view, node, move)


def _elect(view: View, move: MoveRow, now_ms: int, nodes: _Nodes, due: Due) -> None:
    leader_id = rules.leader_to_elect(
        view, (move.target_id, move.source_id), nodes.is_suspected, without=nodes.fenced
    )
    if leader_id is None:
        due.again(now_ms + RETRY_MS)
        return
    record = move_records.elected(view, rules.moving_partition(view, move), leader_id, move.traceparent)
    if leader_id != move.target_id:
        why = f"broker {move.target_id} is fenced or suspected"
    elif nodes.is_lost(move.source_id):
        why = f"broker {move.source_id} closed the streams, and is fenced or suspected"
    else:
        why = f"broker {move.source_id} did not request the election within {now_ms - move.begun_at_ms} ms"
    due.interventions.append(Intervention(Action.ELECTED, move, record, why))
