"""State machine of idempotent producers (KIP-98, KIP-360).

No I/O and no clock. For every producer id it keeps the epoch and the last five batches. A repeated
batch is answered with its first offset and not appended again; a gap is refused.

An append changes the state immediately, so that the next pipelined batch finds it, and the change
is undone if the append fails. Otherwise the producer's retry would be treated as a duplicate of a
batch that was never stored, and the data would be lost.

Producers that were used since the last write to the Meta stream are objects. All others are kept as
the bytes that are on the stream: a write encodes only changes, an open decodes nothing, and an idle
producer costs 200 bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode
from ponor_partition import meta_entry
from ponor_partition.meta_entry import MetaKey, MetaValue
from ponor_runtime.turns import Steps, at_once

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.state.producer_entry import (
    BATCHES_RETAINED,
    PAST_MAX,
    SEQUENCE_MODULUS,
    ProducerBatch,
    ProducerEntry,
    TakenBatch,
    decode_entry,
    encode_entry,
    join_rows,
    split_rows,
    updated_ms_of,
)

ROWS_PER_STEP: Final = 500
"""Producers that one step encodes, or restores from a snapshot: one to two milliseconds."""


class _Undo(NamedTuple):
    base_offset: int
    end_offset: int
    producer_id: int
    previous: ProducerEntry | None


class ProducerStates:
    """Producers of one partition. Above `producers_max` the one that was idle longest is removed."""

    key: MetaKey = meta_entry.PRODUCER_SNAPSHOT

    def __init__(self, *, producers_max: int = 10_000) -> None:
        self._producers_max = producers_max
        self._entries: dict[int, ProducerEntry] = {}  # used since the last write, by last update
        # all others: rows, in the same order, which the Meta stream has
        self._resting: dict[int, bytes] = {}
        self._unwritten: list[bytes] = []  # encoded rows that are not on the Meta stream yet
        self._in_flight: deque[_Undo] | None = None  # created by the first append
        self.restored_offset = 0
        """Replay of batches below this offset has no effect: the snapshot contains them."""
        self.changes = 0
        """Incremented with every change of the snapshot's content; shows whether a new write is due."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._resting)

    @property
    def oldest_ms(self) -> int | None:
        """When the producer that was idle longest appended last (wall clock); None without producers."""
        for row in self._resting.values():
            return updated_ms_of(row)
        return next((entry.updated_ms for entry in self._entries.values()), None)

    @property
    def has_unconfirmed(self) -> bool:
        """Whether appends of idempotent producers are in flight."""
        return bool(self._in_flight)

    def active(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Yield every producer that is known when the iteration begins, by id."""
        resting, entries = list(self._resting.items()), list(self._entries.items())
        for producer_id, row in resting:
            yield producer_id, decode_entry(row)
        yield from entries

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """Return a producer's state."""
        entry = self._entries.get(producer_id)
        if entry is None and (row := self._resting.get(producer_id)) is not None:
            return decode_entry(row)
        return entry

    def _known(self, producer_id: int) -> ProducerEntry | None:
        """As `entry`, for a producer that sends: decode its row if necessary."""
        entry = self._entries.get(producer_id)
        if entry is None and (row := self._resting.pop(producer_id, None)) is not None:
            entry = self._entries[producer_id] = decode_entry(row)
        return entry

    def is_next(self, batch: ProducerBatch) -> bool:
        """Return whether the batch directly follows its producer's newest one, the usual case: it
        is then neither a repeat nor out of order.
        """
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            entry = self._known(batch.producer_id)
        return (
            entry is not None
            and entry.epoch == batch.producer_epoch
            and batch.first_sequence == (entry.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS
        )

    def find_duplicate(self, batch: ProducerBatch) -> TakenBatch | None:
        """Return the retained batch that this one repeats, if any."""
        entry = self._known(batch.producer_id)
        if entry is None or entry.epoch != batch.producer_epoch:
            return None
        last = batch.last_sequence
        for taken in reversed(entry.batches):
            if taken.first_sequence == batch.first_sequence and taken.last_sequence == last:
                return taken
        return None

    def check(self, batch: ProducerBatch) -> None:
        """Check whether a batch that is no retained duplicate may be appended next.

        Raises:
            PartitionError: INVALID_PRODUCER_EPOCH, DUPLICATE_SEQUENCE_NUMBER (older than the
                window) or OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        entry = self._known(batch.producer_id)
        if entry is None:
            # unknown producer (new, expired, or all its records deleted): any sequence is the first
            return
        if batch.producer_epoch < entry.epoch:
            raise PartitionError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id}: epoch {batch.producer_epoch} is below {entry.epoch}",
            )
        if batch.producer_epoch > entry.epoch:
            if batch.first_sequence != 0:
                raise _out_of_order(batch, f"epoch {batch.producer_epoch} must start at 0")
            return
        if batch.first_sequence == (entry.last_sequence + 1) % SEQUENCE_MODULUS:
            return
        if entry.is_in_the_past(batch):
            raise PartitionError(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                f"producer {batch.producer_id}: sequence {batch.first_sequence} was appended earlier",
            )
        raise _out_of_order(batch, f"the last one was {entry.last_sequence}")

    def append(self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int) -> None:
        """Record a batch that `check` accepted. It can be undone until `confirm`."""
        previous = self._take(batch, base_offset, end_offset, now_ms)
        if self._in_flight is None:
            self._in_flight = deque()
        self._in_flight.append(_Undo(base_offset, end_offset, batch.producer_id, previous))

    def confirm(self, end_offset: int) -> None:
        """Everything below `end_offset` is durable."""
        while self._in_flight and self._in_flight[0].end_offset <= end_offset:
            self._in_flight.popleft()
            self.changes += 1  # a snapshot in between excluded it

    def roll_back(self, base_offset: int) -> None:
        """Undo the failed append at `base_offset` and all later ones."""
        while self._in_flight and self._in_flight[-1].base_offset >= base_offset:
            undo = self._in_flight.pop()
            self._put(undo.producer_id, undo.previous)

    def replay(self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int) -> None:
        """Record a stored batch during an open, without checks."""
        if base_offset >= self.restored_offset:
            self._take(batch, base_offset, end_offset, now_ms)

    def expire(self, before_ms: int) -> int:
        """Remove producers that were idle since `before_ms`; return their number. Stops at the
        first one that was not, because entries are ordered by last update.
        """
        in_flight = {undo.producer_id for undo in self._in_flight or ()}
        silent: list[int] = []
        for producer_id, row in self._resting.items():
            if updated_ms_of(row) >= before_ms:
                break
            silent.append(producer_id)
        for producer_id, entry in self._entries.items():
            if entry.updated_ms >= before_ms or producer_id in in_flight:
                break
            silent.append(producer_id)
        for producer_id in silent:
            self._forget(producer_id)
        return len(silent)

    def _forget(self, producer_id: int) -> None:
        self._resting.pop(producer_id, None)
        self._entries.pop(producer_id, None)
        self.changes += 1

    def _take(
        self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int
    ) -> ProducerEntry | None:
        taken = TakenBatch(batch.first_sequence, batch.last_sequence, base_offset, end_offset)
        previous = self._known(batch.producer_id)
        if (
            previous is not None
            and previous.epoch == batch.producer_epoch
            and batch.first_sequence == (previous.last_sequence + 1) % SEQUENCE_MODULUS
        ):
            batches = (*previous.batches[1 - BATCHES_RETAINED :], taken)
            entry = ProducerEntry(previous.epoch, _run_start(previous, taken), now_ms, batches)
        else:
            entry = ProducerEntry(batch.producer_epoch, batch.first_sequence, now_ms, (taken,))
        self._put(batch.producer_id, entry)
        self._keep_bound()
        return previous

    def _keep_bound(self) -> None:
        while len(self._entries) + len(self._resting) > self._producers_max:
            self._forget(next(iter(self._resting or self._entries)))

    def _put(self, producer_id: int, entry: ProducerEntry | None) -> None:
        self._entries.pop(producer_id, None)
        if entry is not None:
            self._entries[producer_id] = entry
        self.changes += 1

    # State that survives a move

    def rest(self, limit: int = ROWS_PER_STEP) -> bool:
        """Encode at most `limit` producers without appends in flight, as part of the next write;
        return whether others remain.
        """
        in_flight = {undo.producer_id for undo in self._in_flight or ()}
        settled = [producer_id for producer_id in self._entries if producer_id not in in_flight]
        for producer_id in islice(settled, limit):
            row = encode_entry(producer_id, self._entries.pop(producer_id))
            self._resting[producer_id] = row
            self._unwritten.append(row)
        return len(settled) > limit

    def change_at(self, offset: int) -> bytes:
        """Return the producers that changed since the last `change_at` or `snapshot_at`, as of the
        confirmed Kafka offset `offset`.
        """
        while self.rest():
            pass
        rows, self._unwritten = self._unwritten, []
        return join_rows(offset, [*rows, *self._rows_in_flight()])

    def snapshot_at(self, offset: int) -> bytes:
        """Return all producers as of the confirmed Kafka offset `offset`, without appends in flight."""
        while self.rest():
            pass
        self._unwritten = []
        return join_rows(offset, [*self._resting.values(), *self._rows_in_flight()])

    def _rows_in_flight(self) -> Iterator[bytes]:
        """Yield producers with appends in flight, in their state before these."""
        confirmed: dict[int, ProducerEntry | None] = {}
        for undo in self._in_flight or ():
            confirmed.setdefault(undo.producer_id, undo.previous)
        return (
            encode_entry(producer_id, entry) for producer_id, entry in confirmed.items() if entry is not None
        )

    def snapshot(self) -> bytes:
        """Return the state with nothing in flight, as after a clean close."""
        assert not self._in_flight, "a clean close waits for its appends"
        newest = [entry.batches[-1].end_offset for _, entry in self.active()]
        return self.snapshot_at(max([self.restored_offset, *newest]))

    def restore(self, value: bytes) -> None:
        at_once(self.restoring(MetaValue(value)))

    def restoring(self, value: MetaValue) -> Steps[None]:
        """Replace the state by a snapshot and its changes, in steps.

        Raises:
            PartitionCorruptError: the bytes violate the format.
        """
        self._entries, self._resting, self._unwritten, self._in_flight = {}, {}, [], None
        for part in (value.whole, *value.changes):
            if part is not None:
                self.restored_offset, rows = split_rows(part)
                for number, (producer_id, row) in enumerate(rows, 1):
                    self._resting.pop(producer_id, None)  # moves to the end: used last
                    self._resting[producer_id] = row
                    if number % ROWS_PER_STEP == 0:
                        yield
        self._keep_bound()  # changes do not contain removals


def _run_start(previous: ProducerEntry, taken: TakenBatch) -> int:
    # After 2^30 sequences the start of the run is not needed any more and would become ambiguous at
    # the wrap: move it along.
    length = (taken.last_sequence - previous.run_first_sequence) % SEQUENCE_MODULUS
    return (
        previous.run_first_sequence
        if length < PAST_MAX
        else (taken.last_sequence - PAST_MAX) % SEQUENCE_MODULUS
    )


def _out_of_order(batch: ProducerBatch, why: str) -> PartitionError:
    return PartitionError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {batch.producer_id}: sequence {batch.first_sequence} is out of order: {why}",
    )
