"""Leader duty: begin the moves of partitions that leave draining brokers, wave by wave.

The size of a wave is bounded, so that the source closes these partitions before more moves begin. New moves
begin only when at least half of the wave has ended, so that the source can close many partitions together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NODES, NodeRow
from ponor_metadata.nouns.topics import (
    MOVES,
    MOVES_FROM,
    PARTITIONS,
    PARTITIONS_LED_BY,
    MoveCause,
    PartitionRow,
)
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId
from ponor_runtime.telemetry import Telemetry

from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.settings import ControllerSettings
from ponor_controller.shared_rules import move_records
from ponor_controller.shared_rules.move_records import current_traceparent
from ponor_controller.shared_rules.placement import candidates, led_counts, spread

LOG: Final = logging.getLogger("ponor.controller")
WAKING: Final = (
    "node_drain_set",
    "node_registered",
    "node_fenced",
    "partition_changed",
    "partition_move_cancelled",
    "cluster_stop_announced",
)
"""Records after which the duty runs."""
RETRY_S: Final = 1.0
"""Seconds until the next step while no broker can take partitions."""


class DrainDuty:
    """Begins moves; `LeaderDuty` runs its steps."""

    def __init__(
        self, proposer: Proposer, activity: NodeActivity, settings: ControllerSettings, telemetry: Telemetry
    ) -> None:
        self._proposer = proposer
        self._activity = activity
        self._settings = settings
        self._telemetry = telemetry
        self._moves = telemetry.counter("ponor_controller_drain_moves_total")
        self._begun_at_ms: dict[tuple[bytes, int], int] = {}
        """Partitions whose moves this leader began recently, the oldest first. They limit the rate of retries
        after cancelled moves. The list is not replicated, so a new leader may retry a move too early once.
        """

    def step(self) -> float | None:
        """Begin the next wave of each draining broker. Returns the seconds until the next step while a broker
        drains.
        """
        view, now_ms = self._proposer.view, self._proposer.now_ms()
        self._drop_before(now_ms - self._settings.drain_retry_ms)
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
        LOG.info("draining broker %d: moving %d partitions", source_id, len(wave))
        with self._telemetry.span("ponor.controller.drain", {"ponor.node.id": source_id}):
            traceparent = current_traceparent(self._telemetry)
            records = [
                move_records.begun(
                    partition,
                    target_id,
                    now_ms=now_ms,
                    elect_at_ms=move_records.elect_at_ms(view, source_id, now_ms, settings, also=number),
                    cause=MoveCause.DRAIN,
                    reason=f"broker {source_id} is draining",
                    traceparent=traceparent,
                )
                for number, (partition, target_id) in enumerate(wave)
            ]
            self._proposer.propose(records, divisible=True)
        self._moves.add(len(records))
        for partition, _ in wave:
            self._begun_at_ms[(partition.topic_id, partition.partition)] = now_ms

    def _may_move(self, partition: PartitionRow) -> bool:
        """Whether the pause after the partition's last move began is over. The reason for a cancellation
        usually persists for a while, so a partition is not tried again at once.
        """
        return (partition.topic_id, partition.partition) not in self._begun_at_ms

    def _drop_before(self, at_ms: int) -> None:
        while self._begun_at_ms:
            oldest = next(iter(self._begun_at_ms))
            if self._begun_at_ms[oldest] > at_ms:
                return
            del self._begun_at_ms[oldest]


def draining_brokers(view: View) -> list[NodeRow]:
    """Draining brokers that still lead partitions, by node id."""
    return [
        row
        for row in view[NODES]
        if row.draining and not row.fenced and view[PARTITIONS].find(PARTITIONS_LED_BY, row.node_id)
    ]


def next_wave(
    view: View,
    source_id: NodeId,
    counts: dict[NodeId, int],
    in_flight_max: int,
    may_move: Callable[[PartitionRow], bool],
) -> list[tuple[PartitionRow, NodeId]]:
    """Return the partitions whose moves should begin now, with their targets.

    Args:
        view: the leader's view of the metadata.
        source_id: the draining broker.
        counts: number of partitions of each possible target after all present moves; this function adds the
            new moves.
        in_flight_max: bound of moves in progress from one source.
        may_move: whether a partition may be moved now; False shortly after its last move began.
    """
    under_way = len(view[MOVES].find(MOVES_FROM, source_id))
    if 2 * under_way > in_flight_max:
        return []
    chosen: list[PartitionRow] = []
    for partition in view[PARTITIONS].find(PARTITIONS_LED_BY, source_id):
        if len(chosen) == in_flight_max - under_way:
            break
        if (partition.topic_id, partition.partition) not in view[MOVES] and may_move(partition):
            chosen.append(partition)
    targets: Sequence[NodeId] = spread(counts, len(chosen))
    for target_id in targets:
        counts[target_id] += 1
    return list(zip(chosen, targets, strict=True))
