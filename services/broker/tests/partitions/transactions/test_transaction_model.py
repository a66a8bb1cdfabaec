"""A partition against a model: random transactions, checkpoints, rolls, moves, and crashes at any append.

The model has no state of its own. It reads the Data stream from its start and applies Kafka's rules.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.transactions import aborted_index
from ponor_broker.partitions.transactions.open_transactions import NO_OFFSET
from ponor_kafka.control_records import ControlType, read_end_marker
from ponor_kafka.errors import ErrorCode
from ponor_kafka.record_batch import BatchView
from ponor_partition.txn_entry import TxnEntry, decode_txn_entry

from services.broker.tests.partition_rig import batch
from services.broker.tests.partitions.transactions.transaction_kit import TransactionRig
from tests.examples import examples

PRODUCERS = 4


@dataclass
class Model:
    """What the batches of the log mean."""

    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Of each producer: epoch, coordinator epoch, last sequence."""
    aborted: list[TxnEntry] = field(default_factory=list)
    pending: dict[int, list[int]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)

    def see(self, batch: BatchView) -> None:
        producer_id, offsets = batch.producer_id, list(range(batch.base_offset, batch.next_offset))
        self.end = batch.next_offset
        if producer_id < 0:
            self.committed.update(offsets)
            return
        known = self.epochs.get(producer_id, (-1, -1, -1))
        if not batch.is_control:
            self.epochs[producer_id] = (batch.producer_epoch, known[1], batch.last_sequence)
            self.open.setdefault(producer_id, batch.base_offset)
            self.pending.setdefault(producer_id, []).extend(offsets)
            return
        marker = read_end_marker(batch)
        assert marker is not None
        first = self.open.pop(producer_id, None)
        records = self.pending.pop(producer_id, [])
        if marker.kind is ControlType.COMMIT:
            self.committed.update(records)
        elif first is not None:
            stable = min(self.open.values(), default=batch.next_offset)
            self.aborted.append(TxnEntry(producer_id, first, batch.base_offset, stable))
        sequence = known[2] if known[0] == batch.producer_epoch else -1
        self.epochs[producer_id] = (batch.producer_epoch, marker.coordinator_epoch, sequence)

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def aborted_in(self, start: int, end: int) -> list[tuple[int, int]]:
        return [
            (one.producer_id, one.first_offset)
            for one in self.aborted
            if one.last_offset >= start and one.first_offset < end
        ]


def model_of(rig: TransactionRig) -> Model:
    model = Model()
    for record in rig.rig.stream("log").records:
        model.see(BatchView(memoryview(record.payload)))
    return model


async def agree(rig: TransactionRig) -> Model:
    """Compare the partition with the model."""
    for _ in range(3):
        await asyncio.sleep(0)
    model, partition = model_of(rig), rig.partition
    assert partition.high_watermark == model.end
    assert partition.last_stable_offset == model.stable
    for producer_id in range(PRODUCERS):
        entry = partition.producers.entry(producer_id)
        if producer_id not in model.epochs:
            assert entry is None
            continue
        assert entry is not None
        assert entry.first_offset == model.open.get(producer_id, NO_OFFSET)
        assert (entry.epoch, entry.coordinator_epoch, entry.last_sequence) == model.epochs[producer_id]
    assert await rig.committed() == sorted(one for one in model.committed if one < model.stable)
    cuts = sorted({0, model.stable, *(one.last_offset for one in model.aborted), *model.open.values()})
    for start in cuts:
        for end in (start + 1, model.stable):
            if start < end <= model.stable:
                assert await rig.aborted(start, end) == model.aborted_in(start, end)
    stored = [decode_txn_entry(record.payload, "") for record in rig.streams.records_of("txn")]
    assert stored == model.aborted
    return model


async def live(rig: TransactionRig, actions: list[tuple[str, int, Any]]) -> None:
    await rig.open()
    epochs = [0] * PRODUCERS
    for kind, producer_id, how in actions:
        partition = rig.partition
        match kind:
            case "append":
                rig.append(producer_id, epochs[producer_id], count=how)
            case "plain":
                partition.append(batch(how), 5, lambda _: None)
            case "end":
                commits, raises = how
                epochs[producer_id] += raises
                await rig.end(
                    producer_id, epochs[producer_id], commits=commits, generation=2 if raises else 1
                )
            case "checkpoint":
                partition.before_upload()
            case "roll" if partition.log_end_offset > partition.log.log_meta.active.base_offset:
                partition.log.roll(7)
            case "move":
                await asyncio.sleep(0)
                await rig.reopen()
            case "crash":
                await asyncio.sleep(0)
                rig.streams.crash(len(rig.streams.log) * how // 100)
                await rig.open()
                rig.sequences.clear()
                for known, (epoch, _, sequence) in (await agree(rig)).epochs.items():
                    epochs[known] = epoch
                    rig.sequences[known, epoch] = sequence + 1
        await agree(rig)


producer = st.integers(0, PRODUCERS - 1)
action = st.one_of(
    st.tuples(st.just("append"), producer, st.integers(1, 3)),
    st.tuples(st.just("append"), producer, st.integers(1, 3)),
    st.tuples(st.just("plain"), producer, st.integers(1, 3)),
    st.tuples(st.just("end"), producer, st.tuples(st.booleans(), st.booleans())),
    st.tuples(st.just("end"), producer, st.tuples(st.booleans(), st.booleans())),
    st.tuples(st.just("crash"), producer, st.integers(50, 100)),
    *(st.tuples(st.just(name), producer, st.none()) for name in ("checkpoint", "roll", "move")),
)


@pytest.mark.parametrize("entries_max", [1, 3, 1_000])
@settings(max_examples=examples(60), deadline=None)
@given(actions=st.lists(action, max_size=30))
def test_a_partition_agrees_with_the_model(entries_max: int, actions: list[tuple[str, int, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(aborted_index, "ENTRIES_MAX", entries_max)
        asyncio.run(live(TransactionRig(), actions))


async def live_in_flight(rig: TransactionRig, actions: list[tuple[str, int, Any]]) -> None:
    """The Data stream confirms appends when an action says so; the other streams at once."""
    await rig.open()
    pending: list[asyncio.Future[Any]] = []
    for kind, producer_id, how in actions:
        partition, data = rig.partition, rig.rig.stream("log")
        data.hold = True
        match kind:
            case "append":
                rig.append(producer_id, count=how)
            case "plain":
                partition.append(batch(how), 5, lambda _: None)
            case "end":
                pending.append(asyncio.ensure_future(rig.end(producer_id, commits=how[0])))
            case "checkpoint":
                partition.before_upload()
            case "confirm" if data.waiting:
                data.confirm(1 + how % len(data.waiting))
            case "fail":
                rows = [record for at, record in rig.streams.log if at == data.stream_id]
                durable = sum(record.end_offset <= data.confirmed_offset for record in rows)
                kept = len(rig.streams.log)
                if durable < len(rows):
                    kept = next(at for at, one in enumerate(rig.streams.log) if one[1] is rows[durable])
                data.fail()
                await asyncio.gather(*pending, return_exceptions=True)
                rig.streams.crash(kept)
                await rig.open()
                rig.sequences.clear()
                for known, (epoch, _, sequence) in (await agree(rig)).epochs.items():
                    rig.sequences[known, epoch] = sequence + 1
        for _ in range(5):
            await asyncio.sleep(0)
        model = model_of(rig)
        assert rig.partition.high_watermark == model.end
        assert rig.partition.last_stable_offset == model.stable
        assert await rig.committed() == sorted(one for one in model.committed if one < model.stable)
        assert rig.partition.state.checkpoint.stable_offset <= model.stable
    for one in pending:
        one.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


in_flight_action = st.one_of(
    st.tuples(st.just("append"), producer, st.integers(1, 3)),
    st.tuples(st.just("append"), producer, st.integers(1, 3)),
    st.tuples(st.just("plain"), producer, st.integers(1, 3)),
    st.tuples(st.just("end"), producer, st.tuples(st.booleans())),
    st.tuples(st.just("end"), producer, st.tuples(st.booleans())),
    st.tuples(st.just("confirm"), producer, st.integers(0, 5)),
    st.tuples(st.just("confirm"), producer, st.integers(0, 5)),
    *(st.tuples(st.just(name), producer, st.none()) for name in ("checkpoint", "fail")),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(in_flight_action, max_size=40))
def test_the_last_stable_offset_follows_durable_batches(actions: list[tuple[str, int, Any]]) -> None:
    asyncio.run(live_in_flight(TransactionRig(), actions))


@pytest.mark.parametrize("with_checkpoints", [False, True])
async def test_a_crash_at_every_append_leaves_a_partition_that_agrees_with_its_log(
    with_checkpoints: bool,
) -> None:
    async def story() -> TransactionRig:
        rig = TransactionRig()
        await rig.open()
        for number, commits in enumerate((True, False, False, True, False)):
            for producer_id in (0, 1):
                rig.append(producer_id, epoch=0 if producer_id else number)
            if with_checkpoints:
                await asyncio.sleep(0)
                rig.partition.before_upload()
            await rig.end(1, commits=not commits, coordinator_epoch=number)
            await rig.end(0, epoch=number + 1, commits=commits, generation=2)
            if with_checkpoints:
                rig.partition.before_upload()
            rig.partition.log.roll(7)
        await agree(rig)
        return rig

    appends = len((await story()).streams.log)
    for kept in range(6, appends):
        rig = await story()
        rig.streams.crash(kept)
        await rig.open()
        model = await agree(rig)
        for producer_id, first_offset in list(model.open.items()):
            assert rig.partition.last_stable_offset <= first_offset
            epoch = model.epochs[producer_id][0]
            await rig.end(producer_id, epoch, commits=False, coordinator_epoch=9)
        assert (await agree(rig)).open == {}


async def test_a_refused_entry_is_written_before_the_next_checkpoint() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    rig.append(1)
    await rig.end(1, commits=False)
    rig.append(2)
    rig.rig.stream("txn").is_full = True
    await rig.end(2, commits=False)
    assert await rig.aborted(0, 4) == [(1, 0), (2, 2)]
    recover = partition.state.checkpoint.recover_offset
    partition.before_upload()
    assert partition.state.checkpoint.recover_offset == recover
    rig.streams.crash(len(rig.streams.log))
    await rig.open()
    await agree(rig)
    assert len(rig.streams.records_of("txn")) == 2


async def test_a_failed_append_reopens_with_the_durable_transactions() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    rig.append(1)
    await asyncio.sleep(0)
    kept = len(rig.streams.log)
    rig.rig.stream("log").hold = True
    rig.append(1)
    rig.append(2)
    pending = asyncio.ensure_future(rig.end(1, commits=True))
    await asyncio.sleep(0)
    assert partition.last_stable_offset == 0
    assert 1 not in partition.producers.transactions
    rig.rig.stream("log").fail()
    await asyncio.gather(pending, return_exceptions=True)
    assert pending.exception() is not None
    assert 1 in partition.producers.transactions
    assert 2 not in partition.producers.transactions
    rig.streams.crash(kept)
    await rig.open()
    assert (await agree(rig)).open == {1: 0}


async def test_the_last_stable_offset_waits_for_a_durable_marker() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    rig.append(1)
    partition.append(batch(2), 5, lambda _: None)
    await asyncio.sleep(0)
    assert (partition.last_stable_offset, partition.high_watermark) == (0, 3)
    rig.rig.stream("log").hold = True
    pending = asyncio.ensure_future(rig.end(1, commits=True))
    await asyncio.sleep(0)
    rig.append(2)
    assert (partition.last_stable_offset, partition.high_watermark) == (0, 3)
    rig.rig.stream("log").confirm()
    await pending
    assert (partition.last_stable_offset, partition.high_watermark) == (4, 5)


async def test_the_first_checkpoint_with_transactions_precedes_the_first_batch() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    partition.append(batch(2), 5, lambda _: None)
    await asyncio.sleep(0)
    partition.before_upload()
    assert partition.state.checkpoint.stable_offset == -1
    rig.append(1)
    assert partition.state.checkpoint.stable_offset == 2
    await asyncio.sleep(0)
    partition.before_upload()
    assert partition.state.checkpoint.stable_offset == 2
    await rig.end(1, commits=False)
    partition.before_upload()
    checkpoint = partition.state.checkpoint
    assert (checkpoint.stable_offset, checkpoint.stable_txn_offset, checkpoint.recover_offset) == (4, 1, 4)


def refused(rig: TransactionRig, *arguments: Any, **options: Any) -> ErrorCode:
    with pytest.raises(PartitionError) as caught:
        rig.append(*arguments, **options)
    return caught.value.code


async def test_a_first_batch_needs_a_proof_that_no_marker_made_void() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    proof = rig.proof(1)
    assert proof is not None
    assert rig.proof(1) is proof
    await rig.end(1, commits=False)
    assert refused(rig, 1, proof=proof) is ErrorCode.INVALID_TXN_STATE
    assert refused(rig, 1, proof=rig.proof(1, epoch=1)) is ErrorCode.INVALID_TXN_STATE
    offset = rig.append(1)
    assert partition.transactions.begin_verification(1, 0, generation=1) is None
    assert rig.append(1) == offset + 1
    assert rig.append(1, sequence=0) == offset, "a repeat needs no proof"
    await rig.end(1, epoch=1, commits=True)
    assert refused(rig, 1, epoch=0, proof=rig.proof(1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(rig, 1, epoch=1, sequence=3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    fresh = partition.transactions.begin_verification(7, 4, generation=2)
    assert refused(rig, 7, epoch=4, sequence=2, proof=fresh) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_markers_of_old_coordinators_and_old_epochs_change_nothing() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    rig.append(1, epoch=3)
    await rig.end(1, epoch=3, commits=True, coordinator_epoch=5)
    rig.append(1, epoch=3)
    for epoch, coordinator_epoch, generation, code in (
        (3, 4, 1, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (2, 6, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 6, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
    ):
        with pytest.raises(PartitionError) as caught:
            await rig.end(
                1, epoch=epoch, commits=True, coordinator_epoch=coordinator_epoch, generation=generation
            )
        assert caught.value.code is code
    assert partition.last_stable_offset == 2
    await rig.end(1, epoch=4, commits=True, coordinator_epoch=5, generation=2)
    assert (await agree(rig)).open == {}


async def test_a_plain_batch_of_a_producer_with_an_open_transaction_is_refused() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    rig.append(1)
    plain = batch(1, producer_id=1, epoch=0, sequence=1)
    with pytest.raises(PartitionError) as caught:
        partition.append(plain, 5, lambda _: None)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    await rig.end(1, commits=True)
    assert partition.append(batch(1, producer_id=1, epoch=0, sequence=1), 5, lambda _: None) == 2


async def test_producers_with_open_transactions_neither_expire_nor_are_removed() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    for producer_id in range(100):
        rig.append(producer_id)
    with pytest.raises(Exception, match="producers_per_partition_max"):
        rig.append(100)
    partition.append(batch(1, producer_id=200, epoch=0, sequence=0), 5, lambda _: None)
    await asyncio.sleep(0)
    partition.producers.expire(1 << 60)
    assert len(partition.producers) == 100
    assert partition.producers.oldest_ms is None
    await rig.reopen()
    assert len(rig.partition.producers) == 100
    await rig.end(5, commits=True)
    rig.append(100)
    assert rig.partition.producers.entry(5) is None


async def test_a_coordinators_batch_has_no_sequence() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    rig.append(1, sequence=-1, count=2)
    assert partition.last_stable_offset == 0
    await asyncio.sleep(0)
    rig.streams.crash(len(rig.streams.log))
    partition = await rig.open()
    assert partition.last_stable_offset == 0
    await rig.end(1, commits=True)
    assert partition.last_stable_offset == 3


async def test_a_log_start_that_is_not_durable_makes_no_open_transaction_readable() -> None:
    """DeleteRecords and retention may move the log start into an open transaction."""
    rig = TransactionRig()
    partition = await rig.open()
    rig.append(1, count=3)
    await asyncio.sleep(0)
    meta = rig.rig.stream("meta")
    meta.hold = True
    deletion = asyncio.ensure_future(partition.delete_records(2))
    await asyncio.sleep(0)
    assert (partition.log_start_offset, partition.last_stable_offset) == (0, 0)
    assert await rig.committed() == []
    meta.hold = False
    meta.confirm()
    assert await deletion == 2
    assert (partition.log_start_offset, partition.last_stable_offset) == (2, 2)
    await rig.end(1, commits=False)
    assert partition.last_stable_offset == 4
    assert await rig.committed() == []


async def test_entries_below_the_log_start_are_trimmed() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    for _ in range(3):
        rig.append(1)
        await rig.end(1, commits=False)
        partition.log.roll(7)
    partition.before_upload()
    await rig.streams.force_upload()
    await partition.advance_log_start(4)
    await partition.log.trim(4)
    assert rig.rig.stream("txn").start_offset == 2
    assert await rig.aborted(4, 6) == [(1, 4)]
    await rig.reopen()
    assert await rig.aborted(4, 6) == [(1, 4)]
