"""Offsets up to which a partition's streams may be trimmed: for each stream, the first offset that a segment
or a running cleaning needs.

`partition_log` executes the trims. A stream can be trimmed only at its start, so the lowest slice of each
stream decides. Slices that a cleaner replaced stay until the new list of segments is in committed objects,
not only in the write-ahead log: until then, readers that use only objects (Spark) find the old list, and its
slices must exist (docs/design/spark.md#snapshots). Output of a running cleaner stays although no segment
refers to it yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from ponor_partition.log_meta import LogMeta
from ponor_partition.segment import CLEANED, DATA, SLICED, TXN, StreamName

from ponor_broker.partitions.log.stream_port import PartitionStream


class StreamTrims:
    """Offsets for the trims of one partition."""

    def __init__(
        self, log_meta: LogMeta, streams: Mapping[StreamName, PartitionStream], meta: PartitionStream
    ) -> None:
        self._log_meta = log_meta
        self._streams = streams
        self._meta = meta
        self._meta_needed_to = 0  # the Meta stream must be committed up to here before any trim
        self._changes: list[asyncio.Future[None]] = []  # segment lists that are not durable yet
        self._lowest_known: dict[StreamName, tuple[int, int, int]] = {}
        self.is_cleaning = False
        """Whether a cleaner is writing: output after the last slice of the `.cleaned` streams may become a
        segment."""

    def hold_until(self, durable: asyncio.Future[None]) -> None:
        """Trim nothing until this change of the segment list, the last entry of the Meta stream, is
        durable and in a committed object.
        """
        self._meta_needed_to = self._meta.next_offset
        self._changes.append(durable)
        durable.add_done_callback(self._release)

    def due(self, start_offset: int) -> list[tuple[PartitionStream, int]]:
        """Return the streams with unneeded data, each with its first needed offset; the log starts at Kafka
        offset `start_offset`.
        """
        if self._changes or self._meta.committed_offset < self._meta_needed_to:
            return []
        return [
            (stream, needed)
            for name, stream in self._streams.items()
            if (needed := self._needed_from(name, stream, start_offset)) > stream.start_offset
        ]

    def _needed_from(self, name: StreamName, stream: PartitionStream, start_offset: int) -> int:
        kind = next((kind for kind in SLICED if name.startswith(kind)), DATA)
        first = self._lowest(name, kind, start_offset)
        if first is not None:
            # Data below the log start is trimmed even before its upload. Replaced slices, and entries of a
            # Time or Txn stream, are trimmed only after their upload.
            is_start = kind == DATA and not self._log_meta.segments[0].suffix and not name.endswith(CLEANED)
            return first if is_start else min(first, stream.committed_offset)
        if self.is_cleaning or not name.endswith(CLEANED):
            return stream.start_offset
        return stream.committed_offset

    def _lowest(self, name: StreamName, kind: StreamName, start_offset: int) -> int | None:
        """Return the start of a stream's lowest slice; None without slices.

        In a plain stream, slices are in the order of the segments. In a `.cleaned` stream, all slices must be
        checked, because a later cleaning appends slices for earlier segments. Cleaned segments keep their
        slices of the Txn stream. A roll does not change the result, so it is valid until closed segments are
        replaced or the log start moves.
        """
        known = self._lowest_known.get(name)
        if known is not None and known[:2] == (self._log_meta.replacements, start_offset):
            return known[2]
        starts = self._starts(name, kind, start_offset)
        lowest = min(starts, default=None) if name.endswith(CLEANED) else next(starts, None)
        if lowest is not None:
            self._lowest_known[name] = (self._log_meta.replacements, start_offset, lowest)
        return lowest

    def _starts(self, name: StreamName, kind: StreamName, start_offset: int) -> Iterator[int]:
        for at, segment in enumerate(self._log_meta.segments):
            part = segment.slice(kind)
            if part is None or (kind != TXN and kind + segment.suffix != name):
                continue
            is_cut = at == 0 and kind == DATA
            yield max(part.start, segment.stream_offset(start_offset)) if is_cut else part.start

    def _release(self, durable: asyncio.Future[None]) -> None:
        """Allow trims again after a durable change. A failed change blocks trims permanently, because
        the next open finds the old list.
        """
        if not durable.cancelled() and durable.exception() is None:
            self._changes.remove(durable)
