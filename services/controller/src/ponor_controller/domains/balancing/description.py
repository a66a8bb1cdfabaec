"""Describe the balance, the plan and recent moves for operators' tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ponor.controller.v1 import cluster_service_pb2 as wire
from ponor_metadata.nouns.nodes import NODES

from ponor_controller.domains.balancing.brokers_wanted import load_of
from ponor_controller.domains.balancing.cluster_load import BrokerStanding, ClusterLoad, Sources
from ponor_controller.domains.balancing.goals import Goal
from ponor_controller.domains.balancing.planner import Plan, PlannedMove
from ponor_controller.domains.balancing.recent_moves import BegunMove

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1


def described(
    cluster_load: ClusterLoad,
    goals: Sequence[Goal],
    planned: Plan,
    sources: Sources,
    *,
    paused: bool,
    waiting_for: str,
    brokers_wanted: int,
) -> wire.BalanceDescription:
    """The description; its `proposed` field contains the moves that would begin next if nothing prevented
    them.
    """
    description = wire.BalanceDescription(paused=paused, brokers_wanted=min(brokers_wanted, INT32_MAX))
    for broker in sorted((*cluster_load.brokers, *cluster_load.others), key=lambda each: each.node_id):
        description.brokers.append(_broker(broker, goals, sources))
    description.proposed.extend(_proposed(move) for move in planned.moves)
    description.recent.extend(_recent(move) for move in sources.recent.begun_moves)
    reasons = (waiting_for, planned.holding_back, *_starting(cluster_load, sources))
    description.holding_back = "; ".join(why for why in reasons if why)
    return description


def _starting(cluster_load: ClusterLoad, sources: Sources) -> Iterator[str]:
    for broker in cluster_load.others:
        node = sources.view[NODES].get(broker.node_id)
        if node is not None and not node.draining:
            yield f"broker {broker.node_id} is still starting"


def _broker(broker: BrokerStanding, goals: Sequence[Goal], sources: Sources) -> wire.BrokerBalance:
    node = sources.view[NODES].get(broker.node_id)
    return wire.BrokerBalance(
        node_id=broker.node_id,
        partitions=broker.partitions,
        in_bytes_per_s=min(round(broker.traffic.in_bytes_per_s), INT64_MAX),
        out_bytes_per_s=min(round(broker.traffic.out_bytes_per_s), INT64_MAX),
        load_permille=min(round(1000 * load_of(broker, goals)), INT32_MAX),
        draining=node is not None and node.draining,
        reported_ms_ago=broker.reported_ms_ago,
    )


def _proposed(move: PlannedMove) -> wire.ExplainedMove:
    return wire.ExplainedMove(
        topic=move.partition.topic,
        partition=move.partition.key[1],
        source_id=move.partition.source_id,
        target_id=move.target_id,
        goal=move.goal,
        reason=move.reason,
    )


def _recent(move: BegunMove) -> wire.ExplainedMove:
    return wire.ExplainedMove(
        topic=move.topic,
        partition=move.partition,
        source_id=move.source_id,
        target_id=move.target_id,
        goal=move.goal,
        reason=move.reason,
        begun_at_ms=move.begun_at_ms,
    )
