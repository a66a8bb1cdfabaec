"""The leader's duty towards balance: look at the brokers, and begin the moves that the planner asks for.

What lives here: when nothing is planned or begun although something may be uneven, the beginning of moves, and memory of this term. What is even and what
should move is decided by pure functions (`drawing`, `planner`). All that goes on beyond a term is in rows: moves under way, and whether the balancer is to
keep still.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ponor.controller.v1 import cluster_service_pb2 as cluster_wire
from ponor.controller.v1 import session_service_pb2 as session_wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, MoveCause
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId
from ponor_runtime.telemetry import Telemetry

from ponor_controller.consensus.ports import LogEntry
from ponor_controller.domains.balancing.brokers_wanted import BrokersWanted, brokers_needed
from ponor_controller.domains.balancing.description import described
from ponor_controller.domains.balancing.drawing import Sources, draw
from ponor_controller.domains.balancing.gauges import LoadGauges
from ponor_controller.domains.balancing.goals import goals_of
from ponor_controller.domains.balancing.loads import LoadBook
from ponor_controller.domains.balancing.picture import BrokerStanding, Picture
from ponor_controller.domains.balancing.planner import Limits, Plan, PlannedMove, is_uneven, plan
from ponor_controller.domains.balancing.reasons_to_wait import reason_to_wait
from ponor_controller.domains.balancing.recent_moves import BegunMove, RecentMoves
from ponor_controller.kernel.leading import Leading
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.settings import BalanceSettings, ControllerSettings
from ponor_controller.shared_rules import move_records as changes

LOG: Final = logging.getLogger("ponor.controller")
WAKING: Final = ("node_registered", "wal_opened", "balancer_paused")
"""Records after which more may move at once; everything else can wait for the next look."""
WARM_UP_NS: Final = 5_000_000_000
"""A new leader moves nothing before the brokers had the time to come back and to report."""
MOVE_BEGUN_TAG: Final = b"\xba\x03"
"""How every PartitionMoveBegun begins within a batch (field 55): batches without these bytes have none."""


class Balancer:
    """A step of a `LeaderDuty`; fulfils `cluster_service.ports.Balance`."""

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
        """Those that took part at the last look."""
        self._rested_at: tuple[int, int, int] | None = None
        """What was seen when nothing had to be done: as long as that is so, nothing has to be."""
        leading.on_change(self._leadership_changed)

    # What is heard

    def report(self, node_id: NodeId, report: session_wire.LoadReport) -> None:
        """A broker says what it carries."""
        if self._leads:
            self._loads.take(node_id, report, self._sources().leader_of, self._clock.monotonic_ns())

    def committed(self, entries: Sequence[LogEntry]) -> None:
        """Batches were committed: remember what moves."""
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
        self._rested_at = None
        self._gauges.clear()
        if leads:
            self._began_ns = self._clock.monotonic_ns()
            nodes = self._proposer.view[NODES]  # silence says nothing yet: nobody has been heard in this term
            brokers = sum(row.role is NodeRole.BROKER and not row.fenced for row in nodes)
            self._wanted.begin(brokers, self._began_ns)

    # What is done

    def step(self) -> float | None:
        """Look, and begin what the plan says. Seconds until the next look."""
        sources = self._sources()
        self._let_time_pass(sources)
        seen = (sources.view.index, self._loads.version, self._activity.suspected_count)
        if seen != self._rested_at:
            picture = self._draw_anew(sources)
            self._needed = brokers_needed(
                (*picture.brokers, *picture.others), self._goals, self._balance.balance_wanted_load_percent
            )
            self._gauges.show(picture)
            self._rested_at = None if self._act(picture, sources) or picture.others else seen
        self._wanted.need(self._needed, sources.now_ns)
        self._gauges.brokers_wanted = self._wanted.count
        return self._balance.balance_interval_ms / 1000

    def _draw_anew(self, sources: Sources) -> Picture:
        picture = self._draw(sources)
        brokers = tuple(broker.node_id for broker in picture.brokers)
        if brokers == self._brokers:
            return picture
        self._brokers = brokers
        self._recent.release()
        return self._draw(sources)

    def _draw(self, sources: Sources) -> Picture:
        return draw(sources, self._is_uneven)

    def _is_uneven(self, brokers: Sequence[BrokerStanding]) -> bool:
        percent = self._limits.threshold_percent
        return len(brokers) > 1 and any(
            is_uneven(goal, [goal.carried(broker) for broker in brokers], percent) for goal in self._goals
        )

    def describe(self) -> cluster_wire.BalanceDescription:
        """What is known now, what would be done next if nothing stood in the way, and what was done."""
        sources = self._sources()
        picture = self._draw(sources)
        cluster = cluster_of(sources.view)
        return described(
            picture,
            self._goals,
            plan(picture, self._goals, self._limits),
            sources,
            paused=cluster is not None and cluster.balancer_paused,
            waiting_for=reason_to_wait(sources),
            brokers_wanted=max(1, self._wanted.count),
        )

    def _act(self, picture: Picture, sources: Sources) -> bool:
        """Begin moves; whether there is more to do, or to wait for."""
        if reason_to_wait(sources):
            return True
        planned = plan(picture, self._goals, self._limits)
        if planned.moves:
            self._begin(planned, sources)
        return bool(planned.moves or planned.holding_back or len(sources.view[MOVES]))

    def _begin(self, planned: Plan, sources: Sources) -> None:
        LOG.info("%d partitions begin to move, to balance the brokers", len(planned.moves))
        with self._telemetry.span("ponor.controller.balance", {"ponor.balance.moves": len(planned.moves)}):
            tracing = self._telemetry.tracing
            context = None if tracing is None else tracing.current()
            traceparent = "" if context is None else context.traceparent
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
        return changes.begun(
            partition,
            move.target_id,
            now_ms=now_ms,
            elect_at_ms=changes.elect_at_ms(view, partition.leader_id, now_ms, self._settings, also=also),
            cause=MoveCause.BALANCE,
            reason=move.reason[: changes.REASON_CHARACTERS_MAX],
            traceparent=traceparent,
        )

    def _let_time_pass(self, sources: Sources) -> None:
        live = frozenset(row.node_id for row in sources.view[NODES] if not row.fenced)
        self._loads.settle(live, sources.leader_of, sources.now_ns)
        self._recent.forget_cooled(sources.now_ns)
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
            else "this controller leads since a moment ago, and the brokers have not all reported",
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
