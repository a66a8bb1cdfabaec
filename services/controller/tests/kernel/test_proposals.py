"""From operation to answer: overlays, repeats, the order of answers, and fairness between nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.consensus.ports import LogEntry
from ponor_controller.kernel.answers import Answers, ConfirmedAnswers
from ponor_controller.kernel.cluster_clock import ClusterClock
from ponor_controller.kernel.executor import Executor
from ponor_controller.kernel.lanes import Lanes
from ponor_controller.kernel.operation import Caller, PendingOperation
from ponor_controller.kernel.proposer import Proposer, divide
from ponor_controller.operations import validator_of_all
from ponor_controller.settings import ControllerSettings
from ponor_metadata.image import snapshot
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import OPERATIONS
from ponor_raft.ready import Leadership, Role
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeEpoch, NodeId
from ponor_runtime.telemetry import Telemetry

from services.controller.tests.ledger import Ledger


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ns = 0

    def monotonic_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


class HeldConsensus:
    """Takes entries; commits them when the test requests it."""

    is_leader = leading = accepts_proposals = True
    term = 1
    leadership = Leadership(Role.LEADER, 1, None)

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.settled = 0
        self.has_room = True
        self.problem: str | None = None
        self.compacted: Callable[[], None] = lambda: None

    def room_problem(self, size_bytes: int) -> str | None:
        return self.problem

    def on_compaction(self, listener: Callable[[], None]) -> None:
        self.compacted = listener

    def propose(self, entry: LogEntry) -> None:
        self.entries.append(entry)

    def flush(self) -> None:
        self.settled = len(self.entries)

    def on_commit(self, listener: Any) -> None:
        raise NotImplementedError

    on_leadership = on_leading = on_commit

    def leader_address(self) -> str | None:
        return None

    async def read_index(self) -> int:
        raise NotImplementedError

    async def transfer(self, node_id: NodeId) -> None:
        raise NotImplementedError


class ConfirmedAtOnce(ConfirmedAnswers):
    """A consensus that always leads."""

    def add(self, term: int, answer: Callable[[], None], refuse: Callable[[OperationError], None]) -> None:
        answer()


class Leader:
    """A proposer and an executor over a ledger's image; the test controls the consensus."""

    def __init__(self, ledger: Ledger, settings: ControllerSettings | None = None) -> None:
        self.ledger = ledger
        self.clock = HandClock()
        self.consensus = HeldConsensus()
        self.settings = settings or ControllerSettings()
        telemetry = Telemetry()
        self.proposer = Proposer(
            self.consensus,
            ledger.view,
            ClusterClock(self.clock, ledger.image.cluster_time_ms),
            self.clock,
            self.settings,
            telemetry,
        )
        self.executor = Executor(
            self.proposer,
            Answers(self.proposer.commits, ConfirmedAtOnce(self.consensus), telemetry),
            validator_of_all(ledger.compactions),
            self.settings,
            ledger.randomness,
            lambda _: False,
            telemetry,
        )
        self.proposer.begin()
        self.answers: list[wire.OperationResult] = []
        self.gathers = False
        """Whether operations share batches."""

    def execute(self, caller: Caller, request_id: int, first_incomplete_id: int = 0, **kind: Any) -> None:
        operation = wire.Operation(request_id=request_id, **kind)
        self.executor.execute(
            PendingOperation(caller, operation, first_incomplete_id, self._hear, operation.WhichOneof("kind"))
        )
        if not self.gathers:
            self.proposer.propose_open()

    def _hear(self, encoded: bytes) -> None:
        self.answers.append(wire.OperationResult.FromString(encoded))

    def commit(self, count: int | None = None) -> None:
        entries = self.consensus.entries[: count if count is not None else len(self.consensus.entries)]
        del self.consensus.entries[: len(entries)]
        if entries:
            self.proposer.committed(entries)


def _put(key: str, value: bytes = b"v") -> wire.PutKey:
    return wire.PutKey(key=key, value=value)


def test_nothing_is_answered_or_shown_before_its_commit(ledger: Ledger) -> None:
    broker = ledger.register(0)
    leader = Leader(ledger)
    leader.execute(broker, 1, put_key=_put("a"))
    assert leader.answers == []
    assert "a" not in ledger.image[KEYS]
    assert "a" in ledger.view[KEYS]
    leader.commit()
    assert "a" in ledger.image[KEYS]
    (answer,) = leader.answers
    assert (answer.request_id, answer.commit_index, answer.key_held.created) == (1, ledger.image.index, True)


def test_a_repeat_gets_the_first_answer_in_flight_and_afterwards(ledger: Ledger) -> None:
    broker = ledger.register(0)
    leader = Leader(ledger)
    for _ in range(2):
        leader.execute(broker, 1, allocate_producer_ids=wire.AllocateProducerIds(count=10))
    assert len(leader.consensus.entries) == 1
    leader.commit()
    leader.execute(broker, 1, allocate_producer_ids=wire.AllocateProducerIds(count=10))
    assert leader.consensus.entries == []
    first, *others = leader.answers
    assert len(others) == 2
    assert all(other == first for other in others)


def test_a_repeat_keeps_the_order_of_commits(ledger: Ledger) -> None:
    broker = ledger.register(0)
    leader = Leader(ledger)
    for request_id in (1, 2, 3, 1):
        leader.execute(broker, request_id, put_key=_put(f"k{request_id}"))
    leader.commit(1)
    assert [answer.request_id for answer in leader.answers] == [1, 1]
    leader.commit()
    assert [answer.request_id for answer in leader.answers] == [1, 1, 2, 3]


def test_the_same_id_with_another_body_is_a_mismatch(ledger: Ledger) -> None:
    broker = ledger.register(0)
    leader = Leader(ledger)
    leader.execute(broker, 1, put_key=_put("a"))
    leader.execute(broker, 1, put_key=_put("b"))
    leader.commit()
    codes = [answer.error.code for answer in leader.answers]
    assert codes == [0, 2]
    assert "b" not in ledger.image[KEYS]


def test_a_result_is_dropped_when_the_node_confirms_it(ledger: Ledger) -> None:
    broker = ledger.register(0)
    leader = Leader(ledger)
    leader.execute(broker, 1, 1, put_key=_put("a"))
    leader.execute(broker, 2, 2, put_key=_put("b"))
    leader.commit()
    assert [row.request_id for row in ledger.image[OPERATIONS]] == [2]
    leader.execute(broker, 1, 1, put_key=_put("a"))
    assert leader.answers[-1].error.message.startswith("operation 1")


def test_results_end_with_the_epoch_and_a_stale_process_must_stop(ledger: Ledger) -> None:
    broker = ledger.register(0)
    leader = Leader(ledger)
    leader.execute(broker, 1, put_key=_put("a"))
    leader.commit()
    restarted = ledger.register(0)
    assert len(ledger.image[OPERATIONS]) == 0
    leader.execute(broker, 1, put_key=_put("a"))
    leader.execute(restarted, 1, put_key=_put("a"))
    stale, fresh = leader.answers[1:]
    assert stale.error.code == 11
    assert (fresh.key_held.created, fresh.key_held.value) == (False, b"v")


def test_a_refusal_waits_for_the_changes_that_caused_it(ledger: Ledger) -> None:
    broker = ledger.register(0)
    leader = Leader(ledger)
    topic = wire.CreateTopic(name="t", partitions=1, replication_factor=-1)
    leader.execute(broker, 1, create_topic=topic)
    leader.execute(broker, 2, create_topic=topic)
    assert leader.answers == [], "the topic is not committed yet"
    leader.commit()
    assert [answer.error.code for answer in leader.answers] == [0, 50]


def test_the_cluster_clock_never_moves_back_and_continues_after_a_restart(ledger: Ledger) -> None:
    clock = HandClock()
    first = ClusterClock(clock, 0)
    assert first.now_ms() == 1
    clock.ns += 5_500_000
    assert first.now_ms() == 6
    clock.ns += 10**15
    second = ClusterClock(clock, 6)
    assert second.now_ms() == 6, "time without a leader does not count"
    clock.ns += 1_000_000
    assert second.now_ms() == 7


def test_a_new_leader_continues_from_the_time_that_its_predecessor_sent() -> None:
    """The log was idle for ten minutes, in which every heartbeat sent the time to the nodes."""
    clock = HandClock()
    follower = ClusterClock(clock, 0)
    follower.stamped(50)
    clock.ns += 600 * 10**9
    leaderless_ns = 2 * 10**9
    clock.ns += leaderless_ns
    follower.restart(50, leaderless_ns)
    assert follower.now_ms() == 600_050, "and the time without a leader does not count"
    follower.restart(700_000, leaderless_ns)
    assert follower.now_ms() == 700_000, "the log may know a later one"


Kind: TypeAlias = dict[str, Any]
KINDS: st.SearchStrategy[Kind] = st.one_of(
    st.builds(lambda k, v: {"put_key": _put(f"k{k}", bytes([v]))}, st.integers(0, 5), st.integers(0, 3)),
    st.builds(lambda n: {"allocate_producer_ids": wire.AllocateProducerIds(count=n)}, st.integers(0, 5)),
    st.builds(lambda n: {"prepare_objects": wire.PrepareObjects(count=n, ttl_ms=9)}, st.integers(0, 4)),
    st.builds(
        lambda n, p: {"create_topic": wire.CreateTopic(name=f"t{n}", partitions=p, replication_factor=-1)},
        st.integers(0, 3),
        st.integers(1, 3),
    ),
    st.builds(
        lambda n: {"create_streams": wire.CreateStreams(streams=[wire.StreamTags()] * n)}, st.integers(0, 3)
    ),
    st.builds(
        lambda n, e: {
            "open_streams": wire.OpenStreams(
                streams=[wire.OpenStream(stream_id=(7 << 49) + n, stream_epoch=e)]
            )
        },
        st.integers(1, 4),
        st.integers(0, 3),
    ),
)


@settings(max_examples=80, deadline=None)
@given(
    committed=st.lists(KINDS, max_size=8),
    dropped=st.lists(KINDS, max_size=8),
    later=st.lists(KINDS, max_size=8),
)
def test_dropped_proposals_leave_no_trace(
    committed: list[Kind], dropped: list[Kind], later: list[Kind]
) -> None:
    images = []
    for proposes in (True, False):
        ledger = Ledger()
        broker = ledger.register(0, incarnation=b"i" * 16)
        leader = Leader(ledger)
        request_id = 0
        for kind in committed:
            request_id += 1
            leader.execute(broker, request_id, **kind)
        leader.commit()
        before = snapshot.encode(ledger.image)
        random_state = ledger.randomness._next
        if proposes:
            for offset, kind in enumerate(dropped):
                leader.execute(broker, request_id + 1 + offset, **kind)
            assert snapshot.encode(ledger.image) == before, "the image holds committed batches only"
            leader.proposer.end(OperationError(error_pb2.ERROR_CODE_NOT_LEADER, "another one leads"))
            assert ledger.view.touched_rows == 0
            assert leader.proposer.in_flight == 0
            heard = sorted(result.request_id for result in leader.answers)
            assert heard == list(range(1, request_id + len(dropped) + 1)), "each node got one answer"
            ledger.randomness._next = random_state
            leader = Leader(ledger)
        for kind in later:
            request_id += 1
            leader.execute(broker, request_id, **kind)
        leader.commit()
        images.append(snapshot.encode(ledger.image))
    assert images[0] == images[1]


def test_a_change_too_large_for_one_batch_is_divided_or_refused(ledger: Ledger) -> None:
    broker = ledger.register(0)
    leader = Leader(ledger, ControllerSettings(batch_bytes_max=64 * 1024))
    records = [
        records_pb2.Record(key_put=records_pb2.KeyPut(key=f"k{n}", value=b"v" * 1_000)) for n in range(100)
    ]
    with pytest.raises(OperationError, match="65536"):
        leader.proposer.propose(records)
    assert leader.consensus.entries == []
    last = leader.proposer.propose(records, divisible=True)
    assert [entry.index for entry in leader.consensus.entries] == [last - 1, last]
    assert all(len(entry.data) <= 64 * 1024 for entry in leader.consensus.entries)
    leader.commit()
    assert len(ledger.image[KEYS]) == 100
    assert broker.node_epoch == 1


@given(sizes=st.lists(st.integers(0, 3_000), max_size=60))
def test_division_keeps_order_and_limit(sizes: list[int]) -> None:
    records = [records_pb2.Record(key_put=records_pb2.KeyPut(key="k", value=bytes(size))) for size in sizes]
    runs = divide(records, 4_096)
    assert [record for run in runs for record in run] == records
    for run in runs:
        assert (
            records_pb2.RecordBatch(
                index=1 << 62, term=1 << 62, cluster_time_ms=1 << 62, records=run
            ).ByteSize()
            <= 4_096
        )


def test_operations_in_flight_are_limited(ledger: Ledger) -> None:
    broker = ledger.register(0)
    leader = Leader(ledger, ControllerSettings(proposals_max=2))
    for request_id in (1, 2):
        assert leader.proposer._room.is_set()
        leader.execute(broker, request_id, put_key=_put(f"k{request_id}"))
    assert not leader.proposer._room.is_set()
    leader.commit(1)
    assert leader.proposer._room.is_set()


def _pending(node: int, request_id: int, kind: str) -> PendingOperation:
    operation = wire.Operation(request_id=request_id)
    getattr(operation, kind).SetInParent()
    caller = Caller(NodeId(node), NodeEpoch(1), records_pb2.NODE_ROLE_BROKER)
    return PendingOperation(caller, operation, 0, lambda _: None, operation.WhichOneof("kind"))


def test_urgent_operations_precede_those_of_other_nodes_and_never_of_their_own() -> None:
    lanes = Lanes()
    for pending in (
        _pending(9, 1, "claim_objects"),
        _pending(1, 1, "commit_upload"),
        _pending(1, 2, "close_streams"),
        _pending(2, 1, "commit_upload"),
        _pending(3, 1, "open_streams"),
    ):
        lanes.put(pending)
    order = []
    while (taken := lanes.take()) is not None:
        order.append((taken.caller.node_id, taken.operation.request_id))
    assert order == [(3, 1), (1, 1), (1, 2), (2, 1), (9, 1)]
    assert len(lanes) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["open_streams", "put_key", "claim_objects"])),
        max_size=40,
    )
)
def test_every_operation_is_processed_once_in_its_nodes_order(puts: list[tuple[int, str]]) -> None:
    lanes = Lanes()
    for number, (node, kind) in enumerate(puts):
        lanes.put(_pending(node, number, kind))
    taken: dict[int, list[int]] = {}
    while (pending := lanes.take()) is not None:
        taken.setdefault(pending.caller.node_id, []).append(pending.operation.request_id)
    for node in range(4):
        assert taken.get(node, []) == [number for number, (each, _) in enumerate(puts) if each == node]


def test_a_log_without_room_refuses_before_the_overlay_changes(ledger: Ledger) -> None:
    leader = Leader(ledger)
    leader.consensus.problem = "full"
    before = leader.proposer.last_index
    put = records_pb2.Record(key_put=records_pb2.KeyPut(key="k", value=b"v"))
    with pytest.raises(OperationError) as refused:
        leader.proposer.propose([put])
    assert refused.value.code == error_pb2.ERROR_CODE_OVERLOADED
    assert leader.proposer.last_index == before
    leader.proposer.add([put])
    leader.proposer.propose_open()
    assert leader.proposer.has_open_batch, "the gathered batch waits"
    assert leader.consensus.entries == []
    leader.consensus.problem = None
    leader.proposer.propose_open()
    assert len(leader.consensus.entries) == 1


async def test_proposals_wait_for_room_in_the_log(ledger: Ledger) -> None:
    leader = Leader(ledger)
    leader.consensus.has_room = False
    leader.consensus.compacted()
    assert not leader.proposer.has_room
    assert not leader.proposer.has_turn
    leader.consensus.has_room = True
    leader.consensus.compacted()
    assert leader.proposer.has_room
