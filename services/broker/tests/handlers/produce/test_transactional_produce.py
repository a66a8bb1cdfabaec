"""Transactional batches of Produce: they wait for their coordinator, in order."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
from ponor_broker.handlers.produce.produce import ProducePending
from ponor_broker.handlers.produce.verified_batches import Verifier
from ponor_broker.partitions.handoff import partition_closing, transit_parking
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_transactions import TransactionMarker
from ponor_broker.partitions.transactions.verification import Verification
from ponor_broker.transactions.verification import Claim, WaitingBatch
from ponor_broker.transactions.verification_errors import TransactionalWrite
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import encode_request_header
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.record_batch import BatchView

from services.broker.tests.handlers.produce.test_produce_path import Client, produce, settle
from services.broker.tests.partition_rig import TOPIC_ID, PartitionRig
from services.broker.tests.partitions.transactions.transaction_kit import transactional

Where = tuple[str, int]


@dataclass
class ScriptedVerifier:
    """Keeps batches until the test gives the coordinator's answer."""

    waiting: list[tuple[Where, Claim, WaitingBatch[Verification]]] = field(default_factory=list)
    proof: Verification | None = None

    def is_waiting(self, where: Where, producer_id: int) -> bool:
        return any((where, producer_id) == (at, claim.producer_id) for at, claim, _ in self.waiting)

    def submit(self, where: Where, claim: Claim, batch: WaitingBatch[Verification]) -> None:
        self.waiting.append((where, claim, batch))

    def ask(self) -> None:
        """Take the proof, as before each request."""
        self.proof = self.waiting[0][2].take_proof()

    def answer(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Settle every waiting batch."""
        waiting, self.waiting = self.waiting, []
        for _, _, batch in waiting:
            batch.settled(error, self.proof if error is ErrorCode.NONE else None)

    async def confirm(self) -> None:
        self.ask()
        self.answer()
        await settle()


@dataclass
class Broker:
    rig: PartitionRig
    partition: Partition
    verifier: ScriptedVerifier
    client: Client

    def append_marker(self, epoch: int = 0) -> None:
        self.partition.append_marker(TransactionMarker(1, epoch, 0, commits=True), lambda _: None)

    async def reopen(self) -> None:
        """As after the partition was led elsewhere."""
        self.partition = self.client.partitions._partition = await self.rig.open()


@pytest.fixture
def connect() -> Callable[[], Awaitable[Broker]]:
    async def connected() -> Broker:
        rig, verifier = PartitionRig(), ScriptedVerifier()
        partition = await rig.open()
        client = Client(rig, partition, is_short=True, verifier=cast("Verifier", verifier))
        return Broker(rig, partition, verifier, client)

    return connected


Connect = Callable[[], Awaitable[Broker]]


def sent(
    number: int,
    *batches: BatchView,
    transactional_id: str | None = "x",
    acks: int = -1,
    version: int = 9,
) -> bytes:
    data = [PartitionProduceData(index, one.view) for index, one in enumerate(batches)]
    request = ProduceRequest(transactional_id, acks, 30_000, [TopicProduceData("t", partition_data=data)])
    return encode_request_header(ApiKey.PRODUCE, version, number, "client") + encode(request, version)


async def test_batches_of_a_producer_wait_in_order_and_others_do_not(connect: Connect) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1)), sent(2, transactional(1, 0, 1, 1)))
    assert broker.partition.log_end_offset == 0
    other = Client(broker.rig, broker.partition, is_short=True)
    other.send(produce(7))
    await settle()
    assert other.wire.outcomes() == [(7, [(0, 0)])]
    await broker.verifier.confirm()
    assert broker.client.wire.outcomes() == [(1, [(0, 1)]), (2, [(0, 2)])]
    # The transaction is open: no further question.
    broker.client.send(sent(3, transactional(1, 0, 2, 1)))
    await settle()
    assert broker.client.wire.outcomes()[2:] == [(3, [(0, 3)])]
    assert broker.verifier.waiting == []


@pytest.mark.parametrize(
    ("version", "write"),
    [
        (10, TransactionalWrite.VERIFIED_OLD),
        (11, TransactionalWrite.VERIFIED),
        (12, TransactionalWrite.ADDING),
    ],
)
async def test_the_version_decides_whether_the_partition_is_added(
    connect: Connect, version: int, write: TransactionalWrite
) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1), version=version))
    ((where, claim, waiting),) = broker.verifier.waiting
    assert (where, claim, waiting.write) == (("t", 0), Claim("x", 1, 0), write)
    await broker.verifier.confirm()
    assert broker.client.wire.outcomes() == [(1, [(0, 0)])]


async def test_a_refused_batch_is_retried_before_later_ones(connect: Connect) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1)))
    broker.verifier.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    await settle()
    broker.client.send(sent(2, transactional(1, 0, 1, 1)))
    await broker.verifier.confirm()
    broker.client.send(sent(3, transactional(1, 0, 0, 1)))
    await broker.verifier.confirm()
    broker.client.send(sent(4, transactional(1, 0, 1, 1)))
    await settle()
    assert broker.client.wire.outcomes() == [
        (1, [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]),
        (2, [(ErrorCode.REQUEST_TIMED_OUT, -1)]),
        (3, [(0, 0)]),
        (4, [(0, 1)]),
    ]


async def test_a_batch_with_a_final_error_holds_back_no_other(connect: Connect) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1)))
    broker.verifier.answer(ErrorCode.TRANSACTION_ABORTABLE)
    await settle()
    broker.client.send(sent(2, transactional(1, 0, 1, 1)))
    await broker.verifier.confirm()
    assert broker.client.wire.outcomes() == [
        (1, [(ErrorCode.TRANSACTION_ABORTABLE, -1)]),
        (2, [(0, 0)]),
    ]


async def test_a_batch_of_a_disconnected_client_is_not_appended(connect: Connect) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1)))
    broker.client.connection.closed()
    await broker.verifier.confirm()
    assert broker.partition.log_end_offset == 0


async def test_a_marker_before_the_answer_repeats_the_question(connect: Connect) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1)), sent(2, transactional(1, 0, 1, 1)))
    broker.verifier.ask()
    broker.append_marker()
    broker.verifier.answer()
    await settle()
    assert broker.client.wire.answers == {}
    assert broker.partition.log_end_offset == 1
    await broker.verifier.confirm()
    assert broker.client.wire.outcomes() == [(1, [(0, 1)]), (2, [(0, 2)])]


async def test_an_answer_for_a_partition_that_was_opened_again_repeats_the_question(
    connect: Connect,
) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1)))
    broker.verifier.ask()
    await broker.reopen()
    broker.verifier.answer()
    await settle()
    assert broker.partition.log_end_offset == 0
    await broker.verifier.confirm()
    assert broker.client.wire.outcomes() == [(1, [(0, 0)])]


async def test_without_acknowledgement_a_refusal_closes_the_connection(connect: Connect) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1), acks=0))
    await broker.verifier.confirm()
    assert (broker.partition.high_watermark, broker.client.wire.ended) == (1, [])
    broker.append_marker()
    broker.client.send(sent(2, transactional(1, 0, 1, 1), acks=0))
    broker.verifier.answer(ErrorCode.INVALID_PRODUCER_EPOCH)
    await settle()
    assert "refused" in str(broker.client.wire.ended)
    assert broker.client.wire.answers == {}


@pytest.mark.parametrize("rows", [1, 2])
async def test_transactional_batches_without_a_transactional_id_are_refused(
    connect: Connect, rows: int
) -> None:
    broker = await connect()
    batches = [transactional(1, 0, 0, 1) for _ in range(rows)]
    broker.client.send(sent(1, *batches, transactional_id=None))
    await settle()
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert broker.client.wire.outcomes() == [(1, [(code, -1)] * rows)]
    assert broker.verifier.waiting == []


async def test_a_request_has_batches_of_one_producer(connect: Connect) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1), transactional(2, 0, 0, 1)))
    await settle()
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.client.wire.outcomes() == [(1, [(code, -1)] * 2)]


async def test_a_cancelled_move_keeps_the_order_of_batches_that_waited_for_the_coordinator(
    connect: Connect,
) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1)))
    partition_closing.begin_move(broker.partition)
    await broker.verifier.confirm()
    broker.client.send(sent(2, transactional(1, 0, 1, 1)))
    partition_closing.reopen(broker.partition)
    broker.client.partitions.parking.settled((TOPIC_ID, 0))
    await broker.verifier.confirm()
    assert broker.client.wire.outcomes() == [(1, [(0, 0)]), (2, [(0, 1)])]


async def test_a_batch_waits_behind_another_when_the_partition_is_closing(connect: Connect) -> None:
    broker = await connect()
    broker.client.send(sent(1, transactional(1, 0, 0, 1)))
    partition_closing.begin_move(broker.partition)
    broker.partition.service.hold()
    broker.client.send(sent(2, transactional(1, 0, 1, 1)))
    await broker.verifier.confirm()
    broker.partition.service.release()
    partition_closing.reopen(broker.partition)
    broker.client.partitions.parking.settled((TOPIC_ID, 0))
    await broker.verifier.confirm()
    assert broker.client.wire.outcomes() == [(1, [(0, 0)]), (2, [(0, 1)])]


async def test_a_verified_batch_stays_before_later_ones_that_are_parked(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parked batches are retried over several turns, and the coordinator may answer in between."""
    monkeypatch.setattr(transit_parking, "CALLS_PER_TURN_MAX", 1)
    broker = await connect()
    others = Client(broker.rig, broker.partition, is_short=True)
    others.partitions.parking = parking = broker.client.partitions.parking
    partition_closing.begin_move(broker.partition)
    parking._calls_left = 1
    broker.client.send(sent(1, transactional(1, 0, 0, 1)))
    others.send(*(produce(number) for number in range(20)))
    partition_closing.reopen(broker.partition)
    parking.settled((TOPIC_ID, 0))
    broker.client.send(sent(2, transactional(1, 0, 1, 1)))
    await broker.verifier.confirm()
    while parking.is_calling:
        await asyncio.sleep(0)
    if broker.verifier.waiting:
        await broker.verifier.confirm()
    await settle()
    outcomes = broker.client.wire.outcomes()
    assert [(number, code) for number, [(code, _)] in outcomes] == [(1, 0), (2, 0)]
    (_, [(_, first)]), (_, [(_, second)]) = outcomes
    assert first < second


class Frame(bytearray):
    """A frame that can be referred to weakly."""


@pytest.mark.parametrize("moves", [False, True])
async def test_a_waiting_batch_does_not_keep_its_large_request(connect: Connect, moves: bool) -> None:
    """Only the batch is counted, and the request may be answered or abandoned before the wait ends."""
    broker = await connect()
    if moves:
        partition_closing.begin_move(broker.partition)
    content = sent(1, transactional(1, 0, 0, 1), transactional(1, 0, 0, 3_000))
    frame = Frame(content)
    kept = weakref.ref(frame)
    broker.client.connection.frames_received([frame])
    del frame
    assert broker.verifier.waiting or broker.client.partitions.parking._bytes
    broker.client.connection.closed()
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("moves", [False, True])
async def test_a_request_of_a_disconnected_client_does_not_stay_until_its_timeout(
    connect: Connect, moves: bool
) -> None:
    """The client chooses the timeout, up to 24 days, and the names of the request's topics."""
    broker = await connect()
    if moves:
        partition_closing.begin_move(broker.partition)
    content = sent(1, transactional(1, 0, 0, 1), transactional(1, 0, 0, 1))
    broker.client.send(content)
    places = broker.client.connection._places
    assert places is not None
    (request,) = places
    assert isinstance(request, ProducePending)
    broker.client.connection.closed()
    if moves:
        partition_closing.reopen(broker.partition)
        broker.client.partitions.parking.settled((TOPIC_ID, 0))
    else:
        await broker.verifier.confirm()
    await settle()
    assert broker.partition.log_end_offset == 0
    assert request.is_answered
    assert not request.outcomes


async def test_a_verified_batch_does_not_park_behind_later_ones_of_its_producer(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition moves again while its parked batches are retried, and this move is cancelled, too."""
    monkeypatch.setattr(transit_parking, "CALLS_PER_TURN_MAX", 1)
    broker = await connect()
    others = Client(broker.rig, broker.partition, is_short=True)
    others.partitions.parking = parking = broker.client.partitions.parking
    partition_closing.begin_move(broker.partition)
    parking._calls_left = 1
    broker.client.send(sent(1, transactional(1, 0, 0, 1)))
    others.send(*(produce(number) for number in range(20)))
    partition_closing.reopen(broker.partition)
    parking.settled((TOPIC_ID, 0))
    broker.client.send(sent(2, transactional(1, 0, 1, 1)))
    partition_closing.begin_move(broker.partition)
    await broker.verifier.confirm()
    partition_closing.reopen(broker.partition)
    parking.settled((TOPIC_ID, 0))
    while parking.is_calling:
        await asyncio.sleep(0)
    retried = [sent(3, transactional(1, 0, 0, 1)), sent(4, transactional(1, 0, 1, 1))]
    for request in [None, *retried]:
        if request is not None:
            broker.client.send(request)
        if broker.verifier.waiting:
            await broker.verifier.confirm()
        await settle()
    codes = {number: code for number, [(code, _)] in broker.client.wire.outcomes()}
    assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER not in codes.values()
    assert (codes[3], codes[4]) == (0, 0)


@pytest.mark.parametrize("moves", [False, True])
async def test_a_waiting_batch_does_not_keep_the_client_id(connect: Connect, moves: bool) -> None:
    """A client id may take 131 KB, and the wait may outlast the connection."""
    broker = await connect()
    if moves:
        partition_closing.begin_move(broker.partition)
    request = ProduceRequest(
        "x",
        -1,
        30_000,
        [TopicProduceData("t", partition_data=[PartitionProduceData(0, transactional(1, 0, 0, 1).view)])],
    )
    tracemalloc.start()
    try:
        broker.client.send(encode_request_header(ApiKey.PRODUCE, 9, 1, "x" * 32_000) + encode(request, 9))
        broker.client.connection.closed()
        gc.collect()
        assert broker.verifier.waiting or broker.client.partitions.parking._bytes
        assert max(one.size for one in tracemalloc.take_snapshot().traces) < 32_000
    finally:
        tracemalloc.stop()


async def test_a_later_batch_does_not_park_before_a_verified_one_while_silent_requests_expire(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent requests have their own time limit, and the partition still moves when they are refused."""
    monkeypatch.setattr(transit_parking, "CALLS_PER_TURN_MAX", 1)
    broker = await connect()
    parking = broker.client.partitions.parking
    broker.client.send(sent(1, transactional(1, 0, 0, 1)))
    partition_closing.begin_move(broker.partition)
    for _ in range(5):
        parking.park((TOPIC_ID, 0), lambda: None, is_silent=True)
    parking._calls_left = 1
    parking._expire((TOPIC_ID, 0), True)
    broker.client.send(sent(2, transactional(1, 0, 1, 1)))
    while parking.is_calling:
        await asyncio.sleep(0)
    await broker.verifier.confirm()
    partition_closing.reopen(broker.partition)
    parking.settled((TOPIC_ID, 0))
    while parking.is_calling or broker.verifier.waiting:
        if broker.verifier.waiting:
            await broker.verifier.confirm()
        await asyncio.sleep(0)
    await settle()
    assert broker.client.wire.outcomes() == [(1, [(0, 0)]), (2, [(0, 1)])]
