"""Leader duty: end moves that neither the source nor the target ends (see `overdue`)."""

from __future__ import annotations

import logging
from typing import Final

from ponor_metadata.nouns.topics import MOVES
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.tracing import TraceContext

from ponor_controller.domains.moves.overdue import Action, Intervention, find_due
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
"""Records after which the duty runs."""


class MoveDuty:
    """Intervenes in moves that their sources do not end in time. A `LeaderDuty` calls `step`."""

    def __init__(self, proposer: Proposer, activity: NodeActivity, telemetry: Telemetry) -> None:
        self._proposer = proposer
        self._activity = activity
        self._telemetry = telemetry
        self._counters = {
            action: telemetry.counter("ponor_controller_move_interventions_total", action=action.value)
            for action in Action
        }

    def step(self) -> float | None:
        """Propose the interventions that are due. Returns the seconds until the next step; None: only when
        woken.
        """
        view, now_ms = self._proposer.view, self._proposer.now_ms()
        if not len(view[MOVES]):
            return None
        grace_left_s = self._activity.grace_left_s()
        due = find_due(view, now_ms, self._activity.is_suspected, grace_left_ms=round(grace_left_s * 1000))
        if due.interventions:
            self._proposer.propose(
                [intervention.record for intervention in due.interventions], divisible=True
            )
            for intervention in due.interventions:
                self._report(intervention)
        waits = [] if due.again_at_ms is None else [(due.again_at_ms - now_ms) / 1000]
        nodes = (node_id for move in view[MOVES] for node_id in (move.source_id, move.target_id))
        for node_id in dict.fromkeys(nodes):
            suspected_in_s = self._activity.suspected_in_s(node_id)
            if suspected_in_s is not None:
                waits.append(suspected_in_s)
        return min(waits, default=None)

    def _report(self, intervention: Intervention) -> None:
        move, action = intervention.move, intervention.action
        self._counters[action].add()
        level = logging.WARNING if action is Action.FENCED else logging.INFO
        if action is Action.FENCED:
            LOG.log(level, "fenced node %d: %s", move.source_id, intervention.why)
        else:
            leader_id = (
                intervention.record.partition_changed.leader_id
                if action is Action.ELECTED
                else move.source_id
            )
            LOG.log(
                level,
                "move of partition %d of topic %s from broker %d to %d: %s, because %s; broker %d is the"
                " leader",
                move.partition,
                move.topic_id.hex(),
                move.source_id,
                move.target_id,
                action.value,
                intervention.why,
                leader_id,
            )
        self._trace(intervention)

    def _trace(self, intervention: Intervention) -> None:
        """Add a span to the trace of the move; the span ends with the commit."""
        tracing, parent = self._telemetry.tracing, TraceContext.parse(intervention.move.traceparent)
        if tracing is None or parent is None:
            return
        attributes = {"ponor.move.action": intervention.action.value, "ponor.move.why": intervention.why}
        span = tracing.begin("ponor.controller.move", attributes, parent=parent)
        if span is not None:
            self._proposer.commits.when_reached(
                self._proposer.last_index,
                lambda span: span.end(),
                lambda span, error: span.end(error=type(error).__name__),
                span,
            )
