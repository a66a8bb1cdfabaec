"""Produce from frame to answer: one connection, the real dispatcher and handler, partitions on memory
streams.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest
from ponor_broker.handlers.produce.plain_produce import PlainProduceHandler
from ponor_broker.handlers.produce.produce import ProduceHandler
from ponor_broker.handlers.produce.produce_answer import PartitionOutcome, ProduceAnswers
from ponor_broker.handlers.produce.produce_deadlines import TIMEOUT_MS_MIN, ProduceDeadlines
from ponor_broker.handlers.produce.verified_batches import VerifiedBatches, Verifier
from ponor_broker.partitions.batch_validation import RECORD_ERRORS_MAX, BatchValidator
from ponor_broker.partitions.errors import PartitionError, PartitionInTransitError
from ponor_broker.partitions.handoff.transit_parking import TransitParking
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state.producer_entry import ProducerBatch
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.connection import ClientConnection, ConnectionContext
from ponor_broker.requests.dispatch import Dispatcher
from ponor_broker.requests.request_flow import RequestFlow
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode_as, encode
from ponor_kafka.compression import Codec
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    encode_response_frame,
)
from ponor_kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ponor_kafka.produce_walk import TOPIC_ID_MIN
from ponor_kafka.record_builder import build_batch
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.disk import Buffer
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.memory_streams import MemoryStream
from services.broker.tests.partition_rig import TOPIC_ID, PartitionRig, SteppedClock, batch
from services.broker.tests.serving_kit import Permission

VERSIONS = range(3, 14)
VERSION = 9
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class OnePartition:
    """The look-up of a broker that leads one partition: `t-0`."""

    def __init__(self, partition: Partition, topics: Topics, refused: RefusedSequences) -> None:
        self.topics = topics
        self.parking = TransitParking(ms_max=60_000, bytes_max=1 << 20, telemetry=Telemetry())
        self._partition = partition
        self._refused = refused

    def get(self, topic: str | bytes, index: int) -> Partition | None:
        return self._partition if topic in {"t", TOPIC_ID} and index == 0 else None

    def find(self, topic: str | bytes, index: int) -> Partition:
        partition = self.get(topic, index)
        if partition is not None and partition.service.is_held:
            raise PartitionInTransitError(partition.identity.key, "its streams are being closed")
        if partition is not None:
            return partition
        raise PartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic!r}-{index}")

    def note_refusal(self, topic: str | bytes, index: int, batch: ProducerBatch) -> None:
        assert topic in {"t", TOPIC_ID}
        self._refused.note((TOPIC_ID, index), batch)


@dataclass
class Wire:
    """Answers to the client by correlation id, and their order."""

    answers: dict[int, list[PartitionProduceResponse]] = field(default_factory=dict)
    ended: list[str | BaseException] = field(default_factory=list)

    def send(self, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        while data:
            length = int.from_bytes(data[:4], "big")
            frame, data = data[4 : 4 + length], data[4 + length :]
            number, position = decode_response_header(ApiKey.PRODUCE, VERSION, frame)
            response, end = decode_as(ProduceResponse, VERSION, frame, position)
            assert end == length
            self.answers[number] = [row for topic in response.responses for row in topic.partition_responses]

    def want_reading(self, *, wanted: bool) -> None:
        """Accept frames regardless of backpressure."""

    def end(self, reason: str | BaseException) -> None:
        self.ended.append(reason)

    def outcomes(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """In the order of arrival: correlation id, and (error code, base offset) per partition."""
        return [
            (number, [(row.error_code, row.base_offset) for row in rows])
            for number, rows in self.answers.items()
        ]


class Client:
    """A connection to a broker that leads one partition; the test controls its disk."""

    def __init__(
        self, rig: PartitionRig, partition: Partition, *, is_short: bool, verifier: Verifier | None = None
    ) -> None:
        self.wire = Wire()
        self.clock: SteppedClock = rig.clock
        self.log: MemoryStream = rig.stream("log")
        self.telemetry = Telemetry()
        partitions = self.partitions = OnePartition(partition, Topics(lambda: rig.image), rig.refused)
        validator = BatchValidator(decompressed_batch_bytes_max=1 << 20)
        handler = ProduceHandler(
            partitions,  # type: ignore[arg-type]  # all that it asks for
            validator,
            VerifiedBatches(verifier),  # type: ignore[arg-type]  # None: no batch is transactional
            rig.clock,
            self.telemetry,
        )
        plain = PlainProduceHandler(partitions, rig.clock, batch_bytes_max=1 << 20)  # type: ignore[arg-type]
        dispatcher = Dispatcher(
            [],
            raw={ApiKey.PRODUCE: handler},
            plain=plain if is_short else None,
            serving=Permission(rig.clock).serving,
            clock=rig.clock,
            telemetry=self.telemetry,
        )
        self.flow = RequestFlow(
            rig.clock, in_flight=ByteBudget("in flight", 1 << 20), waiting=ByteBudget("waiting", 1 << 20)
        )
        self.connection = ClientConnection(dispatcher, self.wire, ConnectionContext("peer"), self.flow)

    def send(self, *frames: bytes) -> None:
        self.connection.frames_received([bytearray(frame) for frame in frames])


Connect = Callable[[], Awaitable[tuple[Partition, Client]]]


@pytest.fixture(params=[True, False], ids=["short way", "long way"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """A partition and a client of it, on the fast path and on the general path."""

    async def connected() -> tuple[Partition, Client]:
        rig = PartitionRig()
        partition = await rig.open()
        return partition, Client(rig, partition, is_short=request.param)

    return connected


def produce(
    number: int, *rows: tuple[int, Buffer], acks: int = -1, timeout_ms: int = 30_000, topic: str = "t"
) -> bytes:
    """Return a request with this correlation id; by default one batch of one record for partition 0."""
    data = [PartitionProduceData(*row) for row in rows or [(0, batch().view)]]
    request = ProduceRequest(None, acks, timeout_ms, [TopicProduceData(topic, partition_data=data)])
    return encode_request_header(ApiKey.PRODUCE, VERSION, number, "client") + encode(request, VERSION)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_pipelined_requests_are_answered_together_when_their_group_is_durable(connect: Connect) -> None:
    _, client = await connect()
    client.log.hold = True
    client.send(produce(1), produce(2), produce(3))
    await settle()
    assert client.wire.answers == {}
    client.log.confirm(2)
    await settle()
    assert client.wire.outcomes() == [(1, [(0, 0)]), (2, [(0, 1)])]
    client.log.confirm()
    await settle()
    assert client.wire.outcomes()[2:] == [(3, [(0, 2)])]
    assert client.flow.in_flight.held_bytes == 0
    assert next(client.telemetry.counters("ponor_kafka_requests_total"))[1] == 3


async def test_a_log_failure_refuses_the_remaining_appends(
    connect: Connect,
) -> None:
    partition, client = await connect()
    client.log.hold = True
    client.send(*(produce(number) for number in range(4)))
    client.log.confirm(2)
    client.log.fail()
    await settle()
    refused = [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]
    assert client.wire.outcomes() == [(0, [(0, 0)]), (1, [(0, 1)]), (2, refused), (3, refused)]
    assert partition.high_watermark == 2
    client.send(produce(4))
    await settle()
    assert client.wire.outcomes()[4:] == [(4, [(NOT_LEADER, -1)])]
    assert not client.wire.ended


async def test_partitions_of_one_request_have_separate_outcomes(connect: Connect) -> None:
    _, client = await connect()
    client.log.hold = True
    damaged = bytearray(batch().view)
    damaged[-1] ^= 1
    client.send(produce(1, (0, batch().view), (7, batch().view), (0, damaged), (0, batch(2).view)))
    client.log.confirm(1)
    await settle()
    assert client.wire.answers == {}
    client.log.confirm()
    await settle()
    assert client.wire.outcomes() == [
        (
            1,
            [
                (0, 0),
                (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
                (ErrorCode.CORRUPT_MESSAGE, -1),
                (0, 1),
            ],
        )
    ]


async def test_the_batches_of_one_request_share_a_bound_on_decompression(connect: Connect) -> None:
    """A batch of 2 KB may become 60 MiB: 20 of them stopped the event loop for seconds."""
    _, client = await connect()
    packed = bytes(build_batch([(client.clock.now_ms, b"k", bytes(600 << 10))], codec=Codec.ZSTD))
    client.send(produce(1, *[(0, packed)] * 4, (0, batch().view)), produce(2, (0, packed)))
    await settle()
    later = (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert client.wire.outcomes() == [(1, [(0, 0), (0, 1), later, later, (0, 2)]), (2, [(0, 3)])]


async def test_an_answer_lists_a_bounded_number_of_records(connect: Connect) -> None:
    """A batch of 100 bytes may contain a thousand wrong records: 2 MB had an answer of 150 MB."""
    _, client = await connect()
    ahead_ms = client.clock.now_ms + 10**9
    wrong = bytes(build_batch([(ahead_ms, b"k", b"v")] * (RECORD_ERRORS_MAX * 2 // 3), codec=Codec.ZSTD))
    client.send(produce(1, *[(0, wrong)] * 4))
    await settle()
    rows = client.wire.answers[1]
    assert {row.error_code for row in rows} == {ErrorCode.INVALID_TIMESTAMP}
    assert sum(len(row.record_errors) for row in rows) == RECORD_ERRORS_MAX
    assert all(f"{RECORD_ERRORS_MAX * 2 // 3} of" in (row.error_message or "") for row in rows)


async def test_a_refusal_is_sent_after_earlier_answers(connect: Connect) -> None:
    _, client = await connect()
    client.log.hold = True
    client.send(produce(1), produce(2, topic="unknown"), produce(3, acks=7))
    await settle()
    assert client.wire.answers == {}
    client.log.confirm()
    await settle()
    assert client.wire.outcomes() == [
        (1, [(0, 0)]),
        (2, [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]),
        (3, [(ErrorCode.INVALID_REQUIRED_ACKS, -1)]),
    ]


async def test_acks_0_gets_no_answer_and_a_refusal_closes_the_connection(connect: Connect) -> None:
    partition, client = await connect()
    client.send(produce(1, acks=0), produce(2), produce(3, acks=0))
    await settle()
    assert client.wire.outcomes() == [(2, [(0, 1)])]
    assert partition.high_watermark == 3
    client.send(produce(4, acks=0, topic="unknown"))
    assert "refused" in str(client.wire.ended)
    assert client.flow.in_flight.held_bytes == 0


async def test_a_repeat_is_answered_with_the_first_offset_when_that_is_durable(connect: Connect) -> None:
    partition, client = await connect()
    client.log.hold = True
    once = bytes(batch(2, producer_id=9, epoch=0, sequence=0).view)
    client.send(produce(1, (0, once)), produce(2, (0, once)))
    await settle()
    assert client.wire.answers == {}
    client.log.confirm()
    await settle()
    client.send(produce(3, (0, once)))
    assert client.wire.outcomes() == [(1, [(0, 0)]), (2, [(0, 0)]), (3, [(0, 0)])]
    assert partition.log_end_offset == 2


async def test_a_late_request_times_out_and_its_append_stays(connect: Connect) -> None:
    partition, client = await connect()
    client.log.hold = True
    client.send(produce(1, timeout_ms=200), produce(2, timeout_ms=0), produce(3, timeout_ms=60_000))
    client.log.confirm(0)
    client.clock.now_ms += TIMEOUT_MS_MIN
    await asyncio.sleep(0.15)  # the loop's own time; the broker looks at its clock
    assert client.wire.answers == {}  # the first one's time is not over, so the second one's answer waits
    client.clock.now_ms += 200 - TIMEOUT_MS_MIN
    await asyncio.sleep(0.25)
    late = [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    assert client.wire.outcomes() == [(1, late), (2, late)]
    client.log.confirm()
    await settle()
    assert client.wire.outcomes()[2:] == [(3, [(0, 2)])]
    assert partition.high_watermark == 3
    assert client.flow.in_flight.held_bytes == 0


async def test_deadlines_expire_in_order_and_skip_answered_requests() -> None:
    class Request:
        def __init__(self, received_ns: int) -> None:
            self.received_ns = received_ns
            self.is_answered = False

        def expire(self) -> None:
            self.is_answered = True
            expired.append(self)

    expired: list[Request] = []
    clock = SteppedClock()
    deadlines = ProduceDeadlines(clock)
    requests = [Request(clock.monotonic_ns()) for _ in range(4)]
    for request, timeout_ms in zip(requests, (300, 100, 100, 200), strict=True):
        deadlines.add(request, timeout_ms)
    requests[1].is_answered = True
    for step_ms, expected in ((100, [2]), (100, [2, 3]), (100, [2, 3, 0])):
        clock.now_ms += step_ms
        await asyncio.sleep(step_ms / 1000 + 0.05)
        assert [requests.index(request) for request in expired] == expected
    assert deadlines._waiting == {}
    assert deadlines._timer is None


async def test_different_timeouts_share_few_queues() -> None:
    class Answered:
        received_ns = 0
        is_answered = True

        def expire(self) -> None:
            raise AssertionError("it was answered")

    deadlines = ProduceDeadlines(SteppedClock())
    for timeout_ms in (*range(20_000), *range(2**31 - 20_000, 2**31)):
        deadlines.add(Answered(), timeout_ms)
    assert deadlines._timer is not None
    deadlines._timer.cancel()
    assert all(100 <= timeout_ms <= 2**31 for timeout_ms in deadlines._waiting)
    assert sum(map(len, deadlines._waiting.values())) < 1_000


async def test_a_malformed_request_appends_nothing(connect: Connect) -> None:
    partition, client = await connect()
    client.send(produce(1), produce(2)[:-5], produce(3))
    await settle()
    assert client.wire.ended
    assert client.wire.answers == {}  # the connection is gone
    assert partition.high_watermark == 1


async def test_requests_create_no_reference_cycles(connect: Connect) -> None:
    _, client = await connect()
    for number in range(3):
        await _exchange(client, number)
    gc.collect()
    for number in range(100):
        await _exchange(client, number)
    assert gc.collect() < 100  # a cycle per request would be several objects each


async def _exchange(client: Client, number: int) -> None:
    client.send(produce(number), produce(number, acks=0))
    await settle()
    assert client.wire.answers.pop(number)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_success_template_equals_the_codecs_bytes(version: int) -> None:
    answers = ProduceAnswers(Topics(lambda: PartitionRig().image))
    header = RequestHeader(ApiKey.PRODUCE, version, 0, "client", 0)
    for topic in ("t", "x" * 249) if version < TOPIC_ID_MIN else (bytes(range(16)), b"\xff" * 16):
        for index, base_offset, append_ms, log_start in ((0, 0, -1, 0), (1 << 30, 1 << 62, 1 << 41, 1 << 61)):
            header.correlation_id = 0x7FFF_FFF0 + index % 3
            outcome = PartitionOutcome(topic, index)
            outcome.base_offset = base_offset
            outcome.log_append_time_ms = append_ms
            outcome.log_start_offset = log_start
            expected = encode_response_frame(
                ApiKey.PRODUCE, version, header.correlation_id, answers.body(version, [outcome], "")
            )
            assert answers.one_success(header, outcome) == b"".join(expected)
