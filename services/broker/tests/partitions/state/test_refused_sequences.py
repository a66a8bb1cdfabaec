"""A temporary refusal never reorders a producer's batches, and is never final."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.handoff import partition_closing
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state import sequence_order as refused_sequences
from ponor_broker.partitions.state.producer_entry import SEQUENCE_MODULUS, ProducerBatch
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_kafka.errors import ErrorCode
from ponor_kafka.record_batch import BatchView
from s3stream.errors import S3StreamError

from services.broker.tests.handlers.produce.test_produce_path import produce, settle
from services.broker.tests.handlers.produce.test_produce_transit import Sealed, sealed
from services.broker.tests.partition_rig import TOPIC_ID, PartitionRig, SteppedClock, batch
from services.broker.tests.partitions.transactions.transaction_kit import TransactionRig
from tests.examples import examples

__all__ = ["sealed"]
KEY = (TOPIC_ID, 0)
IN_FLIGHT_MAX = 5
RETRIABLE = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR}


def sent(sequence: int, epoch: int = 0, producer_id: int = 7) -> ProducerBatch:
    return ProducerBatch(producer_id, epoch, sequence, 1)


# The rules


def test_later_batches_wait_for_a_refused_one() -> None:
    refused = RefusedSequences(SteppedClock())
    refused.note(KEY, sent(3))
    assert not refused.holds_back(KEY, sent(3), is_known=False)
    assert not refused.holds_back(KEY, sent(2), is_known=False)
    assert refused.holds_back(KEY, sent(4), is_known=False)
    assert not refused.holds_back(KEY, sent(4, producer_id=8), is_known=False)
    assert not refused.holds_back((TOPIC_ID, 1), sent(4), is_known=False)
    refused.note(KEY, sent(5))  # refused too: the first one still counts
    refused.taken(KEY, sent(2))
    assert refused.holds_back(KEY, sent(4), is_known=True)
    refused.taken(KEY, sent(3))
    assert not refused.holds_back(KEY, sent(4), is_known=True)
    assert refused.holds_back(KEY, sent(5), is_known=True), (
        "4 was sent before it and did not arrive, or was refused"
    )
    refused.taken(KEY, sent(4))
    refused.taken(KEY, sent(5))
    assert refused.waiting_for == {}


def test_an_earlier_sequence_or_a_later_epoch_replaces_a_refused_one() -> None:
    refused = RefusedSequences(SteppedClock())
    refused.note(KEY, sent(5))
    refused.note(KEY, sent(2))
    assert refused.holds_back(KEY, sent(3), is_known=False)
    assert not refused.holds_back(KEY, sent(0, epoch=1), is_known=False)
    refused.note(KEY, sent(0, epoch=1))
    refused.note(KEY, sent(2))
    assert refused.holds_back(KEY, sent(1, epoch=1), is_known=False)
    refused.taken(KEY, sent(0, epoch=2))
    assert refused.waiting_for == {}


def test_sequences_wrap() -> None:
    refused = RefusedSequences(SteppedClock())
    refused.note(KEY, sent(SEQUENCE_MODULUS - 1))
    assert refused.holds_back(KEY, sent(0), is_known=False)
    assert not refused.holds_back(KEY, sent(SEQUENCE_MODULUS - 2), is_known=False)


def test_a_refused_batch_expires() -> None:
    clock = SteppedClock()
    refused = RefusedSequences(clock)
    refused.note(KEY, sent(0))
    clock.now_ms += refused_sequences.REMEMBERED_NS // 1_000_000 - 1
    assert refused.holds_back(KEY, sent(1), is_known=False), "which is a refusal as well"
    clock.now_ms += refused_sequences.REMEMBERED_NS // 1_000_000
    assert not refused.holds_back(KEY, sent(1), is_known=False)


def test_beyond_the_bound_unknown_producers_must_start_at_sequence_zero() -> None:
    clock = SteppedClock()
    refused = RefusedSequences(clock, refused_max=2)
    for producer_id in (1, 2, 3):
        refused.note(KEY, sent(0, producer_id=producer_id))
    assert len(refused.waiting_for) == 2
    assert refused.holds_back(KEY, sent(1, producer_id=1), is_known=False), "it was forgotten"
    assert not refused.holds_back(KEY, sent(0, producer_id=1), is_known=False)
    assert not refused.holds_back(KEY, sent(1, producer_id=4), is_known=True)
    clock.now_ms += refused_sequences.REMEMBERED_NS // 1_000_000
    assert not refused.holds_back(KEY, sent(1, producer_id=1), is_known=False)


# The partition


async def test_the_second_batch_of_a_new_producer_waits_for_its_refused_first() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    log = rig.stream("log")
    log.is_full = True
    assert offer(partition, 0) is ErrorCode.REQUEST_TIMED_OUT
    log.is_full = False
    assert offer(partition, 1) is ErrorCode.REQUEST_TIMED_OUT
    assert [offer(partition, sequence) for sequence in (0, 1, 2)] == [0, 1, 2]


async def test_a_gap_after_a_refused_batch_is_retriable() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    log = rig.stream("log")
    assert offer(partition, 0) == 0
    log.is_full = True
    assert offer(partition, 1) is ErrorCode.REQUEST_TIMED_OUT
    log.is_full = False
    assert offer(partition, 2) is ErrorCode.REQUEST_TIMED_OUT
    assert [offer(partition, sequence) for sequence in (1, 2)] == [1, 2]
    assert offer(partition, 4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap that no refusal made"


@pytest.mark.parametrize("accepted", [1, 2], ids=["the refused one", "the one behind it too"])
async def test_a_refused_batch_that_another_broker_accepted_holds_back_nothing(accepted: int) -> None:
    """The partition moves away after a refusal, and returns while the transaction is open."""
    here = TransactionRig()
    await here.open()
    here.append(7)
    await asyncio.sleep(0)
    here.rig.refused.note(KEY, sent(1))
    there = TransactionRig(here.streams)
    there.rig.image, there.rig.epoch, there.partition = here.rig.image, here.rig.epoch, here.partition
    await there.reopen()
    for sequence in range(1, 1 + accepted):
        there.append(7, sequence=sequence)
    await asyncio.sleep(0)
    here.rig.epoch, here.partition = there.rig.epoch, there.partition
    await here.reopen()
    assert here.append(7, sequence=1 + accepted) == 1 + accepted
    assert here.rig.refused.waiting_for == {}


async def test_a_batch_behind_two_refused_ones_waits_although_another_broker_accepted_the_first() -> None:
    here = TransactionRig()
    await here.open()
    here.append(7)
    here.append(7)
    # Another broker accepted the batch with sequence 1 before this one opened the partition.
    here.rig.refused.note(KEY, sent(1))
    here.rig.refused.note(KEY, sent(2))
    with pytest.raises(PartitionError, match="must be retried first"):
        here.append(7, sequence=3)
    assert [here.append(7, sequence=sequence) for sequence in (2, 3)] == [2, 3]
    assert here.rig.refused.waiting_for == {}


def offer(partition: Partition, sequence: int, producer_id: int = 7) -> int | ErrorCode:
    """Return the offset of a batch, or its error."""
    one = batch(1, producer_id=producer_id, epoch=0, sequence=sequence)
    try:
        return partition.append(one, 0, lambda _: None)
    except (PartitionError, S3StreamError) as error:
        return storage_error(error).code


@pytest.mark.parametrize("is_late", [False, True], ids=["refused", "answered as late"])
async def test_batches_refused_during_a_cancelled_move_come_first(sealed: Sealed, is_late: bool) -> None:
    partition, client = await sealed()
    first, second = (
        produce(number, (0, batch(1, producer_id=99, epoch=0, sequence=number - 1).view), timeout_ms=100)
        for number in (1, 2)
    )
    client.send(first)
    if is_late:
        client.clock.now_ms += 1_000
        while not client.wire.answers:
            await asyncio.sleep(0.01)
    else:
        client.partitions.parking._expire(KEY, False)
    await settle()
    assert client.wire.answers.pop(1)[0].error_code in RETRIABLE
    partition_closing.reopen(partition)
    client.partitions.parking.settled(KEY)
    client.send(second)
    await settle()
    assert client.wire.answers.pop(2)[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    client.send(first, second)
    await settle()
    assert client.wire.outcomes() == [(1, [(0, 3)]), (2, [(0, 4)])]


# Producers that pipeline, as Java's and librdkafka's do


@dataclass
class Producer:
    """Sends batches in order, at most five at a time; refused ones are sent again first."""

    producer_id: int
    batches: int
    pending: list[int] = field(default_factory=list)
    on_the_wire: deque[int] = field(default_factory=deque)
    acknowledged: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pending = list(range(self.batches))

    @property
    def is_done(self) -> bool:
        return not self.pending and not self.on_the_wire

    def send(self) -> None:
        if self.pending and len(self.on_the_wire) < IN_FLIGHT_MAX:
            self.on_the_wire.append(self.pending.pop(0))

    def arrive(self, partition: Partition) -> None:
        """Process the oldest request and answer it."""
        if not self.on_the_wire:
            return
        sequence = self.on_the_wire.popleft()
        outcome = offer(partition, sequence, self.producer_id)
        if isinstance(outcome, ErrorCode):
            assert outcome in RETRIABLE, f"batch {sequence} of {self.producer_id}: {outcome.name}"
            self.pending = sorted([*self.pending, sequence])
        else:
            self.acknowledged[sequence] = outcome


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "arrive", "arrive", "full", "room", "seal"]), st.integers(0, 2)
    ),
    max_size=120,
)


@settings(max_examples=examples(200), deadline=None)
@given(EVENTS)
async def test_random_refusals_leave_every_producer_its_order(events: list[tuple[str, int]]) -> None:
    rig = PartitionRig()
    partition = await rig.open()
    log = rig.stream("log")
    producers = [Producer(producer_id, 12) for producer_id in range(3)]
    for kind, number in events:
        if kind == "send":
            producers[number].send()
        elif kind == "arrive":
            producers[number].arrive(partition)
        elif kind == "seal":
            # Requests are refused by the handler then, which notes them.
            for producer in producers:
                if producer.on_the_wire:
                    sequence = producer.on_the_wire.popleft()
                    rig.refused.note(KEY, sent(sequence, producer_id=producer.producer_id))
                    producer.pending = sorted([*producer.pending, sequence])
        else:
            log.is_full = kind == "full"
        await asyncio.sleep(0)
    log.is_full = False
    for _ in range(1_000):
        for producer in producers:
            producer.send()
            producer.arrive(partition)
        await asyncio.sleep(0)
    for producer in producers:
        assert producer.is_done
        offsets = [producer.acknowledged[sequence] for sequence in range(producer.batches)]
        assert offsets == sorted(offsets)
    stored = [BatchView(memoryview(record.payload)) for record in log.records]
    for producer in producers:
        own = [view.base_sequence for view in stored if view.producer_id == producer.producer_id]
        assert own == list(range(producer.batches)), "each once, in order"
    assert rig.refused.waiting_for == {}
