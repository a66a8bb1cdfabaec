"""The overlay: the image as it will be when everything that the leader proposed is committed.

What lives here: the rows that uncommitted batches touched, kept beside the image. The leader validates new requests against it; nothing else
ever reads it. A commit applies the batch to the image by the same code as on every other process and forgets the rows that no later batch
touched; dropping forgets all, which is the same as if nothing had been proposed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from ponor.metadata.v1.records_pb2 import Record, RecordBatch

from ponor_metadata.apply import apply_batch, apply_records, require_next
from ponor_metadata.image import MetadataImage
from ponor_metadata.tables import Index, Schema, Table

K = TypeVar("K")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 -- the key of an index


@dataclass(frozen=True, slots=True)
class ProposedBatch:
    """A batch that is not committed yet, and its bytes as they stand in the log."""

    batch: RecordBatch
    encoded: bytes


class Overlay:
    """Fulfils `ponor_metadata.view.View` for the leader."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._proposed: deque[ProposedBatch] = deque()
        self._open: RecordBatch | None = None
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
        self._all_tables = [value for value in vars(self).values() if isinstance(value, OverlayTable)]

    @property
    def image(self) -> MetadataImage:
        """What is committed."""
        return self._image

    @property
    def index(self) -> int:
        """Index of the open batch, else of the newest proposed one, or the image's."""
        if self._open is not None:
            return self._open.index
        return self._proposed[-1].batch.index if self._proposed else self._image.index

    @property
    def cluster_time_ms(self) -> int:
        """Cluster clock of that batch."""
        if self._open is not None:
            return self._open.cluster_time_ms
        return self._proposed[-1].batch.cluster_time_ms if self._proposed else self._image.cluster_time_ms

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
        self._open = batch

    def extend(self, records: Sequence[Record]) -> None:
        """Apply records to this view only, and put them into the open batch."""
        batch = self._open
        assert batch is not None, "no batch is open"
        apply_records(self, records)
        batch.records.extend(records)

    def seal(self) -> ProposedBatch:
        """The open batch is complete, and has its bytes, as those of `propose`."""
        batch, self._open = self._open, None
        assert batch is not None, "no batch is open"
        assert batch.records, "a batch without records"
        self.begin(batch)
        return self._proposed[-1]

    def begin(self, batch: RecordBatch) -> None:
        """See `View.begin`."""
        self._proposed.append(ProposedBatch(batch, batch.SerializeToString(deterministic=True)))

    def commit(self, index: int) -> list[ProposedBatch]:
        """Everything up to `index` is committed: apply it to the image, and forget what only it touched.

        Returns:
            The batches that were committed by this, for subscribers.
        """
        newest = self._proposed[-1].batch.index if self._proposed else self._image.index
        assert index <= newest, f"batch {index} was never proposed; the newest is {newest}"
        committed: list[ProposedBatch] = []
        while self._proposed and self._proposed[0].batch.index <= index:
            proposed = self._proposed.popleft()
            self._image.apply_committed(proposed.encoded, proposed.batch)
            committed.append(proposed)
        for table in self._tables():
            table.forget(index)
        return committed

    def drop(self) -> None:
        """Forget everything that is not committed, as if it had never been proposed."""
        self._proposed.clear()
        self._open = None
        for table in self._tables():
            table.forget(None)

    def _tables(self) -> Iterator[OverlayTable[Any, Any]]:
        return iter(self._all_tables)


class Merged(Sequence[R], Generic[R]):
    """Rows of the image's index without those at `hidden` orders, and `shown` among them. Made as it is read: few look at all of it."""

    __slots__ = ("_base", "_hidden", "_order", "_shown")

    def __init__(
        self, base: Sequence[R], hidden: frozenset[Any], shown: list[R], order: Callable[[R], Any]
    ) -> None:
        self._base = base
        self._hidden = hidden
        self._shown = shown
        self._order = order

    def __len__(self) -> int:
        return len(self._base) - len(self._hidden) + len(self._shown)

    @overload
    def __getitem__(self, i: int) -> R: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[R]: ...

    def __getitem__(self, i: int | slice) -> R | Sequence[R]:
        return list(self)[i]

    def __iter__(self) -> Iterator[R]:
        left = (row for row in self._base if self._order(row) not in self._hidden)
        return heapq.merge(left, self._shown, key=self._order)


class OverlayTable(Generic[K, R]):
    """Fulfils `ponor_metadata.tables.Table`: the image's table with the touched rows put over it."""

    __slots__ = (
        "_base",
        "_changes",
        "_index_keys",
        "_missing",
        "_missing_at",
        "_moved",
        "_notes",
        "_overlay",
        "_schema",
        "_touched",
    )

    def __init__(self, base: Table[K, R], overlay: Overlay) -> None:
        self._base = base
        self._schema = base.schema
        self._overlay = overlay
        # What uncommitted batches made of a row (None: deleted), and the newest of them.
        self._touched: dict[K, tuple[R | None, int]] = {}
        # Per index: under which index keys touched rows stand or stood, which rows, and the newest batch that said so.
        self._index_keys: dict[str, dict[Any, dict[K, int]]] = {
            index.name: {} for index in self._schema.indexes
        }
        # What was touched and noted by which batch, oldest first: a commit looks at what its batches did, not at all that is in flight.
        self._changes: deque[tuple[int, K]] = deque()
        self._notes: deque[tuple[int, dict[Any, dict[K, int]], Any, K]] = deque()
        self._moved = [(index.keys, self._index_keys[index.name]) for index in self._schema.indexes]
        # The key that was last looked for in the image's table in vain, and the image's index then: what is about to be put is asked for several times before.
        self._missing: K | None = None
        self._missing_at = 0

    @property
    def schema(self) -> Schema[K, R]:
        return self._schema

    @property
    def touched_rows(self) -> int:
        """How many rows uncommitted batches changed."""
        return len(self._touched)

    def get(self, key: K) -> R | None:
        touched = self._touched.get(key)
        if touched is not None:
            return touched[0]
        index = self._overlay.image.index
        if key == self._missing and index == self._missing_at:
            return None
        row = self._base.get(key)
        if row is None:
            self._missing, self._missing_at = key, index
        return row

    def __contains__(self, key: object) -> bool:
        # Keys of another type are in neither dict.
        return self.get(key) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        appeared = sum((row is not None) - (key in self._base) for key, (row, _) in self._touched.items())
        return len(self._base) + appeared

    def __iter__(self) -> Iterator[R]:
        if not self._touched:
            return iter(self._base)
        rows = {self._schema.key(row): row for row in self._base}
        for key, (row, _) in self._touched.items():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
        # Keys of one table are of one type and ordered; the type variable cannot say so.
        return iter([rows[key] for key in sorted(rows)])  # type: ignore[type-var]

    def find(self, index: Index[I, R], index_key: I) -> Sequence[R]:
        base = self._base.find(index, index_key)
        moved = self._index_keys[index.name].get(index_key)
        if not moved:
            return base
        hidden = [under for key in moved if (under := self._base.get(key)) is not None]
        shown = [row for key in moved if (row := self._touched[key][0]) is not None]
        return Merged(
            base,
            frozenset(index.order(row) for row in hidden if index_key in index.keys(row)),
            sorted((row for row in shown if index_key in index.keys(row)), key=index.order),
            index.order,
        )

    def put(self, row: R) -> None:
        key, batch_index = self._schema.key(row), self._overlay.index
        if self._moved:
            old = self.get(key)
            if old is not None:
                self._note(key, old, batch_index)
            self._note(key, row, batch_index)
        self._touched[key] = (row, batch_index)
        self._changes.append((batch_index, key))

    def amend(self, row: R) -> None:
        self.put(row)

    def delete(self, key: K) -> None:
        present = self.get(key)
        if present is None:
            raise KeyError(key)
        batch_index = self._overlay.index
        self._note(key, present, batch_index)
        self._touched[key] = (None, batch_index)
        self._changes.append((batch_index, key))

    def _note(self, key: K, row: R, batch_index: int) -> None:
        for index_keys, moved in self._moved:
            for index_key in index_keys(row):
                keys = moved.get(index_key)
                if keys is None:
                    keys = moved[index_key] = {}
                keys[key] = batch_index
                self._notes.append((batch_index, moved, index_key, key))

    def forget(self, index: int | None) -> None:
        """Forget the rows that no batch above `index` touched; None: all rows."""
        self._missing = None
        if index is None:
            self._touched.clear()
            self._changes.clear()
            self._notes.clear()
            for moved in self._index_keys.values():
                moved.clear()
            return
        changes, notes = self._changes, self._notes
        while changes and changes[0][0] <= index:
            _, key = changes.popleft()
            touched = self._touched.get(key)
            if touched is not None and touched[1] <= index:
                del self._touched[key]
        # A row that a later batch touches again is noted by that batch where it stood before it, which is where the image shows it now.
        while notes and notes[0][0] <= index:
            _, moved, index_key, key = notes.popleft()
            keys = moved.get(index_key)
            if keys is not None and keys.get(key, index + 1) <= index:
                del keys[key]
                if not keys:
                    del moved[index_key]
