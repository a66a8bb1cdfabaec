"""Produce requests for a sealed partition wait in order for the end of the move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from ponor_broker.partitions.handoff import partition_closing, transit_parking
from ponor_broker.partitions.partition import Partition
from ponor_kafka.compression import Codec
from ponor_kafka.errors import ErrorCode
from ponor_kafka.record_builder import build_batch
from ponor_runtime.telemetry_otlp import export_spans

from services.broker.tests.handlers.produce.test_produce_path import Client, produce, settle
from services.broker.tests.partition_rig import TOPIC_ID, PartitionRig, batch, turns

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
PRODUCER = 4711
Sealed = Callable[[], Awaitable[tuple[Partition, Client]]]


@pytest.fixture(params=[True, False], ids=["short way", "long way"])
def sealed(request: pytest.FixtureRequest) -> Sealed:
    """A client of a sealed partition with three records of a producer."""

    async def connected() -> tuple[Partition, Client]:
        rig = PartitionRig()
        partition = await rig.open()
        client = Client(rig, partition, is_short=request.param)
        client.send(produce(0, (0, batch(3, producer_id=PRODUCER, epoch=0, sequence=0).view)))
        await settle()
        assert client.wire.answers.pop(0)[0].error_code == ErrorCode.NONE
        partition_closing.begin_move(partition)
        await partition_closing.persist_for_move(partition, turns())
        return partition, client

    return connected


async def test_parked_batches_are_appended_in_order_after_a_cancelled_move(sealed: Sealed) -> None:
    partition, client = await sealed()
    client.send(*(produce(number) for number in range(1, 4)))
    await settle()
    assert client.wire.answers == {}
    assert partition.log_end_offset == 3
    partition_closing.reopen(partition)
    client.partitions.parking.settled((TOPIC_ID, 0))
    await settle()
    assert client.wire.outcomes() == [(1, [(0, 3)]), (2, [(0, 4)]), (3, [(0, 5)])]
    assert client.flow.in_flight.held_bytes == 0


async def test_parked_requests_are_appended_before_new_ones(
    sealed: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transit_parking, "CALLS_PER_TURN_MAX", 4)
    partition, client = await sealed()
    client.send(*(produce(number) for number in range(1, 11)))
    await settle()
    partition_closing.reopen(partition)
    client.partitions.parking.settled((TOPIC_ID, 0))
    assert partition.log_end_offset == 3 + 4
    client.send(produce(11))
    assert partition.log_end_offset == 3 + 4
    await settle()
    assert client.wire.outcomes() == [(number, [(0, 2 + number)]) for number in range(1, 12)]
    client.send(produce(12))
    assert partition.log_end_offset == 3 + 12


async def test_parked_batches_that_are_large_after_decompression_are_retried_one_per_turn(
    sealed: Sealed,
) -> None:
    """128 parked batches of 2 KB that decompress to 60 MiB each would stop the event loop for 15 s."""
    partition, client = await sealed()
    client.partitions.parking._bytes_left = 600 << 10
    packed = bytes(build_batch([(client.clock.now_ms, b"k", bytes(600 << 10))], codec=Codec.ZSTD))
    client.send(*(produce(number, (0, packed)) for number in range(1, 4)))
    partition_closing.reopen(partition)
    client.partitions.parking.settled((TOPIC_ID, 0))
    assert partition.log_end_offset == 3 + 1
    await settle()
    assert client.wire.outcomes() == [(number, [(0, 2 + number)]) for number in range(1, 4)]


async def test_a_parked_repeat_gets_the_first_offset(sealed: Sealed) -> None:
    partition, client = await sealed()
    client.send(produce(1, (0, batch(3, producer_id=PRODUCER, epoch=0, sequence=0).view)))
    await settle()
    partition_closing.reopen(partition)
    client.partitions.parking.settled((TOPIC_ID, 0))
    await settle()
    assert client.wire.outcomes() == [(1, [(0, 0)])]
    assert partition.log_end_offset == 3


async def test_parked_batches_are_refused_when_the_partition_moved(sealed: Sealed) -> None:
    partition, client = await sealed()
    client.send(produce(1), produce(2))
    await settle()
    partition_closing.end(partition)
    client.partitions.parking.settled((TOPIC_ID, 0))
    await settle()
    assert client.wire.outcomes() == [(1, [(NOT_LEADER, -1)]), (2, [(NOT_LEADER, -1)])]


async def test_other_partitions_of_the_request_are_processed_immediately(sealed: Sealed) -> None:
    _, client = await sealed()
    client.send(produce(1, (0, batch().view), (7, batch().view)))
    await settle()
    assert client.wire.answers == {}
    client.partitions.parking.settled((TOPIC_ID, 0))
    await settle()
    assert client.wire.outcomes() == [(1, [(NOT_LEADER, -1), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)])]


async def test_a_disconnected_clients_parked_batch_is_not_appended(sealed: Sealed) -> None:
    """The client may repeat the batch over another connection, without a producer id."""
    partition, client = await sealed()
    client.send(produce(1))
    await settle()
    client.connection.closed()
    partition_closing.reopen(partition)
    client.partitions.parking.settled((TOPIC_ID, 0))
    await settle()
    assert partition.log_end_offset == 3


async def test_a_timed_out_parked_batch_is_not_appended(sealed: Sealed) -> None:
    partition, client = await sealed()
    client.send(produce(1, timeout_ms=100))
    client.clock.now_ms += 1_000
    while not client.wire.answers:
        await asyncio.sleep(0.01)
    assert client.wire.outcomes() == [(1, [(ErrorCode.REQUEST_TIMED_OUT, -1)])]
    partition_closing.reopen(partition)
    client.partitions.parking.settled((TOPIC_ID, 0))
    await settle()
    assert partition.log_end_offset == 3


async def test_acks_0_requests_wait_in_order(sealed: Sealed) -> None:
    partition, client = await sealed()
    client.send(produce(1, acks=0), produce(2, acks=0), produce(3))
    await settle()
    assert (partition.log_end_offset, client.wire.ended) == (3, [])
    partition_closing.reopen(partition)
    client.partitions.parking.settled((TOPIC_ID, 0))
    await settle()
    assert partition.log_end_offset == 6
    assert client.wire.outcomes() == [(3, [(0, 5)])], "requests without acknowledgement are not answered"
    assert client.wire.ended == []
    assert client.flow.in_flight.held_bytes == 0


async def test_acks_0_a_refusal_after_the_wait_closes_the_connection(sealed: Sealed) -> None:
    partition, client = await sealed()
    client.send(produce(1, acks=0), produce(2, acks=0))
    await settle()
    assert client.wire.ended == []
    partition_closing.end(partition)
    client.partitions.parking.settled((TOPIC_ID, 0))
    await settle()
    (reason,) = client.wire.ended
    assert "a Produce request with acks=0 was refused" in str(reason)
    assert partition.log_end_offset == 3
    assert client.flow.in_flight.held_bytes == 0


async def test_acks_0_without_room_closes_the_connection(sealed: Sealed) -> None:
    _, client = await sealed()
    client.partitions.parking._bytes_max = 0
    client.send(produce(1, acks=0))
    await settle()
    (reason,) = client.wire.ended
    assert "is moving to another broker" in str(reason)


async def test_a_parked_request_is_traced_to_its_own_span(sealed: Sealed) -> None:
    """`settled` may be called while another request is processed."""
    partition, client = await sealed()
    kept = InMemorySpanExporter()
    stop = export_spans(client.telemetry, kept, Resource.get_empty(), ALWAYS_ON)
    client.send(produce(1), produce(2))
    await settle()
    partition_closing.reopen(partition)
    client.partitions.parking.settled((TOPIC_ID, 0))
    await settle()
    assert client.telemetry.request is None
    stop()
    spans = kept.get_finished_spans()
    requests = {
        span.context.span_id: span.attributes["ponor.kafka.correlation_id"]
        for span in spans
        if span.name == "ponor.kafka.request" and span.context is not None and span.attributes is not None
    }
    appends = {
        span.attributes["messaging.kafka.offset"]: requests[span.parent.span_id]
        for span in spans
        if span.name == "ponor.produce.append" and span.parent is not None and span.attributes is not None
    }
    assert appends == {3: 1, 4: 2}
