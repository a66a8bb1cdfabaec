"""The leader's duty towards brokers that drain: that partitions leave them until none is left.

What lives here: beginning the moves of each wave. That a move ends is the business of `moves`; that the broker stops once it has nothing left, its own.
"""

from __future__ import annotations

import logging
from typing import Final

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.topics import MoveCause, PartitionRow
from ponor_runtime.identity import NodeId
from ponor_runtime.telemetry import Telemetry

from ponor_controller.domains.nodes.drain_waves import draining_brokers, next_wave
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.settings import ControllerSettings
from ponor_controller.shared_rules import move_records as changes
from ponor_controller.shared_rules.placement import candidates, led_counts

LOG: Final = logging.getLogger("ponor.controller")
WAKING: Final = (
    "node_drain_set",
    "node_registered",
    "node_fenced",
    "partition_changed",
    "partition_move_cancelled",
    "cluster_stop_announced",
)
"""Records after which more may move."""
RETRY_S: Final = 1.0
"""While nobody can take what a broker has: until the next look, beside what happens meanwhile."""


class DrainDriver:
    """A step of a `LeaderDuty`."""

    def __init__(
        self,
        proposer: Proposer,
        activity: NodeActivity,
        settings: ControllerSettings,
        telemetry: Telemetry,
    ) -> None:
        self._proposer = proposer
        self._activity = activity
        self._settings = settings
        self._telemetry = telemetry
        self._moves = telemetry.counter("ponor_controller_drain_moves_total")
        self._begun_at_ms: dict[tuple[bytes, int], int] = {}
        """Partitions whose moves this leader began lately, the oldest first. Only to pace what is cancelled again and again: a leader that does not know it tries once too early."""

    def step(self) -> float | None:
        """Begin what may begin now. Seconds until the next look, while a broker drains."""
        view, now_ms = self._proposer.view, self._proposer.now_ms()
        self._forget_before(now_ms - self._settings.drain_retry_ms)
        cluster = cluster_of(view)
        sources = draining_brokers(view)
        if not sources:
            return None
        if cluster is not None and cluster.stop_until_ms > now_ms:
            return (cluster.stop_until_ms - now_ms) / 1000
        counts = led_counts(view, candidates(view, self._activity.is_suspected))
        if not counts:
            return RETRY_S
        for source in sources:
            if not self._activity.is_suspected(source.node_id):
                self._begin_wave(source.node_id, counts, now_ms)
        return max(RETRY_S, self._settings.drain_retry_ms / 1000)

    def _begin_wave(self, source_id: NodeId, counts: dict[NodeId, int], now_ms: int) -> None:
        view, settings = self._proposer.view, self._settings
        wave = next_wave(view, source_id, counts, settings.drain_moves_in_flight_max, self._may_move)
        if not wave:
            return
        LOG.info("broker %d drains: %d partitions begin to move", source_id, len(wave))
        with self._telemetry.span("ponor.controller.drain", {"ponor.node.id": source_id}):
            tracing = self._telemetry.tracing
            context = None if tracing is None else tracing.current()
            traceparent = "" if context is None else context.traceparent
            records: list[records_pb2.Record] = []
            for partition, target_id in wave:
                elect_at_ms = changes.elect_at_ms(view, source_id, now_ms, settings, also=len(records))
                records.append(
                    changes.begun(
                        partition,
                        target_id,
                        now_ms=now_ms,
                        elect_at_ms=elect_at_ms,
                        cause=MoveCause.DRAIN,
                        reason=f"broker {source_id} drains",
                        traceparent=traceparent,
                    )
                )
            self._proposer.propose(records, divisible=True)
        self._moves.add(len(records))
        for partition, _ in wave:
            self._begun_at_ms[(partition.topic_id, partition.partition)] = now_ms

    def _may_move(self, partition: PartitionRow) -> bool:
        """Not again at once: whoever cancelled its move had a reason that lasts."""
        return (partition.topic_id, partition.partition) not in self._begun_at_ms

    def _forget_before(self, at_ms: int) -> None:
        while self._begun_at_ms:
            oldest = next(iter(self._begun_at_ms))
            if self._begun_at_ms[oldest] > at_ms:
                return
            del self._begun_at_ms[oldest]
