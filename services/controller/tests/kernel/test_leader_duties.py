"""Duties of the leader: their times, their records, and the trace of a move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.domains.moves.duty import MoveDuty
from ponor_controller.domains.nodes.drain_duty import RETRY_S, DrainDuty
from ponor_controller.kernel.leader_duty import RETRY_S as REFUSED_S
from ponor_controller.kernel.leader_duty import LeaderDuty
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.settings import ControllerSettings
from ponor_metadata.nouns.topics import MOVES, MoveCause
from ponor_rpc.errors import OperationError
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.trace_recording import RecordedTracing
from ponor_runtime.tracing import TraceContext

from services.controller.tests.kernel.test_proposals import Leader
from services.controller.tests.ledger import Ledger
from services.controller.tests.moves_kit import TRACEPARENT, Moving


class Traced(Telemetry):
    """Telemetry whose spans a test can read."""

    def __init__(self) -> None:
        super().__init__()
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = RecordedTracing(provider.get_tracer("test"))

    def spans(self) -> list[tuple[str, int]]:
        """(name, trace id) of all ended spans."""
        spans = self._exporter.get_finished_spans()
        return [(span.name, span.context.trace_id) for span in spans if span.context is not None]


class DutyRig:
    """A leader with its drivers, over a ledger; the test controls time and commits."""

    def __init__(self, moving: Moving, settings: ControllerSettings | None = None) -> None:
        self.moving = moving
        self.leader = Leader(moving.ledger, settings)
        self.telemetry = Traced()
        activity = NodeActivity(self.leader.clock, session_timeout_ms=9_000)
        self.activity = activity
        proposer = self.leader.proposer
        self.moves = MoveDuty(proposer, activity, self.telemetry)
        self.drains = DrainDuty(proposer, activity, self.leader.settings, self.telemetry)
        self.pass_s(0)

    def pass_s(self, seconds: float) -> None:
        """Let time pass in which every broker is heard."""
        self.leader.clock.ns += int(seconds * 1e9)
        for broker in self.moving.brokers:
            self.activity.heard(broker.node_id)


@pytest.fixture
def rig() -> DutyRig:
    return DutyRig(Moving(partitions=6))


def test_duties_do_nothing_without_moves(rig: DutyRig) -> None:
    assert (rig.moves.step(), rig.drains.step()) == (None, None)


def test_the_controllers_step_is_in_the_trace_of_the_move(rig: DutyRig) -> None:
    moving = rig.moving
    moving.begin((0, moving.others()[0].node_id), traceparent=TRACEPARENT)
    again_s = rig.moves.step()
    assert again_s is not None
    assert again_s <= 9.001, "a target may become silent before the timeout"
    moving.close()
    rig.pass_s(16)
    rig.moves.step()
    (entry,) = rig.leader.consensus.entries
    (record,) = entry.batch.records
    assert record.partition_changed.traceparent == TRACEPARENT
    assert rig.telemetry.spans() == [], "it ends with the commit"
    rig.leader.commit()
    parent = TraceContext.parse(TRACEPARENT)
    assert parent is not None
    assert rig.telemetry.spans() == [("ponor.controller.move", parent.trace_id)]
    assert dict(rig.telemetry.counters("ponor_controller_move_interventions_total"))[("elected",)] == 1


def test_a_wave_is_one_trace_with_all_its_moves(rig: DutyRig) -> None:
    moving = rig.moving
    source = moving.brokers[0]
    body = wire.SetDrain(node_id=source.node_id, draining=True)
    moving.ledger.do(source, set_drain=body)
    assert rig.drains.step() is not None
    rig.leader.commit()
    moves = list(moving.ledger.image[MOVES])
    assert [(move.source_id, move.cause, move.reason) for move in moves] == [
        (source.node_id, MoveCause.DRAIN, f"broker {source.node_id} is draining")
    ] * 2
    ((name, trace_id),) = rig.telemetry.spans()
    assert name == "ponor.controller.drain"
    contexts = [TraceContext.parse(move.traceparent) for move in moves]
    assert [context.trace_id for context in contexts if context] == [trace_id] * 2
    assert rig.drains.step() is not None
    assert rig.leader.consensus.entries == [], "they are on their way"


def test_a_drain_does_not_repeat_a_cancelled_move_immediately(rig: DutyRig) -> None:
    """The reason of a cancellation usually lasts, such as a failing store: an immediate repeat
    would be cancelled too.
    """
    moving = rig.moving
    source = moving.brokers[0]
    moving.ledger.do(source, set_drain=wire.SetDrain(node_id=source.node_id, draining=True))
    rig.drains.step()
    rig.leader.commit()
    numbers = [move.partition for move in moving.ledger.image[MOVES]]
    moving.cancel(*numbers, caller=source, reason="the store refuses")
    assert rig.drains.step() == pytest.approx(RETRY_S)
    assert rig.leader.consensus.entries == []
    rig.pass_s(1.1)
    rig.drains.step()
    rig.leader.commit()
    assert [move.partition for move in moving.ledger.image[MOVES]] == numbers


def test_a_drain_waits_for_a_target(rig: DutyRig) -> None:
    moving = rig.moving
    source = moving.brokers[0]
    moving.ledger.do(source, set_drain=wire.SetDrain(node_id=source.node_id, draining=True))
    for _ in range(10):
        rig.leader.clock.ns += int(3e9)
        rig.activity.heard(source.node_id)
    assert rig.drains.step() == RETRY_S, "all others are silent"
    assert rig.leader.consensus.entries == []
    rig.pass_s(0)
    rig.drains.step()
    assert len(rig.leader.consensus.entries) == 1


def test_a_leaving_broker_is_answered_before_it_loses_its_rights() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = Leader(ledger)
    leader.execute(broker, 1, leave_cluster=wire.LeaveCluster())
    (entry,) = leader.consensus.entries
    assert [record.WhichOneof("kind") for record in entry.batch.records] == [
        "operation_completed",
        "node_fenced",
    ]
    leader.commit()
    assert leader.answers[-1].HasField("done")
    leader.execute(broker, 1, leave_cluster=wire.LeaveCluster())
    leader.commit()
    assert leader.answers[-1].error.code == error_pb2.ERROR_CODE_NODE_FENCED, "repeated: it has left"


# Times at which a duty runs.


class Succession:
    """Leadership controlled by the test. Implements `Leading` and the proposer's part for duties."""

    def __init__(self) -> None:
        self.leads = False
        self.is_leading = True
        self.leader_address = ""
        self.commit_age_ms = 0
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def lead(self, leads: bool) -> None:
        self.leads = leads
        for listener in self._listeners:
            listener()

    async def room(self) -> None:
        return

    async def read_index(self) -> int:
        raise NotImplementedError


class ShortClock:
    """The clock of the event loop."""

    def monotonic_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e9)

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_duty_runs_at_the_leader_when_it_is_woken() -> None:
    rig: Any = Succession()
    looks: list[float | None] = []
    answers: list[float | OperationError | None] = [
        None,
        0.001,
        None,
        OperationError(error_pb2.ERROR_CODE_NOT_LEADER, "it hands over"),
        None,
    ]

    def step() -> float | None:
        answer = answers[len(looks)]
        if isinstance(answer, OperationError):
            looks.append(REFUSED_S)
            raise answer
        looks.append(answer)
        return answer

    duty = LeaderDuty(step, rig, rig, ShortClock())
    running = asyncio.create_task(duty.run())
    try:
        duty.wake()
        await asyncio.sleep(0.1)
        assert looks == [], "another one leads"
        rig.lead(True)
        await _until(lambda: len(looks) == 1)
        duty.wake()
        await _until(lambda: looks == [None, 0.001, None])
        duty.wake()
        await _until(lambda: len(looks) == 5)
        rig.lead(False)
        duty.wake()
        await asyncio.sleep(0.1)
        assert len(looks) == 5
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_failing_duty_raises_its_error() -> None:
    rig: Any = Succession()

    def step() -> float | None:
        raise OperationError(error_pb2.ERROR_CODE_INVALID_REQUEST, "a bug")

    rig.lead(True)
    with pytest.raises(OperationError, match="a bug"):
        await LeaderDuty(step, rig, rig, ShortClock()).run()
