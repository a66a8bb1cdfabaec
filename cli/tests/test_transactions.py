"""`ponor transaction` against scripted brokers: owners, hanging transactions, retries and refusals."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ponor_cli.clients import coordinators, open_transactions
from ponor_cli.clients.open_transactions import abort_hanging, find_open
from ponor_cli.clients.transactions import Filters, State, describe_id, list_ids, terminate
from ponor_cli.errors import CommandError
from ponor_cli.main import app
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages import (
    describe_producers,
    describe_transactions,
    find_coordinator,
    init_producer_id,
    list_partition_reassignments,
    list_transactions,
    metadata,
    write_txn_markers,
)
from typer.testing import CliRunner

A, B = 1, 2
PRODUCER = 77


class World:
    """Two brokers: A leads t-0 and coordinates every id, B leads t-1. Answers can be queued per API."""

    def __init__(self) -> None:
        self.node_ids = [A, B]
        self.any: Any = SimpleNamespace(call=lambda request, _: self.call(A, request), metadata=self.metadata)
        self.ids: dict[str, tuple[State, list[int]]] = {}
        self.open: dict[int, int] = {}
        """Start offset of the producer's open transaction by partition."""
        self.coordinator_epoch = 4
        self.errors: dict[str, list[ErrorCode]] = {}
        """Errors of the next answers, by request."""
        self.sent: list[Any] = []
        self.has_state_topic = True

    def refresh(self) -> None:
        pass

    def of(self, node_id: int) -> Any:
        return SimpleNamespace(call=lambda request, _: self.call(node_id, request))

    def metadata(self, topics: list[str] | None) -> Any:
        name = "t" if topics is None else topics[0]
        is_there = self.has_state_topic if name != "t" else True
        rows = [
            metadata.MetadataResponsePartition(
                partition_index=index, leader_id=leader, replica_nodes=[leader]
            )
            for index, leader in ((0, A), (1, B))
        ]
        error = ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return metadata.MetadataResponse(
            topics=[metadata.MetadataResponseTopic(error_code=error, name=name, partitions=rows)]
        )

    def call(self, node_id: int, request: Any) -> Any:
        self.sent.append(request)
        name = type(request).__name__.removesuffix("Request")
        queued = self.errors.get(name)
        answer: Callable[[int, Any, ErrorCode], Any] = getattr(self, f"_{name}")
        return answer(node_id, request, queued.pop(0) if queued else ErrorCode.NONE)

    def _ListPartitionReassignments(self, *_: Any) -> Any:
        return list_partition_reassignments.ListPartitionReassignmentsResponse()

    def _FindCoordinator(self, _: int, request: Any, code: ErrorCode) -> Any:
        row = find_coordinator.Coordinator(request.coordinator_keys[0], A, "a", 1, code)
        return find_coordinator.FindCoordinatorResponse(coordinators=[row])

    def _ListTransactions(self, node_id: int, request: Any, code: ErrorCode) -> Any:
        return list_transactions.ListTransactionsResponse(
            error_code=code,
            transaction_states=[
                list_transactions.TransactionState(name, PRODUCER, state)
                for name, (state, _) in self.ids.items()
                if node_id == A and (not request.state_filters or state in request.state_filters)
            ],
        )

    def _DescribeTransactions(self, _: int, request: Any, code: ErrorCode) -> Any:
        name = request.transactional_ids[0]
        if code is ErrorCode.NONE and name not in self.ids:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        state, partitions = self.ids.get(name, (State.EMPTY, []))
        row = describe_transactions.TransactionState(
            code, name, state, 60_000, 1_000, PRODUCER, 3, [describe_transactions.TopicData("t", partitions)]
        )
        return describe_transactions.DescribeTransactionsResponse(transaction_states=[row])

    def _DescribeProducers(self, _: int, request: Any, code: ErrorCode) -> Any:
        (topic,) = request.topics
        rows = [
            describe_producers.PartitionResponse(
                index,
                code,
                active_producers=[
                    describe_producers.ProducerState(PRODUCER, 3, 0, 5, self.coordinator_epoch, offset)
                    for offset in [self.open.get(index, -1)]
                ],
            )
            for index in topic.partition_indexes
        ]
        return describe_producers.DescribeProducersResponse(
            topics=[describe_producers.TopicResponse("t", rows)]
        )

    def _InitProducerId(self, _node_id: int, _request: Any, code: ErrorCode) -> Any:
        return init_producer_id.InitProducerIdResponse(error_code=code)

    def _WriteTxnMarkers(self, _: int, request: Any, code: ErrorCode) -> Any:
        (marker,) = request.markers
        row = write_txn_markers.WritableTxnMarkerPartitionResult(marker.topics[0].partition_indexes[0], code)
        topic = write_txn_markers.WritableTxnMarkerTopicResult("t", [row])
        result = write_txn_markers.WritableTxnMarkerResult(PRODUCER, [topic])
        return write_txn_markers.WriteTxnMarkersResponse([result])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(coordinators, "RETRY_S", 0.0)
    return World()


def test_list_joins_all_coordinators_and_passes_the_filters(world: World) -> None:
    world.ids = {"b": (State.ONGOING, [0]), "a": (State.EMPTY, [])}
    assert [row.transactional_id for row in list_ids(world, Filters())] == ["a", "b"]
    assert [row.transactional_id for row in list_ids(world, Filters([State.ONGOING]))] == ["b"]
    list_ids(world, Filters(producer_ids=[5], longer_than_ms=9, pattern="p.*"))
    last = world.sent[-1]
    assert (last.producer_id_filters, last.duration_filter, last.transactional_id_pattern) == ([5], 9, "p.*")


def test_list_names_an_invalid_pattern(world: World) -> None:
    world.errors["ListTransactions"] = [ErrorCode.INVALID_REGULAR_EXPRESSION]
    with pytest.raises(CommandError, match=r"--id-pattern \(: not a valid RE2 regular expression"):
        list_ids(world, Filters(pattern="("))


def test_a_coordinator_that_loads_is_asked_again(world: World) -> None:
    world.ids = {"a": (State.ONGOING, [0])}
    world.errors["ListTransactions"] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    world.errors["FindCoordinator"] = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.errors["DescribeTransactions"] = [ErrorCode.NOT_COORDINATOR]
    assert len(list_ids(world, Filters())) == 1
    assert describe_id(world, "a").partitions == (("t", 0),)


def test_an_unknown_id_is_named_and_creates_no_topic(world: World) -> None:
    with pytest.raises(CommandError, match="no transactional id x; `ponor transaction list`"):
        describe_id(world, "x")
    world.sent.clear()
    world.has_state_topic = False
    with pytest.raises(CommandError, match="no transactional id x"):
        describe_id(world, "x")
    assert not world.sent, "FindCoordinator would create the topic"


def test_terminate_fences_the_producer_and_waits_for_the_abort(world: World) -> None:
    world.ids = {"a": (State.ONGOING, [0, 1])}
    world.errors["InitProducerId"] = [ErrorCode.CONCURRENT_TRANSACTIONS] * 2
    assert terminate(world, "a").partitions == (("t", 0), ("t", 1))
    last = world.sent[-1]
    assert (last.transactional_id, last.producer_id, last.transaction_timeout_ms) == ("a", -1, 60_000)


@pytest.mark.parametrize(
    ("state", "refusal"),
    [
        (State.EMPTY, "has no open transaction"),
        (State.COMPLETE_COMMIT, "has no open transaction"),
        (State.PREPARE_COMMIT, "is decided"),
    ],
)
def test_terminate_fences_no_producer_without_need(world: World, state: State, refusal: str) -> None:
    world.ids = {"a": (state, [])}
    with pytest.raises(CommandError, match=refusal):
        terminate(world, "a")
    assert not any(isinstance(each, init_producer_id.InitProducerIdRequest) for each in world.sent)


def test_terminate_reports_an_abort_that_does_not_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "WAIT_S_MAX", -1.0)
    world.ids = {"a": (State.ONGOING, [0])}
    world.errors["InitProducerId"] = [ErrorCode.CONCURRENT_TRANSACTIONS]
    with pytest.raises(CommandError, match="`ponor transaction describe a` shows the partitions"):
        terminate(world, "a")


def test_only_transactions_without_an_owner_are_hanging(world: World) -> None:
    world.open = {0: 10, 1: 20}
    world.ids = {"a": (State.ONGOING, [0])}
    assert [(each.partition, each.owner) for each in find_open(world, None, None)] == [(0, "a"), (1, None)]
    world.ids = {"a": (State.COMPLETE_ABORT, [])}
    assert [each.owner for each in find_open(world, "t", 0)] == [None]


def test_a_transaction_that_ends_meanwhile_is_not_hanging(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open = {0: 10}

    def owners(brokers: Any, found: Any) -> Any:
        world.open = {}
        return list(found)

    monkeypatch.setattr(open_transactions, "_with_owners", owners)
    assert find_open(world, "t", 0) == []


def test_abort_of_a_hanging_transaction_sends_its_marker(world: World) -> None:
    world.open = {1: 20}
    world.coordinator_epoch = -1
    assert abort_hanging(world, ("t", 1), 20).producer_id == PRODUCER
    (marker,) = world.sent[-1].markers
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (PRODUCER, 3, False)
    assert marker.coordinator_epoch == 0, "no marker of this producer was seen"


def test_abort_of_a_hanging_transaction_is_refused_with_the_remedy(world: World) -> None:
    world.open = {1: 20}
    with pytest.raises(CommandError, match="starts at offset 19 of t-1; `ponor transaction open t`"):
        abort_hanging(world, ("t", 1), 19)
    with pytest.raises(CommandError, match="topic t has no partition 7"):
        abort_hanging(world, ("t", 7), 20)
    world.errors["WriteTxnMarkers"] = [ErrorCode.INVALID_PRODUCER_EPOCH]
    with pytest.raises(CommandError, match="begun another transaction"):
        abort_hanging(world, ("t", 1), 20)
    world.ids = {"a": (State.ONGOING, [1])}
    with pytest.raises(CommandError, match="use `ponor transaction abort a`"):
        abort_hanging(world, ("t", 1), 20)


def test_a_partition_without_a_live_leader_is_named(world: World) -> None:
    world.node_ids = [A]
    with pytest.raises(CommandError, match="t-1 has no live leader; `ponor partition list t`"):
        find_open(world, "t", None)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["abort"], "give a transactional id, or"),
        (["abort", "x", "--partition", "0"], "give a transactional id, or"),
        (["abort", "--topic", "t", "--partition", "0"], "needs all of"),
        (["open", "--partition", "0"], "--partition needs a topic"),
        (["list", "--state", "asleep"], "asleep"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str], refusal: str) -> None:
    done = CliRunner().invoke(app, ["transaction", *words])
    assert done.exit_code != 0
    assert refusal in f"{done.output}{done.exception or ''}"
