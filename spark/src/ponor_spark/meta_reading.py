"""Read the committed Meta and Txn streams of partitions from objects, and fold their entries.

A stream reader opens a snapshot at every trigger, and Meta streams grow by few entries in between, so this
module keeps the folded values and adds only new entries. `partition_layout` interprets the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Final

from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaValues, decode_entry, fold_entry
from ponor_partition.txn_entry import decode_txn_entry
from ponor_runtime.identity import StreamId
from s3stream.objects.format import BlockEntry
from s3stream.records import StreamRecord

from ponor_spark.clip import AbortedRange
from ponor_spark.errors import StoredDataError
from ponor_spark.object_indexes import ObjectIndexes, ObjectPlace, place_of
from ponor_spark.partition_layout import CommittedRange
from ponor_spark.snapshot import pieces_within

FOLDS_MAX: Final = 10_000
"""Maximum Meta streams whose fold is kept."""


@dataclass(slots=True)
class _Fold:
    """Folded entries in [start_offset, end_offset) of a Meta stream."""

    start_offset: int
    end_offset: int
    values: MetaValues


class MetaReading:
    """Reads through the `ObjectIndexes` of one planning; keeps folds between snapshots."""

    def __init__(self) -> None:
        self._folds: dict[int, _Fold] = {}

    def values_of(
        self,
        streams: Sequence[CommittedRange],
        pieces: Mapping[int, bytes],
        namespaces: Sequence[str],
        indexes: ObjectIndexes,
    ) -> dict[int, MetaValues]:
        """Return the folded values of Meta streams by stream id.

        Raises:
            PonorSparkError: an object cannot be read.
            PartitionCorruptError: an entry violates the format.
        """
        folds = {each.stream_id: self._fold_before(each) for each in streams}
        missing = [
            CommittedRange(each.stream_id, folds[each.stream_id].end_offset, each.end_offset)
            for each in streams
        ]
        for record in read_records(missing, pieces, namespaces, indexes):
            fold = folds[record.stream_id]
            if record.base_offset != fold.end_offset:
                raise StoredDataError(
                    f"meta stream {record.stream_id}: offset {record.base_offset} follows {fold.end_offset};"
                    " run `ponor object verify` for details"
                )
            where = f"meta stream {record.stream_id}, offset {record.base_offset}"
            fold_entry(fold.values, decode_entry(record.payload, where))
            fold.end_offset = record.end_offset
        self._folds.update(folds)
        while len(self._folds) > FOLDS_MAX:
            del self._folds[next(iter(self._folds))]
        return {stream_id: fold.values for stream_id, fold in folds.items()}

    def _fold_before(self, stream: CommittedRange) -> _Fold:
        """Return the kept fold if the stream still has the same start; a trim removes entries that were
        rewritten later.
        """
        known = self._folds.get(stream.stream_id)
        if known is None or known.start_offset != stream.start_offset or known.end_offset > stream.end_offset:
            return _Fold(stream.start_offset, stream.start_offset, {})
        return _Fold(known.start_offset, known.end_offset, deepcopy(known.values))


def read_aborted(
    stream: CommittedRange, pieces: Mapping[int, bytes], namespaces: Sequence[str], indexes: ObjectIndexes
) -> list[AbortedRange]:
    """Return the aborted transactions of a partition, in marker order."""
    found: list[AbortedRange] = []
    for record in read_records([stream], pieces, namespaces, indexes):
        try:
            entry = decode_txn_entry(
                record.payload, f"txn stream {stream.stream_id}, offset {record.base_offset}"
            )
        except PartitionCorruptError as error:
            raise StoredDataError(f"{error}; update ponor-spark") from error
        found.append(AbortedRange(entry.producer_id, entry.first_offset, entry.last_offset))
    return found


def read_records(
    streams: Sequence[CommittedRange],
    pieces: Mapping[int, bytes],
    namespaces: Sequence[str],
    indexes: ObjectIndexes,
) -> Iterator[StreamRecord]:
    """Yield every record of these ranges, by stream and offset."""
    wanted = [
        (each, piece)
        for each in streams
        for piece in pieces_within(pieces.get(each.stream_id, b""), each.start_offset, each.end_offset)
    ]
    places: list[ObjectPlace] = [place_of(namespaces, piece) for _, piece in wanted]
    blocks: list[tuple[str, BlockEntry]] = []
    ranges: list[tuple[int, int]] = []
    for (stream, piece), index in zip(wanted, indexes.read(places), strict=True):
        first, last = max(stream.start_offset, piece.start_offset), min(stream.end_offset, piece.end_offset)
        for entry in index.blocks_of(StreamId(stream.stream_id), first, last):
            blocks.append((index.key, entry))
            ranges.append((first, last))
    for (first, last), block in zip(ranges, indexes.read_blocks(blocks), strict=True):
        yield from (record for record in block.records_from(first) if first <= record.base_offset < last)
