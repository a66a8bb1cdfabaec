"""The overlay: the image as it will be after all proposed batches are committed. The leader validates
requests against it.

It stores the rows that uncommitted batches touched. `commit` applies a batch to the image, with the same code
as in every other process, and removes its rows from the overlay unless a later batch touched them. `drop`
removes all rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ponor.metadata.v1.records_pb2 import Record, RecordBatch
from ponor_rpc.joined_messages import message_head

from ponor_metadata.image.apply import apply_batch, apply_records, require_next
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.touched_rows_native import TouchedRows
from ponor_metadata.tables.found import Merged
from ponor_metadata.tables.schema import Index, Tables

K = TypeVar("K")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 -- the key of an index


RECORDS: Final = RecordBatch.RECORDS_FIELD_NUMBER


@dataclass(frozen=True, slots=True)
class ProposedBatch:
    """A batch that is not committed yet: its index, and its bytes in the log."""

    index: int
    encoded: bytes


class Overlay(Tables):
    """The image with the changes of all proposed batches. Implements `View`."""

    __slots__ = ("__weakref__", "_image", "_newest", "_open", "_proposed")

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._proposed: deque[ProposedBatch] = deque()
        self._open: list[bytes] | None = None
        """Parts of the encoding of the open batch; None if no batch is open."""
        # (index, cluster time) of the open batch or, without one, of the newest proposed batch; None: the
        # values of the image. One tuple, because every `put` reads it.
        self._newest: tuple[int, int] | None = None
        super().__init__({schema: OverlayTable(table, self) for schema, table in image.items()})

    @property
    def image(self) -> MetadataImage:
        """The committed rows."""
        return self._image

    @property
    def index(self) -> int:
        """Index of the open batch; without one, of the newest proposed batch; without one, of the image."""
        return self._image.index if self._newest is None else self._newest[0]

    @property
    def cluster_time_ms(self) -> int:
        """Cluster time of the batch of `index`."""
        return self._image.cluster_time_ms if self._newest is None else self._newest[1]

    @property
    def proposed_batches(self) -> int:
        """The number of batches that are not committed."""
        return len(self._proposed)

    @property
    def touched_rows(self) -> int:
        """The number of rows that uncommitted batches changed."""
        return sum(table.touched_rows for table in self.values())

    def propose(self, batch: RecordBatch) -> bytes:
        """Apply the next batch to this view only.

        Returns:
            The batch's bytes for the log. The log must contain exactly these bytes, because the running
            digest depends on them.
        """
        assert self._open is None, "a batch is open"
        apply_batch(self, batch)
        return self._proposed[-1].encoded

    def open_batch(self, batch: RecordBatch) -> None:
        """Begin the next batch, without records.

        Each call of `extend_batch` adds the records of one operation; `close_batch` ends the batch.
        """
        assert self._open is None, "a batch is open"
        assert not batch.records
        require_next(self, batch)
        self._open = [batch.SerializeToString(deterministic=True)]
        self._newest = (batch.index, batch.cluster_time_ms)

    def extend_batch(self, records: Sequence[Record], encoded: Iterable[bytes]) -> None:
        """Apply records to this view only and append them to the open batch.

        `encoded`: the encodings of the records, which become part of the batch's encoding.
        """
        parts = self._open
        assert parts is not None, "no batch is open"
        apply_records(self, records)
        for each in encoded:
            parts += (message_head(RECORDS, len(each)), each)

    def close_batch(self) -> ProposedBatch:
        """End the open batch and return it. As with `propose`, the log must contain exactly its bytes."""
        parts, self._open = self._open, None
        assert parts is not None, "no batch is open"
        assert len(parts) > 1, "the batch has no records"
        closed = ProposedBatch(self.index, b"".join(parts))
        self._proposed.append(closed)
        return closed

    def begin(self, batch: RecordBatch) -> None:
        """See `View.begin`."""
        self._newest = (batch.index, batch.cluster_time_ms)
        self._proposed.append(ProposedBatch(batch.index, batch.SerializeToString(deterministic=True)))

    def commit(self, index: int) -> list[ProposedBatch]:
        """Apply all batches up to `index` to the image. Rows that no later batch touched leave the overlay.

        Returns:
            The committed batches, for subscribers.
        """
        newest = self._proposed[-1].index if self._proposed else self._image.index
        assert index <= newest, f"batch {index} was never proposed; the newest is {newest}"
        committed: list[ProposedBatch] = []
        while self._proposed and self._proposed[0].index <= index:
            proposed = self._proposed.popleft()
            self._image.replay(proposed.encoded)
            committed.append(proposed)
        if not self._proposed and self._open is None:
            self._newest = None
        for table in self.values():
            table.forget(index)
        return committed

    def drop(self) -> None:
        """Forget all uncommitted batches."""
        self._proposed.clear()
        self._open = self._newest = None
        for table in self.values():
            table.forget(None)


class OverlayTable(TouchedRows[K, R]):
    """A `Table`: the image's table, overlaid with the touched rows."""

    __slots__ = ()

    def __len__(self) -> int:
        appeared = sum((row is not None) - (key in self._base) for key, row in self._newest_rows())
        return len(self._base) + appeared

    def __iter__(self) -> Iterator[R]:
        if not self._touched:
            return iter(self._base)
        rows = {self._schema.key(row): row for row in self._base}
        for key, row in self._newest_rows():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
        # Keys of one table can be compared, which the type variable cannot express.
        return iter([rows[key] for key in sorted(rows)])  # type: ignore[type-var]

    def find(self, index: Index[I, R], index_key: I) -> Sequence[R]:
        base = self._base.find(index, index_key)
        self._note_all()
        moved = self._index_keys[index.name].get(index_key)
        if not moved:
            return base
        hidden = [under for key in moved if (under := self._base.get(key)) is not None]
        shown = [row for key in moved if (row := self._touched[key].row) is not None]
        return Merged(
            base,
            frozenset(index.order(row) for row in hidden if index_key in index.keys(row)),
            sorted((row for row in shown if index_key in index.keys(row)), key=index.order),
            index.order,
        )

    def amend(self, row: R) -> None:
        self.put(row)

    def _newest_rows(self) -> Iterator[tuple[K, R | None]]:
        return ((key, change.row) for key, change in self._touched.items())

    def _note_all(self) -> None:
        unnoted = self._unnoted
        while unnoted:
            change = unnoted.popleft()
            if change.present is not None:
                self._note(change.key, change.present, change.batch_index)
            if change.row is not None:
                self._note(change.key, change.row, change.batch_index)

    def _note(self, key: K, row: R, batch_index: int) -> None:
        for index_keys, moved in self._moved:
            for index_key in index_keys(row):
                keys = moved.get(index_key)
                if keys is None:
                    keys = moved[index_key] = {}
                keys[key] = batch_index
                self._notes.append((batch_index, moved, index_key, key))
