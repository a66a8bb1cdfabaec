"""The overlay: the image as it will be when everything that the leader proposed is committed.

What lives here: the rows that uncommitted batches touched, kept beside the image. The leader validates new requests against it; nothing else
ever reads it. A commit applies the batch to the image by the same code as on every other process and forgets the rows that no later batch
touched; dropping forgets all, which is the same as if nothing had been proposed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ponor.metadata.v1.records_pb2 import Record, RecordBatch
from ponor_rpc.joined_messages import message_head

from ponor_metadata.apply import apply_batch, apply_records, require_next
from ponor_metadata.image import MetadataImage
from ponor_metadata.merged import Merged
from ponor_metadata.tables import Index

try:
    from ponor_metadata.touched_rows_native import TouchedRows
except ImportError:  # pragma: no cover - no C compiler was there when the member was installed
    from ponor_metadata.touched_rows_python import TouchedRows

K = TypeVar("K")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 -- the key of an index


RECORDS: Final = RecordBatch.RECORDS_FIELD_NUMBER


@dataclass(frozen=True, slots=True)
class ProposedBatch:
    """A batch that is not committed yet, and its bytes as they stand in the log."""

    index: int
    encoded: bytes


class Overlay:
    """Fulfils `ponor_metadata.view.View` for the leader."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._proposed: deque[ProposedBatch] = deque()
        self._open: list[bytes] | None = None
        """The open batch's encoding so far, in parts."""
        # Of the open batch, else of the newest proposed one; None: nothing is proposed, and the image's count. Plain numbers, because every row that is put asks for them.
        self._newest: tuple[int, int] | None = None
        self.clusters = OverlayTable(image.clusters, self)
        self.features = OverlayTable(image.features, self)
        self.tenants = OverlayTable(image.tenants, self)
        self.counters = OverlayTable(image.counters, self)
        self.nodes = OverlayTable(image.nodes, self)
        self.streams = OverlayTable(image.streams, self)
        self.objects = OverlayTable(image.objects, self)
        self.stream_objects = OverlayTable(image.stream_objects, self)
        self.stream_set_objects = OverlayTable(image.stream_set_objects, self)
        self.keys = OverlayTable(image.keys, self)
        self.topics = OverlayTable(image.topics, self)
        self.partitions = OverlayTable(image.partitions, self)
        self.operations = OverlayTable(image.operations, self)
        self.broker_configs = OverlayTable(image.broker_configs, self)
        self.quorum = OverlayTable(image.quorum, self)
        self.moves = OverlayTable(image.moves, self)
        self.wals = OverlayTable(image.wals, self)
        self.compactions = OverlayTable(image.compactions, self)
        self.snapshots = OverlayTable(image.snapshots, self)
        self.reclaims = OverlayTable(image.reclaims, self)
        self.deletions = OverlayTable(image.deletions, self)
        self._all_tables = [value for value in vars(self).values() if isinstance(value, OverlayTable)]

    @property
    def image(self) -> MetadataImage:
        """What is committed."""
        return self._image

    @property
    def index(self) -> int:
        """Index of the open batch, else of the newest proposed one, or the image's."""
        return self._image.index if self._newest is None else self._newest[0]

    @property
    def cluster_time_ms(self) -> int:
        """Cluster clock of that batch."""
        return self._image.cluster_time_ms if self._newest is None else self._newest[1]

    @property
    def proposed_batches(self) -> int:
        """How many batches wait for their commit."""
        return len(self._proposed)

    @property
    def touched_rows(self) -> int:
        """How many rows the overlay holds beside the image's."""
        return sum(table.touched_rows for table in self._tables())

    def propose(self, batch: RecordBatch) -> bytes:
        """Apply the next batch to this view only.

        Returns:
            The batch's bytes, to be written to the log: these exact bytes, because the digest runs over them.
        """
        assert self._open is None, "a batch is open"
        apply_batch(self, batch)
        return self._proposed[-1].encoded

    def open(self, batch: RecordBatch) -> None:
        """Begin the next batch, without records; `extend` adds those of one operation after the other, each seen by the next, and `seal` ends it."""
        assert self._open is None, "a batch is open"
        assert not batch.records
        require_next(self, batch)
        self._open = [batch.SerializeToString(deterministic=True)]
        self._newest = (batch.index, batch.cluster_time_ms)

    def extend(self, records: Sequence[Record], encoded: Iterable[bytes]) -> None:
        """Apply records to this view only, and put them into the open batch. `encoded` are their encodings, of which the batch's is made: a record is encoded once."""
        parts = self._open
        assert parts is not None, "no batch is open"
        apply_records(self, records)
        for each in encoded:
            parts += (message_head(RECORDS, len(each)), each)

    def seal(self) -> ProposedBatch:
        """The open batch is complete, and has its bytes, as those of `propose`."""
        parts, self._open = self._open, None
        assert parts is not None, "no batch is open"
        assert len(parts) > 1, "a batch without records"
        sealed = ProposedBatch(self.index, b"".join(parts))
        self._proposed.append(sealed)
        return sealed

    def begin(self, batch: RecordBatch) -> None:
        """See `View.begin`."""
        self._newest = (batch.index, batch.cluster_time_ms)
        self._proposed.append(ProposedBatch(batch.index, batch.SerializeToString(deterministic=True)))

    def commit(self, index: int) -> list[ProposedBatch]:
        """Everything up to `index` is committed: apply it to the image, and forget what only it touched.

        Returns:
            The batches that were committed by this, for subscribers.
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
        for table in self._tables():
            table.forget(index)
        return committed

    def drop(self) -> None:
        """Forget everything that is not committed, as if it had never been proposed."""
        self._proposed.clear()
        self._open = self._newest = None
        for table in self._tables():
            table.forget(None)

    def _tables(self) -> Iterator[OverlayTable[Any, Any]]:
        return iter(self._all_tables)


class OverlayTable(TouchedRows[K, R]):
    """Fulfils `ponor_metadata.tables.Table`: the image's table with the touched rows put over it."""

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
        # Keys of one table are of one type and ordered; the type variable cannot say so.
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
