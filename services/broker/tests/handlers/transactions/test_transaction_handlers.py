"""AddPartitionsToTxn, EndTxn, InitProducerId and the administrators' requests, over a real coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from ponor_broker.handlers.transactions.add_partitions import AddPartitionsHandler
from ponor_broker.handlers.transactions.init_producer_id import InitProducerIdHandler
from ponor_broker.handlers.transactions.transaction_admin import TransactionAdminHandlers
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ponor_kafka.messages.describe_transactions import DescribeTransactionsRequest
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest
from ponor_kafka.messages.list_transactions import ListTransactionsRequest

from services.broker.tests.transactions.coordinator_world import FIRST_PRODUCER_ID, TransactionWorld

FIRST = FIRST_PRODUCER_ID
MISSING = 9
"""Number of a partition that does not exist."""
Topics = list[AddPartitionsToTxnTopic]


def context(version: int) -> RequestContext:
    return RequestContext(version, "client", ConnectionContext("peer:1"))


class Directory:
    def leader_id(self, topic: str, index: int) -> int | None:
        return None if index == MISSING else 7


class Handlers:
    def __init__(self, world: TransactionWorld) -> None:
        self.world = world
        self.adds = AddPartitionsHandler(world.coordinator, Directory())
        self.admin = TransactionAdminHandlers(world.coordinator)

    async def add(self, version: int, topics: Topics, *, epoch: int = 0) -> dict[tuple[str, int], ErrorCode]:
        """Add partitions to the transaction of "x" as a client of generation 1."""
        request = AddPartitionsToTxnRequest((), "x", FIRST, epoch, topics)
        answer = await self.adds.handle(request, context(version))
        return {
            (topic.name, row.partition_index): ErrorCode(row.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        }

    async def batched(self, version: int, *rows: AddPartitionsToTxnTransaction) -> list[list[ErrorCode]]:
        """Return the codes of each transaction."""
        answer = await self.adds.handle(AddPartitionsToTxnRequest(rows), context(version))
        return [
            [ErrorCode(one.partition_error_code) for one in of_topic.results_by_partition]
            for row in answer.results_by_transaction
            for of_topic in row.topic_results
        ]


@pytest.fixture
async def handlers() -> AsyncIterator[Handlers]:
    world = TransactionWorld()
    await world.start()
    assert await world.init() == f"NONE {FIRST}/0"
    yield Handlers(world)
    await world.coordinator.close()


def topic(name: str, *indexes: int) -> AddPartitionsToTxnTopic:
    return AddPartitionsToTxnTopic(name, indexes)


async def test_all_partitions_are_added_or_none(handlers: Handlers) -> None:
    assert await handlers.add(3, [topic("t", 0, MISSING), topic("__consumer_offsets", 1)]) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", MISSING): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("__consumer_offsets", 1): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert await handlers.world.state() == f"Empty {FIRST}/0"
    assert await handlers.add(3, []) == {}
    assert await handlers.world.state() == f"Empty {FIRST}/0"
    assert await handlers.add(3, [topic("t", 0, 1)]) == {("t", 0): ErrorCode.NONE, ("t", 1): ErrorCode.NONE}
    assert await handlers.world.state() == f"Ongoing {FIRST}/0"


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
async def test_old_versions_have_no_fenced_producer(
    handlers: Handlers, version: int, code: ErrorCode
) -> None:
    await handlers.world.init()
    assert await handlers.add(version, [topic("t", 0)]) == {("t", 0): code}


@pytest.mark.parametrize("version", [4, 5])
async def test_a_request_of_a_leader_adds_and_verifies(handlers: Handlers, version: int) -> None:
    def of(transactional_id: str, *indexes: int, verify_only: bool) -> AddPartitionsToTxnTransaction:
        return AddPartitionsToTxnTransaction(transactional_id, FIRST, 0, verify_only, [topic("t", *indexes)])

    assert await handlers.batched(
        version, of("x", 0, verify_only=False), of("unknown", 0, verify_only=False)
    ) == [[ErrorCode.NONE], [ErrorCode.INVALID_PRODUCER_ID_MAPPING]]
    assert await handlers.batched(version, of("x", 0, 1, verify_only=True)) == [
        [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]
    ]
    assert await handlers.batched(version, of("x", 0, MISSING, verify_only=True)) == [
        [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    ]


async def test_many_small_transactions_of_a_request_are_checked_in_turns(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_turn = [0]

    def leader_id(*_: object) -> int:
        if not in_turn[-1]:
            asyncio.get_running_loop().call_soon(in_turn.append, 0)
        in_turn[-1] += 1
        return 7

    monkeypatch.setattr(handlers.adds._partitions, "leader_id", leader_id)
    row = AddPartitionsToTxnTransaction("x", FIRST, 0, True, [topic("t", 0)])
    assert len(await handlers.batched(5, *[row] * 3_000)) == 3_000
    assert sum(in_turn) == 3_000
    assert max(in_turn) <= 1_000


async def test_transactions_without_partitions_count_as_rows(handlers: Handlers) -> None:
    with pytest.raises(KafkaWireError):
        await handlers.batched(5, *[AddPartitionsToTxnTransaction("x", FIRST, 0, True, [])] * 100_001)


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)]
)
async def test_a_producer_that_was_replaced_is_fenced(
    handlers: Handlers, version: int, code: ErrorCode
) -> None:
    await handlers.world.init()
    await handlers.world.init()
    handler = InitProducerIdHandler(None, handlers.world.coordinator)  # type: ignore[arg-type]
    answer = await handler.handle(InitProducerIdRequest("x", 60_000, FIRST, 0), context(version))
    assert (answer.error_code, answer.producer_epoch) == (code, -1)


async def test_transactions_are_described(handlers: Handlers) -> None:
    await handlers.add(3, [topic("u", 3), topic("t", 1, 0)])
    request = DescribeTransactionsRequest(["x", "unknown"])
    (found, missing) = (await handlers.admin.describe(request, context(0))).transaction_states
    assert (found.error_code, found.transaction_state, found.producer_id) == (0, "Ongoing", FIRST)
    assert [(one.topic, list(one.partitions)) for one in found.topics] == [("t", [0, 1]), ("u", [3])]
    assert (missing.error_code, missing.transactional_id) == (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "unknown")


async def test_an_id_is_described_once(handlers: Handlers) -> None:
    """A small request that names an id 100,000 times must not get 100,000 copies of its partitions."""
    await handlers.add(3, [topic("t", *range(MISSING))])
    request = DescribeTransactionsRequest(["x"] * 100_000)
    (found,) = (await handlers.admin.describe(request, context(0))).transaction_states
    assert [len(one.partitions) for one in found.topics] == [MISSING]


@pytest.mark.parametrize(
    ("request_", "ids", "unknown", "code"),
    [
        (ListTransactionsRequest(), ["x"], [], ErrorCode.NONE),
        (ListTransactionsRequest(["Empty", "Lost"]), ["x"], ["Lost"], ErrorCode.NONE),
        (ListTransactionsRequest(["Lost"]), [], ["Lost"], ErrorCode.NONE),
        (ListTransactionsRequest(["Ongoing"]), [], [], ErrorCode.NONE),
        (ListTransactionsRequest(producer_id_filters=[FIRST]), ["x"], [], ErrorCode.NONE),
        (ListTransactionsRequest(transactional_id_pattern=""), ["x"], [], ErrorCode.NONE),
        (ListTransactionsRequest(transactional_id_pattern="y.*"), [], [], ErrorCode.NONE),
        (ListTransactionsRequest(transactional_id_pattern="("), [], [], ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
async def test_transactions_are_listed(
    handlers: Handlers, request_: ListTransactionsRequest, ids: list[str], unknown: list[str], code: ErrorCode
) -> None:
    answer = await handlers.admin.list_transactions(request_, context(2))
    assert (answer.error_code, list(answer.unknown_state_filters)) == (code, unknown)
    assert [row.transactional_id for row in answer.transaction_states] == ids
