"""State machine of idempotent producers (KIP-98, KIP-360).

No I/O and no clock. For every producer id, it keeps the epoch and the last five batches. A repeated batch is
answered with its first offset and not appended again; a gap is refused. A producer's row also contains its
open transaction. Producers with open transactions neither expire nor are removed.

An append changes the state immediately, so that the next pipelined batch finds it. If the append fails, the
change is undone. Otherwise the producer's retry would count as a duplicate of a batch that was never stored,
and its data would be lost.

Producers that were used since the last write to the Meta stream are objects. All others are kept as the bytes
that are on the stream. So a write encodes only changes, an open decodes nothing, and an idle producer costs
about 210 bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

from ponor_kafka.control_records import EndMarker
from ponor_kafka.errors import ErrorCode
from ponor_partition import meta_entry
from ponor_partition.meta_entry import MetaKey, MetaValue
from ponor_runtime.turns import Steps, at_once

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.state.producer_entry import (
    BATCHES_RETAINED,
    NO_EPOCH,
    PAST_MAX,
    SEQUENCE_MODULUS,
    ProducerBatch,
    ProducerEntry,
    TakenBatch,
    decode_entry,
    encode_entry,
    first_offset_of,
    join_rows,
    split_rows,
    updated_ms_of,
)
from ponor_broker.partitions.transactions.open_transactions import NO_OFFSET, OpenTransactions

EPOCH_MAX: Final = (1 << 15) - 1
ROWS_PER_STEP: Final = 500
"""Producers that one step encodes, or restores from a snapshot: one to two milliseconds."""


class _Undo(NamedTuple):
    base_offset: int
    end_offset: int
    producer_id: int
    previous: ProducerEntry | None


class ProducerStates:
    """Producers of one partition. Above `producers_max`, the producer that was idle longest is removed."""

    key: MetaKey = meta_entry.PRODUCER_SNAPSHOT

    def __init__(self, *, producers_max: int = 10_000) -> None:
        self._producers_max = producers_max
        self._entries: dict[int, ProducerEntry] = {}  # used since the last write, by last update
        # all others, in the same order: their rows as on the Meta stream
        self._idle_rows: dict[int, bytes] = {}
        # Producers with open transactions are kept apart in the same two forms. They are never removed, and a
        # search for the producer that was idle longest would visit all of them.
        self._open_entries: dict[int, ProducerEntry] = {}
        self._open_rows: dict[int, bytes] = {}
        self._unwritten: list[bytes] = []  # encoded rows that are not on the Meta stream yet
        self._in_flight: deque[_Undo] | None = None  # created by the first append
        self.transactions = OpenTransactions()
        """Transactions of these producers, including appends in flight."""
        self._ending = self.transactions.ending  # read by every append
        self.restored_offset = 0
        """Replay of batches below this offset has no effect: the snapshot contains them."""
        self.changes = 0
        """Incremented with every change of the snapshot's content; shows whether a new write is due."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._idle_rows) + len(self._open_entries) + len(self._open_rows)

    @property
    def oldest_ms(self) -> int | None:
        """Time of the last append of the producer that was idle longest (wall clock). Producers with open
        transactions do not count; None if there are no others.
        """
        for row in self._idle_rows.values():
            return updated_ms_of(row)
        return next((entry.updated_ms for entry in self._entries.values()), None)

    @property
    def has_unconfirmed(self) -> bool:
        """Whether appends of idempotent producers, or markers, are in flight."""
        return bool(self._in_flight)

    def active(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Yield every producer that is known when the iteration begins, by id."""
        rows = [*self._idle_rows.items(), *self._open_rows.items()]
        entries = [*self._entries.items(), *self._open_entries.items()]
        for producer_id, row in rows:
            yield producer_id, decode_entry(row)
        yield from entries

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """Return a producer's state."""
        entry = self._entries.get(producer_id) or self._open_entries.get(producer_id)
        row = self._idle_rows.get(producer_id) or self._open_rows.get(producer_id)
        return decode_entry(row) if entry is None and row is not None else entry

    def _known(self, producer_id: int) -> ProducerEntry | None:
        """As `entry`, but keep the decoded object, for a producer that is about to append."""
        entry = self._entries.get(producer_id) or self._open_entries.get(producer_id)
        if entry is None and (row := self._idle_rows.pop(producer_id, None)) is not None:
            entry = self._entries[producer_id] = decode_entry(row)
        elif entry is None and (row := self._open_rows.pop(producer_id, None)) is not None:
            entry = self._open_entries[producer_id] = decode_entry(row)
        return entry

    def is_next(self, batch: ProducerBatch) -> bool:
        """Return whether the batch directly follows its producer's newest one and the producer has no open
        transaction: the usual case. The batch is then neither a repeat nor out of order.
        """
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            entry = self._known(batch.producer_id)
        if entry is None or entry.epoch != batch.producer_epoch or entry.first_offset != NO_OFFSET:
            return False
        batches = entry.batches
        if not batches:
            return False
        return batch.first_sequence == (batches[-1].last_sequence + 1) % SEQUENCE_MODULUS

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

    def check(self, batch: ProducerBatch, *, is_transactional: bool = False) -> None:
        """Check whether a batch that is no retained duplicate may be appended next.

        Raises:
            PartitionError: INVALID_PRODUCER_EPOCH, DUPLICATE_SEQUENCE_NUMBER (older than the
                window), OUT_OF_ORDER_SEQUENCE_NUMBER or INVALID_TXN_STATE (the producer has an open
                transaction, and the batch is not transactional).
        """
        entry = self._known(batch.producer_id)
        if entry is None:
            # unknown producer (new, expired, or all its records deleted): it may begin with any sequence
            return
        _check_epoch(batch.producer_id, batch.producer_epoch, entry.epoch)
        if batch.first_sequence >= 0:  # coordinators write transactional batches without sequences
            _check_sequence(batch, entry)
        if entry.first_offset != NO_OFFSET and not is_transactional:
            raise PartitionError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {batch.producer_id}: the batch is not transactional, but the producer has an open"
                f" transaction that began at offset {entry.first_offset}",
            )

    def check_marker(
        self, producer_id: int, producer_epoch: int, marker: EndMarker, *, raises_epoch: bool
    ) -> None:
        """Check whether a marker may be appended.

        With `raises_epoch`, the marker's epoch must be newer than that of an open transaction (KIP-1228),
        except the largest epoch, which cannot be raised. Without an open transaction, the marker is a repeat.

        Raises:
            PartitionError: INVALID_PRODUCER_EPOCH, or TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self.entry(producer_id)
        if entry is None:
            return
        must_be_newer = raises_epoch and entry.first_offset != NO_OFFSET and producer_epoch != EPOCH_MAX
        _check_epoch(producer_id, producer_epoch, entry.epoch + must_be_newer)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise PartitionError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {producer_id}: coordinator epoch {marker.coordinator_epoch} is below"
                f" {entry.coordinator_epoch}",
            )

    def append(self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int) -> None:
        """Record a batch that `check` accepted. It can be undone until `confirm`."""
        previous = self._take(batch, base_offset, end_offset, now_ms)
        if self._in_flight is None:
            self._in_flight = deque()
        self._in_flight.append(_Undo(base_offset, end_offset, batch.producer_id, previous))

    def append_transactional(
        self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int
    ) -> None:
        """As `append`, for a transactional batch, which may begin a transaction."""
        previous = self._take_transactional(batch, base_offset, end_offset, now_ms)
        self._note_undo(_Undo(base_offset, end_offset, batch.producer_id, previous))

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: EndMarker, offset: int, now_ms: int
    ) -> int:
        """Record a marker that `check_marker` accepted. It can be undone until `confirm`.

        Returns:
            The first offset of the transaction that the marker ends; `NO_OFFSET` if none is open.
        """
        previous = self._take_marker(producer_id, producer_epoch, marker, offset, now_ms)
        self._note_undo(_Undo(offset, offset + 1, producer_id, previous))
        return NO_OFFSET if previous is None else previous.first_offset

    def _note_undo(self, undo: _Undo) -> None:
        if self._in_flight is None:
            self._in_flight = deque()
        self._in_flight.append(undo)

    def confirm(self, end_offset: int) -> None:
        """Record that everything below `end_offset` is durable."""
        while self._in_flight and self._in_flight[0].end_offset <= end_offset:
            self._in_flight.popleft()
            self.changes += 1  # a snapshot that was written in the meantime excludes this append
        if self._ending:
            self.transactions.confirm(end_offset)

    def roll_back(self, base_offset: int) -> None:
        """Undo the failed append at `base_offset` and all later ones."""
        while self._in_flight and self._in_flight[-1].base_offset >= base_offset:
            undo = self._in_flight.pop()
            first_offset = NO_OFFSET if undo.previous is None else undo.previous.first_offset
            self.transactions.roll_back(undo.base_offset, undo.producer_id, first_offset)
            self._put(undo.producer_id, undo.previous)

    def replay(
        self,
        batch: ProducerBatch,
        base_offset: int,
        end_offset: int,
        now_ms: int,
        *,
        is_transactional: bool = False,
    ) -> None:
        """Record a stored batch during an open, without checks."""
        if base_offset >= self.restored_offset:
            take = self._take_transactional if is_transactional else self._take
            take(batch, base_offset, end_offset, now_ms)

    def replay_marker(
        self, producer_id: int, producer_epoch: int, marker: EndMarker, offset: int, now_ms: int
    ) -> int:
        """As `append_marker`, for a stored marker during an open."""
        if offset < self.restored_offset:
            return NO_OFFSET
        previous = self._take_marker(producer_id, producer_epoch, marker, offset, now_ms)
        self.transactions.confirm(offset + 1)
        return NO_OFFSET if previous is None else previous.first_offset

    def expire(self, before_ms: int) -> int:
        """Remove producers that were idle since `before_ms`; return their number. Stop at the first producer
        that was used later, because entries are ordered by last update.
        """
        in_flight = {undo.producer_id for undo in self._in_flight or ()}
        silent: list[int] = []
        for producer_id, row in self._idle_rows.items():
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
        self._idle_rows.pop(producer_id, None)
        self._entries.pop(producer_id, None)
        self.changes += 1

    def _take(
        self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int, *, begins: bool = False
    ) -> ProducerEntry | None:
        taken = TakenBatch(batch.first_sequence, batch.last_sequence, base_offset, end_offset)
        previous = self._known(batch.producer_id)
        if previous is None:
            entry = ProducerEntry(batch.producer_epoch, batch.first_sequence, now_ms, (taken,))
        else:
            epoch, run_first, _, batches, first_offset, coordinator_epoch = previous
            if (
                batches
                and epoch == batch.producer_epoch
                and batch.first_sequence == (batches[-1].last_sequence + 1) % SEQUENCE_MODULUS
            ):
                batches = (*batches[1 - BATCHES_RETAINED :], taken)
                run_first = _run_start(run_first, taken)
            else:
                batches, run_first = (taken,), batch.first_sequence
            entry = ProducerEntry(
                batch.producer_epoch, run_first, now_ms, batches, first_offset, coordinator_epoch
            )
        if begins:
            entry = entry._replace(first_offset=base_offset)
        self._put(batch.producer_id, entry)
        self._keep_bound()
        return previous

    def _take_transactional(
        self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int
    ) -> ProducerEntry | None:
        producer_id = batch.producer_id
        is_first = producer_id not in self.transactions
        if is_first:
            self.transactions.begin(producer_id, base_offset)
        if batch.first_sequence >= 0:
            return self._take(batch, base_offset, end_offset, now_ms, begins=is_first)
        first_offset = base_offset if is_first else None
        return self._take_unsequenced(producer_id, batch.producer_epoch, now_ms, first_offset)

    def _take_unsequenced(
        self,
        producer_id: int,
        producer_epoch: int,
        now_ms: int,
        first_offset: int | None,
        coordinator_epoch: int | None = None,
    ) -> ProducerEntry | None:
        """Note a marker with its `coordinator_epoch`, or a batch that a coordinator wrote; both have no
        sequences. A new epoch removes the retained batches. `first_offset`: None if it does not change.
        """
        previous = self._known(producer_id)
        old = previous or ProducerEntry(NO_EPOCH, 0, now_ms, ())
        if old.epoch != producer_epoch:
            old = old._replace(run_first_sequence=0, batches=())
        entry = old._replace(epoch=producer_epoch, updated_ms=now_ms)
        if first_offset is not None:
            entry = entry._replace(first_offset=first_offset)
        if coordinator_epoch is not None:
            entry = entry._replace(coordinator_epoch=coordinator_epoch)
        self._put(producer_id, entry)
        self._keep_bound()
        return previous

    def _take_marker(
        self, producer_id: int, producer_epoch: int, marker: EndMarker, offset: int, now_ms: int
    ) -> ProducerEntry | None:
        self.transactions.end(producer_id, offset)
        return self._take_unsequenced(
            producer_id, producer_epoch, now_ms, NO_OFFSET, marker.coordinator_epoch
        )

    @property
    def is_full_of_transactions(self) -> bool:
        """Whether no further producer may begin a transaction."""
        return len(self.transactions) >= self._producers_max

    def _keep_bound(self) -> None:
        while len(self) > self._producers_max:
            oldest = next(chain(self._idle_rows, self._entries), None)
            if oldest is None:
                return
            self._forget(oldest)

    def _put(self, producer_id: int, entry: ProducerEntry | None) -> None:
        self._entries.pop(producer_id, None)
        self._open_entries.pop(producer_id, None)
        if entry is not None:
            entries = self._entries if entry.first_offset == NO_OFFSET else self._open_entries
            entries[producer_id] = entry
        self.changes += 1

    # State that survives a move

    def rest(self, limit: int = ROWS_PER_STEP) -> bool:
        """Encode at most `limit` producers without appends in flight, as part of the next write;
        return whether others remain.
        """
        in_flight = {undo.producer_id for undo in self._in_flight or ()}
        for entries, rows in ((self._entries, self._idle_rows), (self._open_entries, self._open_rows)):
            settled = [producer_id for producer_id in entries if producer_id not in in_flight]
            for producer_id in islice(settled, limit):
                row = rows[producer_id] = encode_entry(producer_id, entries.pop(producer_id))
                self._unwritten.append(row)
            if len(settled) > limit:
                return True
            limit -= len(settled)
        return False

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
        settled = [*self._idle_rows.values(), *self._open_rows.values()]
        return join_rows(offset, [*settled, *self._rows_in_flight()])

    def _rows_in_flight(self) -> Iterator[bytes]:
        """Return the rows of producers with appends in flight, in their state before these appends."""
        confirmed: dict[int, ProducerEntry | None] = {}
        for undo in self._in_flight or ():
            confirmed.setdefault(undo.producer_id, undo.previous)
        return (
            encode_entry(producer_id, entry) for producer_id, entry in confirmed.items() if entry is not None
        )

    def snapshot(self) -> bytes:
        """Return the state with nothing in flight, as after a clean close."""
        assert not self._in_flight, "a clean close must wait for all appends"
        newest = [taken.end_offset for _, entry in self.active() for taken in entry.batches[-1:]]
        return self.snapshot_at(max([self.restored_offset, *newest]))

    def restore(self, value: bytes) -> None:
        at_once(self.restoring(MetaValue(value)))

    def restoring(self, value: MetaValue) -> Steps[None]:
        """Replace the state by a snapshot and its changes, in steps.

        Raises:
            PartitionCorruptError: the bytes violate the format.
        """
        self._entries, self._idle_rows, self._unwritten, self._in_flight = {}, {}, [], None
        self._open_entries, self._open_rows = {}, {}
        for part in (value.whole, *value.changes):
            if part is not None:
                self.restored_offset, rows = split_rows(part)
                for number, (producer_id, row) in enumerate(rows, 1):
                    self._idle_rows.pop(producer_id, None)  # put it at the end, as the last used
                    self._open_rows.pop(producer_id, None)
                    has_open = first_offset_of(row) != NO_OFFSET
                    (self._open_rows if has_open else self._idle_rows)[producer_id] = row
                    if number % ROWS_PER_STEP == 0:
                        yield
        self.transactions.reset({one: first_offset_of(row) for one, row in self._open_rows.items()})
        self._keep_bound()  # changes do not contain removals


def _run_start(run_first: int, taken: TakenBatch) -> int:
    # The start of a run of more than 2^30 sequences would become ambiguous when sequences wrap. It is not
    # needed exactly: move it forward.
    length = (taken.last_sequence - run_first) % SEQUENCE_MODULUS
    return run_first if length < PAST_MAX else (taken.last_sequence - PAST_MAX) % SEQUENCE_MODULUS


def _check_epoch(producer_id: int, epoch: int, epoch_min: int) -> None:
    if epoch < epoch_min:
        raise PartitionError(
            ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id}: epoch {epoch} is below {epoch_min}"
        )


def _check_sequence(batch: ProducerBatch, entry: ProducerEntry) -> None:
    if batch.producer_epoch > entry.epoch:
        if batch.first_sequence != 0:
            raise _out_of_order(batch, f"epoch {batch.producer_epoch} must start with sequence 0")
        return
    if batch.first_sequence == (entry.last_sequence + 1) % SEQUENCE_MODULUS:
        return
    if entry.is_in_the_past(batch):
        raise PartitionError(
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
            f"producer {batch.producer_id}: sequence {batch.first_sequence} was appended earlier",
        )
    raise _out_of_order(batch, f"the last appended sequence was {entry.last_sequence}")


def _out_of_order(batch: ProducerBatch, why: str) -> PartitionError:
    return PartitionError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {batch.producer_id}: sequence {batch.first_sequence} is out of order: {why}",
    )
