"""Leader duty: compare the brokers' loads and begin the moves that the planner proposes.

`cluster_load` and `planner` are pure functions. The state that a new leader needs is in rows: moves in
progress, and whether the balancer is paused.

Only the leader exports values of the gauges `ponor_broker_load` and `ponor_brokers_wanted`. Other controllers
export 0, so take the maximum over all controllers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ponor.controller.v1 import cluster_service_pb2 as cluster_wire
from ponor.controller.v1 import session_service_pb2 as session_wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NO_NODE, NODES, NodeRole, WalKind
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, PARTITIONS_LED_BY, MoveCause
from ponor_metadata.nouns.wals import WALS
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId
from ponor_runtime.telemetry import Telemetry

from ponor_controller.consensus.ports import LogEntry
from ponor_controller.domains.balancing.brokers_wanted import BrokersWanted, brokers_needed, load_of
from ponor_controller.domains.balancing.cluster_load import BrokerStanding, ClusterLoad, Sources, measure_load
from ponor_controller.domains.balancing.description import described
from ponor_controller.domains.balancing.goals import Goal, goals_of
from ponor_controller.domains.balancing.loads import LoadBook
from ponor_controller.domains.balancing.planner import Limits, Plan, PlannedMove, is_uneven, plan
from ponor_controller.domains.balancing.recent_moves import BegunMove, RecentMoves
from ponor_controller.kernel.leading import Leading
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.settings import BalanceSettings, ControllerSettings
from ponor_controller.shared_rules import move_records
from ponor_controller.shared_rules.move_records import current_traceparent

LOG: Final = logging.getLogger("ponor.controller")
WAKING: Final = ("node_registered", "wal_opened", "balancer_paused")
"""Kinds of records after which the duty runs at once. Other changes are handled at the next periodic step."""
WARM_UP_NS: Final = 5_000_000_000
"""Time after its election in which a new leader begins no moves, so that brokers can reconnect and report."""
MOVE_BEGUN_TAG: Final = b"\xba\x03"
"""First bytes of every encoded PartitionMoveBegun (field 55). A batch without these bytes contains none."""


class Balancer:
    """A step of a `LeaderDuty`."""

    def __init__(
        self,
        proposer: Proposer,
        leading: Leading,
        activity: NodeActivity,
        settings: ControllerSettings,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._proposer = proposer
        self._leading = leading
        self._activity = activity
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        balance = settings.balance
        self._goals = goals_of(balance)
        self._limits = Limits(balance.balance_threshold_percent, balance.balance_moves_in_flight_max)
        self._loads = LoadBook(balance)
        self._recent = RecentMoves(balance)
        self._wanted = BrokersWanted(balance.balance_scale_up_ms, balance.balance_scale_down_ms)
        self._gauges = LoadGauges(telemetry, self._goals)
        self._moves_total = {
            goal.name: telemetry.counter("ponor_balancer_moves_total", goal=goal.name) for goal in self._goals
        }
        self._leads = False
        self._began_ns = 0
        self._needed = 1
        self._brokers: tuple[NodeId, ...] = ()
        """The participating brokers at the last step."""
        self._idle_input: tuple[int, int, int] | None = None
        """The input of the last step without work. While it is unchanged, steps are skipped."""
        leading.on_change(self._leadership_changed)

    # Input

    def report(self, node_id: NodeId, report: session_wire.LoadReport) -> None:
        """A broker reports its load."""
        if self._leads:
            self._loads.add_report(node_id, report, self._sources().leader_of, self._clock.monotonic_ns())

    def committed(self, entries: Sequence[LogEntry]) -> None:
        """Record the moves in committed batches."""
        if not self._leads:
            return
        for entry in entries:
            if MOVE_BEGUN_TAG in entry.data:
                for record in entry.batch.records:
                    if record.HasField("partition_move_begun"):
                        self._recent.moved(record.partition_move_begun, self._clock.monotonic_ns())

    def _leadership_changed(self) -> None:
        leads = self._leading.is_leading
        if leads == self._leads:
            return
        self._leads = leads
        self._loads.clear()
        self._recent.clear()
        self._idle_input = None
        self._gauges.clear()
        if leads:
            self._began_ns = self._clock.monotonic_ns()
            nodes = self._proposer.view[NODES]  # suspicions are ignored: no node was heard in this term yet
            brokers = sum(row.role is NodeRole.BROKER and not row.fenced for row in nodes)
            self._wanted.begin(brokers, self._began_ns)

    # Steps

    def step(self) -> float | None:
        """Plan and begin moves. Returns the seconds until the next step."""
        sources = self._sources()
        self._expire(sources)
        input_now = (sources.view.index, self._loads.version, self._activity.suspected_count)
        if input_now != self._idle_input:
            cluster_load = self._measure_again(sources)
            self._needed = brokers_needed(
                (*cluster_load.brokers, *cluster_load.others),
                self._goals,
                self._balance.balance_wanted_load_percent,
            )
            self._gauges.show(cluster_load)
            self._idle_input = None if self._act(cluster_load, sources) or cluster_load.others else input_now
        self._wanted.need(self._needed, sources.now_ns)
        self._gauges.brokers_wanted = self._wanted.count
        return self._balance.balance_interval_ms / 1000

    def _measure_again(self, sources: Sources) -> ClusterLoad:
        cluster_load = self._measure(sources)
        brokers = tuple(broker.node_id for broker in cluster_load.brokers)
        if brokers == self._brokers:
            return cluster_load
        self._brokers = brokers
        self._recent.release()
        return self._measure(sources)

    def _measure(self, sources: Sources) -> ClusterLoad:
        return measure_load(sources, self._is_uneven)

    def _is_uneven(self, brokers: Sequence[BrokerStanding]) -> bool:
        percent = self._limits.threshold_percent
        return len(brokers) > 1 and any(
            is_uneven(goal, [goal.carried(broker) for broker in brokers], percent) for goal in self._goals
        )

    def describe(self) -> cluster_wire.BalanceDescription:
        """Describe the loads, the moves that would begin next, and recent moves. Call this only while
        leading.
        """
        sources = self._sources()
        cluster_load = self._measure(sources)
        cluster = cluster_of(sources.view)
        return described(
            cluster_load,
            self._goals,
            plan(cluster_load, self._goals, self._limits),
            sources,
            paused=cluster is not None and cluster.balancer_paused,
            waiting_for=reason_to_wait(sources),
            brokers_wanted=max(1, self._wanted.count),
        )

    def _act(self, cluster_load: ClusterLoad, sources: Sources) -> bool:
        """Begin moves. Returns False if nothing is left to do until the input changes."""
        if reason_to_wait(sources):
            return True
        planned = plan(cluster_load, self._goals, self._limits)
        if planned.moves:
            self._begin(planned, sources)
        return bool(planned.moves or planned.holding_back or len(sources.view[MOVES]))

    def _begin(self, planned: Plan, sources: Sources) -> None:
        LOG.info("%d partitions begin to move, to balance the brokers", len(planned.moves))
        with self._telemetry.span("ponor.controller.balance", {"ponor.balance.moves": len(planned.moves)}):
            traceparent = current_traceparent(self._telemetry)
            records: list[records_pb2.Record] = []
            ahead: dict[NodeId, int] = {}
            for move in planned.moves:
                source_id = move.partition.source_id
                also = ahead.get(source_id, 0)
                ahead[source_id] = also + 1
                records.append(self._record(move, sources, also, traceparent))
            self._proposer.propose(records, divisible=True)
        for move in planned.moves:
            self._moves_total[move.goal].add()
            self._recent.begun(_begun(move, sources))

    def _record(self, move: PlannedMove, sources: Sources, also: int, traceparent: str) -> records_pb2.Record:
        view, now_ms, partition = (
            sources.view,
            sources.now_ms,
            sources.view[PARTITIONS].get(move.partition.key),
        )
        assert partition is not None
        assert move.partition.key not in view[MOVES]
        return move_records.begun(
            partition,
            move.target_id,
            now_ms=now_ms,
            elect_at_ms=move_records.elect_at_ms(
                view, partition.leader_id, now_ms, self._settings, also=also
            ),
            cause=MoveCause.BALANCE,
            reason=move.reason[: move_records.REASON_CHARACTERS_MAX],
            traceparent=traceparent,
        )

    def _expire(self, sources: Sources) -> None:
        live = frozenset(row.node_id for row in sources.view[NODES] if not row.fenced)
        self._loads.decay(live, sources.leader_of, sources.now_ns)
        self._recent.drop_expired(sources.now_ns)
        for move in sources.view[MOVES]:
            if move.cause is MoveCause.BALANCE:
                self._recent.touch((move.source_id, move.target_id), sources.now_ns)

    def _sources(self) -> Sources:
        now_ns = self._clock.monotonic_ns()
        is_warm = now_ns - self._began_ns >= WARM_UP_NS
        return Sources(
            view=self._proposer.view,
            loads=self._loads,
            recent=self._recent,
            is_suspected=self._activity.is_suspected,
            settings=self._balance,
            now_ms=self._proposer.now_ms(),
            now_ns=now_ns,
            unknown=""
            if is_warm
            else "this controller became leader recently and waits for the load reports of all brokers",
        )

    @property
    def _balance(self) -> BalanceSettings:
        return self._settings.balance


def _begun(move: PlannedMove, sources: Sources) -> BegunMove:
    return BegunMove(
        topic=move.partition.topic,
        partition=move.partition.key[1],
        source_id=move.partition.source_id,
        target_id=move.target_id,
        goal=move.goal,
        reason=move.reason,
        begun_at_ms=sources.now_ms,
    )


def reason_to_wait(sources: Sources) -> str:
    """Why the balancer must not begin moves now; empty if it may."""
    view = sources.view
    cluster = cluster_of(view)
    if cluster is None:
        return "the cluster is not formatted yet"
    if cluster.balancer_paused:
        return "the balancer is paused; `ponor cluster balance --resume` resumes it"
    if cluster.stop_until_ms > sources.now_ms:
        return "the cluster is about to be stopped"
    return _failover(sources)


def _failover(sources: Sources) -> str:
    """Why balancing waits for a failover, whose elections change all loads; empty if it does not wait."""
    view = sources.view
    for wal in view[WALS]:
        if wal.recoverer_id != NO_NODE:
            return f"a write-ahead log of broker {wal.node_id} is being recovered"
    for node in view[NODES]:
        if node.role is not NodeRole.BROKER or node.wal is not WalKind.OBJECT:
            continue
        is_gone = node.fenced or sources.is_suspected(node.node_id)
        if is_gone and len(view[PARTITIONS].find(PARTITIONS_LED_BY, node.node_id)):
            return f"broker {node.node_id} failed; other brokers take over its partitions first"
    return ""


class LoadGauges:
    """Exports the load of each broker that was live while this process led."""

    def __init__(self, telemetry: Telemetry, goals: Sequence[Goal]) -> None:
        self._telemetry = telemetry
        self._goals = goals
        self._loads: dict[NodeId, float] = {}
        self.brokers_wanted = 0
        telemetry.gauge("ponor_brokers_wanted", lambda: self.brokers_wanted)

    def show(self, cluster_load: ClusterLoad) -> None:
        """Export the loads of the present brokers, and 0 for brokers that are no longer live."""
        loads = {
            each.node_id: load_of(each, self._goals) for each in (*cluster_load.brokers, *cluster_load.others)
        }
        for node_id in loads:
            if node_id not in self._loads:
                self._register(node_id)
        for node_id in self._loads:
            self._loads[node_id] = min(1.0, loads.get(node_id, 0.0))

    def clear(self) -> None:
        """Leadership ended: export 0."""
        for node_id in self._loads:
            self._loads[node_id] = 0.0
        self.brokers_wanted = 0

    def _register(self, node_id: NodeId) -> None:
        self._loads[node_id] = 0.0
        self._telemetry.gauge("ponor_broker_load", lambda: self._loads[node_id], broker=str(node_id))
