"""A share partition behaves like a model that keeps one state per record, for any order of events."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ponor_broker.coordination.share_persister import DeliveryState, ShareState, StateBatch
from ponor_broker.share_partitions import share_partition
from ponor_broker.share_partitions.acknowledgement import AcknowledgedBatch, AcknowledgementError
from ponor_broker.share_partitions.fetched_batches import FetchedBatch
from ponor_broker.share_partitions.settings import DeliveryRules
from ponor_broker.share_partitions.share_partition import (
    AcquireLimits,
    SharePartition,
    StateWrite,
)
from ponor_kafka.errors import ErrorCode

from tests.examples import examples

AVAILABLE, ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
ARCHIVED, ACKNOWLEDGED = DeliveryState.ARCHIVED, DeliveryState.ACKNOWLEDGED
FINAL = {ARCHIVED, ACKNOWLEDGED}
RULES = DeliveryRules(lock_ms=100, deliveries_max=5, in_flight_max=20)
MEMBERS = st.sampled_from(["a", "b", "c"])
TARGETS = {0: ARCHIVED, 1: ACKNOWLEDGED, 3: ARCHIVED}
NO_CONTENT = memoryview(b"")


@dataclass
class Record:
    """One offset in flight."""

    state: DeliveryState = AVAILABLE
    count: int = 0
    member: str = ""
    lock_ends_ms: int = 0
    target: DeliveryState | None = None

    def free(self) -> DeliveryState:
        return ARCHIVED if self.count >= RULES.deliveries_max else AVAILABLE

    def durable(self) -> tuple[DeliveryState, int]:
        """State and count as a write contains them: without the lock."""
        if self.target is None and self.state is ACQUIRED:
            return AVAILABLE, self.count - 1
        return self.state if self.target is None else self.target, self.count

    def end(self, state: DeliveryState) -> None:
        self.state, self.member, self.lock_ends_ms, self.target = state, "", 0, None


class Model:
    """The rules, stated for one record after the other."""

    def __init__(self, state: ShareState) -> None:
        self.start = self.end = state.start_offset
        self.records: dict[int, Record] = {}
        for first, last, delivery_state, count in state.batches:
            for offset in range(max(first, self.start), last + 1):
                while self.end < offset:
                    self.extend()
                self.records[offset] = Record(delivery_state, count)
                self.end = offset + 1
        self.trim()

    def extend(self) -> Record:
        record = self.records[self.end] = Record()
        self.end += 1
        return record

    def trim(self) -> None:
        while self.start < self.end and self.records[self.start].state in FINAL:
            del self.records[self.start]
            self.start += 1

    def fetch_offset(self) -> int:
        return min(
            (offset for offset, one in self.records.items() if one.state is AVAILABLE), default=self.end
        )

    def acquire(
        self, member: str, position: int, read: list[FetchedBatch], limits: AcquireLimits, now_ms: int
    ) -> dict[int, int]:
        acquired: dict[int, int] = {}
        position, is_over = max(position, self.start), False
        for first, last, is_gap, _ in read:
            for offset in range(position, first):
                self.archive(offset)
            for offset in range(max(first, self.start), last + 1):
                if is_gap:
                    self.archive(offset)
                    continue
                if offset >= self.end:
                    if self.end - self.start >= RULES.in_flight_max:
                        break
                    if is_over or (limits.is_strict and len(acquired) >= limits.records_max):
                        break
                    self.extend()
                one = self.records[offset]
                if one.state is AVAILABLE and not is_over:
                    if limits.is_strict and len(acquired) >= limits.records_max:
                        break
                    if one.count >= RULES.deliveries_max - 1:
                        is_over = True
                        if acquired:
                            break
                    elif one.count >= 3:
                        # half of the records next to each other with this count
                        same = offset
                        while same <= last and same < self.end and self.like(same, one):
                            same += 1
                        room = max(1, (same - offset) >> (one.count - 2))
                        if limits.is_strict:
                            room = min(room, limits.records_max - len(acquired))
                        for each in range(offset, offset + room):
                            self.take(each, member, now_ms, acquired)
                        is_over = True
                        break
                    self.take(offset, member, now_ms, acquired)
            position = max(position, last + 1)
            if is_over or len(acquired) >= limits.records_max or self.end < position:
                break
        self.trim()
        return acquired

    def like(self, offset: int, one: Record) -> bool:
        other = self.records[offset]
        return other.state is AVAILABLE and other.count == one.count

    def take(self, offset: int, member: str, now_ms: int, acquired: dict[int, int]) -> None:
        one = self.records[offset]
        one.state, one.member, one.lock_ends_ms = ACQUIRED, member, now_ms + RULES.lock_ms
        one.count += 1
        acquired[offset] = one.count

    def archive(self, offset: int) -> None:
        while self.end <= offset:
            self.extend()
        if offset >= self.start and self.records[offset].state is AVAILABLE:
            self.records[offset].end(ARCHIVED)

    def holds(self, member: str, offset: int) -> bool:
        if offset < self.start:
            return True
        one = self.records.get(offset)
        return one is not None and one.state is ACQUIRED and one.target is None and one.member == member

    def acknowledge(self, offset: int, kind: int, now_ms: int) -> bool:
        if offset < self.start:
            return False
        one = self.records[offset]
        if kind == 4:
            one.lock_ends_ms = now_ms + RULES.lock_ms
            return False
        one.target = one.free() if kind == 2 else TARGETS[kind]
        return True

    def expire(self, now_ms: int) -> None:
        for one in self.records.values():
            if one.state is ACQUIRED and one.target is None and one.lock_ends_ms <= now_ms:
                one.end(one.free())
        self.trim()

    def advance_start(self, log_start: int) -> None:
        if log_start > self.start:
            self.records = {offset: one for offset, one in self.records.items() if offset >= log_start}
            self.start, self.end = log_start, max(self.end, log_start)
            self.trim()


class SharePartitionMachine(RuleBasedStateMachine):
    """Members, a slow and failing persister, expiring locks, a moving log start, and failovers."""

    def __init__(self) -> None:
        super().__init__()
        self.written_runs_max = share_partition.WRITTEN_RUNS_MAX

    def teardown(self) -> None:
        share_partition.WRITTEN_RUNS_MAX = self.written_runs_max  # type: ignore[misc]

    @initialize(
        start=st.integers(0, 3),
        counts=st.lists(st.integers(0, 5), max_size=12),
        written_runs_max=st.sampled_from([1, 2, 3, 1_000]),
    )
    def begin(self, start: int, counts: list[int], written_runs_max: int) -> None:
        share_partition.WRITTEN_RUNS_MAX = written_runs_max  # type: ignore[misc]
        self.now_ms = 1_000
        self.log: list[FetchedBatch] = []
        self.log_start = self.log_end = start
        self.durable = {start + number: (AVAILABLE, count) for number, count in enumerate(counts)}
        if counts:
            self.append(len(counts), 0, 0)
        self.durable_start = start
        self.acknowledged: set[int] = set()
        self.open()

    def open(self) -> None:
        batches = [
            StateBatch(offset, offset, *value)
            for offset, value in sorted(self.durable.items())
            if offset >= self.durable_start
        ]
        state = ShareState(0, self.durable_start, batches)
        self.real, self.model = SharePartition(state), Model(state)
        self.write: StateWrite | None = None
        self.pending: set[int] = set()
        """Offsets of the write whose records wait for it."""
        self.settled: set[int] = set()
        """Offsets of earlier parts of the write."""
        self.queued: dict[int, set[int]] = {}
        """Offsets of unanswered acknowledgements by the number of their write."""
        self.real.advance_start(self.log_start)
        self.model.advance_start(self.log_start)

    # The log

    @rule(size=st.integers(1, 8), hole=st.sampled_from([0, 0, 0, 1, 5]), is_gap=st.sampled_from([0, 0, 0, 1]))
    def append(self, size: int, hole: int, is_gap: int) -> None:
        first = self.log_end + hole
        self.log.append(FetchedBatch(first, first + size - 1, bool(is_gap), NO_CONTENT))
        self.log_end = first + size

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.log_start = data.draw(st.integers(self.log_start, self.log_end))
        self.real.advance_start(self.log_start)
        self.model.advance_start(self.log_start)

    @precondition(lambda self: len(self.log) > 1)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        del self.log[data.draw(st.integers(0, len(self.log) - 2))]

    # Members

    @rule(
        member=MEMBERS,
        records_max=st.integers(1, 12),
        is_strict=st.booleans(),
        batches=st.integers(1, 5),
        batch_size=st.integers(1, 10),
    )
    def fetch(self, member: str, records_max: int, is_strict: bool, batches: int, batch_size: int) -> None:
        position = self.real.fetch_offset
        assert position == self.model.fetch_offset()
        read = [batch for batch in self.log if batch.last_offset >= position][:batches]
        limits = AcquireLimits(records_max, batch_size, is_strict)
        ranges = self.real.acquire(member, position, read, limits, RULES, self.now_ms)
        acquired = {
            offset: delivery_count
            for first, last, delivery_count in ranges
            for offset in range(first, last + 1)
        }
        assert acquired == self.model.acquire(member, position, read, limits, self.now_ms)
        assert not self.acknowledged & acquired.keys(), "a final record was delivered again"
        if is_strict:
            assert len(acquired) <= records_max

    @precondition(lambda self: self.real.runs)
    @rule(member=MEMBERS, is_right=st.sampled_from([True, True, True, False]), data=st.data())
    def acknowledge(self, member: str, is_right: bool, data: st.DataObject) -> None:
        first = data.draw(st.integers(max(0, self.real.start_offset - 2), self.real.end_offset))
        last = data.draw(st.integers(first, first + 6))
        holders = [one.member for one in self.model.records.values() if one.member and one.target is None]
        if is_right and holders:
            member = data.draw(st.sampled_from(holders))
            held = [offset for offset in self.model.records if self.model.holds(member, offset)]
            first = last = data.draw(st.sampled_from(held))
            while last + 1 in held and last - first < 6:
                last += 1
        kinds = st.integers(0, 4)
        types = [data.draw(kinds)]
        if data.draw(st.booleans()):
            types = [data.draw(kinds) for _ in range(first, last + 1)]
        batches = [AcknowledgedBatch(first, last, types)]
        refusal = self.expected_refusal(member, first, last)
        if refusal is not None:
            with pytest.raises(AcknowledgementError) as raised:
                self.real.acknowledge(member, batches, RULES, self.now_ms)
            assert raised.value.code is refusal
            return
        number = self.real.acknowledge(member, batches, RULES, self.now_ms)
        changed = set()
        for offset in range(first, last + 1):
            kind = types[0] if len(types) == 1 else types[offset - first]
            if self.model.acknowledge(offset, kind, self.now_ms):
                changed.add(offset)
        assert bool(number) == bool(changed)
        self.settled -= changed
        if number:
            self.queued.setdefault(number, set()).update(changed)

    def expected_refusal(self, member: str, first: int, last: int) -> ErrorCode | None:
        if last < self.model.start:
            return None
        if last >= self.model.end:
            return ErrorCode.INVALID_REQUEST
        if all(self.model.holds(member, offset) for offset in range(first, last + 1)):
            return None
        return ErrorCode.INVALID_RECORD_STATE

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        number = self.real.release(member, RULES.deliveries_max)
        held = [
            offset
            for offset, one in self.model.records.items()
            if self.model.holds(member, offset) and one.member
        ]
        for offset in held:
            self.model.acknowledge(offset, 2, self.now_ms)
        assert bool(number) == bool(held)
        self.settled.difference_update(held)
        if number:
            self.queued.setdefault(number, set()).update(held)

    @rule(elapsed_ms=st.sampled_from([10, 50, 100]))
    def wait(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.real.expire(self.now_ms, RULES.deliveries_max)
        self.model.expire(self.now_ms)
        next_ms = self.real.next_expiry_ms
        assert next_ms is None or next_ms > self.now_ms

    # The persister

    @precondition(lambda self: self.write is None and self.real.needs_write)
    @rule()
    def begin_write(self) -> None:
        self.write = self.real.begin_write()
        assert self.write.start_offset == self.model.start
        for first, last, state, count in self.write.batches:
            for offset in range(first, last + 1):
                assert (state, count) == self.model.records[offset].durable(), offset
        records = self.model.records.values()
        complete = sum(one.durable()[0] in FINAL for one in records)
        # Records that a later part contains do not count yet.
        assert sum(one.state in FINAL for one in records) <= self.write.delivery_complete_count <= complete
        self.pending = {
            offset
            for first, last, _, _ in self.write.batches
            for offset in range(first, last + 1)
            if self.model.records[offset].target is not None
        }

    @precondition(lambda self: self.write is not None)
    @rule(outcome=st.sampled_from(["durable", "durable", "durable", "failed", "unknown"]))
    def end_write(self, outcome: str) -> None:
        assert self.write is not None
        written = {
            offset: (state, count)
            for first, last, state, count in self.write.batches
            for offset in range(first, last + 1)
        }
        if outcome != "failed":
            assert self.write.start_offset >= self.durable_start, "the durable start never falls"
            self.durable_start = self.write.start_offset
            for offset, new in written.items():
                # as the persister merges: the higher delivery count, then the higher state
                held = self.durable.get(offset, new)
                self.durable[offset] = max(held, new, key=lambda one: (one[1], one[0]))
        number = self.real.end_write(is_durable=outcome == "durable")
        self.write = None
        if outcome == "durable":
            self.settle(written)
        answered = self.queued.pop(number, set())
        for offset in answered - self.settled:
            one = self.model.records.get(offset)
            if one is None:
                continue  # the log start passed it
            assert outcome != "durable", "answered before it is durable"
            one.target = None
        if number:
            self.settled.clear()
        self.model.trim()

    def settle(self, written: dict[int, tuple[DeliveryState, int]]) -> None:
        """Apply what a durable write, perhaps a part, contains."""
        self.settled |= self.pending
        for offset in self.pending:
            one = self.model.records.get(offset)
            if one is None:
                continue  # the log start passed it
            assert one.target is not None
            assert written[offset] == (one.target, one.count)
            if one.target in FINAL:
                self.acknowledged.add(offset)
            one.end(one.target)

    @rule()
    def fail_over(self) -> None:
        """Lose the memory. A write that is under way is lost with it."""
        self.open()

    # What holds between events

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "real"):
            return
        real, model = self.real, self.model
        assert (real.start_offset, real.end_offset) == (model.start, model.end)
        assert real.start_offset >= self.durable_start
        offset = model.start
        before = None
        for run in real.runs:
            assert run.first_offset == offset
            assert before is None or not before.is_like(run), "equal neighbours are one run"
            for offset in range(run.first_offset, run.last_offset + 1):
                one = model.records[offset]
                assert (run.state, run.delivery_count) == (one.state, one.count), offset
                assert (run.member_id, run.lock_ends_ms, run.target) == (
                    one.member,
                    one.lock_ends_ms,
                    one.target,
                ), offset
            offset, before = run.last_offset + 1, run
        assert offset == model.end
        assert not real.runs or model.records[model.start].state not in FINAL


TestSharePartition = SharePartitionMachine.TestCase
TestSharePartition.settings = settings(max_examples=examples(120), stateful_step_count=50, deadline=None)
