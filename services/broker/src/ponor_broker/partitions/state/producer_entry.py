"""State of one idempotent producer, and its bytes in a PRODUCER_SNAPSHOT (docs/formats/partition-meta.md)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from ponor_partition.errors import PartitionCorruptError

from ponor_broker.partitions.transactions.open_transactions import NO_OFFSET

BATCHES_RETAINED: Final = 5
"""Kafka's window: clients keep at most five requests of a connection in flight."""
SEQUENCE_MODULUS: Final = 1 << 31
"""Sequences run from 0 to 2^31−1 and wrap to 0."""
PAST_MAX: Final = 1 << 30
"""The order of two sequences is known if their distance is less than this."""

_HEADER: Final = struct.Struct(">BqI")
_PRODUCER: Final = ">qhiqqiB"
_BATCH: Final = "iiqq"
_ROWS: Final = tuple(struct.Struct(_PRODUCER + _BATCH * batches) for batches in range(BATCHES_RETAINED + 1))
"""Row layouts by number of batches."""
ROW_BYTES_MAX: Final = _ROWS[-1].size
_ID: Final = struct.Struct(">q")
_UPDATED: Final = struct.Struct(">q")
_UPDATED_AT: Final = 14
_FIRST_OFFSET: Final = struct.Struct(">q")
_FIRST_OFFSET_AT: Final = 22
_BATCHES_AT: Final = 34
_VERSION: Final = 1
NO_COORDINATOR: Final = -1
NO_EPOCH: Final = -1


class TakenBatch(NamedTuple):
    """An appended batch: its sequences (inclusive) and its offsets."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int


class ProducerBatch(NamedTuple):
    """The header fields that the state machine needs."""

    producer_id: int
    producer_epoch: int
    first_sequence: int
    record_count: int

    @property
    def last_sequence(self) -> int:
        """Sequence of the batch's last record; sequences may wrap within a batch."""
        return (self.first_sequence + self.record_count - 1) % SEQUENCE_MODULUS


class ProducerEntry(NamedTuple):
    """One producer. Immutable, so that the undo of an append can restore the previous object.

    `run_first_sequence` is the first sequence of the unbroken run that ends at the newest batch. `batches` is
    empty after a marker that began a new epoch: the next sequence is then 0. `first_offset` is the first
    offset of the producer's open transaction, `coordinator_epoch` the coordinator epoch of its last marker.
    """

    epoch: int
    run_first_sequence: int
    updated_ms: int
    batches: tuple[TakenBatch, ...]
    first_offset: int = NO_OFFSET
    coordinator_epoch: int = NO_COORDINATOR

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest record; −1 without batches."""
        return self.batches[-1].last_sequence if self.batches else -1

    def is_in_the_past(self, batch: ProducerBatch) -> bool:
        """Return whether every record of the batch was appended before the retained window, as far as the
        sequences prove it.
        """
        if not self.batches:
            return False
        run_length = (self.last_sequence - self.run_first_sequence) % SEQUENCE_MODULUS
        behind = (self.last_sequence - batch.first_sequence) % SEQUENCE_MODULUS
        before_window = (self.batches[0].first_sequence - 1 - batch.last_sequence) % SEQUENCE_MODULUS
        return behind <= min(run_length, PAST_MAX) and before_window <= min(run_length, PAST_MAX)


def encode_entry(producer_id: int, entry: ProducerEntry) -> bytes:
    """Encode a producer's row."""
    epoch, run_first_sequence, updated_ms, batches, first_offset, coordinator_epoch = entry
    return _ROWS[len(batches)].pack(
        producer_id,
        epoch,
        run_first_sequence,
        updated_ms,
        first_offset,
        coordinator_epoch,
        len(batches),
        *chain.from_iterable(batches),
    )


def decode_entry(row: bytes) -> ProducerEntry:
    """Decode a row of `split_rows` or `encode_entry`."""
    _, epoch, run_first_sequence, updated_ms, first_offset, coordinator_epoch, count, *numbers = _ROWS[
        row[_BATCHES_AT]
    ].unpack(row)
    batches = tuple(TakenBatch(*numbers[at : at + 4]) for at in range(0, 4 * count, 4))
    return ProducerEntry(epoch, run_first_sequence, updated_ms, batches, first_offset, coordinator_epoch)


def updated_ms_of(row: bytes) -> int:
    """Return the time at which the producer of a row appended last."""
    updated_ms: int = _UPDATED.unpack_from(row, _UPDATED_AT)[0]
    return updated_ms


def first_offset_of(row: bytes) -> int:
    """Return the first offset of the open transaction of a row's producer."""
    first_offset: int = _FIRST_OFFSET.unpack_from(row, _FIRST_OFFSET_AT)[0]
    return first_offset


def join_rows(offset: int, rows: list[bytes]) -> bytes:
    """Encode a snapshot, or a change of one, as of the confirmed Kafka offset `offset`."""
    return b"".join((_HEADER.pack(_VERSION, offset, len(rows)), *rows))


def split_rows(value: bytes) -> tuple[int, Iterator[tuple[int, bytes]]]:
    """Return the offset of a snapshot, or of a change of one, and an iterator over its producers: id and row.

    Raises:
        PartitionCorruptError: the bytes violate the format; the iterator raises it too.
    """
    try:
        version, offset, count = _HEADER.unpack_from(value)
    except struct.error as error:
        raise PartitionCorruptError(f"PRODUCER_SNAPSHOT: truncated to {len(value)} bytes: {error}") from error
    if version != _VERSION:
        raise PartitionCorruptError(f"PRODUCER_SNAPSHOT: version {version} is not supported by this release")
    return offset, _rows_of(value, count)


def _rows_of(value: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    at = _HEADER.size
    for _ in range(count):
        batches = value[at + _BATCHES_AT] if at + _BATCHES_AT < len(value) else BATCHES_RETAINED + 1
        end = at + _ROWS[batches].size if batches <= BATCHES_RETAINED else len(value) + 1
        if end > len(value):
            raise PartitionCorruptError(
                f"PRODUCER_SNAPSHOT: the row at byte {at} has {batches} batches and exceeds the"
                f" {len(value)} bytes of the value"
            )
        yield _ID.unpack_from(value, at)[0], value[at:end]
        at = end
    if at != len(value):
        raise PartitionCorruptError(f"PRODUCER_SNAPSHOT: the rows end at byte {at} of {len(value)}")
