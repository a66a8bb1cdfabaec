"""The idempotent producer's state machine, against a complete model, and rule by rule."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.state import producer_entry, producer_state
from ponor_broker.partitions.state.producer_entry import SEQUENCE_MODULUS, ProducerBatch, ProducerEntry
from ponor_broker.partitions.state.producer_state import ROWS_PER_STEP, ProducerStates
from ponor_broker.partitions.transactions.open_transactions import OpenTransactions
from ponor_kafka.control_records import ControlType, EndMarker
from ponor_kafka.errors import ErrorCode
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaValue
from ponor_runtime.turns import at_once

from tests.examples import examples

P = 7


def offer(states: ProducerStates, batch: ProducerBatch, offset: int) -> int | ErrorCode:
    """Process a batch as a partition does; return its offset or the refusal."""
    taken = states.find_duplicate(batch)
    if taken is not None:
        return taken.base_offset
    try:
        states.check(batch)
    except PartitionError as error:
        return error.code
    states.append(batch, offset, offset + batch.record_count, now_ms=0)
    return offset


def test_the_last_five_batches_are_recognised_and_older_ones_are_duplicates() -> None:
    states = ProducerStates()
    for number in range(6):
        assert offer(states, ProducerBatch(P, 0, number * 10, 10), number * 10) == number * 10
    for number in range(1, 6):
        assert offer(states, ProducerBatch(P, 0, number * 10, 10), 999) == number * 10
    assert offer(states, ProducerBatch(P, 0, 0, 10), 999) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_a_gap_and_other_batch_borders_are_out_of_order() -> None:
    states = ProducerStates()
    for number in range(3):
        offer(states, ProducerBatch(P, 0, number * 10, 10), number * 10)
    assert offer(states, ProducerBatch(P, 0, 31, 1), 999) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert offer(states, ProducerBatch(P, 0, 25, 10), 999) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert offer(states, ProducerBatch(P, 0, 10, 5), 999) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_to_zero_between_batches_and_inside_one() -> None:
    states = ProducerStates()
    assert offer(states, ProducerBatch(P, 0, SEQUENCE_MODULUS - 2, 2), 0) == 0
    assert offer(states, ProducerBatch(P, 0, 0, 3), 2) == 2
    other = ProducerStates()
    wrapping = ProducerBatch(P, 0, SEQUENCE_MODULUS - 2, 5)
    assert wrapping.last_sequence == 2
    assert offer(other, wrapping, 0) == 0
    assert offer(other, wrapping, 5) == 0
    assert offer(other, ProducerBatch(P, 0, 3, 1), 5) == 5


def test_a_new_epoch_starts_at_zero_and_an_old_one_is_refused() -> None:
    states = ProducerStates()
    offer(states, ProducerBatch(P, 3, 0, 5), 0)
    assert offer(states, ProducerBatch(P, 4, 5, 1), 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert offer(states, ProducerBatch(P, 4, 0, 1), 5) == 5
    assert offer(states, ProducerBatch(P, 3, 5, 1), 6) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_may_start_at_any_sequence() -> None:
    states = ProducerStates()
    assert offer(states, ProducerBatch(P, 9, 500, 10), 0) == 0
    assert offer(states, ProducerBatch(P, 9, 490, 10), 10) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_retry_of_a_failed_append_is_accepted() -> None:
    states = ProducerStates()
    offer(states, ProducerBatch(P, 0, 0, 1), 0)
    states.confirm(1)
    offer(states, ProducerBatch(P, 0, 1, 1), 1)
    offer(states, ProducerBatch(P, 0, 2, 1), 2)
    states.roll_back(1)
    assert offer(states, ProducerBatch(P, 0, 2, 1), 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert offer(states, ProducerBatch(P, 0, 1, 1), 1) == 1


def test_a_snapshot_omits_appends_in_flight() -> None:
    states = ProducerStates()
    offer(states, ProducerBatch(P, 0, 0, 5), 0)
    states.confirm(5)
    offer(states, ProducerBatch(P, 0, 5, 5), 5)
    offer(states, ProducerBatch(8, 0, 0, 1), 10)
    restored = ProducerStates()
    restored.restore(states.snapshot_at(5))
    assert restored.entry(8) is None
    assert restored.restored_offset == 5
    assert offer(restored, ProducerBatch(P, 0, 5, 5), 5) == 5


def test_idle_producers_expire_and_the_longest_idle_one_is_removed_at_the_bound() -> None:
    states = ProducerStates(producers_max=2)
    for producer_id, now_ms in ((1, 10), (2, 20), (3, 30)):
        states.append(ProducerBatch(producer_id, 0, 0, 1), producer_id, producer_id + 1, now_ms)
    assert states.entry(1) is None
    states.confirm(100)
    assert states.expire(before_ms=25) == 1
    assert states.entry(2) is None
    assert states.entry(3) is not None


class VisitedTransactions(OpenTransactions):
    """Counts the producers whose transactions are looked up."""

    visited = 0

    def __contains__(self, producer_id: int) -> bool:
        self.visited += 1
        return super().__contains__(producer_id)


@pytest.mark.parametrize("is_written", [False, True])
def test_the_search_for_the_longest_idle_producer_does_not_visit_open_transactions(
    is_written: bool,
) -> None:
    """With 10,000 open transactions, each marker of another producer took 0.2 s."""
    states = ProducerStates(producers_max=1_000)
    transactions = states.transactions = VisitedTransactions()
    states._ending = transactions.ending
    for producer_id in range(1_000):
        states.append_transactional(ProducerBatch(producer_id, 0, 0, 1), producer_id, producer_id + 1, 10)
    states.confirm(1_000)
    if is_written:
        states.change_at(1_000)
    transactions.visited = 0
    for offset in range(1_000, 1_100):
        states.append_marker(offset, 0, EndMarker(ControlType.COMMIT, 0), offset, 20)
    assert transactions.visited <= 200
    assert len(states) == len(transactions) == 1_000
    states.append_marker(7, 0, EndMarker(ControlType.COMMIT, 0), 1_100, 30)
    states.append(ProducerBatch(2_000, 0, 0, 1), 1_101, 1_102, 40)
    assert states.entry(7) is None
    assert states.entry(2_000) is not None
    assert len(states) == 1_000


@pytest.mark.parametrize("cut", [0, 5, 12, 14, 30])
def test_a_damaged_snapshot_is_refused(cut: int) -> None:
    states = ProducerStates()
    states.append(ProducerBatch(P, 0, 0, 1), 0, 1, 0)
    whole = states.snapshot_at(0)
    states.confirm(1)
    whole = states.snapshot_at(1)
    with pytest.raises(PartitionCorruptError):
        ProducerStates().restore(whole[:cut])
    with pytest.raises(PartitionCorruptError):
        ProducerStates().restore(whole + b"x")


@dataclass
class Model:
    """Remembers every batch of the present epoch, and whether it is confirmed."""

    epoch: int = -1
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # first sequence, count, offset

    def offer(self, batch: ProducerBatch, offset: int) -> int | ErrorCode:
        if batch.producer_epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.epoch == -1 or batch.producer_epoch > self.epoch:
            if self.epoch != -1 and batch.first_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.epoch, self.batches = batch.producer_epoch, []
        else:
            for first, count, at in self.batches[-5:]:
                if (first, count) == (batch.first_sequence, batch.record_count):
                    return at
            next_sequence = self.batches[-1][0] + self.batches[-1][1]
            if batch.first_sequence != next_sequence:
                window_first = self.batches[-5:][0][0]
                end = batch.first_sequence + batch.record_count
                if batch.first_sequence >= self.batches[0][0] and end <= window_first:
                    return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.batches.append((batch.first_sequence, batch.record_count, offset))
        return offset


STEPS = st.lists(
    st.tuples(st.sampled_from(["next", "repeat", "any", "epoch"]), st.integers(0, 12), st.integers(1, 4)),
    max_size=40,
)


@settings(max_examples=examples(300))
@given(STEPS, st.integers(0, 39))
def test_states_equal_a_complete_model_over_restarts(
    steps: list[tuple[str, int, int]], restart_at: int
) -> None:
    states, model = ProducerStates(), Model()
    offset = 0
    history: list[ProducerBatch] = []
    for number, (kind, choice, count) in enumerate(steps):
        if number == restart_at:
            states.confirm(offset)
            restored = ProducerStates()
            restored.restore(states.snapshot_at(offset))
            states = restored
        epoch = max(model.epoch, 0)
        if kind == "repeat" and history:
            batch = history[-1 - choice % len(history)]
        elif kind == "next" and model.batches:
            batch = ProducerBatch(P, epoch, model.batches[-1][0] + model.batches[-1][1], count)
        elif kind == "epoch":
            batch = ProducerBatch(P, epoch + 1, choice % 2, count)
        else:
            batch = ProducerBatch(P, epoch, choice, count)
        expected = model.offer(batch, offset)
        assert offer(states, batch, offset) == expected
        if expected == offset and not isinstance(expected, ErrorCode):
            history.append(batch)
            offset += batch.record_count


@settings(max_examples=examples(200))
@given(st.lists(st.integers(1, 3), min_size=1, max_size=12), st.data())
def test_a_rollback_restores_the_former_state(counts: list[int], data: st.DataObject) -> None:
    keep = data.draw(st.integers(0, len(counts)))
    states, shorter = ProducerStates(), ProducerStates()
    offset = sequence = 0
    cut = None
    for number, count in enumerate(counts):
        if number == keep:
            cut = offset
        batch = ProducerBatch(P, 0, sequence, count)
        assert offer(states, batch, offset) == offset
        if number < keep:
            offer(shorter, batch, offset)
        offset, sequence = offset + count, sequence + count
    if cut is not None:
        states.roll_back(cut)
    assert states.entry(P) == shorter.entry(P)


# What is written


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "append", "append", "confirm", "roll back", "rest", "write", "whole"]),
            st.integers(1, 6),
        ),
        max_size=60,
    )
)
def test_a_snapshot_and_its_changes_contain_the_confirmed_state(steps: list[tuple[str, int]]) -> None:
    states, confirmed = ProducerStates(), 0
    value = MetaValue(states.snapshot_at(0))
    expected: dict[int, ProducerEntry] = {}
    next_sequences: dict[int, int] = {}
    in_flight: list[tuple[ProducerBatch, int]] = []
    end = 0
    for kind, choice in steps:
        if kind == "append":
            batch = ProducerBatch(choice, 0, next_sequences.get(choice, 0), 1)
            assert offer(states, batch, end) == end
            in_flight.append((batch, end))
            next_sequences[choice], end = batch.first_sequence + 1, end + 1
        elif kind == "confirm" and in_flight:
            batch, confirmed = in_flight[0][0], in_flight[0][1] + 1
            del in_flight[0]
            states.confirm(confirmed)
        elif kind == "roll back" and in_flight:
            cut = in_flight[choice % len(in_flight)][1]
            states.roll_back(cut)
            for batch, offset in reversed(in_flight):
                if offset >= cut:
                    next_sequences[batch.producer_id] = batch.first_sequence
            in_flight = [(batch, offset) for batch, offset in in_flight if offset < cut]
            end = cut
        elif kind == "rest":
            states.rest(limit=choice)
        elif kind == "write":
            value.changes.append(states.change_at(confirmed))
            expected = settled(states, confirmed)
        elif kind == "whole":
            value = MetaValue(states.snapshot_at(confirmed))
            expected = settled(states, confirmed)
    restored = ProducerStates()
    at_once(restored.restoring(value))
    assert dict(restored.active()) == expected


def settled(states: ProducerStates, confirmed: int) -> dict[int, ProducerEntry]:
    """Return the state of a copy after a rollback of everything in flight."""
    copy = deepcopy(states)
    copy.roll_back(confirmed)
    return dict(copy.active())


def test_a_write_encodes_only_what_changed_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    states = ProducerStates()
    for producer_id in range(2_000):
        states.append(ProducerBatch(producer_id, 0, 0, 1), producer_id, producer_id + 1, 0)
    states.confirm(2_000)
    whole = states.snapshot_at(2_000)
    encoded = 0
    encode = producer_entry.encode_entry

    def counted(producer_id: int, entry: ProducerEntry) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode(producer_id, entry)

    monkeypatch.setattr(producer_state, "encode_entry", counted)
    for producer_id in (5, 1_700):
        assert offer(states, ProducerBatch(producer_id, 0, 1, 1), 2_000 + producer_id) == 2_000 + producer_id
    states.confirm(9_999)
    change = states.change_at(9_999)
    assert (encoded, len(change)) == (2, 13 + 2 * (35 + 2 * 24))
    assert states.snapshot_at(9_999) != whole
    assert encoded == 2
    assert states.entry(5) is not None


def test_many_producers_are_encoded_in_steps() -> None:
    states = ProducerStates()
    for producer_id in range(2_000):
        states.append(ProducerBatch(producer_id, 0, 0, 1), producer_id, producer_id + 1, 0)
    states.confirm(2_000)
    steps = 0
    while states.rest():
        steps += 1
    assert steps == 2_000 // ROWS_PER_STEP - 1
    restored = ProducerStates()
    assert sum(1 for _ in restored.restoring(MetaValue(states.snapshot_at(2_000)))) == 2_000 // ROWS_PER_STEP
    assert dict(restored.active()) == dict(states.active())
