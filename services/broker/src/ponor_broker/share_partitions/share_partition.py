"""State machine of one share partition: which records are acquired, acknowledged, or available (KIP-932).

It does no I/O. The caller passes the time and the batches of a read, and writes what `begin_write` returns.
Rules and numbers are those of Kafka 4.3.1, with one difference: the limit of records in flight is never
exceeded, so a batch may be acquired in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode

from ponor_broker.coordination.share_persister import DeliveryState, ShareState, StateBatch
from ponor_broker.share_partitions.acknowledgement import (
    TARGETS,
    AcknowledgedBatch,
    AcknowledgementError,
    AcknowledgeType,
)
from ponor_broker.share_partitions.fetched_batches import FetchedBatch
from ponor_broker.share_partitions.runs import (
    NO_WRITE,
    Change,
    Run,
    Runs,
    begin_change,
    durable,
    is_final,
    released,
    renew_until,
)
from ponor_broker.share_partitions.settings import DeliveryRules

AVAILABLE: Final = DeliveryState.AVAILABLE
ACQUIRED: Final = DeliveryState.ACQUIRED
ARCHIVED: Final = DeliveryState.ARCHIVED
THROTTLED_DELIVERIES_MIN: Final = 2
"""Records that were delivered at least this often, and half as often as the limit allows, are delivered in
small numbers, so that one bad record does not use up the deliveries of its neighbours."""
WRITTEN_RUNS_MAX: Final = 1_000
"""Runs of one write: it is prepared, encoded and merged in one turn of the event loop each."""


class ShareStateCorruptError(Exception):
    """The persister returned a state that contradicts itself."""


class AcquireLimits(NamedTuple):
    """The limits of one request. With `is_strict`, `records_max` is exact (acquire mode record_limit);
    otherwise the batch in which it is reached is acquired to its end. An answer's range begins anew when it
    has `batch_size` records.
    """

    records_max: int
    batch_size: int
    is_strict: bool = False


class AcquiredRange(NamedTuple):
    """Offsets (both inclusive) that a member acquired together."""

    first_offset: int
    last_offset: int
    delivery_count: int


class StateWrite(NamedTuple):
    """What to write to the persister."""

    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


class SharePartition:
    """The records in flight of one share partition.

    Attributes:
        start_offset: first offset that is not final (SPSO).
        end_offset: end of the offsets in flight (exclusive); members did not acquire records from here on.
        runs: the states of the offsets in between.
        needs_write: whether the caller must write, as soon as no write is under way.
    """

    def __init__(self, state: ShareState) -> None:
        """Restore from the durable state, whose `start_offset` is known.

        Raises:
            ShareStateCorruptError: the batches overlap or are out of order.
        """
        assert state.start_offset >= 0, "the caller resolves the offset reset"
        self.start_offset = self.end_offset = state.start_offset
        self.runs = Runs()
        for batch in state.batches:
            self._restore(batch)
        self._searched_to = self.start_offset
        """No offset below this one is available."""
        self._write = 1
        """Number of the write that is under way, or else of the next one."""
        self._is_writing = False
        self._written = (0, 0)
        """First offset and end offset of the write that is under way."""
        self._is_part = False
        """Whether a further write with the same number follows the one that is under way."""
        self.needs_write = False
        self._remove_final()

    def _restore(self, batch: StateBatch) -> None:
        first_offset, last_offset, state, delivery_count = batch
        if last_offset < self.start_offset:
            return
        first_offset = max(first_offset, self.start_offset)
        if first_offset < self.end_offset or last_offset < first_offset or state is ACQUIRED:
            raise ShareStateCorruptError(f"the batch {batch} does not follow offset {self.end_offset}")
        if first_offset > self.end_offset:
            self.runs.append(Run(self.end_offset, first_offset - 1))
        self.runs.append(Run(first_offset, last_offset, state, delivery_count))
        self.end_offset = last_offset + 1

    # Acquisition

    @property
    def fetch_offset(self) -> int:
        """First offset that a member may acquire; `end_offset` if no offset in flight is available."""
        for run in self.runs.since(self._searched_to):
            if run.is_available:
                self._searched_to = run.first_offset
                return run.first_offset
        self._searched_to = self.end_offset
        return self.end_offset

    def may_acquire(self, in_flight_max: int) -> bool:
        """Whether a read could give a member records."""
        return self.fetch_offset < self.end_offset or self.end_offset - self.start_offset < in_flight_max

    def acquire(
        self,
        member_id: str,
        read_offset: int,
        fetched: Iterable[FetchedBatch],
        limits: AcquireLimits,
        rules: DeliveryRules,
        now_ms: int,
    ) -> list[AcquiredRange]:
        """Give a member records of a read; return them in order.

        The read began at `read_offset`, the value of `fetch_offset` at that time. It may have changed since.

        Offsets without records become final: markers, aborted records, and offsets that the read does not
        contain because compaction removed them. This is not written, since the log shows it.
        """
        acquisition = _Acquisition(member_id, limits, rules, now_ms)
        position = max(read_offset, self.start_offset)
        assert position <= self.end_offset, f"offset {read_offset} is beyond the records in flight"
        for batch in fetched:
            first_offset = max(batch.first_offset, self.start_offset)
            if first_offset > position:
                self._archive(position, first_offset - 1)
            if batch.is_gap:
                self._archive(first_offset, batch.last_offset)
            else:
                self._acquire_within(acquisition, first_offset, batch.last_offset)
            position = max(position, batch.last_offset + 1)
            acquisition.end_batch()
            if acquisition.is_over or self.end_offset < position:
                break  # enough records, or the limit of records in flight is reached
        self._remove_final()
        return acquisition.ranges

    def _acquire_within(self, acquisition: _Acquisition, first_offset: int, last_offset: int) -> None:
        """Acquire offsets of one batch."""
        available = [
            (max(run.first_offset, first_offset), min(run.last_offset, last_offset), run.delivery_count)
            for run in self.runs.within(first_offset, last_offset)
            if run.is_available
        ]
        changes: list[Change] = []
        for first, last_available, delivered in available:
            count = acquisition.allowed(last_available - first + 1, delivered)
            if not count:
                break
            last = first + count - 1
            changes.append((first, last, acquisition.take))
            acquisition.took(AcquiredRange(first, last, delivered + 1))
        if changes:
            self.runs.change_ranges(changes)
        if len(changes) < len(available):
            return
        room = self.start_offset + acquisition.rules.in_flight_max - self.end_offset
        count = min(last_offset - self.end_offset + 1, room)
        if count > 0 and (count := acquisition.allowed(count, 0)):
            run = Run(self.end_offset, self.end_offset + count - 1)
            acquisition.take(run)
            acquisition.took(AcquiredRange(run.first_offset, run.last_offset, run.delivery_count))
            self.end_offset = run.last_offset + 1
            self.runs.append(run)

    def _archive(self, first_offset: int, last_offset: int) -> None:
        """Archive the available ones of these offsets."""
        if last_offset < first_offset:
            return
        if last_offset >= self.end_offset:
            self.runs.append(Run(self.end_offset, last_offset))
            self.end_offset = last_offset + 1

        def archive(run: Run) -> None:
            if run.is_available:
                run.end(ARCHIVED)

        self.runs.change(first_offset, last_offset, archive)

    # Acknowledgement

    def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgedBatch], rules: DeliveryRules, now_ms: int
    ) -> int:
        """Apply all acknowledgements of a request, whose form was checked; return the number of the write
        after which they are answered, `NO_WRITE` if nothing must be written.

        Raises:
            AcknowledgementError: INVALID_RECORD_STATE or INVALID_REQUEST; nothing changed.
        """
        self.check(member_id, batches)
        write = self._next_write
        apply = {kind: begin_change(write, target, rules.deliveries_max) for kind, target in TARGETS.items()}
        apply[AcknowledgeType.RENEW] = renew_until(now_ms + rules.lock_ms)
        changes: list[Change] = []
        needs_write = False
        for batch in batches:
            for first_offset, last_offset, kind in batch.ranges():
                if last_offset >= self.start_offset:  # otherwise the log start has passed them
                    changes.append((max(first_offset, self.start_offset), last_offset, apply[kind]))
                    needs_write = needs_write or kind is not AcknowledgeType.RENEW
        self._apply(changes, needs_write=needs_write)
        return write if needs_write else NO_WRITE

    def check(self, member_id: str, batches: Sequence[AcknowledgedBatch]) -> None:
        """Check that a member holds all these offsets, except those below the start.

        Raises:
            AcknowledgementError: INVALID_RECORD_STATE or INVALID_REQUEST.
        """
        for batch in batches:
            self._check_held(member_id, batch)

    def _check_held(self, member_id: str, batch: AcknowledgedBatch) -> None:
        first_offset, last_offset = max(batch.first_offset, self.start_offset), batch.last_offset
        if last_offset < first_offset:
            return
        if last_offset >= self.end_offset:
            raise AcknowledgementError(
                ErrorCode.INVALID_REQUEST,
                f"offset {last_offset} was not acquired; acknowledge acquired offsets",
            )
        for run in self.runs.within(first_offset, last_offset):
            if not run.is_held_by(member_id):
                raise AcknowledgementError(
                    ErrorCode.INVALID_RECORD_STATE,
                    f"the member does not hold offset {max(run.first_offset, first_offset)}",
                )

    def _apply(self, changes: Sequence[Change], *, needs_write: bool) -> None:
        if changes:
            self.runs.change_ranges(changes)
        self.needs_write = self.needs_write or needs_write

    # End of locks

    def release(self, member_id: str, deliveries_max: int) -> int:
        """Release all records that a member holds, because its session ended; return the write's number."""
        write = self._next_write
        begin = begin_change(write, AVAILABLE, deliveries_max)
        held = [(run.first_offset, run.last_offset, begin) for run in self.runs if run.is_held_by(member_id)]
        self._apply(held, needs_write=bool(held))
        return write if held else NO_WRITE

    def expire(self, now_ms: int, deliveries_max: int) -> int:
        """End the locks that have expired; return the number of released records.

        As in Kafka, the change is in force immediately and written later: a record's holder may have died,
        and the record must not wait for the persister.
        """
        count, write = 0, self._next_write

        def expire(run: Run) -> None:
            nonlocal count
            if run.state is ACQUIRED and run.target is None and run.lock_ends_ms <= now_ms:
                run.end(released(run, deliveries_max))
                run.write = write
                count += len(run)
                self._note_available(run)

        self.runs.change_all(expire)
        if count:
            self.needs_write = True
            self._remove_final()
        return count

    @property
    def next_expiry_ms(self) -> int | None:
        """When the next lock expires; None if no member holds a record."""
        return min(
            (run.lock_ends_ms for run in self.runs if run.state is ACQUIRED and run.target is None),
            default=None,
        )

    def advance_start(self, log_start_offset: int) -> None:
        """Drop the records that retention or a deletion removed from the log."""
        if log_start_offset <= self.start_offset:
            return
        self.runs.remove_before(log_start_offset)
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        self._searched_to = max(self._searched_to, log_start_offset)
        self._remove_final()

    # Writes

    @property
    def _next_write(self) -> int:
        return self._write + 1 if self._is_writing else self._write

    def begin_write(self) -> StateWrite:
        """Return what changed since the last write, or the first part of it. `end_write` must follow."""
        assert not self._is_writing, "a write is under way"
        self._is_writing, self._is_part, self.needs_write = True, False, False
        batches: list[StateBatch] = []
        first_offset, end_offset, runs, complete = self.end_offset, self.end_offset, 0, 0
        for run in self.runs:
            state, is_changed = run.state, run.write == self._write
            if is_changed or runs:
                runs += 1
            if is_changed and runs <= WRITTEN_RUNS_MAX:
                first_offset = min(first_offset, run.first_offset)
                state, delivery_count = durable(run)
                _add(batches, StateBatch(run.first_offset, run.last_offset, state, delivery_count))
            elif runs > WRITTEN_RUNS_MAX:
                end_offset = min(end_offset, run.first_offset)
                self._is_part |= is_changed
            if is_final(state):
                complete += len(run)
        self._written = first_offset, end_offset
        return StateWrite(self.start_offset, complete, batches)

    def end_write(self, *, is_durable: bool) -> int:
        """End the write: apply its changes, or leave the records with their holders. Return its number;
        `NO_WRITE` if it was a part, and another one with the same number must follow.

        A failed write may have been applied. The next one therefore contains the same records again.
        """
        assert self._is_writing, "no write is under way"
        number, self._is_writing = self._write, False
        is_part = self._is_part and is_durable
        self._write += not is_part

        def end(run: Run) -> None:
            if run.write != number:
                return
            run.write = NO_WRITE if is_durable else self._write
            if run.target is not None and is_durable:
                run.end(run.target)
                self._note_available(run)
            run.target = None

        if is_durable:
            first_offset, end_offset = max(self._written[0], self.start_offset), self._written[1]
            if first_offset < end_offset:
                self.runs.change(first_offset, end_offset - 1, end)
        else:
            self.runs.change_all(end)
        self.needs_write |= is_part
        self._remove_final()
        return NO_WRITE if is_part else number

    def _note_available(self, run: Run) -> None:
        if run.is_available:
            self._searched_to = min(self._searched_to, run.first_offset)

    def _remove_final(self) -> None:
        """Raise the start over final records."""
        offset = self.runs.remove_final()
        if offset is not None:
            assert offset > self.start_offset, "the start never falls"
            self.start_offset = offset
            self._searched_to = max(self._searched_to, offset)
        assert self.start_offset <= self.end_offset
        assert bool(len(self.runs)) == (self.start_offset < self.end_offset)


class _Acquisition:
    """One call of `acquire`: what was acquired, and what may still be."""

    __slots__ = (
        "_is_full",
        "_is_new_range",
        "_left",
        "_limits",
        "_lock_ends_ms",
        "_member_id",
        "ranges",
        "rules",
    )

    def __init__(self, member_id: str, limits: AcquireLimits, rules: DeliveryRules, now_ms: int) -> None:
        self._member_id = member_id
        self._limits = limits
        self._left = limits.records_max
        self._lock_ends_ms = now_ms + rules.lock_ms
        self._is_full = limits.records_max <= 0
        self._is_new_range = True
        self.rules = rules
        self.ranges: list[AcquiredRange] = []

    @property
    def is_over(self) -> bool:
        """Whether no batch after this one may be acquired."""
        return self._is_full or self._left <= 0

    def allowed(self, count: int, delivered: int) -> int:
        """Return how many of these records, which were delivered this often, may be acquired."""
        if self._is_full:
            return 0
        if self._limits.is_strict:
            count = min(count, self._left)
        deliveries_max = self.rules.deliveries_max
        if deliveries_max > THROTTLED_DELIVERIES_MIN and delivered >= deliveries_max - 1:
            # The last delivery: the record is sent alone.
            self._is_full = True
            return 0 if self.ranges else 1
        throttled_from = max(THROTTLED_DELIVERIES_MIN, -(-deliveries_max // 2))
        if delivered >= throttled_from:
            self._is_full = True
            count = min(count, max(1, count >> (delivered - throttled_from + 1)))
        return count

    def take(self, run: Run) -> None:
        """Acquire the records of a run."""
        run.acquire(self._member_id, self._lock_ends_ms)

    def took(self, taken: AcquiredRange) -> None:
        """Add acquired records to the answer."""
        self._left -= taken.last_offset - taken.first_offset + 1
        before = self.ranges[-1] if self.ranges and not self._is_new_range else None
        self._is_new_range = False
        if (
            before is not None
            and before.last_offset + 1 == taken.first_offset
            and before.delivery_count == taken.delivery_count
        ):
            self.ranges[-1] = before._replace(last_offset=taken.last_offset)
        else:
            self.ranges.append(taken)

    def end_batch(self) -> None:
        """Note the end of a batch of the log; only there may the answer's range end because of its size."""
        if self.ranges:
            last = self.ranges[-1]
            self._is_new_range = last.last_offset - last.first_offset + 1 >= self._limits.batch_size


def _add(batches: list[StateBatch], batch: StateBatch) -> None:
    if batches:
        last = batches[-1]
        if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
            batches[-1] = last._replace(last_offset=batch.last_offset)
            return
    batches.append(batch)
