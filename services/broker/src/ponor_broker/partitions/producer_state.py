"""The idempotent producer, from the broker's side (KIP-98, KIP-360): which batches of a producer were taken.

What lives here: a pure state machine, without streams and clocks. For every producer id it keeps the epoch and the last five batches.
A batch seen before is answered with its first offset and appended no second time; a gap is refused.

An append changes the state at once, so that the next pipelined batch finds it, and the change is undone when the append fails: a state
that remembers a batch which was never stored would call the producer's retry a duplicate, and the data would be lost.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode
from ponor_partition import meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaKey

from ponor_broker.partitions.errors import PartitionError

BATCHES_RETAINED: Final = 5
"""Kafka's window: clients keep at most five requests of a connection in flight."""
SEQUENCE_MODULUS: Final = 1 << 31
"""Sequences run 0 .. 2^31−1 and start at 0 again."""
_PAST: Final = 1 << 30

_HEADER: Final = struct.Struct(">BqI")
_PRODUCER: Final = struct.Struct(">qhiqB")
_BATCH: Final = struct.Struct(">iiqq")
_VERSION: Final = 1


class TakenBatch(NamedTuple):
    """A batch that was appended: its sequences (inclusive) and where it lies."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int


class ProducerBatch(NamedTuple):
    """What the state machine needs of a batch header."""

    producer_id: int
    producer_epoch: int
    first_sequence: int
    record_count: int

    @property
    def last_sequence(self) -> int:
        """Sequence of the batch's last record; a batch may wrap inside itself."""
        return (self.first_sequence + self.record_count - 1) % SEQUENCE_MODULUS


class ProducerEntry(NamedTuple):
    """One producer: immutable, so that undoing an append is putting the previous one back.

    `run_first_sequence` is the first sequence of the unbroken run that ends at the newest batch.
    """

    epoch: int
    run_first_sequence: int
    updated_ms: int
    batches: tuple[TakenBatch, ...]

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest record."""
        return self.batches[-1].last_sequence

    def is_in_the_past(self, batch: ProducerBatch) -> bool:
        """Whether every record of the batch surely was appended before the retained window."""
        run_length = (self.last_sequence - self.run_first_sequence) % SEQUENCE_MODULUS
        behind = (self.last_sequence - batch.first_sequence) % SEQUENCE_MODULUS
        before_window = (self.batches[0].first_sequence - 1 - batch.last_sequence) % SEQUENCE_MODULUS
        return behind <= min(run_length, _PAST) and before_window <= min(run_length, _PAST)


class _Undo(NamedTuple):
    base_offset: int
    end_offset: int
    producer_id: int
    previous: ProducerEntry | None


class ProducerStates:
    """Producers of one partition. `producers_max` bounds them: the one that was silent longest is forgotten first."""

    key: MetaKey = meta_entry.PRODUCER_SNAPSHOT

    def __init__(self, *, producers_max: int = 10_000) -> None:
        self._producers_max = producers_max
        self._entries: dict[int, ProducerEntry] = {}  # in order of the last update
        self._in_flight: deque[_Undo] | None = None  # made by the first append
        self.restored_offset = 0
        """Replay of batches below this offset changes nothing: the snapshot holds them."""
        self.changes = 0
        """Rises with every change of what a snapshot would hold; tells whether a new one is due."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest_ms(self) -> int | None:
        """When the most silent producer was heard last (wall clock); None without producers."""
        return next((entry.updated_ms for entry in self._entries.values()), None)

    @property
    def has_unconfirmed(self) -> bool:
        """Whether appends of idempotent producers are in flight."""
        return bool(self._in_flight)

    def active(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Every producer that is known, by id."""
        return iter(self._entries.items())

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """What is known of a producer."""
        return self._entries.get(producer_id)

    def is_next(self, batch: ProducerBatch) -> bool:
        """Whether the batch goes on exactly where its producer's newest one ended, as nearly all do: then it is no repeat, and in order."""
        entry = self._entries.get(batch.producer_id)
        return (
            entry is not None
            and entry.epoch == batch.producer_epoch
            and batch.first_sequence == (entry.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS
        )

    def find_duplicate(self, batch: ProducerBatch) -> TakenBatch | None:
        """The retained batch that this one repeats, if any."""
        entry = self._entries.get(batch.producer_id)
        if entry is None or entry.epoch != batch.producer_epoch:
            return None
        last = batch.last_sequence
        for taken in reversed(entry.batches):
            if taken.first_sequence == batch.first_sequence and taken.last_sequence == last:
                return taken
        return None

    def check(self, batch: ProducerBatch) -> None:
        """Whether a batch that is no retained duplicate may be appended next.

        Raises:
            PartitionError: INVALID_PRODUCER_EPOCH, DUPLICATE_SEQUENCE_NUMBER (older than the window) or
                OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            return  # nothing is known (new, expired, or all its records are gone): any sequence is the first
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
                f"producer {batch.producer_id}: sequence {batch.first_sequence} was appended long before",
            )
        raise _out_of_order(batch, f"the last one was {entry.last_sequence}")

    def append(self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int) -> None:
        """Take a batch that `check` let pass. It stays undoable until `confirm`."""
        previous = self._take(batch, base_offset, end_offset, now_ms)
        if self._in_flight is None:
            self._in_flight = deque()
        self._in_flight.append(_Undo(base_offset, end_offset, batch.producer_id, previous))

    def confirm(self, end_offset: int) -> None:
        """Everything below `end_offset` is durable."""
        while self._in_flight and self._in_flight[0].end_offset <= end_offset:
            self._in_flight.popleft()
            self.changes += 1  # a snapshot in between left it out

    def roll_back(self, base_offset: int) -> None:
        """The append at `base_offset` failed, and with it all later ones: forget them."""
        while self._in_flight and self._in_flight[-1].base_offset >= base_offset:
            undo = self._in_flight.pop()
            self._put(undo.producer_id, undo.previous)

    def replay(self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int) -> None:
        """Learn from a stored batch header after an open; what the log holds is true, so nothing is checked."""
        if base_offset >= self.restored_offset:
            self._take(batch, base_offset, end_offset, now_ms)

    def expire(self, before_ms: int) -> int:
        """Forget producers that were silent since `before_ms`; returns how many."""
        in_flight = {undo.producer_id for undo in self._in_flight or ()}
        silent = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.updated_ms < before_ms and producer_id not in in_flight
        ]
        for producer_id in silent:
            del self._entries[producer_id]
        self.changes += len(silent)
        return len(silent)

    def _take(
        self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int
    ) -> ProducerEntry | None:
        taken = TakenBatch(batch.first_sequence, batch.last_sequence, base_offset, end_offset)
        previous = self._entries.get(batch.producer_id)
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
        while len(self._entries) > self._producers_max:
            del self._entries[next(iter(self._entries))]
        return previous

    def _put(self, producer_id: int, entry: ProducerEntry | None) -> None:
        self._entries.pop(producer_id, None)
        if entry is not None:
            self._entries[producer_id] = entry
        self.changes += 1

    # What survives a move

    def snapshot_at(self, offset: int) -> bytes:
        """The state as of the confirmed Kafka offset `offset`: appends in flight are left out."""
        entries = dict(self._entries)
        for undo in reversed(self._in_flight or ()):
            if undo.previous is None:
                entries.pop(undo.producer_id, None)
            else:
                entries[undo.producer_id] = undo.previous
        parts = [_HEADER.pack(_VERSION, offset, len(entries))]
        for producer_id, entry in entries.items():
            parts.append(
                _PRODUCER.pack(
                    producer_id, entry.epoch, entry.run_first_sequence, entry.updated_ms, len(entry.batches)
                )
            )
            parts.extend(_BATCH.pack(*taken) for taken in entry.batches)
        return b"".join(parts)

    def snapshot(self) -> bytes:
        """The state with nothing in flight, as after a clean close."""
        assert not self._in_flight, "a clean close waits for its appends"
        newest = [entry.batches[-1].end_offset for entry in self._entries.values()]
        return self.snapshot_at(max([self.restored_offset, *newest]))

    def restore(self, value: bytes) -> None:
        try:
            version, offset, count = _HEADER.unpack_from(value)
            entries: dict[int, ProducerEntry] = {}
            at = _HEADER.size
            for _ in range(count):
                producer_id, epoch, run_first, updated_ms, batch_count = _PRODUCER.unpack_from(value, at)
                at += _PRODUCER.size
                batches = tuple(
                    TakenBatch(*_BATCH.unpack_from(value, at + index * _BATCH.size))
                    for index in range(batch_count)
                )
                at += batch_count * _BATCH.size
                entries[producer_id] = ProducerEntry(epoch, run_first, updated_ms, batches)
        except struct.error as error:
            raise PartitionCorruptError(
                f"PRODUCER_SNAPSHOT: {len(value)} bytes end too soon: {error}"
            ) from error
        if version != _VERSION or at != len(value) or any(not entry.batches for entry in entries.values()):
            raise PartitionCorruptError(
                f"PRODUCER_SNAPSHOT: version {version}, {at} of {len(value)} bytes make sense"
            )
        self._entries = entries
        self._in_flight = None
        self.restored_offset = offset


def _run_start(previous: ProducerEntry, taken: TakenBatch) -> int:
    # After 2^30 sequences the start of the run is of no use any more and would become ambiguous at the wrap: let it follow.
    length = (taken.last_sequence - previous.run_first_sequence) % SEQUENCE_MODULUS
    return previous.run_first_sequence if length < _PAST else (taken.last_sequence - _PAST) % SEQUENCE_MODULUS


def _out_of_order(batch: ProducerBatch, why: str) -> PartitionError:
    return PartitionError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {batch.producer_id}: sequence {batch.first_sequence} is out of order: {why}",
    )
