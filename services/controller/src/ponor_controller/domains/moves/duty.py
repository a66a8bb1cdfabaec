"""The leader's duty towards moves: that each of them ends, whatever becomes of its source and its target.

What lives here: carrying out what is due, telling of it, and when to look again. Everything that is decided comes from rows and cluster time (`overdue`); a new leader takes it up
where it finds it.
"""

from __future__ import annotations

import logging
from typing import Final

from ponor_metadata.nouns.topics import MOVES
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.tracing import TraceContext

from ponor_controller.domains.moves.overdue import Action, Deed, find_due
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.proposer import Proposer

LOG: Final = logging.getLogger("ponor.controller")
WAKING: Final = (
    "partition_move_begun",
    "stream_closed",
    "node_fenced",
    "node_registered",
    "cluster_stop_announced",
)
"""Records after which something may be due."""


class MoveDriver:
    """A step of a `LeaderDuty`."""

    def __init__(self, proposer: Proposer, activity: NodeActivity, telemetry: Telemetry) -> None:
        self._proposer = proposer
        self._activity = activity
        self._telemetry = telemetry
        self._counters = {
            action: telemetry.counter("ponor_controller_move_interventions_total", action=action.value)
            for action in Action
        }

    def step(self) -> float | None:
        """Do what is due. Seconds until the next look, while anything moves."""
        view, now_ms = self._proposer.view, self._proposer.now_ms()
        if not len(view[MOVES]):
            return None
        settled_in_s = self._activity.settled_in_s()
        due = find_due(view, now_ms, self._activity.is_suspected, settled_in_ms=round(settled_in_s * 1000))
        if due.deeds:
            self._proposer.propose([deed.record for deed in due.deeds], divisible=True)
            for deed in due.deeds:
                self._tell(deed)
        waits = [] if due.again_at_ms is None else [(due.again_at_ms - now_ms) / 1000]
        nodes = (node_id for move in view[MOVES] for node_id in (move.source_id, move.target_id))
        for node_id in dict.fromkeys(nodes):
            suspected_in_s = self._activity.suspected_in_s(node_id)
            if suspected_in_s is not None:
                waits.append(suspected_in_s)
        return min(waits, default=None)

    def _tell(self, deed: Deed) -> None:
        move, action = deed.move, deed.action
        self._counters[action].add()
        level = logging.WARNING if action is Action.FENCED else logging.INFO
        if action is Action.FENCED:
            LOG.log(level, "node %d is fenced: %s", move.source_id, deed.why)
        else:
            leader_id = (
                deed.record.partition_changed.leader_id if action is Action.ELECTED else move.source_id
            )
            LOG.log(
                level,
                "partition %d of topic %s from broker %d to %d: %s, broker %d leads it: %s",
                move.partition,
                move.topic_id.hex(),
                move.source_id,
                move.target_id,
                action.value,
                leader_id,
                deed.why,
            )
        self._trace(deed)

    def _trace(self, deed: Deed) -> None:
        """The step that the source should have taken, in the trace of the move; it ends once it is committed."""
        tracing, parent = self._telemetry.tracing, TraceContext.parse(deed.move.traceparent)
        if tracing is None or parent is None:
            return
        attributes = {"ponor.move.action": deed.action.value, "ponor.move.why": deed.why}
        span = tracing.begin("ponor.controller.move", attributes, parent=parent)
        if span is not None:
            self._proposer.when_committed(
                self._proposer.last_index,
                lambda span: span.end(),
                lambda span, error: span.end(error=type(error).__name__),
                span,
            )
